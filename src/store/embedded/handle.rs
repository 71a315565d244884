//! Drives a request in the embedded store, from the moment at which it is made until its release.
//!
//! The process that holds the lock on the state may be stopped, so no call of the poll loop waits
//! for that lock. As long as the lock is not free, a check returns the request's last known state.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::beacon::{self, Beacon, Wake};
use super::gate::Gate;
use super::names::Names;
use super::snapshot::{Answer, Interest};
use super::stuck::{Stuck, TROUBLE_AFTER};
use super::transaction::{View, Watched, Work};
use super::{Embedded, Error};
use crate::clock::Boottime;
use crate::lock::deadlock::Reading;
use crate::lock::lease::CLAIM;
use crate::lock::op::{Op, Reply};
use crate::lock::past::End;
use crate::lock::request::{self, Place, Request};
use crate::lock::resource::Resource;
use crate::store::{Handle, Obstruction, Released, Standing, Store};

/// Maximum wait for the lock for a report on the sessions that block the request. It ends before
/// the trouble begins, so that the handle can tell of the trouble.
const REPORT_LIMIT: Duration = Duration::from_secs(3);
/// Maximum wait of a holder for the lock to release its grant. The end of its process releases the
/// grant as well.
pub(super) const RELEASE_LIMIT: Duration = TROUBLE_AFTER;
/// Maximum wait of a waiter for the lock, to leave the queue or to look for a deadlock. Its place
/// disturbs no other session, and the end of its process removes the place.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_millis(100);

/// A request that is not yet made, queued, granted or denied.
pub(super) struct EmbeddedHandle {
    store: Embedded,
    request: Request,
    stage: Stage,
    /// The state of the request as far as this process knows.
    standing: Standing,
    /// Whether the state was not told since it became known.
    is_news: bool,
    /// The sessions that block the request.
    watched: Vec<Watched>,
    /// The instant at which the next session ends of itself.
    look_at: Option<Boottime>,
    /// Whether the table has to be read as soon as the lock is free.
    must_look: bool,
    /// The place of the request in the queue, once it waits.
    place: Place,
    /// The holders that a line on the terminal may name. The line must follow their changes even
    /// if other sessions block the request.
    shown: Vec<Watched>,
    /// The names of the beacons of these holders.
    names: Option<Names>,
    stuck: Stuck,
}

enum Stage {
    /// The table does not contain the request yet.
    Asking,
    /// The request is queued or granted.
    Asked(Beacon),
    /// The request is answered, and there is nothing to give back.
    Over,
}

impl EmbeddedHandle {
    /// Makes a request, now or as soon as the lock is free.
    pub(super) fn ask(store: Embedded, request: Request) -> Result<Self, Error> {
        let mut hold = Self {
            store,
            request,
            stage: Stage::Asking,
            standing: Standing::Asking,
            is_news: true,
            watched: Vec::new(),
            look_at: None,
            must_look: false,
            place: Place::default(),
            shown: Vec::new(),
            names: None,
            stuck: Stuck::default(),
        };
        hold.advance()?;
        Ok(hold)
    }

    /// Whether all news is that a session ahead was granted its request. That changes nothing for
    /// this waiter before the claim lease ends.
    fn may_look_later(&mut self) -> Result<bool, Error> {
        let Stage::Asked(beacon) = &self.stage else { return Ok(false) };
        let now = Boottime::now();
        if self.standing != Standing::Waiting || self.must_look || self.look_at.is_some_and(|at| at <= now) {
            return Ok(false);
        }
        let heard = beacon.hear(self.request.session).map_err(|error| self.store.directory.unusable(&error))?;
        if heard == Some(Wake::AtEndOfClaim) {
            let end = now + CLAIM;
            self.look_at = Some(self.look_at.map_or(end, |at| at.min(end)));
            return Ok(true);
        }
        Ok(false)
    }

    /// Updates the state of the request if the lock is free at once.
    fn advance(&mut self) -> Result<(), Error> {
        if self.may_look_later()? { Ok(()) } else { self.look(Duration::ZERO) }
    }

