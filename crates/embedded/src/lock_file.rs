//! The text of the lock file: the format and the boot of the state, and the seal of the table.
//!
//! ```text
//! rlock store, format 4
//! boot 3f0a…
//! transaction NUMBER
//! table INODE SIZE SECONDS.NANOSECONDS
//! ```
//!
//! The last two lines are the **seal**: the number of the last transaction, and the attributes of
//! the table's file after it. If the attributes differ, another program changed the file, or a
//! process died during its transaction. The number tells whether the table still has the last
//! transaction. LMDB has two meta pages, and goes back to the older one if the newer one is
//! damaged. The older table is sound, but it lacks the last grant or release.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::fs::{OFlags, Stat};

/// The start of every lock file, whatever its format.
const TITLE: &str = "rlock store, format ";
/// The format of the lock file, the table and the beacons that this version reads and writes.
pub(super) const FORMAT: &str = "4";
/// The number of lines before the seal.
const HEADING_LINES: usize = 2;
/// The maximum length of a lock file in bytes.
const LENGTH_MAX: usize = 256;
/// The first word of the line with the number of the last transaction.
const TRANSACTION: &str = "transaction ";

/// The first word of the line with the attributes of the table's file.
const TABLE: &str = "table ";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The text of a lock file.
pub(super) struct Text(Vec<u8>);

/// What the last transaction left, as far as it is noted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seal {
    /// The number of a transaction. The table has this transaction and perhaps the next one.
    pub(super) transaction: Option<u64>,
    /// The attributes of the table's file, see [`attributes`].
    pub(super) table: Option<String>,
}

impl Text {
    /// Reads a lock file. Signal handlers may not call this function.
    pub(super) fn read(lock: impl AsFd) -> io::Result<Self> {
        let mut text = vec![0; LENGTH_MAX];
        let read = rustix::io::pread(lock, &mut text, 0)?;
        text.truncate(read);
        Ok(Self(text))
    }

    /// Whether nothing was written. A power failure may leave zeros where there was a text.
    pub(super) fn is_empty(&self) -> bool {
        self.0.len() < LENGTH_MAX && self.0.iter().all(|byte| *byte == 0)
    }

    /// Whether the state has this program's format and is of this boot.
    pub(super) fn is_of(&self, boot: &str) -> bool {
        self.0.starts_with(heading(boot).as_bytes())
    }

    /// The format of the state; `None` if this is no lock file of rlock.
    pub(super) fn format(&self) -> Option<&[u8]> {
        self.0.strip_prefix(TITLE.as_bytes())?.split(|byte| *byte == b'\n').next()
    }

    /// Whether this is a lock file of rlock in which something else was written: a part of the seal
    /// is left, or a message of rlock has replaced it.
    pub(super) fn is_overwritten(&self) -> bool {
        let mut lines = self.0.split(|byte| *byte == b'\n');
        let is_of_seal = |line: &[u8]| line.starts_with(TRANSACTION.as_bytes()) || line.starts_with(TABLE.as_bytes());
        self.0.starts_with(b"rlock: ") || lines.any(is_of_seal)
    }

    /// Where the seal is.
    pub(super) fn seal_at(&self) -> usize {
        heading_len(&self.0)
    }

    pub(super) fn seal(&self) -> Seal {
        let lines = std::str::from_utf8(&self.0[self.seal_at()..]).unwrap_or_default();
        let Some((transaction, table)) = lines.split_once('\n') else { return Seal::default() };
        let transaction = transaction.strip_prefix(TRANSACTION).and_then(|number| number.parse().ok());
        Seal { transaction, table: (!table.is_empty()).then(|| table.to_owned()) }
    }
}

/// Writes the seal where [`Text::seal_at`] says. It always has the same length, so it overwrites
/// the old one.
pub(super) fn put_seal(lock: BorrowedFd<'_>, at: usize, transaction: u64, table: &str) -> io::Result<()> {
    let seal = format!("{TRANSACTION}{transaction:020}\n{table}");
    rustix::io::pwrite(lock, seal.as_bytes(), at as u64)?;
    Ok(())
}

/// Removes the attributes of the table, so the next transaction reads the whole table first. The
/// number of the last transaction stays. Signal handlers may call this function.
pub(super) fn break_seal(lock: BorrowedFd<'_>) -> io::Result<()> {
    let mut text = [0; LENGTH_MAX];
    let read = rustix::io::pread(lock, &mut text, 0)?;
    Ok(rustix::fs::ftruncate(lock, len_of_lines(&text[..read], HEADING_LINES + 1) as u64)?)
}

/// Removes the seal: any sound table is welcome. Returns where the next one goes.
pub(super) fn remove_seal(lock: BorrowedFd<'_>) -> io::Result<usize> {
    let at = Text::read(lock)?.seal_at();
    rustix::fs::ftruncate(lock, at as u64)?;
    Ok(at)
}

/// Notes that the state has this format and is of this boot, and removes the seal. Returns where
/// the next one goes.
pub(super) fn put_boot(lock: BorrowedFd<'_>) -> io::Result<usize> {
    let heading = heading(boot());
    rustix::io::pwrite(lock, heading.as_bytes(), 0)?;
    rustix::fs::ftruncate(lock, heading.len() as u64)?;
    Ok(heading.len())
}

/// The attributes of the table's file, as a line of constant length.
pub(super) fn attributes(table: &Stat) -> String {
    format!("{TABLE}{:020} {:020} {:020}.{:09}\n", table.st_ino, table.st_size, table.st_mtime, table.st_mtime_nsec)
}

/// The id of this boot as this process sees it; empty if it cannot be read.
pub(super) fn boot() -> &'static str {
    &seen().id
}

/// Whether the id is the kernel's. A container may have a private id, by which nobody can tell
/// whether the kernel has booted since.
pub(super) fn is_boot_of_kernel() -> bool {
    seen().is_of_kernel
}

fn seen() -> &'static Boot {
    static BOOT: OnceLock<Boot> = OnceLock::new();
    BOOT.get_or_init(|| Boot::read(BOOT_ID))
}

/// The id of a boot.
#[derive(Debug, Default, PartialEq, Eq)]
struct Boot {
    id: String,
    is_of_kernel: bool,
}

impl Boot {
    /// Reads the file. A container manager such as systemd-nspawn mounts another file over that of
    /// the kernel, which is in procfs.
    fn read(path: &str) -> Self {
        let mut buffer = [0; 64];
        let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty()) else {
            return Self::default();
        };
        let read = rustix::io::read(&file, &mut buffer).unwrap_or(0);
        let id = String::from_utf8_lossy(&buffer[..read]).trim().to_owned();
        let is_of_kernel = rustix::fs::fstatfs(&file).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC);
        Self { id, is_of_kernel }
    }
}

/// The lines before the seal.
fn heading(boot: &str) -> String {
    format!("{TITLE}{FORMAT}\nboot {boot}\n")
}

fn heading_len(text: &[u8]) -> usize {
    len_of_lines(text, HEADING_LINES)
}

fn len_of_lines(text: &[u8], lines: usize) -> usize {
    text.split_inclusive(|byte| *byte == b'\n').take(lines).map(<[u8]>::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_id_outside_procfs_is_not_the_kernels() {
        let kernel = Boot::read(BOOT_ID);
        assert!(kernel.is_of_kernel && kernel.id == boot());
        let private = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&private, &kernel.id).unwrap();
        let private = Boot::read(private.path().to_str().unwrap());
        assert_eq!(private, Boot { id: kernel.id, is_of_kernel: false });
        assert_eq!(Boot::read("/no/such/file"), Boot::default());
    }
}
