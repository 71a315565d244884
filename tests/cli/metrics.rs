//! `rlock inspect --prometheus`, `--held-longer-than` and `--no-success-for`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use rlock_testkit::needs::left_out;
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, Ran, on_both, wait_until};

/// Parses metrics with the client library of Prometheus, strictly, and prints them as JSON.
const TO_JSON: &str = "\
import json, sys
from prometheus_client.parser import text_string_to_metric_families as parse
json.dump([[family.name, family.type, family.documentation, [[s.name, s.labels, s.value, s.timestamp]
           for s in family.samples]] for family in parse(sys.stdin.read())], sys.stdout)";

/// Name, type, help, and samples.
type Family = (String, String, String, Vec<Sample>);
/// Name, labels, value and timestamp.
type Sample = (String, BTreeMap<String, String>, f64, Value);

/// The metrics in `text`: the value of each sample by its name and labels, such as
/// `rlock_held resource=k mode=write`.
fn parsed(text: &str) -> Option<BTreeMap<String, f64>> {
    let probe = Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        left_out("not installed: the prometheus_client module of python3");
        return None;
    }
    let found = piped(Command::new("/usr/bin/python3").args(["-c", TO_JSON]), text);
    let families: Vec<Family> =
        serde_json::from_str(&found.stdout).unwrap_or_else(|error| panic!("{error}: {found:?}\n{text}"));
    let mut samples = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (family, kind, help, found) in families {
        assert!(names.insert(family.clone()), "{family} is there once");
        assert!(!help.is_empty() && kind != "unknown", "{family} has HELP and TYPE");
        for (name, labels, value, timestamp) in found {
            assert_eq!(timestamp, Value::Null, "no sample timestamps");
            let has_mode = name == "rlock_held";
            let expected: BTreeSet<_> = ["resource"].into_iter().chain(has_mode.then_some("mode")).collect();
            assert_eq!(labels.keys().map(String::as_str).collect::<BTreeSet<_>>(), expected, "{name}");
            let mode = labels.get("mode").map(|mode| format!(" mode={mode}")).unwrap_or_default();
            let sample = format!("{name} resource={}{mode}", labels["resource"]);
            assert_eq!(samples.insert(sample.clone(), value), None, "{sample} is there once");
        }
    }
    Some(samples)
}

/// Runs a program with this input.
fn piped(command: &mut Command, input: &str) -> Ran {
    let mut running = rlock_testkit::Running::start(command.stdin(Stdio::piped()));
    running.write(input);
    running.end()
}

/// The numbers of seconds since the Unix epoch that are possible in a test.
fn is_recent(time: f64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs_f64();
    (now - 3600.0..now + 60.0).contains(&time)
}

fn metrics(lab: &Lab, words: &[&str]) -> String {
    let ran = lab.run([&["inspect", "--prometheus"], words].concat());
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran.stdout
}

/// "Names: rlock_held{resource,mode}, rlock_waiting, … no sample timestamps, no pid or host
/// labels."
#[test]
fn metrics_have_the_documented_names_and_values() {
    on_both(|lab| {
        lab.run(["exec", "k", "--", "true"]).silently(0);
        lab.run(["exec", "k", "-c", "exit 3"]).silently(3);
        lab.run(["exec", "k", "-c", "kill -9 $$"]).silently(137);
        let broken = lab.hold("k");
        assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
        assert_eq!(broken.end().code(), Some(76));
        let holder = lab.hold_by(["exec", "--read", "k"]);
        let _waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        for _ in 0..2 {
            lab.run(["exec", "-n", "--skip-ok", "k", "--", "true"]).silently(0);
        }
        assert_eq!(lab.run(["exec", "-n", "k", "--", "true"]).code(), Some(75));
        let Some(found) = parsed(&metrics(lab, &["k"])) else { return };
        let value = |name: &str| found.get(name).copied();
        for (name, expected) in [
            ("rlock_held resource=k mode=read", 1.0),
            ("rlock_held resource=k mode=prewrite", 0.0),
            ("rlock_held resource=k mode=write", 0.0),
            ("rlock_held resource=k mode=slot", 0.0),
            ("rlock_waiting resource=k", 1.0),
            ("rlock_skips_in_a_row resource=k", 2.0),
            ("rlock_last_exit_code resource=k", 76.0),
            ("rlock_grants_total resource=k", 4.0),
            ("rlock_busy_total resource=k", 3.0),
            ("rlock_lost_total resource=k", 0.0),
            ("rlock_expired_total resource=k", 0.0),
            ("rlock_wait_seconds_count resource=k", 4.0),
            ("rlock_hold_seconds_count resource=k", 4.0),
        ] {
            assert_eq!(value(name), Some(expected), "{name}: {found:?}");
        }
        let times = ["hold_start", "last_end", "last_success"];
        for time in times.map(|name| format!("rlock_{name}_timestamp_seconds resource=k")) {
            assert!(value(&time).is_some_and(is_recent), "{time}: {found:?}");
        }
        let sums = ["wait", "hold"].map(|name| value(&format!("rlock_{name}_seconds_sum resource=k")));
        assert!(sums.iter().all(|sum| sum.is_some_and(|sum| (0.0..3600.0).contains(&sum))), "{found:?}");
        assert!(sums[1] > Some(0.0));
        assert_eq!(found.len(), 19, "{found:?}");
        holder.end().silently(0);
    });
}

