//! The conversation with a server that answers by hand, in virtual time.

use super::*;

const TTL: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(15);
const START: Duration = Duration::from_secs(1_000);

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn conversation(replicas: u32) -> Conversation {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap();
    let terms = Terms { ttl: micros(TTL), claim: 3_000_000, heartbeat: micros(HEARTBEAT) };
    Conversation::new(terms, 1, replicas)
}

const FIRST: Say = Say::Acquire { place: 0, listening: false };
const RENEW: Say = Say::Renew { listening: false };
const BEAT: Say = Say::Renew { listening: true };

fn granted() -> Answer {
    granted_for(TTL)
}

fn granted_for(lease: Duration) -> Answer {
    Answer::Granted { lease, tokens: vec![7] }
}

fn waiting(position: u32, next: Option<Duration>) -> Answer {
    Answer::Waiting { place: 40 + u64::from(position), position, next }
}

/// What is said after an answer that fits.
fn answered(conversation: &mut Conversation, say: Say, answer: Answer, sent: Duration, now: Duration) -> Vec<Say> {
    conversation.answered(say, answer, sent, now).expect("the answer fits")
}

fn deadline(conversation: &Conversation) -> Duration {
    match conversation.standing() {
        Standing::Granted(Grant { tokens, deadline }) => {
            assert_eq!(tokens, [7]);
            deadline.expect("a lease has a deadline")
        }
        other => panic!("{other:?}"),
    }
}

/// A conversation whose request was granted at once.
fn held() -> Conversation {
    let mut conversation = conversation(0);
    assert_eq!(conversation.connected(), [FIRST]);
    assert_eq!(answered(&mut conversation, FIRST, granted(), START, START), []);
    conversation
}

/// One that waits, subscribed, as the second in the queue.
fn queued() -> Conversation {
    let mut conversation = conversation(0);
    conversation.connected();
    assert_eq!(answered(&mut conversation, FIRST, waiting(2, None), START, START), [Say::Listen, BEAT]);
    assert_eq!(answered(&mut conversation, BEAT, waiting(2, None), START, START), []);
    conversation
}

#[test]
fn an_uncontended_request_is_one_question() {
    let conversation = held();
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START));
    assert_eq!(conversation.due(), Some(START + LISTEN_AFTER));
}

/// Section 6.1: the deadline counts from the instant the renewing request was sent; a late reply
/// never extends it.
#[test]
fn a_late_answer_does_not_move_the_deadline() {
    let mut conversation = conversation(0);
    conversation.connected();
    answered(&mut conversation, FIRST, granted(), START, START + secs(20));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START));
    answered(&mut conversation, RENEW, granted(), START + secs(10), START + secs(25));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn a_holder_listens_after_a_while_and_renews_every_third() {
    let mut conversation = held();
    assert_eq!(conversation.tick(START), []);
    let at = START + LISTEN_AFTER;
    assert_eq!(conversation.tick(at), [Say::Listen, BEAT]);
    answered(&mut conversation, BEAT, granted(), at, at);
    assert_eq!(conversation.due(), Some(at + TTL / 3));
    assert_eq!(conversation.tick(at + TTL / 3), [BEAT]);
}

#[test]
fn a_grant_from_the_queue_is_claimed_before_it_counts() {
    let mut conversation = queued();
    assert_eq!(conversation.standing(), Standing::Waiting);
    assert_eq!(conversation.woken(), [BEAT]);
    assert_eq!(conversation.standing(), Standing::Waiting, "a message is a hint");
    answered(&mut conversation, BEAT, granted(), START + secs(9), START + secs(9));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(9)));
}

/// Pitfall A1: the reply was lost, so nobody knows when the request was carried out, nor whether it
/// was granted from the queue since.
#[test]
fn acquire_that_states_less_than_the_ttl_is_claimed_before_it_counts() {
    for lease in [secs(0), secs(3), TTL - secs(8)] {
        let mut conversation = conversation(0);
        assert_eq!(conversation.connected(), [FIRST]);
        assert_eq!(conversation.connected(), [FIRST]);
        let sent = START + secs(8);
        assert_eq!(answered(&mut conversation, FIRST, granted_for(lease), sent, sent), [RENEW]);
        assert_eq!(conversation.standing(), Standing::Asking);
        answered(&mut conversation, RENEW, granted(), START + secs(9), START + secs(9));
        assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(9)));
    }
}

#[test]
fn deadline_counts_the_lease_that_the_server_stated_not_the_ttl() {
    let mut conversation = held();
    let sent = START + secs(10);
    answered(&mut conversation, RENEW, granted_for(secs(3)), sent, sent);
    assert_eq!(deadline(&conversation), Lease::new(secs(3)).deadline(sent));
    assert_eq!(conversation.due(), Some(sent + secs(1)), "the next renewal is at a third of the lease");
    assert_eq!(conversation.patience(secs(5)), Lease::new(secs(3)).patience());
    answered(&mut conversation, BEAT, granted(), sent + secs(1), sent + secs(1));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(sent + secs(1)));
}

