//! The checks of `rlock doctor`: facts in, verdicts with remedies out.

mod audience;
mod check;
mod database;
mod load;
mod place;
mod server;

use std::time::Duration;

pub use audience::audience;
pub use check::{Check, Verdict, failed};
pub use load::{cost, names, no_names};

use rlock_store::facts::Facts;

/// The checks of what a store tells about its place. `ttl` is the ttl of leases.
pub fn checks(facts: &Facts, ttl: Duration) -> Vec<Check> {
    match facts {
        Facts::Directory(facts) => {
            vec![place::directory(facts), place::file_system(facts), place::room(facts), place::limits(facts)]
        }
        Facts::Server(facts) => [
            server::tls(facts),
            server::login(facts),
            server::version(facts),
            server::role(facts),
            server::memory(facts),
            server::persistence(facts),
            server::replicas(facts),
            server::clients(facts),
            server::clock(facts),
            server::latency(facts, ttl),
        ]
        .into_iter()
        .chain(server::cluster(facts))
        .collect(),
        Facts::Database(facts) => database::checks(facts, ttl),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::check::USED_UP;
    use super::place::{OVERLAY, directory};
    use super::*;
    use rlock_store::facts::TABLE_BYTES_MAX;
    use rlock_store::facts::{ClusterFacts, DirectoryFacts, ServerFacts};
    use rlock_words::Explained;

    const TTL: Duration = Duration::from_secs(30);

    pub(super) fn place() -> DirectoryFacts {
        DirectoryFacts {
            path: "/run/rlock".into(),
            user: 0,
            owner: 0,
            owner_name: "root".to_owned(),
            mode: 0o700,
            file_system: Some(0x0102_1994),
            free: Some(1 << 30),
            files_left: Some(1 << 20),
            table: Some(1 << 15),
            files: 1024,
        }
    }

    /// A server at which nothing is wrong, with changes to its fields.
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    pub(super) fn server(changes: &[(&str, &str)]) -> ServerFacts {
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
        let fields = fields.iter().chain(changes).filter(|(_, value)| !value.is_empty());
        let mut info: std::collections::BTreeMap<_, _> =
            fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        for (name, _) in changes.iter().filter(|(_, value)| value.is_empty()) {
            info.remove(*name);
        }
        ServerFacts {
            is_encrypted: true,
            certificate_left: Some(60 * DAY),
            is_local: false,
            login: Some("rlock".to_owned()),
            info,
            clock: Some((1000, Duration::from_millis(1))),
            pings: vec![Duration::from_micros(300); 10],
            unknown: Vec::new(),
            cluster: None,
        }
    }

    /// The verdict of one check, which has a remedy unless it is fine.
    fn verdict(facts: Facts, name: &str) -> Verdict {
        let checks = checks(&facts, TTL);
        let check = checks.iter().find(|check| check.name == name).expect("there is such a check");
        assert_eq!(check.remedy.is_none(), check.verdict == Verdict::Ok, "{check:?}");
        check.verdict
    }

    #[test]
    fn store_without_a_fault_passes_each_check() {
        for facts in [Facts::Directory(place()), Facts::Server(server(&[]))] {
            for check in checks(&facts, TTL) {
                assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
            }
        }
    }

    #[test]
    fn directory_of_one_user_is_named_as_such() {
        for (mode, ending) in [(0o700, "mode 0700; only user root locks here"), (0o2770, "mode 2770")] {
            let check = directory(&DirectoryFacts { mode, ..place() });
            assert!(check.found.ends_with(ending), "{check:?}");
        }
    }

    #[test]
    fn error_of_the_system_gets_a_remedy_where_something_is_used_up() {
        let store = "the store in /d can't be used";
        for (errno, remedy) in USED_UP {
            let words = Explained::from(&std::io::Error::from(errno)).behind(store);
            let check = failed("locks", &words);
            assert_eq!((check.found, check.remedy), (words.to_string(), Some(remedy.to_owned())));
        }
        let check = failed("store", &Explained::new("no: no", "do this: now"));
        assert_eq!((check.found.as_str(), check.remedy.as_deref()), ("no: no", Some("do this: now")));
        let check = failed("store", &"it is broken: why".into());
        assert_eq!(
            (check.found.as_str(), check.remedy.as_deref()),
            ("it is broken: why", Some("see STORES in rlock(1)"))
        );
    }

    /// Each of them tells the version of Redis that it stems from, too.
    #[test]
    fn descendant_of_redis_is_named_by_its_own_version() {
        for (field, version, found) in
            [("valkey_version", "9.1.2", "Valkey 9.1.2"), ("redict_version", "7.3.6", "Redict 7.3.6")]
        {
            let check = server::version(&server(&[("redis_version", "7.2.4"), (field, version)]));
            assert_eq!(check, Check::ok("version", found));
        }
    }

    #[test]
    fn command_that_the_server_does_not_know_needs_no_right() {
        let remedy = |unknown| {
            let facts = ServerFacts { unknown, login: None, ..server(&[("redis_version", "")]) };
            [server::version(&facts), server::login(&facts)].map(|check| check.remedy.unwrap_or_default())
        };
        let allow = |right| format!("allow the command with ACL SETUSER USER +{right}");
        let undo = |name| format!("the server does not know {name}: undo its rename-command, if there is one");
        assert_eq!(remedy(vec![]), [allow("info"), allow("acl|whoami")]);
        assert_eq!(remedy(vec!["info"]), [undo("INFO"), allow("acl|whoami")]);
        assert_eq!(remedy(vec!["acl|whoami"]), [allow("info"), undo("ACL WHOAMI")]);
    }

    #[test]
    fn each_check_of_a_directory_fails_for_its_fault() {
        for (name, expected, facts) in [
            ("directory", Verdict::Warn, DirectoryFacts { mode: 0o1777, ..place() }),
            ("directory", Verdict::Warn, DirectoryFacts { owner: 7, mode: 0o755, user: 8, ..place() }),
            ("directory", Verdict::Ok, DirectoryFacts { owner: 7, mode: 0o2775, user: 8, ..place() }),
            ("file system", Verdict::Warn, DirectoryFacts { file_system: Some(OVERLAY), ..place() }),
            ("file system", Verdict::Warn, DirectoryFacts { file_system: Some(0x6573_5546), ..place() }),
            ("file system", Verdict::Unknown, DirectoryFacts { file_system: None, ..place() }),
            ("room", Verdict::Fail, DirectoryFacts { free: Some(100), ..place() }),
            ("room", Verdict::Ok, DirectoryFacts { free: Some(5 << 20), ..place() }),
            ("room", Verdict::Warn, DirectoryFacts { free: Some(500 << 10), table: Some(4 << 20), ..place() }),
            ("room", Verdict::Warn, DirectoryFacts { table: Some(TABLE_BYTES_MAX as u64), ..place() }),
            ("room", Verdict::Fail, DirectoryFacts { files_left: Some(0), ..place() }),
            ("room", Verdict::Warn, DirectoryFacts { files_left: Some(999), ..place() }),
            ("room", Verdict::Ok, DirectoryFacts { files_left: None, ..place() }),
            ("room", Verdict::Unknown, DirectoryFacts { free: None, ..place() }),
            ("limits", Verdict::Fail, DirectoryFacts { files: 10, ..place() }),
            ("limits", Verdict::Warn, DirectoryFacts { files: 64, ..place() }),
            ("limits", Verdict::Ok, DirectoryFacts { files: u64::MAX, ..place() }),
        ] {
            assert_eq!(verdict(Facts::Directory(facts.clone()), name), expected, "{name}: {facts:?}");
        }
    }

    #[test]
    fn each_check_of_a_server_fails_for_its_fault() {
        let near = || ServerFacts { is_encrypted: false, is_local: true, ..server(&[]) };
        let node = |cluster| ServerFacts { cluster: Some(cluster), ..server(&[]) };
        let open = BTreeMap::from([(7, "h:1".to_owned())]);
        let missing = vec![("0-9".to_owned(), Explained::new("it is down", "start it"))];
        let slow = |millis| ServerFacts { pings: vec![Duration::from_millis(millis)], ..server(&[]) };
        for (name, expected, facts) in [
            ("tls", Verdict::Warn, ServerFacts { is_encrypted: false, ..server(&[]) }),
            ("tls", Verdict::Ok, near()),
            ("tls", Verdict::Warn, ServerFacts { certificate_left: Some(13 * DAY), ..server(&[]) }),
            ("tls", Verdict::Ok, ServerFacts { certificate_left: Some(14 * DAY), ..server(&[]) }),
            ("tls", Verdict::Unknown, ServerFacts { certificate_left: None, ..server(&[]) }),
            ("login", Verdict::Warn, ServerFacts { login: Some("default".to_owned()), ..server(&[]) }),
            ("login", Verdict::Ok, ServerFacts { login: Some("default".to_owned()), ..near() }),
            ("login", Verdict::Unknown, ServerFacts { login: None, ..server(&[]) }),
            ("version", Verdict::Fail, server(&[("redis_version", "6.0.16")])),
            ("version", Verdict::Ok, server(&[("redis_version", "6.2.0")])),
            ("version", Verdict::Ok, server(&[("redis_version", "7.2.4"), ("valkey_version", "9.0.0")])),
            ("version", Verdict::Ok, server(&[("redis_version", "7.2.4"), ("redict_version", "7.3.6")])),
            ("version", Verdict::Unknown, server(&[("redis_version", "")])),
            ("role", Verdict::Fail, server(&[("role", "slave")])),
            ("role", Verdict::Unknown, server(&[("role", "")])),
            ("memory", Verdict::Warn, server(&[("maxmemory", "9000000"), ("maxmemory_policy", "allkeys-lru")])),
            ("memory", Verdict::Ok, server(&[("maxmemory", "9000000"), ("maxmemory_policy", "volatile-lru")])),
            ("memory", Verdict::Warn, server(&[("maxmemory", "1000001")])),
            ("memory", Verdict::Unknown, server(&[("maxmemory", "")])),
            ("persistence", Verdict::Warn, server(&[("aof_enabled", "0")])),
            ("persistence", Verdict::Warn, server(&[("aof_last_write_status", "err")])),
            ("persistence", Verdict::Warn, server(&[("rdb_last_bgsave_status", "err")])),
            ("persistence", Verdict::Unknown, server(&[("aof_enabled", "")])),
            ("replicas", Verdict::Ok, server(&[("connected_slaves", "0")])),
            ("replicas", Verdict::Warn, server(&[("slave0", "ip=h,port=1,state=online,offset=1,lag=99")])),
            ("replicas", Verdict::Unknown, server(&[("connected_slaves", "")])),
            ("clients", Verdict::Warn, server(&[("connected_clients", "9500")])),
            ("clients", Verdict::Unknown, server(&[("maxclients", "")])),
            ("clock", Verdict::Warn, ServerFacts { clock: Some((-3_000_000, Duration::ZERO)), ..server(&[]) }),
            ("clock", Verdict::Ok, ServerFacts { clock: Some((3_000_000, Duration::from_secs(3))), ..server(&[]) }),
            ("clock", Verdict::Unknown, ServerFacts { clock: None, ..server(&[]) }),
            ("latency", Verdict::Fail, slow(10_000)),
            ("latency", Verdict::Warn, slow(1_500)),
            ("latency", Verdict::Unknown, ServerFacts { pings: vec![], ..server(&[]) }),
            ("cluster", Verdict::Ok, node(ClusterFacts { primaries: 3, ..ClusterFacts::default() })),
            ("cluster", Verdict::Unknown, node(ClusterFacts { lacks_right: true, ..ClusterFacts::default() })),
            ("cluster", Verdict::Fail, node(ClusterFacts { open: open.clone(), ..ClusterFacts::default() })),
            ("cluster", Verdict::Fail, node(ClusterFacts { missing: missing.clone(), ..ClusterFacts::default() })),
        ] {
            assert_eq!(verdict(Facts::Server(facts.clone()), name), expected, "{name}: {facts:?}");
        }
    }
}
