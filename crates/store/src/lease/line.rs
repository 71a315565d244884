//! When the next connection to a server may be opened, and what has failed since it last answered.

use rlock_sys::clock::Boottime;

/// The connections to a server, one after another. `F` is why the server can't be used.
#[derive(Debug)]
pub struct Line<F> {
    opens_at: Option<Boottime>,
    failures: u32,
    outage: Option<F>,
}

impl<F> Default for Line<F> {
    /// No connection yet.
    fn default() -> Self {
        Self { opens_at: Some(Boottime::default()), failures: 0, outage: None }
    }
}

impl<F> Line<F> {
    /// From when on a connection may be opened, if there is none and none is being opened.
    pub fn opens_at(&self) -> Option<Boottime> {
        self.opens_at
    }

    /// Tells whether a connection is to be opened now. Then one is.
    pub fn open(&mut self, now: Boottime) -> bool {
        self.opens_at.take_if(|at| *at <= now).is_some()
    }

    /// Opens no connection before `at`, if there is none.
    pub fn open_from(&mut self, at: Boottime) {
        self.opens_at = self.opens_at.map(|known| known.max(at));
    }

    /// Lets the next connection be opened at once.
    pub fn hurry(&mut self) {
        self.opens_at = self.opens_at.map(|_| Boottime::default());
    }

    /// The connection is closed, and the next one is opened at `at`.
    pub fn close(&mut self, at: Boottime) {
        self.opens_at = Some(at);
    }

    /// The connection has failed, and so has what came before: `failure` says most of it.
    pub fn fail(&mut self, failure: F) {
        (self.failures, self.outage) = (self.failures.saturating_add(1), Some(failure));
    }

    /// Remembers why there is no answer yet, in case that none comes in time.
    pub fn note(&mut self, failure: F) {
        self.outage = Some(failure);
    }

    /// The server has answered: the outage is over.
    pub fn served(&mut self) {
        (self.failures, self.outage) = (0, None);
    }

    /// The failure that says most, while the server does not answer.
    pub fn outage(&self) -> Option<&F> {
        self.outage.as_ref()
    }

    /// The number of consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}
