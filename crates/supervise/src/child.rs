//! Starts the command below its guardian. The modules below signal the command's processes, see
//! their stops and ends, and reap them.
//!
//! None of them makes decisions. They guarantee that the command's process tree dies when rlock
//! does, and that no process id is used after its process was reaped.

mod guard;
mod kill;
pub(crate) mod reap;
mod send;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use self::send::Telling;
use super::event::Group;
use super::guardian::{self, Notes, Ward};
use super::signals::Signals;
use super::spare::SpareIds;
use super::spawn::{NAMING_A_PROCESS, spawn};
use super::start_failure::start_failure;
use super::tree::Family;
use rlock_show::failure::Failure;
use rlock_show::messages::{self, RestProcess};
use rlock_store::identity;
use rlock_sys::processes::{self, Process, own_session};

/// Number of guardians that may die before rlock goes on without a guardian.
const GUARDIANS_MAX: u32 = 8;

/// Maximum number of processes that a message names.
const REST_NAMES_MAX: usize = 8;

/// The command to run, without a shell.
#[derive(Clone, Debug)]
pub struct CommandSpec {
    /// The program and its arguments. The program is looked up in PATH unless it has a slash.
    pub argv: Vec<OsString>,
    /// The session id in the environment of the command, by which rlock recognises the command's
    /// processes.
    pub session: String,
}

#[derive(Debug)]
pub(crate) struct Child {
    group: Group,
    /// The descriptors that the guardian keeps open.
    kept: Vec<OwnedFd>,
    ward: Ward,
    /// Number of guardians that may still die before rlock goes on without one.
    guardians_left: u32,
    /// The notes of the guardian.
    notes: Option<Notes>,
    family: Family,
    /// Whether [`Child::look`] has seen a stop after which rlock has not continued the command.
    stopped: bool,
    awaits_rest: bool,
    /// What the rest of the tree is told, if anything.
    telling: Option<Telling>,
    /// The shell of the spare work, which this type does not reap.
    spare: Option<Pid>,
}

impl Child {
    /// Starts the command with `environment` on top of rlock's own variables, if the kernel opens
    /// the program within `limit`. The descriptors in `kept` stay open until the command's tree is
    /// gone, even if rlock is killed.
    ///
    /// Before that, `warn` gets a line if the kernel keeps rlock from finding the tree.
    ///
    /// # Errors
    /// The command cannot be executed. The failure has the exit code 126 or 127, as in the shells.
    /// Nothing is left running then.
    pub(crate) fn start(
        command: &CommandSpec,
        environment: &[(OsString, OsString)],
        group: Group,
        signals: &Signals,
        kept: &[BorrowedFd<'_>],
        limit: Duration,
        warn: impl FnOnce(&str),
    ) -> Result<Self, Failure> {
        let ward = Ward::first(&command.session);
        let leader = |guardian| (group == Group::Own).then_some(guardian);
        let started = || -> io::Result<Self> {
            let owned = kept.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
            let mut family = expect_orphans(warn);
            let (guardian, pid) = guardian::start_with(&ward, kept, signals, |guardian| {
                let prepare = guardian::prepare(signals, leader(guardian));
                spawn(&command.argv, environment, NAMING_A_PROCESS, &prepare, limit)
            })?;
            (family.guardian, family.command) = (Some(guardian.pid), Some(pid));
            Ok(Self {
                group,
                kept: owned,
                ward: Ward { group: leader(guardian.pid), is_first: false, ..ward },
                notes: guardian.notes,
                guardians_left: GUARDIANS_MAX,
                family,
                stopped: false,
                awaits_rest: false,
                telling: None,
                spare: None,
            })
        };
        let program = command.argv.first().map_or(OsStr::new(""), OsString::as_os_str);
        started().map_err(|error| start_failure(program, &error, limit))
    }

    /// The command's process id, until the command is reaped.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.family.command
    }

    /// The guardian's notes of the signals that it has received, if the kernel permits them.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.notes.as_ref()
    }

    /// Leaves the processes of the spare work alone.
    pub(crate) fn set_apart(&mut self, spare: SpareIds) {
        self.spare = Some(spare.shell);
        self.family.foreign_group = Some(spare.group);
    }

    /// Forgets the reaped shell of the spare work. Another child may get its number.
    pub(crate) fn forget_spare(&mut self) {
        self.spare = None;
    }

    /// Looks at the tree, so that a process of it in a session of its own does not count as a
    /// daemon when its parent has ended.
    pub(crate) fn survey(&mut self) {
        self.remember();
    }

    /// The living processes of the tree, see [`Family::remember`].
    fn remember(&mut self) -> Vec<Process> {
        self.family.remember(&processes::all())
    }

    /// The number of the living processes of the tree without their guardians, and the first of
    /// them.
    pub(crate) fn rest(&self) -> (usize, Vec<RestProcess>) {
        let mut rest = self.family.members(&processes::all());
        rest.retain(|process| !guardian::is_guardian(process.pid));
        let describe = |Process { pid, .. }: &Process| RestProcess {
            pid: pid.as_raw_nonzero().get(),
            name: String::from_utf8_lossy(&processes::name(*pid)).into_owned(),
            state: processes::state(*pid).unwrap_or_default(),
            user: processes::user(*pid).map(identity::user).unwrap_or_default(),
        };
        (rest.len(), rest.iter().take(REST_NAMES_MAX).map(describe).collect())
    }
}

/// Makes rlock the parent of all processes that the command orphans, and records the children that
/// rlock has already. `warn` gets a line if a part of the tree will not be found.
fn expect_orphans(warn: impl FnOnce(&str)) -> Family {
    // Without /proc there is only the group to kill. If the kernel refuses to be asked for them,
    // the orphans go to another process.
    if !processes::are_visible() {
        warn(messages::NO_PROCESSES);
    } else if let Err(error) = set_child_subreaper(Some(getpid())) {
        warn(&messages::no_orphans(&error));
    }
    let mut family = Family {
        rlock: getpid(),
        guardian: None,
        command: None,
        strangers: Vec::new(),
        foreign_group: None,
        sessions: [own_session()].into(),
        below: HashMap::new(),
    };
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // Mostly rlock has no child yet, and waitid(2) is cheaper than reading /proc.
    if !matches!(waitid(WaitId::All, any), Err(Errno::CHILD)) {
        let all = processes::all();
        let children = all.iter().filter(|stat| stat.parent == Some(family.rlock));
        family.strangers = children.map(|stat| stat.process).collect();
    }
    family
}

#[cfg(test)]
mod tests;
