//! Tests how an only session is released, and over which connections.

use super::*;

/// The columns are a lookup in progress, and a connection over which the request was sent.
#[test]
fn release_of_an_unanswered_request_is_sent_if_the_request_may_have_left() {
    let states: [fn(&str) -> SessionsConversation; 2] = [locating, asking];
    let rows: Vec<(&str, Option<Make>, [bool; 2])> = vec![
        ("no event", None, [false, true]),
        ("closed connection", Some(|| failed(ErrorKind::Network(NetworkError::Closed(Stage::Used)))), [false, true]),
        ("refused connection", Some(|| failed(ErrorKind::Network(NetworkError::Refused))), [false, false]),
        ("rejected login", Some(|| failed(ErrorKind::WrongPassword)), [false, true]),
        ("busy", Some(busy), [false, false]),
        ("error reply", Some(|| error_reply("NOPERM x")), [false, false]),
    ];
    for (event_name, event, expected) in rows {
        for (state, expected) in expected.into_iter().enumerate() {
            let is_reply = matches!(event.map(|event| event()), Some(Event::Reply(_)));
            if state == 0 && is_reply {
                continue;
            }
            let mut conversation = states[state](SINGLE);
            if let Some(event) = event {
                conversation.on(event(), START);
            }
            conversation.release(ID, None, START);
            assert_eq!(!conversation.is_empty(), expected, "{event_name} in state {state}");
        }
    }
}

/// The pause is for attempts that nobody waits for.
#[test]
fn release_while_the_server_is_away_waits_for_no_pause() {
    let mut holder = held(SINGLE);
    let mut now = START;
    for _ in 0..4 {
        holder.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
        drain(|| holder.next_action());
        now = holder.timeout().unwrap();
        at(&mut holder, now);
    }
    holder.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
    drain(|| holder.next_action());
    assert!(holder.timeout().unwrap() > now);
    assert!(release(&mut holder, now).ends_with(", release"));
}

/// After a planned failover, the old primary would take the release for some seconds.
#[test]
fn release_goes_to_the_primary_that_the_sentinels_name() {
    let mut holder = held(SENTINELS);
    let soon = START + Duration::from_millis(499);
    assert_eq!(release(&mut holder, soon), "check the replicas, release");

    let mut holder = held(SENTINELS);
    let now = START + Duration::from_millis(500);
    assert_eq!(release(&mut holder, now), "check the master for 500ms, check the replicas, release");
    assert_eq!(after(&mut holder, failed(ErrorKind::NotTheMaster), now), "close, open after h:1, release");
    after(&mut holder, reply(&["unknown"]), now);
    assert_eq!(released(&mut holder), Some(Released::Lost), "the old primary has got nothing");
}

/// Its place is worth no wait for the Sentinels, and then for the server.
#[test]
fn waiter_that_leaves_asks_for_no_replicas() {
    let mut waiter = waiting(SENTINELS);
    let now = START + Duration::from_secs(1);
    waiter.give_up(ID, now);
    assert_eq!(at(&mut waiter, now), "check the master for 500ms, give up");
}

/// The release waits behind the question for the replicas. Made at both primaries, it would let
/// both grant the lock to others.
#[test]
fn release_leaves_a_primary_that_has_lost_a_replica() {
    let mut holder = held(SENTINELS);
    assert_eq!(release(&mut holder, START), "check the replicas, release");
    assert_eq!(after(&mut holder, failed(ErrorKind::LostReplica), START), "close, open after h:1, release");
    after(&mut holder, reply(&["unknown"]), START);
    assert_eq!(released(&mut holder), Some(Released::Lost), "the old primary has got nothing");
}

/// A holder whose release has gone out over a connection that was open before, at `START`, and in
/// vain for a second. A renewal is in flight before it.
fn set_aside() -> (SessionsConversation, Boottime) {
    let mut holder = held(SINGLE);
    assert_eq!(after(&mut holder, message(), START), "renew");
    assert_eq!(release(&mut holder, START), "release");
    let later = START + Duration::from_secs(1);
    assert_eq!(at(&mut holder, later), "report timeout");
    assert_eq!(after(&mut holder, timed_out(), later), "set aside, open 1, release");
    holder.on(Event::Connecting(node(1)), later);
    (holder, later)
}

fn aside(event: Event) -> Event {
    if let Event::Reply(reply) = event { Event::Aside(reply) } else { event }
}

/// A server that is only slow answers first on the old connection. Where that answer is unknown,
/// the first release may have been carried out.
#[test]
fn first_answer_to_a_release_counts_if_the_later_one_found_nothing() {
    let lost = Some(Released::Lost);
    let answers: [(Option<Make>, _); 4] = [
        (Some(|| reply(&["unknown"])), lost),
        (Some(|| reply(&["released", "9", "10"])), lost),
        (Some(|| reply(&["released", "7", "8"])), Some(Released::Done)),
        (None, Some(Released::Done)),
    ];
    for (late, expected) in answers {
        let (mut holder, now) = set_aside();
        holder.on(reply(&["unknown"]), now);
        assert_eq!(drain(|| holder.next_action()), ["read aside"]);
        // The reply to the renewal.
        holder.on(aside(granted()), now);
        if let Some(late) = late {
            holder.on(aside(late()), now);
        }
        at(&mut holder, now);
        assert_eq!(released(&mut holder), expected, "{:?}", late.map(|late| late()));
    }
}

#[test]
fn session_that_comes_meanwhile_keeps_no_release_from_its_answer() {
    let (mut holder, now) = set_aside();
    let request = Request { session: SessionId([0; 16]), ..request() };
    holder.acquire(request, AcquireOptions::default(), now);
    assert_eq!(at(&mut holder, now), "acquire");
    holder.on(reply(&["unknown"]), now);
    assert_eq!(drain(|| holder.next_action()), ["read aside"]);
    holder.on(aside(granted()), now);
    holder.on(aside(reply(&["released", "7", "8"])), now);
    at(&mut holder, now);
    assert_eq!(released(&mut holder), Some(Released::Done));
}

#[test]
fn later_answer_to_a_release_counts_if_it_found_the_grant() {
    let (mut holder, now) = set_aside();
    holder.on(reply(&["released", "9", "10"]), now);
    holder.on(aside(granted()), now);
    holder.on(aside(reply(&["released", "7", "8"])), now);
    at(&mut holder, now);
    assert_eq!(released(&mut holder), Some(Released::Lost));
}

#[test]
fn answer_on_the_old_connection_saves_a_release_whose_time_is_over() {
    let (mut holder, _) = set_aside();
    let until = START + Duration::from_secs(1) + CONNECT_TIMEOUT;
    assert_eq!(at(&mut holder, until), "report timeout");
    holder.on(timed_out(), until);
    assert_eq!(drain(|| holder.next_action()), ["close", "read aside"]);
    holder.on(aside(granted()), until);
    holder.on(aside(reply(&["released", "7", "8"])), until);
    at(&mut holder, until);
    assert_eq!(released(&mut holder), Some(Released::Done));
}
