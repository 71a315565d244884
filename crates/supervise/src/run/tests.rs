//! Tests the loop with real commands and signals, and a store that the tests play themselves.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::event::{Timespec, poll};
use rustix::process::{getpid, kill_process};

use super::super::event::{Group, Signal};
use super::super::machine::{Notice, Skip};
use super::super::report::Outcome;
use super::super::signals::one_test_at_a_time;
use super::*;
use rlock_model::deadlock::Reading;
use rlock_model::mode::Mode;
use rlock_model::op::Refusal;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{Claim, Job, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::sessions::{Report, Sessions};
use rlock_store::{self as store, AcquireOptions, Obstruction, Released, Standing};

/// A fake store. It reports `first`, and then the states that a test writes to a pipe: `a`sking,
/// `w`aiting, `g`ranted or `l`ost. At the end of the pipe, the store fails.
pub(crate) struct Fake {
    first: Option<Standing>,
    news: PipeReader,
    releases: Rc<Cell<usize>>,
    reports: VecDeque<(SessionId, Report)>,
    release_fails: bool,
    /// Whether a release finds that the grant was revoked.
    is_gone: bool,
    lease: Option<Lease>,
    trouble: Option<String>,
    /// The state of the request when its wait is over, if it has not left the queue.
    at_end: Option<Standing>,
}

struct Lease {
    ttl: Duration,
    /// The instant of the next renewal, and the number of renewals that still succeed.
    renew_at: Boottime,
    renewals: u32,
}

impl Fake {
    pub(crate) fn new(first: Standing) -> (Self, PipeWriter) {
        let (news, writer) = pipe().unwrap();
        let fake = Self {
            first: Some(first),
            news,
            releases: Rc::default(),
            reports: VecDeque::new(),
            release_fails: false,
            is_gone: false,
            lease: None,
            trouble: None,
            at_end: None,
        };
        (fake, writer)
    }

    /// A store with a grant for `ttl`. It renews the grant `renewals` times, each time after a
    /// third of `ttl`.
    fn leased(ttl: Duration, renewals: u32) -> (Self, PipeWriter) {
        let (mut fake, writer) = Self::new(Standing::Asking);
        fake.lease = Some(Lease { ttl, renew_at: Boottime::now() + ttl / 3, renewals });
        fake.first = Some(fake.renewed().unwrap());
        fake.trouble = Some("the server is\nsilent".to_owned());
        (fake, writer)
    }

    /// The request of a process with this store, of which the number of releases is left.
    pub(crate) fn handle(&mut self) -> Handle {
        let left = Self { releases: Rc::clone(&self.releases), ..Self::new(Standing::Asking).0 };
        let claims = vec![claim()];
        let (process, job) = (Process::default(), Job::default());
        let request = Request { session: SESSION, ancestors: vec![], claims, wait: true, terms: None, job, process };
        let store = std::mem::replace(self, left);
        Handle::new(Box::new(store), request, AcquireOptions::default()).unwrap()
    }

    /// The state that the store reports next, if there is news.
    fn next_standing(&mut self) -> Result<Standing, store::Error> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.renewals > 0 && lease.renew_at <= Boottime::now())
        {
            lease.renewals -= 1;
            return Ok(self.renewed().unwrap());
        }
        let mut byte = [0];
        if self.news.read(&mut byte).unwrap() == 0 {
            return Err(store::Error::Unavailable("the table is\nunreadable".into()));
        }
        Ok(match &byte {
            b"a" => Standing::Asking,
            b"w" => Standing::Waiting,
            b"g" => granted(),
            _ => Standing::Lost,
        })
    }

    /// The result of a renewal at this instant.
    fn renewed(&mut self) -> Option<Standing> {
        let lease = self.lease.as_mut()?;
        lease.renew_at = Boottime::now() + lease.ttl / 3;
        Some(Standing::Granted(Grant {
            tokens: vec![7, 9],
            deadline: Some(Boottime::now() + lease.ttl),
            ..Grant::default()
        }))
    }
}

impl Sessions for Fake {
    fn acquire(&mut self, _: Request, _: AcquireOptions) {}

