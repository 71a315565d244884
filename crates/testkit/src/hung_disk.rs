//! A mount that does not answer, as if its file server were gone.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
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
    _fuse: File,
}

impl HungDisk {
    /// Mounts the file system in a folder inside `folder`, if this machine lets the tests mount.
    pub fn mount(folder: &Path) -> Option<Self> {
        let place = folder.join("hung");
        fs::create_dir(&place).expect("a folder can be made");
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
        (mounted || left_out("no fuse file system can be mounted")).then_some(Self { place, _fuse: fuse })
    }

    /// The path of a file in the mount.
    pub fn file(&self, name: &str) -> String {
        self.place.join(name).display().to_string()
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}
