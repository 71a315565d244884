use std::collections::BTreeSet;
use std::sync::Arc;

use glob::Pattern;
use proptest::prelude::*;

use super::super::listing::Unread;
use super::*;
use crate::arguments::lines::LineParser;
use crate::lock::index::Rank;
use crate::lock::op::{Refusal, ResourceListing};
use crate::lock::records::{ClaimRecord, Phase, Session};
use crate::lock::request::{Job, Process};
use crate::system::clock::StoreTime;

const SECOND: Duration = Duration::from_secs(1);

/// A client, and a server that writes down what the client makes it do.
struct Lab {
    client: Client,
    rules: Rules,
    now: Boottime,
    may_wait: bool,
    made: u8,
    parser: LineParser,
}

fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn rules() -> Rules {
    Rules { token: None, only: Vec::new(), has_leases: true, grace: 5 * SECOND, is_stopped: |_| false }
}

fn error() -> store::Error {
    store::Error::Unavailable("the store is away".into())
}

impl Lab {
    fn new(rules: Rules) -> Self {
        let now = Boottime::since_boot(100 * SECOND);
        let client = Client::new(&rules, now, false);
        Self { client, rules, now, may_wait: true, made: 0, parser: LineParser::default() }
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        let Self { client, rules, now, may_wait, made, .. } = self;
        let actions = client.on(event, *now, rules, *may_wait, || {
            *made += 1;
            id(*made)
        });
        actions.iter().map(shown).filter(|action| !action.starts_with("log ")).collect()
    }

    fn line(&mut self, line: &str) -> Vec<String> {
        assert!(self.client.takes_lines(), "{line}");
        let line = Line::parse(line.as_bytes(), &mut self.parser);
        self.on(Event::Line(line))
    }

    fn stands(&mut self, session: u8, standing: Standing) -> Vec<String> {
        self.on(Event::Report(id(session), Report::Standing(Ok(standing))))
    }

    fn granted(&mut self, session: u8, token: u64) -> Vec<String> {
        self.granted_until(session, token, self.now + 30 * SECOND)
    }

    fn granted_until(&mut self, session: u8, token: u64, deadline: Boottime) -> Vec<String> {
        self.stands(
            session,
            Standing::Granted(Grant { tokens: vec![1, token], deadline: Some(deadline), ..Grant::default() }),
        )
    }

    fn released(&mut self, session: u8, released: Released) -> Vec<String> {
        self.on(Event::Report(id(session), Report::Released(Ok(released))))
    }

    fn after(&mut self, length: Duration) -> Vec<String> {
        self.now = self.now + length;
        self.on(Event::Tick)
    }

    /// A client that holds a lock by this line, as session 1.
    fn holding(line: &str) -> Self {
        let mut lab = Self::new(rules());
        lab.line(line);
        lab.granted(1, 7);
        lab
    }
}

fn shown(action: &Action) -> String {
    match action {
        Action::Say(text) => format!("say {text}"),
        Action::Show(listing) => format!("show {}", String::from_utf8_lossy(listing.as_bytes()).trim_end()),
        Action::Acquire { session, parent, claims, wait, .. } => {
            let claims: Vec<_> =
                claims.iter().map(|claim| format!("{} {} {}", claim.mode, claim.resource, claim.span)).collect();
            let parent = parent.map(|parent| format!(" below {}", parent.0[0])).unwrap_or_default();
            let wait = if *wait { "" } else { " no-wait" };
            format!("acquire {}{parent}: {}{wait}", session.0[0], claims.join(", "))
        }
        Action::Release(session) => format!("release {}", session.0[0]),
        Action::Ask(Question::Inspect(key)) => format!("inspect {}", key.as_ref().map_or("", Resource::as_str)),
        Action::Ask(Question::Obstructions(_)) => "obstructions".to_owned(),
        Action::Ask(Question::Read(names)) => {
            format!("read {}", names.iter().map(Resource::as_str).collect::<Vec<_>>().join(" "))
        }
        Action::Ask(Question::Shrink(session, key, span)) => format!("shrink {} {key} {span}", session.0[0]),
        Action::Ask(Question::Downgrade(session, key, mode)) => format!("downgrade {} {key} {mode}", session.0[0]),
        Action::Log(text) => format!("log {text}"),
        Action::Warn(text) => format!("warn {text}"),
        Action::Close => "close".to_owned(),
    }
}

#[test]
fn plain_lock_is_answered_ok_and_freed_by_the_end_of_the_connection() {
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK k"), ["acquire 1: write k whole"]);
    assert!(!lab.client.takes_lines() && !lab.client.is_queued());
    assert!(lab.stands(1, Standing::Waiting).is_empty());
    assert!(lab.client.is_queued());
    assert_eq!(lab.granted(1, 7), ["say ok"]);
    assert_eq!(lab.on(Event::End), ["release 1", "close"]);
    assert!(!lab.client.is_over());
    assert!(lab.released(1, Released::Done).is_empty());
    assert!(lab.client.is_over() && !lab.client.has_lost());
}

#[test]
fn lock_by_words_is_answered_with_the_highest_token() {
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK --read a --write b"), ["acquire 1: read a whole, write b whole"]);
    assert_eq!(lab.granted(1, 7), ["say ok 7"]);
}

