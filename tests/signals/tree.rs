//! The command's whole process tree: processes in other process groups and sessions, and the
//! commands of nested rlocks.

use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::session::{Session, children, pid, script, until_dead, until_state};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, Running, wait_until};

/// Starts a process of each kind that survived a lost lock in the past. Each prints its process id.
const JOB: &str = r#"
    sh -c 'echo pid $$; exec setsid sleep 1000' &
    timeout 1000 sh -c 'echo pid $$; exec sleep 1000' &
    rlock exec inner -- sh -c 'echo pid $$; setsid sh -c "echo pid \$\$; exec sleep 1000" & exec sleep 1000' &
    sh -c 'trap "" TERM HUP; echo pid $$; while :; do sleep 1000; done' &
    perl -e 'use POSIX; setpgrp; if (!fork) { if (!fork) { $| = 1; print "pid $$\n"; sleep 1000 } exit } wait' &
    wait"#;
/// The number of process ids that [`JOB`] prints.
const PROCESSES: usize = 6;

fn processes(session: &mut Session, count: usize) -> Vec<Pid> {
    let one = |_| {
        session.output.expect("pid ");
        pid(&session.output.line())
    };
    (0..count).map(one).collect()
}

/// Starts rlock with the job as its command, in a process group of its own.
fn run(lab: &Lab, options: &[&str]) -> (Session, Vec<Pid>) {
    script(lab, "job", JOB);
    let mut session = Session::rlock(lab, [&["exec", "k"], options, &["--", "sh", "job"]].concat());
    let tree = processes(&mut session, PROCESSES);
    (session, tree)
}

/// Starts rlock with the job as its command on a terminal, below a shell that outlives rlock.
fn run_on_terminal(lab: &Lab) -> (Session, Pid, Vec<Pid>) {
    script(lab, "job", JOB);
    script(lab, "outer", "trap '' HUP; rlock exec k -- sh -c 'echo rlock $PPID; exec sh job'; echo code $?; read -r _");
    let mut session = Session::on_terminal(lab, ["sh", "outer"]);
    session.output.expect("rlock ");
    let rlock = pid(&session.output.line());
    let tree = processes(&mut session, PROCESSES);
    (session, rlock, tree)
}

fn break_grant(lab: &Lab) {
    assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
}

/// At `deadline − grace` the command's whole tree gets TERM, and before `deadline` KILL.
#[test]
fn lost_lock_ends_processes_in_other_groups_and_sessions() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (mut session, tree) = run(&lab, &["--grace", "100ms"]);
    break_grant(&lab);
    assert_eq!(session.code(), 76);
    tree.into_iter().for_each(until_dead);
    // On a busy machine the inner rlock does not end within the grace, and a killed holder leaves
    // its file to a later request.
    assert_eq!(lab.run(["cleanup"]).code(), Some(0));
    lab.assert_idle();
}

/// On a terminal the command shares rlock's process group.
#[test]
fn lost_lock_ends_the_whole_tree_on_a_terminal() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (mut session, _, tree) = run_on_terminal(&lab);
    break_grant(&lab);
    session.output.expect("code 76");
    tree.into_iter().for_each(until_dead);
    lab.assert_idle();
}

/// The tree is every descendant except for daemons. A daemon is a process in a session of its own
/// whose parent is gone.
#[test]
fn daemon_outlives_a_lost_lock() {
    let lab = Lab::new();
    let job = "setsid -f sh -c 'echo pid $$; exec sleep 1000'; exec sleep 1000";
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", job]);
    let daemon = processes(&mut session, 1)[0];
    break_grant(&lab);
    assert_eq!(session.code(), 76);
    until_state(daemon, "S");
    kill_process(daemon, Signal::KILL).unwrap();
}

/// Processes that a lost command started have the whole grace, even if the command itself ends at
/// once.
#[test]
fn descendants_of_a_lost_command_have_the_whole_grace() {
    let lab = Lab::new();
    let job = "sh -c 'trap \"echo cleaned; exit\" TERM; echo pid $$; while :; do sleep 0.01; done' & exec sleep 1000";
    let mut session = Session::rlock(&lab, ["exec", "--grace", "9s", "k", "--", "sh", "-c", job]);
    processes(&mut session, 1);
    break_grant(&lab);
    session.output.expect("cleaned\n");
    assert_eq!(session.code(), 76);
}

/// If rlock is SIGKILLed, alone or with its group, the tree dies within 100 ms. The limit here is
/// much longer, because the machine may be busy.
#[test]
fn killed_rlock_takes_its_whole_tree_along() {
    skip_unless!(needs::programs(&["perl"]));
    for with_group in [false, true] {
        let lab = Lab::new();
        let (mut session, tree) = run(&lab, &[]);
        if with_group {
            kill_process_group(session.pid(), Signal::KILL).unwrap();
        } else {
            session.signal(Signal::KILL);
        }
        assert_eq!(session.code(), 128 + 9);
        tree.into_iter().for_each(until_dead);
        lab.run(["exec", "k", "--", "true"]).silently(0);
        wait_until("all holds are gone", || lab.counts("inner") == (0, 0));
    }
}

