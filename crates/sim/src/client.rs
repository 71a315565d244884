//! The supervision of one command: the real machine and the real conversation, driven as by
//! `rlock_supervise::run` and `rlock_store::single`.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal as Kernel;

use super::cluster::slot_of;
use super::coverage::Counted;
use super::deadlocks;
use super::plan::Plan;
use super::processes::Process;
use super::route::{self, CONNECT_TIMEOUT, Route};
use super::task::Site;
use rlock_model::deadlock::{Detector, Reading};
use rlock_model::records::Session;
use rlock_model::request::{self, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, ScriptReply};
use rlock_redis::conversation::{Question, QuestionReply, Retry, SessionsConversation};
use rlock_redis::interface::{Conversation as _, Transport as _};
use rlock_store::sessions::Report;
use rlock_store::sessions::look_limit;
use rlock_store::{AcquireOptions, Error, Grant, Released, Replicas, Standing};
use rlock_supervise::event::{Action, Cause, Event, Line, Sender, Signal};
use rlock_supervise::machine::{Machine, Skip};
use rlock_supervise::report::RunReport;
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

/// The exit code when the command can't be started in time.
const START_FAILED: u8 = 126;

/// How a session ended for its caller.
pub(super) enum Ending {
    Exit(u8),
    /// The lock of `rlock acquire` belongs to the caller.
    HandedOver(Box<Held>),
}

/// A lock of `rlock acquire`.
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) run: usize,
    pub(super) tokens: Vec<u64>,
}

/// What has to happen next in a supervision.
enum Step {
    Report(Event),
    Perform(Action),
    /// Start the command if the signals and the time allow it.
    Start,
}

/// One session, as `rlock_supervise::run` supervises it.
pub(super) struct Supervision<'s> {
    site: &'s Site,
    plan: Plan,
    conversation: SessionsConversation,
    /// How the request stands, as the conversation has reported it.
    standing: Result<Standing, Error>,
    released: Option<Result<Released, Error>>,
    route: Route<'s>,
    machine: Machine,
    /// What looks for a deadlock, if the request is nested.
    detector: Option<Detector>,
    report: RunReport,
    /// Whether the grant belongs to the caller of `rlock acquire`.
    is_handed_over: bool,
    /// Whether `--nested` kept the command from starting.
    is_bare: bool,
    /// For how long the job has been skipped, if this session is a skip.
    skipped_for: Option<Duration>,
    /// Whether the store may still report something.
    asks: bool,
    tokens: Vec<u64>,
    /// When the lease ends unless it is renewed.
    deadline: Boottime,
    run: usize,
    exit: Option<u8>,
}

impl<'s> Supervision<'s> {
    pub(super) fn new(site: &'s Site, plan: Plan) -> Self {
        let now = site.now();
        let exchange = route::exchange(&site.world().location.target);
        let request = plan.request.clone();
        let replicas = Replicas { count: plan.replicas, on_disk: false };
        let mut conversation = SessionsConversation::new(exchange, CONNECT_TIMEOUT);
        conversation.acquire(request, AcquireOptions { replicas, ..AcquireOptions::default() }, now);
        site.world().enter(site.task);
        let run = site.world().begin(site.task, &plan.request);
        let machine = Machine::new(plan.settings);
        let own = request::resources(&plan.request.claims);
        let names = own.into_iter().chain(&plan.request.job.held_above).cloned();
        let detector =
            plan.settings.deadlock_timeout.map(|_| Detector::new(plan.request.session, plan.settings.wait, names));
        let report = RunReport::new(now, Vec::new());
        let (is_handed_over, is_bare) = (false, false);
        let (route, tokens, deadline) = (Route::new(site), Vec::new(), Boottime::default());
        let asks = true;
        let exit = None;
        Self {
            site,
            conversation,
            standing: Ok(Standing::Asking),
            released: None,
            route,
            machine,
            detector,
            report,
            is_handed_over,
            is_bare,
            skipped_for: None,
            asks,
            tokens,
            deadline,
            run,
            exit,
            plan,
        }
    }

