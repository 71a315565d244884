//! A user needs the right to the commands that the head of the scripts names, and to no other; one who lacks any of them is told so
//! before anything is changed.

use rlock::lock::mode::Mode::{Read, Write};
use rlock::lock::request::Claim;
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::store::redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::party::{Party, TERMS, id, request, resource, snapshot, us};
use crate::support::servers::{Kind, Server};

on_each_server!(
    the_commands_named_are_enough,
    a_right_that_is_missing_is_told_before_anything_is_changed,
    foreign_keys_are_left_alone
);

const HEAD: &str = include_str!("../../../src/store/redis/lua/prelude/head.lua");

/// The commands that the head of the scripts names.
fn named() -> Vec<String> {
    let (_, rest) = HEAD.split_once("the right to:\n--").expect("the head names the commands");
    let (line, _) = rest.split_once('(').expect("it ends with that for a Cluster");
    line.split_whitespace().map(str::to_lowercase).collect()
}

/// Logs a connection in as a user with these rights, beside those to call scripts.
fn log_in(server: &Server, party: &mut Party, rights: &[&str]) {
    let rules = [
        "ACL",
        "SETUSER",
        "limited",
        "reset",
        "on",
        "nopass",
        "resetchannels",
        "~limited:1:*",
        "&limited:1:*",
        "+auth",
        "+evalsha",
        "+eval",
    ];
    server.ask::<()>(&[&rules[..], rights].concat());
    redis::cmd("AUTH").arg("limited").arg("").exec(&mut party.side.connection).unwrap();
}

/// A table in which every operation has something to do: 1 and 2 hold, 3 and 4 wait, and what 5 holds is over in a microsecond.
fn busy_table(server: &Server) -> Party {
    server.ask::<()>(&["FLUSHALL"]);
    let mut party = Party::new(server, "limited", Wake::Publish);
    party.ask(5, Read, "[10,11]");
    party.later(TERMS.ttl - us(1));
    party.ask(1, Read, "[0,5]");
    party.ask(2, Write, "[7,9]");
    party.ask(3, Write, "[0,6]");
    party.ask(4, Write, "");
    party
}

fn operations() -> Vec<(&'static str, Call)> {
    let one = || vec![resource()];
    vec![
        ("acquire", Call::acquire(&request(6, Write, "[20,21]"), 0, false)),
        ("acquire and wait", Call::acquire(&request(6, Write, "[0,1]"), 0, false)),
        ("expire", Call::expire(one())),
        ("break", Call::break_grants(resource())),
        ("shrink", Call::shrink(id(1), one(), &Span::parse("[0,1]").unwrap())),
        ("downgrade", Call::downgrade(id(2), one(), Read)),
        ("release", Call::release(id(1), one())),
        ("renew", Call::renew(id(1), one(), false)),
    ]
}

fn the_commands_named_are_enough(kind: Kind) {
    let server = Server::start(kind);
    let rights: Vec<String> = named().iter().map(|command| format!("+{command}")).collect();
    let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
    for late in [0, 1] {
        for (name, call) in operations() {
            let mut party = busy_table(&server);
            log_in(&server, &mut party, &rights);
            party.later(us(late));
            let reply = party.side.try_call(call);
            assert!(reply.is_ok(), "{name}: {reply:?}");
            for number in 1..=6 {
                let reply = party.side.try_call(Call::renew(id(number), vec![resource()], false));
                assert!(reply.is_ok(), "renew after {name}: {reply:?}");
                let alone = party.side.try_call(Call::renew_alone(id(number), resource(), TERMS.ttl));
                assert!(alone.is_ok(), "renew_alone after {name}: {alone:?}");
            }
            party.standing();
            for number in [3, 1, 2, 4, 5, 6] {
                let reply = party.side.try_call(Call::release(id(number), vec![resource()]));
                assert!(
                    matches!(reply, Ok(ScriptReply::Released(_) | ScriptReply::Unknown)),
                    "release after {name}: {reply:?}"
                );
            }
            assert_eq!(party.standing(), (vec![], vec![]));
        }
    }
}

fn a_right_that_is_missing_is_told_before_anything_is_changed(kind: Kind) {
    let server = Server::start(kind);
    let mut all: Vec<String> = named();
    assert_eq!(all.len(), 13, "{all:?}");
    all.push("the channel".to_owned());
    for missing in &all {
        let rights: Vec<String> = match missing.as_str() {
            "the channel" => vec!["+@all".to_owned(), "resetchannels".to_owned()],
            command => vec!["+@all".to_owned(), format!("-{command}")],
        };
        let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
        for late in [0, 1] {
            for (name, call) in operations() {
                if ["expire", "renew"].contains(&name) && late == 0 {
                    continue; // Nothing is over, and little is done.
                }
                let mut party = busy_table(&server);
                log_in(&server, &mut party, &rights);
                party.later(us(late));
                if missing == "time" {
                    party.side.setting.now = None;
                }
                let before = snapshot(&mut server.client());
                match party.side.try_call(call) {
                    Err(error) => {
                        let said = format!("{} {}", error.code(), error.details().unwrap_or_default()).to_lowercase();
                        let known = ["perm", "acl", "the user executing the script can't"]
                            .iter()
                            .any(|words| said.contains(words));
                        assert!(known, "{name} without {missing}: {said}");
                    }
                    other => panic!("{name} without {missing}: {other:?}"),
                }
                let after = snapshot(&mut server.client());
                assert!(after == before, "{name} without {missing} changes something");
            }
        }
    }
}

/// What somebody else keeps under one of the keys is an error, not overwritten.
fn foreign_keys_are_left_alone(kind: Kind) {
    let server = Server::start(kind);
    let mut party = Party::new(&server, "foreign", Wake::Publish);
    for key in party.side.keys(&resource()) {
        server.ask::<()>(&["FLUSHALL"]);
        server.ask::<()>(&["SET", &key, "mine"]);
        let before = snapshot(&mut server.client());
        for (mode, part) in [(Read, "[0,1]"), (Write, "")] {
            assert!(party.try_ask(1, mode, part).is_err(), "{key}");
        }
        assert_eq!(snapshot(&mut server.client()), before, "{key}");
    }
    let mut both = request(1, Write, "");
    both.claims.insert(0, Claim { resource: Resource::new("{r}").unwrap(), ..both.claims[0].clone() });
    for key in party.side.keys(&resource()) {
        server.ask::<()>(&["FLUSHALL"]);
        server.ask::<()>(&["SET", &key, "mine"]);
        let before = snapshot(&mut server.client());
        let reply = party.side.try_call(Call::acquire(&both, 0, false));
        assert!(reply.is_err(), "{key}: {reply:?}");
        assert_eq!(snapshot(&mut server.client()), before, "{key} of another resource");
    }
}