    fn release(&mut self, id: SessionId, _: Option<End>, _: bool) {
        self.releases.update(|releases| releases + 1);
        let result = match (self.release_fails, self.is_gone) {
            (true, _) => Err(store::Error::Unavailable("the table is full".into())),
            (false, true) => Ok(Released::Lost),
            (false, false) => Ok(Released::Done),
        };
        self.reports.push_back((id, Report::Released(result)));
    }

    fn give_up(&mut self, id: SessionId) {
        let standing = self.at_end.take().unwrap_or_else(|| {
            self.releases.update(|releases| releases + 1);
            Standing::Busy { obstructions: Vec::new(), streak: None }
        });
        self.reports.push_back((id, Report::Standing(Ok(standing))));
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        vec![(self.news.as_fd(), PollFlags::IN)]
    }

    fn timeout(&self) -> Option<Boottime> {
        self.lease.as_ref().filter(|lease| lease.renewals > 0).map(|lease| lease.renew_at)
    }

    fn advance(&mut self) {
        if self.reports.is_empty() {
            assert_eq!(self.releases.get(), 0, "a released request is asked for no more");
            let standing = self.next_standing();
            let reported = Some(standing).filter(|standing| !matches!(standing, Ok(Standing::Asking)));
            self.reports.extend(reported.map(|standing| (SESSION, Report::Standing(standing))));
        }
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.reports.pop_front()
    }

    fn close(&mut self) {}

    fn inspect(&mut self, _: &[Resource]) -> Result<Vec<Obstruction>, store::Error> {
        Ok(Vec::new())
    }

    fn read(&mut self, _: &[Resource]) -> Result<Option<Reading>, store::Error> {
        Ok(None)
    }

    fn history(&mut self, _: &Resource, _: u32) -> Result<Vec<Remembered>, store::Error> {
        Ok(Vec::new())
    }

    fn place(&self, _: SessionId) -> Option<u64> {
        None
    }

    fn trouble(&self, _: SessionId) -> Option<String> {
        self.trouble.clone()
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.news.as_fd()]
    }
}

const SESSION: SessionId = SessionId([5; 16]);

const SETTINGS: Settings = Settings {
    group: Group::Own,
    grace: Duration::from_secs(3_600),
    wait: None,
    conflict_exit_code: 75,
    notice: Notice::Never,
    quiet: false,
    verbose: false,
    max_runtime: None,
    skip: Skip::Never,
    has_spare: false,
    has_else: false,
    has_gate: false,
    sums_up: false,
    deadlock_timeout: None,
};

fn supervised(hold: &mut Fake, script: &str, settings: Settings, signals: Signals) -> (anyhow::Result<u8>, String) {
    let tokens = |granted: Granted<'_>| Ok(vec![("RLOCK_TOKEN".into(), format!("{:?}", granted.grant.tokens).into())]);
    let mut output = Vec::new();
    let task = task(&["sh", "-c", script], settings);
    let code = run(&mut hold.handle(), task, tokens, |_, _| None, signals, &mut output);
    (code, String::from_utf8(output).unwrap())
}

fn task(argv: &[&str], settings: Settings) -> Task {
    let command = CommandSpec { argv: argv.iter().map(OsString::from).collect(), session: "5e55".to_owned() };
    let (related, has_leases) = (vec![SESSION], false);
    let messages = Messages {
        claims: vec![claim()],
        related,
        has_leases,
        is_stopped: |_| false,
        is_above: |_, _| false,
        owner_above: |_| None,
        is_beside: |_| false,
        runs: None,
        own: Process { command: argv.iter().map(|word| (*word).to_owned()).collect(), ..Process::default() },
        agent: None,
        run: None,
        now: rlock_sys::clock::StoreTime::default,
    };
    let report = RunReport::new(Boottime::now(), Vec::new());
    Task {
        command,
        messages,
        settings,
        spare: OsString::new(),
        otherwise: OsString::new(),
        report,
        detector: None,
        notify: None,
        owner: None,
        gate: None,
        anew: None,
        place: None,
    }
}

fn claim() -> Claim {
    Claim { resource: Resource::new("k").unwrap(), mode: Mode::Write, span: Span::Whole, slots: None }
}

