//! `rlock history`, `--history` and `RLOCK_HISTORY`.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use rlock_testkit::{Lab, RLOCK, Ran, Running, needs, on_both, wait_until};

/// The output of `rlock history --json` with these words.
fn history(lab: &Lab, words: &[&str]) -> Value {
    let ran = lab.run([&["history", "--json"], words].concat());
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "history fails");
    serde_json::from_str(&ran.stdout).expect("history --json prints JSON")
}

/// The entries of a resource.
fn entries(lab: &Lab, words: &[&str]) -> Vec<Value> {
    history(lab, words)["resources"][0]["entries"].as_array().expect("a list of entries").clone()
}

/// The outcomes of the entries of `k`, each with its exit code, signal or count.
fn outcomes(lab: &Lab, words: &[&str]) -> Vec<String> {
    let shown = |entry: &Value| {
        let numbers = ["exit", "signal", "count"].map(|name| entry[name].as_u64());
        let numbers: String = numbers.iter().flatten().map(|number| format!(" {number}")).collect();
        format!("{}{numbers}", entry["outcome"].as_str().expect("an outcome"))
    };
    entries(lab, &[&["k"], words].concat()).iter().map(shown).collect()
}

fn run(lab: &Lab, options: &[&str], command: &str) -> Ran {
    lab.run([&["exec", "k"], options, &["-c", command]].concat())
}

/// The session that `rlock acquire` has printed.
fn session(acquired: &Ran) -> &str {
    let session = acquired.stdout.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION="));
    session.expect("acquire prints the session")
}

/// A history with an end of each kind.
fn fill(lab: &Lab) {
    run(lab, &[], "exit 0").silently(0);
    run(lab, &[], "exit 3").silently(3);
    run(lab, &[], "kill -9 $$").silently(137);
    assert_eq!(run(lab, &["--max-runtime", "10ms"], "sleep 60").code(), Some(124));
    let lost = lab.hold("k");
    for _ in 0..3 {
        run(lab, &["-n", "--skip-ok", "--job", "j"], "exit 0").silently(0);
    }
    assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
    assert_eq!(lost.end().code(), Some(76));
    let acquired = lab.run(["acquire", "k", "--for", "1h"]);
    lab.run(["release", session(&acquired)]).silently(0);
}

/// "per request that ended: outcome (exit N, signal N, lost, expired, broken, timeout, kept) …
/// Skips of one job in a row are one entry … newest last".
#[test]
fn each_way_to_end_has_its_entry_and_the_newest_is_last() {
    on_both(|lab| {
        fill(lab);
        let all = ["exit 0", "exit 3", "signal 9", "timeout", "skipped 3", "broken", "kept"];
        assert_eq!(outcomes(lab, &[]), all);
        assert_eq!(outcomes(lab, &["-n", "2"]), all[5..]);
        assert_eq!(outcomes(lab, &["--since", "1h"]), all);
        assert_eq!(outcomes(lab, &["--since", "0s"]), [""; 0]);
        assert_eq!(outcomes(lab, &["--failed"]), ["exit 3", "signal 9", "timeout", "broken"]);
        assert_eq!(outcomes(lab, &["--failed", "--since", "1h", "-n", "1"]), ["broken"]);
    });
}

/// "A request that ended without a grant: `busy`, `left` or `superseded`. Those of one job since
/// the last run are one entry … `--failed` leaves them out."
#[test]
fn requests_without_a_grant_have_an_entry_and_are_no_failures() {
    on_both(|lab| {
        let holder = lab.hold("k");
        assert_eq!(run(lab, &["-n", "--job", "a"], "true").code(), Some(75));
        assert_eq!(run(lab, &["-w", "1.1s", "--job", "a"], "true").code(), Some(75));
        let waiter = lab.wait_by(["exec", "k", "--job", "b"]);
        lab.until_waiting("k", 1);
        waiter.signal(Signal::TERM);
        assert_eq!(waiter.end().code(), Some(143));
        let old = lab.wait_by(["exec", "k", "--job", "c"]);
        lab.until_waiting("k", 1);
        let new = lab.wait_by(["exec", "k", "--job", "c", "--supersede"]);
        assert_eq!(old.end().code(), Some(75));
        assert_eq!(outcomes(lab, &[]), ["busy 2", "left 1", "superseded 1"]);
        let table = lab.run(["history", "k"]).stdout;
        assert!(table.contains("  busy 2 times  ") && table.contains("  left  "), "{table}");
        let busy = &entries(lab, &["k"])[0];
        assert_eq!([&busy["granted"], &busy["token"], &busy["exit"]], [&Value::Null; 3]);
        assert!(busy["asked"].as_str() < busy["ended"].as_str());
        assert_eq!(outcomes(lab, &["--failed"]), [""; 0]);
        holder.end().silently(0);
        assert_eq!(new.end().code(), Some(0));
        assert_eq!(outcomes(lab, &[]), ["busy 2", "left 1", "superseded 1", "exit 0", "exit 0"]);
        let holder = lab.hold("k");
        assert_eq!(run(lab, &["-n", "--job", "a"], "true").code(), Some(75));
        holder.end().silently(0);
        let all = ["busy 2", "left 1", "superseded 1", "exit 0", "exit 0", "busy 1", "exit 0"];
        assert_eq!(outcomes(lab, &[]), all, "a run ends the entry of a job");
    });
}

