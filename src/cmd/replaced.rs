//! Replaces a file that the user names: writes it beside its place first, and then renames it, so
//! that a reader finds the old or the new content.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::Failure;
use crate::words::reason;

/// A file that can be written, as far as anybody can tell beforehand.
pub(super) struct Replaced {
    path: PathBuf,
    /// The file that is written first.
    beside: PathBuf,
}

/// The reason why a file cannot be written.
pub(super) struct Unwritable {
    path: PathBuf,
    reason: String,
}

impl Unwritable {
    /// The mistake in the value of an option.
    pub(super) fn of_option(&self, option: &str) -> Failure {
        let Self { path, reason } = self;
        Failure::usage(format!(
            "{option}: can't write '{}': {reason}: name a file in a directory that you may write to",
            path.display()
        ))
    }
}

impl Replaced {
    /// Tries whether the file can be written. Changes nothing that is there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn prepare(named: &Path) -> Result<Self, Unwritable> {
        let mistake =
            |reason: &dyn std::fmt::Display| Unwritable { path: named.to_owned(), reason: reason.to_string() };
        // Renaming would replace a link or a device, and not what it leads to.
        let path = match fs::canonicalize(named) {
            Ok(found) if !found.is_file() => return Err(mistake(&"it is not a regular file")),
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => named.to_owned(),
            Err(error) => return Err(mistake(&reason(&error))),
        };
        let Some(name) = path.file_name() else { return Err(mistake(&"it is not a regular file")) };
        // A collector that reads all files of a directory leaves out this name.
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", process::id()));
        let file = Self { beside: path.with_file_name(hidden), path };
        fs::write(&file.beside, "")
            .and_then(|()| fs::remove_file(&file.beside))
            .map_err(|error| mistake(&reason(&error)))?;
        Ok(file)
    }

    /// The place of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content of the file. If that fails, the file stays as it was.
    pub(super) fn write(&self, text: &str) -> io::Result<()> {
        let written = fs::write(&self.beside, text).and_then(|()| fs::rename(&self.beside, &self.path));
        written.inspect_err(|_| drop(fs::remove_file(&self.beside)))
    }
}
