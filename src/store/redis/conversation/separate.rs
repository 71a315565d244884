//! Decides what happens with the requests of many sessions, each over a connection of its own.
//!
//! A session ends with its release, which goes on while the other sessions do.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Duration;

use super::exchange::Exchange;
use super::hold::HoldConversation;
#[cfg(test)]
use super::question::Question;
use super::release::{Release, take_back};
use crate::lock::request::{Request, SessionId};
use crate::store::error::Error;
use crate::store::handle::{Replicas, Standing};
use crate::store::redis::interface::{Action, Conversation, Event};
use crate::store::sessions;
use crate::system::clock::Boottime;

/// The conversations about many sessions. A route of type `R` carries each of them.
pub(crate) struct SeparateConversations<R> {
    connect_timeout: Duration,
    sessions: BTreeMap<SessionId, (SessionConversation, R)>,
    reports: VecDeque<(SessionId, sessions::Report)>,
}

impl<R> SeparateConversations<R> {
    pub(crate) fn new(connect_timeout: Duration) -> Self {
        Self { connect_timeout, sessions: BTreeMap::new(), reports: VecDeque::new() }
    }

    /// Begins to make a request at `now`, over an exchange and a route of its own.
    pub(crate) fn acquire(&mut self, request: Request, exchange: Exchange, route: R, now: Boottime) {
        let id = request.session;
        match HoldConversation::new(exchange, request, Replicas::default(), self.connect_timeout, now) {
            Ok(hold) => drop(self.sessions.insert(id, (SessionConversation::new(hold), route))),
            Err(error) => self.reports.push_back((id, sessions::Report::Standing(Err(error)))),
        }
    }

    /// Begins to release whatever the server may keep for a session.
    pub(crate) fn release(&mut self, id: SessionId, now: Boottime) {
        let released = take_back(&mut self.reports, id);
        let session = self.sessions.get_mut(&id);
        if !session.is_some_and(|(conversation, _)| conversation.release(now)) {
            self.reports.push_back((id, sessions::Report::Released(Ok(released))));
        }
    }

    /// Lets all sessions go on at `now`. `drive` carries out the conversation of a session by its
    /// route.
    pub(crate) fn advance(
        &mut self,
        now: Boottime,
        mut drive: impl FnMut(SessionId, &mut SessionConversation, &mut R),
    ) {
        self.sessions.retain(|id, (conversation, route)| {
            loop {
                drive(*id, conversation, route);
                let Some(report) = conversation.next_report(now) else { break };
                self.reports.push_back((*id, report));
            }
            !conversation.has_ended()
        });
    }

    /// Hands out the next report.
    pub(crate) fn next_report(&mut self) -> Option<(SessionId, sessions::Report)> {
        self.reports.pop_front()
    }

    pub(crate) fn routes(&self) -> impl Iterator<Item = &R> {
        self.sessions.values().map(|(_, route)| route)
    }

    /// The instant at which [`advance`](Self::advance) is due even if nothing arrives.
    pub(crate) fn timeout(&self) -> Option<Boottime> {
        self.sessions.values().filter_map(|(conversation, _)| conversation.timeout()).min()
    }
}

/// The conversation about one session, from its request to the end of its release.
pub(crate) struct SessionConversation {
    stage: Stage,
}

enum Stage {
    /// The request is made, and kept alive.
    Request {
        hold: Box<HoldConversation>,
        /// The state that was reported last.
        reported: Standing,
    },
    /// Nothing follows but the release.
    Release {
        release: Box<Release<Box<Exchange>>>,
        /// Whether its result is awaited.
        is_awaited: bool,
    },
    Ended,
}

impl SessionConversation {
    fn new(hold: HoldConversation) -> Self {
        Self { stage: Stage::Request { hold: Box::new(hold), reported: Standing::Asking } }
    }

    /// The conversation about the request or about its release.
    fn current(&self) -> Option<&dyn Conversation> {
        match &self.stage {
            Stage::Request { hold, .. } => Some(&**hold),
            Stage::Release { release, .. } => Some(&release.question),
            Stage::Ended => None,
        }
    }

    fn current_mut(&mut self) -> Option<&mut dyn Conversation> {
        match &mut self.stage {
            Stage::Request { hold, .. } => Some(&mut **hold),
            Stage::Release { release, .. } => Some(&mut release.question),
            Stage::Ended => None,
        }
    }

    /// Whether nothing is left to say.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// The request or the release, for tests that count what they reach.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (Option<&HoldConversation>, Option<&Question<Box<Exchange>>>) {
        match &self.stage {
            Stage::Request { hold, .. } => (Some(hold), None),
            Stage::Release { release, .. } => (None, Some(&release.question)),
            Stage::Ended => (None, None),
        }
    }

    /// Begins a release; tells whether its result is going to be reported.
    fn release(&mut self, now: Boottime) -> bool {
        if let Stage::Request { .. } = self.stage {
            self.part(true, now);
            matches!(self.stage, Stage::Release { .. })
        } else {
            false
        }
    }

    /// Ends the request, and releases whatever the server may keep.
    fn part(&mut self, is_awaited: bool, now: Boottime) {
        let Stage::Request { hold, .. } = mem::replace(&mut self.stage, Stage::Ended) else { return };
        if let Some(release) = hold.into_release(now) {
            self.stage = Stage::Release { release: Box::new(release), is_awaited };
        }
    }

    /// Reports what has changed by `now`.
    fn next_report(&mut self, now: Boottime) -> Option<sessions::Report> {
        let Stage::Request { hold, reported } = &mut self.stage else { return self.result(now) };
        let standing = hold.standing();
        match &standing {
            Ok(standing) if standing == reported => return None,
            Ok(standing) if !standing.is_over() => reported.clone_from(standing),
            _ => self.part(false, now),
        }
        Some(sessions::Report::Standing(standing))
    }

    /// The result of a release that is over by `now`, if somebody awaits it.
    fn result(&mut self, now: Boottime) -> Option<sessions::Report> {
        if !self.is_over() {
            return None;
        }
        let Stage::Release { release, is_awaited } = mem::replace(&mut self.stage, Stage::Ended) else { return None };
        let released = release.result(now).map_err(Error::from);
        is_awaited.then_some(sessions::Report::Released(released))
    }
}

impl Conversation for SessionConversation {
    fn on(&mut self, event: Event, now: Boottime) {
        if let Some(current) = self.current_mut() {
            current.on(event, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        if let Some(current) = self.current_mut() {
            current.tick(now);
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.current_mut()?.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.current()?.timeout()
    }

    fn is_over(&self) -> bool {
        self.current().is_none_or(Conversation::is_over)
    }
}

#[cfg(test)]
mod tests;
