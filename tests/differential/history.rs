//! Random histories of requests and other operations. Each step has a seed of its own, so that a
//! history stays valid when steps are removed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlock::clock::StoreTime;
use rlock::lock::mode::Mode;
use rlock::lock::op::Op;
use rlock::lock::past::{End, Ending};
use rlock::lock::records::Records as _;
use rlock::lock::request::{Claim, Job, OncePer, Place, Process, Request, SessionId, Terms};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::lock::table::LockTable;
use rlock::store::redis::codec::{Variant, Wake};

use crate::both::Both;
use crate::rng::Rng;
use crate::side::Side;
use crate::support::servers::Server;

/// Names with characters that are special to Redis, to a Cluster or to SCAN, and ordinary names.
const NAMES: [&str; 7] = ["nightly", "a b:c", "{tag}:x", "{tag}:y", "{}*?[%]\\", "名前 é", "x}y{z}"];
const ENDS: [&str; 12] =
    ["-inf", "-1e3", "-22/7", "0", "1/3", "0.5", "1", "1.5", "2", "22/7", "1000000000000000000001", "inf"];

/// The start of all histories. A realistic instant puts the tokens in their realistic range.
const BEGIN: StoreTime = StoreTime::from_micros(1_795_000_000_000_000);
/// The maximum number of attempts to shorten a failing history.
const TRIES_MAX: u32 = 400;
/// The maximum number of sessions that hold or wait.
const LIVE_MAX: usize = 12;

/// A seed, and the numbers of the steps to play.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) seed: u64,
    pub(crate) steps: Vec<u32>,
}

impl History {
    pub(crate) fn new(seed: u64, steps: Vec<u32>) -> Self {
        Self { seed, steps }
    }

    /// Plays the history in a fresh namespace, up to the first difference. Half of the histories do
    /// without the fast paths of the scripts. In a third, each call does little at a time.
    pub(crate) fn play(&self, server: &Server) -> Result<(), String> {
        static PLAYED: AtomicU64 = AtomicU64::new(0);
        let number = PLAYED.fetch_add(1, Ordering::Relaxed);
        let mut side = Side::new(server, &format!("history {number}"), Wake::Nobody);
        side.variant = Variant { is_general: self.seed % 2 == 1, is_bounded: self.seed % 3 == 1 };
        self.play_on(side)
    }

    /// Plays the history in an empty namespace.
    pub(crate) fn play_on(&self, side: Side) -> Result<(), String> {
        let mut world = World::new(self.seed, side);
        for step in &self.steps {
            let op = world.op(&mut Rng::new(self.seed << 32 | u64::from(*step)));
            let own = world.own(&op);
            let shown = format!("step {step}, {:?}: ", world.now - BEGIN);
            world.both.apply(world.now, op, &own).map_err(|difference| shown + &difference)?;
        }
        Ok(())
    }

    /// Removes steps of this failing history while it still fails, with at most `TRIES_MAX`
    /// attempts. Returns the shortest history and its difference.
    pub(crate) fn shortened(&self, server: &Server, difference: String) -> (Self, String) {
        let (mut best, mut difference) = (self.clone(), difference);
        let mut chunk = best.steps.len().div_ceil(2);
        let mut tries = 0;
        loop {
            let mut shorter = false;
            let mut at = 0;
            while at < best.steps.len() {
                tries += 1;
                if tries > TRIES_MAX {
                    return (best, difference);
                }
                let end = (at + chunk).min(best.steps.len());
                let steps = [&best.steps[..at], &best.steps[end..]].concat();
                let candidate = Self { seed: self.seed, steps };
                match candidate.play(server) {
                    Err(found) => {
                        (best, difference, shorter) = (candidate, found, true);
                    }
                    Ok(()) => at = end,
                }
            }
            match (shorter, chunk) {
                (false, 1) => return (best, difference),
                (true, 1) => {}
                _ => chunk = chunk.div_ceil(2),
            }
        }
    }
}