#[test]
fn connection_may_lock_again_after_an_unlock() {
    let mut lab = Lab::holding("LOCK k");
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
    assert_eq!(lab.released(1, Released::Done), ["say ok"]);
    assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
    lab.granted(2, 8);
    lab.line("UNLOCK");
    assert_eq!(lab.released(2, Released::Lost), ["say lost"]);
    assert_eq!(lab.line("UNLOCK"), ["say error this connection holds no lock: send LOCK first"]);
}

#[test]
fn second_lock_while_one_is_held_is_an_error() {
    for line in ["LOCK j", "TRY j", "RANGE-READ j 1 2"] {
        let mut lab = Lab::holding("LOCK k");
        let text = "say error this connection holds a lock already: send UNLOCK first, or use another connection";
        assert_eq!(lab.line(line), [text], "{line}");
        assert_eq!(lab.line("PING"), ["say pong"]);
    }
}

#[test]
fn first_line_that_is_not_understood_closes() {
    for first in ["POST / HTTP/1.1", "", "HELLO"] {
        assert_eq!(Lab::new(rules()).line(first), [format!("say {UNKNOWN}"), "close".to_owned()], "{first}");
    }
    let mut lab = Lab::new(rules());
    lab.line("PING");
    assert_eq!(lab.line("HELLO"), [format!("say {UNKNOWN}")]);
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK --nonsense"), ["say error unexpected argument '--nonsense'"]);
    assert_eq!(lab.line("PING"), ["say pong"]);
}

#[test]
fn unknown_line_ends_a_plain_hold_and_no_other() {
    assert_eq!(Lab::holding("LOCK k").line("bye"), ["release 1", "close"]);
    assert_eq!(Lab::holding("LOCK --write k").line("bye"), [format!("say {UNKNOWN}")]);
}

#[test]
fn busy_refused_and_failed_requests_are_answered_and_the_connection_goes_on() {
    let key = Resource::new("k").unwrap();
    let listing = ResourceListing { name: key.clone(), holders: Vec::new(), waiters: Vec::new() };
    for (standing, text) in [
        (Ok(Standing::Busy { obstructions: vec![listing.into()], streak: None }), "say busy 'k' was held a moment ago"),
        (
            Ok(Standing::Refused(Refusal::TooFewSlots { resource: key, held: 2 })),
            "say refused an enclosing rlock holds 2 of the slots of 'k', and this asks for more: claim as many there, \
             or no more than that here",
        ),
        (Err(error()), "say unavailable cannot lock 'k': the store is away"),
        (Err(store::Error::Refused("no".into())), "say refused no"),
        (Err(store::Error::Usage("what".into())), "say error what"),
    ] {
        let mut lab = Lab::new(rules());
        assert_eq!(lab.line("TRY k"), ["acquire 1: write k whole no-wait"]);
        assert_eq!(lab.on(Event::Report(id(1), Report::Standing(standing))), [text]);
        assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
    }
}

#[test]
fn request_whose_wait_is_over_leaves_the_queue_and_tells_who_is_in_the_way() {
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK -w 2s k"), ["acquire 1: write k whole"]);
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + 2 * SECOND));
    assert!(lab.after(SECOND).is_empty());
    assert_eq!(lab.after(SECOND), ["release 1"]);
    // A grant that crosses the release is given back by it.
    assert!(lab.granted(1, 7).is_empty());
    assert_eq!(lab.released(1, Released::Done), ["obstructions"]);
    let answer = Event::Answer(Answer::Obstructions(Arc::default()));
    assert_eq!(lab.on(answer), ["say busy 'k' was held a moment ago; waited 2s"]);
    assert!(lab.client.takes_lines());
}

#[test]
fn wait_is_limited_from_the_place_in_the_queue() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    assert!(lab.after(3 * SECOND).is_empty());
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + 2 * SECOND));
    assert!(lab.after(SECOND).is_empty());
    // The store is out of reach for a moment, and the request is still queued.
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.after(SECOND), ["release 1"]);
}

#[test]
fn request_that_is_not_queued_in_time_is_unavailable() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    assert!(lab.after(2 * SECOND).is_empty());
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    assert_eq!(lab.after(QUEUE_LIMIT), ["release 1", text]);
    // A late answer does not matter any more.
    assert!(lab.granted(1, 7).is_empty());
    assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
    assert!(lab.released(1, Released::Done).is_empty());
}

#[test]
fn request_beyond_the_limit_of_waiting_requests_does_not_wait() {
    let mut lab = Lab::new(rules());
    lab.may_wait = false;
    assert_eq!(lab.line("LOCK k"), ["acquire 1: write k whole no-wait"]);
    let text = "say busy 'k' was held a moment ago; no more requests may wait";
    assert_eq!(lab.stands(1, Standing::Busy { obstructions: Vec::new(), streak: None }), [text]);
}

