//! A mount whose file server answers a write late: the writer can't be killed meanwhile.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{PipeWriter, Read, Write, pipe};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::hung_disk::{mount, unmount};

/// A FUSE file system that reads each write at once, and answers it after as many milliseconds as
/// the written text says. Until then the writer is in state D once it has got SIGKILL. Each name is
/// a file. The file system is unmounted when dropped, which lets all writers go.
pub struct LateDisk {
    place: PathBuf,
    /// The server ends when this end of the pipe is closed.
    end: Option<PipeWriter>,
    server: Option<JoinHandle<()>>,
}

impl LateDisk {
    /// Mounts the file system in a folder inside `folder`, if this machine lets the tests mount.
    pub fn mount(folder: &Path) -> Option<Self> {
        let place = folder.join("late");
        let fuse = mount(&place)?;
        let (is_over, end) = pipe().expect("a pipe can be made");
        let server = thread::spawn(move || serve(fuse, &is_over));
        Some(Self { place, end: Some(end), server: Some(server) })
    }

    /// The folder in which every name is a file.
    pub fn place(&self) -> &Path {
        &self.place
    }
}

impl Drop for LateDisk {
    fn drop(&mut self) {
        unmount(&self.place);
        self.end = None;
        let _ = self.server.take().map(JoinHandle::join);
    }
}

/// The numbers of the requests in the protocol of FUSE, linux/fuse.h.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// The length of the header of a request, and that of what precedes the text of a write.
const HEADER: usize = 40;
const WRITE_HEADER: usize = 40;

/// The number of the folder.
const ROOT: u64 = 1;

/// Answers requests until the pipe is closed. The kernel ends the file system with the descriptor.
fn serve(mut fuse: File, is_over: &impl std::os::fd::AsFd) {
    let mut late: BTreeMap<(Instant, u64), u32> = BTreeMap::new();
    let mut buffer = [0; 1 << 16];
    loop {
        let now = Instant::now();
        while let Some(entry) = late.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, unique), written) = entry.remove_entry();
            answer(&mut fuse, unique, Ok([written.to_ne_bytes(), [0; 4]].concat()));
        }
        let next = late.keys().next().and_then(|(due, _)| Timespec::try_from(*due - now).ok());
        let mut polled = [PollFd::new(&fuse, PollFlags::IN), PollFd::new(is_over, PollFlags::IN)];
        let ready = poll(&mut polled, next.as_ref());
        if ready.is_err() || !polled[1].revents().is_empty() {
            return;
        }
        if polled[0].revents().is_empty() {
            continue;
        }
        // A request may be withdrawn before it is read.
        let Ok(length) = fuse.read(&mut buffer) else { continue };
        let request = &buffer[..length];
        let number = |from: usize| u64::from_ne_bytes(request[from..from + 8].try_into().expect("eight bytes"));
        let code = u32::from_ne_bytes(request[4..8].try_into().expect("four bytes"));
        let (unique, node) = (number(8), number(16));
        match code {
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => {}
            opcode::WRITE => {
                let text = str::from_utf8(&request[HEADER + WRITE_HEADER..]).unwrap_or_default();
                let time = Duration::from_millis(text.trim().parse().unwrap_or(0));
                late.insert((Instant::now() + time, unique), text.len() as u32);
            }
            opcode::INIT => answer(&mut fuse, unique, Ok(version())),
            opcode::LOOKUP => {
                // Names that begin alike are one file, whose writers wait for each other.
                let name = request[HEADER..].iter().take(7).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                answer(&mut fuse, unique, Ok([words(&[name + 2, 0, 0, 0, 0]), attributes(name + 2)].concat()));
            }
            opcode::GETATTR => answer(&mut fuse, unique, Ok([words(&[0, 0]), attributes(node)].concat())),
            // Each write goes to the server at once.
            opcode::OPEN => answer(&mut fuse, unique, Ok(words(&[0, DIRECT]))),
            opcode::RELEASE => answer(&mut fuse, unique, Ok(Vec::new())),
            _ => answer(&mut fuse, unique, Err(libc::ENOSYS)),
        }
    }
}

/// The flag of an open file whose writes are not kept in memory.
const DIRECT: u64 = 1;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The answer to the first request: version 7.31 of the protocol, and no extension.
fn version() -> Vec<u8> {
    const LENGTH: usize = 64;
    let [major, minor, readahead, flags, background, write] = [7, 31, 0, 0, 0, 4096_u32];
    let mut answer: Vec<u8> =
        [major, minor, readahead, flags, background, write].iter().flat_map(|word| word.to_ne_bytes()).collect();
    answer.resize(LENGTH, 0);
    answer
}

/// The attributes of the folder or of a file that everybody may write.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    let nanoseconds = [0_u32; 3];
    let others = [mode, 1, 0, 0, 0, 4096, 0];
    let rest = nanoseconds.iter().chain(&others).flat_map(|word| word.to_ne_bytes());
    words(&[node, 0, 0, 0, 0, 0]).into_iter().chain(rest).collect()
}

fn answer(fuse: &mut File, unique: u64, answer: Result<Vec<u8>, i32>) {
    let error = answer.as_ref().err().map_or(0, |error| -error);
    let body = answer.unwrap_or_default();
    let length = 16 + body.len() as u32;
    let header = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
    // The process of the request may be gone.
    let _ = fuse.write(&[header, body].concat());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn killed_writer_lives_until_its_write_is_answered() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let Some(disk) = LateDisk::mount(folder.path()) else { return };
        let begun = Instant::now();
        let file = disk.place().join("file");
        let mut writer = Command::new("sh").args(["-c", "echo 400 >>\"$0\""]).arg(&file).spawn().expect("sh starts");
        crate::wait_until("the writer waits for the server", || {
            let place = std::fs::read_to_string(format!("/proc/{}/wchan", writer.id())).unwrap_or_default();
            place.contains("request_wait_answer")
        });
        writer.kill().expect("the writer is a child");
        writer.wait().expect("the writer is a child");
        assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
    }
}
