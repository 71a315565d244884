//! Checks what the server remembers of jobs: the successes that count for `--once-per`, and the
//! skips in a row.

use std::collections::BTreeMap;

use super::checkers::{Checkers, Run};
use rlock_model::past::Streak;
use rlock_model::request::{Job, SessionId};
use rlock_model::resource::Resource;
use rlock_sys::clock::StoreTime;

/// A run that succeeded, as the server counts it.
struct Success {
    resource: Resource,
    job: String,
    began: StoreTime,
    /// Whether the server has lost no data since.
    is_certain: bool,
}

impl Success {
    /// Whether a request for one run in a period is done at this instant.
    fn counts(&self, resource: &Resource, job: &Job, now: StoreTime) -> bool {
        let Some(once) = job.once_per else { return false };
        let is_same = self.resource == *resource && (!job.is_named || self.job == job.name);
        is_same && once.is_done(self.began, now)
    }
}

/// The number of skips in a row, and the instant of the first of them. The instant is not known
/// where the request had named another resource first: each resource has a clock of its own.
type Row = (u32, Option<StoreTime>);

/// What the server should remember.
#[derive(Default)]
pub(super) struct Jobs {
    successes: Vec<Success>,
    /// The skips in a row by resource and job, or none since a grant.
    rows: BTreeMap<(Resource, String), Option<Row>>,
    /// Whether the server may remember skips from before the checkers forgot theirs.
    has_forgotten: bool,
}

impl Jobs {
    /// The server may have lost what it remembered.
    pub(super) fn forget(&mut self) {
        self.successes.iter_mut().for_each(|success| success.is_certain = false);
        self.rows.clear();
        self.has_forgotten = true;
    }

    pub(super) fn succeed(&mut self, resource: &Resource, job: &Job, began: StoreTime) {
        if let Some(once) = job.once_per {
            let (resource, job, began) = (resource.clone(), job.name.clone(), once.counted(began));
            self.successes.push(Success { resource, job, began, is_certain: true });
        }
    }

    /// Whether a run has succeeded for sure within the period of a request.
    pub(super) fn is_done(&self, resource: &Resource, job: &Job, now: StoreTime) -> bool {
        self.successes.iter().any(|success| success.is_certain && success.counts(resource, job, now))
    }

    /// Whether a run may have succeeded within the period of a request.
    pub(super) fn may_be_done(&self, resource: &Resource, job: &Job, now: StoreTime) -> bool {
        self.successes.iter().any(|success| success.counts(resource, job, now))
    }

    /// A grant, or a run that was done already, ends the skips in a row of its job.
    pub(super) fn end_row(&mut self, resource: &Resource, job: &Job) {
        self.rows.insert((resource.clone(), job.name.clone()), None);
    }

    /// Nothing tells whether the skips in a row have ended.
    pub(super) fn doubt(&mut self, resource: &Resource, job: &Job) {
        self.rows.remove(&(resource.clone(), job.name.clone()));
        self.has_forgotten = true;
    }

    /// A request is busy that counts as a skip. Returns the skips in a row if they are known.
    pub(super) fn skip(&mut self, resource: &Resource, job: &Job, now: Option<StoreTime>) -> Option<Row> {
        let key = (resource.clone(), job.name.clone());
        let known = match self.rows.get(&key) {
            None if self.has_forgotten => return None,
            None | Some(None) => (0, now),
            Some(Some(row)) => *row,
        };
        let row = (known.0 + 1, known.1);
        self.rows.insert(key, Some(row));
        Some(row)
    }

    /// Takes over what the server says of the skips in a row.
    pub(super) fn learn(&mut self, resource: &Resource, job: &Job, streak: &Streak) {
        self.rows.insert((resource.clone(), job.name.clone()), Some((streak.count, Some(streak.since))));
    }
}

