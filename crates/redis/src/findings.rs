//! Puts the listings of many replies together: a call lists a limited number of sessions, and a
//! session may have claims on resources of several calls.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::{Call, ScriptReply};
use rlock_model::deadlock::{self, Reading};
use rlock_model::op::ResourceListing;
use rlock_model::past::Remembered;
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_sys::clock::StoreTime;

/// The holders and waiters that calls have listed.
///
/// A listing that takes several calls does not show one instant. A session that changes meanwhile
/// may be listed as it was before, and a holder that lowers its mode may be missing.
#[derive(Debug, Default)]
pub struct Findings {
    /// The latest instant on the clock of a server.
    pub now: StoreTime,
    /// The sessions with their claims on the listed resources.
    pub sessions: BTreeMap<SessionId, Session>,
    /// The listed resources in their order.
    names: Vec<Resource>,
    known: BTreeSet<Resource>,
}

impl Findings {
    /// Lists the resources that are not listed yet. `call` executes a call, which lists sessions
    /// until they have `most` claims; that is at least 1. Returns whether the replies make sense.
    ///
    /// # Errors
    /// An error of `call`. What was listed before it stays.
    pub fn list<E>(
        &mut self,
        resources: &[Resource],
        most: u32,
        mut call: impl FnMut(Call) -> Result<ScriptReply, E>,
    ) -> Result<bool, E> {
        let new: Vec<_> = resources.iter().filter(|name| !self.known.contains(name)).cloned().collect();
        let part = |names, from| call(Call::inspect_part(names, most, from));
        let makes_sense = in_parts(&new, usize::MAX, part, |now, sessions| {
            self.now = self.now.max(now);
            sessions.into_iter().for_each(|(id, session)| self.add(id, session));
        })?;
        for name in new {
            if makes_sense && self.known.insert(name.clone()) {
                self.names.push(name);
            }
        }
        Ok(makes_sense)
    }

    /// Adds a session with all of its claims on some resources.
    fn add(&mut self, id: SessionId, mut session: Session) {
        if let Some(known) = self.sessions.remove(&id) {
            let listed: BTreeSet<_> = session.resources().into_iter().cloned().collect();
            session.claims.extend(known.claims.into_iter().filter(|record| !listed.contains(&record.claim.resource)));
        }
        self.sessions.insert(id, session);
    }

    /// Lists the holders and waiters of each resource, in the order in which the resources were
    /// listed.
    pub fn resources(&self) -> Vec<ResourceListing> {
        let mut claims: BTreeMap<&Resource, Vec<_>> = BTreeMap::new();
        for (id, session) in &self.sessions {
            for record in &session.claims {
                claims.entry(&record.claim.resource).or_default().push((*id, session, record));
            }
        }
        let listing = |name: &Resource| ResourceListing::of(name.clone(), claims.remove(name).unwrap_or_default());
        self.names.iter().map(listing).collect()
    }
}

/// Reads the live sessions of these resources for the search for a deadlock, of each about the
/// first `followed` waiters and as many holders. `call` executes a call, which lists sessions until
/// they have `most` claims. `None` if a reply makes no sense.
///
/// # Errors
/// An error of `call`.
pub fn live<E>(
    resources: &[Resource],
    followed: usize,
    most: u32,
    mut call: impl FnMut(Call) -> Result<ScriptReply, E>,
) -> Result<Option<Reading>, E> {
    let mut reading = Reading::new();
    let part = |names, from| call(Call::inspect_live(names, most, from));
    let makes_sense = in_parts(resources, followed, part, |_, sessions| {
        deadlock::merge(&mut reading, sessions.into_iter().collect());
    })?;
    Ok(makes_sense.then_some(reading))
}

/// Where the list of the holders of a resource begins.
const HOLDERS: &[u8] = b"l";