/// A holder that is killed, and a kept hold whose time is over, leave an entry that nobody but the
/// store can have written.
#[test]
fn cleanup_enters_what_ended_without_a_release() {
    let lab = Lab::new();
    lab.hold("k").kill();
    lab.run(["cleanup"]);
    assert_eq!(outcomes(&lab, &[]), ["expired"]);
    // Where other programs use the processors, a shorter hold may end before acquire does.
    assert_eq!(lab.run(["acquire", "k", "--for", "200ms"]).code(), Some(0));
    wait_until("the store has ended the kept hold", || {
        lab.run(["cleanup"]);
        outcomes(&lab, &[]) == ["expired", "kept"]
    });
}

/// This instant as rlock shows it.
fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// "History tells when a hold ended: its release, the lease's end, or the instant at which the
/// guardian saw the tree gone". Nobody has to use the name before.
#[test]
fn end_of_a_killed_hold_is_known_before_anybody_uses_its_name() {
    on_both(|lab| {
        for (number, key) in ["k", "a"].into_iter().enumerate() {
            lab.hold_by(["exec", key, "--ttl", "1s"]).kill();
            wait_until("the hold has ended", || history(lab, &[key])["resources"][0]["entries"] != json!([]));
            assert_eq!(history(lab, &[])["resources"].as_array().map(Vec::len), Some(number + 1));
        }
        let last = now();
        let first = entries(lab, &["k", "--failed"]);
        assert_eq!([&first[0]["outcome"], &first[0]["noticed"]], [&json!("expired"), &Value::Null]);
        let names: Vec<_> =
            history(lab, &[])["resources"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["a", "k"]);
        let failures = |words: &[&str]| history(lab, words)["resources"][0]["stats"]["failures"].clone();
        assert_eq!(failures(&["k", "--stats"]), json!(1));
        run(lab, &[], "exit 0").silently(0);
        lab.run(["cleanup"]);
        assert_eq!(outcomes(lab, &[]), ["expired", "exit 0"]);
        for key in ["k", "a"] {
            let recorded = &entries(lab, &[key])[0];
            let [granted, ended] = ["granted", "ended"].map(|name| recorded[name].as_str().expect("an instant"));
            assert!(granted <= ended && ended <= last.as_str(), "{recorded} is of later than {last}");
        }
        // The clocks of the machine differ by some microseconds when they are read.
        let known = |entry: &Value| {
            let mut entry = entry.as_object().expect("an entry").clone();
            entry.remove("ended");
            entry
        };
        assert_eq!(known(&entries(lab, &["k"])[0]), known(&first[0]), "the store has recorded the same");
    });
}

