//! A lock server: the real machines of its clients, driven as by `rlock_serve::run`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use super::customer::{Customer, FromDesk, ToDesk};
use super::deadlocks;
use super::desk::{Asker, Deed, Desk, Replies, Timers};
use super::random::Random;
use super::route;
use super::sessions::Sessions;
use super::task::Site;
use super::world::Shared;
use rlock_model::request::SessionId;
use rlock_model::table::LockTable;
use rlock_redis::codec::Call;
use rlock_redis::conversation::Retry;
use rlock_store::sessions::Report;
use rlock_store::{Error, Grant, Standing};
use rlock_sys::clock::{Boottime, StoreTime};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The largest number of clients at once.
const CLIENTS: [u64; 4] = [1, 3, 10, 50];

pub(super) struct Plan {
    ttl: Duration,
    /// How long clients have after `lost`, and to the end after TERM.
    grace: Duration,
    clients_max: usize,
    waiting_max: usize,
    /// The longest pause between two clients.
    pause: Duration,
}

impl Plan {
    pub(super) fn random(random: &mut Random) -> Self {
        let ttl = MS(*random.pick(&[500, 1000, 3000, 10_000]));
        Self {
            ttl,
            grace: ttl / 6,
            clients_max: *random.pick(&CLIENTS) as usize,
            waiting_max: *random.pick(&[2, 1000, 1000]),
            pause: MS(*random.pick(&[10, 100, 1000])),
        }
    }
}

/// A session that the lock server keeps at the store.
struct ServedSession {
    run: usize,
    client: u64,
    /// When the lease ends unless it is renewed.
    deadline: Boottime,
    /// When the release began, and on which connection.
    released: Option<(Duration, Option<usize>)>,
}

pub(super) struct Serve<'s> {
    site: &'s Site,
    plan: Plan,
    desk: Desk,
    at_store: Sessions<'s>,
    worker: &'s Worker,
    sessions: BTreeMap<SessionId, ServedSession>,
    customers: BTreeMap<u64, Customer>,
    /// The table when a client last asked a question. What two readings have seen was so when the
    /// client asked for the second one.
    tables: BTreeMap<u64, (LockTable, StoreTime)>,
    /// When each customer does something, or gets something.
    timers: Timers,
    accepted: u64,
    /// When the next client connects.
    connects_at: Boottime,
    is_draining: bool,
    /// When the clients that hold locks have to end.
    stops_at: Option<Boottime>,
    is_over: bool,
}

/// Runs a lock server until it has ended.
pub(super) async fn run(site: &Site) {
    let worker = Worker::default();
    let mut answering = pin!(worker.run(site));
    let mut serving = pin!(Serve::new(site, &worker).run());
    poll_fn(|context| {
        // Nothing but the end of the lock server ends the worker.
        let _ = answering.as_mut().poll(context);
        serving.as_mut().poll(context)
    })
    .await;
}

impl<'s> Serve<'s> {
    fn new(site: &'s Site, worker: &'s Worker) -> Self {
        let plan = Plan::random(&mut site.world().random);
        site.world().enter(site.task);
        let world = Shared::clone(&site.shared);
        let new_id = move || world.borrow_mut().next_session();
        Self {
            desk: Desk::new(plan.ttl, plan.grace, plan.waiting_max, new_id),
            at_store: Sessions::new(site, plan.ttl),
            worker,
            sessions: BTreeMap::new(),
            customers: BTreeMap::new(),
            tables: BTreeMap::new(),
            timers: Timers::default(),
            accepted: 0,
            connects_at: site.now(),
            is_draining: false,
            stops_at: None,
            is_over: false,
            site,
            plan,
        }
    }

    async fn run(mut self) {
        while !self.is_over {
            self.turn().await;
        }
        self.site.world().end(self.site.task);
    }

