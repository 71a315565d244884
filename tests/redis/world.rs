//! Shared helpers: all servers at once, the raw keys, and the instant at which a command ended.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{DEADLINE, Lab, Ran, Running, wait_until};

/// Runs a test on each kind of server that this machine has, in parallel. The name of a thread is
/// the name of its server, so a failure shows it.
pub(crate) fn on_each(test: impl Fn(Lab) + Sync) {
    each(|kind| test(Lab::on(kind)));
}

/// Like `on_each`, for a test that starts its own servers.
pub(crate) fn each(test: impl Fn(Kind) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for kind in Kind::present() {
            let named = thread::Builder::new().name(format!("{kind:?}"));
            named.spawn_scoped(scope, move || test(kind)).expect("a thread can be started");
        }
    });
}

/// Whether the server knows WAITAOF, as Redis does since 7.2.
pub(crate) fn has_waitaof(server: &Server) -> bool {
    server.ask::<Vec<redis::Value>>(&["COMMAND", "INFO", "WAITAOF"]) != [redis::Value::Nil]
}

/// The line of `rlock doctor` about this check.
#[track_caller]
pub(crate) fn check<'r>(ran: &'r Ran, name: &str) -> &'r str {
    let is_about = |line: &&str| line.split_whitespace().nth(1) == Some(name);
    ran.stdout.lines().find(is_about).unwrap_or_else(|| panic!("{name}: {ran:?}"))
}

/// Starts `rlock` with these words and a script whose input stays open.
pub(crate) fn shell(lab: &Lab, words: &[&str], script: &str) -> Running {
    Running::start(lab.rlock(words).args(["-c", script]).stdin(Stdio::piped()))
}

/// Runs a change of the master: the holder renews at the new master, and the waiter is woken from
/// there.
pub(crate) fn assert_failover_is_followed(lab: &Lab, change_master: impl FnOnce()) {
    let mut holder = lab.hold_by(["exec", "k", "--ttl", "60s"]);
    // With `-q`, the waiter does not warn. On a busy machine the change may take longer than a
    // waiter stays silent.
    let mut waiter = lab.wait_by(["exec", "-q", "k"]);
    lab.until_waiting("k", 1);
    let token = || lab.inspect(["k"])["resources"][0]["holders"][0]["token"].clone();
    let first = token();
    change_master();
    wait_until("the new master has the holder and the waiter", || {
        lab.run(["inspect", "k"]).code() == Some(0) && lab.counts("k") == (1, 1)
    });
    assert!(holder.runs());
    assert_eq!(token(), first);
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
    lab.assert_idle();
}

/// The time on the clock of this machine, which all servers share, in microseconds.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is later than 1970");
    u64::try_from(since.as_micros()).expect("the time is before the year 500000")
}

/// The time since the machine started, in microseconds, on the clock that leases use.
fn uptime() -> u64 {
    let since = Duration::try_from(clock_gettime(ClockId::Boottime)).expect("the uptime is not negative");
    u64::try_from(since.as_micros()).expect("the uptime is shorter than 500000 years")
}

/// Returns the keys of a namespace, sorted.
pub(crate) fn keys(server: &Server, namespace: &str) -> Vec<String> {
    let mut keys: Vec<String> = server.ask(&["KEYS", &format!("{namespace}:*")]);
    keys.sort();
    keys
}

/// Returns the latest expiry of a resource on the server, in microseconds, or none without a lease.
pub(crate) fn expiry(server: &Server, lab: &Lab, resource: &str) -> Option<u64> {
    let key = |kind: &str| format!("{}:{{{resource}}}:{kind}", lab.namespace());
    let sole = "local raw = redis.call('GET', KEYS[1]) \
                return raw and string.sub(raw, 4, 4) == '1' and ({ struct.unpack('>dd', raw, 5) })[2]";
    if let Some(expiry) = server.ask::<Option<u64>>(&["EVAL", sole, "1", &key("s")]) {
        return Some(expiry);
    }
    let last: Vec<(String, f64)> = server.ask(&["ZRANGE", &key("e"), "-1", "-1", "WITHSCORES"]);
    // A time in microseconds is exact in a double.
    last.first().map(|(_, score)| *score as u64)
}

/// Measures how late this machine wakes threads: almost zero unless the machine is overloaded. A
/// measured instant may be late by as much.
pub(crate) struct Lateness {
    ends: Arc<AtomicBool>,
    sleeper: JoinHandle<Duration>,
}

impl Lateness {
    /// Starts the measurement.
    pub(crate) fn observe() -> Self {
        const NAP: Duration = Duration::from_millis(1);
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let sleeper = thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !end.load(Ordering::Relaxed) {
                let start = Instant::now();
                thread::sleep(NAP);
                worst = worst.max(start.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Self { ends, sleeper }
    }

    /// Returns by how many microseconds the end of a command may seem too late. rlock, the command
    /// that it kills and the test that sees the end each have to be woken, and each may be woken a
    /// little later than the thread that measures. A defect lets the command live for a second and
    /// more.
    pub(crate) fn allowance(self) -> u64 {
        const MORE: u64 = 400_000;
        self.ends.store(true, Ordering::Relaxed);
        let worst = self.sleeper.join().expect("the thread does not panic");
        u64::try_from(3 * worst.as_micros()).expect("the delay is short") + MORE
    }
}

/// An `rlock` whose command ignores TERM, and the instant at which the command ended.
pub(crate) struct Stubborn {
    pub(crate) rlock: Running,
    command: OwnedFd,
    /// The start of the machine on the wall clock, computed when this command started.
    origin: u64,
}

impl Stubborn {
    /// Starts an `rlock` with these words before the `--`, and waits until the command runs.
    pub(crate) fn start(lab: &Lab, words: &[&str]) -> Self {
        let script = "trap '' TERM; echo $$; while read -r line; do :; done";
        // The rlock has a process group of its own. In an orphaned group, as that of the tests may
        // be, SIGTSTP stops no process.
        let mut command = lab.rlock(words);
        let mut rlock = Running::start(command.args(["-c", script]).stdin(Stdio::piped()).process_group(0));
        let pid = rlock.line().parse().ok().and_then(Pid::from_raw).expect("the command tells its process id");
        let command = pidfd_open(pid, PidfdFlags::empty()).expect("the command runs");
        Self { rlock, command, origin: now() - uptime() }
    }

    /// Waits until the command has ended and returns that instant in microseconds. On a busy
    /// machine this is the earliest possible instant.
    /// The instant is on the wall clock as of the start of the command, since a test may have moved
    /// the clock.
    pub(crate) fn gone(&self) -> u64 {
        let lateness = Lateness::observe();
        let timeout = Timespec::try_from(DEADLINE).expect("a minute is not too long");
        let ready = poll(&mut [PollFd::new(&self.command, PollFlags::IN)], Some(&timeout))
            .expect("the descriptor can be polled");
        let gone = self.origin + uptime();
        assert!(ready > 0, "the command runs on");
        gone - lateness.allowance()
    }

    pub(crate) fn runs(&self) -> bool {
        let at_once = Timespec::try_from(Duration::ZERO).expect("nothing is not too long");
        poll(&mut [PollFd::new(&self.command, PollFlags::IN)], Some(&at_once)).expect("the descriptor can be polled")
            == 0
    }
}
