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
    pub(super) fn find(store: &mut dyn Store, above: &[SessionId], claims: &[Claim]) -> Result<Self, Failure> {
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
        let tokens =
            claims.iter().map(|claim| cover(claim).ok_or_else(|| uncovered(claim))).collect::<Result<_, _>>()?;
        Ok(Self { claims: claims.to_vec(), tokens })
    }

    /// Checks that the holds were still there when the claims were granted. A claim below a hold
    /// has the token of that hold; a claim on its own has a new one.
    ///
    /// # Errors
    /// A hold had ended.
    pub(super) fn check(&self, grant: &Grant) -> Result<(), Failure> {
        let stands = |(expected, token): (&Option<u64>, &u64)| expected.is_none_or(|expected| expected == *token);
        match self.tokens.iter().zip(&grant.tokens).position(|pair| !stands(pair)) {
            Some(index) => Err(uncovered(&self.claims[index])),
            None => Ok(()),
        }
    }
}

fn uncovered(claim: &Claim) -> Failure {
    let what = messages::held(&claim.resource, &claim.span, claim.mode);
    Failure {
        code: exit::LOST,
        text: format!("lost: no rlock around this command holds {what}{}", messages::NOT_STARTED),
    }
}
