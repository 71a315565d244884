//! Finds the rlocks above this process by /proc.
//!
//! A nested request knows the sessions above it by variables, which sudo(8), `env -i` and others
//! drop. Such a request waits for the rlock that waits for it. The search for a deadlock therefore
//! looks at the parents of this process, too.
//!
//! An rlock waits for its command alone. It may also be the parent of the spare work, and of
//! processes that the command has left behind, such as daemons. A daemon hands the variables to
//! whatever it starts, for whomever. So the child of an rlock through which the chain of parents
//! leads decides how this process runs below that rlock: see [`Link`].

use std::time::Duration;

use rustix::process::{Pid, geteuid, getpid};

use super::guardian::is_guardian;
use super::signals::has_reaped;
use rlock_model::request::{AHEAD_MAX, Process};
use rlock_store::identity;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::processes::{self, Stat};

/// Maximum number of parents that are looked at.
const PARENTS_MAX: usize = 1_000;

/// How this process runs below an rlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Below the command, for which the rlock waits.
    Command,
    /// Below another child of the rlock, which the rlock does not wait for: an orphan in the
    /// session of the command, the spare work, or a process from before the command.
    Beside,
    /// Below a daemon, which an rlock has adopted: an orphan in another session. The variables of
    /// that rlock, and of the rlocks further out, are the daemon's and not those of a user.
    Daemon,
}

/// The rlocks among the parents of this process, innermost first.
#[derive(Debug, Default)]
pub struct Above(Vec<(processes::Process, Link)>);

impl Above {
    /// Reads the parents of this process. None is found where /proc does not show them.
    pub fn find() -> Self {
        let parents = parents();
        let pairs = parents.iter().skip(1).zip(&parents).filter(|(parent, _)| may_supervise(parent.process.pid));
        let links = pairs.scan(Link::Beside, |link, (rlock, child)| {
            if *link != Link::Daemon {
                *link = link_of(rlock, child);
            }
            Some((rlock.process, *link))
        });
        Self(links.collect())
    }

    /// Whether this process has such a link to any rlock.
    pub fn has(&self, link: Link) -> bool {
        self.0.iter().any(|(_, found)| *found == link)
    }

    /// How this process runs below the rlock of a session with this process, which has been a
    /// holder or a waiter since this instant; `None` if that rlock is not among the parents.
    ///
    /// A record has the number of a process and no more of its identity. Another machine, another
    /// pid namespace and a later process may have the same number. So the host and the command have
    /// to be the same, and the process has to be older than the hold, as far as two clocks tell.
    pub fn link(&self, process: &Process, since: StoreTime) -> Option<Link> {
        let is_it = |(found, _): &&(processes::Process, Link)| {
            u32::try_from(found.pid.as_raw_nonzero().get()) == Ok(process.pid)
        };
        let (found, link) = self.0.iter().find(is_it)?;
        let is_same =
            started(found) <= since + AHEAD_MAX && identity::is_of_this_host(process) && identity::runs_here(process);
        is_same.then_some(*link)
    }
}

/// Whether this process runs below the command of the session with this process, which has been a
/// holder since this instant.
pub fn is_above(process: &Process, since: StoreTime) -> bool {
    identity::is_of_this_host(process) && Above::find().link(process, since) == Some(Link::Command)
}

/// The number of the process for which a session with this process holds its lock, if it is above
/// this one or the `agent`, and the session is one of this user. A number and a start mean one
/// process of a machine only.
pub fn owner(process: &Process, agent: impl FnOnce() -> Option<Pid>) -> Option<u32> {
    let is_own = identity::is_of_this_host(process) && process.user == identity::user(geteuid().as_raw());
    let owner = process.lasts_for.filter(|_| is_own)?;
    let is_it = |stat: &Stat| {
        u32::try_from(stat.process.pid.as_raw_nonzero().get()) == Ok(owner.pid) && stat.process.started == owner.started
    };
    let is_agent = || agent().and_then(|pid| processes::stat(pid).ok()).is_some_and(|agent| is_it(&agent));
    (parents().iter().any(is_it) || is_agent()).then_some(owner.pid)
}

/// Whether the process of a session has the other end of a pipe that is the input or the output of
/// this one.
pub fn is_beside(process: &Process) -> bool {
    let link = |of: &str, fd: u8| std::fs::read_link(format!("/proc/{of}/fd/{fd}")).ok();
    let is_pipe = |path: &std::path::PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"pipe:");
    let other = process.pid.to_string();
    let joins = |own, its| link("self", own).filter(is_pipe).is_some_and(|pipe| link(&other, its) == Some(pipe));
    identity::is_of_this_host(process) && (joins(0, 1) || joins(1, 0))
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

