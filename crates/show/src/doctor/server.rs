//! The checks of a server.

use std::time::Duration;

use super::check::{Check, size};
use rlock_model::text::shortened;
use rlock_store::facts::{ClusterFacts, ServerFacts};
use rlock_words::duration;

/// Fewer days than these before its end, a certificate needs a person: programs that renew
/// certificates do it a month before.
const CERTIFICATE_DAYS: u64 = 14;

pub(super) fn certificate(left: Option<Duration>) -> Check {
    let Some(left) = left else {
        let remedy = "see its end with openssl s_client -connect HOST:PORT";
        return Check::unknown("tls", "the connection is encrypted; the end of the certificate cannot be read", remedy);
    };
    let days = left.as_secs() / (24 * 60 * 60);
    let found = format!("the connection is encrypted, and the certificate is trusted; days left: {days}");
    if days < CERTIFICATE_DAYS {
        return Check::warn("tls", found, "give the server a new certificate: no rlock connects after its end");
    }
    Check::ok("tls", found)
}

pub(super) fn tls(facts: &ServerFacts) -> Check {
    match (facts.is_encrypted, facts.is_local) {
        (true, _) => certificate(facts.certificate_left),
        (false, true) => Check::ok("tls", "not used, and not needed on this machine"),
        (false, false) => Check::warn(
            "tls",
            "the password and all names cross the network in clear text",
            "use a URL that begins with rediss://, or a tunnel",
        ),
    }
}

pub(super) fn login(facts: &ServerFacts) -> Check {
    match facts.login.as_deref() {
        None => Check::unknown("login", "the server does not tell the user", allow(facts, "acl|whoami")),
        Some("default") if !facts.is_local => Check::warn(
            "login",
            "the user is 'default', who may usually do everything",
            "make a user for rlock: see RIGHTS in rlock-redis(7)",
        ),
        Some(user) => Check::ok("login", format!("the user is '{}'", shortened(user))),
    }
}

pub(super) fn version(facts: &ServerFacts) -> Check {
    // The others tell the version of Redis, too, for clients that ask for no other.
    let products = [
        ("Valkey", "valkey_version", [7, 2]),
        ("Redict", "redict_version", [7, 3]),
        ("Redis", "redis_version", [6, 2]),
    ];
    let told = products.iter().find_map(|(product, field, least)| Some((product, facts.info.get(*field)?, least)));
    let Some((product, found, least)) = told else {
        return Check::unknown("version", "the server does not tell it", allow(facts, "info"));
    };
    let mut parts = found.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let is_new = [parts.next().unwrap_or(0), parts.next().unwrap_or(0)] >= *least;
    let text = format!("{product} {}", shortened(found));
    if is_new {
        return Check::ok("version", text);
    }
    let remedy = format!("rlock needs {product} {}.{} or newer: upgrade the server", least[0], least[1]);
    Check::fail("version", text, remedy)
}

/// What to do where the server does not tell what this command asks.
fn allow(facts: &ServerFacts, command: &str) -> String {
    if facts.unknown.contains(&command) {
        let name = command.replace('|', " ").to_uppercase();
        return format!("the server does not know {name}: undo its rename-command, if there is one");
    }
    format!("allow the command with ACL SETUSER USER +{command}")
}

pub(super) fn role(facts: &ServerFacts) -> Check {
    match facts.info.get("role").map(String::as_str) {
        None => Check::unknown("role", "the server does not tell it", allow(facts, "info")),
        Some("master") => {
            let id = |field: &str| facts.info.get(field).map_or("not told", |id| &id[..id.floor_char_boundary(12)]);
            let ids = ["run_id", "master_replid"].map(|field| shortened(id(field)));
            Check::ok("role", format!("primary, run_id {}, replication id {}", ids[0], ids[1]))
        }
        Some(_) => Check::fail(
            "role",
            "the server is a replica, which cannot be written",
            "name the primary, or let Sentinel find it: redis+sentinel://HOST:26379/NAME",
        ),
    }
}

/// The check of the slots of a Cluster, if the server is a node of one.
pub(super) fn cluster(facts: &ServerFacts) -> Option<Check> {
    let ClusterFacts { primaries, missing, open, lacks_right } = facts.cluster.as_ref()?;
    let name = "cluster";
    Some(if let Some((_, why)) = missing.first() {
        let slots: Vec<_> = missing.iter().map(|(slots, _)| slots.as_str()).collect();
        let remedy = why.remedy.as_deref().unwrap_or("see the output of 'cluster nodes'");
        Check::fail(name, format!("the slots {} are missing: {}", slots.join(", "), why.what), remedy)
    } else if let Some((slot, node)) = open.first_key_value() {
        let more = if open.len() > 1 { format!("; open slots: {}", open.len()) } else { String::new() };
        let found =
            format!("slot {slot} is open: new requests in it fail, for a resharding goes on or broke off{more}");
        Check::fail(name, found, format!("let it end, or close the slot by redis-cli --cluster fix {node}"))
    } else if *lacks_right {
        let remedy = "allow the commands with ACL SETUSER USER +cluster|slots +cluster|nodes";
        Check::unknown(name, "the nodes do not tell all of their slots", remedy)
    } else {
        Check::ok(name, format!("{primaries} primaries, and no slot is open"))
    })
}

fn number(facts: &ServerFacts, name: &str) -> Option<u64> {
    facts.info.get(name)?.parse().ok()
}