/// A name may have any printable characters, which labels must not break. Resources that nobody
/// holds are there as long as they are remembered.
#[test]
fn labels_name_every_resource_whatever_its_name() {
    on_both(|lab| {
        let names = ["a\\b", "say \"k\"", "{x=\"1\"} 2", "ä名", "a,b\\"];
        for name in names {
            lab.run(["exec", name, "--", "true"]).silently(0);
        }
        let text = metrics(lab, &[]);
        let Some(found) = parsed(&text) else { return };
        for name in names {
            assert_eq!(found.get(&format!("rlock_grants_total resource={name}")), Some(&1.0), "{text}");
            assert_eq!(found.get(&format!("rlock_hold_start_timestamp_seconds resource={name}")), None);
        }
        let counted = found.keys().filter(|name| name.starts_with("rlock_waiting ")).count();
        assert_eq!(counted, names.len());
        // Its package is large and starts a service, so no machine has to have it.
        if Command::new("promtool").arg("--version").output().is_ok() {
            let ran = piped(Command::new("promtool").args(["check", "metrics"]), &text);
            assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        }
    });
}

/// "FILE is written beside and renamed."
#[test]
fn metrics_file_is_replaced_as_a_whole() {
    let lab = Lab::new();
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let folder = lab.folder().join("metrics");
    fs::create_dir(&folder).expect("a folder can be made");
    let file = folder.join("rlock.prom");
    fs::write(&file, "old").expect("the file is written");
    let reader = fs::File::open(&file).expect("the file opens");
    let path = file.to_str().expect("a path of text");
    lab.run(["inspect", "--prometheus", "-o", path]).silently(0);
    assert_eq!(std::io::read_to_string(reader).expect("the file is read"), "old", "the old file stays as it was");
    assert_eq!(fs::read_to_string(&file).expect("the file is read"), metrics(&lab, &[]));
    assert_eq!(fs::read_dir(&folder).expect("the folder is read").count(), 1, "nothing is left beside it");
    let ran = lab.run(["inspect", "--prometheus", "-o", folder.to_str().expect("a path of text")]);
    let text = "-o: can't write '{}': it is not a regular file: name a file in a directory that you may write to";
    ran.said(64, &text.replace("{}", &folder.display().to_string()));
    lab.run(["inspect", "-o", path]).failed(64);
}

/// "rlock inspect --held-longer-than DUR: only those; exit 1 if there are any."
#[test]
fn hold_that_lasts_for_too_long_is_shown_alone() {
    on_both(|lab| {
        lab.run(["inspect", "--held-longer-than", "1ms"]).silently(0);
        let old = lab.hold("old");
        let _waiter = lab.wait_by(["exec", "old"]);
        lab.until_waiting("old", 1);
        wait_until("the hold lasts for a second", || {
            lab.run(["inspect", "--held-longer-than", "1s"]).code() == Some(1)
        });
        lab.run(["inspect", "--held-longer-than", "1h"]).silently(0);
        let _new = lab.hold("new");
        lab.run(["inspect", "new", "--held-longer-than", "1h"]).silently(0);
        let ran = lab.run(["inspect", "--held-longer-than", "1s", "--json", "old", "free"]);
        let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let resources = found["resources"].as_array().expect("a list");
        assert_eq!((ran.code(), resources.len()), (Some(1), 1), "{ran:?}");
        assert_eq!(resources[0]["name"], "old");
        assert_eq!(["holders", "waiters"].map(|list| resources[0][list].as_array().map(Vec::len)), [Some(1), Some(0)]);
        let table = lab.run(["inspect", "--held-longer-than", "1s", "old"]).stdout;
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("old ")).collect();
        assert!(rows.len() == 1 && rows[0].contains(" holds "), "{table}");
        old.end().silently(0);
    });
}

