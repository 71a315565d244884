//! The listening sockets of a server. They pause while the process has no descriptor for a client.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::super::listen::Listener;
use super::log::say;
use rlock_sys::clock::Boottime;
use rlock_sys::rights::Closer;
use rlock_words::reason;

/// How many descriptors the connections leave to the store, or a quarter of the limit if that is
/// less. Without a descriptor the store can neither look at other processes nor wake them.
const RESERVED_DESCRIPTORS: u64 = 64;
/// How long no connection is accepted after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The listeners, each with its number among the events of the kernel.
#[derive(Default)]
pub(super) struct Listeners {
    by_id: HashMap<u64, Listener>,
    /// When the listeners accept again.
    paused_until: Option<Boottime>,
}

impl Listeners {
    /// Accepts clients of a listener from now on.
    pub(super) fn add(&mut self, epoll: &OwnedFd, id: u64, listener: Listener) -> io::Result<()> {
        register(epoll, id, &listener)?;
        self.by_id.insert(id, listener);
        Ok(())
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Closes all listeners. Connections that were not accepted may have descriptors of clients, so
    /// the last close of each socket is left to the closer.
    pub(super) fn close(&mut self, epoll: &OwnedFd, closer: &mut Closer) {
        let left = |listener: &Listener| {
            let _ = epoll::delete(epoll, listener);
            listener.as_fd().try_clone_to_owned().ok()
        };
        let sockets: Vec<_> = self.by_id.values().filter_map(left).collect();
        *self = Self::default();
        sockets.into_iter().for_each(|socket| closer.close(socket));
    }

    /// Accepts a client, and returns its socket with the address of the listener. Returns `None` if
    /// the client has gone. After an error there is nothing more to accept, at least for a while.
    pub(super) fn accept(&mut self, epoll: &OwnedFd, id: u64) -> Result<Option<(OwnedFd, &str)>, Errno> {
        let listener = self.by_id.get(&id).ok_or(Errno::BADF)?;
        match if has_descriptors(epoll) { listener.accept() } else { Err(Errno::MFILE) } {
            Ok(socket) => Ok(Some((socket, &listener.address))),
            Err(Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            Err(error) => {
                say(&format!("warning: cannot accept a client, pausing for a second: {}", reason(&error)));
                self.paused_until = Some(Boottime::now() + ACCEPT_PAUSE);
                for listener in self.by_id.values() {
                    // The listener is registered, so the call cannot fail.
                    let _ = epoll::delete(epoll, listener);
                }
                Err(error)
            }
        }
    }

    /// The instant at which [`resume`](Self::resume) is due.
    pub(super) fn timeout(&self) -> Option<Boottime> {
        self.paused_until
    }

    /// Ends a pause that is over at `now`.
    pub(super) fn resume(&mut self, epoll: &OwnedFd, now: Boottime) -> io::Result<()> {
        if self.paused_until.take_if(|until| *until <= now).is_some() {
            for (id, listener) in &self.by_id {
                register(epoll, *id, listener)?;
            }
        }
        Ok(())
    }
}

fn register(epoll: &OwnedFd, id: u64, listener: &Listener) -> io::Result<()> {
    Ok(epoll::add(epoll, listener, EventData::new_u64(id), EventFlags::IN)?)
}

/// Whether a connection leaves enough descriptors to the store.
fn has_descriptors(epoll: &OwnedFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // The kernel gives out the lowest number that is free.
    let lowest = rustix::io::fcntl_dupfd_cloexec(epoll, 0).map(|next| next.as_raw_fd().unsigned_abs());
    lowest.is_ok_and(|lowest| u64::from(lowest) + RESERVED_DESCRIPTORS.min(limit / 4) < limit)
}
