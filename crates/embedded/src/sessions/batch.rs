//! What one transaction does for the sessions that are due.

use std::collections::{BTreeSet, HashMap};

use super::super::beacon::{self, Beacon, Wake};
use super::super::directory::Directory;
use super::super::failure::Error;
use super::super::transaction::{View, Work};
use super::local_session::{LocalSession, Stage};
use rlock_model::index::Rank;
use rlock_model::op::{Op, Reply};
use rlock_model::past::End;
use rlock_model::request::{Request, SessionId};
use rlock_store::engine::Engine;

/// The number of claims at which a transaction takes in no further session, because other processes
/// wait for its end: a millisecond or two.
pub(super) const BATCH_CLAIMS: usize = 64;

/// What a transaction found out about a session, or did for it.
pub(super) enum Outcome {
    Stands(View),
    Left(Reply),
}

/// What a transaction did for due sessions.
#[derive(Default)]
pub(super) struct Batch {
    /// The number of due sessions that were served.
    pub(super) served: usize,
    pub(super) outcomes: Vec<(SessionId, Outcome)>,
    /// The sessions of this process that have yet to look.
    pub(super) concerned: Vec<(SessionId, Wake)>,
}

impl Batch {
    /// Serves due sessions, and then those of this process that this concerns, until they have
    /// [`BATCH_CLAIMS`].
    pub(super) fn run(
        work: &mut Work<'_>,
        due: &[SessionId],
        is_alone: bool,
        beacon: &mut Option<Beacon>,
        sessions: &HashMap<SessionId, LocalSession>,
    ) -> Result<Self, Error> {
        let mut batch = Self::default();
        let mut again = BTreeSet::new();
        let mut claims = 0;
        while claims < BATCH_CLAIMS {
            let (id, outcome) = if let Some(id) = due.get(batch.served) {
                match serve(work, *id, beacon, sessions) {
                    // What the others did takes effect, and this session begins anew.
                    Err(Error::Portion) if batch.served > 0 => break,
                    outcome => (*id, outcome?),
                }
            } else if let Some(id) = again.pop_first() {
                (id, Outcome::Stands(look(work, id, beacon, sessions)?))
            } else {
                break;
            };
            claims += sessions.get(&id).map_or(1, |session| session.claims);
            batch.served = due.len().min(batch.served + 1);
            batch.outcomes.push((id, outcome));
            for (concerned, wake) in work.take_concerned() {
                let stage = sessions.get(&concerned).map(|session| &session.stage);
                let is_leaving = matches!(stage, None | Some(Stage::LeavingQueue | Stage::Releasing { .. }));
                match wake {
                    // The session has looked after that.
                    Wake::Now if concerned == id => {}
                    Wake::Now if !is_alone && !is_leaving => drop(again.insert(concerned)),
                    wake => batch.concerned.push((concerned, wake)),
                }
            }
        }
        batch.concerned.extend(again.into_iter().map(|id| (id, Wake::Now)).chain(work.take_concerned()));
        Ok(batch)
    }
}

/// Does what is due for a session.
fn serve(
    work: &mut Work<'_>,
    id: SessionId,
    beacon: &mut Option<Beacon>,
    sessions: &HashMap<SessionId, LocalSession>,
) -> Result<Outcome, Error> {
    let place = sessions.get(&id).map(|session| session.place).filter(|place| place.number > 0);
    match sessions.get(&id).map(|session| &session.stage) {
        Some(Stage::Asking(request)) => work.enter(Request::clone(request), place, beacon).map(Outcome::Stands),
        Some(Stage::LeavingQueue) => leave(work, id, None, sessions).map(Outcome::Left),
        Some(Stage::Releasing { end, .. }) => leave(work, id, *end, sessions).map(Outcome::Left),
        _ => look(work, id, beacon, sessions).map(Outcome::Stands),
    }
}

/// Finds out how a session stands that the table may contain.
fn look(
    work: &mut Work<'_>,
    id: SessionId,
    beacon: &mut Option<Beacon>,
    sessions: &HashMap<SessionId, LocalSession>,
) -> Result<View, Error> {
    match (sessions.get(&id), beacon) {
        (Some(LocalSession { stage: Stage::Waiting(request), place, .. }), Some(beacon)) => {
            work.stand_or_return(request, *place, beacon, sessions.len() == 1)
        }
        _ => work.stand(id),
    }
}

/// Takes a session out of the table.
fn leave(
    work: &mut Work<'_>,
    id: SessionId,
    end: Option<End>,
    sessions: &HashMap<SessionId, LocalSession>,
) -> Result<Reply, Error> {
    match sessions.get(&id) {
        Some(session) if sessions.len() > 1 => work.leave(id, Rank::waiting(session.place.number), end),
        // The end of the beacon tells the waiters that this session blocked.
        _ => work.apply(Op::Release { session: id, end }),
    }
}

/// Removes the names of the beacons of requests that a transaction did not make.
pub(super) fn withdraw(
    directory: &Directory,
    due: &[SessionId],
    sessions: &HashMap<SessionId, LocalSession>,
    beacon: &mut Option<Beacon>,
    is_first: bool,
) {
    let is_new = |id: &&SessionId| sessions.get(id).is_some_and(|it| matches!(it.stage, Stage::Asking(_)));
    due.iter().filter(is_new).for_each(|id| beacon::remove(directory, *id));
    if is_first {
        *beacon = None;
    }
}
