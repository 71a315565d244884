//! The store as a process has it open, and the listings that it makes of the table.

use std::path::PathBuf;
use std::time::Duration;

use super::beacon::Wake;
use super::directory::Directory;
use super::failure;
use super::fault::Guard;
use super::file::TableFile;
use super::lock_wait::LockWait;
use super::records::{self, Copied};
use super::snapshot::{self, Interest, Seen};
use super::wakeups::Missed;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::error::Error;

/// The number of copies of the records in which a listing may meet holders that have just been
/// released. After that it is made under the lock.
const COPIES: usize = 3;

/// What a copy of the records tells.
pub(super) enum Found {
    Answer(Seen),
    /// These holders have no beacon: they were released since, or somebody has removed the beacons.
    Missing(Vec<SessionId>),
    Damage,
}

/// The embedded store.
pub struct Embedded {
    pub(super) directory: Directory,
    /// The table is opened under the lock of the first transaction. If this process gave up the
    /// lock in between, another process could see no live session. That process could then replace
    /// a table that it takes for damaged, or for one of an earlier boot.
    pub(super) table: Option<TableFile>,
    pub(super) lock_wait: LockWait,
    pub(super) namespace: String,
    /// The sessions of this process that a portion of a crowd has concerned: the work after it
    /// takes them.
    pub(super) concerned: Vec<(SessionId, Wake)>,
    /// The wake-ups of other processes that failed after a commit.
    pub(super) missed: Missed,
    /// Whether this process serves clients. It gives the trees of killed holders no time to end
    /// before it reports that a request is busy, and reports trouble instead of waiting for its
    /// end.
    pub(super) serves: bool,
    /// Whether this process adds nothing to the past any more, because a change of the table
    /// failed.
    pub(super) forgets: bool,
}

impl Embedded {
    /// Opens the store in `path`, or in the default directory, and makes a missing directory.
    ///
    /// # Errors
    /// The directory cannot be used. The content of the directory is checked at its first use.
    pub fn open(path: Option<PathBuf>, namespace: &str) -> Result<Self, Error> {
        let directory = Directory::open(path)?;
        Ok(Self {
            directory,
            table: None,
            lock_wait: LockWait::default(),
            namespace: namespace.to_owned(),
            concerned: Vec::new(),
            missed: Missed::default(),
            serves: false,
            forgets: false,
        })
    }

    /// Lists the holders and waiters. Only the copying of the records runs under the lock, because
    /// building an answer with many claims takes long.
    pub(super) fn listings(
        &mut self,
        limit: Option<Duration>,
        names: &[Resource],
        watched: Interest,
    ) -> Result<Option<Seen>, Error> {
        let mut missing = Vec::new();
        for _ in 0..COPIES {
            let Some(copied) = self.copy(limit, names)? else { return Ok(None) };
            match self.listings_of(copied, names, watched, &missing)? {
                Found::Answer(answer) => return Ok(Some(answer)),
                Found::Missing(holders) => missing = holders,
                Found::Damage => break,
            }
        }
        // A transaction that meets damage puts the table aside.
        self.transact_within(limit, None, |work| {
            snapshot::listings(records::copy(work.records(), work.time()?, names)?, work.directory(), names, watched)
        })
    }

    pub(super) fn copy(&mut self, limit: Option<Duration>, names: &[Resource]) -> Result<Option<Copied>, Error> {
        self.transact_within(limit, None, |work| records::copy(work.records(), work.time()?, names))
    }

    /// Lists the holders and waiters in a copy of the records. `missing` are the holders that had
    /// no beacon before the copy was made: somebody has removed their beacons, because a release
    /// removes the session first.
    pub(super) fn listings_of(
        &self,
        copied: Copied,
        names: &[Resource],
        watched: Interest,
        missing: &[SessionId],
    ) -> Result<Found, Error> {
        // As in a transaction, the records may contradict each other.
        let _guard = Guard::new(&self.directory);
        match snapshot::listings(copied, &self.directory, names, watched) {
            Err(failure::Error::Damaged) => Ok(Found::Damage),
            Ok(answer) if answer.missing.iter().any(|id| !missing.contains(id)) => Ok(Found::Missing(answer.missing)),
            listings => listings.map(Found::Answer).map_err(|error| self.directory.unusable(&error)),
        }
    }
}
