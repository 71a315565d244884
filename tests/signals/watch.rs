//! `rlock inspect --watch` on a terminal.

use rustix::process::Signal;

use crate::session::Session;
use rlock_testkit::Lab;

const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?25h\x1b[?1049l";

/// Starts a watch between two lines that tell the settings of the terminal.
fn watch(lab: &Lab, words: &str) -> Session {
    let script = format!("stty -g; rlock inspect --watch {words}; code=$?; stty -g; echo \"ended with $code\"");
    let mut session = Session::on_terminal(lab, ["sh", "-c", &script]);
    session.output.expect(ENTERED);
    session
}

/// Fails unless the watch has ended with this code and restored the terminal.
fn assert_restored(session: &mut Session, code: u8) {
    session.output.expect(&format!("ended with {code}\r\n"));
    let all = session.output.all();
    let settings: Vec<_> = all.lines().filter(|line| line.matches(':').count() > 10).map(last_word).collect();
    assert!(settings.len() == 2 && settings[0] == settings[1], "{settings:?} in {all:?}");
    assert!(all.contains(LEFT), "{all:?}");
}

/// The settings may follow the sequence that leaves the screen.
fn last_word(line: &str) -> &str {
    line.trim().rsplit('l').next().unwrap_or(line)
}

/// "redrawn on change, until q or Ctrl-C".
#[test]
fn table_is_redrawn_on_change_until_q_or_ctrl_c() {
    for key in ["q", "\x03"] {
        let lab = Lab::new();
        let mut session = watch(&lab, "");
        session.output.expect("nobody holds or waits");
        let holder = lab.hold("k");
        session.output.expect("1 held, 0 waiting");
        session.output.expect(&format!("  {}  ", holder.pid()));
        drop(holder.end());
        session.output.expect("0 held, 0 waiting");
        session.types(key);
        assert_restored(&mut session, 0);
    }
}

/// "The terminal must be restored on every exit."
#[test]
fn terminal_is_restored_when_a_signal_ends_the_watch() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let lab = Lab::new();
        let mut session = watch(&lab, "--tree");
        session.output.expect("nobody holds or waits");
        let watch = session.members().into_iter().find(|pid| *pid != session.pid()).expect("the watch runs");
        rustix::process::kill_process(watch, signal).expect("the watch runs");
        assert_restored(&mut session, code);
    }
}
