//! What cron needs: skips, jobs that run once per period, holds that outlast their command, and
//! limits of the run time.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, wait_until};

/// Runs `exec` with these words on `k`, and a command that does nothing.
fn exec(lab: &Lab, words: &[&str]) -> Ran {
    lab.run([&["exec", "k"], words, &["--", "true"]].concat())
}

/// "--skip-ok: busy exits 0, silently."
#[test]
fn busy_request_with_skip_ok_exits_0_in_silence() {
    on_both(|lab| {
        let holder = lab.hold("k");
        for words in [&["-n", "--skip-ok"][..], &["-w", "1ms", "--skip-ok"], &["--max-waiting", "0", "--skip-ok=1h"]] {
            exec(lab, words).silently(0);
        }
        assert_eq!(lab.counts("k"), (1, 0));
        holder.end().silently(0);
        let mut failing = lab.rlock(["exec", "-n", "--skip-ok", "k", "-c", "exit 3"]);
        assert_eq!(Ran::of(&mut failing).code(), Some(3), "only a busy request is skipped");
    });
}

/// "With DUR only while this job has been skipped on this KEY for less than DUR in a row; from then
/// on 75 and the busy line, which then tells how often and since when."
#[test]
fn job_that_is_skipped_for_too_long_is_busy_until_its_next_grant() {
    on_both(|lab| {
        let holder = lab.hold("k");
        exec(lab, &["-n", "--skip-ok=1h"]).silently(0);
        let since = lab.inspect(["k"])["resources"][0]["skips"][0]["since"].as_str().expect("a time").to_owned();
        let told = exec(lab, &["-n", "--skip-ok=0"]);
        assert!(told.busy().ends_with(&format!("; nobody waits; skipped 2 times since {since}")), "{told:?}");
        // A wait that ends busy counts as well.
        let told = exec(lab, &["-w", "1ms", "--skip-ok=0"]);
        assert!(told.busy().ends_with(&format!("; waited 1ms; skipped 3 times since {since}")), "{told:?}");
        let other = lab.run(["exec", "-n", "--skip-ok=0", "k", "--", "false"]);
        assert!(other.failed(75).contains("; skipped once since "), "another command is another job: {other:?}");
        let named = exec(lab, &["-n", "--skip-ok", "--job", "nightly"]);
        named.silently(0);
        // A busy request without the option is no skip.
        assert!(!exec(lab, &["-n"]).failed(75).contains("skipped"));
        holder.end().silently(0);
        exec(lab, &["-n", "--skip-ok=1h"]).silently(0);
        let holder = lab.hold("k");
        let told = exec(lab, &["-n", "--skip-ok=0"]);
        assert!(told.failed(75).contains("; skipped once since "), "the grant ended the skips in a row: {told:?}");
        holder.end().silently(0);
    });
}

/// `"skips":[{"job","command","count","since","last"}]`, where there are any.
#[test]
fn inspect_shows_the_skips_in_a_row() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        assert!(lab.inspect(["k"])["resources"][0].get("skips").is_none());
        exec(lab, &["-n", "--skip-ok", "--job", "nightly"]).silently(0);
        exec(lab, &["-n", "--skip-ok", "--job", "nightly"]).silently(0);
        let skips = lab.inspect([""; 0])["resources"][0]["skips"].clone();
        let [skip] = skips.as_array().expect("a list").as_slice() else { panic!("one job was skipped, not {skips}") };
        assert_eq!((&skip["job"], &skip["count"], &skip["command"]), (&"nightly".into(), &2.into(), &["true"].into()));
        assert!(skip["since"].as_str() <= skip["last"].as_str());
        let table = lab.run(["inspect"]).stdout;
        let since = skip["since"].as_str().expect("a time");
        assert!(table.contains(&format!("skipped 2 times since {since}")), "{table}");
    });
}