impl Checkers {
    /// The server grants a request. `is_orphan` tells whether a hold around the request has ended,
    /// and `is_covered` whether live holds around it cover its claims.
    pub(super) fn grant(&mut self, session: SessionId, granted: StoreTime, is_orphan: bool, is_covered: bool) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        self.runs[run].granted = granted;
        self.runs[run].kept_until = None;
        (self.runs[run].is_orphan, self.runs[run].is_covered) = (is_orphan, is_covered);
        let Self { runs, jobs, violations, .. } = self;
        let Run { resources, job, .. } = &runs[run];
        if jobs.is_done(&resources[0], job, granted) {
            violations.push(format!("run {run} is granted, though a run of its job has succeeded in the period"));
        }
        resources.iter().for_each(|name| jobs.end_row(name, job));
    }

    /// The server grants a request and passes it over at once. The grant ends the skips in a row.
    pub(super) fn pass_over(&mut self, session: SessionId) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Run { resources, job, .. } = &self.runs[run];
        resources.iter().for_each(|name| self.jobs.end_row(name, job));
    }

    /// The server may have ended the skips in a row of the job of a session.
    pub(super) fn doubt(&mut self, session: SessionId) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Run { resources, job, .. } = &self.runs[run];
        resources.iter().for_each(|name| self.jobs.doubt(name, job));
    }

    /// The server takes the job of a session for done.
    pub(super) fn check_done(&mut self, session: SessionId, now: StoreTime) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Self { runs, jobs, violations, .. } = self;
        let Run { resources, job, .. } = &runs[run];
        if !jobs.may_be_done(&resources[0], job, now) {
            violations.push(format!("run {run} counts as done, though no run has succeeded in the period"));
        }
        jobs.end_row(&resources[0], job);
    }

    /// The server takes a session for superseded.
    pub(super) fn check_superseded(&mut self, session: SessionId) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let (older, names) = (&self.runs[run], &self.runs[run].resources);
        let is_same =
            |newer: &Run| newer.job.name == older.job.name && names.iter().any(|name| newer.resources.contains(name));
        if !self.runs.iter().any(|newer| newer.session != session && newer.job.supersedes && is_same(newer)) {
            self.violations.push(format!("run {run} is superseded, though no other request of its job does that"));
        }
    }

    /// The server counts the run of a session as a success. With `regranted`, the server had lost
    /// the grant, and granted the request again at that instant. It counts from there.
    pub(super) fn succeed(&mut self, session: SessionId, regranted: Option<StoreTime>) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Run { resources, job, granted, .. } = &self.runs[run];
        resources.iter().for_each(|name| self.jobs.succeed(name, job, regranted.unwrap_or(*granted)));
    }

    /// The server takes a request for busy, and says how many skips of the job in a row these are.
    pub(super) fn check_skip(&mut self, session: SessionId, streak: Option<&Streak>, now: StoreTime) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Self { runs, jobs, violations, .. } = self;
        let Run { resources, job, .. } = &runs[run];
        let Some(streak) = streak.filter(|_| job.skips) else {
            if job.skips != streak.is_some() {
                violations.push(format!("run {run} is a skip that the server does not count, or the reverse"));
            }
            return;
        };
        for (index, name) in resources.iter().enumerate() {
            let is_other = |(count, since): Row| count != streak.count || since.is_some_and(|at| at != streak.since);
            match jobs.skip(name, job, (index == 0).then_some(now)) {
                None if index == 0 => jobs.learn(name, job, streak),
                Some(row) if index == 0 && is_other(row) => {
                    violations.push(format!("run {run} is skip {row:?} in a row, and the server says {streak:?}"));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rlock_model::request::OncePer;

    fn at(seconds: u64) -> StoreTime {
        StoreTime::default() + Duration::from_secs(seconds)
    }

    fn job(name: &str, is_named: bool) -> Job {
        let once_per = Some(OncePer { period: Duration::from_secs(10), calendar: None });
        Job { name: name.to_owned(), is_named, once_per, skips: true, ..Job::default() }
    }

    #[test]
    fn success_counts_within_the_period_for_its_resource_and_its_job() {
        let [name, other] = ["k", "l"].map(|name| Resource::new(name).unwrap());
        let mut jobs = Jobs::default();
        jobs.succeed(&name, &job("a", true), at(100));
        assert!(jobs.is_done(&name, &job("a", true), at(109)) && jobs.is_done(&name, &job("b", false), at(109)));
        assert!(!jobs.is_done(&name, &job("b", true), at(109)) && !jobs.is_done(&other, &job("a", true), at(109)));
        assert!(!jobs.may_be_done(&name, &job("a", true), at(110)));
        jobs.forget();
        assert!(!jobs.is_done(&name, &job("a", true), at(109)) && jobs.may_be_done(&name, &job("a", true), at(109)));
    }

    #[test]
    fn skips_in_a_row_are_counted_until_a_grant() {
        let (name, job) = (Resource::new("k").unwrap(), job("a", true));
        let mut jobs = Jobs::default();
        assert_eq!(jobs.skip(&name, &job, Some(at(1))), Some((1, Some(at(1)))));
        assert_eq!(jobs.skip(&name, &job, Some(at(2))), Some((2, Some(at(1)))));
        jobs.end_row(&name, &job);
        assert_eq!(jobs.skip(&name, &job, Some(at(3))), Some((1, Some(at(3)))));
        jobs.forget();
        assert_eq!(jobs.skip(&name, &job, Some(at(4))), None, "the server may remember the skip or not");
    }
}
