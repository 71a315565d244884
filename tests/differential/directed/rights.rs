//! A server user needs permission for the commands that the core of the scripts names, and for no
//! other command. If a permission is missing, the script fails before it changes anything.

use rlock_model::mode::Mode::{Read, Write};
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, Lease, ScriptReply, Wake};
use rlock_redis::keys::KINDS_LEN;

use super::on_each_server;
use crate::clients::{Clients, TERMS, downgrade, id, request, resource, shrink, snapshot, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    documented_commands_are_sufficient_permissions,
    sole_holder_is_renewed_without_permission_for_setrange,
    missing_permission_is_reported_before_any_change,
    request_for_a_free_resource_without_permission_changes_nothing,
    foreign_keys_are_not_overwritten
);

const CORE: &str = include_str!("../../../crates/redis/src/lua/prelude/core.lua");

/// The commands that the core of the scripts names, in lower case.
fn documented_commands() -> Vec<String> {
    let (_, rest) = CORE.split_once("the right to:\n--").expect("the core names the commands");
    let (line, _) = rest.split_once('(').expect("the list ends with the commands for a Cluster");
    line.split_whitespace().filter(|word| *word != "--").map(str::to_lowercase).collect()
}

/// Logs the connection in as a user with these permissions and the permission to call scripts.
fn log_in(server: &Server, clients: &mut Clients, rights: &[&str]) {
    let rules = [
        "ACL",
        "SETUSER",
        "limited",
        "reset",
        "on",
        "nopass",
        "resetchannels",
        "~limited:*",
        "&limited:*",
        "+auth",
        "+evalsha",
        "+eval",
    ];
    server.ask::<()>(&[&rules[..], rights].concat());
    redis::cmd("AUTH").arg("limited").arg("").exec(&mut clients.side.connection).unwrap();
}

/// A table on which every operation has an effect. Sessions 1 and 2 hold, 3 and 4 wait, and the
/// lease of 5 ends in a microsecond.
fn busy_table(server: &Server) -> Clients {
    server.ask::<()>(&["FLUSHALL"]);
    let mut clients = Clients::new(server, "limited", Wake::Publish);
    clients.acquire(5, Read, "[10,11]");
    clients.advance(TERMS.ttl - us(1));
    clients.acquire(1, Read, "[0,5]");
    clients.acquire(2, Write, "[7,9]");
    clients.acquire(3, Write, "[0,6]");
    clients.acquire(4, Write, "");
    clients
}

fn operations() -> Vec<(&'static str, Call)> {
    let one = || vec![resource()];
    vec![
        ("acquire", Call::acquire(&request(6, Write, "[20,21]"), 0, false)),
        ("acquire and wait", Call::acquire(&request(6, Write, "[0,1]"), 0, false)),
        ("expire", Call::expire(one())),
        ("break", Call::break_grants(resource(), None, Vec::new(), None)),
        ("shrink", shrink(1, "[0,1]")),
        ("downgrade", downgrade(2, Read)),
        ("release", Call::release(id(1), one())),
        ("renew", Call::renew(id(1), one(), false)),
    ]
}

fn documented_commands_are_sufficient_permissions(kind: Kind) {
    let server = Server::start(kind);
    let rights: Vec<String> = documented_commands().iter().map(|command| format!("+{command}")).collect();
    let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
    for late in [0, 1] {
        for (name, call) in operations() {
            let mut clients = busy_table(&server);
            log_in(&server, &mut clients, &rights);
            clients.advance(us(late));
            let reply = clients.side.try_call(call);
            assert!(reply.is_ok(), "{name}: {reply:?}");
            for number in 1..=6 {
                let reply = clients.side.try_call(Call::renew(id(number), vec![resource()], false));
                assert!(reply.is_ok(), "renew after {name}: {reply:?}");
                for lease in Lease::ALL {
                    let alone = clients.side.try_call(Call::renew_alone(id(number), resource(), TERMS.ttl, lease));
                    assert!(alone.is_ok(), "renew_alone after {name}: {alone:?}");
                }
            }
            clients.holders_and_waiters();
            for number in [3, 1, 2, 4, 5, 6] {
                let reply = clients.side.try_call(Call::release(id(number), vec![resource()]));
                assert!(
                    matches!(reply, Ok(ScriptReply::Released(_) | ScriptReply::Unknown)),
                    "release after {name}: {reply:?}"
                );
            }
            assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
        }
    }
}

