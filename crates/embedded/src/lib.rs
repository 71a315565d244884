//! The embedded store: the lock table in an LMDB file, shared by the processes of one machine.
//!
//! - `directory`: the files, their place, who may use them, and the lock on the state; `lock_file`:
//!   the text of the file that is locked.
//! - `lock_wait`: the wait for that lock.
//! - `file`: the table's file; `records`: the file as a map of its records; `lmdb`: the calls
//!   into LMDB; `failure`: why it cannot be used.
//! - `verify`: reads a whole table that another process may have damaged; `fault`: handles damage
//!   that `verify` could not see.
//! - `beacon`: tells which sessions live, and wakes and watches them; `ending`: waits until the
//!   command of a dead holder is sure to die.
//! - `transaction`: one operation from lock to wake-up; `wakeups`: its messages to other processes;
//!   `snapshot`: builds an answer after the transaction has released the lock.
//! - `store`: the store as this process has it open, on which transactions run.
//! - `boot`: opens the table, and carries it over a boot of the machine.
//! - `sessions`: the requests of one process; `handle`: the only request of a process.
//!
//! There is no daemon. Each process changes the table itself, under the lock of the directory, and
//! wakes the waiters that it grants a request. A grant lives as long as the holder's process, so
//! nothing is renewed. A kept hold has no process and ends at an instant, for which each waiter
//! sets a timer. Each waiter watches the sessions that block it ([`LockTable::blockers`]), and so
//! notices their death.
//!
//! Therefore one of these statements is true for every waiter at any time:
//!
//! - The waiter's request is granted, and the waiter was woken.
//! - The waiter watches a live session that blocks it.
//! - A kept hold blocks the waiter, which looks again when the first kept hold or claim lease ends.
//! - The waiter is awake and about to find out which of these holds.
//!
//! This is true even if a process dies between a grant and the wake-up, because the waiter watches
//! that process. A session may stop blocking without ending (shrink, downgrade, break). Then the
//! process that makes the change wakes all waiters of the resource, and each looks again. A holder
//! cannot be watched if somebody removed its beacon. The release of such a holder wakes its
//! waiters.
//!
//! A process may have many sessions. They share a beacon, which does not show the end of one of
//! them. So such a process wakes the waiters that a session may have blocked when it releases the
//! session (`LockTable::waiters_behind`), unless it has no other. Its own waiters watch only
//! sessions of other processes.
//!
//! [`LockTable::blockers`]: rlock_model::table::LockTable::blockers

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod beacon;
mod boot;
mod directory;
mod ending;
mod failure;
mod fault;
mod file;
mod lmdb;
mod lock_file;
mod lock_wait;
mod records;
mod sessions;
mod snapshot;
mod store;
mod transaction;
mod verify;
mod wakeups;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::beacon::Peer;
use self::sessions::{EmbeddedSessions, LEAVE_LIMIT};
use self::snapshot::{Interest, Seen};
pub use self::store::Embedded;
use self::transaction::Work;
use rlock_model::deadlock::Reading;
use rlock_model::index::Rank;
use rlock_model::op::{Change, Op, Reply};
use rlock_model::past::{End, Ended, Remembered};
use rlock_model::records::{Records, Session};
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::check::Check;
use rlock_store::engine::Engine;
use rlock_store::error::Error;
use rlock_store::handle::Released;
use rlock_store::operations::{Breaking, Changed, Elsewhere, Inspection, Notices, Store};
use rlock_store::percent::encode;
use rlock_store::sessions::Sessions;
use rlock_words::Explained;

