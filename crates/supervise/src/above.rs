//! Finds the rlocks above this process by /proc.
//!
//! A nested request knows the sessions above it by variables, which sudo(8), `env -i` and others
//! drop. Such a request waits for the rlock that waits for it. The search for a deadlock therefore
//! looks at the parents of this process, too.
//!
//! An rlock waits for its command alone. It may also be the parent of the spare work, and of
//! processes that the command has left behind, such as daemons. So an rlock counts only if the
//! chain of parents leads to it through its command.

use std::time::Duration;

use rustix::process::{Pid, geteuid, getpid};

use super::guardian::is_guardian;
use rlock_model::request::{AHEAD_MAX, Process};
use rlock_store::identity;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::processes::{self, Stat};

/// Maximum number of parents that are looked at.
const PARENTS_MAX: usize = 1_000;

/// The rlocks whose commands this process runs below, innermost first.
#[derive(Debug, Default)]
pub struct Above(Vec<processes::Process>);

impl Above {
    /// Reads the parents of this process. None is found where /proc does not show them.
    pub fn find() -> Self {
        let parents = parents();
        let children = parents.iter();
        let pairs = parents.iter().skip(1).zip(children);
        Self(pairs.filter(|(parent, child)| runs(parent, child)).map(|(parent, _)| parent.process).collect())
    }

    /// Whether no rlock runs a command above this process.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of these rlocks is the process of a session, which has been a holder since this
    /// instant.
    ///
    /// A record has the number of a process and no more of its identity. Another machine, another
    /// pid namespace and a later process may have the same number. So the host and the command have
    /// to be the same, and the process has to be older than the hold, as far as two clocks tell.
    pub fn has(&self, process: &Process, since: StoreTime) -> bool {
        let is_it = |it: &&processes::Process| u32::try_from(it.pid.as_raw_nonzero().get()) == Ok(process.pid);
        let found = self.0.iter().find(is_it);
        found.is_some_and(|found| started(found) <= since + AHEAD_MAX && identity::runs_here(process))
    }
}

/// Whether this process runs below the command of the session with this process, which has been a
/// holder since this instant.
pub fn is_above(process: &Process, since: StoreTime) -> bool {
    identity::is_of_this_host(process) && Above::find().has(process, since)
}

/// The number of the process for which a session with this process holds its lock, if it is above
/// this one, and the session is one of this user. A number and a start mean one process of a
/// machine only.
pub fn owner(process: &Process) -> Option<u32> {
    let is_own = identity::is_of_this_host(process) && process.user == identity::user(geteuid().as_raw());
    let owner = process.lasts_for.filter(|_| is_own)?;
    let is_it = |stat: &Stat| {
        u32::try_from(stat.process.pid.as_raw_nonzero().get()) == Ok(owner.pid) && stat.process.started == owner.started
    };
    parents().iter().any(is_it).then_some(owner.pid)
}

/// Whether this process belongs to a job of at(1): the leader of its session, or the parent of the
/// leader, is the daemon that starts these jobs.
pub fn is_job_of_at() -> bool {
    let is_atd = |pid: Pid| processes::name(pid) == b"atd";
    let leader = Pid::from_raw(processes::own_session()).filter(|_| processes::are_visible());
    let parent = |leader| processes::stat(leader).ok().and_then(|stat| stat.parent);
    leader.is_some_and(|leader| is_atd(leader) || parent(leader).is_some_and(is_atd))
}

/// This process and its parents, innermost first.
pub fn parents() -> Vec<Stat> {
    let own = Some(getpid()).filter(|_| processes::are_visible()).and_then(|own| processes::stat(own).ok());
    let parent = |child: &Stat| {
        // A parent that has ended meanwhile may have left its number to a younger process.
        let found = processes::stat(child.parent?).ok();
        found.filter(|parent| parent.process.started <= child.process.started)
    };
    std::iter::successors(own, parent).take(PARENTS_MAX).collect()
}

/// Whether a parent is an rlock and this child is the rlock's command, which begins after its
/// guardian and before all orphans. A daemon has left the session. In doubt it is not the command.
fn runs(parent: &Stat, child: &Stat) -> bool {
    let children = processes::children(parent.process.pid);
    let at = children.iter().position(|pid| *pid == child.process.pid).unwrap_or(0);
    let (before, after) = children.split_at(at);
    before.last().is_some_and(|pid| is_guardian(*pid))
        && !after.iter().any(|pid| is_guardian(*pid))
        && parent.session == child.session
}

/// When a process started, by the clock of the machine.
fn started(process: &processes::Process) -> StoreTime {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let since_boot = Boottime::since_boot(Duration::from_millis(process.started.saturating_mul(1_000) / ticks));
    StoreTime::of_machine() - (Boottime::now() - since_boot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::request::Owner;

    #[test]
    fn hold_for_a_process_above_is_found_by_its_own_user_alone() {
        let own = parents().remove(0).process;
        let pid = u32::try_from(own.pid.as_raw_nonzero().get()).unwrap();
        let mut process = identity::process(geteuid().as_raw(), 1, Vec::new());
        process.lasts_for = Some(Owner { pid, started: own.started });
        assert_eq!(owner(&process), Some(pid));
        process.user.push('x');
        assert_eq!(owner(&process), None);
    }
}
