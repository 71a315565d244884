//! Watches the sessions of other processes that block sessions of this process. All waiters behind
//! a session share one descriptor of its beacon.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::super::beacon::Watched;
use rlock_model::request::SessionId;

/// Maximum number of events that one call handles. The others stay in the epoll instance.
const EVENTS_MAX: usize = 64;

/// The waiters of this process and the sessions that they watch.
#[derive(Default)]
pub(super) struct Watches {
    /// The epoll instance with the beacons of the blockers. A process whose requests never wait
    /// needs none.
    epoll: Option<OwnedFd>,
    blockers: HashMap<SessionId, Blocker>,
    /// The sessions that each waiter watches.
    watched: HashMap<SessionId, Vec<SessionId>>,
    /// The blockers by the numbers of their descriptors.
    numbers: HashMap<u64, SessionId>,
}

/// A session of another process.
struct Blocker {
    pipe: OwnedFd,
    waiters: Vec<SessionId>,
}

impl Watches {
    /// The descriptor that becomes readable when there is news.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().filter(|_| !self.blockers.is_empty()).map(AsFd::as_fd)
    }

    /// Makes a waiter watch these sessions and no others.
    pub(super) fn watch(&mut self, waiter: SessionId, watched: Vec<Watched>) -> io::Result<()> {
        let before = self.watched.remove(&waiter);
        let mut names = Vec::with_capacity(watched.len());
        let mut result = Ok(());
        for (blocker, pipe) in watched {
            result = result.and_then(|()| self.add(waiter, blocker, pipe));
            names.push(blocker);
        }
        // A session that the waiter watches as before keeps its descriptor.
        for blocker in before.unwrap_or_default() {
            if !names.contains(&blocker) {
                self.remove(waiter, blocker);
            }
        }
        if !names.is_empty() {
            self.watched.insert(waiter, names);
        }
        result
    }

    /// Makes a session watch nobody.
    pub(super) fn forget(&mut self, waiter: SessionId) {
        for blocker in self.watched.remove(&waiter).unwrap_or_default() {
            self.remove(waiter, blocker);
        }
    }

    fn add(&mut self, waiter: SessionId, blocker: SessionId, pipe: OwnedFd) -> io::Result<()> {
        if let Some(known) = self.blockers.get_mut(&blocker) {
            if !known.waiters.contains(&waiter) {
                known.waiters.push(waiter);
            }
            return Ok(());
        }
        let number = number(&pipe);
        let epoll = match &self.epoll {
            Some(epoll) => epoll,
            None => self.epoll.insert(epoll::create(CreateFlags::CLOEXEC)?),
        };
        // The kernel always reports an error or a hang-up.
        epoll::add(epoll, &pipe, EventData::new_u64(number), EventFlags::empty())?;
        self.numbers.insert(number, blocker);
        self.blockers.insert(blocker, Blocker { pipe, waiters: vec![waiter] });
        Ok(())
    }

    fn remove(&mut self, waiter: SessionId, blocker: SessionId) {
        let Some(known) = self.blockers.get_mut(&blocker) else { return };
        known.waiters.retain(|known| *known != waiter);
        if known.waiters.is_empty() {
            let number = number(&known.pipe);
            self.numbers.remove(&number);
            self.blockers.remove(&blocker);
        }
    }

    /// Returns the waiters that watched a session whose process is dead. They have to look again,
    /// and watch that session no more.
    pub(super) fn take_bereft(&mut self) -> Vec<SessionId> {
        let mut waiters = Vec::new();
        let Some(epoll) = self.descriptor() else { return waiters };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call reports the events the next time.
        if epoll::wait(epoll, spare_capacity(&mut events), Some(&at_once)).is_err() {
            return waiters;
        }
        for event in &events {
            let dead = self.numbers.remove(&event.data.u64()).and_then(|blocker| self.blockers.remove(&blocker));
            waiters.extend(dead.into_iter().flat_map(|blocker| blocker.waiters));
        }
        waiters
    }

    /// The number of watched sessions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.blockers.len(), self.numbers.len());
        self.blockers.len()
    }
}

fn number(pipe: &OwnedFd) -> u64 {
    u64::try_from(pipe.as_raw_fd()).unwrap_or(u64::MAX)
}
