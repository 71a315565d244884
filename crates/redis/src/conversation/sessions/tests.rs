//! Tests the promises to each session, event by event.

use std::time::Duration;

use super::super::testing::*;
use super::*;
use rlock_model::lease::Lease;
use rlock_model::past::End;
use rlock_store::handle::AcquireOptions;
use rlock_store::handle::{Released, Standing};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions::Report;

const fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn begin(url: &str) -> SessionsConversation {
    SessionsConversation::new(exchange(url), CONNECT_TIMEOUT)
}

fn acquire(conversation: &mut SessionsConversation, number: u8, now: Boottime) -> String {
    conversation.acquire(Request { session: id(number), ..request() }, AcquireOptions::default(), now);
    at(conversation, now)
}

fn release(conversation: &mut SessionsConversation, number: u8, now: Boottime) -> String {
    conversation.release(id(number), Some(End::KEPT), now);
    at(conversation, now)
}

/// A conversation with these sessions, each of which has sent its request.
fn asking(url: &str, sessions: u8) -> SessionsConversation {
    let mut conversation = begin(url);
    for number in 1..=sessions {
        acquire(&mut conversation, number, START);
    }
    conversation.on(Event::Connecting(node(1)), START);
    conversation
}

/// A conversation with these sessions, each of which holds its lock.
fn held(url: &str, sessions: u8) -> SessionsConversation {
    let mut conversation = asking(url, sessions);
    for _ in 0..sessions {
        conversation.on(granted(), START);
    }
    reports(&mut conversation);
    conversation
}

fn waiting(url: &str) -> SessionsConversation {
    let mut conversation = asking(url, 1);
    assert_eq!(after(&mut conversation, queued(), START), "subscribe, renew");
    after(&mut conversation, queued(), START);
    assert_eq!(reports(&mut conversation), "1 waiting");
    conversation
}

fn queued() -> Event {
    reply(&["waiting", "40", "1", "0"])
}

fn released() -> Event {
    reply(&["released", "7", "8"])
}

fn message_to(number: u8) -> Event {
    Event::Message(format!("ns:{{t}}{{t}}a:w:{}", id(number)))
}

/// Takes the reports, as text.
fn reports(conversation: &mut SessionsConversation) -> String {
    let report = |(id, event): (SessionId, Report)| {
        let text = match event {
            Report::Standing(Ok(Standing::Granted(_))) => "granted".to_owned(),
            Report::Standing(Ok(standing)) => format!("{standing:?}").to_lowercase(),
            Report::Standing(Err(_)) => "failed".to_owned(),
            Report::Released(Ok(Released::Done | Released::Kept)) => "released".to_owned(),
            Report::Released(Ok(Released::Lost)) => "lost at release".to_owned(),
            Report::Released(Err(_)) => "not released".to_owned(),
        };
        format!("{} {text}", id.0[0])
    };
    std::iter::from_fn(|| conversation.next_report()).map(report).collect::<Vec<_>>().join(", ")
}

fn is_idle(conversation: &SessionsConversation) -> bool {
    conversation.is_empty() && conversation.timeout().is_none()
}

#[test]
fn requests_share_one_connection_and_each_reply_finds_its_session() {
    let mut conversation = begin(SINGLE);
    assert_eq!(acquire(&mut conversation, 2, START), "open 0, acquire");
    assert_eq!(acquire(&mut conversation, 1, START), "acquire", "the server is being looked for");
    assert_eq!(after(&mut conversation, Event::Connecting(node(1)), START), "");
    assert_eq!(acquire(&mut conversation, 3, START), "acquire");
    assert_eq!(after(&mut conversation, granted(), START), "");
    assert_eq!(after(&mut conversation, queued(), START), "subscribe, renew");
    assert_eq!(after(&mut conversation, busy(), START), "");
    assert_eq!(reports(&mut conversation), "2 granted, 1 waiting, 3 busy { obstructions: [], streak: none }");
    assert_eq!(release(&mut conversation, 3, START), "", "a busy request has nothing to release");
    assert_eq!(reports(&mut conversation), "3 released");
    assert_eq!(conversation.ids().count(), 2);
}

/// The actions and the reports.
type Expected = (&'static str, &'static str);