/// Lists resources in the parts that `call` lists. `listed` gets the instant and the sessions of
/// each part. After about `followed` waiters of a resource come its holders, and after as many
/// holders the next resource. Returns whether the replies make sense.
fn in_parts<E>(
    resources: &[Resource],
    followed: usize,
    mut call: impl FnMut(Vec<Resource>, Vec<u8>) -> Result<ScriptReply, E>,
    mut listed: impl FnMut(StoreTime, Vec<(SessionId, Session)>),
) -> Result<bool, E> {
    let (mut rest, mut from, mut followed_so_far) = (resources, Vec::new(), 0);
    while let [first, ..] = rest {
        // The other resources wait until the listing of the first one is complete.
        let named = if from.is_empty() { rest } else { std::slice::from_ref(first) };
        let reply = call(named.to_vec(), from.clone())?;
        let ScriptReply::Listing { now, next, resources, sessions } = reply else { return Ok(false) };
        let complete = resources.len().saturating_sub(usize::from(!next.is_empty())).min(named.len());
        if complete == 0 && (next.is_empty() || next == from) {
            return Ok(false);
        }
        followed_so_far = if complete > 0 { 0 } else { followed_so_far + sessions.len() };
        listed(now, sessions);
        (rest, from) = (&rest[complete..], next);
        if followed_so_far >= followed {
            let is_among_holders = from.starts_with(HOLDERS);
            followed_so_far = 0;
            (rest, from) = if is_among_holders { (&rest[1..], Vec::new()) } else { (rest, HOLDERS.to_vec()) };
        }
    }
    Ok(true)
}

