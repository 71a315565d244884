//! Decides how long the release of a request waits for the store, and whether the grant was lost
//! before.

use std::collections::VecDeque;
use std::time::Duration;

use super::client::LeaseReply;
use crate::error::Error;
use crate::handle::{Grant, Released, Standing};
use crate::sessions;
use rlock_model::request::SessionId;
use rlock_sys::clock::Boottime;

/// How long a release waits for a store where nothing is held, most likely.
const UNHELD_LIMIT: Duration = Duration::from_secs(1);

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

    /// Whether there is a grant to give back.
    pub(super) fn has_grant(&self) -> bool {
        self.held.is_some()
    }

    /// When to give up.
    ///
    /// When nothing is held, the release waits at most `UNHELD_LIMIT`: a waiter without a
    /// connection is passed over anyway. It does wait, since a server that finds the connection
    /// closed when it answers the request may not read the release behind it.
    pub(super) fn until(&self, is_closed: bool, silence: Duration, connect_timeout: Duration) -> Boottime {
        let left = self.deadline() - self.began;
        let limit = left.max(UNHELD_LIMIT).min(connect_timeout);
        // A fresh connection has all of the time, however long the old one was silent.
        let from = if is_closed { self.began } else { self.began + old_limit(silence, connect_timeout) };
        from + limit
    }

    /// What the release came to at `now`. `in_doubt` says whether the store may have carried out
    /// the release unseen, before the one that it answered.
    ///
    /// # Errors
    /// The store can't be used, and the lock is held until its lease ends.
    pub(super) fn result(
        &self,
        reply: Result<LeaseReply, Error>,
        in_doubt: bool,
        now: Boottime,
    ) -> Result<Released, Error> {
        match reply {
            Ok(reply) => Ok(judge(&reply, self.held.as_ref(), in_doubt, now < self.deadline())),
            Err(_) if self.deadline() <= self.began => Ok(Released::Done),
            Err(error) => Err(error),
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

/// How long a connection that was open before may be silent, where a server that is there is silent
/// for `silence` at most. Then a fresh connection replaces it, since a firewall may have forgotten
/// the old one without telling either end.
pub fn old_limit(silence: Duration, connect_timeout: Duration) -> Duration {
    silence.min(connect_timeout)
}

fn judge(reply: &LeaseReply, held: Option<&Grant>, in_doubt: bool, is_in_time: bool) -> Released {
    match (reply, held) {
        // An earlier release may have been carried out unseen, and after the deadline the lease
        // may have ended as it should.
        (LeaseReply::Unknown, Some(_)) if is_in_time && !in_doubt => Released::Lost,
        // The store returned to an earlier state, from which the session waits or was granted anew.
        (LeaseReply::Released(tokens), Some(grant)) if *tokens != grant.tokens => Released::Lost,
        (LeaseReply::Kept, _) => Released::Kept,
        _ => Released::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_session_means_loss_unless_another_release_may_have_run() {
        let deadline = Some(Boottime::since_boot(Duration::from_secs(1)));
        let grant = Grant { tokens: vec![7], deadline, ..Grant::default() };
        let unknown = LeaseReply::Unknown;
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
            let released = LeaseReply::Released(tokens);
            for in_doubt in [false, true] {
                assert_eq!(judge(&released, held, in_doubt, true), expected, "{released:?} {in_doubt}");
            }
        }
    }
}
