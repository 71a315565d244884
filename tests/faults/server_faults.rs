//! The faults of servers and of the network.

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Value;
use rustix::process::Signal;

use rlock_redis::keys::Keyspace;

use super::nemesis::{Fault, sleep_between};
use super::site::NODES;
use super::stage::Stage;
use rlock_testkit::random::Random;
use rlock_testkit::servers::{ask, crowd};

/// The tag of all names in a Cluster. With it all names are in the slot that [`MIGRATE`] moves.
pub(crate) const TAG: &str = "{faults}";

/// Stops the server for up to nearly two leases.
pub(crate) const STOP_SERVER: Fault = Fault {
    name: "server stopped",
    covered: true,
    inject: |stage, random| {
        stage.site.server().stop();
        sleep_between(random, 50, 3500);
        stage.site.server().cont();
        true
    },
};

/// Kills a server that syncs every write to its disk.
pub(crate) const KILL_SERVER: Fault = Fault { name: "server killed", covered: true, inject: restart };

/// Kills a server that syncs once a second, so that the writes of the last second may be lost.
pub(crate) const KILL_SERVER_FSYNC_EVERYSEC: Fault =
    Fault { name: "server killed, data of a second lost", covered: false, inject: restart };

/// Kills a server without persistence, so that all data is lost.
pub(crate) const KILL_SERVER_WITHOUT_PERSISTENCE: Fault =
    Fault { name: "server killed, data lost", covered: false, inject: restart };

fn restart(stage: &Stage, random: &mut Random) -> bool {
    let mut server = stage.site.server();
    server.kill();
    sleep_between(random, 0, 1000);
    server.restart();
    true
}

/// Lets more leases on a resource expire at once than one script call drops.
pub(crate) const EXPIRE_MANY: Fault = Fault {
    name: "crowd expired",
    covered: true,
    inject: |stage, random| {
        let Some((namespace, key)) = live_key(stage, random) else { return false };
        let Some(resource) = Keyspace::new(&namespace).resource(key.as_bytes()) else { return false };
        crowd::expire(&stage.site.server(), &namespace, resource.as_str());
        true
    },
};

/// The namespace and a key of a random resource that was used, without the kind of the key.
fn live_key(stage: &Stage, random: &mut Random) -> Option<(String, String)> {
    let keys: Vec<String> = stage.site.server().ask(&["KEYS", "*:s"]);
    let key = (!keys.is_empty()).then(|| random.pick(&keys).clone())?;
    let namespace = key.split_once(":{")?.0.to_owned();
    Some((namespace, key))
}

/// Deletes one of the keys of a resource, as an eviction would.
pub(crate) const LOSE_KEY: Fault = Fault {
    name: "key deleted",
    covered: false,
    inject: |stage, random| {
        let Some((_, key)) = live_key(stage, random) else { return false };
        let kind = *random.pick(&["s", "d", "e", "q", "l", "u"]);
        stage.site.server().ask::<i64>(&["DEL", &format!("{}{kind}", &key[..key.len() - 1])]) > 0
    },
};

pub(crate) const FLUSH: Fault = Fault {
    name: "FLUSHALL",
    covered: false,
    inject: |stage, _| {
        stage.site.server().ask::<()>(&["FLUSHALL"]);
        true
    },
};

pub(crate) const FLUSH_SCRIPTS: Fault = Fault {
    name: "SCRIPT FLUSH",
    covered: true,
    inject: |stage, _| {
        stage.site.server().ask::<()>(&["SCRIPT", "FLUSH"]);
        true
    },
};

pub(crate) const KILL_CLIENTS: Fault = Fault {
    name: "CLIENT KILL",
    covered: true,
    inject: |stage, random| {
        let kind = *random.pick(&["normal", "pubsub"]);
        stage.site.server().ask::<i64>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
        true
    },
};

pub(crate) const PAUSE_CLIENTS: Fault = Fault {
    name: "CLIENT PAUSE",
    covered: true,
    inject: |stage, random| {
        let (time, which) = (50 + random.below(2500), *random.pick(&["ALL", "WRITE"]));
        stage.site.server().ask::<()>(&["CLIENT", "PAUSE", &time.to_string(), which]);
        sleep(Duration::from_millis(time));
        true
    },
};