/// The tables, and the requests of all sessions.
struct World {
    both: Both,
    resources: Vec<Resource>,
    modes: &'static [Mode],
    now: StoreTime,
    requests: BTreeMap<SessionId, Request>,
    /// All sessions in the order of their requests.
    order: Vec<SessionId>,
    /// The number in the queue of each waiter that has left.
    left: BTreeMap<SessionId, u64>,
    /// Whether many requests meet around a prewrite hold.
    is_entangled: bool,
}

impl World {
    fn new(seed: u64, side: Side) -> Self {
        let mut rng = Rng::new(seed);
        let count = 3 + rng.below(5) as usize;
        let from = rng.below(NAMES.len() as u64) as usize;
        let names = NAMES.iter().cycle().skip(from).take(count);
        let resources: Vec<_> = names.map(|name| Resource::new(name).unwrap()).collect();
        use Mode::{Prewrite, Read, Slot, Write};
        let modes: [&[Mode]; 5] = [
            &[Read, Prewrite, Write, Write, Slot],
            &[Read, Prewrite, Write, Write, Slot],
            &[Read, Read, Prewrite, Prewrite, Write],
            &[Slot, Slot, Slot, Read, Write],
            &[Read, Write],
        ];
        let modes = *rng.pick(&modes);
        // With few resources the queues are long.
        let used = if rng.chance(30) { 1 + rng.below(2) as usize } else { count };
        let both = Both::new(side, resources.clone(), rng.chance(50));
        let resources = resources.into_iter().take(used).collect();
        let is_entangled = rng.chance(50);
        let (requests, order, left) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { both, resources, modes, now: BEGIN, requests, order, left, is_entangled }
    }

    fn is_live(&self, id: SessionId) -> bool {
        matches!(self.both.table.records().session(id), Ok(Some(_)))
    }

    fn live(&self) -> Vec<SessionId> {
        self.order.iter().copied().filter(|id| self.is_live(*id)).collect()
    }

    fn random_session(&self, rng: &mut Rng) -> SessionId {
        let live = self.live();
        match (rng.chance(90), live.is_empty(), self.order.is_empty()) {
            (true, false, _) => *rng.pick(&live),
            (_, _, false) => *rng.pick(&self.order),
            _ => SessionId([0; 16]),
        }
    }

    /// In most cases a random holder, preferably one on whose hold a waiting descendant relies.
    fn random_holder(&self, rng: &mut Rng) -> Option<SessionId> {
        let (held, waiting): (Vec<_>, Vec<_>) = self.live().into_iter().partition(|id| self.holds(*id));
        let above = waiting.iter().flat_map(|id| &self.requests[id].ancestors).copied();
        let above: Vec<_> = above.filter(|id| held.contains(id)).collect();
        let among = if above.is_empty() || rng.chance(25) { held } else { above };
        (!among.is_empty() && rng.chance(80)).then(|| *rng.pick(&among))
    }

    /// The resources that the session of the operation claims.
    fn own(&self, op: &Op) -> Vec<Resource> {
        match op {
            Op::Renew(session)
            | Op::Extend { session, .. }
            | Op::Release { session, .. }
            | Op::GiveUp(session)
            | Op::Cancel(session)
            | Op::Reap(session)
            | Op::Shrink { session, .. }
            | Op::Downgrade { session, .. } => match self.requests.get(session) {
                Some(request) => {
                    let mut names: Vec<_> = request.claims.iter().map(|claim| claim.resource.clone()).collect();
                    names.sort();
                    names.dedup();
                    names
                }
                None => vec![self.resources[0].clone()],
            },
            Op::Expire => self.resources.clone(),
            Op::Acquire(_) | Op::Return { .. } | Op::Break(_) | Op::BreakOne { .. } | Op::Inspect(_) => Vec::new(),
        }
    }

