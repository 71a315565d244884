//! A request at a server, from the moment that it is made: carries the conversation about it over
//! whatever connection there is.
//!
//! It decides when a connection is given up and when the next is tried; what is said over it is
//! [`Conversation`]'s part. Nothing here blocks but the release and the look at who is in the way,
//! which have their limits.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, ServerError, Value};
use rustix::event::PollFlags;

use super::client::Client;
use super::codec::{self, Call, Reply, Setting};
use super::conversation::{Answer, Conversation, Say, Unexpected};
use super::failure::{ErrorKind, Failure, Stage};
use super::piecemeal::{Next, Piecemeal};
use super::transport::link::{LISTING_MAX, REPLY_MAX};
use super::transport::now;
use super::transport::route::{Event, Redirect, Route, Verdict};
use crate::lock::request::{Micros, Request};
use crate::lock::resource::Resource;
use crate::store::{Error, Grant, Hold, Obstruction, Released, Standing};

/// How long is waited before a script whose keys are on their way to another node is called again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How many holders and waiters of a resource are looked at for the one that is in the way.
const LISTED: u32 = 256;
/// How long a release waits for a server where most likely nothing is held, or no more, and for an
/// answer over a connection that was open before.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// How long the people at the terminal wait for who holds.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct RedisHold {
    setting: Setting,
    request: Request,
    channel: String,
    ttl: Micros,
    /// The resources of the request.
    resources: Vec<Resource>,
    replicas: u32,
    connect_timeout: Duration,
    conversation: Conversation,
    route: Route,
    /// What was said over this connection and not answered yet.
    unanswered: VecDeque<Sent>,
    /// What is to be said again soon.
    put_off: Option<(Duration, Say, Vec<Resource>)>,
    /// The renewal of a hold whose slot migrates, from its first part until all is renewed.
    piecemeal: Option<Piecemeal>,
    /// Until when a request that nobody answers is tried.
    ask_until: Duration,
    /// How often in a row the server could not be used.
    failures: u32,
    /// Whether there ever was one that could not, so that it may have heard of the request.
    has_failed: bool,
    /// When it is tried again, while there is no connection.
    retry_at: Option<Duration>,
    failure: Option<Failure>,
    /// The server said that it does not take the request, or was not reached, and nothing was said
    /// to it before.
    was_not_taken: bool,
}

/// Something that was said and waits for its answer.
struct Sent {
    what: Said,
    /// What the script turned out to touch beside the resources of the request: only this call
    /// needs them.
    others: Vec<Resource>,
    at: Duration,
    /// The script was sent as it is, not by its name.
    whole: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Say(Say),
    /// The renewal of one resource's lease, by its number in the request.
    Alone(usize),
}

impl RedisHold {
    /// Begins to make a request; the first [`check`](Hold::check) sends it.
    ///
    /// # Errors
    /// The request has no terms, without which a lease is none.
    pub(super) fn new(
        setting: Setting,
        route: Route,
        request: Request,
        replicas: u32,
        connect_timeout: Duration,
    ) -> Result<Self, Error> {
        let Some(terms) = request.terms else {
            return Err(Error::Usage("a request to this store needs a ttl".to_owned()));
        };
        let resources = codec::distinct(request.claims.iter().map(|claim| &claim.resource));
        Ok(Self {
            channel: setting.keyspace.channel(&resources[0], request.session),
            route: route.with_reply_max(REPLY_MAX.saturating_mul(resources.len()).min(LISTING_MAX)),
            setting,
            ttl: terms.ttl,
            resources,
            conversation: Conversation::new(terms, request.claims.len(), replicas),
            unanswered: VecDeque::new(),
            put_off: None,
            piecemeal: None,
            ask_until: now().saturating_add(connect_timeout),
            failures: 0,
            has_failed: false,
            retry_at: None,
            failure: None,
            was_not_taken: false,
            request,
            replicas,
            connect_timeout,
        })
    }

    /// Connects if it is time to, and says what there is to say on the new connection.
    fn connect(&mut self, now: Duration) -> Result<(), Failure> {
        if !self.route.is_closed() || self.conversation.is_over() || self.retry_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        self.retry_at = None;
        self.route.open()?;
        let says = self.conversation.connected();
        self.say_all(says, now);
        Ok(())
    }

    fn say_all(&mut self, says: Vec<Say>, now: Duration) {
        says.into_iter().for_each(|say| self.say(say, Vec::new(), false, now));
    }

