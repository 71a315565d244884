//! Sets up the TLS client of a connection, as the target demands it.

use rustls::ClientConnection;

use crate::failure::{ErrorKind, SPELLING};
use crate::target::Target;
use rlock_store::error::Error;
use rlock_store::network::NetworkError;
use rlock_store::network::tls::{self, Checks};
use rlock_store::node::Node;

impl Target {
    /// Whether [`with_tls`](Self::with_tls) reads files.
    pub fn speaks_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the certificates and keys, if the target speaks TLS. Blocks while the file system
    /// does.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn with_tls(mut self) -> Result<Self, Error> {
        let server = self.shown();
        if let Some(files) = &self.tls {
            let config = tls::config(files, Checks::All, &SPELLING);
            self.tls_config = Some(config.map_err(|error| ErrorKind::from(error).of(&server))?);
        }
        Ok(self)
    }
}

/// A TLS client for one connection to `node`; none if the target does not speak TLS.
///
/// [`Target::with_tls`] has read the files: a reconnect in the poll loop must not wait for a file
/// system.
pub(super) fn client(target: &Target, node: &Node) -> Result<Option<ClientConnection>, NetworkError> {
    let Some(files) = &target.tls else { return Ok(None) };
    let Some(config) = &target.tls_config else {
        return Err(NetworkError::Tls("its certificates were not read".into()));
    };
    let host = match (node, &files.server_name) {
        (_, Some(name)) => name,
        (Node::Tcp { host, .. }, None) => host,
        (Node::Unix(_), None) => "localhost",
    };
    tls::client(config, host, &SPELLING).map(Some)
}

#[cfg(test)]
mod tests;