    async fn turn(&mut self) {
        self.settle();
        let is_closed = self.site.world().is_closed() && self.customers.is_empty();
        if (self.is_draining || is_closed) && self.desk.is_empty() {
            self.is_over = true;
            return;
        }
        self.wait().await;
        self.take_signals();
        self.receive();
        self.settle();
        self.desk.tick(self.site.now());
        let now = self.site.now();
        if self.stops_at.take_if(|at| *at <= now).is_some() {
            // The locks are free before the clients know, which the promise does not cover.
            self.site.world().stop_covering(self.site.task);
            self.desk.stop(now);
        }
    }

    async fn wait(&self) {
        let has_signal = !self.site.world().mailboxes[self.site.task].signals.is_empty();
        if has_signal || self.at_store.has_arrived() {
            return;
        }
        let connects = Some(self.connects_at).filter(|_| self.may_connect());
        let timers = [self.desk.timeout(), self.at_store.timeout(), self.timers.first(), self.stops_at, connects];
        self.site.wait(timers.into_iter().flatten().min()).await;
    }

    fn may_connect(&self) -> bool {
        let is_open = !self.is_draining && !self.site.world().is_closed();
        is_open && self.customers.len() < self.plan.clients_max
    }

    /// The first signal drains the lock server, and the second one ends it.
    fn take_signals(&mut self) {
        let signals = self.site.world().mailboxes[self.site.task].signals.drain(..).count();
        if signals == 0 {
            return;
        }
        let now = self.site.now();
        if self.is_draining || signals > 1 {
            let world = &mut *self.site.world();
            world.checkers.abandon(world.now);
            self.is_over = true;
        } else {
            self.is_draining = true;
            self.stops_at = Some(now + self.plan.grace);
            self.desk.drain(now);
        }
    }

    /// Takes in what the clients have sent.
    fn receive(&mut self) {
        let now = self.site.now();
        if self.may_connect() && self.connects_at <= now {
            self.accepted += 1;
            let world = &mut self.site.world();
            let customer = Customer::new(self.accepted, self.site.task, self.plan.grace, world);
            self.timers.set(self.accepted, customer.timeout());
            self.customers.insert(self.accepted, customer);
            self.connects_at = now + world.between(Duration::ZERO, self.plan.pause);
            self.desk.accept(self.accepted, now);
        }
        for id in self.timers.due(now) {
            let Some(customer) = self.customers.get_mut(&id) else { continue };
            customer.go_on(&mut self.site.world());
            while let Some(sent) = customer.next_sent(now) {
                match sent {
                    ToDesk::Line(ask) => self.desk.receive(id, ask, now),
                    ToDesk::End(end) => self.desk.end(id, end, now),
                }
            }
            self.timers.set(id, customer.timeout());
            if customer.is_over() {
                self.customers.remove(&id);
            }
        }
        self.perform();
    }

    /// Takes in what the store and the worker report, until nothing is left.
    fn settle(&mut self) {
        let now = self.site.now();
        loop {
            self.perform();
            self.at_store.advance();
            if let Some((session, report)) = self.at_store.next_report() {
                self.see(session, &report);
                self.desk.report(session, report, now);
            } else if let Some((asker, answer)) = self.worker.answers.borrow_mut().pop_front() {
                self.desk.answer(asker, answer, now);
            } else {
                return;
            }
        }
    }

