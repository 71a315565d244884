//! Random histories of the lock table. tests/properties plays them against the oracle,
//! tests/differential against the scripts of a server, and the unit tests of the store in
//! PostgreSQL against its transactions.
//!
//! A history is a seed and the numbers of its steps. Each step has random numbers of its own, so a
//! history stays valid when steps are removed. A failing history is shortened before it is
//! reported.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_model::kept::EVER;
use rlock_model::mode::Mode;
use rlock_model::op::{Change, Op};
use rlock_model::past::{End, Ending};
use rlock_model::records::Records as _;
use rlock_model::request::{
    AHEAD_MAX, Calendar, Claim, Job, OncePer, Owner, Place, Process, Request, SessionId, Terms,
};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

use super::random::Random;

/// The start of all histories. A realistic instant puts the tokens in their realistic range.
const BEGIN: StoreTime = StoreTime::from_micros(1_795_000_000_000_000);
/// The maximum number of attempts to shorten a failing history.
const TRIES_MAX: u32 = 400;

/// What a history is played on.
pub trait Stage {
    /// The model's table after the last operation.
    fn table(&self) -> &LockTable;

    /// Applies an operation and judges its outcome. `claimed` are the resources that the session of
    /// the operation has claimed.
    fn apply(&mut self, now: StoreTime, op: Op, claimed: &[Resource]) -> Result<(), String>;

    /// The earliest instant from `now` on at which the stage can apply an operation.
    fn earliest(&mut self, now: StoreTime) -> StoreTime {
        now
    }
}

/// The kind of a history. Probabilities are in percent.
#[derive(Clone, Debug)]
pub struct Profile {
    pub resources: Vec<Resource>,
    /// The ends of intervals in rising order. Without ends all claims are whole.
    pub ends: Vec<String>,
    /// The modes to choose from, each equally likely.
    pub modes: &'static [Mode],
    /// The maximum number of claims of a request.
    pub claims: u64,
    /// How many of the steps are requests.
    pub acquire: u64,
    /// How many of the requests are below another session.
    pub nested: u64,
    /// How many of the sessions have leases.
    pub leases: u64,
    /// How many of the requests ask for more than a hold as long as their commands.
    pub jobs: u64,
    /// The maximum number of sessions that hold or wait.
    pub live_max: usize,
    /// Whether many requests meet around a prewrite hold.
    pub is_entangled: bool,
    /// Whether the table sees processes die, lets a request return to any place, and may be idle
    /// for days, as no server does within a history.
    pub is_free: bool,
}

/// A seed, and the numbers of the steps to play.
#[derive(Clone, Debug)]
pub struct History {
    pub seed: u64,
    steps: Vec<u32>,
}

impl History {
    /// The first `length` steps of this seed.
    pub fn new(seed: u64, length: u32) -> Self {
        Self { seed, steps: (0..length).collect() }
    }

    /// Plays the history up to the first difference.
    pub fn play(&self, profile: Profile, stage: &mut impl Stage) -> Result<(), String> {
        let mut generator = Generator::new(profile);
        for step in &self.steps {
            let random = &mut Random::seeded(self.seed << 32 | u64::from(*step));
            generator.advance(random, stage);
            let op = generator.op(random, stage.table());
            let claimed = generator.claimed(&op);
            let shown = format!("step {step}, {:?}, {op:?}: ", generator.now - BEGIN);
            stage.apply(generator.now, op, &claimed).map_err(|difference| shown + &difference)?;
            generator.note_grants(stage.table());
        }
        Ok(())
    }