/// Sets maxmemory so low that the server refuses new requests. Holders and waiters are unaffected.
pub(crate) const FILL_MEMORY: Fault = Fault {
    name: "maxmemory",
    covered: true,
    inject: |stage, random| {
        let set = |limit| stage.site.server().ask::<()>(&["CONFIG", "SET", "maxmemory", limit]);
        set("1");
        sleep_between(random, 50, 3000);
        set("0");
        true
    },
};

/// Another user of the server: valid commands on other keys, big values, scripts that run long, and
/// FLUSHDB of another database.
pub(crate) const NEIGHBOUR: Fault = Fault {
    name: "noisy neighbour",
    covered: true,
    inject: |stage, random| {
        let mut client = stage.site.server().client();
        let until = Instant::now() + Duration::from_millis(200 + random.below(2000));
        let keys = ["neighbour:0", "neighbour:1", "neighbour:2", "neighbour:3"];
        while Instant::now() < until {
            let (key, size) = (*random.pick(&keys), 1 << random.below(23));
            let (value, number) = ("x".repeat(size), random.below(1000).to_string());
            let commands: [&[&str]; 9] = [
                &["SET", key, &value],
                &["GET", key],
                &["EVAL", RUNS_LONG, "1", key, &random.below(200).to_string()],
                &["ZADD", "neighbour:z", &number, &number],
                &["RPUSH", "neighbour:l", &value],
                &["DEL", "neighbour:l"],
                &["KEYS", "*"],
                &["PUBLISH", "neighbour", &value],
                &["FLUSHDB"],
            ];
            let command = *random.pick(&commands);
            let database = if command[0] == "FLUSHDB" { "1" } else { "0" };
            ask::<Value>(&mut client, &["SELECT", database]);
            ask::<Value>(&mut client, command);
        }
        ask::<Value>(&mut client, &["SELECT", "0"]);
        ask::<Value>(&mut client, &[&["DEL", "neighbour:l", "neighbour:z"], &keys[..]].concat());
        true
    },
};

/// A script of a neighbour, beyond the limit after which the server answers BUSY to others.
pub(crate) const BUSY_SCRIPT: Fault = Fault {
    name: "script beyond its limit",
    covered: true,
    inject: |stage, random| {
        let time = (100 + random.below(2000)).to_string();
        stage.site.server().ask::<Value>(&["EVAL", RUNS_LONG, "1", "neighbour", &time]);
        true
    },
};

/// A script that runs for some milliseconds.
const RUNS_LONG: &str = "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
    local ends = now() + ARGV[1] while now() < ends do end";

/// Another user of a PostgreSQL server: big rows, long transactions and locks in other tables,
/// checkpoints and many notifications.
pub(crate) const POSTGRES_NEIGHBOUR: Fault = Fault {
    name: "noisy neighbour",
    covered: true,
    inject: |stage, random| {
        let server = stage.site.postgres();
        server.ask("create table if not exists neighbour (number int, body text)");
        let naps = random.below(1000);
        let statement = match random.below(5) {
            0 => {
                format!("insert into neighbour select n, repeat(md5(n::text), 5000) from generate_series(1, {naps}) n")
            }
            1 => format!(
                "begin; lock table neighbour; update neighbour set number = 0; select pg_sleep({naps} / 500.0); commit"
            ),
            2 => format!(
                "begin isolation level serializable; select count(*) from neighbour; select pg_sleep({naps} / 500.0); rollback"
            ),
            3 => "checkpoint".to_owned(),
            _ => format!(
                "select count(pg_notify('neighbour', repeat('x', 7000) || n)) from generate_series(1, {naps}) n"
            ),
        };
        server.ask(&statement);
        if random.once_in(3) {
            server.ask("truncate neighbour");
        }
        true
    },
};

/// Stops a PostgreSQL server with its backends for up to nearly two leases.
pub(crate) const STOP_POSTGRES: Fault = Fault {
    inject: |stage, random| {
        stage.site.postgres().signal_all(Signal::STOP);
        sleep_between(random, 50, 3500);
        stage.site.postgres().signal_all(Signal::CONT);
        true
    },
    ..STOP_SERVER
};

/// Ends the connections of all rlocks, some of them between the two round trips of a step.
pub(crate) const END_BACKENDS: Fault = Fault {
    name: "backends ended",
    covered: true,
    inject: |stage, _| {
        let ends = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'rlock%'";
        stage.site.postgres().ask(ends) != "0"
    },
};

pub(crate) const DELAY: Fault = Fault {
    name: "replies delayed",
    covered: true,
    inject: |stage, random| {
        stage.site.proxy().delay(Duration::from_millis(random.below(1500)));
        sleep_between(random, 100, 2000);
        stage.site.proxy().delay(Duration::ZERO);
        true
    },
};

