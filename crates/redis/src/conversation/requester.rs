//! The request of one session at a server: what it sends, and what a reply means for it, whichever
//! connection carries its commands.

use std::time::Duration;

use redis::ServerError;

use super::exchange::{Asked, Exchange};
use super::verdict::Verdict;
use crate::codec::Call;
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Redirect};
use crate::keys;
use crate::target::Kind;
use rlock_model::past::End;
use rlock_model::request::{self, Job, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Replicas};
use rlock_store::lease_client::{Command, LeaseClient};
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// A session.
pub(super) struct Requester {
    pub(super) id: SessionId,
    pub(super) client: LeaseClient<Failure>,
    /// The resources of the request, each once.
    pub(super) resources: Vec<Resource>,
    /// The copies of the grant that must exist before it counts.
    pub(super) replicas: Replicas,
    pub(super) connect_timeout: Duration,
}

impl Requester {
    /// Begins to make a request over `exchange`, and gives up at `until` if the server does not
    /// answer.
    ///
    /// # Errors
    /// The request has no terms, and a lease needs them, or its resources have several slots of a
    /// Cluster.
    pub(super) fn new(
        request: &Request,
        AcquireOptions { replicas, returns, .. }: AcquireOptions,
        exchange: &Exchange,
        connect_timeout: Duration,
        until: Boottime,
    ) -> Result<Self, Error> {
        let terms = request.terms.ok_or_else(|| Error::Usage("a request to this store needs a ttl".into()))?;
        let resources: Vec<_> = request::resources(&request.claims).into_iter().cloned().collect();
        if exchange.target.kind == Kind::Cluster {
            check_slots(&resources)?;
        }
        let needs_copies = replicas != Replicas::default();
        let client = LeaseClient::new(terms, request.claims.len(), needs_copies, until).returning(returns);
        Ok(Self { id: request.session, client, resources, replicas, connect_timeout })
    }

    /// Sends a command; tells whether a reply follows. `request` is there as long as the session
    /// may have to make it.
    pub(super) fn send(
        &self,
        command: Command,
        request: Option<&Request>,
        exchange: &mut Exchange,
        now: Boottime,
    ) -> bool {
        let asked = Asked::Session(self.id, command);
        let subscribed = self.client.is_subscribed();
        if command != Command::Subscribe {
            exchange.check_master(self.client.reply_timeout(self.connect_timeout), now);
        }
        match (command, request) {
            (Command::Acquire { place, waited }, Some(request)) => {
                exchange.call(asked, Call::acquire_after(waited, request, place, subscribed), now);
            }
            (Command::Renew, _) => {
                exchange.call(asked, Call::renew(self.id, self.resources.clone(), subscribed), now);
            }
            (Command::Subscribe, _) => {
                exchange.act(Action::Subscribe(self.channel(exchange)));
                return false;
            }
            (Command::GiveUp, _) => {
                exchange.call(asked, Call::give_up(self.id, self.resources.clone()), now);
            }
            (Command::AskOnce, Some(request)) => {
                exchange.call(asked, Call::acquire(&Request { wait: false, ..request.clone() }, 0, false), now);
            }
            (Command::Acquire { .. } | Command::AskOnce, None) => return false,
        }
        true
    }

    /// Ends the subscription, if there is one. In a Cluster, the connection ends with the session,
    /// and the slot of the channel may be on another node by now.
    pub(super) fn unsubscribe(&mut self, exchange: &mut Exchange) {
        if self.client.unsubscribe() && exchange.target.kind != Kind::Cluster {
            exchange.act(Action::Unsubscribe(self.channel(exchange)));
        }
    }

    fn channel(&self, exchange: &Exchange) -> String {
        exchange.setting.keyspace.channel(&self.resources[0], self.id)
    }

    /// The call that releases what the server may keep. `end` tells how the command of the job
    /// ended, if it ran.
    pub(super) fn release(&self, end: Option<End>, job: &Job) -> Call {
        Call::release_after(self.id, self.resources.clone(), end, job)
    }

    /// Takes in that the server refused the subscription, and tells whether another node takes it.
    ///
    /// # Errors
    /// The session can't do without it.
    pub(super) fn on_subscribe_failed(
        &self,
        error: &ServerError,
        exchange: &Exchange,
    ) -> Result<Option<Redirect>, Failure> {
        // A holder does without: the next renewal tells of a break.
        if self.client.held().is_some() {
            return Ok(None);
        }
        match exchange.judge(error) {
            Verdict::Failure(kind) => Err(exchange.failure(kind)),
            Verdict::Redirect(redirect) => Ok(Some(redirect)),
            Verdict::NoScript | Verdict::TryAgain => {
                Err(exchange.failure(ErrorKind::Network(NetworkError::Closed(Stage::Used))))
            }
        }
    }

    /// A failure of this session's commands, which names the keys that it may be about.
    pub(super) fn named(&self, failure: Failure, exchange: &Exchange) -> Failure {
        failure.with_keys(|| exchange.setting.keyspace.shown(&self.resources))
    }
}

/// Checks that all resources have the same slot: a Cluster runs a script only on the keys of one
/// slot.
fn check_slots(resources: &[Resource]) -> Result<(), Error> {
    let [first, others @ ..] = resources else { return Ok(()) };
    match others.iter().find(|name| keys::slot(name) != keys::slot(first)) {
        None => Ok(()),
        Some(other) => {
            // If one name has a tag, the other can take it, and users of the first name keep it.
            let advice = match (keys::own_tag(first.as_str()), keys::own_tag(other.as_str())) {
                (Some(tag), _) => format!("as in '{first}' and '{{{tag}}}{other}'"),
                (None, Some(tag)) => format!("as in '{{{tag}}}{first}' and '{other}'"),
                (None, None) => format!("as in '{{tag}}{first}' and '{{tag}}{other}'"),
            };
            let what =
                format!("'{first}' and '{other}' are in different slots of the cluster, so they can't be had together");
            Err(Error::Refused(Explained::new(what, format!("give both names the same {{tag}}, {advice}"))))
        }
    }
}
