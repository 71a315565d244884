//! Drives the conversations of many sessions in one poll loop, each over a connection of its own:
//! in a Cluster the slots of the sessions are on several nodes, and each slot may move on its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::codec::{LISTING_MAX, REPLY_MAX, Setting};
use super::conversation::{Exchange, SeparateConversations};
use super::interface::Transport as _;
use super::target::Target;
use super::transport::route::Route;
use crate::clock::Boottime;
use crate::lock::request::{Request, SessionId};
use crate::store::sessions::{Event, Sessions};

/// The sessions of a process at a Cluster.
pub(super) struct SeparateSessions {
    target: Arc<Target>,
    setting: Setting,
    connect_timeout: Duration,
    conversations: SeparateConversations<Route>,
}

impl SeparateSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, setting: Setting, connect_timeout: Duration) -> Self {
        Self { target, setting, connect_timeout, conversations: SeparateConversations::new(connect_timeout) }
    }
}

impl Sessions for SeparateSessions {
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
        self.conversations.advance(now, |_, conversation, route| route.drive(conversation, now));
    }

    fn next_event(&mut self) -> Option<(SessionId, Event)> {
        self.conversations.next_report()
    }
}
