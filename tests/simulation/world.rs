//! The world: virtual time, the queue of events, the network, the server and the processes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use redis::{ServerError, Value};

use super::checkers::Checkers;
use super::faults::{Fault, Weather};
use super::plan::Plan;
use super::random::Random;
use super::server::Server;
use super::wire::{self, Call};
use crate::clock::{Boottime, StoreTime};
use crate::lock::request::{Request, SessionId};
use crate::store::redis::failure::{ErrorKind, Stage};
use crate::supervise::event::{Ended, Signal};

/// The world, which all tasks share.
pub(super) type Shared = Rc<RefCell<World>>;

/// What happens at an instant.
pub(super) enum Happening {
    /// A task goes on.
    Wake(usize),
    /// Something arrives at the server over a connection.
    AtServer(usize, ToServer),
    /// The server takes the next thing that has arrived.
    ServerTurn,
    /// Something arrives at a client.
    AtClient(usize, ToClient),
    /// The command of a task ends.
    ProcessEnds(usize, Ended),
    /// The rlock of a task, which was stopped, is continued.
    Continue(usize),
    /// The next fault strikes.
    Strike,
    /// A fault is over.
    Mend(Fault),
    Snapshot,
}

#[derive(Debug)]
pub(super) enum ToServer {
    Connect,
    Call(Box<Call>),
    Subscribe(String),
    Close,
}

#[derive(Debug)]
pub(super) enum ToClient {
    Reply(Result<Value, ServerError>),
    Message(String),
    Failed(ErrorKind),
}

/// A connection of a task.
pub(super) struct Connection {
    task: usize,
    /// Whether the server has accepted the connection and not noticed its end.
    is_accepted: bool,
    /// Whether it was cut, so that nothing more arrives but the failure.
    is_cut: bool,
    /// Whether it swallows everything without a word.
    pub(super) swallows: bool,
    last_at_server: Duration,
    last_at_client: Duration,
    /// What has arrived at the client.
    inbox: VecDeque<ToClient>,
}

/// The command of a session.
pub(super) struct Process {
    pub(super) ignores_term: bool,
    /// How long it takes to die.
    pub(super) dies_after: Duration,
    /// When it ends.
    end: Key,
}

/// What a task waits for.
#[derive(Default)]
pub(super) struct Mailbox {
    wake: Option<Key>,
    pub(super) is_stopped: bool,
    pub(super) signals: VecDeque<Signal>,
    /// The end of the command that the task has not seen.
    pub(super) ended: Option<Ended>,
    pub(super) process: Option<Process>,
    pub(super) run: Option<usize>,
    pub(super) clock: Clock,
}

/// The rate of a clock: how many parts per million it is fast.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock(i64);

impl Clock {
    pub(super) fn random(random: &mut Random) -> Self {
        Self(random.below(1001) as i64 - 500)
    }

    fn shown(self, at: Duration) -> Duration {
        Duration::from_nanos((at.as_nanos() as i128 * (1_000_000 + i128::from(self.0)) / 1_000_000) as u64)
    }

    /// The instant at which the clock has shown this time.
    fn when(self, shown: Duration) -> Duration {
        let at = shown.as_nanos() as i128 * 1_000_000 / (1_000_000 + i128::from(self.0));
        Duration::from_nanos(at as u64 + 1_000)
    }

    /// The instant as CLOCK_BOOTTIME.
    pub(super) fn boottime(self, at: Duration) -> Boottime {
        Boottime::since_boot(BOOT + self.shown(at))
    }

    pub(super) fn when_boottime(self, at: Boottime) -> Duration {
        self.when(at - Boottime::since_boot(BOOT))
    }

    /// The instant on the clock of a server.
    fn store_time(self, at: Duration) -> StoreTime {
        EPOCH + self.shown(at)
    }

    fn when_store_time(self, at: StoreTime) -> Duration {
        self.when(at - EPOCH)
    }
}

const BOOT: Duration = Duration::from_secs(1_000);
const EPOCH: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

/// How long the server takes for a call.
const SERVICE: Duration = Duration::from_micros(8);

/// An entry of the queue: its instant, and a number that orders equal instants.
type Key = (Duration, u64);

pub(super) struct World {
    pub(super) now: Duration,
    queue: BTreeMap<Key, Happening>,
    events: u64,
    /// The number of events since time went on.
    at_this_instant: u32,
    pub(super) random: Random,
    pub(super) server: Server,
    pub(super) server_clock: Clock,
    /// What has arrived at the server, and waits for its turn.
    arrivals: VecDeque<(usize, ToServer)>,
    has_turn: bool,
    pub(super) stalled_until: Duration,
    pub(super) is_down: bool,
    pub(super) weather: Weather,
    pub(super) connections: BTreeMap<usize, Connection>,
    opened: usize,
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) checkers: Checkers,
    pub(super) calls: u64,
    /// The last events, if they are wanted.
    pub(super) timeline: Option<VecDeque<String>>,
    /// When the tasks make no further request, and no fault strikes.
    pub(super) closes: Duration,
    sessions: u64,
    /// The number of resources.
    pub(super) resources: u64,
}

