//! Tests the detector: scenes, and random histories that are compared with a naive search.

use std::time::Duration;

use super::super::kept::EVER;
use super::super::mode::Mode;
use super::super::op::{Op, Reply};
use super::super::records::Records as _;
use super::super::request::{Claim, Place, Request};
use super::super::samples::{id, name, request, span};
use super::super::table::LockTable;
use super::*;
use rlock_sys::clock::StoreTime;

/// A table, and the requests in it.
#[derive(Clone, Default)]
struct World {
    table: LockTable,
    now: u64,
}

/// A claim such as `a`, `r:a`, `s:a=2` or `a[0,5]`.
fn claim(text: &str) -> Claim {
    let (mode, rest) = match text.split_once(':') {
        Some(("r", rest)) => (Mode::Read, rest),
        Some(("p", rest)) => (Mode::Prewrite, rest),
        Some(("s", rest)) => (Mode::Slot, rest),
        _ => (Mode::Write, text),
    };
    let (rest, slots) = match rest.split_once('=') {
        Some((rest, slots)) => (rest, Some(slots.parse().unwrap())),
        None => (rest, None),
    };
    let at = rest.find('[').unwrap_or(rest.len());
    Claim { resource: name(&rest[..at]), mode, span: span(&rest[at..]), slots }
}

impl World {
    /// Makes a request below a holder, or 0. Returns whether it was granted.
    fn asks(&mut self, session: u8, parent: u8, claims: &str) -> bool {
        self.asks_for(None, session, parent, claims)
    }

    /// The same for a hold that is kept for so long.
    fn asks_for(&mut self, keep_for: Option<Duration>, session: u8, parent: u8, claims: &str) -> bool {
        let claims: Vec<_> = claims.split_whitespace().map(claim).collect();
        let mut asked = request(session, &[], &claims);
        if let Ok(Some(parent_session)) = self.table.records().session(id(parent)) {
            asked.ancestors = std::iter::once(id(parent)).chain(parent_session.ancestors.clone()).collect();
            let own = parent_session.claims.iter().map(|record| record.claim.resource.clone());
            asked.job.held_above = own.chain(parent_session.job.held_above.clone()).collect();
        }
        asked.job.keep_for = keep_for;
        self.request(asked)
    }

    fn request(&mut self, request: Request) -> bool {
        matches!(self.apply(Op::Acquire { request, place: None }), Reply::Granted { .. })
    }

    fn apply(&mut self, op: Op) -> Reply {
        self.now += 1;
        let Ok(outcome) = self.table.apply(StoreTime::from_micros(self.now), op);
        outcome.reply
    }

    fn sessions(&self) -> Reading {
        let Ok(names) = self.table.records().resources();
        let mut sessions = Reading::new();
        for name in &names {
            let Ok(ids) = self.table.sessions_of(name, |_| true);
            for id in ids {
                let Ok(found) = self.table.records().session(id);
                sessions.insert(id, found.unwrap());
            }
        }
        sessions
    }

    /// What a server tells of these resources.
    fn reading(&self, names: &[Resource]) -> Reading {
        let mut reading = self.sessions();
        for session in reading.values_mut() {
            if !session.is_holder() {
                let own: Vec<_> = session.resources().into_iter().cloned().collect();
                session.job.held_above.extend(own);
            }
            session.claims.retain(|record| names.contains(&record.claim.resource));
        }
        reading.retain(|_, session| !session.claims.is_empty());
        reading
    }

    fn detector(&self, session: SessionId) -> Detector {
        self.detector_for(session, None)
    }

    fn detector_for(&self, session: SessionId, wait: Option<Duration>) -> Detector {
        let Ok(found) = self.table.records().session(session);
        let found = found.unwrap();
        let own = found.resources().into_iter().cloned().collect::<Vec<_>>();
        Detector::new(session, wait, own.into_iter().chain(found.job.held_above))
    }

