//! The scenarios of the embedded store. No fault of a process makes commands overlap, and no waiter
//! waits for a dead session.

use std::time::Duration;

use super::nemesis::{
    BREAK, BREAK_KILLED, BREAK_STOPPED, FULL_DISK, KILL_COMMAND, KILL_GUARDIAN, KILL_RLOCK, STOP_COMMAND,
    STOP_RLOCK_EMBEDDED, TERMINATE_RLOCK,
};
use super::scenario::Scenario;
use super::served::{CUT_CLIENT, KILL_CLIENT, KILL_SERVE, STOP_CLIENT_EMBEDDED};
use super::site::Site;
use super::workloads::Workload::{self, Crossing, Many, Mutex};

const EMBEDDED: Scenario = Scenario {
    name: "",
    site: Site::embedded,
    workloads: &Workload::ALL,
    long: false,
    tag: "",
    runs: 12,
    servers: 0,
    clients: 0,
    faults: &[],
    pace: Duration::from_millis(60),
    fifo: true,
    codes: &[],
    forgets: false,
    // The embedded store has no leases, but waiters wait for a stopped holder.
    lease: Duration::from_secs(1),
    idle: Some(Duration::from_secs(2)),
};

/// An operator has broken the lock.
pub(super) const BROKEN: &[i32] = &[76];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "embedded_kill_storm",
        faults: &[KILL_RLOCK, KILL_RLOCK, KILL_COMMAND, KILL_GUARDIAN],
        pace: Duration::from_millis(20),
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_rlocks_terminated",
        faults: &[TERMINATE_RLOCK, TERMINATE_RLOCK, KILL_COMMAND, KILL_RLOCK],
        pace: Duration::from_millis(30),
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_rlocks_and_commands_stopped",
        faults: &[STOP_RLOCK_EMBEDDED, STOP_COMMAND, KILL_RLOCK],
        runs: 16,
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_locks_broken",
        faults: &[BREAK, BREAK, BREAK, BREAK_STOPPED, BREAK_KILLED, KILL_COMMAND],
        pace: Duration::from_millis(30),
        // A waiter whose grant was taken back may be passed over.
        fifo: false,
        codes: BROKEN,
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_locks_of_clients_broken",
        workloads: &Workload::OF_CLIENTS,
        runs: 6,
        servers: 2,
        clients: 12,
        faults: &[BREAK, BREAK, KILL_CLIENT, CUT_CLIENT],
        fifo: false,
        codes: BROKEN,
        lease: Duration::ZERO,
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_full_disk",
        site: Site::on_disk,
        workloads: &[Mutex, Many],
        runs: 8,
        faults: &[FULL_DISK],
        pace: Duration::from_millis(500),
        codes: &[69],
        forgets: true,
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_cycles_and_rlocks_killed_and_stopped",
        workloads: &[Crossing],
        runs: 8,
        faults: &[KILL_RLOCK, KILL_COMMAND, STOP_RLOCK_EMBEDDED],
        pace: Duration::from_millis(800),
        ..EMBEDDED
    },
    Scenario {
        name: "embedded_serve_and_its_clients_killed",
        workloads: &Workload::OF_CLIENTS,
        runs: 6,
        servers: 2,
        clients: 12,
        faults: &[KILL_SERVE, KILL_CLIENT, CUT_CLIENT, STOP_CLIENT_EMBEDDED, KILL_RLOCK, KILL_COMMAND],
        pace: Duration::from_millis(150),
        // A client does not learn when it is queued.
        fifo: false,
        // What a dead server held is free at once.
        lease: Duration::ZERO,
        ..EMBEDDED
    },
];
