//! Random histories, and the pair of tables that they run on. A step is valid after any other
//! steps, so proptest can shrink a history.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rlock::clock::StoreTime;
use rlock::lock::mode::Mode;
use rlock::lock::op::{Op, Reply, ResourceListing};
use rlock::lock::past::{End, Ending, HISTORY_MAX};
use rlock::lock::records::Memory;
use rlock::lock::request::{Claim, Job, OncePer, Place, Process, Request, SessionId, Terms};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::lock::table::LockTable;

use crate::checks::{self, Line, SessionInfo, Sessions};
use crate::diary::Diary;
use crate::oracle::Oracle;

/// The kind of a history: the weights by which the numbers of a step select its choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) resources: u8,
    /// The largest end of an interval. With 0 all claims are whole.
    pub(crate) grid: u8,
    /// The modes to choose from, each equally likely.
    pub(crate) modes: &'static [Mode],
    /// Of 256 requests, the number that are below another session.
    pub(crate) nested: u8,
    /// Of 256 steps, the number that are requests.
    pub(crate) acquire: u8,
    /// Of 256 sessions, the number that have leases.
    pub(crate) leases: u8,
    /// Of 256 requests, the number that ask for more than a hold as long as their commands.
    pub(crate) jobs: u8,
    pub(crate) claims: usize,
}

pub(crate) const ANY: Profile = Profile {
    resources: 3,
    grid: 5,
    modes: &[Mode::Read, Mode::Prewrite, Mode::Write, Mode::Write, Mode::Slot],
    nested: 90,
    acquire: 150,
    leases: 80,
    jobs: 60,
    claims: 3,
};

/// A step, with a number for every choice that it may need.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    kind: u8,
    pick: u8,
    ancestry: u8,
    flags: u8,
    delay: u8,
    job: [u8; 5],
    claims: Vec<[u8; 5]>,
}

pub(crate) fn history(profile: Profile, steps: usize) -> impl Strategy<Value = Vec<Step>> {
    let claims = prop::collection::vec(any::<[u8; 5]>(), 1..=profile.claims);
    let numbers = (any::<[u8; 5]>(), any::<[u8; 5]>(), claims);
    let step = numbers.prop_map(|([kind, pick, ancestry, flags, delay], job, claims)| Step {
        kind,
        pick,
        ancestry,
        flags,
        delay,
        job,
        claims,
    });
    prop::collection::vec(step, 1..=steps)
}

/// The table, the oracle, and the facts that the checks need.
pub(crate) struct World {
    pub(crate) table: LockTable,
    oracle: Oracle,
    profile: Profile,
    now: StoreTime,
    sessions: Sessions,
    /// All sessions that were ever granted. A command may outlive its lease, so an ancestor need
    /// not hold anything.
    granted: Vec<SessionId>,
    highest_tokens: BTreeMap<Resource, u64>,
    lines: Vec<Line>,
}

/// The claim lease of sessions without terms: some steps.
const CLAIM_LEASE: Duration = Duration::from_micros(100);