fn granted() -> Standing {
    Standing::Granted(Grant { tokens: vec![7, 9], ..Grant::default() })
}

/// Makes a FIFO by which a test waits for the supervised shell. The script and the test open it,
/// and each open waits for the other.
fn fifo(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("ready");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

#[test]
fn granted_command_runs_without_messages_and_is_released_once() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(granted());
    let script = r#"[ "$RLOCK_TOKEN" = "[7, 9]" ] && exit 3"#;
    let (code, messages) = supervised(&mut hold, script, SETTINGS, Signals::install(Group::Own).unwrap());
    assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (3, "", 1));
}

#[test]
fn waiter_runs_its_command_when_granted() {
    let _one = one_test_at_a_time();
    for first in [Standing::Asking, Standing::Waiting] {
        let (mut hold, mut news) = Fake::new(first);
        news.write_all(b"wg").unwrap();
        let (code, messages) = supervised(&mut hold, "exit 5", SETTINGS, Signals::install(Group::Own).unwrap());
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (5, "", 1));
    }
}

/// Another renewal would put the request back into the queue.
#[test]
fn released_request_is_not_renewed_while_spare_work_runs() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::leased(Duration::from_millis(1500), 9);
    (hold.first, hold.trouble) = (Some(Standing::Waiting), None);
    let wait = Some(Duration::from_millis(10));
    let settings = Settings { wait, quiet: true, has_spare: true, ..SETTINGS };
    let task = Task { spare: "sleep 1".into(), ..task(&["true"], settings) };
    let code = run(
        &mut hold.handle(),
        task,
        |_| Ok(Vec::new()),
        |_, _| None,
        Signals::install(Group::Own).unwrap(),
        &mut Vec::new(),
    );
    assert_eq!((code.unwrap(), hold.releases.get()), (75, 1));
}

#[test]
fn wait_that_ends_busy_names_the_holder_unless_quiet() {
    let _one = one_test_at_a_time();
    for (quiet, said) in
        [(false, "rlock: busy: 'k' was held a moment ago; waited 1ms; the command was not started\n"), (true, "")]
    {
        let (mut hold, _news) = Fake::new(Standing::Waiting);
        let settings = Settings { wait: Some(Duration::from_millis(1)), conflict_exit_code: 11, quiet, ..SETTINGS };
        let signals = Signals::install(Group::Own).unwrap();
        let (code, messages) = supervised(&mut hold, "exit 5", settings, signals);
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (11, said, 1));
    }
}

#[test]
fn request_that_is_granted_at_the_end_of_its_wait_runs_its_command() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(Standing::Waiting);
    hold.at_end = Some(granted());
    let settings = Settings { wait: Some(Duration::from_millis(1)), ..SETTINGS };
    let (code, messages) = supervised(&mut hold, "exit 5", settings, Signals::install(Group::Own).unwrap());
    assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (5, "", 1));
}

#[test]
fn command_is_not_started_if_its_environment_fails() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(granted());
    let (mut messages, signals) = (Vec::new(), Signals::install(Group::Own).unwrap());
    let fails = |_: Granted<'_>| Err(Failure::new(76, "lost: the cover"));
    let mut outcome = None;
    let conclude = |report: &RunReport, _: Option<&Grant>| {
        outcome = Some((report.outcome(), report.end()));
        Some("the file is full".to_owned())
    };
    let code = run(&mut hold.handle(), task(&["true"], SETTINGS), fails, conclude, signals, &mut messages).unwrap();
    let said = String::from_utf8(messages).unwrap();
    assert_eq!((code, said.as_str()), (76, "rlock: lost: the cover\nrlock: warning: the file is full\n"));
    assert_eq!((hold.releases.get(), outcome), (1, Some((Outcome::Lost, None))));
}

#[test]
fn wait_that_ends_while_the_store_is_out_of_reach_gives_the_reason() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(Standing::Waiting);
    hold.trouble = Some("the table is gone".to_owned());
    let settings = Settings { wait: Some(Duration::from_millis(1)), conflict_exit_code: 11, quiet: true, ..SETTINGS };
    let (code, messages) = supervised(&mut hold, "exit 5", settings, Signals::install(Group::Own).unwrap());
    assert_eq!(
        (code.unwrap(), messages.as_str(), hold.releases.get()),
        (69, "rlock: cannot lock 'k': the table is gone\n", 1)
    );
}