impl Embedded {
    /// Runs `work`, which changes what a session of another process holds. Only its user and root
    /// may do so. A session in `own` needs no wake-up.
    fn act_for<T>(
        &mut self,
        session: SessionId,
        own: Option<SessionId>,
        mut work: impl FnMut(&mut Work<'_>) -> Result<T, failure::Error>,
    ) -> Result<T, Error> {
        let done = self.transact(own, |running| match running.foreign_owner(session)? {
            Some(owner) => Ok(Err(owner)),
            None => work(running).map(Ok),
        })?;
        done.map_err(|owner| {
            let what = format!("session {session} belongs to uid {owner}");
            Error::Refused(Explained::new(what, "only that user and root can change what it holds"))
        })
    }
}

/// The default directory of this user, whether it is there or not.
pub fn default_place() -> Option<PathBuf> {
    directory::default_place().ok()
}

/// What the reply to a change of a hold means.
fn changed(reply: Reply) -> Changed {
    match reply {
        Reply::Refused(refusal) => Changed::Refused(refusal),
        Reply::Unknown => Changed::Lost,
        _ => Changed::Done,
    }
}

/// Returns the URL of a directory, by which the program opens the same store.
pub fn url_of(path: &Path) -> String {
    format!("file://{}", encode(path.as_os_str().as_bytes(), PUNCTUATION))
}

/// The characters that the path of a file URL shows unescaped: all visible characters except the
/// escape character itself.
const PUNCTUATION: &[u8] = b"!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~";

impl Store for Embedded {
    fn url(&self) -> String {
        url_of(self.directory.path())
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn leases(&self) -> bool {
        false
    }

    fn examine(&mut self, _ttl: Duration) -> Result<Vec<Check>, Error> {
        self.directory.examine().map_err(|error| self.directory.unusable(&error))
    }

    fn elsewhere(&self) -> Elsewhere {
        self.directory.others()
    }

    fn sessions(mut self: Box<Self>, serves: bool) -> Result<Box<dyn Sessions>, Error> {
        self.serves = serves;
        Ok(Box::new(EmbeddedSessions::new(*self)))
    }

    fn session(&mut self, id: SessionId, _resources: &[Resource]) -> Result<Option<Session>, Error> {
        self.transact(None, |work| {
            let now = work.time()?;
            let is_over = |session: &Session| session.is_kept() && session.is_over(now);
            let found = work.records().session(id)?.filter(|session| !is_over(session));
            Ok(if found.is_some() && matches!(work.fate(id)?, Peer::Dead) { None } else { found })
        })
    }

    fn release(&mut self, id: SessionId, _: &Session, end: Option<End>) -> Result<Released, Error> {
        self.act_for(id, None, |work| {
            work.remove_gone(&[id])?;
            // The process of the session, if there is one, has to learn that its hold has ended.
            work.tell_all(vec![id])?;
            let reply = work.leave(id, Rank::HELD, end)?;
            work.wake_now()?;
            Ok(if reply == Reply::Unknown { Released::Lost } else { Released::Done })
        })
    }

    fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Error> {
        self.transact(None, |work| {
            let all = if resources.is_empty() { work.records().pasts()? } else { Vec::new() };
            let mut found = Vec::new();
            for name in resources.iter().chain(&all) {
                found.extend(work.table().past(work.time()?, name, entries)?);
            }
            Ok(found)
        })
    }

    fn forget(&mut self, resource: &Resource) -> Result<(), Error> {
        self.transact(None, |work| work.apply(Op::Forget(resource.clone())).map(drop))
    }

    fn unrecorded(&mut self, resources: &[Resource]) -> Result<Vec<(Session, Ended)>, Error> {
        self.transact(None, |work| {
            let now = work.time()?;
            let mut found = Vec::new();
            for (id, session) in work.records().sessions()? {
                if !session.is_holder() || !session.concerns(resources) {
                    continue;
                }
                let over = session.expiry.filter(|expiry| *expiry <= now);
                if over.is_some() || matches!(work.fate(id)?, Peer::Dead) {
                    let end = if over.is_some() { over } else { work.tree_end(id)? };
                    found.push((session, end.map_or(Ended::Noticed(now), Ended::At)));
                }
            }
            Ok(found)
        })
    }

    fn change(&mut self, session: SessionId, _: &[Resource], change: &Change) -> Result<Changed, Error> {
        self.act_for(session, Some(session), |work| {
            let changed = changed(work.apply(Op::Change { session, change: change.clone() })?);
            if changed == Changed::Done {
                work.call_waiters_of(change.frees())?;
                // The waiters do not watch this process. They are woken before the transaction
                // ends, so that the death of this process cannot lose the wake-up.
                work.wake_now()?;
            }
            Ok(changed)
        })
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error> {
        let answer = self.listings(None, resources, Interest::Holders)?.unwrap_or_default();
        let Seen { now, listings: resources, sessions, .. } = answer;
        Ok(Inspection { now, resources, sessions })
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        Ok(self.listings(Some(LEAVE_LIMIT), resources, Interest::Holders)?.map(|answer| answer.sessions))
    }

    fn inspect_and_watch(&mut self, resources: &[Resource]) -> Result<(Inspection, Option<Notices>), Error> {
        if self.directory.is_cut_off() {
            // A watch has no session in the table, so it follows the others to another one. It
            // makes no directory where somebody is about to put one.
            self.table = None;
            self.directory.reopen_if_there()?;
        }
        // The watch begins before the listing, so that no change escapes both. A user may have too
        // many of such watches.
        let changes = self.directory.watch().ok();
        let answer = self.listings(None, resources, Interest::All)?.unwrap_or_default();
        let are_complete = changes.is_some() && !answer.is_incomplete;
        let descriptors = answer.watched.into_iter().map(|(_, pipe)| pipe).chain(changes).collect();
        let inspection = Inspection { now: answer.now, resources: answer.listings, sessions: answer.sessions };
        Ok((inspection, Some(Notices { descriptors, are_complete })))
    }

    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        let dead = self.transact(None, |work| {
            let (sessions, now) = (work.records().sessions()?, work.time()?);
            work.await_trees(&sessions.iter().map(|(id, _)| *id).collect::<Vec<_>>())?;
            let mut dead = Vec::new();
            for (id, session) in sessions {
                if session.concerns(resources) && (session.is_over(now) || matches!(work.fate(id)?, Peer::Dead)) {
                    dead.push((id, session));
                }
            }
            Ok(dead)
        })?;
        if !dry_run {
            // A hold that ends after the listing is told by the next cleanup.
            if dead.iter().any(|(_, session)| session.expiry.is_some()) {
                self.transact(None, |work| work.drop_due())?;
            }
            // Each dead session has a transaction of its own. A full table has room for a small
            // transaction, and other processes get their turn in between.
            for (id, _) in &dead {
                self.transact(None, |work| work.remove_gone(&[*id]).map(drop))?;
            }
            if resources.is_empty() {
                self.transact(None, |work| work.sweep())?;
            }
        }
        Ok(dead)
    }

    fn break_grants(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        how: Breaking<'_>,
    ) -> Result<Vec<(SessionId, Session)>, Error> {
        let by = match how {
            Breaking::Revoke(by) => Some(by.clone()),
            Breaking::DryRun | Breaking::Now => None,
        };
        self.transact(None, |work| {
            let mut holders = work.table().sessions_of(resource, Rank::is_held)?;
            holders.retain(|holder| only.is_none_or(|only| *holder == only));
            let mut broken = Vec::new();
            for id in &holders {
                broken.extend(work.records().session(*id)?.map(|session| (*id, session)));
            }
            if !matches!(how, Breaking::DryRun) {
                work.tell_all(holders.clone())?;
                work.apply(Op::Break { resource: resource.clone(), only, by: by.clone() })?;
                let freed: BTreeSet<_> = broken.iter().flat_map(|(_, session)| session.resources()).collect();
                work.call_waiters_of(freed)?;
                work.wake_now()?;
            }
            // A process that is stopped at a terminal could not end its command.
            for id in holders.iter().filter(|_| by.is_some()) {
                if let Some(identity) = records::beacon(work.records(), *id)? {
                    identity.continue_if_stopped();
                }
            }
            Ok(broken)
        })
    }
}
