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
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal as Kernel, WaitOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, setpgid, waitpid,
};

use super::super::{killing, tree};
use super::{Ears, NAME, Ward, await_end, is_guardian};
use rlock_sys::processes::{self, Process, Snapshot, Stat, own_group};
use rlock_sys::signals::set_of;
use rlock_sys::tree_end;

/// Number of looks in a row that must find nothing new if none is known to be complete.
const LOOKS: u32 = 2;
/// How long the guardian looks at new processes only, until it knows whether a look was complete.
/// Mostly it knows at once. On a machine where short processes begin all the time, it takes longer.
const ROUNDS_LIMIT: Duration = Duration::from_millis(5);
/// The least time between two rounds.
const PAUSE: Duration = Duration::from_micros(200);
/// The most processes that it looks at in one of these rounds.
const ROUND_MAX: i32 = 1000;

/// Number of copies of this process that may be killed.
const COPIES_MAX: u32 = 8;

/// The variable that tells the program what to guard, see [`Orders`].
const VARIABLE: &str = "RLOCK_WARD";

/// What the program is told: the ward, the pidfd of rlock, the descriptors for the signals, and
/// those that it keeps.
#[derive(Debug, PartialEq, Eq)]
struct Orders {
    ward: Ward,
    life: Option<RawFd>,
    ears: Option<Ears>,
    kept: Vec<RawFd>,
}

/// The command line of the program.
pub(super) fn words() -> Vec<CString> {
    // The unit tests have an executable file of their own.
    let test: &[&CStr] = &[c"guardian::program::tests::program_of_a_guardian", c"--exact", c"--quiet"];
    let words = [NAME].into_iter().chain(test.iter().copied().filter(|_| cfg!(test)));
    words.map(CStr::to_owned).collect()
}

/// The environment variable that carries the orders. There is no other.
pub(super) fn variable(ward: &Ward, life: Option<RawFd>, ears: Option<Ears>, kept: &[RawFd]) -> CString {
    let Ward { rlock, session, outer, group, is_first, .. } = ward;
    let (group, life, is_first) = (group.map_or(0, number), life.unwrap_or(-1), u8::from(*is_first));
    let Ears { signals, notes } = ears.unwrap_or(Ears { signals: -1, notes: -1 });
    let mut text = format!("{VARIABLE}={rlock} {session} {outer} {group} {is_first} {life} {signals} {notes}");
    kept.iter().for_each(|descriptor| text.push_str(&format!(" {descriptor}")));
    CString::new(text).expect("numbers and a session id have no null byte")
}

/// The orders in the value of the variable.
fn orders(text: &str) -> Option<Orders> {
    let mut fields = text.split(' ');
    let rlock = Pid::from_raw(fields.next()?.parse().ok()?)?;
    let session = fields.next()?.to_owned();
    let outer = fields.next()?.parse().ok()?;
    let group = Pid::from_raw(fields.next()?.parse().ok()?);
    let is_first = fields.next()? == "1";
    let mut descriptor = || Some(fields.next()?.parse().ok().filter(|descriptor| *descriptor >= 0));
    let (life, signals, notes) = (descriptor()?, descriptor()?, descriptor()?);
    let ears = signals.zip(notes).map(|(signals, notes)| Ears { signals, notes });
    let kept = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let ward = Ward { rlock, session, outer, group, is_first, is_canary: ears.is_some() };
    Some(Orders { ward, life, ears, kept })
}

/// Guards and ends this process, if it was executed as a guardian: `name` is the first word of its
/// command line.
pub fn run_if_called(name: &OsStr) {
    if name.as_encoded_bytes() == NAME.to_bytes()
        && let Some(orders) = env::var(VARIABLE).ok().as_deref().and_then(orders)
    {
        guard(orders);
        signal_hook::low_level::exit(0);
    }
}

