//! The ACL rule with the fewest rights, as the manual page prints it. A user with this rule can run
//! everything that names its KEYs. With one right fewer, a command fails with a clear error and
//! leaves the keys unchanged.

use std::collections::BTreeMap;

use crate::world::{check, each, expiry, has_waitaof};
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::servers::{Kind, Server, ask};
use rlock_testkit::{Lab, RLOCK, Ran, wait_until};

/// The source of rlock-redis(7).
const PAGE: &str = include_str!("../../src/cli/pages/redis.txt");

/// Returns the ACL rules of the manual page, each as the words after the user name.
fn rules() -> Vec<Vec<&'static str>> {
    let rest = PAGE.split("ACL SETUSER rlock ").skip(1);
    let end = |text: &'static str| text.find('`').into_iter().chain(text.find("\n\n")).min().unwrap_or(text.len());
    rest.map(|text| text[..end(text)].split_whitespace().collect()).collect()
}

/// Returns the first rule of the manual page.
fn rule() -> Vec<&'static str> {
    let rule = rules().into_iter().next().expect("the man page has a rule");
    assert!(rule.contains(&"~rlock:*") && rule.contains(&"&rlock:*"), "{rule:?}");
    rule
}

/// Returns the rule that adds this right.
fn rule_adding(right: &str) -> Vec<&'static str> {
    let adds = |rule: &Vec<&str>| !rule.contains(&"reset") && rule.contains(&right);
    rules().into_iter().find(adds).unwrap_or_else(|| panic!("no rule of the man page adds {right}"))
}

/// Creates the user, or gives the user more rights.
fn set_user(connection: &mut redis::Connection, rule: &[&str]) {
    let words: Vec<_> =
        rule.iter().map(|word| if *word == ">PASSWORD" { ">sesame".to_owned() } else { (*word).to_owned() }).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    ask::<()>(connection, &[&["ACL", "SETUSER", "rlock"], &words[..]].concat());
}

/// Starts a server. Returns a lab for its default user and a lab for the user of the rule, both in
/// the namespace that the rule allows.
fn labs(kind: Kind) -> (Server, Lab, Lab) {
    let server = Server::on_tcp(kind);
    let lab = |url: String| Lab::at(url).with("RLOCK_NAMESPACE", "rlock");
    let (all, few) = (lab(server.url()), lab(server.url().replace("//", "//rlock:sesame@")));
    (server, all, few)
}

/// Runs everything that names its KEYs.
fn run_everything(lab: &Lab) {
    lab.run(["exec", "k", "--", RLOCK, "exec", "--read", "k", "--", "echo", "in"]).printed("in\n");
    lab.run(["exec", "--read", "{k}a", "--prewrite", "{k}b", "--slot", "{k}c=2", "--", "true"]).silently(0);
    let holder = lab.hold_by(["range-write", "k", "1", "2", "--ttl", "4s", "--grace", "200ms"]);
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    lab.run(["exec", "-qw", "1500ms", "k", "--", "true"]).silently(75);
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let text = "[1,2] of 'k' for write is a live lock: 'rlock break' takes it away, 'rlock inspect' shows who holds it";
    lab.run(["cleanup", "k"]).said(0, text);
    holder.end().silently(0);
    waiter.expect_held();
    assert!(lab.run(["inspect", "k"]).stdout.contains("holds"));
    assert!(lab.run(["history", "k"]).stdout.contains("exit 0"));
    assert_eq!(lab.run(["inspect", "k", "--prometheus"]).code(), Some(0));
    assert!(lab.run(["cleanup", "--break", "k"]).stdout.starts_with("broke the hold"));
    let mut broken = waiter;
    wait_until("the holder ends though its input is open", || !broken.runs());
    assert_eq!(broken.end().code(), Some(76));
    let script = format!("'{RLOCK}' shrink 1 1.5 && '{RLOCK}' downgrade read");
    lab.run(["range-write", "k", "1", "2", "-c", &script]).silently(0);
}

/// A user with only these rights can run everything that names its KEYs.
#[test]
fn user_with_the_minimal_rule_can_run_everything_that_names_its_keys() {
    each(|kind| {
        let (server, all, few) = labs(kind);
        set_user(&mut server.client(), &rule());
        run_everything(&few);
        all.assert_idle();
    });
}

/// doctor works with the rule, and finds a right that is missing before two sessions meet.
#[test]
fn doctor_finds_the_right_that_the_rule_lacks() {
    each(|kind| {
        let (server, _all, few) = labs(kind);
        set_user(&mut server.client(), &rule());
        let ran = few.run(["doctor"]);
        assert_eq!(ran.code(), Some(0), "{kind:?} {ran:?}");
        assert!(check(&ran, "locks").starts_with("ok") && check(&ran, "latency").starts_with("ok"), "{kind:?} {ran:?}");
        server.ask::<()>(&["ACL", "SETUSER", "rlock", "-hset"]);
        // A free resource does not need it.
        few.run(["exec", "free", "--", "true"]).silently(0);
        let ran = few.run(["doctor"]);
        let said = check(&ran, "locks");
        assert!(said.contains("the command 'hset'") && ran.code() == Some(69), "{kind:?} {ran:?}");
    });
}

/// A command that needs one right more works with the rule that the manual page gives for it, and
/// fails without that rule.
#[test]
fn command_that_needs_one_more_right_fails_without_and_works_with_it() {
    each(|kind| {
        let (server, _all, few) = labs(kind);
        let mut admin = server.client();
        set_user(&mut admin, &rule());
        let denied = |ran: &Ran, command: &str| {
            let said = ran.failed(69);
            assert!(
                said.contains(&format!("'{}'", server.url())) && said.contains("does not let this user"),
                "{kind:?}: {said}"
            );
            assert!(said.contains(command), "{kind:?}: {said}");
        };
        let database = few.url() + "/2";
        for (right, words) in [
            ("+scan", &["inspect"][..]),
            ("+scan", &["history"]),
            ("+scan", &["cleanup"]),
            ("+wait", &["exec", "--replicas", "1", "--connect-timeout", "1s", "k", "--", "true"]),
            ("+waitaof", &["exec", "--replicas", "0+disk", "--connect-timeout", "1s", "k", "--", "true"]),
            ("+select", &["exec", "--store", &database, "-q", "k", "--", "true"]),
        ] {
            if right == "+waitaof" && !has_waitaof(&server) {
                continue;
            }
            let run = || few.run(words);
            denied(&run(), &right[1..]);
            set_user(&mut admin, &rule_adding(right));
            let ran = run();
            // The server has no replica and no append-only file, so `--replicas` fails, but only
            // after it was allowed to WAIT.
            let replicas = right.starts_with("+wait") && ran.code() == Some(69) && !ran.stderr.contains("does not let");
            assert!(replicas || ran.code() == Some(0), "{kind:?}, {right}: {ran:?}");
            set_user(&mut admin, &rule());
        }
    });
}

/// Returns every key with its content, but without the time of the last renewal. The test for the
/// right to publish publishes on the holder's own channel, and the holder then renews. Histories
/// are left out, since a denied request may leave an empty one.
fn dump(server: &Server) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut client = server.client();
    let keys: Vec<String> = ask(&mut client, &["KEYS", "*"]);
    let what = |key: &str, client: &mut redis::Connection| -> Vec<Vec<u8>> {
        if key.ends_with(":s") {
            let fields = "local raw = redis.call('GET', KEYS[1]) return string.sub(raw, 1, 4) .. string.sub(raw, 21)";
            vec![ask(client, &["EVAL", fields, "1", key])]
        } else if key.ends_with(":e") {
            ask(client, &["ZRANGE", key, "-inf", "+inf", "BYSCORE"])
        } else {
            vec![ask(client, &["DUMP", key])]
        }
    };
    let keys = keys.into_iter().filter(|key| !key.ends_with(":h"));
    keys.map(|key| (key.clone(), what(&key, &mut client))).collect()
}

/// With one right fewer, a command fails with a clear error and leaves the keys unchanged.
#[test]
fn command_without_one_right_fails_and_changes_nothing() {
    each(|kind| {
        let rule = rule();
        // Without these rights there is no complete history, and everything else works.
        let needless = |word: &&&str| {
            ["reset", "resetchannels", "on", ">PASSWORD", "+setrange", "+ltrim", "+lindex", "+lset", "+lrange"]
                .contains(*word)
        };
        let rights: Vec<_> = rule.iter().filter(|word| !needless(word)).collect();
        let rule = &rule;
        std::thread::scope(|scope| {
            for some in rights.chunks(rights.len().div_ceil(3)) {
                scope.spawn(move || some.iter().for_each(|right| assert_right_is_needed(kind, rule, right)));
            }
        });
    });
}

fn assert_right_is_needed(kind: Kind, rule: &[&str], right: &str) {
    let (server, all, few) = labs(kind);
    let fewer: Vec<_> = rule.iter().copied().filter(|word| *word != right).collect();
    set_user(&mut server.client(), &fewer);
    // The holder subscribes a second after its grant and then renews. After that, the keys do not
    // change for twenty minutes.
    let holder = all.hold_by(["range-write", "held", "1", "2", "--ttl", "1h"]);
    let held = all.inspect(["held"])["resources"][0]["holders"][0].clone();
    let session = held["session"].as_str().expect("an id").to_owned();
    let first = held["token"].as_u64().expect("the time of the grant") + 3_600_000_000;
    wait_until("the holder has renewed", || expiry(&server, &all, "held") > Some(first + 500_000));
    let started = few.folder().join("started");
    let touch = started.to_str().expect("the folder's name is plain");
    let mut denied = 0;
    all.run(["exec", "known", "--", "true"]).silently(0);
    for words in [
        &["exec", "free", "--", "touch", touch][..],
        &["exec", "known", "--", "touch", touch],
        &["exec", "held", "-qw", "500ms", "--", "touch", touch],
        &["inspect", "held"],
        &["cleanup", "held"],
        &["downgrade", "prewrite", "--resource", "held"],
        &["shrink", "1", "1.5", "--resource", "held"],
        &["cleanup", "--break", "held"],
    ] {
        server.ask::<()>(&["SCRIPT", "FLUSH"]);
        let before = dump(&server);
        let mut rlock = few.rlock(words);
        if words[0] != "exec" {
            // The command acts as a descendant of the holder. An `exec` in that place would not
            // have to wait.
            rlock.env("RLOCK_SESSION", &session);
        }
        let ran = Ran::of(&mut rlock);
        if ran.code() != Some(69) {
            // An allowed request may have started its command.
            let _ = std::fs::remove_file(&started);
            continue;
        }
        denied += 1;
        let said = ran.failed(69);
        assert!(
            said.contains(&format!("'{}'", server.url())) && said.contains("does not let this user"),
            "{kind:?}, {right}: {said}"
        );
        if let Some(name) = right.strip_prefix('+') {
            assert!(said.contains(&format!("the command '{name}'")), "{kind:?}, {right}: {said}");
        }
        if words[1] == "known" {
            // Rights are tried when a resource is used for the first time. Whatever the denied
            // request has left behind is in nobody's way.
            all.run(["exec", "-n", "known", "--", "true"]).silently(0);
        } else if right == "+subscribe" {
            // The client subscribes only after its request is queued. When the server refuses, the
            // client gives its place back.
            assert_eq!(all.counts("held"), (1, 0), "{kind:?}, {right}: {words:?}");
        } else {
            assert_eq!(dump(&server), before, "{kind:?}, {right}: {words:?} left something half done");
        }
        assert!(!started.exists(), "{kind:?}, {right}: the command was started");
    }
    assert!(denied > 0, "{kind:?}: nothing needs {right}");
    drop(holder);
}

/// A Cluster needs the first rule and the rule that adds the right for a Cluster.
#[test]
fn cluster_needs_only_the_rights_of_the_manual_page() {
    each(|kind| {
        if kind == Kind::Redis6 {
            // A Cluster of Redis 6 is too old.
            return;
        }
        let cluster = Cluster::start(kind, 3);
        for node in 0..3 {
            let mut admin = cluster.node(node).client();
            set_user(&mut admin, &rule());
            set_user(&mut admin, &rule_adding("+asking"));
        }
        let url = cluster.url().replace("//", "//rlock:sesame@");
        let few = Lab::at(url).with("RLOCK_NAMESPACE", "rlock");
        run_everything(&few);
        Lab::at(cluster.url()).with("RLOCK_NAMESPACE", "rlock").assert_idle();

        let ran = few.run(["doctor"]);
        assert!(check(&ran, "cluster").starts_with("unknown") && ran.code() == Some(0), "{kind:?} {ran:?}");
        for node in 0..3 {
            set_user(&mut cluster.node(node).client(), &["+cluster|slots", "+cluster|nodes"]);
        }
        let ran = few.run(["doctor"]);
        assert!(check(&ran, "cluster").starts_with("ok"), "{kind:?} {ran:?}");
    });
}

/// "A user of Valkey 9.1 or later that has rights for single databases": without the right, the
/// message names the database.
#[test]
fn user_without_the_right_for_the_database_is_told_its_number() {
    Kind::Valkey9.run(|kind| {
        let (server, _all, few) = labs(kind);
        let mut admin = server.client();
        set_user(&mut admin, &[&rule()[..], &["resetdbs", "db=2", "+select"]].concat());
        let other = few.url() + "/3";
        for (words, number) in
            [(&["exec", "k", "--", "true"][..], 0), (&["exec", "--store", &other, "-q", "k", "--", "true"], 3)]
        {
            let ran = few.run(words);
            assert!(ran.failed(69).contains(&format!("does not let this user use database {number};")), "{ran:?}");
        }
        set_user(&mut admin, &rule_adding("db=0"));
        few.run(["exec", "k", "--", "true"]).silently(0);
    });
}

/// "`CLIENT LIST` then shows each rlock as `rlock:HOST:PID`; without this right rlock works all the
/// same."
#[test]
fn client_has_a_name_if_the_user_may_set_one() {
    each(|kind| {
        let (server, all, few) = labs(kind);
        set_user(&mut server.client(), &rule());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let names = |holder: &rlock_testkit::Running| {
            let list: String = server.ask(&["CLIENT", "LIST"]);
            list.contains(&format!(" name=rlock:{host}:{} ", holder.pid()))
        };
        let holder = all.hold("k");
        assert!(names(&holder), "{kind:?}");
        holder.end().silently(0);
        let holder = few.hold("k");
        assert!(!names(&holder), "{kind:?}");
        holder.end().silently(0);
        set_user(&mut server.client(), &rule_adding("+client|setname"));
        let holder = few.hold("k");
        assert!(names(&holder), "{kind:?}");
        holder.end().silently(0);
    });
}
