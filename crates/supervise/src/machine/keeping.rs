//! Answers events while the grant is kept for a process that rlock has not started and does not
//! end: that of `acquire --pid`.

use super::super::event::{Action, Event};
use super::{Next, Settings, is_over, terminate_at};
use rlock_sys::clock::Boottime;

/// The grant belongs to the process.
#[derive(Debug)]
pub(super) struct Keeping {
    deadline: Option<Boottime>,
    /// Whether a signal tells the process of a loss.
    hears: bool,
    /// The process was told that the grant is about to end. It has the rest of the lease, and of
    /// each renewal that still succeeds.
    is_told: bool,
}

impl Keeping {
    pub(super) fn new(deadline: Option<Boottime>, hears: bool) -> Self {
        Self { deadline, hears, is_told: false }
    }

    /// When the process is told, or has had its time since then.
    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Boottime> {
        if self.is_told { self.deadline } else { terminate_at(self.deadline, settings) }
    }

    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        let release = || Next::finish([Action::Release], Action::Exit(0));
        match event {
            Event::Granted { deadline } => {
                self.deadline = deadline;
                Next::nothing()
            }
            Event::Revoked { .. } if !self.hears && !self.is_told => release(),
            Event::Revoked { deadline } => {
                self.deadline = deadline;
                self.tell()
            }
            // The release frees what else the store keeps for a lost grant.
            Event::Lost => release().after((!self.is_told).then_some(Action::TellLoss)),
            Event::Released => Next::finish([], Action::Exit(0)),
            Event::RestEnded => release(),
            Event::Tick if is_over(self.next_timeout(settings), now) => {
                if self.is_told {
                    release()
                } else {
                    self.tell()
                }
            }
            // No signal ends a keeper. If the store fails, the grant ends with its lease.
            _ => Next::nothing(),
        }
    }

    fn tell(&mut self) -> Next {
        let is_told = std::mem::replace(&mut self.is_told, true);
        Next::Stay((!is_told).then_some(Action::TellLoss).into_iter().collect())
    }
}
