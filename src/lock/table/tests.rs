//! Single situations with their exact replies. tests/properties has the random histories.

use std::time::Duration;

use super::super::op::ResourceListing;
use super::super::request::Terms;
use super::super::samples::{claim, id, name, request, span};
use super::*;

const NOW: StoreTime = StoreTime::from_micros(1_000);

fn slot(slots: u32) -> Claim {
    Claim { slots: Some(slots), ..claim(Mode::Slot, "") }
}

#[derive(Default)]
struct Table(LockTable);

impl Table {
    fn apply(&mut self, op: Op) -> Outcome {
        let Ok(outcome) = self.0.apply(NOW, op);
        outcome
    }

    fn ask(&mut self, session: u8, ancestors: &[u8], claims: &[Claim]) -> Reply {
        self.apply(Op::Acquire(request(session, ancestors, claims))).reply
    }

    fn shrink(&mut self, session: u8, resource: &str, part: &str) -> Reply {
        self.apply(Op::Shrink { session: id(session), resource: name(resource), span: span(part) }).reply
    }

    fn downgrade(&mut self, session: u8, mode: Mode) -> Reply {
        self.apply(Op::Downgrade { session: id(session), resource: name("r"), mode }).reply
    }

    fn listing(&mut self) -> ResourceListing {
        match self.apply(Op::Inspect(vec![name("r")])).reply {
            Reply::Listing(mut listing) => listing.remove(0),
            other => panic!("inspect replied {other:?}"),
        }
    }
}

fn why(reply: Reply) -> String {
    match reply {
        Reply::Refused(refusal) => refusal.to_string(),
        other => panic!("expected a refusal, not {other:?}"),
    }
}

fn not_below(held: Mode, asked: Mode) -> String {
    format!(
        "what this session holds of 'r' can't be lowered from {held} to {asked}: a hold is lowered from write to prewrite or read, \
         or from prewrite to read"
    )
}

/// A release that tells nothing of a run.
fn release(session: u8) -> Op {
    Op::Release { session: id(session), end: None }
}

fn granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted { .. })
}

#[test]
fn claim_below_a_hold_that_cannot_be_upgraded_is_refused() {
    for (held, asked, there) in [
        (claim(Mode::Read, ""), Mode::Prewrite, "prewrite"),
        (claim(Mode::Read, ""), Mode::Write, "prewrite or --write"),
        (slot(2), Mode::Prewrite, "prewrite"),
        (slot(2), Mode::Write, "prewrite or --write"),
    ] {
        let mut table = Table::default();
        table.ask(1, &[], std::slice::from_ref(&held));
        let expected = format!(
            "an enclosing rlock holds 'r' for {}, which can't become {asked} without risk of deadlock: claim --{there} there instead",
            held.mode
        );
        assert_eq!(why(table.ask(2, &[1], &[claim(asked, "")])), expected);
        assert_eq!(table.listing().waiters, []);
    }
}

#[test]
fn claim_past_the_span_of_its_ancestors_is_refused_and_the_outermost_is_named() {
    let mut table = Table::default();
    table.ask(1, &[], &[claim(Mode::Write, "[0,10)")]);
    table.ask(2, &[1], &[claim(Mode::Read, "[2,3]")]);
    assert_eq!(
        why(table.ask(3, &[2, 1], &[claim(Mode::Read, "[2,10]")])),
        "an enclosing rlock holds [0,10) of 'r', and [2,10] reaches past that: claim all of it there, or no more than that here"
    );
    assert_eq!(
        why(table.ask(3, &[2, 1], &[claim(Mode::Read, "")])),
        "an enclosing rlock holds [0,10) of 'r', and the whole of it reaches past that: claim all of it there, or no more than that here"
    );
    assert!(granted(&table.ask(3, &[2, 1], &[claim(Mode::Write, "[9,10)")])));
}

