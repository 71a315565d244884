//! Prints requested output to standard output.

use std::io::{self, ErrorKind, Write};

/// Writes all of `bytes` to standard output. A reader that closes the pipe early, as in `rlock man
/// | head -1`, counts as success.
///
/// # Errors
/// Standard output cannot be written: it is closed, or the disk under it is full.
pub fn print(bytes: &[u8]) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), bytes)
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
