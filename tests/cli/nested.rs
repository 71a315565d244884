//! `exec --nested`, which runs nothing unless a hold around it covers its claims.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::acquire::{acquire, below, printed};
use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both};

/// Runs `exec --nested` with these claims inside the commands of rlocks with these holds.
fn inside(lab: &Lab, holds: &[&[&str]], claims: &[&str]) -> Ran {
    let mut words = Vec::new();
    for hold in holds {
        words.extend([&[RLOCK, "exec"], *hold, &["--"]].concat());
    }
    words.extend([&[RLOCK, "exec", "--nested"], claims, &["--", "echo", "ran"]].concat());
    lab.run(&words[1..])
}

/// "`exec --nested` runs nothing and exits 76 unless its claims are covered by a live hold above."
#[test]
fn nested_request_runs_only_below_holds_that_cover_it() {
    on_both(nested_requests);
}

fn nested_requests(lab: &Lab) {
    for (outer, claims) in [
        (&["k"][..], &["k"][..]),
        (&["k"], &["--read", "k", "--range-write", "k", "[1,2]"]),
        (&["--prewrite", "k"], &["--read", "k"]),
        (&["--prewrite", "k"], &["k"]),
        (&["--slot", "k=2"], &["--slot", "k=2"]),
        (&["--range-write", "k", "[0,9]"], &["--range-read", "k", "[1,2]"]),
    ] {
        inside(lab, &[outer], claims).printed("ran\n");
    }
    for (outer, claims, what) in [
        (&["k"][..], &["j"][..], "'j' for write"),
        (&["k"], &["k", "--read", "j"], "'j' for read"),
        (&["--read", "k"], &["k"], "'k' for write"),
        (&["--read", "k"], &["--slot", "k=2"], "a slot of 'k'"),
        (&["--range-write", "k", "[0,9]"], &["--range-read", "k", "[8,10]"], "[8,10] of 'k' for read"),
    ] {
        let text = format!("lost: no rlock around this command holds {what}; the command was not started");
        inside(lab, &[outer], claims).said(76, &text);
    }
    let alone = lab.run(["exec", "--nested", "k", "--", "echo", "ran"]);
    assert!(alone.failed(76).starts_with("not locked: no rlock around this command holds 'k' for write; "));
    lab.assert_idle();
}

/// "live holds of the rlocks around this command cover all claims, whichever of them does": the
/// grant has the token of the innermost hold that covers the claim.
#[test]
fn nested_request_runs_below_whichever_hold_covers_it() {
    on_both(|lab| {
        let upgrade: &[&[&str]] = &[&["--prewrite", "k"], &["--write", "k"]];
        let slot_below_read: &[&[&str]] = &[&["--read", "k"], &["--slot", "k=2"]];
        let parts: &[&[&str]] = &[&["--range-prewrite", "k", "[0,9]"], &["--range-write", "k", "[2,3]"]];
        for (holds, claims) in [
            (upgrade, &["--read", "k"][..]),
            (upgrade, &["--prewrite", "k"]),
            (upgrade, &["--write", "k"]),
            (upgrade, &["--slot", "k=2"]),
            (slot_below_read, &["--read", "k"]),
            (slot_below_read, &["--slot", "k=2"]),
            (parts, &["--range-write", "k", "[2,3]"]),
            (parts, &["--range-read", "k", "[2,3]", "--range-write", "k", "[5,6]"]),
            (&[&["--prewrite", "k"], &["--read", "k"]], &["--write", "k"]),
            (&[&["k"], &["j"]], &["--write", "k", "--write", "j"]),
        ] {
            inside(lab, holds, claims).printed("ran\n");
        }
        let beside: &[&[&str]] = &[&["--range-write", "k", "[0,5)"], &["--range-write", "k", "[5,9]"]];
        let text = "lost: no rlock around this command holds [3,7] of 'k' for read; the command was not started";
        inside(lab, beside, &["--range-read", "k", "[3,7]"]).said(76, text);
        lab.assert_idle();
    });
}

/// The nested write waits for a sibling below the write, which is released meanwhile. The prewrite
/// around both still covers the claim.
#[test]
fn nested_write_whose_upgrade_has_ended_runs_below_the_prewrite() {
    on_both(|lab| {
        let outer = acquire(lab, &["--prewrite", "k", "--for", "1h"]);
        let upgrade = printed(&Ran::of(&mut below(lab, &outer, &["acquire", "--write", "k", "--for", "1h"])));
        let mut sibling = Running::waiter(&mut below(lab, &upgrade, &["exec", "--read", "k"]));
        sibling.expect_held();
        let waiter = Running::start(&mut below(lab, &upgrade, &["exec", "--nested", "k", "--", "echo", "ran"]));
        lab.until_waiting("k", 1);
        lab.run(["release", &upgrade["RLOCK_SESSION"]]).silently(0);
        sibling.end().silently(0);
        waiter.end().printed("ran\n");
        lab.run(["release", &outer["RLOCK_SESSION"]]).silently(0);
        lab.assert_idle();
    });
}

