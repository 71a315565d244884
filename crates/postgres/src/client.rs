//! Asks a server and blocks until the answer arrives.

use std::sync::Arc;
use std::time::Duration;

use super::exchange::{Exchange, Question};
use super::failure::Failure;
use super::rows::{Range, Stop};
use super::step::{Channel, Task};
use super::target::Target;
use super::work::{Work, ranges, ranges_of_listing, ranges_of_past};
use rlock_model::deadlock::Reading;
use rlock_model::past::Remembered;
use rlock_model::resource::Resource;
use rlock_store::engine::Engine as _;
use rlock_store::handle::Obstruction;
use rlock_store::lease::Retry;
use rlock_store::operations::Inspection;
use rlock_sys::clock::Boottime;

/// Asks one thing at a time, over a connection that stays open in between.
pub(super) struct Client {
    pub(super) exchange: Exchange,
    /// How long one answer may take.
    limit: Duration,
}

impl Client {
    pub(super) fn new(target: Arc<Target>, namespace: Arc<str>, limit: Duration) -> Self {
        Self::over(Exchange::new(target, namespace, limit), limit)
    }

    /// A client over a connection to be made.
    pub(super) fn over(exchange: Exchange, limit: Duration) -> Self {
        Self { exchange, limit }
    }

    fn ask<T>(&mut self, task: Task<T>, retry: Retry) -> Result<T, Failure> {
        Question::new(task, retry, Boottime::now() + self.limit).run(&mut self.exchange)
    }

    /// Reads rows, and gives what `run` makes of them.
    pub(super) fn look<T>(
        &mut self,
        ranges: Vec<Range>,
        run: impl Fn(&mut Work) -> Result<T, Stop> + 'static,
    ) -> Result<T, Failure> {
        self.ask(Task { only_reads: true, ..task(ranges, run) }, Retry::WhileUp)
    }

    /// Changes the table. `resources` are those that may be freed.
    pub(super) fn change<T>(
        &mut self,
        ranges: Vec<Range>,
        resources: &[Resource],
        run: impl Fn(&mut Work) -> Result<T, Stop> + 'static,
    ) -> Result<T, Failure> {
        self.ask(Task { frees: resources.to_vec(), ..task(ranges, run) }, Retry::WhileUp)
    }

    /// Like [`change`](Self::change), and waits for a server that is down, as the holder of a lock
    /// does.
    pub(super) fn change_while_down<T>(
        &mut self,
        ranges: Vec<Range>,
        resources: &[Resource],
        run: impl Fn(&mut Work) -> Result<T, Stop> + 'static,
    ) -> Result<T, Failure> {
        self.ask(Task { frees: resources.to_vec(), ..task(ranges, run) }, Retry::WhileDown)
    }

    /// What the server tells about itself, by texts that `run` takes apart.
    pub(super) fn told<T>(
        &mut self,
        statement: &'static str,
        run: impl Fn(&mut Work) -> Result<T, Stop> + 'static,
    ) -> Result<T, Failure> {
        let task = Task { tells: Some(statement), only_reads: true, ..task(ranges([], []), run) };
        self.ask(task, Retry::WhileUp)
    }

    /// Lists the holders and waiters of these resources, or of all if none is named.
    pub(super) fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Failure> {
        let names = resources.to_vec();
        self.look(ranges_of_listing(resources), move |work| {
            let mut resources = work.list(names.clone())?;
            if names.is_empty() {
                resources.retain(|listing| !listing.holders.is_empty() || !listing.waiters.is_empty());
            }
            let mut sessions: Reading = work.records().sessions()?.into_iter().collect();
            sessions.retain(|_, session| session.concerns(&names));
            Ok(Inspection { now: work.now, resources, sessions })
        })
    }

    /// The first holders and waiters of these resources.
    pub(super) fn obstructions(&mut self, resources: &[Resource]) -> Result<Vec<Obstruction>, Failure> {
        let names = resources.to_vec();
        self.look(ranges(resources, []), move |work| work.obstructions(&names))
    }

    /// What these resources remember, or all if none is named.
    pub(super) fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Failure> {
        let names = resources.to_vec();
        self.look(ranges_of_past(resources, entries), move |work| {
            let all = if names.is_empty() { work.records().pasts()? } else { Vec::new() };
            let mut found = Vec::new();
            for name in names.iter().chain(&all) {
                found.extend(work.table().past(work.now, name, entries)?);
            }
            Ok(found)
        })
    }

    /// The live sessions that hold or wait for these resources.
    pub(super) fn read(&mut self, resources: &[Resource]) -> Result<Reading, Failure> {
        let mut found = self.inspect(resources)?;
        found.sessions.retain(|_, session| session.expiry.is_none_or(|expiry| found.now < expiry));
        Ok(found.sessions)
    }
}

/// A transaction that no session asks for.
pub(super) fn task<T>(ranges: Vec<Range>, run: impl Fn(&mut Work) -> Result<T, Stop> + 'static) -> Task<T> {
    Task {
        caller: None,
        own: Vec::new(),
        ranges,
        frees: Vec::new(),
        claims: 0,
        tells: None,
        only_reads: false,
        wants_copies: false,
        wants_room: false,
        channel: Channel::Stays,
        run: Box::new(run),
    }
}
