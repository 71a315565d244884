//! `rlock exec` and `rlock range-*` on a server work as on one machine.

use serde_json::Value;

use crate::support::servers::{Kind, Server};
use crate::support::{Lab, RLOCK, Ran};
use crate::world::{on_each, shell};

/// "In a normal run `rlock exec` writes nothing, so cron sends no mail because of it."
#[test]
fn normal_run_writes_nothing_even_after_a_wait() {
    on_each(|lab| lab.assert_quiet());
}

/// "The exit status is the command's own, or 128+n if signal n ended it." A command that was not
/// found exits 127.
#[test]
fn exit_status_is_that_of_the_command_on_a_server() {
    on_each(|lab| {
        for code in [0, 1, 75, 255] {
            lab.run(["exec", "k", "-c", &format!("exit {code}")]).silently(code);
        }
        lab.run(["exec", "k", "-c", "kill -15 $$"]).silently(128 + 15);
        lab.run(["exec", "k", "--", "/nowhere/program"]).said(127, "cannot run '/nowhere/program': not found");
        lab.assert_idle();
    });
}

/// A busy request exits 75, or with the code of `-E`, and does not start the command. One line
/// names the holder and the number of waiters, unless `-q` is given.
#[test]
fn busy_request_exits_75_with_one_line() {
    on_each(|lab| {
        let _holder = lab.hold("k");
        let held = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        let text = |name: &str| held[name].as_str().expect("text");
        let line = |waiting: &str| {
            let command = "sh -c echo held; exec cat >/dev/null";
            let (user, host, pid, since) = (text("user"), text("host"), &held["pid"], text("since"));
            format!("busy: 'k' is held for write by {user}@{host}, pid {pid}, '{command}', since {since}; {waiting}")
        };
        let started = lab.folder().join("started");
        let touch = started.to_str().expect("the folder's name is plain");
        lab.run(["exec", "-n", "k", "--", "touch", touch]).said(75, &line("nobody waits"));
        lab.run(["exec", "-w", "100ms", "k", "--", "touch", touch]).said(75, &line("nobody waits; waited 100ms"));
        let _others = [lab.hold_by(["exec", "--read", "{k}j"]), lab.hold_by(["exec", "--read", "{k}j"])];
        let both = lab.run(["exec", "-n", "k", "--write", "{k}j", "--", "touch", touch]);
        assert!(both.failed(75).ends_with("Z, and 2 more; nobody waits"), "{both:?}");
        let _waiter = lab.wait_by(["exec", "--read", "k"]);
        lab.until_waiting("k", 1);
        lab.run(["exec", "-n", "-E", "3", "k", "--", "touch", touch]).said(3, &line("1 waits"));
        lab.run(["exec", "-nq", "-E", "0", "k", "--", "touch", touch]).silently(0);
        assert!(!started.exists(), "the command was started");
        assert_eq!(lab.counts("k"), (1, 1), "a request stayed in the queue");
    });
}

/// "a request is granted when it conflicts with no holder and with no earlier waiter". So requests
/// that conflict are granted in the order in which they came.
#[test]
fn waiters_are_granted_in_their_order() {
    on_each(|lab| {
        let holder = lab.hold("k");
        let waiters: Vec<_> = (1..=5)
            .map(|place| {
                let waiter = lab.wait_by(["exec", "k"]);
                lab.until_waiting("k", place);
                waiter
            })
            .collect();
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        holder.end().silently(0);
        for (place, mut waiter) in waiters.into_iter().enumerate() {
            waiter.expect_held();
            assert_eq!(lab.counts("k"), (1, 4 - place));
            waiter.end().silently(0);
        }
        lab.assert_idle();
    });
}

/// `LO HI` is a closed interval, so intervals that touch overlap. Ends are exact.
#[test]
fn intervals_conflict_only_where_they_overlap() {
    on_each(|lab| {
        let _held = lab.hold_by(["range-write", "k", "-3e-9", "22/7"]);
        let _reader = lab.hold_by(["range-read", "k", "[9007199254740993,inf)"]);
        for (words, code) in [
            (&["range-read", "k", "22/7", "4"][..], 75),
            (&["range-read", "k", "(22/7,4]"], 0),
            (&["range-read", "k", "-1", "-0.000000003"], 75),
            (&["range-read", "k", "-1", "-0.0000000030000000000000000001"], 0),
            (&["range-write", "k", "9007199254740992", "9007199254740992.999"], 0),
            (&["range-write", "k", "9007199254740993", "9007199254740993"], 75),
            (&["range-read", "k", "9007199254740993", "9007199254740993"], 0),
            (&["exec", "--read", "k"], 75),
        ] {
            lab.run([words, &["-nq", "--", "true"]].concat()).silently(code);
        }
    });
}

