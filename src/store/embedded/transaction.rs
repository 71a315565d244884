//! One locked transaction on the table, and those whom it concerns: who is found dead in it, and
//! who is to be woken when it lasts.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::geteuid;

use super::beacon::{self, Beacon, Identity, Peer};
use super::directory::Directory;
use super::fault::Guard;
use super::file::TableFile;
use super::gate::Patience;
use super::records::{self, Transaction};
use super::snapshot::without_the_dead;
use super::{Embedded, Error, ending};
use crate::lock::op::{Op, Reply, ResourceListing};
use crate::lock::records::{Records, Session};
use crate::lock::request::{Micros, Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::store::{Grant, Standing};

/// What has become of a session's process.
pub(super) enum Fate {
    /// It lives. Its pipe, to wake or to watch it.
    Alive(OwnedFd),
    /// It is dead, or never to be reached again and runs nothing.
    Dead,
    /// It holds something and its beacon was removed or replaced by somebody, so it is taken to
    /// live.
    Unknown,
}

/// A transaction in progress.
pub(super) struct Work<'t> {
    directory: &'t Directory,
    table: LockTable<Transaction<'t>>,
    /// The session that this process acts for; it needs no waking.
    own: Option<SessionId>,
    changed: bool,
    /// Who is to be woken, and lives.
    woken: Vec<(SessionId, Option<Identity>)>,
    reaped: Vec<SessionId>,
    /// Whom the operations so far have granted something, and of whom it isn't known yet whether
    /// they live.
    granted: VecDeque<SessionId>,
}

/// What to say where others have another lock by now.
const REPLACED: &str = "somebody has removed or replaced its files while it was in use: run rlock again";
/// How often a directory is opened anew that somebody goes on replacing.
const OPENINGS: usize = 8;

