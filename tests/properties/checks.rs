//! Invariants 1 to 4 of the lock table, in this order, checked by its listings and by the requests
//! of the sessions, without a model.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;

use rlock_model::mode::Mode;
use rlock_model::op::ResourceListing;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_sys::clock::StoreTime;

/// A line of a listing, or one of the slots of a line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) resource: Resource,
    pub(crate) session: SessionId,
    pub(crate) mode: Mode,
    pub(crate) span: Span,
    slots: Option<u32>,
    /// The fencing token of a holder.
    token: Option<u64>,
    pub(crate) expiry: Option<StoreTime>,
}

/// All lines of a listing in order: for each resource its holders, then its waiters.
pub(crate) fn lines(listing: &[ResourceListing]) -> Vec<Line> {
    let mut lines = Vec::new();
    for resource in listing {
        for holder in &resource.holders {
            let line = Line {
                resource: resource.name.clone(),
                session: holder.session,
                mode: holder.mode,
                span: holder.span.clone(),
                slots: holder.slots,
                token: Some(holder.token),
                expiry: holder.expiry,
            };
            lines.extend(repeat_n(line, holder.count));
        }
        for waiter in &resource.waiters {
            let line = Line {
                resource: resource.name.clone(),
                session: waiter.session,
                mode: waiter.mode,
                span: waiter.span.clone(),
                slots: waiter.slots,
                token: None,
                expiry: None,
            };
            lines.extend(repeat_n(line, waiter.count));
        }
    }
    lines
}

impl Line {
    pub(crate) fn is_held(&self) -> bool {
        self.token.is_some()
    }
}

/// The facts about a session that its listing does not show.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionInfo {
    pub(crate) ancestors: Vec<SessionId>,
    /// The claims that overlapped a hold of an ancestor at the request. They wait only for holders,
    /// and may have the token of that hold.
    pub(crate) nested: Vec<(Resource, Span)>,
    /// The resources of which an ancestor held a slot at the request.
    pub(crate) shares: Vec<Resource>,
    /// Whether the request returned to a place, which may be ahead of waiters.
    pub(crate) has_returned: bool,
}

/// All sessions of a history.
pub(crate) type Sessions = BTreeMap<SessionId, SessionInfo>;

fn related(sessions: &Sessions, a: SessionId, b: SessionId) -> bool {
    a == b || sessions[&a].ancestors.contains(&b) || sessions[&b].ancestors.contains(&a)
}

/// One step can grant a nested claim because of an expiry, and then shrink it.
fn is_nested(sessions: &Sessions, line: &Line) -> bool {
    let claimed = |(resource, span): &(Resource, Span)| *resource == line.resource && span.covers(&line.span);
    sessions[&line.session].nested.iter().any(claimed)
}

/// Whether two lines exclude each other, not counting slots.
fn conflict(sessions: &Sessions, a: &Line, b: &Line) -> bool {
    let clash = a.mode == Mode::Write || b.mode == Mode::Write || (a.mode == b.mode && a.mode == Mode::Prewrite);
    a.resource == b.resource && clash && a.span.overlaps(&b.span) && !related(sessions, a.session, b.session)
}

/// Whether an ancestor of the session holds a slot of the resource.
fn shares(sessions: &Sessions, lines: &[Line], line: &Line) -> bool {
    pool(sessions, lines, line).is_some()
}

/// The nearest ancestor of the session that holds slots of the resource, and their number.
fn pool(sessions: &Sessions, lines: &[Line], line: &Line) -> Option<(SessionId, usize)> {
    sessions[&line.session].ancestors.iter().find_map(|ancestor| {
        let is_its = |other: &&Line| {
            (other.session, other.mode) == (*ancestor, Mode::Slot) && other.resource == line.resource && other.is_held()
        };
        let slots = lines.iter().filter(is_its).count();
        (slots > 0).then_some((*ancestor, slots))
    })
}

/// Asserts that no two holders conflict and that no more slots are held than any holder of one
/// states. A session that shared its ancestor's slot does not count, even after the ancestor's
/// release.
pub(crate) fn holders_do_not_conflict(sessions: &Sessions, lines: &[Line]) {
    let held: Vec<&Line> = lines.iter().filter(|line| line.is_held()).collect();
    for (index, one) in held.iter().enumerate() {
        for other in &held[index + 1..] {
            assert!(!conflict(sessions, one, other), "two conflicting holders: {one:?} and {other:?}");
        }
        if let Some(slots) = one.slots.filter(|_| !sessions[&one.session].shares.contains(&one.resource)) {
            let taken = held.iter().filter(|other| {
                other.mode == Mode::Slot
                    && other.resource == one.resource
                    && !sessions[&other.session].shares.contains(&other.resource)
            });
            assert!(taken.count() <= slots as usize, "more than {slots} slots of {} are held", one.resource);
        }
    }
}

