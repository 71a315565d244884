//! `rlock inspect` and `rlock cleanup`.

use std::collections::BTreeSet;

use crate::world::{keys, on_each};
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, Ran, wait_until};

/// Returns the names of all resources that are held or waited for.
fn resources(lab: &Lab) -> BTreeSet<String> {
    let shown = lab.inspect([""; 0]);
    let list = shown["resources"].as_array().expect("a list");
    list.iter().map(|resource| resource["name"].as_str().expect("a name").to_owned()).collect()
}

/// The time until the last lease of the holders of a resource ends, in milliseconds.
fn expires(lab: &Lab, resource: &str) -> Option<u64> {
    let shown = lab.inspect([resource]);
    let holders = shown["resources"][0]["holders"].as_array()?;
    holders.iter().map(|holder| holder["expires_in_ms"].as_u64()).max()?
}

/// An incremental scan finds all keys, even among many foreign keys on a shared server.
#[test]
fn scan_finds_all_resources_among_foreign_keys() {
    rlock_testkit::needs::skip_unless!(Kind::Redis6.is_present());
    let server = Server::start(Kind::Redis6);
    let (lab, other) = (Lab::at(server.url()), Lab::at(server.url()));
    let mut client = server.client();
    for thousand in 0..100 {
        let mut pipe = redis::pipe();
        for one in 0..1000 {
            pipe.set(format!("foreign:{thousand}:{one}"), "x").ignore();
        }
        pipe.query::<()>(&mut client).expect("the server takes them");
    }
    // These foreign keys look almost like keys of rlock.
    for key in ["{}:{x}:s", "{}:1:{x}:s", "{}:{x}:z", "{}:x:s", "x{}:{x}:s", "{}:{%zz}:s"] {
        server.ask::<()>(&["SET", &key.replacen("{}", lab.namespace(), 1), "foreign"]);
    }
    server.ask::<()>(&["DEL", &format!("{}:{{x}}:s", lab.namespace())]);
    let held: Vec<_> = ["a", "b", "c"].map(|name| lab.hold(name)).into();
    let _elsewhere = other.hold("d");
    assert_eq!(resources(&lab), ["a", "b", "c"].map(str::to_owned).into());
    assert_eq!(resources(&other), BTreeSet::from(["d".to_owned()]));
    held.into_iter().for_each(|holder| holder.end().silently(0));
    lab.assert_idle();
    assert!(server.ask::<u32>(&["DBSIZE"]) > 100_000, "foreign keys are gone");
}

/// A colon in a name does not separate parts of a key, and braces only choose the slot.
#[test]
fn names_with_special_characters_work() {
    on_each(|lab| {
        let odd = [
            "a:b",
            "a:b:c:d",
            "{",
            "}",
            "{}",
            "{}x",
            "{a}",
            "{a}b",
            "x{a}b",
            "{a}{b}",
            "{{a}}",
            "%",
            "%41",
            "a b",
            "*",
            "?",
            "[a]",
            "\\",
            "ä",
            "日本",
            "'",
            "\"",
            "$x",
            "~/@+=,.-_",
        ];
        let holders: Vec<_> = odd.iter().map(|name| lab.hold(name)).collect();
        assert_eq!(resources(&lab), odd.iter().map(|&name| name.to_owned()).collect());
        for name in odd {
            assert_eq!(lab.counts(name), (1, 0), "{name}");
            lab.run(["exec", "-nq", name, "--", "true"]).silently(75);
        }
        lab.run(["exec", "-nq", "A", "--", "true"]).silently(0);
        holders.into_iter().for_each(|holder| holder.end().silently(0));
        lab.assert_idle();
    });
}

/// "the same KEY in two namespaces is two resources", whatever the names of the namespaces
#[test]
fn same_key_in_two_namespaces_is_two_resources() {
    on_each(|lab| {
        // The namespaces start with the lab's own, since other tests use the server as well.
        let spaces = ["", ":1", "*", "{x}", " y"].map(|end| format!("{}{end}", lab.namespace()));
        let hold = |space: &String| lab.hold_by(["exec", "k", "--namespace", space]);
        let holders: Vec<_> = spaces.iter().map(hold).collect();
        for space in &spaces {
            let shown = lab.inspect(["--namespace", space]);
            assert_eq!(shown["resources"].as_array().map(Vec::len), Some(1), "{space}: {shown}");
        }
        holders.into_iter().for_each(|holder| holder.end().silently(0));
        for space in &spaces {
            assert!(lab.run(["inspect", "--namespace", space]).stdout.starts_with("nobody holds or waits\n"));
        }
    });
}

