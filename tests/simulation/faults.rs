//! The faults: what breaks, for how long, and whether the promise covers it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::plan;
use super::random::Random;
use super::world::{Happening, World};
use crate::supervise::event::Signal;

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
    NewConnectionsSwallow,
    RepliesLost,
    ConnectionsRefused,
    ClientsRefused,
    ServerStalled,
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
}

impl Fault {
    pub(super) const ALL: [Self; 22] = [
        Self::SlowNetwork,
        Self::ConnectionsCut,
        Self::AllConnectionsCut,
        Self::HalfOpenConnections,
        Self::NewConnectionsSwallow,
        Self::RepliesLost,
        Self::ConnectionsRefused,
        Self::ClientsRefused,
        Self::ServerStalled,
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
    ];

    /// Whether the promise covers the fault.
    fn is_covered(self) -> bool {
        !self.loses_data() && self != Self::RlockStopped
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
/// the others.
pub(super) fn choose(random: &mut Random) -> Vec<Fault> {
    let is_calm = random.once_in(4);
    let is_covered = random.once_in(2);
    let rare = 1 + random.below(4);
    let mut faults = Fault::ALL.to_vec();
    faults.retain(|fault| !is_calm && (!is_covered || fault.is_covered()) && random.once_in(rare));
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
    pub(super) fn new(faults: Vec<Fault>, random: &mut Random) -> Self {
        Self { faults, pause: MS(*random.pick(&[50, 300, 1000, 4000])), burst: 0, struck: BTreeMap::new() }
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
                world.server.is_full = true;
                MS(2000)
            }
            Fault::ClockSteppedForward => {
                world.clock_step += world.random.below(8_000_000) as i64;
                Duration::ZERO
            }
            Fault::ClockSteppedBack => {
                let step = world.random.below(5_000_000);
                world.clock_step -= step as i64;
                world.checkers.go_back(Duration::from_micros(step), world.now);
                Duration::ZERO
            }
            Fault::MonitorSubscribed => {
                world.server.has_monitor = true;
                world.server.may_count = world.random.once_in(2);
                MS(8000)
            }
            Fault::ServerStalled => {
                world.stalled_until = world.now + world.between(Duration::ZERO, MS(4000));
                MS(4000)
            }
            Fault::ServerRestarted | Fault::ServerRestartedWithOldData | Fault::ServerRestartedEmpty => {
                world.stop_server();
                match fault {
                    Fault::ServerRestartedWithOldData => {
                        let age = world.random.below(10) as usize;
                        world.server.return_to_snapshot(age);
                    }
                    Fault::ServerRestartedEmpty => world.server.lose_all(),
                    _ => {}
                }
                MS(1500)
            }
            Fault::ScriptsFlushed => {
                world.server.forget_scripts();
                Duration::ZERO
            }
            Fault::KeyLost => {
                let name = plan::resource(world.random.below(world.resources));
                let messages = world.server.lose_key(&name, world.server_time());
                world.publish(messages);
                Duration::ZERO
            }
            Fault::CrowdExpired => {
                world.server.crowd = 1 + world.random.below(60) as u32;
                Duration::ZERO
            }
            Fault::RlockTerminated => {
                world.signal_rlock(task, Signal::Term);
                Duration::ZERO
            }
            Fault::RlockKilled => return Some(task),
            Fault::RlockStopped => {
                world.stop(task);
                let until = world.now + world.between(Duration::ZERO, MS(12_000));
                world.at(until, Happening::Continue(task));
                Duration::ZERO
            }
        };
        let until = world.now + world.between(lasts / 10, lasts);
        world.at(until, Happening::Mend(fault));
        None
    }
}

/// Ends a fault.
pub(super) fn mend(fault: Fault, world: &mut World) {
    world.checkers.disturb(world.now);
    match fault {
        Fault::SlowNetwork => world.weather.slow = Duration::ZERO,
        Fault::ConnectionsCut => world.weather.cuts = 0,
        Fault::NewConnectionsSwallow => world.weather.swallows = 0,
        Fault::RepliesLost => world.weather.loses_replies = 0,
        Fault::ConnectionsRefused => world.weather.refuses = false,
        Fault::ClientsRefused => world.weather.is_crowded = false,
        Fault::ServerOutOfMemory => world.server.is_full = false,
        Fault::MonitorSubscribed => world.server.has_monitor = false,
        Fault::ServerRestarted | Fault::ServerRestartedWithOldData | Fault::ServerRestartedEmpty => {
            world.is_down = false;
        }
        _ => {}
    }
}