    /// What a waiter finds out by looking again and again while nothing changes.
    fn look(&self, session: SessionId) -> Option<Deadlock> {
        self.look_for(session, None)
    }

    /// The same for a waiter that waits for so long at most.
    fn look_for(&self, session: SessionId, wait: Option<Duration>) -> Option<Deadlock> {
        let mut detector = self.detector_for(session, wait);
        (0..12).find_map(|_| detector.read(&self.reading(detector.names())))
    }

    /// What a waiter finds that runs below holders which it does not name.
    fn look_below(&self, session: u8, holders: &[u8]) -> Option<(Vec<u8>, u8)> {
        let mut detector = self.detector(id(session));
        let found = (0..12).find_map(|_| {
            detector.runs_below(holders.iter().copied().map(id).collect());
            detector.read(&self.reading(detector.names()))
        })?;
        Some((found.links.iter().map(|link| link.session.0[0]).collect(), found.ends.0[0]))
    }

    /// The cycle that a waiter finds, by the numbers of the sessions, and the one to end.
    fn cycle(&self, session: u8) -> Option<(Vec<u8>, u8)> {
        let deadlock = self.look(id(session))?;
        let links = deadlock.links.iter().map(|link| link.session.0[0]).collect();
        Some((links, deadlock.ends.0[0]))
    }

    /// The naive search: ends every holder that has no waiter below it, until nothing moves. Who
    /// still waits then waits for ever.
    fn stuck(&self) -> Set {
        let mut world = self.clone();
        loop {
            let sessions = world.sessions();
            let is_above =
                |id: &SessionId| sessions.values().any(|other| !other.is_holder() && other.ancestors.contains(id));
            let mut holders = sessions.iter().filter(|(_, session)| session.is_holder());
            let ends = |session: &Session| session.is_kept() && session.expiry != Some(StoreTime::NEVER);
            let Some((done, _)) = holders.find(|(id, session)| ends(session) || !is_above(id)) else {
                return sessions.iter().filter(|(_, session)| !session.is_holder()).map(|(id, _)| *id).collect();
            };
            world.apply(Op::Release { session: *done, end: None });
        }
    }
}

/// Session 1 takes the first resource, 2 the second and so on; then each asks for the next, as the
/// sessions 11, 12 and so on. The last one closes the cycle.
fn ring(claims: &[&str]) -> World {
    let mut world = World::default();
    for (number, claim) in (1..).zip(claims) {
        assert!(world.asks(number, 0, claim));
    }
    for (number, claim) in (1..).zip(claims.iter().cycle().skip(1).take(claims.len())) {
        assert!(!world.asks(10 + number, number, claim));
    }
    world
}

#[test]
fn two_three_and_five_in_a_cycle_all_find_the_same_youngest() {
    assert_eq!(ring(&["a", "b"]).cycle(11), Some((vec![11, 2, 12, 1], 12)));
    assert_eq!(ring(&["a", "b"]).cycle(12), Some((vec![12, 1, 11, 2], 12)));
    for resources in [&["a", "b", "c"][..], &["a", "b", "c", "d", "e"]] {
        let world = ring(resources);
        let last = 10 + resources.len() as u8;
        for session in 11..=last {
            let (links, youngest) = world.cycle(session).unwrap();
            assert_eq!((links[0], links.len(), youngest), (session, 2 * resources.len(), last));
        }
    }
}

/// 13 is stopped, or does not look.
#[test]
fn older_requests_end_one_after_another_where_the_youngest_does_not() {
    let world = ring(&["a", "b", "c"]);
    for (session, readings) in [(13, 3), (12, 3 + PATIENCE), (11, 3 + 2 * PATIENCE)] {
        let mut detector = world.detector(id(session));
        let has_to_end = |detector: &mut Detector| {
            let found = detector.read(&world.reading(detector.names()));
            found.is_some_and(|found| found.ends == id(session))
        };
        assert_eq!((1..30).find(|_| has_to_end(&mut detector)), Some(readings), "{session}");
    }
}

