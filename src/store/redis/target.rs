//! What the URL of a server says: which servers, how to speak to them, and as whom.
//!
//! Nothing here looks at the network, the environment or a file. No message has a part of a URL in
//! it that could be, or could be taken for, a part of a password.

use std::fmt::{self, Write};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;

use super::super::Error;
use super::super::percent::encode;

mod read;

/// The schemes, for a message about one that is none of them.
pub(in crate::store) const SCHEMES: &str = "redis://host:6379, rediss:// for TLS, redis+unix:///path, \
     redis+sentinel://host:26379/master-name, redis+cluster://host:6379, or valkey in place of redis";

/// What kind of store a URL means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Kind {
    /// One server.
    Single,
    /// The server that the Sentinels say is the master of this name.
    Sentinel {
        /// The name.
        master: String,
    },
    /// The nodes of a Cluster.
    Cluster,
}

/// Where a server, a Sentinel or a node of a Cluster listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Node {
    /// At a name or an address.
    Tcp {
        /// The name, or the address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// At a socket in the file system.
    Unix(PathBuf),
}

/// What TLS needs to know; all of it may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct TlsFiles {
    /// The authorities to trust, in place of those that the system trusts.
    pub(super) ca: Option<PathBuf>,
    /// The client's own certificate and key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate must have, in place of the host's.
    pub(super) server_name: Option<String>,
}

/// A password. It shows itself to nobody.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Password(Vec<u8>);

impl Password {
    /// Takes the bytes that the server is to get.
    pub(in crate::store) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// For the server alone.
    pub(super) fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a password)")
    }
}

/// As whom to speak to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Login {
    /// The user; `None` is the default one.
    pub(super) username: Option<String>,
    /// Its password.
    pub(super) password: Option<Password>,
}

/// What a URL says of a server.
#[derive(Clone, Debug)]
pub(in crate::store) struct Target {
    /// What kind of store it is.
    pub(super) kind: Kind,
    /// The server, or where to find it: at least one.
    pub(super) nodes: Vec<Node>,
    /// Whether and how to speak TLS.
    pub(super) tls: Option<TlsFiles>,
    /// What these files contain, once they are read.
    pub(super) tls_config: Option<Arc<ClientConfig>>,
    /// As whom to speak to the server.
    pub(super) login: Login,
    /// As whom to speak to the Sentinels.
    pub(super) sentinel_login: Login,
    /// Which of the server's databases.
    pub(super) db: u32,
    /// How the server's own lists name this client, if they do.
    pub(super) client_name: Option<String>,
    password_in_url: bool,
    /// As the user writes the scheme, without what stands behind a plus.
    scheme: &'static str,
}

impl Node {
    /// Where a MOVED or ASK error of this node leads to: its text without the first word, such as
    /// `3999 10.0.0.1:6381`.
    pub(super) fn redirected(&self, details: &str) -> Option<Self> {
        let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
        self.sibling(host.trim_start_matches('[').trim_end_matches(']'), number(port)?)
    }

    /// The node that this one calls by a host and a port. A node that does not know how it is
    /// reached leaves the host out and means the one that it was reached by.
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

impl Target {
    /// Turns the files that the URL names relative to a directory into absolute ones, so that
    /// [`url`](Self::url) leads to them from everywhere. `directory` is asked only where one is.
    pub(in crate::store) fn anchor(&mut self, directory: impl FnOnce() -> io::Result<PathBuf>) -> Result<(), Error> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let files = tls.ca.iter_mut().chain(tls.identity.iter_mut().flat_map(|(certificate, key)| [certificate, key]));
        let mut relative = files.filter(|path| path.is_relative()).peekable();
        if relative.peek().is_none() {
            return Ok(());
        }
        let directory = directory().map_err(|_| {
            usage("has a relative path, but the working directory has none: write absolute paths for ca, cert and key")
        })?;
        for path in relative {
            *path = directory.join(&*path);
        }
        Ok(())
    }