    fn say(&mut self, say: Say, others: Vec<Resource>, whole: bool, now: Duration) {
        let renews = |sent: &Sent| matches!(sent.what, Said::Say(Say::Renew { .. }));
        let command = match say {
            Say::Listen => return self.route.subscribe(&self.channel),
            // The one on its way will tell as well: whatever happened by now, it happened before.
            Say::Renew { .. } if self.unanswered.iter().any(renews) => return,
            Say::Acquire { place, listening } => {
                self.written(Call::acquire(&self.request, place, listening), &others, whole)
            }
            Say::Renew { listening } => {
                self.written(Call::renew(self.request.session, self.resources.clone(), listening), &others, whole)
            }
            Say::Replicate(replicas) => {
                // No time at all means for ever.
                let patience = self.conversation.replicas_patience(self.connect_timeout).as_millis().max(1);
                let mut wait = redis::cmd("WAIT");
                wait.arg(replicas).arg(u64::try_from(patience).unwrap_or(u64::MAX));
                wait
            }
        };
        self.route.send(command);
        self.unanswered.push_back(Sent { what: Said::Say(say), others, at: now, whole });
    }

    /// The command for a call that touches others than the resources of the request.
    fn written(&self, mut call: Call, others: &[Resource], whole: bool) -> Cmd {
        if !others.is_empty() {
            call.extend(others.iter().cloned());
        }
        if whole { call.eval(&self.setting) } else { call.evalsha(&self.setting) }
    }

    /// Takes in all that has arrived, and says what there is to say.
    fn converse(&mut self, now: Duration) -> Result<(), Failure> {
        loop {
            self.connect(now)?;
            while let Some(heard) = self.route.advance()? {
                match heard {
                    Event::Message => {
                        let says = self.conversation.woken();
                        self.say_all(says, now);
                    }
                    Event::SubscribeFailed(error) => self.not_subscribed(&error, now)?,
                    Event::Answer(reply) => self.answer(reply, now)?,
                }
            }
            if self.limit().is_some_and(|limit| limit <= now) {
                return Err(self.route.timeout_failure());
            }
            if let Some((_, say, others)) = self.put_off.take_if(|(at, ..)| *at <= now) {
                self.say(say, others, false, now);
                continue;
            }
            let says = self.due(now);
            if says.is_empty() {
                return Ok(());
            }
            self.say_all(says, now);
        }
    }

    /// What is to be said now, although nothing happened.
    fn due(&mut self, now: Duration) -> Vec<Say> {
        let is_quiet = !self.route.is_closed() && self.unanswered.is_empty() && self.put_off.is_none();
        if is_quiet { self.conversation.tick(now) } else { vec![] }
    }

    /// When the server has been silent for too long.
    fn limit(&self) -> Option<Duration> {
        if self.conversation.is_asking() {
            return Some(self.ask_until);
        }
        let patience = self.conversation.patience(self.connect_timeout);
        self.unanswered.front().map(|sent| sent.at.saturating_add(patience))
    }

    fn not_subscribed(&mut self, error: &ServerError, now: Duration) -> Result<(), Failure> {
        // A holder does without: the next renewal tells it of a break.
        if self.held().is_some() {
            return Ok(());
        }
        match self.route.judge(Err(error.clone())) {
            Verdict::Failure(failure) => Err(failure),
            // A channel is where its slot is.
            Verdict::Redirect(redirect) => self.go_to(redirect, now),
            _ => Err(self.route.failure(ErrorKind::Closed(Stage::Used))),
        }
    }

    /// Goes on elsewhere in the Cluster.
    fn go_to(&mut self, redirect: Redirect, now: Duration) -> Result<(), Failure> {
        self.forget_what_was_said();
        self.route.follow(redirect)?;
        self.connect(now)
    }

    fn answer(&mut self, reply: Result<Value, ServerError>, now: Duration) -> Result<(), Failure> {
        let Some(sent) = self.unanswered.pop_front() else {
            return Err(self.route.failure(ErrorKind::NotRedis));
        };
        let judged = self.route.judge(reply);
        let say = match sent.what {
            Said::Say(say) => say,
            Said::Alone(resource) => return self.answer_alone(resource, sent.whole, judged, now),
        };
        let value = match judged {
            Verdict::Answer(value) => value,
            Verdict::NoScript if !sent.whole => {
                self.say(say, sent.others, true, now);
                return Ok(());
            }
            Verdict::NoScript => return Err(self.route.failure(ErrorKind::UnexpectedReply)),
            Verdict::Redirect(redirect) => return self.go_to(redirect, now),
            Verdict::TryAgain => {
                self.try_again(say, sent.others, now);
                return Ok(());
            }
            Verdict::Failure(failure) => return Err(failure),
        };
        self.is_served();
        let answer = match say {
            Say::Replicate(_) => replicated(&value),
            say => match Reply::read(value) {
                Ok(Reply::Need(names)) => {
                    let others: Vec<_> = sent.others.into_iter().chain(names).collect();
                    if others.len() > codec::NEEDED_MAX {
                        return Err(self.route.failure(ErrorKind::UnexpectedReply));
                    }
                    self.say(say, others, false, now);
                    return Ok(());
                }
                reply => reply.ok().and_then(answer_of),
            },
        };
        let answer = answer.ok_or_else(|| self.route.failure(ErrorKind::UnexpectedReply))?;
        let says = self.conversation.answered(say, answer, sent.at, now);
        let says = says.map_err(|Unexpected| self.route.failure(ErrorKind::UnexpectedReply))?;
        self.say_all(says, now);
        Ok(())
    }

