//! What must hold of any lock table, told from its listings alone and from what a test knows of the sessions: no model takes part.

use std::collections::BTreeMap;

use rlock::clock::StoreTime;
use rlock::lock::mode::Mode;
use rlock::lock::op::ResourceListing;
use rlock::lock::request::SessionId;
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;

/// A line of a listing.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) resource: Resource,
    pub(crate) session: SessionId,
    pub(crate) mode: Mode,
    pub(crate) span: Span,
    slots: Option<u32>,
    /// The fencing token of one that is held.
    token: Option<u64>,
    pub(crate) expiry: Option<StoreTime>,
}

/// All lines in order: a resource's holders, then its waiters.
pub(crate) fn lines(listing: &[ResourceListing]) -> Vec<Line> {
    let mut lines = Vec::new();
    for resource in listing {
        for holder in &resource.holders {
            lines.push(Line {
                resource: resource.name.clone(),
                session: holder.session,
                mode: holder.mode,
                span: holder.span.clone(),
                slots: holder.slots,
                token: Some(holder.token),
                expiry: holder.expiry,
            });
        }
        for waiter in &resource.waiters {
            lines.push(Line {
                resource: resource.name.clone(),
                session: waiter.session,
                mode: waiter.mode,
                span: waiter.span.clone(),
                slots: waiter.slots,
                token: None,
                expiry: None,
            });
        }
    }
    lines
}

impl Line {
    pub(crate) fn is_held(&self) -> bool {
        self.token.is_some()
    }
}

/// What a test remembers of a session beside the listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) ancestors: Vec<SessionId>,
    /// The parts of which an ancestor held some when it asked; they wait for holders only, and may have that hold's token.
    pub(crate) nested: Vec<(Resource, Span)>,
    /// The resources of which an ancestor held a slot when it asked.
    pub(crate) shares: Vec<Resource>,
}

/// The sessions of a test.
pub(crate) type People = BTreeMap<SessionId, Known>;

fn related(people: &People, a: SessionId, b: SessionId) -> bool {
    a == b || people[&a].ancestors.contains(&b) || people[&b].ancestors.contains(&a)
}

fn is_nested(people: &People, line: &Line) -> bool {
    people[&line.session].nested.contains(&(line.resource.clone(), line.span.clone()))
}

/// Whether two lines can't be held together, apart from the count of slots.
fn conflict(people: &People, a: &Line, b: &Line) -> bool {
    let clash = a.mode == Mode::Write || b.mode == Mode::Write || (a.mode == b.mode && a.mode == Mode::Prewrite);
    a.resource == b.resource && clash && a.span.overlaps(&b.span) && !related(people, a.session, b.session)
}

/// Whether an ancestor of the session holds a slot of the resource.
fn shares(people: &People, lines: &[Line], line: &Line) -> bool {
    lines.iter().any(|other| {
        other.is_held()
            && other.mode == Mode::Slot
            && other.resource == line.resource
            && people[&line.session].ancestors.contains(&other.session)
    })
}

/// No two holders conflict, and no more than N hold a slot but for those that outlived the ancestor whose slot they shared.
pub(crate) fn nobody_holds_against_another(people: &People, lines: &[Line]) {
    let held: Vec<&Line> = lines.iter().filter(|line| line.is_held()).collect();
    for (index, one) in held.iter().enumerate() {
        for other in &held[index + 1..] {
            assert!(!conflict(people, one, other), "two conflicting holders: {one:?} and {other:?}");
        }
        if let Some(slots) = one.slots {
            let taken = held.iter().filter(|other| {
                other.mode == Mode::Slot
                    && other.resource == one.resource
                    && !people[&other.session].shares.contains(&other.resource)
            });
            assert!(taken.count() <= slots as usize, "more than {slots} slots of {} are held", one.resource);
        }
    }
}