/// Waits for the end of rlock, then ends the tree, and notes its end on the beacon.
fn guard(Orders { ward, life, ears, kept }: Orders) {
    let _ = rustix::thread::set_name(NAME);
    // A file system that rlock was started in must not be kept busy.
    let _ = rustix::process::chdir("/");
    // SAFETY: this process was started with the descriptor, and closes none.
    let life = life.map(|life| unsafe { BorrowedFd::borrow_raw(life) });
    if life.is_none_or(|life| await_end(life, ears, ward.rlock, None).is_err()) {
        await_new_parent(ward.rlock);
    }
    if end_tree(&ward) {
        for descriptor in kept {
            // SAFETY: this process was started with the descriptor, and closes none.
            let beacon = unsafe { BorrowedFd::borrow_raw(descriptor) };
            // Without the note, the history tells when the death was noticed.
            let _ = tree_end::note(beacon);
        }
    }
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

/// The process group that a guardian ends, in which it may be itself.
fn group(ward: &Ward) -> Option<Pid> {
    let own = Pid::from_raw(own_group());
    own.filter(|group| *group == getpid() || ward.group == Some(*group))
}

/// Leaves the work to a copy of this process, and starts another copy if one is killed: what it had
/// stopped would otherwise stay stopped. Returns only in a copy, or here if there can be no copy.
///
/// From outside of the group one call can stop all of the group, so that no process of it starts
/// another one. Both processes leave the group before that, so no death leaves one of them stopped.
fn leave_to_copy(group: Option<Pid>) {
    // An ended child keeps the number of the group from another use until it is reaped.
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        signal_hook::low_level::exit(0);
    }
    for _ in 0..COPIES_MAX {
        let Ok((left, leaving)) = pipe_with(PipeFlags::CLOEXEC) else { return };
        // SAFETY: this process has one thread.
        let copy = match unsafe { libc::fork() } {
            0 => {
                drop(leaving);
                let _ = setpgid(None, None);
                // The pipe ends when the original has left the group, or has ended.
                let _ = rustix::io::read(&left, &mut [0]);
                return;
            }
            copy => copy,
        };
        let Some(copy) = Pid::from_raw(copy).filter(|_| copy > 0) else { return };
        let _ = setpgid(Some(copy), Some(copy)).and_then(|()| setpgid(None, Some(copy)));
        drop(leaving);
        let ended = waitpid(Some(copy), WaitOptions::empty()).ok().flatten();
        if ended.is_none_or(|(_, status)| !status.signaled()) {
            break;
        }
    }
    // The copy has killed the group, unless all copies have been killed.
    if let Some(group) = group {
        let _ = kill_process_group(group, Kernel::KILL);
    }
    signal_hook::low_level::exit(0)
}

/// Kills the tree, with the processes that it starts meanwhile, and returns when none of it is
/// left. A process that may not be signalled is left alone. Returns whether it could see that.
///
/// A process that starts another one and ends at once can escape a look at /proc. So a look is
/// followed by the question whether anybody has escaped it, which the numbers of the processes that
/// have begun since can answer:
///
/// | [`Tree::kill_new`] | [`Tree::escaped_since`] | what follows |
/// | --- | --- | --- |
/// | `None`: /proc shows nothing | | the end, and only the groups are killed |
/// | a mark | `Some(true)`: somebody had escaped, and is stopped now | another look |
/// | a mark | `Some(false)`: nobody had | the end: the look was complete |
/// | a mark, or none | `None`: the numbers tell nothing | another look, up to [`LOOKS`] in a row |
fn end_tree(ward: &Ward) -> bool {
    // No process of the tree is older than the first guardian. A later guardian does not know the
    // start of the tree.
    let own_start = || processes::stat(getpid()).map_or(0, |own| own.process.started);
    let since = if ward.is_first { own_start() } else { 0 };
    let (guardian, group) = (getpid(), group(ward));
    let groups = group.iter().copied().collect();
    let (session, outer) = (&*ward.session, ward.outer);
    let (known, strangers) = (HashSet::new(), RefCell::default());
    leave_to_copy(group);
    let has_marks = are_numbers_true();
    let mut tree = Tree { guardian, session, outer, since, groups, known, strangers, has_marks };
    let (mut looks, mut has_seen) = (0, true);
    while looks < LOOKS {
        let Some(before) = tree.kill_new() else {
            // Without /proc there is the group.
            has_seen = false;
            break;
        };
        match before.and_then(|before| tree.escaped_since(before)) {
            Some(true) => looks = 0,
            Some(false) => break,
            None => looks += 1,
        }
    }
    tree.signal_groups(Kernel::KILL);
    has_seen
}

