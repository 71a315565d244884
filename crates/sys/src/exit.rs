//! Defines the exit codes of `rlock`.
//!
//! The codes follow sysexits.h where it has a fitting code. Where the command can't be run, they
//! follow the shells. So cron, CI and scripts can tell "busy" from "broken". The exit code of a
//! command that ran is passed on unchanged and has no constant here.

/// `held`: this process runs below no such hold. `cleanup --break` found no holder of any of the
/// resources.
pub const NOT_HELD: u8 = 1;

/// The command line is wrong.
pub const USAGE: u8 = 64;

/// The request can never be granted, so waiting would not help. Or nested requests wait for each
/// other, and this is the one to end.
pub const REFUSED: u8 = 65;

/// The store cannot be reached or used; the command was not started.
pub const UNAVAILABLE: u8 = 69;

/// The request was not granted within the wait; the command was not started. The option `-E`
/// replaces this code.
pub const BUSY: u8 = 75;

/// The lease was lost; the command was stopped. For `renew` and `release`: the lock is not held any
/// more.
pub const LOST: u8 = 76;

/// The command ran for longer than `--max-runtime`, and was stopped.
pub const TIMEOUT: u8 = 124;

/// Any other failure of rlock itself.
pub const FAILURE: u8 = 125;

/// The command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;

/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// Signal n ended the command, or cancelled the request before the command ran. The exit code is
/// this constant plus n.
pub const SIGNAL_BASE: u8 = 128;
