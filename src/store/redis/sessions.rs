//! Drives the conversation of many sessions in one poll loop, over one connection to a server.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::codec::{LISTING_MAX, Setting};
use super::conversation::{Exchange, SharedConversation};
use super::interface::{Conversation, Transport as _};
use super::target::Target;
use super::transport::route::Route;
use crate::clock::Boottime;
use crate::lock::request::{Request, SessionId};
use crate::store::sessions::{Event, Sessions};

/// The sessions of a process at one server.
pub(super) struct RedisSessions {
    conversation: SharedConversation,
    route: Route,
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

    fn next_event(&mut self) -> Option<(SessionId, Event)> {
        self.conversation.next_report()
    }
}
