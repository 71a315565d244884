//! The checks of `rlock doctor`: asks a server, or the nodes of a Cluster, and judges what they
//! tell.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value, from_redis_value_ref};

use super::client::Client;
use super::failure::{ErrorKind, Failure};
use super::nodes::open_slots;
use super::survey::primaries_of;
use rlock_model::text::shortened;
use rlock_store::check::{Check, Pace, audience, certificate, size};
use rlock_sys::clock::StoreTime;
use rlock_words::Explained;

/// Checks the server. `ttl` is the ttl of leases.
///
/// # Errors
/// The server cannot be reached or used. What the server does not tell is no error.
pub(super) fn examine(
    mut client: Client,
    is_encrypted: bool,
    namespace: &str,
    ttl: Duration,
) -> Result<Vec<Check>, Failure> {
    // Each user has the right to this one.
    match client.command(redis::cmd("TIME")) {
        Err(failure) if !matches!(failure.kind(), ErrorKind::NoRight(_)) => return Err(failure),
        _ => {}
    }
    let is_local = client.node().is_local();
    let certificate = certificate(client.certificate_end(), StoreTime::of_machine());
    let cluster = client.is_cluster().then(|| Slots::of(&mut client)).transpose()?;
    let mut told = Told::default();
    told.info = told.ask(&mut client, "info").map(|text: String| fields(&text)).unwrap_or_default();
    let login: Option<String> = told.ask(&mut client, "acl|whoami");
    let Ok(pace) = Pace::measure(|| {
        let time = told.ask(&mut client, "time");
        let instant = |(seconds, micros): (u64, u64)| seconds.checked_mul(1_000_000)?.checked_add(micros);
        Ok::<_, Infallible>(time.and_then(instant).map(StoreTime::from_micros))
    });
    let checks = [
        tls(is_encrypted, is_local, certificate),
        told.login(login.as_deref(), is_local),
        told.version(),
        told.role(),
        told.memory(),
        told.persistence(),
        told.replicas(),
        told.clients(),
    ];
    let pace = pace.checks(ttl, &told.allow("time"));
    let cluster = cluster.as_ref().map(Slots::check);
    Ok(checks.into_iter().chain(pace).chain(cluster).chain(audience(login.as_deref(), namespace)).collect())
}

fn tls(is_encrypted: bool, is_local: bool, certificate: Check) -> Check {
    match (is_encrypted, is_local) {
        (true, _) => certificate,
        (false, true) => Check::ok("tls", "not used, and not needed on this machine"),
        (false, false) => Check::warn(
            "tls",
            "the password and all names cross the network in clear text",
            "use a URL that begins with rediss://, or a tunnel",
        ),
    }
}

/// What a server tells about itself. A user may lack the right to a command, or the server the
/// command.
#[derive(Debug, Default)]
struct Told {
    /// The fields of INFO, by their names.
    info: BTreeMap<String, String>,
    /// The commands that the server does not know.
    unknown: Vec<&'static str>,
}

impl Told {
    /// Asks by a command that has the name of its right.
    fn ask<T: FromRedisValue>(&mut self, client: &mut Client, command: &'static str) -> Option<T> {
        match client.command(command_of(command)) {
            Ok(value) => read(&value),
            Err(failure) => {
                self.unknown.extend((*failure.kind() == ErrorKind::TooOld).then_some(command));
                None
            }
        }
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.info.get(field)?.parse().ok()
    }

    /// What to do where the server does not tell what this command asks.
    fn allow(&self, command: &str) -> String {
        if self.unknown.contains(&command) {
            let name = command.replace('|', " ").to_uppercase();
            return format!("the server does not know {name}: undo its rename-command, if there is one");
        }
        format!("allow the command with ACL SETUSER USER +{command}")
    }

    /// A check of a field that INFO does not have.
    fn untold(&self, name: &'static str, found: &str) -> Check {
        Check::unknown(name, found, self.allow("info"))
    }

    fn login(&self, login: Option<&str>, is_local: bool) -> Check {
        match login {
            None => Check::unknown("login", "the server does not tell the user", self.allow("acl|whoami")),
            Some("default") if !is_local => Check::warn(
                "login",
                "the user is 'default', who may usually do everything",
                "make a user for rlock: see RIGHTS in rlock-redis(7)",
            ),
            Some(user) => Check::ok("login", format!("the user is '{}'", shortened(user))),
        }
    }

