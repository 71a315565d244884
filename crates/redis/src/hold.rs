//! Drives the conversation of a request at a server in the poll loop of `exec`.
//!
//! Only the release before the exit and the look at holders block, each with a limit.

use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::client::Client;
use super::codec::{Call, LISTING_MAX, REPLY_MAX, ScriptReply, Setting};
use super::conversation::{Exchange, HoldConversation, Release};
use super::interface::{Conversation, Transport as _};
use super::reading;
use super::survey::survey_past;
use super::target::{Kind, Target};
use super::transport::blocking;
use super::transport::route::Route;
use rlock_model::deadlock::Reading;
use rlock_model::past::{End, Remembered};
use rlock_model::request::Request;
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Handle, Obstruction, Released, Standing};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// How many holders and waiters of a resource are listed to find one that is in the way.
const LISTED: u32 = 256;
/// How many resources one call lists, so that the server soon serves other clients.
const LISTED_AT_ONCE: usize = 64;

pub(super) struct RedisHold {
    conversation: HoldConversation,
    route: Route,
    target: Arc<Target>,
    /// The node that has queued the request, and the one that has granted it.
    queued_by: Option<Node>,
    granted_by: Option<Node>,
    /// The release of a command that goes on.
    releasing: Option<Release<Box<Exchange>>>,
}

impl RedisHold {
    /// Begins to make a request; the first [`check`](Handle::check) sends it.
    ///
    /// # Errors
    /// The request cannot be made in this store.
    pub(super) fn new(
        target: Arc<Target>,
        setting: Setting,
        request: Request,
        options: AcquireOptions,
        connect_timeout: Duration,
    ) -> Result<Self, Error> {
        let exchange = Exchange::new(Arc::clone(&target), setting).opening_at(options.from);
        let from = options.from.max(Boottime::now());
        let conversation = HoldConversation::new(exchange, request, options.replicas, connect_timeout, from)?;
        let reply_max = REPLY_MAX.saturating_mul(conversation.resources().len()).min(LISTING_MAX);
        let route = Route::new(Arc::clone(&target), connect_timeout, reply_max);
        Ok(Self { route, target, queued_by: None, granted_by: None, conversation, releasing: None })
    }

    /// A client for listings of so many resources. The next reply on the other connection may be
    /// the grant, so the client takes one of its own.
    fn client(&self, resources: usize) -> Client {
        let reply_max = REPLY_MAX.saturating_mul(4 * resources).min(LISTING_MAX);
        let exchange = self.conversation.exchange.another();
        Client::over(exchange, self.route.another(reply_max), self.conversation.inspect_limit())
    }
}

impl Handle for RedisHold {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.route.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        match &self.releasing {
            Some(release) => release.question.timeout(),
            None => self.conversation.timeout(),
        }
    }

    fn check(&mut self) -> Result<Standing, Error> {
        self.route.drive(&mut self.conversation, Boottime::now());
        match self.conversation.failure() {
            // The request is over, so there is time to find the right that the user lacks.
            Some(failure) => Err(self.client(1).with_right(failure.clone()).into()),
            None => {
                let standing = self.conversation.standing()?;
                let known = match standing {
                    Standing::Waiting => &mut self.queued_by,
                    Standing::Granted(_) => &mut self.granted_by,
                    _ => return Ok(standing),
                };
                if known.is_none() {
                    *known = self.route.node().cloned();
                }
                Ok(standing)
            }
        }
    }

    fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        if let Some(mut release) = self.releasing.take() {
            blocking::run(&mut self.route, &mut release.question);
            return release.result(Boottime::now());
        }
        let Some(mut release) = self.conversation.release(end, Boottime::now()) else { return Ok(Released::Done) };
        blocking::run(&mut self.route, &mut release.question);
        release.result(Boottime::now())
    }

    fn release_early(&mut self, end: Option<End>) -> Result<Option<Released>, Error> {
        let now = Boottime::now();
        let begun = self.releasing.take().or_else(|| self.conversation.release_early(end, now));
        let Some(mut release) = begun else { return Ok(Some(Released::Done)) };
        self.route.drive(&mut release.question, now);
        if !release.question.is_over() {
            self.releasing = Some(release);
            return Ok(None);
        }
        // The command goes on without the connection.
        self.route = self.route.another(REPLY_MAX);
        release.result(Boottime::now()).map(Some)
    }

    fn give_up(&mut self) -> Result<Standing, Error> {
        let mut giving_up = self.conversation.give_up(Boottime::now());
        blocking::run(&mut self.route, &mut giving_up.question);
        let mut reply = giving_up.reply()?;
        if reply == ScriptReply::Unknown {
            // A waiter whose job is done has left the queue already.
            let mut asking = self.conversation.ask_once_more(Boottime::now());
            blocking::run(&mut self.route, &mut asking.question);
            reply = asking.reply()?;
        }
        match reply {
            ScriptReply::Over(standing) => Ok(standing),
            // The request was granted in the meantime.
            _ => {
                blocking::run(&mut self.route, &mut self.conversation.claim(Boottime::now()));
                match self.conversation.standing()? {
                    Standing::Asking | Standing::Waiting => {
                        self.release(None).map(|_| Standing::Busy { obstructions: Vec::new(), streak: None })
                    }
                    standing => Ok(standing),
                }
            }
        }
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        let resources = self.conversation.resources();
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

    fn news(&mut self) -> Option<String> {
        // A Cluster moves slots by plan, and the new node may lack a request for a moment.
        let is_news = self.conversation.take_asked_again() && matches!(self.target.kind, Kind::Sentinel { .. });
        let now = self.route.node().filter(|_| is_news)?.clone();
        let before = self.queued_by.replace(now.clone()).filter(|before| *before != now)?;
        let [queued, answers] = [&before, &now].map(|node| self.target.shown_node(node));
        Some(format!("'{answers}' answers now in place of '{queued}', and did not know the request"))
    }

    fn change_of_server(&self) -> Option<String> {
        let (before, now) = (self.granted_by.as_ref()?, self.route.node()?);
        let [granted, answers] = [before, now].map(|node| self.target.shown_node(node));
        (before != now).then(|| format!("'{granted}' has granted it, and '{answers}' answers now"))
    }

    fn trouble(&self) -> Option<String> {
        self.conversation.exchange.outage().map(ToString::to_string)
    }
}
