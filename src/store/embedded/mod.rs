//! The embedded store: the lock table in an LMDB file, shared by the processes of one machine.
//!
//! - `directory`: where the files are and who may use them; the lock on the state.
//! - `gate`: how to wait for that lock.
//! - `file`: the table's file; `records`, `codec`: its records; `lmdb`: the calls into LMDB.
//! - `verify`: reads a whole table that somebody may have damaged; `fault`: what happens if that is
//!   too late.
//! - `beacon`: who lives, and how to wake and to watch them; `ending`: when a dead holder's command
//!   is condemned, too.
//! - `transaction`: one operation from lock to wake-up; `snapshot`: an answer that is built after
//!   the lock is given up.
//! - `handle`: a request that is queued or granted.
//!
//! There is no daemon. Each process changes the table itself, under the lock of the directory, and
//! wakes those whom it granted something. A hold lives as long as its process: nothing is renewed,
//! and the death of a process is noticed by those it stood in the way of, each of whom watches
//! whoever it waits for ([`LockTable::blockers`]). So for every waiter, at any time, one of these
//! is true: it has been granted its request and was woken; or it watches a live session that is in
//! its way; or it is awake and about to find out which. When a process dies between a grant and the
//! wake-up, that holds as well, for the one it was to wake watches it. Where what is watched may
//! stop being in the way without ending (shrink, downgrade, break), all who wait there are woken to
//! look anew. Only a holder whose beacon somebody removed can't be watched; whoever waits for it is
//! woken by its release.
//!
//! [`LockTable::blockers`]: crate::lock::table::LockTable::blockers

mod beacon;
mod codec;
mod directory;
mod ending;
mod fault;
mod file;
mod gate;
mod handle;
mod lmdb;
mod records;
mod snapshot;
mod transaction;
mod verify;

