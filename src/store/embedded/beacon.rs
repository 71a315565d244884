//! A session's beacon: a named pipe that its process keeps open for reading as long as it lives.
//!
//! The kernel closes the pipe with its process, however that ends and in whatever pid namespace, and that one fact serves three ends:
//!
//! - **alive or dead**: opening the pipe for writing without waiting fails when nobody reads it;
//! - **wake**: a byte written into it wakes the process, which polls it;
//! - **watch**: who holds its writing end, and polls for no event at all, is woken with an error when the last reader is gone, and by
//!   nothing else.
//!
//! Inotify would do for watching, but a user has 128 of its instances; a lock on a file tells life from death, but only to a thread
//! that sleeps on it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::directory::Directory;
use crate::lock::request::SessionId;

/// The beacon of this process's own session.
#[derive(Debug)]
pub(super) struct Beacon {
    pipe: OwnedFd,
    session: SessionId,
}

/// What another session's beacon tells.
#[derive(Debug)]
pub(super) enum Peer {
    /// Its process lives. The writing end of its pipe, to wake or to watch it.
    Alive(OwnedFd),
    /// Its process is dead.
    Dead,
    /// Somebody has removed the pipe, so nobody can tell.
    Missing,
}

impl Beacon {
    /// Lights the beacon of a session, before anybody can know of that session. The state is locked meanwhile, lest somebody takes the
    /// pipe that nobody reads yet for one that nobody reads any more.
    pub(super) fn light(directory: &Directory, session: SessionId) -> io::Result<Self> {
        let name = session.to_string();
        directory.make_pipe(&name)?;
        // Read and write, since opening for reading alone would wait for a writer, and would see the end of each.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let pipe = rustix::fs::openat(directory, &name, flags, Mode::empty())?;
        Ok(Self { pipe, session })
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

/// Looks for another session's beacon.
pub(super) fn look(directory: &Directory, session: SessionId) -> io::Result<Peer> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(directory, session.to_string(), flags, Mode::empty()) {
        Ok(pipe) => Ok(Peer::Alive(pipe)),
        Err(Errno::NXIO) => Ok(Peer::Dead),
        Err(Errno::NOENT) => Ok(Peer::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Wakes the process of a session. A full pipe wakes it as well, and a process that has just died needs no waking.
pub(super) fn wake(directory: &Directory, session: SessionId) {
    if let Ok(Peer::Alive(pipe)) = look(directory, session) {
        let _ = rustix::io::write(&pipe, b"!");
    }
}

/// Removes the name of a dead session's beacon; it may be gone already.
pub(super) fn remove(directory: &Directory, session: SessionId) {
    let _ = rustix::fs::unlinkat(directory, session.to_string(), AtFlags::empty());
}
