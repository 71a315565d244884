//! Orders the addresses of a name that has several: the one that answered last comes first, and
//! those that accepted a connection and said nothing come last.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is known of the addresses, which all connections to a store share.
#[derive(Debug, Default)]
pub struct Order(Mutex<Experience>);

#[derive(Debug, Default)]
struct Experience {
    answered: Option<SocketAddr>,
    /// Those that have accepted a connection and not answered since, the first one first.
    silent: Vec<SocketAddr>,
}

/// Maximum number of silent addresses that are known.
const SILENT_MAX: usize = 64;

impl Order {
    /// Orders the addresses in which to try them.
    pub fn sort(&self, addresses: &mut [SocketAddr]) {
        let Experience { answered, silent } = &*self.experience();
        let turn = |address: &SocketAddr| silent.iter().position(|other| other == address).map_or(0, |place| place + 1);
        addresses.sort_by_key(|address| (turn(address), *answered != Some(*address)));
    }

    /// An address has accepted a connection.
    pub fn accepted(&self, address: SocketAddr) {
        let mut experience = self.experience();
        experience.silent.retain(|other| *other != address);
        experience.silent.push(address);
        if experience.silent.len() > SILENT_MAX {
            experience.silent.remove(0);
        }
    }

    /// The server at an address has answered.
    pub fn answered(&self, address: SocketAddr) {
        let mut experience = self.experience();
        experience.answered = Some(address);
        experience.silent.retain(|other| *other != address);
    }

    fn experience(&self) -> MutexGuard<'_, Experience> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_answered_comes_first_and_a_silent_one_last() {
        let [a, b, c] = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let order = Order::default();
        let sorted = || {
            let mut addresses = [a, b, c];
            order.sort(&mut addresses);
            addresses
        };
        assert_eq!(sorted(), [a, b, c]);
        order.answered(b);
        assert_eq!(sorted(), [b, a, c]);
        order.accepted(b);
        assert_eq!(sorted(), [a, c, b], "it has accepted a connection, and has not answered");
        order.accepted(a);
        assert_eq!(sorted(), [c, b, a], "the one that was tried last comes last");
        order.answered(a);
        assert_eq!(sorted(), [a, c, b]);
    }
}
