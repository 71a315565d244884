//! What to do about a directory or a file that cannot be used.

use std::io;

use rustix::io::Errno;

use rlock_words::{Explained, reason};

/// The error of a directory in which another program's file has the name of one of rlock's.
pub(crate) fn foreign() -> io::Error {
    Explained::new("what is in it is not rlock's", "name another directory").into()
}

/// Adds advice to the error of a directory that cannot be opened or made.
pub(super) fn advised(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => Explained::new("the directory above it does not exist", "make that first").into(),
        io::ErrorKind::PermissionDenied => {
            Explained::new(reason(&error), "name a directory that you may write with --store").into()
        }
        // The sandbox of an agent. Other processes of the machine use the directory that is named.
        io::ErrorKind::ReadOnlyFilesystem => {
            let remedy = "let the sandbox write there; another --store would exclude nobody here";
            Explained::new(reason(&error), remedy).into()
        }
        _ => error,
    }
}

/// Adds advice to the error of a file in the directory that cannot be opened or made. A file of an
/// unexpected kind was not made by rlock.
pub(crate) fn advised_inside(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::LOOP) => foreign(),
        // The directory is a place where no file can be made, such as /proc.
        Some(Errno::NOENT) => error,
        _ => advised(error),
    }
}
