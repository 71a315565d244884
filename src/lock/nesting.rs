//! How a claim stands to what the ancestors of its session hold (section 3 of the design: reentrancy).

use super::mode::{Mode, Nesting};
use super::op::Refusal;
use super::records::Records;
use super::request::{Claim, SessionId};

/// How a claim stands to the holds of its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// They hold nothing of it: it queues like any other.
    Ordinary,
    /// A hold of theirs includes it. It waits for no waiter, and has that hold's token.
    Included {
        /// The token of the ancestor's hold.
        token: u64,
        /// A slot of an ancestor's that this claim is a share of.
        shares: bool,
    },
    /// A hold of theirs lets it ask for more, as prewrite does for write. It waits for holders but for no waiter: whoever waits may
    /// be waiting for that very hold.
    Growing,
}

/// Finds how a claim stands, or why it can never be granted.
pub(super) fn standing<R: Records>(
    records: &R,
    claim: &Claim,
    ancestors: &[SessionId],
) -> Result<Result<Standing, Refusal>, R::Error> {
    let mut grows = false;
    let mut slot = None;
    let mut refusal = None;
    for ancestor in ancestors {
        let Some(session) = records.session(*ancestor)? else { continue };
        for record in session.claims.iter().filter(|record| record.rank.is_held()) {
            let held = &record.claim;
            if held.resource != claim.resource || !held.span.overlaps(&claim.span) {
                continue;
            }
            match claim.mode.below(held.mode) {
                Nesting::AtOnce if held.span.covers(&claim.span) => {
                    let shares = claim.mode == Mode::Slot && held.mode == Mode::Slot;
                    return Ok(Ok(Standing::Included { token: record.token, shares }));
                }
                Nesting::Waits if held.span.covers(&claim.span) => grows = true,
                // Somebody may wait for that slot on whom this claim would wait, whatever other hold allows it.
                Nesting::Refused if held.mode == Mode::Slot => slot = Some(cannot_grow(held, claim)),
                Nesting::Refused => refusal = Some(cannot_grow(held, claim)),
                Nesting::AtOnce | Nesting::Waits => refusal = refusal.or_else(|| Some(reaches_past(held, claim))),
            }
        }
    }
    Ok(match (slot, refusal) {
        (Some(refusal), _) => Err(refusal),
        _ if grows => Ok(Standing::Growing),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => Ok(Standing::Ordinary),
    })
}

fn cannot_grow(held: &Claim, asked: &Claim) -> Refusal {
    Refusal::CannotGrow { resource: asked.resource.clone(), held: held.mode, asked: asked.mode }
}

fn reaches_past(held: &Claim, asked: &Claim) -> Refusal {
    Refusal::ReachesPast { resource: asked.resource.clone(), held: held.span.clone(), asked: asked.span.clone() }
}
