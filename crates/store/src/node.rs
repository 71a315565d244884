//! Names the place where a server listens.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::percent::{PATH, encode};

/// The room in the kernel for the path of a socket, without the final NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

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
    /// A socket in the file system; `None` if the system can't use the path.
    pub fn socket(path: Vec<u8>) -> Option<Self> {
        let is_usable = path.len() <= SOCKET_PATH_BYTES_MAX && !path.contains(&0);
        is_usable.then(|| Self::Unix(OsString::from_vec(path).into()))
    }

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
