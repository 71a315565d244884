//! The sessions of a lock server at the store, with the real conversations: over one connection,
//! and in a Cluster over a connection for each session.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::coverage::Counted;
use super::route::{self, CONNECT_TIMEOUT, Route};
use super::task::Site;
use rlock_model::past::End;
use rlock_model::request::{Request, SessionId};
use rlock_redis::conversation::SessionsConversation;
use rlock_redis::interface::{Conversation as _, Transport as _};
use rlock_redis::target::{Kind, Target};
use rlock_store::AcquireOptions;
use rlock_store::sessions::Report;
use rlock_sys::clock::Boottime;

/// How long a server that replied before may take for the reply to a request or a release.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Sessions<'s> {
    site: &'s Site,
    target: Arc<Target>,
    patience: Duration,
    /// The conversations with their connections, in a Cluster by the session.
    conversations: BTreeMap<Option<SessionId>, (SessionsConversation, Route<'s>)>,
}

impl<'s> Sessions<'s> {
    /// No sessions yet.
    pub(super) fn new(site: &'s Site, ttl: Duration) -> Self {
        let target = Arc::clone(&site.world().location.target);
        Self { site, target, patience: PATIENCE.min(ttl / 6), conversations: BTreeMap::new() }
    }

    fn place(&self, id: SessionId) -> Option<SessionId> {
        (self.target.kind == Kind::Cluster).then_some(id)
    }

    fn conversation(&mut self, id: SessionId) -> &mut SessionsConversation {
        let place = self.place(id);
        let Self { site, target, patience, conversations } = self;
        let begin = || {
            let conversation = SessionsConversation::new(route::exchange(target), CONNECT_TIMEOUT);
            (conversation, Route::patient(site, if place.is_some() { Duration::ZERO } else { *patience }))
        };
        &mut conversations.entry(place).or_insert_with(begin).0
    }

    pub(super) fn acquire(&mut self, request: Request, now: Boottime) {
        self.conversation(request.session).acquire(request, AcquireOptions::default(), now);
    }

    pub(super) fn release(&mut self, id: SessionId, now: Boottime) {
        self.conversation(id).release(id, Some(End::KEPT), now);
    }

    pub(super) fn advance(&mut self) {
        for (conversation, route) in self.conversations.values_mut() {
            route.drive(&mut Counted(conversation, self.site), self.site.now());
        }
    }

    /// Hands out the next report. The connection of a session that has ended stays until the next
    /// call.
    pub(super) fn next_report(&mut self) -> Option<(SessionId, Report)> {
        let report = self.conversations.values_mut().find_map(|(conversation, _)| conversation.next_report());
        if report.is_none() {
            self.conversations.retain(|place, (conversation, route)| {
                let is_kept = place.is_none() || !conversation.is_empty();
                if !is_kept {
                    route.close();
                }
                is_kept
            });
        }
        report
    }

    /// The connection of a session, or its last one.
    pub(super) fn connection(&self, id: SessionId) -> Option<usize> {
        self.conversations.get(&self.place(id)).and_then(|(_, route)| route.connection)
    }

    pub(super) fn timeout(&self) -> Option<Boottime> {
        self.conversations.values().filter_map(|(conversation, _)| conversation.timeout()).min()
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.conversations.values().any(|(_, route)| route.has_arrived())
    }
}
