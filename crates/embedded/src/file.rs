//! Opens the table's file, checks that it is intact, gives it room, and keeps its descriptors from
//! the command.
//!
//! LMDB runs without its own locks and without waiting for the disk. The directory's lock suffices
//! for one writer at a time, and the kernel releases it when its owner dies. LMDB's reader table,
//! on the other hand, identifies processes by their pids, which are ambiguous where pid namespaces
//! share a directory. A crash of the machine may damage the table. No process survives the crash,
//! but kept holds and history are lost with a damaged table. So the first process of a boot reads
//! the whole table before it uses it.
//!
//! This module checks for three dangers that LMDB ignores. LMDB takes an empty file for a new
//! table, so a file that lost its content in use would grant every request. LMDB reads the file
//! through a map, in which an access beyond the end of the file raises a fatal signal. And LMDB
//! trusts the content of the pages.
//!
//! Therefore each transaction ends with a **seal** in the lock file: see [`super::lock_file`]. A
//! file that differs from its seal is read whole before LMDB may look at it: see
//! [`super::verify`].

use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, Stat, fstat};
use rustix::io::{Errno, FdFlags};

use super::directory::{Directory, Locked, free_bytes};
use super::failure::Error;
use super::lmdb::Env;
use super::lock_file::{self, attributes};
use super::records::FileMap;
use super::{beacon, verify};
use rlock_sys::streams;
use rlock_words as words;

/// The number of pages of an empty table; these pages describe the other pages.
const PAGES_MIN: usize = 2;

/// The maximum size of the table in bytes, enough for some hundred thousand claims.
pub(super) const TABLE_BYTES_MAX: usize = 256 << 20;
/// The size of a page. A machine may have larger pages; then the size check of the table's file is
/// less strict.
const PAGE_BYTES: usize = 4096;
/// Maximum number of pages that one transaction rewrites, for which room stays. A request of many
/// names rewrites more in a large table.
const REWRITTEN_PAGES: usize = 192;
/// The number of pages by which the file grows at least.
const GROWTH_PAGES: usize = 64;
/// The bytes by which LMDB's map exceeds twice the file at least. A transaction adds less than this
/// and rewrites no more than the whole table.
const MAP_GROWTH_BYTES: usize = 16 << 20;

/// LMDB opens one descriptor for the pages and one for the meta pages.
const LMDB_DESCRIPTORS: usize = 2;
/// A new descriptor gets the lowest free number, so LMDB's numbers are well below this limit.
const DESCRIPTORS: i32 = 1 << 16;

/// An opened table.
pub(super) struct TableFile {
    file: OwnedFd,
    env: Env,
    /// Where the seal is in the lock file, when this process last read it under the lock.
    seal_at: Cell<usize>,
}

impl TableFile {
    /// Opens the table, or makes it. `is_old` says that the state is of an earlier boot.
    pub(super) fn open(directory: &Directory, is_old: bool) -> Result<Self, Error> {
        let (file, found, is_new) = directory.open_table()?;
        let seal_at = if found.st_size == 0 {
            // A live session would have a record in the table that was here. Else the content may
            // have been kept holds and the past, of which rlock warns.
            let was_used = || -> io::Result<bool> {
                Ok(is_old || lock_file::Text::read(directory.lock_file())?.seal().transaction.is_some())
            };
            if beacon::anybody_lives(directory)? || !is_new && was_used()? {
                return Err(Error::Damaged);
            }
            // The seal of the table that was here says nothing about the new one.
            lock_file::remove_seal(directory.lock_file())?
        } else {
            verify_unless_sealed(directory, &file, &found)?
        };
        // SAFETY: every transaction on the file runs under the directory's lock. As far as can be
        // told, the content is what LMDB wrote. The file is mapped, and anybody who may write to
        // the directory could change it under the map: see `fault`.
        let env = unsafe { Env::open(file.as_fd(), map_bytes(len(&found))) }.inspect_err(|_| {
            if found.st_size == 0 {
                // The next process would take a part of the first page for a damaged table.
                let _ = rustix::fs::ftruncate(&file, 0);
            }
        })?;
        close_on_exec(&file, &found)?;
        let opened = Self { file, env, seal_at: Cell::new(seal_at) };
        if found.st_size == 0 {
            opened.seal(directory);
        }
        Ok(opened)
    }

