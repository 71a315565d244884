//! The checkers: they see every run of a command while it happens.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::exit;
use crate::lock::mode::Mode;
use crate::lock::request::{Claim, SessionId};
use crate::lock::resource::Resource;

/// How long a live waiter may wait while no command runs and no fault is at work: the heartbeat of
/// a dead waiter, a lease, and some grants that nobody claims.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// One session with its command.
pub(super) struct Run {
    pub(super) session: SessionId,
    pub(super) claims: Vec<Claim>,
    asked: Duration,
    /// When the session learned that it is in the queue.
    queued: Option<Duration>,
    /// Whether the session waits for its grant.
    is_asking: bool,
    /// The tokens of the grant.
    tokens: Option<Vec<u64>>,
    /// Whether rlock was stopped, which the promise does not cover.
    pub(super) was_stopped: bool,
    /// Whether the server did not answer the release at once. rlock then can't tell a loss from a
    /// release whose reply was lost.
    pub(super) release_failed: bool,
    exit: Option<u8>,
}

impl Run {
    /// Whether rlock reported a loss, or could not because it was killed or cut off.
    fn is_told(&self) -> bool {
        self.release_failed || self.exit.is_none_or(|code| code == exit::LOST)
    }
}

#[derive(Default)]
pub(super) struct Checkers {
    pub(super) runs: Vec<Run>,
    /// The runs whose commands run.
    running: Vec<usize>,
    /// The number of live runs that wait for their grants.
    asking: usize,
    /// Since when no command has run, no fault has been at work, and somebody waits.
    idle_since: Duration,
    /// When the server last lost data.
    lost_data: Option<Duration>,
    /// The last token of each resource: of any command, and of the last writer.
    tokens: BTreeMap<Resource, (u64, u64)>,
    /// The pairs of runs that overlapped where the promise does not hold.
    uncovered: Vec<(usize, usize)>,
    /// Whether no fault strikes, so that the queue is first come, first served.
    pub(super) is_calm: bool,
    /// Whether the checkers make no exception where the promise does not hold.
    pub(super) is_strict: bool,
    pub(super) longest_wait: Duration,
    pub(super) violations: Vec<String>,
}

impl Checkers {
    pub(super) fn ask(&mut self, session: SessionId, claims: Vec<Claim>, now: Duration) -> usize {
        self.runs.push(Run {
            session,
            claims,
            asked: now,
            queued: None,
            is_asking: true,
            tokens: None,
            was_stopped: false,
            release_failed: false,
            exit: None,
        });
        self.asking += 1;
        if self.asking == 1 {
            self.idle_since = self.idle_since.max(now);
        }
        self.runs.len() - 1
    }

    pub(super) fn queue(&mut self, run: usize, now: Duration) {
        self.runs[run].queued.get_or_insert(now);
    }

    pub(super) fn start(&mut self, run: usize, tokens: &[u64], now: Duration) {
        self.stop_asking(run);
        if self.running.is_empty() {
            self.longest_wait = self.longest_wait.max(now.saturating_sub(self.idle_since));
        }
        for other in self.running.clone() {
            if self.conflict(run, other) {
                self.overlap(other, run, now);
            }
        }
        self.check_order(run);
        self.check_tokens(run, tokens);
        self.running.push(run);
    }

    fn overlap(&mut self, one: usize, other: usize, now: Duration) {
        if self.is_uncovered(one) || self.is_uncovered(other) {
            self.uncovered.push((one, other));
        } else {
            self.violations.push(format!("{now:?}: run {other} started while run {one} ran"));
        }
    }

    /// Whether something happened to a run that the promise does not cover.
    fn is_uncovered(&self, run: usize) -> bool {
        let Run { asked, was_stopped, .. } = self.runs[run];
        !self.is_strict && (was_stopped || self.lost_data.is_some_and(|at| at >= asked))
    }

