//! A naive implementation of the lock table of docs/design.md: a list of sessions, in which every
//! session is compared with every other.
//!
//! The oracle shares the plain types with the table, but none of its algorithms. The design leaves
//! two orders open: which of several blockers a reply names, and which of several freed parts is
//! handled first. There the oracle follows the doc comments of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rlock_model::kept::EVER;
use rlock_model::mode::Mode;
use rlock_model::op::{Change, HolderListing, Op, Outcome, Refusal, Reply, ResourceListing, WaiterListing};
use rlock_model::past::{End, Ended, Ending, Streak, WaitEnd};
use rlock_model::records::Revocation;
use rlock_model::request::{Claim, Place, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_sys::clock::StoreTime;

use crate::diary::{Hold, Kept, Wait};

/// A session that holds or waits.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) request: Request,
    /// The position of the request among all requests that had to wait.
    seq: u64,
    /// The resources on which the waiter came behind a waiter that it overtakes, or that waiter
    /// returned ahead of it.
    overtakes_on: BTreeSet<Resource>,
    /// The token of each claim, once the request is granted.
    tokens: Option<Vec<u64>>,
    /// The slot of each claim on one, once the request is granted.
    slots: Vec<Option<u32>>,
    /// Whether a command may run under the grant.
    is_claimed: bool,
    /// Whether the hold lasts without a process.
    is_kept: bool,
    /// The revocation of the grant, if there is one.
    revoked: Option<Revocation>,
    last: Option<Ending>,
    asked: StoreTime,
    since: StoreTime,
    expiry: Option<StoreTime>,
}

/// Why a session leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Released(Option<End>),
    TimeIsOver,
    /// The process is dead, and its tree ended at this instant.
    Dead(Option<StoreTime>),
    Broken,
}

/// No hold without a process lasts longer.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The instant at which a kept hold ends.
fn end(from: StoreTime, length: Duration) -> StoreTime {
    if length == EVER { StoreTime::NEVER } else { from + length.min(WEEK) }
}

impl Member {
    pub(crate) fn id(&self) -> SessionId {
        self.request.session
    }

    fn reply(&self, now: StoreTime) -> Reply {
        let lease = self.expiry.map(|expiry| expiry - now);
        let (slots, last) = (self.slots.iter().flatten().copied().collect(), self.last);
        let is_revoked = self.revoked.is_some();
        self.tokens.clone().map_or(Reply::Waiting, |tokens| Reply::Granted { lease, tokens, slots, last, is_revoked })
    }

    pub(crate) fn holds(&self) -> bool {
        self.tokens.is_some()
    }

    /// The place in the order of grants: holders, then waiters in the order of their requests.
    fn place(&self) -> u64 {
        if self.holds() { 0 } else { self.seq }
    }
}

/// The relation of a claim to the holds of its ancestors.
enum Relation {
    Ordinary,
    /// The token of the ancestor's hold.
    Included(u64),
    Waits,
}

/// The freed claims, each with the mode in which it is still held.
type Freed = Vec<(Claim, Option<Mode>)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) members: Vec<Member>,
    pub(crate) last_tokens: BTreeMap<Resource, u64>,
    pub(crate) seq: u64,
    /// The claim lease of sessions without terms.
    pub(crate) claim_lease: Option<Duration>,
    pub(crate) diaries: BTreeMap<Resource, Kept>,
}

/// The table of docs/design.md#conflicts, without slot against slot.
fn clash(a: Mode, b: Mode) -> bool {
    a == Mode::Write || b == Mode::Write || (a == Mode::Prewrite && b == Mode::Prewrite)
}

/// A claim, and how many slots of the resource its session takes.
type Part = (Claim, usize);

/// Whether two sessions can't have these parts at once, whatever else is held.
fn exclude((one, taken): &Part, (other, needed): &Part) -> bool {
    let of = one.slots.min(other.slots).unwrap_or(0) as usize;
    let is_full =
        *taken > 0 && *needed > 0 && (one.mode, other.mode) == (Mode::Slot, Mode::Slot) && taken + needed > of;
    one.resource == other.resource && one.span.overlaps(&other.span) && (is_full || clash(one.mode, other.mode))
}

fn slots_of(claims: &[Claim], resource: &Resource) -> usize {
    claims.iter().filter(|claim| claim.mode == Mode::Slot && claim.resource == *resource).count()
}

/// The table of docs/design.md#nesting: `0` at once, `1` waits, `2` refused.
fn nested_verdict(held: Mode, asked: Mode) -> u8 {
    let column = |cells: [u8; 4]| match asked {
        Mode::Read => cells[0],
        Mode::Prewrite => cells[1],
        Mode::Write => cells[2],
        Mode::Slot => cells[3],
    };
    match held {
        Mode::Read => column([0, 2, 2, 1]),
        Mode::Prewrite => column([0, 0, 1, 1]),
        Mode::Write => column([0, 0, 0, 0]),
        Mode::Slot => column([0, 2, 2, 0]),
    }
}

