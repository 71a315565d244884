//! The holds and waits of a history as spans of time.

use std::ops::Range;
use std::time::Duration;

use crate::listing::command;
use rlock_model::past::{Entry, Event};
use rlock_sys::clock::StoreTime;

/// The time for which the lock of an entry was held, if it was granted. The hold of a holder whose
/// death was noticed later was in the way of others until then.
pub(super) fn hold(entry: &Entry) -> Option<Range<StoreTime>> {
    entry.granted.map(|granted| granted..entry.ended.latest())
}

/// The time in which the requests of an entry waited, if they did.
pub(super) fn wait(entry: &Entry) -> Option<Range<StoreTime>> {
    let end = match entry.event {
        Event::Waited { .. } => entry.ended.latest(),
        _ => entry.granted?,
    };
    entry.waited().filter(|waited| !waited.is_zero()).map(|_| entry.asked..end)
}

/// The number of requests that an entry reports, and the longest of their waits.
pub(super) fn waits(entry: &Entry) -> (u32, Duration) {
    match entry.event {
        Event::Waited { count, longest, .. } => (count, longest),
        _ => (1, entry.waited().unwrap_or_default()),
    }
}

/// The part of a span within another one, which is empty if they do not overlap.
pub(super) fn within(span: &Range<StoreTime>, window: &Range<StoreTime>) -> Range<StoreTime> {
    span.start.max(window.start)..span.end.min(window.end)
}

/// For whom a request was made: a job that the caller named, or else a command and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party<'h> {
    pub job: Option<&'h str>,
    pub command: &'h [String],
    pub owner: Option<&'h str>,
}

impl<'h> Party<'h> {
    pub(super) fn of(entry: &'h Entry) -> Self {
        if entry.origin.is_named {
            return Self { job: Some(&entry.origin.job), command: &[], owner: None };
        }
        Self { job: None, command: &entry.process.command, owner: entry.process.owner.as_deref() }
    }

    /// The job, or the command as a shell would read it, and its owner: `make test (ada)`.
    pub fn text(&self) -> String {
        let name = self.job.map_or_else(|| command(self.command), str::to_owned);
        self.owner.map_or_else(|| name.clone(), |owner| format!("{name} ({owner})"))
    }
}