pub(super) fn memory(facts: &ServerFacts) -> Check {
    let name = "memory";
    let (Some(policy), Some(max)) = (facts.info.get("maxmemory_policy"), number(facts, "maxmemory")) else {
        return Check::unknown(name, "the server does not tell its limit and its policy", allow(facts, "info"));
    };
    let used = number(facts, "used_memory").unwrap_or(0);
    let limit = if max == 0 { "no limit".to_owned() } else { format!("{} of {} used", size(used), size(max)) };
    let found = format!("{limit}, policy {}", shortened(policy));
    if max > 0 && policy.starts_with("allkeys") {
        let remedy =
            "the server may drop locks that are held: set maxmemory-policy noeviction, or use a server for rlock alone";
        return Check::warn(name, found, remedy);
    }
    if max > 0 && used > max / 10 * 9 {
        return Check::warn(name, found, "raise maxmemory: a full server grants no more requests");
    }
    Check::ok(name, found)
}

pub(super) fn persistence(facts: &ServerFacts) -> Check {
    let name = "persistence";
    let is = |field: &str, value: &str| facts.info.get(field).is_some_and(|found| found == value);
    if !facts.info.contains_key("aof_enabled") {
        return Check::unknown(name, "the server does not tell it", allow(facts, "info"));
    }
    for (field, what) in [("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")] {
        if is(field, "err") {
            let found = format!("the last write of the {what} failed");
            return Check::warn(name, found, "see the server's log, and make room on its disk");
        }
    }
    if is("aof_enabled", "1") {
        return Check::ok(name, "append-only file");
    }
    let remedy = "a restart can forget locks that are held: set appendonly yes, or check the token";
    Check::warn(name, "no append-only file", remedy)
}

pub(super) fn replicas(facts: &ServerFacts) -> Check {
    let Some(count) = number(facts, "connected_slaves") else {
        return Check::unknown("replicas", "the server does not tell them", allow(facts, "info"));
    };
    let lags = (0..count).filter_map(|index| facts.info.get(&format!("slave{index}")));
    let lag =
        lags.filter_map(|line| line.split(',').find_map(|part| part.strip_prefix("lag=")?.parse::<u64>().ok())).max();
    match (count, lag) {
        (0, _) => Check::ok("replicas", "none"),
        (_, Some(lag)) if lag > 10 => Check::warn(
            "replicas",
            format!("{count}, the last of which is {lag}s behind"),
            "see the network and the load of the replica: a failover would forget recent locks",
        ),
        _ => Check::ok("replicas", format!("{count}; --replicas lets a grant wait for them")),
    }
}

pub(super) fn clients(facts: &ServerFacts) -> Check {
    let (Some(count), Some(max)) = (number(facts, "connected_clients"), number(facts, "maxclients")) else {
        return Check::unknown("clients", "the server does not tell their number", allow(facts, "info"));
    };
    let found = format!("{count} of at most {max}");
    if count >= max / 10 * 9 {
        return Check::warn("clients", found, "raise maxclients: each request that waits needs a connection");
    }
    Check::ok("clients", found)
}

/// The difference of clocks from which on people misread times.
const CLOCK_OFF: i64 = 1_000_000;

pub(super) fn clock(facts: &ServerFacts) -> Check {
    clock_apart(facts.clock, || allow(facts, "time"))
}

/// How far a clock is apart. `remedy` is for a server that does not tell its time.
pub(super) fn clock_apart(clock: Option<(i64, Duration)>, remedy: impl FnOnce() -> String) -> Check {
    let Some((ahead, error)) = clock else {
        return Check::unknown("clock", "the server does not tell its time", remedy());
    };
    let off = Duration::from_micros(ahead.unsigned_abs());
    let side = if ahead < 0 { "behind" } else { "ahead of" };
    let found = format!("{} {side} this machine", duration(off));
    if ahead.saturating_abs() > CLOCK_OFF + i64::try_from(error.as_micros()).unwrap_or(i64::MAX) {
        return Check::warn(
            "clock",
            found,
            "run chrony or another NTP client on both machines; leases are not affected",
        );
    }
    Check::ok("clock", format!("less than {} apart", duration(off + error + Duration::from_millis(1))))
}

pub(super) fn latency(facts: &ServerFacts, ttl: Duration) -> Check {
    latency_of(&facts.pings, ttl, || allow(facts, "time"))
}

/// How long a server takes to answer. `remedy` is for one that has answered nothing.
pub(super) fn latency_of(pings: &[Duration], ttl: Duration, remedy: impl FnOnce() -> String) -> Check {
    let (Some(middle), Some(longest)) = (pings.get(pings.len() / 2), pings.last()) else {
        return Check::unknown(
            "latency",
            "the server does not tell its time, by which the latency is measured",
            remedy(),
        );
    };
    let shown = |length: &Duration| format!("{:.1}ms", length.as_secs_f64() * 1000.0);
    let found = format!("{} usually, {} at most, with a ttl of {}", shown(middle), shown(longest), duration(ttl));
    let remedy = "use a server nearer by, or raise --ttl";
    match *longest {
        longest if longest >= ttl / 3 => Check::fail("latency", found, remedy),
        longest if longest >= ttl / 20 => Check::warn("latency", found, remedy),
        _ => Check::ok("latency", found),
    }
}