impl Oracle {
    pub(crate) fn apply(&mut self, now: StoreTime, op: Op) -> Outcome {
        let mut granted = Vec::new();
        let mut due: Vec<_> = self.members.iter().filter_map(|m| Some((m.expiry?, m.id()))).collect();
        due.retain(|(expiry, _)| *expiry <= now);
        due.sort();
        let expired: Vec<_> = due.into_iter().map(|(_, id)| id).collect();
        self.leave(now, &expired, Why::TimeIsOver, &mut granted);
        let reply = match op {
            Op::Acquire { request, place } => self.acquire(now, request, place, &mut granted),
            Op::Renew(id) => self.renew(now, id),
            Op::Release { session, end } => self.release(now, session, Why::Released(end), &mut granted),
            Op::Reap { session, ended } => match self.member(session) {
                Some(kept) if kept.is_kept => kept.reply(now),
                _ => self.release(now, session, Why::Dead(ended), &mut granted),
            },
            Op::GiveUp(id) => match self.member(id).cloned() {
                None => Reply::Unknown,
                Some(holder) if holder.holds() => holder.reply(now),
                Some(waiter) => {
                    let streak = self.busy(now, &waiter.request, WaitEnd::Busy, waiter.asked);
                    self.leave(now, &[id], Why::Released(None), &mut granted);
                    Reply::Busy { blockers: Vec::new(), streak }
                }
            },
            Op::Change { session, change } => match change {
                Change::Shrink { resource, span } => self.shrink(now, session, &resource, span, &mut granted),
                Change::Downgrade { resource, mode } => self.downgrade(now, session, &resource, mode, &mut granted),
                Change::Extend { by } => self.extend(now, session, by),
            },
            Op::Expire => Reply::Done,
            Op::Break { resource, only, by } => {
                let claims = |m: &Member| m.request.claims.iter().any(|claim| claim.resource == resource);
                let is_it = |m: &&Member| m.holds() && claims(m) && only.is_none_or(|only| only == m.id());
                let mut holders: Vec<_> = self.members.iter().filter(is_it).map(Member::id).collect();
                holders.sort();
                let mut leaving = holders.clone();
                if let Some(by) = by {
                    leaving.retain(|id| self.member(*id).is_some_and(|member| member.is_kept || !member.is_claimed));
                    for id in holders.iter().filter(|id| !leaving.contains(id)) {
                        let member = self.member_mut(*id);
                        let at = member.revoked.as_ref().map_or(now, |revoked| revoked.at);
                        member.revoked = Some(Revocation { at, by: by.clone() });
                    }
                }
                self.leave(now, &leaving, Why::Broken, &mut granted);
                Reply::Broken(holders)
            }
            Op::Forget(name) => {
                if !self.members.iter().any(|member| Self::resources(&member.request).contains(&name)) {
                    self.diaries.remove(&name);
                }
                Reply::Done
            }
            Op::Inspect(names) => Reply::Listing(self.list(&names)),
        };
        Outcome { reply, granted, expired }
    }

    fn member(&self, id: SessionId) -> Option<&Member> {
        self.members.iter().find(|member| member.id() == id)
    }

    /// What is remembered of a resource.
    pub(crate) fn diary(&mut self, now: StoreTime, resource: &Resource) -> &mut Kept {
        let is_idle =
            !self.members.iter().any(|member| member.request.claims.iter().any(|claim| claim.resource == *resource));
        self.diaries.entry(resource.clone()).or_default().at(now, is_idle)
    }

    fn resources(request: &Request) -> Vec<Resource> {
        let mut names: Vec<Resource> = Vec::new();
        for claim in &request.claims {
            if !names.contains(&claim.resource) {
                names.push(claim.resource.clone());
            }
        }
        names
    }

    fn busy(&mut self, now: StoreTime, request: &Request, how: WaitEnd, asked: StoreTime) -> Option<Streak> {
        let mut all = Vec::new();
        for name in Self::resources(request) {
            let wait = Wait { request, is_nested: self.is_nested(request, &name), how, asked };
            all.push(self.diary(now, &name).busy(now, &name, &wait));
        }
        let skips = all.into_iter().next()??;
        Some(Streak { count: skips.count, since: skips.since, last: skips.last, command: skips.command, entry: None })
    }

    /// The job whose success is the run of a request, which ends the skips of the request's job.
    fn done_by(&mut self, now: StoreTime, request: &Request) -> Option<String> {
        let diary = self.diary(now, &request.claims[0].resource);
        let by = diary.done_by(now, &request.job)?;
        diary.end_skips(now, &request.job.name);
        Some(by)
    }

    fn release(&mut self, now: StoreTime, id: SessionId, why: Why, granted: &mut Vec<SessionId>) -> Reply {
        let Some(member) = self.member(id).cloned() else { return Reply::Unknown };
        let job = &member.request.job;
        let why = match why {
            Why::Released(Some(End { ending: Ending::Kept, is_success })) if member.revoked.is_some() => {
                Why::Released(Some(End { ending: Ending::Broken, is_success }))
            }
            why => why,
        };
        let least = job.hold_at_least.filter(|_| member.revoked.is_none());
        if let (Why::Released(Some(end)), true, None, Some(least)) = (why, member.holds(), job.keep_for, least) {
            let until = member.since + least.min(WEEK);
            if until > now {
                if !member.is_kept {
                    self.note_run(now, &member, end, Ended::At(now));
                    let member = self.member_mut(id);
                    (member.is_kept, member.is_claimed, member.expiry) = (true, true, Some(until));
                }
                return Reply::KeptUntil(until);
            }
        }
        if matches!(why, Why::Released(_)) && !member.holds() {
            for name in Self::resources(&member.request) {
                let (request, is_nested) = (&member.request, self.is_nested(&member.request, &name));
                let wait = Wait { request, is_nested, how: WaitEnd::Left, asked: member.asked };
                self.diary(now, &name).wait(now, &name, &wait);
            }
        }
        let tokens = member.tokens.clone().unwrap_or_else(|| vec![0; member.request.claims.len()]);
        self.leave(now, &[id], why, granted);
        Reply::Released(tokens)
    }

