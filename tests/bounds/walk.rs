//! Calls every script beside a crowd.

use std::convert::Infallible;
use std::time::Duration;

use rlock_model::mode::Mode::{self, Read, Write};
use rlock_model::op::Change;
use rlock_model::past::{End, Ending, HISTORY_MAX};
use rlock_model::request::{Job, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, ScriptReply};
use rlock_redis::findings::{Findings, live, remembered};

use crate::client::{Client, TERMS, id, request, resource};
use crate::crowds::{WAITERS, for_intervals, for_names, for_slot, part, skips};
use rlock_testkit::servers::ask;

/// What the client asks for at most in one call, as crates/redis/src/survey.rs and sessions.rs do.
const CLAIMS_AT_ONCE: u32 = 200;
const REMEMBERED_AT_ONCE: u32 = 400;
const EXPIRED_AT_ONCE: usize = 200;
const LISTED: u32 = 256;
const FOLLOWED: usize = 1_000;

/// The numbers of the sessions that come to the crowd.
const OTHERS: u32 = 900_000;

/// The place of the first waiter of a queue. A request that returns to a place that is taken gets
/// another one.
const PLACE: u64 = 1;

/// How often the sessions that a crowd consists of are called in the end.
const CALLS: u32 = 40;

/// How the crowd ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finale {
    /// After all other calls, holders release, and waiters claim and release.
    Release,
    /// A waiter for as many names is granted its request, claims and releases.
    HandOver,
    Break,
    /// A request of the job of all waiters supersedes them.
    Supersede,
    /// All leases end, and a newcomer finds the dead.
    Expire,
    /// A key is lost.
    Repair,
}

