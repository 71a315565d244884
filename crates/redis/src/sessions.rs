//! Drives the conversations of many sessions in one poll loop: over one connection to a server, or
//! over one for each session in a Cluster, where the slots of the sessions are on several nodes and
//! each slot may move on its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::codec::{LISTING_MAX, REPLY_MAX, Setting};
use super::conversation::{Exchange, Part, SeparateConversations, SharedConversation};
use super::interface::{Conversation, Transport as _};
use super::target::Target;
use super::transport::route::Route;
use rlock_model::request::{Request, SessionId};
use rlock_store::sessions::{Report, Sessions};
use rlock_sys::clock::Boottime;

/// The sessions of a process at one server.
pub(super) struct RedisSessions {
    conversation: SharedConversation,
    route: Route,
}

/// The sessions of a process at a Cluster.
pub(super) struct ClusterSessions {
    target: Arc<Target>,
    setting: Setting,
    connect_timeout: Duration,
    conversations: SeparateConversations<Route>,
}

impl RedisSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, setting: Setting, connect_timeout: Duration) -> Self {
        let exchange = Exchange::new(Arc::clone(&target), setting);
        Self {
            conversation: SharedConversation::new(exchange, connect_timeout),
            route: Route::new(target, connect_timeout, LISTING_MAX),
        }
    }
}

impl ClusterSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, setting: Setting, connect_timeout: Duration) -> Self {
        Self { target, setting, connect_timeout, conversations: SeparateConversations::new(connect_timeout) }
    }
}

impl Sessions for RedisSessions {
    fn acquire(&mut self, request: Request) {
        self.conversation.acquire(request, Boottime::now());
    }

    fn release(&mut self, session: SessionId) {
        self.conversation.release(session, Boottime::now());
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.route.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.conversation.timeout()
    }

    fn advance(&mut self) {
        self.route.drive(&mut self.conversation, Boottime::now());
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.conversation.next_report()
    }
}

impl Sessions for ClusterSessions {
    fn acquire(&mut self, request: Request) {
        let reply_max = REPLY_MAX.saturating_mul(request.claims.len()).min(LISTING_MAX);
        let exchange = Exchange::new(Arc::clone(&self.target), self.setting.clone());
        let route = Route::new(Arc::clone(&self.target), self.connect_timeout, reply_max);
        self.conversations.acquire(request, exchange, route, Boottime::now());
    }

    fn release(&mut self, session: SessionId) {
        self.conversations.release(session, Boottime::now());
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.conversations.routes().filter_map(Route::descriptor).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.conversations.timeout()
    }

    fn advance(&mut self) {
        let now = Boottime::now();
        self.conversations.advance(now, |_, part, route| match part {
            Some(Part::Request(hold)) => route.drive(hold, now),
            Some(Part::Release(question)) => route.drive(question, now),
            None => {}
        });
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.conversations.next_report()
    }
}
