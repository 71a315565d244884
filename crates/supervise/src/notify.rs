//! The socket by which a command of `--until-ready` tells that it is ready, as sd_notify(3) does.
//!
//! The socket is in the abstract namespace, because a container may have no folder that can be
//! written. Everybody on the machine can send to such a socket, so a message counts only if a
//! process below rlock has sent it. What counts is passed on to the socket that rlock itself was
//! given, for example by systemd, with its descriptors.
//!
//! Nothing here blocks, whatever others send. The sender of a message is known before its
//! descriptors are taken, and other threads close them, see [`rights`]. A message that the outer
//! socket does not take waits until the poll loop finds that socket writable.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::iter::successors;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, sendmsg_addr, socket_with,
};
use rustix::process::{Pid, getpid, getuid};

use rlock_show::failure::Failure;
use rlock_sys::clock::Boottime;
use rlock_sys::exit;
use rlock_sys::processes;
use rlock_sys::rights::{self, Closer, Drain, FILES_MAX};
use rlock_words::{one_line, reason};

/// The variable with the address of the socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Maximum length of a message. systemd ignores longer ones, too.
const BYTES_MAX: usize = 4096;

/// Maximum number of messages that one turn of the loop takes, whoever has sent them, so that a
/// flood of them delays no renewal.
const MESSAGES_MAX: usize = 32;

/// Maximum number of messages that wait for the outer socket. Of more, the oldest is dropped that
/// does not say that the command is ready.
const WAITING_MAX: usize = 64;

/// Maximum number of threads that close unwanted descriptors. Until one ends, no further message
/// with such descriptors is taken.
const DRAINS_MAX: usize = 64;

/// How often the ancestors of a sender are looked at. One of them may end meanwhile, and with
/// hidepid, see proc(5), those of other users cannot be seen at all.
const LOOKS: usize = 4;

/// How long the loop waits before it looks whether a thread has taken its message.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the last messages wait for the outer socket, before rlock ends.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// The socket of the command, and the socket to which its messages are passed on.
#[derive(Debug)]
pub struct NotifySocket {
    socket: Arc<OwnedFd>,
    name: String,
    outer: Option<Outer>,
    /// The threads that take messages whose descriptors nobody wants. While one of them has not
    /// taken its message, the socket is left alone: who reads, takes a message of which it knows
    /// that it has no such descriptors.
    drains: Vec<Drain>,
    /// When the socket is looked at again, if it is left alone until then.
    paused_until: Option<Boottime>,
    /// Whether the kernel refuses descriptors because a stranger has sent some.
    refuses_files: bool,
}

/// The socket to which messages are passed on.
#[derive(Debug)]
struct Outer {
    socket: OwnedFd,
    address: SocketAddrUnix,
    waiting: VecDeque<Notice>,
    closer: Closer,
}

/// A message that is passed on.
#[derive(Debug)]
struct Notice {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl NotifySocket {
    /// Makes the socket for the command of this session.
    ///
    /// # Errors
    /// The kernel's, or the variable that rlock itself was given is no address of a unix socket.
    pub fn open(session: &str) -> Result<Self, Failure> {
        let outer = std::env::var_os(VARIABLE).filter(|address| !address.is_empty());
        let outer = outer.map(|address| Outer::new(address_of(&address)?).map_err(failed)).transpose()?;
        let name = format!("rlock/{session}");
        let made = || {
            let socket = datagram_socket()?;
            set_socket_passcred(&socket, true)?;
            bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
            Ok(socket)
        };
        let socket = Arc::new(made().map_err(failed)?);
        Ok(Self { socket, name, outer, drains: Vec::new(), paused_until: None, refuses_files: false })
    }

    /// The variable by which the command finds the socket.
    pub fn variable(&self) -> (OsString, OsString) {
        (VARIABLE.into(), format!("@{}", self.name).into())
    }

    /// The descriptors to poll before the next [`take`](Self::take).
    pub fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        let own = self.paused_until.is_none().then(|| PollFd::new(&*self.socket, PollFlags::IN));
        let outer = self.outer.as_ref().filter(|outer| !outer.waiting.is_empty());
        own.into_iter().chain(outer.map(|outer| PollFd::new(&outer.socket, PollFlags::OUT)))
    }

    /// When the next [`take`](Self::take) is due even if no descriptor is ready.
    pub fn timeout(&self) -> Option<Boottime> {
        self.paused_until
    }

