//! Speaks to the store about the request, from the first question to the release, and makes events
//! of the answers.

use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use super::super::above::{Above, Link};
use super::super::event::Event;
use super::voice::Voice;
use rlock_model::deadlock::Detector;
use rlock_model::past::{End, Streak};
use rlock_model::records::{Phase, Session};
use rlock_model::request::{Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::messages::Messages;
use rlock_show::turn::{self, Runs};
use rlock_store::{self as store, Grant, Handle, Obstruction, Released, Standing};
use rlock_sys::clock::{Boottime, StoreTime};

pub(super) struct Request<'a> {
    /// The request as it was made last.
    handle: &'a mut Handle,
    /// Whether the store may still report something.
    asks: bool,
    /// What the request was granted, if it was.
    grant: Option<Grant>,
    detector: Option<Detector>,
    /// The number of the place in the queue that the request had last.
    place: Option<u64>,
    /// The release of a command that goes on, until the store has taken it.
    leaving: Option<Leaving>,
}

/// A release that the store has not taken yet.
struct Leaving {
    end: Option<End>,
    held: Vec<Claim>,
}

impl<'a> Request<'a> {
    pub(super) fn new(handle: &'a mut Handle, detector: Option<Detector>) -> Self {
        Self { handle, asks: true, grant: None, detector, place: None, leaving: None }
    }

    /// Goes on with a request that another session has made instead.
    pub(super) fn go_on_as(&mut self, session: SessionId, handle: Handle) {
        (*self.handle, self.asks, self.grant) = (handle, true, None);
        self.detector.iter_mut().for_each(|detector| detector.rename(session));
    }

    pub(super) fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Whether the store has yet to take the release of a command that goes on.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The descriptors to poll for news from the store, and when to ask it without any.
    pub(super) fn awaited(&self) -> (Vec<(BorrowedFd<'_>, PollFlags)>, Option<Boottime>) {
        if self.asks || self.leaving.is_some() {
            (self.handle.descriptors(), self.handle.timeout())
        } else {
            (Vec::new(), None)
        }
    }

    /// Forgets the place in the queue.
    pub(super) fn leave_place(&mut self) {
        self.place = None;
    }

    /// The number of the place in the queue, if the request had one.
    pub(super) fn place(&self) -> Option<u64> {
        self.place
    }

    /// The descriptors that a guardian is to keep open.
    pub(super) fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.handle.kept()
    }

    pub(super) fn change_of_store(&self) -> Option<String> {
        self.handle.change_of_store()
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.handle.trouble()
    }

    /// Lists the sessions that the request conflicts with.
    pub(super) fn inspect(&mut self) -> Result<Vec<Obstruction>, store::Error> {
        self.handle.inspect()
    }

    /// The past holds of a resource, as far as the store tells them.
    pub(super) fn runs(&mut self, name: &Resource) -> Option<Runs> {
        let found = self.handle.history(name, turn::ENTRIES).ok()?;
        Some(Runs::of(&found.first()?.entries, StoreTime::of_machine()))
    }

    /// Asks the store for the state of the request, as long as that may change.
    pub(super) fn ask(&mut self, voice: &mut Voice<'_>) -> Option<Event> {
        if let Some(leaving) = self.leaving.take() {
            return self.go_on_leaving(leaving, voice);
        }
        if !self.asks {
            return None;
        }
        let standing = self.handle.check();
        self.place = self.handle.place().or(self.place);
        self.follow(standing, voice)
    }

    fn follow(&mut self, standing: Result<Standing, store::Error>, voice: &mut Voice<'_>) -> Option<Event> {
        // The descriptors of a finished request may stay ready for ever, and the loop would spin.
        self.asks = standing.as_ref().is_ok_and(|standing| !standing.is_over());
        if let Some(news) = self.handle.news() {
            voice.tell_news(&news);
        }
        Some(match standing {
            Ok(Standing::Asking) => return None,
            Ok(Standing::Waiting) => self.waiting(voice),
            Ok(Standing::Granted(grant)) => {
                let Grant { deadline, is_revoked, .. } = grant;
                self.grant = Some(grant);
                if is_revoked { Event::Revoked { deadline } } else { Event::Granted { deadline } }
            }
            Ok(Standing::Busy { obstructions, streak }) => {
                let event = busy(streak.as_ref());
                voice.note_busy(obstructions, streak);
                event
            }
            Ok(Standing::Superseded { by, streak }) => {
                let event = busy(streak.as_ref());
                voice.note_superseded(by, streak);
                event
            }
            Ok(Standing::Refused(refusal)) => denied(&Failure::from(&refusal), voice),
            Ok(Standing::AlreadyDone) => Event::AlreadyDone,
            Ok(Standing::Lost) => Event::Lost,
            Err(store::Error::Unavailable(reason)) => {
                voice.note_store_failure(&reason);
                Event::StoreFailed
            }
            Err(error) => denied(&error.into(), voice),
        })
    }

