//! The only request of a process, such as that of `rlock exec`, from the moment at which it is made
//! until its release. The sessions of a process in [`super::sessions`] have just this one.
//!
//! A check never waits for the lock on the state. The other calls wait for it, each with a limit.
//!
//! A check follows
//! - as soon as the lock is free or trouble begins, while the gate waits for the lock, and then
//!   nothing else counts;
//! - else a wake-up, the end of a watched holder, and the next end of a lease;
//! - the end of a holder that a line on the terminal names, and a change of its name: if the change
//!   concerns another session of that process, the check is noise and has nothing new;
//! - at once, if a call other than a check has learned how the request stands.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::beacon::{Names, Watched};
use super::gate::Stuck;
use super::sessions::{EmbeddedSessions, RELEASE_LIMIT};
use super::store::Embedded;
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{self, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Handle, Obstruction, Released, Standing};
use rlock_store::operations::Store;
use rlock_store::sessions::{Report, Sessions};
use rlock_sys::clock::Boottime;

/// Maximum wait for the lock to count a request as busy, and for a report on the sessions that
/// block it. It ends before the trouble begins, so that the handle can tell of the trouble.
const REPORT_LIMIT: Duration = Duration::from_secs(3);
/// Maximum wait of a waiter for the lock, to leave the queue or to look for a deadlock. Its place
/// disturbs no other session, and the end of its process removes the place.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_millis(100);

pub(super) struct EmbeddedHandle {
    sessions: EmbeddedSessions,
    id: SessionId,
    resources: Vec<Resource>,
    /// The state of the request as far as this process knows.
    standing: Standing,
    /// Whether the state was not told since it became known.
    is_news: bool,
    /// The holders that a line on the terminal may name. The line must follow their changes even
    /// if other sessions block the request.
    shown: Vec<Watched>,
    /// The names of the beacons of these holders.
    names: Option<Names>,
}

impl EmbeddedHandle {
    /// Makes a request at the instant of the options, or as soon as the lock is free after it.
    pub(super) fn ask(store: Embedded, request: Request, options: AcquireOptions) -> Result<Self, Error> {
        let mut hold = Self {
            sessions: EmbeddedSessions::new(store),
            id: request.session,
            resources: request::resources(&request.claims).into_iter().cloned().collect(),
            standing: Standing::Asking,
            is_news: false,
            shown: Vec::new(),
            names: None,
        };
        hold.sessions.ask(request, options);
        hold.take_news()?;
        Ok(hold)
    }

    fn take_news(&mut self) -> Result<(), Error> {
        while let Some((_, event)) = self.sessions.next_report() {
            if let Report::Standing(standing) = event {
                self.standing = standing?;
                self.is_news = true;
            }
        }
        Ok(())
    }

    fn forget_shown(&mut self) {
        self.shown.clear();
        self.names = None;
    }

    /// Whether a check is due to nothing but other sessions of the processes of the shown holders.
    fn is_noise(&self) -> bool {
        let Some(names) = &self.names else { return false };
        if self.standing != Standing::Waiting || !names.take_changes() || self.is_any_gone() {
            return false;
        }
        let descriptors = self.descriptors();
        let polled = descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_quiet = poll(&mut polled.collect::<Vec<_>>(), Some(&at_once)).is_ok_and(|ready| ready == 0);
        is_quiet && self.timeout().is_none_or(|at| Boottime::now() < at)
    }

    /// Whether a shown holder has been released.
    fn is_any_gone(&self) -> bool {
        self.names.as_ref().is_some_and(|names| names.is_any_gone(&self.sessions.store.directory))
    }

    /// Releases the session, or takes it out of the queue.
    fn give_back(&mut self, end: Option<End>) -> Result<Released, Error> {
        let released = self.give_back_within(end, None)?;
        released.ok_or_else(|| self.stuck())
    }

    /// Does the same if the lock is free within `limit`, or within that of a process that ends.
    fn give_back_within(&mut self, end: Option<End>, limit: Option<Duration>) -> Result<Option<Released>, Error> {
        let Some(is_granted) = self.sessions.is_granted(self.id) else { return Ok(Some(Released::Done)) };
        let limit = limit.unwrap_or(if is_granted { RELEASE_LIMIT } else { LEAVE_LIMIT });
        let mut released = self.sessions.leave(self.id, end, limit);
        if released.is_err() {
            // The disk may have no room for the history.
            self.sessions.store.forgets = true;
            released = self.sessions.leave(self.id, end, limit);
        }
        match released {
            // Others take the waiter for dead.
            Ok(None) | Err(_) if !is_granted => Ok(Some(Released::Done)),
            Ok(released) => Ok(released),
            Err(_) if self.sessions.store.directory.is_cut_off() => Ok(Some(Released::Lost)),
            Err(error) => Err(error),
        }
    }

