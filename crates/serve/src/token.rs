//! Reads the token that clients must send.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use rlock_show::failure::Failure;
use rlock_sys::files;
use rlock_words::reason;

/// The maximum size of the file. A token fits into one line of a client.
const BYTES_MAX: u64 = 4000;

/// Reads the first line of a file that nobody but this user and root can read or change.
pub fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let unreadable = |error| Failure::usage(format!("cannot read --token-file '{shown}': {}", reason(&error)));
    let file = files::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    let user = geteuid().as_raw();
    let repair = match found.uid() {
        owner if owner != user && owner != 0 => Some(format!("chown {user} '{shown}'")),
        _ if found.mode() & 0o077 != 0 => Some(format!("chmod 600 '{shown}'")),
        _ => None,
    };
    if let Some(repair) = repair {
        return Err(Failure::usage(format!("other users can read or change --token-file '{shown}': run {repair}")));
    }
    let bytes = files::content(file, BYTES_MAX).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!("--token-file '{shown}' is not UTF-8 text: write a token of printable text"))
    })?;
    let token = text.lines().next().unwrap_or_default().trim();
    if token.is_empty() {
        return Err(Failure::usage(format!(
            "--token-file '{shown}' has no token: write the token into its first line"
        )));
    }
    Ok(token.to_owned())
}
