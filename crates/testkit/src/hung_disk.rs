//! A mount that does not answer, as if its file server were gone.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::needs::left_out;

/// A FUSE file system without a server: a process that looks up a file there waits. It is unmounted
/// when dropped.
pub struct HungDisk {
    place: PathBuf,
    /// The kernel ends the file system when this descriptor is closed.
    fuse: File,
}

impl HungDisk {
    /// Mounts the file system in a folder inside `folder`, if this machine lets the tests mount.
    pub fn mount(folder: &Path) -> Option<Self> {
        let place = folder.join("hung");
        let fuse = mount(&place)?;
        Some(Self { place, fuse })
    }

    /// Waits until a process looks up a file. The process is then in state D, since the request has
    /// reached its server: not even SIGKILL ends the process before the file system is dropped.
    pub fn until_looked_up(&mut self) {
        let mut request = [0; 1 << 17];
        // The first request is FUSE_INIT of include/uapi/linux/fuse.h, and the second the lookup.
        let length = self.fuse.read(&mut request).expect("the kernel begins");
        let id = &request[..length][8..16];
        // The protocol is 7.31, and a write may have 4096 bytes.
        let (major, minor, write_max) = (7_u32, 31_u32, 4096_u32);
        let mut body = [0; 64];
        for (at, number) in [(0, major), (4, minor), (20, write_max)] {
            body[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        let size = 16 + u32::try_from(body.len()).expect("the answer is short");
        let answer = [&size.to_ne_bytes()[..], &[0; 4], id, &body].concat();
        self.fuse.write_all(&answer).expect("the kernel takes the answer");
        let length = self.fuse.read(&mut request).expect("a file is looked up");
        assert!(length > 0, "the file system has ended");
    }

    /// The path of a file in the mount.
    pub fn file(&self, name: &str) -> String {
        self.place.join(name).display().to_string()
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        unmount(&self.place);
    }
}

/// Mounts a FUSE file system of root in this new folder, if this machine lets the tests mount.
/// Returns the descriptor of its server.
pub(super) fn mount(place: &Path) -> Option<File> {
    fs::create_dir(place).expect("a folder can be made");
    let Ok(fuse) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        left_out("/dev/fuse cannot be opened");
        return None;
    };
    let text = |bytes: &[u8]| CString::new(bytes).expect("the text has no NUL");
    let options = text(format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd()).as_bytes());
    let (target, kind) = (text(place.as_os_str().as_bytes()), text(b"fuse"));
    // SAFETY: all arguments are texts that end in NUL and live as long as the call.
    let mounted =
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) } == 0;
    (mounted || left_out("no fuse file system can be mounted")).then_some(fuse)
}

/// Takes the file system away, though files of it may be open.
pub(super) fn unmount(place: &Path) {
    let _ = Command::new("umount").arg("-l").arg(place).status();
}