    /// Takes the messages that are there, up to `MESSAGES_MAX`, and passes on what counts.
    /// Returns whether the command says that it is ready.
    pub fn take(&mut self) -> bool {
        if let Some(outer) = &mut self.outer {
            outer.send();
        }
        let (mut users, mut is_ready) = (None, false);
        for _ in 0..MESSAGES_MAX {
            let Some(notice) = self.next(&mut users) else { break };
            let Some(notice) = notice else { continue };
            is_ready |= notice.says_ready();
            if let Some(outer) = &mut self.outer {
                outer.push(notice);
            }
        }
        is_ready
    }

    /// Passes on what waits, for a short time, because rlock ends.
    pub fn finish(&mut self) {
        let until = Boottime::now() + LAST_WAIT;
        while let Some(outer) = self.outer.as_mut().filter(|outer| !outer.waiting.is_empty()) {
            let left = until - Boottime::now();
            let limit = Timespec::try_from(left).ok();
            if left.is_zero() || poll(&mut [PollFd::new(&outer.socket, PollFlags::OUT)], limit.as_ref()) == Ok(0) {
                break;
            }
            outer.send();
        }
    }

    /// Takes the next message. Returns `None` if there is none, and nothing in it if it does not
    /// count.
    fn next(&mut self, users: &mut Option<HashSet<u32>>) -> Option<Option<Notice>> {
        self.paused_until = None;
        self.drains.retain(|drain| !drain.has_ended());
        if self.refuses_files && self.drains.is_empty() {
            self.welcome_files(true);
        }
        if !self.drains.iter().all(Drain::has_taken) {
            return self.pause();
        }
        let seen = rights::look(self.socket.as_fd(), BYTES_MAX).ok()?;
        let counts = seen.sender.is_some_and(|sender| counts(sender, users));
        let wants_files = counts && self.outer.as_ref().is_some_and(|outer| outer.files() <= FILES_MAX);
        let files = if !seen.has_files || wants_files {
            rights::take(self.socket.as_fd(), 1).ok()?.files
        } else {
            if !counts {
                self.welcome_files(false);
            }
            if self.drains.len() == DRAINS_MAX {
                return self.pause();
            }
            let Ok(drain) = Drain::start(Arc::clone(&self.socket)) else { return self.pause() };
            self.drains.push(drain);
            Vec::new()
        };
        Some(counts.then_some(Notice { bytes: seen.bytes, files }))
    }

    fn pause<T>(&mut self) -> Option<T> {
        self.paused_until = Some(Boottime::now() + PAUSE);
        None
    }

    fn welcome_files(&mut self, are_welcome: bool) {
        self.refuses_files = !are_welcome;
        rights::let_in(self.socket.as_fd(), are_welcome);
    }
}

impl Notice {
    fn says_ready(&self) -> bool {
        self.bytes.split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
    }
}

impl Outer {
    fn new(address: SocketAddrUnix) -> Result<Self, Errno> {
        Ok(Self { socket: datagram_socket()?, address, waiting: VecDeque::new(), closer: Closer::default() })
    }

    /// The number of descriptors that wait for the outer socket or are being closed.
    fn files(&self) -> usize {
        self.closer.open() + self.waiting.iter().map(|notice| notice.files.len()).sum::<usize>()
    }

    /// Passes on a message, after those that wait.
    fn push(&mut self, notice: Notice) {
        self.waiting.push_back(notice);
        self.send();
        if self.waiting.len() > WAITING_MAX {
            let oldest = self.waiting.iter().position(|notice| !notice.says_ready()).unwrap_or_default();
            let dropped = self.waiting.remove(oldest);
            self.close(dropped);
        }
    }

    /// Passes on what the outer socket takes now.
    fn send(&mut self) {
        while let Some(first) = self.waiting.front() {
            if self.send_one(first) == Err(Errno::AGAIN) {
                // A socket without a peer is always writable.
                let _ = connect(&self.socket, &self.address);
                break;
            }
            let sent = self.waiting.pop_front();
            self.close(sent);
        }
    }

    fn send_one(&self, Notice { bytes, files }: &Notice) -> Result<usize, Errno> {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg_addr(&self.socket, &self.address, &[IoSlice::new(bytes)], &mut control, flags)
    }

    fn close(&mut self, notice: Option<Notice>) {
        notice.into_iter().flat_map(|notice| notice.files).for_each(|file| self.closer.close(file));
    }
}

fn failed(error: Errno) -> Failure {
    Failure::new(exit::FAILURE, format!("cannot make the socket of --until-ready: {}", reason(&error)))
}

fn datagram_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// The address that sd_notify(3) reads in such a text.
fn address_of(text: &OsStr) -> Result<SocketAddrUnix, Failure> {
    let address = match text.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        path @ [b'/', ..] => SocketAddrUnix::new(path),
        _ => Err(Errno::INVAL),
    };
    address.map_err(|_| {
        let text = one_line(&text.to_string_lossy());
        Failure::usage(format!(
            "{VARIABLE} '{text}' is not a unix socket, so --until-ready cannot pass messages on: unset it"
        ))
    })
}