fn sole_holder_is_renewed_without_permission_for_setrange(kind: Kind) {
    let server = Server::start(kind);
    let rights: Vec<String> = documented_commands().iter().map(|command| format!("+{command}")).collect();
    let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
    for rights in [rights.clone(), [&rights[..], &["+setrange"]].concat()] {
        server.ask::<()>(&["FLUSHALL"]);
        let mut clients = Clients::new(&server, "limited", Wake::Publish);
        log_in(&server, &mut clients, &rights);
        clients.acquire(1, Write, "");
        for _ in 0..3 {
            clients.advance(TERMS.ttl - us(1));
            let reply = clients.side.try_call(Call::renew(id(1), vec![resource()], false)).unwrap();
            let lease = Some(TERMS.ttl);
            assert!(matches!(reply, ScriptReply::Granted { lease: left, .. } if left == lease), "{reply:?}");
        }
        clients.advance(TERMS.ttl - us(1));
        assert_eq!(clients.holders_and_waiters(), (vec![1], vec![]));
        assert!(matches!(clients.side.try_call(Call::release(id(1), vec![resource()])), Ok(ScriptReply::Released(_))));
    }
}

fn missing_permission_is_reported_before_any_change(kind: Kind) {
    let server = Server::start(kind);
    let mut all: Vec<String> = documented_commands();
    assert_eq!(all.len(), 18, "{all:?}");
    // Only a request for a quiet resource needs these two.
    all.retain(|command| !["exists", "lpush"].contains(&command.as_str()));
    all.push("the channel".to_owned());
    for missing in &all {
        let rights: Vec<String> = match missing.as_str() {
            "the channel" => vec!["+@all".to_owned(), "resetchannels".to_owned()],
            command => vec!["+@all".to_owned(), format!("-{command}")],
        };
        let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
        for late in [0, 1] {
            for (name, call) in operations() {
                // The acquire of the session has made the check for its renewals and its release.
                // As long as no lease has ended, `expire` does not need every command.
                if ["renew", "release"].contains(&name) || name == "expire" && late == 0 {
                    continue;
                }
                let mut clients = busy_table(&server);
                log_in(&server, &mut clients, &rights);
                clients.advance(us(late));
                if missing == "time" {
                    clients.side.setting.now = None;
                }
                let before = snapshot(&mut server.client());
                match clients.side.try_call(call) {
                    Err(error) => {
                        let message =
                            format!("{} {}", error.code(), error.details().unwrap_or_default()).to_lowercase();
                        let known = ["perm", "acl", "the user executing the script can't"]
                            .iter()
                            .any(|words| message.contains(words));
                        assert!(known, "{name} without {missing}: {message}");
                    }
                    other => panic!("{name} without {missing}: {other:?}"),
                }
                let after = snapshot(&mut server.client());
                assert!(after == before, "{name} without {missing} changed the data");
            }
        }
    }
}

fn request_for_a_free_resource_without_permission_changes_nothing(kind: Kind) {
    let server = Server::start(kind);
    for missing in ["exists", "get", "set"] {
        server.ask::<()>(&["FLUSHALL"]);
        let mut clients = Clients::new(&server, "limited", Wake::Publish);
        clients.acquire(1, Write, "");
        clients.release(1);
        log_in(&server, &mut clients, &["+@all", &format!("-{missing}")]);
        let before = snapshot(&mut server.client());
        assert!(clients.try_acquire(2, Write, "").is_err(), "{missing}");
        assert!(snapshot(&mut server.client()) == before, "{missing}");
    }
    for missing in ["exists", "lpush", "hset", "zadd", "set"] {
        server.ask::<()>(&["FLUSHALL"]);
        let mut clients = Clients::new(&server, "limited", Wake::Publish);
        clients.acquire(1, Write, "");
        log_in(&server, &mut clients, &["+@all", &format!("-{missing}")]);
        // An empty history may be left, which says nothing.
        let state = || snapshot(&mut server.client()).into_iter().filter(|(key, ..)| !key.ends_with(":h"));
        let before: Vec<_> = state().collect();
        assert!(clients.try_acquire(2, Write, "").is_err(), "{missing} beside a sole holder");
        assert!(state().eq(before), "{missing} beside a sole holder");
    }
}

/// If another program uses one of the keys, the script fails and does not overwrite the key.
fn foreign_keys_are_not_overwritten(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "foreign", Wake::Publish);
    for key in &clients.side.keys(&resource())[..KINDS_LEN - 1] {
        server.ask::<()>(&["FLUSHALL"]);
        server.ask::<()>(&["SET", key, "mine"]);
        let before = snapshot(&mut server.client());
        for (mode, part) in [(Read, "[0,1]"), (Write, "")] {
            assert!(clients.try_acquire(1, mode, part).is_err(), "{key}");
        }
        assert_eq!(snapshot(&mut server.client()), before, "{key}");
    }
    let mut both = request(1, Write, "");
    both.claims.insert(0, Claim { resource: Resource::new("{r}").unwrap(), ..both.claims[0].clone() });
    for key in &clients.side.keys(&resource())[..KINDS_LEN - 1] {
        server.ask::<()>(&["FLUSHALL"]);
        server.ask::<()>(&["SET", key, "mine"]);
        let before = snapshot(&mut server.client());
        let reply = clients.side.try_call(Call::acquire(&both, 0, false));
        assert!(reply.is_err(), "{key}: {reply:?}");
        assert_eq!(snapshot(&mut server.client()), before, "{key} of another resource");
    }
}