#[test]
fn nested_request_below_a_hold_that_has_ended_runs_nothing() {
    let lab = Lab::new();
    let session = lab.run(["exec", "k", "-c", "printf %s \"$RLOCK_SESSION\""]).stdout;
    let below =
        |session: &str| Ran::of(lab.rlock(["exec", "--nested", "k", "--", "true"]).env("RLOCK_SESSION", session));
    assert_eq!(below(&session).code(), Some(76));
    // The session of a killed rlock is still in the table.
    let holder = lab.hold("k");
    let session = lab.inspect(["k"])["resources"][0]["holders"][0]["session"].as_str().expect("an id").to_owned();
    below(&session).silently(0);
    holder.kill();
    assert_eq!(below(&session).code(), Some(76));
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

/// "a step whose acquire has ended in between doesn't silently lock anew": the prewrite of an
/// upgrade ends while the upgrade waits for a reader.
#[test]
fn nested_upgrade_whose_prewrite_has_ended_runs_nothing() {
    on_both(|lab| {
        let variables = acquire(lab, &["--prewrite", "k", "--for", "1h"]);
        let upgrade = || {
            let mut rlock = below(lab, &variables, &["exec", "--nested", "--write", "k", "--", "echo", "ran"]);
            Running::start(&mut rlock)
        };
        upgrade().end().printed("ran\n");
        for is_released in [false, true] {
            let reader = lab.hold_by(["exec", "--read", "k"]);
            let waiter = upgrade();
            lab.until_waiting("k", 1);
            if is_released {
                lab.run(["release", &variables["RLOCK_SESSION"]]).silently(0);
            }
            reader.end().silently(0);
            if is_released {
                let text = "lost: no rlock around this command holds 'k' for write; the command was not started";
                waiter.end().said(76, text);
            } else {
                waiter.end().printed("ran\n");
            }
        }
        lab.assert_idle();
    });
}

/// A prewrite whose process was killed is no live hold, even while nobody has removed it.
#[test]
fn nested_upgrade_below_a_killed_prewrite_runs_nothing() {
    let lab = Lab::new();
    let holder = lab.hold_by(["exec", "--prewrite", "k"]);
    let session = lab.inspect(["k"])["resources"][0]["holders"][0]["session"].as_str().expect("an id").to_owned();
    holder.kill();
    let mut rlock = lab.rlock(["exec", "--nested", "k", "--", "true"]);
    assert_eq!(Ran::of(rlock.env("RLOCK_SESSION", session)).code(), Some(76));
}

/// "at(1) keeps `RLOCK_SESSION` in its jobs", and the daemon that starts them is called atd.
#[test]
fn job_of_at_below_a_live_hold_is_told_in_one_line() {
    on_both(|lab| {
        let atd = lab.folder().join("atd");
        fs::write(&atd, "#!/bin/sh\nsetsid -w \"$@\"\nexit").unwrap();
        fs::set_permissions(&atd, fs::Permissions::from_mode(0o755)).unwrap();
        let atd = atd.to_str().unwrap();
        let job = |options: &str| format!("{RLOCK} exec {options} k -- echo ran");
        let below = |script: &str| lab.run(["exec", "k", "--", atd, "sh", "-c", script]);
        let ran = below(&format!("{}; exit", job("")));
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(0), "ran\n"), "{ran:?}");
        let line = "rlock: warning: this job of at(1) does not wait for the lock around the command that submitted \
                    it, because at(1) keeps RLOCK_SESSION: submit it by 'env -u RLOCK_SESSION at'\n";
        assert_eq!(ran.stderr, line);
        below(&format!("{}; exit", job("-q"))).printed("ran\n");
        // The hold has ended, or at(1) has not started the job.
        let id = "0123456789abcdef0123456789abcdef";
        below(&format!("RLOCK_ANCESTORS= RLOCK_SESSION={id} {}; exit", job("").replace(" k ", " j "))).printed("ran\n");
        lab.run(["exec", "k", "--", "sh", "-c", &format!("{}; exit", job(""))]).printed("ran\n");
    });
}

/// "Below W slots, as of `--slot KEY=N:W`, each nested rlock takes of these W, with numbers of its
/// own, and waits while too few of them are free; more than W are refused."
#[test]
fn requests_below_several_slots_share_them_out() {
    on_both(|lab| {
        let stranger = lab.hold_by(["exec", "--slot", "gpu=4"]);
        let outer = acquire(lab, &["--slot", "gpu=4:2", "--for", "1h"]);
        assert_eq!(outer["RLOCK_SLOT"], "1 2");
        let nested = |words: &[&str]| below(lab, &outer, words);
        let siblings = [(), ()].map(|()| {
            let mut sibling = Running::waiter(&mut nested(&["exec", "--slot", "gpu=4"]));
            sibling.expect_held();
            sibling
        });
        let busy = Ran::of(&mut nested(&["exec", "-n", "--slot", "gpu=4", "--", "true"]));
        let pids = siblings.each_ref().map(|sibling| format!(", pid {}, ", sibling.pid()));
        let told = busy.failed(75);
        assert!(
            told.starts_with("busy: slot ")
                && told.contains(" of 4 of 'gpu' is held by ")
                && told.contains(", and 1 more; "),
            "{told}"
        );
        assert!(pids.iter().any(|pid| told.contains(pid)), "{told}");
        let too_many = Ran::of(&mut nested(&["exec", "--slot", "gpu=4:3", "--", "true"]));
        too_many.said(
            65,
            "refused: an enclosing rlock holds 2 of the slots of 'gpu', and this asks for more: claim as many there, or \
             no more than that here",
        );
        let print = ["exec", "--slot", "gpu=4:2", "-c", "echo $RLOCK_SLOT"];
        let both = Running::start(&mut nested(&print));
        lab.until_waiting("gpu", 1);
        siblings.into_iter().for_each(|sibling| sibling.end().silently(0));
        both.end().printed("1 2\n");
        lab.run(["release", &outer["RLOCK_SESSION"]]).silently(0);
        stranger.end().silently(0);
        lab.assert_idle();
    });
}