    /// Plays `count` histories from the seed `first` on, or the one that RLOCK_SEED and RLOCK_STEPS
    /// name.
    ///
    /// # Panics
    /// At the first difference. The message has the shortened history, and the command that plays
    /// it in this suite, such as `--test properties`.
    pub fn play_all(suite: &str, first: u64, count: u64, length: u32, play: impl Fn(&Self) -> Result<(), String>) {
        let given = Self::from_environment();
        let histories = (first..first + count).map(|seed| Self::new(seed, length));
        let histories = given.iter().cloned().chain(histories.take_while(|_| given.is_none()));
        for history in histories {
            if let Err(difference) = play(&history) {
                let (shortest, difference) = history.shortened(difference, &play);
                let steps = shortest.steps.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                panic!(
                    "{difference}\nplay it again:\n  RLOCK_SEED={} RLOCK_STEPS={steps} tests/run {suite} {name} -- --exact --nocapture",
                    shortest.seed,
                );
            }
        }
    }

    fn from_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let (seed, steps) = (variable("RLOCK_SEED")?, variable("RLOCK_STEPS")?);
        let seed = seed.parse().expect("RLOCK_SEED is a number");
        let steps = steps.split(',').map(|step| step.parse().expect("RLOCK_STEPS are numbers")).collect();
        Some(Self { seed, steps })
    }

    /// Removes steps of this failing history while it still fails, with at most `TRIES_MAX`
    /// attempts. Returns the shortest history and its difference.
    fn shortened(&self, difference: String, play: impl Fn(&Self) -> Result<(), String>) -> (Self, String) {
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
                match play(&candidate) {
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

/// Makes the steps of a history from random numbers and the table.
struct Generator {
    profile: Profile,
    now: StoreTime,
    requests: BTreeMap<SessionId, Request>,
    /// All sessions in the order of their requests.
    order: Vec<SessionId>,
    /// All sessions that were ever granted, in the order of their grants. A command may outlive its
    /// lease, so an ancestor need not hold anything.
    granted: Vec<SessionId>,
    /// The number in the queue of each waiter that has left.
    left: BTreeMap<SessionId, u64>,
}

impl Generator {
    fn new(profile: Profile) -> Self {
        let (order, granted) = (Vec::new(), Vec::new());
        Self { profile, now: BEGIN, requests: BTreeMap::new(), order, granted, left: BTreeMap::new() }
    }

    fn advance(&mut self, random: &mut Random, stage: &mut impl Stage) {
        self.now += match random.below(200) {
            0..40 => Duration::ZERO,
            // Tokens run ahead of the clock when there are more grants than microseconds.
            40..176 => Duration::from_micros(random.below(16)),
            176..194 => Duration::from_micros(random.below(100)),
            194..196 if self.profile.is_free => Duration::from_secs(3_601),
            // An idle resource forgets its totals after an hour, and everything after a week.
            196..198 if self.profile.is_free => Duration::from_secs(6 * 24 * 3_600),
            _ => Duration::from_micros(500),
        };
        self.now = stage.earliest(self.now);
    }

    fn note_grants(&mut self, table: &LockTable) {
        for id in live(&self.order, table) {
            if holds(id, table) && !self.granted.contains(&id) {
                self.granted.push(id);
            }
        }
    }

    /// The resources that the session of the operation claims.
    fn claimed(&self, op: &Op) -> Vec<Resource> {
        match op {
            Op::Renew(session)
            | Op::Release { session, .. }
            | Op::GiveUp(session)
            | Op::Reap { session, .. }
            | Op::Change { session, .. } => match self.requests.get(session) {
                Some(request) => {
                    let mut names: Vec<_> = request.claims.iter().map(|claim| claim.resource.clone()).collect();
                    names.sort();
                    names.dedup();
                    names
                }
                None => vec![self.profile.resources[0].clone()],
            },
            Op::Expire => self.profile.resources.clone(),
            Op::Acquire { .. } | Op::Break { .. } | Op::Forget(_) | Op::Inspect(_) => Vec::new(),
        }
    }

    fn random_session(&self, random: &mut Random, table: &LockTable) -> SessionId {
        let live = live(&self.order, table);
        match (random.chance(90), live.is_empty(), self.order.is_empty()) {
            (true, false, _) => *random.pick(&live),
            (_, _, false) => *random.pick(&self.order),
            _ => SessionId([0; 16]),
        }
    }

    /// In most cases a random holder, preferably one on whose hold a waiting descendant relies.
    fn random_holder(&self, random: &mut Random, table: &LockTable) -> Option<SessionId> {
        let (held, waiting): (Vec<_>, Vec<_>) = live(&self.order, table).into_iter().partition(|id| holds(*id, table));
        let above = waiting.iter().flat_map(|id| &self.requests[id].ancestors).copied();
        let above: Vec<_> = above.filter(|id| held.contains(id)).collect();
        let among = if above.is_empty() || random.chance(25) { held } else { above };
        (!among.is_empty() && random.chance(80)).then(|| *random.pick(&among))
    }

    fn op(&mut self, random: &mut Random, table: &LockTable) -> Op {
        let is_crowded = live(&self.order, table).len() >= self.profile.live_max;
        if random.chance(self.profile.acquire) && !is_crowded {
            return self.request_op(random, table);
        }
        let session = self.random_session(random, table);
        let holder = |random: &mut Random| self.random_holder(random, table).unwrap_or(session);
        let resources = &self.profile.resources;
        match random.below(100) {
            0..8 => {
                // A waiter that leaves may return to its place, as one that was passed over does.
                if let Some(place) = place(session, table) {
                    self.left.insert(session, place);
                }
                Op::Release { session, end: None }
            }
            8..24 => Op::Renew(session),
            24..36 => {
                let session = holder(random);
                let (resource, span) = self.part(session, random);
                Op::Change { session, change: Change::Shrink { resource, span } }
            }
            36..48 => {
                let session = holder(random);
                let (resource, _) = self.part(session, random);
                let mode = if random.chance(50) { Mode::Read } else { *random.pick(&Mode::ALL) };
                Op::Change { session, change: Change::Downgrade { resource, mode } }
            }
            48..53 => {
                let only = random.chance(40).then(|| holder(random));
                let by = random.chance(60).then(|| Process { pid: random.below(3) as u32, ..Process::default() });
                Op::Break { resource: random.pick(resources).clone(), only, by }
            }
            53..56 => Op::Inspect(vec![resources[0].clone(), random.pick(resources).clone(), resources[0].clone()]),
            56..59 => Op::Expire,
            59 => Op::Forget(random.pick(resources).clone()),
            60..70 => Op::GiveUp(session),
            70..76 => {
                let session = holder(random);
                let by = random.chance(50).then(|| kept(random, 0));
                Op::Change { session, change: Change::Extend { by } }
            }
            76..80 if self.profile.is_free => {
                Op::Reap { session, ended: random.chance(50).then(|| StoreTime::from_micros(random.below(2_000))) }
            }
            _ => Op::Release { session, end: Self::end(random) },
        }
    }

    /// A new request, or one that comes again.
    fn request_op(&mut self, random: &mut Random, table: &LockTable) -> Op {
        match random.below(100) {
            0..4 => {
                // A request is repeated only while its session lives, and not in the instant in
                // which its lease ends: the request would then count as new.
                let is_due = |id: SessionId| matches!(table.records().session(id), Ok(Some(session)) if session.is_over(self.now));
                let again: Vec<_> = live(&self.order, table).into_iter().filter(|id| !is_due(*id)).collect();
                match again.is_empty() {
                    true => Op::Expire,
                    false => Op::Acquire { request: self.requests[random.pick(&again)].clone(), place: None },
                }
            }
            4..8 => {
                let is_absent = |id: &SessionId| !is_live(*id, table) && !self.granted.contains(id);
                let absent = self.left.iter().find(|(session, _)| is_absent(session));
                let Some((session, number)) = absent.map(|(session, number)| (*session, *number)) else {
                    return Op::Acquire { request: self.request(random, table), place: None };
                };
                self.left.remove(&session);
                let asked = StoreTime::from_micros(self.now.as_micros() - random.below(128));
                Op::Acquire { request: self.requests[&session].clone(), place: Some(Place { number, asked }) }
            }
            8..11 if self.profile.is_free => {
                // This place may be another's, or ahead of all others.
                let asked = StoreTime::from_micros(self.now.as_micros() - random.below(128));
                let place = Place { number: 1 + random.below(24), asked };
                Op::Acquire { request: self.request(random, table), place: Some(place) }
            }
            _ => Op::Acquire { request: self.request(random, table), place: None },
        }
    }

    /// What a release says of the run.
    fn end(random: &mut Random) -> Option<End> {
        if random.chance(20) {
            return None;
        }
        // Half of the runs succeed, because the next run may depend on it.
        let others = [Ending::Exit(7), Ending::Signal(9), Ending::Timeout, Ending::Lost];
        let ending = if random.chance(50) { Ending::Exit(0) } else { *random.pick(&others) };
        Some(End { ending, is_success: ending == Ending::Exit(0) })
    }

    /// The job of a request with these claims.
    fn job(&self, random: &mut Random, claims: &[Claim]) -> Job {
        if !random.chance(self.profile.jobs) {
            return Job::default();
        }
        let length = |random: &mut Random| Duration::from_micros(1 + random.below(400));
        let is_whole_write = matches!(claims, [claim] if claim.mode == Mode::Write && claim.span.is_whole());
        let keep_for = random.chance(15).then(|| kept(random, 1));
        Job {
            name: (*random.pick(&["", "a", "b"])).to_owned(),
            is_named: random.chance(50),
            once_per: (is_whole_write && random.chance(65)).then(|| OncePer {
                period: length(random),
                calendar: random.chance(40).then(|| self.calendar(random)),
            }),
            skips: random.chance(60),
            max_waiting: random.chance(30).then(|| random.below(4) as u32),
            supersedes: random.chance(25),
            hold_at_least: (keep_for.is_none() && random.chance(20)).then(|| length(random)),
            keep_for,
            remember: random
                .chance(15)
                .then(|| if random.chance(30) { Duration::from_secs(900_000) } else { length(random) }),
            is_acquire: keep_for.is_some(),
            history: *random.pick(&[0, 1, 3, 8, 32]),
            held_above: self.profile.resources.iter().filter(|_| random.chance(10)).cloned().collect(),
        }
    }

    /// A part of the calendar that contains the present instant, or is near. Some clocks are far
    /// ahead.
    fn calendar(&self, random: &mut Random) -> Calendar {
        let early = StoreTime::from_micros(self.now.as_micros().saturating_sub(random.below(300)));
        let ahead = [Duration::ZERO, Duration::from_micros(400), AHEAD_MAX + Duration::from_micros(300)];
        let start = early + ahead[random.below(10).saturating_sub(7) as usize];
        Calendar { start, next: start + Duration::from_micros(1 + random.below(400)) }
    }

    /// In most cases a resource that the session claims, and a part of the claimed span.
    fn part(&self, session: SessionId, random: &mut Random) -> (Resource, Span) {
        let span = self.span(random);
        let claims = self.requests.get(&session).map_or(&[][..], |request| &request.claims);
        if claims.is_empty() || random.chance(8) {
            return (random.pick(&self.profile.resources).clone(), span);
        }
        let claim = random.pick(claims);
        let inside = (0..8).map(|_| self.span(random)).find(|part| claim.span.covers(part));
        (claim.resource.clone(), inside.unwrap_or(span))
    }

    fn request(&mut self, random: &mut Random, table: &LockTable) -> Request {
        let is_entangled = self.profile.is_entangled && random.chance(60);
        let entangled = if is_entangled { self.entangled(random, table) } else { None };
        let (ancestors, claims) = entangled.unwrap_or_else(|| self.nested(random, table));
        let lease = |random: &mut Random| Duration::from_micros(20 + random.below(8) * 30);
        let terms = Terms { ttl: lease(random), claim: lease(random), heartbeat: lease(random) };
        let mut job = self.job(random, &claims);
        let above = ancestors.iter().flat_map(|ancestor| &self.requests[ancestor].claims);
        job.held_above.extend(above.map(|claim| claim.resource.clone()));
        let request = Request {
            session: SessionId((u128::from(random.next()) << 64 | u128::from(random.next())).to_be_bytes()),
            ancestors,
            claims,
            wait: random.chance(88),
            terms: random.chance(self.profile.leases).then_some(terms),
            job,
            process: Process {
                host: "höst".to_owned(),
                pid: self.order.len() as u32,
                user: "\"u\"".to_owned(),
                command: vec!["sh".to_owned(), "a b\n\u{0}".to_owned()],
                owner: random.chance(50).then(|| "o\"wner".to_owned()),
                reason: random.chance(50).then(|| "why é".to_owned()),
                lasts_for: random.chance(20).then_some(Owner { pid: 19_090, started: 1 << 40 }),
            },
        };
        // The waiters that it supersedes may return to their places, too.
        let is_same = |id: &SessionId| self.requests[id].job.name == request.job.name;
        for id in live(&self.order, table).into_iter().filter(|id| request.job.supersedes && is_same(id)) {
            self.left.extend(place(id, table).map(|place| (id, place)));
        }
        self.requests.insert(request.session, request.clone());
        self.order.push(request.session);
        request
    }

    /// The ancestors and claims of a request that is often below a holder, and then mostly asks for
    /// what the holder has.
    fn nested(&self, random: &mut Random, table: &LockTable) -> (Vec<SessionId>, Vec<Claim>) {
        let mut ancestors = Vec::new();
        let granted: Vec<_> =
            self.granted.iter().filter(|id| holds(**id, table) || random.chance(3)).copied().collect();
        if !granted.is_empty() && random.chance(self.profile.nested) {
            // The parent is one of the latest grants, so that chains of ancestors grow.
            let mut parent = *random.pick(&granted[granted.len().saturating_sub(4)..]);
            // Nested claims wait mostly as upgrades, so prewrite holders are preferred as parents.
            let prewrites = |id: &&SessionId| self.requests[id].claims.iter().any(|claim| claim.mode == Mode::Prewrite);
            if let Some(other) = granted.iter().rfind(prewrites)
                && random.chance(40)
            {
                parent = *other;
            }
            ancestors.push(parent);
            ancestors.extend(&self.requests[&parent].ancestors);
        }
        let mut claims: Vec<Claim> = Vec::new();
        // Half of the requests have a single claim.
        for _ in 0..if random.chance(50) { 1 } else { 1 + random.below(self.profile.claims) } {
            let mut claim = self.claim(random);
            // In most cases the claim has the resource and the span of a claim of the parent.
            if let Some(parent) = ancestors.first()
                && random.chance(60)
            {
                let above = random.pick(&self.requests[parent].claims);
                if (claim.mode == Mode::Slot) == (above.mode == Mode::Slot) {
                    (claim.resource, claim.span) = (above.resource.clone(), above.span.clone());
                    if above.mode == Mode::Prewrite && random.chance(80) {
                        claim.mode = Mode::Write;
                    }
                }
            }
            // The slots of a resource are claimed together.
            if claim.mode != Mode::Slot || claims.iter().all(|other| other.resource != claim.resource) {
                let others = claim.slots.filter(|_| random.chance(40)).map_or(0, |slots| random.below(slots.into()));
                claims.extend((0..=others).map(|_| claim.clone()));
            }
        }
        (ancestors, claims)
    }

    /// The ancestors and claims of a request around a prewrite hold: one that waits beside the
    /// hold, below another holder; or an upgrade that goes ahead of such a waiter, and mostly wants
    /// what is held above that waiter.
    fn entangled(&self, random: &mut Random, table: &LockTable) -> Option<(Vec<SessionId>, Vec<Claim>)> {
        let (held, waiting): (Vec<_>, Vec<_>) = live(&self.order, table).into_iter().partition(|id| holds(*id, table));
        let prewrites = |id: &SessionId| {
            let claim = self.requests[id].claims.iter().find(|claim| claim.mode == Mode::Prewrite)?;
            Some((*id, claim.clone()))
        };
        let (upgrades, prewrite) = held.iter().find_map(prewrites)?;
        let below =
            |parent: SessionId| std::iter::once(parent).chain(self.requests[&parent].ancestors.clone()).collect();
        let claim = |mode: Mode, like: &Claim| {
            let slots = (mode == Mode::Slot).then(|| self.slots(&like.resource));
            let span = if mode == Mode::Slot { Span::Whole } else { like.span.clone() };
            Claim { resource: like.resource.clone(), mode, span, slots }
        };
        let beside = |id: &&SessionId| self.requests[*id].claims.iter().any(|its| its.resource == prewrite.resource);
        let awaited = waiting.iter().filter(beside).flat_map(|id| &self.requests[id].ancestors);
        let awaited: Vec<_> = awaited.filter(|id| held.contains(id) && **id != upgrades).collect();
        if awaited.is_empty() || random.chance(50) {
            let others: Vec<_> = held.iter().filter(|id| **id != upgrades).collect();
            let is_alone = others.is_empty() || random.chance(30);
            let ancestors = if is_alone { Vec::new() } else { below(**random.pick(&others)) };
            return Some((ancestors, vec![claim(*random.pick(&[Mode::Slot, Mode::Slot, Mode::Read]), &prewrite)]));
        }
        let mut claims = vec![claim(Mode::Write, &prewrite)];
        if random.chance(80) {
            let above = &self.requests[*random.pick(&awaited)];
            claims.push(claim(Mode::Write, random.pick(&above.claims)));
        }
        Some((below(upgrades), claims))
    }

    /// The number of slots for which most requests for a resource ask.
    fn slots(&self, resource: &Resource) -> u32 {
        let at = self.profile.resources.iter().position(|name| name == resource).unwrap_or(0);
        [4, 1, 2][at % 3]
    }

    fn claim(&self, random: &mut Random) -> Claim {
        let resource = random.pick(&self.profile.resources).clone();
        let mode = *random.pick(self.profile.modes);
        if mode == Mode::Slot {
            let more = if random.chance(15) { random.below(3) } else { 0 };
            let slots = Some(self.slots(&resource) + more as u32);
            return Claim { resource, mode, span: Span::Whole, slots };
        }
        Claim { resource, mode, span: self.span(random), slots: None }
    }

    fn span(&self, random: &mut Random) -> Span {
        let ends = &self.profile.ends;
        let Some(last) = ends.len().checked_sub(1) else { return Span::Whole };
        if random.chance(20) {
            return Span::Whole;
        }
        let lo = random.below(last as u64) as usize;
        // Narrow intervals are more frequent than wide ones.
        let width = (1 + random.below(3) * random.below(4)) as usize;
        let (lo, hi) = (&ends[lo], &ends[(lo + width).min(last)]);
        let text = format!("{}{lo},{hi}{}", random.pick(&["[", "("]), random.pick(&["]", ")"]));
        Span::parse(&text).unwrap_or(Span::Whole)
    }
}

/// The length of a kept hold, which is at least so many microseconds, or none.
fn kept(random: &mut Random, least: u64) -> Duration {
    if random.chance(10) { EVER } else { Duration::from_micros(least + random.below(400)) }
}

fn is_live(id: SessionId, table: &LockTable) -> bool {
    matches!(table.records().session(id), Ok(Some(_)))
}

fn holds(id: SessionId, table: &LockTable) -> bool {
    matches!(table.records().session(id), Ok(Some(session)) if session.is_holder())
}

/// The number of a waiter in the queue.
fn place(id: SessionId, table: &LockTable) -> Option<u64> {
    let Ok(session) = table.records().session(id);
    session.filter(|session| !session.is_holder()).map(|session| session.place())
}

fn live(order: &[SessionId], table: &LockTable) -> Vec<SessionId> {
    order.iter().copied().filter(|id| is_live(*id, table)).collect()
}
