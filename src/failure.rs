//! Joins the message about a failed subcommand with its exit code.

use std::fmt;

use crate::exit;
use crate::lock::op::Refusal;
use crate::store;

/// The reason why a subcommand ends without a result: one line for the user, and the exit code for
/// the kind of failure. An error of any other type is a failure of rlock itself.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: exit::USAGE, text: text.into() }
    }

    pub(crate) fn refused(reason: &dyn fmt::Display) -> Self {
        Self { code: exit::REFUSED, text: format!("refused: {reason}") }
    }
}

impl From<&Refusal> for Failure {
    /// What the state of the store does not allow now is not the fault of the request.
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::TooManyJobs { .. } => Self { code: exit::UNAVAILABLE, text: refusal.to_string() },
            _ => Self::refused(refusal),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Usage(text) => Self::usage(text),
            store::Error::Refused(text) => Self::refused(&text),
            store::Error::Unavailable(text) => Self { code: exit::UNAVAILABLE, text },
        }
    }
}
