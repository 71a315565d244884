//! The table's file: opened, found whole, and kept from the command.
//!
//! LMDB runs without its own locks and without waiting for the disk. The directory's lock, which
//! the kernel takes from the dead, is all that is needed for one writer at a time; LMDB's table of
//! readers, on the other hand, tells processes by their pids, which are ambiguous where pid
//! namespaces share a directory. And what a crash of the machine may do to the file does not
//! matter: no holder survives it, and the next boot starts with an empty table.
//!
//! What is not LMDB's business is looked after here. It takes an empty file for a new one, so one
//! that lost its content under the eyes of its users would let everybody in; it reads the file
//! through a map, where a page beyond the end is a deadly signal; and it believes whatever the
//! pages say. So each transaction ends with a **seal** in the lock file: inode, size and time of
//! change of the table. A file that differs from its seal was changed by somebody else, or by a
//! process that died just then, and is read whole before LMDB may look at it: see
//! [`super::verify`].

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Stat, fstat};
use rustix::io::FdFlags;

use super::directory::{Directory, Locked};
use super::lmdb::{Env, Txn};
use super::records::Error;
use super::{TABLE_BYTES_MAX, verify};

/// How many pages even an empty table has; they say what is in the others.
const PAGES_MIN: usize = 2;
/// The size of a page, or less on a machine that has larger ones: then the account that
/// [`TableFile::check`] takes is less strict.
const PAGE_BYTES: usize = 4096;
/// LMDB has one for the pages and one for what says which of them count.
const LMDB_DESCRIPTORS: usize = 2;
/// A descriptor has the lowest number that was free, so those of LMDB are well below this one.
const DESCRIPTORS: i32 = 1 << 16;

/// An opened table.
pub(super) struct TableFile {
    file: OwnedFd,
    env: Env,
}

impl TableFile {
    /// Opens the table, or makes it. A damaged one is put aside if nobody lives who holds or waits.
    pub(super) fn open(directory: &Directory, locked: &Locked<'_>) -> Result<Self, Error> {
        match Self::try_open(directory) {
            Err(Error::Damaged) => {}
            opened => return opened,
        }
        if directory.anybody_lives()? {
            return Err(Error::Damaged);
        }
        match directory.put_aside(locked) {
            Ok(path) => say_put_aside(directory, &path.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Self::try_open(directory)
    }

    fn try_open(directory: &Directory) -> Result<Self, Error> {
        let file = directory.open_table()?;
        let found = stat(&file)?;
        if found.st_size == 0 {
            // Whoever lives has a record in the table that was here.
            if directory.anybody_lives()? {
                return Err(Error::Damaged);
            }
        } else {
            verify_unless_sealed(directory, &file, &found)?;
        }
        // SAFETY: every transaction on the file runs under the directory's lock, and the content is
        // as LMDB left it, as far as that can be told. It is mapped, and whoever may write to the
        // directory could change it under the map: see `fault`.
        let env = unsafe { Env::open(file.as_fd(), TABLE_BYTES_MAX) }?;
        close_on_exec(&file)?;
        let opened = Self { file, env };
        opened.check(directory)?;
        if found.st_size == 0 {
            opened.seal(directory);
        }
        Ok(opened)
    }

    /// Begins a transaction.
    pub(super) fn write(&self, directory: &Directory) -> Result<Txn<'_>, Error> {
        let found = self.check(directory)?;
        verify_unless_sealed(directory, &self.file, &found)?;
        self.env.begin()
    }

    /// Notes that the table is as this process left it. Without the note the next process reads the
    /// whole table, and that is all.
    pub(super) fn seal(&self, directory: &Directory) {
        let _ = stat(&self.file).map(|stat| directory.put_seal(&seal_of(&stat)));
    }

    /// Makes sure that the file is the one that others use, and that no page that the table may
    /// have lies beyond its end. LMDB does not write those that it gave up in the transaction in
    /// which it took them, so a shorter file is suspicious and no more.
    fn check(&self, directory: &Directory) -> Result<Stat, Error> {
        let found = stat(&self.file)?;
        let len = usize::try_from(found.st_size).unwrap_or(usize::MAX);
        if len < PAGES_MIN * PAGE_BYTES || !directory.is_table(&found) {
            return Err(Error::Damaged);
        }
        let expected = (self.env.last_page() + 1).saturating_mul(PAGE_BYTES).min(TABLE_BYTES_MAX);
        if expected <= len {
            return Ok(found);
        }
        verify_unless_sealed(directory, &self.file, &found)?;
        rustix::fs::ftruncate(&self.file, expected as u64).map_err(io::Error::from)?;
        self.seal(directory);
        stat(&self.file)
    }
}

/// Reads the whole table unless it is as the last transaction left it.
fn verify_unless_sealed(directory: &Directory, file: &OwnedFd, found: &Stat) -> Result<(), Error> {
    let seal = seal_of(found);
    if directory.seal()?.is_some_and(|sealed| sealed == seal) {
        return Ok(());
    }
    let mut bytes = vec![0; usize::try_from(found.st_size).unwrap_or(usize::MAX).min(TABLE_BYTES_MAX)];
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(file, &mut bytes[read..], read as u64).map_err(io::Error::from)? {
            0 => return Err(Error::Damaged),
            some => read += some,
        }
    }
    verify::table(&bytes)?;
    let _ = directory.put_seal(&seal);
    Ok(())
}

/// What the table's file looks like to the system; a line that always has the same length.
fn seal_of(stat: &Stat) -> String {
    format!("table {:020} {:020} {:020}.{:09}\n", stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// Says so at once: the store is opened before anything runs that could be kept from its work by a
/// line that nobody reads.
fn say_put_aside(directory: &Directory, path: &str) {
    let directory = directory.path().display();
    let text = format!(
        "rlock: warning: the table of the store in {directory} was damaged, and nobody used it: it is kept as {path}, and a \
         new one is started"
    );
    let _ = writeln!(io::stderr(), "{}", crate::words::one_line(&text));
}

/// LMDB leaves one of its descriptors to whoever is executed, who could then write to the table;
/// their numbers are nowhere to be had.
fn close_on_exec(file: &OwnedFd) -> Result<(), Error> {
    let own = stat(file)?;
    let is_table = |other: Stat| (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino);
    let mut missing = LMDB_DESCRIPTORS;
    for number in (0..DESCRIPTORS).filter(|number| *number != file.as_raw_fd()) {
        // SAFETY: it is only asked what it is, which a descriptor that isn't open answers with an
        // error, and only LMDB's are changed.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if fstat(descriptor).is_ok_and(is_table) {
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(io::Error::from)?;
            missing -= 1;
            if missing == 0 {
                return Ok(());
            }
        }
    }
    // LMDB has opened another file, whatever it was told.
    Err(Error::Damaged)
}

fn stat(file: &OwnedFd) -> Result<Stat, Error> {
    Ok(fstat(file).map_err(io::Error::from)?)
}
