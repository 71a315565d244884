//! `rlock cleanup`.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use rlock_testkit::{Lab, Ran, Running, on_both, wait_until};

/// Formats the line that `cleanup` prints for a claim, from the claim in the output of `inspect`.
fn line(done: &str, what: &str, claim: &Value) -> String {
    let text = |name: &str| claim[name].as_str().expect("text");
    let (user, host, since, pid) = (text("user"), text("host"), text("since"), &claim["pid"]);
    let command = "sh -c echo held; exec cat >/dev/null";
    format!("{done} {what} of {user}@{host}, pid {pid}, '{command}', since {since}\n")
}

fn first(lab: &Lab, list: &str) -> Value {
    lab.inspect(["k"])["resources"][0][list][0].clone()
}

/// `cleanup` removes expired and dead holders and waiters, and prints them. `--dry-run` only prints
/// them.
#[test]
fn cleanup_removes_and_prints_dead_holders_only() {
    let lab = Lab::new();
    lab.run(["cleanup"]).printed("");
    let holder = lab.hold("k");
    let held = first(&lab, "holders");
    let alive = lab.hold("alive");
    for words in [&["cleanup"][..], &["cleanup", "free"], &["cleanup", "--dry-run"]] {
        lab.run(words).printed("");
    }
    let text = "'k' for write is a live lock: 'rlock break' takes it away, 'rlock inspect' shows who holds it";
    lab.run(["cleanup", "k"]).said(0, text);
    holder.kill();
    let what = "the hold for write on 'k' (whole)";
    assert_eq!(lab.run(["cleanup", "alive"]).stdout, "");
    for words in [&["cleanup", "--dry-run"][..], &["cleanup", "--dry-run", "k", "j"]] {
        lab.run(words).printed(&line("would remove", what, &held));
    }
    assert_eq!(lab.files().len(), 4, "a dry run removes nothing");
    lab.run(["cleanup"]).printed(&line("removed", what, &held));
    lab.run(["cleanup"]).printed("");
    assert_eq!((lab.counts("alive"), lab.files().len()), ((1, 0), 3));
    alive.end().silently(0);
    lab.assert_idle();
}

/// Splits each line of a break into what was broken, and what became of it.
pub(crate) fn broke(ran: &Ran) -> (String, Vec<String>) {
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let lines = ran.stdout.lines().map(|line| line.rsplit_once("; ").unwrap_or((line, "")));
    let (broken, fates): (Vec<_>, Vec<_>) = lines.map(|(one, other)| (format!("{one}\n"), other.to_owned())).unzip();
    (broken.concat(), fates)
}