/// Whether [`processes::last_number`] tells the truth, which a container may hide: whether it knows
/// this process, which is a copy that has just begun.
fn are_numbers_true() -> bool {
    processes::last_number().is_some_and(|last| last >= number(getpid()))
}

/// What is known of a tree whose rlock has ended.
struct Tree<'w> {
    /// The process that has watched rlock: this one, or the one that it is a copy of.
    guardian: Pid,
    /// The session id in the environment of the tree's processes.
    session: &'w str,
    /// The process group of rlock, which has other processes than the tree's.
    outer: i32,
    /// The start of the tree, in the unit of [`Process::started`].
    since: u64,
    /// The process groups of the tree.
    groups: HashSet<Pid>,
    /// The processes that were found.
    known: HashSet<Process>,
    /// Processes whose environment says that they are not of the tree. When many trees end at once,
    /// each look would read the environments of all others again.
    strangers: RefCell<HashSet<Process>>,
    /// Whether the number of the last process that began can be read.
    has_marks: bool,
}

impl Tree<'_> {
    /// Looks for processes that were not known yet until there are none, and kills them. Returns
    /// the number of the last process that began before the last look, or `None` if /proc shows no
    /// processes.
    fn kill_new(&mut self) -> Option<Option<i32>> {
        let mut snapshot = Snapshot::default();
        let mut stopped: Vec<Process> = Vec::new();
        loop {
            // A stopped process starts no other one. A process that is about to end while another
            // one begins escapes a look, but no signal to its group.
            self.signal_groups(Kernel::STOP);
            let mark = self.mark();
            snapshot.update();
            if snapshot.all.is_empty() {
                return None;
            }
            let reaper = self.reaper();
            let ending = RefCell::new(HashSet::new());
            let mut new = tree::seeded(&snapshot.all, getpid(), |stat, parent| {
                self.is_of_tree(stat, parent == reaper).unwrap_or_else(|| {
                    ending.borrow_mut().insert(stat.process);
                    false
                })
            });
            new.retain(|process| self.known.insert(*process) && !leave_guardian(process.pid));
            let before = stopped.len();
            for stat in snapshot.all.iter().filter(|stat| new.contains(&stat.process)) {
                if self.stop(stat) {
                    stopped.push(stat.process);
                }
            }
            // A process that has lost its environment may belong to the tree. Its children are
            // about to become orphans, and the next round sees them as such.
            let ending = ending.into_inner();
            let mut has_changed = false;
            for stat in snapshot.all.iter_mut().filter(|stat| !stat.ending && ending.contains(&stat.process)) {
                (stat.ending, has_changed) = (true, true);
            }
            if stopped.len() == before && !has_changed {
                killing::kill_in_order(&snapshot.all, &stopped, None);
                return Some(mark);
            }
        }
    }

    /// The number of the last process that has begun.
    fn mark(&self) -> Option<i32> {
        self.has_marks.then(processes::last_number).flatten()
    }

    /// Whether a process of the tree has escaped a look that began after the process with this
    /// number: one that another process started before it ended. Looks only at the processes that
    /// have begun since, so the rounds are short, and mostly no process begins during one. Stops
    /// what it finds. Returns `None` if it cannot tell.
    fn escaped_since(&mut self, mut last: i32) -> Option<bool> {
        let begun = Instant::now();
        let mut unjudged = Vec::new();
        while begun.elapsed() < ROUNDS_LIMIT {
            let next = self.mark()?;
            // The numbers may have begun anew.
            if !(0..=ROUND_MAX).contains(&next.saturating_sub(last)) {
                return None;
            }
            // The youngest is the one that may start another one at any moment.
            let new = (last + 1..=next).rev().filter_map(Pid::from_raw);
            let mut is_clear = true;
            for pid in new.chain(std::mem::take(&mut unjudged)) {
                // A process that has ended may have started another one.
                let Some(stat) = processes::stat(pid).ok().filter(|stat| !stat.ending && !stat.ended) else {
                    is_clear = false;
                    continue;
                };
                if self.known.contains(&stat.process) {
                    continue;
                }
                // The parent may be a process of the tree that the look has missed.
                match self.is_of_tree(&stat, true) {
                    Some(true) if !leave_guardian(pid) && self.stop(&stat) => return Some(true),
                    Some(true) => drop(self.known.insert(stat.process)),
                    Some(false) => {}
                    None => unjudged.push(pid),
                }
            }
            if is_clear && unjudged.is_empty() {
                return Some(false);
            }
            last = next;
            thread::sleep(PAUSE);
        }
        None
    }

    /// The new parent of the orphans of rlock, of which the guardian is one.
    fn reaper(&self) -> Option<Pid> {
        if self.guardian == getpid() {
            return getppid();
        }
        let guardian = processes::stat(self.guardian).ok().filter(|stat| !stat.ended);
        // Without its original, this copy is an orphan itself.
        guardian.map_or_else(getppid, |stat| stat.parent)
    }

    /// Whether a process is of the tree, or `None` if its environment cannot tell now.
    fn is_of_tree(&self, stat: &Stat, is_orphan: bool) -> Option<bool> {
        if stat.process.pid == self.guardian {
            return Some(false);
        }
        if Pid::from_raw(stat.group).is_some_and(|group| self.groups.contains(&group)) {
            return Some(true);
        }
        if !is_orphan || stat.process.started < self.since {
            return Some(false);
        }
        if self.strangers.borrow().contains(&stat.process) {
            return Some(false);
        }
        let is_of_tree = processes::names_session(stat.process, self.session);
        if is_of_tree == Some(false) {
            self.strangers.borrow_mut().insert(stat.process);
        }
        is_of_tree
    }

    /// Stops a process and its group. Returns whether it may be signalled. A group that another
    /// guardian leads is left to that guardian.
    fn stop(&mut self, stat: &Stat) -> bool {
        if let Some(group) = Pid::from_raw(stat.group).filter(|group| number(*group) != self.outer)
            && !is_guardian(group)
            && self.groups.insert(group)
        {
            self.signal_groups(Kernel::STOP);
        }
        kill_process(stat.process.pid, Kernel::STOP) != Err(Errno::PERM)
    }

    /// Sends a signal to the groups of the tree.
    fn signal_groups(&self, signal: Kernel) {
        for group in &self.groups {
            // Without a copy, this process may be in the group itself, and must not stop.
            if number(*group) != own_group() || signal == Kernel::KILL {
                let _ = kill_process_group(*group, signal);
            }
        }
    }
}

