//! The graph of sessions and resources: the claims of each session, held or waited for, its nearest
//! ancestor, and the sessions that wait for each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::lock::deadlock;
use crate::lock::mode::Mode;
use crate::lock::op::{HolderListing, ResourceListing, WaiterListing};
use crate::lock::request::{Process, SessionId};
use crate::lock::span::Span;

/// A claim of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'l> {
    /// The session holds this.
    Held(&'l HolderListing),
    /// The session waits for this.
    Waiting(&'l WaiterListing),
}

/// A session with the claims that a listing has of it.
#[derive(Clone, Debug)]
pub(crate) struct Member<'l> {
    pub(crate) process: &'l Process,
    /// The nearest session around it that is listed as well.
    pub(crate) parent: Option<SessionId>,
    /// The claims, each with its resource.
    pub(crate) parts: Vec<(&'l ResourceListing, Part<'l>)>,
    /// Whether the session waits for itself, through others.
    pub(crate) is_deadlocked: bool,
    ancestors: &'l [SessionId],
}

/// The listed sessions.
#[derive(Clone, Debug)]
pub(crate) struct Graph<'l> {
    pub(crate) members: BTreeMap<SessionId, Member<'l>>,
}

impl<'l> Graph<'l> {
    /// The graph of a listing.
    pub(crate) fn of(listings: &'l [ResourceListing]) -> Self {
        let mut members = BTreeMap::new();
        let mut add = |session, process, ancestors, listing, part| {
            let member = || Member { process, parent: None, parts: Vec::new(), is_deadlocked: false, ancestors };
            members.entry(session).or_insert_with(member).parts.push((listing, part));
        };
        for listing in listings {
            for it in &listing.holders {
                add(it.session, &it.process, it.ancestors.as_slice(), listing, Part::Held(it));
            }
            for it in &listing.waiters {
                add(it.session, &it.process, it.ancestors.as_slice(), listing, Part::Waiting(it));
            }
        }
        let above = |session| members.get(&session).map_or_else(Vec::new, |member| member.ancestors.to_vec());
        let circles = deadlock::Graph::new(&deadlock::reading_of(listings, above)).circles();
        let listed: BTreeSet<_> = members.keys().copied().collect();
        for (session, member) in &mut members {
            // The innermost ancestor comes first.
            member.parent = member.ancestors.iter().find(|it| *it != session && listed.contains(it)).copied();
            member.is_deadlocked = circles.iter().any(|circle| circle.contains(session));
        }
        Self { members }
    }

    /// The sessions whose parent is `session`.
    pub(crate) fn children(&self, session: SessionId) -> impl Iterator<Item = (SessionId, &Member<'l>)> {
        let is_child = move |member: &Member<'_>| member.parent == Some(session);
        self.members.iter().filter(move |(_, member)| is_child(member)).map(|(id, member)| (*id, member))
    }
}

