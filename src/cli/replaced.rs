//! Replaces a file that the user names: writes it beside its place first, and then renames it, so
//! that a reader finds the old or the new content.
//!
//! Other users may have the right to write into the folder. So the new file is always made by this
//! process, under a name that nobody can know before, and a name that is a link of another user is
//! not followed. The folders before the name are the choice of the user.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;

use rlock_show::failure::Failure;
use rlock_store::identity;
use rlock_words::reason;

/// Maximum number of symbolic links from a name to its file, as in the kernel.
const LINKS_MAX: usize = 40;

/// A file that can be written, as far as anybody can tell beforehand.
pub(super) struct Replaced {
    path: PathBuf,
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
        let tried = || -> io::Result<Self> {
            let file = Self { path: place(named)? };
            let (beside, _) = file.create()?;
            fs::remove_file(beside)?;
            Ok(file)
        };
        tried().map_err(|error| Unwritable { path: named.to_owned(), reason: reason(&error) })
    }

    /// The place of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content of the file. If that fails, the file stays as it was.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, text: &str) -> io::Result<()> {
        let (beside, mut file) = self.create()?;
        let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&beside, &self.path));
        written.inspect_err(|_| drop(fs::remove_file(&beside)))
    }

    /// Creates a file in the folder of the file, with the owner and the rights of the file if there
    /// is one. A collector that reads all files of a folder leaves out the name, which begins with
    /// a dot.
    fn create(&self) -> io::Result<(PathBuf, File)> {
        let before = match fs::symlink_metadata(&self.path) {
            Ok(found) => Some(found).filter(Metadata::is_file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let beside = self.path.with_file_name(format!(".rlock-{}", identity::new_session()?));
        let mode = if before.is_some() { 0o600 } else { 0o666 };
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        let kept = before.map_or(Ok(()), |before| keep(&file, &before));
        kept.inspect_err(|_| drop(fs::remove_file(&beside)))?;
        Ok((beside, file))
    }
}

/// Gives a new file the owner and the rights of another one.
fn keep(file: &File, before: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    let mut mode = before.mode() & 0o777;
    if new.uid() != before.uid() {
        let text = |_| io::Error::other(format!("its owner, uid {}, can't be kept", before.uid()));
        fchown(file, Some(before.uid()), None).map_err(text)?;
    }
    // A user who may not give the file to its group takes the rights from the new group.
    if new.gid() != before.gid() && fchown(file, None, Some(before.gid())).is_err() {
        mode &= !0o070;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

fn is_in_proc(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// The place of the file that a name leads to, whether or not there is a file. A rename would
/// replace a symbolic link, and not the file that the link leads to.
fn place(named: &Path) -> io::Result<PathBuf> {
    let mut path = named.to_owned();
    for _ in 0..LINKS_MAX {
        let Some(name) = path.file_name() else { break };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder)?;
        // A descriptor, as behind /dev/stdout, has other users of its file.
        if is_in_proc(&folder) {
            return Err(not_regular());
        }
        let here = folder.join(name);
        match fs::symlink_metadata(&here) {
            Ok(found) if found.is_symlink() => {
                if ![geteuid().as_raw(), 0].contains(&found.uid()) {
                    return Err(io::Error::other(format!("it is a link of uid {}", found.uid())));
                }
                path = folder.join(fs::read_link(&here)?);
            }
            Ok(found) if !found.is_file() => break,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(here),
        }
    }
    let is_endless = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    Err(if is_endless { Errno::LOOP.into() } else { not_regular() })
}