/// What a session says again after an error reply.
const AGAIN: &str = "subscribe, renew";

/// The columns are asking, waiting and holding. The sessions 1 and 2 are in the same state, and the
/// event concerns session 1 or the connection.
#[test]
fn failure_concerns_one_session_or_all() {
    let states: [fn() -> SessionsConversation; 3] = [
        || asking(SINGLE, 2),
        || {
            let mut conversation = asking(SINGLE, 2);
            for _ in 0..2 {
                conversation.on(queued(), START);
            }
            at(&mut conversation, START);
            reports(&mut conversation);
            conversation
        },
        || {
            let mut conversation = held(SINGLE, 2);
            assert_eq!(at(&mut conversation, START + TTL / 3), "subscribe, renew, subscribe, renew");
            conversation
        },
    ];
    let start = |state: usize| if state == 2 { START + TTL / 3 } else { START };
    let both_renew = "close, open 1, subscribe, renew, subscribe, renew";
    let rows: Vec<(&str, Make, [Expected; 3])> = vec![
        ("wrong type", || error_reply("WRONGTYPE x"), [("", "1 failed"), ("", "1 failed"), (AGAIN, "")]),
        ("no memory", || error_reply("OOM x"), [("", "1 failed"), (AGAIN, ""), (AGAIN, "")]),
        ("missing right", || error_reply("NOPERM x"), [("", "1 failed"), ("", "1 failed"), (AGAIN, "")]),
        ("unexpected reply", || reply(&["done"]), [("", "1 failed"), ("", "1 failed"), (AGAIN, "")]),
        (
            "source wanted",
            || error_reply("NOSCRIPT x"),
            [("acquire source", ""), ("renew source", ""), ("renew source", "")],
        ),
        ("more resources needed", || reply(&["need", "c"]), [("acquire", ""), ("renew", ""), ("renew", "")]),
        (
            "loading",
            || error_reply("LOADING x"),
            [("close, open 1, acquire, acquire", ""), (both_renew, ""), (both_renew, "")],
        ),
        (
            "closed connection",
            || failed(ErrorKind::Network(NetworkError::Closed(Stage::Used))),
            [("close, open 1, acquire, acquire", ""), (both_renew, ""), (both_renew, "")],
        ),
        (
            "rejected login",
            || failed(ErrorKind::WrongPassword),
            [("", "1 failed, 2 failed"), ("", "1 failed, 2 failed"), (both_renew, "")],
        ),
        (
            "refused connection",
            || failed(ErrorKind::Network(NetworkError::Refused)),
            [("close, open 1, acquire, acquire", ""), (both_renew, ""), (both_renew, "")],
        ),
    ];
    for (event_name, event, expected) in rows {
        for (state, (actions, expected)) in expected.into_iter().enumerate() {
            let mut conversation = states[state]();
            let actual = after(&mut conversation, event(), start(state));
            assert_eq!(
                (actual.as_str(), reports(&mut conversation).as_str()),
                (actions, expected),
                "{event_name} in state {state}"
            );
        }
    }
}

/// An empty server without memory answers that it knows no session, and then refuses the request.
#[test]
fn backoff_grows_while_a_server_knows_no_session_and_has_no_memory() {
    let mut conversation = waiting(SINGLE);
    assert_eq!(after(&mut conversation, message_to(1), START), "renew");
    let mut pauses = Vec::new();
    let mut now = START;
    for attempt in 0..4 {
        assert_eq!(after(&mut conversation, reply(&["unknown"]), now), "acquire", "{attempt}");
        conversation.on(error_reply("OOM x"), now);
        let at_next = conversation.timeout().unwrap();
        pauses.push(at_next - now);
        now = at_next;
        assert_eq!(at(&mut conversation, now), AGAIN, "{attempt}");
    }
    assert_grow(&pauses);
}

/// "The state of the request has changed, or the deadline of its grant."
#[test]
fn each_renewal_reports_a_deadline_that_counts_from_its_sending() {
    let mut conversation = held(SINGLE, 1);
    let sent = START + Duration::from_secs(1);
    assert_eq!(conversation.timeout(), Some(sent), "a holder subscribes after a second");
    assert_eq!(at(&mut conversation, sent), "subscribe, renew");
    conversation.on(granted(), sent + Duration::from_secs(3));
    let Some((_, Report::Standing(Ok(Standing::Granted(grant))))) = conversation.next_report() else {
        panic!("a renewal is reported")
    };
    assert_eq!(grant.deadline, Some(Lease::new(TTL).deadline(sent)));
    assert_eq!(conversation.timeout(), Some(sent + TTL / 3));
}

