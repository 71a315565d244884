//! Releases a request: decides how long the release waits, over which connections, and whether the
//! grant was lost before.

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::time::Duration;

use super::exchange::Exchange;
use super::question::{Answer, Question};
use crate::lock::past::End;
use crate::lock::request::SessionId;
use crate::store::handle::{Grant, Released, Standing};
use crate::store::lease_client::Retry;
use crate::store::redis::codec::{Call, ScriptReply};
use crate::store::redis::failure::Failure;
use crate::store::sessions;
use crate::system::clock::Boottime;

/// How long a release waits for a server where nothing is held, most likely, and for an answer over
/// a connection that was open before.
const UNHELD_LIMIT: Duration = Duration::from_secs(1);

/// A release under way. It borrows or owns its exchange.
pub(crate) struct Release<E> {
    /// The call of the script, for the transport to carry out.
    pub(crate) question: Question<E>,
    to_release: ToRelease,
}

impl<E: DerefMut<Target = Exchange>> Release<E> {
    /// Begins to release at `now`.
    pub(super) fn new(exchange: E, call: Call, held: Option<Grant>, connect_timeout: Duration, now: Boottime) -> Self {
        let (has_lock, to_release) = (held.is_some(), ToRelease::new(held, now));
        let until = to_release.until(exchange.is_closed(), connect_timeout);
        let mut question = Question::call(exchange, call, Retry::WhileDown, until);
        question.distrust_old_connection(now + old_limit(connect_timeout), has_lock);
        Self { question, to_release }
    }

    /// The reply of the script, once the conversation is over.
    ///
    /// # Errors
    /// The server can't be used.
    pub(crate) fn reply(mut self) -> Result<Option<ScriptReply>, Failure> {
        let late = self.question.late_reply();
        let reply = told(self.question.into_result().map(|(_, answer)| answer), late)?;
        Ok(if let Answer::Reply(reply) = reply { Some(reply) } else { None })
    }

    /// What the release came to, once the conversation is over at `now`.
    ///
    /// # Errors
    /// The server can't be used, and the lock is held until its lease ends.
    pub(crate) fn result(mut self, now: Boottime) -> Result<Released, Failure> {
        let late = self.question.late_reply();
        let in_doubt = self.question.is_in_doubt();
        let reply = self.question.into_result().map(|(_, answer)| answer);
        self.to_release.result(told(reply, late), in_doubt, now)
    }
}

/// What is released, and since when.
#[derive(Debug)]
pub(super) struct ToRelease {
    held: Option<Grant>,
    began: Boottime,
}

impl ToRelease {
    /// Begins to release at `now` a grant, or a request that is not known to be granted.
    pub(super) fn new(held: Option<Grant>, now: Boottime) -> Self {
        Self { held, began: now }
    }

    /// How the hold ended, if there is one: it had no command.
    pub(super) fn end(&self) -> Option<End> {
        self.held.as_ref().map(|_| End::KEPT)
    }

    /// When to give up.
    ///
    /// When nothing is held, the release waits at most [`UNHELD_LIMIT`]: a waiter without a
    /// connection is passed over anyway. It does wait, since a server that finds the connection
    /// closed when it answers the request may not read the release behind it.
    pub(super) fn until(&self, is_closed: bool, connect_timeout: Duration) -> Boottime {
        let left = self.deadline() - self.began;
        let limit = left.max(UNHELD_LIMIT).min(connect_timeout);
        // A fresh connection has all of the time, however long the old one was silent.
        let from = if is_closed { self.began } else { self.began + old_limit(connect_timeout) };
        from + limit
    }

    /// What the release came to at `now`. `in_doubt` says whether the server may have carried out
    /// the release unseen, before the one that it answered.
    ///
    /// # Errors
    /// The server can't be used, and the lock is held until its lease ends.
    pub(super) fn result(
        &self,
        reply: Result<Answer, Failure>,
        in_doubt: bool,
        now: Boottime,
    ) -> Result<Released, Failure> {
        match reply {
            Ok(reply) => Ok(judge(&reply, self.held.as_ref(), in_doubt, now < self.deadline())),
            Err(_) if self.deadline() <= self.began => Ok(Released::Done),
            Err(failure) => Err(failure),
        }
    }

    fn deadline(&self) -> Boottime {
        self.held.as_ref().and_then(|grant| grant.deadline).unwrap_or_default()
    }
}

