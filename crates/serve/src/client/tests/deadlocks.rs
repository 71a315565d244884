//! Upgrades that look for a deadlock.

use std::sync::Arc;

use super::*;
use rlock_model::index::Rank;
use rlock_model::records::{ClaimRecord, Phase, Session};
use rlock_model::request::{Job, Process};
use rlock_model::span::Span;
use rlock_sys::clock::StoreTime;

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
        revoked: None,
        later: Vec::new(),
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
fn cycle(first: u8, second: u8) -> Event {
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
fn upgrade_that_closes_a_cycle_leaves_the_queue_and_is_refused() {
    let mut lab = waiting_upgrade();
    // One reading is none: its parts are of different instants.
    assert!(lab.on(cycle(9, 8)).is_empty() && !lab.client.asks());
    assert_eq!(lab.after(SECOND), ["read a b"]);
    let said = lab.on(cycle(9, 8));
    assert_eq!(said[0], "release 2");
    assert!(said[1].starts_with("say refused deadlock: ") && said.len() == 2, "{said:?}");
    // The prewrite is still held.
    assert!(lab.released(2, Released::Done).is_empty() && lab.client.holds() && lab.client.takes_lines());
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
}

#[test]
fn older_upgrade_of_a_cycle_goes_on_waiting() {
    let mut lab = waiting_upgrade();
    for _ in 0..3 {
        assert!(lab.on(cycle(8, 9)).is_empty());
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