#[test]
fn message_renews_only_its_session_and_only_one_renewal_is_in_flight() {
    let mut conversation = held(SINGLE, 2);
    assert_eq!(after(&mut conversation, message_to(2), START), "renew");
    assert_eq!(after(&mut conversation, message_to(2), START), "");
    assert_eq!(after(&mut conversation, message_to(9), START), "");
    assert_eq!(after(&mut conversation, reply(&["unknown"]), START), "");
    assert_eq!(reports(&mut conversation), "2 lost");
    assert_eq!(release(&mut conversation, 2, START), "release");
    assert_eq!(after(&mut conversation, reply(&["unknown"]), START), "");
    assert_eq!(conversation.ids().count(), 1);
    assert_eq!(reports(&mut conversation), "2 released", "the loss is not told again");
}

#[test]
fn grant_with_other_tokens_is_a_loss_and_is_given_back() {
    let mut conversation = held(SINGLE, 1);
    after(&mut conversation, message_to(1), START);
    assert_eq!(after(&mut conversation, reply(&["granted", "30000000", "9", "10"]), START), "");
    assert_eq!(reports(&mut conversation), "1 lost");
    assert_eq!(release(&mut conversation, 1, START), "release");
}

#[test]
fn waiter_that_was_passed_over_returns_to_its_place() {
    let mut conversation = waiting(SINGLE);
    assert_eq!(after(&mut conversation, message_to(1), START), "renew");
    assert_eq!(after(&mut conversation, reply(&["unknown"]), START), "acquire");
    assert_eq!(after(&mut conversation, granted(), START), "");
    assert_eq!(reports(&mut conversation), "1 granted");
}

#[test]
fn release_ends_the_subscription_and_reports_its_result() {
    let mut conversation = waiting(SINGLE);
    assert_eq!(release(&mut conversation, 1, START), "unsubscribe, release");
    assert_eq!(reports(&mut conversation), "");
    assert_eq!(after(&mut conversation, released(), START), "");
    assert_eq!(reports(&mut conversation), "1 released");
    assert!(is_idle(&conversation));
    release(&mut conversation, 1, START);
    assert_eq!(reports(&mut conversation), "1 released", "an unknown session counts as released");
}

#[test]
fn release_of_a_grant_that_is_gone_reports_the_loss_unless_in_doubt_or_late() {
    let deadline = Lease::new(TTL).deadline(START);
    for (answer, now, expected) in [
        (reply(&["unknown"]), START, "1 lost at release"),
        (reply(&["unknown"]), deadline, "1 released"),
        (reply(&["released", "9", "10"]), START, "1 lost at release"),
        (released(), START, "1 released"),
    ] {
        let mut conversation = held(SINGLE, 1);
        release(&mut conversation, 1, START);
        conversation.on(answer, now);
        assert_eq!(reports(&mut conversation), expected);
    }
    let mut conversation = held(SINGLE, 1);
    release(&mut conversation, 1, START);
    assert_eq!(
        after(&mut conversation, failed(ErrorKind::Network(NetworkError::Closed(Stage::Used))), START),
        "close, open 1, release"
    );
    conversation.on(reply(&["unknown"]), START);
    assert_eq!(reports(&mut conversation), "1 released", "the first release may have been carried out");
}

/// The old primary may have carried out the release that left before the question, and no other.
#[test]
fn release_goes_to_the_primary_that_the_sentinels_name() {
    let mut conversation = held(SENTINELS, 2);
    assert_eq!(release(&mut conversation, 1, START), "release", "the search for the server has just asked them");
    let now = START + Duration::from_millis(500);
    assert_eq!(release(&mut conversation, 2, now), "check the master for 500ms, release");
    assert_eq!(
        after(&mut conversation, failed(ErrorKind::NotTheMaster), now),
        "close, open after h:1, release, release"
    );
    conversation.on(Event::Connecting(node(1)), now);
    conversation.on(reply(&["unknown"]), now);
    conversation.on(reply(&["unknown"]), now);
    assert_eq!(reports(&mut conversation), "1 released, 2 lost at release");
}

