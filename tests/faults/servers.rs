//! The scenarios with servers. Leases last 2 s, so that several of them fit into a scenario.

use std::time::Duration;

use super::command::TTL;
use super::embedded::BROKEN;
use super::nemesis::{
    BREAK, BREAK_KILLED, BREAK_STOPPED, KILL_COMMAND, KILL_RLOCK, PAUSE_RLOCK, STOP_COMMAND, STOP_RLOCK,
    TERMINATE_RLOCK,
};
use super::scenario::Scenario;
use super::served::{CUT_CLIENT, KILL_CLIENT, KILL_SERVE, PAUSE_CLIENT};
use super::server_faults::{
    BLACK_HOLE, BUSY_SCRIPT, CUT, DELAY, END_BACKENDS, EXPIRE_MANY, FAIL_OVER, FILL_MEMORY, FLOOD, FLUSH,
    FLUSH_SCRIPTS, KILL_CLIENTS, KILL_SERVER, KILL_SERVER_FSYNC_EVERYSEC, KILL_SERVER_WITHOUT_PERSISTENCE, LOSE_KEY,
    LOSE_REPLIES, LOSE_REQUESTS, MIGRATE, NEIGHBOUR, PAUSE_CLIENTS, POSTGRES_NEIGHBOUR, REFUSE, SILENCE, STEP_CLOCK,
    STOP_POSTGRES, STOP_SERVER, TAG,
};
use super::site::Site;
use super::workloads::Workload;
use rlock_testkit::servers::{Kind, Setup};

const ON_SERVER: Scenario = Scenario {
    name: "",
    site: || Site::on_server(Setup::new(Kind::Redis7)),
    workloads: &Workload::ALL,
    long: true,
    tag: "",
    runs: 12,
    servers: 0,
    clients: 0,
    faults: &[],
    pace: Duration::from_millis(600),
    fifo: false,
    codes: &[],
    forgets: false,
    lease: TTL,
    // A claim lease of at most a lease, a second, and 2 s for the start of processes.
    idle: Some(Duration::from_secs(2 + 1 + 2)),
};

/// The longest fault, then the timeout of a connection that the fault has silenced, and then
/// [`ON_SERVER`]'s limit.
const MAX_RECOVERY: Option<Duration> = Some(Duration::from_secs(4 + 5 + 2 + 1 + 2));

