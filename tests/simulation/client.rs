//! A client: the real supervision machine and the real conversation, driven as by `supervise::run`,
//! `store::redis::hold` and the transport.

use std::cell::RefMut;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::plan::Plan;
use super::wire;
use super::world::{Shared, ToClient, ToServer, World};
use crate::clock::Boottime;
use crate::exit;
use crate::store::redis::codec::{Call, Setting, Wake};
use crate::store::redis::conversation::{Exchange, HoldConversation, Question, Retry};
use crate::store::redis::failure::{ErrorKind, Stage};
use crate::store::redis::interface::{self, Conversation};
use crate::store::redis::keys::Keyspace;
use crate::store::redis::target::Target;
use crate::store::{Error, Grant, Released, Standing};
use crate::supervise::event::{Action, Event, Sender};
use crate::supervise::machine::Machine;

const URL: &str = "redis://h:1";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the look at the holders may take.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);
/// The exit code when the command can't be started in time.
const START_FAILED: u8 = 126;

/// Runs one session after another until the world closes.
pub(super) async fn lane(world: Shared, task: usize) {
    let site = Site { world, task };
    loop {
        let pause = site.world().random_pause();
        site.sleep(pause).await;
        if site.world().is_closed() {
            return;
        }
        let plan = Plan::random(&mut site.world());
        Supervision::new(&site, plan).run().await;
    }
}

/// Where a client runs.
struct Site {
    world: Shared,
    task: usize,
}

impl Site {
    fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    fn now(&self) -> Boottime {
        let world = self.world();
        world.mailboxes[self.task].clock.boottime(world.now)
    }

    /// Waits until something arrives, or until an instant; it may return early.
    async fn wait(&self, until: Option<Boottime>) {
        if let Some(until) = until {
            let mut world = self.world();
            let at = world.mailboxes[self.task].clock.when_boottime(until);
            world.wake(self.task, at);
        }
        let mut has_waited = false;
        poll_fn(|_| if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    async fn sleep(&self, length: Duration) {
        let until = self.now() + length;
        while self.now() < until {
            self.wait(Some(until)).await;
        }
    }
}

/// Carries out the actions of a conversation, as the route of the transport does.
struct Route<'s> {
    site: &'s Site,
    connection: Option<usize>,
    aside: Option<usize>,
}

impl<'s> Route<'s> {
    fn new(site: &'s Site) -> Self {
        Self { site, connection: None, aside: None }
    }

    fn drive(&mut self, conversation: &mut impl Conversation) {
        let now = self.site.now();
        loop {
            while let Some(action) = conversation.next_action() {
                self.perform(action, conversation, now);
            }
            if conversation.is_over() {
                return;
            }
            match self.connection.and_then(|id| self.site.world().receive(id)) {
                Some(frame) => conversation.on(event(frame), now),
                None => {
                    conversation.tick(now);
                    match conversation.next_action() {
                        Some(action) => self.perform(action, conversation, now),
                        None => return,
                    }
                }
            }
        }
    }

    fn perform(&mut self, action: interface::Action, conversation: &mut impl Conversation, now: Boottime) {
        match action {
            interface::Action::Open(_) => {
                self.connection = Some(self.site.world().connect(self.site.task));
                let node = target().nodes[0].clone();
                conversation.on(interface::Event::Connecting(node), now);
            }
            interface::Action::Close => self.close(),
            interface::Action::Send(command) => self.send(ToServer::Call(Box::new(wire::read(&command)))),
            interface::Action::Subscribe(channel) => self.send(ToServer::Subscribe(channel)),
            interface::Action::Unsubscribe(_) => unreachable!("a client with one session never unsubscribes"),
            interface::Action::ReportTimeout => {
                let failure = ErrorKind::TimedOut(Stage::Used).of(URL);
                conversation.on(interface::Event::TimedOut(failure), now);
            }
            interface::Action::SetAside => self.aside = self.connection.take(),
            interface::Action::ReadAside => {
                while let Some(frame) = self.aside.and_then(|id| self.site.world().receive(id)) {
                    if let ToClient::Reply(reply) = frame {
                        conversation.on(interface::Event::Aside(reply), now);
                    }
                }
            }
        }
    }

