//! A naive implementation of the lock table of docs/design.md: a list of sessions, in which every
//! session is compared with every other.
//!
//! The oracle shares the plain types with the table, but none of its algorithms. The design leaves
//! two orders open: which of several blockers a reply names, and which of several freed parts is
//! handled first. There the oracle follows the doc comments of the table.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock::clock::StoreTime;
use rlock::lock::mode::Mode;
use rlock::lock::op::{HolderListing, Op, Outcome, Refusal, Reply, ResourceListing, WaiterListing};
use rlock::lock::request::{Claim, Request, SessionId};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;

/// A session that holds or waits.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) request: Request,
    /// The position of the request among all requests that had to wait.
    seq: u64,
    /// For each claim, whether an ancestor held an overlapping span at the request.
    nested: Vec<bool>,
    /// The token of each claim, once the request is granted.
    tokens: Option<Vec<u64>>,
    since: StoreTime,
    expiry: Option<StoreTime>,
}

impl Member {
    pub(crate) fn id(&self) -> SessionId {
        self.request.session
    }

    pub(crate) fn is_due(&self, now: StoreTime) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
    }

    fn reply(&self, now: StoreTime) -> Reply {
        let lease = self.expiry.map(|expiry| expiry - now);
        self.tokens.clone().map_or(Reply::Waiting, |tokens| Reply::Granted { lease, tokens })
    }

    pub(crate) fn holds(&self) -> bool {
        self.tokens.is_some()
    }

    /// The rank of a claim: holders, then nested waiters, then ordinary waiters. Waiters are
    /// ordered by their requests.
    fn place(&self, claim: usize) -> (u8, u64) {
        match (self.holds(), self.nested[claim]) {
            (true, _) => (0, 0),
            (false, true) => (1, self.seq),
            (false, false) => (2, self.seq),
        }
    }
}

/// The relation of a claim to the holds of its ancestors.
enum Relation {
    Ordinary,
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
}

/// The table of docs/design.md#conflicts, without slot against slot.
fn clash(a: Mode, b: Mode) -> bool {
    a == Mode::Write || b == Mode::Write || (a == Mode::Prewrite && b == Mode::Prewrite)
}

