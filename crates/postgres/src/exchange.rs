//! Runs one transaction at a time over a connection.

use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::failure::{ErrorKind, Failure};
use super::link::Event;
use super::step::{Committed, Progress, Step, Task};
use super::target::Target;
use super::turns::next_attempt;
use rlock_store::lease::{Line, Retry};
use rlock_sys::clock::Boottime;

/// The pause before a server is asked again after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The pause if the server has no room, since each refusal takes its time from others.
const RETRY_WITHOUT_ROOM_AFTER: Duration = Duration::from_millis(400);

/// A connection, over which transactions are carried out.
pub(super) struct Exchange {
    pub(super) connection: Connection,
    target: Arc<Target>,
    namespace: Arc<str>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Closed,
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
    /// A part of an answer has come.
    Heard,
    /// The transaction is committed.
    Done(T, Committed),
}

impl Exchange {
    /// An exchange without a connection yet. Finding a server may take `limit`.
    pub(super) fn new(target: Arc<Target>, namespace: Arc<str>, limit: Duration) -> Self {
        let connection = Connection::new(Arc::clone(&target), limit);
        Self { connection, target, namespace, state: State::Closed }
    }

    /// An exchange with the same servers over a connection of its own.
    pub(super) fn another(&self) -> Self {
        let (target, namespace) = (Arc::clone(&self.target), Arc::clone(&self.namespace));
        Self { connection: self.connection.another(), target, namespace, state: State::Closed }
    }

    /// How many servers the URL names.
    pub(super) fn servers(&self) -> usize {
        self.target.servers.len()
    }

    /// When the login has taken too long.
    pub(super) fn acts_at(&self) -> Option<Boottime> {
        let State::Opening(since) = self.state else { return None };
        Some(self.connection.reloads_until().unwrap_or(since + self.connection.turn()))
    }

    /// Opens a connection, to the next server if `turns`.
    ///
    /// # Errors
    /// The connection fails at once.
    pub(super) fn open(&mut self, turns: bool, now: Boottime) -> Result<(), Failure> {
        self.state = State::Opening(now);
        self.connection.open(turns)
    }

    /// Begins a transaction over a connection that is ready, after so many failures in a row.
    pub(super) fn begin<T>(&mut self, task: Task<T>, failures: u32) -> Step<T> {
        let State::Ready(pid) = self.state else { unreachable!("a transaction begins over a connection") };
        let mut step = Step::new(task, Arc::clone(&self.namespace), pid, failures);
        self.connection.send(&step.begin());
        step
    }

    /// Does what is possible without waiting for the transaction in `step`, and tells what has
    /// happened.
    ///
    /// # Errors
    /// The connection has failed, or the transaction. The connection is of no more use.
    pub(super) fn advance<T>(&mut self, step: &mut Option<Step<T>>) -> Result<Option<Happened<T>>, Failure> {
        let event = self.connection.advance()?;
        let Some(event) = event else {
            return match self.acts_at().is_some_and(|at| at <= Boottime::now()) {
                true => Err(self.connection.timeout_failure()),
                false => Ok(None),
            };
        };
        match (event, step.as_mut()) {
            (Event::Ready(pid), _) => {
                self.state = State::Ready(pid);
                return Ok(Some(Happened::Connected));
            }
            (Event::Notice(channel), _) => return Ok(Some(Happened::Notice(channel))),
            (Event::Error(error), Some(step)) => step.on_error(error),
            (Event::Error(error), None) => return Err(self.failure(ErrorKind::from_server(&error))),
            (Event::Message(_), None) => {}
            (Event::Message(message), Some(running)) => match running.on(message) {
                Progress::Nothing => {}
                Progress::Send(bytes) => self.connection.send(&bytes),
                Progress::Done(result, committed) => {
                    *step = None;
                    return Ok(Some(Happened::Done(result, committed)));
                }
                Progress::Failed(kind) => return Err(self.failure(kind)),
            },
        }
        Ok(Some(Happened::Heard))
    }

    /// A failure of the server that was asked last.
    pub(super) fn failure(&self, kind: ErrorKind) -> Failure {
        kind.of(&self.connection.shown())
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.connection.close();
        self.state = State::Closed;
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
        let (mut line, servers) = (Line::default(), exchange.servers());
        if matches!(exchange.state, State::Ready(_)) {
            line.open(Boottime::now());
        }
        loop {
            let now = Boottime::now();
            match self.advance(exchange, &mut line, now) {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {
                    let until = [exchange.acts_at(), line.opens_at(), Some(self.until)].into_iter().flatten().min();
                    exchange.connection.wait(until);
                }
                Err(failure) => {
                    self.task = self.step.take().map(Step::into_task).or(self.task.take());
                    exchange.close();
                    if self.until <= now || !self.retry.covers(failure.kind().class_among(servers > 1)) {
                        return Err(failure.prefer(line.outage().cloned()));
                    }
                    let has_no_room = matches!(failure.kind(), ErrorKind::TooManyClients(_));
                    let pause = if has_no_room { RETRY_WITHOUT_ROOM_AFTER } else { RETRY_AFTER };
                    line.fail(failure.prefer(line.outage().cloned()));
                    line.close(next_attempt(&line, servers, now + pause));
                }
            }
        }
    }

    fn advance(
        &mut self,
        exchange: &mut Exchange,
        line: &mut Line<Failure>,
        now: Boottime,
    ) -> Result<Option<T>, Failure> {
        if self.until <= now {
            return Err(exchange.connection.timeout_failure());
        }
        if line.open(now) {
            exchange.open(line.failures() > 0, now)?;
        }
        loop {
            if matches!(exchange.state, State::Ready(_))
                && let Some(task) = self.task.take()
            {
                self.step = Some(exchange.begin(task, line.failures()));
            }
            match exchange.advance(&mut self.step)? {
                None => return Ok(None),
                Some(Happened::Done(result, _)) => return Ok(Some(result)),
                Some(Happened::Connected | Happened::Notice(_) | Happened::Heard) => {}
            }
        }
    }
}