/// Several requests may be on their way to the store before one of them waits.
#[test]
fn request_that_is_queued_beyond_the_limit_leaves_and_is_busy() {
    for line in ["LOCK k", "LOCK -w 2s k"] {
        let mut lab = Lab::new(rules());
        lab.line(line);
        assert!(!lab.client.is_queued());
        lab.may_wait = false;
        assert_eq!(lab.stands(1, Standing::Waiting), ["release 1"]);
        assert!(!lab.client.is_queued());
        assert_eq!(lab.released(1, Released::Done), ["obstructions"]);
        let text = "say busy 'k' was held a moment ago; no more requests may wait";
        assert_eq!(lab.on(Event::Answer(Answer::Obstructions(Arc::default()))), [text], "{line}");
    }
    // A request that waits already stays.
    let mut lab = Lab::new(rules());
    lab.line("LOCK k");
    lab.stands(1, Standing::Waiting);
    lab.may_wait = false;
    assert!(lab.stands(1, Standing::Waiting).is_empty() && lab.client.is_queued());
}

#[test]
fn busy_request_waits_a_second_for_the_names_of_who_is_in_the_way() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    lab.stands(1, Standing::Waiting);
    lab.after(2 * SECOND);
    lab.released(1, Released::Done);
    assert!(lab.client.asks());
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + SECOND));
    assert_eq!(lab.after(SECOND), ["say busy 'k' was held a moment ago; waited 2s"]);
    assert!(!lab.client.asks() && lab.client.takes_lines());
}

/// The answer to the release may be late, and the place in the queue is given back all the same.
#[test]
fn busy_request_waits_a_second_for_its_place_to_be_given_back() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.after(2 * SECOND), ["release 1"]);
    assert_eq!(lab.after(SECOND), ["say busy 'k' was held a moment ago; waited 2s"]);
    assert!(lab.client.takes_lines());
    assert!(lab.granted(1, 7).is_empty() && !lab.client.holds());
    assert_eq!(lab.line("LOCK j"), ["acquire 2: write j whole"]);
    assert!(lab.released(1, Released::Done).is_empty());
}

#[test]
fn listing_that_takes_too_long_is_unavailable_and_a_change_is_awaited() {
    let mut lab = Lab::holding("LOCK k");
    lab.rules.has_leases = false;
    lab.granted_until(1, 7, lab.now + 90 * SECOND);
    assert_eq!(lab.line("INSPECT"), ["inspect "]);
    assert!(lab.after(29 * SECOND).is_empty() && lab.client.asks());
    assert_eq!(lab.after(SECOND), ["say unavailable the store did not answer in time: try again"]);
    assert!(!lab.client.asks());
    lab.line("DOWNGRADE read");
    assert!(lab.after(20 * SECOND).is_empty() && lab.client.asks());
}

#[test]
fn release_that_fails_is_not_answered_ok() {
    let mut lab = Lab::holding("LOCK k");
    lab.line("UNLOCK");
    let text =
        "say unavailable the release of 'k' is not confirmed, it may be held until its lease ends: the store is away";
    assert_eq!(lab.on(Event::Report(id(1), Report::Released(Err(error())))), [text]);
    assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
}

#[test]
fn lock_that_is_taken_away_is_reported_once_and_the_connection_closes() {
    let mut lab = Lab::holding("LOCK k");
    let text = "say lost 'k' was taken away, by 'rlock break', a failover, lost data or a step of the server's clock";
    assert_eq!(lab.stands(1, Standing::Lost), [text, "close", "release 1"]);
    assert!(lab.client.has_lost());
    assert!(lab.stands(1, Standing::Lost).is_empty() && lab.on(Event::End).is_empty());
    lab.released(1, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn lease_that_is_not_renewed_is_lost_a_grace_before_its_deadline() {
    let mut lab = Lab::holding("LOCK k");
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + 25 * SECOND));
    assert!(lab.after(10 * SECOND).is_empty());
    // The renewal moves the deadline.
    assert!(lab.granted(1, 7).is_empty());
    assert!(lab.after(24 * SECOND).is_empty());
    let text = "say lost the lease on 'k' was not renewed in time";
    assert_eq!(lab.after(SECOND), [text, "close"]);
}

/// The design says: "a client has the same time to stop" as a command of `rlock exec`.
#[test]
fn lock_of_an_overdue_lease_is_released_at_its_deadline() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    lab.line("UNLOCK");
    lab.released(2, Released::Done);
    lab.line("UPGRADE");
    let text = "say lost the lease on 'k' was not renewed in time";
    assert_eq!(lab.after(25 * SECOND), [text, "release 3", "close"]);
    // A renewal that comes after all does not revive the lock.
    assert!(lab.granted(1, 7).is_empty() && lab.on(Event::Stop).is_empty());
    assert!(lab.after(4 * SECOND).is_empty() && !lab.client.is_over());
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + SECOND));
    assert_eq!(lab.after(SECOND), ["release 1"]);
    lab.released(1, Released::Done);
    lab.released(3, Released::Done);
    assert!(lab.client.is_over());
}

