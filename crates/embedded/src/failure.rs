//! Explains why the table cannot be read or written.

use std::io;
use std::os::fd::OwnedFd;

use super::file::TABLE_BYTES_MAX;
use rlock_store::records::codec::Damaged;
use rlock_words::Explained;

/// The reason why records cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}", Explained::from(self))]
pub(super) enum Error {
    /// The table has no room for another record.
    Full,
    /// A system call failed.
    Io(#[from] io::Error),
    /// Processes are about to end, and the transaction has to begin anew then. The descriptors tell
    /// when they have ended. An empty list stands for processes whose ends can't be seen.
    Ending(Vec<OwnedFd>),
    /// More sessions are due than one transaction may end. They go first, in portions.
    Crowd,
    /// This transaction has ended as many dead sessions as one may. It takes effect, and begins
    /// anew.
    Portion,
    /// The table or a record is invalid.
    Damaged,
}

impl From<&Error> for Explained {
    fn from(error: &Error) -> Self {
        match error {
            Error::Full => {
                let megabytes = TABLE_BYTES_MAX >> 20;
                let what = format!(
                    "it has no room for this request: its table may have {megabytes} MiB, as far as the disk has room"
                );
                let remedy =
                    "make room on the disk, end holders and waiters that 'rlock inspect' shows, or run 'rlock cleanup'";
                Self::with_semicolon(what, remedy)
            }
            Error::Io(error) => error.into(),
            Error::Ending(_) => "processes of killed holders have not ended".into(),
            Error::Crowd => "more sessions are due than a transaction ends".into(),
            Error::Portion => "more sessions are dead than a transaction ends".into(),
            Error::Damaged => {
                let remedy = "end the rlock processes that use it, then the next one starts with a new table";
                Self::new("its table is damaged", remedy)
            }
        }
    }
}

impl From<Damaged> for Error {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}
