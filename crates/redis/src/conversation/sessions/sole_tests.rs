//! Tests a session whose connection no other uses, in each of its states, event by event.

use std::time::Duration;

use super::super::testing::*;
use super::*;
use rlock_model::request::Terms;
use rlock_store::error::Error;
use rlock_store::handle::AcquireOptions;
use rlock_store::handle::{Released, Replicas, Standing};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions::Report;

const ID: SessionId = SessionId([1; 16]);

fn with(url: &str, request: Request, replicas: u32) -> SessionsConversation {
    let mut conversation = SessionsConversation::new(exchange(url), CONNECT_TIMEOUT);
    let replicas = Replicas { count: replicas, on_disk: false };
    conversation.acquire(request, AcquireOptions { replicas, ..AcquireOptions::default() }, START);
    conversation
}

fn begin(url: &str, replicas: u32) -> SessionsConversation {
    with(url, request(), replicas)
}

fn stands(conversation: &SessionsConversation) -> Result<Standing, Error> {
    conversation.client(ID).expect("the session is not being released").standing()
}

fn locating(url: &str) -> SessionsConversation {
    let mut conversation = begin(url, 0);
    assert_eq!(at(&mut conversation, START), "open 0, acquire");
    conversation
}

fn asking(url: &str) -> SessionsConversation {
    let mut conversation = locating(url);
    assert_eq!(after(&mut conversation, Event::Connecting(node(1)), START), "");
    conversation
}

fn waiting(url: &str) -> SessionsConversation {
    let mut conversation = asking(url);
    assert_eq!(after(&mut conversation, reply(&["waiting", "40", "1", "0"]), START), "subscribe, renew");
    conversation
}

fn held(url: &str) -> SessionsConversation {
    let mut conversation = asking(url);
    assert_eq!(after(&mut conversation, granted(), START), "");
    conversation
}

fn renewing(url: &str) -> SessionsConversation {
    let mut conversation = held(url);
    assert_eq!(at(&mut conversation, START + TTL / 3), "subscribe, renew");
    conversation
}

fn standing(conversation: &SessionsConversation) -> String {
    match stands(conversation) {
        Ok(Standing::Granted(_)) => "granted".to_owned(),
        Ok(standing) => format!("{standing:?}").to_lowercase(),
        Err(_) => "failed".to_owned(),
    }
}

/// The actions and the standing.
type Expected = (&'static str, &'static str);

/// The columns are asking, waiting, holding, and holding with a renewal in flight. Each cell has
/// the immediate actions and the standing.
#[test]
fn actions_and_standing_after_each_event_in_each_state() {
    let states: [fn(&str) -> SessionsConversation; 4] = [asking, waiting, held, renewing];
    let start = |state: usize| if state == 3 { START + TTL / 3 } else { START };
    let (acquire, renew) = ("close, open 1, acquire", "close, open 1, subscribe, renew");
    let (to_acquire, to_renew) = ("close, open h:2, acquire", "close, open h:2, subscribe, renew");
    let rows: Vec<(&str, Make, [Expected; 4])> = vec![
        ("message", message, [("", "asking"), ("", "waiting"), ("renew", "granted"), ("", "granted")]),
        (
            "passing failure",
            || failed(ErrorKind::Loading),
            [(acquire, "asking"), (renew, "waiting"), (renew, "granted"), (renew, "granted")],
        ),
        (
            "lasting failure",
            || failed(ErrorKind::NoPassword),
            [("", "failed"), ("", "failed"), (renew, "granted"), (renew, "granted")],
        ),
        (
            "server in another place",
            || failed(ErrorKind::ReadOnly),
            [(acquire, "asking"), (renew, "waiting"), (renew, "granted"), (renew, "granted")],
        ),
        ("timeout", timed_out, [(acquire, "asking"), (renew, "waiting"), (renew, "granted"), (renew, "granted")]),
        (
            "subscription refused",
            || subscribe_failed("NOPERM channel"),
            [("", "failed"), ("", "failed"), ("", "granted"), ("", "granted")],
        ),
        (
            "subscription elsewhere",
            || subscribe_failed("MOVED 1 :2"),
            [(to_acquire, "asking"), (to_renew, "waiting"), ("", "granted"), ("", "granted")],
        ),
        (
            "source wanted",
            || error_reply("NOSCRIPT x"),
            [
                ("acquire source", "asking"),
                ("renew source", "waiting"),
                (renew, "granted"),
                ("renew source", "granted"),
            ],
        ),
        (
            "redirect",
            || error_reply("MOVED 1 :2"),
            [(to_acquire, "asking"), (to_renew, "waiting"), (renew, "granted"), (to_renew, "granted")],
        ),
        (
            "keys on their way",
            || error_reply("TRYAGAIN x"),
            [
                ("", "asking"),
                ("", "waiting"),
                (renew, "granted"),
                ("renew alone, renew alone, renew alone, renew alone", "granted"),
            ],
        ),
        (
            "more resources needed",
            || reply(&["need", "c"]),
            [("acquire", "asking"), ("renew", "waiting"), (renew, "granted"), ("renew", "granted")],
        ),
        ("grant", granted, [("", "granted"), ("", "granted"), (renew, "granted"), ("", "granted")]),
        (
            "unknown session",
            || reply(&["unknown"]),
            [("", "failed"), ("acquire", "waiting"), (renew, "granted"), ("", "lost")],
        ),
        (
            "unexpected reply",
            || reply(&["done"]),
            [("", "failed"), ("", "failed"), (renew, "granted"), ("subscribe, renew", "granted")],
        ),
    ];
    for (event_name, event, expected) in rows {
        for (state, (actions, expected)) in expected.into_iter().enumerate() {
            let mut conversation = states[state](CLUSTER);
            let actual = after(&mut conversation, event(), start(state));
            let actual = (actual, standing(&conversation));
            assert_eq!(actual, (actions.to_owned(), expected.to_owned()), "{event_name} in state {state}");
        }
    }
}

