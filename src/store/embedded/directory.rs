//! The directory of an embedded store: its place, its permissions, and the lock on its state.
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

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid, fstat, inotify};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::beacon::{self, Peer};
use super::lock_file::{self, FORMAT};
use crate::lock::request::SessionId;
use crate::store::facts::DirectoryFacts;
use crate::store::{Elsewhere, Error};
use crate::system::passwd;
use crate::words::{Explained, reason};

/// The parent of root's default directory. Only root may make a directory here, and a boot empties
/// it.
const RUN: &str = "/run";
/// The name of root's directory in `/run`.
const IN_RUN: &str = "rlock";
/// The parent of the default directories of other users. Anybody may make a directory here, and a
/// boot empties it. Root's directory is not here, because any user could make a directory of its
/// name first.
const RUN_LOCK: &str = "/run/lock";
/// The start of a directory's name in `/run/lock`; the rest is the user id.
const IN_RUN_LOCK: &str = "rlock-";
/// The directory below a user's home, for a machine without `/run/lock`.
const BELOW_HOME: &str = ".local/state/rlock";

/// The formats that were never released. A state of them is replaced as soon as no session uses it.
const UNRELEASED: [&[u8]; 2] = [b"1", b"2"];

const STATE: &str = "state";
const LOCK: &str = "lock";
const TABLE: &str = "table";
/// The new name of a damaged table, which is kept for a later examination.
const DAMAGED_TABLE: &str = "table.damaged";

/// File systems that several machines may share, by `f_type` of statfs(2). A lock of one machine
/// may mean nothing on another. FUSE is in the list because sshfs and similar network file systems
/// cannot be told from local ones.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 13] = [
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFE53_4D42, "smb2"),
    (0xFF53_4D42, "cifs"),
    (0x564C, "ncp"),
    (0x5346_414F, "afs"),
    (0x7375_7245, "coda"),
    (0x00C3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "gfs2"),
    (0x7461_636F, "ocfs2"),
    (0x0BD0_0BD0, "lustre"),
    (0x6573_5546, "fuse"),
];

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    is_default: bool,
    dir: OwnedFd,
    state: OwnedFd,
    lock: OwnedFd,
    rights: Rights,
}

