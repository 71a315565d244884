//! Single situations with their exact replies. tests/properties has the random histories.

use std::time::Duration;

use super::super::kept::EVER;
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
        self.apply(Op::Acquire { request: request(session, ancestors, claims), place: None }).reply
    }

    fn shrink(&mut self, session: u8, resource: &str, part: &str) -> Reply {
        let change = Change::Shrink { resource: name(resource), span: span(part) };
        self.apply(Op::Change { session: id(session), change }).reply
    }

    fn downgrade(&mut self, session: u8, mode: Mode) -> Reply {
        let change = Change::Downgrade { resource: name("r"), mode };
        self.apply(Op::Change { session: id(session), change }).reply
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
fn smallest_number_of_slots_counts_while_a_slot_is_held_or_waited_for() {
    let mut table = Table::default();
    assert!(granted(&table.ask(1, &[], &[slot(2)])));
    assert!(granted(&table.ask(2, &[], &[slot(3)])));
    assert_eq!(table.ask(3, &[], &[slot(3)]), Reply::Waiting);
    assert_eq!(table.ask(4, &[], &[slot(1)]), Reply::Waiting);
    assert_eq!(table.apply(release(1)).granted, [id(3)]);
    assert_eq!(table.ask(5, &[], &[slot(3)]), Reply::Waiting, "4 waits ahead");
    table.apply(release(4));
    assert_eq!(table.ask(6, &[], &[slot(3)]), Reply::Waiting, "5 has the third slot");
}

#[test]
fn shrink_and_downgrade_of_an_unheld_resource_are_refused() {
    let mut table = Table::default();
    assert_eq!(table.shrink(1, "r", "[0,1]"), Reply::Unknown);
    assert_eq!(table.downgrade(1, Mode::Read), Reply::Unknown);
    table.ask(1, &[], &[claim(Mode::Write, "[0,9]")]);
    let text = "this session holds nothing of 's': name what it holds with --resource";
    assert_eq!(why(table.shrink(1, "s", "[0,1]")), text);
    let op = Op::Change { session: id(1), change: Change::Downgrade { resource: name("s"), mode: Mode::Read } };
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
    assert_eq!(table.listing().waiters.iter().map(|waiter| waiter.session).collect::<Vec<_>>(), [id(3), id(4), id(5)]);
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
    assert_eq!(
        table.apply(Op::Acquire { request: hasty, place: None }).reply,
        Reply::Busy { blockers: vec![id(2)], streak: None }
    );
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

/// 4 waits for both slots of `r` and can't get them. 3 needs none, and comes before 5, which asked
/// later.
#[test]
fn share_behind_a_waiter_without_slots_is_granted_in_its_turn() {
    let mut table = Table::default();
    let other = |mode| Claim { resource: name("o"), ..claim(mode, "") };
    table.ask(1, &[], &[slot(2)]);
    table.ask(2, &[], &[slot(2), other(Mode::Write)]);
    assert_eq!(table.ask(4, &[], &[slot(2), slot(2)]), Reply::Waiting);
    assert_eq!(table.ask(5, &[], &[other(Mode::Read)]), Reply::Waiting);
    assert_eq!(table.ask(3, &[1], &[slot(2), other(Mode::Read)]), Reply::Waiting);
    assert_eq!(table.apply(release(2)).granted, [id(3), id(5)]);
}

#[test]
fn lease_of_maximum_length_does_not_overflow() {
    let terms = Terms { ttl: Duration::MAX, claim: Duration::MAX, heartbeat: Duration::MAX };
    let mut table = Table::default();
    for session in [1, 2] {
        table.apply(Op::Acquire {
            request: Request { terms: Some(terms), ..request(session, &[], &[claim(Mode::Write, "")]) },
            place: None,
        });
    }
    assert!(granted(&table.apply(Op::Renew(id(1))).reply));
    assert_eq!(table.apply(release(1)).granted, [id(2)]);
    assert!(granted(&table.apply(Op::Renew(id(2))).reply));
}

/// Kept holds, jobs and the past; the stories of tests/stories show them as well.
mod past {
    use super::super::super::past::{End, Ending, Event, HISTORY_MAX, RETENTION, RETENTION_OF_TOTALS, WaitEnd};
    use super::super::super::request::{Job, OncePer};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn job(job: Job, session: u8) -> Op {
        Op::Acquire { request: Request { job, ..request(session, &[], &[claim(Mode::Write, "")]) }, place: None }
    }

    fn ended(session: u8, code: u8) -> Op {
        let end = Some(End { ending: Ending::Exit(code), is_success: code == 0 });
        Op::Release { session: id(session), end }
    }

    fn at(table: &mut LockTable, now: StoreTime, op: Op) -> Outcome {
        let Ok(outcome) = table.apply(now, op);
        outcome
    }

    fn found(table: &LockTable, now: StoreTime) -> Option<Remembered> {
        let Ok(found) = table.past(now, &name("r"), HISTORY_MAX);
        found
    }

    /// "How long the name's last success, totals and entries stay after its last use."
    #[test]
    fn past_is_kept_for_as_long_as_a_run_asks_to_remember_it() {
        let day = Duration::from_secs(24 * 3600);
        let mut table = LockTable::default();
        let backup =
            Job { name: "backup".to_owned(), is_named: true, remember: Some(90 * day), history: 32, ..Job::default() };
        at(&mut table, NOW, job(backup, 1));
        at(&mut table, NOW, ended(1, 0));
        let last_month = NOW + 60 * day;
        at(&mut table, last_month, job(Job { history: 32, ..Job::default() }, 2));
        at(&mut table, last_month, ended(2, 3));
        let kept = found(&table, NOW + 89 * day).unwrap();
        assert_eq!((kept.past.last_success, kept.past.jobs["backup"].ended), (Some(NOW), Some(NOW)));
        assert_eq!((kept.past.totals.ended, kept.entries.len()), (2, 2));
        assert_eq!(found(&table, NOW + 90 * day), None);
    }

    /// "A request that is busy at once less than a second after the last of its job makes no new
    /// write."
    #[test]
    fn job_that_asks_again_and_again_is_entered_once_a_second() {
        let mut table = LockTable::default();
        let busy = |session| {
            let Op::Acquire { mut request, .. } = job(Job { name: "j".to_owned(), ..Job::default() }, session) else {
                unreachable!("it asks")
            };
            request.wait = false;
            Op::Acquire { request, place: None }
        };
        at(&mut table, NOW, job(Job::default(), 1));
        for (micros, expected) in [(0, 1), (999_999, 1), (1_000_000, 2), (1_999_999, 2), (2_000_000, 3)] {
            at(&mut table, NOW + Duration::from_micros(micros), busy(2));
            let entries = found(&table, NOW).unwrap().entries;
            let event =
                Event::Waited { how: WaitEnd::Busy, count: expected, sum: Duration::ZERO, longest: Duration::ZERO };
            assert_eq!(entries.iter().map(|entry| entry.event).collect::<Vec<_>>(), [event], "{micros}");
        }
        assert_eq!(found(&table, NOW).unwrap().past.totals.busy, 5);
    }

    /// A client repeats a release whose reply it has not received.
    #[test]
    fn repeated_release_does_not_end_the_minimum_hold() {
        let mut table = LockTable::default();
        at(&mut table, NOW, job(Job { hold_at_least: Some(SECOND), ..Job::default() }, 1));
        for _ in 0..2 {
            assert_eq!(at(&mut table, NOW, ended(1, 0)).reply, Reply::KeptUntil(NOW + SECOND));
        }
        assert_eq!(at(&mut table, NOW + SECOND, Op::Expire).expired, [id(1)]);
        let past = found(&table, NOW + SECOND).unwrap();
        assert_eq!((past.entries.len(), past.past.totals.ended), (1, 1));
        assert_eq!(past.past.totals.held, SECOND);
    }

    #[test]
    fn kept_hold_is_not_renewed_and_not_reaped() {
        let mut table = LockTable::default();
        at(&mut table, NOW, job(Job { keep_for: Some(SECOND), ..Job::default() }, 1));
        for op in [Op::Renew(id(1)), Op::Reap { session: id(1), ended: None }] {
            let Reply::Granted { lease, .. } = at(&mut table, NOW + SECOND / 2, op).reply else { panic!("not held") };
            assert_eq!(lease, Some(SECOND / 2));
        }
    }

    #[test]
    fn kept_hold_lasts_for_a_week_at_most() {
        let week = Duration::from_secs(7 * 24 * 3_600);
        let mut table = LockTable::default();
        let lease = |reply| if let Reply::Granted { lease, .. } = reply { lease } else { None };
        let reply = at(&mut table, NOW, job(Job { keep_for: Some(week * 2), ..Job::default() }, 1)).reply;
        assert_eq!(lease(reply), Some(week));
        let by = Some(week * 2);
        assert_eq!(
            lease(at(&mut table, NOW + SECOND, Op::Change { session: id(1), change: Change::Extend { by } }).reply),
            Some(week)
        );
    }

    /// A kept hold without an end has no expiry in listings, and no extension gives it an end.
    #[test]
    fn kept_hold_without_an_end_ends_by_a_release_alone() {
        let century = Duration::from_secs(100 * 365 * 24 * 3_600);
        for (kept, by) in [(EVER, Some(SECOND)), (SECOND, Some(EVER)), (EVER, None)] {
            let mut table = LockTable::default();
            at(&mut table, NOW, job(Job { keep_for: Some(kept), ..Job::default() }, 1));
            at(&mut table, NOW, Op::Change { session: id(1), change: Change::Extend { by } });
            let Reply::Listing(listings) = at(&mut table, NOW + century, Op::Inspect(Vec::new())).reply else {
                panic!("no listing")
            };
            let holder = &listings[0].holders[0];
            assert_eq!((holder.kept, holder.expiry), (true, None), "{kept:?} {by:?}");
            at(&mut table, NOW + century, Op::Release { session: id(1), end: None });
            assert!(table.into_records().is_empty());
        }
    }

    /// The number in the queue decides, not when the superseded request asks again.
    #[test]
    fn superseded_request_that_returns_is_busy_and_a_later_one_is_queued() {
        let mut table = LockTable::default();
        let of_job = |supersedes| Job { name: "j".to_owned(), supersedes, ..Job::default() };
        let returning = |session, number| {
            let Op::Acquire { request, .. } = job(of_job(true), session) else { unreachable!("it asks") };
            Op::Acquire { request, place: Some(Place { number, asked: NOW }) }
        };
        at(&mut table, NOW, job(of_job(false), 1));
        assert_eq!(at(&mut table, NOW, job(of_job(false), 2)).reply, Reply::Waiting);
        let newer = at(&mut table, NOW, job(of_job(true), 3));
        assert_eq!((newer.reply, newer.granted), (Reply::Waiting, vec![id(2)]));
        for _ in 0..2 {
            let reply = at(&mut table, NOW, returning(2, 1)).reply;
            assert!(matches!(reply, Reply::Superseded { .. }), "{reply:?}");
        }
        let Remembered { past, entries, .. } = found(&table, NOW).unwrap();
        let event = Event::Waited { how: WaitEnd::Superseded, count: 1, sum: Duration::ZERO, longest: Duration::ZERO };
        assert_eq!((past.totals.busy, entries.iter().map(|entry| entry.event).collect()), (2, vec![event]));
        at(&mut table, NOW, release(3));
        assert_eq!(at(&mut table, NOW, returning(3, 2)).reply, Reply::Waiting, "it comes after itself");
        let over = NOW + RETENTION;
        at(&mut table, over, Op::Break { resource: name("r"), only: None, by: None });
        at(&mut table, over, release(3));
        assert_eq!(at(&mut table, over + RETENTION, Op::Expire).reply, Reply::Done);
        assert!(table.into_records().is_forgotten());
    }

    /// "Where it ends waiters, it is noted without room, too."
    #[test]
    fn superseded_request_does_not_return_to_a_table_without_room() {
        let mut table = LockTable::new(super::super::super::records::Memory::with_room(0));
        let of_job = |supersedes| Job { name: "j".to_owned(), supersedes, ..Job::default() };
        at(&mut table, NOW, job(of_job(false), 1));
        at(&mut table, NOW, job(of_job(false), 2));
        assert_eq!(at(&mut table, NOW, job(of_job(true), 3)).granted, [id(2)]);
        let Op::Acquire { request, .. } = job(of_job(false), 2) else { unreachable!("it asks") };
        let reply = at(&mut table, NOW, Op::Acquire { request, place: Some(Place { number: 1, asked: NOW }) }).reply;
        assert!(matches!(reply, Reply::Superseded { .. }), "{reply:?}");
    }

    /// "The store looks at the first 500 waiting claims of the KEYs."
    #[test]
    fn request_supersedes_the_first_five_hundred_waiters() {
        let mut table = LockTable::default();
        let of_job = |supersedes| Job { name: "j".to_owned(), supersedes, ..Job::default() };
        at(&mut table, NOW, job(of_job(false), 1));
        for number in 0..502_u128 {
            let mut request = request(2, &[], &[claim(Mode::Write, "")]);
            (request.session, request.job) = (SessionId((number + 7).to_be_bytes()), of_job(false));
            at(&mut table, NOW, Op::Acquire { request, place: None });
        }
        assert_eq!(at(&mut table, NOW, job(of_job(true), 3)).granted.len(), 500);
    }

    /// "The store decides in the step that grants, and again when a waiter's turn comes."
    #[test]
    fn long_queue_of_waiters_whose_job_is_done_leaves_in_one_step() {
        let once_per = Some(OncePer { period: SECOND, calendar: None });
        let mut table = LockTable::default();
        at(&mut table, NOW, job(Job { once_per, ..Job::default() }, 1));
        for number in 0..5_000_u128 {
            let mut request = request(2, &[], &[claim(Mode::Write, "")]);
            request.session = SessionId((number + 7).to_be_bytes());
            request.job.once_per = once_per;
            at(&mut table, NOW, Op::Acquire { request, place: None });
        }
        at(&mut table, NOW, job(Job::default(), 3));
        let outcome = at(&mut table, NOW, ended(1, 0));
        assert_eq!((outcome.granted.len(), outcome.granted.last()), (5_001, Some(&id(3))));
    }

    #[test]
    fn holder_learns_how_the_hold_before_it_ended() {
        let mut table = LockTable::default();
        let last = |reply| if let Reply::Granted { last, .. } = reply { last } else { panic!("not granted") };
        assert_eq!(last(at(&mut table, NOW, job(Job::default(), 1)).reply), None);
        at(&mut table, NOW, job(Job::default(), 2));
        at(&mut table, NOW, ended(1, 3));
        assert_eq!(last(at(&mut table, NOW, Op::Renew(id(2))).reply), Some(Ending::Exit(3)));
        at(&mut table, NOW, release(2));
        assert_eq!(last(at(&mut table, NOW, job(Job::default(), 3)).reply), Some(Ending::Exit(3)));
        at(&mut table, NOW, Op::Break { resource: name("r"), only: None, by: None });
        assert_eq!(last(at(&mut table, NOW, job(Job::default(), 4)).reply), Some(Ending::Broken));
    }

    #[test]
    fn totals_are_forgotten_after_an_hour_and_history_after_a_week() {
        for (history, retention) in [(0, RETENTION_OF_TOTALS), (1, RETENTION)] {
            let mut table = LockTable::default();
            at(&mut table, NOW, job(Job { history, ..Job::default() }, 1));
            at(&mut table, NOW, ended(1, 7));
            let over = NOW + retention;
            assert!(found(&table, over).is_none());
            assert!(found(&table, StoreTime::from_micros(over.as_micros() - 1)).is_some());
            at(&mut table, over, Op::Expire);
            assert!(table.records().is_forgotten());
        }
    }

    #[test]
    fn held_resource_forgets_nothing() {
        let mut table = LockTable::default();
        at(&mut table, NOW, job(Job::default(), 1));
        at(&mut table, NOW, ended(1, 7));
        at(&mut table, NOW, job(Job::default(), 2));
        at(&mut table, NOW + RETENTION * 2, Op::Expire);
        assert_eq!(found(&table, NOW + RETENTION * 2).unwrap().entries.len(), 1);
    }

    /// An operation removes a bounded number of records.
    #[test]
    fn long_ring_is_forgotten_at_once_and_removed_in_steps() {
        let mut table = LockTable::default();
        for session in 0..=HISTORY_MAX {
            let session = (session % 250) as u8;
            at(&mut table, NOW, job(Job { history: u32::MAX, ..Job::default() }, session));
            at(&mut table, NOW, ended(session, 7));
        }
        assert_eq!(found(&table, NOW).unwrap().entries.len(), HISTORY_MAX as usize);
        let over = NOW + RETENTION;
        at(&mut table, over, Op::Expire);
        assert!(found(&table, over).is_none() && !table.records().is_forgotten());
        for _ in 0..HISTORY_MAX / 64 {
            at(&mut table, over, Op::Expire);
        }
        assert!(table.records().is_forgotten());
    }
}
