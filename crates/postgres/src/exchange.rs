//! Runs one transaction at a time over a connection, and opens a new one after a failure.

use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::failure::{ErrorKind, Failure};
use super::link::Event;
use super::step::{Committed, Progress, Step, Task};
use super::target::Target;
use rlock_store::lease_client::{FailureClass, Retry};
use rlock_sys::clock::Boottime;

/// The pause before a server is asked again after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The pause if the server has no room, since each refusal takes its time from others.
const RETRY_WITHOUT_ROOM_AFTER: Duration = Duration::from_millis(400);

/// A connection with what is known of it.
pub(super) struct Exchange {
    pub(super) connection: Connection,
    target: Arc<Target>,
    namespace: Arc<str>,
    state: State,
    /// The failures since a transaction was committed.
    failures: u32,
    /// The last of them.
    outage: Option<Failure>,
}

#[derive(Clone, Copy)]
enum State {
    /// A connection may be opened from this instant on.
    Closed(Boottime),
    /// Since this instant.
    Opening(Boottime),
    /// The login is done, and has told this pid.
    Ready(i32),
}

/// What has happened on a connection.
pub(super) enum Happened<T> {
    /// The login is done.
    Connected,
    /// Somebody has told a session to look, by its channel.
    Notice(String),
    /// The transaction is committed.
    Done(T, Committed),
}

impl Exchange {
    /// An exchange without a connection yet. Finding a server may take `limit`.
    pub(super) fn new(target: Arc<Target>, namespace: Arc<str>, limit: Duration) -> Self {
        let connection = Connection::new(Arc::clone(&target), limit);
        let state = State::Closed(Boottime::default());
        Self { connection, target, namespace, state, failures: 0, outage: None }
    }

    /// An exchange with the same servers over a connection of its own.
    pub(super) fn another(&self) -> Self {
        Self {
            connection: self.connection.another(),
            target: Arc::clone(&self.target),
            namespace: Arc::clone(&self.namespace),
            state: State::Closed(Boottime::default()),
            failures: 0,
            outage: None,
        }
    }

