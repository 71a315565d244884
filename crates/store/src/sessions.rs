//! Defines the interface of a store to a poll loop that makes requests for one process: many, such
//! as that of `rlock serve`, or only one, by a [`Handle`](super::Handle).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::error::Error;
use super::handle::{AcquireOptions, Obstruction, Released, Standing};
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_sys::clock::Boottime;

/// How long a look at the holders may take, if the ttl is long enough.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// How long a look at the holders may take at a server. Nothing else happens meanwhile, so a grant
/// that comes in this time is claimed only afterwards.
pub fn look_limit(terms: Option<Terms>) -> Duration {
    terms.map_or(LOOK_LIMIT, |terms| LOOK_LIMIT.min(terms.ttl / 4))
}

/// The requests of one process in a store. Nothing here waits, except for what says so.
pub trait Sessions {
    /// Begins to make a request. [`Report::Standing`] reports its state, and every change of it.
    fn acquire(&mut self, request: Request, options: AcquireOptions);

    /// Begins to release a grant or a place in the queue. [`Report::Released`] reports the result,
    /// and nothing else is reported about the session from now on. A session that is not known, for
    /// example because it was reported as lost, counts as released.
    ///
    /// `end` tells how the command ended that ran under the grant. If the command goes on
    /// (`goes_on`), nothing else would end the hold, so the store is tried for as long as it takes.
    /// For a process with one request, leaving the queue may wait for the store with a limit.
    fn release(&mut self, session: SessionId, end: Option<End>, goes_on: bool);

    /// Begins to leave the queue because the wait took too long, and counts the request as busy.
    /// [`Report::Standing`] reports what has become of it. This may wait for the store with a limit.
    fn give_up(&mut self, session: SessionId);

    /// The descriptors to poll, each with the events that call for [`advance`](Self::advance). An
    /// error or a hang-up always calls for it.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// The instant at which [`advance`](Self::advance) is due even if no descriptor is ready.
    fn timeout(&self) -> Option<Boottime>;

    /// Whether [`advance`](Self::advance) is due to nothing that concerns the sessions.
    fn is_noise(&self) -> bool {
        false
    }

    /// Does what can be done without waiting, and what keeps the sessions alive.
    fn advance(&mut self);

    /// Hands out the next report.
    fn next_report(&mut self) -> Option<(SessionId, Report)>;

    /// Forgets the sessions and closes the connection, because the process goes on without them.
    fn close(&mut self);

    /// Lists the holders and waiters of these resources. Waits for the answer with a limit, as the
    /// next three do.
    ///
    /// # Errors
    /// The store cannot be used. The errors of the next two mean the same.
    fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<Obstruction>, Error>;

    /// Reads like [`Store::read`](super::Store::read).
    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error>;

    /// Tells like [`Store::history`](super::Store::history) what a resource remembers.
    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error>;

    /// The error with which a request has failed, with more words if the store finds any.
    fn explain(&mut self, _session: SessionId, error: Error) -> Error {
        error
    }

    /// The number of the place in the queue, while the session waits.
    fn place(&self, session: SessionId) -> Option<u64>;

    /// Why the store has not answered a session for a while. `None` if the store answers.
    fn trouble(&self, session: SessionId) -> Option<String>;

    /// The descriptors that show other processes that this process lives, in a store that uses such
    /// descriptors. A guardian keeps them open until the command's process tree is gone, even if
    /// rlock is killed.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The server that answers, or answered last.
    fn server(&self) -> Option<String> {
        None
    }

    /// Whether another server that did not know the waiting session has got its request since the
    /// last call.
    fn has_moved(&mut self, _session: SessionId) -> bool {
        false
    }

    /// What the store itself knows that explains a loss.
    fn change_of_store(&self) -> Option<String> {
        None
    }
}

/// What the store reports about a session.
#[derive(Debug)]
pub enum Report {
    /// The state of the request has changed, or the deadline of its grant. A request that is busy,
    /// refused, lost or failed is over: nothing is held, and the caller begins the release, since
    /// the store may keep something of it. [`Standing::Asking`] is not reported.
    Standing(Result<Standing, Error>),
    /// The release that was begun is over. After an error, the store holds the grant until its
    /// lease ends or this process ends.
    Released(Result<Released, Error>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::lease::Lease;

    /// A waiter looks at the holders while its grant may come, and then has to claim it in time.
    #[test]
    fn look_at_the_holders_takes_at_most_a_quarter_of_the_ttl() {
        for (ttl, limit) in [(1_000, 250), (2_000, 500), (30_000, 1_000)] {
            let terms = Lease::new(Duration::from_millis(ttl)).terms();
            assert_eq!(look_limit(Some(terms)), Duration::from_millis(limit), "{ttl} ms");
        }
    }
}
