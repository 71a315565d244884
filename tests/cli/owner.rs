//! The owner of a request and the reason for it, which are text for people.

use rlock_testkit::{Lab, RLOCK, Ran, Running};

/// "Both stand first in the busy line, and in `rlock inspect`."
#[test]
fn owner_and_reason_are_shown_to_others() {
    let lab = Lab::new();
    let holder = lab.hold_by(["exec", "k", "--owner", "alice", "--reason", "see https://bot:pw@ci/run/7"]);
    let busy = lab.run(["exec", "-n", "k", "--", "true"]);
    let start = "busy: 'k' is held for write by alice (see https://bot:***@ci/run/7), ";
    assert!(busy.failed(75).starts_with(start), "{busy:?}");
    let shown = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
    assert_eq!(
        (shown["owner"].as_str(), shown["reason"].as_str()),
        (Some("alice"), Some("see https://bot:***@ci/run/7"))
    );
    let table = lab.run(["inspect"]).stdout;
    assert!(table.contains("  alice, ") && table.contains("  see https://bot:***@ci/run/7  "), "{table}");
    holder.end().silently(0);
    let unnamed = lab.hold("k");
    let shown = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
    assert!(shown["owner"].is_null() && shown["reason"].is_null(), "{shown}");
    unnamed.end().silently(0);
}

/// "The defaults are `RLOCK_OWNER` and `RLOCK_REASON`."
#[test]
fn variables_are_the_defaults_of_the_options() {
    let lab = Lab::new();
    let run = |owner: &str, options: &[&str]| {
        let inspect = [RLOCK, "inspect", "--json", "k"];
        let mut rlock = lab.rlock([&["exec", "k"], options, &["--"], &inspect].concat());
        rlock.env("RLOCK_OWNER", owner).env("RLOCK_REASON", "nightly");
        Ran::of(&mut rlock)
    };
    let shown = |ran: Ran| {
        let shown: serde_json::Value = serde_json::from_str(&ran.stdout).expect("inspect --json prints JSON");
        let holder = &shown["resources"][0]["holders"][0];
        [holder["owner"].clone(), holder["reason"].clone()].map(|text| text.as_str().unwrap_or("-").to_owned())
    };
    assert_eq!(shown(run("bob", &[])), ["bob", "nightly"]);
    assert_eq!(shown(run("bob", &["--owner", "carol", "--reason", ""])), ["carol", "-"]);
    assert_eq!(shown(run("", &[])), ["-", "nightly"]);
}

/// "`--owner` and `--reason` are cleaned and cut, not refused."
#[test]
fn text_for_people_never_stops_a_request() {
    let lab = Lab::new();
    let shown = |variables: [&str; 2], options: &[&str]| {
        let inspect = [RLOCK, "inspect", "--json", "k"];
        let mut rlock = lab.rlock([&["exec", "k"], options, &["--"], &inspect].concat());
        let ran = Ran::of(rlock.env("RLOCK_OWNER", variables[0]).env("RLOCK_REASON", variables[1]));
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let shown: serde_json::Value = serde_json::from_str(&ran.stdout).expect("inspect --json prints JSON");
        let holder = &shown["resources"][0]["holders"][0];
        [holder["owner"].clone(), holder["reason"].clone()].map(|text| text.as_str().unwrap_or("-").to_owned())
    };
    let long = "x".repeat(600);
    assert_eq!(shown(["", ""], &["--owner", "a\nb", "--reason", "fix\n\nit\u{7}"]), ["a b", "fix it?"]);
    assert_eq!(shown(["", ""], &["--owner", &long, "--reason", &long]), [&long[..128], &long[..512]]);
    assert_eq!(shown(["a\nb", &long], &[]), ["a b", &long[..512]]);
}

/// "Without them, a recognised CI names the person and the run."
#[test]
fn recognised_ci_names_the_owner_and_the_reason() {
    let lab = Lab::new();
    let in_ci = |options: &[&str]| {
        let mut rlock = lab.rlock([&["exec", "k"], options].concat());
        rlock.envs([("GITLAB_CI", "true"), ("CI_JOB_URL", "https://gl/-/jobs/7"), ("GITLAB_USER_LOGIN", "ann")]);
        rlock
    };
    for (options, who) in [
        (&[][..], " by ann (https://gl/-/jobs/7), "),
        (&["--owner", "bob"], " by bob (https://gl/-/jobs/7), "),
        (&["--reason", "nightly", "--owner", ""], " (nightly), pid "),
    ] {
        let mut holder = Running::waiter(&mut in_ci(options));
        holder.expect_held();
        let busy = lab.run(["exec", "-n", "k", "--", "true"]);
        assert!(busy.failed(75).contains(who), "{busy:?}");
        holder.end().silently(0);
    }
}