/// On a terminal the command shares rlock's group.
#[test]
fn killed_rlock_takes_its_whole_tree_along_on_a_terminal() {
    skip_unless!(needs::programs(&["perl"]));
    for with_group in [false, true] {
        let lab = Lab::new();
        let (_session, rlock, tree) = run_on_terminal(&lab);
        if with_group {
            let group = rustix::process::getpgid(Some(rlock)).unwrap();
            kill_process_group(group, Signal::KILL).unwrap();
        } else {
            kill_process(rlock, Signal::KILL).unwrap();
        }
        tree.into_iter().for_each(until_dead);
        wait_until("all holds are gone", || lab.counts("k") == (0, 0) && lab.counts("inner") == (0, 0));
    }
}

/// When a waiter is granted the lock of a killed holder, no process of the holder's tree is left.
#[test]
fn waiter_is_granted_only_after_the_tree_of_a_killed_holder_is_gone() {
    skip_unless!(needs::programs(&["perl"]));
    for _ in 0..10 {
        let lab = Lab::new();
        let (session, tree) = run(&lab, &[]);
        let living = tree
            .iter()
            .map(|pid| {
                format!(
                    "[ -d /proc/{0} ] && ! grep -q '^State:.Z' /proc/{0}/status && \
            echo {0} lives; ",
                    pid.as_raw_nonzero()
                )
            })
            .collect::<String>();
        let mut waiter = Session::waiter(&lab, &["sh", "-c", &format!("{{ {living} }} 2>/dev/null; echo granted")]);
        session.signal(Signal::KILL);
        assert_eq!(waiter.output.all(), "granted\n");
    }
}

/// The kernel sends no PR_SET_PDEATHSIG signal to a command that has changed its user.
#[test]
fn killed_rlock_of_root_takes_a_command_of_another_user_along() {
    skip_unless!(needs::root("start a command as another user"));
    let lab = Lab::new();
    let job = "echo pid $$; sh -c 'echo pid $$; exec setsid sleep 1000' & wait";
    let words = ["exec", "k", "--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", job];
    let mut session = Session::rlock(&lab, words);
    let tree = processes(&mut session, 2);
    session.signal(Signal::KILL);
    tree.into_iter().for_each(until_dead);
}

/// The command leads no process group, so setsid(1) and setsid(2) work as without rlock.
#[test]
fn setsid_runs_in_place_and_the_lock_is_held_until_it_ends() {
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "setsid", "sh", "-c", "echo pid $$; read -r _; exit 7"]);
    let command = processes(&mut session, 1)[0];
    assert_eq!(rustix::process::getsid(Some(command)), Ok(command));
    assert_eq!(lab.counts("k"), (1, 0));
    session.close();
    assert_eq!(session.code(), 7);
    lab.assert_idle();
}

/// A signal reaches the command once, whether it was sent to rlock or, without a terminal, to
/// rlock's group.
#[test]
fn signal_to_the_group_of_rlock_reaches_the_command_once() {
    let lab = Lab::new();
    let job = "trap 'echo usr1' USR1; trap 'exit 5' TERM; echo pid $$; while :; do sleep 0.01; done";
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", job]);
    processes(&mut session, 1);
    kill_process_group(session.pid(), Signal::USR1).unwrap();
    session.output.expect("usr1\n");
    kill_process_group(session.pid(), Signal::TERM).unwrap();
    assert_eq!(session.code(), 5);
    assert_eq!(session.output.all().matches("usr1").count(), 1);
}

fn guardian_of(rlock: Pid) -> Option<Pid> {
    let name = |pid: &Pid| fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    children(rlock).into_iter().find(|pid| name(pid).trim() == "lock-guardian")
}

fn until_guarded(rlock: Pid) -> Pid {
    let mut found = None;
    wait_until("there is a guardian", || {
        found = guardian_of(rlock);
        found.is_some()
    });
    found.unwrap()
}

/// PR_SET_PDEATHSIG is the second line of defence, for a guardian that cannot act.
#[test]
fn command_dies_with_rlock_even_without_its_guardian() {
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", "echo pid $$; sleep 1000"]);
    let command = processes(&mut session, 1)[0];
    let guardian = until_guarded(session.pid());
    kill_process(guardian, Signal::STOP).unwrap();
    session.signal(Signal::KILL);
    until_dead(command);
    kill_process(guardian, Signal::CONT).unwrap();
    until_dead(guardian);
}