    pub(super) async fn run(mut self) -> Ending {
        self.ask().await;
        while self.exit.is_none() {
            self.turn().await;
        }
        let code = self.exit.unwrap_or_default();
        let run = self.run;
        if let (Skip::For(limit), Some(time), 0) = (self.plan.settings.skip, self.skipped_for, code)
            && limit <= time
        {
            let violation = format!("run {run} was skipped for {time:?}, and stays silent");
            self.site.world().checkers.violations.push(violation);
        }
        if self.is_handed_over {
            let Self { tokens, plan, .. } = self;
            self.site.world().hand_over(self.site.task, run, &tokens);
            return Ending::HandedOver(Box::new(Held { request: plan.request, run, tokens }));
        }
        self.site.world().finish(self.site.task, run, code);
        if code == exit::LOST && !self.is_bare {
            self.site.world().checkers.check_loss(run, "exit 76");
        }
        Ending::Exit(code)
    }

    /// Waits for events and reports them: signals, the store, the command, the time.
    async fn turn(&mut self) {
        let store_is_ready = self.wait().await;
        let child_changed = self.site.world().mailboxes[self.site.task].ended.is_some();
        self.take_signals().await;
        if store_is_ready && self.asks {
            self.ask().await;
        }
        let spare_ended = self.site.world().mailboxes[self.site.task].tree.spare_ended.take();
        if let Some(ended) = spare_ended {
            self.on(Event::SpareEnded(ended)).await;
        }
        let is_rest_over = self.site.world().take_rest_over(self.site.task);
        if is_rest_over {
            self.on(Event::RestEnded).await;
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
            let has_ended = mailbox.ended.is_some() || mailbox.tree.spare_ended.is_some();
            has_ended || !mailbox.signals.is_empty() || world.is_rest_over(self.site.task)
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
            self.on(received(signal)).await;
        }
    }

    async fn ask(&mut self) {
        self.route.drive(&mut Counted(&mut self.conversation, self.site), self.site.now());
        self.take_reports();
        if let Some(event) = self.tell(self.standing.clone()) {
            self.on(event).await;
        }
    }

    fn take_reports(&mut self) {
        while let Some((_, report)) = self.conversation.next_report() {
            match report {
                Report::Standing(standing) => self.standing = standing,
                Report::Released(released) => self.released = Some(released),
            }
        }
    }

    /// Takes in how the request stands; returns the event for the machine, if there is one.
    fn tell(&mut self, standing: Result<Standing, Error>) -> Option<Event> {
        self.asks = standing.as_ref().is_ok_and(|standing| !standing.is_over());
        if !self.asks {
            self.site.world().stop_asking(self.run);
        }
        Some(match standing {
            Ok(Standing::Asking) => return None,
            Ok(Standing::Waiting) => {
                let mut world = self.site.world();
                let now = world.now;
                world.checkers.queue(self.run, now);
                drop(world);
                let has_trouble = self.conversation.trouble(self.plan.request.session).is_some();
                if has_trouble { Event::OutOfReach } else { Event::Queued }
            }
            Ok(Standing::Granted(Grant { tokens, deadline, is_revoked, .. })) => {
                self.deadline = deadline.expect("a grant of a server is a lease");
                self.site.world().granted(self.site.task, self.run, &tokens, self.deadline);
                self.tokens = tokens;
                if is_revoked { Event::Revoked { deadline } } else { Event::Granted { deadline } }
            }
            Ok(Standing::Busy { streak, .. } | Standing::Superseded { streak, .. }) => {
                self.skipped_for = streak.map(|streak| streak.last - streak.since);
                Event::Busy { skipped_for: self.skipped_for }
            }
            Ok(Standing::AlreadyDone) => Event::AlreadyDone,
            Ok(Standing::Refused(_)) => Event::Denied(exit::USAGE),
            Ok(Standing::Lost) => Event::Lost,
            Err(Error::Unavailable(_)) => Event::StoreFailed,
            Err(_) => Event::Denied(exit::USAGE),
        })
    }

