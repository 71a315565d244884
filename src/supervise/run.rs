//! The loop: tells the machine what happens and does what it says, in one thread and without polling by time.
//!
//! It decides nothing. One `poll` waits for the signals, for the descriptors of the request at the store, and for the machine's
//! next timer.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

pub use super::child::CommandSpec;
use super::child::{self, Change, Child};
use super::event::{Action, Event, Group};
use super::machine::{Machine, Settings};
use super::signals::{Arrival, Signals};
use super::terminal::{StatusLine, group_for_command, one_line};
use crate::words::reason;

/// How a request stands at its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the queue.
    Waiting,
    /// Granted; the tokens, claim by claim.
    Granted(Vec<u64>),
    /// The grant, or the place in the queue, was taken away; one line that says how.
    Lost(String),
}

/// What the loop needs of a request at the store, from the moment that it is queued or granted.
pub trait Hold {
    /// Descriptors whose readiness means: call [`check`](Self::check). An error or a hang-up counts as ready.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// What became of the request; never blocks. It may be asked more often than something happens.
    ///
    /// # Errors
    /// The store's, one line. After an error, or after [`Standing::Lost`], it is not asked again.
    fn check(&mut self) -> anyhow::Result<Standing>;

    /// Leaves: gives back the grant or the place in the queue, whichever there is. One that was lost is no error.
    ///
    /// # Errors
    /// The store's, one line.
    fn release(&mut self) -> anyhow::Result<()>;

    /// One line that says who holds what this request waits for.
    ///
    /// # Errors
    /// The store's; the line is left out then.
    fn blocked_by(&mut self) -> anyhow::Result<String>;
}

/// What the command line says about the supervision.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// From SIGTERM to SIGKILL when the grant is lost.
    pub grace: Duration,
    /// How long to stay in the queue; `None` for as long as it takes.
    pub wait: Option<Duration>,
    /// The exit code when the wait is over.
    pub busy_code: u8,
    /// Whether a wait that lasts is shown: standard error is a terminal, and nobody asked for quiet.
    pub notice: bool,
    /// Whether the line that says "busy" is left out.
    pub quiet: bool,
}

/// Waits for the grant, runs the command under it, releases, and returns the exit code.
///
/// `first` is how the request stood when it was made; `signals` were installed before that. `environment` gives the variables
/// for the command, once the tokens are known. Whatever there is to say has been said on standard error when this returns.
///
/// # Errors
/// A failure of the kernel that leaves nothing to supervise with. A command that still runs dies with rlock.
pub fn run(
    hold: &mut dyn Hold,
    first: Standing,
    command: CommandSpec,
    environment: impl FnOnce(&[u64]) -> Vec<(OsString, OsString)>,
    options: Options,
    signals: Signals,
) -> anyhow::Result<u8> {
    supervise(hold, first, command, environment, options, signals, group_for_command(), &mut io::stderr())
}

#[expect(clippy::too_many_arguments, reason = "`run` with what it finds out itself, so that tests can say it")]
fn supervise<E>(
    hold: &mut dyn Hold,
    first: Standing,
    command: CommandSpec,
    environment: E,
    options: Options,
    signals: Signals,
    group: Group,
    messages: &mut dyn Write,
) -> anyhow::Result<u8>
where
    E: FnOnce(&[u64]) -> Vec<(OsString, OsString)>,
{
    let Options { grace, wait, busy_code, notice, quiet } = options;
    let machine = Machine::new(Settings { group, grace, wait, busy_code, notice });
    let mut supervision = Supervision {
        hold,
        asks: true,
        tokens: Vec::new(),
        failure: String::new(),
        command,
        environment: Some(environment),
        group,
        child: None,
        signals,
        machine,
        quiet,
        line: StatusLine::default(),
        messages,
        exit: None,
    };
    // What ended before the signals were installed has told nobody.
    child::reap_inherited();
    supervision.standing(Ok(first))?;
    loop {
        if let Some(code) = supervision.exit {
            return Ok(code);
        }
        supervision.turn()?;
    }
}

