//! The request of one session: what it says, and what a reply means for it, whichever connection
//! carries its transactions.

use std::collections::VecDeque;
use std::time::Duration;

use super::failure::Failure;
use super::step::{Channel, Copies, Run, Task};
use super::work::{Work, nodes_of_request, ranges};
use rlock_model::op::Op;
use rlock_model::past::End;
use rlock_model::request::{self, Request};
use rlock_model::resource::Resource;
use rlock_store::engine::Engine as _;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Replicas};
use rlock_store::lease_client::{Command, LeaseClient, LeaseReply};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// A session.
pub(super) struct Requester {
    pub(super) client: LeaseClient<Failure>,
    pub(super) request: Request,
    /// The copies of the grant that must exist before it counts.
    replicas: Replicas,
    /// The resources of the request, each once.
    pub(super) resources: Vec<Resource>,
    /// What is to be said next.
    commands: VecDeque<Command>,
    /// Whether the session listens to its channel, or is about to.
    listens: bool,
    /// Whether it may: a waiter far behind keeps no connection.
    may_listen: bool,
}

impl Requester {
    /// Begins to make a request, and gives up at `until` if the server does not answer.
    ///
    /// # Errors
    /// The request has no terms, and a lease needs them.
    pub(super) fn new(request: Request, options: AcquireOptions, until: Boottime) -> Result<Self, Error> {
        let AcquireOptions { replicas, returns, .. } = options;
        let terms = request.terms.ok_or_else(|| Error::Usage("a request to this store needs a ttl".into()))?;
        let resources = request::resources(&request.claims).into_iter().cloned().collect();
        let client = LeaseClient::new(terms, request.claims.len(), replicas != Replicas::default(), until);
        let client = client.returning(returns);
        Ok(Self { client, request, replicas, resources, commands: VecDeque::new(), listens: false, may_listen: true })
    }

    /// Takes in the copies of what was committed. A grant that lacks some is given back.
    pub(super) fn on_committed(&mut self, copies: Copies, server: &str) {
        self.client.on_replicated(lacking(copies, self.replicas, server));
    }

    /// There is a new connection.
    pub(super) fn on_connect(&mut self) {
        self.listens = false;
        let commands = self.client.on_connect();
        self.commands = commands.into();
    }

    /// Takes in whether the session is a holder or among the first waiters, and tells whether it
    /// keeps its connection. One that has begun to listen does, because its record names the
    /// backend.
    pub(super) fn keeps_connection(&mut self, is_first: bool) -> bool {
        if is_first && !self.may_listen && !self.listens {
            self.commands.extend([Command::Subscribe, Command::Renew]);
        }
        self.may_listen = is_first;
        let keeps = is_first || self.listens;
        if !keeps {
            self.commands.clear();
        }
        keeps
    }

    /// Begins to leave the queue, and gives up at `until`. Nothing else is to be said before.
    pub(super) fn give_up(&mut self, until: Boottime) {
        self.commands = self.client.give_up(until).into();
    }

    /// Queues what the client wants to say.
    pub(super) fn say(&mut self, commands: Vec<Command>) {
        self.commands.extend(commands);
    }

    /// The next command, and the transaction that carries it out. A subscription goes with the
    /// next.
    pub(super) fn next(&mut self) -> Option<(Command, Task<LeaseReply>)> {
        while let Some(command) = self.commands.pop_front() {
            if command == Command::Subscribe {
                self.listens = self.may_listen;
                continue;
            }
            // One renewal reports whatever has happened by now.
            if command == Command::Renew {
                self.commands.retain(|later| *later != Command::Renew);
            }
            let request = self.request.clone();
            let run = move |work: &mut Work| work.command(command, &request);
            let mut task = self.task(command == Command::GiveUp, Box::new(run));
            if command != Command::Renew {
                task.ranges.extend(nodes_of_request(&self.resources));
            }
            return Some((command, task));
        }
        None
    }

    /// Whether something is to be said.
    pub(super) fn has_more(&self) -> bool {
        !self.commands.is_empty()
    }

    fn task(&self, frees: bool, run: Run<LeaseReply>) -> Task<LeaseReply> {
        let sessions = [self.request.session].into_iter().chain(self.request.ancestors.iter().copied());
        Task {
            caller: Some(self.request.session),
            own: Vec::new(),
            ranges: ranges(&self.resources, sessions),
            frees: if frees { self.resources.clone() } else { Vec::new() },
            claims: u32::try_from(self.request.claims.len()).unwrap_or(u32::MAX),
            tells: None,
            only_reads: false,
            wants_copies: self.replicas != Replicas::default() && self.client.held().is_none(),
            channel: if self.listens { Channel::Begins } else { Channel::Stays },
            run,
        }
    }

    /// The transaction that releases what the server may keep.
    pub(super) fn release(&self, end: Option<End>) -> Task<LeaseReply> {
        let request = self.request.clone();
        let run = move |work: &mut Work| {
            work.drop_due()?;
            let reply = work.apply(Op::Release { session: request.session, end })?;
            work.answer(reply, &request)
        };
        Task { channel: Channel::Ends, ..self.task(true, Box::new(run)) }
    }

    /// The backoff before the next attempt, after so many failures.
    pub(super) fn retry_after(&self, failures: u32) -> Duration {
        self.client.retry_after(failures, self.request.session)
    }
}

/// The error about the copies that are missing at `server`, if there are any.
fn lacking(Copies { standbys, on_disk }: Copies, wanted: Replicas, server: &str) -> Option<Error> {
    let (count, advice) = (wanted.count, "or lower --replicas");
    let words = if standbys < count {
        Explained::new(
            format!("{standbys} of {count} synchronous standbys have the lock, so it was given back"),
            format!("name so many in synchronous_standby_names, {advice}"),
        )
    } else if wanted.on_disk && !on_disk {
        Explained::new("the disk of the server need not have the lock, so it was given back", "set fsync to on")
    } else {
        return None;
    };
    Some(Error::Unavailable(words.behind(format_args!("'{server}': "))))
}
