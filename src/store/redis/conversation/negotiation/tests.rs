//! The negotiation with a simulated server, in virtual time.

use redis::Value;

use super::*;
use crate::lock::past::Ending;
use crate::store::redis::failure::ErrorKind;
use crate::system::clock::Boottime;

const TTL: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(15);
const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// So many replicas, without their disks.
fn replicas(count: u32) -> Replicas {
    Replicas { count, on_disk: false }
}

/// What a server says of so many replicas.
fn copies(count: i64) -> Copies {
    Copies::of(&Value::Int(count)).unwrap()
}

fn negotiation(count: u32) -> Negotiation {
    let terms = Terms { ttl: TTL, claim: secs(3), heartbeat: HEARTBEAT };
    Negotiation::new(terms, 1, replicas(count), START + secs(5))
}

const FIRST: Command = Command::Acquire { place: 0, waited: Duration::ZERO, subscribed: false };
const RENEW: Command = Command::Renew { subscribed: false };
const BEAT: Command = Command::Renew { subscribed: true };

fn granted() -> ScriptReply {
    granted_for(TTL)
}

fn granted_for(lease: Duration) -> ScriptReply {
    granted_with(lease, vec![7])
}

fn granted_with(lease: Duration, tokens: Vec<u64>) -> ScriptReply {
    ScriptReply::Granted { lease: Some(lease), tokens, slots: Vec::new(), last: None, is_revoked: false }
}

fn busy() -> ScriptReply {
    ScriptReply::Over(Standing::Busy { obstructions: Vec::new(), streak: None })
}

fn waiting(position: u32, next: Option<Duration>) -> ScriptReply {
    ScriptReply::Waiting { seq: 40 + u64::from(position), position, next }
}

/// Returns the commands after an answer that fits.
fn answered(
    negotiation: &mut Negotiation,
    command: Command,
    reply: ScriptReply,
    sent: Boottime,
    now: Boottime,
) -> Vec<Command> {
    negotiation.on_reply(command, reply, sent, now).expect("the reply fits")
}

fn deadline(negotiation: &Negotiation) -> Boottime {
    let grant = negotiation.held().expect("the request is granted");
    assert_eq!(grant.tokens, [7]);
    grant.deadline.expect("a lease has a deadline")
}

fn is_asking(negotiation: &Negotiation) -> bool {
    matches!(negotiation.state(), State::Asking { .. })
}

fn is_waiting(negotiation: &Negotiation) -> bool {
    matches!(negotiation.state(), State::Waiting { .. })
}

fn is_lost(negotiation: &Negotiation) -> bool {
    matches!(negotiation.state(), State::Over(Standing::Lost))
}

/// A negotiation whose request was granted at once.
fn held() -> Negotiation {
    let mut negotiation = negotiation(0);
    assert_eq!(negotiation.on_connect(), [FIRST]);
    assert_eq!(answered(&mut negotiation, FIRST, granted(), START, START), []);
    negotiation
}

/// A negotiation that waits and has subscribed, as the second in the queue.
fn queued() -> Negotiation {
    let mut negotiation = negotiation(0);
    negotiation.on_connect();
    assert_eq!(answered(&mut negotiation, FIRST, waiting(2, None), START, START), [Command::Subscribe, BEAT]);
    assert_eq!(answered(&mut negotiation, BEAT, waiting(2, None), START, START), []);
    negotiation
}

#[test]
fn uncontended_request_is_one_command() {
    let negotiation = held();
    assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START));
    assert_eq!(negotiation.due(), Some(START + SUBSCRIBE_AFTER));
}

/// The deadline counts from the instant at which the renewal was sent. A late reply never extends
/// it.
#[test]
fn late_answer_does_not_move_the_deadline() {
    let mut negotiation = negotiation(0);
    negotiation.on_connect();
    answered(&mut negotiation, FIRST, granted(), START, START + secs(20));
    assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START));
    answered(&mut negotiation, RENEW, granted(), START + secs(10), START + secs(25));
    assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn holder_subscribes_after_a_second_and_renews_at_each_third() {
    let mut negotiation = held();
    assert_eq!(negotiation.tick(START), []);
    let at = START + SUBSCRIBE_AFTER;
    assert_eq!(negotiation.tick(at), [Command::Subscribe, BEAT]);
    answered(&mut negotiation, BEAT, granted(), at, at);
    assert_eq!(negotiation.due(), Some(at + TTL / 3));
    assert_eq!(negotiation.tick(at + TTL / 3), [BEAT]);
}

