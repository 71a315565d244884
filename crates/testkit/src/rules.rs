//! The rules of docs/design.md that every history obeys. The fault suite applies them to a log, and
//! the simulation applies them while it runs.

use std::collections::BTreeMap;

use super::claims::{self, Claim, Mode};

/// A claim that a command holds.
pub trait Hold {
    fn claim(&self) -> &Claim;

    /// Whether both holds belong to one session, or one session is an ancestor of the other.
    fn is_related_to(&self, other: &Self) -> bool;

    /// Whether both sessions have a common ancestor, whose slot they may share.
    fn shares_slot_with(&self, other: &Self) -> bool;
}

/// Holds that must not exist beside a new hold.
#[derive(Debug, PartialEq, Eq)]
pub enum Exclusion<H> {
    Conflict(H),
    /// Together with the new hold, these take more slots than there are.
    TooManySlots {
        slots: u32,
        holders: Vec<H>,
    },
}

/// What the new hold excludes among the current holds.
pub fn exclusions<H: Hold + Copy>(current: &[H], new: H) -> impl Iterator<Item = Exclusion<H>> {
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
pub fn may_overlap(is_covered: bool, is_reported: bool) -> bool {
    !is_covered && is_reported
}

/// Whether a waiter is served before a request that came after the waiter. Neither is nested.
pub fn must_go_first(waiter: &[Claim], later: &[Claim]) -> bool {
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
pub struct Tokens<S> {
    highest: BTreeMap<Claim, (u64, S)>,
}

impl<S> Default for Tokens<S> {
    fn default() -> Self {
        Self { highest: BTreeMap::new() }
    }
}

impl<S: Copy> Tokens<S> {
    pub fn add(&mut self, claim: &Claim, token: u64, session: S) {
        match self.highest.get_mut(claim) {
            Some(best) if best.0 >= token => {}
            Some(best) => *best = (token, session),
            None => drop(self.highest.insert(claim.clone(), (token, session))),
        }
    }

    /// Forgets the tokens above this one.
    pub fn forget_above(&mut self, latest: u64) {
        self.highest.retain(|_, (highest, _)| *highest <= latest);
    }

    /// The earlier sessions above which a token of these claims should be. `comparable` tells
    /// whether the token of a claim (the first argument) has to be below that of an own claim.
    pub fn not_below(
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
pub fn nested_token_fits(around: (Mode, u64), own: (Mode, u64)) -> bool {
    match (around.0, own.0) {
        (Mode::Prewrite, Mode::Write) => own.1 > around.1,
        _ => own.1 == around.1,
    }
}
