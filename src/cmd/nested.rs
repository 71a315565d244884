//! Checks for `--nested` that the holds above this process cover its claims.

use super::context;
use crate::exit;
use crate::failure::Failure;
use crate::lock::mode::{Mode, Nesting};
use crate::lock::request::{Claim, SessionId};
use crate::messages;
use crate::store::{Grant, Store};

/// The holds above that cover each claim.
pub(super) struct Cover {
    /// The store that tells of the holds.
    store: Box<dyn Store>,
    above: Vec<SessionId>,
    claims: Vec<Claim>,
    /// The tokens of the holds, claim by claim. `None` for an upgrade, which gets a token of its
    /// own.
    tokens: Vec<Option<u64>>,
}

impl Cover {
    /// Finds the holds.
    ///
    /// # Errors
    /// The store cannot be used, or no live hold above covers one of the claims.
    pub(super) fn find(mut store: Box<dyn Store>, above: &[SessionId], claims: &[Claim]) -> Result<Self, Failure> {
        let tokens = tokens_above(store.as_mut(), above, claims)?;
        Ok(Self { store, above: above.to_vec(), claims: claims.to_vec(), tokens })
    }

    /// Checks that the holds were still there when the claims were granted. A claim below a hold
    /// has the token of that hold; a claim on its own has a new one. So has an upgrade, and the
    /// store is asked again for the hold around it.
    ///
    /// # Errors
    /// The store cannot be used, or a hold had ended.
    pub(super) fn check(mut self, grant: &Grant) -> Result<(), Failure> {
        let stands = |(expected, token): (&Option<u64>, &u64)| expected.is_none_or(|expected| expected == *token);
        if let Some(index) = self.tokens.iter().zip(&grant.tokens).position(|pair| !stands(pair)) {
            return Err(uncovered(&self.claims[index]));
        }
        if self.tokens.contains(&None) {
            tokens_above(self.store.as_mut(), &self.above, &self.claims)?;
        }
        Ok(())
    }
}

/// The tokens of the holds above that cover the claims, as [`Cover`] keeps them.
fn tokens_above(store: &mut dyn Store, above: &[SessionId], claims: &[Claim]) -> Result<Vec<Option<u64>>, Failure> {
    let resources: Vec<_> = claims.iter().map(|claim| claim.resource.clone()).collect();
    let mut held = Vec::new();
    for id in above {
        let session = store.session(*id, &resources)?.filter(|session| !context::held_by(session).is_empty());
        held.extend(session.into_iter().flat_map(|session| session.claims));
    }
    let cover = |claim: &Claim| {
        held.iter()
            .filter(|record| record.claim.resource == claim.resource && record.claim.span.covers(&claim.span))
            .find_map(|record| match claim.mode.below(record.claim.mode) {
                Nesting::AtOnce => Some(Some(record.token)),
                Nesting::Waits if claim.mode == Mode::Write => Some(None),
                Nesting::Waits | Nesting::Refused => None,
            })
    };
    claims.iter().map(|claim| cover(claim).ok_or_else(|| uncovered(claim))).collect()
}

fn uncovered(claim: &Claim) -> Failure {
    let what = messages::held(&claim.resource, &claim.span, claim.mode);
    Failure {
        code: exit::LOST,
        text: format!("lost: no rlock around this command holds {what}{}", messages::NOT_STARTED),
    }
}