/// It leaves behind the request, which the server carries out first. A request whose script the
/// server lacks is not sent again, or it would come behind its release.
#[test]
fn release_leaves_at_once_and_the_answer_to_the_request_does_not_matter() {
    for answer in [error_reply("NOSCRIPT x"), reply(&["need", "c"]), granted(), error_reply("OOM x")] {
        let mut conversation = asking(SINGLE, 1);
        assert_eq!(release(&mut conversation, 1, START), "release");
        assert_eq!(after(&mut conversation, answer, START), "");
        assert_eq!(after(&mut conversation, released(), START), "");
        assert_eq!(reports(&mut conversation), "1 released");
        assert!(is_idle(&conversation));
    }
}

#[test]
fn release_of_a_request_that_never_left_sends_nothing() {
    let mut conversation = held(SINGLE, 1);
    let wait = |conversation: &mut SessionsConversation| {
        for _ in 0..3 {
            let now = conversation.timeout().unwrap();
            at(conversation, now);
            conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
        }
        conversation.timeout().unwrap() - Duration::from_millis(1)
    };
    let now = wait(&mut conversation);
    assert_eq!(acquire(&mut conversation, 2, now), "close", "the next connection has to wait");
    assert_eq!(release(&mut conversation, 2, now), "");
    assert_eq!(reports(&mut conversation), "2 released");
}

/// "A request whose server does not answer within the connect timeout." The rest is for the
/// release.
#[test]
fn unanswered_request_fails_before_the_connect_timeout_and_can_be_released() {
    let mut conversation = asking(SINGLE, 1);
    let until = START + CONNECT_TIMEOUT / 10 * 9;
    assert_eq!(conversation.timeout(), Some(until));
    assert_eq!(at(&mut conversation, until), "report timeout");
    assert_eq!(after(&mut conversation, timed_out(), until), "");
    assert_eq!(reports(&mut conversation), "1 failed");
    assert_eq!(conversation.timeout(), None, "nothing is left to say before the release");
    assert_eq!(release(&mut conversation, 1, until), "release");
    assert_eq!(after(&mut conversation, granted(), until), "");
    assert_eq!(after(&mut conversation, released(), until), "close");
    assert_eq!(reports(&mut conversation), "1 released");
    assert!(is_idle(&conversation));
}

#[test]
fn release_of_a_loss_that_was_not_told_is_tried_until_the_lease_ends() {
    let mut conversation = held(SINGLE, 1);
    after(&mut conversation, message_to(1), START);
    conversation.on(reply(&["unknown"]), START);
    assert_eq!(release(&mut conversation, 1, START), "release");
    assert_eq!(reports(&mut conversation), "1 lost at release");
    conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), START);
    let mut now = START;
    let mut attempts = 0;
    while let Some(next) = conversation.timeout() {
        now = now.max(next);
        if at(&mut conversation, now).contains("open") {
            attempts += 1;
            conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
        }
        assert!(attempts < 100, "retries slow down");
    }
    assert!(now >= START + TTL && now <= START + TTL + TTL / 10, "{:?}", now - START);
    assert!(is_idle(&conversation));
}

/// A busy server is not silent: a crowd of renewals may take longer than one reply.
#[test]
fn queue_of_commands_is_no_silence_as_long_as_replies_arrive() {
    let mut conversation = held(SINGLE, 3);
    let sent = START + TTL / 3;
    at(&mut conversation, sent);
    let patience = (TTL / 6).min(CONNECT_TIMEOUT);
    for reply in 1..3 {
        let now = sent + (patience - Duration::from_millis(1)) * reply;
        assert_eq!(after(&mut conversation, granted(), now), "");
    }
    let last = sent + (patience - Duration::from_millis(1)) * 2;
    while let Some(next) = conversation.timeout().filter(|next| *next < last + patience) {
        assert!(!at(&mut conversation, next).contains("timeout"), "{:?}", next - sent);
    }
    assert_eq!(at(&mut conversation, last + patience), "report timeout");
}