#[test]
fn signal_before_the_grant_starts_no_command() {
    let _one = one_test_at_a_time();
    for first in [Standing::Asking, granted(), Standing::Waiting] {
        let (mut hold, mut news) = Fake::new(first);
        news.write_all(b"g").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("started");
        let signals = Signals::install(Group::Own).unwrap();
        // The signal goes to this thread, so it is recorded when `raise` returns.
        signal_hook::low_level::raise(Signal::Hup.kernel().as_raw()).unwrap();
        let script = format!("touch {}", mark.display());
        let (code, messages) = supervised(&mut hold, &script, SETTINGS, signals);
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (129, "", 1));
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
        let (mut hold, _news) = Fake::new(granted());
        let dir = tempfile::tempdir().unwrap();
        let ready = fifo(dir.path());
        let script = format!("trap 'exit 40' {name}; : > {}; while :; do sleep 0.01; done", ready.display());
        let sender = std::thread::spawn(move || {
            File::open(ready).unwrap();
            kill_process(getpid(), signal.kernel()).unwrap();
        });
        let (code, messages) = supervised(&mut hold, &script, SETTINGS, Signals::install(Group::Own).unwrap());
        sender.join().unwrap();
        assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (40, "", 1), "{name}");
    }
}

/// If a passed signal kills `sh -c 'a; b'`, `a` dies too.
#[test]
fn passed_signal_that_kills_the_command_kills_its_group() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(granted());
    let dir = tempfile::tempdir().unwrap();
    let ready = fifo(dir.path());
    // The pipe ends when the last process that inherited it has ended.
    let (mut alive, held) = pipe().unwrap();
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
    let script = format!("sleep 1000 & : > {}; wait", ready.display());
    let sender = std::thread::spawn(move || {
        File::open(ready).unwrap();
        drop(held);
        kill_process(getpid(), Signal::Term.kernel()).unwrap();
    });
    let (code, _) = supervised(&mut hold, &script, SETTINGS, Signals::install(Group::Own).unwrap());
    sender.join().unwrap();
    assert_eq!((code.unwrap(), hold.releases.get()), (143, 1));
    assert_eq!(alive.read(&mut [0]).unwrap(), 0);
}

#[test]
fn command_of_a_lost_grant_is_stopped_whatever_its_exit_code() {
    let _one = one_test_at_a_time();
    let cases = [("trap 'exit 0' TERM", Duration::from_secs(3_600)), ("trap '' TERM", Duration::from_millis(1))];
    for (trap, grace) in cases {
        let (mut hold, mut news) = Fake::new(granted());
        let dir = tempfile::tempdir().unwrap();
        let ready = fifo(dir.path());
        let script = format!("{trap}; : > {}; while :; do sleep 0.01; done", ready.display());
        let breaker = std::thread::spawn(move || {
            File::open(ready).unwrap();
            news.write_all(b"l").unwrap();
            news
        });
        let settings = Settings { grace, ..SETTINGS };
        let (code, messages) = supervised(&mut hold, &script, settings, Signals::install(Group::Own).unwrap());
        drop(breaker.join().unwrap());
        let lost = "rlock: lost: 'k' was taken away, as 'rlock break' does; the command is stopped: 'sh -c ";
        assert_eq!((code.unwrap(), hold.releases.get()), (76, 1), "{trap}");
        assert!(messages.starts_with(lost), "{messages}");
    }
}

#[test]
fn store_failure_ends_a_wait_but_not_a_command() {
    let _one = one_test_at_a_time();
    let (mut hold, news) = Fake::new(Standing::Waiting);
    drop(news);
    let signals = Signals::install(Group::Own).unwrap();
    let (code, messages) = supervised(&mut hold, "exit 5", SETTINGS, signals);
    assert_eq!(
        (code.unwrap(), messages.as_str(), hold.releases.get()),
        (69, "rlock: cannot lock 'k': the table is?unreadable\n", 1)
    );

    let (mut hold, news) = Fake::new(granted());
    drop(news);
    let signals = Signals::install(Group::Own).unwrap();
    let (code, messages) = supervised(&mut hold, "exit 5", SETTINGS, signals);
    let warning = "rlock: warning: cannot lock 'k': the table is?unreadable\n";
    assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (5, warning, 1));
}

