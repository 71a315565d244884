//! Drives the requests of many sessions in the poll loop of `rlock serve`, each over a connection of
//! its own.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::hold::PostgresHold;
use super::target::Target;
use crate::lock::past::End;
use crate::lock::request::{Request, SessionId};
use crate::store::handle::{AcquireOptions, Handle, Released, Standing};
use crate::store::lease_client::take_back;
use crate::store::sessions::{Report, Sessions};
use crate::system::clock::Boottime;

/// The sessions of a process.
pub(super) struct PostgresSessions {
    target: Arc<Target>,
    namespace: Arc<str>,
    connect_timeout: Duration,
    members: BTreeMap<SessionId, Member>,
    reports: VecDeque<(SessionId, Report)>,
}

struct Member {
    hold: PostgresHold,
    state: State,
}

enum State {
    /// The request goes on, and this was reported last.
    Open(Standing),
    /// It is being released. The result may be awaited.
    Releasing { end: Option<End>, is_awaited: bool },
}

impl PostgresSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, namespace: Arc<str>, connect_timeout: Duration) -> Self {
        Self { target, namespace, connect_timeout, members: BTreeMap::new(), reports: VecDeque::new() }
    }
}

impl Member {
    /// Goes on with the request or its release, and gives the report about it. `None` in the second
    /// place ends the member.
    fn advance(&mut self) -> (Option<Report>, bool) {
        match &mut self.state {
            State::Open(reported) => match self.hold.check() {
                Ok(standing) if standing == *reported || standing == Standing::Asking => (None, true),
                Ok(standing) => {
                    let is_over = standing.is_over();
                    *reported = standing.clone();
                    if is_over {
                        self.state = State::Releasing { end: None, is_awaited: false };
                    }
                    (Some(Report::Standing(Ok(standing))), true)
                }
                Err(error) => {
                    self.state = State::Releasing { end: None, is_awaited: false };
                    (Some(Report::Standing(Err(error))), true)
                }
            },
            State::Releasing { end, is_awaited } => match self.hold.release_early(*end) {
                Ok(None) => (None, true),
                result => {
                    let released = result.map(|released| released.unwrap_or(Released::Done));
                    (is_awaited.then_some(Report::Released(released)), false)
                }
            },
        }
    }
}

impl Sessions for PostgresSessions {
    fn acquire(&mut self, request: Request) {
        let id = request.session;
        let (target, namespace) = (Arc::clone(&self.target), Arc::clone(&self.namespace));
        match PostgresHold::new(target, namespace, request, AcquireOptions::default(), self.connect_timeout) {
            Ok(hold) => drop(self.members.insert(id, Member { hold, state: State::Open(Standing::Asking) })),
            Err(error) => self.reports.push_back((id, Report::Standing(Err(error)))),
        }
    }

    fn release(&mut self, session: SessionId) {
        let released = take_back(&mut self.reports, session);
        match self.members.get_mut(&session) {
            Some(Member { state: state @ State::Open(_), .. }) => {
                let is_held = matches!(state, State::Open(Standing::Granted(_)));
                *state = State::Releasing { end: is_held.then_some(End::KEPT), is_awaited: true };
            }
            _ => self.reports.push_back((session, Report::Released(Ok(released)))),
        }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.members.values().flat_map(|member| member.hold.descriptors()).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        let timeout = |member: &Member| match member.state {
            State::Releasing { .. } if !member.hold.is_releasing() => Some(Boottime::default()),
            _ => member.hold.timeout(),
        };
        self.members.values().filter_map(timeout).min()
    }

    fn advance(&mut self) {
        let reports = &mut self.reports;
        self.members.retain(|id, member| {
            let (report, stays) = member.advance();
            reports.extend(report.map(|report| (*id, report)));
            stays
        });
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.reports.pop_front()
    }
}
