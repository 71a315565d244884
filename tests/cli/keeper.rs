//! `acquire --pid`: a keeper holds the lock until a process ends, on both kinds of store.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::acquire::{acquire, below, is_free, printed};
use rlock_testkit::random::Random;
use rlock_testkit::servers::{Kind, Setup};
use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, program_in_message, wait_until};

/// A process that a lock is kept for. It ends with the test.
struct Watched(Child);

impl Watched {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// The signal that ended the process.
    fn ended_by(&mut self) -> Option<i32> {
        self.0.wait().unwrap().signal()
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pid of the only holder of a resource.
fn keeper(lab: &Lab, key: &str) -> Pid {
    let pid = lab.inspect([key])["resources"][0]["holders"][0]["pid"].as_i64().expect("there is a holder");
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

fn has_ended(keeper: Pid) -> bool {
    // Nobody may reap the process where the first process of a container does not.
    let stat = fs::read_to_string(format!("/proc/{}/stat", keeper.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.trim_start().starts_with(['Z', 'X']))
}

fn until_ended(keeper: Pid) {
    wait_until("the keeper ends", || has_ended(keeper));
}

fn until_free(lab: &Lab, key: &str) {
    wait_until("the lock is free", || is_free(lab, key));
}

/// "`--pid` leaves a keeper behind that renews until the process ends".
#[test]
fn lock_with_a_process_ends_with_it() {
    on_both(|lab| {
        let mut process = Watched::start();
        let variables = acquire(lab, &["k", "--pid", &process.pid(), "--ttl", "1s"]);
        let keeper = keeper(lab, "k");
        let holder = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        assert_eq!((&holder["session"], &holder["kept"]), (&variables["RLOCK_SESSION"].clone().into(), &false.into()));
        // Longer than a ttl.
        assert!(lab.run(["exec", "-w", "1500ms", "k", "--", "true"]).failed(75).contains(program_in_message()));
        Ran::of(&mut below(lab, &variables, &["exec", "-n", "k", "--", "true"])).silently(0);
        process.end();
        until_ended(keeper);
        until_free(lab, "k");
        Ran::of(&mut below(lab, &variables, &["release"])).failed(76);
        lab.assert_idle();
    });
}

/// "detached from terminal and stdio": the pipes of the caller end, and no descriptor, folder or
/// group of the caller is in use.
#[test]
fn keeper_has_nothing_of_its_caller() {
    on_both(|lab| {
        let process = Watched::start();
        let inherited = fs::File::open(lab.folder()).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let mut rlock = lab.rlock(["acquire", "k", "--pid", &process.pid()]);
        printed(&Ran::of(rlock.current_dir(lab.folder()).stdin(Stdio::piped())));
        let folder = PathBuf::from(format!("/proc/{}", keeper(lab, "k").as_raw_nonzero()));
        assert_eq!(fs::read_link(folder.join("cwd")).unwrap(), PathBuf::from("/"));
        for number in 0..3 {
            assert_eq!(fs::read_link(folder.join(format!("fd/{number}"))).unwrap(), PathBuf::from("/dev/null"));
        }
        let leads = fs::read_dir(folder.join("fd")).unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let leads: Vec<_> = leads.collect();
        assert!(!leads.iter().any(|path| path == lab.folder()), "descriptor {} {leads:?}", inherited.as_raw_fd());
        let stat = fs::read_to_string(folder.join("stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let pid = keeper(lab, "k").as_raw_nonzero().to_string();
        assert_eq!((fields[2], fields[3], fields[4]), (pid.as_str(), pid.as_str(), "0"), "group, session and terminal");
        assert_eq!(fs::read_to_string(folder.join("comm")).unwrap(), "lock-keeper\n");
    });
}

/// "lost (it sends TERM to PID, or `--lost-signal SIG|none`)".
#[test]
fn lost_lock_is_told_to_the_process() {
    on_both(|lab| {
        for (words, signal) in [(&[][..], 15), (&["--lost-signal", "USR1"], 10), (&["--lost-signal", "sigint"], 2)] {
            let mut process = Watched::start();
            acquire(lab, &[&["k", "--pid", &process.pid()], words].concat());
            assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
            assert_eq!(process.ended_by(), Some(signal), "{words:?}");
        }
        let mut process = Watched::start();
        acquire(lab, &["k", "--pid", &process.pid(), "--lost-signal", "none"]);
        let keeper = keeper(lab, "k");
        assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
        until_ended(keeper);
        assert!(process.runs());
    });
}

/// A keeper that is late learns of the release although the next holder has trimmed the history.
#[test]
fn late_keeper_takes_a_release_for_one_whatever_the_history_keeps() {
    on_both(|lab| {
        for history in ["0", "1"] {
            let mut process = Watched::start();
            let variables = acquire(lab, &["k", "--pid", &process.pid(), "--history", history]);
            let keeper = keeper(lab, "k");
            kill_process(keeper, Signal::STOP).unwrap();
            Ran::of(&mut below(lab, &variables, &["release"])).silently(0);
            for _ in 0..2 {
                lab.run(["exec", "--history", "1", "k", "--", "false"]).silently(1);
            }
            kill_process(keeper, Signal::CONT).unwrap();
            until_ended(keeper);
            assert!(process.runs());
        }
    });
}

/// "the hold is released (it ends silently)".
#[test]
fn release_ends_the_keeper_and_leaves_the_process_alone() {
    on_both(|lab| {
        let mut process = Watched::start();
        let variables = acquire(lab, &["k", "--pid", &process.pid(), "--ttl", "1s"]);
        let keeper = keeper(lab, "k");
        Ran::of(&mut below(lab, &variables, &["renew"])).failed(64);
        Ran::of(&mut below(lab, &variables, &["release"])).silently(0);
        assert!(is_free(lab, "k"));
        until_ended(keeper);
        assert!(process.runs());
        Ran::of(&mut below(lab, &variables, &["release"])).failed(76);
        // Without a history, the keeper still takes a release for one.
        let variables = acquire(lab, &["k", "--pid", &process.pid(), "--history", "0"]);
        let keeper = self::keeper(lab, "k");
        Ran::of(&mut below(lab, &variables, &["release"])).silently(0);
        until_ended(keeper);
        assert!(process.runs());
        lab.assert_idle();
    });
}

#[test]
fn waiter_is_granted_at_the_release_of_a_lock_with_a_process() {
    on_both(|lab| {
        let process = Watched::start();
        let variables = acquire(lab, &["k", "--pid", &process.pid()]);
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        Ran::of(&mut below(lab, &variables, &["release"])).silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
    });
}

/// Nobody is left to renew: the embedded store frees the lock at once, a server after the lease.
#[test]
fn killed_keeper_frees_the_lock() {
    on_both(|lab| {
        let mut process = Watched::start();
        let variables = acquire(lab, &["k", "--pid", &process.pid(), "--ttl", "1s"]);
        kill_process(keeper(lab, "k"), Signal::KILL).unwrap();
        lab.run(["exec", "k", "--", "true"]).silently(0);
        Ran::of(&mut below(lab, &variables, &["release"])).failed(76);
        assert!(process.runs());
    });
}

/// The lock must stay as long as the process, for example while systemd stops both of them.
#[test]
fn keeper_ignores_signals_that_end_other_programs() {
    on_both(|lab| {
        let mut process = Watched::start();
        acquire(lab, &["k", "--pid", &process.pid()]);
        let keeper = keeper(lab, "k");
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::TSTP] {
            kill_process(keeper, signal).unwrap();
        }
        assert!(lab.run(["exec", "-w", "200ms", "k", "--", "true"]).failed(75).contains(program_in_message()));
        process.end();
        until_ended(keeper);
        until_free(lab, "k");
    });
}

/// "survives the CI step's shell, not the process PID".
#[test]
fn keeper_outlives_the_shell_and_the_group_of_its_caller() {
    let lab = Lab::new();
    let mut process = Watched::start();
    let mut shell = Command::new("setsid");
    lab.settle(&mut shell);
    let words = format!("'{RLOCK}' acquire k --pid {} >/dev/null; kill -KILL 0", process.pid());
    let ran = Ran::of(shell.args(["-w", "sh", "-c", &words]));
    assert_eq!(ran.stderr, "");
    assert!(!is_free(&lab, "k"));
    process.end();
    until_free(&lab, "k");
}

/// While acquire waits, a signal ends it and its keeper alike.
#[test]
fn signal_to_a_waiting_acquire_gives_up_the_place_in_the_queue() {
    on_both(|lab| {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL] {
            let process = Watched::start();
            let holder = lab.hold("k");
            let waiter = Running::start(&mut lab.rlock(["acquire", "k", "--pid", &process.pid()]));
            lab.until_waiting("k", 1);
            let keeper = Pid::from_raw(waiting_keeper(lab)).unwrap();
            waiter.signal(signal);
            let ran = waiter.end();
            match signal {
                Signal::KILL => assert_eq!(ran.status.signal(), Some(9)),
                signal => ran.silently(128 + signal.as_raw()),
            }
            until_ended(keeper);
            holder.end().silently(0);
            lab.run(["exec", "k", "--", "true"]).silently(0);
        }
    });
}

/// While acquire requests the lock, prints or detaches its keeper, a signal leaves the whole lock
/// or none.
#[test]
fn signal_at_any_instant_of_acquire_leaves_a_whole_lock_or_none() {
    on_both(|lab| {
        let mut random = Random::new();
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL] {
            for _ in 0..6 {
                let mut process = Watched::start();
                let acquire = Running::start(&mut lab.rlock(["acquire", "k", "--pid", &process.pid(), "--ttl", "1s"]));
                thread::sleep(Duration::from_micros(random.below(20_000)));
                acquire.signal(signal);
                let ran = acquire.end();
                // The keeper of a killed process may say that it ends.
                assert!(ran.stderr.is_empty() || signal == Signal::KILL, "{ran:?}");
                match ran.code() {
                    Some(0) => assert!(!is_free(lab, "k") && ran.stdout.contains("RLOCK_TOKEN="), "{ran:?}"),
                    // A killed process may have printed.
                    None if signal == Signal::KILL => {}
                    code => {
                        let ended = ran.status.signal().map_or(code, |number| Some(128 + number));
                        assert_eq!((ended, ran.stdout.as_str()), (Some(128 + signal.as_raw()), ""), "{ran:?}");
                        lab.run(["exec", "k", "--", "true"]).silently(0);
                    }
                }
                process.end();
                lab.run(["exec", "k", "--", "true"]).silently(0);
            }
        }
    });
}

/// "On a server, a lease that could not be renewed counts as lost `--grace` before its end. The
/// keeper goes on trying to renew it until its end." It ignores signals there, too, except KILL.
#[test]
fn keeper_that_cannot_renew_tells_its_process_once_whatever_signals_come() {
    let Some(server) = Setup::new(Kind::Redis7).start_if_present() else { return };
    let lab = Lab::at(server.url());
    for signals in [&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT][..], &[Signal::KILL]] {
        let trap = "trap 'echo told' TERM; echo ready; while :; do sleep 0.01; done";
        let mut process = Running::start(Command::new("sh").args(["-c", trap]).stdin(Stdio::null()));
        assert_eq!(process.line(), "ready");
        acquire(&lab, &["k", "--pid", &process.pid().to_string(), "--ttl", "1s"]);
        let keeper = keeper(&lab, "k");
        server.stop();
        assert_eq!(process.line(), "told");
        for signal in signals {
            // The lease may be over by now.
            let _ = kill_process(keeper, *signal);
        }
        until_ended(keeper);
        server.cont();
        lab.run(["exec", "k", "--", "true"]).silently(0);
        assert!(process.runs());
        process.signal(Signal::KILL);
        assert_eq!(process.end().stdout, "ready\ntold\n");
    }
}

fn waiting_keeper(lab: &Lab) -> i32 {
    let pid = lab.inspect(["k"])["resources"][0]["waiters"][0]["pid"].as_i64().expect("there is a waiter");
    i32::try_from(pid).unwrap()
}

#[test]
fn waiting_acquire_reports_busy_and_is_granted_like_exec() {
    on_both(|lab| {
        let process = Watched::start();
        let holder = lab.hold("k");
        let words = ["acquire", "k", "--pid", &process.pid()];
        assert!(Ran::of(lab.rlock(words).arg("-n")).failed(75).starts_with("busy: 'k' is held for write by"));
        Ran::of(lab.rlock(words).args(["-n", "-q", "-E", "0"])).silently(0);
        assert!(
            Ran::of(lab.rlock(words).args(["-w", "50ms"])).failed(75).ends_with("; waited 50ms; nothing was acquired")
        );
        let waiter = Running::start(&mut lab.rlock(words));
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        let variables: BTreeMap<_, _> = printed(&waiter.end());
        assert_eq!(variables["RLOCK_RESOURCE"], "k");
        assert!(!is_free(lab, "k"));
    });
}

/// "the PID must belong to a live process that the user may signal, else 64".
#[test]
fn process_that_has_ended_or_is_a_thread_is_refused() {
    let lab = Lab::new();
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    wait_until("the process is a zombie", || has_ended(Pid::from_child(&child)));
    let text = format!("--pid: there is no process {pid}: name one that runs");
    lab.run(["acquire", "k", "--pid", &pid]).said(64, &text);
    child.wait().unwrap();
    lab.run(["acquire", "k", "--pid", &pid]).said(64, &text);
    assert!(lab.files().is_empty(), "nothing was asked of the store");
}

#[test]
fn process_that_ends_while_acquire_waits_frees_the_lock_after_the_grant() {
    let lab = Lab::new();
    let mut process = Watched::start();
    let holder = lab.hold("k");
    let waiter = Running::start(&mut lab.rlock(["acquire", "k", "--pid", &process.pid()]));
    lab.until_waiting("k", 1);
    process.end();
    holder.end().silently(0);
    printed(&waiter.end());
    until_free(&lab, "k");
    lab.assert_idle();
}
