//! Tests what the conversation of one session or two does, event by event.

use super::*;
use crate::failure::ErrorKind;
use crate::step::{Backend, Copies};
use rlock_model::mode::Mode;
use rlock_model::past::End;
use rlock_model::request::{Claim, Job, Process, Request, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::handle::{AcquireOptions, Grant, Released, Standing};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions::Report;

const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(30);

const fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn begin() -> Conversation {
    Conversation::new(Turns::new(1, "h".to_owned()), CONNECT_TIMEOUT)
}

fn request(number: u8) -> Request {
    let claim = Claim { resource: Resource::new("k").unwrap(), mode: Mode::Write, span: Span::Whole, slots: None };
    Request {
        session: id(number),
        ancestors: Vec::new(),
        claims: vec![claim],
        wait: true,
        terms: Some(Terms { ttl: TTL, claim: Duration::from_secs(3), heartbeat: Duration::from_secs(15) }),
        job: Job::default(),
        process: Process::default(),
    }
}

fn acquire(conversation: &mut Conversation, number: u8, now: Boottime) -> String {
    conversation.driver.acquire(request(number), AcquireOptions::default(), now);
    actions(conversation, now)
}

fn actions(conversation: &mut Conversation, now: Boottime) -> String {
    let mut found = Vec::new();
    conversation.on_time(now);
    while let Some(action) = conversation.next_action() {
        found.push(match action {
            Action::Open(_) => "open".to_owned(),
            Action::Close => "close".to_owned(),
            Action::Begin(task) => format!("ask for {}", task.caller.unwrap().0[0]),
            Action::ReportSilence => "report silence".to_owned(),
        });
        conversation.on_time(now);
    }
    found.join(", ")
}

fn committed(has_backend: bool) -> Committed {
    let backend = has_backend.then_some(Backend { pid: 7, started: 7 });
    Committed { backend, tables: Some(1), copies: Copies::default(), room: None }
}

fn waiting(position: u32) -> LeaseReply {
    LeaseReply::Waiting { place: 4, position, next: None }
}

fn granted() -> LeaseReply {
    LeaseReply::Granted { lease: TTL, grant: Grant { tokens: vec![7], ..Grant::default() } }
}

fn reports(conversation: &mut Conversation) -> String {
    let report = |(id, report): (SessionId, Report)| {
        let what = match report {
            Report::Standing(Ok(Standing::Granted(_))) => "granted".to_owned(),
            Report::Standing(Ok(standing)) => format!("{standing:?}").to_lowercase(),
            Report::Standing(Err(_)) => "failed".to_owned(),
            Report::Released(Ok(Released::Done | Released::Kept)) => "released".to_owned(),
            Report::Released(other) => format!("{other:?}"),
        };
        format!("{} {what}", id.0[0])
    };
    std::iter::from_fn(|| conversation.driver.next_report()).map(report).collect::<Vec<_>>().join(", ")
}

/// A conversation whose login is done, with this session's request under way.
fn asking() -> Conversation {
    let mut conversation = begin();
    assert_eq!(acquire(&mut conversation, 1, START), "open");
    conversation.on_ready(START);
    assert_eq!(actions(&mut conversation, START), "ask for 1");
    conversation
}

fn held() -> Conversation {
    let mut conversation = asking();
    conversation.on_done(granted(), committed(true), START);
    assert_eq!(reports(&mut conversation), "1 granted");
    conversation
}

#[test]
fn transactions_follow_each_other_in_the_order_of_the_requests() {
    let mut conversation = begin();
    assert_eq!(acquire(&mut conversation, 3, START), "open");
    assert_eq!(acquire(&mut conversation, 1, START + Duration::from_millis(1)), "");
    assert_eq!(acquire(&mut conversation, 2, START + Duration::from_millis(2)), "");
    conversation.on_ready(START);
    for (number, next) in [(3, "ask for 3"), (1, "ask for 1"), (2, "ask for 2")] {
        assert_eq!(actions(&mut conversation, START), next);
        conversation.on_done(granted(), committed(true), START);
        assert_eq!(reports(&mut conversation), format!("{number} granted"));
    }
}

/// A new connection says all of it again, in the same order.
#[test]
fn requests_keep_their_order_over_the_next_connection() {
    let mut conversation = begin();
    acquire(&mut conversation, 3, START);
    acquire(&mut conversation, 1, START + Duration::from_millis(1));
    let now = START + Duration::from_millis(2);
    conversation.on_failure(ErrorKind::Network(NetworkError::Refused).of("h"), false, false, now);
    let now = now + Duration::from_secs(1);
    assert_eq!(actions(&mut conversation, now), "close, open");
    conversation.on_ready(now);
    assert_eq!(actions(&mut conversation, now), "ask for 3");
}

/// The server may tell of a grant before it answers a transaction that was carried out before.
#[test]
fn notice_during_a_transaction_is_heeded_after_it() {
    let mut conversation = asking();
    conversation.on_done(waiting(1), committed(true), START);
    assert_eq!(actions(&mut conversation, START), "ask for 1", "it shows that it is alive, and listens");
    conversation.on_notice(channel(id(1)), START);
    assert_eq!(actions(&mut conversation, START), "");
    conversation.on_done(waiting(1), committed(true), START);
    assert_eq!(actions(&mut conversation, START), "ask for 1");
}

#[test]
fn waiter_that_no_notice_reaches_looks_every_second() {
    let mut conversation = asking();
    conversation.on_done(waiting(1), committed(false), START);
    actions(&mut conversation, START);
    conversation.on_done(waiting(1), committed(false), START);
    assert_eq!(conversation.due(), Some(START + LOOK_AFTER));
    assert_eq!(actions(&mut conversation, START + LOOK_AFTER), "ask for 1");
}

/// "Each of the others opens one now and then … until it is among the first."
#[test]
fn waiter_far_behind_keeps_no_connection() {
    let mut conversation = asking();
    conversation.on_done(waiting(KEPT_MAX + 1), committed(true), START);
    assert_eq!(actions(&mut conversation, START), "close");
    let mut now = conversation.due().expect("it looks again");
    assert!(now >= START + LOOK_AFTER && now <= START + TTL / 4);
    assert_eq!(actions(&mut conversation, now), "open");
    conversation.on_ready(now);
    assert_eq!(actions(&mut conversation, now), "ask for 1");
    conversation.on_done(waiting(KEPT_MAX), committed(true), now);
    assert_eq!(actions(&mut conversation, now), "ask for 1", "it begins to listen");
    conversation.on_done(waiting(KEPT_MAX), committed(true), now);
    now = now + Duration::from_secs(1);
    assert_eq!(actions(&mut conversation, now), "", "it listens");
}

/// "A holder keeps its connection while the sessions of the namespace are few."
#[test]
fn only_holder_keeps_its_connection_on_a_server_with_room() {
    let (mut conversation, mut limit) = (held(), 30);
    let mut now = START + Duration::from_secs(1);
    for _ in 0..3 {
        assert_eq!(actions(&mut conversation, now), "ask for 1");
        conversation.on_done(granted(), Committed { room: Some(Room { limit, sessions: 9 }), ..committed(true) }, now);
        assert_eq!(actions(&mut conversation, now), "", "the limit at the login counts");
        limit = 1;
        now = conversation.due().expect("a renewal is due");
        assert!(now <= conversation.driver.client(id(1)).unwrap().due().unwrap());
    }
}

/// "Above, it has none until half of its lease."
#[test]
fn only_holder_keeps_no_connection_between_its_renewals_on_a_full_server() {
    let mut conversation = held();
    let mut now = START + Duration::from_secs(1);
    assert_eq!(actions(&mut conversation, now), "ask for 1", "it begins to listen");
    for _ in 0..3 {
        conversation.on_done(
            granted(),
            Committed { room: Some(Room { limit: 30, sessions: 10 }), ..committed(true) },
            now,
        );
        assert_eq!(actions(&mut conversation, now), "close");
        let rest = conversation.due().expect("a renewal is due") - now;
        assert!(rest > TTL / 2 - TTL / 20 && rest <= TTL / 2, "{rest:?}");
        now = now + rest;
        assert_eq!(actions(&mut conversation, now), "open");
        conversation.on_ready(now);
        assert_eq!(actions(&mut conversation, now), "ask for 1");
    }
    conversation.on_done(granted(), Committed { room: Some(Room { limit: 30, sessions: 10 }), ..committed(true) }, now);
    assert_eq!(actions(&mut conversation, now), "close");
    conversation.driver.release(id(1), Some(End::KEPT), now);
    assert_eq!(actions(&mut conversation, now), "open");
}

/// "It asks for a new one each second until its deadline."
#[test]
fn holder_without_a_connection_asks_for_one_each_second_until_its_deadline() {
    let mut conversation = held();
    let mut now = START + Duration::from_secs(1);
    actions(&mut conversation, now);
    conversation.on_done(granted(), Committed { room: Some(Room { limit: 30, sessions: 10 }), ..committed(true) }, now);
    assert_eq!(actions(&mut conversation, now), "close");
    now = conversation.due().unwrap();
    assert_eq!(actions(&mut conversation, now), "open");
    for attempt in 1..15 {
        let before = now;
        conversation.on_failure(ErrorKind::TooManyClients("sorry".to_owned()).of("h"), false, false, now);
        actions(&mut conversation, now);
        now = conversation.due().expect("it tries again");
        assert_eq!(actions(&mut conversation, now), "open");
        assert!(now - before <= Duration::from_secs(1), "{attempt}");
        assert!(now - before >= Duration::from_millis(500), "{attempt}");
        assert!(conversation.driver.trouble(id(1)).is_some());
    }
}

/// A part of an answer is a sign of life, also if the whole takes long.
#[test]
fn long_answer_to_a_release_is_awaited() {
    let mut conversation = held();
    conversation.driver.release(id(1), Some(End::KEPT), START);
    assert_eq!(actions(&mut conversation, START), "ask for 1");
    let mut now = START;
    for _ in 0..20 {
        now = now + Duration::from_secs(1);
        conversation.on_sign_of_life(Stands { has_lock: true, ..Stands::default() }, now);
        assert_eq!(actions(&mut conversation, now), "");
    }
    assert_eq!(actions(&mut conversation, now + Duration::from_secs(4)), "report silence");
    conversation.on_done(LeaseReply::Released(vec![7]), committed(true), now);
    assert_eq!(reports(&mut conversation), "1 released");
}

/// The server answers every two seconds that somebody else has the lock of the namespace.
#[test]
fn wait_for_the_lock_of_the_namespace_moves_no_deadline() {
    let mut conversation = held();
    conversation.driver.release(id(1), Some(End::KEPT), START);
    actions(&mut conversation, START);
    let mut now = START;
    for retries in 1.. {
        now = now + Duration::from_secs(2);
        conversation.on_sign_of_life(Stands { retries, ..Stands::default() }, now);
        assert_eq!(actions(&mut conversation, now), "");
        if conversation.driver.has_reports() {
            break;
        }
        assert!(now < START + TTL, "the release is awaited for ever");
    }
    assert!(reports(&mut conversation).starts_with("1 Err("));
}

#[test]
fn request_that_the_server_has_no_room_for_waits_as_one_in_the_queue() {
    let full = || ErrorKind::TooManyClients("sorry".to_owned()).of("h");
    let mut conversation = begin();
    acquire(&mut conversation, 1, START);
    conversation.on_failure(full(), false, false, START);
    assert_eq!(reports(&mut conversation), "1 waiting");
    let later = START + CONNECT_TIMEOUT * 20;
    conversation.on_failure(full(), false, false, later);
    assert_eq!(reports(&mut conversation), "", "its wait decides when it ends");
}

/// Each of them is made until an instant that the refusal has moved.
#[test]
fn requests_that_the_server_has_no_room_for_keep_their_order() {
    let mut conversation = begin();
    acquire(&mut conversation, 3, START);
    acquire(&mut conversation, 1, START);
    conversation.on_failure(ErrorKind::TooManyClients("sorry".to_owned()).of("h"), false, false, START);
    let now = START + Duration::from_secs(10);
    assert_eq!(actions(&mut conversation, now), "close, open");
    conversation.on_ready(now);
    assert_eq!(actions(&mut conversation, now), "ask for 3");
}

/// A request that is given up may be committed before the server hears so.
#[test]
fn release_of_a_request_that_was_given_up_while_it_was_committed_is_sent() {
    let mut conversation = asking();
    conversation.on_sign_of_life(Stands { may_be_committed: true, has_lock: true, retries: 0 }, START);
    conversation.driver.give_up(id(1), START);
    conversation.driver.release(id(1), None, START);
    conversation.on_done(granted(), committed(true), START);
    assert_eq!(actions(&mut conversation, START), "ask for 1");
    conversation.on_done(LeaseReply::Released(vec![7]), committed(true), START);
    assert_eq!(reports(&mut conversation), "1 released");
}

/// A transaction that nobody awaits any more is not committed: its connection is closed.
#[test]
fn release_of_a_request_that_was_not_committed_sends_nothing() {
    let mut conversation = asking();
    conversation.driver.release(id(1), None, START);
    assert_eq!(actions(&mut conversation, START), "close");
    assert_eq!(reports(&mut conversation), "1 released");

    let mut conversation = asking();
    conversation.on_sign_of_life(Stands { may_be_committed: true, has_lock: true, retries: 0 }, START);
    conversation.driver.release(id(1), None, START);
    assert_eq!(actions(&mut conversation, START), "", "the release comes behind it");
    conversation.on_done(granted(), committed(true), START);
    assert_eq!(actions(&mut conversation, START), "ask for 1");
    conversation.on_done(LeaseReply::Released(vec![7]), committed(true), START);
    assert_eq!(reports(&mut conversation), "1 released");
}

#[test]
fn reply_that_is_lost_leaves_a_release_in_doubt() {
    let mut conversation = held();
    conversation.driver.release(id(1), Some(End::KEPT), START);
    actions(&mut conversation, START);
    let closed = ErrorKind::Network(NetworkError::Closed(Stage::Used)).of("h");
    conversation.on_failure(closed, true, false, START);
    let now = START + Duration::from_secs(1);
    assert_eq!(actions(&mut conversation, now), "close, open");
    conversation.on_ready(now);
    assert_eq!(actions(&mut conversation, now), "ask for 1");
    conversation.on_done(LeaseReply::Unknown, committed(true), now);
    assert_eq!(reports(&mut conversation), "1 released", "the first may have been carried out");
}
