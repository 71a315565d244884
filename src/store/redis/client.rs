//! Questions that are asked once and waited for: what the subcommands beside `exec` need, and the
//! release.

use std::time::Duration;

use redis::{Cmd, Value};
use rustix::event::{PollFd, Timespec, poll};

use super::codec::{Call, NEEDED_MAX, Reply, Setting};
use super::failure::{ErrorKind, Failure, Stage};
use super::transport::now;
use super::transport::route::{Event, Route, Verdict};

/// How long is waited before a server that can't answer at the moment is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Asks over a route, one question at a time.
pub(super) struct Client<'r> {
    route: &'r mut Route,
    /// The instant at which it is given up.
    until: Duration,
    /// The instant at which a connection that was open from the start is given up for a fresh one.
    /// None once there is a fresh one.
    old_until: Option<Duration>,
    /// The connection that was given up, and how many answers come on it before the one that it
    /// owes.
    old: Option<(Route, usize)>,
    /// Whether a server that is down is waited for, since it is known to be the right one.
    insists: bool,
    /// Something was sent that nobody answered: the server may have done it, or not.
    is_in_doubt: bool,
}

impl<'r> Client<'r> {
    /// Asks over `route`, with an answer by `until`.
    pub(super) fn new(route: &'r mut Route, until: Duration) -> Self {
        Self { route, until, old_until: None, old: None, insists: false, is_in_doubt: false }
    }

    /// Gives up the connection that is open already, if any, at `until`: a firewall may have
    /// forgotten it, and then nobody is told. The question is asked again on a fresh connection, so
    /// it must be idempotent.
    pub(super) fn old_connection_until(self, until: Duration) -> Self {
        Self { old_until: Some(until), ..self }
    }

    /// Waits for a server that is down, as the holder of something on it does.
    pub(super) fn retry_while_down(self) -> Self {
        Self { insists: true, ..self }
    }

    /// Whether the server may have done something before that it does not tell of in its last
    /// answer.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// The reply on the connection that was given up, if it has come by now: a server that is only
    /// slow has answered there first. An error reply gives none, since the script did nothing then.
    pub(super) fn late_reply(&mut self) -> Option<Reply> {
        let (mut route, mut passed_over) = self.old.take()?;
        // What has come is read at once or not at all.
        for _ in 0..2 {
            while let Ok(Some(heard)) = route.advance() {
                match heard {
                    Event::Answer(reply) if passed_over == 0 => return Reply::read(reply.ok()?).ok(),
                    Event::Answer(_) => passed_over -= 1,
                    Event::Message | Event::SubscribeFailed(_) => {}
                }
            }
        }
        self.is_in_doubt = true;
        None
    }

    /// Calls a script, with all the resources that it turns out to touch. `passed_over` answers to
    /// what was said before come first.
    pub(super) fn call(
        &mut self,
        call: &mut Call,
        setting: &Setting,
        mut passed_over: usize,
    ) -> Result<Reply, Failure> {
        let mut whole = false;
        let mut met = None;
        loop {
            let command = if whole { call.eval(setting) } else { call.evalsha(setting) };
            let reply = match self.ask(command, std::mem::take(&mut passed_over)) {
                Ok(reply) => reply,
                Err(failure) => {
                    self.route.close();
                    self.again_after(RETRY_AFTER, failure, &mut met)?;
                    continue;
                }
            };
            match self.route.judge(reply) {
                Verdict::Answer(value) => match Reply::read(value) {
                    Ok(Reply::Need(names)) if names.len() > NEEDED_MAX => {
                        return Err(self.route.failure(ErrorKind::UnexpectedReply));
                    }
                    Ok(Reply::Need(_)) if now() >= self.until => return Err(self.route.timeout_failure()),
                    Ok(Reply::Need(names)) => call.extend(names),
                    Ok(reply) => return Ok(reply),
                    Err(_) => return Err(self.route.failure(ErrorKind::UnexpectedReply)),
                },
                Verdict::NoScript => whole = true,
                Verdict::Redirect(redirect) => {
                    if let Err(failure) = self.route.follow(redirect) {
                        self.route.close();
                        self.again_after(RETRY_AFTER, failure, &mut met)?;
                    }
                }
                Verdict::TryAgain => {
                    self.again_after(RETRY_AFTER, self.route.failure(ErrorKind::Migrating), &mut met)?
                }
                Verdict::Failure(failure) => {
                    self.route.close();
                    self.again_after(RETRY_AFTER, failure, &mut met)?;
                }
            }
        }
    }

