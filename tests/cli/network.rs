//! "A directory on a network file system is refused." The test serves such a file system itself, as
//! user-space file system drivers do.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran};

/// The requests that the kernel sends when a directory is opened and queried; fuse_opcode in
/// linux/fuse.h.
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
/// The requests without a reply: forget, interrupt, batch forget.
const WITHOUT_REPLY: [u32; 3] = [2, 36, 42];

/// A directory on a network file system exits 69. rlock neither writes to the directory nor waits
/// for it.
#[test]
fn directory_on_a_network_file_system_exits_69() {
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
    // The mount namespace ends with the script, and then the mount and the server end as well.
    let script = format!(
        "mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 none \"$0\" || exit 42
         '{RLOCK}' exec k -- echo started; echo $?
         '{RLOCK}' inspect; echo $?"
    );
    let Some(mut shell) = needs::namespaces(&["--mount"]) else { return };
    lab.settle(&mut shell);
    shell.args(["sh", "-c", &script]).arg(directory).stdin(device);
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

/// Serves until the file system is unmounted, or until the script has ended without a mount.
fn serve(mut device: File, ended: &AtomicBool) {
    loop {
        match answer(&mut device).map_err(|error| error.kind()) {
            Ok(()) => {}
            // The file system is not mounted yet.
            Err(ErrorKind::PermissionDenied) if !ended.load(Ordering::Relaxed) => {
                thread::sleep(Duration::from_millis(2));
            }
            // The kernel took the request back before the reply.
            Err(ErrorKind::NotFound | ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

/// Answers one request of the kernel as an empty directory.
fn answer(device: &mut File) -> std::io::Result<()> {
    let mut request = vec![0; 1 << 18];
    let length = device.read(&mut request)?;
    let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
    let opcode = number(4);
    if length < 40 || WITHOUT_REPLY.contains(&opcode) {
        return Ok(());
    }
    let (error, body) = match opcode {
        // The protocol version and the largest write.
        INIT => (0, words(&[7, 19, 0, 0, 0, 4096])),
        GETATTR => (0, attributes()),
        OPENDIR => (0, words(&[0; 4])),
        STATFS => (0, words(&[0; 20])),
        RELEASEDIR => (0, Vec::new()),
        _ => (rustix::io::Errno::NOSYS.raw_os_error(), Vec::new()),
    };
    let size = u32::try_from(16 + body.len()).expect("the reply is short");
    let reply = [&words(&[size, (-error).cast_unsigned()])[..], &request[8..16], &body].concat();
    device.write_all(&reply)
}

/// The attributes of a directory that root owns: fuse_attr_out.
fn attributes() -> Vec<u8> {
    let mut attributes = [0; 26];
    // The inode number, the kind with the permissions, and the number of links.
    (attributes[4], attributes[19], attributes[20]) = (1, 0o40755, 2);
    words(&attributes)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
