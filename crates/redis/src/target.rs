//! Represents the meaning of a store's URL: which servers, how to connect to them, and as which
//! user.
//!
//! Nothing here reads the network, the environment or a file. No message quotes a part of a URL
//! that may belong to a password.

use std::io;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::nodes::Known;
use rlock_store::address::{add_option, usage};
use rlock_store::credentials::Credentials;
use rlock_store::error::Error;
use rlock_store::network::resolve::Order;
use rlock_store::network::tls::TlsFiles;
use rlock_store::node::Node;
use rlock_store::percent::{WORD, encode};
use rlock_store::secrets::Password;

mod read;

/// The schemes, for a message about an unknown one.
pub const SCHEMES: &str = "redis://host:6379, rediss:// for TLS, redis+unix:///path, \
     redis+sentinel://host:26379/master-name, redis+cluster://host:6379, or valkey in place of redis";

/// The kind of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Single,
    /// The master that the Sentinels name.
    Sentinel {
        /// The name of the master at the Sentinels.
        master: String,
    },
    /// The nodes of a Cluster.
    Cluster,
}

/// The user and the password for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; `None` is the default user.
    pub username: Option<String>,
    /// The password; `None` means a login without one, or no login if there is no user either.
    pub password: Option<Password>,
}

/// The meaning of a URL.
#[derive(Clone, Debug)]
pub struct Target {
    /// How to find the server that has the state.
    pub kind: Kind,
    /// The server, or the nodes where to look for it: at least one.
    pub nodes: Vec<Node>,
    /// The nodes of a Cluster that were heard of.
    pub(crate) known: Arc<Known>,
    /// The order in which the addresses of a name are tried.
    pub order: Arc<Order>,
    /// The options of TLS, if the store speaks it.
    pub tls: Option<TlsFiles>,
    /// The contents of these files, once they are read.
    pub tls_config: Option<Arc<ClientConfig>>,
    /// The login as it is given. The password may change, see `credentials`.
    pub login: Login,
    /// The password for the next login.
    pub credentials: Arc<Credentials>,
    /// The login at the Sentinels, which may differ from that at the master.
    pub(crate) sentinel_login: Login,
    /// The number of the database.
    pub db: u32,
    /// The name of this client in the lists of the server.
    pub client_name: Option<String>,
    password_in_url: bool,
    /// The scheme as the user writes it, without the part after a plus.
    scheme: &'static str,
}

impl Target {
    /// Makes relative paths of files absolute, so that [`url`](Self::url) works in every directory.
    /// `directory` is called only if there is one.
    pub fn anchor(&mut self, directory: impl FnOnce() -> io::Result<PathBuf>) -> Result<(), Error> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        tls.anchor(directory).map_err(|_| {
            usage(
                "has a relative path, but the working directory has none",
                "write absolute paths for ca, cert and key",
            )
        })
    }

    /// The files of TLS that the URL names.
    pub fn files(&self) -> Vec<&Path> {
        self.tls.as_ref().map_or_else(Vec::new, TlsFiles::paths)
    }

    /// Whether the URL contains a password, for everybody who sees the URL.
    pub fn password_in_url(&self) -> bool {
        self.password_in_url
    }

    /// Whether both are reached by the same scheme, hosts and ports, and as the same user.
    pub fn has_same_servers(&self, other: &Self) -> bool {
        let scheme = |target: &Self| (target.scheme, discriminant(&target.kind), target.tls.is_some());
        let user = |target: &Self| target.login.username.clone();
        scheme(self) == scheme(other) && self.nodes == other.nodes && user(self) == user(other)
    }

    /// Whether the URL has no password, so that another one applies.
    pub fn lacks_password(&self) -> bool {
        self.login.password.is_none()
    }

    /// Names this client by host and process id in CLIENT LIST.
    pub fn named(mut self, host: &str, pid: u32) -> Self {
        // CLIENT SETNAME takes printable ASCII without spaces.
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        self.client_name = Some(format!("rlock:{}:{pid}", host.chars().map(plain).collect::<String>()));
        self
    }

    /// Adds a password if the URL has none, and the file that it comes from. A login that has
    /// worked before is tried again for as long as `limit`.
    ///
    /// A user without a password is rejected: most likely it is a password in the wrong place, and
    /// messages would show it.
    pub fn with_password(
        mut self,
        password: Option<Password>,
        file: Option<PathBuf>,
        limit: Duration,
    ) -> Result<Self, Error> {
        self.login.password = self.login.password.or(password);
        self.credentials = Arc::new(Credentials::new(self.login.password.clone(), file, limit));
        if self.login.username.is_some() && self.login.password.is_none() {
            return Err(usage(
                "has a user without a password",
                "set RLOCK_PASSWORD or RLOCK_PASSWORD_FILE, or write :password@ if it is a password and no user",
            ));
        }
        Ok(self)
    }

    /// The URL of the same store for another process, without passwords.
    pub fn url(&self) -> String {
        let mut url = self.shown_with(self.login.username.as_deref());
        if self.db != 0 {
            add_option(&mut url, "db", self.db.to_string());
        }
        if let Some(tls) = &self.tls {
            if let Some(ca) = &tls.ca {
                add_option(&mut url, "ca", ca);
            }
            if let Some((certificate, key)) = &tls.identity {
                add_option(&mut url, "cert", certificate);
                add_option(&mut url, "key", key);
            }
            if let Some(name) = &tls.server_name {
                add_option(&mut url, "server-name", name);
            }
        }
        url
    }

    /// The store as messages name it.
    pub fn shown(&self) -> String {
        self.shown_with(None)
    }

    /// A server of the store as messages name it.
    pub fn shown_node(&self, node: &Node) -> String {
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

#[cfg(test)]
mod tests;
