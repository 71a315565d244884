//! Reads small files that users name, and never blocks on pipes or devices.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat};

use crate::background;

/// The content of a regular file that has at most `max` bytes.
///
/// A FIFO or a device is an error, because its content may never end. A mount that does not answer
/// still blocks the call; see [`within`].
///
/// # Errors
/// The file can't be read, is too long, or is not a regular file.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    content(open(path)?, max)
}

/// Opens a regular file for [`content`], so that its owner and mode can be checked before.
///
/// # Errors
/// The file can't be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Without NONBLOCK, `open` would wait for a writer of the FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        FileType::Directory => Err(io::Error::other("it is a directory")),
        FileType::Fifo => Err(io::Error::other("it is a pipe, not a regular file")),
        _ => Err(io::Error::other("it is not a regular file")),
    }
}

/// The content of an open file that has at most `max` bytes.
///
/// # Errors
/// The file can't be read, or is too long.
pub fn content(file: File, max: u64) -> io::Result<Vec<u8>> {
    // The buffer has one byte more than the file, so a single read finds the end of the file.
    let expected = file.metadata()?.len().min(max) + 1;
    let mut content = Vec::with_capacity(usize::try_from(expected).unwrap_or_default());
    file.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(io::Error::other(format!("it has more than {max} bytes")));
    }
    Ok(content)
}

/// The result of `work`, or none if `work` takes longer than `limit`.
///
/// The kernel gives no way to open a file with a timeout, so a thread does the work. If a mount
/// does not answer, the thread stays blocked and ends with the process.
///
/// # Errors
/// The thread can't be started.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Option<T>> {
    let (sender, receiver) = channel();
    // Sending fails if the limit has passed, because the receiver is gone.
    let run = move || drop(sender.send(work()));
    let thread = background::spawn(Builder::new().name("files".to_owned()), run)?;
    let result = receiver.recv_timeout(limit).ok();
    if result.is_some() {
        // The thread has sent its result and has no work left.
        let _ = thread.join();
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType as Type, mknodat};

    use super::*;

    #[test]
    fn regular_file_is_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("more than 4 bytes"));
        assert_eq!(read(&dir.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn anything_but_a_regular_file_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, Type::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(read(&fifo, 9).unwrap_err().to_string().contains("it is a pipe"));
        assert!(read(dir.path(), 9).unwrap_err().to_string().contains("it is a directory"));
        assert!(read(Path::new("/dev/zero"), 9).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn work_that_exceeds_its_time_is_abandoned() {
        assert_eq!(within(Duration::from_secs(60), || 7).unwrap(), Some(7));
        let (_sender, never) = channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || never.recv()).unwrap(), None);
    }
}