/// The number of events at one instant after which a client counts as spinning.
const AT_ONE_INSTANT: u32 = 100_000;

const SNAPSHOT_EVERY: Duration = Duration::from_millis(700);

/// The longest pause between two sessions of a task. It begins after the command of a killed rlock
/// has ended.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// The number of events in a timeline.
const TIMELINE: usize = 200;

impl World {
    pub(super) fn new(mut random: Random, tasks: usize, closes: Duration) -> Self {
        let mailboxes = (0..tasks).map(|_| Mailbox { clock: Clock::random(&mut random), ..Mailbox::default() });
        Self {
            mailboxes: mailboxes.collect(),
            server_clock: Clock::random(&mut random),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            events: 0,
            at_this_instant: 0,
            random,
            server: Server::default(),
            arrivals: VecDeque::new(),
            has_turn: false,
            stalled_until: Duration::ZERO,
            is_down: false,
            weather: Weather::default(),
            connections: BTreeMap::new(),
            opened: 0,
            checkers: Checkers::default(),
            calls: 0,
            timeline: None,
            closes,
            sessions: 0,
            resources: 1,
        }
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        let Some(timeline) = &mut self.timeline else { return };
        timeline.truncate(TIMELINE - 1);
        timeline.push_front(format!("{:>14?} {}", self.now, text()));
    }

    pub(super) fn at(&mut self, at: Duration, happening: Happening) -> Key {
        self.events += 1;
        let key = (at.max(self.now), self.events);
        self.queue.insert(key, happening);
        key
    }

