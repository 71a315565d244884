//! The table and the oracle, side by side.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rlock_model::mode::Mode;
use rlock_model::op::{Change, Op, Reply, ResourceListing};
use rlock_model::past::HISTORY_MAX;
use rlock_model::records::Memory;
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

use crate::checks::{self, Line, SessionInfo, Sessions};
use crate::diary::Diary;
use crate::oracle::Oracle;
use rlock_testkit::histories::Stage;

/// The table, the oracle, and the facts that the checks need.
pub(crate) struct World {
    table: LockTable,
    oracle: Oracle,
    resources: Vec<Resource>,
    now: StoreTime,
    sessions: Sessions,
    highest_tokens: BTreeMap<Resource, u64>,
    lines: Vec<Line>,
}

/// The claim lease of sessions without terms: some steps.
const CLAIM_LEASE: Duration = Duration::from_micros(100);

impl World {
    pub(crate) fn new(resources: Vec<Resource>) -> Self {
        Self {
            table: LockTable::with_claim_lease(Memory::default(), CLAIM_LEASE),
            oracle: Oracle { claim_lease: Some(CLAIM_LEASE), ..Oracle::default() },
            resources,
            now: StoreTime::from_micros(1_000),
            sessions: Sessions::new(),
            highest_tokens: BTreeMap::new(),
            lines: Vec::new(),
        }
    }

    /// Releases all sessions in an order that `order` selects, and asserts that the table is empty.
    pub(crate) fn release_all(&mut self, order: usize) -> Result<(), String> {
        caught(|| self.release_and_forget(order))
    }

    fn release_and_forget(&mut self, order: usize) {
        while !self.oracle.members.is_empty() {
            let session = self.oracle.members[order % self.oracle.members.len()].id();
            self.now += Duration::from_micros(1);
            self.compare(Op::Release { session, end: None });
            self.check();
        }
        assert!(self.table.records().is_empty(), "the table is not empty: {:?}", self.table.records());
        self.now += Duration::from_secs(500 * 24 * 3_600);
        for _ in 0..=self.resources.len() {
            self.compare(Op::Expire);
        }
        assert!(self.table.records().is_forgotten(), "the past is not forgotten: {:?}", self.table.records());
    }

    /// Applies an operation to both tables and compares the outcomes.
    fn compare(&mut self, op: Op) -> Reply {
        if let Op::Acquire { request, .. } = &op {
            self.remember(request, matches!(op, Op::Acquire { place: Some(_), .. }));
        }
        let expected = self.oracle.apply(self.now, op.clone());
        let mut actual = self.table.apply(self.now, op.clone()).unwrap();
        if let Reply::Busy { streak: Some(streak), .. } | Reply::Superseded { streak: Some(streak), .. } =
            &mut actual.reply
        {
            // The oracle has no numbers of entries.
            streak.entry = None;
        }
        assert_eq!(actual, expected, "after {op:?}");
        expected.reply
    }

    /// Compares the listings and checks the invariants.
    pub(crate) fn check(&mut self) {
        let before = std::mem::take(&mut self.lines);
        self.lines = checks::lines(&self.listing());
        for name in &self.resources {
            let past = self.table.past(self.now, name, HISTORY_MAX).unwrap();
            let actual = past.map(|found| Diary::of(&found.past, found.entries)).unwrap_or_default();
            let expected = self.oracle.diary(self.now, name).diary().clone();
            assert_eq!(actual.current(self.now), expected.current(self.now), "the past of {name}");
        }
        checks::holders_do_not_conflict(&self.sessions, &self.lines);
        checks::every_waiter_is_blocked(&self.sessions, &self.lines);
        checks::no_waiter_is_overtaken(&self.sessions, &before, &self.lines);
        checks::tokens_rise(&self.sessions, self.now, &before, &self.lines, &mut self.highest_tokens);
    }

    fn listing(&mut self) -> Vec<ResourceListing> {
        match self.compare(Op::Inspect(Vec::new())) {
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
        // A request that is repeated changes nothing. One that comes again after its session has
        // left is new.
        if self.oracle.members.iter().all(|member| member.id() != request.session) {
            self.sessions.insert(request.session, known);
        }
    }

    /// Requests claims, given by the numbers of their resources, for a new session below others,
    /// without checking the invariants. The session lives as long as its process, or as long as its
    /// lease.
    pub(crate) fn request(
        &mut self,
        number: u32,
        claims: &[(usize, Mode, &str)],
        ancestors: &[u32],
        lease: Option<Duration>,
    ) {
        let claim = |&(resource, mode, span): &(usize, Mode, &str)| Claim {
            resource: self.resources[resource].clone(),
            mode,
            span: parsed(span),
            slots: None,
        };
        let claims = claims.iter().map(claim).collect();
        let terms = lease.map(|ttl| Terms { ttl, claim: ttl, heartbeat: ttl });
        let (session, ancestors) = (numbered(number), ancestors.iter().copied().map(numbered).collect());
        let (job, process) = (Job::default(), Process::default());
        self.now += Duration::from_micros(1);
        self.compare(Op::Acquire {
            request: Request { session, ancestors, claims, wait: true, terms, job, process },
            place: None,
        });
    }

    /// Shrinks the hold of a session on the first resource after some time, without checking the
    /// invariants.
    pub(crate) fn shrink(&mut self, after: Duration, number: u32, span: &str) {
        self.now += after;
        let (session, resource) = (numbered(number), self.resources[0].clone());
        let change = Change::Shrink { resource, span: parsed(span) };
        let reply = self.compare(Op::Change { session, change });
        assert_eq!(reply, Reply::Done);
    }
}

fn parsed(span: &str) -> Span {
    Span::parse(span).unwrap()
}

fn numbered(session: u32) -> SessionId {
    SessionId(u128::from(session).to_le_bytes())
}

impl Stage for World {
    fn table(&self) -> &LockTable {
        &self.table
    }

    fn apply(&mut self, now: StoreTime, op: Op, _claimed: &[Resource]) -> Result<(), String> {
        self.now = now;
        caught(|| {
            self.compare(op);
            self.check();
        })
    }
}

/// Runs a part of a history, and returns the message of a panic.
fn caught(part: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|panic| match panic.downcast_ref::<String>() {
        Some(message) => message.clone(),
        None => format!("{:?}", panic.downcast_ref::<&str>()),
    })
}
