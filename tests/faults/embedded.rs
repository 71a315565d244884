//! The embedded store: nothing that happens to processes makes commands overlap, and nobody waits
//! for the dead.

use std::time::Duration;

use super::nemesis::{FULL_DISK, KILL_COMMAND, KILL_GUARDIAN, KILL_RLOCK, STOP_COMMAND, STOP_RLOCK_AT_HOME};
use super::scenario::Scenario;
use super::site::Site;
use super::workloads::Workload::{self, Many, Mutex};

const EMBEDDED: Scenario = Scenario {
    name: "",
    site: Site::embedded,
    workloads: &Workload::ALL,
    long: false,
    tag: "",
    runs: 12,
    faults: &[],
    pace: Duration::from_millis(60),
    fifo: true,
    codes: &[],
    // No lease at all, but who is stopped is waited for.
    lease: Duration::from_secs(1),
    idle: Some(Duration::from_secs(2)),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "embedded_kill_storm",
        faults: &[KILL_RLOCK, KILL_RLOCK, KILL_COMMAND, KILL_GUARDIAN],
        pace: Duration::from_millis(20),
        ..EMBEDDED
    },
    Scenario { name: "embedded_stops", faults: &[STOP_RLOCK_AT_HOME, STOP_COMMAND, KILL_RLOCK], runs: 16, ..EMBEDDED },
    Scenario {
        name: "embedded_full_disk",
        site: Site::on_disk,
        workloads: &[Mutex, Many],
        runs: 8,
        faults: &[FULL_DISK],
        pace: Duration::from_millis(500),
        codes: &[69],
        ..EMBEDDED
    },
];
