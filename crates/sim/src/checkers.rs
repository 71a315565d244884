//! The checkers: they see every session and every command while it happens.
//!
//! [`rules`] decides what conflicts, which overlap is allowed and which token fits. The fault suite
//! judges its logs by the same rules.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::claims::{Claim, Mode, Span};
use super::jobs::Jobs;
use super::kept::{self, KeptHolds};
use super::rules::{self, Exclusion, Tokens};
use rlock_model::lease::{CLAIM, HEARTBEAT};
use rlock_model::mode;
use rlock_model::request::{self, Job, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span;
use rlock_sys::clock::StoreTime;
use rlock_sys::exit;

/// How long a live waiter may wait after every session ahead of it has left, where faults struck
/// before.
///
/// A dead holder keeps its lease, and a dead waiter its place, for a heartbeat at most; no ttl here
/// is longer. Just before its end the dead waiter may get a grant, which lasts for the claim lease.
/// The live waiter looks a third of a heartbeat later at the latest, delayed by its place in the
/// queue, and its connection has been replaced by then.
const IDLE_MAX: Duration = Duration::from_secs(
    HEARTBEAT.as_secs() + CLAIM.as_secs() + HEARTBEAT.as_secs() / 3 + STAGGER_MAX.as_secs() + ROUND_TRIPS.as_secs(),
);

/// The longest delay of a look by the place in the queue.
const STAGGER_MAX: Duration = Duration::from_secs(1);

/// How long connecting and some commands take.
const ROUND_TRIPS: Duration = Duration::from_secs(1);

/// The same limit where no fault strikes: the release wakes the waiter.
const IDLE_MAX_CALM: Duration = Duration::from_millis(100);

/// How often the checkers look for a waiter that nobody serves.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The number of commands of a session without a fault, apart from renewals: the request, the
/// renewal after the subscription, the claim, the release, and one to spare.
const CALLS: u32 = 5;

/// The least time between two renewals: a third of the shortest ttl, less what clocks and networks
/// take.
const RENEWAL: Duration = Duration::from_millis(150);

/// One session with its command.
pub(super) struct Run {
    pub(super) session: SessionId,
    pub(super) job: Job,
    /// The resources of the request, each once.
    pub(super) resources: Vec<Resource>,
    /// The instant of the grant on the clock of the server.
    pub(super) granted: StoreTime,
    /// When the kept hold of the run has to end, if it has one.
    pub(super) kept_until: Option<RangeInclusive<StoreTime>>,
    /// Whether a hold around the run had ended at the grant, so that the run is not below it.
    pub(super) is_orphan: bool,
    /// Whether live holds around the run covered all of its claims at the grant.
    pub(super) is_covered: bool,
    /// The claims of the request.
    asked_for: Vec<Claim>,
    /// What is left of the claims after the session gave up parts of them.
    claims: Vec<Claim>,
    /// The run with its ancestors, the outermost first.
    lineage: Vec<usize>,
    asked: Duration,
    /// When the session learned that it is in the queue.
    queued: Option<Duration>,
    /// Since when no session has left for which this one may have waited.
    free_since: Duration,
    /// The number of commands that the server carried out for the session.
    calls: u32,
    /// The connections on which the server carried out a release.
    released_on: BTreeSet<usize>,
    /// The resources that the server has asked the session to name since its last renewal on a
    /// connection.
    needed: BTreeSet<(usize, String)>,
    /// The tokens of the grant.
    tokens: Option<Vec<u64>>,
    /// Whether rlock was stopped, which the promise does not cover.
    pub(super) was_stopped: bool,
    /// Whether the server did not answer the release at once. rlock then can't tell a loss from a
    /// release whose reply was lost.
    pub(super) release_failed: bool,
    /// Whether a failover lost the grant or shortened its lease, or `rlock break --now` ended it.
    is_lost: bool,
    /// Whether `rlock break` has revoked the grant.
    pub(super) is_revoked: bool,
    /// Whether a primary that was replaced served the session, which nobody could tell of a loss.
    is_misled: bool,
    exit: Option<u8>,
}

impl Run {
    /// Whether rlock reported a loss, or could not because it was killed or cut off.
    fn is_told(&self) -> bool {
        self.release_failed || self.is_misled || self.exit.is_none_or(|code| code == exit::LOST)
    }

    fn is_nested(&self) -> bool {
        self.lineage.len() > 1
    }
}

/// A claim of a command that runs.
#[derive(Clone, Copy)]
struct Hold<'a> {
    run: usize,
    lineage: &'a [usize],
    claim: &'a Claim,
}