    /// Sends a command and gives its answer.
    pub(super) fn command(&mut self, command: Cmd) -> Result<Value, Failure> {
        let reply = self.ask(command, 0)?;
        self.judged(reply)
    }

    /// Sends a command, and before it, in the same breath, a question that the server need not
    /// answer.
    pub(super) fn command_after(&mut self, question: Cmd, command: Cmd) -> Result<(Option<Value>, Value), Failure> {
        self.route.open()?;
        self.route.send(question);
        self.route.send(command);
        let answer = self.answer(0)?.ok();
        let reply = self.answer(0)?;
        Ok((answer, self.judged(reply)?))
    }

    fn judged(&mut self, reply: Result<Value, redis::ServerError>) -> Result<Value, Failure> {
        match self.route.judge(reply) {
            Verdict::Answer(value) => Ok(value),
            Verdict::Failure(failure) => Err(failure),
            Verdict::NoScript | Verdict::Redirect(_) | Verdict::TryAgain => {
                Err(self.route.failure(ErrorKind::Closed(Stage::Used)))
            }
        }
    }

    fn ask(&mut self, command: Cmd, mut passed_over: usize) -> Result<Result<Value, redis::ServerError>, Failure> {
        if self.route.is_closed() {
            passed_over = 0;
            self.old_until = None;
            self.route.open()?;
        }
        self.route.send(command);
        let doubts = std::mem::replace(&mut self.is_in_doubt, true);
        let reply = self.answer(passed_over);
        // A connection that was given up may still tell what was done.
        if reply.is_ok() || self.old_until.is_some() && self.old.is_some() {
            self.is_in_doubt = doubts;
        }
        reply
    }

    fn answer(&mut self, mut passed_over: usize) -> Result<Result<Value, redis::ServerError>, Failure> {
        loop {
            match self.route.advance()? {
                Some(Event::Answer(reply)) if passed_over == 0 => return Ok(reply),
                Some(Event::Answer(_)) => passed_over -= 1,
                Some(Event::Message | Event::SubscribeFailed(_)) => {}
                None => {
                    if let Err(failure) = self.wait() {
                        if self.old_until.is_some() {
                            self.old = Some((self.route.split_off(), passed_over));
                        }
                        return Err(failure);
                    }
                }
            }
        }
    }

    fn wait(&self) -> Result<(), Failure> {
        let until = self.old_until.map_or(self.until, |old| old.min(self.until));
        let left = until.saturating_sub(now());
        if left.is_zero() {
            return Err(self.route.timeout_failure());
        }
        let timeout = Timespec::try_from(left).ok();
        let mut polled: Vec<_> = self
            .route
            .descriptor()
            .iter()
            .map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags))
            .collect();
        // What went wrong with the waiting shows when the route goes on.
        let _ = poll(&mut polled, timeout.as_ref());
        Ok(())
    }

    /// Waits a little, if trying again can mend the trouble and there is time for it. `met` is what
    /// the last try met.
    fn again_after(&self, pause: Duration, failure: Failure, met: &mut Option<Failure>) -> Result<(), Failure> {
        let failure = failure.prefer(met.take());
        let is_final = !failure.is_transient() || !self.insists && self.route.is_wrong_server(&failure);
        if is_final || now() + pause >= self.until {
            return Err(failure);
        }
        *met = Some(failure);
        let _ = poll(&mut [], Timespec::try_from(pause).ok().as_ref());
        Ok(())
    }
}
