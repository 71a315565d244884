//! Calls [`rlock::main`] with the command line.
//!
//! The C library calls `main` directly. Rust's runtime would first find the end of the stack. That
//! takes longer than everything that rlock does before it starts its command.

#![no_main]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The entry point of the C library. Only glibc gives the arguments to `std::env::args_os` without
/// Rust's runtime, so they come from here.
// SAFETY: there is no other `main` in the program.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    let word = |index| -> OsString {
        // SAFETY: C promises `count` pointers to strings that last as long as the program.
        let word = unsafe { CStr::from_ptr(*arguments.add(index)) };
        OsStr::from_bytes(word.to_bytes()).to_owned()
    };
    let words = (0..usize::try_from(count).unwrap_or(0)).map(word);
    std::process::exit(c_int::from(rlock::main(words.collect())))
}