#[test]
fn unanswered_request_fails_in_time_for_its_release() {
    let mut conversation = asking(SINGLE);
    let until = START + CONNECT_TIMEOUT / 10 * 9;
    assert_eq!(conversation.timeout(), Some(until));
    assert_eq!(at(&mut conversation, until), "report timeout");
    assert_eq!(after(&mut conversation, timed_out(), until), "");
    assert_eq!(standing(&conversation), "failed");
    assert_eq!(conversation.timeout(), None);
    assert_eq!(release(&mut conversation, until), "release", "behind the request, on the same connection");
    assert!(conversation.timeout().is_some_and(|at| at <= START + CONNECT_TIMEOUT));
}

/// A server with an address counts as connecting before it refuses the connection.
#[test]
fn absent_server_is_tried_again_until_the_limit_and_then_told() {
    for has_address in [false, true] {
        let mut conversation = locating(SINGLE);
        let refuse = |conversation: &mut SessionsConversation, now| {
            if has_address {
                conversation.on(Event::Connecting(node(1)), now);
            }
            conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
            drain(|| conversation.next_action());
        };
        let mut now = START;
        while now < START + CONNECT_TIMEOUT / 2 {
            refuse(&mut conversation, now);
            assert_eq!(standing(&conversation), "asking");
            now = conversation.timeout().unwrap();
            at(&mut conversation, now);
        }
        conversation.on(timed_out(), START + CONNECT_TIMEOUT);
        assert!(stands(&conversation).is_err_and(|error| error.to_string().contains("refused")));
        conversation.release(ID, None, now);
        assert!(conversation.is_empty(), "nobody has the request");
    }
}

#[test]
fn sentinels_are_asked_again_at_each_renewal_and_sign_of_life() {
    // The search for the server has just asked them.
    let mut waiter = waiting(SENTINELS);
    after(&mut waiter, reply(&["waiting", "40", "1", "0"]), START);
    let sign_of_life = START + terms().heartbeat / 3;
    assert_eq!(at(&mut waiter, sign_of_life), "check the master for 500ms, renew");
    // A message soon after the last question is no reason for another one.
    let soon = sign_of_life + Duration::from_millis(100);
    after(&mut waiter, reply(&["waiting", "40", "1", "0"]), soon);
    assert_eq!(after(&mut waiter, message(), soon), "renew");

    let mut holder = held(SENTINELS);
    assert_eq!(at(&mut holder, START + TTL / 3), "subscribe, check the master for 500ms, renew");
    let later = START + TTL / 3 + Duration::from_secs(1);
    assert_eq!(after(&mut holder, failed(ErrorKind::NotTheMaster), later), "close, open after h:1, subscribe, renew");
    assert_eq!(standing(&holder), "granted");
}

