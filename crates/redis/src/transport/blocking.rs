//! Waits for a connection where no poll loop does: in a call that blocks, or in a thread.

use redis::{Cmd, ServerError, Value};

use super::link::{Expected, Link};
use super::route::Route;
use crate::failure::Failure;
use crate::interface::{Conversation, Event, Transport as _};
use rlock_store::network;
use rlock_sys::clock::Boottime;

/// Drives a conversation until it is over.
pub(crate) fn run(route: &mut Route, conversation: &mut impl Conversation) {
    loop {
        route.drive(conversation, Boottime::now());
        if conversation.is_over() {
            return;
        }
        network::wait(route.descriptor().as_slice(), conversation.timeout());
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
    network::wait(&[link.descriptor()], Some(deadline));
    Ok(())
}

#[cfg(test)]
mod tests;
