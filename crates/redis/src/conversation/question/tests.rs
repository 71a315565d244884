//! Tests a question in each of its states, event by event.

use super::super::testing::*;
use super::*;
use rlock_model::request::SessionId;
use rlock_store::network::NetworkError;

const UNTIL: Boottime = Boottime::since_boot(Duration::from_secs(1_010));

fn call() -> Call {
    Call::release(SessionId([1; 16]), vec![resource("a")])
}

fn open(url: &str) -> Exchange {
    let mut exchange = exchange(url);
    exchange.open(START);
    exchange.on_connecting(node(1));
    exchange.next_action();
    exchange
}

/// The result so far, as a short text.
fn result(question: &Question<'_>) -> String {
    match &question.result {
        None => "open".to_owned(),
        Some(Ok(QuestionReply::Reply(reply))) => format!("{reply:?}"),
        Some(Ok(QuestionReply::Value(_))) => "value".to_owned(),
        Some(Err(failure)) => format!("{:?}", failure.kind()),
    }
}

/// The columns are the persistences. Each cell has the actions until a second later and the result.
#[test]
fn script_call_after_each_event() {
    let again = ("close, open 1, release", "open");
    let moved = ("close, open h:2, release", "open");
    let rows: Vec<(Make, [(&str, &str); 2])> = vec![
        (|| reply(&["done"]), [("", "Done"); 2]),
        (|| reply(&["need", "b"]), [("release", "open"); 2]),
        (|| error_reply("NOSCRIPT x"), [("release source", "open"); 2]),
        (|| error_reply("MOVED 1 :2"), [moved; 2]),
        (|| error_reply("TRYAGAIN x"), [("release", "open"); 2]),
        (|| error_reply("LOADING x"), [again; 2]),
        (|| error_reply("NOAUTH x"), [("", "NoPassword"); 2]),
        (|| reply(&["what"]), [("", "UnexpectedReply"); 2]),
        (|| failed(ErrorKind::ReadOnly), [again; 2]),
        (timed_out, [again; 2]),
        (message, [("", "open"); 2]),
    ];
    for (event, expected) in rows {
        for (retry, (actions, expected)) in [Retry::WhileUp, Retry::WhileDown].into_iter().zip(expected) {
            let mut exchange = open(CLUSTER);
            let mut question = Question::call(&mut exchange, call(), retry, UNTIL);
            assert_eq!(at(&mut question, START), "release");
            let first = after(&mut question, event(), START);
            let second = at(&mut question, START + Duration::from_secs(1));
            let all: Vec<_> = [first, second].into_iter().filter(|actions| !actions.is_empty()).collect();
            assert_eq!((all.join(", ").as_str(), result(&question).as_str()), (actions, expected), "{retry:?}");
        }
    }
}

#[test]
fn refused_connection_is_retried_only_at_the_right_server() {
    for (retry, expected) in
        [(Retry::WhileUp, "Network(Refused)"), (Retry::WhileDown, "open"), (Retry::Never, "Network(Refused)")]
    {
        let mut exchange = exchange(SINGLE);
        let mut question = Question::call(&mut exchange, call(), retry, UNTIL);
        assert_eq!(at(&mut question, START), "open 0, release");
        after(&mut question, failed(ErrorKind::Network(NetworkError::Refused)), START);
        assert_eq!(result(&question), expected, "{retry:?}");
    }
}

#[test]
fn deadline_ends_a_question_with_the_most_specific_failure() {
    let mut exchange = open(SINGLE);
    let mut question = Question::call(&mut exchange, call(), Retry::WhileDown, UNTIL);
    at(&mut question, START);
    after(&mut question, failed(ErrorKind::Network(NetworkError::Refused)), START);
    assert_eq!(question.timeout(), Some(START + RETRY_AFTER));
    assert_eq!(at(&mut question, UNTIL), "report timeout");
    after(&mut question, timed_out(), UNTIL);
    assert_eq!(result(&question), "Network(Refused)");
}

#[test]
fn question_about_a_migrating_slot_fails_with_the_migration() {
    let mut exchange = open(CLUSTER);
    let mut question = Question::call(&mut exchange, call(), Retry::WhileUp, UNTIL);
    at(&mut question, START);
    after(&mut question, error_reply("TRYAGAIN x"), START);
    assert_eq!(after(&mut question, timed_out(), UNTIL), "");
    assert_eq!(result(&question), "Migrating");
}

#[test]
fn plain_command_fails_at_the_first_failure_and_its_probe_never() {
    for event in [error_reply("LOADING x"), failed(ErrorKind::Loading)] {
        let mut exchange = open(SINGLE);
        let probe = Some(redis::cmd("HELLO"));
        let mut question = Question::command(&mut exchange, probe, redis::cmd("SCAN"), UNTIL);
        assert_eq!(at(&mut question, START), "HELLO, SCAN");
        assert_eq!(after(&mut question, error_reply("ERR unknown command"), START), "");
        assert_eq!(result(&question), "open");
        after(&mut question, event, START);
        assert_eq!(result(&question), "Loading");
    }
}
