//! Releases a request: decides over which connections, and which reply counts.

use std::ops::DerefMut;
use std::time::Duration;

use super::exchange::Exchange;
use super::question::Question;
use crate::codec::{Call, ScriptReply};
use crate::failure::Failure;
use rlock_store::error::Error;
use rlock_store::handle::{Grant, Released};
use rlock_store::lease_client::{LeaseReply, Retry, ToRelease, old_limit};
use rlock_sys::clock::Boottime;

/// A release under way. It borrows or owns its exchange.
pub struct Release<E> {
    /// The call of the script, for the transport to carry out.
    pub question: Question<E>,
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
    pub fn reply(mut self) -> Result<ScriptReply, Failure> {
        let late = self.question.late_reply();
        told(self.question.into_reply(), late)
    }

    /// What the release came to, once the conversation is over at `now`.
    ///
    /// # Errors
    /// The server can't be used, and the lock is held until its lease ends.
    pub fn result(mut self, now: Boottime) -> Result<Released, Error> {
        let late = self.question.late_reply();
        let in_doubt = self.question.is_in_doubt();
        let reply = told(self.question.into_reply(), late);
        self.to_release.result(reply.map(LeaseReply::from).map_err(Error::from), in_doubt, now)
    }
}

/// The reply that counts. A release that was sent before, over the old connection, tells what it
/// found where the later one found nothing or failed.
fn told(reply: Result<ScriptReply, Failure>, late: Option<ScriptReply>) -> Result<ScriptReply, Failure> {
    match (reply, late.filter(|late| !matches!(late, ScriptReply::Need(_)))) {
        (Err(_) | Ok(ScriptReply::Unknown), Some(late)) => Ok(late),
        (reply, _) => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ErrorKind;
    use rlock_store::network::NetworkError;

    #[test]
    fn late_reply_counts_if_the_later_release_found_nothing_or_failed() {
        let failure = ErrorKind::Network(NetworkError::Refused).of("h");
        let (held, other) = (ScriptReply::Released(vec![7]), ScriptReply::Released(vec![8]));
        for (first, late, expected) in [
            (Ok(ScriptReply::Unknown), Some(held.clone()), Ok(held.clone())),
            (Err(failure.clone()), Some(held.clone()), Ok(held.clone())),
            (Ok(other.clone()), Some(held.clone()), Ok(other)),
            (Ok(ScriptReply::Unknown), Some(ScriptReply::Need(Vec::new())), Ok(ScriptReply::Unknown)),
            (Err(failure.clone()), Some(ScriptReply::Need(Vec::new())), Err(failure.clone())),
            (Ok(ScriptReply::Unknown), None, Ok(ScriptReply::Unknown)),
            (Err(failure.clone()), None, Err(failure)),
        ] {
            assert_eq!(told(first, late), expected);
        }
    }
}
