//! The world: virtual time and the queue of events, with the state of all that happens in it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::checkers::Checkers;
use super::clocks::Clock;
use super::cluster::Cluster;
use super::coverage::Coverage;
use super::database::Database;
use super::faults::{Fault, Weather};
use super::location::{Location, Servers};
use super::network::{Connection, ToClient, ToServer};
use super::nodes::Node;
use super::plan::DEPTH;
use super::processes::{Mailbox, Process};
use super::random::Random;
use super::replication::{self, Replication};
use super::tree::Part;
use rlock_model::request::SessionId;
use rlock_redis::interface::Seek;
use rlock_supervise::event::Ended;
use rlock_testkit::servers::Kind;

/// The world, which all tasks share.
pub(super) type Shared = Rc<RefCell<World>>;

/// What happens at an instant.
pub(super) enum Happening {
    /// A task goes on.
    Wake(usize),
    /// Something arrives at a node over a connection.
    AtNode(usize, usize, ToServer),
    /// A node takes the next thing that has arrived.
    Turn(usize),
    /// The lookup of the node of a connection ends.
    Lookup(usize, Seek),
    /// The Sentinels have told a client that is connected to a node which one is the primary.
    Checked(usize, usize),
    /// A Sentinel notices the new primary.
    Noticed {
        sentinel: usize,
        node: usize,
        failover: u64,
    },
    Replication(replication::Event),
    /// The next key of a slot migrates.
    Migrates(usize),
    /// Something arrives at a client.
    AtClient(usize, ToClient),
    /// The process of a run in a task ends, or one around it.
    ProcessEnds(usize, Part, Ended),
    /// The rlock of a task, which was stopped, is continued.
    Continue(usize),
    /// The next fault strikes.
    Strike,
    /// A fault is over.
    Repair(Fault),
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
    pub(super) nodes: Vec<Node>,
    /// The node that has the data.
    pub(super) primary: usize,
    pub(super) replication: Replication,
    pub(super) location: Location,
    pub(super) cluster: Option<Cluster>,
    pub(super) weather: Weather,
    pub(super) connections: BTreeMap<usize, Connection>,
    pub(super) opened: usize,
    pub(super) mailboxes: Vec<Mailbox>,
    /// The tasks whose rlocks were killed, and which begin anew.
    pub(super) killed: Vec<usize>,
    /// The processes that run, by their runs.
    pub(super) processes: BTreeMap<usize, Process>,
    /// How many tasks are going to break a lock before their next session.
    pub(super) to_break: u64,
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
    /// Whether most commands lock other resources inside, in any order.
    pub(super) crosses: bool,
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
    /// `scripts` is the real server behind the simulated ones, if there is one.
    pub(super) fn new(
        mut random: Random,
        tasks: usize,
        servers: Servers,
        scripts: Option<Kind>,
        closes: Duration,
    ) -> Self {
        let clocks: Vec<_> = (0..tasks).map(|_| Clock::random(&mut random)).collect();
        // The rlocks inside each other run on one machine.
        let mailboxes = (0..DEPTH).flat_map(|_| clocks.iter().copied().map(Mailbox::new)).collect();
        let nodes = servers.count();
        let cluster = (servers == Servers::Cluster).then(|| Cluster::new(nodes, random.once_in(2)));
        let clock = Clock::random(&mut random);
        let clock_of = |random: &mut Random| if cluster.is_some() { clock } else { Clock::random(random) };
        let is_replica = |node| node > 0 && cluster.is_none();
        let mut world = Self {
            mailboxes,
            killed: Vec::new(),
            processes: BTreeMap::new(),
            to_break: 0,
            nodes: (0..nodes).map(|node| Node::new(clock_of(&mut random), is_replica(node))).collect(),
            primary: 0,
            replication: Replication::default(),
            location: Location::new(servers),
            cluster,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            events: 0,
            at_this_instant: 0,
            random,
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
            crosses: false,
        };
        world.replication.lag = replication::LAG;
        world.nodes[0].server.data.database = scripts.map(Database::first);
        if world.has_replicas() {
            (1..nodes).for_each(|node| world.attach(node));
        }
        world
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
            Happening::AtNode(node, connection, frame) => self.at_node(node, connection, frame),
            Happening::Turn(node) => self.turn(node),
            Happening::Lookup(connection, seek) => self.look_up(connection, &seek),
            Happening::Checked(connection, primary) => self.leave_unless_primary(connection, primary),
            Happening::Noticed { sentinel, failover, node } => self.notice(sentinel, failover, node),
            Happening::Migrates(slot) => self.move_key(slot),
            Happening::Replication(event) => self.on_replication(event),
            Happening::AtClient(connection, frame) => self.at_client(connection, frame),
            Happening::ProcessEnds(task, part, ended) => self.part_ends(task, part, ended),
            Happening::Continue(task) => {
                self.mailboxes[task].is_stopped = false;
                self.wake(task, self.now);
            }
            Happening::Snapshot if self.now < self.closes => {
                self.primary().server.take_snapshot();
                self.at(self.now + SNAPSHOT_EVERY, Happening::Snapshot);
            }
            Happening::Snapshot => {}
            Happening::Wake(_) | Happening::Strike | Happening::Repair(_) => unreachable!("others handle these"),
        }
    }

    /// Whether no further session begins.
    pub(super) fn is_closed(&self) -> bool {
        self.now >= self.closes
    }

    pub(super) fn random_pause(&mut self) -> Duration {
        self.between(PAUSES[0], PAUSES[1])
    }

    /// An id that is a long number, as the random ids of rlock are.
    pub(super) fn next_session(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId((1 << 127 | u128::from(self.sessions)).to_be_bytes())
    }
}
