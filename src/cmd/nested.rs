//! Checks for `--nested` that the holds above this process cover its claims.

use crate::exit;
use crate::failure::Failure;
use crate::lock::mode::{Mode, Nesting};
use crate::lock::op::HolderListing;
use crate::lock::request::{self, Claim, SessionId};
use crate::messages;
use crate::store::{Grant, Store};

/// The holds above that cover each claim.
pub(super) struct Cover {
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
    pub(super) fn find(store: &mut dyn Store, above: &[SessionId], claims: &[Claim]) -> Result<Self, Failure> {
        let resources: Vec<_> = request::resources(claims).into_iter().cloned().collect();
        let seen = store.inspect(&resources)?;
        if let Some(text) = store.take_unusable().into_iter().next() {
            return Err(Failure { code: exit::UNAVAILABLE, text });
        }
        // A server lists a lease that has ended until something removes it.
        let is_live = |holder: &HolderListing| !holder.is_over(seen.now);
        let covers = |claim: &Claim, holder: &HolderListing| {
            if !above.contains(&holder.session) || !is_live(holder) || !holder.span.covers(&claim.span) {
                return None;
            }
            match claim.mode.below(holder.mode) {
                Nesting::AtOnce => Some(Some(holder.token)),
                Nesting::Waits if claim.mode == Mode::Write => Some(None),
                Nesting::Waits | Nesting::Refused => None,
            }
        };
        let cover = |claim: &Claim| {
            let its = seen.resources.iter().filter(|listing| listing.name == claim.resource);
            its.flat_map(|listing| &listing.holders).find_map(|holder| covers(claim, holder))
        };
        let tokens =
            claims.iter().map(|claim| cover(claim).ok_or_else(|| uncovered(claim))).collect::<Result<_, _>>()?;
        Ok(Self { above: above.to_vec(), claims: claims.to_vec(), tokens })
    }

    /// Checks that the holds were still there when the claims were granted. A claim below a hold
    /// has the token of that hold; a claim on its own has a new one. An upgrade has a new token in
    /// any case, so the store that `open` returns has to tell whether its prewrite still stands.
    ///
    /// # Errors
    /// A hold had ended, or the store cannot be used.
    pub(super) fn check(
        &self,
        grant: &Grant,
        open: impl FnOnce() -> Result<Box<dyn Store>, Failure>,
    ) -> Result<(), Failure> {
        let stands = |(expected, token): (&Option<u64>, &u64)| expected.is_none_or(|expected| expected == *token);
        if let Some(index) = self.tokens.iter().zip(&grant.tokens).position(|pair| !stands(pair)) {
            return Err(uncovered(&self.claims[index]));
        }
        if self.tokens.contains(&None) {
            Self::find(open()?.as_mut(), &self.above, &self.claims)?;
        }
        Ok(())
    }
}

fn uncovered(claim: &Claim) -> Failure {
    let what = messages::held(&claim.resource, &claim.span, claim.mode);
    Failure {
        code: exit::LOST,
        text: format!("lost: no rlock around this command holds {what}{}", messages::NOT_STARTED),
    }
}
