//! Prints requested output to standard output.

use std::io::{self, ErrorKind, Write};

use rustix::io::{Errno, FdFlags, fcntl_getfd};

use rlock_sys::streams::{self, StandardStream};

/// Writes all of `bytes` to standard output. A reader that closes the pipe early, as in `rlock man
/// | head -1`, counts as success.
///
/// # Errors
/// Standard output cannot be written: it is closed, or the disk under it is full.
pub(super) fn print(bytes: &[u8]) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), bytes)
}

/// Writes all of `bytes` to standard output, for a reader that needs all of them, while a lock is
/// held.
///
/// # Errors
/// Standard output cannot be written within a second, or was closed when rlock started.
pub(super) fn print_whole(bytes: &[u8]) -> io::Result<()> {
    let stdout = io::stdout();
    // rlock inherits no descriptor with this flag, but opens /dev/null with it in place of a
    // closed one.
    if fcntl_getfd(&stdout)?.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    // Rust's `Stdout` ignores a closed descriptor.
    StandardStream::stdout().write_within(bytes, streams::LIMIT)
}

/// [`print()`] to any writer.
fn print_to(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind, Write};

    use super::print_to;

    /// A writer that always fails with the same error.
    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_pipe_is_no_failure_but_a_full_disk_is() {
        assert!(print_to(&mut Failing(ErrorKind::BrokenPipe), b"x").is_ok());
        assert_eq!(print_to(&mut Failing(ErrorKind::StorageFull), b"x").unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
