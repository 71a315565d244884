//! The lines and their answers, and what ends a hold.

use serde_json::Value;

use crate::{NONE, on_both};
use rlock_testkit::serve::LockServer;
use rlock_testkit::{Lab, RLOCK, needs, wait_until};

#[test]
fn each_line_has_its_answer() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let mut client = server.tcp();
        assert_eq!(client.ask("PING"), "pong");
        assert_eq!(client.ask("LOCK k"), "ok");
        assert_eq!(
            client.ask("LOCK j"),
            "error this connection holds a lock already: send UNLOCK first, or use another connection"
        );
        assert_eq!(client.ask("UNLOCK"), "ok");
        assert_eq!(client.ask("UNLOCK"), "error this connection holds no lock: send LOCK first");
        let first = client.token("LOCK --read a --write b");
        assert_eq!(client.ask("UNLOCK"), "ok");
        assert!(client.token("try --read a --write b") > first);
        assert_eq!(client.ask("UNLOCK"), "ok");
        assert_eq!(client.ask("LOCK a b"), "error unexpected second KEY b: for two locks write --write a --write b");
        assert_eq!(client.ask("LOCK 'a b'"), "ok");
        assert_eq!(lab.counts("a b"), (1, 0));
    });
}

#[test]
fn clients_and_exec_exclude_each_other() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let holder = lab.hold("k");
        let (mut tcp, mut unix) = (server.tcp(), server.unix());
        let busy = tcp.ask("TRY k");
        assert!(busy.starts_with("busy 'k' is held for write by ") && busy.ends_with("; nobody waits"), "{busy}");
        tcp.say("LOCK k");
        lab.until_waiting("k", 1);
        unix.say("LOCK --write k");
        lab.until_waiting("k", 2);
        holder.end().silently(0);
        assert_eq!(tcp.line(), "ok");
        lab.run(["exec", "-n", "k", "--", "true"]).failed(75);
        drop(tcp);
        assert!(unix.line().starts_with("ok "));
        assert_eq!(unix.ask("UNLOCK"), "ok");
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        assert_eq!(lab.inspect(NONE)["resources"], serde_json::json!([]));
    });
}

#[test]
fn wait_that_is_over_is_busy_and_leaves_the_queue() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let _holder = lab.hold("k");
        let mut client = server.unix();
        let busy = client.ask("LOCK -w 100ms k");
        assert!(busy.starts_with("busy 'k' is held for write by ") && busy.ends_with("; waited 100ms"), "{busy}");
        assert_eq!(lab.counts("k"), (1, 0));
        assert_eq!(client.ask("LOCK j"), "ok");
    });
}

/// "`RLOCK_WAIT` does not apply to clients."
#[test]
fn client_without_a_limit_waits_in_spite_of_the_variable() {
    let lab = Lab::new().with("RLOCK_WAIT", "0");
    let server = LockServer::start(&lab, NONE);
    for line in ["LOCK k", "LOCK -w ever k"] {
        let holder = lab.hold("k");
        let mut client = server.unix();
        client.say(line);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        assert!(client.line().starts_with("ok"));
        // The next holder does not wait for the end of this connection.
        assert_eq!(client.ask("UNLOCK"), "ok");
    }
}

#[test]
fn intervals_are_locked_shrunk_and_upgraded() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let (mut one, mut other) = (server.tcp(), server.tcp());
        one.token("RANGE-PREWRITE t -3 5");
        assert!(other.ask("RANGE-WRITE t 4 6 -n").starts_with("busy [-3,5] of 't' is held for prewrite by "));
        assert_eq!(one.ask("SHRINK [-3,2)"), "ok");
        other.token("RANGE-WRITE t 4 6 -n");
        assert!(one.ask("UPGRADE 1 2").starts_with("refused "));
        one.token("UPGRADE 0 1");
        assert!(other.ask("UNLOCK").starts_with("ok"));
        assert!(other.ask("RANGE-READ t 0 1 -n").starts_with("busy "));
        // The first UNLOCK ends the write lock, and the second one the prewrite lock.
        assert_eq!(one.ask("UNLOCK"), "ok");
        other.token("RANGE-READ t 0 1 -n");
        assert!(one.ask("DOWNGRADE read").starts_with("ok"));
        assert!(one.ask("UPGRADE").starts_with("error there is nothing to upgrade"));
        assert_eq!(one.ask("UNLOCK"), "ok");
        assert_eq!(one.ask("UNLOCK"), "error this connection holds no lock: send LOCK first");
    });
}

#[test]
fn upgrade_waits_for_the_readers() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let (mut reader, mut writer) = (server.tcp(), server.tcp());
        reader.token("LOCK --read k");
        let before = writer.token("LOCK --prewrite k");
        writer.say("UPGRADE");
        lab.until_waiting("k", 1);
        assert_eq!(reader.ask("UNLOCK"), "ok");
        let answer = writer.line();
        let token: u64 = answer.strip_prefix("ok ").expect("the upgrade is granted").parse().expect("a token");
        assert!(token > before);
        drop(writer);
        wait_until("both holds are gone", || lab.counts("k") == (0, 0));
    });
}

#[test]
fn inspect_answers_with_the_json_of_rlock_inspect_on_one_line() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let mut client = server.tcp();
        client.token("LOCK --slot s=3");
        let mut other = server.tcp();
        for line in ["INSPECT", "INSPECT s"] {
            let found: Value = serde_json::from_str(&other.ask(line)).expect("the answer is JSON");
            assert_eq!(found["resources"][0]["name"], "s");
            assert_eq!(found["resources"][0]["holders"][0]["slots"], 3);
            assert_eq!(found["store"], lab.inspect(["s"])["store"]);
        }
        let free: Value = serde_json::from_str(&other.ask("INSPECT free")).expect("the answer is JSON");
        assert_eq!(free["resources"][0]["holders"], serde_json::json!([]));
    });
}

