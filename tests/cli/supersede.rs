//! The newest request of a job wins: `--supersede`.

use rustix::process::Signal;

use rlock_testkit::{Lab, Running, on_both, wait_until};

const EXEC: [&str; 5] = ["exec", "--job", "deploy", "--write", "k"];

/// A request of the job that supersedes the others.
fn newer(lab: &Lab, words: &[&str]) -> Running {
    let waiter = lab.wait_by([&EXEC, &["--supersede"][..], words].concat());
    wait_until("the newer request waits", || {
        let waiters = &lab.inspect(["k"])["resources"][0]["waiters"];
        waiters.as_array().is_some_and(|all| all.iter().any(|it| it["pid"] == waiter.pid()))
    });
    waiter
}

/// "They are busy, with the line `superseded by` and the name of this process, and their `-E`,
/// `--skip-ok` and `--else` apply."
#[test]
fn waiters_of_a_job_are_busy_when_a_newer_request_supersedes_them() {
    on_both(|lab| {
        let holder = lab.hold_by(EXEC);
        let first = lab.wait_by(EXEC);
        lab.until_waiting("k", 1);
        let second = newer(lab, &["-E", "7"]);
        let (pid, told) = (second.pid(), first.end());
        assert!(told.busy().starts_with("the request for 'k' was superseded by "), "{told:?}");
        assert!(told.stderr.contains(&format!("pid {pid}, ")), "{told:?}");
        let third = newer(lab, &["--else", "echo \"$RLOCK_BUSY\""]);
        assert!(second.end().failed(7).contains(" superseded by "));
        let fourth = newer(lab, &["--skip-ok"]);
        let told = third.end();
        assert_eq!((told.code(), told.stdout.contains(" superseded by ")), (Some(0), true), "{told:?}");
        let fifth = newer(lab, &["-q"]);
        fourth.end().silently(0);
        let last = newer(lab, &["--skip-ok"]);
        fifth.end().silently(75);
        holder.end().silently(0);
        last.end().printed("held\n");
        let history = lab.run(["history", "k"]);
        assert!(history.stdout.contains(" skipped once "), "{history:?}");
        lab.assert_idle();
    });
}

/// A stopped process asks again long after the newer run.
#[test]
fn superseded_waiter_that_was_stopped_does_not_run_after_the_newer_request() {
    on_both(|lab| {
        let holder = lab.hold_by(EXEC);
        let older = lab.wait_by(EXEC);
        lab.until_waiting("k", 1);
        lab.until_subscribed("k", 1);
        older.signal(Signal::STOP);
        let newer = newer(lab, &[]);
        holder.end().silently(0);
        newer.end().printed("held\n");
        older.signal(Signal::CONT);
        assert!(older.end().failed(75).contains(" superseded by "));
        lab.assert_idle();
    });
}

/// "A run that holds the lock goes on, and so do the rlocks around this command. A request that is
/// busy itself ends none."
#[test]
fn holders_other_jobs_and_waiters_behind_a_busy_request_stay() {
    on_both(|lab| {
        let holder = lab.hold_by(EXEC);
        let other = lab.wait_by(["exec", "--job", "test", "k"]);
        lab.until_waiting("k", 1);
        let older = lab.wait_by(EXEC);
        lab.until_waiting("k", 2);
        let busy = lab.run([&EXEC, &["--supersede", "-n", "--", "true"][..]].concat());
        assert!(busy.failed(75).contains(" is held for write by "), "{busy:?}");
        assert_eq!(lab.counts("k"), (1, 2));
        let newer = lab.wait_by([&EXEC, &["--supersede"][..]].concat());
        assert!(older.end().failed(75).contains(" superseded by "));
        lab.until_waiting("k", 2);
        holder.end().silently(0);
        other.end().printed("held\n");
        newer.end().printed("held\n");
        lab.assert_idle();
    });
}

/// "In the step that queues or grants this request, all requests of the same job that wait for one
/// of its KEYs leave the queue."
#[test]
fn waiter_for_several_names_is_superseded_by_a_request_for_one_of_them() {
    on_both(|lab| {
        let holder = lab.hold("b");
        let older = lab.wait_by(["exec", "--job", "deploy", "--write", "a", "--write", "b"]);
        lab.until_waiting("a", 1);
        // The older request is all that is in the way.
        let newer = lab.hold_by(["exec", "--job", "deploy", "--supersede", "-w", "10s", "a"]);
        assert!(older.end().failed(75).contains("the request for 'a', 'b' was superseded by "));
        wait_until("nobody waits for 'b'", || lab.counts("b") == (1, 0));
        newer.end().silently(0);
        holder.end().silently(0);
        lab.assert_idle();
    });
}