#[test]
fn grant_from_the_queue_is_claimed_before_it_counts() {
    let mut negotiation = queued();
    assert!(is_waiting(&negotiation));
    assert_eq!(negotiation.on_message(), [BEAT]);
    assert!(is_waiting(&negotiation), "a message is a hint");
    answered(&mut negotiation, BEAT, granted(), START + secs(9), START + secs(9));
    assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START + secs(9)));
}

/// The first reply was lost. So the client does not know when the server executed the request, nor
/// whether the server has granted the request from the queue since.
#[test]
fn acquire_that_states_less_than_the_ttl_is_claimed_before_it_counts() {
    for lease in [secs(0), secs(3), TTL - secs(8)] {
        let mut negotiation = negotiation(0);
        assert_eq!(negotiation.on_connect(), [FIRST]);
        assert_eq!(negotiation.on_connect(), [FIRST]);
        let sent = START + secs(8);
        assert_eq!(answered(&mut negotiation, FIRST, granted_for(lease), sent, sent), [RENEW]);
        assert!(is_asking(&negotiation));
        answered(&mut negotiation, RENEW, granted(), START + secs(9), START + secs(9));
        assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START + secs(9)));
    }
}

/// The renewal of a sole holder leaves out the slots and the end of the last hold.
#[test]
fn slots_and_last_hold_are_those_of_the_reply_that_told_them() {
    let first = ScriptReply::Granted {
        lease: Some(secs(3)),
        tokens: vec![7],
        slots: vec![4],
        last: Some(Ending::Exit(3)),
        is_revoked: false,
    };
    for (token, slots, last) in [(7, vec![4], Some(Ending::Exit(3))), (8, vec![], None)] {
        let mut negotiation = negotiation(0);
        negotiation.on_connect();
        assert_eq!(answered(&mut negotiation, FIRST, first.clone(), START, START), [RENEW]);
        answered(&mut negotiation, RENEW, granted_with(TTL, vec![token]), START, START);
        let grant = negotiation.held().expect("the request is granted");
        assert_eq!((&grant.slots, grant.last), (&slots, last));
    }
}

#[test]
fn deadline_counts_the_lease_that_the_server_stated() {
    let mut negotiation = held();
    let sent = START + secs(10);
    answered(&mut negotiation, RENEW, granted_for(secs(3)), sent, sent);
    assert_eq!(deadline(&negotiation), Lease::new(secs(3)).deadline(sent));
    assert_eq!(negotiation.due(), Some(sent + secs(1)), "the next renewal is at a third of the lease");
    assert_eq!(negotiation.reply_timeout(secs(5)), Lease::new(secs(3)).patience());
    answered(&mut negotiation, BEAT, granted(), sent + secs(1), sent + secs(1));
    assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(sent + secs(1)));
}

#[test]
fn grant_with_another_number_of_tokens_than_claims_is_unexpected() {
    for tokens in [vec![], vec![7, 8]] {
        let mut negotiation = negotiation(0);
        negotiation.on_connect();
        let answer = granted_with(TTL, tokens);
        assert_eq!(negotiation.on_reply(FIRST, answer.clone(), START, START), Err(ErrorKind::UnexpectedReply));
        assert!(is_asking(&negotiation));
        assert_eq!(queued().on_reply(BEAT, answer.clone(), START, START), Err(ErrorKind::UnexpectedReply));
        assert_eq!(held().on_reply(RENEW, answer, START, START), Err(ErrorKind::UnexpectedReply));
    }
}

#[test]
fn answer_to_another_question_is_unexpected() {
    for (command, answer) in [
        (RENEW, busy()),
        (FIRST, ScriptReply::Unknown),
        (FIRST, ScriptReply::Done),
        (Command::Replicate(replicas(1)), granted()),
    ] {
        assert_eq!(
            negotiation(1).on_reply(command, answer, START, START),
            Err(ErrorKind::UnexpectedReply),
            "{command:?}"
        );
    }
}

