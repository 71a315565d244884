//! Runs a conversation where no poll loop does.

use super::route::Route;
use super::waiting::wait;
use crate::interface::{Conversation, Transport as _};
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

#[cfg(test)]
mod tests;