#[test]
fn request_and_release_behind_many_commands_do_not_fail_while_replies_arrive() {
    let mut conversation = asking(SINGLE, 20);
    conversation.on(granted(), START);
    release(&mut conversation, 1, START);
    let mut now = START;
    for _ in 2..=20 {
        now = now + Duration::from_millis(900);
        assert_eq!(after(&mut conversation, busy(), now), "");
        assert_eq!(conversation.next_report().map(|(_, event)| matches!(event, Report::Standing(Ok(_)))), Some(true));
        reports(&mut conversation);
    }
    assert!(now > START + CONNECT_TIMEOUT * 3);
    conversation.on(released(), now);
    assert_eq!(reports(&mut conversation), "1 released");
}

#[test]
fn silent_server_is_left_by_the_patience_of_the_shortest_lease() {
    let mut conversation = held(SINGLE, 1);
    let short = Duration::from_secs(3);
    let mut request = Request { session: id(2), ..request() };
    request.terms = Some(Lease::new(short).terms());
    conversation.acquire(request, AcquireOptions::default(), START);
    assert_eq!(at(&mut conversation, START), "acquire");
    conversation.on(reply(&["granted", "3000000", "7", "8"]), START);
    assert_eq!(after(&mut conversation, message_to(1), START), "renew");
    let sent = START + Duration::from_secs(1);
    assert_eq!(at(&mut conversation, sent), "subscribe, renew");
    let limit = sent + short / 6;
    assert_eq!(at(&mut conversation, limit), "report timeout");
    assert_eq!(after(&mut conversation, timed_out(), limit), "close, open 1, subscribe, renew, subscribe, renew");
}

/// A firewall may have forgotten the connection without telling either end.
#[test]
fn request_on_an_old_connection_that_is_silent_goes_to_a_fresh_one() {
    let mut conversation = held(SINGLE, 1);
    acquire(&mut conversation, 2, START);
    let limit = START + Duration::from_secs(1);
    at(&mut conversation, limit);
    let sent = "close, open 1, subscribe, renew, acquire";
    assert_eq!(after(&mut conversation, timed_out(), limit), sent);
    conversation.on(Event::Connecting(node(1)), limit);
    let until = START + CONNECT_TIMEOUT / 10 * 9;
    assert_eq!(at(&mut conversation, until - Duration::from_millis(1)), "", "a fresh one has all of the time");
    assert_eq!(after(&mut conversation, granted(), until), "");
}

/// The login may be refused, or only the database be the wrong one, and then the server carries out
/// what comes.
#[test]
fn connection_that_has_failed_for_good_takes_releases_and_no_request() {
    let mut conversation = asking(SINGLE, 1);
    assert_eq!(after(&mut conversation, failed(ErrorKind::NoDatabase), START), "");
    assert!(conversation.is_over(), "nothing more is read");
    assert_eq!(release(&mut conversation, 1, START), "release");
    assert_eq!(acquire(&mut conversation, 2, START), "close, open 0, release, acquire");

    let mut conversation = asking(SINGLE, 1);
    after(&mut conversation, failed(ErrorKind::NoDatabase), START);
    release(&mut conversation, 1, START);
    after(&mut conversation, granted(), START);
    assert_eq!(after(&mut conversation, released(), START), "close", "nobody needs it any more");
    assert!(!conversation.is_over() && is_idle(&conversation));
}

/// With no session, none was left to fail, so all had failed, and the connection would have been
/// kept for releases.
#[test]
fn connection_that_fails_without_sessions_is_closed() {
    let mut conversation = held(SINGLE, 1);
    release(&mut conversation, 1, START);
    conversation.on(released(), START);
    reports(&mut conversation);
    let closed = failed(ErrorKind::Network(NetworkError::Closed(Stage::Used)));
    assert_eq!(after(&mut conversation, closed, START), "close");
    assert!(!conversation.is_over() && is_idle(&conversation));
    assert_eq!(acquire(&mut conversation, 2, START), "open 1, acquire");
}

#[test]
fn connection_without_sessions_for_long_is_replaced() {
    const TRUSTED: Duration = Duration::from_secs(60);
    let mut conversation = held(SINGLE, 1);
    release(&mut conversation, 1, START);
    conversation.on(released(), START);
    assert_eq!(acquire(&mut conversation, 2, START + TRUSTED), "acquire");
    conversation.on(granted(), START + TRUSTED);
    release(&mut conversation, 2, START + TRUSTED);
    conversation.on(released(), START + TRUSTED);
    let later = START + TRUSTED * 3;
    assert_eq!(acquire(&mut conversation, 3, later), "close, open 0, acquire");
}