/// A world in which 11 waits below 1 for what 2 holds, and 12 and 13 wait below 2 for what 1 holds.
fn ring_of_three_requests() -> World {
    let mut world = World::default();
    for (session, claim) in [(1, "a"), (2, "b")] {
        assert!(world.asks(session, 0, claim));
    }
    for (session, parent, claim) in [(11, 1, "b"), (12, 2, "a"), (13, 2, "a")] {
        assert!(!world.asks(session, parent, claim));
    }
    world
}

/// Whether 11 has to end, after a reading that leaves out a session.
fn oldest_ends(world: &World, detector: &mut Detector, without: u8) -> bool {
    let mut reading = world.reading(detector.names());
    reading.remove(&id(without));
    detector.read(&reading).is_some_and(|found| found.ends == id(11))
}

#[test]
fn older_request_ends_although_new_requests_join_the_cycle_again_and_again() {
    let world = ring_of_three_requests();
    let mut detector = world.detector(id(11));
    let left_out = |reading: u32| if reading % 4 < 2 { 13 } else { 0 };
    assert!((0..4 * PATIENCE).any(|reading| oldest_ends(&world, &mut detector, left_out(reading))));
}

#[test]
fn request_that_joins_a_cycle_late_gets_its_time_too() {
    let world = ring_of_three_requests();
    let mut detector = world.detector(id(11));
    assert!((0..4 * PATIENCE).any(|_| oldest_ends(&world, &mut detector, 12)));
    // Two readings in a row have to see the cycle with 12.
    oldest_ends(&world, &mut detector, 0);
    let more = (0..4 * PATIENCE).position(|_| oldest_ends(&world, &mut detector, 0));
    assert_eq!(more, Some(PATIENCE as usize));
}

#[test]
fn cycle_is_over_when_its_youngest_has_ended() {
    let mut world = ring(&["a", "b", "c"]);
    world.apply(Op::Release { session: id(13), end: None });
    assert_eq!((world.cycle(11), world.cycle(12)), (None, None));
    assert_eq!(world.stuck(), Set::new());
}

#[test]
fn one_reading_alone_finds_nothing() {
    let world = ring(&["a", "b"]);
    let mut detector = world.detector(id(12));
    assert_eq!(detector.read(&world.reading(detector.names())), None);
    assert!(detector.read(&world.reading(detector.names())).is_some());
    let mut detector = world.detector(id(12));
    detector.read(&world.reading(detector.names()));
    let mut later = world.clone();
    later.apply(Op::Release { session: id(11), end: None });
    assert_eq!(detector.read(&later.reading(detector.names())), None, "the other has left by itself");
}

#[test]
fn siblings_below_one_hold_take_turns() {
    let mut world = World::default();
    assert!(world.asks(1, 0, "p"));
    assert!(world.asks(2, 1, "b"));
    assert!(!world.asks(3, 1, "b"));
    assert_eq!(world.cycle(3), None);
}

#[test]
fn modes_and_spans_decide_who_waits() {
    assert!(ring(&["a[0,5]", "b[0,5]"]).cycle(12).is_some());
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "r:a"), (2, 0, "r:b"), (12, 2, "r:a"), (11, 1, "b[0,1]")] {
        world.asks(session, parent, claims);
    }
    assert_eq!(world.cycle(11), None, "a read waits for no read");
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "a[0,1]"), (2, 0, "b[0,1]"), (12, 2, "a[2,3]"), (11, 1, "b[0,1]")] {
        world.asks(session, parent, claims);
    }
    assert_eq!(world.cycle(11), None, "another part of a is free");
}

