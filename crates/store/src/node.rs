//! Names the place where a server listens.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::percent::encode;

/// The characters of a path in a URL that need no escape, besides letters and digits.
pub const PATH: &[u8] = b"-._~/+=,";

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A host and a port.
    Tcp {
        /// The host name, or its address without brackets.
        host: String,
        /// The TCP port. A URL without one means the default port of its scheme.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Node {
    /// Whether the server is on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => host == "localhost" || host.starts_with("127.") || host == "::1",
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{}]:{port}", host.replace('%', "%25")),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => f.write_str(&encode(path.as_os_str().as_bytes(), PATH)),
        }
    }
}

/// Parses decimal digits, and no sign.
pub fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