/// "else null, with the instant at which the death was noticed": no guardian is left to see it.
#[test]
fn end_without_a_guardian_is_null_with_the_instant_of_its_notice() {
    let lab = Lab::new();
    let mut process = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    assert_eq!(lab.run(["acquire", "k", "--pid", &process.id().to_string()]).code(), Some(0));
    let keeper = lab.inspect(["k"])["resources"][0]["holders"][0]["pid"].as_i64().expect("there is a holder");
    let keeper = Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    wait_until("the keeper has ended", || lab.counts("k") == (0, 0));
    let noticed = |entry: &Value| {
        assert_eq!([&entry["outcome"], &entry["ended"]], [&json!("expired"), &Value::Null]);
        entry["noticed"].as_str().expect("an instant").to_owned()
    };
    let before = now();
    assert!(noticed(&entries(&lab, &["k"])[0]) >= before);
    lab.run(["cleanup"]);
    let last = now();
    let recorded = entries(&lab, &["k"]);
    assert!(noticed(&recorded[0]) <= last, "{recorded:?} is of later than {last}");
    let stats = history(&lab, &["k", "--stats"])["resources"][0]["stats"].clone();
    assert_eq!([&stats["ended"], &stats["hold_ms"]], [&json!(1), &Value::Null]);
    let table = lab.run(["history", "k"]).stdout;
    assert!(table.contains(&format!(" by {} ", recorded[0]["noticed"].as_str().unwrap())), "{table}");
    process.kill().unwrap();
    process.wait().unwrap();
}

/// "JSON: {"store", "resources":[{"name", "entries":[{"outcome", "exit", "signal", "count",
/// "owner", "reason", "user", "host", "pid", "command", "claims", "asked", "granted", "ended",
/// "noticed", "token"}]}]} … what doesn't apply is null."
#[test]
fn json_has_exactly_the_documented_fields() {
    on_both(|lab| {
        let words = ["exec", "--range-read", "k", "[1,2)", "--slot", "other=2", "--owner", "me", "--reason", "test"];
        let holder = lab.hold_by(words);
        let shown = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        holder.end().silently(0);
        run(lab, &[], "exit 0").silently(0);
        let holder = lab.hold("k");
        run(lab, &["-n", "--skip-ok"], "exit 0").silently(0);

        let found = history(lab, &["k"]);
        assert_eq!(found["store"], lab.url());
        assert_eq!(found["resources"][0]["name"], "k");
        let list = found["resources"][0]["entries"].as_array().expect("a list");
        let names =
            "outcome exit signal count owner reason user host pid command claims asked granted ended noticed token";
        for entry in list {
            let keys: BTreeSet<_> = entry.as_object().expect("an object").keys().map(String::as_str).collect();
            assert_eq!(keys, names.split(' ').collect());
        }
        let [first, second, skipped] = list.as_slice() else { panic!("{list:?}") };
        for name in ["owner", "reason", "user", "host", "pid", "command", "token"] {
            assert_eq!(first[name], shown[name], "{name}");
        }
        assert_eq!([&first["granted"], &first["exit"], &first["count"]], [&shown["since"], &json!(0), &Value::Null]);
        let span = json!({"lo": "1", "hi": "2", "lo_open": false, "hi_open": true});
        assert_eq!(first["claims"], json!([{"mode": "read", "span": span, "slots": null, "count": null}]));
        assert_eq!(second["claims"], json!([{"mode": "write", "span": null, "slots": null, "count": null}]));
        assert_eq!([&second["owner"], &second["signal"]], [&Value::Null; 2]);
        assert!(second["token"].as_u64() > first["token"].as_u64());
        assert!(first["asked"].as_str() <= first["granted"].as_str());
        assert!(first["granted"].as_str() <= first["ended"].as_str());
        assert_eq!([&skipped["exit"], &skipped["granted"], &skipped["token"]], [&Value::Null; 3]);
        assert_eq!((&skipped["outcome"], &skipped["count"]), (&json!("skipped"), &json!(1)));
        holder.end().silently(0);
        let other = entries(lab, &["other"]);
        assert_eq!(other[0]["claims"], json!([{"mode": "slot", "span": null, "slots": 2, "slot": [0], "count": 1}]));
        lab.run(["exec", "--slot", "gpu=5:2", "--", "true"]).silently(0);
        let several = entries(lab, &["gpu"]);
        assert_eq!(
            several[0]["claims"],
            json!([{"mode": "slot", "span": null, "slots": 5, "slot": [0, 1], "count": 2}])
        );
        let row = lab.run(["history", "gpu"]).stdout;
        assert!(row.lines().any(|line| line.contains("  slots 0,1 of 5  ")), "{row}");
    });
}