    /// The server answers.
    fn is_served(&mut self) {
        self.failures = 0;
        self.failure = None;
        self.piecemeal = None;
    }

    fn forget_what_was_said(&mut self) {
        self.unanswered.clear();
        self.put_off = None;
    }

    /// Some keys are on their way to another node, and until all are there no script gets them
    /// together.
    fn try_again(&mut self, say: Say, others: Vec<Resource>, now: Duration) {
        match say {
            Say::Renew { .. } if self.held().is_some() => {
                let renewal = self.piecemeal.get_or_insert_with(|| Piecemeal::new(self.resources.len(), now));
                renewal.left().into_iter().for_each(|resource| self.renew_alone(resource, false, now));
            }
            say => self.put_off = Some((now.saturating_add(TRY_AGAIN_AFTER), say, others)),
        }
    }

    fn renew_alone(&mut self, resource: usize, whole: bool, now: Duration) {
        let call = Call::renew_alone(self.request.session, self.resources[resource].clone(), self.ttl);
        self.route.send(if whole { call.eval(&self.setting) } else { call.evalsha(&self.setting) });
        self.unanswered.push_back(Sent { what: Said::Alone(resource), others: Vec::new(), at: now, whole });
    }

    /// What a node says of one key of those that it may or may not have.
    fn answer_alone(&mut self, resource: usize, whole: bool, judged: Verdict, now: Duration) -> Result<(), Failure> {
        let Some(renewal) = &mut self.piecemeal else { return Ok(()) };
        match judged {
            Verdict::Answer(value) => match Reply::read(value) {
                Ok(Reply::Renewed(lease)) => renewal.renewed(resource, Duration::from_micros(lease)),
                Ok(Reply::Unknown) => {}
                _ => return Err(self.route.failure(ErrorKind::UnexpectedReply)),
            },
            Verdict::NoScript if !whole => {
                self.renew_alone(resource, true, now);
                return Ok(());
            }
            Verdict::NoScript => return Err(self.route.failure(ErrorKind::UnexpectedReply)),
            Verdict::Redirect(redirect) => renewal.moved(redirect),
            Verdict::TryAgain => {}
            Verdict::Failure(failure) => return Err(failure),
        }
        if self.unanswered.iter().any(|sent| matches!(sent.what, Said::Alone(_))) {
            return Ok(());
        }
        match (renewal.next(), self.held()) {
            (Next::Renewed { since, lease }, Some(grant)) => {
                self.is_served();
                let renewed = Answer::Granted { lease, tokens: grant.tokens };
                let says = self.conversation.answered(Say::Renew { listening: false }, renewed, since, now);
                let says = says.map_err(|Unexpected| self.route.failure(ErrorKind::UnexpectedReply))?;
                self.say_all(says, now);
                Ok(())
            }
            (Next::Redirect(redirect), _) => self.go_to(redirect, now),
            _ => Err(self.route.failure(ErrorKind::Migrating)),
        }
    }

    /// What is held, as far as is known.
    fn held(&self) -> Option<Grant> {
        if let Standing::Granted(grant) = self.conversation.standing() { Some(grant) } else { None }
    }

    /// The trouble with the keys that it may be about.
    fn named(&self, failure: Failure) -> Failure {
        failure.naming(|| self.setting.keyspace.shown(&self.resources))
    }

    /// The server could not be used: it is tried again over a fresh connection, as long as that can
    /// help.
    fn failed(&mut self, failure: Failure, now: Duration) -> Result<(), Error> {
        let held = self.held().is_some();
        let is_final =
            !held && !failure.is_transient() || self.conversation.is_asking() && self.route.is_wrong_server(&failure);
        if is_final || self.conversation.is_asking() && self.ask_until <= now {
            // A server that turns down the login may still have carried out the request behind it,
            // as another user or in another place.
            let is_answered = self.unanswered.is_empty() || self.route.is_wrong_server(&failure);
            self.was_not_taken = is_final && self.conversation.is_asking() && !self.has_failed && is_answered;
            return Err(failure.prefer(self.failure.take()).into());
        }
        self.route.close();
        self.forget_what_was_said();
        self.has_failed = true;
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now.saturating_add(self.conversation.retry_after(self.failures)));
        self.failure = Some(failure.prefer(self.failure.take()));
        Ok(())
    }
}

