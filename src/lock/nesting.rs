//! Decides what the holds of a session's ancestors mean for its claim (docs/design.md#nesting).

use super::mode::{Mode, Nesting};
use super::op::Refusal;
use super::records::{Records, Session};
use super::request::{Claim, SessionId};

/// The relation of a claim to the holds of its session's ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No ancestor's hold overlaps the claim, so the claim queues like any other.
    Ordinary,
    /// An ancestor's hold includes the claim, which gets the token of that hold.
    Included {
        /// The token of the ancestor's hold.
        token: u64,
        /// The number of the ancestor's slot, if the claim shares that slot.
        slot: Option<u32>,
    },
    /// An ancestor's hold lets the claim ask for more, as prewrite does for write.
    Growing,
}

impl Standing {
    /// Whether the claim shares an ancestor's slot.
    pub(super) fn shares(self) -> bool {
        matches!(self, Self::Included { slot: Some(_), .. })
    }
}

/// The ancestors that are in the table. They are read once for all claims of a request.
pub(super) fn above<R: Records>(records: &R, ancestors: &[SessionId]) -> Result<Vec<Session>, R::Error> {
    ancestors.iter().filter_map(|ancestor| records.session(*ancestor).transpose()).collect()
}

/// Returns the standing of a claim, or the reason why it can never be granted. If several holds
/// refuse the claim, the refusal names the outermost, because the holds below that hold can't have
/// more than it has. A claim of a slot comes after `earlier` others of the same request and
/// resource, and shares the slot of that number that an ancestor has.
pub(super) fn standing(above: &[Session], claim: &Claim, earlier: usize) -> Result<Standing, Refusal> {
    let mut included = None;
    let mut grows = false;
    let mut slot = None;
    let mut refusal = None;
    for session in above {
        // The slots of the session that other claims of the request share.
        let mut shared = 0;
        for record in session.claims.iter().filter(|record| record.rank.is_held()) {
            let held = &record.claim;
            if held.resource != claim.resource || !held.span.overlaps(&claim.span) {
                continue;
            }
            match claim.mode.below(held.mode) {
                // A slot above is shared even if a nearer hold includes the claim.
                Nesting::AtOnce if claim.mode == Mode::Slot && record.slot.is_some() => {
                    if shared == earlier {
                        let token = *included.get_or_insert(record.token);
                        return Ok(Standing::Included { token, slot: record.slot });
                    }
                    shared += 1;
                    let too_few = Refusal::TooFewSlots { resource: held.resource.clone(), held: shared as u32 };
                    slot = Some(too_few);
                }
                Nesting::AtOnce if held.span.covers(&claim.span) => {
                    let token = *included.get_or_insert(record.token);
                    if claim.mode != Mode::Slot {
                        return Ok(Standing::Included { token, slot: None });
                    }
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
    if let Some(too_few) = slot.take_if(|_| claim.mode == Mode::Slot) {
        return Err(too_few);
    }
    if let Some(token) = included {
        return Ok(Standing::Included { token, slot: None });
    }
    match (slot, refusal) {
        (Some(refusal), _) => Err(refusal),
        _ if grows => Ok(Standing::Growing),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => Ok(Standing::Ordinary),
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
    use crate::system::clock::StoreTime;

    /// The standing of `asked` below these holds, which start with the outermost.
    fn below(holds: &[Claim], asked: &Claim) -> Result<Standing, Refusal> {
        let mut table: LockTable = LockTable::default();
        let mut ancestors = Vec::new();
        for (number, held) in (1..).zip(holds) {
            let request = request(number, &ancestors, std::slice::from_ref(held));
            table.apply(StoreTime::from_micros(u64::from(number) * 10), Op::Acquire { request, place: None }).unwrap();
            ancestors.insert(0, number);
        }
        let ancestors: Vec<_> = ancestors.into_iter().map(id).collect();
        standing(&above(table.records(), &ancestors).unwrap(), asked, 0)
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
                let slot = (held == Slot && mode == Slot).then_some(0);
                let expected = match cell {
                    '=' => Ok(Standing::Included { token: 10, slot }),
                    'w' => Ok(Standing::Growing),
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
                    assert_eq!(below(&[hold], &claim(mode, "(9,10]")), Ok(Standing::Ordinary));
                }
            }
        }
    }

    #[test]
    fn innermost_hold_that_includes_the_claim_counts() {
        let holds = [claim(Mode::Prewrite, ""), claim(Mode::Write, "[0,9]")];
        assert_eq!(below(&holds, &claim(Mode::Read, "[0,9]")), Ok(Standing::Included { token: 20, slot: None }));
        assert_eq!(below(&holds, &claim(Mode::Read, "[0,10]")), Ok(Standing::Included { token: 10, slot: None }));
        assert_eq!(below(&holds, &claim(Mode::Write, "[0,10]")), Ok(Standing::Growing));
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
        assert_eq!(below(&holds, &asked), Ok(Standing::Included { token: 10, slot: None }));
    }
}