/// The ownership and permissions that a store's files take over from its directory. So everybody
/// who may write to the directory may use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    owner: u32,
    group: u32,
    file: u32,
    folder: u32,
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
            None => default_path()?,
        };
        Self::open_at(path, is_default)
    }

    fn open_at(path: PathBuf, is_default: bool) -> Result<Self, Error> {
        Self::try_open_at(&path, is_default).map_err(|error| unusable(&path, &error))
    }

    fn try_open_at(path: &Path, is_default: bool) -> io::Result<Self> {
        let dir = open_or_make(path, is_default).map_err(advised)?;
        let stat = fstat(&dir)?;
        check_file_system(&dir)?;
        if is_default {
            check_private(&stat)?;
        }
        check_owner(&stat)?;
        let rights = Rights::of(&stat);
        let state = rights.folder(&dir, STATE).map_err(advised_inside)?;
        let lock = rights.file(&state, LOCK).map_err(advised_inside)?;
        Ok(Self { path: path.to_owned(), is_default, dir, state, lock, rights })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The default directories on this machine except this one, with their owners.
    pub(super) fn others(&self) -> Elsewhere {
        let mut paths = vec![(0, Path::new(RUN).join(IN_RUN))];
        let entries = std::fs::read_dir(RUN_LOCK).into_iter().flatten().flatten();
        paths.extend(entries.filter_map(|entry| {
            let uid = entry.file_name().to_str()?.strip_prefix(IN_RUN_LOCK)?.parse().ok()?;
            (uid != 0).then(|| (uid, entry.path()))
        }));
        paths.sort_unstable();
        let is_store = |uid: u32, path: &Path| {
            let Ok(stat) = rustix::fs::lstat(path) else { return false };
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            // Anybody may make a directory in /run/lock, but rlock uses only that of the user.
            is_directory && stat.st_uid == uid && !same_file(Ok(stat), fstat(&self.dir))
        };
        let user = |uid| passwd::lookup(uid).map_or_else(|| format!("uid {uid}"), |(name, _)| name);
        let mut elsewhere = Elsewhere::default();
        for (uid, path) in paths.into_iter().filter(|(uid, path)| is_store(*uid, path)) {
            let text = format!("{} ({})", path.display(), user(uid));
            match has_beacons(&path.join(STATE)) {
                Ok(true) => elsewhere.used.push(text),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => elsewhere.unreadable.push(text),
                Ok(false) | Err(_) => {}
            }
        }
        elsewhere
    }

    /// Gathers the facts about this directory.
    pub(super) fn examine(&self) -> io::Result<DirectoryFacts> {
        let stat = fstat(&self.dir)?;
        let table = rustix::fs::statat(&self.state, TABLE, AtFlags::SYMLINK_NOFOLLOW).ok();
        let room = rustix::fs::fstatvfs(&self.state).ok();
        Ok(DirectoryFacts {
            path: self.path.clone(),
            user: geteuid().as_raw(),
            owner: stat.st_uid,
            mode: stat.st_mode,
            owner_name: passwd::lookup(stat.st_uid).map_or_else(|| stat.st_uid.to_string(), |(name, _)| name),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the kernel's numbers have 32 bits"
            )]
            file_system: rustix::fs::fstatfs(&self.dir).ok().map(|found| found.f_type as u32),
            free: room.as_ref().map(|room| room.f_bavail.saturating_mul(room.f_frsize)),
            // File systems such as btrfs make inodes on demand, and state none.
            files_left: room.filter(|room| room.f_files > 0).map(|room| room.f_favail),
            table: table.map(|table| u64::try_from(table.st_size).unwrap_or(0)),
            files: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
        })
    }

    /// Makes the error of a store that cannot be used because of `reason`.
    pub(super) fn unusable(&self, reason: impl Into<Explained>) -> Error {
        unusable(&self.path, reason)
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
        is_name_of(rustix::fs::lstat(named), &fstat(&self.lock)?)
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

    /// Makes sure that the state has this format. Returns [`Age::EarlierBoot`] for the state of an
    /// earlier boot: none of its processes lives, and its table was written without waiting for the
    /// disk. So its table loses its seal, and is read whole before it is used. The same holds for a
    /// table beside a lock file that somebody has emptied or overwritten.
    pub(super) fn prepare(&self, locked: &Locked<'_>) -> io::Result<Age> {
        let found = lock_file::Text::read(&self.lock)?;
        let boot = lock_file::boot();
        if found.is_of(boot) {
            return Ok(Age::ThisBoot);
        }
        let format = found.format();
        let is_new = match format {
            Some(format) if format == FORMAT.as_bytes() => false,
            Some(format) if UNRELEASED.contains(&format) && !self.anybody_lives()? => true,
            Some(format) => {
                let format = String::from_utf8_lossy(format);
                let what = format!("it has format {format} and this rlock knows format {FORMAT}");
                return Err(Explained::new(what, "use one version of rlock on a machine").into());
            }
            None if found.is_empty() => !self.has_table()?,
            None if found.is_overwritten() || self.anybody_lives()? => false,
            None => return Err(foreign()),
        };
        // A container may show another boot id than its host, so a different id alone proves
        // nothing. If a machine shows no boot id, a reboot cannot be noticed.
        let same_for_all_we_know = boot.is_empty() && format.is_some();
        if !is_new && (same_for_all_we_know || self.anybody_lives()?) {
            if format.is_none() {
                self.put_boot(locked)?;
            }
            return Ok(Age::ThisBoot);
        }
        if is_new {
            self.clear(locked).map_err(advised_inside)?;
            self.put_boot(locked)?;
            return Ok(Age::ThisBoot);
        }
        lock_file::remove_seal(self.lock_file())?;
        Ok(Age::EarlierBoot)
    }

    /// Notes that the state is of this boot, and removes the seal.
    pub(super) fn put_boot(&self, _: &Locked<'_>) -> io::Result<()> {
        lock_file::put_boot(self.lock_file())
    }

    /// The modification time of the lock file, at which a transaction last changed the table.
    pub(super) fn last_change(&self) -> Option<(i64, i64)> {
        let stat = rustix::fs::fstat(&self.lock).ok()?;
        Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).ok()?))
    }

    /// Makes a descriptor that becomes readable when a transaction changes the table, or when
    /// somebody removes or replaces the lock file.
    pub(super) fn watch(&self) -> io::Result<OwnedFd> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        // Each transaction that changes the table writes its seal into the lock file.
        let lock = format!("/proc/self/fd/{}", self.lock.as_raw_fd());
        inotify::add_watch(&changes, lock, inotify::WatchFlags::MODIFY | inotify::WatchFlags::ATTRIB)?;
        Ok(changes)
    }

    fn has_table(&self) -> io::Result<bool> {
        match rustix::fs::statat(&self.state, TABLE, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// Opens the table's file, or makes it with the right permissions.
    pub(super) fn open_table(&self) -> io::Result<OwnedFd> {
        self.rights.file(&self.state, TABLE).map_err(advised_inside)
    }

    /// Makes a named pipe and opens it for reading and writing. Opening it only for reading would
    /// wait for a writer, and reads would report an end of file after each writer.
    pub(super) fn make_pipe(&self, name: &str) -> io::Result<(OwnedFd, Stat)> {
        regardless_of_umask(|| rustix::fs::mkfifoat(&self.state, name, Mode::from_raw_mode(self.rights.file)))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let pipe = rustix::fs::openat(&self.state, name, flags, Mode::empty())?;
        let stat = fstat(&pipe)?;
        // Somebody may have replaced the pipe between the two calls.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo || stat.st_uid != geteuid().as_raw() {
            return Err(foreign());
        }
        let stat = if self.rights.hand_over(&pipe) { fstat(&pipe)? } else { stat };
        Ok((pipe, stat))
    }

    /// Whether the process of any session lives.
    pub(super) fn anybody_lives(&self) -> io::Result<bool> {
        for session in self.beacons()? {
            if !matches!(beacon::look(self, session, None)?, Peer::Dead | Peer::Missing) {
                return Ok(true);
            }
        }
        Ok(false)
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

    /// Removes the table and all beacons. No session may live.
    pub(super) fn clear(&self, _: &Locked<'_>) -> io::Result<()> {
        self.remove_beacons()?;
        match rustix::fs::unlinkat(&self.state, TABLE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames a damaged table, replacing an earlier damaged one, and removes all beacons. No
    /// session may live. Returns the new path of the table.
    pub(super) fn put_aside(&self, _: &Locked<'_>) -> io::Result<PathBuf> {
        self.remove_beacons()?;
        rustix::fs::renameat(&self.state, TABLE, &self.state, DAMAGED_TABLE)?;
        Ok(self.path.join(STATE).join(DAMAGED_TABLE))
    }

    /// Removes all beacons. None may have a reader.
    pub(super) fn remove_beacons(&self) -> io::Result<()> {
        for session in self.beacons()? {
            beacon::remove(self, session);
        }
        Ok(())
    }

    /// Whether an opened table is the file that other processes find.
    pub(super) fn is_table(&self, table: &Stat) -> io::Result<bool> {
        is_name_of(rustix::fs::statat(&self.state, TABLE, AtFlags::SYMLINK_NOFOLLOW), table)
    }
}

impl Rights {
    fn of(stat: &Stat) -> Self {
        let file = [0o200, 0o020, 0o002].into_iter().filter(|write| stat.st_mode & write != 0);
        let file = file.fold(0o600, |mode, write| mode | write | write << 1);
        // A user who may write may also list the folder. The folder inherits the setgid bit but not
        // the sticky bit.
        let folder = (file | (file & 0o222) >> 1) | (stat.st_mode & 0o2000);
        Self { owner: stat.st_uid, group: stat.st_gid, file, folder }
    }

    fn folder(&self, parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
        match open() {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        match regardless_of_umask(|| rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(self.folder))) {
            Ok(()) => {
                let folder = open()?;
                // Somebody may have replaced the folder between the two calls.
                if fstat(&folder)?.st_uid != geteuid().as_raw() {
                    return Ok(folder);
                }
                self.hand_over(&folder);
                // mkdir drops the setgid bit.
                rustix::fs::fchmod(&folder, Mode::from_raw_mode(self.folder))?;
                Ok(folder)
            }
            Err(Errno::EXIST) => Ok(open()?),
            Err(error) => Err(error.into()),
        }
    }

    fn file(&self, parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = flags | OFlags::CREATE | OFlags::EXCL;
        loop {
            match rustix::fs::openat(parent, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => {}
                opened => return regular(opened?),
            }
            match regardless_of_umask(|| rustix::fs::openat(parent, name, make, Mode::from_raw_mode(self.file))) {
                // Another process has just made the file.
                Err(Errno::EXIST) => {}
                made => {
                    let file = made?;
                    self.hand_over(&file);
                    return Ok(file);
                }
            }
        }
    }

    fn differ_from_mine(&self) -> bool {
        self.owner != geteuid().as_raw() || self.file & 0o060 != 0
    }

    /// Gives a new file to the directory's group, and as root also to the directory's owner.
    /// Returns whether the directory's rights call for this. A user who may not change the
    /// ownership has other ways to share: a setgid directory, or one that anybody may write.
    fn hand_over(&self, made: &OwnedFd) -> bool {
        if self.differ_from_mine() {
            let owner = geteuid().is_root().then(|| Uid::from_raw(self.owner));
            let _ = rustix::fs::fchown(made, owner, Some(Gid::from_raw(self.group)));
        }
        self.differ_from_mine()
    }
}

/// Runs `make` with an empty umask, so that a new file has exactly the given permissions. A umask
/// could take them from the directory's other users, and from its owner.
fn regardless_of_umask<T>(make: impl FnOnce() -> T) -> T {
    let umask = rustix::process::umask(Mode::empty());
    let made = make();
    rustix::process::umask(umask);
    made
}

fn unusable(path: &Path, reason: impl Into<Explained>) -> Error {
    Error::Unavailable(reason.into().behind(format_args!("the store in {} can't be used: ", path.display())))
}

/// The error of a directory in which another program's file has the name of one of rlock's.
fn foreign() -> io::Error {
    Explained::new("what is in it is not rlock's", "name another directory").into()
}

/// Adds advice to the error of a directory that cannot be opened or made.
fn advised(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => Explained::new("the directory above it does not exist", "make that first").into(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Explained::new(reason(&error), "name a directory that you may write with --store").into()
        }
        _ => error,
    }
}

/// Adds advice to the error of a file in the directory that cannot be opened or made. A file of an
/// unexpected kind was not made by rlock.
fn advised_inside(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::LOOP) => foreign(),
        // The directory is a place where no file can be made, such as /proc.
        Some(Errno::NOENT) => error,
        _ => advised(error),
    }
}

