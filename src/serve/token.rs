//! Reads the token that clients must send.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::failure::Failure;
use crate::files;
use crate::words::reason;

/// The maximum size of the file. A token fits into one line of a client.
const BYTES_MAX: u64 = 4000;

/// Reads the first line of a file that only its owner can read.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let unreadable = |error| Failure::usage(format!("cannot read --token-file '{shown}': {}", reason(&error)));
    let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "other users can read or change --token-file '{shown}': run chmod 600 '{shown}'"
        )));
    }
    let bytes = files::read(path, BYTES_MAX).map_err(unreadable)?;
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