    fn waiting(&self, voice: &mut Voice<'_>) -> Event {
        voice.note_waiting();
        match self.handle.trouble() {
            Some(trouble) => {
                voice.note_store_failure(&trouble);
                Event::OutOfReach
            }
            None => Event::Queued,
        }
    }

    /// Looks whether the request waits for itself and is the one to end. The rlocks whose commands
    /// run around this process count even if the variables do not name them.
    pub(super) fn look(&mut self, voice: &mut Voice<'_>) -> Option<Event> {
        let detector = self.detector.as_mut()?;
        let above = Above::find();
        if !above.has(Link::Command) && !voice.messages.is_nested() {
            return Some(Event::NotNested);
        }
        // A store that cannot list the requests now may do so at the next look.
        let reading = self.handle.read(detector.names()).ok().flatten()?;
        let is_above = |session: &Session| {
            session.phase == Phase::Held && above.link(&session.process, session.since) == Some(Link::Command)
        };
        let found = reading.iter().filter(|(_, session)| is_above(session)).map(|(id, _)| *id);
        detector.runs_below(found.collect());
        let deadlock = detector.read(&reading).filter(|deadlock| deadlock.ends == detector.session())?;
        voice.failure = voice.messages.deadlock(&reading, &deadlock, &detector.unnamed(&reading)).into();
        Some(Event::Deadlock)
    }

    /// Leaves the queue. The request may be granted in the meantime.
    pub(super) fn give_up(&mut self, voice: &mut Voice<'_>) -> Option<Event> {
        // The holders are those of the last moment of the wait.
        let seen = self.handle.inspect();
        let given_up = seen.and_then(|seen| {
            let standing = self.handle.give_up()?;
            Ok(match standing {
                Standing::Busy { streak, .. } => Standing::Busy { obstructions: seen, streak },
                standing => standing,
            })
        });
        match given_up {
            Err(error) => {
                voice.note_store_failure(&error);
                Some(Event::StoreFailed)
            }
            standing => self.follow(standing, voice),
        }
    }

    /// Releases the grant or the place in the queue.
    pub(super) fn release(&mut self, end: Option<End>, voice: &mut Voice<'_>) -> Event {
        // Spare work may outlast the release. Another renewal would put the request back into the
        // queue.
        self.asks = false;
        let held = match self.leaving.take() {
            Some(leaving) => leaving.held,
            None => self.held_to_report(voice),
        };
        let released = self.handle.release(end);
        self.released(released, &held, voice)
    }

    /// Releases the grant of a command that goes on. Until the store has taken the release,
    /// [`ask`](Self::ask) repeats it.
    pub(super) fn release_early(&mut self, end: Option<End>, voice: &mut Voice<'_>) -> Option<Event> {
        self.asks = false;
        let held = self.held_to_report(voice);
        self.go_on_leaving(Leaving { end, held }, voice)
    }

    fn go_on_leaving(&mut self, leaving: Leaving, voice: &mut Voice<'_>) -> Option<Event> {
        match self.handle.release_early(leaving.end).transpose() {
            None => {
                self.leaving = Some(leaving);
                None
            }
            Some(released) => Some(self.released(released, &leaving.held, voice)),
        }
    }

    fn released(&self, released: Result<Released, store::Error>, held: &[Claim], voice: &mut Voice<'_>) -> Event {
        match released {
            Ok(released @ (Released::Done | Released::Kept)) => {
                if !held.is_empty() {
                    voice.say(&Messages::releases(held, released == Released::Kept));
                }
                Event::Released
            }
            Ok(Released::Lost) => Event::Lost,
            Err(error) => {
                voice.say(&format!("warning: {}", voice.messages.not_released(&error)));
                Event::Released
            }
        }
    }

    /// What a release reports, if it reports anything.
    fn held_to_report(&mut self, voice: &Voice<'_>) -> Vec<Claim> {
        if voice.settings.verbose && self.grant.is_some() { self.held(&voice.messages) } else { Vec::new() }
    }

    /// The claims that the session holds. The command may have released a part of the granted ones.
    fn held(&mut self, messages: &Messages) -> Vec<Claim> {
        let listed = self.handle.inspect().map(|listed| messages.listed(&listed)).unwrap_or_default();
        if listed.is_empty() { messages.claims.clone() } else { listed }
    }
}

fn busy(streak: Option<&Streak>) -> Event {
    Event::Busy { skipped_for: streak.map(|streak| streak.last - streak.since) }
}

fn denied(failure: &Failure, voice: &mut Voice<'_>) -> Event {
    voice.note_failure(failure);
    Event::Denied(failure.code)
}
