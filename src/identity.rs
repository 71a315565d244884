//! Describes the processes and sessions of this machine: host, user and process id for people, and
//! random ids.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::lock::request::{Process, SessionId};
use crate::passwd;

/// The random id of a new session.
pub(crate) fn new_session() -> Result<SessionId, Errno> {
    let mut id = [0; 16];
    getrandom(&mut id, GetRandomFlags::empty())?;
    Ok(SessionId(id))
}

/// The description of a process of this machine, which runs `command` for the user `uid`.
pub(crate) fn process(uid: u32, pid: u32, command: Vec<String>) -> Process {
    Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid,
        user: passwd::lookup(uid).map_or_else(|| uid.to_string(), |(name, _)| name),
        command,
        owner: None,
        reason: None,
    }
}