    fn send(&self, frame: ToServer) {
        if let Some(id) = self.connection {
            self.site.world().send_to_server(id, frame);
        }
    }

    fn close(&mut self) {
        if let Some(id) = self.connection.take() {
            self.site.world().close(id);
        }
    }

    fn has_arrived(&self) -> bool {
        self.connection.is_some_and(|id| self.site.world().has_arrived(id))
    }

    /// Drives a conversation until it is over, while nothing else happens in this client.
    async fn run(&mut self, conversation: &mut impl Conversation) {
        loop {
            self.drive(conversation);
            if conversation.is_over() {
                return;
            }
            if !self.has_arrived() {
                self.site.wait(conversation.timeout()).await;
            }
        }
    }
}

fn event(frame: ToClient) -> interface::Event {
    match frame {
        ToClient::Reply(reply) => interface::Event::Reply(reply),
        ToClient::Message(channel) => interface::Event::Message(channel),
        ToClient::Failed(kind) => interface::Event::Failed(kind.of(URL)),
    }
}

fn target() -> Target {
    Target::parse(URL).expect("a valid URL").expect("the URL of a server")
}

/// One session, as `supervise::run` supervises it.
struct Supervision<'s> {
    site: &'s Site,
    plan: Plan,
    conversation: HoldConversation,
    route: Route<'s>,
    machine: Machine,
    /// Whether the store may still report something.
    asks: bool,
    tokens: Vec<u64>,
    /// When the lease ends unless it is renewed.
    deadline: Boottime,
    run: usize,
    exit: Option<u8>,
}

impl<'s> Supervision<'s> {
    fn new(site: &'s Site, plan: Plan) -> Self {
        let setting = Setting { keyspace: Keyspace::new("ns"), wake: Wake::Publish, now: None };
        let exchange = Exchange::new(Arc::new(target()), setting);
        let terms = plan.request.terms.expect("a request to a server has terms");
        let now = site.now();
        let conversation = HoldConversation::new(exchange, plan.request.clone(), terms, 0, CONNECT_TIMEOUT, now);
        let run = site.world().begin(site.task, &plan.request);
        let machine = Machine::new(plan.settings);
        let (route, tokens, deadline) = (Route::new(site), Vec::new(), Boottime::default());
        Self { site, conversation, route, machine, asks: true, tokens, deadline, run, exit: None, plan }
    }

    async fn run(mut self) {
        self.ask().await;
        while self.exit.is_none() {
            self.turn().await;
        }
        let code = self.exit.unwrap_or_default();
        self.site.world().finish(self.site.task, self.run, code);
    }

    /// Waits for events and reports them: signals, the store, the command, the time.
    async fn turn(&mut self) {
        let store_is_ready = self.wait().await;
        let child_changed = self.site.world().mailboxes[self.site.task].ended.is_some();
        self.take_signals().await;
        if store_is_ready && self.asks {
            self.ask().await;
        }
        if child_changed {
            let ended = self.site.world().mailboxes[self.site.task].ended.take();
            if let Some(ended) = ended {
                self.on(Event::Ended(ended)).await;
            }
        }
        self.on(Event::Tick).await;
    }

    /// Waits for anything to happen; returns whether to ask the store.
    async fn wait(&self) -> bool {
        let asking = if self.asks { self.conversation.timeout() } else { None };
        let has_arrived = || self.asks && self.route.has_arrived();
        let is_ready = {
            let world = self.site.world();
            let mailbox = &world.mailboxes[self.site.task];
            mailbox.ended.is_some() || !mailbox.signals.is_empty()
        };
        if !is_ready && !has_arrived() {
            let timer = self.machine.next_timeout().into_iter().chain(asking).min();
            self.site.wait(timer).await;
        }
        has_arrived() || asking.is_some_and(|at| at <= self.site.now())
    }

    async fn take_signals(&mut self) {
        loop {
            let signal = self.site.world().mailboxes[self.site.task].signals.pop_front();
            let Some(signal) = signal else { return };
            self.on(Event::Signal { signal, sender: Sender::Other }).await;
        }
    }

