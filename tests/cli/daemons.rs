//! Requests with the variables of a lock whose command has left behind what makes them: a daemon
//! hands the variables to whatever it starts, for whomever.

use std::fs;
use std::path::Path;
use std::process::Command;

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, wait_until};

/// The line of a request that is not nested.
const LINE: &str = "rlock: not nested: RLOCK_SESSION comes from a daemon that the command of a lock has left behind, so \
                    the request waits like any other; start the daemon by 'env -u RLOCK_SESSION'\n";

/// What `ask` asks when somebody writes to `go`, which happens when a daemon has lost its parent.
const QUESTIONS: [&str; 4] =
    ["exec -n k -- true", "exec --nested -n k -- true", "held k", "downgrade --resource k read"];

/// The start of an inner rlock that runs until the job has its answers.
const INNER: &str =
    "\"$RLOCK\" exec j -- sh -c 'setsid -f sh ask; echo >left; exec sleep 1000' & job=$!; read left <left";

/// Writes the scripts. An earlier case has left its files.
fn prepare(lab: &Lab) {
    let folder = lab.folder();
    for name in ["asks", "answers", "said", "go", "answered", "end", "left"] {
        let _ = fs::remove_file(folder.join(name));
    }
    let fifos = Command::new("mkfifo").args(["go", "answered", "end", "left"]).current_dir(folder).status();
    assert!(fifos.expect("mkfifo can be started").success());
    let ask: String =
        QUESTIONS.iter().map(|words| format!("\"$RLOCK\" {words} 2>>said; echo $? >>answers\n")).collect();
    let ask = format!("exec >/dev/null 2>&1; echo $$ >asks; read go <go\n{ask}echo >answered");
    fs::write(folder.join("ask"), ask).expect("the folder is ours");
    fs::write(folder.join("wait_for_ask"), "until test -s asks; do sleep .01; done").expect("the folder is ours");
}

fn rlock(lab: &Lab, words: &[&str]) -> Command {
    let mut rlock = lab.rlock(words);
    rlock.current_dir(lab.folder()).env("RLOCK", RLOCK);
    rlock
}

/// The exit codes of the questions that what `start` has started below a hold of `k` asks, and what
/// its requests have said. The command of the hold is `words` and a script.
fn asked(lab: &Lab, words: &[&str], start: &str) -> (String, String) {
    prepare(lab);
    let job = format!("{start}\necho >go; read answered <answered; test -z \"$job\" || kill $job; cat answers");
    let ran = Ran::of(&mut rlock(lab, &[&["exec", "k", "--"], words, &["-c", &job]].concat()));
    let said = fs::read_to_string(lab.folder().join("said")).expect("a question was asked");
    (ran.stdout.replace('\n', " "), said)
}

/// "What the command leaves in the background in its own session, as `(job &)` does, is a
/// descendant still, and so is a process in another session whose parent lives."
#[test]
fn request_below_the_command_or_an_orphan_in_its_session_is_nested() {
    on_both(|lab| {
        for (words, start) in [
            (&["sh"][..], "sh ask &"),
            (&["sh"], "setsid sh ask &"),
            (&["setsid", "-w", "sh"], "sh ask &"),
            (&["sh"], "(sh ask &)"),
            (&["sh"], "(true &); (sh ask &)"),
            (&["setsid", "-w", "sh"], "(sh ask &)"),
            // An inner rlock has not left behind what began before its command.
            (&["bash"], "bash -c 'setsid sh ask & exec \"$RLOCK\" exec j -- sleep 1000' & job=$!"),
        ] {
            assert_eq!(asked(lab, words, start), ("0 0 0 0 ".to_owned(), String::new()), "{words:?} {start}");
        }
    });
}