struct Supervision<'a, E> {
    hold: &'a mut dyn Hold,
    /// Whether the store may still have something to say.
    asks: bool,
    tokens: Vec<u64>,
    /// What failed last, in words.
    failure: String,
    command: CommandSpec,
    environment: Option<E>,
    group: Group,
    child: Option<Child>,
    signals: Signals,
    machine: Machine,
    quiet: bool,
    line: StatusLine,
    messages: &'a mut dyn Write,
    exit: Option<u8>,
}

impl<E> Supervision<'_, E>
where
    E: FnOnce(&[u64]) -> Vec<(OsString, OsString)>,
{
    /// Waits for something to happen and tells the machine.
    ///
    /// The order matters where several things have: signals first, for they cancel a grant that came with them; the store
    /// before the command, so that a grant that was lost is lost even if the command ended in the same instant.
    fn turn(&mut self) -> anyhow::Result<()> {
        let store_is_ready = self.wait()?;
        let child_changed = self.take_signals()?;
        if store_is_ready && self.asks {
            let standing = self.hold.check();
            self.standing(standing)?;
        }
        if child_changed {
            self.look_at_child()?;
        }
        self.on(Event::Tick)
    }

    /// Sleeps until a descriptor is ready or a timer has run out; tells whether the store has something to say.
    fn wait(&self) -> anyhow::Result<bool> {
        let descriptors = if self.asks { self.hold.descriptors() } else { Vec::new() };
        let mut polled = Vec::with_capacity(1 + descriptors.len());
        polled.push(PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN));
        polled.extend(descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)));
        let timer = self.machine.next_timeout().map(|at| at.saturating_sub(now()));
        let timeout = if self.signals.has_more() { Some(Duration::ZERO) } else { timer };
        // A time that the kernel can't express is longer than anybody waits.
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => Ok(polled[1..].iter().any(|descriptor| !descriptor.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("cannot wait for signals and the store"),
        }
    }

    /// Tells the machine of the signals that have come; says whether the command is to be looked at.
    fn take_signals(&mut self) -> anyhow::Result<bool> {
        let mut child_changed = false;
        while let Some(arrival) = self.signals.next() {
            match arrival {
                Arrival::Child => child_changed = true,
                Arrival::Signal(signal, source) => {
                    let sender = source.sender(signal, self.child.as_ref().map(Child::pid));
                    self.on(Event::Signal { signal, sender })?;
                }
            }
        }
        Ok(child_changed)
    }

    fn standing(&mut self, standing: anyhow::Result<Standing>) -> anyhow::Result<()> {
        let event = match standing {
            Ok(Standing::Waiting) => Event::Queued,
            Ok(Standing::Granted(tokens)) => {
                self.tokens = tokens;
                Event::Granted
            }
            Ok(Standing::Lost(reason)) => {
                self.asks = false;
                self.failure = reason;
                Event::Lost
            }
            // Its descriptors may stay ready for ever, and asking again would turn the loop into a busy one.
            Err(error) => {
                self.asks = false;
                self.failure = format!("{error:#}");
                Event::StoreFailed
            }
        };
        self.on(event)
    }

    fn look_at_child(&mut self) -> anyhow::Result<()> {
        if self.child.is_none() {
            child::reap_inherited();
        }
        let Some(child) = &mut self.child else { return Ok(()) };
        // One look for each SIGCHLD: what changes after it brings another, and comes after the signals that were noted meanwhile.
        match child.look().context("cannot see what became of the command")? {
            None => Ok(()),
            Some(Change::Stopped(stop)) => self.on(Event::CommandStopped(stop)),
            Some(Change::Ended(ended)) => self.on(Event::Ended(ended)),
        }
    }

    fn on(&mut self, event: Event) -> anyhow::Result<()> {
        for action in self.machine.on(event, now()) {
            self.perform(action)?;
        }
        Ok(())
    }

    fn perform(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Start => self.start()?,
            Action::StopSelf(stop) => self.signals.stop_self(stop).context("cannot stop")?,
            Action::Release => self.release(),
            Action::ShowWaiting => self.show_waiting(),
            // Nothing that can't be said may keep the lock held: that goes for all the messages here.
            Action::HideWaiting => drop(self.line.hide(self.messages)),
            Action::ReportBusy => self.report_busy(),
            Action::ReportFailure => self.say("", &self.failure.clone()),
            Action::Warn => self.say("warning: ", &self.failure.clone()),
            Action::Exit(code) => self.exit = Some(code),
            Action::ExitBy(signal) => {
                self.signals.end_self(signal);
                self.exit = Some(signal.exit_code());
            }
            Action::Pass(_) | Action::PassGroup(_) | Action::Terminate | Action::Kill | Action::Reap => {
                self.perform_on_child(action)?;
            }
        }
        Ok(())
    }

    fn perform_on_child(&mut self, action: Action) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match action {
            Action::Pass(signal) => child.pass(signal),
            Action::PassGroup(signal) => child.pass_group(signal),
            Action::Terminate => child.terminate(),
            Action::Kill => child.kill(),
            _ => child.reap().context("cannot reap the command")?,
        }
        Ok(())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        self.take_signals()?;
        if !self.machine.may_start() {
            return Ok(());
        }
        let environment = self.environment.take().map_or_else(Vec::new, |environment| environment(&self.tokens));
        match Child::start(&self.command, environment, self.group, &self.signals) {
            Ok(child) => {
                self.child = Some(child);
                self.on(Event::Started)
            }
            Err(error) => {
                self.failure = error.text;
                self.on(Event::StartFailed(error.code))
            }
        }
    }

    fn release(&mut self) {
        if let Err(error) = self.hold.release() {
            self.say("warning: ", &format!("could not release, so it is free only when rlock has ended: {error:#}"));
        }
    }

    fn show_waiting(&mut self) {
        if let Ok(holder) = self.hold.blocked_by() {
            let _ = self.line.show(&format!("rlock: waiting: {holder}"), self.messages);
        }
    }

    fn report_busy(&mut self) {
        if !self.quiet {
            let holder = self.hold.blocked_by().unwrap_or_else(|_| "not granted within the wait".to_owned());
            self.say("busy: ", &holder);
        }
    }

    fn say(&mut self, kind: &str, text: &str) {
        let _ = writeln!(self.messages, "rlock: {kind}{}", one_line(&reason(&text)));
    }
}

