//! Watches the sessions of other processes that block sessions of this process. All waiters behind
//! a session share one descriptor of its beacon.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::super::beacon::Beacon;
use super::super::transaction::Watched;
use crate::lock::request::SessionId;

/// The number that stands for this process's own beacon in the epoll instance.
const OWN: u64 = u64::MAX;
/// Maximum number of events that one call handles. The others stay in the epoll instance.
const EVENTS_MAX: usize = 64;

/// The waiters of this process and the sessions that they watch.
pub(super) struct Watches {
    epoll: Epoll,
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

/// The epoll instance with all beacons, this process's own and those that it watches.
#[derive(Clone)]
pub(super) struct Epoll(Rc<OwnedFd>);

/// The news since the last call.
pub(super) struct Heard {
    /// Whether the own beacon has something to read.
    pub(super) beacon: bool,
    /// The waiters that watched a session whose process is dead.
    pub(super) waiters: Vec<SessionId>,
}

impl Epoll {
    /// Waits for bytes in the own beacon, as long as that is open.
    pub(super) fn listen(&self, beacon: &Beacon) -> io::Result<()> {
        Ok(epoll::add(&self.0, beacon, EventData::new_u64(OWN), EventFlags::IN)?)
    }
}

impl Watches {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll(Rc::new(epoll::create(CreateFlags::CLOEXEC)?));
        Ok(Self { epoll, blockers: HashMap::new(), watched: HashMap::new(), numbers: HashMap::new() })
    }

    pub(super) fn epoll(&self) -> Epoll {
        self.epoll.clone()
    }

    /// The descriptor that becomes readable when there is news.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
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
        // The kernel always reports an error or a hang-up.
        epoll::add(&self.epoll.0, &pipe, EventData::new_u64(number), EventFlags::empty())?;
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

    /// Takes the news. A session whose process is dead is not watched any more; its waiters have to
    /// look again.
    pub(super) fn hear(&mut self) -> Heard {
        let mut heard = Heard { beacon: false, waiters: Vec::new() };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call reports the events the next time.
        if epoll::wait(&self.epoll.0, spare_capacity(&mut events), Some(&at_once)).is_err() {
            return heard;
        }
        for event in &events {
            let number = event.data.u64();
            heard.beacon |= number == OWN;
            let dead = self.numbers.remove(&number).and_then(|blocker| self.blockers.remove(&blocker));
            heard.waiters.extend(dead.into_iter().flat_map(|blocker| blocker.waiters));
        }
        heard
    }

    /// The number of watched sessions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.blockers.len(), self.numbers.len());
        self.blockers.len()
    }
}

fn number(pipe: &OwnedFd) -> u64 {
    u64::try_from(pipe.as_raw_fd()).unwrap_or(OWN)
}