/// Asserts that a holder or an earlier waiter blocks each waiter.
pub(crate) fn every_waiter_is_blocked(sessions: &Sessions, lines: &[Line]) {
    let blocked = |at: usize| {
        let line = &lines[at];
        let ahead =
            |(index, other): &(usize, &Line)| other.is_held() || (*index < at && other.resource == line.resource);
        let ahead: Vec<&Line> = lines.iter().enumerate().filter(ahead).map(|(_, other)| other).collect();
        let takes_slot = |other: &&&Line| {
            other.resource == line.resource
                && other.mode == Mode::Slot
                && !related(sessions, line.session, other.session)
                && !shares(sessions, lines, other)
        };
        let taken: Vec<_> = ahead.iter().filter(takes_slot).filter_map(|other| other.slots).collect();
        let own =
            |other: &&Line| (other.session, &other.resource, other.mode) == (line.session, &line.resource, Mode::Slot);
        let needs = lines.iter().filter(own).count();
        let out_of_slots = line.slots.is_some_and(|slots| {
            let slots = taken.iter().copied().fold(slots, u32::min);
            taken.len() + needs > slots as usize
        });
        let out_of_slots = match pool(sessions, lines, line).filter(|_| line.mode == Mode::Slot) {
            None => out_of_slots,
            // The listing does not tell which sessions have the same number.
            Some((holder, slots)) => {
                let takes = |other: &&&Line| {
                    other.resource == line.resource
                        && other.mode == Mode::Slot
                        && !related(sessions, line.session, other.session)
                        && sessions[&other.session].ancestors.contains(&holder)
                };
                slots > 1 && ahead.iter().filter(takes).count() + needs > slots
            }
        };
        out_of_slots || ahead.iter().any(|other| conflict(sessions, line, other))
    };
    for line in lines.iter().filter(|line| !line.is_held()) {
        let own = |at: &usize| lines[*at].session == line.session;
        assert!((0..lines.len()).filter(own).any(blocked), "no session blocks {line:?}");
    }
}

/// Asserts that no session was granted between two listings ahead of an earlier waiter that
/// conflicts with it and still waits, unless that waiter waited for an ancestor of the session, or
/// for a waiter that did.
pub(crate) fn no_waiter_is_overtaken(sessions: &Sessions, before: &[Line], after: &[Line]) {
    let held = |lines: &[Line], line: &Line| lines.iter().any(|other| other.is_held() && other.session == line.session);
    let waits =
        |lines: &[Line], session: SessionId| lines.iter().any(|line| !line.is_held() && line.session == session);
    let is_new = |line: &&Line| line.is_held() && !held(before, line) && !sessions[&line.session].has_returned;
    for new in after.iter().filter(is_new) {
        let behind = |other: &&Line| !other.is_held() && other.session != new.session;
        let place = before.iter().position(|line| {
            // One step can grant a claim because of an expiry, and then shrink it.
            let is_new = line.session == new.session && line.resource == new.resource && line.span.covers(&new.span);
            !line.is_held() && is_new
        });
        for earlier in before[..place.unwrap_or(before.len())].iter().filter(behind) {
            // A waiter that returns in this step may hold up those behind it.
            let may_pass = |lines| held_up(sessions, lines, new.session).contains(&earlier.session);
            let passed = conflict(sessions, new, earlier)
                && waits(after, earlier.session)
                && !may_pass(before)
                && !may_pass(after);
            assert!(!passed, "{new:?} overtook {earlier:?}");
        }
    }
}

/// The waiters that wait for an ancestor of a session, or are behind one of these.
fn held_up(sessions: &Sessions, lines: &[Line], session: SessionId) -> BTreeSet<SessionId> {
    let mut found = BTreeSet::new();
    let ancestors = &sessions[&session].ancestors;
    let is_slot = |line: &Line, of: &Line| line.slots.is_some() && line.resource == of.resource;
    let slots = |of: &Line| lines.iter().filter(|line| is_slot(line, of) && line.session == of.session).count();
    let excludes = |line: &Line, other: &Line| {
        let are_slots = is_slot(line, other) && other.slots.is_some();
        let is_full = are_slots && slots(line) + slots(other) > line.slots.min(other.slots).unwrap_or(0) as usize;
        conflict(sessions, line, other) || is_full && !related(sessions, line.session, other.session)
    };
    loop {
        let before = found.len();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_held() && !ancestors.is_empty()) {
            let is_above = |other: &&Line| other.is_held() && ancestors.contains(&other.session);
            let is_ahead = |other: &&Line| !other.is_held() && found.contains(&other.session);
            if line.session != session
                && !found.contains(&line.session)
                && (lines.iter().filter(is_above).any(|held| excludes(line, held))
                    || lines[..at].iter().filter(is_ahead).any(|other| excludes(line, other)))
            {
                found.insert(line.session);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Asserts that a new grant has a token above all earlier tokens of its resource. A nested claim
/// that an ancestor's hold includes may have the token of that hold.
pub(crate) fn tokens_rise(
    sessions: &Sessions,
    now: StoreTime,
    before: &[Line],
    after: &[Line],
    highest_tokens: &mut BTreeMap<Resource, u64>,
) {
    // When the last session leaves, the table drops the resource, and then only the clock makes its
    // tokens rise.
    let stayed =
        |line: &Line| after.iter().any(|other| other.resource == line.resource && other.session == line.session);
    highest_tokens.retain(|resource, top| {
        *top < now.as_micros() || before.iter().any(|line| line.resource == *resource && stayed(line))
    });
    let mut fresh: Vec<(&Line, u64)> = Vec::new();
    for line in after {
        let Some(token) = line.token else { continue };
        let known = before.iter().any(|old| old.session == line.session && old.is_held());
        let inherits =
            |other: &Line| other.token == Some(token) && sessions[&line.session].ancestors.contains(&other.session);
        if !(known || is_nested(sessions, line) && before.iter().chain(after).any(inherits)) {
            fresh.push((line, token));
        }
    }
    for (index, (line, token)) in fresh.iter().enumerate() {
        let top = highest_tokens.get(&line.resource).copied().unwrap_or(0);
        assert!(*token > top, "the token of {line:?} is not above {top}");
        for (other, same) in &fresh[index + 1..] {
            let one_grant = line.session == other.session;
            assert!(
                one_grant || line.resource != other.resource || token != same,
                "{line:?} and {other:?} have the same token"
            );
        }
    }
    for (line, token) in fresh {
        let top = highest_tokens.entry(line.resource.clone()).or_default();
        *top = token.max(*top);
    }
}
