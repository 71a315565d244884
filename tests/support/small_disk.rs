//! A file system that is soon full.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::needs::left_out;

/// A small file system in memory, unmounted when dropped.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of `size`, such as `64k`, in a folder inside `folder`, if this machine
    /// lets the tests mount.
    pub(crate) fn mount(folder: &Path, size: &str) -> Option<Self> {
        let place = folder.join("disk");
        fs::create_dir(&place).expect("a folder can be made");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&place).stderr(Stdio::null());
        let mounted = mount.status().is_ok_and(|status| status.success());
        (mounted || left_out("no tmpfs can be mounted")).then_some(Self(place))
    }

    pub(crate) fn place(&self) -> &Path {
        &self.0
    }

    /// Writes a file until the disk is full. Returns the path of the file, whose removal frees the
    /// space.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).expect("a file can be made");
        while file.write_all(&[b'.'; 512]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
