//! Decides what the holds of a session's ancestors mean for its claim (docs/design.md#nesting).

use std::collections::BTreeSet;

use super::mode::{Mode, Nesting};
use super::op::Refusal;
use super::records::{Records, Session};
use super::request::{Claim, SessionId};
use super::resource::Resource;

/// The relation of a claim to the holds of its session's ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// No ancestor's hold overlaps the claim, so the claim queues like any other.
    Ordinary,
    /// An ancestor's hold includes the claim, which gets the token of that hold.
    Included {
        /// The token of the ancestor's hold.
        token: u64,
        /// Whether the claim takes from an ancestor's slots.
        shares: bool,
    },
    /// An ancestor's hold lets the claim ask for more, as prewrite does for write.
    Growing,
}

impl Relation {
    /// Whether the claim takes from an ancestor's slots.
    pub(super) fn shares(self) -> bool {
        matches!(self, Self::Included { shares: true, .. })
    }
}

/// The slots of which a nested claim takes: those of the nearest ancestor that holds any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    /// The ancestor.
    pub(super) holder: SessionId,
    /// The numbers of its slots.
    pub(super) numbers: BTreeSet<u32>,
}

impl Pool {
    /// Whether each session that takes from the pool has numbers of its own. All sessions share a
    /// single slot.
    pub(super) fn is_divided(&self) -> bool {
        self.numbers.len() > 1
    }
}

/// The ancestors that are in the table. They are read once for all claims of a request.
pub(super) type Above = Vec<(SessionId, Session)>;

/// Reads the ancestors that are in the table, innermost first.
pub(super) fn above<R: Records>(records: &R, ancestors: &[SessionId]) -> Result<Above, R::Error> {
    let known = |id: &SessionId| records.session(*id).transpose().map(|found| found.map(|session| (*id, session)));
    ancestors.iter().filter_map(known).collect()
}

/// The slots of a resource of which a claim below these sessions takes.
pub(super) fn pool(above: &Above, resource: &Resource) -> Option<Pool> {
    above.iter().find_map(|(holder, session)| {
        let here = session.claims.iter().filter(|record| record.claim.resource == *resource);
        let numbers: BTreeSet<_> = here.filter_map(|record| record.slot).collect();
        (!numbers.is_empty()).then_some(Pool { holder: *holder, numbers })
    })
}

/// Returns the standing of a claim, or the reason why it can never be granted. If several holds
/// refuse the claim, the refusal names the outermost, because the holds below that hold can't have
/// more than it has. The request asks for so many `slots` of the resource.
pub(super) fn relation(above: &Above, claim: &Claim, slots: usize) -> Result<Relation, Refusal> {
    let pool = pool(above, &claim.resource).filter(|_| claim.mode == Mode::Slot);
    if let Some(Pool { numbers, .. }) = &pool
        && slots > numbers.len()
    {
        return Err(Refusal::TooFewSlots { resource: claim.resource.clone(), held: numbers.len() as u32 });
    }
    let mut grows = false;
    let mut slot = None;
    let mut refusal = None;
    for (_, session) in above {
        for record in session.claims.iter().filter(|record| record.rank.is_held()) {
            let held = &record.claim;
            if held.resource != claim.resource || !held.span.overlaps(&claim.span) {
                continue;
            }
            match claim.mode.below(held.mode) {
                // The claim takes from the slots above even if a nearer hold includes it.
                Nesting::AtOnce if held.span.covers(&claim.span) => {
                    return Ok(Relation::Included { token: record.token, shares: pool.is_some() });
                }
                Nesting::Waits if held.span.covers(&claim.span) => grows = true,
                // A session for which this claim would wait may itself wait for that slot. So the
                // slot refuses the claim even if another hold allows it.
                Nesting::Refused if held.mode == Mode::Slot => slot = Some(cannot_grow(held, claim)),
                Nesting::Refused => refusal = Some(cannot_grow(held, claim)),
                // A hold that can't grow is the stronger reason.
                Nesting::AtOnce | Nesting::Waits if matches!(refusal, Some(Refusal::CannotGrow { .. })) => {}
                Nesting::AtOnce | Nesting::Waits => refusal = Some(reaches_past(held, claim)),
            }
        }
    }
    match (slot, refusal) {
        (Some(refusal), _) => Err(refusal),
        _ if grows => Ok(Relation::Growing),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => Ok(Relation::Ordinary),
    }
}

