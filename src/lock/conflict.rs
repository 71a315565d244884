//! The one rule: a request is granted when it conflicts with no holder and with no earlier waiter.
//!
//! It is PostgreSQL's wake rule (src/backend/storage/lmgr/README) with spans: a holder and an earlier waiter stand in the way alike,
//! so nobody is overtaken by a request that conflicts with his own, and everybody else passes.

use std::ops::ControlFlow;

use super::index::{Query, Rank};
use super::mode::{Mode, Modes};
use super::records::Records;
use super::request::{Claim, SessionId};

/// Who asks: nothing of his own or of his ancestors' stands in his way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) session: SessionId,
    pub(super) ancestors: &'a [SessionId],
}

impl Asker<'_> {
    fn is_related_to(self, other: SessionId) -> bool {
        self.session == other || self.ancestors.contains(&other)
    }
}

/// The sessions that keep a claim from being granted, or none if nobody does.
///
/// Of the claims held and those waiting with a rank below `before`, one that conflicts is enough, so one session is named: the
/// claim can't be granted as long as that one stays as it is. Only where all slots are taken are those sessions named that take
/// them, since any one of them would free a slot.
pub(super) fn blockers<R: Records>(
    records: &R,
    claim: &Claim,
    asker: Asker<'_>,
    before: Rank,
) -> Result<Vec<SessionId>, R::Error> {
    let Some(state) = records.resource(&claim.resource)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let clashing = claim.mode.clashing();
    let query = Query { span: &claim.span, held: clashing, waiting: clashing, before };
    state.tree.visit(records, &claim.resource, query, |entry| {
        if asker.is_related_to(entry.session) {
            return ControlFlow::Continue(());
        }
        found.push(entry.session);
        ControlFlow::Break(())
    })?;
    let slots = claim.slots.unwrap_or(0) as usize;
    if !found.is_empty() || claim.mode != Mode::Slot {
        return Ok(found);
    }
    let slot = Modes::of(&[Mode::Slot]);
    let query = Query { span: &claim.span, held: slot, waiting: slot, before };
    state.tree.visit(records, &claim.resource, query, |entry| {
        if !entry.shares && !asker.is_related_to(entry.session) {
            found.push(entry.session);
        }
        if found.len() < slots { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if found.len() < slots {
        found.clear();
    }
    Ok(found)
}