/// "A warning tells of a command line without `--job` that comes for the first time while KEY knows
/// another one of this user and program: the two are counted apart."
#[test]
fn similar_command_lines_without_a_name_are_told_that_their_skips_are_counted_apart() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let skip = |words: &[&str], script: &str| lab.run([&["exec", "-n", "k"], words, &["-c", script]].concat());
        skip(&["--skip-ok=1h"], "echo 1").silently(0);
        let told = skip(&["--skip-ok=1h"], "echo 2");
        let text = "rlock: warning: '/bin/sh -c echo 1' and '/bin/sh -c echo 2' are two jobs, and their skips are counted \
                    apart: give both the same --job NAME\n";
        assert_eq!((told.code(), told.stderr.as_str()), (Some(0), text), "{told:?}");
        skip(&["--skip-ok=1h"], "echo 2").silently(0);
        skip(&["--skip-ok=1h"], "true").silently(0);
        skip(&["--skip-ok"], "echo 3").silently(0);
        skip(&["--skip-ok=1h", "--job", "j"], "echo 4").silently(0);
        assert!(skip(&["--skip-ok=0", "-q"], "echo 5").stderr.is_empty());
        let listed = lab.run(["inspect", "k"]).stdout;
        assert!(listed.contains("\n'k': 4 jobs of 'echo' were skipped 5 times since "), "{listed}");
        assert!(listed.contains("\n'k': '/bin/sh -c true' was skipped once since "), "{listed}");
        assert!(listed.contains("\n'k': job j, '/bin/sh -c echo 4', was skipped once since "), "{listed}");
        let all = lab.run(["inspect", "-v", "k"]).stdout;
        assert_eq!(all.lines().filter(|line| line.starts_with("'k': job ")).count(), 6, "{all}");
        holder.end().silently(0);
    });
}

/// "nothing is run if the last run of KEY with --once-per that succeeded began less than DUR ago;
/// that is exit 0 and silent, even while somebody holds KEY."
#[test]
fn job_runs_once_per_period_unless_it_fails() {
    on_both(|lab| {
        let run = |words: &[&str], command: &str| {
            lab.run([&["exec", "-n", "--once-per", "1h", "k"], words, &["-c", command]].concat())
        };
        assert_eq!(run(&[], "echo ran; exit 4").stdout, "ran\n");
        assert_eq!(run(&[], "echo ran; kill -9 $$").stdout, "ran\n");
        assert_eq!(run(&["--success-codes", "3,5"], "echo ran; exit 4").stdout, "ran\n");
        assert_eq!(run(&["--success-codes", "3,5"], "echo ran; exit 5").code(), Some(5));
        run(&[], "echo ran").silently(0);
        // A named job has its own successes.
        run(&["--job", "j"], "echo ran").printed("ran\n");
        run(&["--job", "j"], "echo ran").silently(0);
        let holder = lab.hold("k");
        run(&[], "echo ran").silently(0);
        run(&["--meanwhile", "echo spare"], "echo ran").printed("spare\n");
        holder.end().silently(0);
        lab.run(["exec", "--once-per", "0", "k", "-c", "echo ran"]).printed("ran\n");
        lab.run(["exec", "k", "-c", "echo ran"]).printed("ran\n");
    });
}

/// A time zone in which it is this time of the day, in seconds.
fn zone_at(time: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_secs();
    let west = (now + 24 * 3600 - time) % (24 * 3600);
    format!("<X>{}:{}:{}", west / 3600, west / 60 % 60, west % 60)
}

/// "or in this hour, day, week (from Monday) or month"; "in the time zone of TZ".
#[test]
fn job_runs_once_in_a_period_of_the_calendar() {
    on_both(|lab| {
        let noon = zone_at(12 * 3600 + 1800);
        let run = |zone: &str, word: &str| {
            let words = ["exec", "--once-per", word, "--job", word, "k", "-c", "echo ran"];
            Ran::of(lab.rlock(words).env("TZ", zone))
        };
        for word in ["hour", "day", "week", "month", "year", "ever"] {
            run(&noon, word).printed("ran\n");
            run(&noon, word).silently(0);
        }
        let ran = Instant::now();
        wait_until("the next second", || ran.elapsed() > Duration::from_secs(1));
        // A day begins there that is later than these runs.
        let midnight = zone_at(0);
        run(&midnight, "day").printed("ran\n");
        run(&midnight, "day").silently(0);
    });
}

/// "an unknown zone is an error (64)".
#[test]
fn day_needs_a_known_time_zone() {
    let lab = Lab::new();
    let run = |zone: &str, period: &str| {
        Ran::of(lab.rlock(["exec", "--once-per", period, "k", "-c", "echo ran"]).env("TZ", zone))
    };
    for zone in ["Mars/Phobos", "X", "CET-1CEST,"] {
        let text = format!(
            "TZ: '{zone}' is not a time zone of this machine: write it as Europe/Berlin, UTC or EST5, or unset it"
        );
        run(zone, "day").said(64, &text);
    }
    for zone in ["", "UTC", ":Etc/UTC", "EST5", "CET-1CEST", "CET-1CEST,M3.5.0,M10.5.0/3"] {
        assert_eq!(run(zone, "day").code(), Some(0), "{zone}");
    }
    run("Mars/Phobos", "1ms").printed("ran\n");
}

