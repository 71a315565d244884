//! `--place NAME`: a place in the queue that outlives its waiter.

use std::fs;

use rustix::process::{Signal, geteuid};

use rlock_testkit::{Lab, Running, on_both, wait_until};

const PLACE: [&str; 4] = ["exec", "--place", "build", "k"];

/// A request with the place that waits for 'k', and has noted its number.
fn with_place(lab: &Lab, place: &[&str]) -> Running {
    let waiter = lab.wait_by(place);
    until_listed(lab, &waiter, None);
    until_noted(&waiter);
    waiter
}

/// Waits until a request has noted its number, which it learns after the store has listed it.
fn until_noted(waiter: &Running) {
    let home = std::env::var("HOME").unwrap_or_default();
    let own = format!("/run/lock/rlock-{}", geteuid().as_raw());
    let folders = ["/run/rlock".to_owned(), own, format!("{home}/.local/state/rlock")];
    wait_until("the place is noted", || {
        let notes = folders.iter().filter_map(|folder| fs::read_dir(format!("{folder}/places")).ok()).flatten();
        let mut heads = notes.filter_map(|note| fs::read_to_string(note.ok()?.path()).ok());
        heads.any(|head| {
            let words: Vec<_> = head.split_ascii_whitespace().collect();
            words.get(1) == Some(&waiter.pid().to_string().as_str())
                && words.get(3).is_some_and(|number| *number != "0")
        })
    });
}

/// Waits until a request is in the queue, at this position if one is given.
fn until_listed(lab: &Lab, waiter: &Running, position: Option<u64>) {
    wait_until("the request waits", || {
        let listing = lab.inspect(["k"]);
        let waiters = listing["resources"][0]["waiters"].as_array().expect("a list").clone();
        waiters.iter().any(|it| {
            it["pid"] == waiter.pid() && position.is_none_or(|position| it["position"].as_u64() == Some(position))
        })
    });
}

/// Waits until the place is kept for nobody's waiter.
fn until_absent(lab: &Lab) {
    wait_until("the place is absent", || {
        let places = lab.inspect(["k"])["places"].clone();
        places[0]["name"] == "build" && places[0]["keys"] == serde_json::json!(["k"])
    });
}

/// "After busy by `-w`, SIGTERM or SIGKILL, the next request with NAME and the same KEYs takes up
/// the number and the instant of the first." "It is used up by a start of COMMAND."
#[test]
fn request_returns_to_its_place_after_busy_term_and_kill() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let first = lab.wait_by(["exec", "--place", "build", "-w", "500ms", "k"]);
        until_listed(lab, &first, Some(1));
        let other = lab.wait_by(["exec", "k"]);
        until_listed(lab, &other, Some(2));
        assert!(first.end().busy().starts_with("'k' "));
        until_absent(lab);
        let table = lab.run(["inspect", "k"]).stdout;
        assert!(table.contains("'k': place of 'build' kept since "), "{table}");
        for signal in [Signal::TERM, Signal::KILL, Signal::KILL] {
            let again = with_place(lab, &PLACE);
            until_listed(lab, &again, Some(1));
            assert_eq!(lab.inspect(["k"])["places"], serde_json::json!(null), "its waiter is there");
            again.signal(signal);
            again.end();
            until_absent(lab);
        }
        let last = with_place(lab, &PLACE);
        until_listed(lab, &last, Some(1));
        holder.end().silently(0);
        let mut last = last;
        last.expect_held();
        // The place is used up, and no return overtakes.
        assert_eq!(lab.inspect(["k"])["places"], serde_json::json!(null));
        let later = with_place(lab, &PLACE);
        until_listed(lab, &later, Some(2));
        last.end().silently(0);
        other.end().printed("held\n");
        later.end().printed("held\n");
        lab.assert_idle();
    });
}

/// "Meanwhile it blocks nobody and is granted to nobody."
#[test]
fn absent_place_blocks_nobody() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let absent = with_place(lab, &PLACE);
        absent.signal(Signal::TERM);
        assert_eq!(absent.end().code(), Some(143));
        let other = lab.wait_by(["exec", "k"]);
        until_listed(lab, &other, Some(1));
        holder.end().silently(0);
        other.end().printed("held\n");
        lab.run([&PLACE[..], &["--", "true"]].concat()).silently(0);
        assert_eq!(lab.inspect(["k"])["places"], serde_json::json!(null));
        lab.assert_idle();
    });
}

/// "An earlier request with NAME that still waits gets SIGTERM."
#[test]
fn later_request_of_the_name_ends_the_waiting_one_and_no_other() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let ghost = with_place(lab, &PLACE);
        let other = with_place(lab, &["exec", "--place", "other", "k"]);
        let later = with_place(lab, &PLACE);
        assert_eq!(ghost.end().code(), Some(143));
        until_listed(lab, &later, Some(1));
        until_listed(lab, &other, Some(2));
        holder.end().silently(0);
        let mut later = later;
        later.expect_held();
        // The command of the name runs, and its request is no ghost.
        lab.run(["exec", "--place", "build", "-n", "k", "--", "true"]).busy();
        assert_eq!(lab.inspect(["k"])["places"], serde_json::json!(null), "a request with -n takes no place");
        later.end().silently(0);
        other.end().printed("held\n");
    });
}

/// "`--place` excludes `--supersede` and `--once-per`."
#[test]
fn place_excludes_options_that_cannot_return() {
    let lab = Lab::new();
    for words in [&["--supersede"][..], &["--once-per", "1h"]] {
        let ran = lab.run([&PLACE[..], words, &["--", "true"]].concat());
        assert!(ran.failed(64).contains("--place"), "{ran:?}");
    }
    lab.run(["exec", "--place", &"x".repeat(129), "k", "--", "true"]).failed(64);
}
