//! Makes a granted request again whose paths lead elsewhere since it was made.

use rlock_model::request::{Claim, SessionId};
use rlock_show::failure::Failure;
use rlock_store::{Grant, Handle};
use rlock_sys::exit;

/// How often a request is made again because its paths lead elsewhere.
pub const MOVES_MAX: u32 = 3;

/// Makes the request as that of this session, with these claims.
type Ask = Box<dyn FnMut(SessionId, &[Claim]) -> Result<Handle, Failure>>;

/// Finds the claims of the request again.
pub type Resolve = Box<dyn FnMut() -> Result<Vec<Claim>, Failure>>;

/// What it takes to make a request again.
pub struct Anew {
    /// Makes the request.
    pub ask: Ask,
    /// Resolves the paths of the request, if it has any.
    pub resolve: Option<Resolve>,
    /// How often the request may still be made again because its paths lead elsewhere.
    pub moves_left: u32,
}

/// A request at its grant, as the last session has made it.
#[derive(Clone, Copy, Debug)]
pub struct Granted<'g> {
    /// The session that has the grant.
    pub session: SessionId,
    /// What it claims.
    pub claims: &'g [Claim],
    /// What it was granted.
    pub grant: &'g Grant,
}

impl Anew {
    /// The claims of the request, if its paths lead elsewhere since it was made.
    ///
    /// # Errors
    /// The paths cannot be resolved any more, or have led elsewhere too often.
    pub(super) fn moved(&mut self, claims: &[Claim]) -> Result<Option<Vec<Claim>>, Failure> {
        let found = self.resolve.as_mut().map(|resolve| resolve()).transpose()?;
        let Some(found) = found.filter(|found| found != claims) else { return Ok(None) };
        let Some(left) = self.moves_left.checked_sub(1) else {
            let text = "a link in --path leads elsewhere than when the request was made: name the file or folder \
                        without links, or try again";
            return Err(Failure::new(exit::REFUSED, text));
        };
        self.moves_left = left;
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::mode::Mode;
    use rlock_model::resource::Resource;
    use rlock_model::span::Span;

    /// "Ask anew at the end of the queue, at most three times, then 65."
    #[test]
    fn paths_may_lead_elsewhere_three_times() {
        let claim = |path: u32| {
            let span = Span::path(format!("/{path}").as_bytes()).unwrap();
            vec![Claim { resource: Resource::new("/").unwrap(), mode: Mode::Write, span, slots: None }]
        };
        let mut seen = 0;
        let resolve = move || {
            seen += 1;
            Ok(claim(seen))
        };
        let ask = |_: SessionId, _: &[Claim]| unreachable!("the test asks nothing");
        let mut anew = Anew { ask: Box::new(ask), resolve: Some(Box::new(resolve)), moves_left: MOVES_MAX };
        assert_eq!(anew.moved(&claim(1)).unwrap(), None);
        for turn in 2..=4 {
            assert_eq!(anew.moved(&claim(turn - 1)).unwrap(), Some(claim(turn)));
        }
        assert_eq!(anew.moved(&claim(4)).unwrap_err().code, 65);
        anew.resolve = None;
        assert_eq!(anew.moved(&claim(0)).unwrap(), None, "a request without paths");
    }
}