#[test]
fn failed_release_is_reported_at_its_limit_and_tried_until_the_lease_ends() {
    let mut conversation = held(SINGLE, 1);
    let until = START + Duration::from_secs(1) + CONNECT_TIMEOUT;
    release(&mut conversation, 1, START);
    let mut now = START;
    while !conversation.has_reports() {
        now = now.max(conversation.timeout().unwrap());
        let actions = at(&mut conversation, now);
        if actions.contains("open") {
            conversation.on(failed(ErrorKind::Network(NetworkError::Refused)), now);
        } else if actions.contains("report timeout") {
            conversation.on(timed_out(), now);
        } else if actions.contains("read aside") {
            at(&mut conversation, now);
        }
    }
    assert_eq!(reports(&mut conversation), "1 not released");
    assert!(now >= until && now < until + Duration::from_millis(1), "{:?}", now - START);
    now = conversation.timeout().unwrap();
    assert!(at(&mut conversation, now).ends_with(", release"));
    conversation.on(Event::Connecting(node(1)), now);
    conversation.on(released(), now);
    assert!(is_idle(&conversation));
    assert_eq!(reports(&mut conversation), "");
}

#[test]
fn released_session_has_no_other_report() {
    let mut conversation = asking(SINGLE, 1);
    conversation.on(granted(), START);
    release(&mut conversation, 1, START);
    assert_eq!(reports(&mut conversation), "");
    let mut conversation = held(SINGLE, 1);
    after(&mut conversation, message_to(1), START);
    conversation.on(reply(&["unknown"]), START);
    release(&mut conversation, 1, START);
    assert_eq!(reports(&mut conversation), "1 lost at release", "the loss was not told yet");
}

#[test]
fn refused_subscription_ends_a_waiter_and_not_a_holder() {
    let refused = || Event::SubscribeFailed(format!("ns:{{t}}{{t}}a:w:{}", id(1)), error("NOPERM channel"));
    let mut conversation = waiting(SINGLE);
    assert_eq!(after(&mut conversation, refused(), START), "");
    assert_eq!(reports(&mut conversation), "1 failed");
    assert_eq!(release(&mut conversation, 1, START), "unsubscribe, release");
    let mut conversation = held(SINGLE, 1);
    assert_eq!(after(&mut conversation, refused(), START), "");
    assert_eq!(reports(&mut conversation), "");
}

/// Holders and waiters come first, since their leases run.
#[test]
fn unanswered_requests_are_made_again_in_the_order_of_their_arrival() {
    let mut conversation = begin("redis+sentinel://h:1/m");
    for (number, millis) in [(5, 0), (4, 1), (3, 2)] {
        acquire(&mut conversation, number, START + Duration::from_millis(millis));
    }
    let now = START + Duration::from_millis(3);
    conversation.on(Event::Connecting(node(1)), now);
    conversation.on(failed(ErrorKind::Network(NetworkError::Closed(Stage::Used))), now);
    conversation.tick(now);
    let asked: Vec<_> = conversation.server().in_flight().collect();
    let session = |asked: &Asked| if let Asked::Session(id, _) = asked { id.0[0] } else { 0 };
    assert_eq!(asked.iter().map(session).collect::<Vec<_>>(), [5, 4, 3]);
}

#[test]
fn request_without_terms_is_a_mistake() {
    let mut conversation = begin(SINGLE);
    conversation.acquire(Request { terms: None, ..request() }, AcquireOptions::default(), START);
    assert_eq!(reports(&mut conversation), "1 failed");
    assert!(is_idle(&conversation));
}

/// The aim is 4 KiB for each client of a server of locks.
#[test]
fn session_takes_little_memory() {
    const { assert!(SessionsConversation::SESSION_SIZE <= 512) }
    let mut conversation = held(SINGLE, 1);
    at(&mut conversation, START + TTL / 3);
    assert!(conversation.session(id(1)).unwrap().0.request.is_none(), "a holder never makes its request again");
}