/// Whether a process may be an rlock with a command. The children of any other are not looked at:
/// process 1 may have hundreds.
fn may_supervise(process: Pid) -> bool {
    processes::words(process).split(|byte| *byte == 0).any(|word| word == b"exec" || word.starts_with(b"range-"))
}

/// How what runs below this child of an rlock runs below that rlock.
fn link_of(rlock: &Stat, child: &Stat) -> Link {
    let children = processes::children(rlock.process.pid);
    // A guardian without its name yet has the command line of rlock, whose memory it shares.
    let words = processes::words(rlock.process.pid);
    let guards = |pid: &Pid| is_guardian(*pid) || processes::words(*pid) == words;
    let Some(guardian) = children.iter().rposition(guards) else { return Link::Beside };
    if children[..guardian].contains(&child.process.pid) {
        return Link::Beside;
    }
    let first = children.get(guardian + 1).and_then(|pid| processes::stat(*pid).ok());
    judge(rlock, children[guardian], first, child, || has_reaped(rlock.process.pid))
}

/// The same, for a child of the rlock that is younger than the guardian. The `first` of these
/// children is the command until it is reaped, and then an orphan.
///
/// A command that is setsid(1) leaves the session of the rlock, as a daemon does. The rlock shows
/// whether it has reaped the command. The command mostly has the number next to that of the
/// guardian, and then that of its own session, which its orphans keep.
fn judge(rlock: &Stat, guardian: Pid, first: Option<Stat>, child: &Stat, has_reaped: impl FnOnce() -> bool) -> Link {
    let sessions = [rlock.session, guardian.as_raw_nonzero().get() + 1];
    match first.filter(|first| sessions.contains(&first.session) || !has_reaped()) {
        Some(command) if command.process == child.process => Link::Command,
        Some(command) if command.session == child.session => Link::Beside,
        _ if sessions.contains(&child.session) => Link::Beside,
        _ => Link::Daemon,
    }
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

    const SESSION: i32 = 5;

    fn process(number: i32, session: i32) -> Stat {
        let own = processes::stat(getpid()).unwrap();
        let pid = Pid::from_raw(number).unwrap();
        Stat { process: processes::Process { pid, ..own.process }, session, ..own }
    }

    /// The link through this child of an rlock in `SESSION`, whose guardian has the number 11.
    fn through(child: Stat, first: Option<Stat>, has_reaped: bool) -> Link {
        judge(&process(10, SESSION), Pid::from_raw(11).unwrap(), first, &child, || has_reaped)
    }

    #[test]
    fn daemon_is_an_orphan_outside_of_the_sessions_of_the_rlock_and_its_command() {
        for (command, has_reaped) in [(12, true), (20, false)] {
            for session in [SESSION, command] {
                let first = process(command, session);
                assert_eq!(through(first, Some(first), has_reaped), Link::Command, "{first:?}");
                assert_eq!(through(process(30, session), Some(first), has_reaped), Link::Beside, "{first:?}");
                assert_eq!(through(process(30, 30), Some(first), has_reaped), Link::Daemon, "{first:?}");
            }
        }
    }

    #[test]
    fn orphan_in_the_place_of_a_reaped_command_is_judged_by_its_session() {
        let daemon = process(30, 30);
        assert_eq!(through(daemon, Some(daemon), true), Link::Daemon);
        assert_eq!(through(process(31, SESSION), Some(daemon), true), Link::Beside);
        assert_eq!(through(process(31, 12), Some(daemon), true), Link::Beside, "the command has been setsid(1)");
        assert_eq!(through(daemon, None, true), Link::Daemon);
    }

    #[test]
    fn hold_for_a_process_above_is_found_by_its_own_user_alone() {
        let own = parents().remove(0).process;
        let pid = u32::try_from(own.pid.as_raw_nonzero().get()).unwrap();
        let mut process = identity::process(geteuid().as_raw(), 1, Vec::new());
        process.lasts_for = Some(Owner { pid, started: own.started });
        assert_eq!(owner(&process, || None), Some(pid));
        process.user.push('x');
        assert_eq!(owner(&process, || Some(own.pid)), None);
    }
}