    /// A waiter that knew its place before another run asked is served first.
    fn check_order(&mut self, run: usize) {
        if !self.is_calm {
            return;
        }
        let asked = self.runs[run].asked;
        let is_ahead = |other: &Run| other.is_asking && other.queued.is_some_and(|at| at < asked);
        let overtaken = (0..self.runs.len()).find(|other| is_ahead(&self.runs[*other]) && self.conflict(run, *other));
        if let Some(other) = overtaken {
            self.violations.push(format!("run {run} overtook run {other}"));
        }
    }

    fn check_tokens(&mut self, run: usize, tokens: &[u64]) {
        // Another run may have been granted the same between the grant and the start.
        let is_uncovered = self.is_uncovered(run);
        for (claim, token) in self.runs[run].claims.iter().zip(tokens) {
            let (last, of_writer) = self.tokens.entry(claim.resource.clone()).or_default();
            let earlier = if claim.mode == Mode::Write { *last } else { *of_writer };
            if *token <= earlier && !is_uncovered {
                self.violations.push(format!("run {run} has token {token} of {} after {earlier}", claim.resource));
            }
            *last = (*last).max(*token);
            if claim.mode == Mode::Write {
                *of_writer = (*of_writer).max(*token);
            }
        }
    }

    fn conflict(&self, one: usize, other: usize) -> bool {
        let clash = |one: &Claim, other: &Claim| {
            let is_same = one.resource == other.resource;
            let modes = (one.mode, other.mode);
            let shares = one.mode == Mode::Read && other.mode != Mode::Write || modes == (Mode::Prewrite, Mode::Read);
            is_same && !shares
        };
        let (one, other) = (&self.runs[one].claims, &self.runs[other].claims);
        one.iter().any(|one| other.iter().any(|other| clash(one, other)))
    }

    /// The command of a run has ended.
    pub(super) fn end(&mut self, run: usize, now: Duration) {
        self.running.retain(|other| *other != run);
        self.idle_since = now;
    }

    /// The session waits no longer.
    pub(super) fn stop_asking(&mut self, run: usize) {
        if std::mem::take(&mut self.runs[run].is_asking) {
            self.asking -= 1;
        }
    }

    pub(super) fn exit(&mut self, run: usize, code: u8) {
        self.stop_asking(run);
        self.runs[run].exit = Some(code);
        for (one, other) in &self.uncovered {
            let pair = [&self.runs[*one], &self.runs[*other]];
            if (*one == run || *other == run) && !pair.iter().any(|run| run.is_told()) {
                let codes = pair.map(|run| run.exit);
                self.violations.push(format!("runs {one} and {other} overlapped, and exited with {codes:?}"));
            }
        }
    }

    /// A fault began or ended.
    pub(super) fn disturb(&mut self, now: Duration) {
        self.idle_since = self.idle_since.max(now);
    }

    pub(super) fn lose_data(&mut self, now: Duration) {
        self.lost_data = Some(now);
    }

    /// A session takes in a grant. It must not count on more than the server gives: `ends` is the
    /// end of the lease at the server, if the server knows the session.
    pub(super) fn believe(&mut self, run: usize, tokens: &[u64], deadline: Duration, ends: Option<Duration>) {
        // Another session may have held the lock between two grants.
        if self.runs[run].tokens.get_or_insert_with(|| tokens.to_vec()) != tokens {
            self.violations.push(format!("run {run} goes on with another grant"));
        }
        if let Some(ends) = ends.filter(|ends| *ends < deadline && !self.is_uncovered(run)) {
            self.violations.push(format!("run {run} counts on its lease until {deadline:?}, which ends at {ends:?}"));
        }
    }

    /// Reports a waiter that nobody serves.
    pub(super) fn check_waiters(&mut self, now: Duration) {
        if self.asking > 0 && self.running.is_empty() && now > self.idle_since + IDLE_MAX {
            let waiter = self.runs.iter().position(|run| run.is_asking);
            self.violations.push(format!("{now:?}: run {waiter:?} waits though no command runs"));
        }
    }
}
