//! The guardian's own program, which rlock executes in the guardian's process.
//!
//! The program waits for the end of rlock, kills the command and all that it started, and ends when
//! none of it is left. After rlock's end its orphans belong to another process. The program finds
//! the tree by the command's process group, by descent, and by the session id in the environment of
//! processes. A daemon looks like a process whose parent was killed with rlock, so the program ends
//! both.

use std::cell::RefCell;
use std::collections::HashSet;
use std::env;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, getpid, getppid, kill_process, pidfd_open, set_parent_process_death_signal,
};

use super::super::signals::set_of;
use super::super::tree;
use super::{NAME, Ward, await_end};
use crate::processes::{self, Process, Snapshot, Stat, own_group};

/// The variable that tells the program what to guard, see [`Orders`].
const VARIABLE: &str = "RLOCK_WARD";

/// Descriptors below this number are closed one by one where the kernel lacks close_range(2), which
/// came with Linux 5.9.
const DESCRIPTORS: RawFd = 1024;

/// What the program is told: the ward, the pidfd of rlock and the other descriptors that it keeps.
#[derive(Debug, PartialEq, Eq)]
struct Orders {
    ward: Ward,
    life: Option<RawFd>,
    kept: Vec<RawFd>,
}

/// The command line of the program.
pub(super) fn words() -> Vec<CString> {
    // The unit tests have an executable file of their own.
    let test: &[&CStr] = &[c"supervise::guardian::program::tests::program_of_a_guardian", c"--exact", c"--quiet"];
    let words = [NAME].into_iter().chain(test.iter().copied().filter(|_| cfg!(test)));
    words.map(CStr::to_owned).collect()
}

/// The environment variable that carries the orders. There is no other.
pub(super) fn variable(ward: &Ward, life: Option<RawFd>, kept: &[RawFd]) -> CString {
    let Ward { rlock, session, group, is_first } = ward;
    let group = group.map_or(0, |group| group.as_raw_nonzero().get());
    let kept: String = kept.iter().map(|descriptor| format!(" {descriptor}")).collect();
    let life = life.unwrap_or(-1);
    let text = format!("{VARIABLE}={rlock} {session} {group} {} {life}{kept}", u8::from(*is_first));
    CString::new(text).expect("numbers and a session id have no null byte")
}

/// The orders in the value of the variable.
fn orders(text: &str) -> Option<Orders> {
    let mut fields = text.split(' ');
    let rlock = Pid::from_raw(fields.next()?.parse().ok()?)?;
    let session = fields.next()?.to_owned();
    let group = Pid::from_raw(fields.next()?.parse().ok()?);
    let is_first = fields.next()? == "1";
    let life = fields.next()?.parse().ok().filter(|life| *life >= 0);
    let kept = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some(Orders { ward: Ward { rlock, session, group, is_first }, life, kept })
}

/// Guards and ends this process, if it was executed as a guardian: `name` is the first word of its
/// command line.
pub(crate) fn run_if_called(name: &OsStr) {
    if name.as_encoded_bytes() == NAME.to_bytes()
        && let Some(orders) = env::var(VARIABLE).ok().as_deref().and_then(orders)
    {
        guard(orders);
        signal_hook::low_level::exit(0);
    }
}

/// Waits for the end of rlock, then ends the tree.
fn guard(Orders { ward, life, mut kept }: Orders) {
    kept.extend(life);
    close_all_but(kept);
    let _ = rustix::thread::set_name(NAME);
    // A file system that rlock was started in must not be kept busy.
    let _ = rustix::process::chdir("/");
    match life {
        // SAFETY: `close_all_but` has left it open.
        Some(life) => await_end(unsafe { BorrowedFd::borrow_raw(life) }, None),
        None => await_new_parent(ward.rlock),
    }
    end_tree(&ward);
}

/// Waits for the end of the parent, where the kernel has no pidfds.
fn await_new_parent(parent: Pid) {
    let _ = set_parent_process_death_signal(Some(Kernel::TERM));
    let set = set_of(&[libc::SIGTERM]);
    let mut signal = 0;
    while getppid() == Some(parent) {
        // All signals are blocked, so this one stays pending until it is taken here.
        // SAFETY: sigwait reads the set and writes `signal`.
        unsafe { libc::sigwait(&set, &raw mut signal) };
    }
}