    fn op(&mut self, rng: &mut Rng) -> Op {
        self.now += Duration::from_micros(match rng.below(100) {
            0..20 => 0,
            20..90 => rng.below(16),
            90..98 => rng.below(100),
            _ => 500,
        });
        self.advance_past_idle_tokens();
        let crowded = self.live().len() >= LIVE_MAX;
        let session = self.random_session(rng);
        if rng.chance(12) {
            return self.rare_op(rng, session);
        }
        match rng.below(100) {
            0..48 if !crowded => Op::Acquire(self.request(rng)),
            48..52 => match self.requests.get(&session) {
                // Repeats a request, but only of a live session: otherwise the request would count
                // as new.
                Some(request) if self.is_live(session) && rng.chance(50) => Op::Acquire(request.clone()),
                _ => {
                    let absent = self.left.iter().find(|(session, _)| !self.is_live(**session));
                    match absent.map(|(session, place)| (*session, *place)) {
                        Some((session, number)) if !crowded => {
                            self.left.remove(&session);
                            let place = Place { number, asked: self.now };
                            Op::Return { request: self.requests[&session].clone(), place }
                        }
                        _ => Op::Expire,
                    }
                }
            },
            52..56 => {
                // A waiter that leaves may return to its place, as one that was passed over does.
                if let Ok(Some(waiter)) = self.both.table.records().session(session)
                    && !waiter.is_holder()
                {
                    self.left.insert(session, waiter.place());
                }
                Op::Cancel(session)
            }
            56..66 => Op::Renew(session),
            66..74 => {
                let session = self.random_holder(rng).unwrap_or(session);
                let (resource, span) = self.part(session, rng);
                Op::Shrink { session, resource, span }
            }
            74..81 => {
                let session = self.random_holder(rng).unwrap_or(session);
                let (resource, _) = self.part(session, rng);
                let mode = if rng.chance(50) { Mode::Read } else { *rng.pick(&Mode::ALL) };
                Op::Downgrade { session, resource, mode }
            }
            81..83 => Op::Break(rng.pick(&self.resources).clone()),
            83 => {
                let session = self.random_holder(rng).unwrap_or(session);
                Op::BreakOne { resource: rng.pick(&self.resources).clone(), session }
            }
            84..86 => Op::Inspect(vec![rng.pick(&self.resources).clone(), self.resources[0].clone()]),
            86..88 => Op::Expire,
            _ => Op::Release { session, end: self.end(rng) },
        }
    }

    /// An operation on a wait that takes too long, or on a kept hold.
    fn rare_op(&self, rng: &mut Rng, session: SessionId) -> Op {
        if rng.chance(60) {
            return Op::GiveUp(session);
        }
        let session = self.random_holder(rng).unwrap_or(session);
        Op::Extend { session, by: rng.chance(50).then(|| Duration::from_micros(rng.below(400))) }
    }

    fn end(&self, rng: &mut Rng) -> Option<End> {
        if rng.chance(20) {
            return None;
        }
        let ending = *rng.pick(&[Ending::Exit(0), Ending::Exit(7), Ending::Signal(9), Ending::Timeout, Ending::Lost]);
        Some(End { ending, is_success: ending == Ending::Exit(0) })
    }

    /// The job of a request with these claims.
    fn job(&self, rng: &mut Rng, claims: &[Claim]) -> Job {
        let length = |rng: &mut Rng| Duration::from_micros(20 + rng.below(300));
        let is_whole_write = matches!(claims, [claim] if claim.mode == Mode::Write && claim.span.is_whole());
        let keep_for = rng.chance(15).then(|| length(rng));
        Job {
            name: (*rng.pick(&["", "a", "b"])).to_owned(),
            once_per: (is_whole_write && rng.chance(50))
                .then(|| OncePer { period: length(rng), same_job: rng.chance(50) }),
            skips: rng.chance(60),
            max_waiting: rng.chance(30).then(|| rng.below(4) as u32),
            hold_at_least: (keep_for.is_none() && rng.chance(20)).then(|| length(rng)),
            keep_for,
            is_acquire: keep_for.is_some(),
            history: *rng.pick(&[0, 1, 3, 32]),
            held_above: self.resources.iter().filter(|_| rng.chance(10)).cloned().collect(),
        }
    }