impl rules::Hold for Hold<'_> {
    fn claim(&self) -> &Claim {
        self.claim
    }

    fn is_related_to(&self, other: &Self) -> bool {
        self.lineage.contains(&other.run) || other.lineage.contains(&self.run)
    }

    fn shares_slot_with(&self, other: &Self) -> bool {
        self.lineage[0] == other.lineage[0]
    }
}

#[derive(Default)]
pub(super) struct Checkers {
    pub(super) runs: Vec<Run>,
    pub(super) by_session: BTreeMap<SessionId, usize>,
    /// The runs whose commands run.
    running: Vec<usize>,
    /// The live runs that wait for their grants.
    asking: BTreeSet<usize>,
    /// The live runs that have their grants.
    holding: BTreeSet<usize>,
    pub(super) kept: KeptHolds,
    /// When the checkers last saw the end of a kept hold.
    kept_ended: Option<Duration>,
    pub(super) jobs: Jobs,
    /// When the last fault began or ended.
    disturbed: Duration,
    looked: Duration,
    /// When the server last lost data, or ended leases early.
    lost_data: Option<Duration>,
    /// Whether the server may have forgotten the last tokens.
    lost_tokens: bool,
    /// When the server last lost places in the queue: with its data, or in a failover.
    lost_places: Option<Duration>,
    /// Whether the clock of the server went back.
    went_back: bool,
    tokens: Tokens<usize>,
    /// The sets of runs that overlapped where the promise does not hold.
    uncovered: Vec<Vec<usize>>,
    /// When an rlock was last killed, or ended before it had released its locks.
    pub(super) abandoned: Option<Duration>,
    /// Whether no fault strikes.
    pub(super) is_calm: bool,
    /// Whether no fault breaks connections or ends processes, so that every session is released.
    pub(super) is_mild: bool,
    /// Whether each new connection reaches the server and stays as it is until the next fault.
    pub(super) is_reachable: bool,
    /// Whether no fault keeps a holder from renewing its lease in time.
    pub(super) is_gentle: bool,
    /// Whether the checkers make no exception where the promise does not hold.
    pub(super) is_strict: bool,
    pub(super) longest_wait: Duration,
    pub(super) violations: Vec<String>,
}

impl Checkers {
    pub(super) fn ask(&mut self, request: &Request, now: Duration) -> usize {
        let run = self.runs.len();
        let claims: Vec<_> = request.claims.iter().map(claim).collect();
        let ancestors = request.ancestors.iter().rev().filter_map(|session| self.by_session.get(session).copied());
        self.runs.push(Run {
            session: request.session,
            job: request.job.clone(),
            resources: request::resources(&request.claims).into_iter().cloned().collect(),
            granted: StoreTime::default(),
            kept_until: None,
            is_orphan: false,
            is_covered: false,
            asked_for: claims.clone(),
            claims,
            lineage: ancestors.chain([run]).collect(),
            asked: now,
            queued: None,
            free_since: now,
            calls: 0,
            released_on: BTreeSet::new(),
            needed: BTreeSet::new(),
            tokens: None,
            was_stopped: false,
            release_failed: false,
            is_lost: false,
            is_misled: false,
            is_revoked: false,
            exit: None,
        });
        self.by_session.insert(request.session, run);
        self.asking.insert(run);
        run
    }

    pub(super) fn queue(&mut self, run: usize, now: Duration) {
        self.runs[run].queued.get_or_insert(now);
    }

    /// The server has carried out a command of a session.
    pub(super) fn count_call(&mut self, session: SessionId) {
        if let Some(run) = self.by_session.get(&session) {
            self.runs[*run].calls += 1;
        }
    }

    /// A waiter cannot get its place back, because the server gave its number to another one. This
    /// happens only if the server has lost data.
    pub(super) fn displace(&mut self, session: SessionId) {
        let Some(run) = self.by_session.get(&session) else { return };
        self.runs[*run].queued = None;
        if self.lost_places.is_none() {
            self.violations.push(format!("run {run} lost its place to another one"));
        }
    }