/// Closes all descriptors but these. rlock's peers would otherwise take rlock's end for a pause.
fn close_all_but(mut kept: Vec<RawFd>) {
    kept.sort_unstable();
    let mut next = 0;
    for descriptor in kept.into_iter().chain([RawFd::MAX]) {
        if next < descriptor {
            // SAFETY: nothing in this process uses a descriptor that is not kept.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, next, descriptor - 1, 0) };
            for old_kernel in (next..descriptor.min(DESCRIPTORS)).filter(|_| closed != 0) {
                // SAFETY: as above.
                unsafe { libc::close(old_kernel) };
            }
        }
        next = descriptor.saturating_add(1);
    }
}

/// Kills the tree, with the processes that it starts meanwhile, and returns when none of it is
/// left. A process that may not be signalled is left alone.
fn end_tree(ward: &Ward) {
    // No process of the tree is older than the first guardian. A later guardian does not know the
    // start of the tree.
    let own_start = || processes::stat(getpid()).map_or(0, |own| own.process.started);
    let since = if ward.is_first { own_start() } else { 0 };
    let number = |pid: Pid| pid.as_raw_nonzero().get();
    let has_group = own_group() == number(getpid()) || ward.group.map(number) == Some(own_group());
    let mut snapshot = Snapshot::default();
    let mut stopped: Vec<Process> = Vec::new();
    // The processes of the tree that this process has stopped or may not stop.
    let mut known: HashSet<Process> = HashSet::new();
    loop {
        snapshot.update();
        if snapshot.all.is_empty() {
            // Without /proc there is the group, which includes this process.
            if has_group {
                let _ = rustix::process::kill_current_process_group(Kernel::KILL);
            }
            return;
        }
        // The orphans of rlock have the same new parent as this process, which is one of them.
        let reaper = getppid();
        let ending = RefCell::new(HashSet::new());
        let is_of_tree = |stat: &Stat, parent: Option<Pid>| {
            if has_group && stat.group == own_group() {
                return true;
            }
            if parent != reaper || stat.process.started < since {
                return false;
            }
            processes::names_session(stat.process, &ward.session).unwrap_or_else(|| {
                ending.borrow_mut().insert(stat.process);
                false
            })
        };
        let mut new = tree::seeded(&snapshot.all, getpid(), is_of_tree);
        new.retain(|process| known.insert(*process));
        // A stopped process starts no other one.
        let may_stop = |process: &Process| kill_process(process.pid, Kernel::STOP) != Err(Errno::PERM);
        stopped.extend(new.iter().copied().filter(may_stop));
        // A process that has lost its environment may belong to the tree. Its children are about to
        // become orphans, and the next round sees them as such.
        let ending = ending.into_inner();
        let mut has_changed = false;
        for stat in snapshot.all.iter_mut().filter(|stat| !stat.ending && ending.contains(&stat.process)) {
            (stat.ending, has_changed) = (true, true);
        }
        if new.is_empty() && !has_changed {
            kill(&stopped);
            return;
        }
    }
}

/// Kills these and waits for their end. Children go before their parents: an rlock in the tree must
/// not end, and its lock be free, before its command has ended.
fn kill(processes: &[Process]) {
    let mut ending = Vec::new();
    for process in processes.iter().rev() {
        let pidfd = pidfd_open(process.pid, PidfdFlags::empty());
        if kill_process(process.pid, Kernel::KILL).is_ok() {
            ending.extend(pidfd.ok());
        }
    }
    for pidfd in ending {
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a guardian of the other unit tests executes.
    #[test]
    fn program_of_a_guardian() {
        if let Some(name) = env::args_os().next() {
            run_if_called(&name);
        }
    }

    #[test]
    fn orders_are_read_as_they_were_written() {
        let ward = Ward { rlock: getpid(), session: "5e55".to_owned(), group: Some(getpid()), is_first: false };
        let first = Ward { group: None, is_first: true, ..ward.clone() };
        for (ward, life, kept) in [(ward, Some(7), vec![5, 9]), (first, None, Vec::new())] {
            let variable = variable(&ward, life, &kept).into_string().unwrap();
            let (name, text) = variable.split_once('=').unwrap();
            assert_eq!(name, VARIABLE);
            assert_eq!(orders(text), Some(Orders { ward, life, kept }));
        }
        assert_eq!(orders("7 5e55"), None);
    }
}
