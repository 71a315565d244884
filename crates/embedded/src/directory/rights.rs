//! The rights of a store's files, which follow from those of its directory, and the making of files
//! with these rights.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Gid, IFlags, Mode, OFlags, Stat, Uid, fstat, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::foreign;
use rlock_words::{Explained, reason};

/// The ownership and permissions that a store's files take over from its directory. So everybody
/// who may write to the directory may use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    owner: u32,
    group: u32,
    file: u32,
    folder: u32,
}

impl Rights {
    pub(super) fn of(stat: &Stat) -> Self {
        let file = [0o200, 0o020, 0o002].into_iter().filter(|write| stat.st_mode & write != 0);
        let file = file.fold(0o600, |mode, write| mode | write | write << 1);
        // A user who may write may also list the folder. The folder inherits the setgid bit but not
        // the sticky bit.
        let folder = (file | (file & 0o222) >> 1) | (stat.st_mode & 0o2000);
        Self { owner: stat.st_uid, group: stat.st_gid, file, folder }
    }

    /// Opens a folder, or makes it.
    pub(super) fn folder(&self, parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
        match open() {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        // RestrictSUIDSGID= of systemd.exec(5), which DynamicUser= implies, refuses each call with
        // a setgid bit. The folder inherits the bit.
        match regardless_of_umask(|| rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(self.folder & 0o777))) {
            Ok(()) => {
                let folder = open()?;
                // Somebody may have replaced the folder between the two calls.
                if fstat(&folder)?.st_uid != geteuid().as_raw() {
                    return Ok(folder);
                }
                self.hand_over(&folder);
                if fstat(&folder)?.st_mode & 0o7777 != self.folder {
                    rustix::fs::fchmod(&folder, Mode::from_raw_mode(self.folder))?;
                }
                Ok(folder)
            }
            Err(Errno::EXIST) => Ok(open()?),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file, or makes it. Returns also what it is, and whether it is new.
    pub(super) fn file(&self, parent: &OwnedFd, name: &str) -> io::Result<(OwnedFd, Stat, bool)> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = flags | OFlags::CREATE | OFlags::EXCL;
        loop {
            match rustix::fs::openat(parent, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => {}
                opened => {
                    let (file, stat) = regular(opened?)?;
                    return Ok((file, stat, false));
                }
            }
            match regardless_of_umask(|| rustix::fs::openat(parent, name, make, Mode::from_raw_mode(self.file))) {
                // Another process has just made the file.
                Err(Errno::EXIST) => {}
                made => {
                    let file = made?;
                    write_in_place(&file);
                    self.hand_over(&file);
                    let stat = fstat(&file)?;
                    return Ok((file, stat, true));
                }
            }
        }
    }

    /// Makes a named pipe and opens it for reading and writing. Opening it only for reading would
    /// wait for a writer, and reads would report an end of file after each writer.
    pub(super) fn pipe(&self, parent: &OwnedFd, name: &str) -> io::Result<(OwnedFd, Stat)> {
        regardless_of_umask(|| rustix::fs::mkfifoat(parent, name, Mode::from_raw_mode(self.file))).map_err(no_pipes)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let pipe = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        let stat = fstat(&pipe)?;
        // Somebody may have replaced the pipe between the two calls.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo || stat.st_uid != geteuid().as_raw() {
            return Err(foreign());
        }
        let stat = if self.hand_over(&pipe) { fstat(&pipe)? } else { stat };
        Ok((pipe, stat))
    }

    fn differ_from_mine(&self) -> bool {
        self.owner != geteuid().as_raw() || self.file & 0o060 != 0
    }

    /// Gives a new file to the directory's group, and as root also to the directory's owner.
    /// Returns whether the directory's rights call for this. A user who may not change the
    /// ownership has other ways to share: a setgid directory, or one that anybody may write.
    fn hand_over(&self, made: &OwnedFd) -> bool {
        if self.differ_from_mine() {
            let owner = geteuid().is_root().then(|| Uid::from_raw(self.owner));
            let _ = rustix::fs::fchown(made, owner, Some(Gid::from_raw(self.group)));
        }
        self.differ_from_mine()
    }
}

/// Adds advice to the error of a named pipe that cannot be made.
fn no_pipes(error: Errno) -> io::Error {
    match error {
        Errno::PERM => {
            let what =
                format!("it refuses named pipes ({}), as vfat, exfat, hugetlbfs and some sandboxes do", reason(&error));
            Explained::new(what, "name a directory on another file system with --store").into()
        }
        error => error.into(),
    }
}

/// Runs `make` with an empty umask, so that a new file has exactly the given permissions. A umask
/// could take them from the directory's other users, and from its owner.
pub(super) fn regardless_of_umask<T>(make: impl FnOnce() -> T) -> T {
    let umask = rustix::process::umask(Mode::empty());
    let made = make();
    rustix::process::umask(umask);
    made
}

/// Has a copy-on-write file system such as btrfs write over the blocks of a new file, so that a
/// change of a file that has its room needs no more of it. Other file systems refuse this.
fn write_in_place(empty: &OwnedFd) {
    let _ = ioctl_getflags(empty).and_then(|flags| ioctl_setflags(empty, flags | IFlags::NOCOW));
}

/// Refuses a file that is not regular, such as a named pipe, because rlock did not make it.
fn regular(file: OwnedFd) -> io::Result<(OwnedFd, Stat)> {
    let stat = fstat(&file)?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if is_regular { Ok((file, stat)) } else { Err(foreign()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_inherit_the_write_permissions_of_the_directory() {
        let rights = |mode: u32| {
            let mut stat = rustix::fs::stat("/").unwrap();
            stat.st_mode = mode;
            Rights::of(&stat)
        };
        for (directory, file, folder) in [
            (0o40700, 0o600, 0o700),
            (0o40755, 0o600, 0o700),
            (0o40770, 0o660, 0o770),
            (0o42775, 0o660, 0o2770),
            (0o41777, 0o666, 0o777),
        ] {
            let rights = rights(directory);
            assert_eq!((rights.file, rights.folder), (file, folder), "{directory:o}");
        }
    }
}