    /// Takes the next event, and moves the time to the event. `None` if time stands still because a
    /// client spins.
    pub(super) fn next(&mut self) -> Option<Happening> {
        let ((at, _), happening) = self.queue.pop_first()?;
        self.at_this_instant = if at > self.now { 0 } else { self.at_this_instant + 1 };
        if self.at_this_instant > AT_ONE_INSTANT {
            return None;
        }
        self.now = at;
        Some(happening)
    }

    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + Duration::from_nanos(self.random.below((most - least).as_nanos() as u64 + 1))
    }

    pub(super) fn server_time(&self) -> StoreTime {
        self.server_clock.store_time(self.now)
    }

    /// Lets a task go on at an instant, unless it goes on earlier anyway.
    pub(super) fn wake(&mut self, task: usize, at: Duration) {
        if self.mailboxes[task].wake.is_some_and(|(earlier, _)| earlier <= at) {
            return;
        }
        let key = self.at(at, Happening::Wake(task));
        if let Some(later) = self.mailboxes[task].wake.replace(key) {
            self.queue.remove(&later);
        }
    }

    /// Takes note that a task goes on; tells whether it can.
    pub(super) fn awake(&mut self, task: usize) -> bool {
        self.mailboxes[task].wake = None;
        !self.mailboxes[task].is_stopped
    }

    pub(super) fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::AtServer(connection, frame) => {
                self.arrivals.push_back((connection, frame));
                self.schedule_turn(self.now);
            }
            Happening::ServerTurn => self.server_turn(),
            Happening::AtClient(connection, frame) => self.at_client(connection, frame),
            Happening::ProcessEnds(task, ended) => self.process_ends(task, ended),
            Happening::Continue(task) => {
                self.mailboxes[task].is_stopped = false;
                self.wake(task, self.now);
            }
            Happening::Snapshot if self.now < self.closes => {
                self.server.take_snapshot();
                self.at(self.now + SNAPSHOT_EVERY, Happening::Snapshot);
            }
            Happening::Snapshot => {}
            Happening::Wake(_) | Happening::Strike | Happening::Mend(_) => unreachable!("others handle these"),
        }
    }

    fn schedule_turn(&mut self, at: Duration) {
        if !std::mem::replace(&mut self.has_turn, true) {
            self.at(at.max(self.stalled_until), Happening::ServerTurn);
        }
    }

    fn server_turn(&mut self) {
        self.has_turn = false;
        if self.now < self.stalled_until {
            return self.schedule_turn(self.now);
        }
        let Some((id, frame)) = self.arrivals.pop_front() else { return };
        self.schedule_turn(self.now + SERVICE);
        let is_down = self.is_down;
        let is_refused = is_down || self.weather.refuses;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match frame {
            ToServer::Connect if is_refused => self.fail(id, ErrorKind::Refused),
            ToServer::Connect => connection.is_accepted = true,
            _ if !connection.is_accepted || connection.is_cut => {}
            ToServer::Close => self.forget(id),
            ToServer::Subscribe(channel) => self.server.subscribe(id, channel),
            ToServer::Call(call) => self.execute(id, &call),
        }
    }

    fn execute(&mut self, id: usize, call: &Call) {
        self.calls += 1;
        let answer = self.server.call(call, self.server_time());
        self.note(|| format!("server: connection {id} {:?}: {:?}", call.operation, answer.reply));
        answer.session.into_iter().for_each(|session| self.checkers.count_call(session));
        answer.displaced.into_iter().for_each(|session| self.checkers.displace(session));
        for granted in answer.granted {
            self.checkers.check_order(granted, |other| self.server.waits(other));
        }
        let reply = answer.reply.as_ref().map(wire::value).ok_or_else(wire::no_script);
        self.publish(answer.messages);
        if self.weather.strikes(self.weather.loses_replies, &mut self.random) {
            return self.cut(id);
        }
        self.send_to_client(id, ToClient::Reply(reply));
    }

    pub(super) fn publish(&mut self, messages: Vec<(usize, String)>) {
        messages.into_iter().for_each(|(id, channel)| self.send_to_client(id, ToClient::Message(channel)));
    }

    /// Opens a connection.
    pub(super) fn connect(&mut self, task: usize) -> usize {
        self.opened += 1;
        let id = self.opened;
        let swallows = self.weather.strikes(self.weather.swallows, &mut self.random);
        // The handshake takes one way more than the first command.
        let last_at_server = self.now + self.weather.delay(&mut self.random);
        let (is_accepted, is_cut, inbox) = (false, false, VecDeque::new());
        let last_at_client = self.now;
        let connection = Connection { task, is_accepted, is_cut, swallows, last_at_server, last_at_client, inbox };
        self.connections.insert(id, connection);
        self.send_to_server(id, ToServer::Connect);
        id
    }

    pub(super) fn send_to_server(&mut self, id: usize, frame: ToServer) {
        let delay = self.weather.delay(&mut self.random);
        let is_cut = self.weather.strikes(self.weather.cuts, &mut self.random);
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.swallows) else { return };
        let at = connection.last_at_server.max(self.now + delay);
        connection.last_at_server = at;
        self.at(at, Happening::AtServer(id, frame));
        if is_cut {
            self.cut(id);
        }
    }

    fn send_to_client(&mut self, id: usize, frame: ToClient) {
        let delay = self.weather.delay(&mut self.random);
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.swallows) else { return };
        let at = connection.last_at_client.max(self.now + delay);
        connection.last_at_client = at;
        self.at(at, Happening::AtClient(id, frame));
    }

    fn at_client(&mut self, id: usize, frame: ToClient) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.swallows || connection.is_cut && !matches!(frame, ToClient::Failed(_)) {
            return;
        }
        connection.inbox.push_back(frame);
        let task = connection.task;
        self.wake(task, self.now);
    }

    /// Cuts a connection. What is on the way is lost.
    pub(super) fn cut(&mut self, id: usize) {
        self.note(|| format!("network: connection {id} is cut"));
        self.fail(id, ErrorKind::Closed(Stage::Used));
    }

    fn fail(&mut self, id: usize, kind: ErrorKind) {
        self.server.disconnect(id);
        self.send_to_client(id, ToClient::Failed(kind));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_cut = true;
        }
    }

    fn forget(&mut self, id: usize) {
        self.server.disconnect(id);
        self.connections.remove(&id);
    }

    /// The client closes a connection. A connection that swallows everything looks open to the
    /// server for ever.
    pub(super) fn close(&mut self, id: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.inbox.clear();
        if connection.is_cut {
            self.forget(id);
        } else {
            self.send_to_server(id, ToServer::Close);
        }
    }

    /// Closes all connections of a task, as the kernel does when a process ends.
    pub(super) fn close_all(&mut self, task: usize) {
        let own = self.connections.iter().filter(|(_, connection)| connection.task == task);
        let ids: Vec<_> = own.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    /// Takes the next thing that has arrived at a client.
    pub(super) fn receive(&mut self, id: usize) -> Option<ToClient> {
        self.connections.get_mut(&id)?.inbox.pop_front()
    }

    pub(super) fn has_arrived(&self, id: usize) -> bool {
        self.connections.get(&id).is_some_and(|connection| !connection.inbox.is_empty())
    }

    /// Ends all connections and what the server has not read: the server stops.
    pub(super) fn stop_server(&mut self) {
        self.is_down = true;
        self.arrivals.clear();
        let ids: Vec<_> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.cut(id));
        self.server.forget_scripts();
    }

    /// Sends a signal to the command of a task.
    pub(super) fn signal_process(&mut self, task: usize, signal: i32) {
        let Some(process) = &self.mailboxes[task].process else { return };
        let is_kill = signal == rustix::process::Signal::KILL.as_raw();
        if process.ignores_term && !is_kill {
            return;
        }
        let dies_after = if is_kill { KILLED_AFTER.min(process.dies_after) } else { process.dies_after };
        let (at, end) = (self.now + dies_after, process.end);
        if at < end.0 {
            self.queue.remove(&end);
            let end = self.at(at, Happening::ProcessEnds(task, Ended::Signal(signal)));
            self.mailboxes[task].process.as_mut().expect("the process lives").end = end;
        }
    }

    fn process_ends(&mut self, task: usize, ended: Ended) {
        self.note(|| format!("task {task}: the command ends: {ended:?}"));
        let mailbox = &mut self.mailboxes[task];
        mailbox.process = None;
        mailbox.ended = Some(ended);
        if let Some(run) = mailbox.run {
            self.checkers.end(run);
        }
        self.wake(task, self.now);
    }

    /// When the lease of a run ends, if the server knows it as a holder with these tokens.
    pub(super) fn lease_ends(&self, run: usize, tokens: &[u64]) -> Option<Duration> {
        let session = self.server.session(self.checkers.runs[run].session)?;
        let is_same = session.is_holder() && session.tokens() == tokens;
        session.expiry.filter(|_| is_same).map(|expiry| self.server_clock.when_store_time(expiry))
    }

    /// Whether no further session begins.
    pub(super) fn is_closed(&self) -> bool {
        self.now >= self.closes
    }

    pub(super) fn random_pause(&mut self) -> Duration {
        self.between(PAUSES[0], PAUSES[1])
    }

    pub(super) fn next_session(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId(u128::from(self.sessions).to_be_bytes())
    }

    /// A task begins a session; returns its run.
    pub(super) fn begin(&mut self, task: usize, request: &Request) -> usize {
        let run = self.checkers.ask(request, self.now);
        self.note(|| format!("task {task}: run {run} asks for {:?}", request.claims));
        let mailbox = &mut self.mailboxes[task];
        mailbox.run = Some(run);
        mailbox.signals.clear();
        mailbox.ended = None;
        run
    }

    pub(super) fn granted(&mut self, task: usize, run: usize, tokens: &[u64], deadline: Boottime) {
        let deadline = self.mailboxes[task].clock.when_boottime(deadline);
        let ends = self.lease_ends(run, tokens);
        self.checkers.believe(run, tokens, deadline, ends, self.now);
    }

    /// A session ends.
    pub(super) fn finish(&mut self, task: usize, run: usize, code: u8) {
        self.note(|| format!("task {task}: run {run} exits with {code}"));
        self.checkers.exit(run, code, self.now);
        if self.mailboxes[task].process.is_some() {
            self.checkers.violations.push(format!("run {run} exited before its command"));
        }
        self.mailboxes[task].run = None;
        self.close_all(task);
    }

    /// Stops the rlock of a task, but not its command.
    pub(super) fn stop(&mut self, task: usize) {
        self.mailboxes[task].is_stopped = true;
        if let Some(run) = self.mailboxes[task].run {
            self.checkers.runs[run].was_stopped = true;
        }
    }

    /// Kills the rlock of a task. Its guardian kills the command.
    pub(super) fn kill(&mut self, task: usize) {
        self.mailboxes[task].is_stopped = false;
        if let Some(run) = self.mailboxes[task].run {
            self.checkers.vanish(run, self.now);
        }
        self.signal_process(task, rustix::process::Signal::KILL.as_raw());
        self.close_all(task);
        self.wake(task, self.now);
    }

    /// The command of a run starts.
    pub(super) fn start(&mut self, task: usize, run: usize, plan: &Plan, tokens: &[u64]) {
        self.note(|| format!("task {task}: the command of run {run} starts with {tokens:?}"));
        self.checkers.start(run, tokens, self.now);
        let end = self.at(self.now + plan.runs_for, Happening::ProcessEnds(task, Ended::Code(0)));
        let Plan { ignores_term, dies_after, .. } = *plan;
        self.mailboxes[task].process = Some(Process { ignores_term, dies_after, end });
    }
}

/// How long the kernel takes to end a process.
const KILLED_AFTER: Duration = Duration::from_millis(2);