#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use self::directory::Directory;
use self::fault::Guard;
use self::file::TableFile;
use self::gate::{Gate, Patience};
use self::handle::EmbeddedHandle;
use self::snapshot::Answer;
use self::transaction::{Fate, Work};
use super::{AcquireOptions, Changed, Error, Handle, Inspection, Obstruction, Standing, Store};
use crate::lock::mode::Mode;
use crate::lock::op::{Op, Reply};
use crate::lock::records::{Records, Session};
use crate::lock::request::{Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;

/// How large the table may become, in bytes: some hundred thousand claims. It is a reservation of
/// addresses; the file has the size of what is in it.
pub const TABLE_BYTES_MAX: usize = 256 << 20;

/// The embedded store.
pub struct Embedded {
    directory: Directory,
    /// Opened under the lock of the first transaction: were the lock given up in between, somebody
    /// who sees nobody alive could replace a table that he takes for damaged, or for one of an
    /// earlier boot.
    table: Option<TableFile>,
    gate: Gate,
    namespace: String,
}

impl Embedded {
    /// Opens the store in `path`, or in the default directory, and makes it where it is missing.
    ///
    /// # Errors
    /// The directory can't be used. What is in it is looked at when it is used.
    pub fn open(path: Option<PathBuf>, namespace: &str) -> Result<Self, Error> {
        let directory = Directory::open(path)?;
        Ok(Self { directory, table: None, gate: Gate::default(), namespace: namespace.to_owned() })
    }
}

impl Embedded {
    /// How a new request stands, and the beacons to watch while it waits.
    fn ask(work: &mut Work<'_>, request: Request) -> Result<(Standing, Vec<OwnedFd>), records::Error> {
        // What survives a dead ancestor is no descendant any more.
        work.reap_dead(&request.ancestors)?;
        loop {
            match work.apply(Op::Acquire(request.clone()))? {
                Reply::Busy(blockers) => {
                    if !work.reap_dead(&blockers)? {
                        let resources: Vec<_> = request.claims.iter().map(|claim| claim.resource.clone()).collect();
                        let listings = work.inspect(&resources)?;
                        let obstructions = listings.into_iter().map(Obstruction::from).collect();
                        return Ok((Standing::Busy(obstructions), Vec::new()));
                    }
                }
                Reply::Refused(refusal) => {
                    // It may be the dead who are in the way.
                    let mut suspects = request.ancestors.clone();
                    for claim in &request.claims {
                        suspects.extend(work.sessions_of(&claim.resource)?);
                    }
                    if !work.reap_dead(&suspects)? {
                        return Ok((Standing::Refused(refusal), Vec::new()));
                    }
                }
                _ => return work.stand(request.session),
            }
        }
    }

    /// Who holds and who waits. Only the records are copied under the lock: an answer with many
    /// claims takes long to build.
    fn listings(&mut self, patience: Patience, names: &[Resource]) -> Result<Option<Answer>, Error> {
        let Some(raw) = self.transact_within(patience, None, |work| work.records().copy(names))? else {
            return Ok(None);
        };
        // The records may contradict each other, as in a transaction.
        let _guard = Guard::new();
        let listings = snapshot::listings(&raw, &self.directory, names);
        listings.map(Some).map_err(|error| self.directory.unusable(&error))
    }

    fn change(&mut self, session: SessionId, resource: &Resource, op: Op) -> Result<Changed, Error> {
        let changed = self.transact(Some(session), |work| {
            if let Some(owner) = work.foreign_owner(session)? {
                return Ok(Err(owner));
            }
            Ok(Ok(match work.apply(op)? {
                Reply::Refused(refusal) => Changed::Refused(refusal),
                Reply::Unknown => Changed::Lost,
                _ => {
                    work.wake_waiters_of(std::slice::from_ref(resource))?;
                    // This process is not the one that they watch, so they are woken before the
                    // change can be lost with it.
                    work.wake_now();
                    Changed::Done
                }
            }))
        })?;
        changed.map_err(|owner| {
            Error::Refused(format!(
                "session {session} belongs to uid {owner}: only that user and root can change what it holds of '{resource}'"
            ))
        })
    }
}

impl Store for Embedded {
    fn url(&self) -> String {
        super::url::of_directory(self.directory.path())
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn leases(&self) -> bool {
        false
    }

    fn acquire(self: Box<Self>, request: Request, options: AcquireOptions) -> Result<Box<dyn Handle>, Error> {
        if options.replicas > 0 {
            return Err(Error::Refused("the embedded store has no replicas: leave out --replicas".to_owned()));
        }
        Ok(Box::new(EmbeddedHandle::ask(*self, request)?))
    }

    fn session(&mut self, id: SessionId, _resources: &[Resource]) -> Result<Option<Session>, Error> {
        self.transact(None, |work| work.records().session(id))
    }

    fn shrink(&mut self, session: SessionId, resource: &Resource, span: Span) -> Result<Changed, Error> {
        self.change(session, resource, Op::Shrink { session, resource: resource.clone(), span })
    }

    fn downgrade(&mut self, session: SessionId, resource: &Resource, mode: Mode) -> Result<Changed, Error> {
        self.change(session, resource, Op::Downgrade { session, resource: resource.clone(), mode })
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error> {
        let resources = self.listings(Patience::Endless, resources)?.unwrap_or_default().listings;
        Ok(Inspection { now: transaction::wall_clock(), resources })
    }

    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        let dead = self.transact(None, |work| {
            let mut dead = Vec::new();
            for (id, session) in work.records().sessions()? {
                let concerned = |name: &Resource| session.claims.iter().any(|claim| claim.claim.resource == *name);
                if (resources.is_empty() || resources.iter().any(concerned)) && matches!(work.fate(id)?, Fate::Dead) {
                    dead.push((id, session));
                }
            }
            Ok(dead)
        })?;
        if !dry_run {
            // One at a time: a table that is full has room for a small transaction, and others get
            // their turn.
            for (id, _) in &dead {
                self.transact(None, |work| work.reap_dead(&[*id]).map(drop))?;
            }
            if resources.is_empty() {
                self.transact(None, |work| work.sweep())?;
            }
        }
        Ok(dead)
    }

    fn break_grants(&mut self, resource: &Resource, dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        self.transact(None, |work| {
            let mut holders = work.holders_of(resource)?;
            holders.sort_unstable();
            holders.dedup();
            let mut broken = Vec::new();
            for id in &holders {
                broken.extend(work.records().session(*id)?.map(|session| (*id, session)));
            }
            if !dry_run {
                work.wake_later(&holders)?;
                work.apply(Op::Break(resource.clone()))?;
                let claims = broken.iter().flat_map(|(_, session)| &session.claims);
                let freed: Vec<_> = claims.map(|record| record.claim.resource.clone()).collect();
                work.wake_waiters_of(&freed)?;
                work.wake_now();
            }
            Ok(broken)
        })
    }
}