/// Refuses a file that is not regular, such as a named pipe, because rlock did not make it.
fn regular(file: OwnedFd) -> io::Result<OwnedFd> {
    let is_regular = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile;
    if is_regular { Ok(file) } else { Err(foreign()) }
}

/// When the state was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    ThisBoot,
    EarlierBoot,
}

/// The directory in which all processes of this user on this host meet. Only the host and the uid
/// determine it, never the environment.
fn default_path() -> Result<PathBuf, Error> {
    let uid = geteuid();
    if uid.is_root() {
        if rustix::fs::stat(RUN).is_ok_and(|run| only_root_writes(&run)) {
            return Ok(Path::new(RUN).join(IN_RUN));
        }
    } else if rustix::fs::stat(RUN_LOCK).is_ok_and(|run_lock| anybody_writes(&run_lock)) {
        return Ok(Path::new(RUN_LOCK).join(format!("{IN_RUN_LOCK}{uid}")));
    }
    let home = passwd::lookup(uid.as_raw()).map(|(_, home)| home).filter(|home| home.is_absolute());
    home.map(|home| home.join(BELOW_HOME)).ok_or_else(|| {
        let why = if uid.is_root() {
            format!("{RUN} is not a directory that only root may write")
        } else {
            format!("{RUN_LOCK} is not a directory that anyone may write")
        };
        let what = format!("the store has no place: {why}, and user {uid} has no home in /etc/passwd");
        Error::Unavailable(Explained::with_semicolon(what, "name a directory with --store file:///directory"))
    })
}

