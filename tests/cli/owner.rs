//! The owner of a request and the reason for it, which are text for people.

use std::process::{Command, Stdio};

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both};

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

/// "Text that others see in place of COMMAND": the process is known by its title all the same, and
/// its job is that of COMMAND.
#[test]
fn title_stands_for_the_command() {
    on_both(|lab| {
        let words = ["exec", "k", "--title", "nightly  report"];
        let holder = lab.hold_by(words);
        let busy = lab.run(["exec", "-n", "k", "--", "true"]);
        assert!(busy.busy().contains(", 'nightly report', since "), "{busy:?}");
        assert_eq!(lab.inspect(["k"])["resources"][0]["holders"][0]["command"], serde_json::json!(["nightly report"]));
        holder.end().silently(0);
        let history = lab.run(["history", "k"]).stdout;
        assert!(history.contains("'nightly report'") && !history.contains("echo"), "{history}");
        // A command that runs below its own lock is told so, which needs its process.
        let itself = ["-n", "j", "--", "env", "-u", "RLOCK_SESSION", RLOCK, "exec", "-n", "j", "--", "true"];
        let below = lab.run([&["exec", "--title=a  title"], &itself[..]].concat());
        assert!(below.failed(75).contains("RLOCK_SESSION"), "{below:?}");
        let skipped = |title: &[&str]| lab.run([&["exec", "-n", "--skip-ok", "s"], title, &["--", "true"]].concat());
        let holder = lab.hold("s");
        skipped(&["--title", "one"]).silently(0);
        skipped(&["--title", "two"]).silently(0);
        skipped(&[]).silently(0);
        assert_eq!(lab.inspect(["s"])["resources"][0]["skips"][0]["count"], 3);
        holder.end().silently(0);
    });
}

/// "The value is `***` where the name ends in PASSWORD, PASSWD, TOKEN or SECRET": in all that is
/// stored or printed.
#[test]
fn secrets_of_commands_are_masked_wherever_they_are_shown() {
    on_both(|lab| {
        let secret = "hunter2";
        let words = [&format!("X_TOKEN={secret}"), "--password", secret, &format!("Authorization: Bearer {secret}")];
        let mut rlock = lab.rlock(["exec", "k", "--", "sh", "-c", "echo held; cat >/dev/null", "sh"]);
        let mut holder = Running::start(rlock.args(words).stdin(Stdio::piped()));
        holder.expect_held();
        let reads =
            [&["exec", "-n", "k", "--", "true"][..], &["inspect"], &["inspect", "--json"], &["inspect", "--tree"]];
        for line in reads {
            let ran = lab.run(line);
            assert!(!format!("{ran:?}").contains(secret), "{ran:?}");
        }
        assert_eq!(holder.end().code(), Some(0));
        let history = lab.run(["history", "k"]).stdout;
        assert!(history.contains(" sh 'X_TOKEN=***' --password '***' 'Authorization: Bearer ***'\n"), "{history}");
        assert!(!history.contains(secret), "{history}");
    });
}

/// A lock that the caller holds itself is named before anything else.
#[test]
fn wait_on_a_lock_of_ones_own_is_named_first() {
    let lab = Lab::new();
    let said = |words: &[&str], variables: &[(&str, &str)]| {
        let ran = Ran::of(lab.rlock(words).envs(variables.iter().copied()));
        (ran.code(), ran.stderr)
    };
    // A step of a CI that has forgotten the variables of `acquire`.
    let run = |number| {
        [
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_SERVER_URL", "https://h"),
            ("GITHUB_REPOSITORY", "a/b"),
            ("GITHUB_RUN_ID", number),
        ]
    };
    assert_eq!(said(&["acquire", "deploy", "--for", "1m", "--no-default-store"], &run("7")).0, Some(0));
    let step = ["exec", "-n", "deploy", "--", "true"];
    let own = "rlock: busy: 'deploy' is this run's own lock: add >> \"$GITHUB_ENV\" to its step, or what your CI has for that; ";
    let (code, text) = said(&step, &run("7"));
    assert!(code == Some(75) && text.starts_with(&format!("{own}'deploy' is kept until ")), "{text}");
    assert!(said(&step, &run("8")).1.starts_with("rlock: busy: 'deploy' is kept until "));
    // A call of an agent whose earlier call still runs.
    let agent = |id| [("CLAUDECODE", "1"), ("CLAUDE_CODE_SESSION_ID", id)];
    let mut rlock = lab.rlock(["exec", "sim", "--", "sh", "-c", "echo held; exec cat >/dev/null"]);
    let mut holder = Running::start(rlock.envs(agent("3f2a1b9c-1")).stdin(Stdio::piped()));
    holder.expect_held();
    let call = ["exec", "-w", "1500ms", "sim", "--", "true"];
    let own = "'sim' is held by an earlier call of your own session, which still runs: see 'rlock help agents'; ";
    let (_, text) = said(&call, &agent("3f2a1b9c-1"));
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("rlock: waiting for 'sim', 1 of 1, 1s of 1s: "), "{text}");
    assert!(lines[0].contains(&format!(": {own}held for write by claude 3f2a1b9c ")), "{text}");
    assert!(lines[0].ends_with("s)") && lines[1].contains("s); nobody waits; "), "the age is told: {text}");
    assert!(lines[1].starts_with(&format!("rlock: busy: {own}'sim' is held for write by ")), "{text}");
    assert!(!said(&call, &agent("77777777-1")).1.contains("your own session"));
    assert_eq!(holder.end().code(), Some(0));
    // Both sides of a pipe.
    let script =
        format!("'{RLOCK}' exec p -- sh -c 'echo held; sleep 1' | {{ read -r line; '{RLOCK}' exec -n p -- true; }}");
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    let ran = Ran::of(shell.args(["-c", &script]));
    let text =
        "rlock: busy: 'p' is held at the other end of this pipe: lock once around both, as by -c 'A | B'; 'p' is held ";
    assert!(ran.stderr.starts_with(text), "{ran:?}");
}