/// Releases the session at an instant, and returns the actions.
fn release(conversation: &mut SessionsConversation, now: Boottime) -> String {
    conversation.release(ID, None, now);
    at(conversation, now)
}

fn released(conversation: &mut SessionsConversation) -> Option<Released> {
    let reports = std::iter::from_fn(|| conversation.next_report());
    let released = |(_, report)| if let Report::Released(Ok(released)) = report { Some(released) } else { None };
    reports.filter_map(released).next()
}

/// The other half is for the reply itself, which has a sixth of the lease.
#[test]
fn sentinels_have_half_of_the_time_for_a_reply() {
    let ttl = Duration::from_secs(2);
    let request = Request { terms: Some(Terms { ttl, ..terms() }), ..request() };
    let mut holder = with(SENTINELS, request, 0);
    at(&mut holder, START);
    after(&mut holder, Event::Connecting(node(1)), START);
    after(&mut holder, reply(&["granted", "2000000", "7", "8"]), START);
    let actions = at(&mut holder, START + Duration::from_secs(1));
    assert!(actions.contains(&format!("check the master for {:?}", ttl / 12)), "{actions}");
}

#[test]
fn silent_server_is_left_after_a_sixth_of_the_lease() {
    let mut conversation = renewing(SINGLE);
    let sent = START + TTL / 3;
    let limit = sent + (TTL / 6).min(CONNECT_TIMEOUT);
    assert_eq!(conversation.timeout(), Some(limit));
    assert_eq!(at(&mut conversation, limit), "report timeout");
    assert_eq!(after(&mut conversation, timed_out(), limit), "close, open 1, subscribe, renew");
    assert_eq!(standing(&conversation), "granted");
}

#[test]
fn backoff_grows_with_each_failure_and_ends_with_an_answer() {
    let mut conversation = held(SINGLE);
    let mut pauses = Vec::new();
    let mut now = START;
    for _ in 0..4 {
        conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
        drain(|| conversation.next_action());
        let at_next = conversation.timeout().unwrap();
        pauses.push(at_next - now);
        now = at_next;
        at(&mut conversation, now);
    }
    assert_grow(&pauses);
    conversation.on(Event::Connecting(node(1)), now);
    conversation.on(granted(), now);
    assert!(conversation.server().line().outage().is_none());
    conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
    drain(|| conversation.next_action());
    assert_eq!(conversation.timeout(), Some(now), "the first failure has no pause");
}

/// A replica that was the primary answers that it knows no session, and then refuses the request.
#[test]
fn backoff_grows_while_a_replica_knows_no_session_and_refuses_the_request() {
    let mut conversation = waiting(SINGLE);
    let mut pauses = Vec::new();
    let mut now = START;
    for attempt in 0..4 {
        assert_eq!(after(&mut conversation, reply(&["unknown"]), now), "acquire", "{attempt}");
        conversation.on(error_reply("READONLY You can't write against a read only replica."), now);
        drain(|| conversation.next_action());
        let at_next = conversation.timeout().unwrap();
        pauses.push(at_next - now);
        now = at_next;
        at(&mut conversation, now);
        conversation.on(Event::Connecting(node(1)), now);
    }
    assert_grow(&pauses);
    after(&mut conversation, reply(&["waiting", "40", "1", "0"]), now);
    assert!(conversation.server().line().outage().is_none());
}

#[test]
fn only_one_renewal_is_in_flight() {
    let mut conversation = waiting(SINGLE);
    for _ in 0..2 {
        assert_eq!(after(&mut conversation, message(), START), "");
    }
    after(&mut conversation, reply(&["waiting", "40", "1", "0"]), START);
    assert_eq!(after(&mut conversation, message(), START), "renew");
}