/// A resource has at most N holders of a slot. The server stores N while any session holds or
/// waits, and refuses another N with the N in force.
#[test]
fn slots_are_limited_and_another_number_is_refused() {
    on_each(|lab| {
        let first = lab.hold_by(["exec", "--slot", "k=2"]);
        let second = lab.hold_by(["exec", "--slot", "k=2"]);
        lab.run(["exec", "-nq", "--slot", "k=2", "--", "true"]).silently(75);
        let text = "refused: 'k' is shared in 2 slots as long as anybody holds or waits for one, not in 3: ask for k=2";
        lab.run(["exec", "--slot", "k=3", "--", "true"]).said(65, text);
        first.end().silently(0);
        lab.run(["exec", "-nq", "--slot", "k=2", "--", "true"]).silently(0);
        second.end().silently(0);
        lab.run(["exec", "--slot", "k=3", "--", "true"]).silently(0);
        lab.assert_idle();
    });
}

/// "Nothing is held while waiting, so two such requests cannot deadlock each other."
#[test]
fn several_claims_are_granted_together_or_not_at_all() {
    on_each(|lab| {
        let holder = lab.hold("{k}b");
        let mut waiter = lab.wait_by(["exec", "{k}a", "--write", "{k}b", "--write", "{k}c"]);
        lab.until_waiting("{k}b", 1);
        assert_eq!((lab.counts("{k}a"), lab.counts("{k}c")), ((0, 1), (0, 1)));
        holder.end().silently(0);
        waiter.expect_held();
        assert_eq!((lab.counts("{k}a"), lab.counts("{k}b"), lab.counts("{k}c")), ((1, 0), (1, 0), (1, 0)));
        waiter.end().silently(0);
        // Without a Cluster, the resources need no common tag.
        lab.run(["exec", "one", "--write", "two", "--", "true"]).silently(0);
        lab.assert_idle();
    });
}

/// A hold of an ancestor does not conflict with a nested claim. A write below a read is refused.
#[test]
fn nested_claims_are_granted_or_refused_at_once() {
    on_each(|lab| {
        let nested = |outer: &[&str], inner: &[&str]| lab.run([outer, &["--", RLOCK], inner, &["--", "true"]].concat());
        nested(&["exec", "k"], &["exec", "k"]).silently(0);
        nested(&["range-write", "k", "1", "2"], &["range-read", "k", "1", "1.5"]).silently(0);
        nested(&["exec", "--prewrite", "k"], &["exec", "--write", "k"]).silently(0);
        let refusal = nested(&["exec", "--read", "k"], &["exec", "k"]);
        assert!(refusal.failed(65).starts_with("refused: an enclosing rlock holds 'k' for read"));
        lab.assert_idle();
    });
}

/// An upgrade waits only for the readers that overlap it, and goes ahead of every other waiter.
#[test]
fn upgrade_waits_for_readers_only() {
    on_each(|lab| {
        let reader = lab.hold_by(["exec", "--read", "k"]);
        let script = format!("echo outer; read line; exec '{RLOCK}' exec k -- echo upgraded");
        let mut planner = shell(&lab, &["exec", "--prewrite", "k"], &script);
        assert_eq!(planner.line(), "outer");
        let mut writer = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        planner.write("\n");
        lab.until_waiting("k", 2);
        reader.end().silently(0);
        assert_eq!(planner.line(), "upgraded");
        planner.end();
        writer.expect_held();
        writer.end().silently(0);
        lab.assert_idle();
    });
}

/// A holder gives up part of a span or lowers its mode without a gap. The requests that this frees
/// are granted at once.
#[test]
fn shrink_and_downgrade_grant_waiters() {
    on_each(|lab| {
        let script =
            format!("echo held; read line; '{RLOCK}' shrink 0 1; read line; '{RLOCK}' downgrade read; exec cat");
        let mut holder = shell(&lab, &["range-write", "k", "0", "2"], &script);
        holder.expect_held();
        let mut beyond = lab.wait_by(["range-write", "k", "(1,2]"]);
        lab.until_waiting("k", 1);
        holder.write("\n");
        beyond.expect_held();
        let mut reader = lab.wait_by(["range-read", "k", "0", "1"]);
        lab.until_waiting("k", 1);
        holder.write("\n");
        reader.expect_held();
        holder.end().silently(0);
        [beyond, reader].into_iter().for_each(|other| other.end().silently(0));
        lab.assert_idle();
    });
}

/// The warning about a failed release names the resource.
#[test]
fn release_that_fails_names_the_resource() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let lab = Lab::at(server.url());
    let holder = lab.hold_by(["exec", "k", "--write", "{k}j"]);
    server.stop();
    let ran = holder.end();
    server.cont();
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let said = "rlock: warning: could not release 'k', '{k}j', held until the lease ends: ";
    assert!(ran.stderr.starts_with(said) && ran.stderr.lines().count() == 1, "{ran:?}");
}

