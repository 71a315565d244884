//! How a session stands: makes its request, and finds out what has become of it.

use super::super::beacon::{self, Beacon, Identity, Peer};
use super::super::failure::Error;
use super::super::records;
use super::{View, Work};
use rlock_model::op::{Op, Reply};
use rlock_model::records::{Phase, Records};
use rlock_model::request::{Place, Request, SessionId};
use rlock_model::table;
use rlock_store::engine::{self, Engine};
use rlock_store::handle::{Obstruction, Standing};
use rlock_sys::clock::{Boottime, StoreTime};

impl Work<'_> {
    /// Makes the request of a new session, which may return to a place. `beacon` is the beacon of
    /// this process, which the first session makes.
    pub(crate) fn enter(
        &mut self,
        request: Request,
        place: Option<Place>,
        beacon: &mut Option<Beacon>,
    ) -> Result<View, Error> {
        let session = request.session;
        let is_first = beacon.is_none();
        let identity = match beacon {
            Some(beacon) => {
                beacon.share(self.directory, session)?;
                *beacon.identity()
            }
            None => *beacon.insert(Beacon::light(self.directory, session)?).identity(),
        };
        let view = self.ask(request, place, &identity);
        if view.is_err() {
            // The session is not in the table, so its beacon must not count as that of a user.
            beacon::remove(self.directory, session);
            if is_first {
                *beacon = None;
            }
        }
        view
    }

    /// Returns the state of a session that waits or holds. A waiter that was passed over, or that
    /// another process took for dead, returns to its place. `is_only` says that no other session
    /// has this beacon.
    pub(crate) fn stand_or_return(
        &mut self,
        request: &Request,
        place: Place,
        beacon: &mut Beacon,
        is_only: bool,
    ) -> Result<View, Error> {
        let view = self.stand(request.session)?;
        if view.standing != Standing::Lost {
            return Ok(view);
        }
        beacon.restore(self.directory, request.session, is_only)?;
        self.ask(request.clone(), Some(place), beacon.identity())
    }

    fn ask(&mut self, mut request: Request, place: Option<Place>, identity: &Identity) -> Result<View, Error> {
        let session = request.session;
        let mut ancestors = Vec::with_capacity(request.ancestors.len());
        for ancestor in request.ancestors {
            // Any process can read the id of a session and claim it as an ancestor. The owner of
            // the beacon comes from the kernel.
            if self.foreign_owner(ancestor)?.is_none() {
                ancestors.push(ancestor);
            }
        }
        request.ancestors = ancestors;
        let view = self.admit(request, place)?;
        if self.records().session(session)?.is_some() {
            records::put_beacon(self.table.records_mut(), session, identity)?;
        }
        Ok(view)
    }

    /// Makes a request, or one that returns to its place, and returns its state.
    pub(crate) fn admit(&mut self, request: Request, place: Option<Place>) -> Result<View, Error> {
        // Dead ancestors are reaped first; their descendants then count as roots.
        self.remove_gone(&request.ancestors)?;
        loop {
            self.clear_the_way(&request)?;
            let reply = self.apply(Op::Acquire { request: request.clone(), place })?;
            let mut obstructions = Vec::new();
            if let Reply::Busy { blockers, .. } = &reply {
                self.await_trees(blockers)?;
                let resources = request.claims.iter().map(|claim| claim.resource.clone()).collect();
                obstructions.extend(self.inspect(resources)?.into_iter().map(Obstruction::from));
            }
            if let Reply::Refused(_) = reply {
                // The sessions that cause the refusal may be dead.
                let mut suspects = request.ancestors.clone();
                for claim in &request.claims {
                    suspects.extend(self.table.sessions_of(&claim.resource, |_| true)?);
                }
                self.await_trees(&suspects)?;
                if self.remove_gone(&suspects)? {
                    continue;
                }
            }
            return match engine::standing(reply, obstructions) {
                Some(standing) => Ok(View::settled(standing)),
                None => self.stand(request.session),
            };
        }
    }

    /// Returns the state of a session once no dead session blocks it, and the beacons to watch
    /// while it waits. The sessions of this process need not be watched.
    ///
    /// A grant from the queue is claimed. So a waiter that is stopped when its turn comes is passed
    /// over, and its command never starts on a grant that has ended.
    pub(crate) fn stand(&mut self, id: SessionId) -> Result<View, Error> {
        loop {
            self.drop_due()?;
            let Some(session) = self.records().session(id)? else { return Ok(View::settled(Standing::Lost)) };
            let reply = match session.phase {
                Phase::Granted => self.apply(Op::Renew(id))?,
                _ => table::standing(StoreTime::default(), &session),
            };
            if let Some(standing) = engine::standing(reply, Vec::new()) {
                return Ok(View::settled(standing));
            }
            let place = Place { number: session.place(), asked: session.asked };
            let mut watched = Vec::new();
            let mut dead = Vec::new();
            for blocker in self.table.blockers(id)? {
                if self.own.has(blocker) {
                    continue;
                }
                match self.fate(blocker)? {
                    Peer::Alive(pipe) | Peer::Ending(pipe) => watched.push((blocker, pipe)),
                    Peer::Dead => dead.push(blocker),
                    Peer::Missing => {}
                }
            }
            if dead.is_empty() {
                // Any session that ends may let the next one in, and that one may be stopped, too.
                let ends = self.records().first_to_end(1)?.pop();
                let left = ends.map(|(ends, _)| self.time().map(|now| ends - now)).transpose()?;
                let look_at = left.map(|left| Boottime::now() + left);
                return Ok(View { standing: Standing::Waiting, watched, look_at, place });
            }
            for blocker in dead {
                self.reap(blocker)?;
            }
        }
    }
}
