//! "A network file system is refused": shown with one that the test serves itself, as the drivers of user-space file systems do.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::needs::{self, skip_unless};
use crate::support::{Lab, RLOCK, Ran};

/// The requests that opening a directory and asking of it leads to; fuse_opcode in linux/fuse.h.
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
/// Those that want no reply: forget, interrupt, forget many.
const WITHOUT_REPLY: [u32; 3] = [2, 36, 42];

/// A directory on a network file system exits 69: rlock neither writes to it nor waits for it.
#[test]
fn a_network_file_system_is_refused() {
    skip_unless!(needs::root("mount a file system"));
    let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
        needs::left_out("/dev/fuse cannot be opened");
        return;
    };
    let lab = Lab::new();
    let directory = lab.directory();
    fs::create_dir(directory).expect("a folder");
    let served = device.try_clone().expect("a second descriptor");
    let ended = Arc::new(AtomicBool::new(false));
    let server = thread::spawn({
        let ended = Arc::clone(&ended);
        move || serve(served, &ended)
    });
    // In a mount namespace, so that the mount ends with the script, and with it the server.
    let script = format!(
        "mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 none \"$0\" || exit 42
         '{RLOCK}' exec k -- echo started; echo $?
         '{RLOCK}' inspect; echo $?"
    );
    let mut shell = Command::new("unshare");
    lab.settle(&mut shell);
    shell.args(["--mount", "sh", "-c", &script]).arg(directory).stdin(device);
    let ran = Ran::of(&mut shell);
    drop(shell);
    ended.store(true, Ordering::Relaxed);
    server.join().expect("the server doesn't panic");
    if ran.code() == Some(42) {
        needs::left_out(&format!("no fuse file system can be mounted: {}", ran.stderr.trim_end()));
        return;
    }
    let line = format!(
        "rlock: the store in {} can't be used: it is on a network file system (fuse), where other machines' locks are not \
         seen: name a local one\n",
        directory.display()
    );
    assert_eq!((ran.stdout.as_str(), ran.stderr), ("69\n69\n", line.repeat(2)));
    assert_eq!(fs::read_dir(directory).expect("the folder below the mount").count(), 0);
}

/// Serves until the file system is unmounted, or the script has ended without having mounted it.
fn serve(mut device: File, ended: &AtomicBool) {
    loop {
        match answer(&mut device).map_err(|error| error.kind()) {
            Ok(()) => {}
            // Not mounted yet.
            Err(ErrorKind::PermissionDenied) if !ended.load(Ordering::Relaxed) => {
                thread::sleep(Duration::from_millis(2));
            }
            // A request that was taken back before it was answered.
            Err(ErrorKind::NotFound | ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

/// Answers one request of the kernel's: there is a directory, with nothing in it.
fn answer(device: &mut File) -> std::io::Result<()> {
    let mut request = vec![0; 1 << 18];
    let length = device.read(&mut request)?;
    let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
    let opcode = number(4);
    if length < 40 || WITHOUT_REPLY.contains(&opcode) {
        return Ok(());
    }
    let (error, body) = match opcode {
        // The version of the protocol, and the most that is written at once.
        INIT => (0, words(&[7, 19, 0, 0, 0, 4096])),
        GETATTR => (0, attributes()),
        OPENDIR => (0, words(&[0; 4])),
        STATFS => (0, words(&[0; 20])),
        RELEASEDIR => (0, Vec::new()),
        _ => (rustix::io::Errno::NOSYS.raw_os_error(), Vec::new()),
    };
    let size = u32::try_from(16 + body.len()).expect("it is short");
    let reply = [&words(&[size, (-error).cast_unsigned()])[..], &request[8..16], &body].concat();
    device.write_all(&reply)
}

/// Of a directory that root owns: fuse_attr_out.
fn attributes() -> Vec<u8> {
    let mut attributes = [0; 26];
    // The inode's number, its kind and permissions, and how many names it has.
    (attributes[4], attributes[19], attributes[20]) = (1, 0o40755, 2);
    words(&attributes)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
