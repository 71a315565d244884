//! Implements the store for many machines: the lock table is in a Redis or Valkey server, and
//! scripts that follow [`rlock_model::table::LockTable`] change it.
//!
//! The store has two parts, which meet in `interface`:
//! - `transport` moves bytes: sockets, TLS, the wire protocol, finding the server. It knows no
//!   lock.
//! - `conversation` decides: what to send, when to retry, reconnect, redirect and release. It has
//!   no clock and no socket.
//!
//! Both use `target`, the meaning of the URL, `nodes`, those of a Cluster, and `failure`, the
//! reasons why a server can't be used. `keys`, `scripts` and `codec` translate between the lock
//! model and the server.
//!
//! The two parts are put together three times. `sessions` runs the request of `exec`, or the many
//! of `rlock serve`, in a poll loop. `client` blocks until a question is answered, and `survey`
//! uses `client` to ask about a whole server.
//!
//! `findings` puts the listings of many replies together, and `reading` reads what the search for a
//! deadlock needs. `rights` finds the right that a user lacks, and `examine` makes the checks of
//! `rlock doctor`.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod client;
pub mod codec;
pub mod conversation;
mod examine;
pub mod failure;
pub mod findings;
pub mod interface;
pub mod keys;
mod nodes;
mod reading;
mod rights;
pub mod scripts;
mod sessions;
mod survey;
pub mod target;
mod transport;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use codec::{Call, ScriptReply, Setting, Wake};
use examine::examine;
use failure::{ErrorKind, Failure};
use findings::Findings;
use keys::Keyspace;
use sessions::RedisSessions;
use survey::{survey, survey_past, unusable_resource};
use target::Kind;
pub use target::{SCHEMES, Target};

use rlock_model::deadlock::Reading;
use rlock_model::op::Change;
use rlock_model::past::{End, Ended, Remembered};
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::check::Check;
use rlock_store::error::Error;
use rlock_store::handle::Released;
use rlock_store::operations::{Breaking, Changed, Inspection, Store, Unusable};
use rlock_store::sessions::Sessions;

/// After how many claims a call ends that reads expired sessions for a dry run of `cleanup`, so
/// that the server soon serves other clients.
const EXPIRED_AT_ONCE: usize = 200;

/// A server, or the nodes of a Cluster.
pub struct Redis {
    target: Arc<Target>,
    namespace: String,
    connect_timeout: Duration,
    /// What an inspect or cleanup had to skip.
    unusable: Vec<Unusable>,
}

impl Redis {
    /// The store at `target`, without a connection yet.
    pub fn new(target: Target, namespace: &str, connect_timeout: Duration) -> Self {
        let host = rustix::system::uname();
        let target = target.named(&host.nodename().to_string_lossy(), std::process::id());
        Self { target: Arc::new(target), namespace: namespace.to_owned(), connect_timeout, unusable: Vec::new() }
    }

    fn is_cluster(&self) -> bool {
        self.target.kind == Kind::Cluster
    }

    fn setting(&self) -> Setting {
        let wake = if self.is_cluster() { Wake::ShardPublish } else { Wake::Publish };
        Setting { keyspace: Keyspace::new(&self.namespace), wake, now: None }
    }

    fn client(&self) -> Client {
        Client::new(Arc::clone(&self.target), self.setting(), self.connect_timeout)
    }

    /// Calls a script for a resource. `None` if the resource can't be used, which is noted.
    fn call(&mut self, client: &mut Client, resource: &Resource, call: Call) -> Result<Option<ScriptReply>, Failure> {
        match client.call(call) {
            Err(failure) if failure.concerns_one_resource() => {
                self.unusable.push(unusable_resource(resource, &failure));
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Removes the sessions that a survey has found expired, or only reports them. `expired` gets
    /// them, also if a later call fails.
    fn expire(
        &mut self,
        seen: &Findings,
        dry_run: bool,
        expired: &mut Vec<(SessionId, Session)>,
    ) -> Result<(), Failure> {
        let mut over: BTreeMap<&Resource, Vec<SessionId>> = BTreeMap::new();
        for (id, session) in &seen.sessions {
            if session.is_over(seen.now) {
                session.resources().into_iter().for_each(|name| over.entry(name).or_default().push(*id));
            }
        }
        let mut client = self.client();
        let mut told = BTreeSet::new();
        for (name, mut ids) in over {
            if !dry_run {
                let call = Call::expire(vec![name.clone()]);
                // One call removes a limited number of sessions.
                while let Some(ScriptReply::Expired(sessions)) = self.call(&mut client, name, call.clone())? {
                    if sessions.is_empty() {
                        break;
                    }
                    expired.extend(sessions);
                }
                continue;
            }
            // A session with claims on several resources is reported once.
            ids.retain(|id| !told.contains(id));
            let claims = |id: &SessionId| seen.sessions.get(id).map_or(1, |session| session.claims.len());
            let mut rest = ids.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(portion(rest.iter().map(claims)));
                rest = later;
                let reply = self.call(&mut client, name, Call::expired(name.clone(), now))?;
                let Some(ScriptReply::Expired(sessions)) = reply else { break };
                told.extend(sessions.iter().map(|(id, _)| *id));
                expired.extend(sessions);
            }
        }
        Ok(())
    }

    /// Breaks grants on a resource. `broken` gets the holders, also if a later call fails.
    fn break_all(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        how: Breaking<'_>,
        broken: &mut Vec<(SessionId, Session)>,
    ) -> Result<(), Failure> {
        let call = |from| match how {
            Breaking::DryRun => Call::breakable(resource.clone(), only, from),
            Breaking::Revoke(by) => Call::break_grants(resource.clone(), only, from, Some(by)),
            Breaking::Now => Call::break_grants(resource.clone(), only, from, None),
        };
        let mut client = self.client();
        let (mut told, mut from) = (BTreeSet::new(), Vec::new());
        loop {
            match self.call(&mut client, resource, call(from.clone()))? {
                None => return Ok(()),
                Some(ScriptReply::Broken { next, sessions }) if next.is_empty() || next != from => {
                    // A session that stays, and lowers its mode between two calls, is listed twice.
                    broken.extend(sessions.into_iter().filter(|(id, _)| told.insert(*id)));
                    if next.is_empty() {
                        return Ok(());
                    }
                    from = next;
                }
                Some(_) => return Err(client.failure(ErrorKind::UnexpectedReply)),
            }
        }
    }

    /// Lists these resources, or all if none is named.
    fn survey(&mut self, resources: &[Resource]) -> Result<Findings, Failure> {
        survey(self.client(), resources, &mut self.unusable)
    }
}

/// How many sessions with these numbers of claims one call reads.
fn portion(claims: impl Iterator<Item = usize>) -> usize {
    let sums = claims.scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= EXPIRED_AT_ONCE).count().max(1)
}

impl Store for Redis {
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
        let setting = self.setting();
        Ok(Box::new(RedisSessions::new(self.target, setting, self.connect_timeout)))
    }