/// Takes back what is still to be reported of a session, and tells what a release of it comes to
/// that has nothing to release.
pub(super) fn take_back(reports: &mut VecDeque<(SessionId, sessions::Report)>, id: SessionId) -> Released {
    let is_loss = |(session, report): &(SessionId, sessions::Report)| {
        *session == id && matches!(report, sessions::Report::Standing(Ok(Standing::Lost)))
    };
    let released = if reports.iter().any(is_loss) { Released::Lost } else { Released::Done };
    reports.retain(|(session, _)| *session != id);
    released
}

/// How long a connection that was open before may take to answer. Then a fresh connection replaces
/// it, since a firewall may have forgotten the old one without telling either end.
pub(super) fn old_limit(connect_timeout: Duration) -> Duration {
    UNHELD_LIMIT.min(connect_timeout)
}

/// The reply that counts. A release that was sent before, over the old connection, tells what it
/// found where the later one found nothing or failed.
fn told(reply: Result<Answer, Failure>, late: Option<ScriptReply>) -> Result<Answer, Failure> {
    match (reply, late.filter(|late| !matches!(late, ScriptReply::Need(_)))) {
        (Err(_) | Ok(Answer::Reply(ScriptReply::Unknown)), Some(late)) => Ok(Answer::Reply(late)),
        (reply, _) => reply,
    }
}

fn judge(reply: &Answer, held: Option<&Grant>, in_doubt: bool, is_in_time: bool) -> Released {
    let is_lost = match (reply, held) {
        // An earlier release may have been carried out unseen, and after the deadline the lease
        // may have ended as it should.
        (Answer::Reply(ScriptReply::Unknown), Some(_)) => is_in_time && !in_doubt,
        // The server returned to an earlier state, from which the session waits or was granted
        // anew.
        (Answer::Reply(ScriptReply::Released(tokens)), Some(grant)) => *tokens != grant.tokens,
        _ => false,
    };
    match reply {
        _ if is_lost => Released::Lost,
        Answer::Reply(ScriptReply::KeptUntil(_)) => Released::Kept,
        _ => Released::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::failure::ErrorKind;

    fn reply(reply: ScriptReply) -> Result<Answer, Failure> {
        Ok(Answer::Reply(reply))
    }

    #[test]
    fn unknown_session_means_loss_unless_another_release_may_have_run() {
        let deadline = Some(Boottime::since_boot(Duration::from_secs(1)));
        let grant = Grant { tokens: vec![7], deadline, ..Grant::default() };
        let unknown = Answer::Reply(ScriptReply::Unknown);
        for (held, in_doubt, is_in_time, expected) in [
            (Some(&grant), false, true, Released::Lost),
            (Some(&grant), true, true, Released::Done),
            (Some(&grant), false, false, Released::Done),
            (Some(&grant), true, false, Released::Done),
            (None, false, true, Released::Done),
        ] {
            assert_eq!(judge(&unknown, held, in_doubt, is_in_time), expected, "{held:?} {in_doubt} {is_in_time}");
        }
    }

    #[test]
    fn released_tokens_that_differ_from_the_grant_mean_loss() {
        let deadline = Some(Boottime::since_boot(Duration::from_secs(1)));
        let grant = Grant { tokens: vec![7], deadline, ..Grant::default() };
        for (tokens, held, expected) in [
            (vec![7], Some(&grant), Released::Done),
            (vec![8], Some(&grant), Released::Lost),
            (vec![0], Some(&grant), Released::Lost),
            (vec![0], None, Released::Done),
        ] {
            let released = Answer::Reply(ScriptReply::Released(tokens));
            for in_doubt in [false, true] {
                assert_eq!(judge(&released, held, in_doubt, true), expected, "{released:?} {in_doubt}");
            }
        }
    }

    #[test]
    fn late_reply_counts_if_the_later_release_found_nothing_or_failed() {
        let failure = ErrorKind::Refused.of("h");
        let (held, other) = (ScriptReply::Released(vec![7]), ScriptReply::Released(vec![8]));
        for (first, late, expected) in [
            (reply(ScriptReply::Unknown), Some(held.clone()), reply(held.clone())),
            (Err(failure.clone()), Some(held.clone()), reply(held.clone())),
            (reply(other.clone()), Some(held.clone()), reply(other)),
            (reply(ScriptReply::Unknown), Some(ScriptReply::Need(Vec::new())), reply(ScriptReply::Unknown)),
            (Err(failure.clone()), Some(ScriptReply::Need(Vec::new())), Err(failure.clone())),
            (reply(ScriptReply::Unknown), None, reply(ScriptReply::Unknown)),
            (Err(failure.clone()), None, Err(failure)),
        ] {
            assert_eq!(told(first, late), expected);
        }
    }
}
