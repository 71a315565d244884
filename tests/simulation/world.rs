//! The world: virtual time and the queue of events, with the state of all that happens in it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::checkers::Checkers;
use super::clocks::Clock;
use super::coverage::Coverage;
use super::faults::{Fault, Weather};
use super::network::{Connection, ToClient, ToServer};
use super::plan::DEPTH;
use super::processes::Mailbox;
use super::random::Random;
use super::server::Server;
use super::tree::Part;
use crate::lock::request::SessionId;
use crate::supervise::event::Ended;

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
    /// The command of a task ends, or a process around it.
    ProcessEnds(usize, Part, Ended),
    /// The rlock of a task, which was stopped, is continued.
    Continue(usize),
    /// The next fault strikes.
    Strike,
    /// A fault is over.
    Mend(Fault),
    Snapshot,
}

/// An entry of the queue: its instant, and a number that orders equal instants.
pub(super) type Key = (Duration, u64);

pub(super) struct World {
    pub(super) now: Duration,
    pub(super) queue: BTreeMap<Key, Happening>,
    /// The number of events so far, of those to come too.
    pub(super) events: u64,
    /// The number of events since time went on.
    at_this_instant: u32,
    pub(super) random: Random,
    pub(super) server: Server,
    pub(super) server_clock: Clock,
    /// How far the clock of the server has stepped, in microseconds.
    pub(super) clock_step: i64,
    /// What has arrived at the server, and waits for its turn.
    pub(super) arrivals: VecDeque<(usize, ToServer)>,
    pub(super) has_turn: bool,
    pub(super) stalled_until: Duration,
    pub(super) is_down: bool,
    pub(super) weather: Weather,
    pub(super) connections: BTreeMap<usize, Connection>,
    pub(super) opened: usize,
    pub(super) mailboxes: Vec<Mailbox>,
    /// The tasks whose rlocks were killed, and which begin anew.
    pub(super) killed: Vec<usize>,
    pub(super) checkers: Checkers,
    pub(super) coverage: Coverage,
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
        let clocks: Vec<_> = (0..tasks).map(|_| Clock::random(&mut random)).collect();
        // The rlocks inside each other run on one machine.
        let mailboxes = (0..DEPTH).flat_map(|_| clocks.iter().copied().map(Mailbox::new));
        Self {
            mailboxes: mailboxes.collect(),
            killed: Vec::new(),
            server_clock: Clock::random(&mut random),
            clock_step: 0,
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
            coverage: Coverage::default(),
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

    pub(super) fn handle(&mut self, happening: Happening) {
        match happening {
            Happening::AtServer(connection, frame) => {
                self.arrivals.push_back((connection, frame));
                self.schedule_turn(self.now);
            }
            Happening::ServerTurn => self.server_turn(),
            Happening::AtClient(connection, frame) => self.at_client(connection, frame),
            Happening::ProcessEnds(task, part, ended) => self.part_ends(task, part, ended),
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
}