#[test]
fn waiter_that_was_dropped_as_dead_returns_to_its_place() {
    let mut negotiation = queued();
    assert_eq!(negotiation.on_connect(), [Command::Subscribe, BEAT]);
    for waited in [secs(7), secs(20)] {
        let back = Command::Acquire { place: 42, waited, subscribed: true };
        let now = START + waited;
        assert_eq!(answered(&mut negotiation, BEAT, ScriptReply::Unknown, now, now), [back]);
        assert_eq!(answered(&mut negotiation, back, waiting(2, None), now, now), []);
        assert!(is_waiting(&negotiation));
    }
}

#[test]
fn waiters_look_for_an_expired_holder_in_turn() {
    let due_at = |position, next| {
        let mut negotiation = queued();
        answered(&mut negotiation, BEAT, waiting(position, next), START, START);
        negotiation.due().unwrap() - START
    };
    assert_eq!(due_at(1, Some(secs(2))), secs(2));
    assert_eq!(due_at(3, Some(secs(2))), secs(2) + STAGGER * 2);
    assert_eq!(due_at(1_000_000, Some(secs(2))), secs(2) + STAGGER_MAX);
    assert_eq!(due_at(1, Some(secs(60))), HEARTBEAT / 3, "every waiter renews its heartbeat lease");
    assert_eq!(due_at(1, None), HEARTBEAT / 3);
}

#[test]
fn grant_is_lost_when_the_server_does_not_know_the_session() {
    for answer in [ScriptReply::Unknown, waiting(1, None), granted_with(TTL, vec![8])] {
        let mut negotiation = held();
        assert_eq!(answered(&mut negotiation, RENEW, answer, START, START), []);
        assert!(is_lost(&negotiation));
        assert_eq!(answered(&mut negotiation, RENEW, granted(), START, START), [], "a lost grant stays lost");
        assert!(is_lost(&negotiation));
        assert_eq!((negotiation.due(), negotiation.on_connect().len()), (None, 0));
    }
}

#[test]
fn message_makes_a_holder_renew_at_once() {
    let mut negotiation = held();
    assert_eq!(negotiation.on_message(), [RENEW]);
}

#[test]
fn grant_counts_when_enough_replicas_have_it() {
    for count in [1, 2] {
        let mut negotiation = negotiation(2);
        negotiation.on_connect();
        assert_eq!(answered(&mut negotiation, FIRST, granted(), START, START), [Command::Replicate(replicas(2))]);
        assert!(negotiation.held().is_none());
        negotiation.on_replicated(copies(count));
        if count == 2 {
            assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START));
        } else {
            assert!(matches!(negotiation.state(), State::TooFewCopies(_)) && negotiation.may_be_kept(true));
        }
    }
}

/// The message tells that the grant was broken. The command may start when the replicas have
/// answered, so the next renewal must not be a third of the lease away.
#[test]
fn message_while_the_replicas_are_awaited_makes_the_holder_renew_at_once() {
    let mut negotiation = negotiation(1);
    negotiation.on_connect();
    answered(&mut negotiation, FIRST, granted(), START, START);
    assert_eq!(negotiation.on_message(), []);
    negotiation.on_replicated(copies(1));
    assert!(negotiation.due().is_some_and(|due| due <= START));
    assert!(negotiation.tick(START).contains(&BEAT));
}

/// The server replies when the time of the replicas is over, so the client gives the server more
/// time than the replicas.
#[test]
fn replicas_have_less_time_than_the_server_that_waits_for_them() {
    let mut negotiation = negotiation(1);
    negotiation.on_connect();
    answered(&mut negotiation, FIRST, granted(), START, START);
    for (timeout, replicas) in [(secs(1), secs(1)), (secs(60), TTL / 6)] {
        assert_eq!(negotiation.replica_timeout(timeout), replicas);
        assert_eq!(negotiation.reply_timeout(timeout), replicas * 2);
    }
}