#[test]
fn slots_count_only_if_all_of_them_are_in_the_cycle() {
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "a"), (2, 0, "s:g=2"), (3, 0, "s:g=2"), (12, 2, "a"), (11, 1, "s:g=2")] {
        world.asks(session, parent, claims);
    }
    assert_eq!(world.cycle(11), None, "the holder of the other slot may end");
    assert!(!world.asks(13, 3, "a"));
    assert_eq!(world.cycle(13).map(|(_, youngest)| youngest), Some(13));
    assert_eq!(world.cycle(11).map(|(_, youngest)| youngest), Some(13));
}

#[test]
fn families_of_several_levels_and_several_claims_are_followed() {
    let mut world = World::default();
    let steps = [(1, 0, "a x"), (2, 1, "m"), (3, 0, "b y"), (4, 3, "n"), (14, 4, "z x"), (12, 2, "y")];
    for (session, parent, claims) in steps {
        world.asks(session, parent, claims);
    }
    assert_eq!(world.cycle(12), Some((vec![12, 3, 14, 1], 12)));
}

/// 1 is kept and around 11. 12 waits for 1, and 11 for the holder around 12.
fn cycle_through_a_kept_hold(length: Duration) -> World {
    let mut world = World::default();
    world.asks_for(Some(length), 1, 0, "a");
    for (session, parent, claims) in [(2, 0, "b"), (12, 2, "a"), (11, 1, "b")] {
        world.asks(session, parent, claims);
    }
    world
}

#[test]
fn request_that_waits_for_the_kept_hold_around_it_is_in_a_cycle() {
    for length in [Duration::from_secs(60), EVER] {
        let world = cycle_through_a_kept_hold(length);
        assert_eq!(world.cycle(11), Some((vec![11, 2, 12, 1], 11)));
        let found = world.look_for(id(11), Some(Duration::from_secs(600)));
        assert_eq!(found.map(|found| found.ends), Some(id(11)), "the hold is its own");
    }
}

#[test]
fn kept_hold_of_others_closes_a_cycle_for_a_wait_that_is_over_before() {
    let look = |length, wait| cycle_through_a_kept_hold(length).look_for(id(12), wait).is_some();
    let [short, long] = [30, 600].map(Duration::from_secs);
    assert!(!look(short, None) && !look(short, Some(long)), "the hold ends by itself");
    assert!(look(long, Some(short)) && look(EVER, Some(long)) && look(EVER, None));
}

/// A waiter that the request overtakes is not in its way.
#[test]
fn wait_for_both_resources_closes_no_cycle() {
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "a"), (2, 0, "b"), (3, 0, "a b"), (11, 1, "b")] {
        world.asks(session, parent, claims);
    }
    assert_eq!(world.cycle(11), None);
}

/// The upgrade 12 waits behind 11, and for `e` around it.
#[test]
fn upgrade_behind_a_nested_slot_closes_no_cycle() {
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "e"), (2, 0, "p:b"), (3, 0, "s:b=1")] {
        assert!(world.asks(session, parent, claims));
    }
    for (session, parent, claims) in [(11, 1, "s:b=1"), (12, 2, "b e")] {
        assert!(!world.asks(session, parent, claims));
    }
    assert_eq!((world.cycle(11), world.cycle(12)), (None, None));
    assert_eq!(world.stuck(), Set::new());
}

/// Each waiter claims what the ancestors of the others hold, but no part of it. Whom one overtakes
/// depends on all ahead of it.
#[test]
fn crowd_of_nested_waiters_on_one_part_is_looked_at_in_a_moment() {
    let mut world = World::default();
    for number in 1..=60 {
        assert!(world.request(request(number, &[], &[claim(&format!("tree[{number},{number}]"))])));
    }
    for number in 1..=60 {
        let granted = world.request(request(100 + number, &[number], &[claim("tree[500,501]")]));
        assert_eq!(granted, number == 1);
    }
    assert_eq!(world.stuck(), Set::new());
}

