//! Runs a conversation where no poll loop does.

use super::route::Route;
use super::waiting::wait;
use crate::store::redis::interface::{Conversation, Transport as _};
use crate::system::clock::Boottime;

/// Drives a conversation until it is over.
pub(in crate::store::redis) fn run(route: &mut Route, conversation: &mut impl Conversation) {
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
