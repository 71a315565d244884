//! Random histories: steps that mean something whatever came before them, and the pair of tables they are played on.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rlock::clock::StoreTime;
use rlock::lock::mode::Mode;
use rlock::lock::op::{Op, Reply, ResourceListing};
use rlock::lock::request::{Claim, Process, Request, SessionId, Terms};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::lock::table::LockTable;

use crate::checks::{self, Known, Line, People};
use crate::oracle::Oracle;

/// What kind of history it is: weights, by which numbers are read as choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taste {
    pub(crate) resources: u8,
    /// Ends of intervals are 0 to this; no intervals at 0.
    pub(crate) grid: u8,
    /// Chosen among evenly.
    pub(crate) modes: &'static [Mode],
    /// Of 256 requests so many are below another session.
    pub(crate) nested: u8,
    /// Of 256 steps so many are requests.
    pub(crate) acquire: u8,
    /// Of 256 sessions so many have leases.
    pub(crate) leases: u8,
    pub(crate) claims: usize,
}

pub(crate) const ANY: Taste = Taste {
    resources: 3,
    grid: 5,
    modes: &[Mode::Read, Mode::Prewrite, Mode::Write, Mode::Write, Mode::Slot],
    nested: 90,
    acquire: 150,
    leases: 80,
    claims: 3,
};

/// A number for every choice that a step may have to make.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    kind: u8,
    who: u8,
    lineage: u8,
    flags: u8,
    later: u8,
    claims: Vec<[u8; 5]>,
}

pub(crate) fn history(taste: Taste, steps: usize) -> impl Strategy<Value = Vec<Step>> {
    let claims = prop::collection::vec(any::<[u8; 5]>(), 1..=taste.claims);
    let numbers = (any::<[u8; 5]>(), claims);
    let step = numbers.prop_map(|([kind, who, lineage, flags, later], claims)| Step {
        kind,
        who,
        lineage,
        flags,
        later,
        claims,
    });
    prop::collection::vec(step, 1..=steps)
}

/// The table, the oracle, and what a test knows without either.
pub(crate) struct World {
    pub(crate) table: LockTable,
    oracle: Oracle,
    taste: Taste,
    now: StoreTime,
    people: People,
    /// All that were ever granted, for commands outlive their lease now and then.
    granted: Vec<SessionId>,
    tops: BTreeMap<Resource, u64>,
    lines: Vec<Line>,
}

impl World {
    pub(crate) fn new(taste: Taste) -> Self {
        Self {
            table: LockTable::default(),
            oracle: Oracle::default(),
            taste,
            now: StoreTime::from_micros(1_000),
            people: People::new(),
            granted: Vec::new(),
            tops: BTreeMap::new(),
            lines: Vec::new(),
        }
    }

    pub(crate) fn play(&mut self, step: &Step) {
        self.now += Duration::from_micros(u64::from(step.later % 16));
        if step.later >= 128 {
            // Tokens run ahead of the clock where more is granted than time goes by; let it catch up half of the time.
            self.now += Duration::from_micros(64);
        }
        let op = self.op(step);
        self.apply(op);
        self.check();
    }

    /// Lets everybody go, in an order of its own, and looks for what is left.
    pub(crate) fn end(&mut self, order: u8) {
        while !self.oracle.members.is_empty() {
            let id = self.live(order.wrapping_mul(7)).expect("there is somebody");
            self.now += Duration::from_micros(1);
            self.apply(Op::Release(id));
            self.check();
        }
        assert!(self.table.records().is_empty(), "something was left behind: {:?}", self.table.records());
    }

    /// Applies to both and compares what they say.
    pub(crate) fn apply(&mut self, op: Op) -> Reply {
        if let Op::Acquire(request) = &op {
            self.meet(request);
        }
        let ours = self.oracle.apply(self.now, op.clone());
        let theirs = self.table.apply(self.now, op.clone()).unwrap();
        assert_eq!(theirs, ours, "after {op:?}");
        for member in self.oracle.members.iter().filter(|member| member.holds()) {
            if !self.granted.contains(&member.id()) {
                self.granted.push(member.id());
            }
        }
        ours.reply
    }

    /// Compares the listings and checks what they show.
    pub(crate) fn check(&mut self) {
        let before = std::mem::take(&mut self.lines);
        self.lines = checks::lines(&self.listing());
        checks::nobody_holds_against_another(&self.people, &self.lines);
        checks::nobody_waits_in_vain(&self.people, &self.lines);
        checks::nobody_was_overtaken(&self.people, &before, &self.lines);
        checks::tokens_rise(&self.people, self.now, &before, &self.lines, &mut self.tops);
    }

    fn listing(&mut self) -> Vec<ResourceListing> {
        match self.apply(Op::Inspect(Vec::new())) {
            Reply::Listing(listing) => listing,
            other => panic!("inspect answered {other:?}"),
        }
    }

    /// Remembers what is known of a session when it asks.
    fn meet(&mut self, request: &Request) {
        let now = self.now;
        let above = |line: &&Line| {
            line.is_held() && request.ancestors.contains(&line.session) && line.expiry.is_none_or(|expiry| expiry > now)
        };
        let above: Vec<&Line> = self.lines.iter().filter(above).collect();
        let mut known = Known { ancestors: request.ancestors.clone(), ..Known::default() };
        for claim in &request.claims {
            let part = (claim.resource.clone(), claim.span.clone());
            if above.iter().any(|line| line.resource == part.0 && line.span.overlaps(&part.1)) {
                known.nested.push(part);
            }
            if above.iter().any(|line| line.resource == claim.resource && line.mode == Mode::Slot) {
                known.shares.push(claim.resource.clone());
            }
        }
        self.people.entry(request.session).or_insert(known);
    }