#[test]
fn renewal_after_a_message_replaces_a_delayed_one() {
    let mut conversation = waiting(CLUSTER);
    assert_eq!(after(&mut conversation, error_reply("TRYAGAIN x"), START), "");
    assert_eq!(after(&mut conversation, message(), START), "renew");
    assert_eq!(after(&mut conversation, granted(), START), "");
    assert_eq!(at(&mut conversation, START + Duration::from_millis(20)), "");
}

/// Sessions that died beside the holder belong to that one renewal only.
#[test]
fn renewal_names_no_resource_that_an_earlier_one_needed() {
    let mut conversation = held(SINGLE);
    let mut words = |event: Option<Event>, now| {
        event.into_iter().for_each(|event| conversation.on(event, now));
        conversation.tick(now);
        let mut actions = std::iter::from_fn(|| conversation.next_action());
        let sent = actions.find_map(|action| if let Action::Send(command) = action { Some(command) } else { None });
        actions.for_each(drop);
        sent.map(|command| command.args_iter().count())
    };
    let (first, second) = (START + TTL / 3, START + TTL / 3 * 2);
    let own = words(None, first);
    assert!(words(Some(reply(&["need", "{t}c"])), first) > own);
    assert_eq!(words(Some(granted()), first), None);
    assert_eq!(words(None, second), own);
}

/// The renewals of both keys that may have the lease on a resource.
fn both_keys_of(resources: usize) -> String {
    vec!["renew alone"; 2 * resources].join(", ")
}

/// Each resource is renewed where its key is. The lease counts from the first renewal.
#[test]
fn lease_on_a_migrating_slot_is_renewed_piece_by_piece() {
    let mut conversation = renewing(CLUSTER);
    let sent = START + TTL / 3;
    assert_eq!(after(&mut conversation, error_reply("TRYAGAIN x"), sent), both_keys_of(2));
    for answer in [&["unknown"][..], &["renewed", "30000000"], &["unknown"]] {
        assert_eq!(after(&mut conversation, reply(answer), sent), "");
    }
    let later = sent + Duration::from_secs(1);
    let reopened = "close, open h:2 asking, subscribe, renew";
    assert_eq!(after(&mut conversation, error_reply("ASK 1 :2"), later), reopened);
    conversation.on(Event::Connecting(node(2)), later);
    assert_eq!(after(&mut conversation, error_reply("TRYAGAIN x"), later), both_keys_of(1));
    assert_eq!(after(&mut conversation, reply(&["unknown"]), later), "");
    assert_eq!(after(&mut conversation, reply(&["renewed", "30000000"]), later), "");
    let Ok(Standing::Granted(grant)) = stands(&conversation) else { panic!("still held") };
    assert_eq!(grant.deadline, Some(rlock_model::lease::Lease::new(TTL).deadline(sent)));
}

#[test]
fn piece_that_no_node_has_is_retried_on_a_fresh_connection() {
    let mut conversation = renewing(CLUSTER);
    let sent = START + TTL / 3;
    after(&mut conversation, error_reply("TRYAGAIN x"), sent);
    for _ in 0..3 {
        assert_eq!(after(&mut conversation, reply(&["unknown"]), sent), "");
    }
    assert_eq!(after(&mut conversation, error_reply("TRYAGAIN x"), sent), "close, open 1, subscribe, renew");
    assert_eq!(standing(&conversation), "granted", "unknown on one node proves nothing");
}

#[test]
fn grant_without_enough_replicas_is_unavailable() {
    let mut conversation = begin(SINGLE, 2);
    at(&mut conversation, START);
    conversation.on(Event::Connecting(node(1)), START);
    assert_eq!(after(&mut conversation, granted(), START), "WAIT");
    assert_eq!(standing(&conversation), "asking");
    conversation.on(Event::Reply(Ok(Value::Int(1))), START);
    let error = stands(&conversation).unwrap_err().to_string();
    assert!(error.starts_with("'redis://h:1': 1 of 2 replicas have the lock"), "{error}");
    assert_eq!(release(&mut conversation, START), "release");
}