/// `inspect` changes nothing. It shows an expired holder until `cleanup` reaps the holder.
#[test]
fn expired_holder_is_shown_until_cleanup_reaps_it() {
    on_each(|lab| {
        let holder = lab.hold_by(["range-write", "k", "1", "2", "--ttl", "3s", "--grace", "100ms"]);
        let alive = lab.hold("alive");
        let held = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        lab.run(["cleanup"]).printed("");
        holder.kill();
        wait_until("the lease ends", || expires(&lab, "k") == Some(0));
        let text = |name: &str| held[name].as_str().expect("text");
        let (user, host, since, pid) = (text("user"), text("host"), text("since"), &held["pid"]);
        let of = format!("of {user}@{host}, pid {pid}, 'sh -c echo held; exec cat >/dev/null', since {since}\n");
        let line = |done: &str| format!("{done} the hold for write on 'k' ([1,2]) {of}");
        for words in [&["cleanup", "--dry-run"][..], &["cleanup", "--dry-run", "k", "j"]] {
            lab.run(words).printed(&line("would remove"));
        }
        let text = "'alive' for write is a live lock: 'rlock break' takes it away, 'rlock inspect' shows who holds it";
        lab.run(["cleanup", "alive"]).said(0, text);
        assert_eq!(expires(&lab, "k"), Some(0), "it is shown until it is reaped");
        lab.run(["cleanup"]).printed(&line("removed"));
        lab.run(["cleanup"]).printed("");
        assert_eq!((lab.counts("k"), lab.counts("alive")), ((0, 0), (1, 0)));
        alive.end().silently(0);
        lab.assert_idle();
    });
}

/// `inspect` works for a user without the right to write.
#[test]
fn inspect_works_without_the_right_to_write() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let lab = Lab::at(server.url());
    let _holder = lab.hold("k");
    let _waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    // From now on, the user `reader` is the only one without the right to write. The holder and the
    // waiter stay connected as the default user.
    server.ask::<()>(&["ACL", "SETUSER", "reader", "on", "nopass", "~*", "&*", "+@all", "-@write", "-publish"]);
    let reader = server.url().replacen("redis+unix://", "redis+unix://reader:x@", 1);
    let ran = lab.run(["inspect", "--json", "--store", &reader, "k"]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.stdout.contains("\"position\":1"), "{ran:?}");
}

/// A request is removed or broken as a whole, even if only one of its resources is named. A dry run
/// prints all of its claims as well.
#[test]
fn dry_run_prints_the_same_claims_as_the_real_run() {
    let sorted = |ran: Ran, done: &str| {
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let line = |line: &str| {
            let claim = line.strip_prefix(done).expect("the line starts with what is done");
            let claim = claim.split_once("; it was released").map_or(claim, |(claim, _)| claim);
            claim.replace(", held together with '{k}b'", "")
        };
        let mut lines: Vec<_> = ran.stdout.lines().map(line).collect();
        lines.sort();
        lines
    };
    on_each(|lab| {
        let mut holder = lab.hold_by(["exec", "{k}a", "--write", "{k}b"]);
        let dry = sorted(lab.run(["cleanup", "--break", "--dry-run", "{k}a", "{k}b"]), "would break ");
        assert_eq!(dry.len(), 2, "{dry:?}");
        assert_eq!(sorted(lab.run(["cleanup", "--break", "--dry-run", "{k}b"]), "would break "), dry);
        assert_eq!((lab.counts("{k}a"), lab.counts("{k}b")), ((1, 0), (1, 0)));
        assert_eq!(sorted(lab.run(["cleanup", "--break", "{k}b"]), "broke "), dry);
        lab.run(["cleanup", "--break", "{k}b"])
            .said(1, "nobody holds '{k}b': nothing to break; 'rlock inspect' shows what is held");
        wait_until("the holder ends though its input is open", || !holder.runs());

        let short = |words: &[&'static str]| lab.hold_by(words.iter().chain(&["--ttl", "3s", "--grace", "100ms"]));
        let both = [short(&["exec", "{k}a", "--write", "{k}b"]), short(&["exec", "{k}c", "--write", "{k}d"])];
        let third = short(&["exec", "--read", "{k}e"]);
        let fourth = short(&["exec", "--read", "{k}e"]);
        both.into_iter().chain([third, fourth]).for_each(|holder| drop(holder.kill()));
        wait_until("the leases end", || {
            ["{k}a", "{k}b", "{k}c", "{k}d", "{k}e"].iter().all(|name| expires(&lab, name) == Some(0))
        });
        for (names, claims) in [(&["{k}a"][..], 2), (&["{k}d", "{k}e"], 4)] {
            let cleanup = |words: &[&'static str]| lab.run(words.iter().chain(names));
            let dry = sorted(cleanup(&["cleanup", "--dry-run"]), "would remove ");
            assert_eq!(dry.len(), claims, "{dry:?}");
            assert_eq!(sorted(cleanup(&["cleanup", "--break", "--dry-run"]), "would remove "), dry);
            assert_eq!(sorted(cleanup(&["cleanup"]), "removed "), dry);
        }
        lab.assert_idle();
    });
}

/// A free resource leaves its state and its history behind, which expire within a week. Keys of
/// live sessions have no time to live.
#[test]
fn free_resource_leaves_two_keys_that_expire_within_a_week() {
    rlock_testkit::needs::skip_unless!(Kind::Valkey9.is_present());
    let server = Server::start(Kind::Valkey9);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    for key in keys(&server, lab.namespace()) {
        assert_eq!(server.ask::<i64>(&["TTL", &key]), -1, "{key} would vanish under its holder");
    }
    holder.end().silently(0);
    let left: BTreeSet<_> = keys(&server, lab.namespace()).into_iter().collect();
    assert_eq!(left, ["s", "h"].map(|kind| format!("{}:{{k}}:{kind}", lab.namespace())).into());
    for key in left {
        let ttl: i64 = server.ask(&["TTL", &key]);
        assert!((1..=7 * 24 * 3600).contains(&ttl), "{key}: {ttl}");
    }
    assert_eq!(server.ask::<u32>(&["DBSIZE"]), 2);
}
