//! The sessions of a lock server at the store, with the real conversations: over one connection,
//! and in a Cluster over a connection for each session.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::coverage::Counted;
use super::route::{self, CONNECT_TIMEOUT, Route};
use super::task::Site;
use rlock_model::request::{Request, SessionId};
use rlock_redis::conversation::{Part, SeparateConversations, SharedConversation};
use rlock_redis::interface::{Conversation as _, Transport as _};
use rlock_redis::target::{Kind, Target};
use rlock_store::sessions::Report;
use rlock_sys::clock::Boottime;

/// How long a server that replied before may take for the reply to a request or a release.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Sessions<'s> {
    site: &'s Site,
    target: Arc<Target>,
    conversations: Conversations<'s>,
}

enum Conversations<'s> {
    Shared {
        conversation: Box<SharedConversation>,
        route: Route<'s>,
    },
    Separate {
        conversations: SeparateConversations<Route<'s>>,
        /// The connection of each session, or its last one.
        connections: BTreeMap<SessionId, Option<usize>>,
    },
}

impl<'s> Sessions<'s> {
    /// No sessions yet.
    pub(super) fn new(site: &'s Site, ttl: Duration) -> Self {
        let target = Arc::clone(&site.world().location.target);
        let conversations = if target.kind == Kind::Cluster {
            let conversations = SeparateConversations::new(CONNECT_TIMEOUT);
            Conversations::Separate { conversations, connections: BTreeMap::new() }
        } else {
            let conversation = Box::new(SharedConversation::new(route::exchange(&target), CONNECT_TIMEOUT));
            Conversations::Shared { conversation, route: Route::patient(site, PATIENCE.min(ttl / 6)) }
        };
        Self { site, target, conversations }
    }

    pub(super) fn acquire(&mut self, request: Request, now: Boottime) {
        match &mut self.conversations {
            Conversations::Shared { conversation, .. } => conversation.acquire(request, now),
            Conversations::Separate { conversations, .. } => {
                conversations.acquire(request, route::exchange(&self.target), Route::new(self.site), now);
            }
        }
    }

    pub(super) fn release(&mut self, id: SessionId, now: Boottime) {
        match &mut self.conversations {
            Conversations::Shared { conversation, .. } => conversation.release(id, now),
            Conversations::Separate { conversations, .. } => conversations.release(id, now),
        }
    }

    pub(super) fn advance(&mut self) {
        let site = self.site;
        match &mut self.conversations {
            Conversations::Shared { conversation, route } => {
                route.drive(&mut Counted(conversation.as_mut(), site), site.now());
            }
            Conversations::Separate { conversations, connections } => {
                conversations.advance(site.now(), |id, part, route| {
                    match part {
                        Some(Part::Request(hold)) => route.drive(&mut Counted(hold, site), site.now()),
                        Some(Part::Release(question)) => route.drive(&mut Counted(question, site), site.now()),
                        None => return route.close(),
                    }
                    connections.insert(id, route.connection);
                });
            }
        }
    }

    pub(super) fn next_report(&mut self) -> Option<(SessionId, Report)> {
        match &mut self.conversations {
            Conversations::Shared { conversation, .. } => conversation.next_report(),
            Conversations::Separate { conversations, .. } => conversations.next_report(),
        }
    }

    /// The connection of a session, or its last one.
    pub(super) fn connection(&self, id: SessionId) -> Option<usize> {
        match &self.conversations {
            Conversations::Shared { route, .. } => route.connection,
            Conversations::Separate { connections, .. } => connections.get(&id).copied().flatten(),
        }
    }

    pub(super) fn timeout(&self) -> Option<Boottime> {
        match &self.conversations {
            Conversations::Shared { conversation, .. } => conversation.timeout(),
            Conversations::Separate { conversations, .. } => conversations.timeout(),
        }
    }

    pub(super) fn has_arrived(&self) -> bool {
        match &self.conversations {
            Conversations::Shared { route, .. } => route.has_arrived(),
            Conversations::Separate { conversations, .. } => conversations.routes().any(Route::has_arrived),
        }
    }
}