/// The table goes on to note 11 as an overtaker of 6 when 1, which 6 waited for, has left. So 12
/// does not overtake 11 as one that heeds 5.
#[test]
fn waiter_that_no_longer_overtakes_anybody_closes_a_cycle() {
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "z"), (2, 0, "x"), (3, 0, "y")] {
        assert!(world.asks(session, parent, claims));
    }
    for (session, parent, claims) in [(4, 0, "z"), (5, 0, "x y"), (6, 0, "z y"), (11, 1, "y"), (12, 2, "y")] {
        assert!(!world.asks(session, parent, claims));
    }
    world.apply(Op::Release { session: id(1), end: None });
    world.apply(Op::Release { session: id(3), end: None });
    assert_eq!(world.cycle(12), Some((vec![12, 11, 5, 2], 12)));
}

/// When 7 returns ahead of 8, 8 heeds it, and 7 waits for 1. But 11 came while 8 did not, so it is
/// not noted as an overtaker of 8, and waits for it.
#[test]
fn waiter_that_returns_ahead_of_two_others_closes_a_cycle() {
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "p:a[0,1]"), (2, 0, "s:a=1")] {
        assert!(world.asks(session, parent, claims));
    }
    assert!(!world.asks(7, 0, "a[0,1]"));
    let Ok(Some(left)) = world.table.records().session(id(7)) else { panic!("7 waits") };
    let place = Some(Place { number: left.place(), asked: left.asked });
    world.apply(Op::Release { session: id(7), end: None });
    assert!(!world.asks(8, 0, "s:a=1"));
    assert!(!world.asks(11, 1, "a[4,5]"));
    world.apply(Op::Acquire { request: request(7, &[], &[claim("a[0,1]")]), place });
    assert_eq!(world.cycle(11), None);
    world.apply(Op::Release { session: id(2), end: None });
    assert_eq!(world.cycle(11), Some((vec![11, 8, 7, 1], 11)));
}

/// A waiter in between that waits for another waiter is not overtaken.
#[test]
fn cycle_through_waiters_that_are_not_nested_is_found() {
    let mut world = World::default();
    for (session, parent, claims) in [(1, 0, "a"), (2, 0, "c a"), (3, 0, "b c"), (11, 1, "b")] {
        world.asks(session, parent, claims);
    }
    assert_eq!(world.cycle(11), Some((vec![11, 3, 2, 1], 11)));
}

/// The request 41 overtakes 34, because that one waits for `c` around 41. Only `c` tells that,
/// which has nothing to do with the lock around 20.
#[test]
fn waiter_that_a_part_of_the_cycle_overtakes_closes_no_cycle() {
    let mut world = World::default();
    for (session, parent, claims) in [(5, 0, "d"), (23, 0, "c"), (35, 23, "s:b=1"), (37, 35, "e")] {
        assert!(world.asks(session, parent, claims));
    }
    for (session, parent, claims) in [(20, 5, "s:a=2 s:b=1"), (34, 5, "r:e a c"), (41, 35, "s:a=2 r:e")] {
        assert!(!world.asks(session, parent, claims));
    }
    assert_eq!(world.cycle(20), None);
}

/// A ring of three requests, and 200 others, which have three more names each, behind the lock
/// around the last request. They are nested or not.
fn ring_with_a_crowd(is_nested: bool) -> World {
    let mut world = World::default();
    for (session, claims) in [(1, "a"), (2, "b"), (3, "c"), (4, "foreign")] {
        assert!(world.asks(session, 0, claims));
    }
    for number in 20..220 {
        let claims = format!("c x{number} y{number} z{number}");
        assert!(!world.asks(number, if is_nested { 4 } else { 0 }, &claims));
    }
    for (session, parent, claim) in [(251, 1, "b"), (252, 2, "c"), (253, 3, "a")] {
        assert!(!world.asks(session, parent, claim));
    }
    world
}

/// After how many readings a waiter knows that it has to end.
fn readings_until_the_end(world: &World, session: u8) -> Option<usize> {
    let mut detector = world.detector(id(session));
    let ends = |detector: &mut Detector| detector.read(&world.reading(detector.names())).map(|found| found.ends);
    (1..30).find(|_| ends(&mut detector) == Some(id(session)))
}

