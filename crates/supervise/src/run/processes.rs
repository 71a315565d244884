//! The command and the spare work, each of which leaves the processes of the other alone.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal as Kernel};

use super::super::child::reap::reap_inherited;
use super::super::child::{Child, CommandSpec};
use super::super::event::{Event, Group};
use super::super::guardian::Notes;
use super::super::signals::Signals;
use super::super::spare::SpareWork;
use rlock_model::request::SessionId;
use rlock_show::failure::Failure;
use rlock_show::messages::RestProcess;

pub(super) struct Processes {
    command: CommandSpec,
    group: Group,
    child: Option<Child>,
    spare: OsString,
    spare_work: Option<SpareWork>,
}

impl Processes {
    pub(super) fn new(command: CommandSpec, group: Group, spare: OsString) -> Self {
        Self { command, group, child: None, spare, spare_work: None }
    }

    /// Runs the command as that of another session.
    pub(super) fn rename(&mut self, session: SessionId) {
        self.command.session = session.to_string();
    }

    /// The words of the command.
    pub(super) fn words(&self) -> &[OsString] {
        &self.command.argv
    }

    /// The command's process id, from its start until it is reaped.
    pub(super) fn command(&self) -> Option<Pid> {
        self.child.as_ref().and_then(Child::pid)
    }

    /// The guardian's notes of the signals that it has received, while it guards the command.
    pub(super) fn notes(&self) -> Option<&Notes> {
        self.child.as_ref().and_then(Child::notes)
    }

    /// Starts the command, as [`Child::start`] does.
    ///
    /// # Errors
    /// Those of [`Child::start`].
    pub(super) fn start(
        &mut self,
        environment: &[(OsString, OsString)],
        signals: &Signals,
        kept: &[BorrowedFd<'_>],
        limit: Duration,
        warn: impl FnOnce(&str),
    ) -> Result<(), Failure> {
        let mut child = Child::start(&self.command, environment, self.group, signals, kept, limit, warn)?;
        if let Some(work) = &self.spare_work {
            child.set_apart(work.ids());
        }
        self.child = Some(child);
        Ok(())
    }

    /// Starts the spare work.
    ///
    /// # Errors
    /// Those of [`SpareWork::start`].
    pub(super) fn start_spare(&mut self, signals: &Signals) -> Result<(), Failure> {
        let work = SpareWork::start(&self.spare, &self.command.session, signals)?;
        self.on_child(|child| child.set_apart(work.ids()));
        self.spare_work = Some(work);
        Ok(())
    }

    /// Looks for a change of the command, and reaps what it orphaned.
    ///
    /// The caller takes one look for each SIGCHLD. A later change raises another SIGCHLD, and the
    /// loop handles it after the signals that came meanwhile.
    pub(super) fn look_at_child(&mut self, signals: &Signals) -> anyhow::Result<Option<Event>> {
        let Some(child) = &mut self.child else {
            reap_inherited(self.spare_work.as_ref().map(|work| work.ids().shell));
            return Ok(None);
        };
        child.look(signals).context("cannot see what became of the command")
    }

    /// Looks for the end of the spare work.
    pub(super) fn look_at_spare(&mut self) -> anyhow::Result<Option<Event>> {
        let Some(work) = &self.spare_work else { return Ok(None) };
        let Some(ended) = work.look().context("cannot see what became of the spare work")? else { return Ok(None) };
        self.spare_work = None;
        self.on_child(Child::forget_spare);
        Ok(Some(Event::SpareEnded(ended)))
    }

    pub(super) fn on_child(&mut self, act: impl FnOnce(&mut Child)) {
        if let Some(child) = &mut self.child {
            act(child);
        }
    }

    /// The processes that the command has left, see [`Child::rest`].
    pub(super) fn rest(&self) -> (usize, Vec<RestProcess>) {
        self.child.as_ref().map(Child::rest).unwrap_or_default()
    }

    pub(super) fn on_spare(&self, signal: Kernel) {
        if let Some(work) = &self.spare_work {
            work.pass(signal);
        }
    }

    /// Reaps the ended command.
    pub(super) fn reap(&mut self) -> anyhow::Result<()> {
        self.child.as_mut().map_or(Ok(()), Child::reap).context("cannot reap the command")
    }

    /// Reaps the dismissed guardian of the command.
    pub(super) fn reap_guardian(&mut self) -> anyhow::Result<()> {
        self.child.as_mut().map_or(Ok(()), Child::reap_guardian).context("cannot reap the guardian")
    }

    /// Replaces the guardian by one that does not keep the lock, which is about to be released.
    /// Returns why there is none, if no process can be made.
    pub(super) fn guard_without_lock(&mut self, signals: &Signals) -> anyhow::Result<Option<io::Error>> {
        let guarded = self.child.as_mut().map_or(Ok(None), |child| child.guard_without_lock(signals));
        guarded.context("cannot replace the guardian")
    }
}
