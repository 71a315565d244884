//! Defines the errors of a store.

use std::fmt;

use rlock_words::Explained;

/// Why a store could not do what the caller asked.
#[derive(Clone, Debug)]
pub enum Error {
    /// The URL, the namespace or a password makes no sense.
    Usage(Explained),
    /// The store refuses the operation for good, so waiting would not help.
    Refused(Explained),
    /// The store cannot be reached or used.
    Unavailable(Explained),
}

impl Error {
    /// The words about it.
    pub fn words(&self) -> &Explained {
        let (Self::Usage(words) | Self::Refused(words) | Self::Unavailable(words)) = self;
        words
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words().fmt(f)
    }
}

impl std::error::Error for Error {}
