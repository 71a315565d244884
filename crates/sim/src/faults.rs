//! The faults: what breaks, for how long, and whether the promise covers it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cluster::KINDS;
use super::location::{self, Servers};
use super::plan;
use super::random::Random;
use super::replication;
use super::world::{Happening, World};
use rustix::process::Signal as Kernel;

use rlock_supervise::event::Signal;

/// What the network does to each thing that is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// The longest additional delay.
    slow: Duration,
    /// One in so many commands cuts its connection; 0 stands for none, as below.
    pub(super) cuts: u64,
    /// One in so many replies is lost with its connection.
    pub(super) loses_replies: u64,
    /// One in so many new connections swallows everything.
    pub(super) swallows: u64,
    /// Whether new connections are refused.
    pub(super) refuses: bool,
    /// Whether the server has as many clients as it takes.
    pub(super) is_crowded: bool,
}

impl Weather {
    pub(super) fn strikes(&self, one_in: u64, random: &mut Random) -> bool {
        one_in > 0 && random.once_in(one_in)
    }

    /// How long something is on its way.
    pub(super) fn delay(&self, random: &mut Random) -> Duration {
        let slow = random.below(self.slow.as_micros() as u64 + 1);
        Duration::from_micros(30 + random.below(400) + random.below(slow + 1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    SlowNetwork,
    ConnectionsCut,
    AllConnectionsCut,
    HalfOpenConnections,
    ConnectionsClogged,
    NewConnectionsSwallow,
    RepliesLost,
    ConnectionsRefused,
    ClientsRefused,
    ServerStalled,
    ServerStopped,
    ServerOutOfMemory,
    ServerRestarted,
    ServerRestartedWithOldData,
    ServerRestartedEmpty,
    ClockSteppedForward,
    ClockSteppedBack,
    ScriptsFlushed,
    MonitorSubscribed,
    KeyLost,
    CrowdExpired,
    RlockTerminated,
    RlockKilled,
    RlockStopped,
    ReplicasLag,
    ReplicaCutOff,
    Failover,
    StaleSentinels,
    SlotMigrates,
    ClusterDown,
    LockBroken,
}

impl Fault {
    pub(super) const ALL: [Self; 31] = [
        Self::SlowNetwork,
        Self::ConnectionsCut,
        Self::AllConnectionsCut,
        Self::HalfOpenConnections,
        Self::ConnectionsClogged,
        Self::NewConnectionsSwallow,
        Self::RepliesLost,
        Self::ConnectionsRefused,
        Self::ClientsRefused,
        Self::ServerStalled,
        Self::ServerStopped,
        Self::ServerOutOfMemory,
        Self::ServerRestarted,
        Self::ServerRestartedWithOldData,
        Self::ServerRestartedEmpty,
        Self::ClockSteppedForward,
        Self::ClockSteppedBack,
        Self::ScriptsFlushed,
        Self::MonitorSubscribed,
        Self::KeyLost,
        Self::CrowdExpired,
        Self::RlockTerminated,
        Self::RlockKilled,
        Self::RlockStopped,
        Self::ReplicasLag,
        Self::ReplicaCutOff,
        Self::Failover,
        Self::StaleSentinels,
        Self::SlotMigrates,
        Self::ClusterDown,
        Self::LockBroken,
    ];

    /// Whether the fault can strike these servers.
    fn can_strike(self, servers: Servers) -> bool {
        match self {
            Self::ReplicasLag | Self::ReplicaCutOff | Self::Failover => servers.has_replicas(),
            Self::StaleSentinels => servers == Servers::Sentinels,
            Self::SlotMigrates | Self::ClusterDown => servers == Servers::Cluster,
            // Nobody can subscribe to all shard channels.
            Self::MonitorSubscribed => servers != Servers::Cluster,
            _ => true,
        }
    }

    /// Whether the promise covers the fault.
    fn is_covered(self) -> bool {
        !self.loses_data() && !matches!(self, Self::RlockStopped | Self::Failover | Self::LockBroken)
    }

    /// Whether all connections and processes live on, so that every session is released.
    fn is_mild(self) -> bool {
        matches!(
            self,
            Self::ScriptsFlushed
                | Self::MonitorSubscribed
                | Self::CrowdExpired
                | Self::RlockTerminated
                | Self::ReplicasLag
                | Self::ReplicaCutOff
                | Self::StaleSentinels
                | Self::LockBroken
        )
    }

    /// Whether every holder can renew its lease in time, though it may have to do so resource by
    /// resource, and can't release its lock at once.
    fn is_gentle(self) -> bool {
        self.is_mild() || self == Self::SlotMigrates
    }

    /// Whether a new connection reaches the server and stays as it is until the next fault.
    fn spares_new_connections(self) -> bool {
        self.is_gentle() || self == Self::HalfOpenConnections
    }

    /// Whether sessions may lose what the server has of them. A clock that steps forward ends their
    /// leases.
    fn loses_data(self) -> bool {
        matches!(
            self,
            Self::ServerRestartedWithOldData | Self::ServerRestartedEmpty | Self::KeyLost | Self::ClockSteppedForward
        )
    }
}

/// Chooses the faults of an episode: none in one of four episodes, and only covered ones in half of
/// the others. Sometimes one kind of trouble is common, and no other fault breaks connections.
pub(super) fn choose(random: &mut Random, servers: Servers) -> Vec<Fault> {
    let is_calm = random.once_in(4);
    let is_covered = random.once_in(2);
    let is_gentle = random.once_in(4);
    let rare = 1 + random.below(4);
    let mut faults = Fault::ALL.to_vec();
    let common = match servers {
        Servers::One => Fault::HalfOpenConnections,
        Servers::Replicated | Servers::Sentinels => Fault::ReplicaCutOff,
        Servers::Cluster => Fault::SlotMigrates,
    };
    let is_common = |fault| is_gentle && common == fault;
    let may_strike = |fault: Fault| !is_covered || fault.is_covered();
    let is_harmless = |fault: Fault| !is_gentle || fault == common || fault.is_gentle();
    faults.retain(|fault| !is_calm && fault.can_strike(servers) && may_strike(*fault) && is_harmless(*fault));
    faults.retain(|fault| random.once_in(rare) || is_common(*fault));
    faults
}

/// The faults of an episode, and how often each struck.
#[derive(Default)]
pub(super) struct Nemesis {
    faults: Vec<Fault>,
    pause: Duration,
    /// The number of faults that follow at once.
    burst: u64,
    pub(super) struck: BTreeMap<Fault, u64>,
}

/// The mean pause between the faults of a burst.
const BURST_PAUSE: Duration = Duration::from_millis(10);
/// The mean length of a calm phase, in which every lease of a dead session may end.
const CALM_PAUSE: Duration = Duration::from_secs(15);

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Nemesis {
    pub(super) fn new(mut faults: Vec<Fault>, servers: Servers, random: &mut Random) -> Self {
        faults.retain(|fault| fault.can_strike(servers));
        Self { faults, pause: MS(*random.pick(&[50, 300, 1000, 4000])), burst: 0, struck: BTreeMap::new() }
    }

    /// Whether every holder can renew its lease in time.
    pub(super) fn is_gentle(&self) -> bool {
        self.faults.iter().all(|fault| fault.is_gentle())
    }

    /// Whether the server hears of the end of every session, so that it keeps none.
    pub(super) fn is_mild(&self) -> bool {
        self.faults.iter().all(|fault| fault.is_mild())
    }

    /// Whether a new connection reaches the server and stays as it is until the next fault.
    pub(super) fn spares_new_connections(&self) -> bool {
        self.faults.iter().all(|fault| fault.spares_new_connections())
    }

    pub(super) fn is_calm(&self) -> bool {
        self.faults.is_empty()
    }

    /// When the next fault strikes. Some come in bursts, and some phases are calm.
    pub(super) fn schedule(&mut self, world: &mut World) {
        let pause = match (&mut self.burst, world.random.below(20)) {
            (burst @ 1.., _) => {
                *burst -= 1;
                BURST_PAUSE
            }
            (burst, 0 | 1) => {
                *burst = 1 + world.random.below(6);
                self.pause
            }
            (_, 2) => CALM_PAUSE,
            _ => self.pause,
        };
        let at = world.now + world.between(Duration::ZERO, 2 * pause);
        if at < world.closes && !self.is_calm() {
            world.at(at, Happening::Strike);
        }
    }

    /// Strikes; returns the task whose rlock is killed.
    pub(super) fn strike(&mut self, world: &mut World) -> Option<usize> {
        self.schedule(world);
        let fault = *world.random.pick(&self.faults);
        *self.struck.entry(fault).or_default() += 1;
        world.note(|| format!("fault: {fault:?}"));
        world.checkers.disturb(world.now);
        if fault.loses_data() {
            world.checkers.lose_data(world.now);
        }
        // Few inner rlocks run at a time.
        let tasks = if world.random.once_in(4) { world.mailboxes.len() } else { world.clients() };
        let task = world.random.below(tasks as u64) as usize;
        let lasts = match fault {
            Fault::SlowNetwork => {
                world.weather.slow = MS(*world.random.pick(&[20, 200, 1000, 4000]));
                MS(4000)
            }
            Fault::ConnectionsCut => {
                world.weather.cuts = 2 + world.random.below(30);
                MS(3000)
            }
            Fault::AllConnectionsCut => {
                let ids: Vec<_> = world.connections.keys().copied().collect();
                ids.into_iter().for_each(|id| world.cut(id));
                Duration::ZERO
            }
            Fault::HalfOpenConnections => {
                let one_in = 1 + world.random.below(4);
                let World { connections, random, .. } = world;
                for connection in connections.values_mut() {
                    if random.once_in(one_in) {
                        connection.fall_silent(random);
                    }
                }
                Duration::ZERO
            }
            Fault::ConnectionsClogged => {
                let one_in = 1 + world.random.below(4);
                let World { connections, random, now, checkers, .. } = world;
                for connection in connections.values_mut() {
                    if random.once_in(one_in) {
                        checkers.disturb(connection.clog(*now, random));
                    }
                }
                Duration::ZERO
            }
            Fault::NewConnectionsSwallow => {
                world.weather.swallows = 1 + world.random.below(4);
                MS(3000)
            }
            Fault::RepliesLost => {
                world.weather.loses_replies = 2 + world.random.below(20);
                MS(3000)
            }
            Fault::ConnectionsRefused => {
                world.weather.refuses = true;
                MS(2000)
            }
            Fault::ClientsRefused => {
                world.weather.is_crowded = true;
                MS(2000)
            }
            Fault::ServerOutOfMemory => {
                let victim = world.victim();
                world.nodes[victim].server.is_full = true;
                MS(2000)
            }
            Fault::ClockSteppedForward => {
                let step = world.random.below(8_000_000);
                world.step_clock(step as i64);
                Duration::ZERO
            }
            Fault::ClockSteppedBack => {
                let step = world.random.below(5_000_000);
                world.step_clock(-(step as i64));
                world.checkers.go_back(Duration::from_micros(step), world.now);
                Duration::ZERO
            }
            Fault::MonitorSubscribed => {
                let may_count = world.random.once_in(2);
                for node in &mut world.nodes {
                    (node.server.has_monitor, node.server.may_count) = (true, may_count);
                }
                MS(8000)
            }
            Fault::ServerStalled => {
                let victim = world.victim();
                world.nodes[victim].stalled_until = world.now + world.between(Duration::ZERO, MS(4000));
                MS(4000)
            }
            Fault::ServerStopped => {
                let (victim, until) = (world.victim(), world.now + world.between(MS(4000), MS(20_000)));
                world.nodes[victim].stalled_until = until;
                world.checkers.disturb(until);
                Duration::ZERO
            }
            Fault::ServerRestarted | Fault::ServerRestartedWithOldData | Fault::ServerRestartedEmpty => {
                let until = world.now + world.between(Duration::ZERO, MS(1500));
                let victim = world.victim();
                world.stop_node(victim, until);
                match fault {
                    Fault::ServerRestartedWithOldData => {
                        let age = world.random.below(10) as usize;
                        let before = world.holders(world.primary);
                        world.primary().server.return_to_snapshot(age);
                        let after = world.holders(world.primary);
                        world.checkers.give_back(&before, &after);
                    }
                    Fault::ServerRestartedEmpty => world.primary().server.lose_all(),
                    _ => {}
                }
                world.attach_all();
                MS(1500)
            }
            Fault::ScriptsFlushed => {
                let victim = world.victim();
                world.nodes[victim].server.forget_scripts();
                Duration::ZERO
            }
            Fault::KeyLost => {
                let name = plan::resource(world.random.below(world.resources));
                let now = world.server_time();
                let kind = world.random.below(KINDS as u64) as usize;
                let also = world.primary().server.lose_key(&name, kind, now);
                world.replicate(world.primary, None);
                world.check_grants(&also);
                world.publish(also.messages);
                Duration::ZERO
            }
            Fault::CrowdExpired => {
                let victim = world.victim();
                world.nodes[victim].server.crowd = 1 + world.random.below(60) as u32;
                Duration::ZERO
            }
            Fault::RlockTerminated => {
                let others = [Signal::Int, Signal::Hup, Signal::Usr1, Signal::Foreign(Kernel::ALARM.as_raw())];
                let signal = if world.random.once_in(2) { Signal::Term } else { *world.random.pick(&others) };
                world.signal_rlock(task, signal);
                Duration::ZERO
            }
            Fault::RlockKilled => return Some(task),
            Fault::RlockStopped => {
                world.stop(task);
                let until = world.now + world.between(Duration::ZERO, MS(12_000));
                world.at(until, Happening::Continue(task));
                Duration::ZERO
            }
            Fault::ReplicasLag => {
                world.replication.lag = MS(*world.random.pick(&[20, 200, 2000]));
                MS(4000)
            }
            Fault::ReplicaCutOff => {
                let World { replication, random, .. } = world;
                replication.cut_off_one(random);
                MS(4000)
            }
            Fault::Failover => world.fail_over(),
            Fault::SlotMigrates => {
                world.migrate_slot();
                Duration::ZERO
            }
            Fault::ClusterDown => {
                world.set_cluster_down(true);
                MS(2000)
            }
            Fault::LockBroken => {
                world.to_break += 1;
                Duration::ZERO
            }
            Fault::StaleSentinels => {
                world.location.notice_within = MS(5000);
                MS(10_000)
            }
        };
        let until = world.now + world.between(lasts / 10, lasts);
        world.at(until, Happening::Repair(fault));
        None
    }
}

/// Ends a fault.
pub(super) fn repair(fault: Fault, world: &mut World) {
    world.checkers.disturb(world.now);
    match fault {
        Fault::SlowNetwork => world.weather.slow = Duration::ZERO,
        Fault::ConnectionsCut => world.weather.cuts = 0,
        Fault::NewConnectionsSwallow => world.weather.swallows = 0,
        Fault::RepliesLost => world.weather.loses_replies = 0,
        Fault::ConnectionsRefused => world.weather.refuses = false,
        Fault::ClientsRefused => world.weather.is_crowded = false,
        Fault::ServerOutOfMemory => world.nodes.iter_mut().for_each(|node| node.server.is_full = false),
        Fault::MonitorSubscribed => world.nodes.iter_mut().for_each(|node| node.server.has_monitor = false),
        Fault::ReplicasLag => world.replication.lag = replication::LAG,
        Fault::ReplicaCutOff => world.connect_replicas(),
        Fault::ClusterDown => world.set_cluster_down(false),
        Fault::StaleSentinels => world.location.notice_within = location::NOTICE_WITHIN,
        _ => {}
    }
}
