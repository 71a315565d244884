//! A file system that is soon full.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::needs::{excused, left_out};

/// A small file system in memory, unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of `size`, such as `64k`, in a folder inside `folder`, if this machine
    /// lets the tests mount.
    pub fn mount(folder: &Path, size: &str) -> Option<Self> {
        let mounted = Self::try_mount(folder, &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        if mounted.is_none() {
            left_out("no tmpfs can be mounted");
        }
        mounted
    }

    /// Mounts a btrfs, which writes to new blocks, if the kernel has it and lets the tests mount.
    pub fn copy_on_write(folder: &Path) -> Option<Self> {
        let image = folder.join("image");
        File::create(&image).and_then(|file| file.set_len(128 << 20)).expect("a file can be made");
        let mut make = Command::new("mkfs.btrfs");
        make.args(["-q", "--mixed"]).arg(&image).stdout(Stdio::null()).stderr(Stdio::null());
        let made = make.status().is_ok_and(|status| status.success());
        let image = image.to_str().expect("the path is UTF-8");
        let mounted = if made { Self::try_mount(folder, &["-o", "loop", image]) } else { None };
        if mounted.is_none() {
            excused("no btrfs can be mounted");
        }
        mounted
    }

    fn try_mount(folder: &Path, words: &[&str]) -> Option<Self> {
        let place = folder.join("disk");
        fs::create_dir(&place).expect("a folder can be made");
        let mut mount = Command::new("mount");
        mount.args(words).arg(&place).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(place))
    }

    pub fn place(&self) -> &Path {
        &self.0
    }

    /// Writes a file until the disk is full. Returns the path of the file, whose removal frees the
    /// space.
    pub fn fill(&self) -> PathBuf {
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