    /// Reports an event to the machine and carries out what follows.
    async fn on(&mut self, event: Event) {
        let mut steps = vec![Step::Report(event)];
        while let Some(step) = steps.pop() {
            // What a step leads to comes before the steps that are left.
            match step {
                Step::Report(event) => {
                    self.site.world().coverage.count_supervised(&self.machine, event);
                    let now = self.site.now();
                    self.report.on(event, now);
                    let actions = self.machine.on(event, now);
                    steps.extend(actions.into_iter().rev().map(Step::Perform));
                }
                Step::Perform(Action::Start) => {
                    steps.extend([Step::Start, Step::Report(Event::Tick)]);
                    let signals = &mut self.site.world().mailboxes[self.site.task].signals;
                    steps.extend(signals.drain(..).rev().map(|signal| Step::Report(received(signal))));
                }
                Step::Perform(action) => steps.extend(self.perform(action).await.map(Step::Report)),
                Step::Start => steps.extend(self.start().await.map(Step::Report)),
            }
        }
    }

    /// Carries out an action; returns the event that the action causes.
    async fn perform(&mut self, action: Action) -> Option<Event> {
        let (task, run) = (self.site.task, self.run);
        let signal_process = |signal: Kernel| self.site.world().signal_process(run, signal.as_raw());
        self.site.world().note(|| format!("task {task}: run {run}: {action:?}"));
        self.report.act(action, self.site.now());
        match action {
            // These futures are large, and each action would have room for them.
            Action::Release => return Some(Box::pin(self.release()).await),
            Action::GiveUp => return Box::pin(self.give_up()).await,
            Action::AwaitRest => self.site.world().await_rest(task),
            Action::Pass(signal) => signal_process(signal.kernel()),
            Action::PassGroup(signal) | Action::TellRest { signal, .. } => {
                self.site.world().signal_group(task, signal);
            }
            Action::Terminate => self.site.world().terminate_tree(task),
            Action::Kill => self.site.world().kill_tree(task),
            Action::StartSpare => match self.plan.spare_for {
                Some(time) => self.site.world().start_spare(task, time),
                None => return Some(Event::SpareFailed),
            },
            Action::PassSpare(signal) => self.site.world().signal_spare(task, signal.kernel().as_raw()),
            Action::KillSpare => self.site.world().signal_spare(task, Kernel::KILL.as_raw()),
            Action::ShowWaiting | Action::Say(Line::Waiting | Line::Change) => drop(Box::pin(self.inspect()).await),
            Action::Look => return Box::pin(self.look()).await,
            Action::Say(Line::Ends(Cause::Lost | Cause::Overdue, _)) => {
                self.site.world().stop_covering_what_hangs(task);
            }
            Action::RunElse => self.exit = Some(0),
            Action::Exit(code) => self.exit = Some(code),
            Action::ExitBy(signal) => self.exit = Some(signal.exit_code()),
            _ => {}
        }
        None
    }

    async fn start(&mut self) -> Option<Event> {
        if !self.machine.may_start() {
            return None;
        }
        if self.plan.request.job.is_acquire {
            self.is_handed_over = true;
            return Some(Event::HandedOver);
        }
        self.is_bare = !self.is_covered();
        if self.is_bare {
            return Some(Event::StartFailed(exit::LOST));
        }
        let limit = self.machine.start_limit(self.site.now());
        self.site.sleep(self.plan.starts_after.min(limit)).await;
        if self.plan.starts_after > limit {
            return Some(Event::StartFailed(START_FAILED));
        }
        if self.plan.cannot_start {
            return Some(Event::StartFailed(exit::NOT_FOUND));
        }
        let Self { site, run, plan, .. } = self;
        let (task, world) = (site.task, &mut *site.world());
        world.start(*run, &self.tokens, Process::command(task, plan, world.now));
        world.hang(task, plan.hangs_for);
        if plan.nested.is_some() {
            world.checkers.check_nested(*run);
        }
        world.end_process(*run, plan.runs_for, plan.ends);
        let inner = plan.inner.take();
        world.mailboxes[task].has_inner = inner.is_some_and(|inner| world.start_inner(task, inner));
        Some(Event::Started)
    }

    /// Whether the locks above cover the grant, where the plan asks for that, as
    /// `cli::exec::nested` checks it. The store is asked for the lock around an upgrade; the answer
    /// takes no time here.
    fn is_covered(&self) -> bool {
        let Some(nested) = &self.plan.nested else { return true };
        let has_upgrade = nested.contains(&None);
        let is_same = |(expected, token): (&Option<u64>, &u64)| expected.is_none_or(|expected| expected == *token);
        let holds = |id: &SessionId| self.site.world().primary().server.session(*id).is_some_and(Session::is_holder);
        let has_lock = || self.plan.request.ancestors.iter().all(holds);
        nested.iter().zip(&self.tokens).all(is_same) && (!has_upgrade || has_lock())
    }