fn only_root_writes(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == 0 && stat.st_mode & 0o022 == 0
}

fn anybody_writes(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & 0o002 != 0
}

fn open_or_make(path: &Path, is_default: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            Err(io::Error::other("it is not a directory, or a symbolic link, which rlock does not follow"))
        }
        opened => opened.map_err(io::Error::from),
    };
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    if is_default
        && path.ends_with(BELOW_HOME)
        && let Some(parent) = path.parent()
    {
        regardless_of_umask(|| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent))?;
    }
    match regardless_of_umask(|| rustix::fs::mkdir(path, Mode::RWXU)) {
        Ok(()) | Err(Errno::EXIST) => open(),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a default directory that other users may access, because its name alone decides which
/// directory is used.
fn check_private(stat: &Stat) -> io::Result<()> {
    let uid = geteuid().as_raw();
    if stat.st_uid != uid {
        let owner = stat.st_uid;
        let what = format!("it belongs to uid {owner}, not to {uid}");
        return Err(Explained::new(what, "have it removed, or name another with --store").into());
    }
    let mode = stat.st_mode & 0o777;
    if mode != 0o700 {
        let what = format!("its permissions are {mode:03o}");
        return Err(Explained::new(what, "give it 700, for it is yours alone").into());
    }
    Ok(())
}

/// Root does not use a directory of another user, because its owner could replace the store's files
/// at any time.
fn check_owner(stat: &Stat) -> io::Result<()> {
    if geteuid().is_root() && stat.st_uid != 0 {
        let owner = stat.st_uid;
        let what = format!("it belongs to uid {owner}, who could mislead root with what is in it");
        return Err(Explained::new(what, "run rlock as that user, or give the directory to root").into());
    }
    Ok(())
}

/// Whether a name, by the result of stat(2), stands for this file. A failed call proves nothing
/// unless it says that there is no file.
fn is_name_of(named: rustix::io::Result<Stat>, file: &Stat) -> io::Result<bool> {
    match named {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        named => Ok(same_file(Ok(named?), Ok(*file))),
    }
}

fn same_file(one: rustix::io::Result<Stat>, other: rustix::io::Result<Stat>) -> bool {
    matches!((one, other), (Ok(one), Ok(other)) if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn check_file_system(dir: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstatfs(dir)?;
    // The type is a 32-bit number, which some architectures keep in a signed word.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = stat.f_type as u32;
    match NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic) {
        Some((_, name)) => {
            let what = format!("it is on a network file system ({name}), where other machines' locks are not seen");
            Err(Explained::new(what, "name a local one").into())
        }
        None => Ok(()),
    }
}

/// Whether a session of a store lives, or has died without a trace: there is a beacon.
fn has_beacons(state: &Path) -> io::Result<bool> {
    let mut names = std::fs::read_dir(state)?.flatten().map(|entry| entry.file_name());
    Ok(names.any(|name| name.to_str().is_some_and(|name| name.parse::<SessionId>().is_ok())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_inherit_the_write_permissions_of_the_directory() {
        let rights = |mode: u32| {
            let mut stat = rustix::fs::stat("/").unwrap();
            stat.st_mode = mode;
            Rights::of(&stat)
        };
        for (directory, file, folder) in [
            (0o40700, 0o600, 0o700),
            (0o40755, 0o600, 0o700),
            (0o40770, 0o660, 0o770),
            (0o42775, 0o660, 0o2770),
            (0o41777, 0o666, 0o777),
        ] {
            let rights = rights(directory);
            assert_eq!((rights.file, rights.folder), (file, folder), "{directory:o}");
        }
    }
}
