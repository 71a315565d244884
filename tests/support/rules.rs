//! The rules of docs/design.md that every history obeys. The fault suite applies them to a log, and
//! the simulation applies them while it runs.

#![allow(dead_code, reason = "each crate that includes this module uses a part of it")]

use std::collections::BTreeMap;

use super::claims::{self, Claim, Mode};

/// A claim that a command holds.
pub(crate) trait Hold {
    fn claim(&self) -> &Claim;

    /// Whether both holds belong to one session, or one session is an ancestor of the other.
    fn is_related_to(&self, other: &Self) -> bool;

    /// Whether both sessions have a common ancestor, whose slot they may share.
    fn shares_slot_with(&self, other: &Self) -> bool;
}

/// Holds that must not exist beside a new hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Exclusion<H> {
    Conflict(H),
    /// Together with the new hold, these take more slots than there are.
    TooManySlots {
        slots: u32,
        holders: Vec<H>,
    },
}

/// What the new hold excludes among the current holds.
pub(crate) fn exclusions<H: Hold + Copy>(current: &[H], new: H) -> impl Iterator<Item = Exclusion<H>> {
    let is_in_conflict = move |hold: &H| hold.claim().conflicts_with(new.claim()) && !hold.is_related_to(&new);
    let conflicts = current.iter().copied().filter(is_in_conflict).map(Exclusion::Conflict);
    conflicts.chain(too_many_slots(current, new))
}

fn too_many_slots<H: Hold + Copy>(current: &[H], new: H) -> Option<Exclusion<H>> {
    let own = new.claim().slots?;
    let is_slot = |hold: &&H| hold.claim().mode == Mode::Slot && hold.claim().resource == new.claim().resource;
    // Of the sessions that may share a slot, one counts.
    let mut holders: Vec<H> = Vec::new();
    for hold in current.iter().filter(is_slot) {
        if !holders.iter().chain([&new]).any(|other| other.shares_slot_with(hold)) {
            holders.push(*hold);
        }
    }
    // The smallest number counts that anybody states.
    let slots = holders.iter().filter_map(|hold| hold.claim().slots).fold(own, u32::min);
    let taken: u32 = holders.iter().chain([&new]).map(|hold| hold.claim().taken).sum();
    (taken > slots && !holders.is_empty()).then_some(Exclusion::TooManySlots { slots, holders })
}

/// Whether two commands that exclude each other may overlap. Where the promise does not hold, one
/// of them must have reported its loss, or been unable to report it.
pub(crate) fn may_overlap(is_covered: bool, is_reported: bool) -> bool {
    !is_covered && is_reported
}

/// Whether a waiter is served before a request that came after the waiter. Neither is nested.
pub(crate) fn must_go_first(waiter: &[Claim], later: &[Claim]) -> bool {
    claims::conflict(waiter, later) || takes_its_slot(waiter, later)
}

/// Whether the waiter lacks nothing but a slot for which the later request asks too.
fn takes_its_slot(waiter: &[Claim], later: &[Claim]) -> bool {
    let [only] = waiter else { return false };
    only.mode == Mode::Slot && later.iter().any(|claim| claim.mode == Mode::Slot && claim.resource == only.resource)
}

/// The highest token that was seen with each claim, and the session that had it. There may be many
/// sessions, but there are few different claims.
#[derive(Debug)]
pub(crate) struct Tokens<S> {
    highest: BTreeMap<Claim, (u64, S)>,
}

impl<S> Default for Tokens<S> {
    fn default() -> Self {
        Self { highest: BTreeMap::new() }
    }
}

impl<S: Copy> Tokens<S> {
    pub(crate) fn add(&mut self, claim: &Claim, token: u64, session: S) {
        match self.highest.get_mut(claim) {
            Some(best) if best.0 >= token => {}
            Some(best) => *best = (token, session),
            None => drop(self.highest.insert(claim.clone(), (token, session))),
        }
    }

    /// Forgets the tokens above this one.
    pub(crate) fn forget_above(&mut self, latest: u64) {
        self.highest.retain(|_, (highest, _)| *highest <= latest);
    }

    /// The earlier sessions above which a token of these claims should be. `comparable` tells
    /// whether the token of a claim (the first argument) has to be below that of an own claim.
    pub(crate) fn not_below(
        &self,
        claims: &[Claim],
        token: u64,
        comparable: impl Fn(&Claim, &Claim) -> bool,
    ) -> impl Iterator<Item = S> {
        let is_wrong = move |(claim, (highest, _)): &(&Claim, &(u64, S))| {
            *highest >= token && claims.iter().any(|own| comparable(claim, own))
        };
        self.highest.iter().filter(is_wrong).map(|(_, (_, session))| *session)
    }
}

