//! Calls [`rlock::main`] with the command line.
//!
//! The C library calls `main` directly. Rust's runtime would first find the end of the stack. That
//! takes longer than everything that rlock does before it starts its command.

#![cfg_attr(not(test), no_main)]

use std::ffi::{c_char, c_int};

/// The entry point of the C library. Rust's standard library has its own way to the arguments.
// SAFETY: there is no other `main` in the program.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    let code = rlock::main(std::env::args_os());
    std::process::exit(c_int::from(code))
}