impl Embedded {
    /// Runs `work` under the lock of the directory, whenever that can be had. If `work` changed
    /// anything, that lasts and is told to those whom it concerns; after an error, nothing of it
    /// was.
    pub(super) fn transact<T>(
        &mut self,
        own: Option<SessionId>,
        work: impl FnOnce(&mut Work<'_>) -> Result<T, records::Error>,
    ) -> Result<T, Error> {
        let done = self.transact_within(Patience::Endless, own, work)?;
        Ok(done.expect("an endless patience ends with the lock"))
    }

    /// The same, if the lock can be had in time; `None` otherwise.
    pub(super) fn transact_within<T>(
        &mut self,
        patience: Patience,
        own: Option<SessionId>,
        work: impl FnOnce(&mut Work<'_>) -> Result<T, records::Error>,
    ) -> Result<Option<T>, Error> {
        if !self.lock(patience)? {
            return Ok(None);
        }
        let Self { directory, table, namespace, .. } = self;
        let locked = directory.locked();
        let _guard = Guard::new();
        let directory = locked.directory();
        let unusable = |error: records::Error| directory.unusable(&error);
        let table = match table {
            Some(table) => table,
            None => {
                directory.prepare(&locked)?;
                table.insert(TableFile::open(directory, &locked).map_err(unusable)?)
            }
        };
        let txn = table.write(directory).map_err(unusable)?;
        let mut running = Work {
            directory,
            table: LockTable::new(Transaction::new(txn, namespace)),
            own,
            changed: false,
            woken: Vec::new(),
            reaped: Vec::new(),
            granted: VecDeque::new(),
        };
        let result = work(&mut running).map_err(unusable)?;
        let Work { table: records, changed, woken, reaped, .. } = running;
        if changed {
            records.into_records().commit().map_err(unusable)?;
            table.seal(directory);
        }
        // A dead session's beacon goes after the session, so that there is none without a beacon.
        reaped.iter().for_each(|session| beacon::remove(directory, *session));
        drop(locked);
        woken.iter().for_each(|(session, identity)| beacon::wake(directory, *session, identity.as_ref()));
        Ok(Some(result))
    }

    /// Gets the lock that others use as well. A directory that was replaced is opened anew, unless
    /// this process has used the old one.
    fn lock(&mut self, patience: Patience) -> Result<bool, Error> {
        for _ in 0..OPENINGS {
            let passed = self.gate.pass(self.directory.lock_file(), patience);
            if !passed.map_err(|error| self.directory.unusable(&error))? {
                return Ok(false);
            }
            if self.directory.is_in_place() {
                return Ok(true);
            }
            self.directory.unlock();
            if self.table.is_some() {
                break;
            }
            self.directory.reopen()?;
        }
        Err(self.directory.unusable(&REPLACED))
    }
}

impl<'t> Work<'t> {
    /// Lights the beacon of a new session and makes its request.
    pub(super) fn enter(&mut self, mut request: Request) -> Result<(Standing, Vec<OwnedFd>, Beacon), records::Error> {
        let session = request.session;
        let mut ancestors = Vec::with_capacity(request.ancestors.len());
        for ancestor in request.ancestors {
            // Anybody can read the id of a session and call it an ancestor, but the kernel says
            // whose beacon it is.
            if self.foreign_owner(ancestor)?.is_none() {
                ancestors.push(ancestor);
            }
        }
        request.ancestors = ancestors;
        let beacon = Beacon::light(self.directory, session)?;
        let (standing, watched) = Embedded::ask(self, request)?;
        if self.records().session(session)?.is_some() {
            self.table.records_mut().put_beacon(session, beacon.identity())?;
        }
        Ok((standing, watched, beacon))
    }

    /// The user whose session it is, if this process may not act for that one. Root may act for
    /// all, and all may act for root, whose command started them.
    pub(super) fn foreign_owner(&self, session: SessionId) -> Result<Option<u32>, records::Error> {
        let own = geteuid();
        let owner = self.records().beacon(session)?.map(|beacon| beacon.owner);
        Ok(owner.filter(|owner| !own.is_root() && *owner != 0 && *owner != own.as_raw()))
    }

    /// The records as they stand in this transaction.
    pub(super) fn records(&self) -> &Transaction<'t> {
        self.table.records()
    }

    /// Applies an operation, now. Whom it grants something is woken later, or reaped if dead,
    /// whereupon the next is granted it.
    pub(super) fn apply(&mut self, op: Op) -> Result<Reply, records::Error> {
        let reply = self.apply_alone(op)?;
        self.wake_granted()?;
        Ok(reply)
    }

    fn apply_alone(&mut self, op: Op) -> Result<Reply, records::Error> {
        let now = self.table.records_mut().advance_clock(wall_clock())?;
        let outcome = self.table.apply(now, op)?;
        self.changed |=
            !matches!(outcome.reply, Reply::Busy(_) | Reply::Refused(_) | Reply::Unknown | Reply::Listing(_));
        self.granted.extend(outcome.granted);
        Ok(outcome.reply)
    }

    /// One after the other, since the queue behind a dead one may be long and of the dead.
    fn wake_granted(&mut self) -> Result<(), records::Error> {
        while let Some(session) = self.granted.pop_front() {
            if Some(session) == self.own {
                continue;
            }
            match self.fate(session)? {
                Fate::Alive(_) => self.woken.push((session, self.records().beacon(session)?)),
                Fate::Dead => self.reap_alone(session)?,
                Fate::Unknown => {}
            }
        }
        Ok(())
    }

    /// Sees to it that these sessions are woken when the transaction lasts; the dead among them are
    /// reaped.
    pub(super) fn wake_later(&mut self, sessions: &[SessionId]) -> Result<(), records::Error> {
        self.granted.extend(sessions);
        self.wake_granted()
    }

    /// Sees to it that all who wait for these resources look whom they wait for: what they watch
    /// may not be in their way any more.
    pub(super) fn wake_waiters_of(&mut self, resources: &[Resource]) -> Result<(), records::Error> {
        for resource in resources {
            let waiters = self.waiters_of(resource)?;
            self.wake_later(&waiters)?;
        }
        Ok(())
    }

    /// Wakes at once, before the transaction lasts. They wait for the lock then, and find what has
    /// become of it.
    pub(super) fn wake_now(&mut self) {
        let directory = self.directory;
        self.woken.drain(..).for_each(|(session, identity)| beacon::wake(directory, session, identity.as_ref()));
    }

    /// What has become of a session that holds or waits.
    pub(super) fn fate(&self, id: SessionId) -> Result<Fate, records::Error> {
        let identity = self.records().beacon(id)?;
        Ok(match beacon::look(self.directory, id, identity.as_ref())? {
            Peer::Alive(pipe) => Fate::Alive(pipe),
            Peer::Dead => Fate::Dead,
            // Nobody can wake it, and it has not started anything: it finds out when it looks.
            Peer::Missing if self.records().session(id)?.is_none_or(|session| !session.is_holder()) => Fate::Dead,
            Peer::Missing => Fate::Unknown,
        })
    }

    /// Removes a dead session from the table.
    pub(super) fn reap(&mut self, id: SessionId) -> Result<(), records::Error> {
        self.reap_alone(id)?;
        self.wake_granted()
    }

    fn reap_alone(&mut self, id: SessionId) -> Result<(), records::Error> {
        if let Some(holder) = self.records().session(id)?.filter(Session::is_holder) {
            ending::wait_until_over(holder.process.pid);
        }
        self.reaped.push(id);
        self.apply_alone(Op::Reap(id)).map(drop)
    }

    /// Reaps the dead among these sessions, as far as they hold or wait, and says whether there
    /// were any.
    pub(super) fn reap_dead(&mut self, suspects: &[SessionId]) -> Result<bool, records::Error> {
        let mut found = false;
        let own = self.own;
        for suspect in suspects.iter().filter(|suspect| Some(**suspect) != own) {
            if self.records().session(*suspect)?.is_some() && matches!(self.fate(*suspect)?, Fate::Dead) {
                self.reap(*suspect)?;
                found = true;
            }
        }
        Ok(found)
    }

    /// How a session stands when nobody dead is in its way, and the beacons to watch while it
    /// waits.
    pub(super) fn stand(&mut self, id: SessionId) -> Result<(Standing, Vec<OwnedFd>), records::Error> {
        loop {
            match self.records().session(id)? {
                None => return Ok((Standing::Lost, Vec::new())),
                Some(session) if session.is_holder() => {
                    let grant = Grant { tokens: session.tokens(), deadline: None };
                    return Ok((Standing::Granted(grant), Vec::new()));
                }
                Some(_) => {}
            }
            let mut watched = Vec::new();
            let mut dead = Vec::new();
            for blocker in self.table.blockers(id)? {
                match self.fate(blocker)? {
                    Fate::Alive(pipe) => watched.push(pipe),
                    Fate::Dead => dead.push(blocker),
                    Fate::Unknown => {}
                }
            }
            if dead.is_empty() {
                return Ok((Standing::Waiting, watched));
            }
            for blocker in dead {
                self.reap(blocker)?;
            }
        }
    }

    /// Who holds and who waits, but for the dead.
    pub(super) fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<ResourceListing>, records::Error> {
        let listings = self.list(resources)?;
        let mut known: HashMap<SessionId, bool> = HashMap::new();
        without_the_dead(listings, resources.is_empty(), &mut |id| {
            if let Some(lives) = known.get(&id) {
                return Ok(*lives);
            }
            let lives = !matches!(self.fate(id)?, Fate::Dead);
            known.insert(id, lives);
            Ok(lives)
        })
    }

    fn list(&mut self, resources: &[Resource]) -> Result<Vec<ResourceListing>, records::Error> {
        match self.table.apply(0, Op::Inspect(resources.to_vec()))?.reply {
            Reply::Listing(listings) => Ok(listings),
            reply => unreachable!("inspect answers with a listing, not {reply:?}"),
        }
    }

    /// The sessions that hold a resource, dead or alive.
    pub(super) fn holders_of(&mut self, resource: &Resource) -> Result<Vec<SessionId>, records::Error> {
        let listings = self.list(std::slice::from_ref(resource))?;
        Ok(listings.iter().flat_map(|listing| &listing.holders).map(|holder| holder.session).collect())
    }

    /// The sessions that wait for a resource, dead or alive.
    pub(super) fn waiters_of(&mut self, resource: &Resource) -> Result<Vec<SessionId>, records::Error> {
        let listings = self.list(std::slice::from_ref(resource))?;
        Ok(listings.iter().flat_map(|listing| &listing.waiters).map(|waiter| waiter.session).collect())
    }

    /// The sessions that hold a resource or wait for it, dead or alive.
    pub(super) fn sessions_of(&mut self, resource: &Resource) -> Result<Vec<SessionId>, records::Error> {
        let mut sessions = self.holders_of(resource)?;
        sessions.extend(self.waiters_of(resource)?);
        Ok(sessions)
    }

    /// Removes the beacons of processes that died before they had a session, or after.
    pub(super) fn sweep(&mut self) -> Result<(), records::Error> {
        let known = self.records().all_session_ids()?;
        for id in self.directory.beacons()? {
            if !known.contains(&id) && matches!(beacon::look(self.directory, id, None), Ok(Peer::Dead)) {
                beacon::remove(self.directory, id);
            }
        }
        Ok(())
    }
}

/// Microseconds since the Unix epoch, by the machine's clock.
pub(super) fn wall_clock() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}