    fn live(&self, who: u8) -> Option<SessionId> {
        let members = &self.oracle.members;
        (!members.is_empty()).then(|| members[usize::from(who) % members.len()].id())
    }

    fn op(&self, step: &Step) -> Op {
        let [number, mode, ..] = step.claims[0];
        if step.kind < self.taste.acquire {
            return Op::Acquire(self.request(step));
        }
        let session = self.live(step.who).unwrap_or(SessionId([0; 16]));
        match (step.kind - self.taste.acquire) % 16 {
            0..=4 => Op::Release(session),
            5 => Op::Cancel(session),
            6 => Op::Reap(session),
            7 | 8 => Op::Renew(session),
            9 => Op::Expire,
            10 => Op::Break(resource(number % self.taste.resources)),
            11 => Op::Inspect(vec![resource(0), resource(number), resource(0)]),
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

    /// Mostly something that the session has, and a part of that.
    fn part(&self, session: SessionId, step: &Step) -> (Resource, Span) {
        let [at, _, lo, width, open] = step.claims[0];
        let member = self.oracle.members.iter().find(|member| member.id() == session);
        let claims = member.map_or(&[][..], |member| &member.request.claims);
        match claims.get(usize::from(at) % claims.len().max(1)) {
            Some(claim) if step.flags < 240 => (claim.resource.clone(), self.span(lo, width, open)),
            _ => (resource(at % self.taste.resources), self.span(lo, width, open)),
        }
    }

    fn request(&self, step: &Step) -> Request {
        if step.flags >= 248 {
            // Asks once more; not in the instant in which its lease ends, for then it comes as somebody new.
            let live = self.live(step.who).and_then(|id| self.oracle.members.iter().find(|member| member.id() == id));
            let again = live.filter(|member| !member.is_due(self.now));
            if let Some(member) = again {
                return member.request.clone();
            }
        }
        let mut ancestors = Vec::new();
        if step.lineage < self.taste.nested && !self.granted.is_empty() {
            // The latest more often than not, so that chains grow.
            let back = usize::from(step.who) % self.granted.len().min(4);
            let parent = self.granted[self.granted.len() - 1 - back];
            ancestors.push(parent);
            ancestors.extend(&self.people[&parent].ancestors);
        }
        let mut claims: Vec<Claim> = Vec::new();
        for numbers in &step.claims {
            let claim = self.claim(*numbers);
            // A session has one slot of a resource.
            if claim.mode != Mode::Slot || claims.iter().all(|other| other.resource != claim.resource) {
                claims.push(claim);
            }
        }
        let length = |least, more, bit: u8| Duration::from_micros(least + more * u64::from(step.flags >> bit & 1));
        let terms = Terms { ttl: length(20, 90, 1), claim: length(5, 30, 2), heartbeat: length(15, 60, 3) };
        Request {
            session: self.fresh_id(),
            ancestors,
            claims,
            wait: step.flags & 7 != 0,
            terms: (step.lineage.rotate_left(4) < self.taste.leases).then_some(terms),
            process: Process { pid: u32::from(step.flags), ..Process::default() },
        }
    }

    /// An id whose place among the others tells nothing of when it came.
    fn fresh_id(&self) -> SessionId {
        let number = self.people.len() as u128 + 1;
        SessionId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
    }

    fn claim(&self, [name, mode, lo, width, open]: [u8; 5]) -> Claim {
        let resource = resource(name % self.taste.resources);
        let mode = self.taste.modes[usize::from(mode) % self.taste.modes.len()];
        if mode == Mode::Slot {
            let odd = u32::from(open >= 240);
            return Claim {
                resource,
                mode,
                span: Span::Whole,
                slots: Some(u32::from(name % self.taste.resources) + 1 + odd),
            };
        }
        Claim { resource, mode, span: self.span(lo, width, open), slots: None }
    }

    fn span(&self, lo: u8, width: u8, open: u8) -> Span {
        let grid = self.taste.grid;
        if grid == 0 || width >= 224 {
            return Span::Whole;
        }
        let lo = lo % grid;
        // Narrow ones more often than wide ones.
        let hi = lo + 1 + (width % (grid - lo)).min(width / 32);
        let bracket = |bit: u8, open_: char, closed: char| if open >> bit & 1 == 1 { open_ } else { closed };
        let text = format!("{}{lo},{hi}{}", bracket(0, '(', '['), bracket(1, ')', ']'));
        Span::parse(&text).unwrap_or(Span::Whole)
    }

    /// Asks for one claim, by nobody's order, and does not check.
    pub(crate) fn ask(&mut self, mode: Mode, span: &str) {
        let span = Span::parse(span).unwrap();
        let claims = vec![Claim { resource: resource(0), mode, span, slots: None }];
        let process = Process::default();
        let session = self.fresh_id();
        let request = Request { session, ancestors: Vec::new(), claims, wait: true, terms: None, process };
        self.now += Duration::from_micros(1);
        self.apply(Op::Acquire(request));
    }
}

fn resource(number: u8) -> Resource {
    Resource::new(&format!("r{number}")).unwrap()
}
