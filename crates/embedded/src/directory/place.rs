//! The place of a directory: where it is, and whether rlock may use it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::advised;
use super::rights::regardless_of_umask;
use rlock_store::error::Error;
use rlock_sys::passwd;
use rlock_words::{Explained, reason};

/// The parent of root's default directory. Only root may make a directory here, and a boot empties
/// it.
const RUN: &str = "/run";
/// The name of root's directory in `/run`.
const IN_RUN: &str = "rlock";
/// The parent of the default directories of other users. Anybody may make a directory here, and a
/// boot empties it. Root's directory is not here, because any user could make a directory of its
/// name first.
const RUN_LOCK: &str = "/run/lock";
/// The start of a directory's name in `/run/lock`; the rest is the user id.
const IN_RUN_LOCK: &str = "rlock-";
/// The directory below a user's home, for a machine without `/run/lock`.
const BELOW_HOME: &str = ".local/state/rlock";

/// File systems that several machines may share, by `f_type` of statfs(2). A lock of one machine
/// may mean nothing on another. These are the ones that coreutils calls remote, and OrangeFS and
/// 9p. Of its list, overlayfs and aufs are missing, which are local as a rule, and those in which
/// nobody can make a directory: fusectl, nfsd and pipefs.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 25] = [
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFE53_4D42, "smb2"),
    (0xFF53_4D42, "cifs"),
    (0x564C, "ncp"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x00C3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "gfs2"),
    (0x7461_636F, "ocfs2"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0xAAD7_AAEA, "panfs"),
    (0xBEEF_DEAD, "stornext"),
    (0xA501_FCF5, "vxfs"),
    (0x6163_6673, "acfs"),
    (0x0131_11A8, "ibrix"),
    (0x2003_0528, "orangefs"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
    (0x7C7C_6673, "prl_fs"),
    (FUSE, "fuse"),
];
/// FUSE is among them, because sshfs, virtiofs and similar ones look like local ones to statfs(2).
const FUSE: u32 = 0x6573_5546;
/// The local ones below FUSE, by the types of their mounts: the layers of a container of podman
/// without root.
const LOCAL_FUSE: [&str; 1] = ["fuse.fuse-overlayfs"];
const TMPFS: u32 = 0x0102_1994;

/// The directory in which all processes of this user on this host meet. Only the host and the uid
/// determine it, never the environment.
pub(crate) fn default() -> Result<PathBuf, Error> {
    let uid = geteuid();
    if uid.is_root() {
        if rustix::fs::stat(RUN).is_ok_and(|run| only_root_writes(&run)) {
            return Ok(Path::new(RUN).join(IN_RUN));
        }
    } else if rustix::fs::stat(RUN_LOCK).is_ok_and(|run_lock| anybody_writes(&run_lock)) {
        return Ok(Path::new(RUN_LOCK).join(format!("{IN_RUN_LOCK}{uid}")));
    }
    let home = passwd::lookup(uid.as_raw()).map(|(_, home)| home).filter(|home| home.is_absolute());
    home.map(|home| home.join(BELOW_HOME)).ok_or_else(|| {
        let why = if uid.is_root() {
            format!("{RUN} is not a directory that only root may write")
        } else {
            format!("{RUN_LOCK} is not a directory that anyone may write")
        };
        let what = format!("the store has no place: {why}, and user {uid} has no home in /etc/passwd");
        Error::Unavailable(Explained::with_semicolon(what, "name a directory with --store file:///directory"))
    })
}

/// The default directories on this machine except `own`, each with the name of its owner.
pub(super) fn others(own: &OwnedFd) -> Vec<(PathBuf, String)> {
    let mut paths = vec![(0, Path::new(RUN).join(IN_RUN))];
    let entries = std::fs::read_dir(RUN_LOCK).into_iter().flatten().flatten();
    paths.extend(entries.filter_map(|entry| {
        let uid = entry.file_name().to_str()?.strip_prefix(IN_RUN_LOCK)?.parse().ok()?;
        (uid != 0).then(|| (uid, entry.path()))
    }));
    paths.sort_unstable();
    let is_store = |uid: u32, path: &Path| {
        let Ok(stat) = rustix::fs::lstat(path) else { return false };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        // Anybody may make a directory in /run/lock, but rlock uses only that of the user.
        is_directory && stat.st_uid == uid && !same_file(Ok(stat), fstat(own))
    };
    let user = |uid| passwd::lookup(uid).map_or_else(|| format!("uid {uid}"), |(name, _)| name);
    let others = paths.into_iter().filter(|(uid, path)| is_store(*uid, path));
    others.map(|(uid, path)| (path, user(uid))).collect()
}

/// Opens the directory at a path, or makes it, and checks that rlock may use it.
pub(super) fn open(path: &Path, is_default: bool) -> io::Result<(OwnedFd, Stat)> {
    let dir = open_or_make(path, is_default).map_err(advised)?;
    let stat = fstat(&dir)?;
    check_file_system(&dir, stat.st_dev)?;
    if is_default {
        check_private(&stat)?;
    }
    check_owner(&stat)?;
    Ok((dir, stat))
}

fn only_root_writes(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == 0 && stat.st_mode & 0o022 == 0
}

fn anybody_writes(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & 0o002 != 0
}