    /// Advances the clock past the last token of each idle resource. The server keeps that token,
    /// but the model forgets it with the last session, and needs the clock to give a higher one.
    fn advance_past_idle_tokens(&mut self) {
        let tokens = self.both.last_tokens();
        loop {
            let mut after = LockTable::new(self.both.table.records().clone());
            let Ok(_) = after.apply(self.now, Op::Expire);
            let idle = |name: &Resource| matches!(after.records().resource(name), Ok(None));
            match tokens.iter().filter(|(name, _)| idle(name)).map(|(_, token)| *token).max() {
                Some(top) if top >= self.now.as_micros() => self.now = StoreTime::from_micros(top + 1),
                _ => return,
            }
        }
    }

    /// In most cases a resource that the session claims, and a part of the claimed span.
    fn part(&self, session: SessionId, rng: &mut Rng) -> (Resource, Span) {
        let span = self.span(rng);
        let claims = self.requests.get(&session).map_or(&[][..], |request| &request.claims);
        if claims.is_empty() || rng.chance(8) {
            return (rng.pick(&self.resources).clone(), span);
        }
        let claim = rng.pick(claims);
        let inside = (0..8).map(|_| self.span(rng)).find(|part| claim.span.covers(part));
        (claim.resource.clone(), inside.unwrap_or(span))
    }

    fn request(&mut self, rng: &mut Rng) -> Request {
        let entangled = if self.is_entangled && rng.chance(60) { self.entangled(rng) } else { None };
        let (ancestors, claims) = entangled.unwrap_or_else(|| self.nested(rng));
        let lease = |rng: &mut Rng| Duration::from_micros(40 + rng.below(8) * 30);
        let terms = Terms { ttl: lease(rng), claim: lease(rng), heartbeat: lease(rng) };
        let job = self.job(rng, &claims);
        let request = Request {
            session: SessionId((u128::from(rng.next()) << 64 | u128::from(rng.next())).to_be_bytes()),
            ancestors,
            claims,
            wait: rng.chance(88),
            terms: rng.chance(85).then_some(terms),
            job,
            process: Process {
                host: "höst".to_owned(),
                pid: self.order.len() as u32,
                user: "\"u\"".to_owned(),
                command: vec!["sh".to_owned(), "a b\n\u{0}".to_owned()],
                owner: rng.chance(50).then(|| "o\"wner".to_owned()),
                reason: rng.chance(50).then(|| "why é".to_owned()),
            },
        };
        self.requests.insert(request.session, request.clone());
        self.order.push(request.session);
        request
    }

    /// The ancestors and claims of a request that is often below a holder, and then mostly asks for
    /// what the holder has.
    fn nested(&self, rng: &mut Rng) -> (Vec<SessionId>, Vec<Claim>) {
        let mut ancestors = Vec::new();
        let granted: Vec<_> = self.order.iter().filter(|id| self.holds(**id) || rng.chance(3)).copied().collect();
        if !granted.is_empty() && rng.chance(35) {
            let mut parent = *rng.pick(&granted[granted.len().saturating_sub(4)..]);
            // Nested claims wait mostly as upgrades, so prewrite holders are preferred as parents.
            let prewrites = |id: &&SessionId| self.requests[id].claims.iter().any(|claim| claim.mode == Mode::Prewrite);
            if let Some(other) = granted.iter().rfind(prewrites)
                && rng.chance(40)
            {
                parent = *other;
            }
            ancestors.push(parent);
            ancestors.extend(&self.requests[&parent].ancestors);
        }
        let mut claims: Vec<Claim> = Vec::new();
        for _ in 0..[1, 1, 1, 1, 2, 2, 3, 4][rng.below(8) as usize] {
            let mut claim = self.claim(rng);
            // In most cases the claim has the resource and the span of a claim of the parent.
            if let Some(parent) = ancestors.first()
                && rng.chance(60)
            {
                let above = rng.pick(&self.requests[parent].claims);
                if claim.mode != Mode::Slot && above.mode != Mode::Slot {
                    (claim.resource, claim.span) = (above.resource.clone(), above.span.clone());
                    if above.mode == Mode::Prewrite && rng.chance(80) {
                        claim.mode = Mode::Write;
                    }
                }
            }
            // A session may claim only one slot of a resource.
            if claim.mode != Mode::Slot || claims.iter().all(|other| other.resource != claim.resource) {
                claims.push(claim);
            }
        }
        (ancestors, claims)
    }