#[test]
fn release_that_finds_the_grant_missing_reports_the_loss() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(granted());
    hold.is_gone = true;
    let (code, messages) = supervised(&mut hold, "exit 0", SETTINGS, Signals::install(Group::Own).unwrap());
    assert_eq!(code.unwrap(), 76);
    let lost = "rlock: lost: 'k' was taken away, as 'rlock break' does; the command has ended, but maybe too late\n";
    assert_eq!(messages, lost);
}

#[test]
fn failed_release_warns_and_keeps_the_exit_code() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(granted());
    hold.release_fails = true;
    let (code, messages) = supervised(&mut hold, "exit 5", SETTINGS, Signals::install(Group::Own).unwrap());
    let warning = "rlock: warning: could not release 'k', held until rlock has ended: the table is full\n";
    assert_eq!((code.unwrap(), messages.as_str()), (5, warning));
}

#[test]
fn command_that_cannot_run_is_reported_and_released() {
    let _one = one_test_at_a_time();
    let (mut hold, _news) = Fake::new(granted());
    let mut messages = Vec::new();
    let signals = Signals::install(Group::Own).unwrap();
    let task = task(&["rlock-no-such-program"], SETTINGS);
    let code = run(&mut hold.handle(), task, |_| Ok(vec![]), |_, _| None, signals, &mut messages).unwrap();
    let said = "rlock: cannot run 'rlock-no-such-program': not found\n";
    assert_eq!((code, String::from_utf8(messages).unwrap().as_str(), hold.releases.get()), (127, said, 1));
}

#[test]
fn request_that_is_denied_starts_nothing_and_releases_nothing() {
    let _one = one_test_at_a_time();
    let resource = Resource::new("k").unwrap();
    let refused = || Standing::Refused(Refusal::SlotIsWhole { resource: resource.clone() });
    for (first, quiet, code, said) in [
        (refused(), true, 65, "rlock: refused: "),
        (
            Standing::Busy { obstructions: Vec::new(), streak: None },
            false,
            75,
            "rlock: busy: 'k' was held a moment ago; the command was not started\n",
        ),
        (Standing::Busy { obstructions: Vec::new(), streak: None }, true, 75, ""),
        (
            Standing::Superseded { by: Process { pid: 7, ..Process::default() }.into(), streak: None },
            false,
            75,
            "rlock: busy: the request for 'k' was superseded by @, pid 7, ''; the command was not started\n",
        ),
    ] {
        let (mut hold, _news) = Fake::new(first);
        let settings = Settings { quiet, ..SETTINGS };
        let (ended, messages) = supervised(&mut hold, "exit 5", settings, Signals::install(Group::Own).unwrap());
        assert_eq!((ended.unwrap(), hold.releases.get()), (code, 0));
        assert!(messages.starts_with(said) && messages.is_empty() == said.is_empty(), "{messages}");
    }
}

const OVERDUE: &str = "rlock: lost: the lease on 'k' was not renewed in time: the server is?silent; the command";

#[test]
fn command_without_a_renewed_lease_is_stopped_whatever_its_exit_code() {
    let _one = one_test_at_a_time();
    // The command sets its trap before the terminate instant.
    let (ttl, grace) = (Duration::from_secs(2), Duration::from_millis(500));
    // Only SIGKILL ends a command that ignores SIGTERM.
    for (trap, at_least) in [("trap 'exit 0' TERM", ttl - grace), ("trap '' TERM", ttl)] {
        let start = Boottime::now();
        let (mut hold, _news) = Fake::leased(ttl, 0);
        let script = format!("{trap}; while :; do sleep 0.01; done");
        let settings = Settings { grace, ..SETTINGS };
        let (code, messages) = supervised(&mut hold, &script, settings, Signals::install(Group::Own).unwrap());
        let said = format!("{OVERDUE} is stopped: 'sh -c {script}'\n");
        assert_eq!((code.unwrap(), messages, hold.releases.get()), (76, said, 1), "{trap}");
        assert!(Boottime::now() >= start + at_least, "{trap}");
    }
}