pub(crate) const CUT: Fault = Fault {
    name: "connections cut",
    covered: true,
    inject: |stage, _| {
        stage.site.proxy().cut();
        true
    },
};

/// Holds back all traffic for up to nearly two leases without an error. Then the traffic passes, or
/// the connections are cut.
pub(crate) const BLACK_HOLE: Fault = Fault {
    name: "black hole",
    covered: true,
    inject: |stage, random| {
        stage.site.proxy().hold();
        sleep_between(random, 50, 3500);
        if random.once_in(2) {
            stage.site.proxy().cut();
        }
        stage.site.proxy().pass();
        true
    },
};

pub(crate) const REFUSE: Fault = Fault {
    name: "connections refused",
    covered: true,
    inject: |stage, random| {
        stage.site.proxy().refuse();
        if random.once_in(2) {
            stage.site.proxy().cut();
        }
        // No command can start meanwhile, so most times are shorter than a lease.
        let most = if random.once_in(4) { 2500 } else { 400 };
        sleep_between(random, 50, most);
        stage.site.proxy().pass();
        true
    },
};

/// Makes all open connections silent, without an error. New connections work.
pub(crate) const SILENCE: Fault = Fault {
    name: "connections silent",
    covered: true,
    inject: |stage, random| {
        stage.site.proxy().forget();
        sleep_between(random, 50, 3000);
        true
    },
};

/// Makes all open connections send messages without end. New connections work.
pub(crate) const FLOOD: Fault = Fault {
    name: "messages without end",
    covered: true,
    inject: |stage, random| {
        stage.site.proxy().flood();
        sleep_between(random, 50, 3000);
        true
    },
};

/// Drops the replies to the next few requests, after the server has executed them.
pub(crate) const LOSE_REPLIES: Fault = Fault {
    name: "replies lost",
    covered: true,
    inject: |stage, random| {
        let next = stage.site.proxy().requests() + 1;
        (next..next + 1 + random.below(4)).for_each(|request| stage.site.proxy().lose_reply(request));
        true
    },
};

pub(crate) const LOSE_REQUESTS: Fault = Fault {
    name: "requests lost",
    covered: true,
    inject: |stage, random| {
        let next = stage.site.proxy().requests() + 1;
        (next..next + 1 + random.below(4)).for_each(|request| stage.site.proxy().lose_request(request));
        true
    },
};

/// Kills the primary while its replica lags, so that the new primary does not have the latest
/// grants.
pub(crate) const FAIL_OVER: Fault = Fault {
    name: "failover to a replica that lags",
    covered: false,
    inject: |stage, random| {
        let mut sentinels = stage.site.sentinels();
        if !sentinels.could_fail_over() {
            return false;
        }
        sentinels.replica().stop();
        sentinels.master().ask::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]);
        sleep_between(random, 200, 700);
        sentinels.master().kill();
        sentinels.replica().cont();
        sentinels.promote();
        sleep_between(random, 0, 1000);
        let master = sentinels.master().port().to_string();
        sentinels.replica().restart();
        // The Sentinels would send this command as well, but later.
        sentinels.replica().ask::<()>(&["REPLICAOF", "127.0.0.1", &master]);
        sentinels.replica().until_replicated();
        true
    },
};

/// Migrates the slot of all names to another node, key by key.
pub(crate) const MIGRATE: Fault = Fault {
    name: "slot migrated",
    covered: true,
    inject: |stage, random| {
        let cluster = stage.site.cluster();
        let slot = cluster.slot(TAG);
        let from = cluster.owner(slot);
        let to = (from + 1 + random.below(NODES as u64 - 1) as usize) % NODES;
        let migration = cluster.migrate(slot, from, to);
        sleep_between(random, 0, 300);
        for key in migration.keys() {
            migration.move_key(&key);
            sleep_between(random, 0, 20);
        }
        sleep_between(random, 0, 300);
        migration.finish();
        true
    },
};

/// Steps the server's clock a minute ahead or back, and back to the right time later.
pub(crate) const STEP_CLOCK: Fault = Fault {
    name: "clock stepped by a minute",
    covered: false,
    inject: |stage, random| {
        stage.site.set_clock(*random.pick(&[-60, 60]));
        sleep_between(random, 500, 3000);
        stage.site.set_clock(0);
        true
    },
};
