//! Names the place where a server listens.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::store::percent::encode;

/// The characters of a path in a URL that need no escape, besides letters and digits.
pub(super) const PATH: &[u8] = b"-._~/+=,";

/// Where a server, a Sentinel or a node of a Cluster listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A host and a port.
    Tcp {
        /// The host name, or its address without brackets.
        host: String,
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Node {
    /// The node that a MOVED or ASK error of this one names. `details` is the text without the
    /// first word, such as `3999 10.0.0.1:6381`.
    pub(super) fn redirected(&self, details: &str) -> Option<Self> {
        let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
        self.sibling(host.trim_start_matches('[').trim_end_matches(']'), number(port)?)
    }

    /// The node that this one calls by a host and a port. A node that does not know its own host
    /// leaves it out, and means the host by which it was reached.
    pub(super) fn sibling(&self, host: &str, port: u16) -> Option<Self> {
        let host = match (host, self) {
            ("" | "?", Self::Tcp { host, .. }) => host,
            ("" | "?", Self::Unix(_)) => return None,
            (host, _) => host,
        };
        Some(Self::Tcp { host: host.to_owned(), port })
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
pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
