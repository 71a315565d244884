//! Checks for `--nested` that the holds above this process cover its claims.

use rlock_model::mode::{Mode, Nesting};
use rlock_model::op::HolderListing;
use rlock_model::request::{self, Claim, SessionId};
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::{Grant, Store};
use rlock_sys::exit;

/// The holds above that cover each claim.
pub(super) struct Cover {
    above: Vec<SessionId>,
    claims: Vec<Claim>,
    /// The tokens of the holds that include each claim. There is none for an upgrade, which gets a
    /// token of its own.
    tokens: Vec<Vec<u64>>,
}

impl Cover {
    /// Finds the holds.
    ///
    /// # Errors
    /// The store cannot be used, or no live hold above covers one of the claims.
    pub(super) fn find(store: &mut dyn Store, above: &[SessionId], claims: &[Claim]) -> Result<Self, Failure> {
        let resources: Vec<_> = request::resources(claims).into_iter().cloned().collect();
        let seen = store.inspect(&resources)?;
        if let Some(unusable) = store.take_unusable().into_iter().next() {
            return Err(Failure::new(exit::UNAVAILABLE, unusable.words));
        }
        // A server lists a lease that has ended until something removes it.
        let is_live = |holder: &HolderListing| !holder.is_over(seen.now);
        let is_above = |claim: &Claim, holder: &HolderListing| {
            above.contains(&holder.session) && is_live(holder) && holder.span.covers(&claim.span)
        };
        let cover = |claim: &Claim| {
            let its = seen.resources.iter().filter(|listing| listing.name == claim.resource);
            let (mut tokens, mut grows) = (Vec::new(), false);
            for holder in its.flat_map(|listing| &listing.holders).filter(|holder| is_above(claim, holder)) {
                match claim.mode.below(holder.mode) {
                    Nesting::AtOnce => tokens.push(holder.token),
                    Nesting::Waits => grows |= claim.mode == Mode::Write,
                    Nesting::Refused => {}
                }
            }
            if tokens.is_empty() && !grows { Err(uncovered(claim, above)) } else { Ok(tokens) }
        };
        let tokens = claims.iter().map(cover).collect::<Result<_, _>>()?;
        Ok(Self { above: above.to_vec(), claims: claims.to_vec(), tokens })
    }

    /// Checks that the claims were covered when they were granted. A claim below a hold has the
    /// token of that hold. An upgrade and a claim on its own have new tokens, so the store that
    /// `open` returns has to tell whether holds above still cover the claims.
    ///
    /// # Errors
    /// A hold had ended, or the store cannot be used.
    pub(super) fn check(
        &self,
        grant: &Grant,
        open: impl FnOnce() -> Result<Box<dyn Store>, Failure>,
    ) -> Result<(), Failure> {
        let is_below = |(tokens, token): (&Vec<u64>, &u64)| tokens.contains(token);
        if self.tokens.iter().zip(&grant.tokens).all(is_below) {
            return Ok(());
        }
        Self::find(open()?.as_mut(), &self.above, &self.claims).map(drop)
    }
}

/// `above` are the sessions around this command that the variables name.
fn uncovered(claim: &Claim, above: &[SessionId]) -> Failure {
    let what = messages::held(&claim.resource, &claim.span, claim.mode, claim.slots, 1);
    let kind = if above.is_empty() { "not locked" } else { "lost" };
    Failure::new(exit::LOST, format!("{kind}: no rlock around this command holds {what}{}", messages::NOT_STARTED))
}
