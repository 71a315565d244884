//! What the driver of the sessions asks of an exchange.

use std::time::Duration;

use super::super::replication::Copies;
use super::super::sessions::Requester;
use super::{Asked, Exchange};
use crate::codec::Call;
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Seek};
use crate::target::Kind;
use rlock_model::request::Request;
use rlock_store::error::Error;
use rlock_store::handle::Replicas;
use rlock_store::lease::{Command, FailureClass, LeaseClient, Line, Release, Server};
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;

impl Server for Exchange {
    type Failure = Failure;
    type Session = Requester;

    const SILENCE: Duration = Duration::from_secs(1);

    fn session(&self, request: Request, replicas: Replicas) -> Result<Requester, Error> {
        Requester::new(request, replicas, self.target.kind == Kind::Cluster)
    }

    fn say(
        &mut self,
        session: &mut Requester,
        client: &LeaseClient<Failure>,
        command: Command,
        timeout: Duration,
        now: Boottime,
    ) -> bool {
        let (asked, subscribed) = (Asked::Session(session.id, command), client.is_subscribed());
        if command != Command::Subscribe {
            self.check_master(timeout, now);
        }
        if client.held().is_some() {
            session.request = None;
        }
        let call = match (command, session.request.as_deref()) {
            (Command::Acquire { place, waited }, Some(request)) => {
                Call::acquire_after(waited, request, place, subscribed)
            }
            (Command::AskOnce, Some(request)) => Call::acquire(&Request { wait: false, ..request.clone() }, 0, false),
            (Command::Renew, _) => Call::renew(session.id, session.resources.clone(), subscribed),
            (Command::GiveUp, _) => Call::give_up(session.id, session.resources.clone()),
            (Command::Subscribe, _) => {
                self.act(Action::Subscribe(session.channel(self)));
                return false;
            }
            (Command::Acquire { .. } | Command::AskOnce, None) => return false,
        };
        self.call(asked, call, now);
        true
    }

    fn ask_for_copies(&mut self, session: &Requester, timeout: Duration, now: Boottime) {
        self.command(Asked::Copies(session.id), Copies::command(session.replicas, timeout), now);
    }

    fn release(&mut self, session: &mut Requester, release: Release<'_, Failure>, now: Boottime) {
        if release.client.unsubscribe() {
            session.unsubscribe(self);
        }
        self.check_master(release.timeout, now);
        // The answer holds up what is behind it, so other sessions go without. A place in the queue
        // is worth no wait.
        if release.is_sole && release.has_grant {
            self.check_replicas();
        }
        let resources = session.resources.clone();
        let call = Call::release_after(session.id, resources, release.end, &session.job);
        self.call(Asked::Release(session.id), call, now);
    }

    fn ignore(&mut self, session: &Requester, is_sole: bool) {
        if is_sole { self.ignore_earlier() } else { self.ignore_session(session.id) }
    }

    fn abandon(&mut self, _session: &Requester, is_sole: bool) -> bool {
        // A command that waits for the address of the server leaves, too, unless it is the only
        // one.
        let stays = is_sole && !self.is_open();
        if stays {
            self.rest();
        }
        !stays
    }

    fn forget(&mut self, session: Requester, subscribed: bool, _is_last: bool) {
        if subscribed {
            session.unsubscribe(self);
        }
    }

    fn may_have_got(&self, _session: &Requester, sent: Boottime, failure: &Failure) -> bool {
        self.may_have_sent_at(sent, failure.kind())
    }

    fn line(&self) -> &Line<Failure> {
        &self.line
    }

    fn line_mut(&mut self) -> &mut Line<Failure> {
        &mut self.line
    }

    fn open(&mut self, now: Boottime) -> bool {
        let is_due = self.line.open(now);
        if is_due {
            // The search asks the Sentinels, too.
            self.checked = now;
            let seek = match (self.redirect.clone(), self.line.outage().map(Failure::kind)) {
                (Some(redirect), _) => Seek::Redirect(redirect),
                // The Sentinels do not hear of a new master all at once, and a majority may still
                // name the old one.
                (None, Some(ErrorKind::NotTheMaster | ErrorKind::LostReplica)) => Seek::After(self.node().clone()),
                (None, _) => Seek::Start(self.attempt),
            };
            self.act(Action::Open(seek));
        }
        is_due
    }

    fn rest(&mut self) {
        self.line.served();
        self.close();
    }

    fn reconnect(&mut self, failure: Failure, at: Boottime, sets_aside: bool) {
        self.reconnect_after(if sets_aside { Action::SetAside } else { Action::Close }, failure, at);
    }

    fn give_up(&mut self, failure: Failure) -> Failure {
        if self.is_open() {
            self.actions.clear();
        } else {
            self.close();
        }
        let failure = self.worst(failure);
        self.line.served();
        failure
    }

    fn replies_before_last(&self) -> Option<usize> {
        self.in_flight().count().checked_sub(1).filter(|_| self.is_open())
    }

    fn read_aside(&mut self) {
        self.act(Action::ReadAside);
    }

    fn report_silence(&mut self) {
        self.act(Action::ReportTimeout);
    }

    fn class(&self, failure: &Failure) -> FailureClass {
        failure.kind().class(&self.target.kind)
    }

    fn unexpected(&self) -> Failure {
        self.failure(ErrorKind::UnexpectedReply)
    }

    fn silent(&self, earlier: Option<&Failure>) -> Failure {
        self.failure(ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting))).prefer(earlier.cloned())
    }

    fn timeout(&self) -> Option<Boottime> {
        let open = self.line.opens_at();
        self.delayed.as_ref().map(|(at, ..)| *at).into_iter().chain(open).min()
    }
}
