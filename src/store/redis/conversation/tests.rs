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
    Conversation::new(terms, replicas)
}

const FIRST: Say = Say::Acquire { place: 0, listening: false, again: false };
const RENEW: Say = Say::Renew { listening: false };
const BEAT: Say = Say::Renew { listening: true };

fn granted() -> Answer {
    Answer::Granted(vec![7])
}

fn waiting(position: u32, next: Option<Duration>) -> Answer {
    Answer::Waiting { place: 40 + u64::from(position), position, next }
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
    assert_eq!(conversation.answered(FIRST, granted(), START, START), []);
    conversation
}

/// One that waits, subscribed, as the second in the queue.
fn queued() -> Conversation {
    let mut conversation = conversation(0);
    conversation.connected();
    assert_eq!(conversation.answered(FIRST, waiting(2, None), START, START), [Say::Listen, BEAT]);
    assert_eq!(conversation.answered(BEAT, waiting(2, None), START, START), []);
    conversation
}

#[test]
fn an_uncontended_request_is_one_question() {
    let conversation = held();
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START));
    assert_eq!(conversation.due(), Some(START + LISTEN_AFTER));
}

/// Section 6.1: the deadline counts from the instant the renewing request was sent; a late reply never extends it.
#[test]
fn a_late_answer_does_not_move_the_deadline() {
    let mut conversation = conversation(0);
    conversation.connected();
    conversation.answered(FIRST, granted(), START, START + secs(20));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START));
    conversation.answered(RENEW, granted(), START + secs(10), START + secs(25));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn a_holder_listens_after_a_while_and_renews_every_third() {
    let mut conversation = held();
    assert_eq!(conversation.tick(START), []);
    let at = START + LISTEN_AFTER;
    assert_eq!(conversation.tick(at), [Say::Listen, BEAT]);
    conversation.answered(BEAT, granted(), at, at);
    assert_eq!(conversation.due(), Some(at + TTL / 3));
    assert_eq!(conversation.tick(at + TTL / 3), [BEAT]);
}

#[test]
fn a_grant_from_the_queue_is_claimed_before_it_counts() {
    let mut conversation = queued();
    assert_eq!(conversation.standing(), Standing::Waiting);
    assert_eq!(conversation.woken(), [BEAT]);
    assert_eq!(conversation.standing(), Standing::Waiting, "a message is a hint");
    conversation.answered(BEAT, granted(), START + secs(9), START + secs(9));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(9)));
}

/// Pitfall A1: the reply was lost, so nobody knows when the request was carried out, nor whether it was granted from the queue since.
#[test]
fn a_request_that_is_asked_again_is_claimed_when_it_turns_out_granted() {
    let mut conversation = conversation(0);
    conversation.connected();
    let again = Say::Acquire { place: 0, listening: false, again: true };
    assert_eq!(conversation.connected(), [again]);
    assert_eq!(conversation.answered(again, granted(), START + secs(8), START + secs(8)), [RENEW]);
    assert_eq!(conversation.standing(), Standing::Asking);
    conversation.answered(RENEW, granted(), START + secs(9), START + secs(9));
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(9)));
}

#[test]
fn a_waiter_that_was_taken_for_dead_comes_back_to_its_place() {
    let mut conversation = queued();
    assert_eq!(conversation.connected(), [Say::Listen, BEAT]);
    let back = Say::Acquire { place: 42, listening: true, again: true };
    assert_eq!(conversation.answered(BEAT, Answer::Unknown, START, START), [back]);
    assert_eq!(conversation.answered(back, waiting(1, None), START, START), []);
    assert_eq!(conversation.standing(), Standing::Waiting);
}

#[test]
fn waiters_look_for_an_expired_holder_one_after_the_other() {
    let due_at = |position, next| {
        let mut conversation = queued();
        conversation.answered(BEAT, waiting(position, next), START, START);
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
    for answer in [Answer::Unknown, waiting(1, None), Answer::Granted(vec![8])] {
        let mut conversation = held();
        assert_eq!(conversation.answered(RENEW, answer, START, START), []);
        assert_eq!(conversation.standing(), Standing::Lost);
        assert_eq!(conversation.answered(RENEW, granted(), START, START), [], "and stays lost");
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
    for (answered, standing) in [(1, None), (2, Some(Lease::new(TTL).deadline(START)))] {
        let mut conversation = conversation(2);
        conversation.connected();
        assert_eq!(conversation.answered(FIRST, granted(), START, START), [Say::Replicate(2)]);
        assert_eq!(conversation.standing(), Standing::Asking);
        conversation.answered(Say::Replicate(2), Answer::Replicated(answered), START, START);
        match standing {
            Some(at) => assert_eq!(deadline(&conversation), at),
            None => assert_eq!((conversation.too_few_replicas(), conversation.may_be_kept()), (Some(answered), true)),
        }
    }
}

/// The server answers when the replicas have had their time, so it must be given more.
#[test]
fn replicas_have_less_time_than_the_server_that_waits_for_them() {
    let mut conversation = conversation(1);
    conversation.connected();
    conversation.answered(FIRST, granted(), START, START);
    for (timeout, replicas) in [(secs(1), secs(1)), (secs(60), TTL / 6)] {
        assert_eq!(conversation.replicas_patience(timeout), replicas);
        assert_eq!(conversation.patience(timeout), replicas * 2);
    }
}

#[test]
fn a_renewal_waits_for_no_replica() {
    let mut conversation = conversation(1);
    conversation.connected();
    conversation.answered(FIRST, granted(), START, START);
    conversation.answered(Say::Replicate(1), Answer::Replicated(1), START, START);
    assert_eq!(conversation.answered(RENEW, granted(), START + secs(10), START + secs(10)), []);
    assert_eq!(deadline(&conversation), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn nothing_is_kept_for_who_was_turned_away() {
    let mut conversation = conversation(0);
    assert!(!conversation.may_be_kept(), "nothing was said");
    conversation.connected();
    assert!(conversation.may_be_kept(), "whatever was said may have been heard");
    conversation.answered(FIRST, Answer::Busy(Vec::new()), START, START);
    assert!(!conversation.may_be_kept() && conversation.is_over());
}