    fn version(&self) -> Check {
        // The others tell the version of Redis, too, for clients that ask for no other.
        let products = [
            ("Valkey", "valkey_version", [7, 2]),
            ("Redict", "redict_version", [7, 3]),
            ("Redis", "redis_version", [6, 2]),
        ];
        let told = products.iter().find_map(|(product, field, least)| Some((product, self.info.get(*field)?, least)));
        let Some((product, found, least)) = told else {
            return self.untold("version", "the server does not tell it");
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

    fn role(&self) -> Check {
        match self.info.get("role").map(String::as_str) {
            None => self.untold("role", "the server does not tell it"),
            Some("master") => {
                let id = |field: &str| self.info.get(field).map_or("not told", |id| &id[..id.floor_char_boundary(12)]);
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

    fn memory(&self) -> Check {
        let name = "memory";
        let (Some(policy), Some(max)) = (self.info.get("maxmemory_policy"), self.number("maxmemory")) else {
            return self.untold(name, "the server does not tell its limit and its policy");
        };
        let used = self.number("used_memory").unwrap_or(0);
        let limit = if max == 0 { "no limit".to_owned() } else { format!("{} of {} used", size(used), size(max)) };
        let found = format!("{limit}, policy {}", shortened(policy));
        if max > 0 && policy.starts_with("allkeys") {
            let remedy = "the server may drop locks that are held: set maxmemory-policy noeviction, or use a server \
                          for rlock alone";
            return Check::warn(name, found, remedy);
        }
        if max > 0 && used > max / 10 * 9 {
            return Check::warn(name, found, "raise maxmemory: a full server grants no more requests");
        }
        Check::ok(name, found)
    }

    fn persistence(&self) -> Check {
        let name = "persistence";
        let is = |field: &str, value: &str| self.info.get(field).is_some_and(|found| found == value);
        if !self.info.contains_key("aof_enabled") {
            return self.untold(name, "the server does not tell it");
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

    fn replicas(&self) -> Check {
        let name = "replicas";
        let Some(count) = self.number("connected_slaves") else {
            return self.untold(name, "the server does not tell them");
        };
        let lags = (0..count).filter_map(|index| self.info.get(&format!("slave{index}")));
        let lag = lags
            .filter_map(|line| line.split(',').find_map(|part| part.strip_prefix("lag=")?.parse::<u64>().ok()))
            .max();
        match (count, lag) {
            (0, _) => Check::ok(name, "none"),
            (_, Some(lag)) if lag > 10 => Check::warn(
                name,
                format!("{count}, the last of which is {lag}s behind"),
                "see the network and the load of the replica: a failover would forget recent locks",
            ),
            _ => Check::ok(name, format!("{count}; --replicas lets a grant wait for them")),
        }
    }

    fn clients(&self) -> Check {
        let name = "clients";
        let (Some(count), Some(max)) = (self.number("connected_clients"), self.number("maxclients")) else {
            return self.untold(name, "the server does not tell their number");
        };
        let found = format!("{count} of at most {max}");
        if count >= max / 10 * 9 {
            return Check::warn(name, found, "raise maxclients: each request that waits needs a connection");
        }
        Check::ok(name, found)
    }
}

/// The slots of a Cluster.
#[derive(Clone, Debug, Default)]
struct Slots {
    /// The number of primaries that have slots.
    primaries: usize,
    /// The slots whose primary does not answer, in words, and why.
    missing: Vec<(String, Explained)>,
    /// The slots that are open, each with a node that says so.
    open: BTreeMap<u16, String>,
    /// Whether the user lacks a right to ask for the slots.
    lacks_right: bool,
}

impl Slots {
    /// Asks each primary about its slots.
    ///
    /// # Errors
    /// No node tells the primaries, for another reason than a right.
    fn of(client: &mut Client) -> Result<Self, Failure> {
        let mut slots = Self::default();
        let primaries = match primaries_of(client) {
            Err(failure) if matches!(failure.kind(), ErrorKind::NoRight(_)) => {
                return Ok(Self { lacks_right: true, ..slots });
            }
            primaries => primaries?,
        };
        slots.primaries = primaries.len();
        for (primary, its) in primaries {
            match client.at(primary.clone()).command(command_of("cluster|nodes")) {
                Ok(nodes) => {
                    let open = read(&nodes).map(|nodes: String| open_slots(&nodes)).unwrap_or_default();
                    slots.open.extend(open.into_iter().map(|slot| (slot, primary.to_string())));
                }
                Err(failure) if matches!(failure.kind(), ErrorKind::NoRight(_)) => slots.lacks_right = true,
                Err(failure) => slots.missing.push((its, failure.words())),
            }
        }
        Ok(slots)
    }

    fn check(&self) -> Check {
        let Self { primaries, missing, open, lacks_right } = self;
        let name = "cluster";
        if let Some((_, why)) = missing.first() {
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
        }
    }
}

/// A command by the name that its right has.
fn command_of(right: &str) -> Cmd {
    let mut words = right.split('|');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    command.arg(words.collect::<Vec<_>>());
    command
}

fn read<T: FromRedisValue>(value: &Value) -> Option<T> {
    from_redis_value_ref(value).ok()
}

/// The fields of the text of INFO: lines `name:value`.
fn fields(info: &str) -> BTreeMap<String, String> {
    let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_store::check::Verdict;

    /// A server at which nothing is wrong, with changes to the fields of INFO. An empty value
    /// removes a field.
    fn server(changes: &[(&str, &str)]) -> Told {
        let fields = [
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("maxmemory", "0"),
            ("maxmemory_policy", "noeviction"),
            ("used_memory", "1000000"),
            ("aof_enabled", "1"),
            ("aof_last_write_status", "ok"),
            ("rdb_last_bgsave_status", "ok"),
            ("connected_slaves", "1"),
            ("slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0"),
            ("connected_clients", "10"),
            ("maxclients", "10000"),
        ];
        let fields = fields.iter().chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut info: BTreeMap<_, _> = fields.collect();
        info.retain(|_, value| !value.is_empty());
        Told { info, unknown: Vec::new() }
    }

    /// Each of them tells the version of Redis that it stems from, too.
    #[test]
    fn descendant_of_redis_is_named_by_its_own_version() {
        for (field, version, found) in
            [("valkey_version", "9.1.2", "Valkey 9.1.2"), ("redict_version", "7.3.6", "Redict 7.3.6")]
        {
            let check = server(&[("redis_version", "7.2.4"), (field, version)]).version();
            assert_eq!(check, Check::ok("version", found));
        }
    }

    #[test]
    fn command_that_the_server_does_not_know_needs_no_right() {
        let remedy = |unknown| {
            let told = Told { unknown, ..Told::default() };
            [told.version(), told.login(None, false)].map(|check| check.remedy.unwrap_or_default())
        };
        let allow = |right| format!("allow the command with ACL SETUSER USER +{right}");
        let undo = |name| format!("the server does not know {name}: undo its rename-command, if there is one");
        assert_eq!(remedy(vec![]), [allow("info"), allow("acl|whoami")]);
        assert_eq!(remedy(vec!["info"]), [undo("INFO"), allow("acl|whoami")]);
        assert_eq!(remedy(vec!["acl|whoami"]), [allow("info"), undo("ACL WHOAMI")]);
    }

    #[test]
    fn each_check_of_a_server_fails_for_its_fault() {
        let fine = server(&[]);
        let tls = |is_encrypted, is_local| tls(is_encrypted, is_local, Check::ok("tls", "fine"));
        let login = |user, is_local| fine.login(user, is_local);
        let slots = Slots::default;
        let open = BTreeMap::from([(7, "h:1".to_owned())]);
        let missing = vec![("0-9".to_owned(), Explained::new("it is down", "start it"))];
        for (expected, check) in [
            (Verdict::Ok, tls(true, false)),
            (Verdict::Ok, tls(false, true)),
            (Verdict::Warn, tls(false, false)),
            (Verdict::Ok, login(Some("rlock"), false)),
            (Verdict::Ok, login(Some("default"), true)),
            (Verdict::Warn, login(Some("default"), false)),
            (Verdict::Unknown, login(None, false)),
            (Verdict::Ok, fine.version()),
            (Verdict::Ok, server(&[("redis_version", "6.2.0")]).version()),
            (Verdict::Ok, server(&[("redis_version", "7.2.4"), ("valkey_version", "9.0.0")]).version()),
            (Verdict::Ok, server(&[("redis_version", "7.2.4"), ("redict_version", "7.3.6")]).version()),
            (Verdict::Fail, server(&[("redis_version", "6.0.16")]).version()),
            (Verdict::Unknown, server(&[("redis_version", "")]).version()),
            (Verdict::Ok, fine.role()),
            (Verdict::Fail, server(&[("role", "slave")]).role()),
            (Verdict::Unknown, server(&[("role", "")]).role()),
            (Verdict::Ok, fine.memory()),
            (Verdict::Ok, server(&[("maxmemory", "9000000"), ("maxmemory_policy", "volatile-lru")]).memory()),
            (Verdict::Warn, server(&[("maxmemory", "9000000"), ("maxmemory_policy", "allkeys-lru")]).memory()),
            (Verdict::Warn, server(&[("maxmemory", "1000001")]).memory()),
            (Verdict::Unknown, server(&[("maxmemory", "")]).memory()),
            (Verdict::Ok, fine.persistence()),
            (Verdict::Warn, server(&[("aof_enabled", "0")]).persistence()),
            (Verdict::Warn, server(&[("aof_last_write_status", "err")]).persistence()),
            (Verdict::Warn, server(&[("rdb_last_bgsave_status", "err")]).persistence()),
            (Verdict::Unknown, server(&[("aof_enabled", "")]).persistence()),
            (Verdict::Ok, fine.replicas()),
            (Verdict::Ok, server(&[("connected_slaves", "0")]).replicas()),
            (Verdict::Warn, server(&[("slave0", "ip=h,port=1,state=online,offset=1,lag=99")]).replicas()),
            (Verdict::Unknown, server(&[("connected_slaves", "")]).replicas()),
            (Verdict::Ok, fine.clients()),
            (Verdict::Warn, server(&[("connected_clients", "9500")]).clients()),
            (Verdict::Unknown, server(&[("maxclients", "")]).clients()),
            (Verdict::Ok, Slots { primaries: 3, ..slots() }.check()),
            (Verdict::Unknown, Slots { lacks_right: true, ..slots() }.check()),
            (Verdict::Fail, Slots { open, ..slots() }.check()),
            (Verdict::Fail, Slots { missing, ..slots() }.check()),
        ] {
            assert_eq!(check.verdict, expected, "{check:?}");
            assert_eq!(check.remedy.is_none(), expected == Verdict::Ok, "{check:?}");
        }
    }
}
