//! `rlock inspect --watch` where there is no terminal: a line for each change.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::breaking::Stubborn;
use rlock_testkit::servers::{Kind, Setup};
use rlock_testkit::{Lab, Running, on_both, wait_until};

/// A running watch that writes to a file.
struct Watch {
    running: Running,
    file: PathBuf,
}

impl Watch {
    /// Starts a watch, and waits until it tells of changes.
    fn start(lab: &Lab, words: &[&str]) -> Self {
        let file = lab.folder().join("changes");
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        shell.args(["-c", "file=$1; shift; exec \"$@\" >\"$file\"", "sh"]).arg(&file);
        shell.arg(rlock_testkit::RLOCK).args(["inspect", "--watch=100ms"]).args(words);
        File::create(&file).expect("a file can be made");
        let watch = Self { running: Running::start(&mut shell), file };
        wait_until("the watch tells of a change", || {
            lab.run(["exec", "probe", "--", "true"]).silently(0);
            !watch.all().is_empty()
        });
        watch
    }

    fn all(&self) -> String {
        fs::read_to_string(&self.file).expect("the file can be read")
    }

    /// The lines about resource k.
    fn lines(&self) -> Vec<String> {
        let all = self.all();
        let whole = all.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter(|line| line.contains("'k'") || line.contains("\"k\"")).map(str::to_owned).collect()
    }

    /// Waits for so many lines about resource k.
    fn expect(&self, count: usize) -> Vec<String> {
        wait_until(&format!("the watch has told {count} changes"), || self.lines().len() >= count);
        let lines = self.lines();
        assert_eq!(lines.len(), count, "{lines:#?}");
        lines
    }
}

fn events(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

/// "with --json an object `{"event":"queued"|"granted"|"released"|"lost"|"expired"|"busy", "at",
/// "resource", …}` per change".
#[test]
fn each_change_is_an_object_on_a_line() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["--json"]);
        let holder = lab.hold("k");
        let granted = events(&watch.expect(1)).remove(0);
        let shown = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        assert_eq!([&granted["event"], &granted["resource"]], ["granted", "k"]);
        assert_eq!(granted["at"], shown["since"]);
        for name in ["session", "token", "host", "pid", "user", "command", "owner", "reason"] {
            assert_eq!(granted[name], shown[name], "{name}");
        }
        assert_eq!(
            granted["claims"],
            serde_json::json!([{"mode": "write", "span": null, "slots": null, "count": null}])
        );
        let waiter = lab.wait_by(["exec", "k"]);
        watch.expect(2);
        holder.end().silently(0);
        waiter.end().printed("held\n");
        let events = events(&watch.expect(5));
        let told: Vec<_> = events.iter().map(|event| event["event"].as_str().expect("text")).collect();
        assert_eq!(told, ["granted", "queued", "released", "granted", "released"]);
        assert_eq!([&events[2]["outcome"], &events[2]["exit"]], [&Value::from("exit"), &Value::from(0)]);
        assert_eq!(events[2]["session"], granted["session"]);
        watch.running.signal(Signal::TERM);
    });
}

/// "A place in the queue that is given up counts as `released`, and so does a hold without a
/// history that is gone before the end of its lease."
#[test]
fn hold_without_history_is_told_as_released() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["--json"]);
        let holder = lab.hold_by(["exec", "k", "--history", "0"]);
        watch.expect(1);
        holder.end().silently(0);
        let events = events(&watch.expect(2));
        assert_eq!([&events[1]["event"], &events[1]["session"]], [&Value::from("released"), &events[0]["session"]]);
        assert!(events[1]["outcome"].is_null(), "{events:?}");
        watch.running.signal(Signal::TERM);
    });
}

/// "`count` is the number of requests that a `busy` event tells of; other events have null."
#[test]
fn requests_that_are_busy_at_once_are_told_by_their_number() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["--json"]);
        let holder = lab.hold("k");
        watch.expect(1);
        for _ in 0..5 {
            lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        }
        let busy = || -> u64 { events(&watch.lines()).iter().filter_map(|event| event["count"].as_u64()).sum() };
        wait_until("the watch has told of all", || busy() >= 5);
        holder.end().silently(0);
        wait_until("the watch tells of the end", || watch.lines().iter().any(|line| line.contains("released")));
        assert_eq!(busy(), 5, "{:#?}", watch.lines());
        watch.running.signal(Signal::TERM);
    });
}

/// Only the session of `acquire --pid` knows the process with which it ends; the history does not.
#[test]
fn hold_of_a_process_ends_with_its_outcome() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["--json"]);
        let mut owner = Command::new("sleep").arg("60").spawn().expect("a process starts");
        lab.run(["acquire", "k", "--pid", &owner.id().to_string()]);
        watch.expect(1);
        owner.kill().expect("it runs");
        owner.wait().expect("it ends");
        let events = events(&watch.expect(2));
        assert_eq!([&events[1]["event"], &events[1]["outcome"]], ["released", "kept"], "{events:?}");
        watch.running.signal(Signal::TERM);
    });
}

