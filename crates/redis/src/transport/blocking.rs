//! Waits for a connection where no poll loop does: in a call that blocks, or in a thread.

use std::os::fd::BorrowedFd;

use redis::{Cmd, ServerError, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Expected, Link};
use super::route::Route;
use crate::failure::Failure;
use crate::interface::{Conversation, Event, Transport as _};
use rlock_sys::clock::Boottime;

/// Drives a conversation until it is over.
pub(crate) fn run(route: &mut Route, conversation: &mut impl Conversation) {
    loop {
        route.drive(conversation, Boottime::now());
        if conversation.is_over() {
            return;
        }
        wait(route.descriptor(), conversation.timeout());
    }
}

/// Asks one question on a link where nothing else was said, and waits for the reply.
pub(super) fn ask(link: &mut Link, question: &Cmd, deadline: Boottime) -> Result<Result<Value, ServerError>, Failure> {
    link.send(question, Expected::Command);
    loop {
        match link.advance()? {
            Some(Event::Reply(reply)) => return Ok(reply),
            Some(_) => {}
            None => wait_for(link, deadline)?,
        }
    }
}

/// Waits until the server has accepted the login.
pub(super) fn log_in(link: &mut Link, deadline: Boottime) -> Result<(), Failure> {
    loop {
        match link.advance()? {
            None if link.is_quiet() => return Ok(()),
            None => wait_for(link, deadline)?,
            Some(_) => {}
        }
    }
}

/// Waits until a link has something to do.
pub(super) fn wait_for(link: &Link, deadline: Boottime) -> Result<(), Failure> {
    if deadline <= Boottime::now() {
        return Err(link.timeout_failure());
    }
    wait(Some(link.descriptor()), Some(deadline));
    Ok(())
}

/// Waits until a descriptor is ready, or until an instant. It may return early: a signal ends the
/// wait, and an error shows when the connection goes on.
fn wait(descriptor: Option<(BorrowedFd<'_>, PollFlags)>, until: Option<Boottime>) {
    let mut polled: Vec<_> =
        descriptor.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)).collect();
    // A time that the kernel can't express is longer than anybody waits.
    let timeout = until.and_then(|until| Timespec::try_from(until - Boottime::now()).ok());
    let _ = poll(&mut polled, timeout.as_ref());
}

#[cfg(test)]
mod tests;
