//! The client with a simulated store, in virtual time.

use super::*;
use rlock_model::past::Ending;

/// Makes a request of which no place is known.
const FIRST: Command = Command::Acquire { place: 0, waited: Duration::ZERO };
const TTL: Duration = Duration::from_secs(30);
const HEARTRENEW: Duration = Duration::from_secs(15);
const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A client whose store fails by an error.
type Client = LeaseClient<Error>;

fn error() -> Error {
    Error::Unavailable("the store fails".into())
}

fn client_with(needs_copies: bool) -> Client {
    let terms = Terms { ttl: TTL, claim: secs(3), heartbeat: HEARTRENEW };
    Client::new(terms, 1, needs_copies, START + secs(5))
}

fn client() -> Client {
    client_with(false)
}

/// A client whose grant waits for its replicas.
fn replicating() -> Client {
    let mut client = client_with(true);
    client.on_connect();
    assert_eq!(answered(&mut client, FIRST, granted(), START, START), []);
    assert!(matches!(client.state(), State::Replicating { .. }) && client.held().is_none());
    client
}

const RENEW: Command = Command::Renew;

fn granted() -> LeaseReply {
    granted_for(TTL)
}

fn granted_for(lease: Duration) -> LeaseReply {
    granted_with(lease, vec![7])
}

fn granted_with(lease: Duration, tokens: Vec<u64>) -> LeaseReply {
    LeaseReply::Granted { lease, grant: Grant { tokens, ..Grant::default() } }
}

fn busy() -> LeaseReply {
    LeaseReply::Over(Standing::Busy { obstructions: Vec::new(), streak: None })
}

fn waiting(position: u32, next: Option<Duration>) -> LeaseReply {
    LeaseReply::Waiting { place: 40 + u64::from(position), position, next }
}

/// Returns the commands after an answer that fits.
fn answered(client: &mut Client, command: Command, reply: LeaseReply, sent: Boottime, now: Boottime) -> Vec<Command> {
    client.on_reply(command, reply, sent, now).expect("the reply fits")
}

fn deadline(client: &Client) -> Boottime {
    let grant = client.held().expect("the request is granted");
    assert_eq!(grant.tokens, [7]);
    grant.deadline.expect("a lease has a deadline")
}

fn is_asking(client: &Client) -> bool {
    matches!(client.state(), State::Asking { .. })
}

fn is_waiting(client: &Client) -> bool {
    matches!(client.state(), State::Waiting { .. })
}

fn is_lost(client: &Client) -> bool {
    matches!(client.state(), State::Over(Standing::Lost))
}

/// A client whose request was granted at once.
fn held() -> Client {
    let mut client = client();
    assert_eq!(client.on_connect(), [FIRST]);
    assert_eq!(answered(&mut client, FIRST, granted(), START, START), []);
    client
}

/// A client that waits and has subscribed, as the second in the queue.
fn queued() -> Client {
    let mut client = client();
    client.on_connect();
    assert_eq!(answered(&mut client, FIRST, waiting(2, None), START, START), [Command::Subscribe, RENEW]);
    assert_eq!(answered(&mut client, RENEW, waiting(2, None), START, START), []);
    client
}

#[test]
fn uncontended_request_is_one_command() {
    let client = held();
    assert!(!client.is_subscribed());
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(START));
    assert_eq!(client.due(), Some(START + SUBSCRIBE_AFTER));
}

/// The deadline counts from the instant at which the renewal was sent. A late reply never extends
/// it.
#[test]
fn late_answer_does_not_move_the_deadline() {
    let mut client = client();
    client.on_connect();
    answered(&mut client, FIRST, granted(), START, START + secs(20));
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(START));
    answered(&mut client, RENEW, granted(), START + secs(10), START + secs(25));
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn holder_subscribes_after_a_second_and_renews_at_each_third() {
    let mut client = held();
    assert_eq!(client.tick(START), []);
    let at = START + SUBSCRIBE_AFTER;
    assert_eq!(client.tick(at), [Command::Subscribe, RENEW]);
    assert!(client.is_subscribed());
    answered(&mut client, RENEW, granted(), at, at);
    assert_eq!(client.due(), Some(at + TTL / 3));
    assert_eq!(client.tick(at + TTL / 3), [RENEW]);
}

#[test]
fn grant_from_the_queue_is_claimed_before_it_counts() {
    let mut client = queued();
    assert!(is_waiting(&client));
    assert_eq!(client.on_message(), [RENEW]);
    assert!(is_waiting(&client), "a message is a hint");
    answered(&mut client, RENEW, granted(), START + secs(9), START + secs(9));
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(START + secs(9)));
}

