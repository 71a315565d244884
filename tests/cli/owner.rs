//! The owner of a request and the reason for it, which are text for people.

use crate::support::{Lab, RLOCK, Ran, Running};

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
    assert!(lab.run(["inspect"]).stdout.contains(" alice (see https://bot:***@ci/run/7), "));
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
    let text = "RLOCK_OWNER: a text may have 128 bytes, this one has 129";
    assert_eq!(run(&"x".repeat(129), &[]).failed(64), text);
    assert!(run("a\nb", &[]).failed(64).starts_with("RLOCK_OWNER: the text 'a?b' has the control character U+000A"));
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
        (&[][..], "ann (https://gl/-/jobs/7), "),
        (&["--owner", "bob"], "bob (https://gl/-/jobs/7), "),
        (&["--reason", "nightly", "--owner", ""], "(nightly), "),
    ] {
        let mut holder = Running::waiter(&mut in_ci(options));
        holder.expect_held();
        let busy = lab.run(["exec", "-n", "k", "--", "true"]);
        assert!(busy.failed(75).starts_with(&format!("busy: 'k' is held for write by {who}")), "{busy:?}");
        holder.end().silently(0);
    }
}