#[test]
fn crowd_of_requests_that_are_not_nested_hides_no_cycle() {
    assert_eq!(readings_until_the_end(&ring_with_a_crowd(false), 253), Some(3));
}

/// The names are more than one reading asks for. The first round reads the own names, and each
/// later one takes two readings.
#[test]
fn cycle_behind_a_nested_crowd_is_found_by_two_rounds_of_readings() {
    let world = ring_with_a_crowd(true);
    assert_eq!(readings_until_the_end(&world, 253), Some(5));
    let mut detector = world.detector(id(253));
    for _ in 0..9 {
        assert!(detector.names().len() <= 2 + 2 * NAMES_MAX, "{} names", detector.names().len());
        detector.read(&world.reading(detector.names()));
    }
}

#[test]
fn request_that_leaves_between_two_rounds_closes_no_cycle() {
    let mut world = ring_with_a_crowd(true);
    let mut detector = world.detector(id(253));
    for _ in 0..4 {
        assert_eq!(detector.read(&world.reading(detector.names())), None);
    }
    world.apply(Op::Release { session: id(251), end: None });
    for _ in 0..9 {
        assert_eq!(detector.read(&world.reading(detector.names())), None);
    }
}

#[test]
fn names_of_the_request_are_all_read_however_many_they_are() {
    let own: Vec<_> = (0..400).map(|number| name(&number.to_string())).collect();
    assert_eq!(Detector::new(id(1), None, own.clone()).names(), own);
}

/// Numbers from a seed (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn random_claims(numbers: &mut Numbers) -> String {
    let count = [1, 1, 1, 2, 3][numbers.below(5) as usize];
    let mut claims: Vec<String> = Vec::new();
    for _ in 0..count {
        let resource = char::from(b'a' + numbers.below(5) as u8);
        let part = ["", "", "[0,5]", "[3,7]", "[6,9]"][numbers.below(5) as usize];
        let claim = match numbers.below(8) {
            0 => format!("r:{resource}{part}"),
            1 => format!("p:{resource}{part}"),
            2 | 3 => format!("s:{resource}={}", 1 + u64::from(resource as u8) % 2),
            _ => format!("{resource}{part}"),
        };
        // A request takes at most as many slots as there are.
        let same = claims.iter().filter(|other| **other == claim).count();
        if !claim.starts_with('s') || same < claim[4..].parse().unwrap() {
            claims.push(claim);
        }
    }
    claims.join(" ")
}

/// Plays steps, and after each compares the detector of every nested waiter with the naive search.
/// Returns how many cycles it met.
fn compare(seed: u64, steps: u32) -> u32 {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut world = World::default();
    let mut cycles = 0;
    let mut next = 1_u8;
    for step in 0..steps {
        let sessions = world.sessions();
        let holders: Vec<_> =
            sessions.iter().filter(|(_, session)| session.is_holder()).map(|(id, _)| id.0[0]).collect();
        if numbers.below(5) > 0 && sessions.len() < 10 && !sessions.contains_key(&id(next)) {
            let parent = if holders.is_empty() || numbers.below(4) == 0 {
                0
            } else {
                holders[numbers.below(holders.len() as u64) as usize]
            };
            let claims = random_claims(&mut numbers);
            let keep_for = (numbers.below(6) == 0).then_some(EVER);
            world.asks_for(keep_for, next, parent, &claims);
            next = next % 250 + 1;
        } else if !sessions.is_empty() {
            let at = numbers.below(sessions.len() as u64) as usize;
            // A command ends after what runs below it.
            let (id, session) = sessions.iter().nth(at).unwrap();
            if !session.is_holder() || !sessions.values().any(|other| other.ancestors.contains(id)) {
                world.apply(Op::Release { session: *id, end: None });
            }
        }
        let (stuck, sessions) = (world.stuck(), world.sessions());
        let is_waiting = |id: &SessionId| !sessions[id].is_holder();
        let found: Set = Graph::new(&sessions).stuck().into_iter().filter(is_waiting).collect();
        assert_eq!(found, stuck, "seed {seed}, step {step}");
        let claims = Claims::new(&sessions);
        for id in sessions.keys().filter(|id| is_waiting(id)) {
            let Ok(blockers) = world.table.blockers(*id);
            let of_claims = sessions[id].claims.iter().flat_map(|record| claims.blockers(*id, &record.claim));
            let shown: Set = of_claims.collect();
            assert!(
                blockers.iter().all(|it| shown.contains(it)),
                "seed {seed}, step {step}: {blockers:?} in {shown:?}"
            );
        }
        cycles += settle(&mut world, &stuck, seed, step);
    }
    cycles
}