    /// The number of bytes that a file of so many bytes may get: what a table has at most, or what
    /// the file system has room for. If the file system cannot tell, [`reserve`](Self::reserve)
    /// finds out.
    pub(super) fn bytes_max(&self, len: usize) -> usize {
        let room = rustix::fs::fstatvfs(&self.file).ok();
        let free = room.as_ref().and_then(free_bytes).unwrap_or(u64::MAX);
        len.saturating_add(usize::try_from(free).unwrap_or(usize::MAX)).min(TABLE_BYTES_MAX)
    }

    /// Makes sure that the file has the pages that a table of so many pages needs, so that later
    /// transactions do not depend on the free space of the file system. A file system that can't
    /// reserve space is left as it is.
    pub(super) fn reserve(&self, pages: usize) -> Result<(), Error> {
        let needed = pages_needed(pages);
        if needed * PAGE_BYTES > TABLE_BYTES_MAX {
            return Err(Error::Full);
        }
        let len = len(&stat(&self.file)?);
        if needed * PAGE_BYTES <= len {
            return Ok(());
        }
        let whole = needed.next_multiple_of(GROWTH_PAGES) * PAGE_BYTES;
        for bytes in [whole.min(TABLE_BYTES_MAX), needed * PAGE_BYTES] {
            let reserve = || rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes as u64);
            match rustix::io::retry_on_intr(reserve) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(Errno::NOSPC | Errno::DQUOT) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Err(Error::Full)
    }

    /// Begins a transaction.
    pub(super) fn write(&self, directory: &Directory) -> Result<FileMap<'_>, Error> {
        let found = self.check(directory)?;
        self.seal_at.set(verify_unless_sealed(directory, &self.file, &found)?);
        // This process or another one may have made the file longer since.
        self.env.grow(map_bytes(len(&found)))?;
        Ok(FileMap { txn: self.env.begin()?, file: self, len: len(&found), bytes_max: OnceCell::new(), forgets: false })
    }

    /// Notes that the table is of this boot, and the state in which this process leaves it.
    pub(super) fn put_boot(&self, directory: &Directory) -> io::Result<()> {
        self.seal_at.set(lock_file::put_boot(directory.lock_file())?);
        self.seal(directory);
        Ok(())
    }

    /// Notes the state in which this process leaves the table. If the note is missing, the next
    /// process reads the whole table; there is no other harm.
    pub(super) fn seal(&self, directory: &Directory) {
        let _ = stat(&self.file).map(|stat| {
            lock_file::put_seal(
                directory.lock_file(),
                self.seal_at.get(),
                self.env.last_transaction(),
                &attributes(&stat),
            )
        });
    }

    /// Makes sure that the file is the one that other processes use, and that all pages of the
    /// table lie within the file. LMDB does not write a page that it takes and gives up in the same
    /// transaction, so a shorter file is suspicious but not proof of damage.
    fn check(&self, directory: &Directory) -> Result<Stat, Error> {
        let found = stat(&self.file)?;
        let len = len(&found);
        if len < PAGES_MIN * PAGE_BYTES || !directory.is_table(&found)? {
            return Err(Error::Damaged);
        }
        let expected = (self.env.last_page() + 1).saturating_mul(PAGE_BYTES).min(TABLE_BYTES_MAX);
        if expected <= len {
            return Ok(found);
        }
        self.seal_at.set(verify_unless_sealed(directory, &self.file, &found)?);
        rustix::fs::ftruncate(&self.file, expected as u64).map_err(io::Error::from)?;
        self.seal(directory);
        stat(&self.file)
    }
}

/// What became of a table in which a transaction has met damage.
pub(super) enum Damaged {
    /// Some session may use it. The next transaction of any process reads the whole table first, so
    /// that no process uses a part of it.
    InUse,
    /// This call has put it aside.
    PutAside,
    /// Another process has put aside the table that this process had open.
    Replaced,
}

