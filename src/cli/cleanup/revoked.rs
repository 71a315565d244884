//! Waits for the holders whose grants `rlock break` has revoked.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};

use crate::environment::say;
use rlock_arguments::values::Wait;
use rlock_model::op::HolderListing;
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::Store;
use rlock_sys::alarm::Alarm;
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

/// How long to wait for a holder without a lease.
const LIMIT: Duration = Duration::from_mins(1);

/// How long after its end a lease may be seen to be over.
const AFTER_LEASE: Duration = Duration::from_millis(100);

/// The first and the longest pause between two looks at a store that tells of no change.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// A session whose grant is revoked, and which holds until it gives the grant back.
pub(super) struct Revoked {
    pub(super) id: SessionId,
    pub(super) session: Session,
    /// The resource that was to be broken.
    pub(super) resource: Resource,
}

impl Revoked {
    fn still_held(&self) -> String {
        let Self { resource, session, .. } = self;
        let held = session.claims.iter().find(|record| record.claim.resource == *resource);
        let mode = held.map(|record| format!(" for {}", record.claim.mode)).unwrap_or_default();
        let span = held.map_or(&Span::Whole, |record| &record.claim.span);
        format!(
            "{} is revoked and still held{mode} by {}: wait for the end of its command, \
             or free it at once by 'rlock break --now {}', while that command may run on",
            messages::part(resource.as_str(), span),
            messages::process(&session.process),
            messages::words(resource, span)
        )
    }
}

/// Prints which of the sessions still hold. Returns the exit code of their break, if any do.
pub(super) fn report(left: &[Revoked]) -> Option<u8> {
    left.iter().for_each(|revoked| say(&revoked.still_held()));
    (!left.is_empty()).then_some(exit::BUSY)
}

/// Waits until the sessions hold their resources no longer, at most `limit`, or by default as long
/// as their leases last. `done` is told of each with the time that it took. Returns those that
/// still hold.
pub(super) fn wait(
    store: &mut dyn Store,
    mut revoked: Vec<Revoked>,
    limit: Option<Wait>,
    mut done: impl FnMut(&Revoked, Duration) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Revoked>> {
    if revoked.is_empty() {
        return Ok(revoked);
    }
    let (alarm, begun) = (Alarm::default(), Boottime::now());
    let mut names: Vec<_> = revoked.iter().map(|revoked| revoked.resource.clone()).collect();
    names.sort_unstable();
    names.dedup();
    let (mut until, [mut pause, pause_max]) = (None, PAUSES);
    loop {
        let (seen, notices) = store.inspect_and_watch(&names).map_err(Failure::from)?;
        store.take_unusable();
        let now = Boottime::now();
        let holders = seen.resources.iter().flat_map(|listing| &listing.holders);
        let holders: Vec<_> = holders.filter(|holder| !holder.is_over(seen.now)).collect();
        let of = |revoked: &Revoked| holders.iter().copied().find(|holder| holder.session == revoked.id);
        let left = |holder: &HolderListing| holder.expiry.map(|expiry| expiry - seen.now + AFTER_LEASE);
        let (held, free): (Vec<_>, Vec<_>) = revoked.into_iter().partition(|revoked| of(revoked).is_some());
        for revoked in &free {
            done(revoked, now - begun)?;
        }
        let leases: Vec<_> = held.iter().filter_map(|revoked| left(of(revoked)?)).collect();
        let until = *until.get_or_insert_with(|| match limit {
            Some(Wait::Ever) => None,
            Some(Wait::AtMost(limit)) => Some(now + limit),
            None if store.leases() => Some(now + leases.iter().max().copied().unwrap_or_default()),
            None => Some(now + LIMIT),
        });
        revoked = held;
        if revoked.is_empty() || until.is_some_and(|until| until <= now) {
            return Ok(revoked);
        }
        let is_told = notices.as_ref().is_some_and(|notices| notices.are_complete);
        let due = leases.into_iter().chain((!is_told).then_some(pause)).min();
        pause = (2 * pause).min(pause_max);
        let descriptors = notices.iter().flat_map(|notices| &notices.descriptors);
        let mut polled = descriptors.map(|it| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN)).collect();
        let at = until.into_iter().chain(due.map(|due| now + due)).min();
        alarm.wait(&mut polled, at).context("can't wait for the release")?;
    }
}
