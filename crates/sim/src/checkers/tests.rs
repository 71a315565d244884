use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Checkers that see some writers ask for one resource, one millisecond after another.
fn writers(count: u8) -> Checkers {
    let mut checkers = Checkers { is_calm: true, ..Checkers::default() };
    for number in 0..count {
        let claim = request::Claim {
            resource: Resource::new("k").unwrap(),
            mode: mode::Mode::Write,
            span: span::Span::Whole,
            slots: None,
        };
        let request = Request {
            session: session(number),
            ancestors: Vec::new(),
            claims: vec![claim],
            wait: true,
            terms: None,
            job: request::Job::default(),
            process: request::Process::default(),
        };
        checkers.ask(&request, MS(number.into()));
    }
    checkers
}

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

#[test]
fn overlap_is_a_violation_unless_a_loss_was_reported() {
    for (is_covered, codes, expected) in [(true, [0, 76], 1), (false, [0, 0], 1), (false, [0, 76], 0)] {
        let mut checkers = writers(2);
        if !is_covered {
            checkers.lose_data(MS(9));
        }
        checkers.start(0, &[1], MS(10));
        checkers.start(1, &[2], MS(11));
        (0..2).for_each(|run| checkers.exit(run, codes[run], MS(12)));
        assert_eq!(checkers.violations.len(), expected, "{:?}", checkers.violations);
    }
}

#[test]
fn overlap_needs_no_report_if_the_lost_grant_is_back_and_the_other_was_released() {
    let [both, none] = [BTreeSet::from([0, 1]), BTreeSet::new()];
    let [one, other] = [0, 1].map(|run| BTreeSet::from([run]));
    for (is_released, before, after, expected) in [
        (true, &none, &one, 0),
        (true, &one, &one, 1),
        (true, &none, &none, 1),
        (false, &other, &one, 1),
        (false, &other, &both, 0),
    ] {
        let mut checkers = writers(2);
        checkers.start(0, &[1], MS(10));
        checkers.break_grant(session(0));
        checkers.start(1, &[2], MS(11));
        if is_released {
            checkers.release(session(1), 1);
        }
        checkers.give_back(before, after);
        (0..2).for_each(|run| checkers.exit(run, 0, MS(12)));
        let violations = &checkers.violations;
        assert_eq!(violations.len(), expected, "{is_released} {before:?} {after:?}: {violations:?}");
    }
}

#[test]
fn part_that_was_given_up_excludes_nobody() {
    let resource = Resource::new("k").unwrap();
    for (gives_up, expected) in [(false, 2), (true, 0)] {
        let mut checkers = writers(3);
        checkers.runs[1].claims[0].mode = Mode::Read;
        checkers.runs[2].claims[0] = Claim::part("k", Mode::Read, "[5,6]");
        checkers.start(0, &[1], MS(10));
        if gives_up {
            checkers.shrink(session(0), &resource, &span::Span::parse("[0,9]").unwrap(), MS(11));
            checkers.lower(session(0), &resource, mode::Mode::Read, MS(12));
        }
        checkers.start(1, &[2], MS(13));
        checkers.start(2, &[3], MS(14));
        assert_eq!(checkers.violations.len(), expected, "{:?}", checkers.violations);
    }
}

#[test]
fn every_interval_that_contains_the_new_one_shrinks_whatever_its_mode() {
    let mut checkers = writers(2);
    let claims = [("[2,4]", Mode::Prewrite), ("[2,4]", Mode::Read), ("[7,9]", Mode::Read)];
    checkers.runs[0].claims = claims.map(|(span, mode)| Claim::part("k", mode, span)).to_vec();
    checkers.start(0, &[1, 1, 1], MS(10));
    checkers.shrink(session(0), &Resource::new("k").unwrap(), &span::Span::parse("[2,2]").unwrap(), MS(11));
    let spans = ["[2,2]", "[2,2]", "[7,9]"].map(Span::interval);
    assert!(checkers.runs[0].claims.iter().map(|claim| &claim.span).eq(&spans));
    checkers.runs[1].claims[0] = Claim::part("k", Mode::Write, "(2,4)");
    checkers.start(1, &[2], MS(12));
    assert!(checkers.violations.is_empty(), "{:?}", checkers.violations);
}

#[test]
fn token_that_does_not_rise_is_a_violation() {
    let mut checkers = writers(2);
    checkers.start(0, &[2], MS(10));
    checkers.end(0);
    checkers.start(1, &[2], MS(11));
    assert_eq!(checkers.violations.len(), 1);
}

#[test]
fn grant_past_a_waiter_in_the_queue_is_a_violation() {
    let mut checkers = writers(3);
    checkers.queue(0, MS(1));
    checkers.check_order(session(1), |_| true);
    assert!(checkers.violations.is_empty(), "the second one asked before the first knew its place");
    checkers.check_order(session(2), |_| false);
    assert!(checkers.violations.is_empty(), "the first one was passed over");
    checkers.check_order(session(2), |_| true);
    assert_eq!(checkers.violations.len(), 1);
}

#[test]
fn waiter_that_nobody_serves_is_a_violation() {
    let (late, ends) = (MS(1000), Some(MS(10_000)));
    let mut checkers = writers(2);
    checkers.believe(0, &[1], MS(9000), ends, MS(5));
    checkers.check_waiters(late, |_| None);
    assert!(checkers.violations.is_empty(), "a live session is in the way");
    checkers.vanish(0, late);
    checkers.looked = Duration::ZERO;
    checkers.check_waiters(late + IDLE_MAX_CALM, |_| None);
    assert!(checkers.violations.is_empty(), "the way has been free for a short time");
    checkers.looked = Duration::ZERO;
    checkers.check_waiters(late + 2 * IDLE_MAX_CALM, |_| None);
    assert_eq!(checkers.violations.len(), 1);
}

#[test]
fn waiter_may_wait_for_the_lease_of_a_killed_rlock() {
    for (at, expected) in [(IDLE_MAX, 0), (IDLE_MAX + MS(2), 1)] {
        let mut checkers = writers(1);
        checkers.abandon(MS(1));
        checkers.check_waiters(at, |_| None);
        assert_eq!(checkers.violations.len(), expected, "{:?}", checkers.violations);
    }
}

#[test]
fn belief_in_a_longer_lease_or_another_grant_is_a_violation() {
    let mut checkers = writers(1);
    checkers.believe(0, &[1], MS(9000), Some(MS(9001)), MS(5));
    assert!(checkers.violations.is_empty());
    checkers.believe(0, &[1], MS(9000), Some(MS(8999)), MS(6));
    checkers.believe(0, &[2], MS(9000), None, MS(7));
    assert_eq!(checkers.violations.len(), 2);
}

#[test]
fn session_with_too_many_commands_is_a_violation() {
    for (calls, lasts, expected) in [(CALLS, MS(1), 0), (CALLS + 1, MS(1), 1), (CALLS + 1, RENEWAL, 0)] {
        let mut checkers = writers(1);
        (0..calls).for_each(|_| checkers.count_call(session(0)));
        checkers.exit(0, 0, lasts);
        assert_eq!(checkers.violations.len(), expected, "{calls}");
    }
}
