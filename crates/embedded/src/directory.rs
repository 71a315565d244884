//! The directory of an embedded store: its files, and the lock on its state. `place` finds the
//! directory, `rights` makes files with its rights, and `examine` makes the checks of `rlock
//! doctor`.
//!
//! ```text
//! DIR/state/lock     the format, the boot of the state, and the seal of the table;
//!                    locked (flock) for a transaction
//! DIR/state/table    the LMDB file
//! DIR/state/ID       the beacon of a session
//! ```
//!
//! A user of a shared directory may rename and replace its files at any time. So everything is
//! opened relative to a descriptor and never through a link. A process that gets the lock makes
//! sure that the lock is still the file of that name. Root uses a directory only if it belongs to
//! root: the owner of any other directory could mislead root with its content.
//!
//! The state has a folder of its own because DIR may be sticky, as /tmp is. In a sticky directory,
//! no user may open another user's file with the flags that LMDB uses (fs.protected_regular in
//! proc(5)). Nor may a user remove the beacon of another user's dead session there.

mod examine;
mod place;
mod rights;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Stat, StatVfs, fstat, inotify};
use rustix::io::Errno;
use rustix::process::geteuid;

pub(super) use self::place::default as default_place;
use self::place::same_file;
use self::rights::Rights;
use rlock_model::request::SessionId;
use rlock_store::error::Error;
use rlock_store::identity;
use rlock_store::operations::Elsewhere;
use rlock_sys::passwd;
use rlock_words::{Explained, reason};

const STATE: &str = "state";
const LOCK: &str = "lock";
const TABLE: &str = "table";
/// The new name of a damaged table, which is kept for a later examination.
const DAMAGED_TABLE: &str = "table.damaged";

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    is_default: bool,
    dir: OwnedFd,
    state: OwnedFd,
    state_owner: u32,
    lock: OwnedFd,
    lock_stat: Stat,
    rights: Rights,
}

/// Proof that this process holds the lock on the state. The lock is released on drop.
pub(super) struct Locked<'a>(&'a Directory);

impl<'a> Locked<'a> {
    /// The directory of the locked state.
    pub(super) fn directory(&self) -> &'a Directory {
        self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl AsFd for Directory {
    /// The folder of the state.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }
}

impl Directory {
    /// Opens the directory at `path`, or the default one, and makes a missing directory.
    pub(super) fn open(path: Option<PathBuf>) -> Result<Self, Error> {
        let is_default = path.is_none();
        let path: PathBuf = match path {
            // The components drop a slash at the end, which would follow a symbolic link.
            Some(path) => path.components().collect(),
            None => place::default()?,
        };
        Self::open_at(path, is_default)
    }

