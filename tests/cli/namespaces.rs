//! Processes in other pid and user namespaces, such as those of containers, share the directory.

use rlock_testkit::needs::skip_unless;
use rlock_testkit::{Lab, RLOCK, Running, needs};

/// Starts an rlock as process 1 of a new pid namespace. The rlock dies with the returned handle.
fn first_process(lab: &Lab, words: &[&str]) -> Option<Running> {
    let mut unshare = needs::namespaces(&["--pid", "--fork", "--kill-child"])?;
    lab.settle(&mut unshare);
    Some(Running::waiter(unshare.arg(RLOCK).args(words)))
}

/// Processes with equal pids in two pid namespaces are different processes: the second waits for
/// the first and notices its death.
#[test]
fn equal_pids_in_two_namespaces_are_different_sessions() {
    let lab = Lab::new();
    let Some(mut holder) = first_process(&lab, &["exec", "k"]) else { return };
    holder.expect_held();
    let mut waiter = first_process(&lab, &["exec", "k"]).expect("the first was permitted");
    lab.until_waiting("k", 1);
    let shown = lab.inspect(["k"])["resources"][0].clone();
    assert_eq!([&shown["holders"][0]["pid"], &shown["waiters"][0]["pid"]], [1, 1]);

    // The holder counts as alive both here, where another process has pid 1, and in a third
    // namespace.
    lab.run(["cleanup"]).printed("");
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    let third = first_process(&lab, &["exec", "-nq", "k"]).expect("the first was permitted");
    third.end().silently(75);
    assert_eq!(lab.counts("k"), (1, 1));

    holder.kill();
    waiter.expect_held();
    assert_eq!(lab.counts("k"), (1, 0));

    // The waiter counts as dead, although process 1 exists in this namespace.
    waiter.kill();
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(0);
    lab.assert_idle();
}

/// A process in one pid namespace reaps a dead session of another.
#[test]
fn dead_holder_is_reaped_from_another_pid_namespace() {
    let lab = Lab::new();
    let Some(mut holder) = first_process(&lab, &["exec", "k"]) else { return };
    holder.expect_held();
    holder.kill();
    let mut next = first_process(&lab, &["exec", "-n", "k"]).expect("the first was permitted");
    next.expect_held();
    // The namespace has no /proc of its own, of which rlock warns.
    assert_eq!(next.end().code(), Some(0));
    lab.assert_idle();
}

/// In a user namespace, as in a rootless container, the same user has another uid.
#[test]
fn waiter_in_another_user_namespace_is_granted_and_reaped() {
    let lab = Lab::new();
    let inside = |words: &[&str]| {
        let mut unshare = needs::namespaces(&["--user", "--map-user=7"])?;
        lab.settle(&mut unshare);
        Some(Running::waiter(unshare.arg(RLOCK).args(words)))
    };
    let holder = lab.hold("k");
    let Some(mut waiter) = inside(&["exec", "k"]) else { return };
    lab.until_waiting("k", 1);
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 2);
    holder.end().silently(0);
    waiter.expect_held();
    assert_eq!(lab.counts("k"), (1, 1));
    waiter.kill();
    next.expect_held();
    next.end().silently(0);
    lab.assert_idle();
}

/// "Where its process can't be seen, in another container for example, it counts as alive until
/// `rlock break` breaks its hold." systemd-nspawn gives each container a boot id of its own.
#[test]
fn holder_with_a_private_boot_id_counts_as_alive_without_its_pipe() {
    skip_unless!(needs::root("mount a file over the boot id"));
    let lab = Lab::new();
    let Some(mut container) = needs::namespaces(&["--pid", "--mount", "--fork", "--kill-child"]) else { return };
    lab.settle(&mut container);
    let id = lab.folder().join("boot");
    std::fs::write(&id, "3f0a0000-0000-4000-8000-000000000001\n").expect("the file can be written");
    let script = "mount -t proc proc /proc; mount --bind \"$1\" /proc/sys/kernel/random/boot_id; shift; exec \"$0\" exec k \"$@\"";
    let mut holder = Running::waiter(container.args(["sh", "-ec", script, RLOCK]).arg(&id));
    holder.expect_held();
    let pipes = lab.files().into_iter().filter(|name| name != "lock" && name != "table");
    pipes.for_each(|pipe| std::fs::remove_file(lab.directory().join("state").join(pipe)).expect("a pipe"));
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    holder.end().silently(0);
    lab.assert_idle();
}
