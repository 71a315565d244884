//! The output of a program, read as far as a test needs it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rlock_testkit::DEADLINE;

/// The reading end of a pipe, or a terminal.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    read: String,
    /// The number of bytes that a test has consumed.
    seen: usize,
}

impl Output {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self { file: File::from(descriptor), read: String::new(), seen: 0 }
    }

    /// Waits for `text` in the output that no earlier call has consumed. Returns all output up to
    /// the end of `text`.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        loop {
            let new = &self.read[self.seen..];
            if let Some(at) = new.find(text) {
                let found = new[..at + text.len()].to_owned();
                self.seen += found.len();
                return found;
            }
            assert!(self.read_more(), "the output ended without {text:?}: {:?}", self.read);
        }
    }

    /// Waits for a whole line and returns it without its end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.expect("\n").trim_end().to_owned()
    }

    /// Waits for the end and returns all output.
    #[track_caller]
    pub(crate) fn all(&mut self) -> &str {
        while self.read_more() {}
        &self.read
    }

    pub(crate) fn so_far(&self) -> &str {
        &self.read
    }

    #[track_caller]
    fn read_more(&mut self) -> bool {
        let timeout = Timespec::try_from(DEADLINE).expect("a minute is not too long");
        let ready =
            poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&timeout)).expect("the output can be polled");
        assert!(ready > 0, "no more output after {:?}", self.read);
        let mut buffer = [0; 4096];
        match self.file.read(&mut buffer) {
            Ok(0) => false,
            Ok(read) => {
                self.read.push_str(&String::from_utf8_lossy(&buffer[..read]));
                true
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            // When no process has the terminal open any more, a read reports EIO, not an end of
            // file.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => false,
            Err(error) => panic!("cannot read the output: {error}"),
        }
    }
}
