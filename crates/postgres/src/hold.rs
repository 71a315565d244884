//! Drives the request of one session in the poll loop of `exec`.
//!
//! Only the release before the exit and the look at holders block, each with a limit.

use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::client::Client;
use super::exchange::{Exchange, Happened, Question};
use super::failure::{ErrorKind, Failure};
use super::requester::Requester;
use super::step::Step;
use super::target::Target;
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::Request;
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Handle, Obstruction, Released, Replicas, Standing};
use rlock_store::lease_client::{Command, LeaseReply, Retry, State, ToRelease, old_limit};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// How often a waiter looks whom no notice reaches, because a pooler is between.
pub(super) const LOOK_AFTER: Duration = Duration::from_secs(1);
/// How many of a queue keep their connections. The others look now and then, so that a long queue
/// leaves the server room for the release.
const KEPT_MAX: u32 = 20;
/// How long a holder keeps its connection. It then opens one for each renewal, so that a thousand
/// long commands are no thousand backends.
const KEEPS_FOR: Duration = Duration::from_secs(5);
/// How long a look at the holders may take, if the ttl is long enough. Nothing else happens
/// meanwhile.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);

/// A request.
pub(super) struct PostgresHold {
    session: Requester,
    exchange: Exchange,
    /// The transaction under way, what it says, and since when.
    step: Option<Step<LeaseReply>>,
    said: Option<(Command, Boottime)>,
    /// When to look without a notice.
    look_at: Option<Boottime>,
    /// Until when the holder keeps its connection.
    keeps_until: Option<Boottime>,
    connect_timeout: Duration,
    /// The release of a command that goes on.
    releasing: Option<Releasing>,
}

struct Releasing {
    question: Question<LeaseReply>,
    to_release: ToRelease,
    exchange: Box<Exchange>,
}

impl PostgresHold {
    /// Begins to make a request; the first [`check`](Handle::check) sends it.
    ///
    /// # Errors
    /// The request cannot be made in this store.
    pub(super) fn new(
        target: Arc<Target>,
        namespace: Arc<str>,
        request: Request,
        options: AcquireOptions,
        connect_timeout: Duration,
    ) -> Result<Self, Error> {
        if options.replicas != Replicas::default() {
            let what = "a store in PostgreSQL does not count copies";
            return Err(Error::Refused(Explained::new(
                what,
                "leave --replicas out, and set synchronous_standby_names",
            )));
        }
        let from = options.from.max(Boottime::now());
        Ok(Self {
            // The rest is for taking the request back if the server does not answer.
            session: Requester::new(request, from + connect_timeout / 10 * 9)?,
            exchange: Exchange::new(target, namespace, connect_timeout, options.from),
            step: None,
            said: None,
            look_at: None,
            keeps_until: None,
            connect_timeout,
            releasing: None,
        })
    }

    /// Does what is possible without waiting, until nothing is left to do now.
    fn drive(&mut self, now: Boottime) {
        loop {
            self.session.client.expire(now);
            if self.session.client.is_over() {
                return;
            }
            match self.advance(now) {
                Ok(false) => return,
                Ok(true) => {}
                Err(failure) => self.on_failure(failure, now),
            }
        }
    }

