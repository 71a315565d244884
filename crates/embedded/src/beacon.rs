//! A session's beacon: a named pipe that the session's process keeps open for reading as long as it
//! lives. The sessions of one process share a pipe; each has a hard link with its id as the name.
//!
//! The kernel closes the pipe when the process ends, however it ends and in whatever pid namespace.
//! This fact serves three purposes:
//!
//! - **alive or dead**: opening the pipe for writing without blocking fails if no process reads it;
//! - **wake**: the id of a session in the pipe wakes the process, which polls the pipe; the
//!   complement of the id asks the process to look at the end of a claim lease;
//! - **watch**: a process that holds the writing end polls it for no event at all. An error wakes
//!   this process when the last reader is gone, and nothing else does.
//!
//! Anybody who may write to a shared directory can replace a beacon by another file. Therefore the
//! session's record contains the beacon's [`Identity`], and only a pipe with that identity tells
//! whether the session lives. Without that pipe, the process decides, which the identity names as
//! well: by its number, its start and its pid namespace, and by the boot.
//!
//! Inotify could serve for watching, but a user may have only 128 inotify instances. A file lock
//! tells a live process from a dead one, but only to a thread that sleeps on the lock.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, statat};
use rustix::io::Errno;
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::{ending, lock_file};
use rlock_model::request::SessionId;
use rlock_sys::clock::Boottime;
use rlock_sys::{processes, tree_end};

/// Bytes of a page, which is the least capacity of a pipe. A larger page is no harm.
const PAGE_BYTES: usize = 4096;

/// The beacon of this process's own sessions.
#[derive(Debug)]
pub(super) struct Beacon {
    pipe: OwnedFd,
    identity: Identity,
}

/// The attributes that tell a beacon from any other file in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Identity {
    /// The inode number of the pipe.
    pub(super) inode: u64,
    /// The user whose process made the beacon.
    pub(super) owner: u32,
    /// In which users `owner` counts, see [`users`].
    pub(super) users: u64,
    /// The process that made the beacon.
    pub(super) pid: u32,
    /// The inode of the pid namespace in which `pid` counts; 0 if the namespace is not known.
    pub(super) pids: u64,
    /// When the process started, in ticks since the boot; 0 if that is not known.
    pub(super) started: u64,
    /// The inode of the time namespace in which `started` counts.
    pub(super) times: u64,
    /// The kernel's id of the boot; 0 if it is not known.
    pub(super) boot: u128,
}

/// A session of another process, and its beacon.
pub(super) type Watched = (SessionId, OwnedFd);

/// The state of another session, as its beacon shows it.
#[derive(Debug)]
pub(super) enum Peer {
    /// The session's process lives. The writing end of its pipe serves to wake or watch it.
    Alive(OwnedFd),
    /// The session's process is dead, but its pipe is open: its guardian is about to kill the
    /// process tree that is left. The session counts as alive until then.
    Ending(OwnedFd),
    /// The session's process is dead.
    Dead,
    /// Somebody has removed or replaced the pipe, and the process may live.
    Missing,
}

impl Beacon {
    /// Creates the beacon of a session before any other process can know that session. The state is
    /// locked meanwhile. Otherwise another process could see the pipe before its first reader, and
    /// take the session for dead.
    pub(super) fn light(directory: &Directory, session: SessionId) -> io::Result<Self> {
        let (pipe, stat) = directory.make_pipe(&session.to_string())?;
        Ok(Self { pipe, identity: Identity::of(&stat, directory) })
    }

