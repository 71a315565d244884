//! Serves each session by a handle of its own, with its own connection or beacon.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use super::{Event, Sessions};
use crate::clock::Boottime;
use crate::lock::request::{Request, SessionId};
use crate::store::{Error, Handle, Released, Standing};

/// Makes a request in the store.
type Make = dyn Fn(Request) -> Result<Box<dyn Handle>, Error>;

/// The sessions of a process, each with a handle of its own.
pub(in crate::store) struct Separate {
    make: Box<Make>,
    sessions: BTreeMap<SessionId, Session>,
    events: VecDeque<(SessionId, Event)>,
}

struct Session {
    handle: Box<dyn Handle>,
    /// The state that was reported last.
    reported: Standing,
}

impl Separate {
    /// No sessions yet. `make` makes the request of a session.
    pub(in crate::store) fn new(make: Box<Make>) -> Self {
        Self { make, sessions: BTreeMap::new(), events: VecDeque::new() }
    }

    fn check(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let standing = session.handle.check();
        match &standing {
            Ok(standing) if *standing == session.reported => return,
            Ok(standing @ (Standing::Waiting | Standing::Granted(_))) => session.reported = standing.clone(),
            Ok(Standing::Asking) => return,
            // The result of the request is known, so that of the release does not matter.
            Ok(Standing::Busy { .. } | Standing::AlreadyDone | Standing::Refused(_) | Standing::Lost) => {
                drop(self.sessions.remove(&id))
            }
            Err(_) => {
                let _ = session.handle.release(None);
                self.sessions.remove(&id);
            }
        }
        self.events.push_back((id, Event::Standing(standing)));
    }
}

impl Sessions for Separate {
    fn acquire(&mut self, request: Request) {
        let id = request.session;
        match (self.make)(request) {
            Ok(handle) => {
                self.sessions.insert(id, Session { handle, reported: Standing::Asking });
                self.check(id);
            }
            Err(error) => self.events.push_back((id, Event::Standing(Err(error)))),
        }
    }

    fn release(&mut self, id: SessionId) {
        self.events.retain(|(session, _)| *session != id);
        let released = self.sessions.remove(&id).map_or(Ok(Released::Done), |mut session| session.handle.release(None));
        self.events.push_back((id, Event::Released(released)));
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.sessions.values().flat_map(|session| session.handle.descriptors()).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.sessions.values().filter_map(|session| session.handle.timeout()).min()
    }

    fn advance(&mut self) {
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.check(id);
        }
    }

    fn next_event(&mut self) -> Option<(SessionId, Event)> {
        self.events.pop_front()
    }
}