    /// Updates the state of the request if the lock is free within `limit`.
    fn look(&mut self, limit: Duration) -> Result<(), Error> {
        let id = self.request.session;
        let (limit, request) = (Some(limit), &self.request);
        let done = match &mut self.stage {
            Stage::Over => return Ok(()),
            Stage::Asking => {
                let mut beacon = None;
                let made = self.store.transact_within(limit, Some(id), |work| work.enter(request.clone(), &mut beacon));
                let made = made.inspect_err(|_| beacon::remove(&self.store.directory, id))?;
                if let Some(beacon) = beacon {
                    self.stage = Stage::Asked(beacon);
                }
                made
            }
            Stage::Asked(beacon) => {
                let (waits, place) = (self.standing == Standing::Waiting, self.place);
                self.store.transact_within(limit, Some(id), |work| {
                    beacon.hear(id)?;
                    if waits { work.stand_or_return(request, place, beacon, true) } else { work.stand(id) }
                })?
            }
        };
        match done {
            None => {
                self.stuck.note(&self.store.directory);
                // The message that asked for this look is read, and no other one may follow.
                self.must_look = true;
            }
            Some(view) => {
                self.stuck = Stuck::default();
                self.settle(view);
            }
        }
        Ok(())
    }

    fn settle(&mut self, View { standing, watched, look_at, place }: View) {
        if matches!(standing, Standing::Busy { .. } | Standing::AlreadyDone | Standing::Refused(_) | Standing::Lost) {
            // No process looks for the beacon of a denied or lost request, and such a request is
            // never released.
            if let Stage::Asked(_) = std::mem::replace(&mut self.stage, Stage::Over) {
                beacon::remove(&self.store.directory, self.request.session);
            }
        }
        if matches!(standing, Standing::Granted(_)) && self.request.job.keep_for.is_some() {
            // The kept hold lasts without this process.
            beacon::remove(&self.store.directory, self.request.session);
        }
        (self.standing, self.watched, self.look_at, self.place) = (standing, watched, look_at, place);
        self.must_look = false;
        self.forget_shown();
    }

    fn forget_shown(&mut self) {
        self.shown.clear();
        self.names = None;
    }

    /// Whether a check is due to nothing but other sessions of the processes of the shown holders.
    fn is_noise(&self) -> bool {
        let Some(names) = &self.names else { return false };
        if self.standing != Standing::Waiting || !names.take_changes() || names.is_any_gone(&self.store.directory) {
            return false;
        }
        let descriptors = self.descriptors();
        let polled = descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_quiet = poll(&mut polled.collect::<Vec<_>>(), Some(&at_once)).is_ok_and(|ready| ready == 0);
        is_quiet && self.timeout().is_none_or(|at| Boottime::now() < at)
    }

    /// Whether somebody has replaced the files that this process uses. Then other processes may
    /// hold the same resources through the new files.
    fn is_cut_off(&self) -> bool {
        self.store.directory.is_cut_off()
    }

    fn is_granted(&self) -> bool {
        matches!(self.standing, Standing::Granted(_))
    }

    /// Releases the session, or takes it out of the queue.
    fn give_back(&mut self, end: Option<End>) -> Result<Released, Error> {
        let Stage::Asked(_) = &self.stage else { return Ok(Released::Done) };
        let limit = if self.is_granted() { RELEASE_LIMIT } else { LEAVE_LIMIT };
        let id = self.request.session;
        let mut released = self.store.release_within(limit, id, end);
        if released.is_err() {
            // The disk may have no room for the history.
            self.store.forgets = true;
            released = self.store.release_within(limit, id, end);
        }
        match released {
            Ok(Some(reply)) => {
                beacon::remove(&self.store.directory, id);
                Ok(match reply {
                    Reply::Unknown => Released::Lost,
                    Reply::KeptUntil(_) => Released::Kept,
                    _ => Released::Done,
                })
            }
            // Others take the waiter for dead.
            Ok(None) | Err(_) if !self.is_granted() => Ok(Released::Done),
            Ok(None) => Err(self.stuck()),
            Err(_) if self.is_cut_off() => Ok(Released::Lost),
            Err(error) => Err(error),
        }
    }

    /// Closes the beacon and the gate, because this process may go on. The sessions that watch the
    /// beacon look for what blocks them now, and take a session that could not leave for dead. A
    /// lock that the gate got from now on would never be unlocked.
    fn leave(&mut self) {
        self.watched.clear();
        self.forget_shown();
        self.stage = Stage::Over;
        self.store.gate = Gate::default();
    }

    fn holders(&mut self, resources: &[Resource]) -> Result<Answer, Error> {
        let answer = self.store.listings(Some(REPORT_LIMIT), resources, Interest::Holders)?;
        answer.ok_or_else(|| {
            self.stuck.note(&self.store.directory);
            self.stuck()
        })
    }

    fn stuck(&self) -> Error {
        Stuck::error(&self.store.directory)
    }
}