#[test]
fn renewal_waits_for_no_replica() {
    let mut negotiation = negotiation(1);
    negotiation.on_connect();
    answered(&mut negotiation, FIRST, granted(), START, START);
    negotiation.on_replicated(copies(1));
    assert_eq!(answered(&mut negotiation, RENEW, granted(), START + secs(10), START + secs(10)), []);
    assert_eq!(deadline(&negotiation), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn server_may_keep_a_request_from_its_sending_to_its_rejection() {
    let mut negotiation = negotiation(0);
    assert!(!negotiation.may_be_kept(false), "nothing was sent");
    negotiation.on_connect();
    assert!(negotiation.may_be_kept(true), "the request was sent");
    answered(&mut negotiation, FIRST, busy(), START, START);
    assert!(!negotiation.may_be_kept(true) && negotiation.is_over());
}

#[test]
fn request_that_left_over_a_lost_connection_stays_in_doubt() {
    for (is_sent, expected) in [(false, false), (true, true)] {
        let mut negotiation = negotiation(0);
        negotiation.on_connect();
        negotiation.on_disconnect(is_sent);
        assert_eq!(negotiation.may_be_kept(false), expected);
        negotiation.on_failure(ErrorKind::Refused.of("h"), false);
        assert_eq!(negotiation.may_be_kept(false), expected);
    }
}

type Begin = Box<dyn Fn() -> Negotiation>;

/// Each row is a state. The columns are the commands after a connection, after a message, and at
/// the due instant.
#[test]
fn commands_after_each_event_in_each_state() {
    let replicating = || {
        let mut negotiation = negotiation(1);
        negotiation.on_connect();
        answered(&mut negotiation, FIRST, granted(), START, START);
        negotiation
    };
    let ended = |state: State| {
        let mut negotiation = negotiation(0);
        negotiation.state = state;
        negotiation
    };
    let asking = || negotiation(0);
    let failed = || State::Failed { failure: ErrorKind::Refused.of("h"), may_be_kept: true };
    let both = vec![Command::Subscribe, BEAT];
    let rows: Vec<(Begin, [Vec<Command>; 3])> = vec![
        (Box::new(asking), [vec![FIRST], vec![], vec![]]),
        (Box::new(queued), [both.clone(), vec![BEAT], vec![BEAT]]),
        (Box::new(replicating), [both.clone(), vec![], vec![]]),
        (Box::new(held), [both.clone(), vec![RENEW], both]),
        (Box::new(move || ended(State::TooFewCopies(copies(0)))), [vec![], vec![], vec![]]),
        (
            Box::new(move || ended(State::Over(Standing::Busy { obstructions: Vec::new(), streak: None }))),
            [vec![], vec![], vec![]],
        ),
        (Box::new(move || ended(State::Over(Standing::AlreadyDone))), [vec![], vec![], vec![]]),
        (Box::new(move || ended(State::Over(Standing::Lost))), [vec![], vec![], vec![]]),
        (Box::new(move || ended(failed())), [vec![], vec![], vec![]]),
    ];
    for (begin, expected) in rows {
        let state = begin();
        let state = state.state();
        let commands = [begin().on_connect(), begin().on_message(), begin().tick(START + TTL)];
        assert_eq!(commands, expected, "{state:?}");
        assert_eq!(begin().tick(START), [], "{state:?}: not due yet");
    }
}

/// Each row is a state. The columns are the states after each answer to a renewal.
#[test]
fn state_after_each_answer_to_a_renewal() {
    let replicating = || {
        let mut negotiation = negotiation(1);
        negotiation.on_connect();
        answered(&mut negotiation, FIRST, granted(), START, START);
        negotiation
    };
    let anew = granted_with(TTL, vec![8]);
    let rows: Vec<(Begin, [&str; 4])> = vec![
        (Box::new(|| negotiation(0)), ["held", "held", "waiting", "asking"]),
        (Box::new(queued), ["held", "held", "waiting", "waiting"]),
        (Box::new(replicating), ["replicating", "lost", "lost", "lost"]),
        (Box::new(held), ["held", "lost", "lost", "lost"]),
    ];
    for (begin, expected) in rows {
        for (answer, expected) in
            [granted(), anew.clone(), waiting(1, None), ScriptReply::Unknown].into_iter().zip(expected)
        {
            let mut negotiation = begin();
            let before = negotiation.state().name();
            answered(&mut negotiation, RENEW, answer.clone(), START, START);
            assert_eq!(negotiation.state().name(), expected, "{before}: {answer:?}");
        }
    }
}
