//! Finds a password in a file as libpq does: `host:port:database:user:password` in each line.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rlock_store::secrets::Password;
use rlock_sys::files;
use rlock_words::reason;

/// The largest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The rights of the group and of all others.
const OTHERS: u32 = 0o077;

/// The content of a file.
pub(super) struct PassFile(Vec<u8>);

/// Why a file does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ignored {
    /// There is none.
    Absent,
    /// It cannot be read, for this reason.
    Unreadable(String),
    /// Other users may read it.
    Open,
}

impl PassFile {
    /// Reads a file. Blocks while the file system does.
    ///
    /// # Errors
    /// The file does not count.
    pub(super) fn read(path: &Path) -> Result<Self, Ignored> {
        let read = || -> io::Result<_> {
            let file = files::open(path)?;
            let mode = file.metadata()?.mode();
            Ok((mode, files::content(file, FILE_BYTES_MAX)?))
        };
        match read() {
            Ok((mode, _)) if mode & OTHERS != 0 => Err(Ignored::Open),
            Ok((_, content)) => Ok(Self(content)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(Ignored::Absent)
            }
            Err(error) => Err(Ignored::Unreadable(reason(&error))),
        }
    }

    /// The password in the first line whose four fields are these, or `*`.
    pub(super) fn find(&self, fields: [&str; 4]) -> Option<Password> {
        let lines = self.0.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let password = |line: &[u8]| {
            let rest = fields.iter().try_fold(line, |rest, value| match rest.strip_prefix(b"*:") {
                Some(rest) => Some(rest),
                None => {
                    let (field, rest) = field(rest);
                    rest.filter(|_| field == value.as_bytes())
                }
            })?;
            Some(Password::new(field(rest).0))
        };
        lines.filter(|line| !line.starts_with(b"#")).find_map(password)
    }
}

/// The text up to a colon without a backslash before it, and what follows that.
fn field(line: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let (mut field, mut rest) = (Vec::new(), line);
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match (first, tail.split_first()) {
            (b':', _) => return (field, Some(tail)),
            (b'\\', Some((escaped, behind))) => {
                field.push(*escaped);
                rest = behind;
            }
            (byte, _) => field.push(*byte),
        }
    }
    (field, None)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn first_line_that_fits_has_the_password() {
        let content =
            b"# h:1:d:u:comment\nh:1:d:u\nh:1:d:other:no\nh:1:d:u:pa\\:ss\\\\:more\r\n*:*:*:u:any\nh\\:1:1:d:u:colon";
        let file = PassFile(content.to_vec());
        let found = |fields| file.find(fields).map(|password| password.reveal().to_vec());
        assert_eq!(found(["h", "1", "d", "u"]).as_deref(), Some(&b"pa:ss\\"[..]));
        assert_eq!(found(["x", "1", "d", "u"]).as_deref(), Some(&b"any"[..]));
        assert_eq!(found(["h:1", "1", "d", "v"]), None);
        assert_eq!(
            PassFile(b"h\\:1:1:d:u:c".to_vec()).find(["h:1", "1", "d", "u"]).map(|p| p.reveal().to_vec()),
            Some(b"c".to_vec())
        );
    }

    /// "the file is ignored if others may read it", as libpq does.
    #[test]
    fn file_that_others_may_read_is_ignored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "*:*:*:*:secret\n").unwrap();
        for (mode, is_read) in [(0o600, true), (0o640, false), (0o604, false), (0o400, true)] {
            fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(PassFile::read(file.path()).is_ok(), is_read, "{mode:o}");
        }
        assert_eq!(PassFile::read(Path::new("/nonexistent/file")).err(), Some(Ignored::Absent));
    }

    /// The reader is told, if the server then asks for a password.
    #[test]
    fn file_that_cannot_be_read_is_not_taken_for_absent() {
        let folder = tempfile::tempdir().unwrap();
        let reason = PassFile::read(folder.path()).err();
        assert_eq!(reason, Some(Ignored::Unreadable("it is a directory".to_owned())));
    }
}
