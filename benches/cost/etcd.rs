//! An etcd server for the bench: one member with its default of syncing each write to the disk
//! before the reply.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::daemon::Daemon;
use super::lab::free_port;

pub(crate) struct Etcd {
    endpoint: String,
    _daemon: Daemon,
}

impl Etcd {
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

    /// Returns the address on which the server listens.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// Makes a command of etcdctl, without its output.
pub(crate) fn etcdctl(endpoint: &str) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", endpoint]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