/// Without KEY, all resources are shown; a KEY that remembers nothing has an empty list.
#[test]
fn resources_are_listed_by_name_or_as_they_were_asked_for() {
    on_both(|lab| {
        assert_eq!(history(lab, &[])["resources"], json!([]));
        lab.run(["history"]).printed("no entries\n");
        for name in ["b", "a"] {
            lab.run(["exec", name, "--", "true"]).silently(0);
        }
        let names = |words: &[&str]| {
            let found = history(lab, words)["resources"].as_array().expect("a list").clone();
            let shown = |resource: &Value| {
                let count = resource["entries"].as_array().map_or(0, Vec::len);
                format!("{} {count}", resource["name"].as_str().expect("a name"))
            };
            found.iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["a 1", "b 1"]);
        assert_eq!(names(&["c", "b", "a", "b"]), ["c 0", "b 1", "a 1"]);
    });
}

/// "A ring per resource, 32 entries, --history N/RLOCK_HISTORY 0 to 1000 by whoever releases".
/// "`history` without a name is in the order of time."
#[test]
fn table_without_a_key_is_in_the_order_of_time() {
    let lab = Lab::new();
    for key in ["b", "a", "b"] {
        lab.run(["exec", key, "--", "true"]).silently(0);
    }
    let names = |words: &[&str]| {
        let table = lab.run([&["history"], words].concat()).stdout;
        table.lines().skip(1).filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["b", "a", "b"]);
    assert_eq!(names(&["a", "b"]), ["a", "b", "b"]);
}

#[test]
fn ring_keeps_as_many_entries_as_the_last_request_says() {
    on_both(|lab| {
        for code in 1..=5 {
            run(lab, &["--history", "3"], &format!("exit {code}")).silently(code);
        }
        assert_eq!(outcomes(lab, &[]), ["exit 3", "exit 4", "exit 5"]);
        let with = |count: &str, command: &[&str]| Ran::of(lab.rlock(command).env("RLOCK_HISTORY", count));
        with("2", &["exec", "k", "--", "true"]).silently(0);
        assert_eq!(outcomes(lab, &[]), ["exit 5", "exit 0"]);
        with("0", &["exec", "k", "--history", "2", "-c", "exit 7"]).silently(7);
        assert_eq!(outcomes(lab, &[]), ["exit 0", "exit 7"], "the option prevails");
        with("0", &["exec", "k", "--", "true"]).silently(0);
        assert_eq!(outcomes(lab, &[]), [""; 0]);
        let said = "RLOCK_HISTORY: '1001' is not the length of a history: give a number from 0 to 1000";
        with("1001", &["exec", "k", "--", "true"]).said(64, said);
        run(lab, &["--history", "-1"], "true").failed(64);
        for code in 0..40 {
            run(lab, &[], &format!("exit {code}")).silently(code);
        }
        let last: Vec<_> = (8..40).map(|code| format!("exit {code}")).collect();
        assert_eq!(outcomes(lab, &[]), last);
    });
}

/// `rlock release` keeps as many entries as `rlock acquire` was told.
#[test]
fn release_of_an_acquired_lock_heeds_the_history_of_acquire() {
    on_both(|lab| {
        for count in [2, 2, 2, 0] {
            let acquired = lab.run(["acquire", "k", "--for", "1h", "--history", &count.to_string()]);
            lab.run(["release", session(&acquired)]).silently(0);
            let expected = if count == 0 { &[][..] } else { &["kept"] };
            assert!(outcomes(lab, &[]).ends_with(&expected.iter().map(ToString::to_string).collect::<Vec<_>>()));
            assert!(outcomes(lab, &[]).len() <= count);
        }
    });
}

/// Text output escapes control characters and quotes commands as a shell needs them.
#[test]
fn table_quotes_commands_and_escapes_control_characters() {
    let lab = Lab::new();
    lab.run(["exec", "k", "--owner", "me", "--", "sh", "-c", "# it's \u{1b}[31m\u{202e}\nexit 4"]).silently(4);
    lab.run(["exec", "k", "--range-write", "t", "(1,2]", "--", "true"]).silently(0);
    let user = lab.inspect_user();
    let ran = lab.run(["history", "k", "t"]);
    let rows: Vec<Vec<_>> = ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let headings = ["RESOURCE", "ENDED", "OUTCOME", "CLAIM", "WAITED", "HELD", "WHO", "PID", "COMMAND"];
    assert_eq!(rows[0], headings, "{ran:?}");
    let [_, first, second, third] = rows.as_slice() else { panic!("{ran:?}") };
    assert_eq!((first[0], &first[2..5]), ("k", &["exit", "4", "write"][..]));
    assert_eq!(first[7], "me,");
    assert!(first[8].starts_with(&format!("{}@", user.as_str().expect("a name"))), "{ran:?}");
    assert!(ran.stdout.contains(" sh -c $'# it\\'s \\x1b[31m\\U0000202e\\nexit 4'\n"), "{ran:?}");
    assert_eq!([second[0], second[3], second[4]], ["k", "0", "write"]);
    assert_eq!([third[0], third[4], third[5], third[third.len() - 1]], ["t", "write", "(1,2]", "true"]);
}