/// The store cannot be reached, or the lease was lost.
const UNAVAILABLE_OR_LOST: &[i32] = &[69, 76];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        // A hand-over whose message is missing takes a second, until the next heartbeat of the
        // waiter.
        name: "no_faults",
        fifo: true,
        idle: Some(Duration::from_millis(800)),
        ..ON_SERVER
    },
    Scenario {
        name: "rlocks_killed",
        faults: &[KILL_RLOCK, KILL_RLOCK, KILL_COMMAND],
        pace: Duration::from_millis(300),
        fifo: true,
        ..ON_SERVER
    },
    Scenario {
        name: "rlocks_terminated",
        faults: &[TERMINATE_RLOCK, TERMINATE_RLOCK, KILL_COMMAND],
        pace: Duration::from_millis(100),
        fifo: true,
        ..ON_SERVER
    },
    Scenario {
        name: "locks_broken",
        faults: &[BREAK, BREAK, BREAK, BREAK_STOPPED, BREAK_KILLED, KILL_COMMAND],
        pace: Duration::from_millis(60),
        codes: BROKEN,
        ..ON_SERVER
    },
    Scenario {
        name: "locks_of_clients_broken",
        workloads: &Workload::OF_CLIENTS,
        runs: 6,
        servers: 2,
        clients: 12,
        faults: &[BREAK, BREAK, KILL_CLIENT, CUT_CLIENT],
        pace: Duration::from_millis(100),
        codes: BROKEN,
        ..ON_SERVER
    },
    Scenario {
        name: "rlocks_stopped_shorter_than_the_grace",
        site: || Site::on_server(Setup::new(Kind::Redis6).tcp()),
        faults: &[PAUSE_RLOCK, STOP_COMMAND],
        fifo: true,
        pace: Duration::from_millis(100),
        ..ON_SERVER
    },
    Scenario {
        name: "rlocks_stopped_beyond_their_leases",
        site: || Site::on_server(Setup::new(Kind::Valkey9)),
        faults: &[STOP_RLOCK],
        fifo: true,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "server_stopped",
        site: || Site::on_server(Setup::new(Kind::Redis8)),
        faults: &[STOP_SERVER],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "server_killed_with_fsync_always",
        site: || persistent(Kind::Valkey9, "always"),
        faults: &[KILL_SERVER],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "server_killed_with_fsync_everysec",
        site: || persistent(Kind::Redis7, "everysec"),
        faults: &[KILL_SERVER_FSYNC_EVERYSEC],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "server_killed_without_persistence",
        faults: &[KILL_SERVER_WITHOUT_PERSISTENCE],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "network_lossy",
        site: || Site::behind_proxy(Kind::Redis7),
        faults: &[CUT, LOSE_REPLIES, LOSE_REPLIES, LOSE_REQUESTS, REFUSE],
        pace: Duration::from_millis(100),
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "network_slow_or_silent",
        site: || Site::behind_proxy(Kind::Redis8),
        faults: &[DELAY, BLACK_HOLE],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "connections_silent_or_flooded",
        site: || Site::behind_proxy(Kind::Valkey9),
        faults: &[SILENCE, FLOOD],
        codes: UNAVAILABLE_OR_LOST,
        // The next fault may hit the connection that a waiter opened because of the previous one.
        idle: Some(Duration::from_secs(2 * 14)),
        ..ON_SERVER
    },
    Scenario {
        name: "clients_killed_and_paused",
        site: || Site::on_server(Setup::new(Kind::Redis6).tcp()),
        faults: &[KILL_CLIENTS, KILL_CLIENTS, PAUSE_CLIENTS, FLUSH_SCRIPTS],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "server_flushed",
        site: || Site::on_server(Setup::new(Kind::Redis8)),
        faults: &[FLUSH, FLUSH_SCRIPTS],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "crowds_expired_on_a_lossy_network",
        site: || Site::behind_proxy(Kind::Valkey9),
        faults: &[EXPIRE_MANY, LOSE_REPLIES, BLACK_HOLE],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        // The sessions of a crowd push out all other entries.
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "keys_deleted",
        faults: &[LOSE_KEY],
        pace: Duration::from_millis(300),
        codes: &[76],
        idle: MAX_RECOVERY,
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "server_out_of_memory",
        faults: &[FILL_MEMORY],
        codes: &[69],
        forgets: true,
        fifo: true,
        ..ON_SERVER
    },
    Scenario {
        name: "noisy_neighbour",
        site: || Site::on_server(Setup::new(Kind::Redis8)),
        faults: &[NEIGHBOUR],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "scripts_of_a_neighbour_beyond_their_limit",
        site: || Site::on_server(Setup::new(Kind::Redis7).options(&["--lua-time-limit", "50"])),
        faults: &[BUSY_SCRIPT],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "postgres_noisy_neighbour",
        site: Site::on_postgres,
        runs: 8,
        faults: &[POSTGRES_NEIGHBOUR],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "postgres_and_rlocks_stopped_and_killed",
        site: Site::on_postgres,
        runs: 8,
        faults: &[STOP_POSTGRES, END_BACKENDS, PAUSE_RLOCK, KILL_RLOCK],
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "failover_to_a_replica_that_lags",
        site: || Site::on_sentinels(Kind::Redis7),
        faults: &[FAIL_OVER],
        codes: UNAVAILABLE_OR_LOST,
        // On a busy machine a failover by the Sentinels may take half a minute.
        idle: None,
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "slot_migrated",
        site: || Site::on_cluster(Kind::Valkey9),
        tag: TAG,
        faults: &[MIGRATE],
        codes: &[69],
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "clock_stepped",
        site: || Site::with_clock(Kind::Valkey9),
        faults: &[STEP_CLOCK],
        codes: UNAVAILABLE_OR_LOST,
        idle: None,
        forgets: true,
        ..ON_SERVER
    },
    Scenario {
        name: "cycles_and_rlocks_killed_and_paused",
        workloads: &[Workload::Crossing],
        long: false,
        runs: 8,
        faults: &[KILL_RLOCK, KILL_COMMAND, PAUSE_RLOCK],
        pace: Duration::from_millis(800),
        ..ON_SERVER
    },
    Scenario {
        name: "cycles_and_server_killed",
        site: || persistent(Kind::Valkey9, "always"),
        workloads: &[Workload::Crossing],
        long: false,
        runs: 8,
        faults: &[KILL_RLOCK, KILL_SERVER, STOP_SERVER],
        pace: Duration::from_millis(1500),
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
    Scenario {
        name: "serve_and_its_clients_and_server_killed",
        site: || persistent(Kind::Redis7, "always"),
        workloads: &Workload::OF_CLIENTS,
        runs: 6,
        servers: 2,
        clients: 12,
        faults: &[
            KILL_SERVE,
            KILL_SERVE,
            KILL_CLIENT,
            KILL_CLIENT,
            CUT_CLIENT,
            CUT_CLIENT,
            PAUSE_CLIENT,
            KILL_RLOCK,
            KILL_SERVER,
            STOP_SERVER,
        ],
        pace: Duration::from_millis(200),
        codes: UNAVAILABLE_OR_LOST,
        idle: MAX_RECOVERY,
        ..ON_SERVER
    },
];

fn persistent(kind: Kind, fsync: &str) -> Option<Site> {
    Site::on_server(Setup::new(kind).options(&["--appendonly", "yes", "--appendfsync", fsync]))
}
