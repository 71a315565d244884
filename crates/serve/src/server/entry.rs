//! A client with its connection, and the events for which the kernel watches the connection.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::super::client::Client;
use super::super::connection::Connection;
use rlock_model::request::Process;
use rlock_sys::clock::Boottime;

/// A client with its connection.
pub(super) struct Entry {
    pub(super) client: Client,
    pub(super) connection: Option<Connection>,
    /// The client's name in the log.
    pub(super) name: String,
    pub(super) process: Process,
    /// The events for which the descriptors are registered, those for reading and those for
    /// writing.
    interest: [EventFlags; 2],
    /// Whether the client has closed its end. It may have sent lines before that.
    pub(super) has_ended: bool,
    /// Whether the kernel cannot report when there is something to read, as for a regular file.
    is_plain: bool,
    /// Until when the client has to take its output.
    pub(super) taken_until: Option<Boottime>,
    pub(super) waits: bool,
}

impl Entry {
    /// A client that has sent nothing yet.
    pub(super) fn new(client: Client, connection: Connection, name: String, process: Process) -> Self {
        Self {
            client,
            connection: Some(connection),
            name,
            process,
            interest: [EventFlags::empty(); 2],
            has_ended: false,
            is_plain: false,
            taken_until: None,
            waits: false,
        }
    }

    /// Whether the next line of the client is taken in now. Its answers come first.
    pub(super) fn takes_lines(&self) -> bool {
        self.client.takes_lines() && self.connection.as_ref().is_some_and(|connection| !connection.has_output())
    }

    /// Whether there is something to take in that no descriptor announces.
    pub(super) fn is_ready(&self) -> bool {
        let has_input = self.connection.as_ref().is_some_and(Connection::has_input);
        (self.takes_lines() && (has_input || self.has_ended || self.is_plain)) || self.must_end()
    }

    /// Whether the connection is over for this client in its present state. A client that has
    /// closed its end still gets the answers to its lines, but neither waits nor holds for them.
    pub(super) fn must_end(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        let is_late = self.client.is_queued() || (self.client.holds() && connection.has_output());
        connection.is_broken() || (self.has_ended && is_late)
    }

    /// Registers the descriptors for the events that matter now. A client that is not ready for
    /// another line is not read, and its end still matters.
    pub(super) fn register(&mut self, epoll: &OwnedFd, id: u64) {
        let Some(connection) = &self.connection else { return };
        let mut reading = EventFlags::empty();
        if !self.has_ended && !self.is_plain {
            reading |= EventFlags::RDHUP;
            if self.takes_lines() {
                reading |= EventFlags::IN;
            }
        }
        let mut writing = if connection.has_output() { EventFlags::OUT } else { EventFlags::empty() };
        if connection.is_socket() {
            reading |= writing;
            writing = EventFlags::empty();
        }
        let ends = [(connection.input(), reading), (connection.output(), writing)];
        for ((descriptor, wanted), registered) in ends.into_iter().zip(&mut self.interest) {
            if wanted == *registered {
                continue;
            }
            let data = EventData::new_u64(id);
            let done = if registered.is_empty() {
                epoll::add(epoll, descriptor, data, wanted)
            } else if wanted.is_empty() {
                epoll::delete(epoll, descriptor)
            } else {
                epoll::modify(epoll, descriptor, data, wanted)
            };
            match done {
                Ok(()) => *registered = wanted,
                // A regular file can always be read and written.
                Err(_) => self.is_plain = true,
            }
        }
    }
}