/// The rlock and its guardian are killed at once. A part of the tree is stopped, as by a guardian
/// that is killed between its STOP and its KILL, and a part is below an inner rlock.
#[test]
fn next_request_kills_what_a_killed_guardian_has_left() {
    let lab = Lab::new();
    // The kernel sends SIGHUP to a stopped process group that nobody is left to continue, and to no
    // group in a session of its own.
    let job = "setsid sh -c 'echo pid $$; exec sleep 1000' &
        setsid rlock exec inner -- sh -c 'echo pid $$; exec sleep 1000' & wait";
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", job]);
    let left = processes(&mut session, 2);
    let guardian = until_guarded(session.pid());
    kill_process(left[0], Signal::STOP).unwrap();
    kill_process(guardian, Signal::STOP).unwrap();
    session.signal(Signal::KILL);
    kill_process(guardian, Signal::KILL).unwrap();
    until_dead(guardian);
    let states = format!("grep -h State /proc/{}/status /proc/{}/status; true", left[0], left[1]);
    let next = lab.run(["exec", "-w", "60", "--write", "k", "--write", "inner", "--", "sh", "-c", &states]);
    assert_eq!(next.code(), Some(0), "{next:?}");
    let lives = ['T', 'S', 'R'].iter().any(|state| next.stdout.contains(&format!("State:\t{state}")));
    assert!(!lives, "the old tree is dead before the next command starts: {next:?}");
}

/// Trees that can't end yet are waited for once for all, and without the lock of the store. Here,
/// the test keeps the beacons open in the place of guardians that wait for their trees.
#[test]
fn killed_holders_whose_trees_cannot_end_delay_nobody_else() {
    let lab = Lab::new();
    let names: Vec<String> = (0..10).map(|number| format!("k{number}")).collect();
    let hold = |name: &String| Session::rlock(&lab, ["exec", name, "--", "sh", "-c", "echo pid $$; exec sleep 1000"]);
    let mut holders: Vec<_> = names.iter().map(hold).collect();
    let commands: Vec<_> = holders.iter_mut().map(|holder| processes(holder, 1)[0]).collect();
    let beacons = lab.files().into_iter().filter(|name| name.len() == 32);
    let open = |name: String| File::options().read(true).write(true).open(lab.directory().join("state").join(name));
    let trees: Vec<_> = beacons.map(|name| open(name).unwrap()).collect();
    assert_eq!(trees.len(), holders.len());
    holders.iter().for_each(|holder| holder.signal(Signal::KILL));
    commands.into_iter().for_each(until_dead);
    let begun = Instant::now();
    let all = names.iter().flat_map(|name| ["--write", name]);
    let mut waits = Running::start(&mut lab.rlock(["exec", "-n"].into_iter().chain(all).chain(["--", "true"])));
    while waits.runs() {
        lab.run(["exec", "other", "--", "true"]).silently(0);
    }
    assert_eq!(waits.end().code(), Some(75), "a tree that has not ended counts as alive");
    assert!(begun.elapsed() < Duration::from_secs(4), "it took {:?}", begun.elapsed());
    drop(trees);
    lab.run(["exec", "-w", "60", "--write", "k0", "--write", "k9", "--", "true"]).silently(0);
}

/// A killed guardian is replaced, and its successor ends the tree as well.
#[test]
fn killed_guardian_is_replaced_and_the_command_lives_on() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (session, tree) = run(&lab, &[]);
    let rlock = session.pid();
    for _ in 0..3 {
        let first = until_guarded(rlock);
        kill_process(first, Signal::KILL).unwrap();
        wait_until("the guardian is replaced", || guardian_of(rlock).is_some_and(|next| next != first));
    }
    for process in &tree {
        until_state(*process, "S");
    }
    session.signal(Signal::KILL);
    tree.into_iter().for_each(until_dead);
}

/// A program that the kernel cannot open for now, as on a hanging network file system. The call
/// that opens the file waits for the end of a lease on the file (fcntl(2), F_SETLEASE).
struct HangingProgram {
    _file: File,
}

