//! The checks of `rlock doctor`: asks the server, and judges what it tells.

use std::time::Duration;

use super::client::Client;
use super::failure::Failure;
use super::step;
use super::target::{SslMode, Target};
use rlock_model::text::shortened;
use rlock_store::check::{Check, Pace, audience, certificate};
use rlock_sys::clock::StoreTime;

/// The connections that the server, the role and the database let in: the free ones, and the limit.
const ABOUT: &str = "WITH used AS (SELECT count(*) FILTER (WHERE datname IS NOT NULL) AS count, \
    count(*) FILTER (WHERE usename = session_user) AS role, \
    count(*) FILTER (WHERE datname = current_database()) AS base FROM pg_stat_activity), \
    most AS (SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int \
    - coalesce(current_setting('reserved_connections', true)::int, 0) AS count, \
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = session_user) AS role, \
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()) AS base) \
    SELECT current_setting('server_version_num'), \
    (SELECT least(most.count, most.role, most.base)::text FROM most), \
    (SELECT greatest(0, least(most.count - used.count, most.role - used.role, most.base - used.base))::text \
    FROM most, used), \
    (current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off')::text, \
    current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
    (SELECT CASE WHEN bool_and(state IS NOT NULL) IS FALSE THEN '' \
    ELSE count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))::text END FROM pg_stat_replication), \
    (SELECT bool_and(has_table_privilege(name, needed))::text FROM (VALUES ('rlock.namespaces', 'insert'), \
    ('rlock.namespaces', 'update'), ('rlock.records', 'insert'), ('rlock.records', 'update'), \
    ('rlock.records', 'delete')) AS rights (name, needed))";

/// Checks the server, and makes the tables if there are none. `ttl` is the ttl of leases.
///
/// # Errors
/// The server cannot be reached or used.
pub(super) fn examine(
    client: &mut Client,
    target: &Target,
    namespace: &str,
    ttl: Duration,
) -> Result<Vec<Check>, Failure> {
    let (told, is_pooled) = client.told(ABOUT, |work| Ok((work.told.clone(), work.is_pooled)))?;
    let pace = Pace::measure(|| client.look(Vec::new(), |work| Ok(work.clock)).map(Some))?;
    let told = |index: usize| told.get(index).map_or("", String::as_str);
    let number = |index: usize| told(index).parse::<u64>().ok();
    let connection = &client.exchange.connection;
    let (is_encrypted, certificate_end) = connection.security();
    let certificate = || certificate(certificate_end, StoreTime::of_machine());
    let is_verified = target.ssl_mode == SslMode::VerifyFull;
    let checks = [
        tls(connection.is_local(), is_encrypted, is_verified.then(certificate)),
        version(number(0).unwrap_or(0)),
        notices(is_pooled),
        connections(number(2).zip(number(1))),
        durability(told(3) == "true"),
        standbys(told(4), told(5), number(6)),
    ];
    let [seen, written] = audience(Some(target.user()), namespace);
    let written = if told(7) == "true" { written } else { reader(target.user()) };
    Ok(checks.into_iter().chain(pace.checks(ttl, "")).chain([seen, written]).collect())
}

/// The check of the encryption. There is a check of the `certificate` if it and its host must be
/// right.
fn tls(is_local: bool, is_encrypted: bool, certificate: Option<Check>) -> Check {
    match (is_local, is_encrypted, certificate) {
        (true, ..) => Check::ok("tls", "not used, and not needed on this machine"),
        (_, true, Some(certificate)) => certificate,
        (_, true, None) => Check::warn(
            "tls",
            "the connection is encrypted, and the server's certificate or its host is not checked",
            "use ?sslmode=verify-full, with sslrootcert=system or the file of the authority",
        ),
        (_, false, _) => {
            Check::warn("tls", "all names cross the network in clear text", "use ?sslmode=verify-full, or a tunnel")
        }
    }
}

/// The check of a user that lacks rights which a lock needs.
fn reader(user: &str) -> Check {
    let found = format!("other users than '{}', which may look at locks and take none", shortened(user));
    Check::warn("written by", found, "grant the rights that rlock-postgres(7) lists under ROLES, to lock as this user")
}