/// Leaves another guardian alone, which ends when its rlock has ended and its tree is gone, and
/// keeps the lock of its rlock until then. Its rlock may have stopped it. Returns whether the
/// process is one.
fn leave_guardian(process: Pid) -> bool {
    let is_one = is_guardian(process);
    if is_one {
        let _ = kill_process(process, Kernel::CONT);
    }
    is_one
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program of a guardian in the other unit tests.
    #[test]
    fn program_of_a_guardian() {
        if let Some(name) = env::args_os().next() {
            run_if_called(&name);
        }
    }

    #[test]
    fn orders_round_trip_through_their_text() {
        let ward = Ward { outer: 7, group: Some(getpid()), is_first: false, ..Ward::first("5e55") };
        let first = Ward { outer: 7, is_canary: false, ..Ward::first("5e55") };
        let ears = Some(Ears { signals: 8, notes: 9 });
        for (ward, life, ears, kept) in [(ward, Some(7), ears, vec![5, 6]), (first, None, None, vec![])] {
            let variable = variable(&ward, life, ears, &kept).into_string().unwrap();
            let (name, text) = variable.split_once('=').unwrap();
            assert_eq!(name, VARIABLE);
            assert_eq!(orders(text), Some(Orders { ward, life, ears, kept }));
        }
        assert_eq!(orders("7 5e55"), None);
    }
}
