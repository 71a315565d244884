//! `rlock inspect` and `rlock cleanup`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::servers::{Kind, Server};
use crate::support::{Lab, Ran, wait_until};
use crate::world::{keys, on_each};

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// The names of all resources that are held or waited for.
fn resources(lab: &Lab) -> BTreeSet<String> {
    let shown = lab.inspect([""; 0]);
    let list = shown["resources"].as_array().expect("a list");
    list.iter().map(|resource| resource["name"].as_str().expect("a name").to_owned()).collect()
}

fn expires(lab: &Lab, resource: &str) -> Option<u64> {
    lab.inspect([resource])["resources"][0]["holders"][0]["expires_in_ms"].as_u64()
}

/// The JSON has exactly these keys, of these types.
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

        let both = ["session", "mode", "span", "slots", "host", "pid", "user", "command", "since"];
        let (held, waits) = (&resource["holders"][0], &resource["waiters"][0]);
        assert_eq!(names(held), both.into_iter().chain(["token", "expires_in_ms"]).collect());
        assert_eq!(names(waits), both.into_iter().chain(["position"]).collect());
        assert_eq!([&held["mode"], &waits["mode"]], ["write", "slot"]);
        assert_eq!(held["span"], json!({"lo": "-1.20", "hi": "inf", "lo_open": false, "hi_open": true}));
        assert_eq!([&waits["span"], &held["slots"]], [&Value::Null; 2]);
        assert_eq!((&waits["slots"], &waits["position"]), (&json!(3), &json!(1)));
        assert_eq!([&held["pid"], &waits["pid"]], [holder.pid(), waiter.pid()]);
        assert!(held["token"].as_u64().is_some_and(|token| token > 1_500_000_000_000_000));
        assert!(held["expires_in_ms"].as_u64().is_some_and(|left| left <= 20_000), "{held}");
        assert_eq!(held["command"], json!(["sh", "-c", "echo held; exec cat >/dev/null"]));
        assert_eq!(held["session"].as_str().map(str::len), Some(32));
        assert!(held["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{held}");
        let free = json!({"name": "free", "holders": [], "waiters": []});
        assert_eq!(lab.inspect(["free"])["resources"], json!([free]), "a named KEY that nobody holds is listed");
        // What is left of the lease, in the table for people.
        let table = lab.run(["inspect"]).stdout;
        let row = table.lines().nth(1).expect("a row for the holder");
        let lease = row.split_whitespace().nth(7).expect("a column for the lease");
        assert!(lease.ends_with('s'), "{table}");
    });
}

/// An incremental scan finds all keys, also among many foreign keys on a shared server.
#[test]
fn all_is_found_among_foreign_keys() {
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
    // Some that look almost like rlock's own.
    for key in ["{}:1:{x}:d", "{}:2:{x}:d", "{}:1:{x}:z", "{}:1:x:d", "x{}:1:{x}:d", "{}:1:{%zz}:d"] {
        server.ask::<()>(&["SET", &key.replacen("{}", lab.namespace(), 1), "foreign"]);
    }
    server.ask::<()>(&["DEL", &format!("{}:1:{{x}}:d", lab.namespace())]);
    let held: Vec<_> = ["a", "b", "c"].map(|name| lab.hold(name)).into();
    let _elsewhere = other.hold("d");
    assert_eq!(resources(&lab), ["a", "b", "c"].map(str::to_owned).into());
    assert_eq!(resources(&other), BTreeSet::from(["d".to_owned()]));
    held.into_iter().for_each(|holder| holder.end().silently(0));
    lab.assert_idle();
    assert!(server.ask::<u32>(&["DBSIZE"]) > 100_000, "somebody else's keys are gone");
}

/// A colon in a name is no separator of keys, and braces choose the slot only.
#[test]
fn names_may_be_anything() {
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

/// "the same KEY in two namespaces is two resources", whatever the namespaces are called
#[test]
fn namespaces_are_apart() {
    on_each(|lab| {
        // Behind the lab's own, since others use the server too.
        let spaces = ["", ":1", "*", "{x}", " y"].map(|end| format!("{}{end}", lab.namespace()));
        let hold = |space: &String| lab.hold_by(["exec", "k", "--namespace", space]);
        let holders: Vec<_> = spaces.iter().map(hold).collect();
        for space in &spaces {
            let shown = lab.inspect(["--namespace", space]);
            assert_eq!(shown["resources"].as_array().map(Vec::len), Some(1), "{space}: {shown}");
        }
        holders.into_iter().for_each(|holder| holder.end().silently(0));
        for space in &spaces {
            lab.run(["inspect", "--namespace", space]).printed("nobody holds or waits\n");
        }
    });
}

/// Inspect never changes state; what it shows as expired, cleanup reaps.
#[test]
fn the_expired_are_shown_until_they_are_reaped() {
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
        assert_eq!(expires(&lab, "k"), Some(0), "it is shown as long as nobody reaps it");
        lab.run(["cleanup"]).printed(&line("removed"));
        lab.run(["cleanup"]).printed("");
        assert_eq!((lab.counts("k"), lab.counts("alive")), ((0, 0), (1, 0)));
        alive.end().silently(0);
        lab.assert_idle();
    });
}

/// `inspect` changes nothing.
#[test]
fn inspect_changes_nothing() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let lab = Lab::at(server.url());
    let _holder = lab.hold("k");
    let _waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    // Only the test's own user may write from now on; rlock's holder and waiter stay connected as
    // who they are.
    server.ask::<()>(&["ACL", "SETUSER", "reader", "on", "nopass", "~*", "&*", "+@all", "-@write", "-publish"]);
    let reader = server.url().replacen("redis+unix://", "redis+unix://reader:x@", 1);
    let ran = lab.run(["inspect", "--json", "--store", &reader, "k"]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.stdout.contains("\"position\":1"), "{ran:?}");
}

/// A request is one: what is removed or broken of it by the name of one resource goes with all the
/// others, and so does what a dry run names.
#[test]
fn a_dry_run_tells_all_that_the_real_one_does() {
    let sorted = |ran: Ran, done: &str| {
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let line =
            |line: &str| line.strip_prefix(done).expect("what is done").replace(", held together with '{k}b'", "");
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

/// Break tells the holder, whose command is stopped and who exits 76.
#[test]
fn break_stops_the_holder_and_lets_the_next_one_in() {
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
        // Its lease has ten minutes to go: it is told.
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

/// Idle state goes after 7 days: what is left behind is one small key with a time to live, and no
/// key of the living has one.
#[test]
fn little_is_left_and_not_for_ever() {
    crate::support::needs::skip_unless!(Kind::Valkey9.is_present());
    let server = Server::start(Kind::Valkey9);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    for key in keys(&server, lab.namespace()) {
        assert_eq!(server.ask::<i64>(&["TTL", &key]), -1, "{key} would vanish under its holder");
    }
    holder.end().silently(0);
    let left = keys(&server, lab.namespace());
    assert_eq!(left, [format!("{}:1:{{k}}:d", lab.namespace())]);
    let ttl: i64 = server.ask(&["TTL", &left[0]]);
    assert!((1..=7 * 24 * 3600).contains(&ttl), "{ttl}");
    assert_eq!(server.ask::<u32>(&["DBSIZE"]), 1);
}