/// Prints the value of each RLOCK_ variable on a line of its own.
const SHOW: &str = r#"for name in SESSION TOKEN RESOURCE MODE STORE NAMESPACE PASSWORD; do
    eval "value=\${RLOCK_$name-unset}"; printf '%s\n' "$value"; done"#;

/// The command gets `RLOCK_SESSION`, `RLOCK_TOKEN` and the others, with `RLOCK_STORE` and
/// `RLOCK_NAMESPACE` so that nested calls use the same store.
#[test]
fn variables_of_the_command_describe_its_grant() {
    on_each(|lab| {
        let mut last = 0;
        for _ in 0..3 {
            let ran = lab.run(["exec", "k", "-c", SHOW]);
            let told: Vec<_> = ran.stdout.lines().collect();
            assert_eq!((ran.code(), told.len()), (Some(0), 7), "{ran:?}");
            assert_eq!(told[0].len(), 32, "{ran:?}");
            let token: u64 = told[1].parse().expect("a token is a number");
            assert!(token > last && token > 1_500_000_000_000_000, "{token} after {last}");
            last = token;
            assert_eq!(told[2..], ["k", "write", &lab.url(), lab.namespace(), "unset"]);
        }
    });
}

/// A password comes from RLOCK_STORE, RLOCK_PASSWORD or the file that RLOCK_PASSWORD_FILE names. A
/// password in `--store` leads to a warning that ps shows it. rlock adds no password to the
/// environment, and shows none in a message or in `inspect`.
#[test]
fn password_is_added_to_no_environment_and_shown_in_no_message() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::on_tcp(Kind::Redis7);
    server.ask::<()>(&["CONFIG", "SET", "requirepass", "se:cr@t%"]);
    let with = |userinfo: &str| format!("redis://{userinfo}127.0.0.1:{}", server.port());
    let (bare, full) = (with(""), with(":se%3Acr%40t%25@"));
    let shown = |ran: Ran| ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    let nested = format!("{SHOW}; '{RLOCK}' exec {{k}}other -- true || echo \"nested: $?\"");

    // The environment already has this password and keeps it, so that a nested rlock can log in.
    let told = shown(Lab::at(&full).run(["exec", "k", "-c", &nested]));
    assert_eq!((told[4].as_str(), told[6].as_str(), told.len()), (full.as_str(), "unset", 7));

    // This password is apart from the URL.
    let told = shown(Lab::at(&bare).with("RLOCK_PASSWORD", "se:cr@t%").run(["exec", "k", "-c", &nested]));
    assert_eq!((told[4].as_str(), told[6].as_str(), told.len()), (bare.as_str(), "se:cr@t%", 7));

    // This password is on the command line.
    let ran = Lab::at(&bare).run(["exec", "--store", &full, "k", "-c", SHOW]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.stderr.starts_with("rlock: warning: ps shows everybody the password in --store"), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(!format!("{ran:?}").contains("cr%40t") && !ran.stdout.contains("cr@t"), "{ran:?}");
    assert_eq!(ran.stdout.lines().nth(4), Some(bare.as_str()));
    let quiet = Lab::at(&bare).run(["exec", "-q", "--store", &full, "k", "--", "true"]);
    quiet.silently(0);

    for words in [&["inspect", "--json"][..], &["inspect"], &["cleanup"], &["exec", "-v", "k", "--", "true"]] {
        let ran = Lab::at(&full).run(words);
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        assert!(!format!("{ran:?}").contains("cr%40t"), "{ran:?}");
    }
    let json = Lab::at(&full).run(["inspect", "--json"]).stdout;
    let json: Value = serde_json::from_str(&json).expect("inspect --json prints JSON");
    assert_eq!(json["store"], bare);
}

/// A release declares all resources of the waiters with several claims, even if the names are long.
#[test]
fn release_with_many_long_names_of_waiters_succeeds() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let lab = Lab::on(Kind::Redis7);
    let holder = lab.hold("hot");
    let waiter = |number: usize| {
        let names = (0..250).map(|name| format!("{number}-{name}-{}", "p".repeat(490)));
        let claims = std::iter::once("hot".to_owned()).chain(names).flat_map(|name| ["--write".to_owned(), name]);
        lab.wait_by(std::iter::once("exec".to_owned()).chain(claims))
    };
    let mut waiters: Vec<_> = (0..9).map(waiter).collect();
    lab.until_waiting("hot", waiters.len());
    holder.end().silently(0);
    waiters.iter_mut().for_each(|waiter| waiter.close());
    for waiter in waiters {
        waiter.end().printed("held\n");
    }
}
