//! Tests the exchange in each of its states, event by event.

use super::super::testing::*;
use super::*;
use crate::interface::Event;
use rlock_model::request::SessionId;
use rlock_store::lease::Server as _;
use rlock_store::network::{NetworkError, Stage};

fn call() -> Call {
    Call::release(SessionId([1; 16]), vec![resource("a")])
}

fn open(url: &str) -> Exchange {
    let mut exchange = exchange(url);
    exchange.open(START);
    exchange.on_connecting(node(1));
    exchange
}

type Begin = fn() -> Exchange;

fn actions(exchange: &mut Exchange) -> Vec<String> {
    drain(|| exchange.next_action())
}

/// Handles a reply to the oldest command, and returns the outcome and the actions.
fn outcome(exchange: &mut Exchange, event: Event) -> String {
    let Event::Reply(reply) = event else { panic!("only replies have an outcome") };
    let outcome = match exchange.on_reply(reply, START) {
        Ok(None) => "nothing".to_owned(),
        Ok(Some((_, Outcome::Reply { reply, .. }))) => format!("{reply:?}"),
        Ok(Some((_, Outcome::Value(_)))) => "value".to_owned(),
        Ok(Some((_, Outcome::Redirect(redirect)))) => {
            format!("redirect to {}{}", redirect.node, if redirect.asking { " asking" } else { "" })
        }
        Ok(Some((_, Outcome::TryAgain(_)))) => "try again".to_owned(),
        Err(failure) => format!("{:?}", failure.kind()),
    };
    let actions = actions(exchange);
    if actions.is_empty() { outcome } else { format!("{outcome}: {}", actions.join(", ")) }
}

/// The columns are the commands: a script sent by its name, a script sent by its source, a plain
/// command, a probe, and a command whose reply no longer matters.
#[test]
fn outcome_of_each_reply_to_each_command_in_a_cluster() {
    let rows: [(Make, [&str; 4]); 10] = [
        (|| reply(&["done"]), ["Done", "Done", "value", "value"]),
        (|| reply(&["unknown"]), ["Unknown", "Unknown", "value", "value"]),
        (|| reply(&["need", "b"]), ["nothing: release", "nothing: release", "value", "value"]),
        (|| reply(&["what"]), ["UnexpectedReply", "UnexpectedReply", "value", "value"]),
        (
            || error_reply("NOSCRIPT No matching script."),
            ["nothing: release source", "UnexpectedReply", "UnexpectedReply", "value"],
        ),
        (|| error_reply("MOVED 1 :2"), ["redirect to h:2", "redirect to h:2", "UnexpectedReply", "value"]),
        (|| error_reply("ASK 1 :2"), ["redirect to h:2 asking", "redirect to h:2 asking", "UnexpectedReply", "value"]),
        (|| error_reply("TRYAGAIN x"), ["try again", "try again", "UnexpectedReply", "value"]),
        (|| error_reply("LOADING x"), ["Loading", "Loading", "Loading", "value"]),
        (|| error_reply("NOAUTH x"), ["NoPassword", "NoPassword", "NoPassword", "value"]),
    ];
    for (event, expected) in rows {
        let mut by_name = open(CLUSTER);
        by_name.call(Asked::Question, call(), START);
        let mut by_source = open(CLUSTER);
        by_source.send_call(Asked::Question, call(), true, START);
        let mut command = open(CLUSTER);
        command.command(Asked::Question, redis::cmd("PING"), START);
        let mut probe = open(CLUSTER);
        probe.command(Asked::Probe, redis::cmd("PING"), START);
        let mut ignored = open(CLUSTER);
        ignored.call(Asked::Question, call(), START);
        ignored.ignore_earlier();
        let exchanges = [by_name, by_source, command, probe, ignored];
        for (mut exchange, expected) in exchanges.into_iter().zip(expected.into_iter().chain(["nothing"])) {
            actions(&mut exchange);
            let Event::Reply(reply) = event() else { unreachable!() };
            assert_eq!(outcome(&mut exchange, Event::Reply(reply.clone())), expected, "{reply:?}");
        }
    }
}

#[test]
fn reply_without_a_command_is_not_redis() {
    assert_eq!(outcome(&mut open(SINGLE), reply(&["done"])).split(':').next(), Some("NotRedis"));
}

#[test]
fn server_that_demands_resources_beyond_the_request_is_unexpected() {
    let mut exchange = open(SINGLE);
    exchange.call(Asked::Question, call(), START);
    actions(&mut exchange);
    let names: Vec<String> = (0..=NEEDED_MAX).map(|number| format!("r{number}")).collect();
    let words: Vec<&str> = std::iter::once("need").chain(names.iter().map(String::as_str)).collect();
    assert_eq!(outcome(&mut exchange, reply(&words)), "UnexpectedReply");
}

/// The columns are a connection that is due now and a connection that is due a second later.
#[test]
fn connection_opens_only_when_closed_and_due() {
    let closed = || exchange(SINGLE);
    let locating = || {
        let mut exchange = exchange(SINGLE);
        exchange.open(START);
        exchange
    };
    let later = || {
        let mut exchange = open(SINGLE);
        exchange.reconnect(failure(ErrorKind::Network(NetworkError::Refused)), START + Duration::from_secs(1));
        exchange
    };
    let rows: [(Begin, [bool; 2]); 4] =
        [(closed, [true, true]), (locating, [false, false]), (|| open(SINGLE), [false, false]), (later, [false, true])];
    for (number, (begin, expected)) in rows.into_iter().enumerate() {
        let opens = [START, START + Duration::from_secs(1)].map(|now| begin().open(now));
        assert_eq!(opens, expected, "row {number}");
    }
}

