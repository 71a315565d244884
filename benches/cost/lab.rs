//! The set-up of the bench: the servers in a folder of their own, and the candidates that this
//! machine can run.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::{env, fs};

use tempfile::TempDir;

use super::candidate::Candidate;
use super::etcd::Etcd;
use super::server::Redis;
use rlock_testkit::servers::postgres::Postgres;

/// The servers, the candidates and the folder. Servers and folder are removed on drop.
pub(crate) struct Lab {
    /// The candidates that can be measured.
    pub(crate) candidates: Vec<Candidate>,
    /// The reasons why the other candidates cannot be measured.
    pub(crate) absent: Vec<String>,
    /// The rlock program that is measured.
    pub(crate) rlock: PathBuf,
    /// The program of a package, which RLOCK_PACKAGED names, beside which it is measured.
    pub(crate) packaged: Option<PathBuf>,
    /// The server for rlock and for other locks on Redis.
    pub(crate) redis: Option<Redis>,
    /// The server for rlock on PostgreSQL, which syncs as etcd does.
    pub(crate) postgres: Option<Postgres>,
    _etcd: Option<Etcd>,
    // The folders are dropped last, because the servers write to them.
    folder: TempDir,
    _disk: TempDir,
}

/// A folder in memory, like the /run/lock of most systems.
const MEMORY: &str = "/dev/shm";

impl Lab {
    /// Starts the servers and tries each candidate once.
    pub(crate) fn new() -> Self {
        let named = || tempfile::Builder::new().prefix("rlock-cost-").to_owned();
        let disk = named().tempdir().expect("a folder can be made");
        let folder = named().tempdir_in(MEMORY).or_else(|_| named().tempdir()).expect("a folder can be made");
        let mut absent = Vec::new();
        let mut note = |problem: String| absent.push(problem);
        let redis = Redis::start(&Redis::program(), folder.path()).map_err(&mut note).ok();
        let postgres = Postgres::is_present().then(|| Postgres::start(&["fsync=on"]));
        let etcd = Etcd::start(disk.path()).map_err(&mut note).ok();
        // The copy has the layout of an installed program. The file that the linker wrote lies in
        // small pieces, and Linux starts it a fifth slower.
        let installed = |from: &Path, name: &str| {
            let program = disk.path().join(name);
            fs::copy(from, &program).unwrap_or_else(|error| panic!("{} can't be copied: {error}", from.display()));
            program
        };
        let rlock = installed(Path::new(env!("CARGO_BIN_EXE_rlock")), "rlock");
        let packaged = env::var_os("RLOCK_PACKAGED").map(|file| installed(Path::new(&file), "packaged"));
        let mut candidates = vec![Candidate::nothing(), Candidate::embedded(&rlock, folder.path())];
        candidates.extend(packaged.iter().map(|program| Candidate::packaged(program, folder.path())));
        if let Some(redis) = &redis {
            candidates.extend([Candidate::redis_tcp(&rlock, redis), Candidate::redis_unix(&rlock, redis)]);
        }
        candidates.extend(postgres.as_ref().map(|server| Candidate::postgres(&rlock, server)));
        candidates.extend([Candidate::flock(folder.path()), Candidate::sem(folder.path())]);
        candidates.extend(etcd.as_ref().map(Candidate::etcdctl));
        candidates.retain(|candidate| candidate.works().map_err(&mut note).is_ok());
        Self { candidates, absent, rlock, packaged, redis, postgres, _etcd: etcd, folder, _disk: disk }
    }

    /// Returns a folder for files of the measurements.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

/// Returns a TCP port that is free at the moment of the call.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    listener.local_addr().expect("the listener has an address").port()
}
