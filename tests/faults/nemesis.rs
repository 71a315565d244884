//! The faults of processes and disks, and the loop that injects faults.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::stage::{Stage, Target};
use rlock_testkit::random::Random;

/// A fault that is injected, and repaired again before the next one.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Whether the promise covers the fault: conflicting commands must not overlap.
    pub(crate) covered: bool,
    /// Injects and repairs the fault. Returns whether there was a target.
    pub(crate) inject: fn(&Stage, &mut Random) -> bool,
}

/// Injects one fault after another until the scenario is over, with pauses of up to `pace`.
pub(crate) fn run(stage: &Stage, faults: &[Fault], pace: Duration, random: &mut Random) {
    while !stage.is_over() && !faults.is_empty() {
        std::thread::sleep(Duration::from_micros(random.below(pace.as_micros() as u64)));
        let fault = random.pick(faults);
        if (fault.inject)(stage, random) {
            stage.log_fault(fault.name);
        }
    }
}

/// Kills an rlock at any instant of its life. Its command dies with it.
pub(crate) const KILL_RLOCK: Fault =
    Fault { name: "rlock killed", covered: true, inject: |stage, random| kill(stage, random, Target::Rlock) };

/// Asks an rlock to end. Its command may run below a shell that dies first.
pub(crate) const TERMINATE_RLOCK: Fault = Fault {
    name: "rlock terminated",
    covered: true,
    inject: |stage, random| {
        let Some(victim) = stage.victim(Target::Rlock, random) else { return false };
        stage.signal(&victim, Signal::TERM, "terminated");
        true
    },
};

pub(crate) const KILL_COMMAND: Fault =
    Fault { name: "command killed", covered: true, inject: |stage, random| kill(stage, random, Target::Command) };

/// Kills a guardian, which rlock replaces.
pub(crate) const KILL_GUARDIAN: Fault =
    Fault { name: "guardian killed", covered: true, inject: |stage, random| kill(stage, random, Target::Guardian) };

/// Stops rlocks for less time than the grace.
pub(crate) const PAUSE_RLOCK: Fault = Fault {
    name: "rlock stopped for a moment",
    covered: true,
    inject: |stage, random| pause(stage, random, Target::Rlock, 10, 150),
};

/// Stops rlocks for up to two leases while their commands run on. Only rlock itself could end its
/// command.
pub(crate) const STOP_RLOCK: Fault = Fault {
    name: "rlock stopped",
    covered: false,
    inject: |stage, random| pause(stage, random, Target::Rlock, 200, 4000),
};

/// Stops rlocks of the embedded store, where a hold lives as long as its process, stopped or not.
pub(crate) const STOP_RLOCK_EMBEDDED: Fault =
    Fault { covered: true, inject: |stage, random| pause(stage, random, Target::Rlock, 10, 1000), ..STOP_RLOCK };

pub(crate) const STOP_COMMAND: Fault = Fault {
    name: "command stopped",
    covered: true,
    inject: |stage, random| pause(stage, random, Target::Command, 10, 1000),
};

/// Breaks a lock. Its rlock ends its command before others start theirs.
pub(crate) const BREAK: Fault =
    Fault { name: "lock broken", covered: true, inject: |stage, random| break_lock(stage, random, None) };

/// Breaks the lock of an rlock that is stopped for less time than the grace.
pub(crate) const BREAK_STOPPED: Fault = Fault {
    name: "lock of a stopped rlock broken",
    covered: true,
    inject: |stage, random| {
        let Some(victim) = stage.victim(Target::Rlock, random) else { return false };
        stage.signal(&victim, Signal::STOP, "stopped");
        let (mut its, run) = (random.branch(), &victim.run);
        thread::scope(|scope| {
            // The break waits if the rlock was stopped while it used the embedded store.
            let breaking = scope.spawn(move || break_lock(stage, &mut its, Some(run)));
            sleep_between(random, 10, 150);
            stage.signal(&victim, Signal::CONT, "continued");
            breaking.join().expect("the break ends")
        })
    },
};

/// Kills an rlock and breaks its lock, while the guardian ends its command.
pub(crate) const BREAK_KILLED: Fault = Fault {
    name: "lock of a killed rlock broken",
    covered: true,
    inject: |stage, random| {
        let Some(victim) = stage.victim(Target::Rlock, random) else { return false };
        stage.signal(&victim, Signal::KILL, "killed");
        break_lock(stage, random, Some(&victim.run))
    },
};

/// Breaks a lock of this run, or of any. Returns whether it was held.
fn break_lock(stage: &Stage, random: &mut Random, run: Option<&str>) -> bool {
    let listing = stage.site.listing();
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut holders = Vec::new();
    for resource in list(&listing) {
        let held =
            list(&resource["holders"]).into_iter().filter(|holder| run.is_none_or(|run| holder["owner"] == *run));
        holders.extend(held.map(|holder| [text(&resource["name"]), text(&holder["session"])]));
    }
    if holders.is_empty() {
        return false;
    }
    let [name, session] = random.pick(&holders);
    let wait = format!("--wait={}ms", random.below(100));
    let mut words = vec!["break", name, &wait];
    if random.once_in(2) {
        words.extend(["--session", session]);
    }
    let ran = stage.site.any_rlock().args(words).output().expect("rlock starts");
    // The hold may have ended before the break, and may outlast the wait.
    assert!(matches!(ran.status.code(), Some(0 | 1 | 75)), "{ran:?}");
    ran.status.code() != Some(1)
}

/// Fills the disk, so that new requests have no room.
pub(crate) const FULL_DISK: Fault = Fault {
    name: "disk full",
    covered: true,
    inject: |stage, random| {
        let Some(disk) = stage.site.disk() else { return false };
        let filler = disk.fill();
        sleep_between(random, 20, 300);
        std::fs::remove_file(filler).expect("the filler exists");
        true
    },
};

/// Stops up to three processes at once for some milliseconds.
fn pause(stage: &Stage, random: &mut Random, target: Target, least: u64, most: u64) -> bool {
    let count = 1 + random.below(3);
    let victims: Vec<_> = (0..count).filter_map(|_| stage.victim(target, random)).collect();
    victims.iter().for_each(|victim| stage.signal(victim, Signal::STOP, "stopped"));
    sleep_between(random, least, most);
    victims.iter().for_each(|victim| stage.signal(victim, Signal::CONT, "continued"));
    !victims.is_empty()
}

fn kill(stage: &Stage, random: &mut Random, target: Target) -> bool {
    let Some(victim) = stage.victim(target, random) else { return false };
    // The hold of an rlock lives on without the guardian, and until the command's tree is gone.
    let fault = match target {
        Target::Rlock => "killed",
        Target::Command => "command-killed",
        Target::Guardian => "guardian-killed",
    };
    stage.signal(&victim, Signal::KILL, fault);
    true
}

/// Sleeps for a random time, while a fault lasts.
pub(crate) fn sleep_between(random: &mut Random, least: u64, most: u64) {
    std::thread::sleep(Duration::from_millis(least + random.below(most - least)));
}