/// Puts the table aside if no session lives, after a transaction has met damage.
pub(super) fn put_aside(locked: &Locked<'_>, table: &mut Option<TableFile>) -> Result<Damaged, Error> {
    let directory = locked.directory();
    if let Some(opened) = &table
        && !directory.is_table(&stat(&opened.file)?)?
    {
        *table = None;
        return Ok(Damaged::Replaced);
    }
    // A session whose beacon can't be looked at may live.
    if beacon::anybody_lives(directory).unwrap_or(true) {
        lock_file::break_seal(directory.lock_file())?;
        return Ok(Damaged::InUse);
    }
    *table = None;
    match beacon::remove_all(directory).and_then(|()| directory.put_aside(locked)) {
        Ok(path) => say_put_aside(directory, &path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Damaged::PutAside)
}

/// Reads the whole table unless the table matches its seal. A table that has lost the last
/// transaction is damaged, because that transaction may have granted something to a live session.
/// Returns where the seal is in the lock file.
fn verify_unless_sealed(directory: &Directory, file: &OwnedFd, found: &Stat) -> Result<usize, Error> {
    let found_attributes = attributes(found);
    let text = lock_file::Text::read(directory.lock_file())?;
    let (sealed, seal_at) = (text.seal(), text.seal_at());
    if sealed.table.is_some_and(|table| table == found_attributes) {
        return Ok(seal_at);
    }
    let mut bytes = vec![0; len(found).min(TABLE_BYTES_MAX)];
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(file, &mut bytes[read..], read as u64).map_err(io::Error::from)? {
            0 => return Err(Error::Damaged),
            some => read += some,
        }
    }
    let transaction = verify::table(&bytes)?;
    if sealed.transaction.is_some_and(|sealed| transaction < sealed) {
        return Err(Error::Damaged);
    }
    let _ = lock_file::put_seal(directory.lock_file(), seal_at, transaction, &found_attributes);
    Ok(seal_at)
}

/// Prints the warning at once.
fn say_put_aside(directory: &Directory, path: &str) {
    let directory = directory.path().display();
    let text = format!(
        "rlock: warning: the table of the store in {directory} was damaged, and nobody used it: it is kept as {path}, and a \
         new one is started, without kept holds and history"
    );
    streams::say(&words::one_line(&text));
}

/// LMDB leaves one of its descriptors open across an exec, so the command could write to the table.
/// LMDB does not tell the numbers of its descriptors.
fn close_on_exec(file: &OwnedFd, own: &Stat) -> Result<(), Error> {
    let is_table = |other: Stat| (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino);
    let mut missing = LMDB_DESCRIPTORS;
    for number in (0..DESCRIPTORS).filter(|number| *number != file.as_raw_fd()) {
        // SAFETY: fstat only queries the descriptor, and fails if the descriptor is not open. Only
        // LMDB's descriptors are changed.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let found = match fstat(descriptor) {
            Err(Errno::BADF) => continue,
            found => found.map_err(io::Error::from)?,
        };
        if is_table(found) {
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(io::Error::from)?;
            missing -= 1;
            if missing == 0 {
                return Ok(());
            }
        }
    }
    // LMDB has opened a file other than the one that it was given.
    Err(Error::Damaged)
}

fn len(found: &Stat) -> usize {
    usize::try_from(found.st_size).unwrap_or(usize::MAX)
}

fn stat(file: &OwnedFd) -> Result<Stat, Error> {
    Ok(fstat(file).map_err(io::Error::from)?)
}

/// The number of pages that a file with a table of so many pages needs. LMDB never writes over the
/// pages of the last two states, so a transaction and the one before it need room for what they
/// rewrite.
fn pages_needed(pages: usize) -> usize {
    pages + 2 * pages.min(REWRITTEN_PAGES) + GROWTH_PAGES / 4
}

/// Whether a table of so many pages fits into a part of a file of so many bytes.
pub(super) fn fits(pages: usize, [part, of]: [usize; 2], bytes: usize) -> bool {
    pages_needed(pages) <= bytes / PAGE_BYTES / of * part
}

/// The size of LMDB's map of a file of so many bytes. The map takes addresses, which `ulimit -v`
/// and schedulers limit, so it is not the maximum at once.
fn map_bytes(file: usize) -> usize {
    file.saturating_mul(2).saturating_add(MAP_GROWTH_BYTES).next_multiple_of(MAP_GROWTH_BYTES).min(TABLE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_has_room_to_rewrite_the_whole_table() {
        for (file, map) in [(0, 16), (1, 32), (16, 48), (100, 224), (120, 256), (256, 256)] {
            assert_eq!(map_bytes(file << 20), map << 20, "{file} MiB");
        }
    }
}