/// The answer to a renewal may arrive after the server stood still past the deadline.
#[test]
fn grant_with_no_more_than_a_grace_left_is_given_back_unannounced() {
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    let grace = rules().grace;
    for line in ["LOCK k", "TRY k", "LOCK --write k"] {
        for deadline in [Duration::ZERO, 99 * SECOND, 100 * SECOND, 100 * SECOND + grace] {
            let mut lab = Lab::new(rules());
            lab.line(line);
            let deadline = Boottime::since_boot(deadline);
            assert_eq!(lab.granted_until(1, 7, deadline), ["release 1", text], "{line} {deadline:?}");
            assert!(!lab.client.holds() && !lab.client.has_lost());
            // What the store still reports about the session does not matter.
            assert!(lab.granted(1, 7).is_empty() && lab.after(SECOND).is_empty());
            assert!(lab.released(1, Released::Lost).is_empty());
            assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
            let late = lab.now + grace + Duration::from_nanos(1);
            assert_eq!(lab.granted_until(2, 8, late), ["say ok"]);
        }
    }
}

#[test]
fn late_grant_of_an_upgrade_leaves_the_prewrite_lock() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    assert_eq!(lab.granted_until(2, 9, lab.now + SECOND), ["release 2", text]);
    lab.released(2, Released::Done);
    assert_eq!(lab.line("UPGRADE"), ["acquire 3 below 1: write k whole"]);
    assert_eq!(lab.granted(3, 10), ["say ok 10"]);
}

#[test]
fn upgrade_below_an_overdue_prewrite_lock_is_not_announced() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.now = lab.now + 25 * SECOND;
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    assert_eq!(lab.granted(2, 9), ["release 2", text]);
    // The renewal of the prewrite lock came in the same turn.
    lab.granted(1, 7);
    assert!(lab.after(Duration::ZERO).is_empty());
}

#[test]
fn grant_while_draining_is_announced_to_holders_only() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK --prewrite k");
    lab.granted(1, 7);
    lab.line("UPGRADE");
    assert!(lab.on(Event::Drain).is_empty());
    assert_eq!(lab.granted(2, 9), ["say ok 9"], "a holder may go on");
    let mut waiter = Lab::new(rules());
    waiter.line("LOCK k");
    assert_eq!(waiter.on(Event::Drain), ["release 1", "close"]);
    assert!(waiter.granted(1, 7).is_empty(), "the grant is on its way back");
}

#[test]
fn grant_after_the_end_of_the_connection_is_given_back_in_silence() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK k");
    assert_eq!(lab.on(Event::End), ["release 1", "close"]);
    assert!(lab.granted(1, 7).is_empty() && lab.stands(1, Standing::Lost).is_empty());
    assert_eq!(lab.client.timeout(&lab.rules), None);
    assert!(!lab.client.is_over() && !lab.client.holds());
    lab.released(1, Released::Done);
    assert!(lab.client.is_over());
}

/// A renewal that comes late moves the deadline at the store, so the client gets its whole grace.
#[test]
fn client_has_a_grace_to_stop_even_if_the_server_ran_late() {
    for late in [26 * SECOND, 30 * SECOND, 40 * SECOND] {
        let mut lab = Lab::holding("LOCK k");
        assert_eq!(lab.after(late), ["say lost the lease on 'k' was not renewed in time", "close"]);
        assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + lab.rules.grace));
        assert!(lab.granted(1, 7).is_empty());
        assert!(lab.after(4 * SECOND).is_empty());
        assert_eq!(lab.after(SECOND), ["release 1"]);
    }
}

#[test]
fn loss_between_the_overdue_lease_and_the_release_is_not_reported_again() {
    let mut lab = Lab::holding("LOCK k");
    lab.after(25 * SECOND);
    assert_eq!(lab.stands(1, Standing::Lost), ["release 1"]);
    assert!(lab.after(5 * SECOND).is_empty());
    lab.released(1, Released::Lost);
    assert!(lab.client.is_over());
}

/// The work of the client needs both locks, and nobody stops this work.
#[test]
fn lock_beside_a_lost_one_is_kept_for_a_grace() {
    for (lost, other) in [(1, 2), (2, 1)] {
        let mut lab = Lab::holding("LOCK --prewrite k");
        lab.line("UPGRADE");
        lab.granted(2, 9);
        let text =
            "say lost 'k' was taken away, by 'rlock break', a failover, lost data or a step of the server's clock";
        let lost_is_released = format!("release {lost}");
        assert_eq!(lab.stands(lost, Standing::Lost), [text, "close", lost_is_released.as_str()]);
        assert!(lab.after(4 * SECOND).is_empty() && lab.on(Event::End).is_empty());
        assert_eq!(lab.after(SECOND), [format!("release {other}")]);
    }
}

#[test]
fn client_that_lost_all_of_its_locks_keeps_none_for_a_grace() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    lab.stands(1, Standing::Lost);
    assert_eq!(lab.stands(2, Standing::Lost), ["release 2"]);
    lab.released(1, Released::Done);
    lab.released(2, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn upgrade_whose_place_is_taken_away_leaves_the_prewrite_lock() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    let text =
        "say unavailable 'k' was taken away, by 'rlock break', a failover, lost data or a step of the server's clock";
    assert_eq!(lab.stands(2, Standing::Lost), [text]);
    assert!(lab.client.holds() && !lab.client.has_lost());
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
}

