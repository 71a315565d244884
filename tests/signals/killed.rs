//! A tree that was killed holds its lock until its last process has ended.
//!
//! The process that KILL does not end is in state D: its file system does not answer.

use std::time::Duration;

use rustix::process::{Pid, Signal, getpgid, kill_process};

use crate::session::{Session, children, until_dead, until_state};
use rlock_testkit::hung_disk::HungDisk;
use rlock_testkit::{Lab, on_both, wait_until, wait_within};

/// Starts a holder whose command, or a child of it, looks up a file that never comes.
fn holder(lab: &Lab, disk: &mut HungDisk, options: &[&str], job: &str) -> Session {
    let job = job.replace("FILE", &disk.file("x"));
    let holder = Session::rlock(lab, [&["exec", "--grace", "50ms"], options, &["k", "--", "sh", "-c", &job]].concat());
    disk.until_looked_up();
    holder
}

const COMMAND: &str = "exec stat FILE";
const CHILD: &str = "stat FILE & wait";
const CHILD_IN_A_SESSION: &str = "setsid stat FILE & wait";

/// "KILL by break, cleanup --break or --max-runtime releases when the last process has ended,
/// without a limit; a line names who is left." "124 and 76 come when the tree is gone."
#[test]
fn killed_process_in_state_d_holds_the_lock_until_it_ends() {
    on_both(|lab| {
        for job in [COMMAND, CHILD, CHILD_IN_A_SESSION] {
            for broken in [false, true] {
                let folder = tempfile::tempdir().expect("a folder can be made");
                let Some(mut disk) = HungDisk::mount(folder.path()) else { return };
                let options: &[&str] = if broken { &[] } else { &["--max-runtime", "50ms"] };
                let mut holder = holder(lab, &mut disk, options, job);
                if broken {
                    let broken = lab.run(["break", "-w", "0", "k"]);
                    assert!(broken.failed(75).contains("is revoked and still held"), "{broken:?}");
                }
                holder.errors().expect("rlock: 1 process has not ended after KILL ('stat', pid ");
                let line = holder.errors().line();
                let end = ", state D, user root): 'k' is held until it ends, or 'rlock break --now' breaks the hold";
                assert!(line.ends_with(end), "{line}");
                assert_eq!(lab.counts("k"), (1, 0), "{job}");
                drop(disk);
                assert_eq!(holder.code(), if broken { 76 } else { 124 }, "{job}");
                lab.assert_idle();
            }
        }
    });
}

/// "`break --now` frees." "Only a lost lock does not wait."
#[test]
fn break_now_frees_a_lock_that_a_killed_process_holds() {
    let lab = Lab::new();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let Some(mut disk) = HungDisk::mount(folder.path()) else { return };
    let mut holder = holder(&lab, &mut disk, &["--max-runtime", "50ms"], CHILD);
    holder.errors().expect("has not ended after KILL");
    let broken = lab.run(["break", "--now", "k"]);
    assert_eq!(broken.code(), Some(0));
    assert!(broken.stdout.contains("its command may run on beside that of the next holder"), "{broken:?}");
    assert_eq!(holder.code(), 76);
    assert_eq!(lab.run(["exec", "-n", "k", "--", "true"]).code(), Some(0));
}

/// The guardian outlives the KILL of the tree: KILL to rlock leaves the lock held.
#[test]
fn killed_rlock_leaves_the_lock_held_by_a_process_in_state_d() {
    let lab = Lab::new();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let Some(mut disk) = HungDisk::mount(folder.path()) else { return };
    let mut holder = holder(&lab, &mut disk, &["--max-runtime", "50ms"], CHILD);
    holder.errors().expect("has not ended after KILL");
    holder.signal(Signal::KILL);
    holder.code();
    let next = lab.run(["exec", "-w", "300ms", "k", "--", "true"]);
    next.busy();
    drop(disk);
    wait_within(Duration::from_secs(60), "the lock is free", || lab.counts("k") == (0, 0));
}

/// Waits for the copy to which the guardian leaves the end of the tree.
fn copy_of(guardian: Pid, but: Option<Pid>) -> Pid {
    let mut copy = None;
    wait_until("the guardian has a copy in a group of its own", || {
        copy = children(guardian).into_iter().find(|child| Some(*child) != but && getpgid(Some(*child)) == Ok(*child));
        copy.is_some()
    });
    copy.expect("it was found")
}

/// "The one that stops leaves the group first": neither the guardian nor its copy is in the group
/// that the copy stops, so the death of one leaves the other at work.
#[test]
fn guardian_and_copy_stay_out_of_the_group_that_they_stop_and_replace_each_other() {
    let lab = Lab::new();
    for dies in ["the copy", "the guardian"] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let Some(mut disk) = HungDisk::mount(folder.path()) else { return };
        let mut holder = holder(&lab, &mut disk, &[], CHILD);
        let [guardian, command] = children(holder.pid())[..] else { panic!("rlock has two children") };
        let group = getpgid(Some(command)).expect("it runs");
        holder.signal(Signal::KILL);
        holder.code();
        let copy = copy_of(guardian, None);
        wait_until("the guardian has left the group", || getpgid(Some(guardian)) == Ok(copy));
        assert_ne!(group, copy);
        if dies == "the copy" {
            kill_process(copy, Signal::KILL).expect("it runs");
            let next = copy_of(guardian, Some(copy));
            wait_until("the guardian has left the group", || getpgid(Some(guardian)) == Ok(next));
            until_state(guardian, "S");
        } else {
            kill_process(guardian, Signal::KILL).expect("it runs");
            until_dead(guardian);
        }
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        drop(disk);
        wait_until("the lock is free", || lab.counts("k") == (0, 0));
        holder.until_gone();
    }
}