/// The first reply was lost. So the client does not know when the server executed the request, nor
/// whether the server has granted the request from the queue since.
#[test]
fn acquire_that_states_less_than_the_ttl_is_claimed_before_it_counts() {
    for lease in [secs(0), secs(3), TTL - secs(8)] {
        let mut client = client();
        assert_eq!(client.on_connect(), [FIRST]);
        assert_eq!(client.on_connect(), [FIRST]);
        let sent = START + secs(8);
        assert_eq!(answered(&mut client, FIRST, granted_for(lease), sent, sent), [RENEW]);
        assert!(is_asking(&client));
        answered(&mut client, RENEW, granted(), START + secs(9), START + secs(9));
        assert_eq!(deadline(&client), Lease::new(TTL).deadline(START + secs(9)));
    }
}

/// The renewal of a sole holder leaves out the slots and the end of the last hold.
#[test]
fn slots_and_last_hold_are_those_of_the_reply_that_told_them() {
    let first = LeaseReply::Granted {
        lease: secs(3),
        grant: Grant { tokens: vec![7], slots: vec![4], last: Some(Ending::Exit(3)), ..Grant::default() },
    };
    for (token, slots, last) in [(7, vec![4], Some(Ending::Exit(3))), (8, vec![], None)] {
        let mut client = client();
        client.on_connect();
        assert_eq!(answered(&mut client, FIRST, first.clone(), START, START), [RENEW]);
        answered(&mut client, RENEW, granted_with(TTL, vec![token]), START, START);
        let grant = client.held().expect("the request is granted");
        assert_eq!((&grant.slots, grant.last), (&slots, last));
    }
}

#[test]
fn deadline_counts_the_lease_that_the_server_stated() {
    let mut client = held();
    let sent = START + secs(10);
    answered(&mut client, RENEW, granted_for(secs(3)), sent, sent);
    assert_eq!(deadline(&client), Lease::new(secs(3)).deadline(sent));
    assert_eq!(client.due(), Some(sent + secs(1)), "the next renewal is at a third of the lease");
    assert_eq!(client.reply_timeout(secs(5)), Lease::new(secs(3)).patience());
    answered(&mut client, RENEW, granted(), sent + secs(1), sent + secs(1));
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(sent + secs(1)));
}

#[test]
fn grant_with_another_number_of_tokens_than_claims_is_unexpected() {
    for tokens in [vec![], vec![7, 8]] {
        let mut client = client();
        client.on_connect();
        let answer = granted_with(TTL, tokens);
        assert_eq!(client.on_reply(FIRST, answer.clone(), START, START), None);
        assert!(is_asking(&client));
        assert_eq!(queued().on_reply(RENEW, answer.clone(), START, START), None);
        assert_eq!(held().on_reply(RENEW, answer, START, START), None);
    }
}

#[test]
fn answer_to_another_question_is_unexpected() {
    for (command, answer) in [
        (RENEW, busy()),
        (FIRST, LeaseReply::Unknown),
        (FIRST, LeaseReply::Other),
        (RENEW, LeaseReply::Other),
        (Command::Subscribe, granted()),
    ] {
        assert_eq!(client().on_reply(command, answer, START, START), None, "{command:?}");
    }
}

#[test]
fn waiter_that_was_dropped_as_dead_returns_to_its_place() {
    let mut client = queued();
    assert_eq!(client.on_connect(), [Command::Subscribe, RENEW]);
    for waited in [secs(7), secs(20)] {
        let back = Command::Acquire { place: 42, waited };
        let now = START + waited;
        assert_eq!(answered(&mut client, RENEW, LeaseReply::Unknown, now, now), [back]);
        assert!(client.is_subscribed());
        assert_eq!(answered(&mut client, back, waiting(2, None), now, now), []);
        assert!(is_waiting(&client));
    }
}

#[test]
fn waiters_look_for_an_expired_holder_in_turn() {
    let due_at = |position, next| {
        let mut client = queued();
        answered(&mut client, RENEW, waiting(position, next), START, START);
        client.due().unwrap() - START
    };
    assert_eq!(due_at(1, Some(secs(2))), secs(2));
    assert_eq!(due_at(3, Some(secs(2))), secs(2) + STAGGER * 2);
    assert_eq!(due_at(1_000_000, Some(secs(2))), secs(2) + STAGGER_MAX);
    assert_eq!(due_at(1, Some(secs(60))), HEARTRENEW / 3, "every waiter renews its heartbeat lease");
    assert_eq!(due_at(1, None), HEARTRENEW / 3);
}

#[test]
fn grant_is_lost_when_the_server_does_not_know_the_session() {
    for answer in [LeaseReply::Unknown, waiting(1, None), granted_with(TTL, vec![8])] {
        let mut client = held();
        assert_eq!(answered(&mut client, RENEW, answer, START, START), []);
        assert!(is_lost(&client));
        assert_eq!(answered(&mut client, RENEW, granted(), START, START), [], "a lost grant stays lost");
        assert!(is_lost(&client));
        assert_eq!((client.due(), client.on_connect().len()), (None, 0));
    }
}

#[test]
fn message_makes_a_holder_renew_at_once() {
    let mut client = held();
    assert_eq!(client.on_message(), [RENEW]);
}