#[test]
fn unlock_in_time_is_not_lost_while_the_store_is_slow() {
    let mut lab = Lab::holding("LOCK k");
    assert!(lab.after(24 * SECOND).is_empty());
    lab.line("UNLOCK");
    assert_eq!(lab.client.timeout(&lab.rules), None);
    assert!(lab.after(10 * SECOND).is_empty());
    assert_eq!(lab.released(1, Released::Done), ["say ok"]);
    // The lock below the one that is given back still has to be renewed.
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    lab.line("UNLOCK");
    let text = "say lost the lease on 'k' was not renewed in time";
    assert_eq!(lab.after(25 * SECOND), [text, "close"]);
}

#[test]
fn unlock_after_the_deadline_is_lost() {
    let mut lab = Lab::holding("LOCK k");
    lab.now = lab.now + 30 * SECOND;
    assert_eq!(lab.line("UNLOCK"), ["say lost the lease on 'k' was not renewed in time", "close"]);
    assert!(lab.client.has_lost());
}

#[test]
fn upgrade_needs_prewrite_locks_and_ends_before_them() {
    let nothing = "say error there is nothing to upgrade: hold a prewrite lock first";
    assert_eq!(Lab::new(rules()).line("UPGRADE"), [nothing]);
    assert_eq!(Lab::holding("LOCK k").line("UPGRADE"), [nothing]);
    let mut lab = Lab::holding("LOCK --prewrite a --prewrite b --read c");
    assert_eq!(lab.line("UPGRADE"), ["acquire 2 below 1: write a whole, write b whole"]);
    assert_eq!(lab.granted(2, 9), ["say ok 9"]);
    assert_eq!(lab.line("UPGRADE"), ["say error the lock is upgraded already: send UNLOCK first"]);
    assert_eq!(lab.line("UNLOCK"), ["release 2"]);
    assert_eq!(lab.released(2, Released::Done), ["say ok"]);
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
    assert_eq!(lab.released(1, Released::Done), ["say ok"]);
}

#[test]
fn upgrade_of_a_part_needs_exactly_one_prewrite_lock() {
    let mut lab = Lab::holding("RANGE-PREWRITE t 0 9");
    assert_eq!(lab.line("UPGRADE 1 2"), ["acquire 2 below 1: write t [1,2]"]);
    let text = "say refused [5,10] is not inside the prewrite lock on [0,9] of 't': upgrade that or a part of it";
    assert_eq!(Lab::holding("RANGE-PREWRITE t 0 9").line("UPGRADE 5 10"), [text]);
    let mut lab = Lab::holding("LOCK --prewrite a --prewrite b");
    assert_eq!(lab.line("UPGRADE 1 2"), ["say error UPGRADE LO HI needs exactly one prewrite lock: leave out LO HI"]);
}

