//! Joins the message about a failed subcommand with its exit code.

use std::fmt;

use rlock_model::op::Refusal;
use rlock_store as store;
use rlock_sys::exit;
use rlock_words::Explained;

/// The reason why a subcommand ends without a result: the words for the user, and the exit code for
/// the kind of failure. An error of any other type is a failure of rlock itself.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the program.
    pub code: u8,
    /// What the user reads on standard error.
    pub words: Explained,
}

impl Failure {
    /// A failure with this exit code, one of [`exit`].
    pub fn new(code: u8, words: impl Into<Explained>) -> Self {
        Self { code, words: words.into() }
    }

    /// A mistake in the command line or in the environment.
    pub fn usage(words: impl Into<Explained>) -> Self {
        Self::new(exit::USAGE, words)
    }

    /// A request that can never be granted. `reason` completes the message "refused: …".
    pub fn refused(reason: &dyn fmt::Display) -> Self {
        Self::new(exit::REFUSED, format!("refused: {reason}"))
    }
}

impl From<&Refusal> for Failure {
    /// What the state of the store does not allow now is not the fault of the request.
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::TooManyJobs { .. } => Self::new(exit::UNAVAILABLE, refusal.to_string()),
            _ => Self::refused(refusal),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Usage(words) => Self::usage(words),
            store::Error::Refused(words) => Self::new(exit::REFUSED, words.behind("refused: ")),
            store::Error::Unavailable(words) => Self::new(exit::UNAVAILABLE, words),
        }
    }
}