/// The sessions that a waiting claim waits for: conflicting holders, and conflicting waiters ahead
/// of it unless it is nested. A session may come twice.
pub(crate) fn blockers<'l>(
    listing: &'l ResourceListing,
    waiter: &'l WaiterListing,
) -> impl Iterator<Item = SessionId> + 'l {
    let is_related = |session: &SessionId| *session == waiter.session || waiter.ancestors.contains(session);
    let ahead = listing.waiters.iter().filter(move |it| it.position < waiter.position && !is_related(&it.session));
    let takes_slot = waiter.mode == Mode::Slot;
    let slots = listing.holders.iter().map(|it| it.mode).chain(ahead.clone().map(|it| it.mode));
    let taken = if takes_slot { slots.filter(|mode| *mode == Mode::Slot).count() } else { 0 };
    let is_full = takes_slot && waiter.slots.is_some_and(|slots| taken >= slots as usize);
    let conflicts = move |mode: Mode, span: &Span| {
        let clashes = if takes_slot && mode == Mode::Slot { is_full } else { waiter.mode.clashes_with(mode) };
        clashes && waiter.span.overlaps(span)
    };
    let is_nested =
        listing.holders.iter().any(|it| waiter.ancestors.contains(&it.session) && it.span.overlaps(&waiter.span));
    let holders = listing.holders.iter().filter(move |it| !is_related(&it.session) && conflicts(it.mode, &it.span));
    let ahead = ahead.filter(move |it| !is_nested && conflicts(it.mode, &it.span));
    holders.map(|it| it.session).chain(ahead.map(|it| it.session))
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{holder, resource, session, waiter};
    use super::{Graph, blockers};
    use crate::lock::mode::Mode;
    use crate::lock::op::{HolderListing, WaiterListing};
    use crate::lock::span::Span;

    fn of(listing: &crate::lock::op::ResourceListing, index: usize) -> Vec<u8> {
        blockers(listing, &listing.waiters[index]).map(|session| session.0[0]).collect()
    }

    fn span(text: &str) -> Span {
        Span::parse(text).expect("a span")
    }

    #[test]
    fn waiter_waits_for_conflicting_holders_and_earlier_waiters() {
        let read = |number, position| WaiterListing { mode: Mode::Read, ..waiter(number, position) };
        let listing = resource(
            "k",
            vec![HolderListing { mode: Mode::Read, ..holder(1) }, HolderListing { mode: Mode::Read, ..holder(2) }],
            vec![waiter(3, 1), read(4, 2), waiter(5, 3)],
        );
        assert_eq!(of(&listing, 0), [1, 2]);
        assert_eq!(of(&listing, 1), [3], "readers do not wait for readers");
        assert_eq!(of(&listing, 2), [1, 2, 3, 4]);
    }

    #[test]
    fn waiter_waits_only_for_spans_that_overlap() {
        let listing = resource(
            "k",
            vec![
                HolderListing { span: span("[1,2]"), ..holder(1) },
                HolderListing { span: span("[3,4]"), ..holder(2) },
            ],
            vec![
                WaiterListing { span: span("[2,3)"), ..waiter(3, 1) },
                WaiterListing { span: span("[3,9]"), ..waiter(4, 2) },
            ],
        );
        assert_eq!(of(&listing, 0), [1]);
        assert_eq!(of(&listing, 1), [2]);
    }

    #[test]
    fn slot_waits_for_slots_only_when_all_are_taken() {
        let slot = |number| HolderListing { mode: Mode::Slot, slots: Some(2), ..holder(number) };
        let waits = |number, position| WaiterListing { mode: Mode::Slot, slots: Some(2), ..waiter(number, position) };
        let full = resource("k", vec![slot(1), slot(2)], vec![waits(3, 1)]);
        assert_eq!(of(&full, 0), [1, 2]);
        let free = resource("k", vec![slot(1)], vec![waiter(3, 1), waits(4, 2)]);
        assert_eq!(of(&free, 1), [3], "the writer ahead, not the slot beside it");
    }

    #[test]
    fn nested_waiter_waits_for_neither_ancestors_nor_waiters() {
        let inner = WaiterListing { ancestors: vec![session(9), session(1)], ..waiter(4, 2) };
        let prewrite = HolderListing { mode: Mode::Prewrite, ..holder(1) };
        let read = HolderListing { mode: Mode::Read, ..holder(2) };
        let listing = resource("k", vec![prewrite, read], vec![waiter(3, 1), inner]);
        assert_eq!(of(&listing, 1), [2]);
        let listings = [listing];
        let graph = Graph::of(&listings);
        assert_eq!(graph.members[&session(4)].parent, Some(session(1)), "9 is not listed");
        assert_eq!(graph.children(session(1)).map(|(id, _)| id).collect::<Vec<_>>(), [session(4)]);
        assert_eq!(graph.members[&session(1)].parent, None);
    }
}