    /// Takes one event in. Tells whether there may be more to do.
    fn advance(&mut self, now: Boottime) -> Result<bool, Failure> {
        if self.limit().is_some_and(|limit| limit <= now) {
            return Err(self.exchange.connection.timeout_failure());
        }
        self.exchange.open(now)?;
        if self.is_idle() {
            if !self.session.has_more() {
                let commands = match self.look_at {
                    Some(at) if at <= now => self.session.client.on_message(),
                    _ => self.session.client.tick(now),
                };
                self.session.say(commands);
            }
            match (self.session.next(), self.session.client.due()) {
                (Some((command, task)), _) => {
                    self.step = Some(self.exchange.begin(task));
                    self.said = Some((command, now));
                }
                (None, Some(due)) if self.keeps_until.is_some_and(|until| until <= now) => {
                    self.exchange.rest_until(due);
                }
                _ => {}
            }
        }
        match self.exchange.advance(&mut self.step)? {
            None => return Ok(false),
            Some(Happened::Connected) => self.session.on_connect(),
            Some(Happened::Notice(_)) => {
                let commands = self.session.client.on_message();
                self.session.say(commands);
            }
            Some(Happened::Done(reply, backend)) => {
                let Some((command, sent)) = self.said.take() else { return Ok(true) };
                let position = if let LeaseReply::Waiting { position, .. } = reply { position } else { 0 };
                let commands = self.session.client.on_reply(command, reply, sent, now);
                self.session.say(commands.ok_or_else(|| self.exchange.failure(ErrorKind::UnexpectedReply))?);
                let is_waiting = matches!(self.session.client.state(), State::Waiting { .. });
                if self.session.client.held().is_some() {
                    self.keeps_until.get_or_insert(now + KEEPS_FOR);
                }
                self.look_at = (is_waiting && backend.is_none()).then(|| now + LOOK_AFTER);
                if backend.is_some() && !self.session.keeps_connection(position <= KEPT_MAX) {
                    self.exchange.rest_until(now + rest(position, self.session.client.ttl()));
                }
            }
        }
        Ok(true)
    }

    fn on_failure(&mut self, failure: Failure, now: Boottime) {
        let may_be_done = self.step.take().is_some_and(|step| step.may_be_committed());
        self.said = None;
        let pause = self.session.retry_after(self.exchange.failures().saturating_add(1));
        if *failure.kind() == ErrorKind::TooManyClients && self.session.request.wait {
            // The wait of the request decides when to give up.
            self.session.client.keep_asking(now + pause + self.connect_timeout);
        }
        let (retry, until) = self.session.client.persistence();
        if retry.covers(self.exchange.class(&failure)) && until.is_none_or(|until| now < until) {
            self.session.client.on_disconnect(may_be_done);
            self.exchange.reconnect(failure, now, pause);
            return;
        }
        let failure = self.exchange.give_up(failure);
        self.session.client.on_failure(failure, may_be_done);
    }

    /// Whether there is a connection without a transaction.
    fn is_idle(&self) -> bool {
        self.exchange.is_ready() && self.step.is_none()
    }

    /// When the server has been silent for too long.
    fn limit(&self) -> Option<Boottime> {
        if let State::Asking { until, .. } = self.session.client.state() {
            return Some(*until);
        }
        let since = self.said.map(|(_, sent)| sent).or(self.exchange.opening_since());
        since.map(|since| since + self.session.client.reply_timeout(self.connect_timeout))
    }

    /// The question that gives back what the server may keep.
    fn releasing(&mut self, end: Option<End>, now: Boottime) -> Option<(Question<LeaseReply>, ToRelease)> {
        let is_sent = self.step.as_ref().is_some_and(Step::may_be_committed);
        if !self.session.client.may_be_kept(is_sent) {
            return None;
        }
        if self.step.take().is_some() {
            // What is under way may be carried out, or not; the release comes after it.
            self.exchange.close();
        }
        self.exchange.hurry();
        let to_release = ToRelease::new(self.session.client.held().cloned(), now);
        let until = to_release.until(self.exchange.is_closed(), self.connect_timeout);
        let question = Question::new(self.session.release(end), Retry::WhileDown, until);
        let is_old = self.exchange.is_ready();
        let distrusts =
            |question: Question<_>| question.distrusting_old_connection(now + old_limit(self.connect_timeout));
        Some((if is_old { distrusts(question) } else { question }, to_release))
    }

    /// Finishes the transaction under way, for which others may be waiting, before this process
    /// does something else for a while.
    fn settle(&mut self) {
        let until = Boottime::now() + INSPECT_LIMIT;
        while self.step.is_some() && Boottime::now() < until {
            self.exchange.connection.wait(Some(until));
            self.drive(Boottime::now());
        }
    }

    fn client(&mut self) -> Client {
        self.settle();
        Client::over(self.exchange.another(), INSPECT_LIMIT.min(self.session.client.ttl() / 4))
    }
}

