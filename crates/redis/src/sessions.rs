//! Drives the conversations of a process at a server in its poll loop: one about all sessions over
//! one connection, or in a Cluster one about each, since each slot may move on its own.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::client::Client;
use super::codec::{Call, LISTING_MAX, REPLY_MAX, ScriptReply, Setting};
use super::conversation::{Exchange, SessionsConversation};
use super::interface::{Conversation as _, Transport as _};
use super::reading;
use super::survey::survey_past;
use super::target::{Kind, Target};
use super::transport::route::Route;
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Obstruction};
use rlock_store::sessions::{Report, Sessions, look_limit};
use rlock_sys::clock::Boottime;

/// How many holders and waiters of a resource are listed to find one that is in the way.
const LISTED: u32 = 256;
/// How many resources one call lists, so that the server soon serves other clients.
const LISTED_AT_ONCE: usize = 64;

/// The sessions of a process.
pub(super) struct RedisSessions {
    target: Arc<Target>,
    setting: Setting,
    connect_timeout: Duration,
    look_limit: Duration,
    /// The conversations with their connections, in a Cluster by the session.
    conversations: BTreeMap<Option<SessionId>, Box<(SessionsConversation, Route)>>,
}

impl RedisSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, setting: Setting, connect_timeout: Duration) -> Self {
        let look_limit = look_limit(None);
        Self { target, setting, connect_timeout, look_limit, conversations: BTreeMap::new() }
    }

    /// The key of the conversation about a session.
    fn key(&self, session: SessionId) -> Option<SessionId> {
        (self.target.kind == Kind::Cluster).then_some(session)
    }

    /// The conversation about a session, if it has begun.
    fn conversation(&self, session: SessionId) -> Option<&SessionsConversation> {
        self.conversations.get(&self.key(session)).map(|both| &both.0)
    }

    /// The conversation about a session and its connection, which begin if they have not yet.
    fn begun(&mut self, session: SessionId) -> &mut (SessionsConversation, Route) {
        let key = self.key(session);
        let Self { target, setting, connect_timeout, conversations, .. } = self;
        let begin = || {
            let exchange = Exchange::new(Arc::clone(target), setting.clone());
            let route = Route::new(Arc::clone(target), *connect_timeout, REPLY_MAX);
            Box::new((SessionsConversation::new(exchange, *connect_timeout), route))
        };
        conversations.entry(key).or_insert_with(begin)
    }

    /// A client for listings of so many resources. The next reply on the other connection may be
    /// the grant, so the client takes one of its own.
    fn client(&self, resources: usize) -> Client {
        let reply_max = REPLY_MAX.saturating_mul(4 * resources).min(LISTING_MAX);
        let exchange = Exchange::new(Arc::clone(&self.target), self.setting.clone());
        let route = Route::new(Arc::clone(&self.target), self.connect_timeout, reply_max);
        Client::over(exchange, route, self.look_limit)
    }
}

impl Sessions for RedisSessions {
    fn acquire(&mut self, request: Request, options: AcquireOptions) {
        self.look_limit = look_limit(request.terms);
        let reply_max = REPLY_MAX.saturating_mul(request.claims.len()).min(LISTING_MAX);
        let (conversation, route) = self.begun(request.session);
        route.raise_reply_max(reply_max);
        conversation.acquire(request, options, Boottime::now());
    }

    fn release(&mut self, session: SessionId, end: Option<End>, _goes_on: bool) {
        self.begun(session).0.release(session, end, Boottime::now());
    }

    fn give_up(&mut self, session: SessionId) {
        self.begun(session).0.give_up(session, Boottime::now());
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.conversations.values().filter_map(|both| both.1.descriptor()).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.conversations.values().filter_map(|both| both.0.timeout()).min()
    }

    fn advance(&mut self) {
        let now = Boottime::now();
        for both in self.conversations.values_mut() {
            let (conversation, route) = &mut **both;
            route.drive(conversation, now);
        }
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        let report = self.conversations.values_mut().find_map(|both| both.0.next_report());
        if report.is_none() {
            // A connection stays for the sessions of the same server.
            self.conversations.retain(|key, both| key.is_none() || !both.0.is_empty());
        }
        report
    }

    fn close(&mut self) {
        self.conversations.clear();
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<Obstruction>, Error> {
        let mut client = self.client(resources.len());
        let mut found = Vec::new();
        for names in resources.chunks(LISTED_AT_ONCE) {
            let ScriptReply::Listing { resources, .. } = client.call(Call::inspect(names.to_vec(), LISTED))? else {
                return Ok(Vec::new());
            };
            found.extend(resources);
        }
        Ok(found)
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        reading::read(self.client(resources.len()), resources)
    }

    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(survey_past(self.client(1), slice::from_ref(name), entries, &mut Vec::new())?)
    }

    fn explain(&mut self, session: SessionId, error: Error) -> Error {
        // The request is over, so there is time to find the right that the user lacks.
        let failure = self.conversation(session).and_then(|conversation| conversation.failure(session)).cloned();
        failure.map_or(error, |failure| self.client(1).with_right(failure).into())
    }

    fn place(&self, session: SessionId) -> Option<u64> {
        self.conversation(session)?.place(session)
    }

    fn trouble(&self, session: SessionId) -> Option<String> {
        self.conversation(session)?.trouble(session).map(ToString::to_string)
    }

    fn server(&self) -> Option<String> {
        let node = self.conversations.values().find_map(|both| both.1.node())?;
        Some(self.target.shown_node(node))
    }

    fn has_moved(&mut self, session: SessionId) -> bool {
        // A Cluster moves slots by plan, and the new node may lack a request for a moment.
        let is_sentinel = matches!(self.target.kind, Kind::Sentinel { .. });
        self.begun(session).0.take_asked_again(session) && is_sentinel
    }
}
