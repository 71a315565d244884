//! What holds where the kernel, or a filter of system calls, refuses what rlock asks for.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use crate::session::{Session, children, pid, until_dead};
use rlock_testkit::needs;
use rlock_testkit::{Lab, RLOCK, on_both, wait_until};

/// Starts a program below tests/support/refuse, which refuses these system calls.
fn refused(lab: &Lab, rules: &[&str], words: &[&str]) -> Session {
    let refuse = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/refuse");
    Session::start(lab, [&[refuse], rules, &["--"], words].concat())
}

/// Docker's default profile.
const DOCKER: &str = concat!("@", env!("CARGO_MANIFEST_DIR"), "/tests/support/docker.calls");

/// A command with a process in another session.
const TREE: &str = "echo pid $$; setsid sh -c 'echo pid $$; exec sleep 1000' & wait";

fn tree(session: &mut Session) -> [Pid; 2] {
    [0, 1].map(|_| {
        session.output.expect("pid ");
        pid(&session.output.line())
    })
}

/// Waits until the guardian with this parent has executed its program, one second after its start.
fn until_executed(rlock: Pid) {
    let is_one = |child: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero())).unwrap_or_default();
        line.starts_with(b"lock-guardian")
    };
    wait_until("the guardian executes its program", || children(rlock).iter().any(is_one));
}

/// In a container with Docker's default profile, too, the whole tree dies with rlock, before
/// another request gets the lock.
#[test]
fn killed_rlock_takes_its_tree_along_in_a_container() {
    for late in [false, true] {
        let lab = Lab::new();
        let mut session = refused(&lab, &[DOCKER], &[RLOCK, "exec", "k", "-c", TREE]);
        let tree = tree(&mut session);
        if late {
            until_executed(session.pid());
        }
        let [one, other] = tree.map(|pid| pid.as_raw_nonzero());
        let living = format!("grep -s '^State:.[^Z]' /proc/{one}/status /proc/{other}/status; echo granted");
        let mut waiter = Session::waiter(&lab, &["sh", "-c", &living]);
        session.signal(Signal::KILL);
        assert_eq!(waiter.output.all(), "granted\n", "late: {late}");
        tree.into_iter().for_each(until_dead);
    }
}

/// The spare work, too, dies with rlock, and the lock does not wait for its guardian.
#[test]
fn killed_rlock_takes_its_spare_work_along_in_a_container() {
    for late in [false, true] {
        let lab = Lab::new();
        let holder = lab.hold("k");
        let mut session = refused(&lab, &[DOCKER], &[RLOCK, "exec", "k", "--meanwhile", TREE, "--", "true"]);
        let tree = tree(&mut session);
        if late {
            until_executed(session.pid());
        }
        session.signal(Signal::KILL);
        tree.into_iter().for_each(until_dead);
        holder.end().silently(0);
        lab.assert_idle();
    }
}

/// The guardian keeps the beacon of the embedded store open, and nothing else of rlock but its own
/// pipe to rlock. Otherwise rlock's peers would take rlock's end for a pause.
#[test]
fn guardian_keeps_only_the_beacon_open_from_its_first_moment() {
    on_both(|lab| {
        let holder = lab.hold("other");
        let words = ["exec", "k", "--meanwhile", "sleep 1000", "-c", "echo ready; sleep 1000"];
        let mut session = Session::rlock(lab, words);
        session.output.expect("ready");
        let spare = Session::rlock(lab, ["exec", "other", "--meanwhile", "echo spare; sleep 1000", "--", "true"]);
        let guardians = |rlock: &Session| {
            let is_one = |child: &Pid| {
                fs::read_to_string(format!("/proc/{}/comm", child.as_raw_nonzero()))
                    .is_ok_and(|name| name == "lock-guardian\n")
            };
            children(rlock.pid()).into_iter().filter(is_one).collect::<Vec<_>>()
        };
        for rlock in [&session, &spare] {
            wait_until("there is a guardian", || !guardians(rlock).is_empty());
            for guardian in guardians(rlock) {
                let mut open = Vec::new();
                wait_until("the guardian has closed what it does not keep", || {
                    open = descriptors(guardian);
                    open.iter().all(|path| {
                        let path = path.to_string_lossy();
                        ["anon_inode:[pidfd]", "anon_inode:[signalfd]"].contains(&&*path)
                            || path.starts_with("pipe:") && descriptors(rlock.pid()).iter().any(|own| *own == *path)
                            || path.starts_with("/") && !path.ends_with("/lock") && !path.ends_with("/table")
                    })
                });
            }
        }
        drop(holder);
    });
}