    /// Makes this the beacon of another session too. The name leads to this very pipe, whatever
    /// somebody has put in the place of its other names.
    pub(super) fn share(&self, directory: &Directory, session: SessionId) -> io::Result<()> {
        let pipe = format!("/proc/self/fd/{}", self.pipe.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, pipe, directory, session.to_string(), AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Makes sure that a session of this beacon still has its name, before the session returns to
    /// the table. Somebody may have removed or replaced the name meanwhile. A pipe without any name
    /// can't get one again, so the only session of a beacon gets a new pipe.
    pub(super) fn restore(&mut self, directory: &Directory, session: SessionId, is_only: bool) -> io::Result<()> {
        let named = rustix::fs::statat(directory, session.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        if named.is_ok_and(|stat| is_it(directory, &stat, Some(&self.identity))) {
            return Ok(());
        }
        remove(directory, session);
        match self.share(directory, session) {
            Err(error) if is_only && error.kind() == io::ErrorKind::NotFound => {
                *self = Self::light(directory, session)?;
                Ok(())
            }
            result => result,
        }
    }

    /// The attributes that tell this beacon from any other file.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Reads the messages to the sessions of the process. Returns `None` if any session may have
    /// been woken: the pipe was too full for every message, or holds something else.
    pub(super) fn messages(&self) -> io::Result<Option<Vec<SessionId>>> {
        let (mut bytes, mut buffer) = (Vec::new(), [0; PAGE_BYTES]);
        loop {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // A full pipe refuses ids. Half of its capacity counts as full, because ids and pages
            // need not fit together.
            if bytes.len() >= PAGE_BYTES / 2 && bytes.len() >= fcntl_getpipe_size(&self.pipe)? / 2 {
                return Ok(None);
            }
            if bytes.len() % PAGE_BYTES != 0 {
                break;
            }
        }
        let (ids, rest) = bytes.as_chunks();
        Ok(rest.is_empty().then(|| ids.iter().map(|id| SessionId(*id)).collect()))
    }
}

impl AsFd for Beacon {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Identity {
    fn of(stat: &Stat, directory: &Directory) -> Self {
        Self {
            inode: stat.st_ino,
            owner: stat.st_uid,
            users: users(directory),
            pid: std::process::id(),
            pids: pid_namespace(),
            started: processes::own_start().unwrap_or(0),
            times: time_namespace(),
            boot: boot(),
        }
    }

    /// Whether the process is one of this pid namespace. The processes of another one can't be
    /// seen.
    pub(super) fn is_near(&self) -> bool {
        self.pids != 0 && self.pids == pid_namespace()
    }

    /// Whether the process is gone.
    fn is_gone(&self) -> bool {
        self.is_near() && ending::is_gone(self.pid)
    }

    /// Whether no process can be the one that made the beacon: it is gone, its number is used
    /// again, or the kernel has booted since. What can't be seen or compared counts as alive.
    pub(super) fn names_no_process(&self) -> bool {
        if self.boot != 0 && boot() != 0 && self.boot != boot() {
            return true;
        }
        self.is_gone() || self.is_near() && self.is_used_again()
    }

    fn is_used_again(&self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        self.started != 0
            && self.times == time_namespace()
            && processes::are_visible()
            && processes::stat(pid).is_ok_and(|stat| stat.process.started != self.started)
    }

    /// Continues the process if it is stopped and can be seen.
    pub(super) fn continue_if_stopped(&self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw).filter(|_| self.is_near()) else { return };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // The number was not used again if the descriptor is older than this look.
        let is_it = |stat: &processes::Stat| stat.stopped && self.started != 0 && stat.process.started == self.started;
        if processes::stat(pid).is_ok_and(|stat| is_it(&stat)) {
            let _ = pidfd_send_signal(&process, Signal::CONT);
        }
    }

    /// The number that the owner has among the users of this process. A beacon from other users has
    /// to be looked at; the result is `None` if it is gone or replaced.
    pub(super) fn owner_here(&self, directory: &Directory, session: SessionId) -> Option<u32> {
        if self.users == users(directory) {
            return Some(self.owner);
        }
        let stat = rustix::fs::statat(directory, session.to_string(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        is_it(directory, &stat, Some(self)).then_some(stat.st_uid)
    }

    /// Whether the beacon may belong to this user, as this process sees users. A process that sees
    /// other users has recorded another number.
    fn may_belong_to(&self, user: u32, directory: &Directory) -> bool {
        user == self.owner || self.users != users(directory)
    }
}

/// Looks at another session's beacon, the pipe with this identity. If the identity is not known,
/// any named pipe counts as the beacon.
pub(super) fn look(directory: &Directory, session: SessionId, identity: Option<&Identity>) -> io::Result<Peer> {
    Ok(match reach(directory, session, identity)? {
        Peer::Alive(pipe) if identity.is_some_and(Identity::is_gone) => Peer::Ending(pipe),
        peer => peer,
    })
}

/// Opens another session's beacon, for a message that a process which is about to end may ignore.
pub(super) fn reach(directory: &Directory, session: SessionId, identity: Option<&Identity>) -> io::Result<Peer> {
    let name = session.to_string();
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(directory, &name, flags, Mode::empty()) {
        Ok(pipe) => {
            let is_it = is_it(directory, &fstat(&pipe)?, identity);
            Ok(if is_it { Peer::Alive(pipe) } else { without_pipe(identity) })
        }
        // No process reads the pipe. The pipe was not opened, so its identity is still unchecked.
        Err(Errno::NXIO) => look_closely(directory, &name, identity),
        Err(Errno::NOENT) => Ok(without_pipe(identity)),
        // No rlock process makes a link, a folder or a file that others may not open.
        Err(Errno::LOOP | Errno::ISDIR | Errno::ACCESS | Errno::PERM) if identity.is_some() => {
            Ok(without_pipe(identity))
        }
        Err(error) => Err(error.into()),
    }
}

/// The state of a session without its pipe.
fn without_pipe(identity: Option<&Identity>) -> Peer {
    if identity.is_some_and(Identity::names_no_process) { Peer::Dead } else { Peer::Missing }
}

/// The instant at which the guardian of a dead holder saw that nothing of the tree is left, if it
/// has noted one that counts here.
pub(super) fn tree_end(directory: &Directory, session: SessionId, identity: &Identity) -> Option<Boottime> {
    let stat = rustix::fs::statat(directory, session.to_string(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_of_this_clock = identity.boot != 0 && identity.boot == boot() && identity.times == time_namespace();
    tree_end::noted(&stat).filter(|_| is_of_this_clock && is_it(directory, &stat, Some(identity)))
}

/// Looks at a beacon through an O_PATH descriptor, which opens nothing. So the file that is checked
/// is the file that is then opened.
fn look_closely(directory: &Directory, name: &str, identity: Option<&Identity>) -> io::Result<Peer> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let found = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(without_pipe(identity)),
        found => found?,
    };
    if !is_it(directory, &fstat(&found)?, identity) {
        return Ok(without_pipe(identity));
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(pipe) => Ok(Peer::Alive(pipe)),
        Err(Errno::NXIO) => Ok(Peer::Dead),
        Err(error) => Err(error.into()),
    }
}

/// The users as this process sees them in a directory: the inode of its user namespace, which is
/// 0 if it is not known, and above that the owner of the state's folder. The numbers of users
/// differ between two id-mapped mounts of one directory, and so does that owner.
fn users(directory: &Directory) -> u64 {
    static INODE: OnceLock<u64> = OnceLock::new();
    namespace(&INODE, "user") | u64::from(directory.state_owner()) << 32
}

/// The inode of this process's pid namespace.
fn pid_namespace() -> u64 {
    static INODE: OnceLock<u64> = OnceLock::new();
    namespace(&INODE, "pid")
}

/// The inode of this process's time namespace, which decides what the time since the boot is.
pub(super) fn time_namespace() -> u64 {
    static INODE: OnceLock<u64> = OnceLock::new();
    namespace(&INODE, "time")
}

/// The inode of this process's namespace of a kind, see namespaces(7). rlock never enters another
/// one, and the kernel makes an inode for each question.
fn namespace(inode: &OnceLock<u64>, kind: &str) -> u64 {
    *inode.get_or_init(|| rustix::fs::stat(format!("/proc/self/ns/{kind}")).map_or(0, |stat| stat.st_ino))
}

/// The kernel's id of this boot as a number; 0 if this process can't read it.
fn boot() -> u128 {
    if lock_file::is_boot_of_kernel() {
        u128::from_str_radix(&lock_file::boot().replace('-', ""), 16).unwrap_or(0)
    } else {
        0
    }
}

fn is_it(directory: &Directory, stat: &Stat, identity: Option<&Identity>) -> bool {
    let is = |identity: &Identity| identity.inode == stat.st_ino && identity.may_belong_to(stat.st_uid, directory);
    FileType::from_raw_mode(stat.st_mode) == FileType::Fifo && identity.is_none_or(is)
}

/// When a session has to look at the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// The session was granted its request, or what blocks it has changed.
    Now,
    /// A session ahead was granted its request. If it does not claim the grant in time, it is
    /// passed over, and somebody has to notice that.
    AtEndOfClaim,
}

impl Wake {
    /// Writes the message into the open pipe of the session. A full pipe wakes all sessions of the
    /// process, and a process that has just died needs no wake-up.
    pub(super) fn send(self, pipe: impl AsFd, session: SessionId) {
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&pipe, &self.message(session)));
    }

    fn message(self, session: SessionId) -> [u8; 16] {
        match self {
            Self::Now => session.0,
            Self::AtEndOfClaim => session.0.map(|byte| !byte),
        }
    }
}

/// The session whose id is the complement of this one.
pub(super) fn complement(session: SessionId) -> SessionId {
    SessionId(Wake::AtEndOfClaim.message(session))
}

/// Wakes the process of a session, and tells it which session is meant.
///
/// # Errors
/// The pipe cannot be opened now, for example because this process has too many open files.
pub(super) fn wake(
    directory: &Directory,
    session: SessionId,
    identity: Option<&Identity>,
    wake: Wake,
) -> io::Result<()> {
    if let Peer::Alive(pipe) = reach(directory, session, identity)? {
        wake.send(pipe, session);
    }
    Ok(())
}

/// Removes the name of a session's beacon. The name may already be gone. The processes that watch
/// the pipe still see it close with its process.
pub(super) fn remove(directory: &Directory, session: SessionId) {
    let _ = rustix::fs::unlinkat(directory, session.to_string(), AtFlags::empty());
}

/// Removes all beacons. None may have a reader.
pub(super) fn remove_all(directory: &Directory) -> io::Result<()> {
    for session in directory.beacons()? {
        remove(directory, session);
    }
    Ok(())
}

/// Whether the process of any session lives.
pub(super) fn anybody_lives(directory: &Directory) -> io::Result<bool> {
    for session in directory.beacons()? {
        if !matches!(look(directory, session, None)?, Peer::Dead | Peer::Missing) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Watches the names of the beacons of holders that a line on the terminal names.
///
/// A pipe does not show the end of a session whose process goes on, such as that of a client of
/// `rlock serve`. But that process then removes the session's name of the pipe, which changes the
/// pipe's number of names. All its sessions do that, so only a missing name counts.
#[derive(Debug)]
pub(super) struct Names {
    changes: OwnedFd,
    sessions: Vec<SessionId>,
}

impl Names {
    /// Watches the names of these holders. `None` if nothing is to be watched, or if the user has
    /// too many watches: the line then names a holder that has released until something else
    /// changes.
    pub(super) fn watch(holders: &[Watched]) -> Option<Self> {
        if holders.is_empty() {
            return None;
        }
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        for (_, pipe) in holders {
            inotify::add_watch(&changes, format!("/proc/self/fd/{}", pipe.as_raw_fd()), WatchFlags::ATTRIB).ok()?;
        }
        Some(Self { changes, sessions: holders.iter().map(|(session, _)| *session).collect() })
    }

    /// Whether any of the holders has removed its name.
    pub(super) fn is_any_gone(&self, directory: &Directory) -> bool {
        let is_gone = |id: &SessionId| statat(directory, id.to_string(), AtFlags::SYMLINK_NOFOLLOW).is_err();
        self.sessions.iter().any(is_gone)
    }

    /// Takes the reports of changes. Returns whether there were any.
    pub(super) fn take_changes(&self) -> bool {
        let mut reports = [0; 4096];
        let mut found = false;
        while rustix::io::read(&self.changes, &mut reports).is_ok_and(|read| read > 0) {
            found = true;
        }
        found
    }
}

impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}