/// "`--waiting-longer-than DUR` as a check beside `--held-longer-than`;
/// `rlock_oldest_wait_seconds`."
#[test]
fn wait_that_lasts_for_too_long_is_shown_alone() {
    on_both(|lab| {
        let holder = lab.hold("k");
        lab.run(["inspect", "--waiting-longer-than", "0"]).silently(0);
        if let Some(found) = parsed(&metrics(lab, &["k"])) {
            assert_eq!(found["rlock_oldest_wait_seconds resource=k"], 0.0);
        }
        let waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        wait_until("the wait lasts for 100 ms", || {
            lab.run(["inspect", "--waiting-longer-than", "100ms"]).code() == Some(1)
        });
        lab.run(["inspect", "--waiting-longer-than", "1h"]).silently(0);
        let listed = |words: &[&str]| {
            let ran = lab.run([&["inspect", "--json", "--waiting-longer-than", "100ms"], words].concat());
            let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
            ["holders", "waiters"].map(|list| found["resources"][0][list].as_array().map(Vec::len))
        };
        assert_eq!(listed(&[]), [Some(0), Some(1)]);
        assert_eq!(listed(&["--held-longer-than", "100ms"]), [Some(1); 2]);
        if let Some(found) = parsed(&metrics(lab, &["k"])) {
            assert!(found["rlock_oldest_wait_seconds resource=k"] > 0.1);
        }
        let tree = lab.run(["inspect", "--tree"]).stdout;
        assert!(tree.lines().any(|line| line.contains("holds write: ") && line.contains(", blocks 1, ")), "{tree}");
        drop((holder.end(), waiter.end()));
    });
}

/// A hold whose lease is over is listed until somebody uses its resource, but nobody holds it.
#[test]
fn hold_whose_lease_is_over_counts_as_held_no_more() {
    if !Kind::Redis7.is_present() {
        return;
    }
    let lab = Lab::on(Kind::Redis7);
    lab.hold_by(["exec", "k", "--ttl", "1s"]).kill();
    let holder = || lab.inspect(["k"])["resources"][0]["holders"][0].clone();
    wait_until("the lease is over", || holder()["expires_in_ms"] == 0);
    lab.run(["inspect", "k", "--held-longer-than", "1ms"]).silently(0);
    if let Some(found) = parsed(&metrics(&lab, &["k"])) {
        assert_eq!(found["rlock_held resource=k mode=write"], 0.0);
        assert_eq!(found.get("rlock_hold_start_timestamp_seconds resource=k"), None);
    }
    assert_eq!(holder()["expires_in_ms"], 0, "nobody has used the resource");
}

/// "rlock inspect --no-success-for DUR KEY…: exit 1 and a line for each KEY without a successful
/// run in that time."
#[test]
fn key_without_a_recent_success_is_named() {
    on_both(|lab| {
        let check = |limit: &str, keys: &[&str]| lab.run([&["inspect", "--no-success-for", limit], keys].concat());
        let never = "had no successful run for 1h: none is known";
        let ran = check("1h", &["a", "b"]);
        assert_eq!(ran.code(), Some(1));
        assert_eq!((ran.stdout, ran.stderr), (format!("'a' {never}\n'b' {never}\n"), String::new()));
        lab.run(["exec", "a", "--", "true"]).silently(0);
        lab.run(["exec", "b", "--", "false"]).silently(1);
        assert_eq!(check("1h", &["a", "b"]).stdout, format!("'b' {never}\n"));
        check("1h", &["a"]).silently(0);
        // A run without a history counts, and so does one with a code of --success-codes. A failure
        // changes nothing.
        lab.run(["exec", "b", "--history", "0", "--success-codes", "4", "-c", "exit 4"]).silently(4);
        lab.run(["exec", "b", "--", "false"]).silently(1);
        check("1h", &["a", "b"]).silently(0);
        wait_until("the success is old", || check("1ms", &["a"]).code() == Some(1));
        let ran = check("1ms", &["a"]);
        assert!(ran.stdout.starts_with("'a' had no successful run for 1ms: the last ended at 20"), "{ran:?}");
        check("1h", &[]).said(64, "--no-success-for needs a KEY: name what has to run");
        // "With --job NAME, only runs with that --job count".
        lab.run(["exec", "--job", "nightly", "o", "--", "true"]).silently(0);
        lab.run(["exec", "o", "--", "true"]).silently(0);
        check("1h", &["--job", "nightly"]).silently(0);
        check("1h", &["--job", "nightly", "o"]).silently(0);
        let none = "'o' had no successful run of job 'other' for 1h: none is known\n";
        assert_eq!(check("1h", &["--job", "other", "o"]).stdout, none);
        let ran = check("1ms", &["--job", "nightly"]);
        let late = "the store had no successful run of job 'nightly' for 1ms: the last ended at ";
        assert!(ran.code() == Some(1) && ran.stdout.starts_with(late), "{ran:?}");
        lab.run(["exec", "--job", "failing", "o", "--", "false"]).silently(1);
        assert_eq!(check("1h", &["--job", "failing", "o"]).code(), Some(1));
        // "Any DUR up to 400d, true for what is remembered and refused with the remedy for what is
        // not."
        check("8days", &["a"]).silently(0);
        assert!(check("8days", &["a", "never"]).failed(64).contains("'never' is known"));
        assert!(check("8days", &["never"]).failed(64).contains("run it with 'rlock exec --remember 8d'"));
        assert_eq!(check("7days", &["never"]).code(), Some(1));
        lab.run(["exec", "--remember", "90d", "never", "--", "false"]).silently(1);
        assert_eq!(check("8days", &["never"]).code(), Some(1));
        assert!(check("401days", &["a"]).failed(64).contains("the store remembers for at most 400 days"));
    });
}
