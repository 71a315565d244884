//! What is measured, set up: servers in a folder of their own, and who of the candidates can be had.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use tempfile::TempDir;

use super::candidate::Candidate;
use super::etcd::Etcd;
use super::server::Redis;

/// All of it; servers and folder go when this is dropped.
pub(crate) struct Lab {
    /// Who can be measured.
    pub(crate) candidates: Vec<Candidate>,
    /// Who can't, and why.
    pub(crate) absent: Vec<String>,
    /// The program that is measured.
    pub(crate) rlock: PathBuf,
    /// The server of rlock and of other locks on Redis.
    pub(crate) redis: Option<Redis>,
    _etcd: Option<Etcd>,
    // The last to go: the servers write there.
    folder: TempDir,
    _disk: TempDir,
}

/// Where files are in memory, as they are in the /run/lock of most systems.
const MEMORY: &str = "/dev/shm";

impl Lab {
    /// Starts the servers and tries each candidate once.
    pub(crate) fn new() -> Self {
        let named = || tempfile::Builder::new().prefix("rlock-cost-").to_owned();
        let disk = named().tempdir().expect("a folder can be made");
        let folder = named().tempdir_in(MEMORY).or_else(|_| named().tempdir()).expect("a folder can be made");
        let mut absent = Vec::new();
        let mut note = |problem: String| absent.push(problem);
        let redis = Redis::start(folder.path()).map_err(&mut note).ok();
        let etcd = Etcd::start(disk.path()).map_err(&mut note).ok();
        // Copied, as it is where it is installed: Linux keeps what the linker wrote in small pieces, and starts it a
        // fifth slower.
        let rlock = disk.path().join("rlock");
        fs::copy(env!("CARGO_BIN_EXE_rlock"), &rlock).expect("the folder can be written");
        let mut candidates = vec![Candidate::nothing(), Candidate::embedded(&rlock, folder.path())];
        if let Some(redis) = &redis {
            candidates.extend([Candidate::redis_tcp(&rlock, redis), Candidate::redis_unix(&rlock, redis)]);
        }
        candidates.extend([Candidate::flock(folder.path()), Candidate::sem(folder.path())]);
        candidates.extend(etcd.as_ref().map(Candidate::etcdctl));
        candidates.retain(|candidate| candidate.works().map_err(&mut note).is_ok());
        Self { candidates, absent, rlock, redis, _etcd: etcd, folder, _disk: disk }
    }

    /// A folder for files of the measurements.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

/// A TCP port that was free just now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    listener.local_addr().expect("it has an address").port()
}