fn descriptors(process: Pid) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let beyond_standard = entries
        .filter(|entry| entry.file_name().to_str().is_none_or(|name| name.parse::<u32>().is_ok_and(|fd| fd > 2)));
    beyond_standard.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

/// rlock moves the guardian into its group while the guardian may execute its program already.
#[test]
fn commands_run_where_there_are_no_pidfds() {
    for error in ["ENOSYS", "EPERM"] {
        let lab = Lab::new();
        let script = "i=0; while [ $i -lt 100 ]; do \"$0\" exec k -- true || exit; i=$((i + 1)); done; echo done";
        let mut session = refused(&lab, &[&format!("pidfd_open={error}")], &["sh", "-c", script, RLOCK]);
        assert_eq!(session.output.all(), "done\n", "{error}");
        assert_eq!(session.errors().all(), "", "{error}");
    }
}

/// Without pidfds the guardian watches its parent.
#[test]
fn killed_rlock_takes_its_tree_along_where_there_are_no_pidfds() {
    let lab = Lab::new();
    let mut session = refused(&lab, &["pidfd_open=ENOSYS"], &[RLOCK, "exec", "k", "-c", TREE]);
    let tree = tree(&mut session);
    session.signal(Signal::KILL);
    tree.into_iter().for_each(until_dead);
    lab.run(["exec", "k", "--", "true"]).silently(0);
}

#[test]
fn spare_work_ends_where_there_are_no_pidfds() {
    for rule in ["pidfd_open", "pidfd_open=ENOSYS", "pidfd_send_signal", "kill"] {
        let lab = Lab::new();
        let words = [RLOCK, "exec", "k", "--meanwhile", "echo spare", "-c", "echo command"];
        let mut session = refused(&lab, &[rule], &words);
        assert_eq!(session.output.all(), "command\nspare\n", "{rule}");
        assert_eq!(session.code(), 0, "{rule}");
        session.until_gone();
    }
}

/// Without poll(2) rlock gives up, and its guardian ends the tree.
#[test]
fn refused_poll_leaves_no_process_and_no_lock_behind() {
    let lab = Lab::new();
    let words = [RLOCK, "exec", "k", "-c", "echo pid $$; setsid sleep 1000 & sleep 1000"];
    let mut session = refused(&lab, &["ppoll", "poll"], &words);
    assert_eq!(session.code(), 125);
    session.until_gone();
    lab.run(["exec", "k", "--", "true"]).silently(0);
}

/// A process that is refused a handle on another one does not say that there is no such process.
#[test]
fn acquire_names_the_refused_call_and_not_a_missing_process() {
    let lab = Lab::new();
    let own = std::process::id().to_string();
    for (rule, why) in [
        ("pidfd_open", "--pid cannot watch the process, because pidfd_open is refused here (operation not permitted)"),
        ("pidfd_open=ENOSYS", "--pid needs Linux 5.3 or newer"),
    ] {
        let mut session = refused(&lab, &[rule], &[RLOCK, "acquire", "k", "--pid", &own]);
        assert_eq!(session.errors().all(), format!("rlock: {why}: use --for, and 'rlock release'\n"));
        assert_eq!(session.code(), 125);
    }
}

