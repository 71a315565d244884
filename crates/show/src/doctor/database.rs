//! The checks of a database.

use std::time::Duration;

use super::check::Check;
use super::server::{certificate, clock_apart, latency_of};
use rlock_model::text::shortened;
use rlock_store::facts::DatabaseFacts;

/// The oldest version of PostgreSQL that rlock is tested with.
const OLDEST: u32 = 15;

/// All checks. `ttl` is the ttl of leases.
pub(super) fn checks(facts: &DatabaseFacts, ttl: Duration) -> Vec<Check> {
    vec![
        tls(facts),
        version(facts),
        notices(facts),
        connections(facts),
        durability(facts),
        standbys(facts),
        clock_apart(facts.clock, String::new),
        latency_of(&facts.pings, ttl, String::new),
    ]
}

fn tls(facts: &DatabaseFacts) -> Check {
    match (facts.is_encrypted, facts.is_local) {
        (_, true) => Check::ok("tls", "not used, and not needed on this machine"),
        (true, _) if facts.is_verified => certificate(facts.certificate_left),
        (true, _) => Check::warn(
            "tls",
            "the connection is encrypted, and the server's certificate or its host is not checked",
            "use ?sslmode=verify-full, with sslrootcert=system or the file of the authority",
        ),
        (false, _) => {
            Check::warn("tls", "all names cross the network in clear text", "use ?sslmode=verify-full, or a tunnel")
        }
    }
}

fn version(facts: &DatabaseFacts) -> Check {
    let (major, minor) = (facts.version / 10_000, facts.version % 10_000);
    let found = format!("PostgreSQL {major}.{minor}");
    if major >= OLDEST {
        return Check::ok("version", found);
    }
    Check::warn("version", found, format!("rlock is tested with PostgreSQL {OLDEST} and newer: upgrade the server"))
}

fn notices(facts: &DatabaseFacts) -> Check {
    if facts.is_pooled {
        let found = "a pooler is between: a waiter looks every second, and a dead one costs its claim of 3s";
        return Check::warn("notices", found, "name the server itself in the URL where waiters are to start at once");
    }
    Check::ok("notices", "waiters hear of their grants at once")
}

fn connections(facts: &DatabaseFacts) -> Check {
    let name = "connections";
    let Some((count, max)) = facts.connections else {
        return Check::unknown(name, "the server does not tell their number", "see pg_stat_activity");
    };
    let found = format!("{count} of at most {max}");
    if count >= max / 10 * 9 {
        return Check::warn(name, found, "raise max_connections, or put a pooler before the server");
    }
    Check::ok(name, found)
}

fn durability(facts: &DatabaseFacts) -> Check {
    if facts.is_durable {
        return Check::ok("durability", "a grant is on the disk before it counts");
    }
    let remedy = "a crash can forget locks that are held: set fsync and synchronous_commit to on, or check the token";
    Check::warn("durability", "a grant may count before it is on the disk", remedy)
}

fn standbys(facts: &DatabaseFacts) -> Check {
    match facts.standbys.as_str() {
        "" => Check::ok("standbys", "no synchronous one: a failover may forget the last grants"),
        names => Check::ok("standbys", format!("synchronous: {}", shortened(names))),
    }
}