    fn extend(&mut self, now: StoreTime, id: SessionId, by: Option<Duration>) -> Reply {
        let Some(member) = self.member(id) else { return Reply::Unknown };
        match member.request.job.keep_for.filter(|_| member.is_kept) {
            None => Reply::Refused(Refusal::NotKept),
            Some(length) => {
                let until = end(now, by.unwrap_or(length));
                let member = self.member_mut(id);
                if member.expiry.is_some_and(|expiry| expiry < until) {
                    member.expiry = Some(until);
                }
                member.reply(now)
            }
        }
    }

    /// Whether a request is made below a hold of a resource.
    fn is_nested(&self, request: &Request, resource: &Resource) -> bool {
        let is_above = |member: &&Member| member.holds() && request.ancestors.contains(&member.id());
        self.members.iter().filter(is_above).any(|above| Self::resources(&above.request).contains(resource))
    }

    fn hold<'a>(&self, member: &'a Member, resource: &Resource) -> Hold<'a> {
        let own = |claim: &Claim| claim.resource == *resource;
        let claims = &member.request.claims;
        let tokens = claims.iter().zip(member.tokens.iter().flatten());
        Hold {
            is_nested: self.is_nested(&member.request, resource),
            job: &member.request.job,
            process: &member.request.process,
            claims: claims.iter().filter(|claim| own(claim)).cloned().collect(),
            slots: claims.iter().zip(&member.slots).filter_map(|(claim, slot)| slot.filter(|_| own(claim))).collect(),
            token: tokens.filter(|(claim, _)| own(claim)).map(|(_, token)| *token).max(),
            asked: member.asked,
            since: member.since,
        }
    }

    fn note_run(&mut self, now: StoreTime, member: &Member, end: End, ended: Ended) {
        for name in Self::resources(&member.request) {
            let hold = self.hold(member, &name);
            self.diary(now, &name).end(now, &hold, end, ended);
        }
    }

    fn note_leave(&mut self, now: StoreTime, member: &Member, why: Why) {
        let ran = member.holds() && (member.is_claimed || matches!(why, Why::Released(Some(_))));
        if !ran {
            return;
        }
        // A lease ends at its end, and a killed hold when its guardian saw the tree gone.
        let ended = match why {
            Why::TimeIsOver => Ended::At(member.expiry.expect("a lease is over")),
            Why::Dead(None) => Ended::Noticed(now),
            Why::Dead(Some(end)) => Ended::At(if end > now { now } else { member.since.max(end) }),
            Why::Released(_) | Why::Broken => Ended::At(now),
        };
        let failure = |ending| Some(End { ending, is_success: false });
        let is_over_already = member.is_kept && member.request.job.keep_for.is_none();
        let end = match why {
            _ if is_over_already => None,
            Why::Released(end) => end,
            Why::TimeIsOver if member.is_kept => failure(Ending::Kept),
            Why::TimeIsOver | Why::Dead(_) => failure(Ending::Expired),
            Why::Broken => failure(Ending::Broken),
        };
        for name in Self::resources(&member.request) {
            let hold = self.hold(member, &name);
            self.diary(now, &name).leave(now, &hold, end, ended);
        }
    }

    fn member_mut(&mut self, id: SessionId) -> &mut Member {
        self.members.iter_mut().find(|member| member.id() == id).expect("the caller has found the session")
    }

    fn acquire(
        &mut self,
        now: StoreTime,
        request: Request,
        returns: Option<Place>,
        granted: &mut Vec<SessionId>,
    ) -> Reply {
        if let Some(member) = self.member(request.session) {
            return member.reply(now);
        }
        for claim in &request.claims {
            if let Err(refusal) = self.relation(&request, claim) {
                return Reply::Refused(refusal);
            }
        }
        let own_names = Self::resources(&request);
        if let Some(by) = self.done_by(now, &request) {
            let name = &own_names[0];
            let is_nested = self.is_nested(&request, name);
            let wait = Wait { request: &request, is_nested, how: WaitEnd::Busy, asked: now };
            self.diary(now, name).spare(now, &wait, by);
            return Reply::AlreadyDone;
        }
        if let Some(place) = returns {
            let by = own_names.iter().find_map(|name| self.diary(now, name).superseded(&request.job, place.number));
            if let Some(by) = by {
                return Reply::Superseded { by, streak: self.busy(now, &request, WaitEnd::Superseded, place.asked) };
            }
        }
        let supersedes = request.job.supersedes && returns.is_none();
        let mut older = Vec::new();
        for name in own_names.iter().filter(|_| supersedes) {
            let is_older = |other: &&Member| {
                let is_same = other.request.job.name == request.job.name;
                is_same && !other.holds() && !request.ancestors.contains(&other.id())
            };
            let waits = |other: &&Member| Self::resources(&other.request).contains(name);
            let mut found: Vec<_> = self.members.iter().filter(is_older).filter(waits).collect();
            found.sort_by_key(|other| other.seq);
            let new = found.into_iter().map(Member::id).filter(|id| !older.contains(id)).collect::<Vec<_>>();
            older.extend(new);
        }
        let crowd = |name: &Resource| {
            let waits = |other: &&Member| {
                !other.holds() && !older.contains(&other.id()) && Self::resources(&other.request).contains(name)
            };
            self.members.iter().filter(waits).count() as u32
        };
        let is_crowded = |max| Self::resources(&request).iter().any(|name| crowd(name) >= max);
        let wait = request.wait && (returns.is_some() || !request.job.max_waiting.is_some_and(is_crowded));
        let terms = request.terms;
        let place = returns.map(|place| place.number);
        let asked = returns.map_or(now, |place| place.asked);
        let names =
            |other: &Member, claim: &Claim| other.request.claims.iter().any(|its| its.resource == claim.resource);
        let has_place = |other: &&Member| !other.holds() && Some(other.seq) == place;
        let is_taken = |claim: &Claim| self.members.iter().filter(has_place).any(|other| names(other, claim));
        let place = place.filter(|_| !request.claims.iter().any(is_taken));
        let seq = place.unwrap_or(u64::MAX);
        let slots = vec![None; request.claims.len()];
        let requester = Member {
            request,
            seq,
            overtakes_on: BTreeSet::new(),
            tokens: None,
            slots,
            is_claimed: false,
            is_kept: false,
            revoked: None,
            last: None,
            asked,
            since: now,
            expiry: None,
        };
        let mut freed = Vec::new();
        if wait {
            freed = self.remove(now, &older, Why::Released(None));
            granted.extend(&older);
        }
        let blockers = self.blockers(&requester, &older);
        let id = requester.id();
        for name in Self::resources(&requester.request) {
            // What is too old by now is not kept by the new session.
            self.diary(now, &name);
        }
        if !blockers.is_empty() && !wait {
            let streak = self.busy(now, &requester.request, WaitEnd::Busy, requester.asked);
            return Reply::Busy { blockers, streak };
        }
        if !wait {
            freed = self.remove(now, &older, Why::Released(None));
            granted.extend(&older);
        }
        for name in own_names.iter().filter(|_| supersedes) {
            let (before, Request { job, process, .. }) = (self.seq + 1, &requester.request);
            self.diary(now, name).supersede(now, job, before, process);
        }
        if blockers.is_empty() {
            self.members.push(requester);
            self.grant(now, id, None);
            self.settle(now, freed, granted);
            return self.member_mut(id).reply(now);
        }
        let seq = place.unwrap_or(self.seq + 1);
        self.seq = self.seq.max(seq);
        let expiry = terms.map(|terms| now + terms.heartbeat);
        self.members.push(Member { seq, expiry, ..requester });
        self.note_overtakers(id);
        self.settle(now, freed, granted);
        // Waiters behind a request that comes back may overtake it, and those that wait for it, in
        // whichever queue these are.
        let mut names = Self::resources(&self.members[self.members.len() - 1].request);
        let is_behind = |other: &&Member| {
            let its = Self::resources(&other.request);
            !other.holds() && other.seq > seq && names.iter().any(|name| its.contains(name))
        };
        let behind = self.members.iter().filter(is_behind).flat_map(|other| Self::resources(&other.request));
        let others: BTreeSet<_> = behind.filter(|name| !names.contains(name)).collect();
        names.extend(others);
        for name in names {
            let is_behind = |member: &&Member| {
                !member.holds() && member.seq > seq && Self::resources(&member.request).contains(&name)
            };
            let mut behind: Vec<_> = self.members.iter().filter(is_behind).map(|it| (it.seq, it.id())).collect();
            behind.sort();
            for (_, id) in behind {
                self.try_grant(now, id, granted);
            }
        }
        self.member(id).map_or(Reply::Unknown, |member| member.reply(now))
    }

    /// The claims of a session on a resource.
    fn parts(&self, member: &Member, name: &Resource) -> Vec<Part> {
        let claims = &member.request.claims;
        let taken = if self.shares(member, name) { 0 } else { slots_of(claims, name) };
        claims.iter().filter(|claim| claim.resource == *name).map(|claim| (claim.clone(), taken)).collect()
    }

    /// The first ancestor of `below` whose hold a waiter waits for, or a waiter that it heeds.
    fn awaited(&self, waiter: &Member, below: &Member) -> Option<SessionId> {
        let excludes = |holder: &Member, name: &Resource| {
            let asked = self.parts(waiter, name);
            self.parts(holder, name).iter().any(|held| asked.iter().any(|part| exclude(held, part)))
        };
        let strange = below.request.ancestors.iter().filter(|id| !waiter.request.ancestors.contains(id));
        let mut holders = strange.filter_map(|id| self.member(*id)).filter(|above| above.holds());
        let is_awaited = |holder: &&Member| {
            let names = Self::resources(&waiter.request);
            names.iter().any(|name| excludes(holder, name) || self.is_held_up(waiter, name, holder))
        };
        holders.find(|holder| !waiter.holds() && is_awaited(holder)).map(Member::id)
    }

    /// Whether a waiter heeds one ahead of it that waits for what a session holds of a resource.
    fn is_held_up(&self, waiter: &Member, name: &Resource, holder: &Member) -> bool {
        let (held, asked) = (self.parts(holder, name), self.parts(waiter, name));
        let is_ahead = |other: &&Member| !other.holds() && other.seq < waiter.seq;
        !waiter.overtakes_on.contains(name)
            && self.members.iter().filter(is_ahead).any(|ahead| {
                let is_between = |its: &Part| {
                    held.iter().any(|held| exclude(held, its)) && asked.iter().any(|claim| exclude(its, claim))
                };
                !ahead.request.ancestors.contains(&holder.id()) && self.parts(ahead, name).iter().any(is_between)
            })
    }

    /// Notes the waiters that overtake another since a session has joined the queues.
    fn note_overtakers(&mut self, id: SessionId) {
        let member = self.member(id).expect("the session waits").clone();
        let heeds = |one: &Member, ahead: &Member, name: &Resource| {
            let here = |member: &Member| -> Vec<Claim> {
                member.request.claims.iter().filter(|claim| claim.resource == *name).cloned().collect()
            };
            let ahead = here(ahead);
            here(one).iter().any(|claim| {
                ahead.iter().any(|its| {
                    let slots = (claim.mode, its.mode) == (Mode::Slot, Mode::Slot);
                    claim.span.overlaps(&its.span) && (slots || clash(claim.mode, its.mode))
                })
            })
        };
        for name in Self::resources(&member.request) {
            let mut found = Vec::new();
            for other in self.members.iter().filter(|other| !other.holds() && other.id() != id) {
                let (ahead, behind) = if other.seq < member.seq { (other, &member) } else { (&member, other) };
                if heeds(behind, ahead, &name) && self.awaited(ahead, behind).is_some() {
                    found.push(behind.id());
                }
            }
            for id in found {
                self.member_mut(id).overtakes_on.insert(name.clone());
            }
        }
    }

    /// The nearest ancestor that holds slots of a resource, and their numbers.
    fn pool(&self, request: &Request, resource: &Resource) -> Option<(SessionId, Vec<u32>)> {
        request.ancestors.iter().find_map(|id| {
            let above = self.member(*id).filter(|above| above.holds())?;
            let claims = above.request.claims.iter().zip(&above.slots);
            let mut numbers: Vec<_> =
                claims.filter(|(its, _)| its.resource == *resource).filter_map(|(_, slot)| *slot).collect();
            numbers.sort_unstable();
            (!numbers.is_empty()).then_some((*id, numbers))
        })
    }

    /// The sessions that hold some of an ancestor's slots and keep a request from having them: one
    /// for each claim, with the number of the slot.
    fn takers_of(&self, request: &Request, resource: &Resource, numbers: &[u32]) -> Vec<(SessionId, usize, u32)> {
        let strange = |other: &&Member| {
            let is_kin = other.id() == request.session || request.ancestors.contains(&other.id());
            other.holds() && !is_kin && self.shares(other, resource)
        };
        let claims = self.members.iter().filter(strange).flat_map(|other| {
            let claims = other.request.claims.iter().zip(&other.slots).enumerate();
            claims.filter_map(|(at, (its, slot))| Some((other.id(), at, slot.filter(|_| its.resource == *resource)?)))
        });
        claims.filter(|(.., number)| numbers.contains(number)).collect()
    }

    fn relation(&self, request: &Request, claim: &Claim) -> Result<Relation, Refusal> {
        let held = |id: &SessionId| {
            let member = self.member(*id)?;
            Some(member.request.claims.iter().zip(member.tokens.clone()?).collect::<Vec<_>>())
        };
        if let (Mode::Slot, Some((_, numbers))) = (claim.mode, self.pool(request, &claim.resource))
            && slots_of(&request.claims, &claim.resource) > numbers.len()
        {
            return Err(Refusal::TooFewSlots { resource: claim.resource.clone(), held: numbers.len() as u32 });
        }
        let mut above: Vec<_> = request.ancestors.iter().filter_map(held).flatten().collect();
        above.retain(|(held, _)| held.resource == claim.resource && held.span.overlaps(&claim.span));
        let verdict = |held: &Claim| nested_verdict(held.mode, claim.mode);
        let includes = |held: &Claim| verdict(held) == 0 && held.span.covers(&claim.span);
        if let Some((_, token)) = above.iter().find(|(held, _)| includes(held)) {
            return Ok(Relation::Included(*token));
        }
        above.reverse();
        let cannot_grow = |held: &Claim| {
            Err(Refusal::CannotGrow { resource: claim.resource.clone(), held: held.mode, asked: claim.mode })
        };
        let refused = |(held, _): &&(&Claim, u64)| verdict(held) == 2;
        if let Some((held, _)) = above.iter().filter(refused).find(|(held, _)| held.mode == Mode::Slot) {
            return cannot_grow(held);
        }
        if above.iter().any(|(held, _)| verdict(held) == 1 && held.span.covers(&claim.span)) {
            return Ok(Relation::Waits);
        }
        if let Some((held, _)) = above.iter().find(refused) {
            return cannot_grow(held);
        }
        match above.first() {
            Some((held, _)) => Err(Refusal::ReachesPast {
                resource: claim.resource.clone(),
                held: held.span.clone(),
                asked: claim.span.clone(),
            }),
            None => Ok(Relation::Ordinary),
        }
    }

    /// Whether a slot claim of this session takes from the slots of an ancestor.
    fn shares(&self, member: &Member, resource: &Resource) -> bool {
        self.members.iter().filter(|other| other.holds() && member.request.ancestors.contains(&other.id())).any(
            |other| other.request.claims.iter().any(|claim| claim.resource == *resource && claim.mode == Mode::Slot),
        )
    }

    /// The sessions that block the first blocked claim, without these waiters.
    fn blockers(&self, requester: &Member, superseded: &[SessionId]) -> Vec<SessionId> {
        let ancestors = &requester.request.ancestors;
        for claim in &requester.request.claims {
            let mut clashing = Vec::new();
            let mut slots = Vec::new();
            let mut ahead = Vec::new();
            // Below a single slot, all share it.
            let pool = self.pool(&requester.request, &claim.resource).filter(|_| claim.mode == Mode::Slot);
            let needs_slot = claim.mode == Mode::Slot && pool.as_ref().is_none_or(|(_, numbers)| numbers.len() > 1);
            let needs = slots_of(&requester.request.claims, &claim.resource);
            let own = pool.as_ref().map_or(claim.slots.unwrap_or(0), |(_, numbers)| numbers.len() as u32);
            // The smallest number of slots counts that anybody who takes one states. Those that
            // hold the same one of an ancestor's slots take one.
            let is_full = |takers: &[(SessionId, u32, Option<u32>)]| {
                let slots = takers.iter().map(|(_, slots, _)| *slots).min().map_or(own, |slots| slots.min(own));
                let mut numbers: Vec<_> = takers.iter().filter_map(|(.., number)| *number).collect();
                let alone = takers.len() - numbers.len();
                numbers.sort_unstable();
                numbers.dedup();
                needs_slot && alone + numbers.len() + needs > slots as usize
            };
            if let (true, Some((_, numbers))) = (needs_slot, &pool) {
                for (id, at, number) in self.takers_of(&requester.request, &claim.resource, numbers) {
                    slots.push((claim.span.lower().clone(), 0, id, at, own, Some(number)));
                }
            }
            for other in &self.members {
                let is_passed =
                    other.id() == requester.id() || ancestors.contains(&other.id()) || superseded.contains(&other.id());
                if is_passed || other.place() >= requester.seq {
                    continue;
                }
                for (at, its) in other.request.claims.iter().enumerate() {
                    if its.resource != claim.resource || !its.span.overlaps(&claim.span) {
                        continue;
                    }
                    let clashes = clash(claim.mode, its.mode);
                    let takes = needs_slot
                        && its.mode == Mode::Slot
                        && match &pool {
                            None => !self.shares(other, &claim.resource),
                            Some((id, _)) => {
                                let its = self.pool(&other.request, &claim.resource);
                                !other.holds() && its.is_some_and(|(its, _)| its == *id)
                            }
                        };
                    if !clashes && !takes {
                        continue;
                    }
                    let limit = if pool.is_some() { own } else { its.slots.unwrap_or(0) };
                    if !other.holds() && !ancestors.is_empty() {
                        ahead.push((other.seq, at, clashes, other, limit));
                    } else {
                        let found = (its.span.lower().clone(), other.place(), other.id(), at, limit, None);
                        if clashes { clashing.push(found) } else { slots.push(found) }
                    }
                }
            }
            if let Some(last) = clashing.into_iter().max() {
                return vec![last.2];
            }
            slots.sort();
            let mut takers = Vec::new();
            for (.., id, _, slots, number) in slots.into_iter().rev() {
                if !is_full(&takers) {
                    takers.push((id, slots, number));
                }
            }
            ahead.sort_by_key(|(seq, at, ..)| (*seq, *at));
            let mut overtaken = Vec::new();
            for (_, _, clashes, other, slots) in ahead {
                if is_full(&takers) {
                    break;
                }
                if self.overtakes(requester, other, &claim.resource, &mut overtaken) {
                    continue;
                }
                if clashes {
                    return vec![other.id()];
                }
                takers.push((other.id(), slots, None));
            }
            if is_full(&takers) {
                return takers.into_iter().map(|(id, ..)| id).collect();
            }
        }
        Vec::new()
    }

    /// Whether a nested request overtakes the next waiter of a resource: one that waits for an
    /// ancestor of the request, or one behind a waiter that is overtaken, unless the ancestor is
    /// around it. A request that waits already overtakes only where it is noted.
    fn overtakes(
        &self,
        below: &Member,
        waiter: &Member,
        resource: &Resource,
        overtaken: &mut Vec<(Part, SessionId)>,
    ) -> bool {
        if !below.overtakes_on.contains(resource) && self.member(below.id()).is_some() {
            return false;
        }
        let parts = self.parts(waiter, resource);
        let is_behind = |(ahead, ancestor): &&(Part, SessionId)| {
            !waiter.overtakes_on.contains(resource)
                && !waiter.request.ancestors.contains(ancestor)
                && parts.iter().any(|part| exclude(ahead, part))
        };
        let ahead = overtaken.iter().find(is_behind).map(|(_, ancestor)| *ancestor);
        let Some(ancestor) = ahead.or_else(|| self.awaited(waiter, below)) else { return false };
        overtaken.extend(parts.into_iter().map(|part| (part, ancestor)));
        true
    }

    /// Grants a request. From the queue, it has to be claimed within the claim lease.
    fn grant(&mut self, now: StoreTime, id: SessionId, claim_lease: Option<Duration>) {
        let request = self.member(id).expect("the session waits or is new").request.clone();
        let mut last = Vec::new();
        for name in Self::resources(&request) {
            let diary = self.diary(now, &name);
            last.push(diary.diary().last.map(|(ending, _)| ending));
            diary.end_skips(now, &request.job.name);
        }
        let mut fresh: BTreeMap<Resource, u64> = BTreeMap::new();
        let mut tokens = Vec::new();
        let mut slots = Vec::new();
        for claim in &request.claims {
            let relation = self.relation(&request, claim);
            slots.push(if claim.mode == Mode::Slot {
                let own = request.claims.iter().zip(&slots);
                let own =
                    own.filter(|(its, _)| its.resource == claim.resource).map(|(_, slot): (_, &Option<u32>)| *slot);
                match self.pool(&request, &claim.resource) {
                    Some((_, numbers)) => {
                        let taken = self.takers_of(&request, &claim.resource, &numbers);
                        let is_free = |number: &u32| taken.iter().all(|(.., other)| other != number);
                        let mut free = numbers.iter().copied().filter(|it| numbers.len() == 1 || is_free(it));
                        free.nth(own.count())
                    }
                    None => self.free_slot(&claim.resource, own.collect()),
                }
            } else {
                None
            });
            if let Ok(Relation::Included(token)) = relation {
                tokens.push(token);
                continue;
            }
            let last = self.last_tokens.get(&claim.resource).copied().unwrap_or(0);
            let token = *fresh.entry(claim.resource.clone()).or_insert(now.as_micros().max(last + 1));
            self.last_tokens.insert(claim.resource.clone(), token);
            tokens.push(token);
        }
        let member = self.member_mut(id);
        member.tokens = Some(tokens);
        member.slots = slots;
        member.last = last[0];
        member.since = now;
        match claim_lease {
            Some(lease) => {
                let limit = member.request.job.keep_for.unwrap_or(Duration::MAX);
                member.expiry = Some(now + lease.min(limit));
            }
            None => Self::claim(member, now),
        }
    }

    /// The holder claims its grant, or renews it.
    fn claim(member: &mut Member, now: StoreTime) {
        member.is_claimed = true;
        if let Some(length) = member.request.job.keep_for {
            member.is_kept = true;
            member.expiry = Some(end(member.since, length));
        } else {
            member.expiry = member.request.terms.map(|terms| now + terms.ttl);
        }
    }

    /// The first slot that no holder has. The request has some of `taken` already.
    fn free_slot(&self, resource: &Resource, mut taken: Vec<Option<u32>>) -> Option<u32> {
        let holders = self.members.iter().filter(|member| member.holds());
        let claims = holders.flat_map(|member| member.request.claims.iter().zip(&member.slots));
        taken.extend(claims.filter(|(claim, _)| claim.resource == *resource).map(|(_, slot)| *slot));
        (0..).find(|slot| !taken.contains(&Some(*slot)))
    }

    fn renew(&mut self, now: StoreTime, id: SessionId) -> Reply {
        let Some(member) = self.members.iter_mut().find(|member| member.id() == id) else { return Reply::Unknown };
        let before = member.expiry;
        match (member.holds(), member.is_kept) {
            (_, true) => {}
            (true, false) => Self::claim(member, now),
            (false, false) => member.expiry = member.request.terms.map(|terms| now + terms.heartbeat),
        }
        if !member.is_kept && member.expiry < before && member.expiry.is_some() {
            member.expiry = before;
        }
        let is_held = member.holds() && !member.is_kept;
        let ttl = member.request.terms.map(|terms| terms.ttl).filter(|_| is_held);
        match member.reply(now) {
            Reply::Granted { lease, tokens, slots, last, is_revoked } => {
                let lease = lease.map(|lease| ttl.map_or(lease, |ttl| lease.min(ttl)));
                Reply::Granted { lease, tokens, slots, last, is_revoked }
            }
            reply => reply,
        }
    }

    fn leave(&mut self, now: StoreTime, ids: &[SessionId], why: Why, granted: &mut Vec<SessionId>) {
        let freed = self.remove(now, ids, why);
        self.settle(now, freed, granted);
    }

    /// Removes sessions, and returns what they held or waited for.
    fn remove(&mut self, now: StoreTime, ids: &[SessionId], why: Why) -> Freed {
        let mut freed = Vec::new();
        for id in ids {
            let Some(member) = self.member(*id).cloned() else { continue };
            self.note_leave(now, &member, why);
            self.members.retain(|other| other.id() != *id);
            freed.extend(member.request.claims.into_iter().map(|claim| (claim, None)));
        }
        let members = &self.members;
        self.last_tokens.retain(|resource, _| {
            members.iter().any(|member| member.request.claims.iter().any(|claim| claim.resource == *resource))
        });
        freed
    }

    fn settle(&mut self, now: StoreTime, freed: Freed, granted: &mut Vec<SessionId>) {
        for (was, left) in freed {
            // Each freed part grants the waiters that it blocked, even if other parts are freed in
            // the same step.
            let blocked = |mode: Mode| {
                (clash(was.mode, mode) || (was.mode, mode) == (Mode::Slot, Mode::Slot))
                    && !left.is_some_and(|left| clash(left, mode))
            };
            let mut waiting = Vec::new();
            for member in self.members.iter().filter(|member| !member.holds()) {
                for (index, claim) in member.request.claims.iter().enumerate() {
                    if claim.resource == was.resource && claim.span.overlaps(&was.span) && blocked(claim.mode) {
                        waiting.push((member.seq, index, member.id()));
                    }
                }
            }
            waiting.sort();
            for (_, _, id) in waiting {
                self.try_grant(now, id, granted);
            }
        }
    }

    /// Grants a waiter's request if no session blocks it.
    fn try_grant(&mut self, now: StoreTime, id: SessionId, granted: &mut Vec<SessionId>) {
        let Some(member) = self.member(id).cloned() else { return };
        if member.holds() || !self.blockers(&member, &[]).is_empty() {
            return;
        }
        granted.push(id);
        if self.done_by(now, &member.request).is_some() {
            self.leave(now, &[id], Why::Released(None), granted);
        } else {
            self.grant(now, id, member.request.terms.map(|terms| terms.claim).or(self.claim_lease));
        }
    }

    /// Whether a claim of a descendant waits within `part` and fails `keeps`.
    fn relied_on(&self, id: SessionId, resource: &Resource, part: &Span, keeps: impl Fn(&Claim) -> bool) -> bool {
        let below = self.members.iter().filter(|member| !member.holds() && member.request.ancestors.contains(&id));
        let mut claims = below.flat_map(|member| &member.request.claims);
        claims.any(|claim| claim.resource == *resource && claim.span.overlaps(part) && !keeps(claim))
    }

    fn shrink(
        &mut self,
        now: StoreTime,
        id: SessionId,
        resource: &Resource,
        span: Span,
        granted: &mut Vec<SessionId>,
    ) -> Reply {
        let Some(member) = self.member(id) else { return Reply::Unknown };
        let is_on_resource = |claim: &Claim| claim.resource == *resource;
        let resource = resource.clone();
        if !member.holds() || !member.request.claims.iter().any(is_on_resource) {
            return Reply::Refused(Refusal::NotHeld { resource });
        }
        let covers = |claim: &Claim| claim.resource == resource && claim.span.covers(&span);
        let held: Vec<(usize, Claim)> = member.request.claims.iter().cloned().enumerate().collect();
        let mut held: Vec<_> = held.into_iter().filter(|(_, claim)| covers(claim)).collect();
        if held.is_empty() {
            return Reply::Refused(Refusal::NotInside { resource, asked: span });
        }
        held.retain(|(_, claim)| claim.mode != Mode::Slot);
        if held.is_empty() {
            return Reply::Refused(Refusal::SlotIsWhole { resource });
        }
        if held.iter().any(|(_, claim)| self.relied_on(id, &resource, &claim.span, |nested| span.covers(&nested.span)))
        {
            return Reply::Refused(Refusal::NestedWaits { resource });
        }
        let member = self.members.iter_mut().find(|member| member.id() == id).expect("the session was found above");
        held.iter().for_each(|(index, _)| member.request.claims[*index].span = span.clone());
        self.settle(now, held.into_iter().map(|(_, claim)| (claim, None)).collect(), granted);
        Reply::Done
    }

    fn downgrade(
        &mut self,
        now: StoreTime,
        id: SessionId,
        resource: &Resource,
        mode: Mode,
        granted: &mut Vec<SessionId>,
    ) -> Reply {
        let Some(member) = self.member(id) else { return Reply::Unknown };
        let resource = resource.clone();
        let height = |mode: Mode| match mode {
            Mode::Read => Some(1),
            Mode::Prewrite => Some(2),
            Mode::Write => Some(3),
            Mode::Slot => None,
        };
        let lowers = |from: Mode| height(from).zip(height(mode)).is_some_and(|(from, to)| to <= from);
        let held: Vec<(usize, Claim)> = member.request.claims.iter().cloned().enumerate().collect();
        let mut held: Vec<_> = held.into_iter().filter(|(_, claim)| claim.resource == resource).collect();
        if !member.holds() || held.is_empty() {
            return Reply::Refused(Refusal::NotHeld { resource });
        }
        let highest = held.last().expect("the list is not empty").1.mode;
        held.retain(|(_, claim)| lowers(claim.mode));
        if held.is_empty() {
            return Reply::Refused(Refusal::NotBelow { resource, held: highest, asked: mode });
        }
        if held.iter().any(|(_, claim)| {
            self.relied_on(id, &resource, &claim.span, |nested| nested_verdict(mode, nested.mode) < 2)
        }) {
            return Reply::Refused(Refusal::NestedWaits { resource });
        }
        let member = self.members.iter_mut().find(|member| member.id() == id).expect("the session was found above");
        held.iter().for_each(|(index, _)| member.request.claims[*index].mode = mode);
        self.settle(now, held.into_iter().map(|(_, claim)| (claim, Some(mode))).collect(), granted);
        Reply::Done
    }

    fn list(&self, names: &[Resource]) -> Vec<ResourceListing> {
        let mut names = names.to_vec();
        if names.is_empty() {
            let claims = self.members.iter().flat_map(|member| &member.request.claims);
            names.extend(claims.map(|claim| claim.resource.clone()));
            names.sort();
            names.dedup();
        }
        names.into_iter().map(|name| self.list_one(name)).collect()
    }

    fn list_one(&self, name: Resource) -> ResourceListing {
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for member in &self.members {
            let tokens = member.tokens.clone().unwrap_or_else(|| vec![0; member.request.claims.len()]);
            let here = member.request.claims.iter().zip(tokens).enumerate();
            let here: Vec<_> = here.filter(|(_, (claim, _))| claim.resource == name).collect();
            // The slots of a session are one claim.
            for same in here.chunk_by(|(_, one), (_, other)| one.0.mode == Mode::Slot && one == other) {
                let ((index, (claim, token)), count) = (same[0], same.len());
                let numbers = same.iter().filter_map(|(index, _)| *member.slots.get(*index)?).collect();
                let (session, since, process) = (member.id(), member.since, member.request.process.clone());
                let asked = member.asked;
                let (mode, span, slots) = (claim.mode, claim.span.clone(), claim.slots);
                let ancestors = member.request.ancestors.clone();
                if member.holds() {
                    let expiry = member.expiry.filter(|expiry| *expiry < StoreTime::NEVER);
                    let (kept, revoked) = (member.is_kept, member.revoked.clone());
                    let holder = HolderListing {
                        session,
                        mode,
                        span,
                        slots,
                        count,
                        numbers,
                        token,
                        since,
                        expiry,
                        kept,
                        revoked,
                        ancestors,
                        process,
                        gate: None,
                    };
                    holders.push(((token, since, session, index), holder));
                } else {
                    let (since, position) = (asked, 0);
                    let waiter =
                        WaiterListing { session, mode, span, slots, count, since, position, ancestors, process };
                    waiters.push(((member.seq, index), waiter));
                }
            }
        }
        holders.sort_by_key(|(order, _)| *order);
        waiters.sort_by_key(|(order, _)| *order);
        let mut waiters: Vec<_> = waiters.into_iter().map(|(_, waiter)| waiter).collect();
        for index in 0..waiters.len() {
            waiters[index].position = match index.checked_sub(1).map(|before| &waiters[before]) {
                None => 1,
                Some(before) => before.position + u32::from(before.session != waiters[index].session),
            };
        }
        ResourceListing { name, holders: holders.into_iter().map(|(_, holder)| holder).collect(), waiters }
    }
}
