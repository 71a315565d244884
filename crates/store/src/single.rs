//! The request of a process that makes only one, such as that of `rlock exec`, over the
//! [`Sessions`] of a store with leases.
//!
//! Only the release before the exit, the end of the wait and the looks block, each with a limit.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::error::Error;
use super::handle::{AcquireOptions, Handle, Obstruction, Released, Standing};
use super::network;
use super::sessions::{Report, Sessions};
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{self, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_sys::clock::Boottime;

/// How long a look at the holders may take, if the ttl is long enough.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// How long a look at the holders may take. Nothing else happens meanwhile, so a grant that comes
/// in this time is claimed only afterwards.
pub fn look_limit(ttl: Duration) -> Duration {
    LOOK_LIMIT.min(ttl / 4)
}

/// What the sessions of a store offer a process with only one of them.
pub trait Alone: Sessions {
    /// Begins to make the request.
    fn ask(&mut self, request: Request, options: AcquireOptions);

    /// Begins to release like [`Sessions::release`]. `end` tells how the command ended that ran
    /// under the grant.
    fn release_after(&mut self, session: SessionId, end: Option<End>);

    /// Begins to leave the queue because the wait took too long, and counts the request as busy.
    /// [`Report::Standing`] reports what has become of it.
    fn give_up(&mut self, session: SessionId);

    /// Closes the connection of a process that goes on without its session.
    fn close(&mut self);

    /// Lists the holders and waiters of these resources. Waits for the answer for at most `limit`,
    /// as the next two do.
    ///
    /// # Errors
    /// The store cannot be used. The errors of the next two mean the same.
    fn inspect(&mut self, resources: &[Resource], limit: Duration) -> Result<Vec<Obstruction>, Error>;

    /// Reads like [`Store::read`](super::Store::read).
    fn read(&mut self, resources: &[Resource], limit: Duration) -> Result<Option<Reading>, Error>;

    /// Tells like [`Store::history`](super::Store::history) what a resource remembers.
    fn history(&mut self, name: &Resource, entries: u32, limit: Duration) -> Result<Vec<Remembered>, Error>;

    /// The error with which the request has failed, with more words if the store finds any within
    /// `limit`.
    fn explain(&mut self, _session: SessionId, error: Error, _limit: Duration) -> Error {
        error
    }

    /// The number of the place in the queue, while the session waits.
    fn place_of(&self, session: SessionId) -> Option<u64>;

    /// Why the store has not answered for a while. `None` if the store answers.
    fn trouble(&self, session: SessionId) -> Option<String>;

    /// The server that answers, or answered last.
    fn server(&self) -> Option<String>;

    /// Whether the server has other tables than at its first answer.
    fn has_new_tables(&self) -> bool {
        false
    }

    /// Whether another server that did not know the waiting session has got its request since the
    /// last call.
    fn has_moved(&mut self, _session: SessionId) -> bool {
        false
    }
}

/// The handle of the only session of a process.
pub struct Single<S> {
    sessions: S,
    id: SessionId,
    resources: Vec<Resource>,
    look_limit: Duration,
    standing: Result<Standing, Error>,
    /// Whether the release has begun.
    is_leaving: bool,
    released: Option<Result<Released, Error>>,
    /// The server that has queued the request, and the one that has granted it.
    queued_by: Option<String>,
    granted_by: Option<String>,
}

impl<S: Alone> Single<S> {
    /// Begins to make a request; the first [`check`](Handle::check) sends it.
    ///
    /// # Errors
    /// The request cannot be made in this store.
    pub fn new(sessions: S, request: Request, options: AcquireOptions) -> Result<Self, Error> {
        let mut single = Self {
            sessions,
            id: request.session,
            resources: request::resources(&request.claims).into_iter().cloned().collect(),
            look_limit: request.terms.map_or(LOOK_LIMIT, |terms| look_limit(terms.ttl)),
            standing: Ok(Standing::Asking),
            is_leaving: false,
            released: None,
            queued_by: None,
            granted_by: None,
        };
        single.sessions.ask(request, options);
        single.take_reports();
        single.standing.as_ref().map_err(Clone::clone)?;
        Ok(single)
    }

    fn advance(&mut self) {
        self.sessions.advance();
        self.take_reports();
    }

    fn take_reports(&mut self) {
        while let Some((_, report)) = self.sessions.next_report() {
            match report {
                Report::Standing(Ok(standing)) => {
                    let known = match standing {
                        Standing::Waiting => Some(&mut self.queued_by),
                        Standing::Granted(_) => Some(&mut self.granted_by),
                        _ => None,
                    };
                    if let Some(known @ None) = known {
                        *known = self.sessions.server();
                    }
                    self.standing = Ok(standing);
                }
                Report::Standing(Err(error)) => {
                    self.standing = Err(self.sessions.explain(self.id, error, self.look_limit));
                }
                Report::Released(released) => self.released = Some(released),
            }
        }
    }

    fn wait(&self) {
        network::wait(&self.sessions.descriptors(), self.sessions.timeout());
    }
}

impl<S: Alone> Handle for Single<S> {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.sessions.descriptors()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.sessions.timeout()
    }

    fn check(&mut self) -> Result<Standing, Error> {
        self.advance();
        self.standing.clone()
    }

    fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        loop {
            if let Some(released) = self.release_early(end)? {
                return Ok(released);
            }
            self.wait();
        }
    }

    fn release_early(&mut self, end: Option<End>) -> Result<Option<Released>, Error> {
        if !self.is_leaving {
            self.is_leaving = true;
            self.sessions.release_after(self.id, end);
        }
        self.advance();
        let Some(released) = self.released.take() else { return Ok(None) };
        // The command may go on.
        self.sessions.close();
        released.map(Some)
    }

    fn give_up(&mut self) -> Result<Standing, Error> {
        self.sessions.give_up(self.id);
        loop {
            match self.check()? {
                Standing::Asking | Standing::Waiting => self.wait(),
                standing => return Ok(standing),
            }
        }
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        self.sessions.inspect(&self.resources, self.look_limit)
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        self.sessions.read(resources, self.look_limit)
    }

    fn place(&self) -> Option<u64> {
        self.sessions.place_of(self.id)
    }

    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        self.sessions.history(name, entries, self.look_limit)
    }

    fn news(&mut self) -> Option<String> {
        if !self.sessions.has_moved(self.id) {
            return None;
        }
        let answers = self.sessions.server()?;
        let queued = self.queued_by.replace(answers.clone()).filter(|queued| *queued != answers)?;
        Some(format!("'{answers}' answers now in place of '{queued}', and did not know the request"))
    }

    fn change_of_store(&self) -> Option<String> {
        if self.sessions.has_new_tables() {
            return Some("its tables are new: the database was dropped or restored".to_owned());
        }
        let (granted, answers) = (self.granted_by.as_ref()?, self.sessions.server()?);
        (*granted != answers).then(|| format!("'{granted}' has granted it, and '{answers}' answers now"))
    }

    fn trouble(&self) -> Option<String> {
        self.sessions.trouble(self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A waiter looks at the holders while its grant may come, and then has to claim it in time.
    #[test]
    fn look_at_the_holders_takes_at_most_a_quarter_of_the_ttl() {
        for (ttl, limit) in [(1_000, 250), (2_000, 500), (30_000, 1_000)] {
            assert_eq!(look_limit(Duration::from_millis(ttl)), Duration::from_millis(limit), "{ttl} ms");
        }
    }
}