/// A standard error without a reader must not keep rlock from stopping the command.
#[test]
fn loss_is_reported_after_the_command_has_ended_and_the_lock_is_free() {
    /// A writer that checks at each write whether the command still lives. The command has the
    /// other end of the pipe.
    struct Late(PipeReader, Vec<u8>);

    impl Write for Late {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            // The other processes of a killed group may need a moment to end. A command that rlock
            // has not killed would stay.
            let moment = Timespec { tv_sec: 10, tv_nsec: 0 };
            let mut alive = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut alive, Some(&moment)))?;
            assert_eq!(alive[0].revents(), PollFlags::HUP, "the command still runs when rlock writes");
            self.1.write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let _one = one_test_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let ready = fifo(dir.path());
    let (alive, held) = pipe().unwrap();
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
    let script = format!("trap '' TERM; : > {}; while :; do sleep 0.01; done", ready.display());
    let (mut hold, mut news) = Fake::new(granted());
    let breaker = std::thread::spawn(move || {
        File::open(ready).unwrap();
        drop(held);
        news.write_all(b"l").unwrap();
        news
    });
    let task = task(&["sh", "-c", &script], Settings { grace: Duration::from_millis(100), ..SETTINGS });
    let mut messages = Late(alive, Vec::new());
    let signals = Signals::install(Group::Own).unwrap();
    let code = run(&mut hold.handle(), task, |_| Ok(vec![]), |_, _| None, signals, &mut messages);
    drop(breaker.join().unwrap());
    assert_eq!((code.unwrap(), hold.releases.get()), (76, 1));
    assert!(messages.1.starts_with(b"rlock: lost: 'k' was taken away"));
}

/// Until the wait is over, nothing else wakes the loop.
#[test]
fn silent_store_is_checked_at_its_timeout() {
    let _one = one_test_at_a_time();
    let start = Boottime::now();
    let (mut hold, _news) = Fake::leased(Duration::from_secs(6), u32::MAX);
    hold.first = Some(Standing::Waiting);
    // The lease is long enough for a busy machine, and the first check comes soon.
    hold.lease.as_mut().unwrap().renew_at = Boottime::now() + Duration::from_millis(100);
    let settings = Settings { grace: Duration::ZERO, wait: Some(Duration::from_secs(60)), ..SETTINGS };
    let (code, messages) = supervised(&mut hold, "exit 5", settings, Signals::install(Group::Own).unwrap());
    assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (5, "", 1));
    assert!(Boottime::now() < start + Duration::from_secs(60));
}

#[test]
fn renewal_moves_the_deadline() {
    let _one = one_test_at_a_time();
    let (ttl, grace) = (Duration::from_millis(1500), Duration::from_millis(300));
    let settings = Settings { grace, ..SETTINGS };
    let (mut hold, _news) = Fake::leased(ttl, u32::MAX);
    let (code, messages) = supervised(&mut hold, "sleep 2; exit 5", settings, Signals::install(Group::Own).unwrap());
    assert_eq!((code.unwrap(), messages.as_str(), hold.releases.get()), (5, "", 1));

    let start = Boottime::now();
    let (mut hold, _news) = Fake::leased(ttl, 2);
    let (code, messages) = supervised(&mut hold, "exec sleep 1000", settings, Signals::install(Group::Own).unwrap());
    assert_eq!((code.unwrap(), messages), (76, format!("{OVERDUE} is stopped: 'sh -c exec sleep 1000'\n")));
    assert!(Boottime::now() >= start + ttl / 3 * 2 + ttl - grace);
}

#[test]
fn lease_too_short_for_the_start_starts_no_command() {
    let _one = one_test_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("started");
    let (mut hold, _news) = Fake::leased(SETTINGS.grace, 0);
    let script = format!("touch {}", mark.display());
    let (code, messages) = supervised(&mut hold, &script, SETTINGS, Signals::install(Group::Own).unwrap());
    assert_eq!((code.unwrap(), messages, hold.releases.get()), (76, format!("{OVERDUE} was not started\n"), 1));
    assert!(!mark.exists());
}