/// The time since the start of the machine, suspend included.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{PipeReader, PipeWriter, Read, pipe};
    use std::os::fd::AsFd;
    use std::path::Path;

    use rustix::process::{getpid, kill_process};

    use super::super::event::Signal;
    use super::super::signals::one_test_at_a_time;
    use super::*;

    /// A store that says what a test writes into a pipe: `w`aiting, `g`ranted, `l`ost; the end of the pipe is its failure.
    struct Fake {
        news: PipeReader,
        releases: usize,
        release_fails: bool,
    }

    impl Fake {
        fn new() -> (Self, PipeWriter) {
            let (news, writer) = pipe().unwrap();
            (Self { news, releases: 0, release_fails: false }, writer)
        }
    }

    impl Hold for Fake {
        fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
            vec![(self.news.as_fd(), PollFlags::IN)]
        }

        fn check(&mut self) -> anyhow::Result<Standing> {
            let mut byte = [0];
            anyhow::ensure!(self.news.read(&mut byte)? == 1, "the table is\nunreadable");
            Ok(match &byte {
                b"w" => Standing::Waiting,
                b"g" => Standing::Granted(vec![7, 9]),
                _ => Standing::Lost("the grant on 'k' was broken by an operator".to_owned()),
            })
        }

        fn release(&mut self) -> anyhow::Result<()> {
            self.releases += 1;
            anyhow::ensure!(!self.release_fails, "the table is full");
            Ok(())
        }

        fn blocked_by(&mut self) -> anyhow::Result<String> {
            Ok("'k' is held by somebody".to_owned())
        }
    }

    const OPTIONS: Options =
        Options { grace: Duration::from_secs(3_600), wait: None, busy_code: 75, notice: false, quiet: false };

    fn supervised(
        hold: &mut Fake,
        first: Standing,
        script: &str,
        options: Options,
        signals: Signals,
    ) -> (anyhow::Result<u8>, String) {
        let argv = ["sh", "-c", script].map(OsString::from).to_vec();
        let tokens = |tokens: &[u64]| vec![("RLOCK_TOKEN".into(), format!("{tokens:?}").into())];
        let mut messages = Vec::new();
        let command = CommandSpec { argv };
        let code = supervise(hold, first, command, tokens, options, signals, Group::Own, &mut messages);
        (code, String::from_utf8(messages).unwrap())
    }

    fn granted() -> Standing {
        Standing::Granted(vec![7, 9])
    }

    /// The script that the supervised shell runs says that it got there by opening a FIFO; opening it here waits for that.
    fn fifo(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("ready");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    }

    #[test]
    fn a_granted_command_runs_silently_and_is_released_once() {
        let _one = one_test_at_a_time();
        let (mut hold, _news) = Fake::new();
        let script = r#"[ "$RLOCK_TOKEN" = "[7, 9]" ] && exit 3"#;
        let (code, messages) = supervised(&mut hold, granted(), script, OPTIONS, Signals::install().unwrap());
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (3, "", 1));
    }

    #[test]
    fn a_waiter_runs_when_it_is_granted() {
        let _one = one_test_at_a_time();
        let (mut hold, mut news) = Fake::new();
        news.write_all(b"wg").unwrap();
        let (code, messages) = supervised(&mut hold, Standing::Waiting, "exit 5", OPTIONS, Signals::install().unwrap());
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (5, "", 1));
    }

    #[test]
    fn a_wait_that_is_over_says_who_holds_unless_quiet() {
        let _one = one_test_at_a_time();
        for (quiet, said) in [(false, "rlock: busy: 'k' is held by somebody\n"), (true, "")] {
            let (mut hold, _news) = Fake::new();
            let options = Options { wait: Some(Duration::from_millis(1)), busy_code: 11, quiet, ..OPTIONS };
            let signals = Signals::install().unwrap();
            let (code, messages) = supervised(&mut hold, Standing::Waiting, "exit 5", options, signals);
            assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (11, said, 1));
        }
    }

    #[test]
    fn a_signal_that_came_before_the_grant_leaves_nothing_started() {
        let _one = one_test_at_a_time();
        for first in [granted(), Standing::Waiting] {
            let (mut hold, mut news) = Fake::new();
            news.write_all(b"g").unwrap();
            let dir = tempfile::tempdir().unwrap();
            let mark = dir.path().join("started");
            let signals = Signals::install().unwrap();
            // To this very thread, so that it is noted when this returns.
            signal_hook::low_level::raise(Signal::Hup.kernel().as_raw()).unwrap();
            let script = format!("touch {}", mark.display());
            let (code, messages) = supervised(&mut hold, first, &script, OPTIONS, signals);
            assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (129, "", 1));
            assert!(!mark.exists());
        }
    }

    #[test]
    fn each_signal_is_passed_on() {
        let _one = one_test_at_a_time();
        for (signal, name) in [
            (Signal::Term, "TERM"),
            (Signal::Int, "INT"),
            (Signal::Hup, "HUP"),
            (Signal::Quit, "QUIT"),
            (Signal::Usr1, "USR1"),
            (Signal::Usr2, "USR2"),
            (Signal::Winch, "WINCH"),
            (Signal::Cont, "CONT"),
        ] {
            let (mut hold, _news) = Fake::new();
            let dir = tempfile::tempdir().unwrap();
            let ready = fifo(dir.path());
            let script = format!("trap 'exit 40' {name}; : > {}; while :; do sleep 0.01; done", ready.display());
            let sender = std::thread::spawn(move || {
                File::open(ready).unwrap();
                kill_process(getpid(), signal.kernel()).unwrap();
            });
            let (code, messages) = supervised(&mut hold, granted(), &script, OPTIONS, Signals::install().unwrap());
            sender.join().unwrap();
            assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (40, "", 1), "{name}");
        }
    }

    /// `sh -c 'a; b'` that dies by a passed signal takes `a` with it.
    #[test]
    fn a_passed_signal_that_kills_leaves_nobody_behind() {
        let _one = one_test_at_a_time();
        let (mut hold, _news) = Fake::new();
        let dir = tempfile::tempdir().unwrap();
        let ready = fifo(dir.path());
        // The pipe ends when the last that inherited it is gone.
        let (mut alive, held) = pipe().unwrap();
        rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
        let script = format!("sleep 1000 & : > {}; wait", ready.display());
        let sender = std::thread::spawn(move || {
            File::open(ready).unwrap();
            drop(held);
            kill_process(getpid(), Signal::Term.kernel()).unwrap();
        });
        let (code, _) = supervised(&mut hold, granted(), &script, OPTIONS, Signals::install().unwrap());
        sender.join().unwrap();
        assert_eq!((code.unwrap(), hold.releases), (143, 1));
        assert_eq!(alive.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_lost_command_is_stopped_whatever_it_makes_of_it() {
        let _one = one_test_at_a_time();
        let lost = "rlock: the grant on 'k' was broken by an operator\n";
        let cases = [("trap 'exit 0' TERM", Duration::from_secs(3_600)), ("trap '' TERM", Duration::from_millis(1))];
        for (trap, grace) in cases {
            let (mut hold, mut news) = Fake::new();
            let dir = tempfile::tempdir().unwrap();
            let ready = fifo(dir.path());
            let script = format!("{trap}; : > {}; while :; do sleep 0.01; done", ready.display());
            let breaker = std::thread::spawn(move || {
                File::open(ready).unwrap();
                news.write_all(b"l").unwrap();
                news
            });
            let options = Options { grace, ..OPTIONS };
            let (code, messages) = supervised(&mut hold, granted(), &script, options, Signals::install().unwrap());
            drop(breaker.join().unwrap());
            assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (76, lost, 1), "{trap}");
        }
    }

    #[test]
    fn a_store_that_fails_ends_a_wait_but_no_command() {
        let _one = one_test_at_a_time();
        let (mut hold, news) = Fake::new();
        drop(news);
        let signals = Signals::install().unwrap();
        let (code, messages) = supervised(&mut hold, Standing::Waiting, "exit 5", OPTIONS, signals);
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (69, "rlock: the table is?unreadable\n", 1));

        let (mut hold, news) = Fake::new();
        drop(news);
        let signals = Signals::install().unwrap();
        let (code, messages) = supervised(&mut hold, granted(), "exit 5", OPTIONS, signals);
        let warning = "rlock: warning: the table is?unreadable\n";
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases), (5, warning, 1));
    }

    #[test]
    fn a_failed_release_keeps_the_exit_code_and_warns() {
        let _one = one_test_at_a_time();
        let (mut hold, _news) = Fake::new();
        hold.release_fails = true;
        let (code, messages) = supervised(&mut hold, granted(), "exit 5", OPTIONS, Signals::install().unwrap());
        assert_eq!(
            (code.unwrap(), messages.as_str()),
            (5, "rlock: warning: could not release, so it is free only when rlock has ended: the table is full\n")
        );
    }

    #[test]
    fn a_command_that_cannot_run_is_told_and_released() {
        let _one = one_test_at_a_time();
        let (mut hold, _news) = Fake::new();
        let command = CommandSpec { argv: vec!["rlock-no-such-program".into()] };
        let mut messages = Vec::new();
        let signals = Signals::install().unwrap();
        let none = |_: &[u64]| vec![];
        let code = supervise(&mut hold, granted(), command, none, OPTIONS, signals, Group::Own, &mut messages).unwrap();
        let said = "rlock: cannot run 'rlock-no-such-program': not found\n";
        assert_eq!((code, String::from_utf8(messages).unwrap().as_str(), hold.releases), (127, said, 1));
    }
}