impl Handle for EmbeddedHandle {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        if let Some(descriptor) = self.store.gate.descriptor() {
            // Other descriptors that are ready stay ready until the lock is free.
            return vec![(descriptor, PollFlags::IN)];
        }
        let Stage::Asked(beacon) = &self.stage else { return Vec::new() };
        let watched = self.watched.iter().chain(&self.shown);
        let watched = watched.map(|(_, pipe)| (pipe.as_fd(), PollFlags::empty()));
        let names = self.names.iter().map(|names| (names.as_fd(), PollFlags::IN));
        std::iter::once((beacon.as_fd(), PollFlags::IN)).chain(watched).chain(names).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        let now = Boottime::now();
        let trouble = self.stuck.trouble_at().filter(|at| now < *at);
        // A report may have looked, or may have used the lock for which the gate waited. While the
        // gate waits, a look would achieve nothing.
        let look_at = if self.must_look || self.is_news { Some(now) } else { self.look_at };
        let look_at = look_at.filter(|_| self.store.gate.descriptor().is_none());
        trouble.into_iter().chain(look_at).min()
    }

    fn check(&mut self) -> Result<Standing, Error> {
        if self.is_noise() {
            return Ok(Standing::Asking);
        }
        // A request that is not made yet has no news. This process may have waited for a processor
        // since its last attempt, and must look for progress before it reports trouble.
        let is_news = std::mem::take(&mut self.is_news) && self.standing != Standing::Asking;
        if !is_news && let Err(error) = self.advance() {
            if !self.is_granted() || !self.is_cut_off() {
                return Err(error);
            }
            self.settle(View::settled(Standing::Lost));
        }
        let is_stuck = self.standing == Standing::Asking && self.trouble().is_some();
        Ok(if is_stuck { Standing::Waiting } else { self.standing.clone() })
    }

    fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        let released = self.give_back(end);
        self.leave();
        released
    }

    fn give_up(&mut self) -> Result<Standing, Error> {
        let id = self.request.session;
        match (&mut self.stage, self.standing == Standing::Waiting) {
            (Stage::Asked(beacon), true) => {
                // A waiter whose job is done has left the queue already, and asks again to hear so.
                let (again, place) = (Request { wait: false, ..self.request.clone() }, self.place);
                let work = |work: &mut Work<'_>| match work.apply(Op::GiveUp(id))? {
                    Reply::Busy { streak, .. } => {
                        Ok(View::settled(Standing::Busy { obstructions: Vec::new(), streak }))
                    }
                    _ => work.stand_or_return(&again, place, beacon, true),
                };
                let done = self.store.transact_within(Some(LEAVE_LIMIT), Some(id), work);
                let busy = || View::settled(Standing::Busy { obstructions: Vec::new(), streak: None });
                let (done, is_stuck) = done?.map_or_else(|| (busy(), true), |done| (done, false));
                self.settle(done);
                if is_stuck {
                    self.leave();
                }
            }
            (Stage::Asking, _) => {
                self.release(None)?;
                return Ok(Standing::Busy { obstructions: Vec::new(), streak: None });
            }
            _ => {}
        }
        Ok(self.standing.clone())
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        if self.must_look {
            // The gate waits for the lock on behalf of the look, which goes before a report.
            self.look(REPORT_LIMIT)?;
            if self.must_look {
                return Err(self.stuck());
            }
            self.is_news = true;
        }
        let resources: Vec<Resource> = request::resources(&self.request.claims).into_iter().cloned().collect();
        let mut answer = self.holders(&resources)?;
        if !answer.dead.is_empty() {
            // The next holder may not have noticed the death yet, and nothing wakes this process
            // when it does.
            let (own, dead) = (Some(self.request.session), std::mem::take(&mut answer.dead));
            self.store.transact_within(Some(REPORT_LIMIT), own, |work| work.reap_dead(&dead))?;
            answer = self.holders(&resources)?;
        }
        self.forget_shown();
        if self.standing == Standing::Waiting {
            self.shown = answer.watched;
            self.names = Names::watch(&self.shown);
            // A holder may have released between the listing and the watch.
            self.is_news |= self.names.as_ref().is_some_and(|names| names.is_any_gone(&self.store.directory));
        }
        Ok(answer.listings.into_iter().map(Obstruction::from).collect())
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        self.store.read(resources)
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        if let Stage::Asked(beacon) = &self.stage { vec![beacon.as_fd()] } else { Vec::new() }
    }

    fn trouble(&self) -> Option<String> {
        self.stuck.is_trouble(Boottime::now()).then(|| self.stuck().to_string())
    }
}