#[test]
fn other_number_of_slots_is_refused_while_a_slot_is_held_or_waited_for() {
    let mut table = Table::default();
    table.ask(1, &[], &[claim(Mode::Write, "")]);
    assert_eq!(table.ask(2, &[], &[slot(2)]), Reply::Waiting);
    let text = "'r' is shared in 2 slots as long as anybody holds or waits for one, not in 3: ask for r=2";
    assert_eq!(why(table.ask(3, &[], &[slot(3)])), text);
    table.apply(release(1));
    assert_eq!(why(table.ask(3, &[], &[slot(3)])), text);
    table.ask(4, &[], &[claim(Mode::Read, "")]);
    table.apply(release(2));
    assert!(granted(&table.ask(3, &[], &[slot(3)])));
}

#[test]
fn shrink_and_downgrade_of_an_unheld_resource_are_refused() {
    let mut table = Table::default();
    assert_eq!(table.shrink(1, "r", "[0,1]"), Reply::Unknown);
    assert_eq!(table.downgrade(1, Mode::Read), Reply::Unknown);
    table.ask(1, &[], &[claim(Mode::Write, "[0,9]")]);
    let text = "this session holds nothing of 's': name what it holds with --resource";
    assert_eq!(why(table.shrink(1, "s", "[0,1]")), text);
    let op = Op::Downgrade { session: id(1), resource: name("s"), mode: Mode::Read };
    assert_eq!(why(table.apply(op).reply), text);
    assert_eq!(
        why(table.shrink(1, "r", "[0,10]")),
        "[0,10] is not inside what this session holds of 'r': a hold can only shrink, 'rlock inspect' shows it"
    );
    assert_eq!(table.ask(2, &[], &[claim(Mode::Write, "[0,9]")]), Reply::Waiting);
    assert!(why(table.shrink(2, "r", "[0,1]")).starts_with("this session holds nothing of 'r'"));
    assert!(why(table.downgrade(2, Mode::Read)).starts_with("this session holds nothing of 'r'"));
}

#[test]
fn slot_can_be_neither_shrunk_nor_downgraded() {
    let mut table = Table::default();
    table.ask(1, &[], &[slot(2)]);
    assert_eq!(why(table.shrink(1, "r", "[0,1]")), "this session holds a slot of 'r', which has no parts to give up");
    for mode in Mode::ALL {
        assert_eq!(why(table.downgrade(1, mode)), not_below(Mode::Slot, mode));
    }
}

#[test]
fn downgrade_to_a_mode_that_is_not_lower_is_refused() {
    let mut table = Table::default();
    table.ask(1, &[], &[claim(Mode::Prewrite, "")]);
    assert_eq!(why(table.downgrade(1, Mode::Write)), not_below(Mode::Prewrite, Mode::Write));
    assert_eq!(table.downgrade(1, Mode::Prewrite), Reply::Done);
    assert_eq!(table.downgrade(1, Mode::Read), Reply::Done);
    assert_eq!(why(table.downgrade(1, Mode::Prewrite)), not_below(Mode::Read, Mode::Prewrite));
}

#[test]
fn change_that_would_strand_a_nested_waiter_is_refused() {
    let text = "a nested rlock waits for 'r' on the strength of this hold: let it finish or end it first";
    let mut table = Table::default();
    table.ask(1, &[], &[claim(Mode::Prewrite, "[0,9]")]);
    table.ask(2, &[], &[claim(Mode::Read, "[4,5]")]);
    assert_eq!(table.ask(3, &[1], &[claim(Mode::Write, "[4,5]")]), Reply::Waiting);
    assert_eq!(why(table.shrink(1, "r", "[0,4]")), text);
    assert_eq!(why(table.downgrade(1, Mode::Read)), text);
    assert_eq!(table.shrink(1, "r", "[4,9]"), Reply::Done);
    assert_eq!(table.apply(release(2)).granted, [id(3)]);
    assert_eq!(table.downgrade(1, Mode::Read), Reply::Done);
}

