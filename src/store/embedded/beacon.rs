//! A session's beacon: a named pipe that its process keeps open for reading as long as it lives.
//!
//! The kernel closes the pipe with its process, however that ends and in whatever pid namespace,
//! and that one fact serves three ends:
//!
//! - **alive or dead**: opening the pipe for writing without waiting fails when nobody reads it;
//! - **wake**: a byte written into it wakes the process, which polls it;
//! - **watch**: who holds its writing end, and polls for no event at all, is woken with an error
//!   when the last reader is gone, and by
//!   nothing else.
//!
//! Whoever may write to a shared directory can put another file in the place of a beacon. So the
//! session's record has the beacon's [`Identity`], and only a pipe with that identity tells whether
//! the session lives.
//!
//! Inotify would do for watching, but a user has 128 of its instances; a lock on a file tells life
//! from death, but only to a thread that sleeps on it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat};
use rustix::io::Errno;

use super::directory::Directory;
use super::ending;
use crate::lock::request::SessionId;

/// The beacon of this process's own session.
#[derive(Debug)]
pub(super) struct Beacon {
    pipe: OwnedFd,
    session: SessionId,
    identity: Identity,
}

/// What tells a beacon from any other file in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The number of its inode.
    pub(super) inode: u64,
    /// The user whose process made it.
    pub(super) owner: u32,
    /// The process that made it.
    pub(super) pid: u32,
    /// The pid namespace in which the process has that id, by its inode; 0 if that is not known.
    pub(super) namespace: u64,
}

/// What another session's beacon tells.
#[derive(Debug)]
pub(super) enum Peer {
    /// Its process lives. The writing end of its pipe, to wake or to watch it.
    Alive(OwnedFd),
    /// Its process is dead.
    Dead,
    /// Somebody has removed the pipe, or put something else in its place, so nobody can tell.
    Missing,
}

impl Beacon {
    /// Lights the beacon of a session, before anybody can know of that session. The state is locked
    /// meanwhile, lest somebody takes the pipe that nobody reads yet for one that nobody reads any
    /// more.
    pub(super) fn light(directory: &Directory, session: SessionId) -> io::Result<Self> {
        let (pipe, stat) = directory.make_pipe(&session.to_string())?;
        Ok(Self { pipe, session, identity: Identity::of(&stat) })
    }

    /// What tells it from any other file.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Takes out the bytes that woke it.
    pub(super) fn drain(&self) -> io::Result<()> {
        let mut buffer = [0; 64];
        loop {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(read) if read == buffer.len() => {}
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes its name. Those who watch it still see it end with the process.
    pub(super) fn remove(&self, directory: &Directory) {
        remove(directory, self.session);
    }
}

impl AsFd for Beacon {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Identity {
    fn of(stat: &Stat) -> Self {
        Self { inode: stat.st_ino, owner: stat.st_uid, pid: std::process::id(), namespace: namespace() }
    }

    /// Whether the process is gone although its beacon is not: then its guardian is about to end
    /// what it left behind.
    fn is_ending(&self) -> bool {
        ending::is_gone(self.pid) && self.namespace != 0 && self.namespace == namespace()
    }
}

/// Looks for another session's beacon, which is the one with this identity; where that is not
/// known, it is any named pipe.
pub(super) fn look(directory: &Directory, session: SessionId, identity: Option<&Identity>) -> io::Result<Peer> {
    let name = session.to_string();
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(directory, &name, flags, Mode::empty()) {
        Ok(pipe) => {
            let stat = fstat(&pipe)?;
            Ok(match is_it(&stat, identity) {
                true if identity.is_some_and(Identity::is_ending) && ending::wait_for_tree(&pipe) => Peer::Dead,
                true => Peer::Alive(pipe),
                false => Peer::Missing,
            })
        }
        // Nobody reads it. It was not opened, so nothing says yet that it is the right one.
        Err(Errno::NXIO) => look_closely(directory, &name, identity),
        Err(Errno::NOENT) => Ok(Peer::Missing),
        // A link, a folder, or what others may not open: no process of rlock has made it.
        Err(Errno::LOOP | Errno::ISDIR | Errno::ACCESS | Errno::PERM) if identity.is_some() => Ok(Peer::Missing),
        Err(error) => Err(error.into()),
    }
}

/// The same by way of a descriptor that opens nothing: it is the same file that is looked at and
/// that is then opened.
fn look_closely(directory: &Directory, name: &str, identity: Option<&Identity>) -> io::Result<Peer> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let found = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Peer::Missing),
        found => found?,
    };
    if !is_it(&fstat(&found)?, identity) {
        return Ok(Peer::Missing);
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(pipe) => Ok(Peer::Alive(pipe)),
        Err(Errno::NXIO) => Ok(Peer::Dead),
        Err(error) => Err(error.into()),
    }
}

/// This process's pid namespace.
fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

fn is_it(stat: &Stat, identity: Option<&Identity>) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
        && identity.is_none_or(|identity| (identity.inode, identity.owner) == (stat.st_ino, stat.st_uid))
}

/// Wakes the process of a session. A full pipe wakes it as well, and a process that has just died
/// needs no waking.
pub(super) fn wake(directory: &Directory, session: SessionId, identity: Option<&Identity>) {
    if let Ok(Peer::Alive(pipe)) = look(directory, session, identity) {
        let _ = rustix::io::write(&pipe, b"!");
    }
}

/// Removes the name of a dead session's beacon; it may be gone already.
pub(super) fn remove(directory: &Directory, session: SessionId) {
    let _ = rustix::fs::unlinkat(directory, session.to_string(), AtFlags::empty());
}
