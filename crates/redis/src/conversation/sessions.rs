//! The sessions at a Redis server: what is sent for each, and what a reply means for it, over one
//! [`Exchange`].
//!
//! In a Cluster, where the slots of two sessions may be on two nodes, each session has a driver of
//! its own, and a redirect moves its connection to the other node.

use redis::{ServerError, Value};

use super::exchange::{Asked, Exchange, Outcome};
use super::piecemeal::{Next, Piecemeal};
use super::replication::Copies;
use super::verdict::Verdict;
use crate::codec::{Call, Lease, ScriptReply};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event, Redirect};
use crate::keys;
use crate::target::Kind;
use rlock_model::request::{self, Job, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::Replicas;
use rlock_store::lease::{Command, Driver, LeaseReply, Server as _, State};
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// The conversation about the requests of sessions that share a connection.
pub type SessionsConversation = Driver<Exchange>;

/// What is sent for a session.
pub struct Requester {
    pub(super) id: SessionId,
    /// The resources of the request, each once.
    pub(super) resources: Vec<Resource>,
    /// The copies of the grant that must exist before it counts.
    pub(super) replicas: Replicas,
    /// The request, as long as the session may have to make it again.
    pub(super) request: Option<Box<Request>>,
    /// What the release has to know of the job.
    pub(super) job: Box<Job>,
    /// The renewal under way while the slot of a held lock migrates.
    piecemeal: Option<Box<Piecemeal>>,
}

impl Requester {
    /// Begins to know a session.
    ///
    /// # Errors
    /// The resources have several slots of a Cluster.
    pub(super) fn new(request: Request, replicas: Replicas, in_cluster: bool) -> Result<Self, Error> {
        let resources: Vec<_> = request::resources(&request.claims).into_iter().cloned().collect();
        if in_cluster {
            check_slots(&resources)?;
        }
        let job = Box::new(request.job.clone());
        let (id, request) = (request.session, Some(Box::new(request)));
        Ok(Self { id, resources, replicas, request, job, piecemeal: None })
    }

    pub(super) fn channel(&self, exchange: &Exchange) -> String {
        exchange.setting.keyspace.channel(&self.resources[0], self.id)
    }

    /// Ends the subscription. In a Cluster, the connection ends with the session, and the slot of
    /// the channel may be on another node by now.
    pub(super) fn unsubscribe(&self, exchange: &mut Exchange) {
        if exchange.target.kind != Kind::Cluster {
            exchange.act(Action::Unsubscribe(self.channel(exchange)));
        }
    }
}

impl Conversation for SessionsConversation {
    fn on(&mut self, event: Event, now: Boottime) {
        let result = match event {
            Event::Connecting(node) => {
                self.server_mut().on_connecting(node);
                Ok(())
            }
            Event::Message(channel) => {
                keys::session(&channel).into_iter().for_each(|id| self.on_message(id, now));
                Ok(())
            }
            Event::Reply(reply) => on_reply(self, reply, now),
            Event::SubscribeFailed(channel, error) => on_subscribe_failed(self, &channel, &error, now),
            Event::TimedOut(failure) => return self.on_failure(failure, true, now),
            Event::Failed(failure) => Err(failure),
            Event::Aside(reply) => {
                // The script changed nothing if it failed.
                let reply = reply.ok().and_then(|value| ScriptReply::read(&value));
                self.on_aside(reply.filter(|reply| !matches!(reply, ScriptReply::Need(_))).map(LeaseReply::from));
                Ok(())
            }
        };
        if let Err(failure) = result {
            self.on_failure(failure, false, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        self.on_time(now);
        if let Some(id) = self.server_mut().resume(now).and_then(Asked::session) {
            self.on_resumed(id, now);
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.server_mut().next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        if self.server().has_actions() { Some(Boottime::default()) } else { self.due() }
    }

    fn is_over(&self) -> bool {
        self.is_drained()
    }
}

fn on_reply(
    driver: &mut SessionsConversation,
    reply: Result<Value, ServerError>,
    now: Boottime,
) -> Result<(), Failure> {
    driver.on_sign_of_life(true, now);
    let asked = driver.server().in_flight().next();
    match (asked, driver.server_mut().on_reply(reply, now)) {
        (_, Ok(None)) => {}
        (Some(Asked::Part(id, resource)), Ok(Some((_, outcome)))) => {
            return on_part(driver, id, resource, outcome, now);
        }
        (_, Ok(Some((_, Outcome::Redirect(redirect))))) => return follow(driver, redirect),
        (Some(Asked::Session(id, command)), Ok(Some((_, Outcome::Reply { reply, sent })))) => {
            if let Some((session, ..)) = driver.session(id) {
                session.piecemeal = None;
            }
            driver.on_answer(id, command, reply.into(), sent, now);
        }
        (Some(Asked::Release(id)), Ok(Some((_, Outcome::Reply { reply, .. })))) => {
            driver.on_released(id, reply.into(), now);
        }
        (Some(Asked::Copies(id)), Ok(Some((_, Outcome::Value(value))))) => on_copies(driver, id, &value, now)?,
        (Some(asked), Ok(Some((_, Outcome::TryAgain(call))))) => on_try_again(driver, asked, call, now),
        (Some(asked), Err(failure)) if failure.kind().concerns_one_command() => {
            driver.server_mut().line_mut().served();
            if let Some(id) = asked.session() {
                let failure = named(driver, id, failure);
                driver.on_refused(id, failure, now);
            }
        }
        (asked, Err(failure)) => {
            // The server has carried nothing out.
            asked.and_then(Asked::session).into_iter().for_each(|id| driver.on_nothing_done(id));
            return Err(failure);
        }
        (_, Ok(Some(_))) => return Err(driver.server().failure(ErrorKind::UnexpectedReply)),
    }
    Ok(())
}

/// A failure of a session's commands, which names the keys that it may be about.
fn named(driver: &mut SessionsConversation, id: SessionId, failure: Failure) -> Failure {
    match driver.session(id) {
        Some((session, _, exchange)) => failure.with_keys(|| exchange.setting.keyspace.shown(&session.resources)),
        None => failure,
    }
}

/// The replicas have answered.
fn on_copies(driver: &mut SessionsConversation, id: SessionId, reply: &Value, now: Boottime) -> Result<(), Failure> {
    let copies = Copies::of(reply).ok_or_else(|| driver.server().failure(ErrorKind::UnexpectedReply))?;
    let lacking = driver
        .session(id)
        .and_then(|(session, _, exchange)| copies.lacking(session.replicas, &exchange.target.shown()));
    driver.on_copies(id, lacking, now);
    Ok(())
}

/// No node has all the keys of a call at the moment.
fn on_try_again(driver: &mut SessionsConversation, asked: Asked, call: Call, now: Boottime) {
    let Some(id) = asked.session() else { return };
    let Some((session, client, exchange)) = driver.session(id) else { return };
    match asked {
        Asked::Session(id, Command::Renew) if client.held().is_some() => {
            // Until all keys are on one node, no script gets them together.
            let piecemeal =
                session.piecemeal.get_or_insert_with(|| Box::new(Piecemeal::new(session.resources.len(), now)));
            for resource in piecemeal.left() {
                for lease in Lease::ALL {
                    let name = session.resources[resource].clone();
                    exchange.call(Asked::Part(id, resource), Call::renew_alone(id, name, client.ttl(), lease), now);
                }
            }
            return;
        }
        // A waiter has its place all the same.
        Asked::Session(..) if !matches!(client.state(), State::Asking { .. }) => {}
        _ => exchange.note(ErrorKind::Migrating),
    }
    exchange.delay(asked, call, now);
    driver.on_delay(id);
}

/// A node has replied about a key that it may or may not have.
fn on_part(
    driver: &mut SessionsConversation,
    id: SessionId,
    resource: usize,
    outcome: Outcome,
    now: Boottime,
) -> Result<(), Failure> {
    let Some((Requester { piecemeal: Some(piecemeal), .. }, client, exchange)) = driver.session(id) else {
        return Ok(());
    };
    match outcome {
        Outcome::Reply { reply: ScriptReply::Renewed(lease), .. } => piecemeal.renewed(resource, lease),
        Outcome::Redirect(redirect) => piecemeal.moved(redirect),
        Outcome::Reply { reply: ScriptReply::Unknown, .. } | Outcome::TryAgain(_) => {}
        _ => return Err(exchange.failure(ErrorKind::UnexpectedReply)),
    }
    if exchange.in_flight().any(|asked| matches!(asked, Asked::Part(..))) {
        return Ok(());
    }
    match (piecemeal.next(), client.held().cloned()) {
        (Next::Renewed { since, lease }, Some(grant)) => {
            driver.session(id).into_iter().for_each(|(session, ..)| session.piecemeal = None);
            driver.on_answer(id, Command::Renew, LeaseReply::Granted { lease, grant }, since, now);
            Ok(())
        }
        (Next::Redirect(redirect), _) => follow(driver, redirect),
        _ => Err(exchange.failure(ErrorKind::Migrating)),
    }
}

/// Goes to the node that has the resources. What was in flight is said there.
fn follow(driver: &mut SessionsConversation, redirect: Redirect) -> Result<(), Failure> {
    driver.server_mut().follow(redirect)?;
    driver.lose_connection();
    Ok(())
}

/// The server refused a subscription.
///
/// # Errors
/// The connection is of no more use.
fn on_subscribe_failed(
    driver: &mut SessionsConversation,
    channel: &str,
    error: &ServerError,
    now: Boottime,
) -> Result<(), Failure> {
    let Some(id) = keys::session(channel) else { return Ok(()) };
    // A holder does without: the next renewal tells of a break.
    let Some((_, _, exchange)) = driver.session(id).filter(|(_, client, _)| client.held().is_none()) else {
        return Ok(());
    };
    match exchange.judge(error) {
        Verdict::Redirect(redirect) => follow(driver, redirect),
        Verdict::Failure(kind) if kind.concerns_one_command() => {
            let failure = exchange.failure(kind);
            if driver.client(id).is_some() {
                driver.fail(id, failure, now);
            }
            Ok(())
        }
        Verdict::Failure(kind) => Err(exchange.failure(kind)),
        Verdict::NoScript | Verdict::TryAgain => {
            Err(exchange.failure(ErrorKind::Network(NetworkError::Closed(Stage::Used))))
        }
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

#[cfg(test)]
mod sole_tests;
#[cfg(test)]
mod tests;