    fn open_at(path: PathBuf, is_default: bool) -> Result<Self, Error> {
        Self::try_open_at(&path, is_default).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied if is_default => {
                unusable(&path, Explained::new(reason(&error), "name a directory that you may write with --store"))
            }
            io::ErrorKind::PermissionDenied => unusable(&path, denied(&path, &reason(&error))),
            _ => unusable(&path, &error),
        })
    }

    fn try_open_at(path: &Path, is_default: bool) -> io::Result<Self> {
        let (dir, stat) = place::open(path, is_default)?;
        let rights = Rights::of(&stat);
        let state = rights.folder(&dir, STATE).map_err(advised_inside)?;
        let state_owner = fstat(&state)?.st_uid;
        let (lock, lock_stat, _) = rights.file(&state, LOCK).map_err(advised_inside)?;
        Ok(Self { path: path.to_owned(), is_default, dir, state, state_owner, lock, lock_stat, rights })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The default directories on this machine except this one, with their owners.
    pub(super) fn others(&self) -> Elsewhere {
        let mut elsewhere = Elsewhere::default();
        for (path, user) in place::others(&self.dir) {
            let text = format!("{} ({user})", path.display());
            match has_beacons(&path.join(STATE)) {
                Ok(true) => elsewhere.used.push(text),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => elsewhere.unreadable.push(text),
                Ok(false) | Err(_) => {}
            }
        }
        elsewhere
    }

    /// Makes the error of a store that cannot be used because of `reason`.
    pub(super) fn unusable(&self, reason: impl Into<Explained>) -> Error {
        unusable(&self.path, reason)
    }

    /// The owner of the state's folder when this process opened it.
    pub(super) fn state_owner(&self) -> u32 {
        self.state_owner
    }

    /// The descriptor that is locked with flock(2). The kernel releases the lock when its owner
    /// dies.
    pub(super) fn lock_file(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Returns the guard of a lock that the caller has taken on [`lock_file`](Self::lock_file).
    pub(super) fn locked(&self) -> Locked<'_> {
        Locked(self)
    }

    pub(super) fn unlock(&self) {
        // The call fails only for a descriptor that is not open.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }

    /// Whether the lock is still the file that other processes find by its path. If somebody has
    /// removed, replaced or renamed the file or a folder above it, or has mounted something over
    /// one, other processes lock another file.
    pub(super) fn is_in_place(&self) -> io::Result<bool> {
        let named = self.path.join(STATE).join(LOCK);
        is_name_of(rustix::fs::lstat(named), &self.lock_stat)
    }

    /// Whether other processes lock another file, or may do so: somebody has put a folder in the
    /// way that this process may not enter.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_in_place()
            .map_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied, |is_in_place| !is_in_place)
    }

    /// Opens the directory again, and makes a missing directory, after somebody has removed or
    /// replaced it.
    pub(super) fn reopen(&mut self) -> Result<(), Error> {
        *self = Self::open_at(self.path.clone(), self.is_default)?;
        Ok(())
    }

    /// Opens the directory again if there is one at its path.
    pub(super) fn reopen_if_there(&mut self) -> Result<(), Error> {
        rustix::fs::lstat(&self.path).map_err(|error| self.unusable(&io::Error::from(error)))?;
        self.reopen()
    }

    /// The modification time of the lock file, at which a transaction last changed the table.
    pub(super) fn last_change(&self) -> Option<(i64, i64)> {
        let stat = rustix::fs::fstat(&self.lock).ok()?;
        Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).ok()?))
    }

    /// Makes a descriptor that becomes readable when a transaction changes the table, or when
    /// somebody removes or replaces the lock file, or renames its folder or the directory.
    pub(super) fn watch(&self) -> io::Result<OwnedFd> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        // Each transaction that changes the table writes its seal into the lock file.
        let lock = format!("/proc/self/fd/{}", self.lock.as_raw_fd());
        inotify::add_watch(&changes, lock, inotify::WatchFlags::MODIFY | inotify::WatchFlags::ATTRIB)?;
        for folder in [&self.state, &self.dir] {
            let folder = format!("/proc/self/fd/{}", folder.as_raw_fd());
            inotify::add_watch(&changes, folder, inotify::WatchFlags::MOVE_SELF)?;
        }
        Ok(changes)
    }

    pub(super) fn has_table(&self) -> io::Result<bool> {
        match rustix::fs::statat(&self.state, TABLE, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// Opens the table's file, or makes it with the right permissions. Returns also what it is, and
    /// whether it is new.
    pub(super) fn open_table(&self) -> io::Result<(OwnedFd, Stat, bool)> {
        self.rights.file(&self.state, TABLE).map_err(advised_inside)
    }

    /// Makes a named pipe in the folder of the state, and opens it.
    pub(super) fn make_pipe(&self, name: &str) -> io::Result<(OwnedFd, Stat)> {
        self.rights.pipe(&self.state, name)
    }

    /// The sessions whose beacons are in the folder.
    pub(super) fn beacons(&self) -> io::Result<Vec<SessionId>> {
        let mut sessions = Vec::new();
        for entry in Dir::read_from(&self.state)? {
            let entry = entry?;
            sessions.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<SessionId>().ok()));
        }
        Ok(sessions)
    }

    /// Removes the table. No session may live.
    pub(super) fn remove_table(&self, _: &Locked<'_>) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.state, TABLE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames a damaged table, replacing an earlier damaged one. No session may live. Returns the
    /// new path of the table.
    pub(super) fn put_aside(&self, _: &Locked<'_>) -> io::Result<PathBuf> {
        rustix::fs::renameat(&self.state, TABLE, &self.state, DAMAGED_TABLE)?;
        Ok(self.path.join(STATE).join(DAMAGED_TABLE))
    }

    /// Whether an opened table is the file that other processes find.
    pub(super) fn is_table(&self, table: &Stat) -> io::Result<bool> {
        is_name_of(rustix::fs::statat(&self.state, TABLE, AtFlags::SYMLINK_NOFOLLOW), table)
    }
}

