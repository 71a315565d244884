//! A mistake in the words of a command line or of a line of a client, and why there is nothing to
//! run.

use clap::builder::StyledStr;

use rlock_words::one_line;

/// The reason why there is nothing to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    /// The user asked for help or the version: print the text to standard output and exit with 0.
    #[error("{0}")]
    Information(StyledStr),
    /// The command line was empty: print the short help to standard error and exit with 64.
    #[error("{0}")]
    Bare(StyledStr),
    /// A mistake, in one line without a prefix: print it to standard error and exit with 64.
    #[error("{0}")]
    Mistake(String),
}

/// A mistake before the help that it should point to is known.
#[derive(Debug)]
pub struct Mistake {
    text: String,
    /// Whether the text does not say what to do instead, so that it must point to the help.
    pub(super) see_help: bool,
}

impl Mistake {
    /// A mistake whose text says what to do instead.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), see_help: false }
    }

    /// A mistake whose text must point to the help.
    pub(super) fn unexplained(text: impl Into<String>) -> Self {
        Self { text: text.into(), see_help: true }
    }

    /// The mistake in one line, without a page to point to.
    pub fn on_line(self) -> String {
        // Words may contain any characters; control characters must neither break the line nor
        // reach the terminal.
        one_line(&self.text.replace('\u{1}', ""))
    }

    /// Turns the mistake into the [`Usage`] error of `page`, such as `rlock exec`.
    pub fn on(mut self, page: &str) -> Usage {
        if self.see_help {
            self.text = format!("{}; see '{page} --help'", self.text);
        }
        Usage::Mistake(self.on_line())
    }
}