/// The release of the place drops the reply of the replicas. Without another WAIT, nothing would
/// end the claim before its limit.
#[test]
fn grant_that_waits_for_replicas_at_the_end_of_the_wait_is_claimed_with_another_wait() {
    let mut conversation = begin(SINGLE, 1);
    at(&mut conversation, START);
    conversation.on(Event::Connecting(node(1)), START);
    after(&mut conversation, reply(&["waiting", "40", "1", "0"]), START);
    assert_eq!(after(&mut conversation, granted(), START), "WAIT");
    conversation.give_up(ID, START);
    assert_eq!(at(&mut conversation, START), "give up");
    assert_eq!(after(&mut conversation, Event::Reply(Ok(Value::Int(1))), START), "");
    assert_eq!(standing(&conversation), "asking", "the reply of the replicas was ignored");
    assert_eq!(after(&mut conversation, granted(), START), "renew");
    assert_eq!(after(&mut conversation, granted(), START), "WAIT");
    assert_eq!(after(&mut conversation, Event::Reply(Ok(Value::Int(1))), START), "");
    assert_eq!(standing(&conversation), "granted");
}

/// It has left the queue by itself, and hears why if it asks again.
#[test]
fn waiter_whose_job_is_done_asks_once_more_when_it_gives_up() {
    let mut conversation = waiting(SINGLE);
    conversation.give_up(ID, START);
    assert_eq!(at(&mut conversation, START), "give up");
    let renewed = reply(&["unknown"]);
    assert_eq!(after(&mut conversation, renewed, START), "", "the renewal before does not matter");
    assert_eq!(after(&mut conversation, reply(&["unknown"]), START), "acquire");
    assert_eq!(after(&mut conversation, reply(&["already"]), START), "");
    assert_eq!(standing(&conversation), "alreadydone");
}

/// The request never returns to the queue that it leaves.
#[test]
fn waiter_gives_up_over_as_many_connections_as_it_takes() {
    let mut conversation = waiting(SINGLE);
    conversation.give_up(ID, START);
    at(&mut conversation, START);
    let again = after(&mut conversation, failed(ErrorKind::Network(NetworkError::Closed(Stage::Used))), START);
    assert_eq!(again, "close, open 1, give up");
    conversation.on(Event::Connecting(node(1)), START);
    assert_eq!(after(&mut conversation, granted(), START), "renew");
    assert_eq!(after(&mut conversation, reply(&["unknown"]), START), "give up", "the grant was not claimed in time");
    assert_eq!(after(&mut conversation, busy(), START), "");
    assert!(standing(&conversation).starts_with("busy"));
}

/// A renewal over a new connection states what is left of a kept hold.
#[test]
fn grant_is_lost_if_its_lease_ends_before_the_replicas_have_it() {
    let mut conversation = begin(SINGLE, 1);
    at(&mut conversation, START);
    conversation.on(Event::Connecting(node(1)), START);
    assert_eq!(after(&mut conversation, granted(), START), "WAIT");
    let broken = failed(ErrorKind::Network(NetworkError::Closed(Stage::Used)));
    assert_eq!(after(&mut conversation, broken, START), "close, open 1, subscribe, renew");
    conversation.on(Event::Connecting(node(1)), START);
    assert_eq!(after(&mut conversation, reply(&["granted", "30", "7", "8"]), START), "WAIT");
    assert_eq!(standing(&conversation), "asking");
    assert_eq!(at(&mut conversation, START + Duration::from_micros(30)), "");
    assert_eq!(standing(&conversation), "lost");
    assert!(release(&mut conversation, START).ends_with("release"));
}

#[test]
fn waiter_on_a_migrating_slot_is_not_out_of_reach() {
    let mut conversation = waiting(CLUSTER);
    assert_eq!(after(&mut conversation, error_reply("TRYAGAIN x"), START), "");
    assert!(conversation.server().line().outage().is_none());
    assert_eq!(at(&mut conversation, START + Duration::from_millis(20)), "renew");
}

#[test]
fn request_in_a_slot_that_migrates_for_too_long_fails_with_the_migration() {
    let mut conversation = asking(CLUSTER);
    let mut now = START;
    while standing(&conversation) == "asking" {
        after(&mut conversation, error_reply("TRYAGAIN x"), now);
        now = conversation.timeout().unwrap();
        if at(&mut conversation, now) == "report timeout" {
            conversation.on(timed_out(), now);
        }
    }
    assert_eq!(conversation.failure(ID).map(Failure::kind), Some(&ErrorKind::Migrating));
}

mod releases;