/// Whether a message of this process counts: of a process below rlock, or of one that has ended
/// since, if it was of root, of the user of rlock, or of the user of a process below rlock. These
/// can act through rlock's processes anyway, and a short program such as systemd-notify(1) may have
/// ended. `users` has the users of the processes below rlock, once they have been looked up.
fn counts(sender: libc::ucred, users: &mut Option<HashSet<u32>>) -> bool {
    // A process of a pid namespace around this one has no id here.
    let Some(pid) = Pid::from_raw(sender.pid) else { return false };
    // Only a privileged process may write another id than its own. systemd-notify(1) writes that of
    // its parent, which is rlock for an orphan and for `exec systemd-notify`.
    if pid == getpid() {
        return true;
    }
    let parent = |pid| processes::stat(pid).ok().map(|stat| stat.parent);
    let is_below = processes::are_visible().then(|| descends(pid, getpid(), parent)).flatten();
    is_below.unwrap_or_else(|| {
        [getuid().as_raw(), 0].contains(&sender.uid) || users.get_or_insert_with(users_below).contains(&sender.uid)
    })
}

/// Whether a process descends from another one; `None` if it has ended, or if its ancestors cannot
/// be seen. `parent` returns the parent of a process that can be seen.
fn descends(sender: Pid, from: Pid, parent: impl Fn(Pid) -> Option<Option<Pid>>) -> Option<bool> {
    for _ in 0..LOOKS {
        let mut pid = sender;
        loop {
            match parent(pid) {
                None if pid == sender => return None,
                // It may have ended since, so its child has another parent now.
                None => break,
                Some(None) => return Some(false),
                Some(Some(parent)) if parent == from => return Some(true),
                Some(Some(parent)) => pid = parent,
            }
        }
    }
    None
}

/// The users of the processes below rlock.
fn users_below() -> HashSet<u32> {
    let parents: HashMap<_, _> = processes::all().iter().map(|stat| (stat.process.pid, stat.parent)).collect();
    let parent = |pid: &Pid| parents.get(pid).copied().flatten();
    // Entries that were read one after another may form a circle.
    let ancestors = |pid: Pid| successors(parent(&pid), parent).take(parents.len());
    let below = parents.keys().filter(|pid| ancestors(**pid).any(|ancestor| ancestor == getpid()));
    below.filter_map(|pid| processes::user(*pid)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    #[test]
    fn process_below_rlock_counts_and_others_do_not() {
        let parents = BTreeMap::from([(20, 10), (30, 20), (10, 1), (40, 1)]);
        let parent = |of: Pid| match of.as_raw_nonzero().get() {
            1 => Some(None),
            number => parents.get(&number).map(|parent| Pid::from_raw(*parent)),
        };
        let descends = |number| descends(pid(number), pid(10), parent);
        assert_eq!([20, 30, 10, 40, 1].map(descends), [true, true, false, false, false].map(Some));
        assert_eq!(descends(50), None, "it has ended");
    }

    /// rlock becomes the parent of the orphan.
    #[test]
    fn process_whose_parent_ends_meanwhile_is_looked_at_again() {
        let looks = std::cell::Cell::new(0);
        let parent = |of: Pid| {
            looks.set(looks.get() + 1);
            match (of.as_raw_nonzero().get(), looks.get()) {
                (30, 1) => Some(Some(pid(20))),
                (30, _) => Some(Some(pid(10))),
                _ => None,
            }
        };
        assert_eq!(descends(pid(30), pid(10), parent), Some(true));
    }

    /// With hidepid, the parent of another user has no entry.
    #[test]
    fn process_whose_parent_is_hidden_is_not_looked_at_for_ever() {
        let parent = |of: Pid| (of == pid(30)).then_some(Some(pid(20)));
        assert_eq!(descends(pid(30), pid(10), parent), None);
    }

    #[test]
    fn address_is_a_path_or_an_abstract_name() {
        let address = |text: &str| address_of(OsStr::new(text));
        assert_eq!(address("/run/n").unwrap(), SocketAddrUnix::new("/run/n").unwrap());
        assert_eq!(address("@n").unwrap(), SocketAddrUnix::new_abstract_name(b"n").unwrap());
        for text in ["vsock:2:1", "n", &format!("/{}", "x".repeat(200))] {
            let failure = address(text).unwrap_err().to_string();
            assert!(failure.starts_with(&format!("NOTIFY_SOCKET '{text}' is not a unix socket")), "{failure}");
        }
    }
}
