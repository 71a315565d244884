//! Resolves a path as realpath(1) does with `-m`: links count as what they lead to, and what does
//! not exist counts as it is written.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use rlock_words::reason;

/// Maximum number of links on the way, as in path_resolution(7).
const LINKS_MAX: usize = 40;

/// The whole path of a file or folder, without links as far as it exists.
///
/// # Errors
/// Why the path cannot be resolved, in one line.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf, String> {
    resolve(path).map_err(|error| format!("can't resolve the path '{}': {}", path.display(), reason(&error)))
}

fn resolve(path: &Path) -> io::Result<PathBuf> {
    // The kernel's working directory has no links.
    let mut found = if path.is_absolute() { PathBuf::from("/") } else { env::current_dir()? };
    let mut ahead: VecDeque<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            found.pop();
            continue;
        }
        found.push(part);
        match fs::read_link(&found) {
            Ok(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::from(rustix::io::Errno::LOOP));
                }
                found.pop();
                if target.is_absolute() {
                    found = PathBuf::from("/");
                }
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    ahead.push_front(part);
                }
            }
            // Not a link, or nothing that exists.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput
                        | ErrorKind::NotFound
                        | ErrorKind::NotADirectory
                        | ErrorKind::InvalidFilename
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The names in a path, and `..`.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::resolved;

    #[test]
    fn what_exists_is_resolved_and_the_rest_is_taken_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/sub")).unwrap();
        fs::write(root.join("real/file"), "").unwrap();
        symlink("real/sub", root.join("link")).unwrap();
        symlink(root.join("gone/far"), root.join("dangling")).unwrap();
        for (path, expected) in [
            ("link/new/a.rs", "real/sub/new/a.rs"),
            ("link/../file", "real/file"),
            ("./real//file/in-a-file", "real/file/in-a-file"),
            ("new/../link", "real/sub"),
            ("dangling/x", "gone/far/x"),
            ("link", "real/sub"),
        ] {
            assert_eq!(resolved(&root.join(path)), Ok(root.join(expected)), "{path}");
        }
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(resolved(Path::new("no-such")), Ok(here.join("no-such")));
    }

    #[test]
    fn links_that_lead_round_in_a_circle_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("round");
        symlink("round", &path).unwrap();
        let text = format!("can't resolve the path '{}': too many levels of symbolic links", path.display());
        assert_eq!(resolved(&path).unwrap_err().to_lowercase(), text.to_lowercase());
    }
}
