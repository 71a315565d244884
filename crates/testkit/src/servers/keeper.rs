//! The thread that starts all servers of a test program.
//!
//! The kernel kills a server when its parent dies, and it takes the thread that started the server
//! for the parent. A test's own thread may end before a server that several tests share. This
//! thread ends with the program.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Order = (Command, Sender<io::Result<Child>>);

/// Starts a program that ends with this test program at the latest.
///
/// # Panics
/// If the program cannot be started.
pub(super) fn spawn(command: Command) -> Child {
    static KEEPER: OnceLock<Sender<Order>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (orders, received) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in received {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let words = format!("{command:?}");
    let (answer, started) = channel();
    keeper.send((command, answer)).expect("the keeper never ends");
    let started = started.recv().expect("the keeper answers");
    started.unwrap_or_else(|error| panic!("{words} can't be started: {error}"))
}
