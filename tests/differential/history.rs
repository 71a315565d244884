//! Random histories: who asks for what, and what else happens, each step from a seed of its own, so that a history still makes sense
//! when steps are left out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlock::clock::StoreTime;
use rlock::lock::mode::Mode;
use rlock::lock::op::Op;
use rlock::lock::records::Records as _;
use rlock::lock::request::{Claim, Process, Request, SessionId, Terms};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::lock::table::LockTable;
use rlock::store::redis::codec::Wake;

use crate::both::Both;
use crate::numbers::Numbers;
use crate::side::Side;
use crate::support::servers::Server;

/// Names that mean something to Redis, to a Cluster, to SCAN or to nobody.
const NAMES: [&str; 7] = ["nightly", "a b:c", "{tag}:x", "{tag}:y", "{}*?[%]\\", "名前 é", "x}y{z}"];
const ENDS: [&str; 12] =
    ["-inf", "-1e3", "-22/7", "0", "1/3", "0.5", "1", "1.5", "2", "22/7", "1000000000000000000001", "inf"];

/// When histories begin: an instant of today, in µs, as tokens are in their range too.
const BEGIN: StoreTime = StoreTime::from_micros(1_795_000_000_000_000);
/// How often a history that fails is played again to make it shorter.
const TRIES_MAX: u32 = 400;
/// No session is above this many.
const LIVE_MAX: usize = 12;

/// A seed, and the numbers of the steps that are played.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) seed: u64,
    pub(crate) steps: Vec<u32>,
}

impl History {
    pub(crate) fn new(seed: u64, steps: Vec<u32>) -> Self {
        Self { seed, steps }
    }

    /// Plays it in a fresh namespace, up to the first difference.
    pub(crate) fn play(&self, server: &Server) -> Result<(), String> {
        static PLAYED: AtomicU64 = AtomicU64::new(0);
        let number = PLAYED.fetch_add(1, Ordering::Relaxed);
        self.play_on(Side::new(server, &format!("history {number}"), Wake::Nobody))
    }

    /// Plays it in a namespace that nothing else is in.
    pub(crate) fn play_on(&self, side: Side) -> Result<(), String> {
        let mut world = World::new(self.seed, side);
        for step in &self.steps {
            let op = world.op(&mut Numbers::new(self.seed << 32 | u64::from(*step)));
            let own = world.own(&op);
            let shown = format!("step {step}, {:?}: ", world.now - BEGIN);
            world.both.apply(world.now, op, &own).map_err(|difference| shown + &difference)?;
        }
        Ok(())
    }

    /// The shortest history that is found in some hundred tries to fail by leaving out steps of this one, which fails, and how it does.
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

/// The tables and all who ever asked.
struct World {
    both: Both,
    resources: Vec<Resource>,
    modes: &'static [Mode],
    now: StoreTime,
    requests: BTreeMap<SessionId, Request>,
    /// In the order in which they asked.
    order: Vec<SessionId>,
}

impl World {
    fn new(seed: u64, side: Side) -> Self {
        let mut numbers = Numbers::new(seed);
        let count = 3 + numbers.below(5) as usize;
        let from = numbers.below(NAMES.len() as u64) as usize;
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
        let modes = *numbers.of(&modes);
        // Few resources make long queues.
        let used = if numbers.chance(30) { 1 + numbers.below(2) as usize } else { count };
        let both = Both::new(side, resources.clone(), numbers.chance(50));
        let resources = resources.into_iter().take(used).collect();
        Self { both, resources, modes, now: BEGIN, requests: BTreeMap::new(), order: Vec::new() }
    }

    fn is_live(&self, id: SessionId) -> bool {
        matches!(self.both.table.records().session(id), Ok(Some(_)))
    }

    fn live(&self) -> Vec<SessionId> {
        self.order.iter().copied().filter(|id| self.is_live(*id)).collect()
    }

    fn one(&self, numbers: &mut Numbers) -> SessionId {
        let live = self.live();
        match (numbers.chance(90), live.is_empty(), self.order.is_empty()) {
            (true, false, _) => *numbers.of(&live),
            (_, _, false) => *numbers.of(&self.order),
            _ => SessionId([0; 16]),
        }
    }

    /// Mostly one who holds something, of those rather one on whose hold a waiting descendant relies.
    fn holder(&self, numbers: &mut Numbers) -> Option<SessionId> {
        let (held, waiting): (Vec<_>, Vec<_>) = self.live().into_iter().partition(|id| self.holds(*id));
        let above = waiting.iter().flat_map(|id| &self.requests[id].ancestors).copied();
        let above: Vec<_> = above.filter(|id| held.contains(id)).collect();
        let among = if above.is_empty() || numbers.chance(25) { held } else { above };
        (!among.is_empty() && numbers.chance(80)).then(|| *numbers.of(&among))
    }

    /// The resources on which those who are meant have claims.
    fn own(&self, op: &Op) -> Vec<Resource> {
        match op {
            Op::Renew(session)
            | Op::Release(session)
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
            Op::Acquire(_) | Op::Break(_) | Op::Inspect(_) => Vec::new(),
        }
    }

