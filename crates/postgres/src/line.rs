//! When the next connection may be opened, and what has failed since the server last answered.

use std::sync::Arc;

use super::failure::Failure;
use super::target::Target;
use rlock_store::lease::FailureClass;
use rlock_sys::clock::Boottime;

/// The connections to the servers of a URL, one after another.
pub(super) struct Line {
    target: Arc<Target>,
    /// From when on a connection may be opened, if there is none.
    opens_at: Option<Boottime>,
    /// The failures since the server last answered.
    failures: u32,
    /// The one that says most.
    outage: Option<Failure>,
}

impl Line {
    /// No connection yet.
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self { target, opens_at: Some(Boottime::default()), failures: 0, outage: None }
    }

    /// From when on a connection may be opened, if there is none.
    pub(super) fn opens_at(&self) -> Option<Boottime> {
        self.opens_at
    }

    /// Tells whether a connection is to be opened now. Then there is one.
    pub(super) fn open(&mut self, now: Boottime) -> bool {
        self.opens_at.take_if(|at| *at <= now).is_some()
    }

    /// Opens no connection before `at`, if there is none.
    pub(super) fn open_from(&mut self, at: Boottime) {
        self.opens_at = self.opens_at.max(self.opens_at.map(|_| at));
    }

    /// Lets the next connection be opened at once.
    pub(super) fn hurry(&mut self) {
        self.opens_at = self.opens_at.map(|_| Boottime::default());
    }

    /// The connection is closed, and the next one is opened at `at`.
    pub(super) fn rest_until(&mut self, at: Boottime) {
        self.opens_at = Some(at);
    }

    /// The connection has failed, and the next one is opened at `at`. All servers are tried before
    /// there is a pause.
    pub(super) fn reconnect(&mut self, failure: Failure, at: Boottime) {
        self.failures = self.failures.saturating_add(1);
        let has_asked_all = (self.failures as usize).is_multiple_of(self.target.servers.len());
        self.outage = Some(failure.prefer(self.outage.take()));
        self.opens_at = Some(if has_asked_all { at } else { Boottime::default() });
    }

    /// Retries no more; the result is the failure to report.
    pub(super) fn give_up(&mut self, failure: Failure) -> Failure {
        self.opens_at = Some(Boottime::default());
        failure.prefer(self.outage.take())
    }

    /// The server has answered.
    pub(super) fn served(&mut self) {
        (self.failures, self.outage) = (0, None);
    }

    /// The failure that says most, while the server does not answer.
    pub(super) fn outage(&self) -> Option<&Failure> {
        self.outage.as_ref()
    }

    /// The failures since the server last answered.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// What a failure says about the next attempt.
    pub(super) fn class(&self, failure: &Failure) -> FailureClass {
        failure.kind().class_among(self.target.servers.len() > 1)
    }
}