#[test]
fn grant_with_another_number_of_tokens_than_claims_is_unexpected() {
    for tokens in [vec![], vec![7, 8]] {
        let mut conversation = conversation(0);
        conversation.connected();
        let answer = Answer::Granted { lease: TTL, tokens };
        assert_eq!(conversation.answered(FIRST, answer.clone(), START, START), Err(Unexpected));
        assert_eq!(conversation.standing(), Standing::Asking);
        assert_eq!(queued().answered(BEAT, answer.clone(), START, START), Err(Unexpected));
        assert_eq!(held().answered(RENEW, answer, START, START), Err(Unexpected));
    }
}

#[test]
fn answer_to_another_question_is_unexpected() {
    for (say, answer) in [
        (RENEW, Answer::Busy(Vec::new())),
        (FIRST, Answer::Unknown),
        (FIRST, Answer::Replicated(1)),
        (Say::Replicate(1), granted()),
    ] {
        assert_eq!(conversation(1).answered(say, answer, START, START), Err(Unexpected), "{say:?}");
    }
}

#[test]
fn a_waiter_that_was_taken_for_dead_comes_back_to_its_place() {
    let mut conversation = queued();
    assert_eq!(conversation.connected(), [Say::Listen, BEAT]);
    let back = Say::Acquire { place: 42, listening: true };
    assert_eq!(answered(&mut conversation, BEAT, Answer::Unknown, START, START), [back]);
    assert_eq!(answered(&mut conversation, back, waiting(1, None), START, START), []);
    assert_eq!(conversation.standing(), Standing::Waiting);
}

#[test]
fn waiters_look_for_an_expired_holder_one_after_the_other() {
    let due_at = |position, next| {
        let mut conversation = queued();
        answered(&mut conversation, BEAT, waiting(position, next), START, START);
        conversation.due().unwrap() - START
    };
    assert_eq!(due_at(1, Some(secs(2))), secs(2));
    assert_eq!(due_at(3, Some(secs(2))), secs(2) + STAGGER * 2);
    assert_eq!(due_at(1_000_000, Some(secs(2))), secs(2) + STAGGER_MAX);
    assert_eq!(due_at(1, Some(secs(60))), HEARTBEAT / 3, "and all show that they live");
    assert_eq!(due_at(1, None), HEARTBEAT / 3);
}

#[test]
fn what_a_holder_has_is_lost_when_the_server_does_not_know_of_it() {
    for answer in [Answer::Unknown, waiting(1, None), Answer::Granted { lease: TTL, tokens: vec![8] }] {
        let mut conversation = held();
        assert_eq!(answered(&mut conversation, RENEW, answer, START, START), []);
        assert_eq!(conversation.standing(), Standing::Lost);
        assert_eq!(answered(&mut conversation, RENEW, granted(), START, START), [], "and stays lost");
        assert_eq!(conversation.standing(), Standing::Lost);
        assert_eq!((conversation.due(), conversation.connected().len()), (None, 0));
    }
}

#[test]
fn a_break_is_asked_about_as_soon_as_it_is_told() {
    let mut conversation = held();
    assert_eq!(conversation.woken(), [RENEW]);
}

#[test]
fn a_grant_counts_when_enough_replicas_have_it() {
    for (count, standing) in [(1, None), (2, Some(Lease::new(TTL).deadline(START)))] {
        let mut conversation = conversation(2);
        conversation.connected();
        assert_eq!(answered(&mut conversation, FIRST, granted(), START, START), [Say::Replicate(2)]);
        assert_eq!(conversation.standing(), Standing::Asking);
        answered(&mut conversation, Say::Replicate(2), Answer::Replicated(count), START, START);
        match standing {
            Some(at) => assert_eq!(deadline(&conversation), at),
            None => assert_eq!((conversation.too_few_replicas(), conversation.may_be_kept()), (Some(count), true)),
        }
    }
}

/// The server answers when the replicas have had their time, so it must be given more.
#[test]
fn replicas_have_less_time_than_the_server_that_waits_for_them() {
    let mut conversation = conversation(1);
    conversation.connected();
    answered(&mut conversation, FIRST, granted(), START, START);
    for (timeout, replicas) in [(secs(1), secs(1)), (secs(60), TTL / 6)] {
        assert_eq!(conversation.replicas_patience(timeout), replicas);
        assert_eq!(conversation.patience(timeout), replicas * 2);
    }
}

#[test]
fn a_renewal_waits_for_no_replica() {
    let mut conversation = conversation(1);
    conversation.connected();
    answered(&mut conversation, FIRST, granted(), START, START);
    answered(&mut conversation, Say::Replicate(1), Answer::Replicated(1), START, START);
    assert_eq!(answered(&mut conversation, RENEW, granted(), START + secs(10), START + secs(10)), []);
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn nothing_is_kept_for_who_was_turned_away() {
    let mut conversation = conversation(0);
    assert!(!conversation.may_be_kept(), "nothing was said");
    conversation.connected();
    assert!(conversation.may_be_kept(), "whatever was said may have been heard");
    answered(&mut conversation, FIRST, Answer::Busy(Vec::new()), START, START);
    assert!(!conversation.may_be_kept() && conversation.is_over());
}