impl HangingProgram {
    fn new(lab: &Lab) -> Self {
        let path = lab.folder().join("slow");
        fs::write(&path, "#!/bin/sh\necho started\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        // SAFETY: SIG_IGN is a valid disposition. The signal reports on the lease, and nothing here
        // uses it.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let file = File::options().write(true).open(path).unwrap();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) }, 0);
        Self { _file: file }
    }
}

/// If the kernel cannot open the program in time, rlock gives up the start while it still holds
/// the lease.
#[test]
fn program_that_cannot_be_opened_is_given_up_before_the_lease_ends() {
    skip_unless!(Kind::Redis7.is_present());
    let lab = Lab::on(Kind::Redis7);
    let _program = HangingProgram::new(&lab);
    let mut session = Session::rlock(&lab, ["exec", "--ttl", "3s", "--grace", "100ms", "k", "--", "./slow"]);
    session.errors().expect("rlock: cannot run './slow': it could not be opened within 1.");
    assert_eq!(session.code(), 126);
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    lab.assert_idle();
}

/// A chain of processes: each starts the next one and ends. It ends by itself after some seconds if
/// nobody kills it, and each link has the folder of the lab in its command line.
const CHAIN: &str = r#"
    $| = 1;
    print "running\n";
    for (1 .. 100_000) { if (fork) { POSIX::_exit(0) } }"#;

/// The same with programs: each link executes this script in a session of its own.
const SCRIPTS: &str = r#"
    [ $1 = 0 ] && echo running
    [ $1 -lt 3000 ] && setsid sh "$0" $(($1 + 1)) &"#;

/// The links of a chain that live. A link may escape a look, but not all of them.
fn links(lab: &Lab) -> usize {
    let folder = lab.folder().to_str().expect("a path of ASCII");
    let is_link = |entry: &fs::DirEntry| {
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        (line.contains("POSIX::_exit") || line.contains("/chain\0")) && line.contains(folder)
    };
    (0..20).map(|_| fs::read_dir("/proc").expect("there is a /proc").flatten().filter(is_link).count()).sum()
}

fn chain(lab: &Lab, before: &str) -> Session {
    let job = if before == "setsid" {
        script(lab, "chain", SCRIPTS);
        format!("sh {}/chain 0; sleep 1000", lab.folder().display())
    } else {
        format!("{before} perl -MPOSIX -e '{CHAIN}' {} & wait; sleep 1000", lab.folder().display())
    };
    let mut session = Session::rlock(lab, ["exec", "--grace", "0s", "k", "-c", &job]);
    session.output.expect("running");
    session
}

#[test]
fn chain_of_processes_dies_with_a_lost_lock() {
    skip_unless!(needs::programs(&["perl"]));
    for before in ["", "timeout 1000"] {
        for _ in 0..3 {
            let lab = Lab::new();
            let mut session = chain(&lab, before);
            break_grant(&lab);
            assert_eq!(session.code(), 76);
            assert_eq!(links(&lab), 0, "{before}");
        }
    }
}

#[test]
fn chain_of_processes_dies_with_a_killed_rlock() {
    skip_unless!(needs::programs(&["perl"]));
    for before in ["", "timeout 1000", "setsid"] {
        for _ in 0..3 {
            let lab = Lab::new();
            let session = chain(&lab, before);
            session.signal(Signal::KILL);
            lab.run(["exec", "k", "--", "true"]).silently(0);
            assert_eq!(links(&lab), 0, "{before}");
        }
    }
}

/// The first thread of a process may end before the others. Its state is then Z.
#[test]
fn process_without_its_first_thread_dies_with_the_lock() {
    skip_unless!(needs::programs(&["python3"]));
    let script = "import ctypes, os, threading, time; print('pid', os.getpid(), flush=True); \
                  threading.Thread(target=time.sleep, args=(1000,)).start(); \
                  ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)";
    let job = format!("timeout 1000 setsid python3 -c \"{script}\" & sleep 1000");
    for is_break in [true, false] {
        let lab = Lab::new();
        let mut session = Session::rlock(&lab, ["exec", "--grace", "0s", "k", "-c", &job]);
        let [process] = processes(&mut session, 1)[..] else { unreachable!() };
        until_state(process, "Z");
        let threads = || fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).map_or(0, Iterator::count);
        assert_eq!(threads(), 2);
        if is_break {
            break_grant(&lab);
            assert_eq!(session.code(), 76);
        } else {
            session.signal(Signal::KILL);
            lab.run(["exec", "k", "--", "true"]).silently(0);
        }
        assert!(threads() < 2, "the process lives, break: {is_break}");
    }
}

/// When rlock is killed, the lock of an rlock in its tree is not free before that rlock's command
/// is gone.
#[test]
fn inner_lock_is_held_until_the_inner_command_of_a_killed_rlock_is_gone() {
    for _ in 0..10 {
        let lab = Lab::new();
        let job = "rlock exec inner -c 'setsid sh -c \"echo pid \\$\\$; exec sleep 1000\" & sleep 1000'";
        let mut session = Session::rlock(&lab, ["exec", "k", "-c", job]);
        let [process] = processes(&mut session, 1)[..] else { unreachable!() };
        let look = format!("grep -s '^State:.[^ZX]' /proc/{}/status; echo granted", process.as_raw_nonzero());
        let mut waiter = Session::rlock(&lab, ["exec", "-v", "inner", "-c", &look]);
        waiter.errors().expect("rlock: waits for 'inner'\n");
        session.signal(Signal::KILL);
        assert_eq!(waiter.output.all(), "granted\n");
    }
}