impl World {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            table: LockTable::with_claim_lease(Memory::default(), CLAIM_LEASE),
            oracle: Oracle { claim_lease: Some(CLAIM_LEASE), ..Oracle::default() },
            profile,
            now: StoreTime::from_micros(1_000),
            sessions: Sessions::new(),
            granted: Vec::new(),
            highest_tokens: BTreeMap::new(),
            lines: Vec::new(),
        }
    }

    pub(crate) fn play(&mut self, step: &Step) {
        self.now += Duration::from_micros(u64::from(step.delay % 16));
        if step.delay >= 128 {
            // Tokens run ahead of the clock when there are more grants than microseconds. In half
            // of the steps the clock catches up.
            self.now += Duration::from_micros(64);
        }
        match step.delay {
            // An idle resource forgets its totals after an hour, and everything after a week.
            250..=253 => self.now += Duration::from_secs(3_601),
            254.. => self.now += Duration::from_secs(6 * 24 * 3_600),
            _ => {}
        }
        let op = self.op(step);
        self.apply(op);
        self.check();
    }

    /// Releases all sessions in an order that `order` selects, and asserts that the table is empty.
    pub(crate) fn release_all(&mut self, order: u8) {
        while !self.oracle.members.is_empty() {
            let id = self.live_session(order.wrapping_mul(7)).expect("a session is left");
            self.now += Duration::from_micros(1);
            self.apply(Op::Release { session: id, end: None });
            self.check();
        }
        assert!(self.table.records().is_empty(), "the table is not empty: {:?}", self.table.records());
        self.now += Duration::from_secs(8 * 24 * 3_600);
        for _ in 0..=self.profile.resources {
            self.apply(Op::Expire);
        }
        assert!(self.table.records().is_forgotten(), "the past is not forgotten: {:?}", self.table.records());
    }

    /// Applies an operation to both tables and compares the outcomes.
    pub(crate) fn apply(&mut self, op: Op) -> Reply {
        if let Op::Acquire(request) | Op::Return { request, .. } = &op {
            self.remember(request, matches!(op, Op::Return { .. }));
        }
        let expected = self.oracle.apply(self.now, op.clone());
        let mut actual = self.table.apply(self.now, op.clone()).unwrap();
        if let Reply::Busy { streak: Some(streak), .. } = &mut actual.reply {
            // The oracle has no numbers of entries.
            streak.entry = None;
        }
        assert_eq!(actual, expected, "after {op:?}");
        for member in self.oracle.members.iter().filter(|member| member.holds()) {
            if !self.granted.contains(&member.id()) {
                self.granted.push(member.id());
            }
        }
        expected.reply
    }

    /// Compares the listings and checks the invariants.
    pub(crate) fn check(&mut self) {
        let before = std::mem::take(&mut self.lines);
        self.lines = checks::lines(&self.listing());
        for number in 0..self.profile.resources {
            let name = resource(number);
            let past = self.table.past(self.now, &name, HISTORY_MAX).unwrap();
            let actual = past.map(|found| Diary::of(&found.past, found.entries)).unwrap_or_default();
            assert_eq!(&actual, self.oracle.diary(self.now, &name).diary(), "the past of {name}");
        }
        checks::holders_do_not_conflict(&self.sessions, &self.lines);
        checks::every_waiter_is_blocked(&self.sessions, &self.lines);
        checks::no_waiter_is_overtaken(&self.sessions, &before, &self.lines);
        checks::tokens_rise(&self.sessions, self.now, &before, &self.lines, &mut self.highest_tokens);
    }

    fn listing(&mut self) -> Vec<ResourceListing> {
        match self.apply(Op::Inspect(Vec::new())) {
            Reply::Listing(listing) => listing,
            other => panic!("inspect replied {other:?}"),
        }
    }

    /// Records the facts about a session at its request.
    fn remember(&mut self, request: &Request, has_returned: bool) {
        let now = self.now;
        let above = |line: &&Line| {
            line.is_held() && request.ancestors.contains(&line.session) && line.expiry.is_none_or(|expiry| expiry > now)
        };
        let above: Vec<&Line> = self.lines.iter().filter(above).collect();
        let mut known = SessionInfo { ancestors: request.ancestors.clone(), has_returned, ..SessionInfo::default() };
        for claim in &request.claims {
            let part = (claim.resource.clone(), claim.span.clone());
            if above.iter().any(|line| line.resource == part.0 && line.span.overlaps(&part.1)) {
                known.nested.push(part);
            }
            if above.iter().any(|line| line.resource == claim.resource && line.mode == Mode::Slot) {
                known.shares.push(claim.resource.clone());
            }
        }
        self.sessions.entry(request.session).or_insert(known);
    }

    fn live_session(&self, pick: u8) -> Option<SessionId> {
        let members = &self.oracle.members;
        (!members.is_empty()).then(|| members[usize::from(pick) % members.len()].id())
    }

    fn op(&self, step: &Step) -> Op {
        let [number, mode, ..] = step.claims[0];
        if step.kind < self.profile.acquire {
            let request = self.request(step);
            // Some requests return to a place that may be another's, or ahead of all others.
            let number = 1 + u64::from(step.pick) % 24;
            let place = Place { number, asked: StoreTime::from_micros(self.now.as_micros() - u64::from(step.delay)) };
            let returns = step.flags & 0x30 == 0x30 && request.session == self.fresh_id();
            return if returns { Op::Return { request, place } } else { Op::Acquire(request) };
        }
        let session = self.live_session(step.pick).unwrap_or(SessionId([0; 16]));
        match (step.kind - self.profile.acquire) % 20 {
            0..=4 => Op::Release { session, end: Self::end(step) },
            5 => Op::Cancel(session),
            6 => Op::Reap(session),
            7 | 8 => Op::Renew(session),
            9 => Op::Expire,
            10 if number % 2 == 0 => Op::BreakOne { resource: resource(number % self.profile.resources), session },
            10 => Op::Break(resource(number % self.profile.resources)),
            11 => Op::Inspect(vec![resource(0), resource(number), resource(0)]),
            16..=18 => Op::GiveUp(session),
            19 => {
                Op::Extend { session, by: (step.flags % 2 == 1).then(|| Duration::from_micros(u64::from(step.pick))) }
            }
            12 | 13 => {
                let (resource, span) = self.part(session, step);
                Op::Shrink { session, resource, span }
            }
            _ => {
                let (resource, _) = self.part(session, step);
                Op::Downgrade { session, resource, mode: Mode::ALL[usize::from(mode % 4)] }
            }
        }
    }

    /// What a release says of the run.
    fn end(step: &Step) -> Option<End> {
        let endings =
            [Ending::Exit(0), Ending::Exit(0), Ending::Exit(7), Ending::Signal(9), Ending::Timeout, Ending::Lost];
        let ending = *endings.get(usize::from(step.job[0] % 8))?;
        Some(End { ending, is_success: ending == Ending::Exit(0) })
    }

    /// The job of a request with these claims.
    fn job(&self, step: &Step, claims: &[Claim]) -> Job {
        let [job, once, least, keep, more] = step.job;
        if job >= self.profile.jobs {
            return Job::default();
        }
        let length = |number: u8| Duration::from_micros(u64::from(number % 64) * 8 + 1);
        let is_whole_write = matches!(claims, [claim] if claim.mode == Mode::Write && claim.span.is_whole());
        let keep_for = (keep >= 208).then(|| length(keep));
        Job {
            name: ["", "a", "b"][usize::from(job % 3)].to_owned(),
            once_per: (is_whole_write && once >= 96).then(|| OncePer { period: length(once), same_job: once % 2 == 0 }),
            skips: more >= 100,
            max_waiting: (least < 96).then(|| u32::from(least % 4)),
            hold_at_least: (keep_for.is_none() && least >= 160).then(|| length(least)),
            keep_for,
            is_acquire: keep_for.is_some(),
            history: [0, 1, 3, 32][usize::from(more % 4)],
            held_above: Vec::new(),
        }
    }

    /// In most cases a resource that the session claims, and a span.
    fn part(&self, session: SessionId, step: &Step) -> (Resource, Span) {
        let [at, _, lo, width, open] = step.claims[0];
        let member = self.oracle.members.iter().find(|member| member.id() == session);
        let claims = member.map_or(&[][..], |member| &member.request.claims);
        match claims.get(usize::from(at) % claims.len().max(1)) {
            Some(claim) if step.flags < 240 => (claim.resource.clone(), self.span(lo, width, open)),
            _ => (resource(at % self.profile.resources), self.span(lo, width, open)),
        }
    }

    fn request(&self, step: &Step) -> Request {
        if step.flags >= 248 {
            // Repeats a request, except in the instant in which the lease of the session ends: then
            // the request would count as new.
            let live =
                self.live_session(step.pick).and_then(|id| self.oracle.members.iter().find(|member| member.id() == id));
            let again = live.filter(|member| !member.is_due(self.now));
            if let Some(member) = again {
                return member.request.clone();
            }
        }
        let mut ancestors = Vec::new();
        if step.ancestry < self.profile.nested && !self.granted.is_empty() {
            // The parent is one of the latest grants, so that chains of ancestors grow.
            let back = usize::from(step.pick) % self.granted.len().min(4);
            let parent = self.granted[self.granted.len() - 1 - back];
            ancestors.push(parent);
            ancestors.extend(&self.sessions[&parent].ancestors);
        }
        let mut claims: Vec<Claim> = Vec::new();
        for numbers in &step.claims {
            let claim = self.claim(*numbers);
            // A session may claim only one slot of a resource.
            if claim.mode != Mode::Slot || claims.iter().all(|other| other.resource != claim.resource) {
                claims.push(claim);
            }
        }
        let length = |least, more, bit: u8| Duration::from_micros(least + more * u64::from(step.flags >> bit & 1));
        let terms = Terms { ttl: length(20, 90, 1), claim: length(5, 30, 2), heartbeat: length(15, 60, 3) };
        Request {
            session: self.fresh_id(),
            ancestors,
            job: self.job(step, &claims),
            claims,
            wait: step.flags & 7 != 0,
            terms: (step.ancestry.rotate_left(4) < self.profile.leases).then_some(terms),
            process: Process { pid: u32::from(step.flags), ..Process::default() },
        }
    }

    /// A new id. The order of the ids does not depend on the order of the requests.
    fn fresh_id(&self) -> SessionId {
        let number = self.sessions.len() as u128 + 1;
        SessionId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
    }

    fn claim(&self, [name, mode, lo, width, open]: [u8; 5]) -> Claim {
        let resource = resource(name % self.profile.resources);
        let mode = self.profile.modes[usize::from(mode) % self.profile.modes.len()];
        if mode == Mode::Slot {
            let odd = u32::from(open >= 240);
            return Claim {
                resource,
                mode,
                span: Span::Whole,
                slots: Some(u32::from(name % self.profile.resources) + 1 + odd),
            };
        }
        Claim { resource, mode, span: self.span(lo, width, open), slots: None }
    }

    fn span(&self, lo: u8, width: u8, open: u8) -> Span {
        let grid = self.profile.grid;
        if grid == 0 || width >= 224 {
            return Span::Whole;
        }
        let lo = lo % grid;
        // Narrow intervals are more frequent than wide ones.
        let hi = lo + 1 + (width % (grid - lo)).min(width / 32);
        let bracket = |bit: u8, open_: char, closed: char| if open >> bit & 1 == 1 { open_ } else { closed };
        let text = format!("{}{lo},{hi}{}", bracket(0, '(', '['), bracket(1, ')', ']'));
        Span::parse(&text).unwrap_or(Span::Whole)
    }

    /// Requests one claim for a new session without checking the invariants.
    pub(crate) fn request_one(&mut self, mode: Mode, span: &str) {
        let span = Span::parse(span).unwrap();
        let claims = vec![Claim { resource: resource(0), mode, span, slots: None }];
        let process = Process::default();
        let session = self.fresh_id();
        let request =
            Request { session, ancestors: Vec::new(), claims, wait: true, terms: None, job: Job::default(), process };
        self.now += Duration::from_micros(1);
        self.apply(Op::Acquire(request));
    }
}

fn resource(number: u8) -> Resource {
    Resource::new(&format!("r{number}")).unwrap()
}