#[test]
fn half_close_ends_a_hold_after_the_lines_before_it() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        for mut client in [server.tcp(), server.unix()] {
            client.say("PING\nLOCK k\nUNLOCK\nLOCK k");
            client.half_close();
            let answers = [client.line(), client.line(), client.line(), client.line()];
            assert_eq!(answers, ["pong", "ok", "ok", "ok"]);
            client.expect_closed();
            wait_until("nobody holds", || lab.counts("k") == (0, 0));
        }
    });
}

/// The client would otherwise keep its lock until it reads its answers.
#[test]
fn half_close_ends_a_hold_even_if_answers_are_unread() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let mut client = server.unix();
        assert_eq!(client.ask("LOCK k"), "ok");
        // Many more answers than the buffers of a socket take.
        client.say(&"INSPECT\n".repeat(4000));
        client.half_close();
        wait_until("nobody holds", || lab.counts("k") == (0, 0));
    });
}

#[test]
fn upgrade_beyond_the_prewrite_lock_is_refused() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let mut client = server.tcp();
        client.token("RANGE-PREWRITE t 1 2");
        let text = "refused [5,6] is not inside the prewrite lock on [1,2] of 't': upgrade that or a part of it";
        assert_eq!(client.ask("UPGRADE 5 6"), text);
        client.token("UPGRADE 1 2");
    });
}

#[test]
fn waiting_client_that_half_closes_leaves_the_queue() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let _holder = lab.hold("k");
        let mut client = server.tcp();
        client.say("LOCK k");
        lab.until_waiting("k", 1);
        client.half_close();
        client.expect_closed();
        lab.until_waiting("k", 0);
    });
}

#[test]
fn reset_ends_a_hold_and_a_wait() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let (mut holder, mut waiter) = (server.tcp(), server.tcp());
        assert_eq!(holder.ask("LOCK k"), "ok");
        waiter.say("LOCK k");
        lab.until_waiting("k", 1);
        waiter.reset();
        lab.until_waiting("k", 0);
        holder.reset();
        wait_until("nobody holds", || lab.counts("k") == (0, 0));
    });
}

/// "A lock that is revoked stays held for the `--grace`."
#[test]
fn lock_that_is_broken_is_reported_and_held_for_the_grace() {
    on_both(|lab| {
        let server = LockServer::start(lab, ["--ttl", "5m", "--grace", "1m"]);
        let mut client = server.tcp();
        assert_eq!(client.ask("LOCK k"), "ok");
        let ran = lab.run(["break", "-w", "1s", "k"]);
        assert!(ran.failed(75).starts_with("'k' is revoked and still held for write by client@127.0.0.1:"), "{ran:?}");
        let line = client.line();
        assert!(line.starts_with("lost 'k' was taken away, "), "{line}");
        client.expect_closed();
        assert_eq!(lab.counts("k"), (1, 0));
        assert_eq!(lab.run(["break", "--now", "k"]).code(), Some(0));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    });
}

#[test]
fn listing_names_the_server_and_the_client() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let (mut tcp, mut unix) = (server.tcp(), server.unix());
    assert_eq!(tcp.ask("LOCK a"), "ok");
    assert_eq!(unix.ask("LOCK b"), "ok");
    let found = lab.inspect(NONE);
    let (tcp, unix) = (&found["resources"][0]["holders"][0], &found["resources"][1]["holders"][0]);
    assert_eq!(tcp["command"], serde_json::json!(["serve", format!("127.0.0.1:{}", server.port())]));
    assert!(tcp["host"].as_str().is_some_and(|host| host.starts_with("127.0.0.1:")), "{tcp}");
    assert_eq!(unix["command"], serde_json::json!(["serve", format!("unix:{}", server.path().display())]));
    assert_eq!(unix["pid"], std::process::id());
    assert_eq!(unix["user"], lab.inspect_user());
}

/// As for a server in a container whose socket is mounted outside.
#[test]
fn client_outside_the_servers_pid_namespace_has_pid_0() {
    let lab = Lab::new();
    let Some(mut unshare) = needs::namespaces(&["--pid", "--fork", "--kill-child"]) else { return };
    lab.settle(&mut unshare);
    let path = lab.folder().join("serve.sock");
    unshare.args([RLOCK, "serve", "-v", "--listen", "127.0.0.1:0", "--listen", &format!("unix:{}", path.display())]);
    let server = LockServer::of(&mut unshare, path);
    let mut client = server.unix();
    assert_eq!(client.ask("LOCK k"), "ok");
    let found: Value = serde_json::from_str(&client.ask("INSPECT k")).expect("the answer is JSON");
    let holder = &found["resources"][0]["holders"][0];
    assert_eq!((&holder["pid"], &holder["user"]), (&serde_json::json!(0), &lab.inspect_user()));
}

#[test]
fn verbose_server_logs_connections_and_locks_in_one_line_each() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let mut client = server.tcp();
    let token = client.token("LOCK --write k");
    assert_eq!(client.ask("UNLOCK"), "ok");
    drop(client);
    let expected =
        ["accepted".to_owned(), format!("locked 'k', token {token}"), "unlocked 'k'".to_owned(), "closed".to_owned()];
    wait_until("the log is complete", || server.log().len() >= 6);
    let log: Vec<_> =
        server.log()[2..].iter().map(|line| line.splitn(3, ": ").nth(2).unwrap_or(line).to_owned()).collect();
    assert_eq!(log, expected);
    assert!(server.log()[2..].iter().all(|line| line.starts_with("rlock: 127.0.0.1:")));
}
