//! `rlock inspect` and `rlock cleanup`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::servers::{Kind, Server};
use crate::support::{Lab, Ran, wait_until};
use crate::world::{keys, on_each};

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

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

/// The JSON has exactly the documented keys, with values of the documented types.
#[test]
fn json_has_the_documented_keys_and_types() {
    on_each(|lab| {
        let holder = lab.hold_by(["range-write", "k", "[-1.20,inf)", "--ttl", "20s"]);
        let waiter = lab.wait_by(["exec", "--slot", "k=3"]);
        lab.until_waiting("k", 1);
        let shown = lab.inspect([""; 0]);
        assert_eq!((names(&shown), &shown["store"]), (BTreeSet::from(["store", "resources"]), &json!(lab.url())));
        let resource = &shown["resources"][0];
        assert_eq!((names(resource), &resource["name"]), (BTreeSet::from(["name", "holders", "waiters"]), &json!("k")));

        let both = ["session", "mode", "span", "slots", "host", "pid", "user", "command", "owner", "reason", "since"];
        let (held, waits) = (&resource["holders"][0], &resource["waiters"][0]);
        assert_eq!(names(held), both.into_iter().chain(["token", "expires_in_ms", "kept"]).collect());
        assert_eq!(names(waits), both.into_iter().chain(["position"]).collect());
        assert_eq!([&held["mode"], &waits["mode"]], ["write", "slot"]);
        assert_eq!(held["span"], json!({"lo": "-1.20", "hi": "inf", "lo_open": false, "hi_open": true}));
        assert_eq!([&waits["span"], &held["slots"]], [&Value::Null; 2]);
        assert_eq!((&waits["slots"], &waits["position"]), (&json!(3), &json!(1)));
        assert_eq!([&held["pid"], &waits["pid"]], [holder.pid(), waiter.pid()]);
        assert!(held["token"].as_u64().is_some_and(|token| token > 1_500_000_000_000_000));
        assert!(held["expires_in_ms"].as_u64().is_some_and(|left| left <= 20_000), "{held}");
        assert_eq!(held["kept"], json!(false));
        assert_eq!(held["command"], json!(["sh", "-c", "echo held; exec cat >/dev/null"]));
        assert_eq!(held["session"].as_str().map(str::len), Some(32));
        assert!(held["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{held}");
        let free = json!({"name": "free", "holders": [], "waiters": []});
        assert_eq!(lab.inspect(["free"])["resources"], json!([free]), "a free KEY on the command line is listed");
        // The table shows the time that is left of the lease.
        let table = lab.run(["inspect"]).stdout;
        let row = table.lines().nth(1).expect("a row for the holder");
        let lease = row.split_whitespace().nth(6).expect("a column for the lease");
        assert!(lease.ends_with('s'), "{table}");
    });
}

/// An incremental scan finds all keys, even among many foreign keys on a shared server.
#[test]
fn scan_finds_all_resources_among_foreign_keys() {
    crate::support::needs::skip_unless!(Kind::Redis6.is_present());
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
        lab.run(["cleanup", "alive"]).printed("");
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
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
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
            line.strip_prefix(done)
                .expect("the line starts with what is done")
                .replace(", held together with '{k}b'", "")
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

/// The holder gets a message about the break, stops its command and exits 76.
#[test]
fn break_stops_the_holder_and_grants_the_waiter() {
    on_each(|lab| {
        let mut holder = lab.hold_by(["exec", "k", "--write", "{k}j", "--ttl", "10m"]);
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        assert!(
            lab.run(["cleanup", "--break", "--dry-run", "k"])
                .stdout
                .starts_with("would break the hold for write on 'k'")
        );
        assert_eq!(lab.counts("k"), (1, 1));
        assert!(lab.run(["cleanup", "--break", "k"]).stdout.starts_with("broke the hold for write on 'k'"));
        // The lease has ten minutes left, so the holder must have got a message.
        wait_until("the holder ends though its input is open", || !holder.runs());
        let ended = holder.end();
        let said = ended.failed(76);
        assert!(
            said.starts_with("lost: 'k', '{k}j' were taken away") && said.contains("'rlock cleanup --break'"),
            "{said}"
        );
        waiter.expect_held();
        assert_eq!((lab.counts("k"), lab.counts("{k}j")), ((1, 0), (0, 0)));
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// A free resource leaves its state and its history behind, which expire within a week. Keys of
/// live sessions have no time to live.
#[test]
fn free_resource_leaves_two_keys_that_expire_within_a_week() {
    crate::support::needs::skip_unless!(Kind::Valkey9.is_present());
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