/// "A request below it is not a descendant of the lock of that command as long as that is held, nor
/// of the locks around it. The request waits like any other, and a line says why."
#[test]
fn request_below_a_daemon_is_not_nested_and_a_line_says_why() {
    on_both(|lab| {
        for (words, start) in [
            (&["sh"][..], "setsid -f sh ask"),
            (&["sh"], "(setsid sh ask &)"),
            (&["sh"], "setsid sh -c 'sh ask & sh wait_for_ask' & wait"),
            (&["setsid", "-w", "sh"], "setsid -f sh ask"),
            (&["sh"], INNER),
        ] {
            let (codes, said) = asked(lab, words, start);
            assert_eq!(codes, "75 76 1 64 ", "{words:?} {start}: {said}");
            let lines: Vec<_> = said.split_inclusive('\n').collect();
            let [line, busy, again, nested, held, downgrade] = lines[..] else { panic!("{start}: {said}") };
            assert_eq!([line, again], [LINE; 2], "{start}");
            assert!(busy.starts_with("rlock: busy: ") && !busy.contains("variables"), "{busy}");
            assert!(nested.starts_with("rlock: not locked: no rlock around this command holds 'k'"), "{nested}");
            assert!(held.starts_with("rlock: not below any rlock: RLOCK_SESSION comes from a daemon"), "{held}");
            assert!(downgrade.contains("not inside a hold: RLOCK_SESSION comes from a daemon"), "{downgrade}");
        }
        // The session of an inner rlock that has ended is no lock.
        let (codes, said) = asked(lab, &["sh"], "\"$RLOCK\" exec j -- setsid -f sh ask");
        assert_eq!((codes.as_str(), said.matches(LINE).count()), ("75 76 1 65 ", 2), "{said}");
    });
}

/// The command has ended, and rlock waits for what it has left. So the daemon is the first of the
/// children of rlock.
#[test]
fn request_below_a_daemon_is_not_nested_while_the_rest_of_a_killed_command_holds_the_lock() {
    on_both(|lab| {
        prepare(lab);
        let job = "setsid -f sh ask; sh wait_for_ask; (read end <end) >/dev/null 2>&1 & echo $$; kill -KILL $$";
        let mut holder = Running::start(&mut rlock(lab, &["exec", "k", "-c", job]));
        let command = format!("/proc/{}", holder.line());
        wait_until("rlock has reaped the command", || !Path::new(&command).exists());
        let file = |name: &str| lab.folder().join(name);
        fs::write(file("go"), "").expect("the daemon reads");
        fs::read(file("answered")).expect("the daemon writes");
        let answers = fs::read_to_string(file("answers")).expect("the daemon has written");
        assert_eq!(answers.replace('\n', " "), "75 76 1 64 ");
        fs::write(file("end"), "").expect("the rest reads");
        assert_eq!(holder.end().code(), Some(137));
    });
}

/// "Where the parents in /proc lead neither to the command nor to its rlock, as over ssh(1) and in
/// a container, the variables count."
#[test]
fn request_whose_parents_do_not_lead_to_the_rlock_is_nested() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        let id = &lab.inspect(["k"])["resources"][0]["holders"][0]["session"];
        let mut rlock = lab.rlock(["exec", "-n", "k", "--", "echo", "nested"]);
        Ran::of(rlock.env("RLOCK_SESSION", id.as_str().expect("an id"))).printed("nested\n");
    });
}

/// "So do those of `rlock acquire`, which has no command."
#[test]
fn request_below_a_daemon_is_nested_in_a_lock_of_acquire() {
    on_both(|lab| {
        let script = "eval \"$(\"$RLOCK\" acquire kept --for 1h --export)\"; mkfifo go ended; setsid -f sh daemon; \
                      echo >go; read end <ended";
        let daemon = "read go <go; \"$RLOCK\" exec -n k -- true; \"$RLOCK\" exec -n kept -- true; echo $? >code; \
                      \"$RLOCK\" release; echo $? >>code; echo >ended";
        fs::write(lab.folder().join("daemon"), daemon).expect("the folder is ours");
        let ran = Ran::of(&mut rlock(lab, &["exec", "k", "-c", script]));
        let codes = fs::read_to_string(lab.folder().join("code")).expect("the daemon has written");
        assert_eq!((ran.code(), codes.as_str()), (Some(0), "0\n0\n"), "{ran:?}");
        assert_eq!(ran.stderr.matches(LINE).count(), 2, "the lock of the command does not count: {ran:?}");
        assert!(ran.stderr.contains("rlock: busy: 'k'"), "{ran:?}");
    });
}

/// "The parents lead to the command", which is setsid(1), whatever number it has: other processes
/// begin between the guardian and the command, and rlock has had children before it became rlock.
#[test]
fn request_below_a_command_in_its_own_session_is_nested_on_a_busy_machine() {
    let lab = Lab::new();
    let mut busy: Vec<_> = (0..2)
        .map(|_| Running::start(Command::new("sh").args(["-c", "trap 'exit 0' TERM; while :; do /bin/true; done"])))
        .collect();
    for _ in 0..30 {
        let script = "/bin/true; /bin/true; exec \"$RLOCK\" exec k -- setsid -w \"$RLOCK\" exec -n k -- true";
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        Ran::of(shell.env("RLOCK", RLOCK).args(["-c", script])).silently(0);
    }
    busy.iter_mut().for_each(|it| it.signal(rustix::process::Signal::TERM));
}