/// The words of other users reach a terminal in JSON, too.
#[test]
fn json_has_escapes_for_characters_that_a_terminal_obeys_or_hides() {
    on_both(|lab| {
        let words = "# \u{9b}31m\u{202e}\u{7f}\u{3164}\u{2764}\u{fe0f}";
        let mut holder = lab.rlock(["exec", "\u{2764}\u{fe0f}", "-c", &format!("read line {words}")]);
        let holder = Running::start(holder.stdin(Stdio::piped()));
        wait_until("the lock is held", || lab.counts("\u{2764}\u{fe0f}") == (1, 0));
        let escaped = "# \\u009b31m\\u202e\\u007f\\u3164\u{2764}\u{fe0f}";
        let text = lab.run(["inspect", "--json"]).stdout;
        assert!(text.contains(escaped), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert!(read.to_string().contains(words), "{text}");
        drop(holder.end());
        let text = lab.run(["history", "--json", "\u{2764}\u{fe0f}"]).stdout;
        assert!(text.contains(escaped), "{text}");
    });
}

/// "--stats: waits and holds p50/p95/max, busy share, failures, longest queue."
#[test]
fn stats_sum_up_waits_holds_failures_and_busy_requests() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let waiters: Vec<_> = (1..=2)
            .map(|count| {
                let waiter = lab.wait_by(["exec", "k"]);
                lab.until_waiting("k", count);
                waiter
            })
            .collect();
        assert_eq!(run(lab, &["-n"], "true").code(), Some(75));
        holder.end().silently(0);
        waiters.into_iter().for_each(|waiter| waiter.end().printed("held\n"));
        run(lab, &[], "exit 1").silently(1);
        let stats = history(lab, &["k", "--stats"])["resources"][0]["stats"].clone();
        let names = ["ended", "failures", "busy_share", "longest_queue"].map(|name| stats[name].clone());
        assert_eq!(names, [json!(4), json!(1), json!(0.2), json!(2)]);
        for times in ["wait_ms", "hold_ms"] {
            let [p50, p95, max] = ["p50", "p95", "max"].map(|name| stats[times][name].as_u64().expect("a number"));
            assert!(p50 <= p95 && p95 <= max, "{stats}");
        }
        let table = lab.run(["history", "--stats"]).stdout;
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0].len(), 11);
        assert_eq!(rows[1][..5], ["k", "4", "1", "20%", "2"], "{table}");
    });
}

/// The seconds from one instant of an entry to an instant of another, as far as milliseconds tell.
fn seconds_between(one: &Value, other: &Value) -> f64 {
    let instant = |value: &Value| humantime::parse_rfc3339(value.as_str().expect("an instant")).expect("RFC 3339");
    instant(other).duration_since(instant(one)).expect("it is later").as_secs_f64()
}