#[test]
fn upgrade_is_released_before_the_lock_below_it() {
    let mut lab = Lab::holding("LOCK --prewrite a");
    lab.line("UPGRADE");
    assert_eq!(lab.on(Event::End), ["release 2", "release 1", "close"]);
    let mut lab = Lab::holding("LOCK --prewrite a");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    assert_eq!(lab.on(Event::End), ["release 2", "release 1", "close"]);
    lab.released(1, Released::Done);
    assert!(!lab.client.is_over());
    lab.released(2, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn shrink_and_downgrade_change_the_innermost_hold() {
    let mut lab = Lab::holding("RANGE-PREWRITE t 0 9");
    assert_eq!(lab.line("SHRINK 0 5"), ["shrink 1 t [0,5]"]);
    assert_eq!(lab.on(Event::Answer(Answer::Changed(Changed::Done))), ["say ok"]);
    assert_eq!(lab.line("UPGRADE"), ["acquire 2 below 1: write t [0,5]"]);
    lab.granted(2, 9);
    assert_eq!(lab.line("DOWNGRADE read"), ["downgrade 2 t read"]);
    assert_eq!(
        lab.on(Event::Answer(Answer::Changed(Changed::Lost))),
        ["say refused this connection holds nothing any more"]
    );
    assert_eq!(lab.line("SHRINK 1 2"), ["shrink 2 t [1,2]"]);
    assert_eq!(lab.on(Event::Answer(Answer::Failed(error()))), ["say unavailable the store is away"]);
    let mut lab = Lab::holding("LOCK --read a --read b");
    let several = "say error this connection holds several resources: name one with --resource";
    assert_eq!(lab.line("SHRINK 0 1"), [several]);
    let text = "say refused this connection holds nothing of 'c': name what it holds";
    assert_eq!(lab.line("DOWNGRADE read --resource c"), [text]);
    assert_eq!(lab.line("SHRINK 0 1 --resource b"), ["shrink 1 b [0,1]"]);
    assert_eq!(Lab::new(rules()).line("SHRINK 0 1"), ["say error this connection holds no lock: send LOCK first"]);
}

#[test]
fn shrink_and_downgrade_leave_the_other_intervals_of_a_hold() {
    let mut lab = Lab::holding("LOCK --range-prewrite t [0,9] --range-prewrite t [20,29] --range-read t [40,49]");
    for (line, asked) in [("SHRINK 1 2", "shrink 1 t [1,2]"), ("DOWNGRADE prewrite", "downgrade 1 t prewrite")] {
        assert_eq!(lab.line(line), [asked]);
        assert_eq!(lab.on(Event::Answer(Answer::Changed(Changed::Done))), ["say ok"], "{line}");
    }
    assert_eq!(lab.line("UPGRADE"), ["acquire 2 below 1: write t [1,2], write t [20,29]"]);
}

#[test]
fn downgraded_lock_can_no_longer_be_upgraded() {
    let mut lab = Lab::holding("LOCK --prewrite a");
    lab.line("DOWNGRADE read");
    lab.on(Event::Answer(Answer::Changed(Changed::Done)));
    assert_eq!(lab.line("UPGRADE"), ["say error there is nothing to upgrade: hold a prewrite lock first"]);
}

#[test]
fn names_outside_of_only_are_neither_locked_nor_shown() {
    let only = vec![Pattern::new("app-*").unwrap(), Pattern::new("x").unwrap()];
    let mut lab = Lab::new(Rules { only, ..rules() });
    let text = "say refused this server does not serve 'k': name a KEY that matches app-* or x";
    assert_eq!(lab.line("LOCK --read app-1 --write k"), [text]);
    assert_eq!(lab.line("INSPECT k"), [text]);
    assert_eq!(lab.line("INSPECT"), ["inspect "]);
    lab.on(Event::Answer(Answer::Listing(Unread::default().listing("{}".to_owned()))));
    assert_eq!(lab.line("LOCK app-1"), ["acquire 2: write app-1 whole"]);
}

#[test]
fn token_must_come_before_anything_but_ping() {
    let with_token = || Lab::new(Rules { token: Some("secret".to_owned()), ..rules() });
    let text = "say error this server needs a token: send AUTH TOKEN first";
    for line in ["LOCK k", "INSPECT", "UNLOCK", "LOCK --bad"] {
        let mut lab = with_token();
        assert_eq!(lab.line("PING"), ["say pong"]);
        assert_eq!(lab.line(line), [text, "close"], "{line}");
    }
    let mut lab = with_token();
    assert_eq!(lab.line("AUTH secret"), ["say ok"]);
    assert_eq!(lab.line("LOCK k"), ["acquire 1: write k whole"]);
    assert_eq!(Lab::new(rules()).line("AUTH any"), ["say ok"]);
}

#[test]
fn wrong_token_is_answered_after_a_pause_and_closes() {
    for token in ["", "secre", "secret1", "Secret"] {
        let mut lab = Lab::new(Rules { token: Some("secret".to_owned()), ..rules() });
        assert!(lab.line(&format!("AUTH {token}")).is_empty());
        assert!(!lab.client.takes_lines());
        assert!(lab.after(SECOND / 2).is_empty());
        assert_eq!(lab.after(SECOND / 2), ["say error the token is wrong", "close"]);
    }
}

#[test]
fn client_without_a_first_line_is_closed_after_ten_seconds() {
    let mut lab = Lab::new(rules());
    assert!(lab.after(9 * SECOND).is_empty());
    assert_eq!(lab.after(SECOND), ["close"]);
    let mut lab = Lab::new(rules());
    lab.line("PING");
    assert_eq!(lab.client.timeout(&lab.rules), None);
    // A mistake does not give a client more time.
    let mut lab = Lab::new(rules());
    lab.line("LOCK /dav HTTP/1.1");
    assert_eq!(lab.after(10 * SECOND), ["close"]);
    // A PING does not give a client without the token more time.
    let mut lab = Lab::new(Rules { token: Some("secret".to_owned()), ..rules() });
    lab.line("PING");
    assert_eq!(lab.after(10 * SECOND), ["close"]);
    assert_eq!(Client::new(&rules(), Boottime::default(), true).timeout(&rules()), None);
}

#[test]
fn drain_closes_all_clients_but_holders_and_those_after_their_unlock() {
    assert_eq!(Lab::new(rules()).on(Event::Drain), ["close"]);
    let mut waiter = Lab::new(rules());
    waiter.line("LOCK k");
    waiter.stands(1, Standing::Waiting);
    assert_eq!(waiter.on(Event::Drain), ["release 1", "close"]);
    let mut holder = Lab::holding("LOCK k");
    assert!(holder.on(Event::Drain).is_empty());
    holder.line("UNLOCK");
    assert_eq!(holder.released(1, Released::Done), ["say ok", "close"]);
    let mut holder = Lab::holding("LOCK k");
    holder.on(Event::Drain);
    let text = "say lost the server ends and gives the lock back";
    assert_eq!(holder.on(Event::Stop), [text, "release 1", "close"]);
    let mut leaving = Lab::holding("LOCK k");
    leaving.line("UNLOCK");
    assert!(leaving.on(Event::Drain).is_empty());
    assert_eq!(leaving.released(1, Released::Done), ["say ok", "close"]);
}

#[test]
fn line_that_is_too_long_closes() {
    let text = "say error the line is too long: send at most 4096 bytes";
    assert_eq!(Lab::new(rules()).on(Event::LineTooLong), [text, "close"]);
    assert_eq!(Lab::holding("LOCK k").on(Event::LineTooLong), [text, "release 1", "close"]);
}

/// What can happen to a client, in any order.
#[derive(Clone, Debug)]
enum Chance {
    Line(&'static str),
    /// A grant, or its renewal, whose deadline is so many seconds away.
    Granted(usize, u8),
    Stands(usize, u8),
    Released(usize),
    Answer(u8),
    Pass(u8),
    Drain,
    Stop,
    End,
}

fn chance() -> impl Strategy<Value = Chance> {
    let lines = prop::sample::select(vec![
        "LOCK k",
        "TRY k",
        "LOCK --prewrite a",
        "LOCK -w 3s --prewrite a --read b",
        "RANGE-PREWRITE t 0 9",
        "UPGRADE",
        "UPGRADE 0 1",
        "UNLOCK",
        "SHRINK 0 1",
        "DOWNGRADE read",
        "INSPECT",
        "AUTH x",
        "PING",
        "nonsense",
    ]);
    prop_oneof![
        8 => lines.prop_map(Chance::Line),
        6 => (0..4_usize, 0..40_u8).prop_map(|(session, left)| Chance::Granted(session, left)),
        3 => (0..4_usize, 0..5_u8).prop_map(|(session, standing)| Chance::Stands(session, standing)),
        6 => (0..4_usize).prop_map(Chance::Released),
        3 => (0..4_u8).prop_map(Chance::Answer),
        3 => (0..20_u8).prop_map(Chance::Pass),
        1 => Just(Chance::Drain),
        1 => Just(Chance::Stop),
        1 => Just(Chance::End),
    ]
}

proptest! {
    /// Whatever happens: a session that was asked for is released, reported as over, or still
    /// known to the client; nothing is released twice; and nothing is said after the close. No
    /// grant is announced that leaves less than a grace, and none is released within a grace after
    /// a loss of another one.
    #[test]
    fn every_session_is_given_back_exactly_once(chances in prop::collection::vec(chance(), 0..60)) {
        let mut lab = Lab::new(rules());
        // The sessions that the store has, and those whose release it has been asked for.
        let (mut open, mut releasing) = (BTreeSet::new(), BTreeSet::new());
        let mut answers = 0_u32;
        let mut is_closed = false;
        // The sessions whose grants were announced, and when the client was told of a loss.
        let mut announced = BTreeSet::new();
        let mut lost_at = None;
        let pick = |from: &BTreeSet<u8>, at: usize| from.iter().nth(at % from.len().max(1)).copied();
        for chance in chances.into_iter().chain([Chance::End, Chance::Pass(u8::MAX)]) {
            let is_stop = matches!(chance, Chance::Stop);
            let (mut granted, mut lost) = (None, None);
            let actions = match chance {
                Chance::Line(line) if lab.client.takes_lines() => lab.line(line),
                Chance::Line(_) => continue,
                Chance::Granted(at, left) => {
                    let Some(session) = pick(&open, at) else { continue };
                    let left = Duration::from_secs(left.into());
                    granted = Some((session, left));
                    lab.granted_until(session, 7, lab.now + left)
                }
                Chance::Stands(at, standing) => {
                    let Some(session) = pick(&open, at) else { continue };
                    let standing = match standing {
                        0 => Ok(Standing::Waiting),
                        1 => Ok(Standing::Busy { obstructions: Vec::new(), streak: None }),
                        2 => Ok(Standing::Lost),
                        3 => Err(error()),
                        _ => Ok(Standing::Asking),
                    };
                    if !matches!(standing, Ok(Standing::Waiting | Standing::Asking)) {
                        open.remove(&session);
                    }
                    lost = Some(session);
                    lab.on(Event::Report(id(session), Report::Standing(standing)))
                }
                Chance::Released(at) => {
                    let Some(session) = pick(&releasing, at) else { continue };
                    releasing.remove(&session);
                    lab.released(session, Released::Done)
                }
                Chance::Answer(_) if answers == 0 => continue,
                Chance::Answer(kind) => {
                    answers -= 1;
                    lab.on(Event::Answer(match kind {
                        0 => Answer::Listing(Unread::default().listing("{}".to_owned())),
                        1 => Answer::Obstructions(Arc::default()),
                        2 => Answer::Changed(Changed::Done),
                        _ => Answer::Failed(error()),
                    }))
                }
                Chance::Pass(seconds) => lab.after(Duration::from_secs(seconds.into())),
                Chance::Drain => lab.on(Event::Drain),
                Chance::Stop => lab.on(Event::Stop),
                Chance::End => lab.on(Event::End),
            };
            announced.retain(|session| Some(*session) != lost);
            for action in actions {
                prop_assert!(!is_closed || action.starts_with("release"), "{action} after the close");
                if let (Some((session, left)), true) = (granted, action.starts_with("say ok")) {
                    prop_assert!(left > lab.rules.grace, "{action} with {left:?} left");
                    announced.insert(session);
                }
                if action.starts_with("say lost ") && !is_stop {
                    lost_at = Some(lab.now);
                }
                let number = action.split([' ', ':']).nth(1).and_then(|word| word.parse::<u8>().ok());
                match action.split(' ').next() {
                    Some("acquire") => prop_assert!(open.insert(number.unwrap())),
                    Some("release") => {
                        // A session that was lost is released too; the store knows nothing of it.
                        open.remove(&number.unwrap());
                        if let Some(lost_at) = lost_at.filter(|_| announced.contains(&number.unwrap())) {
                            prop_assert!(lost_at + lab.rules.grace <= lab.now, "{action} too early");
                        }
                        prop_assert!(releasing.insert(number.unwrap()), "{action} twice");
                    }
                    Some("inspect" | "ask" | "shrink" | "downgrade") => answers += 1,
                    Some("close") => is_closed = true,
                    _ => {}
                }
            }
        }
        prop_assert!(is_closed && open.is_empty(), "{open:?}");
        for session in releasing {
            lab.released(session, Released::Done);
        }
        prop_assert!(lab.client.is_over());
        prop_assert_eq!(lab.client.timeout(&lab.rules), None);
    }
}

/// A session of a reading with claims that are held, and claims that wait with this number.
fn session(above: Option<u8>, claims: &[(Mode, &str, Option<u64>)]) -> Session {
    let record = |(mode, name, number): &(Mode, &str, Option<u64>)| ClaimRecord {
        claim: Claim { resource: Resource::new(name).unwrap(), mode: *mode, span: Span::Whole, slots: None },
        rank: number.map_or(Rank::HELD, Rank::waiting),
        token: 0,
        shares: false,
        slot: None,
    };
    let waits = claims.iter().any(|(.., number)| number.is_some());
    Session {
        ancestors: above.map(id).into_iter().collect(),
        claims: claims.iter().map(record).collect(),
        phase: if waits { Phase::Waiting } else { Phase::Held },
        asked: StoreTime::from_micros(claims.iter().filter_map(|(.., number)| *number).max().unwrap_or(0)),
        since: StoreTime::default(),
        expiry: None,
        terms: None,
        job: Job::default(),
        last: None,
        process: Process::default(),
    }
}

/// An upgrade that waits since a second, as session 2 below session 1.
fn waiting_upgrade() -> Lab {
    let mut lab = Lab::holding("LOCK --prewrite a --read b");
    lab.line("UPGRADE");
    lab.stands(2, Standing::Waiting);
    assert!(!lab.client.asks());
    assert_eq!(lab.after(SECOND), ["read a b"]);
    assert!(lab.client.asks());
    lab
}

/// Two clients with an upgrade each, the second of which asked later.
fn circle(first: u8, second: u8) -> Event {
    let one = [(Mode::Prewrite, "a", None), (Mode::Read, "b", None)];
    let two = [(Mode::Prewrite, "b", None), (Mode::Read, "a", None)];
    let mut upgrades =
        [session(Some(1), &[(Mode::Write, "a", Some(7))]), session(Some(3), &[(Mode::Write, "b", Some(8))])];
    upgrades[0].asked = StoreTime::from_micros(u64::from(first));
    upgrades[1].asked = StoreTime::from_micros(u64::from(second));
    let [upgrade, other] = upgrades;
    let sessions = [(1, session(None, &one)), (2, upgrade), (3, session(None, &two)), (4, other)];
    Event::Answer(Answer::Reading(Arc::new(sessions.map(|(number, session)| (id(number), session)).into())))
}

#[test]
fn upgrade_that_closes_a_circle_leaves_the_queue_and_is_refused() {
    let mut lab = waiting_upgrade();
    // One reading is none: its parts are of different instants.
    assert!(lab.on(circle(9, 8)).is_empty() && !lab.client.asks());
    assert_eq!(lab.after(SECOND), ["read a b"]);
    let said = lab.on(circle(9, 8));
    assert_eq!(said[0], "release 2");
    assert!(said[1].starts_with("say refused deadlock: ") && said.len() == 2, "{said:?}");
    // The prewrite is still held.
    assert!(lab.released(2, Released::Done).is_empty() && lab.client.holds() && lab.client.takes_lines());
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
}

#[test]
fn older_upgrade_of_a_circle_goes_on_waiting() {
    let mut lab = waiting_upgrade();
    for _ in 0..3 {
        assert!(lab.on(circle(8, 9)).is_empty());
        assert_eq!(lab.after(SECOND), ["read a b"]);
    }
    assert!(lab.on(Event::Answer(Answer::Failed(error()))).is_empty());
    assert_eq!(lab.granted(2, 9), ["say ok 9"]);
}

#[test]
fn request_without_a_hold_above_never_looks_for_a_deadlock() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK a");
    lab.stands(1, Standing::Waiting);
    assert!(lab.after(10 * SECOND).is_empty() && !lab.client.asks());
    assert_eq!(lab.client.timeout(&lab.rules), None);
}

#[test]
fn release_that_no_client_hears_of_is_logged_as_the_store_confirms_it() {
    let mut lab = Lab::holding("LOCK k");
    lab.on(Event::Stop);
    let warning = "warn the release of 'k' is not confirmed, it may be held until its lease ends: the store is away";
    assert_eq!(lab.on(Event::Report(id(1), Report::Released(Err(error())))), [warning]);
    assert!(lab.client.is_over());
}