    fn op(&mut self, numbers: &mut Numbers) -> Op {
        self.now += Duration::from_micros(match numbers.below(100) {
            0..20 => 0,
            20..90 => numbers.below(16),
            90..98 => numbers.below(100),
            _ => 500,
        });
        self.let_the_clock_catch_up();
        let crowded = self.live().len() >= LIVE_MAX;
        let session = self.one(numbers);
        match numbers.below(100) {
            0..48 if !crowded => Op::Acquire(self.request(numbers)),
            48..52 => match self.requests.get(&session) {
                // Asks once more; not in the instant in which its lease ends, for then it comes as somebody new.
                Some(request) if self.is_live(session) => Op::Acquire(request.clone()),
                _ => Op::Expire,
            },
            52..56 => Op::Cancel(session),
            56..66 => Op::Renew(session),
            66..74 => {
                let session = self.holder(numbers).unwrap_or(session);
                let (resource, span) = self.part(session, numbers);
                Op::Shrink { session, resource, span }
            }
            74..81 => {
                let session = self.holder(numbers).unwrap_or(session);
                let (resource, _) = self.part(session, numbers);
                let mode = if numbers.chance(50) { Mode::Read } else { *numbers.of(&Mode::ALL) };
                Op::Downgrade { session, resource, mode }
            }
            81..84 => Op::Break(numbers.of(&self.resources).clone()),
            84..86 => Op::Inspect(vec![numbers.of(&self.resources).clone(), self.resources[0].clone()]),
            86..88 => Op::Expire,
            _ => Op::Release(session),
        }
    }

    /// The model forgets the last token of a resource with its last session, where the server keeps it: for the model to give a higher
    /// one, the clock has to be past it by then.
    fn let_the_clock_catch_up(&mut self) {
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

    /// Mostly something that the session has, and a part of that.
    fn part(&self, session: SessionId, numbers: &mut Numbers) -> (Resource, Span) {
        let span = self.span(numbers);
        let claims = self.requests.get(&session).map_or(&[][..], |request| &request.claims);
        if claims.is_empty() || numbers.chance(8) {
            return (numbers.of(&self.resources).clone(), span);
        }
        let claim = numbers.of(claims);
        let inside = (0..8).map(|_| self.span(numbers)).find(|part| claim.span.covers(part));
        (claim.resource.clone(), inside.unwrap_or(span))
    }

    fn request(&mut self, numbers: &mut Numbers) -> Request {
        let mut ancestors = Vec::new();
        let granted: Vec<_> = self.order.iter().filter(|id| self.holds(**id) || numbers.chance(3)).copied().collect();
        if !granted.is_empty() && numbers.chance(35) {
            let mut parent = *numbers.of(&granted[granted.len().saturating_sub(4)..]);
            // Upgrades are what waits below a hold.
            let prewrites = |id: &&SessionId| self.requests[id].claims.iter().any(|claim| claim.mode == Mode::Prewrite);
            if let Some(other) = granted.iter().rfind(prewrites)
                && numbers.chance(40)
            {
                parent = *other;
            }
            ancestors.push(parent);
            ancestors.extend(&self.requests[&parent].ancestors);
        }
        let mut claims: Vec<Claim> = Vec::new();
        for _ in 0..[1, 1, 1, 1, 2, 2, 3, 4][numbers.below(8) as usize] {
            let mut claim = self.claim(numbers);
            // Mostly about what is held above.
            if let Some(parent) = ancestors.first()
                && numbers.chance(60)
            {
                let above = numbers.of(&self.requests[parent].claims);
                if claim.mode != Mode::Slot && above.mode != Mode::Slot {
                    (claim.resource, claim.span) = (above.resource.clone(), above.span.clone());
                    if above.mode == Mode::Prewrite && numbers.chance(80) {
                        claim.mode = Mode::Write;
                    }
                }
            }
            // A session has one slot of a resource.
            if claim.mode != Mode::Slot || claims.iter().all(|other| other.resource != claim.resource) {
                claims.push(claim);
            }
        }
        let lease = |numbers: &mut Numbers| Duration::from_micros(40 + numbers.below(8) * 30);
        let terms = Terms { ttl: lease(numbers), claim: lease(numbers), heartbeat: lease(numbers) };
        let request = Request {
            session: SessionId((u128::from(numbers.next()) << 64 | u128::from(numbers.next())).to_be_bytes()),
            ancestors,
            claims,
            wait: numbers.chance(88),
            terms: numbers.chance(85).then_some(terms),
            process: Process {
                host: "höst".to_owned(),
                pid: self.order.len() as u32,
                user: "\"u\"".to_owned(),
                command: vec!["sh".to_owned(), "a b\n\u{0}".to_owned()],
            },
        };
        self.requests.insert(request.session, request.clone());
        self.order.push(request.session);
        request
    }

    fn holds(&self, id: SessionId) -> bool {
        matches!(self.both.table.records().session(id), Ok(Some(session)) if session.is_holder())
    }

    fn claim(&self, numbers: &mut Numbers) -> Claim {
        let at = numbers.below(self.resources.len() as u64) as usize;
        let resource = self.resources[at].clone();
        let mode = *numbers.of(self.modes);
        if mode == Mode::Slot {
            let slots = Some(1 + at as u32 % 3 + u32::from(numbers.chance(5)));
            return Claim { resource, mode, span: Span::Whole, slots };
        }
        Claim { resource, mode, span: self.span(numbers), slots: None }
    }

    fn span(&self, numbers: &mut Numbers) -> Span {
        if numbers.chance(25) {
            return Span::Whole;
        }
        let lo = numbers.below(ENDS.len() as u64 - 1);
        // Narrow ones more often than wide ones.
        let width = (1 + numbers.below(3) * numbers.below(4)).min(ENDS.len() as u64 - 1 - lo);
        let (lo, hi) = (ENDS[lo as usize], ENDS[(lo + width) as usize]);
        let text = format!("{}{lo},{hi}{}", numbers.of(&["[", "("]), numbers.of(&["]", ")"]));
        Span::parse(&text).unwrap_or(Span::Whole)
    }
}