#[test]
fn grant_counts_when_enough_replicas_have_it() {
    let mut client = replicating();
    client.on_replicated(None);
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(START));
    let mut client = replicating();
    client.on_replicated(Some(error()));
    assert!(matches!(client.state(), State::TooFewCopies(_)) && client.may_be_kept(true));
    assert_eq!(client.standing().unwrap_err().to_string(), error().to_string());
}

/// The message tells that the grant was broken. The command may start when the replicas have
/// answered, so the next renewal must not be a third of the lease away.
#[test]
fn message_while_the_replicas_are_awaited_makes_the_holder_renew_at_once() {
    let mut client = replicating();
    assert_eq!(client.on_message(), []);
    client.on_replicated(None);
    assert!(client.due().is_some_and(|due| due <= START));
    assert!(client.tick(START).contains(&RENEW));
}

/// The server replies when the time of the replicas is over, so the client gives the server more
/// time than the replicas.
#[test]
fn replicas_have_less_time_than_the_server_that_waits_for_them() {
    let client = replicating();
    for (timeout, replicas) in [(secs(1), secs(1)), (secs(60), TTL / 6)] {
        assert_eq!(client.replica_timeout(timeout), replicas);
        assert_eq!(client.reply_timeout(timeout), replicas * 2);
    }
}

#[test]
fn renewal_waits_for_no_replica() {
    let mut client = replicating();
    client.on_replicated(None);
    assert_eq!(answered(&mut client, RENEW, granted(), START + secs(10), START + secs(10)), []);
    assert_eq!(deadline(&client), Lease::new(TTL).deadline(START + secs(10)));
}

#[test]
fn server_may_keep_a_request_from_its_sending_to_its_rejection() {
    let mut client = client();
    assert!(!client.may_be_kept(false), "nothing was sent");
    client.on_connect();
    assert!(client.may_be_kept(true), "the request was sent");
    answered(&mut client, FIRST, busy(), START, START);
    assert!(!client.may_be_kept(true) && client.is_over());
}

#[test]
fn request_that_left_over_a_lost_connection_stays_in_doubt() {
    for (is_sent, expected) in [(false, false), (true, true)] {
        let mut client = client();
        client.on_connect();
        client.on_disconnect(is_sent);
        assert_eq!(client.may_be_kept(false), expected);
        client.on_failure(error(), false);
        assert_eq!(client.may_be_kept(false), expected);
    }
}

#[test]
fn sessions_wait_for_different_parts_of_a_pause() {
    let pause = Lease::new(TTL).retry_after(9);
    let parts: Vec<_> = (0..=255).map(|byte| client().retry_after(9, SessionId([byte; 16]))).collect();
    assert_eq!([parts[0], parts[255]], [pause / 2, pause]);
    assert!(parts.is_sorted_by(|one, next| one < next));
    assert_eq!(client().retry_after(1, SessionId([7; 16])), Duration::ZERO);
}

#[test]
fn subscription_ends_with_its_connection_or_by_a_command() {
    let mut client = queued();
    client.on_disconnect(false);
    assert!(!client.is_subscribed() && !client.unsubscribe());
    let mut client = queued();
    assert!(client.unsubscribe() && !client.is_subscribed() && !client.unsubscribe());
}

type Begin = Box<dyn Fn() -> Client>;

/// Each row is a state. The columns are the commands after a connection, after a message, and at
/// the due instant.
#[test]
fn commands_after_each_event_in_each_state() {
    let ended = |state: State<Error>| {
        let mut client = client();
        client.state = state;
        client
    };
    let failed = || State::Failed { failure: error(), may_be_kept: true };
    let both = vec![Command::Subscribe, RENEW];
    let rows: Vec<(Begin, [Vec<Command>; 3])> = vec![
        (Box::new(client), [vec![FIRST], vec![], vec![]]),
        (Box::new(queued), [both.clone(), vec![RENEW], vec![RENEW]]),
        (Box::new(replicating), [both.clone(), vec![], vec![]]),
        (Box::new(held), [both.clone(), vec![RENEW], both]),
        (Box::new(move || ended(State::TooFewCopies(error()))), [vec![], vec![], vec![]]),
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
    let anew = granted_with(TTL, vec![8]);
    let rows: Vec<(Begin, [&str; 4])> = vec![
        (Box::new(client), ["held", "held", "waiting", "asking"]),
        (Box::new(queued), ["held", "held", "waiting", "waiting"]),
        (Box::new(replicating), ["replicating", "lost", "lost", "lost"]),
        (Box::new(held), ["held", "lost", "lost", "lost"]),
    ];
    for (begin, expected) in rows {
        for (answer, expected) in
            [granted(), anew.clone(), waiting(1, None), LeaseReply::Unknown].into_iter().zip(expected)
        {
            let mut client = begin();
            let before = client.state().name();
            answered(&mut client, RENEW, answer.clone(), START, START);
            assert_eq!(client.state().name(), expected, "{before}: {answer:?}");
        }
    }
}