    async fn release(&mut self) -> Event {
        self.asks = false;
        self.site.world().stop_asking(self.run);
        let connection = self.route.connection;
        let began = self.site.world().now;
        self.conversation.release(self.plan.request.session, self.report.end(), self.site.now());
        while self.released.is_none() {
            self.go_on().await;
        }
        let now = self.site.now();
        let result = self.released.take().expect("the release is over");
        if result.is_err() {
            self.site.world().checkers.fail_to_release(self.run, began);
        }
        let is_certain = result.is_ok() && self.route.connection == connection && now < self.deadline;
        self.site.world().checkers.runs[self.run].release_failed = !is_certain;
        match result {
            Ok(Released::Lost) => Event::Lost,
            Ok(Released::Done | Released::Kept) | Err(_) => Event::Released,
        }
    }

    /// Lets the conversation go on until it reports something, while nothing else happens in this
    /// process.
    async fn go_on(&mut self) {
        let Self { conversation, route, site, .. } = self;
        route.run_until(&mut Counted(conversation, site), |counted| counted.0.has_reports()).await;
        self.take_reports();
    }

    /// As `give_up` of `rlock_supervise::run::request` does.
    async fn give_up(&mut self) -> Option<Event> {
        if !self.inspect().await {
            self.asks = false;
            self.site.world().stop_asking(self.run);
            return Some(Event::StoreFailed);
        }
        let standing = self.leave_queue().await;
        self.tell(standing)
    }

    /// As the handle of a server gives up a place in the queue.
    async fn leave_queue(&mut self) -> Result<Standing, Error> {
        self.conversation.give_up(self.plan.request.session, self.site.now());
        while let Ok(Standing::Asking | Standing::Waiting) = self.standing {
            self.go_on().await;
        }
        self.standing.clone()
    }

    /// Asks the store for the holders; returns whether it answers.
    async fn inspect(&mut self) -> bool {
        let resources = request::resources(&self.plan.request.claims).into_iter().cloned().collect();
        self.list(Call::inspect(resources, 0)).await.is_some()
    }

    /// Looks for a deadlock as `look` of `rlock_supervise::run::request` does.
    ///
    /// What this reading and the one before have seen was so in between, and thus now.
    async fn look(&mut self) -> Option<Event> {
        let (table, now, is_cluster) = {
            let mut world = self.site.world();
            let now = world.server_time();
            (world.primary().server.data.table.clone(), now, world.cluster.is_some())
        };
        let mut groups: BTreeMap<usize, Vec<Resource>> = BTreeMap::new();
        let names = self.detector.as_ref()?.names();
        for name in names {
            let slot = if is_cluster { slot_of(name.as_str()) } else { 0 };
            groups.entry(slot).or_default().push(name.clone());
        }
        let mut reading = Reading::new();
        for names in groups.into_values() {
            let QuestionReply::Reply(ScriptReply::Listing { sessions, .. }) =
                self.list(Call::inspect_live(names, 0, Vec::new())).await?
            else {
                return None;
            };
            reading.extend(sessions);
        }
        let detector = self.detector.as_mut()?;
        let deadlock = detector.read(&reading).filter(|found| found.ends == detector.session())?;
        let is_real = deadlocks::is_in_a_cycle(table, now, deadlock.ends, self.plan.settings.wait);
        self.site.world().checkers.check_deadlock(self.run, is_real);
        Some(Event::Deadlock)
    }

    /// Asks the store over a connection of its own.
    async fn list(&mut self, call: Call) -> Option<QuestionReply> {
        let mut exchange = route::exchange(&self.site.world().location.target);
        let until = self.site.now() + look_limit(self.plan.request.terms);
        let mut question = Question::call(&mut exchange, call, Retry::WhileUp, until);
        let mut route = Route::new(self.site);
        route.run(&mut Counted(&mut question, self.site)).await;
        let answer = question.into_result();
        route.close();
        answer.ok().map(|(_, answer)| answer)
    }
}

fn received(signal: Signal) -> Event {
    Event::Signal { signal, sender: Sender::Other }
}
