//! Looks for a deadlock on behalf of an upgrade that waits.
//!
//! An upgrade waits for readers, whose clients may wait for upgrades of their own. Nothing else
//! would end such a cycle.

use std::time::Duration;

use rlock_model::deadlock::{Deadlock, Detector, Reading};
use rlock_model::request::{Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_sys::clock::Boottime;

/// How long a request waits before it looks, and between an answer and the next look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The search of one request.
#[derive(Debug)]
pub(super) struct Look {
    detector: Detector,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The request is not in the queue yet.
    Unqueued,
    /// The next reading is due at this instant.
    Pausing(Boottime),
    /// The store is asked for a reading.
    Reading,
}

impl Look {
    /// The search of a request below a session that has the claims `held`.
    pub(super) fn new(session: SessionId, claims: &[Claim], held: &[Claim]) -> Self {
        let names = claims.iter().chain(held).map(|claim| claim.resource.clone());
        Self { detector: Detector::new(session, None, names), state: State::Unqueued }
    }

    /// The request is in the queue since `now`.
    pub(super) fn begin(&mut self, now: Boottime) {
        self.state = State::Pausing(now + LOOK_EVERY);
    }

    /// When [`read`](Self::read) is due.
    pub(super) fn at(&self) -> Option<Boottime> {
        if let State::Pausing(at) = self.state { Some(at) } else { None }
    }

    /// Whether the store is asked for a reading.
    pub(super) fn reads(&self) -> bool {
        self.state == State::Reading
    }

    /// The resources to read, if a reading is due at `now`.
    pub(super) fn read(&mut self, now: Boottime) -> Option<Vec<Resource>> {
        let is_due = self.at().is_some_and(|at| at <= now);
        is_due.then(|| {
            self.state = State::Reading;
            self.detector.names().to_vec()
        })
    }

    /// Takes in a reading, or `None` if the store failed. Returns the deadlock that this
    /// request has to end.
    pub(super) fn on_reading(&mut self, reading: Option<&Reading>, now: Boottime) -> Option<Deadlock> {
        if !self.reads() {
            return None;
        }
        self.begin(now);
        let session = self.detector.session();
        self.detector.read(reading?).filter(|deadlock| deadlock.ends == session)
    }
}