    fn leave(&mut self) {
        self.forget_shown();
        self.sessions.close();
    }

    fn stuck(&self) -> Error {
        Stuck::error(&self.sessions.store.directory)
    }
}

impl Handle for EmbeddedHandle {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        if let Some(descriptor) = self.sessions.store.gate.descriptor() {
            // Other descriptors that are ready stay ready until the lock is free.
            return vec![(descriptor, PollFlags::IN)];
        }
        let shown = self.shown.iter().map(|(_, pipe)| (pipe.as_fd(), PollFlags::empty()));
        let names = self.names.iter().map(|names| (names.as_fd(), PollFlags::IN));
        self.sessions.descriptors().into_iter().chain(shown).chain(names).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        let now = Boottime::now();
        let trouble = self.sessions.stuck.trouble_at().filter(|at| now < *at);
        let news = self.is_news.then_some(now);
        self.sessions.timeout().into_iter().chain(trouble).chain(news).min()
    }

    fn check(&mut self) -> Result<Standing, Error> {
        if self.is_noise() {
            return Ok(Standing::Asking);
        }
        if !self.is_news {
            self.forget_shown();
            // This process may have waited for a processor since its last attempt, and must look
            // for progress before it reports trouble.
            self.sessions.advance();
            self.take_news()?;
        }
        self.is_news = false;
        let is_stuck = self.standing == Standing::Asking && self.trouble().is_some();
        Ok(if is_stuck { Standing::Waiting } else { self.standing.clone() })
    }

    fn change_of_store(&self) -> Option<String> {
        let directory = &self.sessions.store.directory;
        let path = directory.path().display();
        directory.is_cut_off().then(|| format!("the files of '{path}' were removed, replaced or mounted over"))
    }

    fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        let released = self.give_back(end);
        self.leave();
        released
    }

    fn release_early(&mut self, end: Option<End>) -> Result<Option<Released>, Error> {
        let released = self.give_back_within(end, Some(Duration::ZERO));
        // The gate waits for the lock on behalf of the next call.
        if !matches!(released, Ok(None)) {
            self.leave();
        }
        released
    }

    fn give_up(&mut self) -> Result<Standing, Error> {
        // The count of busy requests decides on exit codes, so it is worth as long a wait for the
        // lock as the report that follows.
        match self.standing {
            Standing::Waiting => self.sessions.give_up_place(self.id, REPORT_LIMIT)?,
            Standing::Asking => self.sessions.ask_without_wait(self.id, REPORT_LIMIT),
            _ => {}
        }
        self.take_news()?;
        if let Standing::Asking | Standing::Waiting = self.standing {
            self.leave();
            return Ok(Standing::Busy { obstructions: Vec::new(), streak: None });
        }
        Ok(self.standing.clone())
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        // The gate waits for the lock on behalf of a look, which goes before a report.
        let has_looked = self.sessions.serve(REPORT_LIMIT);
        self.take_news()?;
        if !has_looked {
            return Err(self.stuck());
        }
        let mut answer = self.sessions.listings(&self.resources, REPORT_LIMIT)?;
        if !answer.dead.is_empty() {
            // The next holder may not have noticed the death yet, and nothing wakes this process
            // when it does.
            self.sessions.reap(&mem::take(&mut answer.dead), REPORT_LIMIT)?;
            answer = self.sessions.listings(&self.resources, REPORT_LIMIT)?;
        }
        self.forget_shown();
        if self.standing == Standing::Waiting {
            self.shown = answer.watched;
            self.names = Names::watch(&self.shown);
            // A holder may have released between the listing and the watch.
            self.is_news |= self.is_any_gone();
        }
        Ok(answer.listings.into_iter().map(Obstruction::from).collect())
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        self.sessions.store.read(resources)
    }

    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(self.sessions.past(name, entries, LEAVE_LIMIT)?.into_iter().collect())
    }

    fn place(&self) -> Option<u64> {
        self.sessions.place(self.id)
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.sessions.kept().into_iter().collect()
    }

    fn trouble(&self) -> Option<String> {
        self.sessions.stuck.is_trouble(Boottime::now()).then(|| self.stuck().to_string())
    }
}