/// A server goes on listing a kept hold that is over until somebody uses its resource.
#[test]
fn watch_sleeps_between_its_looks_after_the_end_of_a_kept_hold() {
    let Some(server) = Setup::new(Kind::Redis7).start_if_present() else { return };
    let lab = Lab::at(server.url());
    let _watch = Watch::start(&lab, &["k", "probe"]);
    assert_eq!(lab.run(["acquire", "--for", "200ms", "k"]).code(), Some(0));
    let scripts = || -> u64 {
        let stats: String = server.ask(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let begin = Instant::now();
    wait_until("the kept hold is over", || begin.elapsed() > Duration::from_millis(300));
    let (before, begin) = (scripts(), Instant::now());
    wait_until("the watch has looked some more times", || scripts() >= before + 20);
    // It looks ten times a second, with some scripts each time.
    assert!(begin.elapsed() > Duration::from_millis(200), "20 scripts in {:?}", begin.elapsed());
}

/// "`by` is the process that has revoked the lock; other events than `revoked` have null."
#[test]
fn revocation_is_told_with_the_process_that_made_it() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["--json"]);
        let holder = Stubborn::start(lab);
        watch.expect(1);
        lab.run(["break", "-w", "0", "k"]).failed(75);
        let by = lab.inspect(["k"])["resources"][0]["holders"][0]["revoked"].clone();
        watch.expect(2);
        holder.let_end();
        let events = events(&watch.expect(3));
        let [granted, revoked, lost] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!([&revoked["event"], &revoked["session"]], [&Value::from("revoked"), &granted["session"]]);
        assert_eq!([&revoked["at"], &revoked["by"]["pid"]], [&by["since"], &by["pid"]]);
        assert!(granted["by"].is_null() && lost["by"].is_null());
        assert_eq!([&lost["event"], &lost["outcome"]], ["lost", "broken"]);
    });
}

/// "else a line … per change": a request that is busy, and a lock that is broken.
#[test]
fn each_change_is_a_line_for_people() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["k", "probe"]);
        let holder = Stubborn::start(lab);
        watch.expect(1);
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        watch.expect(2);
        lab.run(["break", "-w", "0", "k"]);
        watch.expect(3);
        assert_eq!(holder.let_end().code(), Some(76));
        let lines = watch.expect(4);
        for (line, text) in
            lines.iter().zip([" granted 'k' write: ", " busy 'k'", " revoked 'k' write: ", " lost 'k' "])
        {
            assert!(line.contains(text), "{text} in {line}");
        }
        assert!(lines[2].contains("; by ") && lines[2].ends_with(" break -w 0 k'"), "{lines:?}");
        assert!(lines[3].ends_with("; broken"), "{lines:?}");
    });
}

/// A waiter that gives up is told as busy, with its request. On a server, a waiter may leave
/// between the listing and the history of one look; then it is told by its number, and as gone.
#[test]
fn waiter_that_gives_up_is_told_as_busy() {
    let lab = Lab::new();
    let watch = Watch::start(&lab, &["k", "probe"]);
    let _holder = lab.hold("k");
    watch.expect(1);
    lab.run(["exec", "-q", "-w", "600ms", "k", "--", "true"]).silently(75);
    let lines = watch.expect(3);
    assert!(lines[1].contains(" queued 'k' ") && lines[2].contains(" busy 'k' "), "{lines:?}");
}

/// "The embedded store notifies": even the death of the only holder, which changes no file.
#[test]
fn death_of_the_only_holder_is_told() {
    let lab = Lab::new();
    let watch = Watch::start(&lab, &["--json"]);
    let holder = lab.hold("k");
    watch.expect(1);
    holder.kill();
    assert_eq!(events(&watch.expect(2))[1]["event"], "expired");
}

/// A kept hold ends by itself.
#[test]
fn end_of_a_kept_hold_is_told() {
    on_both(|lab| {
        let watch = Watch::start(lab, &["--json"]);
        assert_eq!(lab.run(["acquire", "k", "--for", "500ms"]).code(), Some(0));
        let events = events(&watch.expect(2));
        assert_eq!([&events[0]["event"], &events[1]["event"]], ["granted", "released"], "{events:?}");
    });
}

/// A watch ends when nobody reads its output any more.
#[test]
fn watch_ends_with_its_reader() {
    let lab = Lab::new();
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    shell.args(["-c", "\"$1\" inspect --watch | read line", "sh", rlock_testkit::RLOCK]);
    let mut pipe = Running::start(&mut shell);
    wait_until("the reader is gone, and the watch ends", || {
        lab.run(["exec", "probe", "--", "true"]).silently(0);
        !pipe.runs()
    });
}

/// Other processes use the new directory, so the watch follows them.
#[test]
fn watch_goes_on_in_a_directory_that_replaces_its_own() {
    for is_renamed in [true, false] {
        let lab = Lab::new();
        let watch = Watch::start(&lab, &[]);
        let directory = lab.directory();
        if is_renamed {
            fs::rename(directory, lab.folder().join("old")).expect("the directory can be renamed");
        } else {
            fs::remove_dir_all(directory).expect("the directory can be removed");
        }
        wait_until("the watch tells of a change", || {
            lab.run(["exec", "k", "--", "true"]).silently(0);
            !watch.lines().is_empty()
        });
    }
}

/// A store that cannot be used ends the watch at its start.
#[test]
fn watch_of_a_store_out_of_reach_exits_69() {
    let lab = Lab::at("redis://127.0.0.1:1");
    lab.run(["inspect", "--watch"]).failed(69);
}
