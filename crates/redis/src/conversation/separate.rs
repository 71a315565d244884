//! Decides what happens with the requests of many sessions, each over a connection of its own.
//!
//! A session ends with its release, which goes on while the other sessions do.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Duration;

use super::exchange::Exchange;
use super::hold::HoldConversation;
use super::question::Question;
use super::release::Release;
use crate::interface::Conversation as _;
use rlock_model::request::{Request, SessionId};
use rlock_store::handle::{Replicas, Standing};
use rlock_store::lease_client::take_back;
use rlock_store::sessions;
use rlock_sys::clock::Boottime;

/// The conversations about many sessions. A route of type `R` carries each of them.
pub struct SeparateConversations<R> {
    connect_timeout: Duration,
    sessions: BTreeMap<SessionId, (Stage, R)>,
    reports: VecDeque<(SessionId, sessions::Report)>,
}

/// What a session has to say next.
pub enum Part<'c> {
    /// A request that waits, holds, or is about to.
    Request(&'c mut HoldConversation),
    /// A release, whose reply ends the session.
    Release(&'c mut Question<Box<Exchange>>),
}

impl<R> SeparateConversations<R> {
    /// No sessions yet. A request fails if its server does not answer within `connect_timeout`.
    pub fn new(connect_timeout: Duration) -> Self {
        Self { connect_timeout, sessions: BTreeMap::new(), reports: VecDeque::new() }
    }

    /// Begins to make a request at `now`, over an exchange and a route of its own.
    pub fn acquire(&mut self, request: Request, exchange: Exchange, route: R, now: Boottime) {
        let id = request.session;
        match HoldConversation::new(exchange, request, Replicas::default(), self.connect_timeout, now) {
            Ok(hold) => {
                let stage = Stage::Request { hold: Box::new(hold), reported: Standing::Asking };
                self.sessions.insert(id, (stage, route));
            }
            Err(error) => self.reports.push_back((id, sessions::Report::Standing(Err(error)))),
        }
    }

    /// Begins to release whatever the server may keep for a session.
    pub fn release(&mut self, id: SessionId, now: Boottime) {
        let released = take_back(&mut self.reports, id);
        let session = self.sessions.get_mut(&id);
        if !session.is_some_and(|(stage, _)| stage.release(true, now)) {
            self.reports.push_back((id, sessions::Report::Released(Ok(released))));
        }
    }

    /// Lets all sessions go on at `now`. `drive` carries out what a session has to say by its
    /// route; a session without such a part has ended.
    pub fn advance(&mut self, now: Boottime, mut drive: impl FnMut(SessionId, Option<Part<'_>>, &mut R)) {
        self.sessions.retain(|id, (stage, route)| {
            loop {
                drive(*id, stage.part(), route);
                let Some(report) = stage.next_report(now) else { break };
                self.reports.push_back((*id, report));
            }
            !matches!(stage, Stage::Ended)
        });
    }

    /// Hands out the next report.
    pub fn next_report(&mut self) -> Option<(SessionId, sessions::Report)> {
        self.reports.pop_front()
    }

    /// The routes of all sessions, which carry the bytes.
    pub fn routes(&self) -> impl Iterator<Item = &R> {
        self.sessions.values().map(|(_, route)| route)
    }

    /// The instant at which [`advance`](Self::advance) is due even if nothing arrives.
    pub fn timeout(&self) -> Option<Boottime> {
        self.sessions.values().filter_map(|(stage, _)| stage.timeout()).min()
    }
}

/// How far a session has come.
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

impl Stage {
    fn part(&mut self) -> Option<Part<'_>> {
        match self {
            Self::Request { hold, .. } => Some(Part::Request(hold)),
            Self::Release { release, .. } => Some(Part::Release(&mut release.question)),
            Self::Ended => None,
        }
    }

    fn timeout(&self) -> Option<Boottime> {
        match self {
            Self::Request { hold, .. } => hold.timeout(),
            Self::Release { release, .. } => release.question.timeout(),
            Self::Ended => None,
        }
    }

    /// Ends the request, and releases whatever the server may keep. Returns whether there is
    /// anything to release that was not being released before.
    fn release(&mut self, is_awaited: bool, now: Boottime) -> bool {
        let hold = match mem::replace(self, Self::Ended) {
            Self::Request { hold, .. } => hold,
            other => {
                *self = other;
                return false;
            }
        };
        let Some(release) = hold.into_release(now) else { return false };
        *self = Self::Release { release: Box::new(release), is_awaited };
        true
    }

    /// Reports what has changed by `now`: the state of the request, or the result of a release that
    /// somebody awaits.
    fn next_report(&mut self, now: Boottime) -> Option<sessions::Report> {
        match self {
            Self::Request { hold, reported } => {
                let standing = hold.standing();
                match &standing {
                    Ok(standing) if standing == reported => return None,
                    Ok(standing) if !standing.is_over() => reported.clone_from(standing),
                    _ => drop(self.release(false, now)),
                }
                Some(sessions::Report::Standing(standing))
            }
            Self::Release { release, .. } if release.question.is_over() => {
                let Self::Release { release, is_awaited } = mem::replace(self, Self::Ended) else { return None };
                is_awaited.then(|| sessions::Report::Released(release.result(now)))
            }
            Self::Release { .. } | Self::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests;
