//! Runs operations on the table of a store whose records this process changes in a transaction, so
//! that nobody waits for a session that is gone.
//!
//! The store knows which sessions are gone and how a session hears of its grant: the embedded store
//! by beacons, a server by the ends of leases and by its subscribers.

use std::collections::VecDeque;

use super::handle::{Grant, Obstruction, Standing};
use rlock_model::op::{Op, Outcome, Reply};
use rlock_model::records::Records;
use rlock_model::request::{Request, SessionId};
use rlock_model::table::LockTable;

/// A transaction in progress on a table.
pub trait Engine {
    /// The records of the table.
    type Records: Records;
    /// Why an operation cannot be carried out. The caller rolls the transaction back.
    type Error: From<<Self::Records as Records>::Error>;

    /// The table.
    fn table(&self) -> &LockTable<Self::Records>;

    /// Applies one operation at the current instant. The caller tells the sessions that it grants
    /// something.
    fn step(&mut self, op: Op) -> Result<Outcome, Self::Error>;

    /// Tells a session that its request is granted, or that its run is done. Returns the operation
    /// that has to follow: the claim of a session that claims at once, or the removal of one that
    /// is gone.
    fn tell(&mut self, session: SessionId) -> Result<Option<Op>, Self::Error>;

    /// Removes the sessions whose time is over.
    fn drop_due(&mut self) -> Result<(), Self::Error>;

    /// Removes those of these sessions that are gone. Returns whether there were any.
    fn remove_gone(&mut self, suspects: &[SessionId]) -> Result<bool, Self::Error>;

    /// Whether a waiter looks for sessions in its way that are gone. One far behind may leave that
    /// to those ahead of it.
    fn heeds_blockers(&self, _session: SessionId) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// Applies an operation, and tells the sessions that it grants something.
    fn apply(&mut self, op: Op) -> Result<Reply, Self::Error> {
        let Outcome { reply, granted, .. } = self.step(op)?;
        self.tell_all(granted)?;
        Ok(reply)
    }

    /// Tells sessions what they were granted. What a session that is gone was granted goes to the
    /// next.
    fn tell_all(&mut self, granted: Vec<SessionId>) -> Result<(), Self::Error> {
        pass_on(self, granted)
    }

    /// Removes the sessions that are gone and that block a new request, or count against its limit
    /// of waiters. A request that must not wait is asked for only once, and its reply counts.
    fn clear_the_way(&mut self, request: &Request) -> Result<(), Self::Error> {
        if request.wait && request.job.max_waiting.is_none() {
            return Ok(());
        }
        self.drop_due()?;
        if request.job.max_waiting.is_some() {
            for claim in &request.claims {
                let waiters = self.table().sessions_of(&claim.resource, |rank| !rank.is_held())?;
                self.remove_gone(&waiters)?;
            }
        }
        loop {
            let blockers = self.table().blockers_of_request(request)?;
            if !self.remove_gone(&blockers)? {
                return Ok(());
            }
        }
    }

    /// Applies the request of a session, or its renewal, until no session that is gone is in its
    /// way. It is in the queue before they leave, so nobody overtakes it meanwhile.
    fn ask(&mut self, session: SessionId, op: Op) -> Result<Reply, Self::Error> {
        loop {
            let reply = self.apply(op.clone())?;
            if reply != Reply::Waiting {
                return Ok(reply);
            }
            if !self.heeds_blockers(session)? {
                return Ok(reply);
            }
            let blockers = self.table().blockers(session)?;
            if !self.remove_gone(&blockers)? {
                return Ok(reply);
            }
        }
    }
}

/// Tells sessions what they were granted, in a loop and not by recursion: a long queue of sessions
/// that are gone may stand behind one.
pub fn pass_on<E: Engine + ?Sized>(engine: &mut E, granted: Vec<SessionId>) -> Result<(), E::Error> {
    let mut granted = VecDeque::from(granted);
    while let Some(session) = granted.pop_front() {
        if let Some(op) = engine.tell(session)? {
            granted.extend(engine.step(op)?.granted);
        }
    }
    Ok(())
}

/// How a request stands by the reply of the table, `None` if it waits or is unknown. `obstructions`
/// explain a reply that it is busy.
pub fn standing(reply: Reply, obstructions: Vec<Obstruction>) -> Option<Standing> {
    Some(match reply {
        Reply::Granted { tokens, slots, last, is_revoked, .. } => {
            Standing::Granted(Grant { tokens, slots, last, deadline: None, is_revoked })
        }
        Reply::Busy { streak, .. } => Standing::Busy { obstructions, streak },
        Reply::Superseded { by, streak } => Standing::Superseded { by: by.into(), streak },
        Reply::AlreadyDone => Standing::AlreadyDone,
        Reply::Refused(refusal) => Standing::Refused(refusal),
        _ => return None,
    })
}