/// Whether the token of a nested claim fits the one of the ancestor's hold around it. An upgrade
/// has a token of its own.
pub(crate) fn nested_token_fits(around: (Mode, u64), own: (Mode, u64)) -> bool {
    match (around.0, own.0) {
        (Mode::Prewrite, Mode::Write) => own.1 > around.1,
        _ => own.1 == around.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hold of a session, whose ancestors come before it: `1.2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Sample<'a>(&'a str, &'a Claim);

    impl Hold for Sample<'_> {
        fn claim(&self) -> &Claim {
            self.1
        }

        fn is_related_to(&self, other: &Self) -> bool {
            self.0.starts_with(other.0) || other.0.starts_with(self.0)
        }

        fn shares_slot_with(&self, other: &Self) -> bool {
            self.0[..1] == other.0[..1]
        }
    }

    fn claim(text: &str) -> Claim {
        claims::parse(text).remove(0)
    }

    fn found(current: &[(&str, &str)], new: (&str, &str)) -> usize {
        let claims: Vec<_> = current.iter().map(|(id, text)| (*id, claim(text))).collect();
        let current: Vec<_> = claims.iter().map(|(id, claim)| Sample(id, claim)).collect();
        exclusions(&current, Sample(new.0, &claim(new.1))).count()
    }

    #[test]
    fn conflicting_hold_is_excluded_unless_it_is_related() {
        assert_eq!(found(&[("1", "k:write")], ("2", "k:read")), 1);
        assert_eq!(found(&[("1", "k:read"), ("2", "k:read")], ("3", "k:write")), 2);
        assert_eq!(found(&[("1", "k:write"), ("1.1", "k:write")], ("1.1.1", "k:read")), 0);
        assert_eq!(found(&[("1.1", "k:write")], ("1.2", "k:write")), 1, "siblings exclude each other");
        assert_eq!(found(&[("1", "k:write:[1,2)")], ("2", "k:write:[2,3]")), 0);
        assert_eq!(found(&[("1", "k:write:[1,2]")], ("2", "k:write:[2,3]")), 1);
    }

    #[test]
    fn slots_are_exclusive_when_all_are_taken() {
        let two = [("1", "s:slot:2"), ("2", "s:slot:2")];
        assert_eq!(found(&two[..1], ("3", "s:slot:2")), 0);
        assert_eq!(found(&two, ("3", "s:slot:2")), 1);
        assert_eq!(found(&two, ("3", "s:slot:3")), 1, "the smallest number counts");
        assert_eq!(found(&two[..1], ("3", "s:slot:2:2")), 1);
        assert_eq!(found(&[("1", "s:slot:4:3")], ("3", "s:slot:4")), 0);
        assert_eq!(found(&two, ("3", "t:slot:2")), 0);
        assert_eq!(found(&two, ("2.1", "s:slot:2")), 0, "a nested slot shares the slot of its ancestor");
        assert_eq!(found(&[("1", "s:slot:2"), ("1.1", "s:slot:2")], ("3", "s:slot:2")), 0);
        assert_eq!(found(&two, ("3", "s:write")), 2);
    }

    #[test]
    fn only_a_reported_loss_excuses_an_overlap() {
        assert!(may_overlap(false, true));
        assert!(!may_overlap(true, true) && !may_overlap(false, false));
    }

    #[test]
    fn conflicting_waiter_and_waiter_for_the_same_slot_go_first() {
        let first = |waiter, later| must_go_first(&claims::parse(waiter), &claims::parse(later));
        assert!(first("k:write", "l:read+k:read"));
        assert!(!first("k:read", "k:read") && !first("k:write:[1,2)", "k:write:[2,3]"));
        assert!(first("s:slot:2", "s:slot:2"));
        assert!(!first("s:slot:2+k:write", "s:slot:2"), "the waiter may wait for 'k'");
        assert!(!first("s:slot:2", "t:slot:2"));
    }

    #[test]
    fn token_that_does_not_rise_is_found() {
        let mut tokens = Tokens::default();
        tokens.add(&claim("k:write"), 7, "a");
        tokens.add(&claim("k:write"), 5, "b");
        tokens.add(&claim("k:read"), 8, "c");
        let found =
            |own, token| tokens.not_below(&claims::parse(own), token, Claim::conflicts_with).collect::<Vec<_>>();
        assert_eq!(found("k:write", 9), [""; 0]);
        assert_eq!(found("k:write", 8), ["c"]);
        assert_eq!(found("k:read", 7), ["a"]);
        assert_eq!(found("l:write", 1), [""; 0]);
    }

    #[test]
    fn nested_claim_has_the_token_around_it_and_an_upgrade_a_higher_one() {
        use Mode::{Prewrite, Read, Slot, Write};
        for (around, own) in [(Write, Write), (Write, Read), (Prewrite, Prewrite), (Read, Read), (Slot, Slot)] {
            assert!(nested_token_fits((around, 5), (own, 5)));
            assert!(!nested_token_fits((around, 5), (own, 6)));
        }
        assert!(nested_token_fits((Prewrite, 5), (Write, 6)));
        assert!(!nested_token_fits((Prewrite, 5), (Write, 5)));
    }
}
