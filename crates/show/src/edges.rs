//! The graph of sessions and resources: the claims of each session, held or waited for, its nearest
//! ancestor, and the sessions that wait for each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use rlock_model::deadlock::{self, Claims};
use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
use rlock_model::request::{Claim, Process, SessionId};
use rlock_store::Inspection;

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
    pub process: &'l Process,
    /// The nearest session around it that is listed as well.
    pub parent: Option<SessionId>,
    /// The claims, each with its resource.
    pub parts: Vec<(&'l ResourceListing, Part<'l>)>,
    /// Whether the session waits for itself, through others.
    pub is_deadlocked: bool,
    ancestors: &'l [SessionId],
}

/// The listed sessions.
#[derive(Clone, Debug)]
pub(crate) struct Graph<'l> {
    pub members: BTreeMap<SessionId, Member<'l>>,
}

impl<'l> Graph<'l> {
    /// The graph of a listing.
    pub(crate) fn of(inspection: &'l Inspection) -> Self {
        let mut members = BTreeMap::new();
        let mut add = |session, process, ancestors, listing, part| {
            let member = || Member { process, parent: None, parts: Vec::new(), is_deadlocked: false, ancestors };
            members.entry(session).or_insert_with(member).parts.push((listing, part));
        };
        for listing in &inspection.resources {
            for it in &listing.holders {
                add(it.session, &it.process, it.ancestors.as_slice(), listing, Part::Held(it));
            }
            for it in &listing.waiters {
                add(it.session, &it.process, it.ancestors.as_slice(), listing, Part::Waiting(it));
            }
        }
        let cycles = deadlock::Graph::new(&inspection.sessions).cycles();
        let listed: BTreeSet<_> = members.keys().copied().collect();
        for (session, member) in &mut members {
            // The innermost ancestor comes first.
            member.parent = member.ancestors.iter().find(|it| *it != session && listed.contains(it)).copied();
            member.is_deadlocked = cycles.iter().any(|cycle| cycle.contains(session));
        }
        Self { members }
    }

    /// How many sessions wait for each session, directly, or behind others that wait or whose
    /// commands wait.
    pub(crate) fn blocked(&self, claims: &Claims<'_>) -> BTreeMap<SessionId, usize> {
        let mut behind: BTreeMap<SessionId, BTreeSet<SessionId>> = BTreeMap::new();
        for (session, member) in &self.members {
            for (listing, part) in &member.parts {
                let Part::Waiting(waiter) = part else { continue };
                for blocker in blockers(claims, listing, waiter).take(listing.holders.len() + AHEAD_MAX) {
                    behind.entry(blocker).or_default().insert(*session);
                    // Those above a waiter go on when it does.
                    behind.entry(*session).or_default().extend(member.ancestors);
                }
            }
        }
        let waits = |id: &SessionId| {
            let parts = self.members.get(id).map(|member| &member.parts);
            parts.is_some_and(|parts| parts.iter().any(|(_, part)| matches!(part, Part::Waiting(_))))
        };
        let count = |session: &SessionId| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*session]);
            while let Some(id) = next.pop() {
                next.extend(behind.get(&id).into_iter().flatten().filter(|id| seen.insert(**id)));
            }
            seen.iter().filter(|id| *id != session && waits(id)).count()
        };
        let holds = |member: &Member<'_>| member.parts.iter().any(|(_, part)| matches!(part, Part::Held(_)));
        self.members.iter().filter(|(_, member)| holds(member)).map(|(id, _)| (*id, count(id))).collect()
    }

    /// The sessions whose parent is `session`.
    pub(crate) fn children(&self, session: SessionId) -> impl Iterator<Item = (SessionId, &Member<'l>)> {
        let is_child = move |member: &Member<'_>| member.parent == Some(session);
        self.members.iter().filter(move |(_, member)| is_child(member)).map(|(id, member)| (*id, member))
    }
}

/// Maximum number of waiters ahead of a waiter at which the count of those who wait looks. They
/// wait for those ahead of them, so more change hardly anything and cost much in a long queue.
const AHEAD_MAX: usize = 16;

/// The sessions that a waiting claim waits for, the holders first. A session may come twice.
pub(crate) fn blockers<'l>(
    claims: &Claims<'_>,
    listing: &'l ResourceListing,
    waiter: &WaiterListing,
) -> impl Iterator<Item = SessionId> + 'l {
    let WaiterListing { mode, span, slots, .. } = waiter;
    let claim = Claim { resource: listing.name.clone(), mode: *mode, span: span.clone(), slots: *slots };
    let blockers = claims.blockers(waiter.session, &claim);
    let holders = listing.holders.iter().map(|it| it.session);
    holders.chain(listing.waiters.iter().map(|it| it.session)).filter(move |it| blockers.contains(it))
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{holder, inspection, resource, session, waiter};
    use super::{Claims, Graph, blockers};
    use rlock_model::mode::Mode;
    use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
    use rlock_model::span::Span;

    fn of(listing: &ResourceListing, index: usize) -> Vec<u8> {
        first_of(std::slice::from_ref(listing), index)
    }

    /// The sessions that a waiter for the first of these resources waits for.
    fn first_of(listings: &[ResourceListing], index: usize) -> Vec<u8> {
        let (listing, inspection) = (&listings[0], inspection(listings));
        let claims = Claims::new(&inspection.sessions);
        blockers(&claims, listing, &listing.waiters[index]).map(|session| session.0[0]).collect()
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
        let inspection = inspection(&[listing]);
        let graph = Graph::of(&inspection);
        assert_eq!(graph.members[&session(4)].parent, Some(session(1)), "9 is not listed");
        assert_eq!(graph.children(session(1)).map(|(id, _)| id).collect::<Vec<_>>(), [session(4)]);
        assert_eq!(graph.members[&session(1)].parent, None);
    }

    /// 4 runs below 1, and 3 waits for 1. So 4 overtakes 3, and waits for 2 alone.
    #[test]
    fn nested_waiter_does_not_wait_for_a_waiter_that_it_overtakes() {
        let inner = WaiterListing { ancestors: vec![session(1)], ..waiter(4, 2) };
        let a = resource("a", vec![holder(2)], vec![waiter(3, 1), inner]);
        let b = resource("b", vec![holder(1)], vec![waiter(3, 1)]);
        assert_eq!(first_of(&[a.clone(), b], 1), [2]);
        assert_eq!(of(&a, 1), [2, 3], "nothing shows that 3 waits for 1");
    }

    /// 3 shares the slot of 1, so one of two slots is free for 6 once 4 is gone.
    #[test]
    fn shared_slot_takes_no_slot_of_its_own() {
        let slot = |number| HolderListing { mode: Mode::Slot, slots: Some(2), ..holder(number) };
        let waits = |number, position| WaiterListing { mode: Mode::Slot, slots: Some(2), ..waiter(number, position) };
        let share = HolderListing { ancestors: vec![session(1)], ..slot(3) };
        let listing = resource("k", vec![slot(1), share], vec![waiter(4, 1), waits(6, 2)]);
        assert_eq!(of(&listing, 1), [4]);
        assert_eq!(of(&listing, 0), [1, 3], "a writer waits for the share, too");
    }
}