/// How long a waiter at this position has no connection: until it may be among the first, if those
/// are served as fast as the others look.
fn rest(position: u32, ttl: Duration) -> Duration {
    (LOOK_AFTER * position / KEPT_MAX).min(ttl / 6).max(LOOK_AFTER)
}

/// What a release came to.
fn released(
    question: &Question<LeaseReply>,
    to_release: &ToRelease,
    result: Result<LeaseReply, Failure>,
) -> Result<Released, Error> {
    to_release.result(result.map_err(Error::from), question.is_in_doubt(), Boottime::now())
}

impl Handle for PostgresHold {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let exchange = match &self.releasing {
            Some(releasing) => &releasing.exchange,
            // Nothing more is read.
            None if self.session.client.is_over() => return Vec::new(),
            None => &self.exchange,
        };
        exchange.connection.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        if let Some(Releasing { question, exchange, .. }) = &self.releasing {
            return Some(question.timeout(exchange));
        }
        if self.session.client.is_over() {
            return None;
        }
        let idle = [self.session.client.due(), self.look_at, self.keeps_until].into_iter().filter(|_| self.is_idle());
        idle.chain([self.exchange.opens_at(), self.limit()]).flatten().min()
    }

    fn check(&mut self) -> Result<Standing, Error> {
        self.drive(Boottime::now());
        self.session.client.standing()
    }

    fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        if let Some(Releasing { mut question, to_release, mut exchange }) = self.releasing.take() {
            let result = question.run(&mut exchange);
            return released(&question, &to_release, result);
        }
        self.settle();
        let Some((mut question, to_release)) = self.releasing(end, Boottime::now()) else {
            return Ok(Released::Done);
        };
        let result = question.run(&mut self.exchange);
        self.exchange.close();
        released(&question, &to_release, result)
    }

    fn release_early(&mut self, end: Option<End>) -> Result<Option<Released>, Error> {
        let now = Boottime::now();
        if self.releasing.is_none() {
            let Some((question, to_release)) = self.releasing(end, now) else { return Ok(Some(Released::Done)) };
            let other = self.exchange.another();
            let exchange = Box::new(std::mem::replace(&mut self.exchange, other));
            self.releasing = Some(Releasing { question, to_release, exchange });
        }
        let Some(Releasing { question, to_release, exchange }) = &mut self.releasing else { return Ok(None) };
        let Some(result) = question.drive(exchange, now) else { return Ok(None) };
        // The command goes on without the connection.
        exchange.close();
        let released = released(question, to_release, result);
        self.releasing = None;
        released.map(Some)
    }

    fn give_up(&mut self) -> Result<Standing, Error> {
        self.settle();
        let now = Boottime::now();
        if self.step.take().is_some() {
            self.exchange.close();
        }
        self.exchange.hurry();
        let mut question = Question::new(self.session.give_up(), Retry::WhileDown, now + self.connect_timeout);
        match question.run(&mut self.exchange)? {
            LeaseReply::Over(standing) => Ok(standing),
            // The request was granted in the meantime.
            _ => {
                let commands = self.session.client.claim();
                self.session.say(commands);
                let until = Boottime::now() + self.connect_timeout;
                while let Standing::Asking | Standing::Waiting = self.check()? {
                    if until <= Boottime::now() {
                        return self.release(None).map(|_| Standing::Busy { obstructions: Vec::new(), streak: None });
                    }
                    self.exchange.connection.wait(self.timeout().into_iter().chain([until]).min());
                }
                self.session.client.standing()
            }
        }
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        let resources = self.session.resources.clone();
        Ok(self.client().inspect(&resources)?.resources.into_iter().map(Obstruction::from).collect())
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        Ok(Some(self.client().read(resources)?))
    }

    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(self.client().history(slice::from_ref(name), entries)?)
    }

    fn trouble(&self) -> Option<String> {
        self.exchange.outage().map(|failure| Error::from(failure.clone()).to_string())
    }
}