/// Lets the youngest of each cycle end, as it would itself, and asserts that it was in a real one
/// and that nobody waits for ever afterwards.
fn settle(world: &mut World, stuck: &Set, seed: u64, step: u32) -> u32 {
    let mut cycles = 0;
    let mut left = stuck.clone();
    while !left.is_empty() {
        let sessions = world.sessions();
        let nested = |id: &&SessionId| {
            sessions.get(id).is_some_and(|session| !session.is_holder() && !session.ancestors.is_empty())
        };
        let ends = left.iter().filter(nested).find(|id| world.look(**id).is_some_and(|found| found.ends == **id));
        let Some(youngest) = ends.copied() else { panic!("seed {seed}, step {step}: {left:?} wait for ever") };
        cycles += 1;
        world.apply(Op::Release { session: youngest, end: None });
        left = world.stuck();
    }
    let sessions = world.sessions();
    for (id, session) in &sessions {
        // Only a nested request looks.
        if !session.is_holder() && !session.ancestors.is_empty() {
            assert_eq!(world.look(*id), None, "seed {seed}, step {step}: a false alarm");
        }
    }
    cycles
}

#[test]
fn detector_agrees_with_a_naive_search_in_random_histories() {
    let cycles: u32 = (1..=20).map(|seed| compare(seed, 60)).sum();
    assert!(cycles > 10, "{cycles} cycles");
}

/// Takes minutes: `cargo test --release -p rlock-model --lib deadlock -- --ignored`.
#[test]
#[ignore = "millions of steps"]
fn detector_agrees_with_a_naive_search_in_millions_of_steps() {
    let seeds = std::env::var("RLOCK_HISTORIES").map_or(20_000, |text| text.parse().unwrap());
    let cycles: u32 = (1..=seeds).map(|seed| compare(1_000_000 + seed, 100)).sum();
    println!("{} steps, {cycles} cycles", seeds * 100);
}

#[test]
fn holder_around_a_waiter_that_does_not_name_it_closes_a_cycle() {
    let mut world = World::default();
    world.asks(1, 0, "a");
    world.asks(2, 0, "a");
    assert_eq!(world.cycle(2), None);
    assert_eq!(world.look_below(2, &[1]), Some((vec![2, 1], 2)));
}

#[test]
fn ancestors_of_a_holder_around_a_waiter_wait_for_it_too() {
    let mut world = World::default();
    world.asks(1, 0, "a");
    world.asks(2, 1, "r:b");
    world.asks(3, 0, "a r:b");
    assert_eq!(world.look_below(3, &[2]), Some((vec![3, 1], 3)));
}

#[test]
fn free_slot_ends_the_wait_below_a_holder_that_is_not_named() {
    let mut world = World::default();
    world.asks(1, 0, "s:a=2");
    world.asks(2, 0, "s:a=2");
    world.asks(3, 0, "s:a=2");
    assert_eq!(world.look_below(3, &[1]), None, "the other slot may become free");
    world.asks(4, 2, "a");
    assert_eq!(world.look_below(3, &[1]), None);
}
