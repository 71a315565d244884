//! `rlock exec` on a server: nested claims, releases that fail, and passwords. What `exec` does on
//! both kinds of store is in tests/cli.

use serde_json::Value;

use crate::world::on_each;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, RLOCK, Ran};

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

/// The warning about a failed release names the resource.
#[test]
fn release_that_fails_names_the_resource() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
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

/// A password comes from RLOCK_STORE, RLOCK_PASSWORD or the file that RLOCK_PASSWORD_FILE names. A
/// password in `--store` leads to a warning that ps shows it. rlock adds no password to the
/// environment, and shows none in a message or in `inspect`.
#[test]
fn password_is_added_to_no_environment_and_shown_in_no_message() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
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
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let lab = Lab::on(Kind::Redis7);
    // On a busy machine, such a release takes seconds.
    let patient = ["exec", "--connect-timeout", "60s"].map(str::to_owned);
    let holder = lab.hold_by(patient.iter().map(String::as_str).chain(["--write", "hot"]));
    let waiter = |number: usize| {
        let names = (0..250).map(|name| format!("{number}-{name}-{}", "p".repeat(490)));
        let claims = std::iter::once("hot".to_owned()).chain(names).flat_map(|name| ["--write".to_owned(), name]);
        lab.wait_by(patient.iter().cloned().chain(claims))
    };
    let mut waiters: Vec<_> = (0..9).map(waiter).collect();
    lab.until_waiting("hot", waiters.len());
    holder.end().silently(0);
    waiters.iter_mut().for_each(|waiter| waiter.close());
    for waiter in waiters {
        waiter.end().printed("held\n");
    }
}
