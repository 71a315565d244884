//! Implements the store for many machines in a PostgreSQL server: the table's records are rows, and
//! each operation on the [`rlock_model::table::LockTable`] is one transaction.
//!
//! - `target`: the meaning of the URL, and `passfile`: the passwords that libpq's clients share.
//!   `failure`: the reasons why a server can't be used.
//! - `link`: a connection. `login`: what a server may say until it lets the client in; `proof`: what
//!   a login proves, and `binding` ties to TLS. `connection`: finds a server. `wire`: messages.
//! - `rows`: the rows of a transaction in memory; `work`: runs operations on them; `step`: the
//!   transaction around an operation, without a clock and a socket.
//! - `turns`: what is said for the sessions of a process, whose turn it is, and when a connection
//!   is opened. `conversation`: what an answer means for the connection. Both decide without a
//!   clock and a socket, for `rlock_store::lease`, which drives the sessions.
//! - `exchange`: runs steps over a connection. `sessions` carries out what the conversation about
//!   the request of `exec`, or the many of `rlock serve`, decides, in a poll loop; `client` blocks.
//!   `examine`: the checks of `rlock doctor`.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod binding;
mod client;
mod connection;
mod conversation;
mod examine;
mod exchange;
mod failure;
mod link;
mod login;
mod passfile;
mod proof;
mod rows;
mod sessions;
mod step;
mod target;
#[cfg(test)]
mod tests;
mod turns;
mod wire;
mod work;

use std::sync::Arc;
use std::time::Duration;

use client::Client;
use sessions::PostgresSessions;
pub use target::{SCHEME, Target};
use work::{ranges, ranges_of_listing, ranges_of_past};

use rlock_model::deadlock::Reading;
use rlock_model::op::{Change, Op, Reply};
use rlock_model::past::{End, Ended, HISTORY_MAX, Remembered};
use rlock_model::records::{Records as _, Session};
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::check::Check;
use rlock_store::engine::Engine as _;
use rlock_store::error::Error;
use rlock_store::handle::Released;
use rlock_store::operations::{Breaking, Changed, Inspection, Store};
use rlock_store::sessions::Sessions;

/// A server, or several of which one takes writes.
pub struct Postgres {
    target: Arc<Target>,
    namespace: Arc<str>,
    connect_timeout: Duration,
    /// Logs in with the first question.
    client: Client,
}

impl Postgres {
    /// The store at `target`, without a connection yet.
    pub fn new(target: Target, namespace: &str, connect_timeout: Duration) -> Self {
        let target = target.named(&rustix::system::uname().nodename().to_string_lossy(), std::process::id());
        let connect_timeout = target.limit(connect_timeout);
        let (target, namespace): (_, Arc<str>) = (Arc::new(target), namespace.into());
        let client = Client::new(Arc::clone(&target), Arc::clone(&namespace), connect_timeout);
        Self { target, namespace, connect_timeout, client }
    }
}

impl Store for Postgres {
    fn url(&self) -> String {
        self.target.url()
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn leases(&self) -> bool {
        true
    }

    fn sessions(self: Box<Self>, _serves: bool) -> Result<Box<dyn Sessions>, Error> {
        Ok(Box::new(PostgresSessions::new(self.target, self.namespace, self.connect_timeout)))
    }

    fn session(&mut self, id: SessionId, _: &[Resource]) -> Result<Option<Session>, Error> {
        let found = self.client.look(ranges([], [id]), move |work| {
            Ok(work.records().session(id)?.filter(|session| !session.is_over(work.now)))
        });
        Ok(found?)
    }

    fn change(&mut self, session: SessionId, resources: &[Resource], change: &Change) -> Result<Changed, Error> {
        let change = change.clone();
        let reply = self.client.change_while_down(ranges(resources, [session]), resources, move |work| {
            work.drop_due()?;
            work.apply(Op::Change { session, change: change.clone() })
        });
        Ok(match reply? {
            Reply::Done | Reply::Granted { .. } => Changed::Done,
            Reply::Refused(refusal) => Changed::Refused(refusal),
            _ => Changed::Lost,
        })
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error> {
        Ok(self.client.inspect(resources)?)
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        Ok(Some(self.client.read(resources)?))
    }

    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        let names = resources.to_vec();
        let found = self.client.look(ranges_of_listing(resources), move |work| {
            let is_found = |session: &Session| session.is_over(work.now) && session.concerns(&names);
            let sessions = work.records().sessions()?.into_iter();
            Ok(sessions.filter(|(_, session)| is_found(session)).collect::<Vec<_>>())
        })?;
        // One transaction ends a limited number of sessions.
        while !dry_run && !found.is_empty() {
            let is_left = self.client.change(ranges(resources, []), resources, |work| {
                work.drop_due()?;
                Ok(work.records().due(work.now)?.is_some())
            })?;
            if !is_left {
                break;
            }
        }
        Ok(found)
    }

    fn break_grants(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        how: Breaking<'_>,
    ) -> Result<Vec<(SessionId, Session)>, Error> {
        let (resource, is_dry) = (resource.clone(), matches!(how, Breaking::DryRun));
        let by = if let Breaking::Revoke(by) = how { Some(by.clone()) } else { None };
        let frees = [resource.clone()];
        let run = move |work: &mut work::Work| {
            if !is_dry {
                work.drop_due()?;
            }
            let mut holders = work.sessions_of(&resource)?;
            let is_live = |session: &Session| session.expiry.is_none_or(|expiry| work.now < expiry);
            holders
                .retain(|(id, session)| session.is_holder() && is_live(session) && only.is_none_or(|only| only == *id));
            if !is_dry {
                work.apply(Op::Break { resource: resource.clone(), only, by: by.clone() })?;
                holders.iter().for_each(|(id, _)| work.wake(*id));
            }
            Ok(holders)
        };
        Ok(match is_dry {
            true => self.client.look(ranges_of_listing(&frees), run)?,
            false => self.client.change(ranges(&frees, []), &frees, run)?,
        })
    }

    fn release(&mut self, id: SessionId, session: &Session, end: Option<End>) -> Result<Released, Error> {
        let resources: Vec<_> = session.resources().into_iter().cloned().collect();
        let reply = self.client.change_while_down(ranges(&resources, [id]), &resources, move |work| {
            work.drop_due()?;
            // The process of the session, if there is one, has to learn that its hold has ended.
            work.wake(id);
            work.apply(Op::Release { session: id, end })
        });
        Ok(if reply? == Reply::Unknown { Released::Lost } else { Released::Done })
    }

    fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(self.client.history(resources, entries)?)
    }

    fn unrecorded(&mut self, resources: &[Resource]) -> Result<Vec<(Session, Ended)>, Error> {
        let over = self.cleanup(resources, true)?.into_iter().map(|(_, session)| session);
        let ended = |session: Session| session.expiry.map(|expiry| (session, Ended::At(expiry)));
        Ok(over.filter(Session::is_holder).filter_map(ended).collect())
    }

    fn forget(&mut self, resource: &Resource) -> Result<(), Error> {
        let names = [resource.clone()];
        let resource = resource.clone();
        let run = move |work: &mut work::Work| work.apply(Op::Forget(resource.clone())).map(drop);
        Ok(self.client.change(ranges_of_past(&names, HISTORY_MAX), &[], run)?)
    }

    fn examine(&mut self, ttl: Duration) -> Result<Vec<Check>, Error> {
        Ok(examine::examine(&mut self.client, &self.target, &self.namespace, ttl)?)
    }
}