    /// A request arrives late, over a connection that its client has given up. If the server has
    /// dropped the waiter by then, the waiter joins the end of the queue.
    pub(super) fn rejoin(&mut self, session: SessionId, now: Duration) {
        let Some(run) = self.by_session.get(&session) else { return };
        let queued = &mut self.runs[*run].queued;
        *queued = queued.map(|_| now);
    }

    /// The server grants a request. `waits` tells which other sessions are in its queue.
    ///
    /// Invariant 3 of the lock table, as far as clients can tell. A waiter that knew its place
    /// before the other one asked is served first, unless it has left the queue. The server drops a
    /// waiter that nobody would wake, or that shows no sign of life. Once such a waiter is back in
    /// its place, it is ahead of the others again.
    pub(super) fn check_order(&mut self, session: SessionId, waits: impl Fn(SessionId) -> bool) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let later = &self.runs[run];
        if later.is_nested() || self.has_lost_place(run) {
            return;
        }
        let is_overtaken = |other: &usize| {
            let waiter = &self.runs[*other];
            let is_ahead = waiter.queued.is_some_and(|at| at < later.asked) && !waiter.is_nested();
            is_ahead
                && rules::must_go_first(&waiter.claims, &later.claims)
                && !self.has_lost_place(*other)
                && waits(waiter.session)
        };
        if let Some(other) = self.asking.iter().find(|other| is_overtaken(other)) {
            self.violations.push(format!("run {run} overtook run {other}"));
        }
    }

    pub(super) fn start(&mut self, run: usize, tokens: &[u64], now: Duration) {
        self.stop_asking(run, now);
        for runs in self.exclusions(run, now) {
            if runs.iter().any(|run| self.is_uncovered(*run)) {
                // Nobody is told of the end of a kept hold.
                if !runs.iter().any(|run| self.kept.contains(*run)) {
                    self.uncovered.push(runs);
                }
            } else {
                self.violations.push(format!("{now:?}: run {run} started, and {runs:?} exclude each other"));
            }
        }
        self.check_tokens(run, tokens);
        self.running.push(run);
    }

    /// The sets of runs that must not run beside a run, each with this run.
    fn exclusions(&self, run: usize, now: Duration) -> Vec<Vec<usize>> {
        let holds = |run: usize| {
            let Run { lineage, claims, .. } = &self.runs[run];
            claims.iter().map(move |claim| Hold { run, lineage, claim })
        };
        let current = self.running.iter().copied().chain(self.kept.in_use(now)).filter(|other| *other != run);
        let current: Vec<_> = current.flat_map(holds).collect();
        let exclusions = holds(run).flat_map(|hold| rules::exclusions(&current, hold).collect::<Vec<_>>());
        let others = exclusions.map(|exclusion| match exclusion {
            Exclusion::Conflict(other) => vec![other],
            Exclusion::TooManySlots { holders, .. } => holders,
        });
        others.map(|others| others.into_iter().map(|hold| hold.run).chain([run]).collect()).collect()
    }

    /// Whether something happened to a run that the promise does not cover.
    pub(super) fn is_uncovered(&self, run: usize) -> bool {
        let Run { was_stopped, is_lost, .. } = self.runs[run];
        !self.is_strict && (was_stopped || is_lost || self.has_lost_data(run))
    }

    /// Whether the server may have forgotten a run.
    fn has_lost_data(&self, run: usize) -> bool {
        self.lost_data.is_some_and(|at| at >= self.runs[run].asked)
    }

    /// Whether the server may have forgotten the place of a run in the queue.
    fn has_lost_place(&self, run: usize) -> bool {
        let Run { asked, is_lost, .. } = self.runs[run];
        is_lost || self.lost_places.is_some_and(|at| at >= asked)
    }

    /// Invariant 4 of the lock table.
    fn check_tokens(&mut self, run: usize, tokens: &[u64]) {
        let Run { claims, lineage, .. } = &self.runs[run];
        // Another run may have been granted the same between the grant and the start.
        let is_uncovered = lineage.iter().any(|run| self.is_uncovered(*run));
        // A command may outlive the hold around it, and what it starts is not below that hold any
        // more.
        let has_ended = |run: &Run| run.is_orphan || !run.released_on.is_empty();
        let has_released = lineage.iter().any(|run| has_ended(&self.runs[*run]));
        for (claim, token) in claims.iter().zip(tokens).filter(|_| !is_uncovered) {
            let around = self.hold_around(run, claim);
            let fits = |around| has_released || rules::nested_token_fits(around, (claim.mode, *token));
            if let Some(around) = around.filter(|around| !fits(*around)) {
                self.violations.push(format!("run {run} has token {token} of {claim} inside {around:?}"));
            }
            let own = std::slice::from_ref(claim);
            let is_wrong = |other: &usize| !lineage.contains(other);
            let mut earlier = self.tokens.not_below(own, *token, Claim::conflicts_with).filter(is_wrong);
            // Below a hold that has ended, the token is that of a hold further out.
            let is_inherited = around.is_some_and(|(_, around)| around == *token)
                || has_released && self.holds_around(run, claim).any(|(_, around)| around == *token);
            if let Some(other) = earlier.next().filter(|_| !is_inherited) {
                self.violations.push(format!("run {run} has token {token} of {claim} after that of run {other}"));
            }
        }
        // A token that a failover lost may be given again, and one from before the clock went back.
        let is_void = self.runs[run].is_lost || self.went_back && self.has_lost_data(run);
        for (claim, token) in claims.iter().zip(tokens).filter(|_| !is_void) {
            self.tokens.add(claim, *token, run);
        }
    }

    /// The mode and the token of an ancestor's claim that includes a claim, or else of one that may
    /// become the claim.
    fn hold_around(&self, run: usize, claim: &Claim) -> Option<(Mode, u64)> {
        let around: Vec<_> = self.holds_around(run, claim).collect();
        let is_included = |mode| match claim.mode {
            Mode::Read => true,
            Mode::Prewrite => matches!(mode, Mode::Prewrite | Mode::Write),
            Mode::Write => mode == Mode::Write,
            Mode::Slot => matches!(mode, Mode::Slot | Mode::Write),
        };
        let grows = |mode| mode == Mode::Prewrite && claim.mode == Mode::Write;
        let included = around.iter().find(|(mode, _)| is_included(*mode));
        included.or_else(|| around.iter().find(|(mode, _)| grows(*mode))).copied()
    }

    /// The modes and the tokens of all claims of ancestors around a claim, the innermost first.
    fn holds_around(&self, run: usize, claim: &Claim) -> impl Iterator<Item = (Mode, u64)> {
        let ancestors = self.runs[run].lineage.iter().rev().skip(1).map(|run| &self.runs[*run]);
        let held = ancestors.flat_map(|run| run.claims.iter().zip(run.tokens.iter().flatten()));
        let around = held.filter(|(held, _)| held.resource == claim.resource && held.span.covers(&claim.span));
        around.map(|(held, token)| (held.mode, *token))
    }

    /// The command of a run has ended.
    pub(super) fn end(&mut self, run: usize) {
        self.running.retain(|other| *other != run);
    }

    /// The session waits no longer.
    pub(super) fn stop_asking(&mut self, run: usize, now: Duration) {
        if self.asking.remove(&run) {
            self.make_way(run, now);
        }
    }

    pub(super) fn exit(&mut self, run: usize, code: u8, now: Duration) {
        self.vanish(run, now);
        self.runs[run].exit = Some(code);
        for runs in self.uncovered.iter().filter(|runs| runs.contains(&run)) {
            if !rules::may_overlap(false, runs.iter().any(|run| self.runs[*run].is_told())) {
                let codes: Vec<_> = runs.iter().map(|run| self.runs[*run].exit).collect();
                self.violations.push(format!("runs {runs:?} overlapped, and exited with {codes:?}"));
            }
        }
        let Run { asked, calls, .. } = self.runs[run];
        let renewals = (now.saturating_sub(asked).as_micros() / RENEWAL.as_micros()) as u32;
        if self.is_calm && calls > CALLS + renewals {
            self.violations.push(format!("run {run} took {calls} commands, and up to {renewals} renewals"));
        }
    }

    /// The rlock of a run has exited, or was killed.
    pub(super) fn vanish(&mut self, run: usize, now: Duration) {
        self.stop_asking(run, now);
        if self.holding.remove(&run) {
            self.make_way(run, now);
        }
    }

    /// The server has shrunk what a session holds of a resource.
    pub(super) fn shrink(&mut self, session: SessionId, resource: &Resource, to: &span::Span, now: Duration) {
        let (name, to) = (resource.as_str(), span(to));
        self.give_up(session, now, |claims| {
            let shrunk = claims.iter_mut().filter(|claim| claim.resource == name && claim.span.covers(&to));
            shrunk.for_each(|claim| claim.span = to.clone());
        });
    }

    /// The server has lowered the mode in which a session holds a resource.
    pub(super) fn lower(&mut self, session: SessionId, resource: &Resource, to: mode::Mode, now: Duration) {
        let (name, to) = (resource.as_str(), named(to));
        self.give_up(session, now, |claims| {
            let is_lowered = |held| matches!((held, to), (Mode::Write, _) | (Mode::Prewrite, Mode::Read));
            let own = claims.iter_mut().filter(|claim| claim.resource == name && is_lowered(claim.mode));
            own.for_each(|claim| claim.mode = to);
        });
    }

    /// A session gives up a part of what it holds. Its work has kept to the rest since it sent the
    /// command.
    fn give_up(&mut self, session: SessionId, now: Duration, change: impl FnOnce(&mut [Claim])) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        self.make_way(run, now);
        change(&mut self.runs[run].claims);
    }

    /// A session reports the loss of its lock, in these words.
    pub(super) fn check_loss(&mut self, run: usize, words: &str) {
        if self.is_gentle && !self.runs[run].is_lost && !self.runs[run].is_revoked {
            self.violations.push(format!("run {run} lost its lock, though nothing kept it from renewing: {words}"));
        }
    }

    /// A request ends because it was in a deadlock. A server that has lost places may have told of
    /// those that are gone.
    pub(super) fn check_deadlock(&mut self, run: usize, is_real: bool) {
        if !is_real && !self.has_lost_place(run) {
            self.violations.push(format!("run {run} reports a deadlock, and was in none"));
        }
    }

    /// A release has failed that began at `since`.
    pub(super) fn fail_to_release(&mut self, run: usize, since: Duration) {
        if self.is_reachable && self.disturbed < since {
            self.violations.push(format!("run {run} could not release, though a new connection reaches the server"));
        }
    }

    /// The server has carried out a release that came on a connection.
    pub(super) fn release(&mut self, session: SessionId, connection: usize) {
        if let Some(run) = self.by_session.get(&session) {
            self.runs[*run].released_on.insert(connection);
        }
    }

    /// The server has carried out a request that came on a connection. After a release on the same
    /// connection, nobody would release what the server grants.
    pub(super) fn check_request(&mut self, session: SessionId, connection: usize) {
        let Some(run) = self.by_session.get(&session) else { return };
        if self.runs[*run].released_on.contains(&connection) {
            self.violations.push(format!("run {run} was released before its request reached the server"));
        }
    }

    /// The server has asked a session on a connection to name these resources too.
    pub(super) fn need(&mut self, session: SessionId, connection: usize, names: &[Resource]) {
        if let Some(run) = self.by_session.get(&session) {
            self.runs[*run].needed.extend(names.iter().map(|name| (connection, name.as_str().to_owned())));
        }
    }

    /// The server has carried out a renewal that names these resources. Apart from its own, it
    /// names those only that the server asked for since the renewal before. Otherwise the renewals
    /// of a long session grow with every session that ends beside it.
    ///
    /// What was sent on an earlier connection may arrive later, so each connection counts alone.
    pub(super) fn check_names(&mut self, session: SessionId, connection: usize, names: &[Resource]) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Run { claims, needed, .. } = &mut self.runs[run];
        let is_needed = |name: &str| needed.contains(&(connection, name.to_owned()));
        let is_own = |name: &str| claims.iter().any(|claim| claim.resource == name);
        let foreign = names.iter().find(|name| !is_own(name.as_str()) && !is_needed(name.as_str()));
        needed.retain(|(other, _)| *other != connection);
        if let Some(name) = foreign {
            self.violations.push(format!("run {run} names {name:?}, which nobody asked for"));
        }
    }

    /// A session has left, for which others may have waited.
    pub(super) fn make_way(&mut self, run: usize, now: Duration) {
        let waiting: Vec<_> = self.asking.iter().copied().filter(|other| self.may_block(run, *other)).collect();
        waiting.into_iter().for_each(|other| self.runs[other].free_since = now);
    }

    /// Whether a run may wait for another one.
    fn may_block(&self, one: usize, waiter: usize) -> bool {
        if self.runs[waiter].lineage.contains(&one) {
            return false;
        }
        // A server that has lost data may have forgotten what the session gave up.
        let may_be_whole = self.has_lost_place(one);
        let (one, waiter) = (&self.runs[one], &self.runs[waiter].claims);
        let one = if may_be_whole { &one.asked_for } else { &one.claims };
        let is_slot = |claim: &Claim| claim.mode == Mode::Slot;
        one.iter().any(|one| {
            let needs_its_slot = |other: &Claim| is_slot(one) && is_slot(other) && one.resource == other.resource;
            waiter.iter().any(|other| one.conflicts_with(other) || needs_its_slot(other))
        })
    }

    /// An rlock has ended before it released its locks. Others wait for the ends of its leases.
    ///
    /// That happens without a fault too: an rlock kills the tree of its command after
    /// `--max-runtime`, and an inner rlock in that tree may be about to start its own command.
    pub(super) fn abandon(&mut self, now: Duration) {
        self.abandoned = Some(now);
    }

    /// How long a live waiter may wait after every session ahead of it has left.
    fn idle_max(&self, now: Duration) -> Duration {
        let is_past = |at: Option<Duration>, limit| at.is_none_or(|at| now > at + limit);
        let has_left = is_past(self.abandoned, IDLE_MAX) && is_past(self.kept_ended, kept::NOTICE_MAX);
        let is_calm = self.is_calm && has_left;
        if is_calm { IDLE_MAX_CALM } else { IDLE_MAX }
    }

    /// A fault began or ended.
    pub(super) fn disturb(&mut self, now: Duration) {
        self.disturbed = self.disturbed.max(now);
    }

    pub(super) fn lose_data(&mut self, now: Duration) {
        self.lost_data = Some(now);
        self.lose_places(now);
        self.lose_tokens();
    }

    pub(super) fn lose_places(&mut self, now: Duration) {
        self.jobs.forget();
        self.lost_places = Some(now);
    }

    /// The clock of the server has gone back by so much. Time then stands still for the leases, and
    /// for longer if it stands still already.
    pub(super) fn go_back(&mut self, by: Duration, now: Duration) {
        self.went_back = true;
        self.forget_tokens();
        self.disturb(self.disturbed.max(now) + by);
    }

    /// The server has lost its latest changes, and maybe tokens with them.
    pub(super) fn lose_tokens(&mut self) {
        self.lost_tokens = true;
        self.forget_tokens();
    }

    /// Tokens may fall where the server has lost them and its clock went back.
    fn forget_tokens(&mut self) {
        if self.went_back && self.lost_tokens {
            self.tokens = Tokens::default();
        }
    }

    /// The runs that have not ended, or whose holds are kept.
    pub(super) fn live(&self) -> Vec<usize> {
        (0..self.runs.len()).filter(|run| self.runs[*run].exit.is_none() || self.kept.contains(*run)).collect()
    }

    /// A failover loses the grant of a run, or shortens its lease.
    pub(super) fn lose(&mut self, run: usize) {
        self.runs[run].is_lost = true;
    }

    /// The data of the server is exchanged for older data, by a restart or a failover. These live
    /// runs were holders `before`, and are holders `after`.
    ///
    /// The older data may give a run a grant back that `cleanup --break`, a lost key or a step of
    /// the clock revoked. The promise of `docs/design.md` covers none of these, nor the exchange.
    /// The run goes on with a valid grant, so its renewals tell of no loss. Others that held the
    /// lock meanwhile may have released it already. Then nobody can be told of the overlap. A run
    /// that has neither released nor kept its grant is still told.
    pub(super) fn give_back(&mut self, before: &BTreeSet<usize>, after: &BTreeSet<usize>) {
        let Self { runs, uncovered, .. } = self;
        let has_released = |run: usize| runs[run].exit.is_some() || !runs[run].released_on.is_empty();
        let is_back = |run: &usize| after.contains(run) && !before.contains(run) && !has_released(*run);
        let is_told = |run: &usize| !after.contains(run) && !has_released(*run);
        uncovered.retain(|runs| !runs.iter().any(is_back) || runs.iter().any(is_told));
    }

    /// `rlock break` revokes the grant of a session, which holds until it gives the grant back.
    pub(super) fn revoke(&mut self, session: SessionId) {
        if let Some(run) = self.by_session.get(&session) {
            self.runs[*run].is_revoked = true;
        }
    }

    /// `rlock break --now` ends the grant of a session.
    pub(super) fn break_grant(&mut self, session: SessionId) {
        if let Some(run) = self.by_session.get(&session).copied() {
            self.lose(run);
        }
    }

    /// A primary that was replaced has served a session, or revoked its grant. Neither this node
    /// nor the new primary can tell the session of a loss.
    pub(super) fn mislead(&mut self, session: SessionId) {
        if let Some(run) = self.by_session.get(&session) {
            let run = &mut self.runs[*run];
            (run.is_lost, run.is_misled) = (true, true);
        }
    }

    /// Forgets the tokens above this one.
    pub(super) fn forget_tokens_after(&mut self, latest: u64) {
        self.tokens.forget_above(latest);
    }

    /// A session takes in a grant. It must not count on more than the server gives: `ends` is the
    /// end of the lease at the server, if the server knows the session.
    pub(super) fn believe(
        &mut self,
        run: usize,
        tokens: &[u64],
        deadline: Duration,
        ends: Option<Duration>,
        now: Duration,
    ) {
        if self.asking.remove(&run) {
            let since = self.runs[run].free_since.max(self.disturbed);
            self.longest_wait = self.longest_wait.max(now.saturating_sub(since));
            self.holding.insert(run);
        }
        // Another session may have held the lock between two grants.
        if self.runs[run].tokens.get_or_insert_with(|| tokens.to_vec()) != tokens {
            self.violations.push(format!("run {run} goes on with another grant"));
        }
        if let Some(ends) = ends.filter(|ends| *ends < deadline && !self.is_uncovered(run)) {
            self.violations.push(format!("run {run} counts on its lease until {deadline:?}, which ends at {ends:?}"));
        }
    }

    /// Looks for a waiter that nobody serves, although no live session is in its way: invariant 2
    /// of the lock table.
    /// `place` is the number of a session in the queue of the server, and 0 for a holder.
    pub(super) fn check_waiters(&mut self, now: Duration, place: impl Fn(SessionId) -> Option<u64>) {
        if now < self.looked + LOOK_EVERY {
            return;
        }
        self.looked = now;
        for run in self.kept.over(now) {
            self.kept.end(run);
            self.kept_ended = Some(now);
            self.make_way(run, now);
        }
        let limit = self.idle_max(now);
        let is_late = |run: &usize| now > self.runs[*run].free_since.max(self.disturbed) + limit;
        let place = |run: usize| place(self.runs[run].session);
        let is_blocked = |run: usize| {
            let own = place(run);
            let is_ahead = |other: &&usize| match (place(**other), own) {
                // A nested waiter comes before all others.
                _ if self.runs[**other].is_nested() => true,
                // The other one has the grant, and hears of it next.
                (Some(0), _) => true,
                (Some(other), Some(own)) if own > 0 => other < own,
                _ => **other < run,
            };
            // Most waiters have a holder in their way.
            let holding = self.holding.iter().chain(self.kept.runs());
            let mut ahead = holding.chain(self.asking.iter().filter(is_ahead));
            ahead.any(|other| self.may_block(*other, run))
        };
        if let Some(waiter) = self.asking.iter().copied().filter(is_late).find(|run| !is_blocked(*run)) {
            self.violations.push(format!("{now:?}: run {waiter} waits though no live session is in its way"));
        }
    }
}

/// The claim in the terms of the rules.
fn claim(claim: &request::Claim) -> Claim {
    let resource = claim.resource.as_str();
    match claim.slots {
        Some(slots) => Claim::slot(resource, slots),
        None => Claim { span: span(&claim.span), ..Claim::whole(resource, named(claim.mode)) },
    }
}

/// The span in the terms of the rules.
fn span(span: &span::Span) -> Span {
    if span.is_whole() { Span::WHOLE } else { Span::interval(&span.to_string()) }
}

/// The mode in the terms of the rules.
fn named(mode: mode::Mode) -> Mode {
    Mode::ALL.into_iter().find(|known| known.name() == mode.as_str()).expect("the modes are the same")
}

#[cfg(test)]
mod tests;