/// "Pairs by waited seconds, from overlaps of waits with the holds that conflict with them."
#[test]
fn blame_tells_who_made_whom_wait_and_for_how_long() {
    on_both(|lab| {
        lab.run(["history", "--blame"]).printed("no waits\nno hold is known that has ended\n");
        let holder = lab.hold_by(["exec", "k", "--job", "a"]);
        assert_eq!(run(lab, &["-w", "50ms", "--owner", "ada"], "true # 1").code(), Some(75));
        let waiter = lab.wait_by(["exec", "k", "--job", "b"]);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        waiter.end().printed("held\n");
        let blame: Value = serde_json::from_str(&lab.run(["history", "--blame", "--json"]).stdout).expect("JSON");
        let pairs = blame["pairs"].as_array().expect("a list");
        assert!(pairs.len() == 2 && pairs[0]["seconds"].as_f64() >= pairs[1]["seconds"].as_f64(), "{blame}");
        let of = |is_named| pairs.iter().find(|pair| pair["whom"]["job"].is_string() == is_named).expect("a pair");
        let [b, ada] = [true, false].map(of);
        let job = |name: &str| json!({"job": name, "command": null, "owner": null});
        let command = json!({"job": null, "command": ["/bin/sh", "-c", "true # 1"], "owner": "ada"});
        assert_eq!([&b["who"], &b["whom"], &b["times"]], [&job("a"), &job("b"), &json!(1)]);
        assert_eq!([&ada["who"], &ada["whom"], &ada["times"]], [&job("a"), &command, &json!(1)]);
        let entries = entries(lab, &["k"]);
        let [busy, held, waited] = entries.as_slice() else { panic!("{entries:?}") };
        for (pair, wait) in [
            (ada, seconds_between(&busy["asked"], &busy["ended"])),
            (b, seconds_between(&waited["asked"], &held["ended"])),
        ] {
            let seconds = pair["seconds"].as_f64().expect("a number");
            assert!((seconds - wait).abs() < 0.01 && pair["longest_seconds"] == pair["seconds"], "{wait} {blame}");
        }
        let table = lab.run(["history", "--blame", "k"]).stdout;
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>().join(" "),
            "SECONDS TIMES LONGEST WHO MADE WHOM WAIT"
        );
        for whom in ["  a    b", "  a    /bin/sh -c 'true # 1' (ada)"] {
            assert!(lines[1..3].iter().any(|line| line.ends_with(whom)), "{table}");
        }
        assert!(lines[3].starts_with("complete since 20"), "{table}");
        assert_eq!(lab.run(["history", "--blame", "--failed"]).code(), Some(64));
    });
}