/// `pkill rlock` ends no guardian and no keeper.
#[test]
fn neither_guardian_nor_keeper_is_called_rlock() {
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "k", "-c", TREE]);
    let tree = tree(&mut session);
    until_executed(session.pid());
    let names = |process: Pid| {
        let read = |file: &str| fs::read(format!("/proc/{}/{file}", process.as_raw_nonzero())).unwrap_or_default();
        String::from_utf8_lossy(&[read("comm"), read("cmdline")].concat()).into_owned()
    };
    let named = |process: &Pid| names(*process).contains("rlock");
    assert!(!children(session.pid()).iter().any(named));
    session.signal(Signal::KILL);
    tree.into_iter().for_each(until_dead);
    let own = std::process::id().to_string();
    lab.run(["acquire", "k", "--pid", &own]).code().filter(|code| *code == 0).expect("the lock is free");
    let keeper = lab.inspect(["k"])["resources"][0]["holders"][0]["pid"].as_i64().unwrap();
    let keeper = Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap();
    assert_eq!(names(keeper).trim_end_matches('\0'), "lock-keeper\nlock-keeper");
    kill_process(keeper, Signal::KILL).unwrap();
}

/// Where the kernel does not make rlock the parent of orphans, rlock says so before the command
/// starts, and the guardian still finds them by their environment.
#[test]
fn refused_subreaper_is_reported_before_the_command_starts() {
    let lab = Lab::new();
    // PR_SET_CHILD_SUBREAPER is 36; no other call of rlock has this bit.
    let words = [RLOCK, "exec", "k", "-c", "echo command >&2"];
    let mut session = refused(&lab, &["prctl&20"], &words);
    let line = "rlock: warning: the kernel does not make rlock the parent of orphans (operation not permitted): if the \
                command is killed, they go on: permit prctl(2)\ncommand\n";
    assert_eq!(session.errors().all(), line);
    assert_eq!(session.code(), 0);
}

/// vfat, exfat and hugetlbfs answer so.
#[test]
fn directory_that_refuses_named_pipes_is_told_by_what_it_lacks() {
    let lab = Lab::new();
    let mut session = refused(&lab, &["mknodat", "mknod"], &[RLOCK, "exec", "-n", "k", "--", "true"]);
    let errors = session.errors().all();
    let words = "it refuses named pipes (operation not permitted), as vfat, exfat, hugetlbfs and some sandboxes do: name a \
                 directory on another file system with --store\n";
    assert!(errors.ends_with(words), "{errors}");
    assert_eq!(session.code(), 69);
}

/// "The children of rlock are the guardian, the command, then the orphans": also while the guardian
/// has no name yet, as on a busy machine, or where a filter refuses the name.
#[test]
fn daemon_of_an_rlock_whose_guardian_has_no_name_is_a_daemon() {
    let lab = Lab::new();
    let folder = lab.folder().display();
    let script = format!(
        "cd '{folder}' && mkfifo go answer; \
         setsid -f sh -c 'read -r go <go; rlock exec -n k -- true; echo $? >answer' >/dev/null 2>&1; \
         echo >go; read -r code <answer; exit $code"
    );
    let mut session = refused(&lab, &["prctl&0x8"], &[RLOCK, "exec", "k", "-c", &script]);
    assert_eq!(session.code(), 75);
}

/// Where /proc shows other processes, rlock finds the command's tree only by its group, and says so
/// before the command starts.
#[test]
fn proc_of_another_container_is_reported_before_the_command_starts() {
    let lab = Lab::new();
    let Some(unshare) = needs::namespaces(&["--pid", "--fork", "--kill-child"]) else { return };
    let words = [RLOCK, "exec", "k", "--", "sh", "-c", "echo command >&2"];
    let unshare = std::iter::once(unshare.get_program()).chain(unshare.get_args());
    let mut session = Session::start(&lab, unshare.chain(words.iter().map(OsStr::new)));
    let line = "rlock: warning: /proc does not show the processes of this container: if the command is killed, its \
                descendants in other process groups go on: mount a /proc\ncommand\n";
    assert_eq!(session.errors().all(), line);
    assert_eq!(session.code(), 0);
}
