//! The words for who holds and who waits.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::mode::Mode;
use crate::lock::op::ResourceListing;
use crate::lock::request::{Claim, Micros, Process, SessionId};
use crate::lock::span::Span;

/// How many characters of a command are shown in a line.
const COMMAND_CHARS: usize = 60;

/// One line: what of `claims` is held, by whom, since when, how many wait. `related` are the sessions that can't be in the way.
pub(super) fn in_the_way(claims: &[Claim], related: &[SessionId], listings: &[ResourceListing]) -> String {
    let stranger = |session: &SessionId| !related.contains(session);
    let clashes = |claim: &Claim, mode: Mode, span: &Span| {
        let counted = claim.mode == Mode::Slot && mode == Mode::Slot;
        (counted || claim.mode.clashes_with(mode)) && claim.span.overlaps(span)
    };
    for (claim, listing) in claims.iter().filter_map(|claim| Some((claim, find(listings, claim)?))) {
        let holder = listing
            .holders
            .iter()
            .find(|holder| stranger(&holder.session) && clashes(claim, holder.mode, &holder.span));
        if let Some(holder) = holder {
            let what = part(listing.name.as_str(), &holder.span);
            let who = process(&holder.process);
            let (mode, since, waiting) = (holder.mode, time(holder.since), waiting(listing, related));
            return format!("{what} is held for {mode} by {who}, since {since}; {waiting}");
        }
    }
    for (claim, listing) in claims.iter().filter_map(|claim| Some((claim, find(listings, claim)?))) {
        let waiter = listing
            .waiters
            .iter()
            .find(|waiter| stranger(&waiter.session) && clashes(claim, waiter.mode, &waiter.span));
        if let Some(waiter) = waiter {
            let what = part(listing.name.as_str(), &waiter.span);
            let who = process(&waiter.process);
            let (mode, since, waiting) = (waiter.mode, time(waiter.since), waiting(listing, related));
            return format!("{what} is waited for in mode {mode} by {who}, since {since}; {waiting}");
        }
    }
    let names: Vec<_> = claims.iter().map(|claim| format!("'{}'", claim.resource)).collect();
    format!("{} was held a moment ago", names.join(", "))
}

fn find<'a>(listings: &'a [ResourceListing], claim: &Claim) -> Option<&'a ResourceListing> {
    listings.iter().find(|listing| listing.name == claim.resource)
}

fn part(name: &str, span: &Span) -> String {
    if span.is_whole() { format!("'{name}'") } else { format!("{span} of '{name}'") }
}

fn waiting(listing: &ResourceListing, related: &[SessionId]) -> String {
    let waiters: HashSet<_> = listing.waiters.iter().map(|waiter| waiter.session).collect();
    match waiters.iter().filter(|session| !related.contains(session)).count() {
        0 => "nobody waits".to_owned(),
        1 => "1 waits".to_owned(),
        n => format!("{n} wait"),
    }
}

/// A process in a line: `user@host, pid 7, 'the command'`.
pub(super) fn process(process: &Process) -> String {
    let Process { host, pid, user, .. } = process;
    format!("{user}@{host}, pid {pid}, '{}'", shortened(&process.command.join(" ")))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(COMMAND_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An instant of the store's clock, in RFC 3339, UTC, to the millisecond.
pub(super) fn time(instant: Micros) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_micros(instant)).to_string()
}

/// This instant, for comparison with those of the store.
pub(super) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

/// A length of time in its two largest units: `1h 3m`, `5s`, `0s`.
pub(super) fn duration(length: Micros) -> String {
    let text = humantime::format_duration(Duration::from_secs(length / 1_000_000)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