/// Whoever waits has somebody in the way: a holder or, unless it is nested, an earlier waiter.
pub(crate) fn nobody_waits_in_vain(people: &People, lines: &[Line]) {
    let blocked = |at: usize| {
        let line = &lines[at];
        let ahead = |(index, other): &(usize, &Line)| {
            other.is_held() || (!is_nested(people, line) && *index < at && other.resource == line.resource)
        };
        let ahead: Vec<&Line> = lines.iter().enumerate().filter(ahead).map(|(_, other)| other).collect();
        let takes_slot = |other: &&&Line| {
            other.resource == line.resource
                && other.mode == Mode::Slot
                && !related(people, line.session, other.session)
                && !shares(people, lines, other)
        };
        let out_of_slots = line.slots.is_some_and(|slots| ahead.iter().filter(takes_slot).count() >= slots as usize);
        let out_of_slots = out_of_slots && !shares(people, lines, line);
        out_of_slots || ahead.iter().any(|other| conflict(people, line, other))
    };
    for line in lines.iter().filter(|line| !line.is_held()) {
        let own = |at: &usize| lines[*at].session == line.session;
        assert!((0..lines.len()).filter(own).any(blocked), "nobody is in the way of {line:?}");
    }
}

/// Nobody who was let in between two listings passed a waiter who was there before him, conflicts with him and still waits.
pub(crate) fn nobody_was_overtaken(people: &People, before: &[Line], after: &[Line]) {
    let held = |lines: &[Line], line: &Line| lines.iter().any(|other| other.is_held() && other.session == line.session);
    let waits =
        |lines: &[Line], session: SessionId| lines.iter().any(|line| !line.is_held() && line.session == session);
    for new in after.iter().filter(|line| line.is_held() && !held(before, line) && !is_nested(people, line)) {
        let behind = |other: &&Line| !other.is_held() && other.session != new.session;
        let place = before.iter().position(|line| {
            // An expiry can grant what the same step then shrinks.
            let is_new = line.session == new.session && line.resource == new.resource && line.span.covers(&new.span);
            !line.is_held() && is_new
        });
        for earlier in before[..place.unwrap_or(before.len())].iter().filter(behind) {
            let passed = conflict(people, new, earlier) && waits(after, earlier.session);
            assert!(!passed, "{new:?} overtook {earlier:?}");
        }
    }
}

/// A fresh grant has a token above all before it on its resource; one covered by an ancestor's hold may have that hold's.
pub(crate) fn tokens_rise(
    people: &People,
    now: StoreTime,
    before: &[Line],
    after: &[Line],
    tops: &mut BTreeMap<Resource, u64>,
) {
    // Once everybody left the state is dropped, and the clock alone makes the tokens rise.
    let stayed =
        |line: &Line| after.iter().any(|other| other.resource == line.resource && other.session == line.session);
    tops.retain(|resource, top| {
        *top < now.as_micros() || before.iter().any(|line| line.resource == *resource && stayed(line))
    });
    let mut fresh: Vec<(&Line, u64)> = Vec::new();
    for line in after {
        let Some(token) = line.token else { continue };
        let known = before.iter().any(|old| old.session == line.session && old.is_held());
        let inherits =
            |other: &Line| other.token == Some(token) && people[&line.session].ancestors.contains(&other.session);
        if !(known || is_nested(people, line) && before.iter().chain(after).any(inherits)) {
            fresh.push((line, token));
        }
    }
    for (index, (line, token)) in fresh.iter().enumerate() {
        let top = tops.get(&line.resource).copied().unwrap_or(0);
        assert!(*token > top, "{line:?} has a token that is not above {top}");
        for (other, same) in &fresh[index + 1..] {
            let one_grant = line.session == other.session;
            assert!(one_grant || line.resource != other.resource || token != same, "{line:?} and {other:?}");
        }
    }
    for (line, token) in fresh {
        let top = tops.entry(line.resource.clone()).or_default();
        *top = token.max(*top);
    }
}