/// The oldest version of PostgreSQL that rlock is tested with.
const OLDEST: u64 = 15;

/// The check of a version, whose number is such as 150020.
fn version(number: u64) -> Check {
    let (major, minor) = (number / 10_000, number % 10_000);
    let found = format!("PostgreSQL {major}.{minor}");
    if major >= OLDEST {
        return Check::ok("version", found);
    }
    Check::warn("version", found, format!("rlock is tested with PostgreSQL {OLDEST} and newer: upgrade the server"))
}

fn notices(is_pooled: bool) -> Check {
    if is_pooled {
        let found = "a pooler is between: a waiter looks every second, and dead ones in a row cost 5s together";
        return Check::warn("notices", found, "name the server itself in the URL where waiters are to start at once");
    }
    Check::ok("notices", "waiters hear of their grants at once")
}

/// The check of the number of free connections and the limit.
fn connections(told: Option<(u64, u64)>) -> Check {
    let name = "connections";
    let Some((free, max)) = told else {
        return Check::unknown(name, "the server does not tell their number", "see pg_stat_activity");
    };
    let found = format!("{free} of {max} are free");
    if free * 10 <= max {
        let remedy = "raise the limit of the server, the role or the database, or put a pooler before it";
        return Check::warn(name, found, remedy);
    }
    Check::ok(name, found)
}

fn durability(is_durable: bool) -> Check {
    if is_durable {
        return Check::ok("durability", "a grant is on the disk before it counts");
    }
    let remedy = "a crash can forget locks that are held: set fsync and synchronous_commit to on, or check the token";
    Check::warn("durability", "a grant may count before it is on the disk", remedy)
}

/// The check of the settings `synchronous_standby_names` and `synchronous_commit`. `present` is the
/// number of synchronous standbys that are connected, if the role may know.
fn standbys(names: &str, commit: &str, present: Option<u64>) -> Check {
    let (name, needed) = ("standbys", u64::from(step::standbys(names)));
    if needed == 0 {
        return Check::ok(name, "no synchronous one: a failover may forget the last grants");
    }
    let found = format!("synchronous: {}", shortened(names));
    if matches!(commit, "local" | "off") {
        let found = format!("{found}; but no commit waits for them, so a failover may forget the last grants");
        return Check::warn(name, found, "set synchronous_commit to on, or give --replicas");
    }
    match present {
        Some(present) if present < needed => Check::warn(
            name,
            format!("{found}; {present} of {needed} are connected, and commits wait for the others"),
            "bring the standbys back, or take them out of synchronous_standby_names",
        ),
        _ => Check::ok(name, format!("{found}; a failover to one that has confirmed forgets no grant")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_store::check::Verdict;

    #[test]
    fn each_check_of_a_database_fails_for_its_fault() {
        let trusted = || Some(Check::ok("tls", "fine"));
        for (expected, check) in [
            (Verdict::Ok, tls(false, true, trusted())),
            (Verdict::Ok, tls(true, false, None)),
            (Verdict::Warn, tls(false, true, None)),
            (Verdict::Warn, tls(false, false, trusted())),
            (Verdict::Ok, version(150_020)),
            (Verdict::Warn, version(140_020)),
            (Verdict::Ok, notices(false)),
            (Verdict::Warn, notices(true)),
            (Verdict::Ok, connections(Some((2, 19)))),
            (Verdict::Ok, connections(Some((11, 100)))),
            (Verdict::Warn, connections(Some((10, 100)))),
            (Verdict::Unknown, connections(None)),
            (Verdict::Ok, durability(true)),
            (Verdict::Warn, durability(false)),
            (Verdict::Ok, standbys("", "on", Some(0))),
            (Verdict::Ok, standbys("a, b", "on", Some(1))),
            (Verdict::Ok, standbys("a, b", "remote_apply", None)),
            (Verdict::Warn, standbys("ANY 2 (a, b)", "on", Some(1))),
            (Verdict::Warn, standbys("a", "local", Some(1))),
        ] {
            assert_eq!(check.verdict, expected, "{check:?}");
            assert_eq!(check.remedy.is_none(), expected == Verdict::Ok, "{check:?}");
        }
    }
}
