//! Each list that users can make long, at its limit or far beyond what is usual.

use std::time::Duration;

use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::past::{End, Ending, HISTORY_MAX, JOBS_MAX};
use rlock_model::request::{CLAIMS_MAX, Claim, Job, NAMES_MAX, Request};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::Call;

use crate::client::{Client, TERMS, id, request, resource};
use crate::walk::Finale;

/// A list of a resource, which stands for all others of its kind.
pub(crate) struct Crowd {
    pub(crate) list: &'static str,
    /// How long the list is in an ordinary run, and in full length.
    pub(crate) sizes: (u32, u32),
    /// Fills the list.
    pub(crate) fill: fn(&mut Client<'_>, u32),
    /// The ways in which the list ends.
    pub(crate) ends: &'static [Finale],
}

const LIVE: &[Finale] = &[Finale::Release, Finale::Break, Finale::Supersede, Finale::Expire, Finale::Repair];
const NAMES: &[Finale] =
    &[Finale::Release, Finale::HandOver, Finale::Break, Finale::Supersede, Finale::Expire, Finale::Repair];
const IDLE: &[Finale] = &[Finale::Release];

/// The first number of the sessions that wait.
pub(crate) const WAITERS: u32 = 100_000;

pub(crate) const CROWDS: [Crowd; 16] = [
    Crowd { list: "holders", sizes: (500, 3_000), fill: holders, ends: LIVE },
    Crowd { list: "waiters", sizes: (500, 3_000), fill: waiters, ends: LIVE },
    Crowd { list: "waiting readers", sizes: (200, 400), fill: waiting_readers, ends: LIVE },
    Crowd { list: "waiters without a process", sizes: (300, 1_000), fill: dead_waiters, ends: LIVE },
    Crowd {
        list: "intervals of a request",
        sizes: (CLAIMS_MAX as u32, CLAIMS_MAX as u32),
        fill: intervals,
        ends: LIVE,
    },
    Crowd { list: "holders with 1000 intervals", sizes: (5, 20), fill: holders_of_intervals, ends: LIVE },
    Crowd { list: "names of a request", sizes: (NAMES_MAX as u32, NAMES_MAX as u32), fill: names, ends: NAMES },
    Crowd { list: "waiters for two keys", sizes: (300, 1_000), fill: waiters_for_two, ends: LIVE },
    Crowd { list: "slots", sizes: (300, 2_000), fill: slots, ends: LIVE },
    Crowd { list: "shares of a slot", sizes: (300, 1_000), fill: shares, ends: LIVE },
    Crowd { list: "nested waiters", sizes: (200, 400), fill: nested, ends: LIVE },
    Crowd { list: "overtakers of other queues", sizes: (450, 1_800), fill: overtakers, ends: IDLE },
    Crowd { list: "jobs", sizes: (200, JOBS_MAX as u32), fill: jobs, ends: IDLE },
    Crowd { list: "entries of the history", sizes: (200, HISTORY_MAX), fill: history, ends: IDLE },
    Crowd { list: "entries with 1000 intervals", sizes: (8, 32), fill: history_of_intervals, ends: IDLE },
    Crowd { list: "all of these", sizes: (4, 20), fill: all, ends: LIVE },
];

/// An interval that meets no other one with another number.
pub(crate) fn part(number: u32) -> Span {
    Span::parse(&format!("[{},{}]", 2 * number, 2 * number + 1)).expect("an interval")
}

/// A request for this many intervals of `r`.
pub(crate) fn for_intervals(number: u32, mode: Mode, parts: impl IntoIterator<Item = u32>) -> Request {
    let mut asks = request(number, mode);
    let claim = asks.claims[0].clone();
    asks.claims = parts.into_iter().map(|at| Claim { span: part(at), ..claim.clone() }).collect();
    asks
}

/// A request for `r` and other names, this many in all.
pub(crate) fn for_names(number: u32, mode: Mode, prefix: &str, count: u32) -> Request {
    let mut asks = request(number, mode);
    let claim = asks.claims[0].clone();
    asks.claims.extend((1..count).map(|at| Claim { resource: name_of(prefix, at), ..claim.clone() }));
    asks
}

fn name_of(prefix: &str, number: u32) -> Resource {
    Resource::new(&format!("{prefix}{number}")).expect("a name")
}

/// A request for one of so many slots.
pub(crate) fn for_slot(number: u32, slots: u32) -> Request {
    let mut asks = request(number, Slot);
    asks.claims[0].slots = Some(slots);
    asks
}

fn ask(client: &mut Client<'_>, asks: &Request) {
    client.call(Call::acquire(asks, 0, false));
}

fn holders(client: &mut Client<'_>, count: u32) {
    (1..=count).for_each(|number| ask(client, &request(number, Read)));
}

fn waiters(client: &mut Client<'_>, count: u32) {
    ask(client, &request(1, Write));
    (0..count).for_each(|number| ask(client, &request(WAITERS + number, Write)));
}

fn waiting_readers(client: &mut Client<'_>, count: u32) {
    ask(client, &request(1, Write));
    (0..count).for_each(|number| ask(client, &request(WAITERS + number, Read)));
}

/// Waiters that said that they listen, and have no subscriber.
fn dead_waiters(client: &mut Client<'_>, count: u32) {
    ask(client, &request(1, Write));
    (0..count).for_each(|number| {
        client.call(Call::acquire(&request(WAITERS + number, Write), 0, true));
    });
}

/// A holder and a waiter of the same intervals.
fn intervals(client: &mut Client<'_>, count: u32) {
    for number in [1, WAITERS] {
        ask(client, &for_intervals(number, Write, 0..count));
    }
}

fn holders_of_intervals(client: &mut Client<'_>, count: u32) {
    (0..count).for_each(|number| ask(client, &for_intervals(1 + number, Write, (0..1000).map(|at| at * 100 + number))));
}

/// A holder of some names.
fn names(client: &mut Client<'_>, count: u32) {
    ask(client, &for_names(1, Write, "n", count));
}

/// Waiters for `r` and a name that nobody else uses.
fn waiters_for_two(client: &mut Client<'_>, count: u32) {
    ask(client, &request(1, Write));
    for number in WAITERS..WAITERS + count {
        ask(client, &for_names(number, Write, &format!("of {number} "), 2));
    }
}

/// All slots are taken, and a tenth as many sessions wait for one.
fn slots(client: &mut Client<'_>, count: u32) {
    (1..=count).for_each(|number| ask(client, &for_slot(number, count)));
    (0..count / 10).for_each(|number| ask(client, &for_slot(WAITERS + number, count)));
}

fn shares(client: &mut Client<'_>, count: u32) {
    ask(client, &for_slot(1, 2));
    for number in WAITERS..WAITERS + count {
        ask(client, &Request { ancestors: vec![id(1)], ..for_slot(number, 2) });
    }
}

/// Writers below a prewrite hold, which wait for a reader.
fn nested(client: &mut Client<'_>, count: u32) {
    ask(client, &request(1, Read));
    ask(client, &request(2, Prewrite));
    for number in WAITERS..WAITERS + count {
        ask(client, &Request { ancestors: vec![id(2)], ..request(number, Write) });
    }
}

/// Three waiters for `r` and fifteen other names each. Nested requests below the holder of `r`
/// overtake these waiters in the queues of the other names. The first place at `r` is free: a
/// waiter that returns to it makes the server try as many other queues as a return ever does.
fn overtakers(client: &mut Client<'_>, count: u32) {
    let other = |at: u32| Claim { resource: name_of("n", at % 45), ..request(0, Read).claims[0].clone() };
    let (holder, readers) = (id(1), 2);
    ask(client, &request(1, Write));
    ask(client, &Request { claims: (0..45).map(other).collect(), ..request(readers, Read) });
    ask(client, &request(WAITERS, Write));
    client.call(Call::give_up(id(WAITERS), vec![resource()]));
    for first in [0, 15, 30] {
        let mut asks = request(WAITERS + 1 + first, Write);
        asks.claims.extend((first..first + 15).map(other).map(|claim| Claim { mode: Write, ..claim }));
        ask(client, &asks);
    }
    for number in 0..count {
        let claims = vec![Claim { mode: Write, ..other(number) }];
        ask(client, &Request { claims, ancestors: vec![holder], ..request(WAITERS + 100 + number, Write) });
    }
}

/// Jobs that were skipped beside a holder.
fn jobs(client: &mut Client<'_>, count: u32) {
    ask(client, &request(1, Write));
    for number in 0..count {
        client.advance(Duration::from_micros(1));
        ask(client, &skips(2, number));
    }
}

/// A request without a wait, of a job whose skips are counted.
pub(crate) fn skips(session: u32, number: u32) -> Request {
    let job = Job { name: format!("a job with a name {number}"), skips: true, ..Job::default() };
    Request { wait: false, job, ..request(session, Write) }
}

fn end(client: &mut Client<'_>, asks: &Request) {
    ask(client, asks);
    let end = End { ending: Ending::Exit(0), is_success: true };
    let job = Job { history: HISTORY_MAX, ..Job::default() };
    client.call(Call::release_after(asks.session, vec![resource()], Some(end), &job));
}

fn history(client: &mut Client<'_>, count: u32) {
    (0..count).for_each(|number| end(client, &request(1 + number, Write)));
}

fn history_of_intervals(client: &mut Client<'_>, count: u32) {
    let mut asks = for_intervals(1, Write, 0..1000);
    for number in 0..count {
        asks.session = id(1 + number);
        end(client, &asks);
    }
}

/// All of these lists at one resource, in proportion to `count`: holders and waiters of many
/// intervals and of several names, with a history and jobs.
fn all(client: &mut Client<'_>, count: u32) {
    history(client, 10 * count);
    jobs(client, 10 * count);
    client.advance(TERMS.ttl);
    holders_of_intervals(client, count);
    for number in 0..20 * count {
        let mut asks = for_names(10_000 + number, Read, &format!("of {number} "), 2);
        asks.claims[0].span = part(100_000 + number);
        ask(client, &asks);
    }
    for number in 0..20 * count {
        ask(client, &for_names(WAITERS + number, Write, &format!("of {number} "), 16));
    }
    for number in 0..count / 5 {
        ask(client, &for_intervals(WAITERS + 10_000 + number, Write, (0..1000).map(|at| at * 100 + number)));
    }
}