    fn session(&mut self, id: SessionId, resources: &[Resource]) -> Result<Option<Session>, Error> {
        // Without a resource, a survey would look at all of them.
        let found = if resources.is_empty() { None } else { self.survey(resources)?.sessions.remove(&id) };
        match self.unusable.pop() {
            Some(found) => Err(Error::Unavailable(found.words)),
            None => Ok(found),
        }
    }

    fn change(&mut self, session: SessionId, resources: &[Resource], change: &Change) -> Result<Changed, Error> {
        match self.client().retry_while_down().call(Call::change(session, resources, change))? {
            ScriptReply::Done | ScriptReply::Granted { .. } => Ok(Changed::Done),
            ScriptReply::Refused(refusal) => Ok(Changed::Refused(refusal)),
            _ => Ok(Changed::Lost),
        }
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error> {
        let seen = self.survey(resources)?;
        let mut listings = seen.resources();
        if resources.is_empty() {
            listings.retain(|listing| !listing.holders.is_empty() || !listing.waiters.is_empty());
            listings.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        }
        Ok(Inspection { now: seen.now, resources: listings, sessions: seen.sessions })
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        reading::read(self.client(), resources)
    }

    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        let seen = self.survey(resources)?;
        let mut expired = Vec::new();
        match self.expire(&seen, dry_run, &mut expired) {
            // The sessions that are gone have to be reported too.
            Err(failure) if !expired.is_empty() => {
                self.unusable.push(Unusable { resource: None, words: failure.words() });
            }
            result => result?,
        }
        Ok(expired)
    }

    fn break_grants(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        how: Breaking<'_>,
    ) -> Result<Vec<(SessionId, Session)>, Error> {
        let mut broken = Vec::new();
        match self.break_all(resource, only, how, &mut broken) {
            // The grants that are gone have to be reported too.
            Err(failure) if !broken.is_empty() => self.unusable.push(unusable_resource(resource, &failure)),
            result => result?,
        }
        Ok(broken)
    }

    fn release(&mut self, id: SessionId, session: &Session, end: Option<End>) -> Result<Released, Error> {
        let resources = session.resources().into_iter().cloned().collect();
        let call = Call::release_after(id, resources, end, &session.job);
        match self.client().retry_while_down().call(call)? {
            ScriptReply::Unknown => Ok(Released::Lost),
            _ => Ok(Released::Done),
        }
    }

    fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(survey_past(self.client(), resources, entries, &mut self.unusable)?)
    }

    fn unrecorded(&mut self, resources: &[Resource]) -> Result<Vec<(Session, Ended)>, Error> {
        let seen = self.survey(resources)?;
        let mut expired = Vec::new();
        self.expire(&seen, true, &mut expired)?;
        let ended = |(_, session): (_, Session)| session.expiry.map(|expiry| (session, Ended::At(expiry)));
        Ok(expired.into_iter().filter_map(ended).filter(|(session, _)| session.is_holder()).collect())
    }

    fn forget(&mut self, resource: &Resource) -> Result<(), Error> {
        self.client().call(Call::forget(resource.clone()))?;
        Ok(())
    }

    fn examine(&mut self, ttl: Duration) -> Result<Vec<Check>, Error> {
        Ok(examine(self.client(), self.target.speaks_tls(), &self.namespace, ttl)?)
    }

    fn take_unusable(&mut self) -> Vec<Unusable> {
        let mut told = HashSet::new();
        std::mem::take(&mut self.unusable).into_iter().filter(|found| told.insert(found.clone())).collect()
    }
}