fn open_or_make(path: &Path, is_default: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            Err(io::Error::other("it is not a directory, or a symbolic link, which rlock does not follow"))
        }
        opened => opened.map_err(io::Error::from),
    };
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    if is_default
        && path.ends_with(BELOW_HOME)
        && let Some(parent) = path.parent()
    {
        regardless_of_umask(|| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent))?;
    }
    match regardless_of_umask(|| rustix::fs::mkdir(path, Mode::RWXU)) {
        Ok(()) | Err(Errno::EXIST) => open(),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a default directory that other users may access, because its name alone decides which
/// directory is used.
fn check_private(stat: &Stat) -> io::Result<()> {
    let uid = geteuid().as_raw();
    if stat.st_uid != uid {
        let owner = stat.st_uid;
        let what = format!("it belongs to uid {owner}, not to {uid}");
        return Err(Explained::new(what, "have it removed, or name another with --store").into());
    }
    let mode = stat.st_mode & 0o777;
    if mode != 0o700 {
        let what = format!("its permissions are {mode:03o}");
        return Err(Explained::new(what, "give it 700, for it is yours alone").into());
    }
    Ok(())
}

/// Root does not use a directory of another user, because its owner could replace the store's files
/// at any time.
fn check_owner(stat: &Stat) -> io::Result<()> {
    if geteuid().is_root() && stat.st_uid != 0 {
        let owner = stat.st_uid;
        let what = format!("it belongs to uid {owner}, who could mislead root with what is in it");
        return Err(Explained::new(what, "run rlock as that user, or give the directory to root").into());
    }
    Ok(())
}

fn check_file_system(dir: &OwnedFd, device: u64) -> io::Result<()> {
    let stat = rustix::fs::fstatfs(dir).map_err(|error| {
        let what =
            format!("fstatfs(2), which tells whether it is on a network file system, fails ({})", reason(&error));
        Explained::new(what, "permit the call")
    })?;
    // The type is a 32-bit number, which some architectures keep in a signed word.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = stat.f_type as u32;
    // The server of a 9p mount states the type, and QEMU states that of its host. Such a mount has
    // no device. A tmpfs has none either, and is too common to look further.
    let may_be_other = rustix::fs::major(device) == 0 && magic != TMPFS;
    let kind = may_be_other.then(|| mount_type(dir)).flatten();
    match network_file_system(magic, kind.as_deref()) {
        Some(name) => {
            let what = format!("it is on a network file system ({name}), where other machines' locks are not seen");
            Err(Explained::new(what, "name a local one").into())
        }
        None => Ok(()),
    }
}

/// The name of a network file system, by its number and by the type of its mount, if that is known.
fn network_file_system(magic: u32, mount: Option<&str>) -> Option<&'static str> {
    match mount {
        Some("9p") => Some("9p"),
        Some(kind) if magic == FUSE && LOCAL_FUSE.contains(&kind) => None,
        _ => NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name),
    }
}

/// The type of the mount that a folder is on, as /proc tells.
fn mount_type(dir: &OwnedFd) -> Option<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    type_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, id)
}

/// The type of a mount in the text of mountinfo, see proc(5).
fn type_in(mounts: &str, id: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

/// Whether two results of stat(2) are those of one file.
pub(super) fn same_file(one: rustix::io::Result<Stat>, other: rustix::io::Result<Stat>) -> bool {
    matches!((one, other), (Ok(one), Ok(other)) if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_tells_a_network_file_system_from_a_local_one() {
        let mounts = "25 1 0:23 / /sys rw - sysfs sysfs rw\n\
                      125 25 0:50 / /vm rw,relatime shared:1 - 9p host rw,trans=virtio\n\
                      126 25 0:51 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw\n";
        let [vm, root] = ["125", "126"].map(|id| type_in(mounts, id));
        assert_eq!([vm.as_deref(), root.as_deref()], [Some("9p"), Some("fuse.fuse-overlayfs")]);
        assert_eq!(type_in(mounts, "5"), None);
        for (magic, mount, network) in [
            (0xEF53, None, None),
            (0xEF53, Some("ext4"), None),
            (0xEF53, Some("9p"), Some("9p")),
            (FUSE, Some("fuse.fuse-overlayfs"), None),
            (FUSE, Some("fuse.sshfs"), Some("fuse")),
            (FUSE, Some("virtiofs"), Some("fuse")),
            (FUSE, None, Some("fuse")),
            (0x4750_4653, Some("gpfs"), Some("gpfs")),
            (0x1983_0326, Some("beegfs"), Some("beegfs")),
            (0x2003_0528, None, Some("orangefs")),
        ] {
            assert_eq!(network_file_system(magic, mount), network, "{magic:x} {mount:?}");
        }
    }

    #[test]
    fn each_network_file_system_is_refused_by_its_own_name_and_no_local_one() {
        for (magic, name) in NETWORK_FILE_SYSTEMS {
            assert_eq!(network_file_system(magic, None), Some(name));
        }
        let ext4_xfs_btrfs_f2fs_zfs_bcachefs_overlay_tmpfs =
            [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x2FC1_2FC1, 0xCA45_1A4E, 0x794C_7630, TMPFS];
        for magic in ext4_xfs_btrfs_f2fs_zfs_bcachefs_overlay_tmpfs {
            assert_eq!(network_file_system(magic, None), None, "{magic:x}");
        }
    }
}