    async fn ask(&mut self) {
        self.route.drive(&mut self.conversation);
        let standing = self.conversation.standing();
        self.asks = matches!(standing, Ok(Standing::Asking | Standing::Waiting | Standing::Granted(_)));
        let event = match standing {
            Ok(Standing::Asking) => return,
            Ok(Standing::Waiting) => {
                let mut world = self.site.world();
                let now = world.now;
                world.checkers.queue(self.run, now);
                drop(world);
                let has_trouble = self.conversation.exchange.outage().is_some();
                if has_trouble { Event::OutOfReach } else { Event::Queued }
            }
            Ok(Standing::Granted(Grant { tokens, deadline })) => {
                self.deadline = deadline.expect("a grant of a server is a lease");
                self.site.world().granted(self.site.task, self.run, &tokens, self.deadline);
                self.tokens = tokens;
                Event::Granted { deadline }
            }
            Ok(Standing::Busy(_)) => Event::Busy,
            Ok(Standing::Refused(_)) => Event::Denied(exit::USAGE),
            Ok(Standing::Lost) => Event::Lost,
            Err(Error::Unavailable(_)) => Event::StoreFailed,
            Err(_) => Event::Denied(exit::USAGE),
        };
        self.on(event).await;
    }

    /// Reports an event to the machine and carries out what follows. An action may cause another
    /// event, so this is recursive.
    fn on(&mut self, event: Event) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            for action in self.machine.on(event, self.site.now()) {
                self.perform(action).await;
            }
        })
    }

    async fn perform(&mut self, action: Action) {
        let (task, run) = (self.site.task, self.run);
        self.site.world().note(|| format!("task {task}: run {run}: {action:?}"));
        match action {
            Action::Start => self.start().await,
            Action::Release => self.release().await,
            Action::AskBlockers => self.ask_blockers().await,
            Action::Pass(signal) => self.site.world().signal_process(task, signal.kernel().as_raw()),
            Action::Terminate => self.site.world().signal_process(task, rustix::process::Signal::TERM.as_raw()),
            Action::Kill => self.site.world().signal_process(task, rustix::process::Signal::KILL.as_raw()),
            Action::AwaitRest => self.on(Event::RestEnded).await,
            Action::Exit(code) => self.exit = Some(code),
            Action::ExitBy(signal) => self.exit = Some(signal.exit_code()),
            _ => {}
        }
    }

    async fn start(&mut self) {
        self.take_signals().await;
        self.on(Event::Tick).await;
        if !self.machine.may_start() {
            return;
        }
        let limit = self.machine.start_limit(self.site.now());
        self.site.sleep(self.plan.starts_after.min(limit)).await;
        if self.plan.starts_after > limit {
            return self.on(Event::StartFailed(START_FAILED)).await;
        }
        self.site.world().start(self.site.task, self.run, &self.plan, &self.tokens);
        self.on(Event::Started).await;
    }

    async fn release(&mut self) {
        {
            let mut world = self.site.world();
            let now = world.now;
            world.checkers.stop_asking(self.run, now);
        }
        let connection = self.route.connection;
        let event = match self.conversation.release(self.site.now()) {
            None => Event::Released,
            Some(mut release) => {
                self.route.run(&mut release.question).await;
                let now = self.site.now();
                let result = release.result(now);
                let is_certain = result.is_ok() && self.route.connection == connection && now < self.deadline;
                self.site.world().checkers.runs[self.run].release_failed = !is_certain;
                match result {
                    Ok(Released::Lost) => Event::Lost,
                    Ok(Released::Done) | Err(_) => Event::Released,
                }
            }
        };
        self.on(event).await;
    }

    async fn ask_blockers(&mut self) {
        let mut exchange = self.conversation.exchange.another();
        let call = Call::inspect(self.conversation.resources.clone(), 0);
        let until = self.site.now() + INSPECT_LIMIT;
        let mut question = Question::call(&mut exchange, call, Retry::WhileUp, until);
        let mut route = Route::new(self.site);
        route.run(&mut question).await;
        let event = if question.into_result().is_ok() { Event::Busy } else { Event::StoreFailed };
        route.close();
        self.on(event).await;
    }
}
