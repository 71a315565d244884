//! Describes the processes and sessions of this machine: host, user and process id for people,
//! whether a process is stopped, and random ids and times.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::rand::{GetRandomFlags, getrandom};

use rlock_model::request::{Process, SessionId};
use rlock_sys::{passwd, processes};
use rlock_words::{TITLE_BYTES, for_others, without_secrets};

/// The random id of a new session.
pub fn new_session() -> Result<SessionId, Errno> {
    random_bytes().map(SessionId)
}

/// A random part of a length of time, all parts equally likely.
pub fn random_part(of: Duration) -> Result<Duration, Errno> {
    Ok(of.mul_f64(f64::from(u32::from_ne_bytes(random_bytes()?)) / f64::from(u32::MAX)))
}

/// Random bytes. A signal may interrupt the call, or shorten it.
fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT], Errno> {
    let (mut bytes, mut filled) = ([0; COUNT], 0);
    while filled < COUNT {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Err(Errno::INTR) => {}
            count => filled += count?,
        }
    }
    Ok(bytes)
}

/// The description of a process of this machine, which runs `command` for the user `uid`.
pub fn process(uid: u32, pid: u32, command: Vec<String>) -> Process {
    Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid,
        user: user(uid),
        command,
        owner: None,
        reason: None,
        lasts_for: None,
    }
}

/// Whether the process of a session is stopped, as far as this process can tell. A pid means
/// nothing on another host or in another pid namespace. So a process counts only if its command
/// line ends as the command of the session does. The command of a client of `rlock serve` is not
/// known; its process counts if it is of the same user.
pub fn is_stopped(process: &Process) -> bool {
    if !is_of_this_host(process) {
        return false;
    }
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    if !pid.is_some_and(|pid| processes::stat(pid).is_ok_and(|stat| stat.stopped)) {
        return false;
    }
    if let [serve, address] = process.command.as_slice()
        && serve == "serve"
        && address.starts_with("unix:")
    {
        let found = fs::metadata(format!("/proc/{}", process.pid));
        return found.is_ok_and(|found| user(found.uid()) == process.user);
    }
    runs_here(process)
}

/// Whether a process with this number here has the command of a session, of which the record may
/// have the beginning only.
pub fn runs_here(process: &Process) -> bool {
    let words = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let words = words.strip_suffix(b"\0").unwrap_or_default().split(|byte| *byte == 0);
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let (shown, Some(known)) = (without_secrets(&words), process.command.last()) else { return false };
    let is_last = |last: &String| last == known || known.strip_suffix('…').is_some_and(|start| last.starts_with(start));
    let is_title = |word: &str| for_others(word, TITLE_BYTES) == *known;
    let mut titles = words.windows(2).filter(|pair| pair[0] == "--title").map(|pair| &*pair[1]);
    let mut joined = words.iter().filter_map(|word| word.strip_prefix("--title="));
    shown.last().is_some_and(is_last) || titles.any(is_title) || joined.any(is_title)
}

/// Whether a process has recorded the name of this host.
pub fn is_of_this_host(process: &Process) -> bool {
    rustix::system::uname().nodename().to_string_lossy() == process.host
}

/// The name of a user, or the number of one without a name.
pub fn user(uid: u32) -> String {
    passwd::lookup(uid).map_or_else(|| uid.to_string(), |(name, _)| name)
}