#[test]
fn each_failure_switches_to_another_node_and_drops_the_redirect() {
    let mut exchange = open(CLUSTER);
    exchange.follow(Redirect { node: node(2), asking: true }).unwrap();
    assert!(exchange.open(START));
    exchange.on_connecting(node(2));
    exchange.reconnect(failure(ErrorKind::Loading), START);
    assert!(exchange.open(START));
    assert_eq!(actions(&mut exchange), ["close", "open 1"]);
    exchange.follow(Redirect { node: node(3), asking: true }).unwrap();
    assert!(exchange.open(START));
    assert_eq!(actions(&mut exchange), ["close", "open h:3 asking"]);
}

#[test]
fn ninth_consecutive_redirect_fails() {
    let mut exchange = open(CLUSTER);
    let redirect = || Redirect { node: node(2), asking: false };
    for _ in 0..REDIRECTS_MAX {
        exchange.follow(redirect()).unwrap();
    }
    assert_eq!(exchange.follow(redirect()).unwrap_err().kind(), &ErrorKind::ClusterDown);

    let mut exchange = open(CLUSTER);
    for _ in 0..3 * REDIRECTS_MAX {
        exchange.follow(redirect()).unwrap();
        exchange.call(Asked::Question, call(), START);
        actions(&mut exchange);
        assert_eq!(outcome(&mut exchange, reply(&["done"])), "Done", "an answer resets the count of redirects");
    }
}

#[test]
fn delayed_call_is_sent_again_once_when_due() {
    let mut exchange = open(CLUSTER);
    exchange.delay(Asked::Question, call(), START);
    let due = START + TRY_AGAIN_AFTER;
    assert_eq!((exchange.timeout(), exchange.is_quiet()), (Some(due), false));
    assert_eq!([START, due, due].map(|now| exchange.resume(now)), [None, Some(Asked::Question), None]);
    assert_eq!(exchange.in_flight().collect::<Vec<_>>(), [Asked::Question]);
    assert_eq!(exchange.line.outage(), None, "the server answers");
}

#[test]
fn lost_connection_drops_the_commands_in_flight() {
    for follows in [false, true] {
        let mut exchange = open(CLUSTER);
        exchange.call(Asked::Question, call(), START);
        exchange.delay(Asked::Question, call(), START);
        if follows {
            exchange.follow(Redirect { node: node(2), asking: false }).unwrap();
        } else {
            exchange.reconnect(failure(ErrorKind::Loading), START);
        }
        assert_eq!((exchange.in_flight().count(), exchange.delayed.is_some()), (0, false));
        assert_eq!(actions(&mut exchange), ["close"], "commands for the lost connection are dropped");
    }
}

#[test]
fn outage_keeps_the_most_specific_failure_and_ends_with_an_answer() {
    let mut exchange = open(SINGLE);
    for (kind, kept) in [
        (
            ErrorKind::Network(NetworkError::TimedOut(Stage::Used)),
            ErrorKind::Network(NetworkError::TimedOut(Stage::Used)),
        ),
        (ErrorKind::Network(NetworkError::Refused), ErrorKind::Network(NetworkError::Refused)),
        (ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)), ErrorKind::Network(NetworkError::Refused)),
        (ErrorKind::Loading, ErrorKind::Loading),
    ] {
        exchange.reconnect(failure(kind), START);
        assert_eq!(exchange.line.outage().map(Failure::kind), Some(&kept));
    }
    assert_eq!(exchange.line.failures(), 4);
    exchange.line.served();
    assert_eq!((exchange.line.failures(), exchange.line.outage()), (0, None));
}

#[test]
fn giving_up_leaves_an_open_connection_to_the_release() {
    let mut exchange = open(SINGLE);
    exchange.call(Asked::Question, call(), START);
    exchange.give_up(failure(ErrorKind::NoPassword));
    assert!(exchange.is_open() && exchange.in_flight().count() == 1);

    let mut exchange = self::exchange(SINGLE);
    exchange.open(START);
    exchange.give_up(failure(ErrorKind::NoPassword));
    assert_eq!((exchange.line.opens_at().is_some(), actions(&mut exchange)), (true, vec!["close".to_owned()]));
}

/// A thousand sessions that renew after a restart of their server do not send the source each.
#[test]
fn source_follows_the_calls_in_flight_only_once() {
    let mut exchange = open(SINGLE);
    for _ in 0..2 {
        exchange.call(Asked::Question, call(), START);
    }
    actions(&mut exchange);
    let mut answer = |text: &str, millis| {
        let now = START + Duration::from_millis(millis);
        assert!(exchange.on_reply(Err(error(text)), now).is_ok_and(|outcome| outcome.is_none()));
        actions(&mut exchange).join(", ")
    };
    assert_eq!(answer("NOSCRIPT x", 1), "release source");
    assert_eq!(answer("NOSCRIPT x", 2), "release", "the server knows the script when it reads this call");
    let Some(Sent { is_source: true, .. }) = exchange.in_flight.pop_front() else { panic!("the source is in flight") };
    let now = START + Duration::from_millis(3);
    assert!(exchange.on_reply(Err(error("NOSCRIPT x")), now).is_ok());
    assert_eq!(actions(&mut exchange), ["release source"], "the server has forgotten the script since");
}
