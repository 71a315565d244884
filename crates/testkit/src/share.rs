//! How much of a long test an ordinary run plays.

/// The share of an ordinary run, or all of it with `tests/run --all`, which sets
/// RLOCK_TESTS_LENGTH to `full`.
pub fn share<T>(ordinary: T, full: T) -> T {
    let is_full = std::env::var_os("RLOCK_TESTS_LENGTH").is_some_and(|length| length == "full");
    if is_full { full } else { ordinary }
}
