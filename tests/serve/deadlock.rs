//! Upgrades that wait for each other, and for nested commands.

use std::time::Duration;

use crate::{NONE, on_both};
use rlock_testkit::serve::{Client, LockServer, Next};
use rlock_testkit::{Lab, RLOCK, Running};

/// Two clients, each of which holds what the other one's upgrade waits for.
fn couple(server: &LockServer) -> [Client; 2] {
    let (mut one, mut two) = (server.tcp(), server.unix());
    one.token("LOCK --prewrite a --read b");
    two.token("LOCK --prewrite b --read a");
    [one, two]
}

/// The user sees which clients wait for which resources, and what to do.
fn assert_is_refused(answer: &str) {
    assert!(answer.starts_with("refused deadlock: ") && answer.contains("which waits for"), "{answer}");
    assert!(answer.ends_with(": send UNLOCK, then ask for all in one LOCK"), "{answer}");
}

/// "The upgrade that closes a cycle is refused".
#[test]
fn upgrade_that_closes_a_cycle_is_refused_and_the_other_one_is_granted() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let [mut one, mut two] = couple(&server);
        one.say("UPGRADE");
        lab.until_waiting("a", 1);
        two.say("UPGRADE");
        assert_is_refused(&two.line());
        assert!(matches!(one.next_within(Duration::from_millis(100)), Next::Nothing));
        assert_eq!(two.ask("UNLOCK"), "ok");
        let answer = one.line();
        assert!(answer.starts_with("ok "), "{answer}");
        assert_eq!([one.ask("UNLOCK"), one.ask("UNLOCK")], ["ok", "ok"]);
        assert_eq!((lab.counts("a"), lab.counts("b")), ((0, 0), (0, 0)));
    });
}

#[test]
fn upgrade_that_waits_for_a_reader_without_a_request_goes_on_waiting() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let [mut one, mut two] = couple(&server);
        one.say("UPGRADE");
        assert!(matches!(one.next_within(Duration::from_secs(4)), Next::Nothing));
        assert_eq!(two.ask("UNLOCK"), "ok");
        assert!(one.line().starts_with("ok "));
    });
}

/// Commands and clients are in the same cycles, and the youngest request ends.
#[test]
fn cycle_of_a_client_and_a_nested_command_ends_with_the_younger_request() {
    on_both(|lab| {
        client_is_younger(lab);
        command_is_younger(lab);
    });
}

fn client_is_younger(lab: &Lab) {
    let server = LockServer::start(lab, NONE);
    let mut client = server.tcp();
    client.token("LOCK --prewrite a --read b");
    let nested = ["exec", "--read", "a", "--", RLOCK, "exec", "--write", "b", "--", "true"];
    let command = Running::start(&mut lab.rlock(nested));
    lab.until_waiting("b", 1);
    assert_is_refused(&client.ask("UPGRADE"));
    assert_eq!(client.ask("UNLOCK"), "ok");
    command.end().silently(0);
}

fn command_is_younger(lab: &Lab) {
    let server = LockServer::start(lab, NONE);
    let mut client = server.tcp();
    client.token("LOCK --prewrite a --read b");
    let holder = lab.hold("c");
    let nested = ["exec", "--read", "a", "--", "sh", "-c", "$0 exec c -- true && $0 exec --write b -- true", RLOCK];
    let command = Running::start(&mut lab.rlock(nested));
    lab.until_waiting("c", 1);
    client.say("UPGRADE");
    lab.until_waiting("a", 1);
    holder.end().silently(0);
    assert!(client.line().starts_with("ok "));
    let ran = command.end();
    assert!(ran.code() == Some(65) && ran.stderr.contains("refused: deadlock: "), "{ran:?}");
}