/// The requests that come to the crowd.
fn requests(number: u32, slots: u32) -> [(&'static str, Request); 6] {
    let mut one = request(number, Write);
    one.claims[0].span = part(50_050);
    [
        ("the whole", request(number, Write)),
        ("to read", request(number, Read)),
        ("an interval", one),
        ("1000 intervals", for_intervals(number, Write, (0..1000).map(|at| 100 * at + 7))),
        ("256 names", for_names(number, Write, "n", 256)),
        ("a slot", for_slot(number, slots)),
    ]
}

/// A request that supersedes the waiters of a job.
fn superseding(number: u32, job: &str) -> Request {
    let job = Job { name: job.to_owned(), supersedes: true, ..Job::default() };
    Request { job, ..request(number, Write) }
}

/// The steps that leave the crowd as it is.
fn visit(client: &mut Client<'_>, slots: u32) {
    let mut number = OTHERS;
    for (kind, asks) in requests(0, slots) {
        number += 1;
        let asks = Request { session: id(number), wait: false, ..asks };
        let names: Vec<_> = asks.claims.iter().map(|claim| claim.resource.clone()).collect();
        let reply = client.step(&format!("request without a wait, {kind}"), Call::acquire(&asks, 0, false));
        if matches!(reply, ScriptReply::Granted { .. }) {
            client.step(&format!("release, {kind}"), Call::release(asks.session, names.clone()));
        }
        number += 1;
        let asks = Request { session: id(number), wait: true, ..asks };
        let reply = client.step(&format!("request, {kind}"), Call::acquire(&asks, 0, false));
        client.step(&format!("sign of life, {kind}"), Call::renew(asks.session, names.clone(), false));
        if matches!(reply, ScriptReply::Waiting { .. }) {
            client.step(&format!("give up, {kind}"), Call::give_up(asks.session, names));
        } else {
            client.step(&format!("release, {kind}"), Call::release(asks.session, names));
        }
    }
    let returns = request(OTHERS, Write);
    client.step("request that returns to its place", Call::acquire(&returns, PLACE, false));
    client.step("give up, returned", Call::give_up(returns.session, vec![resource()]));
    let all = [resource()];
    client.step("skip of a job", Call::acquire(&skips(OTHERS, 7), 0, false));
    let mut findings = Findings::default();
    let Ok(makes_sense) = findings.list(&all, CLAIMS_AT_ONCE, |call| Ok::<_, Infallible>(client.step("inspect", call)));
    assert!(makes_sense);
    client.step("who holds", Call::inspect(all.to_vec(), LISTED));
    let Ok(reading) =
        live(&all, FOLLOWED, CLAIMS_AT_ONCE, |call| Ok::<_, Infallible>(client.step("search for a deadlock", call)));
    assert!(reading.is_some());
    let Ok(past) =
        remembered(&all, HISTORY_MAX, REMEMBERED_AT_ONCE, |call| Ok::<_, Infallible>(client.step("history", call)));
    assert!(past.is_some());
    walk_of_break(client, "dry run of break", Call::breakable);
    let mut claims = 0;
    let few = findings.sessions.iter().take_while(|(_, session)| {
        let is_room = claims == 0 || claims + session.claims.len() <= EXPIRED_AT_ONCE;
        claims += session.claims.len();
        is_room
    });
    let few: Vec<SessionId> = few.map(|(id, _)| *id).collect();
    client.step("dry run of expire", Call::expired(resource(), &few));
}

/// The steps of a holder that is a part of the crowd.
fn hold(client: &mut Client<'_>) {
    let own = || vec![resource()];
    for number in [1, WAITERS] {
        client.step("renewal", Call::renew(id(number), own(), false));
    }
    let mut change = |what, change| client.step(what, Call::change(id(1), &own(), &change));
    change("extension", Change::Extend { by: Some(Duration::from_secs(1)) });
    change("shrink", Change::Shrink { resource: resource(), span: part(0) });
    change("downgrade", Change::Downgrade { resource: resource(), mode: Mode::Read });
}

/// Holders release what they have, and the sessions that are granted their requests claim.
fn release(client: &mut Client<'_>) {
    let ends = End { ending: Ending::Exit(0), is_success: true };
    let job = Job { history: HISTORY_MAX, ..Job::default() };
    let own = || vec![resource()];
    for number in (1..=CALLS).chain(WAITERS..WAITERS + CALLS) {
        client.step("claim", Call::renew(id(number), own(), false));
        client.step("release", Call::release_after(id(number), own(), Some(ends), &job));
    }
}

/// Makes every kind of call beside a crowd, and ends the crowd.
pub(crate) fn walk(client: &mut Client<'_>, size: u32, finale: Finale) {
    let newcomer = request(OTHERS, Write);
    match finale {
        Finale::Release => {
            visit(client, size);
            hold(client);
            release(client);
        }
        Finale::HandOver => {
            client.call(Call::acquire(&for_names(WAITERS, Write, "n", size), 0, false));
            release(client);
        }
        Finale::Break => {
            let by = rlock_model::request::Process::default();
            walk_of_break(client, "revocation", |name, only, from| Call::break_grants(name, only, from, Some(&by)));
            walk_of_break(client, "break", |name, only, from| Call::break_grants(name, only, from, None));
        }
        Finale::Supersede => {
            client.step("request that supersedes nobody", Call::acquire(&superseding(OTHERS, "other"), 0, false));
            client.step("request that supersedes", Call::acquire(&superseding(OTHERS + 1, ""), 0, false));
        }
        Finale::Expire => {
            client.advance(TERMS.ttl);
            client.step("request beside the dead", Call::acquire(&newcomer, 0, false));
        }
        Finale::Repair => {
            let key = client.setting.keyspace.keys(&resource())[5].clone();
            ask::<()>(&mut client.connection, &["DEL", &key]);
            client.step("repair", Call::acquire(&newcomer, 0, false));
            client.step("release", Call::release(newcomer.session, vec![resource()]));
            client.step("forget", Call::forget(resource()));
        }
    }
}

/// Calls a script of which each reply says where the next call goes on.
fn walk_of_break(
    client: &mut Client<'_>,
    what: &'static str,
    call: impl Fn(Resource, Option<SessionId>, Vec<u8>) -> Call,
) {
    let mut from = Vec::new();
    loop {
        let reply = client.step(what, call(resource(), None, from.clone()));
        let ScriptReply::Broken { next, .. } = reply else { panic!("{reply:?}") };
        if next.is_empty() || next == from {
            return;
        }
        from = next;
    }
}