#[test]
fn upgrade_passes_the_queue_and_leaves_the_prewrite() {
    let mut table = Table::default();
    table.ask(1, &[], &[claim(Mode::Prewrite, "")]);
    table.ask(2, &[], &[claim(Mode::Read, "[0,1]")]);
    assert_eq!(table.ask(3, &[], &[claim(Mode::Write, "")]), Reply::Waiting);
    assert_eq!(table.ask(4, &[1], &[claim(Mode::Write, "[0,5]")]), Reply::Waiting);
    assert_eq!(table.ask(5, &[], &[claim(Mode::Read, "[5,6]")]), Reply::Waiting);
    assert_eq!(table.listing().waiters.iter().map(|waiter| waiter.session).collect::<Vec<_>>(), [id(4), id(3), id(5)]);
    assert_eq!(table.apply(release(2)).granted, [id(4)]);
    assert_eq!(table.apply(release(4)).granted, []);
    assert_eq!(table.listing().holders.iter().map(|holder| holder.mode).collect::<Vec<_>>(), [Mode::Prewrite]);
    assert_eq!(table.apply(release(1)).granted, [id(3)]);
}

#[test]
fn queued_write_blocks_only_later_claims_that_overlap() {
    let mut table = Table::default();
    table.ask(1, &[], &[claim(Mode::Read, "[0,1]")]);
    assert_eq!(table.ask(2, &[], &[claim(Mode::Write, "[0,1]")]), Reply::Waiting);
    assert!(granted(&table.ask(3, &[], &[claim(Mode::Write, "[5,6]")])));
    let hasty = Request { wait: false, ..request(4, &[], &[claim(Mode::Read, "[1,2]")]) };
    assert_eq!(table.apply(Op::Acquire(hasty)).reply, Reply::Busy { blockers: vec![id(2)], streak: None });
    assert!(granted(&table.ask(5, &[], &[claim(Mode::Read, "(1,2]")])));
}

#[test]
fn waiting_share_takes_no_slot_until_its_ancestor_releases() {
    let other = |mode| Claim { resource: name("s"), ..claim(mode, "") };
    let mut table = Table::default();
    table.ask(1, &[], &[slot(2)]);
    table.ask(2, &[], &[other(Mode::Write)]);
    assert_eq!(table.ask(3, &[1], &[slot(2), other(Mode::Write)]), Reply::Waiting);
    assert!(granted(&table.ask(4, &[], &[slot(2)])), "one of two slots is free");
    assert_eq!(table.ask(5, &[], &[slot(2)]), Reply::Waiting);
    assert_eq!(table.apply(release(1)).granted, [], "the share takes the slot that it shared");
    assert_eq!(table.apply(release(2)).granted, [id(3)]);
    assert_eq!(table.apply(release(4)).granted, [id(5)]);
}

#[test]
fn share_is_granted_at_once_even_if_other_shares_outlived_the_ancestor() {
    let mut table = Table::default();
    table.ask(1, &[], &[slot(1)]);
    assert!(granted(&table.ask(2, &[1], &[slot(1)])));
    assert!(granted(&table.ask(3, &[1], &[slot(1)])));
    table.apply(release(1));
    assert_eq!(table.ask(4, &[], &[slot(1)]), Reply::Waiting);
    assert!(granted(&table.ask(5, &[2, 1], &[slot(1)])));
}

#[test]
fn lease_of_maximum_length_does_not_overflow() {
    let terms = Terms { ttl: Duration::MAX, claim: Duration::MAX, heartbeat: Duration::MAX };
    let mut table = Table::default();
    for session in [1, 2] {
        table.apply(Op::Acquire(Request { terms: Some(terms), ..request(session, &[], &[claim(Mode::Write, "")]) }));
    }
    assert!(granted(&table.apply(Op::Renew(id(1))).reply));
    assert_eq!(table.apply(release(1)).granted, [id(2)]);
    assert!(granted(&table.apply(Op::Renew(id(2))).reply));
}
