//! Describes the processes and sessions of this machine: host, user and process id for people, and
//! random ids and times.

use std::time::Duration;

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

/// A random part of a length of time, all parts equally likely.
pub(crate) fn random_part(of: Duration) -> Result<Duration, Errno> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(of.mul_f64(f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)))
}

/// The description of a process of this machine, which runs `command` for the user `uid`.
pub(crate) fn process(uid: u32, pid: u32, command: Vec<String>) -> Process {
    Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid,
        user: user(uid),
        command,
        owner: None,
        reason: None,
    }
}

/// The name of a user, or the number of one without a name.
pub(crate) fn user(uid: u32) -> String {
    passwd::lookup(uid).map_or_else(|| uid.to_string(), |(name, _)| name)
}
