//! Writes to the standard streams without waiting for their readers for long.
//!
//! A terminal may be stopped by Ctrl-S, and a pipe may be full because nobody reads it. These
//! streams are shared with other processes, so rlock must not make them non-blocking. rlock opens
//! the pipe or the terminal once more instead, which gives it flags of its own.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// How long the last line before the exit, or the output of `acquire`, waits for its reader.
pub const LIMIT: Duration = Duration::from_secs(1);

/// A pipe takes so many bytes without blocking if poll(2) says that it takes any. A terminal may
/// have room for a single one.
const AT_ONCE: [usize; 2] = [4096, 1];

/// A standard stream. A write takes what fits at once, and fails with
/// [`WouldBlock`](ErrorKind::WouldBlock) if nothing fits.
pub struct StandardStream {
    shared: BorrowedFd<'static>,
    /// The same pipe or terminal, opened without blocking by the first write.
    own: Option<OwnedFd>,
}

impl StandardStream {
    /// Standard output.
    pub fn stdout() -> Self {
        Self { shared: rustix::stdio::stdout(), own: None }
    }

    /// Standard error.
    pub fn stderr() -> Self {
        Self { shared: rustix::stdio::stderr(), own: None }
    }

    /// Writes all of the text, at most for this time.
    ///
    /// # Errors
    /// The system's; [`TimedOut`](ErrorKind::TimedOut) if the stream takes no more in time.
    pub fn write_within(&mut self, text: &[u8], limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        let mut rest = text;
        while !rest.is_empty() {
            match self.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    is_writable(self.shared, left);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Write for StandardStream {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let kind = fstat(self.shared).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind == Ok(FileType::Socket) {
            match send(self.shared, text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // A sandbox may refuse send(2) with any of these errors, and permit write(2).
                Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL) => {}
                sent => return Ok(sent?),
            }
        } else if self.own.is_none() {
            self.own = kind.ok().and_then(|kind| reopened(self.shared, kind));
        }
        if let Some(own) = &self.own {
            return Ok(rustix::io::write(own, text)?);
        }
        if !is_writable(self.shared, Duration::ZERO) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let at_once = AT_ONCE[usize::from(rustix::termios::isatty(self.shared))];
        Ok(rustix::io::write(self.shared, &text[..text.len().min(at_once)])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints a line on standard error, and waits for its reader for at most [`LIMIT`].
pub fn say(line: &str) {
    // A message that cannot be written changes nothing else.
    let _ = StandardStream::stderr().write_within(format!("{line}\n").as_bytes(), LIMIT);
}

/// Prints a line on standard error as far as it fits at once.
pub fn say_what_fits(line: &str) {
    let _ = StandardStream::stderr().write(format!("{line}\n").as_bytes());
}

/// Waits until standard error can be written or has an error, or until the instant. Returns false
/// if the instant has come.
pub fn await_reader(until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    !left.is_zero() && (is_writable(rustix::stdio::stderr(), left) || until > Instant::now())
}

/// Opens a pipe or a terminal once more. Other files never make a write wait, and their position
/// is shared.
fn reopened(shared: BorrowedFd<'_>, kind: FileType) -> Option<OwnedFd> {
    if kind != FileType::Fifo && !rustix::termios::isatty(shared) {
        return None;
    }
    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
    open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Waits until a descriptor can be written, or has an error. Returns whether it did within the
/// limit.
fn is_writable(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    poll(&mut [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::OUT)], limit.as_ref())
        .is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A stream at this descriptor, which the test closes only at its end.
    fn stream(descriptor: &impl AsFd) -> StandardStream {
        // SAFETY: each test keeps the descriptor open for longer than the stream.
        let shared = unsafe { BorrowedFd::borrow_raw(descriptor.as_fd().as_raw_fd()) };
        StandardStream { shared, own: None }
    }

    /// Writes until not even a byte fits. Returns the number of bytes.
    fn fill(stream: &mut StandardStream) -> usize {
        let mut filled = 0;
        for size in [1000, 1] {
            loop {
                match stream.write(&vec![b'.'; size]) {
                    Ok(written) => filled += written,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        filled
    }

    #[test]
    fn write_to_a_full_pipe_or_socket_takes_what_fits_and_does_not_block() {
        let (mut reader, writer) = pipe().unwrap();
        let (mut peer, socket) = UnixStream::pair().unwrap();
        let readers: [&mut dyn Read; 2] = [&mut reader, &mut peer];
        for (reader, mut stream) in readers.into_iter().zip([stream(&writer), stream(&socket)]) {
            let filled = fill(&mut stream);
            assert!(filled >= 4096, "{filled}");
            let late = stream.write_within(b"late", Duration::from_millis(1)).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
            reader.read_exact(&mut vec![0; filled]).unwrap();
            stream.write_within(b"text", LIMIT).unwrap();
            let mut text = [0; 4];
            reader.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"text");
        }
    }

    #[test]
    fn shared_pipe_stays_blocking() {
        let (_reader, writer) = pipe().unwrap();
        fill(&mut stream(&writer));
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
    }

    #[test]
    fn write_to_a_file_goes_to_its_shared_position() {
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"one").unwrap();
        stream(&file).write_within(b"two", LIMIT).unwrap();
        (&file).write_all(b"three").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 11);
    }

    #[test]
    fn write_to_a_pipe_without_a_reader_is_an_error() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert_eq!(stream(&writer).write_within(b"text", LIMIT).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
