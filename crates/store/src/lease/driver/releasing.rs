//! The release of a session: what it waits for, and over which connections it goes.

use std::mem;

use super::super::client::{LeaseReply, State};
use super::super::release::{ToRelease, old_limit, take_back};
use super::member::{Releasing, Turn};
use super::{Driver, Release, Server};
use crate::error::Error;
use crate::handle::Released;
use crate::sessions::Report;
use rlock_model::past::End;
use rlock_model::request::SessionId;
use rlock_sys::clock::Boottime;

/// What is known of a release that left over a connection set aside, before the one that the server
/// answers.
pub(super) struct Aside {
    session: SessionId,
    /// How many replies come before the one to it; `None` once it is there.
    earlier: Option<usize>,
    /// What it has told.
    late: Option<LeaseReply>,
    /// What the later release has told, or why it has failed, until the connection was read.
    reply: Option<Result<LeaseReply, Error>>,
}

impl<S: Server> Driver<S> {
    /// Begins to release whatever the server may keep for a session. `end` tells how the command
    /// ended that ran under its grant.
    pub fn release(&mut self, id: SessionId, end: Option<End>, now: Boottime) {
        let released = take_back(&mut self.reports, id);
        let is_sole = self.members.len() == 1;
        if let Some(member) = self.members.get_mut(&id).filter(|member| member.releasing.is_none()) {
            let is_sent = member.is_in_flight() && self.server.abandon(&member.session, is_sole);
            if member.is_in_flight() && !is_sent {
                member.on_disconnect(|_, _| false);
            }
            if !member.client.may_be_kept(is_sent) {
                self.remove(id);
            } else if released == Released::Lost {
                self.part(id, end, false, now);
            } else {
                return self.part(id, end, true, now);
            }
        }
        self.reports.push_back((id, Report::Released(Ok(released))));
    }

    /// Begins a release. It leaves at once, and the replies to earlier commands do not matter.
    /// Nobody waits for the result unless it `is_awaited`, and then the release is tried for as
    /// long as the server keeps the session.
    fn part(&mut self, id: SessionId, end: Option<End>, is_awaited: bool, now: Boottime) {
        let is_closed = self.is_closed();
        let Some(member) = self.members.get_mut(&id) else { return };
        let client = &member.client;
        let to_release = ToRelease::new(client.held().cloned(), now);
        // A server that has not answered the request in time gets what is left of the time.
        let is_failed = matches!(client.state(), State::Failed { .. });
        let limit = if is_failed { self.connect_timeout / 20 } else { self.connect_timeout };
        let until = if is_awaited { to_release.until(is_closed, S::SILENCE, limit) } else { now + client.kept_for() };
        member.releasing = Some(Releasing { to_release, end, until, in_doubt: false, is_awaited });
        self.ignore_earlier(id);
        if is_closed { self.schedule(id) } else { self.send_release(id, now) }
    }

    pub(super) fn send_release(&mut self, id: SessionId, now: Boottime) {
        let is_sole = self.members.len() == 1;
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(releasing) = &member.releasing else { return };
        let release = Release {
            client: &mut member.client,
            end: releasing.end,
            has_grant: releasing.to_release.has_grant(),
            is_sole,
            timeout: old_limit(S::SILENCE, self.connect_timeout),
        };
        self.server.release(&mut member.session, release, now);
        member.turn = Turn::InFlight { sent: now };
        self.schedule(id);
    }

    /// The server has answered the release of a session.
    pub fn on_released(&mut self, id: SessionId, reply: LeaseReply, now: Boottime) {
        self.server.line_mut().served();
        self.look_aside(id, Ok(reply), now);
    }

    /// Ends a release, once what has come on a connection set aside is known.
    pub(super) fn look_aside(&mut self, id: SessionId, reply: Result<LeaseReply, Error>, now: Boottime) {
        match &mut self.aside {
            Some(aside) if aside.session == id && aside.earlier.is_some() => {
                aside.reply = Some(reply);
                self.server.read_aside();
            }
            _ => self.end_release(id, reply, now),
        }
    }

    /// Ends a release once the connection set aside was read.
    pub(super) fn end_aside(&mut self, now: Boottime) {
        if let Some(Aside { session, reply, .. }) = &mut self.aside
            && let Some(reply) = reply.take()
        {
            let id = *session;
            self.end_release(id, reply, now);
        }
    }

    /// Reports the result of a release. One that failed is tried for as long as the server keeps
    /// the session. A release that was sent before, over a connection set aside, tells what it
    /// found where the later one found nothing or failed.
    fn end_release(&mut self, id: SessionId, reply: Result<LeaseReply, Error>, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(releasing) = &mut member.releasing else { return };
        let late = self.aside.take_if(|aside| aside.session == id).and_then(|aside| aside.late);
        let reply = match (reply, late) {
            (Err(_) | Ok(LeaseReply::Unknown), Some(late)) => Ok(late),
            (reply, _) => reply,
        };
        let is_over = reply.is_ok() || !releasing.is_awaited;
        if mem::take(&mut releasing.is_awaited) {
            let released = releasing.to_release.result(reply, releasing.in_doubt, now);
            self.reports.push_back((id, Report::Released(released)));
        }
        if is_over {
            self.remove(id);
        } else {
            // The server may come back before the lease ends.
            releasing.until = now + member.client.kept_for();
            self.schedule(id);
        }
    }

    /// Keeps a connection on which a release was not answered in time, if no other session uses it:
    /// a server that is only slow answers there first. Tells whether it is kept.
    pub(super) fn set_aside(&mut self) -> bool {
        let sole = self.members.first_key_value().filter(|_| self.members.len() == 1);
        let releasing = sole.filter(|(_, member)| member.releasing.is_some() && member.is_in_flight());
        let earlier = self.server.replies_before_last().filter(|_| self.heard.is_some());
        let (Some((session, _)), Some(earlier)) = (releasing, earlier) else { return false };
        self.aside = Some(Aside { session: *session, earlier: Some(earlier), late: None, reply: None });
        true
    }

    /// A reply has come on the connection set aside; `None` if it tells nothing.
    pub fn on_aside(&mut self, reply: Option<LeaseReply>) {
        let Some(aside) = &mut self.aside else { return };
        match aside.earlier {
            Some(0) => {
                (aside.late, aside.earlier) = (reply, None);
                let releasing = self.members.get_mut(&aside.session).and_then(|member| member.releasing.as_mut());
                releasing.into_iter().for_each(|releasing| releasing.in_doubt = false);
            }
            Some(earlier) => aside.earlier = Some(earlier - 1),
            None => {}
        }
    }
}
