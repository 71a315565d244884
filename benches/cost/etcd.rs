//! An etcd server of the bench's own: one member, with every write on the disk before it is answered, as it comes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::daemon::Daemon;
use super::lab::free_port;

/// A server.
pub(crate) struct Etcd {
    endpoint: String,
    _daemon: Daemon,
}

impl Etcd {
    /// Starts one.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        let folder = folder.join("etcd");
        fs::create_dir(&folder).expect("a folder can be made");
        let endpoint = format!("http://127.0.0.1:{}", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        let members = format!("default={peer}");
        let words = [
            ["--data-dir", "data"],
            ["--listen-client-urls", &endpoint],
            ["--advertise-client-urls", &endpoint],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &members],
            ["--log-level", "error"],
        ];
        let words: Vec<String> = ["etcd"].into_iter().chain(words.into_iter().flatten()).map(str::to_owned).collect();
        let ready = || etcdctl(&endpoint).args(["endpoint", "health"]).status().is_ok_and(|status| status.success());
        let daemon = Daemon::start(&words, &folder, ready)?;
        Ok(Self { endpoint, _daemon: daemon })
    }

    /// Where it listens.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// Its client; what it prints is not wanted.
pub(crate) fn etcdctl(endpoint: &str) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", endpoint]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