/// "The store decides … again when a waiter's turn comes."
#[test]
fn waiter_whose_job_succeeds_meanwhile_ends_in_silence() {
    on_both(|lab| {
        let words = ["exec", "--once-per", "1h", "k"];
        let holder = lab.hold_by(words);
        let waiter = lab.wait_by(words);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// "the hold stays until DUR after its grant, even if the command ends sooner, failed or not; rlock
/// itself ends at once. Not if the command was never started."
#[test]
fn minimum_hold_outlasts_its_command() {
    on_both(|lab| {
        lab.run(["exec", "--hold-at-least", "1h", "k", "-c", "exit 3"]).silently(3);
        let held = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        assert_eq!((&held["kept"], held["expires_in_ms"].is_u64()), (&true.into(), true));
        let busy = format!("busy: 'k' is kept until {} for write by ", held["kept_until"].as_str().expect("a time"));
        assert!(exec(lab, &["-n"]).failed(75).starts_with(&busy), "{busy}");
        let table = lab.run(["inspect", "k"]).stdout;
        assert!(table.contains("k         kept until ") && table.contains("Z  write"), "{table}");
        assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
        assert_eq!(lab.run(["exec", "--hold-at-least", "1h", "k", "--", "/nowhere"]).code(), Some(127));
        exec(lab, &["-n"]).silently(0);
        let begun = Instant::now();
        exec(lab, &["--hold-at-least", "300ms"]).silently(0);
        exec(lab, &[]).silently(0);
        assert!(begun.elapsed() >= Duration::from_millis(300), "the lock was free too early");
        lab.assert_idle();
    });
}

/// One tick of cron on 20 hosts: one of them runs the job, and nobody writes a mail.
fn tick(lab: &Lab, options: &[&str]) {
    let _ = fs::remove_file(lab.folder().join("runs"));
    let key = format!("k{}", options.concat());
    let words = [&["exec", "--once-per", "1h", "--write", &key], options, &["-c", "echo >> runs"]].concat();
    let hosts: Vec<_> = (0..20).map(|_| Running::start(lab.rlock(&words).current_dir(lab.folder()))).collect();
    hosts.into_iter().for_each(|host| host.end().silently(0));
    assert_eq!(fs::read_to_string(lab.folder().join("runs")).expect("the job ran"), "\n", "{options:?}");
}

#[test]
fn fleet_runs_its_job_once_and_in_silence() {
    on_both(|lab| {
        tick(lab, &["-n", "--skip-ok"]);
        tick(lab, &["--splay", "50ms"]);
    });
}

#[test]
fn wait_that_ends_as_its_job_succeeds_ends_in_silence() {
    on_both(|lab| tick(lab, &["-w", "1ms", "--skip-ok=1h"]));
}

#[test]
fn command_that_runs_too_long_is_stopped_with_its_tree() {
    on_both(timeout_of_a_tree);
}

fn timeout_of_a_tree(lab: &Lab) {
    let stubborn = "trap 'echo term' TERM; (trap '' TERM; sleep 1000) & while :; do wait; done";
    let mut rlock = lab.rlock(["exec", "--max-runtime", "100ms", "--grace", "200ms", "k", "-c", stubborn]);
    let ran = Ran::of(&mut rlock);
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(124), "term\n"), "{ran:?}");
    let text = "rlock: timeout: 'k': '/bin/sh -c trap 'echo term' TERM; (trap '' TERM; sleep 1000)…' ran for longer than \
                --max-runtime 100ms and is stopped\n";
    assert_eq!(ran.stderr, text);
    exec(lab, &["--max-runtime", "1h"]).silently(0);
    let ran = lab.run(["exec", "--max-runtime", "1ms", "k", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done"]);
    assert_eq!(ran.code(), Some(124), "whatever the exit code of the command");
    lab.assert_idle();
}

/// "The lock is held until it is gone."
#[test]
fn lock_is_held_until_the_stopped_tree_is_gone() {
    let lab = &Lab::new();
    let slow = "trap '' TERM; echo ready; until [ -e go ]; do sleep 0.01; done";
    let mut rlock = lab.rlock(["exec", "--max-runtime", "100ms", "--grace", "1h", "k", "-c", slow]);
    let mut running = Running::start(rlock.current_dir(lab.folder()));
    assert_eq!(running.line(), "ready");
    let passed = Instant::now() + Duration::from_millis(200);
    wait_until("the run time is over", || Instant::now() > passed);
    assert!(exec(lab, &["-n"]).failed(75).starts_with("busy: "));
    // Signals go on to the command, which ignores this one.
    running.signal(Signal::TERM);
    fs::write(lab.folder().join("go"), "").expect("a file can be made");
    let ran = running.end();
    assert_eq!((ran.code(), ran.stderr.starts_with("rlock: timeout: ")), (Some(124), true), "{ran:?}");
    let inner = lab.run(["exec", "--max-runtime", "100ms", "k", "--", RLOCK, "exec", "k", "--", "sleep", "1000"]);
    assert_eq!(inner.code(), Some(124));
    lab.assert_idle();
}

#[test]
fn limits_of_the_options_for_cron_are_usage_errors() {
    let lab = Lab::new();
    let whole = "--once-per needs one write claim on one whole KEY: give each job a KEY of its own";
    for (words, text) in [
        (
            &["exec", "k", "--skip-ok", "-E", "3"][..],
            "--skip-ok and --conflict-exit-code exclude each other: give one of them",
        ),
        (&["exec", "k", "--skip-ok", "--else", "x"], "--skip-ok and --else exclude each other: give one of them"),
        (
            &["exec", "k", "--skip-ok"],
            "--skip-ok needs -n, -w DUR, --max-waiting N or --supersede: without one of them, the request waits for ever",
        ),
        (
            &["exec", "k", "--supersede"],
            "--supersede needs --job NAME: without it './deploy 4f2a' and './deploy 9c01' are two jobs, and neither ends the other",
        ),
        (
            &["exec", "-n", "--skip-ok", "6h", "k"],
            "'6h' after --skip-ok is a KEY and not its DUR: write --skip-ok=6h, or put the KEY '6h' first",
        ),
        (&["exec", "k", "--skip-ok=x"], "--skip-ok: 'x' is not a duration: write it as 90s, 5m, 1h30m or 500ms"),
        (&["exec", "--read", "k", "--once-per", "1h"], whole),
        (&["exec", "--write", "k", "--write", "j", "--once-per", "1h"], whole),
        (&["exec", "--slot", "k=2", "--once-per", "1h"], whole),
        (&["range-write", "k", "1", "2", "--once-per", "1h"], whole),
        (
            &["exec", "k", "--once-per", "401d"],
            "--once-per: '401d' is too long: the store remembers for at most 400 days",
        ),
        (&["exec", "k", "--remember", "2y"], "--remember: '2y' is too long: the store remembers for at most 400 days"),
        (
            &["exec", "k", "--once-per", "days"],
            "--once-per: 'days' is not a duration: write it as 90s, 5m, 1h30m or 500ms, or as hour, day, week, month, year or ever",
        ),
        (&["exec", "k", "--once-per", "hourly"], "--once-per: 'hourly' is not a period: write hour"),
        (&["exec", "k", "--once-per", "daily"], "--once-per: 'daily' is not a period: write day"),
        (&["exec", "k", "--once-per", "weekly"], "--once-per: 'weekly' is not a period: write week"),
        (&["exec", "k", "--once-per", "monthly"], "--once-per: 'monthly' is not a period: write month"),
        (&["exec", "k", "--once-per", "yearly"], "--once-per: 'yearly' is not a period: write year"),
        (
            &["exec", "k", "--hold-at-least", "8d"],
            "--hold-at-least: '8d' is too long: a lock without a process lasts at most 7 days",
        ),
        (
            &["exec", "k", "--success-codes", "256"],
            "--success-codes: '256' is not an exit code: give a number from 0 to 255",
        ),
        (
            &["exec", "k", "--success-codes", "1,"],
            "--success-codes: '' is not an exit code: give a number from 0 to 255",
        ),
        (&["exec", "k", "--max-runtime", "0"], "--max-runtime: '0' is too short: give the command at least 1ms"),
        (&["exec", "k", "--max-runtime", "1ns"], "--max-runtime: '1ns' is too short: give the command at least 1ms"),
        (&["exec", "k", "--job", ""], "--job: a job needs a name"),
    ] {
        lab.run([words, &["--", "true"]].concat()).said(64, text);
    }
}
