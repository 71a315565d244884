//! A value of another program under a key of one resource makes that resource unusable, and no
//! other.

use std::process::Command;

use serde_json::Value;

use crate::world::each;
use rlock_testkit::servers::Server;
use rlock_testkit::{Lab, RLOCK, Ran};

/// A change to the keys of the resource `k`, given the prefix of the keys and the session of the
/// holder.
type Damage = fn(&Server, &str, &str);

const DAMAGES: [(&str, Damage); 6] = [
    ("a string under :s", |server, keys, _| {
        server.ask::<()>(&["SET", &format!("{keys}s"), "foreign"]);
    }),
    ("a string under :d", |server, keys, _| {
        server.ask::<()>(&["SET", &format!("{keys}d"), "foreign"]);
    }),
    ("a list under :l", |server, keys, _| {
        server.ask::<()>(&["DEL", &format!("{keys}l")]);
        server.ask::<()>(&["LPUSH", &format!("{keys}l"), "foreign"]);
    }),
    ("a string under :e", |server, keys, _| {
        server.ask::<()>(&["SET", &format!("{keys}e"), "foreign"]);
    }),
    ("garbage in a record", |server, keys, session| {
        server.ask::<()>(&["HSET", &format!("{keys}d"), session, "garbage"]);
    }),
    ("an invalid record", |server, keys, session| {
        server.ask::<()>(&["HSET", &format!("{keys}d"), session, "\u{1}"]);
    }),
];

#[test]
fn foreign_value_makes_only_its_resource_unusable() {
    each(|kind| {
        for (what, damage) in DAMAGES {
            let server = Server::on_tcp(kind);
            let lab = Lab::at(server.url());
            let others = ["a", "z"].map(|name| lab.hold(name));
            // No lease ends before the last check, not even on a slow machine.
            let damaged = lab.hold_by(["exec", "k", "--ttl", "10m"]);
            // Beside a waiter, the resource has all its keys.
            let waiter = lab.wait_by(["exec", "k", "--ttl", "10m", "--", "true"]);
            lab.until_waiting("k", 1);
            let session = lab.inspect(["k"])["resources"][0]["holders"][0]["session"].clone();
            let keys = format!("{}:{{k}}:", lab.namespace());
            damage(&server, &keys, session.as_str().expect("the holder has a session id"));

            let said = |stderr: &str| {
                let line = stderr.strip_prefix("rlock: '").and_then(|rest| rest.strip_suffix('\n')).unwrap_or_default();
                assert!(
                    line.starts_with(&format!("k' cannot be used: '{}' has", server.url())),
                    "{kind:?}, {what}: {stderr}"
                );
                assert!(line.contains(&format!("'{keys}*'")) && !line.contains('\n'), "{kind:?}, {what}: {stderr}");
            };
            let ran = lab.run(["inspect", "--json"]);
            assert_eq!(ran.code(), Some(69), "{kind:?}, {what}: {ran:?}");
            said(&ran.stderr);
            let shown: Value = serde_json::from_str(&ran.stdout).expect("inspect --json prints JSON");
            let names = [0, 1].map(|at| shown["resources"][at]["name"].as_str());
            assert_eq!(
                (names, shown["resources"].as_array().map(Vec::len)),
                ([Some("a"), Some("z")], Some(2)),
                "{what}"
            );

            for words in [&["cleanup"][..], &["cleanup", "--dry-run", "a", "k"], &["inspect", "k"], &["cleanup", "k"]] {
                let ran = lab.run(words);
                assert_eq!((ran.code(), ran.stdout.as_str()), (Some(69), ""), "{kind:?}, {what}, {words:?}: {ran:?}");
                said(&ran.stderr);
            }
            let ran = lab.run(["exec", "-n", "k", "--", "true"]);
            let line = ran.failed(69);
            assert!(
                line.contains(&format!("'{}' has a value", server.url())) && line.contains(&keys),
                "{what}: {line}"
            );
            lab.run(["exec", "free", "--", "true"]).silently(0);
            assert_eq!(lab.counts("a"), (1, 0));
            others.into_iter().for_each(|holder| holder.end().silently(0));
            drop(waiter);
            damaged.kill();
        }
    });
}

/// An rlock that meets the state of another format changes nothing, says so in one line and exits
/// with 69.
#[test]
fn state_of_another_format_is_left_alone() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold("other");
        lab.run(["exec", "k", "--", "true"]).silently(0);
        let key = format!("{}:{{k}}:s", lab.namespace());
        let start = "return string.sub(redis.call('GET', KEYS[1]), 1, 3) == '\\162R4' and 1 or 0";
        assert_eq!(server.ask::<u32>(&["EVAL", start, "1", &key]), 1, "{kind:?}");
        let reason = format!(
            "'{}' keeps '{}:{{k}}:*' in format 5, and this rlock knows format 4: use one version of rlock in a namespace",
            server.url(),
            lab.namespace()
        );
        let words = [
            &["exec", "k", "--", "true"][..],
            &["exec", "-n", "k", "--", "true"],
            &["exec", "--read", "k", "--read", "{k}2", "--", "true"],
            &["range-write", "k", "1", "2", "--", "true"],
            &["inspect"],
            &["inspect", "k"],
            &["cleanup"],
            &["cleanup", "k"],
            &["cleanup", "--break", "k"],
        ];
        let write = "redis.call('SET', KEYS[1], '\\162R5 and what only that format knows')";
        server.ask::<()>(&["EVAL", write, "1", &key]);
        let dump = || server.ask::<Vec<u8>>(&["DUMP", &key]);
        let before = dump();
        for words in words {
            let ran = lab.run(words);
            assert_eq!(ran.code(), Some(69), "{kind:?}, {words:?}: {ran:?}");
            assert!(
                ran.stderr.lines().count() == 1 && ran.stderr.contains("in format 5"),
                "{kind:?}, {words:?}: {ran:?}"
            );
            assert!(dump() == before, "{kind:?}, {words:?} changed the state");
        }
        assert!(lab.run(["exec", "k", "--", "true"]).stderr.contains(&reason.replace(": use", "; use")), "{kind:?}");
        holder.end().silently(0);
    });
}

/// "cleanup --break" breaks every KEY that it can, even if another KEY fails.
#[test]
fn break_continues_after_a_key_with_a_foreign_value() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let lab = Lab::at(server.url());
        let mut holder = lab.hold("z");
        server.ask::<()>(&["SET", &format!("{}:{{k}}:d", lab.namespace()), "foreign"]);
        let ran = lab.run(["cleanup", "--break", "k", "z"]);
        assert_eq!(ran.code(), Some(69), "{kind:?}: {ran:?}");
        assert!(ran.stdout.starts_with("broke the hold for write on 'z'"), "{kind:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{kind:?}: {ran:?}");
        rlock_testkit::wait_until("the holder ends", || !holder.runs());
        assert_eq!(holder.end().code(), Some(76));
    });
}

/// "One line on standard error names the resource and its keys."
#[test]
fn watch_names_the_resource_that_its_first_look_has_to_leave_out() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let lab = Lab::at(server.url());
        server.ask::<()>(&["SET", &format!("{}:{{k}}:s", lab.namespace()), "foreign"]);
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        // The watch ends with its reader.
        shell.args(["-c", "\"$1\" inspect --watch 2>&1 | head -n 1", "sh", RLOCK]);
        let line = Ran::of(&mut shell).stdout;
        assert!(line.starts_with(&format!("rlock: 'k' cannot be used: '{}' has", server.url())), "{kind:?}: {line}");
    });
}
