//! What a store tells about its place, for `rlock doctor`. What cannot be read is absent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rlock_words::Explained;

/// The maximum size of the embedded store's table in bytes, enough for some hundred thousand
/// claims.
pub const TABLE_BYTES_MAX: usize = 256 << 20;

/// The facts about a store.
#[derive(Clone, Debug)]
pub enum Facts {
    /// The store is embedded.
    Directory(DirectoryFacts),
    /// The store is at a server.
    Server(ServerFacts),
    /// The store is in a database of a server.
    Database(DatabaseFacts),
}

/// The facts about the directory of an embedded store.
#[derive(Clone, Debug)]
pub struct DirectoryFacts {
    /// The directory.
    pub path: PathBuf,
    /// The user of this process.
    pub user: u32,
    /// The owner of the directory.
    pub owner: u32,
    /// The permission bits of the directory.
    pub mode: u32,
    /// The name of the owner, or the number of an owner without a name.
    pub owner_name: String,
    /// The type of the file system, as statfs(2) numbers it.
    pub file_system: Option<u32>,
    /// The bytes that the file system has left for this user.
    pub free: Option<u64>,
    /// The number of files that this user can still make on the file system, if there is a limit.
    pub files_left: Option<u64>,
    /// The size of the table in bytes.
    pub table: Option<u64>,
    /// The maximum number of open files of this process; `u64::MAX` for no limit.
    pub files: u64,
}

/// The facts about a server, or about one node of a Cluster.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
    /// How long the server's certificate is still valid.
    pub certificate_left: Option<Duration>,
    /// Whether the server is reached without a network.
    pub is_local: bool,
    /// The user as whom rlock has logged in.
    pub login: Option<String>,
    /// The fields of INFO, by their names.
    pub info: BTreeMap<String, String>,
    /// How far the server's clock is ahead of this machine's in microseconds, and how far that may
    /// be off.
    pub clock: Option<(i64, Duration)>,
    /// How long some questions took, in order.
    pub pings: Vec<Duration>,
    /// The commands that were asked for these facts and that the server does not know.
    pub unknown: Vec<&'static str>,
    /// The slots, if the server is a node of a Cluster.
    pub cluster: Option<ClusterFacts>,
}

/// The facts about a database.
#[derive(Clone, Debug, Default)]
pub struct DatabaseFacts {
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
    /// Whether the server's certificate was checked, and its host.
    pub is_verified: bool,
    /// How long the server's certificate is still valid.
    pub certificate_left: Option<Duration>,
    /// Whether the server is reached without a network.
    pub is_local: bool,
    /// The role as which rlock has logged in.
    pub login: String,
    /// Whether a pooler is between, so that no notice reaches a waiter.
    pub is_pooled: bool,
    /// The number of the server's version, such as 150020.
    pub version: u32,
    /// The connections to the server and their maximum.
    pub connections: Option<(u64, u64)>,
    /// Whether a commit is on the disk before it is answered.
    pub is_durable: bool,
    /// The setting `synchronous_standby_names`.
    pub standbys: String,
    /// How far the server's clock is ahead of this machine's in microseconds, and how far that may
    /// be off.
    pub clock: Option<(i64, Duration)>,
    /// How long some transactions took, in order.
    pub pings: Vec<Duration>,
}

/// The facts about the slots of a Cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// The number of primaries that have slots.
    pub primaries: usize,
    /// The slots whose primary does not answer, in words, and why.
    pub missing: Vec<(String, Explained)>,
    /// The slots that are open, each with a node that says so.
    pub open: BTreeMap<u16, String>,
    /// Whether the user lacks a right to ask for these facts.
    pub lacks_right: bool,
}