/// The table of docs/design.md#nesting: `0` at once, `1` waits for holders, `2` refused.
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
        self.leave(now, &expired, &mut granted);
        let reply = match op {
            Op::Acquire(request) => self.acquire(now, request, None),
            Op::Return { request, place } => self.acquire(now, request, Some(place)),
            Op::Renew(id) => self.renew(now, id),
            Op::Release(id) | Op::Cancel(id) | Op::Reap(id) => {
                let known = self
                    .member(id)
                    .map(|member| member.tokens.clone().unwrap_or_else(|| vec![0; member.request.claims.len()]));
                self.leave(now, &[id], &mut granted);
                known.map_or(Reply::Unknown, Reply::Released)
            }
            Op::Shrink { session, resource, span } => self.shrink(now, session, &resource, span, &mut granted),
            Op::Downgrade { session, resource, mode } => self.downgrade(now, session, &resource, mode, &mut granted),
            Op::Expire => Reply::Done,
            Op::Break(resource) => {
                let is_on_resource =
                    |m: &&Member| m.holds() && m.request.claims.iter().any(|claim| claim.resource == resource);
                let mut holders: Vec<_> = self.members.iter().filter(is_on_resource).map(Member::id).collect();
                holders.sort();
                self.leave(now, &holders, &mut granted);
                Reply::Broken(holders)
            }
            Op::Inspect(names) => Reply::Listing(self.list(&names)),
        };
        Outcome { reply, granted, expired }
    }

    fn member(&self, id: SessionId) -> Option<&Member> {
        self.members.iter().find(|member| member.id() == id)
    }

    fn acquire(&mut self, now: StoreTime, request: Request, place: Option<u64>) -> Reply {
        if let Some(member) = self.member(request.session) {
            return member.reply(now);
        }
        let mut nested = Vec::new();
        for claim in &request.claims {
            let slots = |member: &Member| {
                member.request.claims.iter().find(|c| c.resource == claim.resource).and_then(|c| c.slots)
            };
            let in_force = self.members.iter().find_map(slots);
            if let (Some(asked), Some(in_force)) = (claim.slots, in_force)
                && asked != in_force
            {
                let resource = claim.resource.clone();
                return Reply::Refused(Refusal::SlotsDiffer { resource, in_force, asked });
            }
            match self.relation(&request, claim) {
                Ok(relation) => nested.push(!matches!(relation, Relation::Ordinary)),
                Err(refusal) => return Reply::Refused(refusal),
            }
        }
        let wait = request.wait;
        let terms = request.terms;
        let names =
            |other: &Member, claim: &Claim| other.request.claims.iter().any(|its| its.resource == claim.resource);
        let has_place = |other: &&Member| !other.holds() && Some(other.seq) == place;
        let is_taken = |claim: &Claim| self.members.iter().filter(has_place).any(|other| names(other, claim));
        let place = place.filter(|_| !request.claims.iter().any(is_taken));
        let seq = place.unwrap_or(u64::MAX);
        let requester = Member { request, seq, nested, tokens: None, since: now, expiry: None };
        let blockers = self.blockers(&requester);
        let id = requester.id();
        if blockers.is_empty() {
            self.members.push(requester);
            let lease = terms.map(|terms| terms.ttl);
            return Reply::Granted { lease, tokens: self.grant(now, id, lease) };
        }
        if !wait {
            return Reply::Busy(blockers);
        }
        let seq = place.unwrap_or(self.seq + 1);
        self.seq = self.seq.max(seq);
        let expiry = terms.map(|terms| now + terms.heartbeat);
        self.members.push(Member { seq, expiry, ..requester });
        Reply::Waiting
    }

    fn relation(&self, request: &Request, claim: &Claim) -> Result<Relation, Refusal> {
        let held = |id: &SessionId| {
            let member = self.member(*id)?;
            Some(member.request.claims.iter().zip(member.tokens.clone()?).collect::<Vec<_>>())
        };
        let mut above: Vec<_> = request.ancestors.iter().filter_map(held).flatten().collect();
        above.retain(|(held, _)| held.resource == claim.resource && held.span.overlaps(&claim.span));
        let verdict = |held: &Claim| nested_verdict(held.mode, claim.mode);
        if let Some((_, token)) = above.iter().find(|(held, _)| verdict(held) == 0 && held.span.covers(&claim.span)) {
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

    /// Whether a slot claim of this session is a share of an ancestor's slot.
    fn shares(&self, member: &Member, resource: &Resource) -> bool {
        self.members.iter().filter(|other| other.holds() && member.request.ancestors.contains(&other.id())).any(
            |other| other.request.claims.iter().any(|claim| claim.resource == *resource && claim.mode == Mode::Slot),
        )
    }

    /// The sessions that block the first blocked claim.
    fn blockers(&self, requester: &Member) -> Vec<SessionId> {
        for (index, claim) in requester.request.claims.iter().enumerate() {
            let mut clashing = Vec::new();
            let mut slots = Vec::new();
            for other in &self.members {
                if other.id() == requester.id()
                    || requester.request.ancestors.contains(&other.id())
                    || other.request.ancestors.contains(&requester.id())
                {
                    continue;
                }
                for (at, other_claim) in other.request.claims.iter().enumerate() {
                    let ahead = other.holds() || (!requester.nested[index] && other.place(at) < requester.place(index));
                    if other_claim.resource != claim.resource || !ahead || !other_claim.span.overlaps(&claim.span) {
                        continue;
                    }
                    let found = (other_claim.span.lower().clone(), other.place(at), other.id(), at);
                    if clash(claim.mode, other_claim.mode) {
                        clashing.push(found);
                    } else if claim.mode == Mode::Slot
                        && other_claim.mode == Mode::Slot
                        && !self.shares(other, &claim.resource)
                    {
                        slots.push(found);
                    }
                }
            }
            if let Some(last) = clashing.into_iter().max() {
                return vec![last.2];
            }
            let limit = claim.slots.map_or(usize::MAX, |slots| slots as usize);
            if slots.len() >= limit && !self.shares(requester, &claim.resource) {
                slots.sort();
                return slots.into_iter().rev().take(limit).map(|found| found.2).collect();
            }
        }
        Vec::new()
    }

    fn grant(&mut self, now: StoreTime, id: SessionId, lease: Option<Duration>) -> Vec<u64> {
        let request = self.member(id).expect("the session waits or is new").request.clone();
        let mut fresh: BTreeMap<Resource, u64> = BTreeMap::new();
        let mut tokens = Vec::new();
        for claim in &request.claims {
            if let Ok(Relation::Included(token)) = self.relation(&request, claim) {
                tokens.push(token);
                continue;
            }
            let last = self.last_tokens.get(&claim.resource).copied().unwrap_or(0);
            let token = *fresh.entry(claim.resource.clone()).or_insert(now.as_micros().max(last + 1));
            self.last_tokens.insert(claim.resource.clone(), token);
            tokens.push(token);
        }
        let member = self.members.iter_mut().find(|member| member.id() == id).expect("the session waits or is new");
        member.tokens = Some(tokens.clone());
        member.since = now;
        member.expiry = lease.map(|lease| now + lease);
        tokens
    }

    fn renew(&mut self, now: StoreTime, id: SessionId) -> Reply {
        let Some(member) = self.members.iter_mut().find(|member| member.id() == id) else { return Reply::Unknown };
        let held = member.tokens.is_some();
        member.expiry = member.request.terms.map(|terms| now + if held { terms.ttl } else { terms.heartbeat });
        member.reply(now)
    }

    fn leave(&mut self, now: StoreTime, ids: &[SessionId], granted: &mut Vec<SessionId>) {
        let mut freed = Vec::new();
        for id in ids {
            let Some(at) = self.members.iter().position(|member| member.id() == *id) else { continue };
            let left = self.members.remove(at);
            freed.extend(left.request.claims.into_iter().map(|claim| (claim, None)));
        }
        let members = &self.members;
        self.last_tokens.retain(|resource, _| {
            members.iter().any(|member| member.request.claims.iter().any(|claim| claim.resource == *resource))
        });
        self.settle(now, freed, granted);
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
                        waiting.push((member.place(index), index, member.id()));
                    }
                }
            }
            waiting.sort();
            for (_, _, id) in waiting {
                let member = self.member(id).expect("no session leaves here").clone();
                if !member.holds() && self.blockers(&member).is_empty() {
                    self.grant(now, id, member.request.terms.map(|terms| terms.claim).or(self.claim_lease));
                    granted.push(id);
                }
            }
        }
    }

    /// Whether a nested claim of a descendant waits within `part` and fails `keeps`.
    fn relied_on(&self, id: SessionId, resource: &Resource, part: &Span, keeps: impl Fn(&Claim) -> bool) -> bool {
        self.members.iter().filter(|member| !member.holds() && member.request.ancestors.contains(&id)).any(|member| {
            let nested = member.request.claims.iter().zip(&member.nested).filter(|(_, nested)| **nested);
            nested
                .map(|(claim, _)| claim)
                .any(|claim| claim.resource == *resource && claim.span.overlaps(part) && !keeps(claim))
        })
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
        let Some(index) = member.request.claims.iter().position(covers) else {
            return Reply::Refused(Refusal::NotInside { resource, asked: span });
        };
        let claim = &member.request.claims[index];
        if claim.mode == Mode::Slot {
            return Reply::Refused(Refusal::SlotIsWhole { resource });
        }
        let old = claim.clone();
        if self.relied_on(id, &resource, &old.span, |nested| span.covers(&nested.span)) {
            return Reply::Refused(Refusal::NestedWaits { resource });
        }
        let member = self.members.iter_mut().find(|member| member.id() == id).expect("the session was found above");
        member.request.claims[index].span = span;
        self.settle(now, vec![(old, None)], granted);
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
            for (index, claim) in member.request.claims.iter().enumerate().filter(|(_, claim)| claim.resource == name) {
                let (session, since, process) = (member.id(), member.since, member.request.process.clone());
                let (mode, span, slots) = (claim.mode, claim.span.clone(), claim.slots);
                if let Some(tokens) = &member.tokens {
                    let (token, expiry) = (tokens[index], member.expiry);
                    let holder = HolderListing { session, mode, span, slots, token, since, expiry, process };
                    holders.push(((token, since, session, index), holder));
                } else {
                    let waiter = WaiterListing { session, mode, span, slots, since, position: 0, process };
                    waiters.push(((member.place(index), index), waiter));
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