    /// Why the server has not answered for a while.
    pub(super) fn outage(&self) -> Option<&Failure> {
        self.outage.as_ref()
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether there is no connection and none is being opened.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Whether a transaction can begin.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// When a connection has to be opened, if there is none, or when opening it has taken too long.
    pub(super) fn acts_at(&self) -> Option<Boottime> {
        match self.state {
            State::Closed(at) => Some(at),
            State::Opening(since) => Some(self.connection.reloads_until().unwrap_or(since + self.connection.turn())),
            State::Ready(_) => None,
        }
    }

    /// Since when a connection is being opened, if one is.
    pub(super) fn opening_since(&self) -> Option<Boottime> {
        if let State::Opening(since) = self.state { Some(since) } else { None }
    }

    /// Opens a connection if it is time.
    ///
    /// # Errors
    /// The connection fails at once.
    pub(super) fn open(&mut self, now: Boottime) -> Result<(), Failure> {
        if matches!(self.state, State::Closed(at) if at <= now) {
            self.state = State::Opening(now);
            self.connection.open(self.failures > 0)?;
        }
        Ok(())
    }

    /// Begins a transaction over a connection that is ready.
    pub(super) fn begin<T>(&mut self, task: Task<T>) -> Step<T> {
        let State::Ready(pid) = self.state else { unreachable!("a transaction begins over a connection") };
        let mut step = Step::new(task, Arc::clone(&self.namespace), pid, self.failures);
        self.connection.send(&step.begin());
        step
    }

    /// Does what is possible without waiting for the transaction in `step`, and tells what has
    /// happened.
    ///
    /// # Errors
    /// The connection has failed, or the transaction. The connection is of no more use.
    pub(super) fn advance<T>(&mut self, step: &mut Option<Step<T>>) -> Result<Option<Happened<T>>, Failure> {
        loop {
            match (self.connection.advance()?, step.as_mut()) {
                (None, _) if !self.is_closed() && self.acts_at().is_some_and(|at| at <= Boottime::now()) => {
                    return Err(self.connection.timeout_failure());
                }
                (None, _) => return Ok(None),
                (Some(Event::Ready(pid)), _) => {
                    self.state = State::Ready(pid);
                    return Ok(Some(Happened::Connected));
                }
                (Some(Event::Notice(channel)), _) => return Ok(Some(Happened::Notice(channel))),
                (Some(Event::Error(error)), Some(step)) => step.on_error(error),
                (Some(Event::Error(error)), None) => return Err(self.failure(ErrorKind::from_server(&error))),
                (Some(Event::Message(_)), None) => {}
                (Some(Event::Message(message)), Some(running)) => match running.on(message) {
                    Progress::Nothing => {}
                    Progress::Send(bytes) => self.connection.send(&bytes),
                    Progress::Done(result, committed) => {
                        *step = None;
                        (self.failures, self.outage) = (0, None);
                        return Ok(Some(Happened::Done(result, committed)));
                    }
                    Progress::Failed(kind) => return Err(self.failure(kind)),
                },
            }
        }
    }

    /// A failure of the server that was asked last.
    pub(super) fn failure(&self, kind: ErrorKind) -> Failure {
        kind.of(&self.connection.shown())
    }

    /// What a failure says about the next attempt.
    pub(super) fn class(&self, failure: &Failure) -> FailureClass {
        failure.kind().class_among(self.target.servers.len() > 1)
    }

    /// Closes the connection after a failure, and opens another after a pause. All servers are
    /// tried before there is one.
    pub(super) fn reconnect(&mut self, failure: Failure, now: Boottime, pause: Duration) {
        self.failures = self.failures.saturating_add(1);
        let has_asked_all = (self.failures as usize).is_multiple_of(self.target.servers.len());
        self.outage = Some(failure.prefer(self.outage.take()));
        self.connection.close();
        self.state = State::Closed(if has_asked_all { now + pause } else { now });
    }

    /// Opens no connection before `at`, if there is none.
    pub(super) fn open_from(&mut self, at: Boottime) {
        if let State::Closed(opens_at) = &mut self.state {
            *opens_at = at.max(*opens_at);
        }
    }

    /// Lets the next connection be opened at once.
    pub(super) fn hurry(&mut self) {
        if let State::Closed(at) = &mut self.state {
            *at = Boottime::default();
        }
    }

    /// Closes the connection until an instant at which another one is opened.
    pub(super) fn rest_until(&mut self, until: Boottime) {
        self.connection.close();
        self.state = State::Closed(until);
    }

    /// Closes the connection for good.
    pub(super) fn close(&mut self) {
        self.connection.close();
        self.state = State::Closed(Boottime::default());
    }

    /// The failure to report after this one.
    pub(super) fn give_up(&mut self, failure: Failure) -> Failure {
        self.close();
        failure.prefer(self.outage.take())
    }
}

/// One operation, over as many connections as it takes. It may be carried out twice.
pub(super) struct Question<T> {
    task: Option<Task<T>>,
    step: Option<Step<T>>,
    retry: Retry,
    /// When to give up.
    until: Boottime,
}

impl<T> Question<T> {
    /// Asks once there is a connection.
    pub(super) fn new(task: Task<T>, retry: Retry, until: Boottime) -> Self {
        Self { task: Some(task), step: None, retry, until }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// The server can't be used.
    pub(super) fn run(&mut self, exchange: &mut Exchange) -> Result<T, Failure> {
        loop {
            let now = Boottime::now();
            match self.advance(exchange, now) {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {
                    let until = exchange.acts_at().into_iter().chain([self.until]).min();
                    exchange.connection.wait(until);
                }
                Err(failure) => {
                    self.task = self.step.take().map(Step::into_task).or(self.task.take());
                    if self.until <= now || !self.retry.covers(exchange.class(&failure)) {
                        return Err(exchange.give_up(failure));
                    }
                    let has_no_room = matches!(failure.kind(), ErrorKind::TooManyClients(_));
                    let pause = if has_no_room { RETRY_WITHOUT_ROOM_AFTER } else { RETRY_AFTER };
                    exchange.reconnect(failure, now, pause);
                }
            }
        }
    }

    fn advance(&mut self, exchange: &mut Exchange, now: Boottime) -> Result<Option<T>, Failure> {
        if self.until <= now {
            return Err(exchange.connection.timeout_failure());
        }
        exchange.open(now)?;
        loop {
            if exchange.is_ready()
                && let Some(task) = self.task.take()
            {
                self.step = Some(exchange.begin(task));
            }
            match exchange.advance(&mut self.step)? {
                None => return Ok(None),
                Some(Happened::Done(result, _)) => return Ok(Some(result)),
                Some(Happened::Connected | Happened::Notice(_)) => {}
            }
        }
    }
}