fn unusable(path: &Path, reason: impl Into<Explained>) -> Error {
    Error::Unavailable(reason.into().behind(format_args!("the store in {} can't be used: ", path.display())))
}

/// The free space of a file system, for this user. ramfs and a tmpfs without a limit state no
/// blocks at all, which says nothing about room.
pub(super) fn free_bytes(room: &StatVfs) -> Option<u64> {
    (room.f_blocks > 0).then(|| room.f_bavail.saturating_mul(room.f_frsize))
}

/// Whether a name, by the result of stat(2), stands for this file. A failed call proves nothing
/// unless it says that there is no file.
fn is_name_of(named: rustix::io::Result<Stat>, file: &Stat) -> io::Result<bool> {
    match named {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        named => Ok(same_file(Ok(named?), Ok(*file))),
    }
}

/// Whether a session of a store lives, or has died without a trace: there is a beacon.
fn has_beacons(state: &Path) -> io::Result<bool> {
    let mut names = std::fs::read_dir(state)?.flatten().map(|entry| entry.file_name());
    Ok(names.any(|name| name.to_str().is_some_and(|name| name.parse::<SessionId>().is_ok())))
}

/// The error of a directory in which another program's file has the name of one of rlock's.
pub(super) fn foreign() -> io::Error {
    Explained::new("what is in it is not rlock's", "name another directory").into()
}

/// Says why the user may not use the directory that the store's name leads to, where the others of
/// the machine lock.
fn denied(path: &Path, reason: &str) -> Explained {
    let user = identity::user(geteuid().as_raw());
    let (whose, remedy) = match rustix::fs::stat(path) {
        Ok(stat) if stat.st_mode & 0o030 == 0o030 && stat.st_gid != 0 => {
            let group = passwd::group(stat.st_gid).unwrap_or_else(|| stat.st_gid.to_string());
            let whose = format!("; it belongs to group {group} ({:o})", stat.st_mode & 0o7777);
            (whose, format!("ask root for 'usermod -aG {group} {user}' and log in anew"))
        }
        Ok(stat) => {
            let whose = format!("; it belongs to user {} ({:o})", identity::user(stat.st_uid), stat.st_mode & 0o7777);
            (whose, "ask root to share it with a group of yours".to_owned())
        }
        Err(_) => (String::new(), "ask root to make it for a group of yours".to_owned()),
    };
    let remedy = format!("{remedy}; another store would exclude nobody here");
    Explained::new(format!("{reason} for user {user}{whose}"), remedy)
}

/// Adds advice to the error of a directory that cannot be opened or made.
fn advised(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => Explained::new("the directory above it does not exist", "make that first").into(),
        // The sandbox of an agent. Other processes of the machine use the directory that is named.
        io::ErrorKind::ReadOnlyFilesystem => {
            let remedy = "let the sandbox write there; another --store would exclude nobody here";
            Explained::new(reason(&error), remedy).into()
        }
        _ => error,
    }
}

/// Adds advice to the error of a file in the directory that cannot be opened or made. A file of an
/// unexpected kind was not made by rlock.
pub(super) fn advised_inside(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::LOOP) => foreign(),
        // The directory is a place where no file can be made, such as /proc.
        Some(Errno::NOENT) => error,
        _ => advised(error),
    }
}
