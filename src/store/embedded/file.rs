//! The table's file: opened, found whole, and kept from the command.
//!
//! LMDB runs without its own locks and without waiting for the disk. The directory's lock, which the kernel takes from the dead,
//! is all that is needed for one writer at a time; LMDB's table of readers, on the other hand, tells processes by their pids, which
//! are ambiguous where pid namespaces share a directory. And what a crash of the machine may do to the file does not matter: no
//! holder survives it, and the next boot starts with an empty table.
//!
//! What is not LMDB's business is looked after here. It takes an empty file for a new one, so one that lost its content under the
//! eyes of its users would let everybody in; and it reads the file through a map, where a page beyond the end is a deadly signal.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RwTxn, WithoutTls};
use rustix::fs::{Stat, fstat};
use rustix::io::FdFlags;

use super::TABLE_BYTES_MAX;
use super::directory::{Directory, Locked};
use super::records::{Error, Table};

/// How many pages even an empty table has; they say what is in the others.
const PAGES_MIN: usize = 2;
/// The size of a page, or less on a machine that has larger ones: then the account that [`TableFile::check`] takes is less strict.
const PAGE_BYTES: usize = 4096;
/// LMDB has one for the pages and one for what says which of them count.
const LMDB_DESCRIPTORS: usize = 2;
/// A descriptor has the lowest number that was free, so those of LMDB are well below this one.
const DESCRIPTORS: i32 = 1 << 16;

/// An opened table.
pub(super) struct TableFile {
    file: OwnedFd,
    env: Env<WithoutTls>,
    table: Table,
}

impl TableFile {
    /// Opens the table, or makes it. A damaged one is made anew if nobody lives who holds or waits.
    pub(super) fn open(directory: &Directory, locked: &Locked<'_>) -> Result<Self, Error> {
        let damage = match Self::try_open(directory) {
            Ok((file, Whole::Yes)) => return Ok(file),
            opened if directory.anybody_lives().map_err(Error::Io)? => return opened.map(|(file, _)| file),
            Ok((_, Whole::No)) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = damage.filter(|error| !is_damage(error)) {
            return Err(error);
        }
        directory.clear(locked).map_err(Error::Io)?;
        Self::try_open(directory).map(|(file, _)| file)
    }

    fn try_open(directory: &Directory) -> Result<(Self, Whole), Error> {
        let file = directory.open_table().map_err(Error::Io)?;
        let is_new = stat(&file)?.st_size == 0;
        if is_new && directory.anybody_lives().map_err(Error::Io)? {
            return Err(Error::Damaged);
        }
        let (env, table) = open_lmdb(directory)?;
        close_on_exec(&file)?;
        let opened = Self { file, env, table };
        let whole = opened.check()?;
        Ok((opened, whole))
    }

    /// Begins a transaction.
    pub(super) fn write(&self) -> Result<(Table, RwTxn<'_>), Error> {
        self.check()?;
        Ok((self.table, self.env.write_txn()?))
    }

    /// Makes sure that no page that the table may have lies beyond the end of the file. LMDB does not write those that it gave up in the
    /// transaction in which it took them, so a shorter file is suspicious and no more.
    fn check(&self) -> Result<Whole, Error> {
        let stat = stat(&self.file)?;
        let len = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if stat.st_nlink == 0 || len < PAGES_MIN * PAGE_BYTES {
            return Err(Error::Damaged);
        }
        let expected = (self.env.info().last_page_number + 1).saturating_mul(PAGE_BYTES).min(TABLE_BYTES_MAX);
        if expected <= len {
            return Ok(Whole::Yes);
        }
        rustix::fs::ftruncate(&self.file, expected as u64).map_err(|error| Error::Io(error.into()))?;
        Ok(Whole::No)
    }
}

/// Whether a file is as long as LMDB's own account of it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    Yes,
    /// It was shorter.
    No,
}

fn open_lmdb(directory: &Directory) -> Result<(Env<WithoutTls>, Table), Error> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(TABLE_BYTES_MAX);
    let flags = EnvFlags::NO_SUB_DIR | EnvFlags::NO_LOCK | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
    // SAFETY: NO_LOCK asks for one writer at a time and no reader beside it: every transaction on the file, this one included,
    // runs under the directory's lock. NO_SYNC gives up what is in the file when the machine crashes, see the module. The file
    // is mapped, and whoever may write to the directory could change it under the map; they are trusted with it.
    let env = unsafe { options.flags(flags).open(directory.table_path()) }?;
    let table: Database<Bytes, Bytes> = env
        .open_databases_and_commit(env.read_txn()?, |opener, txn| {
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(opener.open_database(txn, None)?))
        })?
        .unwrap_commit()
        .expect("the unnamed database is always there");
    Ok((env, table))
}

/// LMDB leaves one of its descriptors to whoever is executed, who could then write to the table; their numbers are nowhere to be had.
fn close_on_exec(file: &OwnedFd) -> Result<(), Error> {
    let own = stat(file)?;
    let is_table = |other: Stat| (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino);
    let mut missing = LMDB_DESCRIPTORS;
    for number in (0..DESCRIPTORS).filter(|number| *number != file.as_raw_fd()) {
        // SAFETY: it is only asked what it is, which a descriptor that isn't open answers with an error, and only LMDB's are changed.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if fstat(descriptor).is_ok_and(is_table) {
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(|error| Error::Io(error.into()))?;
            missing -= 1;
            if missing == 0 {
                return Ok(());
            }
        }
    }
    // Somebody has put another file in its place between two openings.
    Err(Error::Damaged)
}

fn stat(file: &OwnedFd) -> Result<Stat, Error> {
    fstat(file).map_err(|error| Error::Io(error.into()))
}

fn is_damage(error: &Error) -> bool {
    use MdbError::{Corrupted, Invalid, PageNotFound, VersionMismatch};
    match error {
        Error::Damaged => true,
        Error::Lmdb(heed::Error::Mdb(error)) => matches!(error, Corrupted | PageNotFound | Invalid | VersionMismatch),
        _ => false,
    }
}