impl Hold for RedisHold {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.route.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.conversation.is_over() {
            return None;
        }
        let put_off = self.put_off.as_ref().map(|(at, ..)| *at);
        let connect = self.route.is_closed().then(|| self.retry_at.unwrap_or_default());
        let is_quiet = !self.route.is_closed() && self.unanswered.is_empty() && put_off.is_none();
        let due = if is_quiet { self.conversation.due() } else { None };
        [put_off, connect, due, self.limit()].into_iter().flatten().min()
    }

    fn check(&mut self) -> Result<Standing, Error> {
        let now = now();
        if let Err(failure) = self.converse(now) {
            self.failed(self.named(failure), now)?;
        }
        if let Some(answered) = self.conversation.too_few_replicas() {
            return Err(Error::Unavailable(format!(
                "'{}': {answered} of {} replicas have the lock, so it was given back: see to the replicas or lower --replicas",
                self.route.target().shown(),
                self.replicas
            )));
        }
        Ok(self.conversation.standing())
    }

    fn release(&mut self) -> Result<Released, Error> {
        if self.was_not_taken || !self.conversation.may_be_kept() {
            return Ok(Released::Done);
        }
        let passed_over = self.unanswered.len();
        self.unanswered.clear();
        let mut call = Call::release(self.request.session, self.resources.clone());
        if self.conversation.is_asking() && !self.has_failed && self.route.is_looking() {
            // Nothing has left yet.
            return Ok(Released::Done);
        }
        // A server where nothing is held (any more) is hardly waited for: whoever waits there
        // without a connection is passed over. But a little: one that finds the connection closed
        // when it answers the request may not read the release behind it.
        let began = now();
        let held = self.held();
        let deadline = held.as_ref().and_then(|grant| grant.deadline).unwrap_or_default();
        let left = deadline.saturating_sub(began);
        let limit = left.max(GOODBYE_LIMIT).min(self.connect_timeout);
        // A fresh connection has all of the time, however long an old one was silent before.
        let old_until = began.saturating_add(GOODBYE_LIMIT.min(self.connect_timeout));
        let until = if self.route.is_closed() { began } else { old_until }.saturating_add(limit);
        let mut client = Client::new(&mut self.route, until).retry_while_down().old_connection_until(old_until);
        let reply = match client.call(&mut call, &self.setting, passed_over) {
            Ok(reply) => reply,
            Err(failure) => match client.late_reply() {
                // The old connection may have carried it out after all.
                Some(reply) if !matches!(reply, Reply::Need(_)) => reply,
                _ if left.is_zero() => return Ok(Released::Done),
                _ => return Err(self.named(failure).into()),
            },
        };
        // Where nothing is known of the session any more, the release before this one may say what
        // it found.
        let reply = match (reply, client.late_reply()) {
            (Reply::Unknown, Some(late)) if !matches!(late, Reply::Need(_)) => late,
            (reply, _) => reply,
        };
        let is_lost = match (reply, held) {
            // A release before this one may have been carried out unseen, and after the deadline
            // the lease may have ended as it should.
            (Reply::Unknown, Some(_)) => !client.is_in_doubt() && now() < deadline,
            // The server went back to an earlier state, from which the session waits, or was
            // granted anew.
            (Reply::Released(tokens), Some(grant)) => tokens != grant.tokens,
            _ => false,
        };
        Ok(if is_lost { Released::Lost } else { Released::Done })
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        // Over a connection of its own, for the next answer on the other may be the grant.
        let listing_max = REPLY_MAX.saturating_mul(4 * self.resources.len()).min(LISTING_MAX);
        let mut route = self.route.another().with_reply_max(listing_max);
        let mut call = Call::inspect(self.resources.clone(), LISTED);
        let until = now().saturating_add(INSPECT_LIMIT);
        match Client::new(&mut route, until).call(&mut call, &self.setting, 0)? {
            Reply::Listing { resources, .. } => Ok(resources),
            _ => Ok(Vec::new()),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.failure.as_ref().map(ToString::to_string)
    }
}

/// What a script's reply says in the conversation.
fn answer_of(reply: Reply) -> Option<Answer> {
    Some(match reply {
        // This store gives nothing without a lease.
        Reply::Granted { lease, tokens } => Answer::Granted { lease: Duration::from_micros(lease?), tokens },
        Reply::Waiting { seq, position, next } => {
            Answer::Waiting { place: seq, position, next: next.map(Duration::from_micros) }
        }
        Reply::Busy(told) => Answer::Busy(told),
        Reply::Refused(refusal) => Answer::Refused(refusal),
        Reply::Unknown => Answer::Unknown,
        _ => return None,
    })
}

/// What WAIT answers.
fn replicated(value: &Value) -> Option<Answer> {
    if let Value::Int(count) = value { u32::try_from(*count).ok().map(Answer::Replicated) } else { None }
}