    /// The ancestors and claims of a request around a prewrite hold: one that waits beside the
    /// hold, below another holder; or an upgrade that goes ahead of such a waiter, and mostly wants
    /// what is held above that waiter.
    fn entangled(&self, rng: &mut Rng) -> Option<(Vec<SessionId>, Vec<Claim>)> {
        let (held, waiting): (Vec<_>, Vec<_>) = self.live().into_iter().partition(|id| self.holds(*id));
        let prewrites = |id: &SessionId| {
            let claim = self.requests[id].claims.iter().find(|claim| claim.mode == Mode::Prewrite)?;
            Some((*id, claim.clone()))
        };
        let (upgrades, prewrite) = held.iter().find_map(prewrites)?;
        let below =
            |parent: SessionId| std::iter::once(parent).chain(self.requests[&parent].ancestors.clone()).collect();
        let claim = |mode: Mode, like: &Claim| {
            let at = self.resources.iter().position(|name| *name == like.resource).unwrap_or(0);
            let slots = (mode == Mode::Slot).then_some(1 + at as u32 % 3);
            let span = if mode == Mode::Slot { Span::Whole } else { like.span.clone() };
            Claim { resource: like.resource.clone(), mode, span, slots }
        };
        let beside = |id: &&SessionId| self.requests[*id].claims.iter().any(|its| its.resource == prewrite.resource);
        let awaited = waiting.iter().filter(beside).flat_map(|id| &self.requests[id].ancestors);
        let awaited: Vec<_> = awaited.filter(|id| held.contains(id) && **id != upgrades).collect();
        if awaited.is_empty() || rng.chance(50) {
            let others: Vec<_> = held.iter().filter(|id| **id != upgrades).collect();
            let ancestors = if others.is_empty() || rng.chance(30) { Vec::new() } else { below(**rng.pick(&others)) };
            return Some((ancestors, vec![claim(*rng.pick(&[Mode::Slot, Mode::Slot, Mode::Read]), &prewrite)]));
        }
        let mut claims = vec![claim(Mode::Write, &prewrite)];
        if rng.chance(80) {
            let above = &self.requests[*rng.pick(&awaited)];
            claims.push(claim(Mode::Write, rng.pick(&above.claims)));
        }
        Some((below(upgrades), claims))
    }

    fn holds(&self, id: SessionId) -> bool {
        matches!(self.both.table.records().session(id), Ok(Some(session)) if session.is_holder())
    }

    fn claim(&self, rng: &mut Rng) -> Claim {
        let at = rng.below(self.resources.len() as u64) as usize;
        let resource = self.resources[at].clone();
        let mode = *rng.pick(self.modes);
        if mode == Mode::Slot {
            let slots = Some(1 + at as u32 % 3 + u32::from(rng.chance(5)));
            return Claim { resource, mode, span: Span::Whole, slots };
        }
        Claim { resource, mode, span: self.span(rng), slots: None }
    }

    fn span(&self, rng: &mut Rng) -> Span {
        if rng.chance(25) {
            return Span::Whole;
        }
        let lo = rng.below(ENDS.len() as u64 - 1);
        // Narrow intervals are more frequent than wide ones.
        let width = (1 + rng.below(3) * rng.below(4)).min(ENDS.len() as u64 - 1 - lo);
        let (lo, hi) = (ENDS[lo as usize], ENDS[(lo + width) as usize]);
        let text = format!("{}{lo},{hi}{}", rng.pick(&["[", "("]), rng.pick(&["]", ")"]));
        Span::parse(&text).unwrap_or(Span::Whole)
    }
}