/// "Bars in the terminal's width, … failures and losses marked, the axis in local time."
#[test]
fn timeline_draws_bars_and_marks_failures_in_a_pipe() {
    on_both(|lab| {
        lab.run(["history", "--timeline"]).printed("no entries\n");
        lab.run(["exec", "k", "--job", "fails", "--", "sh", "-c", "sleep 0.1; exit 3"]).silently(3);
        let drawn = |words: &[&str], zone: &str| {
            let ran = Ran::of(lab.rlock([&["history", "--timeline"], words].concat()).env("TZ", zone));
            assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
            ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let lines = drawn(&["k"], "UTC");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert!(lines[1].starts_with("fails      ███") && lines[1].ends_with("█x exit 3"), "{lines:#?}");
        let lines = drawn(&[], "UTC");
        assert!(lines[1].starts_with("k          ███") && lines[1].ends_with("█x held"), "{lines:#?}");
        let [here, there] = ["UTC", "JST-9"].map(|zone| drawn(&["k", "--since", "1h"], zone)[0].clone());
        assert!(here.matches('|').count() >= 3 && here != there, "{here} {there}");
        let failed = lab.run(["history", "--timeline", "--json"]);
        assert_eq!(failed.code(), Some(64));
    });
}

/// "Chrome's trace format (only `X`, `C`, `M` events …)", each with the fields that the format
/// asks for.
#[test]
fn trace_has_the_fields_that_its_format_asks_for() {
    on_both(|lab| {
        fill(lab);
        let trace: Value = serde_json::from_str(&lab.run(["history", "--trace"]).stdout).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("a list");
        for event in events {
            let numbers: &[&str] = match event["ph"].as_str().expect("a phase") {
                "X" => &["ts", "dur", "pid", "tid"],
                "C" => &["ts", "pid"],
                "M" => &["pid", "tid"],
                other => panic!("{other}"),
            };
            assert!(numbers.iter().all(|number| event[number].is_u64()), "{event}");
            assert!(event["name"].is_string() && event.get("args").is_none_or(Value::is_object), "{event}");
        }
        let blocks = events.iter().filter(|event| event["ph"] == "X");
        let outcomes: Vec<_> = blocks.map(|event| event["args"]["outcome"].as_str().unwrap()).collect();
        assert_eq!(outcomes, ["exit", "exit", "signal", "timeout", "broken", "kept"]);
    });
}

/// "`--since` and `--until`": what ended in between.
#[test]
fn until_leaves_out_what_ended_later() {
    on_both(|lab| {
        run(lab, &[], "exit 0").silently(0);
        assert_eq!(outcomes(lab, &["--until", "1h"]), [""; 0]);
        assert_eq!(outcomes(lab, &["--until", "0s"]), ["exit 0"]);
        assert_eq!(outcomes(lab, &["--since", "1h", "--until", "0s"]), ["exit 0"]);
    });
}

/// "Nested holds do not count in `--stats`": those that a hold of the same KEY covers.
#[test]
fn hold_below_a_hold_of_the_same_key_does_not_count_in_the_statistics() {
    on_both(|lab| {
        let inner = [RLOCK, "exec", "b", "--", RLOCK, "exec", "a", "--", "true"];
        lab.run([&["exec", "a", "--"], &inner[..]].concat()).silently(0);
        let ended = |name: &str| history(lab, &[name, "--stats"])["resources"][0]["stats"]["ended"].clone();
        assert_eq!(["a", "b"].map(ended), [json!(1), json!(1)]);
        assert_eq!(entries(lab, &["a"]).len(), 2);
    });
}

const HISTORY_PAGE: &str = include_str!("../../src/cli/pages/history.txt");

/// The JSON that the manual pages of `history` and `inspect` describe is the JSON that jq finds.
#[test]
fn jq_finds_what_the_manual_pages_describe() {
    if !needs::programs(&["jq"]) {
        return;
    }
    let lab = Lab::new();
    fill(&lab);
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    drop(waiter.end());
    let _holder = lab.hold_by(["exec", "--slot", "k=3"]);
    let _waiter = lab.wait_by(["range-write", "k", "1", "2"]);
    lab.until_waiting("k", 1);
    run(&lab, &["--place", "p", "-w", "10ms"], "true").busy();
    run(&lab, &["-n", "--skip-ok"], "true").silently(0);
    let json = |words: &[&str]| lab.run(words).stdout;
    let all = [
        (HISTORY_PAGE, "{\"store\"", ".", json(&["history", "--json"])),
        (HISTORY_PAGE, "\"stats\": {", ".resources[].stats", json(&["history", "--json", "--stats"])),
        (HISTORY_PAGE, "{\"store\": \"...\", \"since\"", ".", json(&["history", "--json", "--blame"])),
        (include_str!("../../src/cli/pages/inspect.txt"), "{\"store\"", ".", json(&["inspect", "--json"])),
    ];
    for (page, start, root, json) in all {
        let described = objects(page, start, root);
        assert!(described.len() >= 3, "the page describes {described:?}");
        for (path, names) in described {
            // Each object at the path has these fields and no others.
            let filter = format!("[{path} | select(. != null) | keys_unsorted | sort] | unique == [$names | sort]");
            let found = jq(&["--argjson", "names", &json!(names).to_string(), &filter], &json);
            assert_eq!(found, "true", "{path} should have {names:?}: {json}");
        }
    }
    // The example of the page.
    let filter = ".resources[].entries[] | select(.outcome == \"signal\") | .signal";
    assert_eq!(jq(&[filter], &json(&["history", "k", "--json"])), "9");
}

/// The objects of the JSON that a manual page describes after `start`: the path to each, and the
/// names of its fields.
fn objects(page: &str, start: &str, root: &str) -> Vec<(String, Vec<String>)> {
    let at = page.find(start).expect("the page describes JSON");
    let mut found = Vec::new();
    let mut open: Vec<(String, Vec<String>)> = Vec::new();
    let (mut name, mut is_name, mut is_list) = (String::new(), false, false);
    for c in page[at + start.find('{').expect("an object")..].chars() {
        match c {
            '"' if is_name => {
                if name != "..." {
                    open.last_mut().expect("a name is in an object").1.push(name.clone());
                }
                is_name = false;
            }
            '"' => (name, is_name, is_list) = (String::new(), true, false),
            '[' => is_list = true,
            '{' => {
                let path = open.last().map_or_else(
                    || root.to_owned(),
                    |(above, names)| {
                        let name = names.last().expect("an object has a name");
                        format!("{above} | .{name}{}", if is_list { "[]" } else { "" })
                    },
                );
                open.push((path, Vec::new()));
            }
            '}' => {
                found.extend(open.pop());
                if open.is_empty() {
                    break;
                }
            }
            c if is_name => name.push(c),
            _ => {}
        }
    }
    found
}

/// The output of jq, in one line.
fn jq(words: &[&str], input: &str) -> String {
    let mut jq = Command::new("jq");
    let mut jq = jq.arg("-c").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("jq starts");
    jq.stdin.take().expect("jq has a pipe").write_all(input.as_bytes()).expect("jq reads its input");
    let ran = jq.wait_with_output().expect("jq ends");
    String::from_utf8_lossy(&ran.stdout).trim_end().to_owned()
}
