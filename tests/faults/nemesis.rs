//! What is broken, and whether the promise covers it.

use std::time::Duration;

use rustix::process::Signal;

use super::stage::{Stage, Wanted};
use super::support::random::Random;

/// Something that is broken, and mended again before the next is.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Whether commands that conflict must not overlap even so.
    pub(crate) covered: bool,
    pub(crate) inject: fn(&Stage, &mut Random) -> bool,
}

/// Breaks one thing after the other until the scenario is over, with pauses of up to `pace` in
/// between.
pub(crate) fn haunt(stage: &Stage, faults: &[Fault], pace: Duration, random: &mut Random) {
    while !stage.is_over() && !faults.is_empty() {
        std::thread::sleep(Duration::from_micros(random.below(pace.as_micros() as u64)));
        let fault = random.pick(faults);
        if (fault.inject)(stage, random) {
            stage.note(fault.name);
        }
    }
}

/// kill -9 of an rlock, at any instant of its life: its command dies with it.
pub(crate) const KILL_RLOCK: Fault =
    Fault { name: "rlock killed", covered: true, inject: |stage, random| kill(stage, random, Wanted::Rlock) };

/// kill -9 of a command.
pub(crate) const KILL_COMMAND: Fault =
    Fault { name: "command killed", covered: true, inject: |stage, random| kill(stage, random, Wanted::Command) };

/// kill -9 of a guardian, which rlock replaces.
pub(crate) const KILL_GUARDIAN: Fault =
    Fault { name: "guardian killed", covered: true, inject: |stage, random| kill(stage, random, Wanted::Guardian) };

/// An rlock does nothing for less time than its command has to end in.
pub(crate) const PAUSE_RLOCK: Fault = Fault {
    name: "rlock stopped for a moment",
    covered: true,
    inject: |stage, random| pause(stage, random, Wanted::Rlock, 10, 150),
};

/// An rlock does nothing for up to two leases while its command goes on: nobody can keep that one
/// from running on.
pub(crate) const STOP_RLOCK: Fault = Fault {
    name: "rlock stopped",
    covered: false,
    inject: |stage, random| pause(stage, random, Wanted::Rlock, 200, 4000),
};

/// The same where a hold lives as long as its process, stopped or not.
pub(crate) const STOP_RLOCK_AT_HOME: Fault =
    Fault { covered: true, inject: |stage, random| pause(stage, random, Wanted::Rlock, 10, 1000), ..STOP_RLOCK };

/// A command does nothing for a while.
pub(crate) const STOP_COMMAND: Fault = Fault {
    name: "command stopped",
    covered: true,
    inject: |stage, random| pause(stage, random, Wanted::Command, 10, 1000),
};

/// A disk without room for anybody who comes.
pub(crate) const FULL_DISK: Fault = Fault {
    name: "disk full",
    covered: true,
    inject: |stage, random| {
        let Some(disk) = stage.site.disk() else { return false };
        let filler = disk.fill();
        last(random, 20, 300);
        std::fs::remove_file(filler).expect("it is there");
        true
    },
};

/// Stops a few at once, for some milliseconds.
fn pause(stage: &Stage, random: &mut Random, wanted: Wanted, least: u64, most: u64) -> bool {
    let few = 1 + random.below(3);
    let victims: Vec<_> = (0..few).filter_map(|_| stage.victim(wanted, random)).collect();
    victims.iter().for_each(|victim| stage.signal(victim, Signal::STOP, "stopped"));
    last(random, least, most);
    victims.iter().for_each(|victim| stage.signal(victim, Signal::CONT, "continued"));
    !victims.is_empty()
}

fn kill(stage: &Stage, random: &mut Random, wanted: Wanted) -> bool {
    let Some(victim) = stage.victim(wanted, random) else { return false };
    stage.signal(&victim, Signal::KILL, "killed");
    true
}

/// Lets what is broken stay so for a while, of a chance length.
pub(crate) fn last(random: &mut Random, least: u64, most: u64) {
    std::thread::sleep(Duration::from_millis(least + random.below(most - least)));
}