    /// The files that TLS needs. Those of the system are not among them.
    pub(in crate::store) fn files(&self) -> Vec<&Path> {
        let Some(TlsFiles { ca, identity, .. }) = &self.tls else { return Vec::new() };
        let identity = identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        ca.iter().chain(identity).map(PathBuf::as_path).collect()
    }

    /// Whether the URL came with a password, which whoever sees the URL sees, too.
    pub(in crate::store) fn password_in_url(&self) -> bool {
        self.password_in_url
    }

    /// Whether a password from elsewhere has a place: the URL's own goes before any other.
    pub(in crate::store) fn lacks_password(&self) -> bool {
        self.login.password.is_none()
    }

    /// Has the server name this client by host and process id, in CLIENT LIST for example.
    pub(in crate::store) fn named(mut self, host: &str, pid: u32) -> Self {
        // CLIENT SETNAME takes neither spaces nor what is no printable ASCII.
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        self.client_name = Some(format!("rlock:{}:{pid}", host.chars().map(plain).collect::<String>()));
        self
    }

    /// Adds a password where the URL has none.
    ///
    /// A user without a password is most likely a password where the user should stand, and it
    /// would be shown as a user is.
    pub(in crate::store) fn with_password(mut self, password: Option<Password>) -> Result<Self, Error> {
        self.login.password = self.login.password.or(password);
        if self.login.username.is_some() && self.login.password.is_none() {
            return Err(usage(
                "has a user without a password: set RLOCK_PASSWORD or RLOCK_PASSWORD_FILE, \
                 or write :password@ if it is a password and no user",
            ));
        }
        Ok(self)
    }

    /// The URL that leads another process to the same store, without passwords.
    pub(in crate::store) fn url(&self) -> String {
        let mut url = self.shown_with(self.login.username.as_deref());
        let mut separator = '?';
        let mut option = |name: &str, value: &[u8]| {
            // Writing to a String can't fail.
            let _ = write!(url, "{separator}{name}={}", encode(value, PATH));
            separator = '&';
        };
        if self.db != 0 {
            option("db", self.db.to_string().as_bytes());
        }
        if let Some(tls) = &self.tls {
            let path = |path: &Path| path.as_os_str().as_bytes().to_vec();
            if let Some(ca) = &tls.ca {
                option("ca", &path(ca));
            }
            if let Some((certificate, key)) = &tls.identity {
                option("cert", &path(certificate));
                option("key", &path(key));
            }
            if let Some(name) = &tls.server_name {
                option("server-name", name.as_bytes());
            }
        }
        url
    }

    /// How messages name the store.
    pub(in crate::store) fn shown(&self) -> String {
        self.shown_with(None)
    }

    /// How messages name one server of it.
    pub(super) fn shown_node(&self, node: &Node) -> String {
        match node {
            Node::Tcp { .. } => format!("{}://{node}", self.scheme),
            Node::Unix(_) => format!("{}+unix://{node}", self.scheme),
        }
    }

    fn shown_with(&self, username: Option<&str>) -> String {
        let suffix = match (&self.kind, self.nodes.first()) {
            (Kind::Sentinel { .. }, _) => "+sentinel",
            (Kind::Cluster, _) => "+cluster",
            (Kind::Single, Some(Node::Unix(_))) => "+unix",
            (Kind::Single, _) => "",
        };
        let mut shown = format!("{}{suffix}://", self.scheme);
        if let Some(username) = username {
            shown.push_str(&encode(username.as_bytes(), WORD));
            shown.push('@');
        }
        let nodes: Vec<_> = self.nodes.iter().map(Node::to_string).collect();
        shown.push_str(&nodes.join(","));
        if let Kind::Sentinel { master } = &self.kind {
            shown.push('/');
            shown.push_str(&encode(master.as_bytes(), WORD));
        }
        shown
    }
}

/// What a word in a URL shows of itself without escapes, besides letters and digits.
const WORD: &[u8] = b"-._~";
/// The same of a path.
const PATH: &[u8] = b"-._~/+=,";

/// A number as people write it; a plus sign is none of it.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn usage(what: &str) -> Error {
    Error::Usage(format!("the URL of the store {what}"))
}

#[cfg(test)]
mod tests;