/// Lists what these resources remember, with at most `limit` entries of each. `call` executes a
/// call, whose reply has about `most` names, jobs and entries. `None` if a reply makes no sense.
///
/// # Errors
/// An error of `call`.
pub fn remembered<E>(
    resources: &[Resource],
    limit: u32,
    most: u32,
    mut call: impl FnMut(Call) -> Result<ScriptReply, E>,
) -> Result<Option<Vec<Remembered>>, E> {
    let (mut rest, mut from) = (resources, 0);
    let mut found: Vec<Remembered> = Vec::new();
    while let [first, ..] = rest {
        // The other resources wait until the first one is complete.
        let named = if from > 0 { std::slice::from_ref(first) } else { rest };
        let reply = call(Call::history(named.to_vec(), limit, most, from))?;
        let ScriptReply::History { complete, next, remembered } = reply else { return Ok(None) };
        let is_stuck = complete == 0 && (next == 0 || next == from);
        if is_stuck || complete > named.len() {
            return Ok(None);
        }
        let mut remembered = remembered.into_iter();
        match found.last_mut() {
            Some(last) if from > 0 => remembered.next().into_iter().for_each(|more| last.add_older(more)),
            _ => {}
        }
        found.extend(remembered);
        (rest, from) = (&rest[complete..], next);
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use rlock_model::mode::Mode;
    use rlock_model::op::{Op, Reply};
    use rlock_model::records::Records as _;
    use rlock_model::request::{Claim, Job, Process, Request};
    use rlock_model::span::Span;
    use rlock_model::table::LockTable;

    fn name(text: &str) -> Resource {
        Resource::new(text).unwrap()
    }

    fn id(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn acquire(table: &mut LockTable, number: u8, names: &[&str]) {
        let claim = |text: &&str| Claim { resource: name(text), mode: Mode::Write, span: Span::Whole, slots: None };
        let request = Request {
            session: id(number),
            ancestors: Vec::new(),
            claims: names.iter().map(claim).collect(),
            wait: true,
            terms: None,
            job: Job::default(),
            process: Process::default(),
        };
        let Ok(_) = table.apply(StoreTime::from_micros(number.into()), Op::Acquire { request, place: None });
    }

    /// A reply that lists these sessions with their claims on these resources.
    fn reply(table: &LockTable, names: &[&str], numbers: &[u8], next: &str) -> ScriptReply {
        let empty = |text: &&str| ResourceListing { name: name(text), holders: Vec::new(), waiters: Vec::new() };
        let part = |number: &u8| {
            let Ok(session) = table.records().session(id(*number));
            let mut session = session.expect("the session has asked");
            session.claims.retain(|record| names.contains(&record.claim.resource.as_str()));
            (id(*number), session)
        };
        ScriptReply::Listing {
            now: StoreTime::from_micros(9),
            next: next.into(),
            resources: names.iter().map(|text| empty(text).into()).collect(),
            sessions: numbers.iter().map(part).collect(),
        }
    }

    /// Lists these resources by these replies, and returns what each call asked for, if the replies
    /// make sense.
    fn list(findings: &mut Findings, names: &[&str], replies: Vec<ScriptReply>) -> Option<Vec<Vec<Resource>>> {
        let mut asked = Vec::new();
        let mut replies = replies.into_iter();
        let names: Vec<_> = names.iter().map(|text| name(text)).collect();
        let Ok(makes_sense) = findings.list(&names, 2, |call| {
            asked.push(call.resources().to_vec());
            Ok::<_, Infallible>(replies.next().expect("no more calls are needed"))
        });
        assert_eq!(replies.next(), None);
        makes_sense.then_some(asked)
    }

    fn listings(table: &mut LockTable, names: &[&str]) -> Vec<ResourceListing> {
        let names = names.iter().map(|text| name(text)).collect();
        let Ok(outcome) = table.apply(StoreTime::from_micros(9), Op::Inspect(names));
        let Reply::Listing(listings) = outcome.reply else { panic!("inspect replies {:?}", outcome.reply) };
        listings
    }

    #[test]
    fn parts_of_listings_become_whole_listings() {
        let mut table = <LockTable>::default();
        [(1, &["a", "b"][..]), (2, &["a"]), (3, &["a", "c"]), (4, &["c", "b"])]
            .into_iter()
            .for_each(|(number, names)| acquire(&mut table, number, names));
        let mut findings = Findings::default();
        let replies = vec![
            reply(&table, &["a"], &[2, 3], "q3"),
            reply(&table, &["a"], &[1], ""),
            reply(&table, &["b", "c"], &[4, 1], "q4"),
            reply(&table, &["c"], &[3, 4], ""),
        ];
        let asked = list(&mut findings, &["a", "b", "c"], replies);
        let names = |all: &[&str]| all.iter().map(|text| name(text)).collect::<Vec<_>>();
        assert_eq!(asked, Some([&["a", "b", "c"][..], &["a"], &["b", "c"], &["c"]].map(names).to_vec()));
        assert_eq!(findings.resources(), listings(&mut table, &["a", "b", "c"]));
        assert_eq!(findings.now, StoreTime::from_micros(9));
        assert_eq!(list(&mut findings, &["c", "a"], Vec::new()), Some(Vec::new()), "these are listed");
    }

    #[test]
    fn session_that_was_granted_between_two_calls_is_a_holder() {
        let mut table = <LockTable>::default();
        (1..=3).for_each(|number| acquire(&mut table, number, &["a"]));
        let waiters = reply(&table, &["a"], &[2, 3], "q3");
        let Ok(_) = table.apply(StoreTime::from_micros(8), Op::Release { session: id(1), end: None });
        let mut findings = Findings::default();
        let holders = reply(&table, &["a"], &[2], "");
        assert!(list(&mut findings, &["a"], vec![waiters, holders]).is_some());
        assert_eq!(findings.resources(), listings(&mut table, &["a"]));
    }

    #[test]
    fn listing_ends_at_a_reply_that_makes_no_sense() {
        let table = <LockTable>::default();
        for replies in [
            vec![ScriptReply::Done],
            vec![reply(&table, &[], &[], "")],
            vec![reply(&table, &["a"], &[], "q1"), reply(&table, &["a"], &[], "q1")],
        ] {
            let mut findings = Findings::default();
            assert_eq!(list(&mut findings, &["a"], replies), None);
            assert!(findings.resources().is_empty());
        }
    }
}