fn cannot_grow(held: &Claim, asked: &Claim) -> Refusal {
    Refusal::CannotGrow { resource: asked.resource.clone(), held: held.mode, asked: asked.mode }
}

fn reaches_past(held: &Claim, asked: &Claim) -> Refusal {
    Refusal::ReachesPast { resource: asked.resource.clone(), held: held.span.clone(), asked: asked.span.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::op::Op;
    use super::super::samples::{claim, id, request};
    use super::super::table::LockTable;
    use super::*;
    use rlock_sys::clock::StoreTime;

    /// The standing of `asked` below these holds, which start with the outermost.
    fn below(holds: &[Claim], asked: &Claim) -> Result<Relation, Refusal> {
        let mut table: LockTable = LockTable::default();
        let mut ancestors = Vec::new();
        for (number, held) in (1..).zip(holds) {
            let request = request(number, &ancestors, std::slice::from_ref(held));
            table.apply(StoreTime::from_micros(u64::from(number) * 10), Op::Acquire { request, place: None }).unwrap();
            ancestors.insert(0, number);
        }
        let ancestors: Vec<_> = ancestors.into_iter().map(id).collect();
        relation(&above(table.records(), &ancestors).unwrap(), asked, 0)
    }

    /// The table of docs/design.md#nesting. Each cell is tried with three spans: inside the hold,
    /// past the hold, and beside the hold.
    #[test]
    fn standing_matches_every_cell_of_the_table() {
        use Mode::{Prewrite, Read, Slot, Write};
        let rows = [(Read, "=xxw"), (Prewrite, "==ww"), (Write, "===="), (Slot, "=xx=")];
        for (held, cells) in rows {
            for (mode, cell) in [Read, Prewrite, Write, Slot].into_iter().zip(cells.chars()) {
                let hold = if held == Slot { claim(held, "") } else { claim(held, "[0,9]") };
                let part = if mode == Slot || held == Slot { "" } else { "[3,4]" };
                let whole = if mode == Slot { claim(held, "") } else { hold.clone() };
                let asked = claim(mode, part);
                let shares = held == Slot && mode == Slot;
                let expected = match cell {
                    '=' => Ok(Relation::Included { token: 10, shares }),
                    'w' => Ok(Relation::Growing),
                    _ => Err(cannot_grow(&whole, &asked)),
                };
                assert_eq!(below(std::slice::from_ref(&whole), &asked), expected, "{mode} below {held}");
                if held != Slot && cell != 'x' {
                    for past in ["[8,9.5]", "[-1,0]", ""] {
                        let asked = claim(mode, if mode == Slot { "" } else { past });
                        assert_eq!(below(std::slice::from_ref(&hold), &asked), Err(reaches_past(&hold, &asked)));
                    }
                }
                if held != Slot && mode != Slot {
                    assert_eq!(below(&[hold], &claim(mode, "(9,10]")), Ok(Relation::Ordinary));
                }
            }
        }
    }

    #[test]
    fn innermost_hold_that_includes_the_claim_counts() {
        let holds = [claim(Mode::Prewrite, ""), claim(Mode::Write, "[0,9]")];
        assert_eq!(below(&holds, &claim(Mode::Read, "[0,9]")), Ok(Relation::Included { token: 20, shares: false }));
        assert_eq!(below(&holds, &claim(Mode::Read, "[0,10]")), Ok(Relation::Included { token: 10, shares: false }));
        assert_eq!(below(&holds, &claim(Mode::Write, "[0,10]")), Ok(Relation::Growing));
    }

    #[test]
    fn outermost_of_several_holds_in_the_way_is_named() {
        let holds = [claim(Mode::Read, "[0,9]"), claim(Mode::Read, "[1,2]")];
        let asked = claim(Mode::Read, "[1,10]");
        assert_eq!(below(&holds, &asked), Err(reaches_past(&holds[0], &asked)));
        let asked = claim(Mode::Write, "[1,10]");
        assert_eq!(below(&holds, &asked), Err(cannot_grow(&holds[0], &asked)));
    }

    #[test]
    fn slot_below_a_prewrite_prevents_the_upgrade() {
        let holds = [claim(Mode::Prewrite, ""), claim(Mode::Slot, "")];
        let asked = claim(Mode::Write, "");
        assert_eq!(below(&holds, &asked), Err(cannot_grow(&holds[1], &asked)));
        let asked = claim(Mode::Prewrite, "");
        assert_eq!(below(&holds, &asked), Ok(Relation::Included { token: 10, shares: false }));
    }
}