/// `--break KEY` revokes grants of live holders: the holder's rlock stops the command and exits
/// 76.
#[test]
fn break_stops_the_holder_and_grants_the_waiter() {
    on_both(|lab| {
        let holder = lab.hold_by(["range-write", "k", "1", "2"]);
        let held = first(lab, "holders");
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let what = "the hold for write on 'k' ([1,2])";
        lab.run(["cleanup", "--break", "--dry-run", "k"]).printed(&line("would break", what, &held));
        assert_eq!(lab.counts("k"), (1, 1));
        lab.run(["break", "--dry-run", "k"]).printed(&line("would break", what, &held));
        let (broken, fates) = broke(&lab.run(["break", "k"]));
        assert_eq!(broken, line("broke", what, &held));
        assert!(fates[0].starts_with("it was released after "), "{fates:?}");
        assert_ended_by_break(holder);
        waiter.expect_held();
        assert_eq!(lab.counts("k"), (1, 0));
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// "`--break` takes the grant back, and the request returns to its place in the queue": the waiter
/// is stopped, so it has not claimed its grant.
#[test]
fn break_of_an_unclaimed_grant_lets_its_request_wait_again() {
    on_both(|lab| {
        let holder = lab.hold_by(["exec", "k", "--write", "j"]);
        let mut waiter = lab.wait_by(["exec", "--write", "k", "--write", "j"]);
        lab.until_waiting("k", 1);
        let mut next = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        // The wait is longer than a call to the server takes.
        std::thread::sleep(Duration::from_millis(500));
        waiter.signal(Signal::STOP);
        holder.end().silently(0);
        let grant = first(lab, "holders");
        assert_eq!(grant["pid"], waiter.pid(), "{grant}");
        let shown = |done: &str, then: &str| {
            let of = |key: &str| line(done, &format!("the unclaimed grant for write on '{key}' (whole)"), &grant);
            let with = format!(", held together with 'k'{then}\n");
            of("k").replace('\n', &format!("{then}\n")) + &of("j").replace('\n', &with)
        };
        let dry = shown("would take back", "; its request would wait again");
        lab.run(["cleanup", "--break", "--dry-run", "k"]).printed(&dry);
        lab.run(["cleanup", "--break", "k"]).printed(&shown("took back", "; its request waits again"));
        next.expect_held();
        waiter.signal(Signal::CONT);
        lab.until_waiting("k", 1);
        let back = first(lab, "waiters");
        let since = |claim: &Value| claim["since"].as_str().expect("text").to_owned();
        assert!(since(&back) < since(&grant), "the wait counts from the request: {back}");
        next.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
        let ended = lab.run(["history", "k"]);
        assert_eq!(ended.stdout.lines().count(), 4, "the break of an unclaimed grant leaves no entry: {ended:?}");
        lab.assert_idle();
    });
}

/// A break revokes all claims of the request, since a request holds all or nothing. The output
/// names the claims that went with the named resource.
#[test]
fn break_of_one_claim_takes_and_names_all_claims_of_its_request() {
    let lab = Lab::new();
    let mut holder = lab.hold_by(["exec", "j", "--write", "k"]);
    let held = first(&lab, "holders");
    let (j, k) = ("the hold for write on 'j' (whole)", "the hold for write on 'k' (whole)");
    let with = |line: String| line.replace('\n', ", held together with 'j'\n");
    let dry = lab.run(["cleanup", "--break", "--dry-run", "j"]);
    dry.printed(&(line("would break", j, &held) + &with(line("would break", k, &held))));
    let named =
        line("would break", k, &held) + &line("would break", j, &held).replace('\n', ", held together with 'k'\n");
    lab.run(["cleanup", "--break", "--dry-run", "k"]).printed(&named);
    let both = lab.run(["cleanup", "--break", "--dry-run", "j", "k"]);
    both.printed(&(line("would break", j, &held) + &line("would break", k, &held)));
    let (broken, fates) = broke(&lab.run(["cleanup", "--break", "j"]));
    assert_eq!(broken, line("broke", j, &held) + &with(line("broke", k, &held)));
    assert!(fates[0] == fates[1] && fates[0].starts_with("it was released after "), "{fates:?}");
    wait_until("the holder ends though its input is open", || !holder.runs());
    holder.end().said(76, "revoked: 'j', 'k' were revoked by 'rlock break'; the command is stopped");
    lab.assert_idle();
}

/// A break exits 1 and writes a line for each KEY if none of the KEYs has a holder.
#[test]
fn break_of_free_keys_exits_1() {
    let lab = Lab::new();
    let nobody = |key: &str| format!("nobody holds '{key}': nothing to break; 'rlock inspect' shows what is held");
    lab.run(["cleanup", "--break", "k"]).said(1, &nobody("k"));
    lab.run(["cleanup", "--break", "k", "--dry-run"]).said(1, &nobody("k"));
    let both = lab.run(["cleanup", "--break", "k", "j"]);
    assert_eq!((both.code(), both.stdout.as_str()), (Some(1), ""));
    assert_eq!(both.stderr, format!("rlock: {}\nrlock: {}\n", nobody("k"), nobody("j")));
    // A break also removes a dead holder. It exits 0, since the resource had a holder.
    lab.hold("k").kill();
    let ran = lab.run(["cleanup", "--break", "k"]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.starts_with("removed the hold for write on 'k'"), "{ran:?}");
    lab.assert_idle();
}

fn assert_ended_by_break(mut holder: Running) {
    wait_until("the holder ends though its input is open", || !holder.runs());
    holder.end().said(76, "revoked: 'k' was revoked by 'rlock break'; the command is stopped");
}

/// A break without a KEY is a usage error, and a break leaves all other resources alone.
#[test]
fn break_takes_only_the_named_keys() {
    let lab = Lab::new();
    let mut others = [lab.hold("kk"), lab.hold("j"), lab.hold_by(["exec", "k", "--namespace", "other"])];
    lab.run(["cleanup", "--break"]).said(64, "--break needs a KEY: name the locks to break");
    let holder = lab.hold("k");
    let ran = lab.run(["cleanup", "--break", "k", "i"]);
    assert_eq!((ran.code(), ran.stdout.lines().count()), (Some(0), 1), "{ran:?}");
    assert_eq!(ran.stderr, "rlock: nobody holds 'i': nothing to break; 'rlock inspect' shows what is held\n");
    assert_ended_by_break(holder);
    assert!(others.iter_mut().all(Running::runs));
    others.into_iter().for_each(|other| other.end().silently(0));
}

/// "with --session ID or --pid PID only those of one holder."
#[test]
fn break_of_one_holder_leaves_the_others() {
    on_both(|lab| {
        let readers = [0; 3].map(|_| lab.hold_by(["exec", "--read", "k"]));
        let [mut first, mut second, mut third] = readers;
        let shown = lab.inspect(["k"])["resources"][0]["holders"].clone();
        let of = |pid: u32| shown.as_array().expect("a list").iter().find(|holder| holder["pid"] == pid).cloned();
        let session = of(second.pid()).expect("a holder")["session"].as_str().expect("text").to_owned();
        let pid = first.pid().to_string();
        let dry = lab.run(["cleanup", "--break", "k", "--pid", &pid, "--dry-run"]);
        assert!(dry.stdout.starts_with("would break ") && dry.stdout.lines().count() == 1, "{dry:?}");
        let ran = lab.run(["cleanup", "--break", "k", "--pid", &pid]);
        assert!(ran.stdout.contains(&format!("pid {pid}, ")) && ran.stdout.lines().count() == 1, "{ran:?}");
        wait_until("the first holder ends", || !first.runs());
        assert_eq!(lab.run(["cleanup", "--break", "k", "--session", &session]).code(), Some(0));
        wait_until("the second holder ends", || !second.runs());
        assert!(third.runs());
        assert_eq!(lab.counts("k"), (1, 0));
        let text = format!("process {pid} does not hold 'k': nothing to break; 'rlock inspect' shows what is held");
        lab.run(["cleanup", "--break", "k", "--pid", &pid]).said(1, &text);
        third.end().silently(0);
    });
}
