//! Parse, run, print the error once, exit: see [`rlock::cmd::main`].
//!
//! The C library calls `main` directly. What Rust's runtime would do before costs more than all that rlock does until it starts its
//! command, and is mostly for finding the end of the stack; [`rlock::start`] does the rest of it.

#![cfg_attr(not(test), no_main)]

use std::ffi::{c_char, c_int};

/// The entry point of the C library. Rust's standard library has its own way to the arguments.
// SAFETY: there is no other `main` in the program.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    let mut words = std::env::args_os().peekable();
    if let Some(name) = words.peek() {
        rlock::supervise::guardian::program::run_if_called(name);
    }
    rlock::start::prepare();
    let code = rlock::cmd::main(words);
    std::process::exit(c_int::from(code))
}
