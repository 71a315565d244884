//! The scenarios with servers: leases of 2 s, so that some seconds hold several.

use std::time::Duration;

use super::command::TTL;
use super::nemesis::{KILL_COMMAND, KILL_RLOCK, PAUSE_RLOCK, STOP_COMMAND, STOP_RLOCK};
use super::scenario::Scenario;
use super::server_faults::{
    BLACK_HOLE, CROWD, CUT, DELAY, FAIL_OVER, FILL_MEMORY, FLOOD, FLUSH, FLUSH_SCRIPTS, FORGET, KILL_BLANK_SERVER,
    KILL_CLIENTS, KILL_FORGETFUL_SERVER, KILL_SERVER, LOSE_KEY, LOSE_REPLIES, LOSE_REQUESTS, MIGRATE, PAUSE_CLIENTS,
    REFUSE, STEP_CLOCK, STOP_SERVER, TAG,
};
use super::site::Site;
use super::support::servers::{Kind, Setup};
use super::workloads::Workload;

const ON_SERVER: Scenario = Scenario {
    name: "",
    site: || Site::on_server(Setup::new(Kind::Redis7)),
    workloads: &Workload::ALL,
    long: true,
    tag: "",
    runs: 12,
    faults: &[],
    pace: Duration::from_millis(600),
    fifo: false,
    codes: &[],
    lease: TTL,
    // A claim lease, which is no longer than the lease, a second, and what starting processes
    // takes.
    idle: Some(Duration::from_secs(2 + 1 + 2)),
};

/// How long the longest fault lasts, and then at most until everybody has noticed: a waiter shows
/// itself every 5 s.
const OUTAGE: Option<Duration> = Some(Duration::from_secs(4 + 5 + 2 + 1 + 2));

/// The store cannot be reached, or the lease was lost.
const UNREACHED_OR_LOST: &[i32] = &[69, 76];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        // A hand-over that is not told of takes until somebody looks by himself, which is seconds
        // later.
        name: "undisturbed",
        fifo: true,
        idle: Some(Duration::from_millis(1500)),
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
        name: "rlocks_stopped_for_a_moment",
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
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "server_stopped",
        site: || Site::on_server(Setup::new(Kind::Redis8)),
        faults: &[STOP_SERVER],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "server_killed_with_all_on_disk",
        site: || persistent(Kind::Valkey9, "always"),
        faults: &[KILL_SERVER],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "server_killed_with_most_on_disk",
        site: || persistent(Kind::Redis7, "everysec"),
        faults: &[KILL_FORGETFUL_SERVER],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "server_killed_with_nothing_on_disk",
        faults: &[KILL_BLANK_SERVER],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "network_lossy",
        site: || Site::behind_proxy(Kind::Redis7),
        faults: &[CUT, LOSE_REPLIES, LOSE_REPLIES, LOSE_REQUESTS, REFUSE],
        pace: Duration::from_millis(100),
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "network_slow_or_silent",
        site: || Site::behind_proxy(Kind::Redis8),
        faults: &[DELAY, BLACK_HOLE],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "network_forgetful_or_flooded",
        site: || Site::behind_proxy(Kind::Valkey9),
        faults: &[FORGET, FLOOD],
        codes: UNREACHED_OR_LOST,
        // The next fault may hit the connection that a waiter opened because of the last one.
        idle: Some(Duration::from_secs(2 * 14)),
        ..ON_SERVER
    },
    Scenario {
        name: "clients_killed_and_paused",
        site: || Site::on_server(Setup::new(Kind::Redis6).tcp()),
        faults: &[KILL_CLIENTS, KILL_CLIENTS, PAUSE_CLIENTS, FLUSH_SCRIPTS],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "server_flushed",
        site: || Site::on_server(Setup::new(Kind::Redis8)),
        faults: &[FLUSH, FLUSH_SCRIPTS],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "crowds_expired_on_a_lossy_network",
        site: || Site::behind_proxy(Kind::Valkey9),
        faults: &[CROWD, LOSE_REPLIES, BLACK_HOLE],
        codes: UNREACHED_OR_LOST,
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "keys_deleted",
        faults: &[LOSE_KEY],
        pace: Duration::from_millis(300),
        codes: &[76],
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario { name: "server_out_of_memory", faults: &[FILL_MEMORY], codes: &[69], fifo: true, ..ON_SERVER },
    Scenario {
        name: "failover_to_a_replica_that_lags",
        site: || Site::on_sentinels(Kind::Redis7),
        faults: &[FAIL_OVER],
        codes: UNREACHED_OR_LOST,
        // On a busy machine a Sentinel may do nothing for half a minute.
        idle: None,
        ..ON_SERVER
    },
    Scenario {
        name: "slot_migrated",
        site: || Site::on_cluster(Kind::Valkey9),
        tag: TAG,
        faults: &[MIGRATE],
        codes: &[69],
        idle: OUTAGE,
        ..ON_SERVER
    },
    Scenario {
        name: "clock_stepped",
        site: || Site::with_clock(Kind::Valkey9),
        faults: &[STEP_CLOCK],
        codes: UNREACHED_OR_LOST,
        idle: None,
        ..ON_SERVER
    },
];

fn persistent(kind: Kind, fsync: &str) -> Option<Site> {
    Site::on_server(Setup::new(kind).options(&["--appendonly", "yes", "--appendfsync", fsync]))
}
