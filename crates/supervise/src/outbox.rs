//! Keeps what rlock has to say until standard error takes it, so that no write blocks the poll
//! loop.

use std::io::{ErrorKind, Write};
use std::thread;
use std::time::{Duration, Instant};

use rlock_sys::streams;

/// Maximum number of bytes that wait for the reader. Further text is dropped.
const WAITING_MAX: usize = 16 << 10;

/// How long the last lines wait before the next attempt at a reader that is ready and takes
/// nothing.
const STUCK_PAUSE: Duration = Duration::from_millis(10);

/// Text for standard error.
pub(super) struct Outbox<'o> {
    /// Takes what fits at once, and fails with `WouldBlock` if nothing fits.
    out: &'o mut dyn Write,
    waiting: Vec<u8>,
    /// Whether nothing fitted although standard error was ready. A terminal with room for a single
    /// byte takes no line end.
    is_stuck: bool,
}

impl<'o> Outbox<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> Self {
        Self { out, waiting: Vec::new(), is_stuck: false }
    }

    /// Whether text waits for its reader.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the loop is to wait until standard error is ready.
    pub(super) fn awaits_reader(&self) -> bool {
        self.is_waiting() && !self.is_stuck
    }

    /// Writes the text, or as much of it as fits at once.
    pub(super) fn put(&mut self, text: &str) {
        if self.waiting.len() + text.len() <= WAITING_MAX {
            self.waiting.extend_from_slice(text.as_bytes());
        }
        self.push();
        self.is_stuck = false;
    }

    /// Writes what fits at once.
    pub(super) fn push(&mut self) {
        let before = self.waiting.len();
        while self.is_waiting() {
            match self.out.write(&self.waiting) {
                Ok(written) if written > 0 => drop(self.waiting.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A message that cannot be written must not keep the lock held.
                _ => self.waiting.clear(),
            }
        }
        self.is_stuck = self.waiting.len() == before;
    }

    /// Writes these lines and all that still waits, in full unless the reader takes too long.
    pub(super) fn finish(&mut self, lines: impl IntoIterator<Item = String>) {
        self.waiting.extend(lines.into_iter().flat_map(|line| (line + "\n").into_bytes()));
        let until = Instant::now() + streams::LIMIT;
        self.push();
        while self.is_waiting() && streams::await_reader(until) {
            self.push();
            if self.is_stuck {
                thread::sleep(STUCK_PAUSE);
            }
        }
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A reader that takes so many bytes, and then no more.
    struct Slow {
        room: usize,
        taken: String,
    }

    impl Write for Slow {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let fits = text.len().min(self.room).min(3);
            if fits == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= fits;
            self.taken += str::from_utf8(&text[..fits]).unwrap();
            Ok(fits)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_that_does_not_fit_follows_in_order_when_the_reader_takes_it() {
        let mut out = Slow { room: 5, taken: String::new() };
        let mut outbox = Outbox::new(&mut out);
        outbox.put("one\n");
        assert!(!outbox.is_waiting());
        outbox.put("two\n");
        outbox.put("three\n");
        assert!(outbox.awaits_reader());
        outbox.push();
        assert!(outbox.is_waiting() && !outbox.awaits_reader(), "standard error was ready, and took nothing");
        drop(outbox);
        assert_eq!(out.taken, "one\nt");
    }

    #[test]
    fn text_beyond_the_limit_is_dropped() {
        let mut out = Slow { room: 0, taken: String::new() };
        let mut outbox = Outbox::new(&mut out);
        for _ in 0..3 {
            outbox.put(&"x".repeat(WAITING_MAX / 2));
        }
        assert_eq!(outbox.waiting.len(), WAITING_MAX);
    }

    #[test]
    fn text_for_a_closed_reader_is_dropped() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Closed;
        let mut outbox = Outbox::new(&mut out);
        outbox.put("one\n");
        assert!(!outbox.is_waiting());
    }
}