    /// Tells the checkers what the store reports.
    fn see(&mut self, id: SessionId, report: &Report) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (run, task) = (session.run, self.site.task);
        let world = &mut *self.site.world();
        world.note(|| format!("task {task}: run {run}: {report:?}"));
        match report {
            Report::Standing(Ok(Standing::Waiting)) => {
                let now = world.now;
                world.checkers.queue(run, now);
            }
            Report::Standing(Ok(Standing::Granted(Grant { tokens, deadline, .. }))) => {
                session.deadline = deadline.expect("a grant of a server is a lease");
                world.granted(task, run, tokens, session.deadline);
                if let Some(customer) = self.customers.get_mut(&session.client) {
                    customer.grant(run, tokens);
                }
            }
            Report::Standing(standing) => {
                world.stop_asking(run);
                if session.deadline > Boottime::default() {
                    world.checkers.check_loss(run, &format!("{standing:?}"));
                }
                self.sessions.remove(&id);
            }
            Report::Released(result) => {
                let connection = self.at_store.connection(id);
                let is_same = session.released.is_some_and(|(_, began_on)| began_on == connection);
                if let (Some((began, _)), Err(_)) = (session.released, result) {
                    world.checkers.fail_to_release(run, began);
                }
                let is_certain = result.is_ok() && is_same && world.boottime(task) < session.deadline;
                world.checkers.runs[run].release_failed = !is_certain;
                self.sessions.remove(&id);
            }
        }
    }

    /// Carries out what the clients' machines decide.
    fn perform(&mut self) {
        while let Some(deed) = self.desk.next_deed() {
            let (world, task) = (&mut *self.site.world(), self.site.task);
            let now = world.boottime(task);
            match deed {
                Deed::Say(id, line) => {
                    let of_client = self.sessions.iter().filter(|(_, session)| session.client == id);
                    let last = of_client.max_by_key(|(_, session)| session.released.map(|(at, _)| at));
                    if let (true, Some((request, session))) = (line.starts_with("refused deadlock: "), last) {
                        let (table, at) = self.tables.remove(&id).expect("the client has asked");
                        let is_real = deadlocks::is_in_a_cycle(table, at, *request, None);
                        world.checkers.check_deadlock(session.run, is_real);
                    }
                    if let Some(customer) = self.customers.get_mut(&id) {
                        customer.hear(FromDesk::Line(line), world);
                        self.timers.set(id, customer.timeout());
                    }
                }
                Deed::Close(id) => {
                    if let Some(customer) = self.customers.get_mut(&id) {
                        customer.hear(FromDesk::Closed, world);
                        self.tables.remove(&id);
                        self.timers.set(id, customer.timeout());
                    }
                    self.worker.questions.borrow_mut().retain(|((client, _), _)| *client != id);
                }
                Deed::Acquire(client, request) => {
                    let run = world.begin(task, &request);
                    let session = ServedSession { run, client, deadline: Boottime::default(), released: None };
                    self.sessions.insert(request.session, session);
                    match self.customers.get_mut(&client) {
                        Some(customer) => customer.request(run, world),
                        None => world.leave(task, run, None),
                    }
                    self.at_store.acquire(*request, now);
                }
                Deed::Release(id) => {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        world.stop_asking(session.run);
                        session.released = Some((world.now, self.at_store.connection(id)));
                    }
                    self.at_store.release(id, now);
                }
                Deed::Ask(asker, calls) => {
                    let at = world.server_time();
                    self.tables.insert(asker.0, (world.primary().server.data.table.clone(), at));
                    self.worker.questions.borrow_mut().push_back((asker, calls));
                    let now = world.now;
                    world.wake(task, now);
                }
            }
        }
    }
}

/// Asks the store the questions of clients, one after another.
#[derive(Default)]
struct Worker {
    questions: RefCell<VecDeque<(Asker, Vec<Call>)>>,
    answers: RefCell<VecDeque<(Asker, Replies)>>,
}

impl Worker {
    async fn run(&self, site: &Site) {
        loop {
            let question = self.questions.borrow_mut().pop_front();
            let Some((asker, calls)) = question else {
                site.wait(None).await;
                continue;
            };
            let mut replies = Ok(Vec::new());
            for call in calls {
                match route::ask(site, call, Retry::WhileDown).await {
                    Ok(reply) => replies.iter_mut().for_each(|replies: &mut Vec<_>| replies.push(reply.clone())),
                    Err(error) => replies = Err(Error::from(error)),
                }
            }
            self.answers.borrow_mut().push_back((asker, replies));
        }
    }
}
