//! Defines the words about a failure as data: what happened and why, and what to do about it.

use std::error::Error;
use std::fmt;
use std::io;

use rustix::io::Errno;

use super::reason::reason;

/// The words about a failure. As text they are one line for the user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Explained {
    /// What happened, and why.
    pub what: String,
    /// What to do.
    pub remedy: Option<String>,
    /// What stands before the remedy.
    mark: &'static str,
    /// The error of the system, if that is the reason.
    pub errno: Option<Errno>,
}

impl Explained {
    /// Words that end with what to do, behind a colon.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::from(what.into()) }
    }

    /// The same with a semicolon, where `what` has a colon already.
    pub fn with_semicolon(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { mark: "; ", ..Self::new(what, remedy) }
    }

    /// The same words behind others, which say what they are about.
    pub fn behind(self, about: impl fmt::Display) -> Self {
        Self { what: format!("{about}{}", self.what), ..self }
    }
}

impl From<String> for Explained {
    fn from(what: String) -> Self {
        Self { what, remedy: None, mark: ": ", errno: None }
    }
}

impl From<&str> for Explained {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl From<&io::Error> for Explained {
    /// The words that [`io::Error::other`] carries, or those of the system.
    fn from(error: &io::Error) -> Self {
        let own = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        own.cloned().unwrap_or_else(|| Self { errno: Errno::from_io_error(error), ..reason(error).into() })
    }
}

impl From<Explained> for String {
    fn from(words: Explained) -> Self {
        words.to_string()
    }
}

impl From<Explained> for io::Error {
    fn from(words: Explained) -> Self {
        Self::other(words)
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "{}{remedy}", self.mark))
    }
}

impl Error for Explained {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_pass_through_an_error_of_the_system() {
        let words = Explained::with_semicolon("it is full: really", "empty it");
        let error = io::Error::from(words.clone());
        assert_eq!(Explained::from(&error), words);
        assert_eq!(
            Explained::from(&error).behind("the store: ").to_string(),
            "the store: it is full: really; empty it"
        );
    }

    #[test]
    fn error_of_the_system_keeps_its_number() {
        let words = Explained::from(&io::Error::from(Errno::NOSPC));
        assert_eq!((words.to_string().as_str(), words.errno), ("no space left on device", Some(Errno::NOSPC)));
    }
}
