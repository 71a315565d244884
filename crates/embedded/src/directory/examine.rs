//! The checks of `rlock doctor`: the directory, who shares it, and this process.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, fstat};
use rustix::process::geteuid;

use super::super::file::TABLE_BYTES_MAX;
use super::{Directory, TABLE, free_bytes};
use rlock_model::text::shortened;
use rlock_store::check::{Check, size};
use rlock_store::operations::Elsewhere;
use rlock_sys::passwd;

/// Who may use a directory.
#[derive(Clone, Debug)]
struct Access {
    /// The owner of the directory.
    owner: u32,
    /// The name of the owner, or the number of an owner without a name.
    name: String,
    /// The permission bits of the directory.
    mode: u32,
}

impl Directory {
    /// Checks this directory. What cannot be read is no error.
    pub(crate) fn examine(&self) -> io::Result<Vec<Check>> {
        let stat = fstat(&self.dir)?;
        let access = Access {
            owner: stat.st_uid,
            name: passwd::lookup(stat.st_uid).map_or_else(|| stat.st_uid.to_string(), |(name, _)| name),
            mode: stat.st_mode,
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the kernel's numbers have 32 bits")]
        let kind = rustix::fs::fstatfs(&self.dir).ok().map(|found| found.f_type as u32);
        let free = rustix::fs::fstatvfs(&self.state).ok();
        let table = rustix::fs::statat(&self.state, TABLE, AtFlags::SYMLINK_NOFOLLOW);
        let table = table.map_or(0, |table| u64::try_from(table.st_size).unwrap_or(0));
        let bytes = free.as_ref().and_then(free_bytes);
        // File systems such as btrfs make inodes on demand, and state none.
        let inodes = free.filter(|free| free.f_files > 0).map(|free| free.f_favail);
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(vec![
            directory(&self.path, geteuid().as_raw(), &access),
            file_system(kind),
            room(bytes, inodes, table),
            limits(files),
            seen(&self.path, &self.others()),
            writers(&access),
        ])
    }
}

fn directory(path: &Path, user: u32, access: &Access) -> Check {
    let Access { owner, name, mode } = access;
    let mut found = format!("'{}' belongs to uid {owner}, mode {:04o}", path.display(), mode & 0o7777);
    if mode & 0o022 == 0 {
        found += &format!("; only user {} locks here", shortened(name));
    }
    if mode & 0o002 != 0 {
        let remedy = "everybody may take locks away: give the directory to a group, and run 'chmod o-w' on it";
        return Check::warn("directory", found, remedy);
    }
    if *owner != user && *owner != 0 && mode & 0o020 == 0 {
        return Check::warn("directory", found, "run rlock as the owner, or name a directory of your own with --store");
    }
    Check::ok("directory", found)
}

/// File systems of which something has to be said, by `f_type` of statfs(2).
const OVERLAY: u32 = 0x794C_7630;

/// The only file system of FUSE that rlock does not refuse is fuse-overlayfs.
const FUSE: u32 = 0x6573_5546;

const NAMES: [(u32, &str); 7] = [
    (0x0102_1994, "tmpfs"),
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (OVERLAY, "overlay"),
];

fn file_system(kind: Option<u32>) -> Check {
    let name = "file system";
    let Some(kind) = kind else {
        return Check::unknown(name, "its type cannot be read", "name a directory on a local disk with --store");
    };
    let found = NAMES.iter().find(|(known, _)| *known == kind).map_or("a local one", |(_, name)| *name);
    if kind == OVERLAY || kind == FUSE {
        let remedy = "other containers do not see these locks: share a volume, and name it with --store file:///DIR";
        return Check::warn(name, "overlay, the layer of a container", remedy);
    }
    Check::ok(name, found)
}

/// The room that a new table needs.
const TABLE_BYTES_MIN: u64 = 256 << 10;

/// Each process that holds or waits makes a file. With fewer inodes than these, a crowd uses up
/// all.
const INODES: u64 = 1000;

/// The check of the room for files and for a table that has so many bytes. `inodes` is none if the
/// file system has no limit.
fn room(free: Option<u64>, inodes: Option<u64>, table: u64) -> Check {
    let name = "room";
    let Some(free) = free else {
        return Check::unknown(name, "the file system states no free space", "see what df(1) tells of the directory");
    };
    if let Some(left) = inodes.filter(|left| *left < INODES) {
        let found = format!("inodes left on the file system: {left}");
        let remedy = "delete files on the file system, see df -i, or name another directory with --store";
        return if left == 0 { Check::fail(name, found, remedy) } else { Check::warn(name, found, remedy) };
    }
    let most = TABLE_BYTES_MAX as u64;
    let found = format!("{} free, and the table takes {} of at most {}", size(free), size(table), size(most));
    let all = table.saturating_add(free).min(most);
    if all < TABLE_BYTES_MIN {
        return Check::fail(name, found, "delete files on the file system, or name another directory with --store");
    }
    if table > all / 8 * 7 {
        let remedy = "make room on the file system, or use fewer names: idle names lose their history, and a job with \
                    --once-per fails where its success can't be kept";
        return Check::warn(name, found, remedy);
    }
    Check::ok(name, found)
}

/// The number of open files that rlock itself needs, and that it needs to watch others.
const FILES_MIN: u64 = 32;

const FILES: u64 = 256;

/// The check of the maximum number of open files; `u64::MAX` for no limit.
fn limits(files: u64) -> Check {
    let found = match files {
        u64::MAX => "any number of open files".to_owned(),
        files => format!("{files} open files"),
    };
    let remedy = "raise the limit: ulimit -n 1024";
    match files {
        ..FILES_MIN => Check::fail("limits", found, remedy),
        FILES_MIN..FILES => Check::warn("limits", found, remedy),
        _ => Check::ok("limits", found),
    }
}

fn seen(path: &Path, elsewhere: &Elsewhere) -> Check {
    let mut found = format!(
        "processes on this machine that use '{}'; no other machine, and no container without this directory",
        path.display()
    );
    if !elsewhere.used.is_empty() {
        found += &format!("; people also lock in {}, unseen here", elsewhere.used.join(", "));
    }
    Check::ok("seen by", found)
}

fn writers(access: &Access) -> Check {
    let owner = format!("user {}", shortened(&access.name));
    let root = if access.owner == 0 { "" } else { ", and root" };
    let who = match access.mode {
        mode if mode & 0o002 != 0 => "every user of this machine".to_owned(),
        mode if mode & 0o020 != 0 => format!("{owner} and the group of the directory{root}"),
        _ => format!("{owner}{root}"),
    };
    Check::ok("written by", format!("{who}; each of them may take and break any lock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_store::check::Verdict;

    fn access(owner: u32, mode: u32) -> Access {
        Access { owner, name: "ada".to_owned(), mode }
    }

    fn checked(user: u32, owner: u32, mode: u32) -> Check {
        directory(Path::new("/run/rlock"), user, &access(owner, mode))
    }

    #[test]
    fn directory_of_one_user_is_named_as_such() {
        for (mode, ending) in [(0o700, "mode 0700; only user ada locks here"), (0o2770, "mode 2770")] {
            let check = checked(0, 0, mode);
            assert!(check.found.ends_with(ending), "{check:?}");
        }
    }

    #[test]
    fn each_check_of_a_directory_fails_for_its_fault() {
        let (plenty, table) = (Some(1 << 30), 1 << 15);
        for (expected, check) in [
            (Verdict::Ok, checked(0, 0, 0o700)),
            (Verdict::Warn, checked(0, 0, 0o1777)),
            (Verdict::Warn, checked(8, 7, 0o755)),
            (Verdict::Ok, checked(8, 7, 0o2775)),
            (Verdict::Ok, file_system(Some(0x0102_1994))),
            (Verdict::Warn, file_system(Some(OVERLAY))),
            (Verdict::Warn, file_system(Some(FUSE))),
            (Verdict::Unknown, file_system(None)),
            (Verdict::Ok, room(plenty, Some(1 << 20), table)),
            (Verdict::Fail, room(Some(100), None, table)),
            (Verdict::Ok, room(Some(5 << 20), None, table)),
            (Verdict::Warn, room(Some(500 << 10), None, 4 << 20)),
            (Verdict::Warn, room(plenty, None, TABLE_BYTES_MAX as u64)),
            (Verdict::Fail, room(plenty, Some(0), table)),
            (Verdict::Warn, room(plenty, Some(999), table)),
            (Verdict::Ok, room(plenty, None, table)),
            (Verdict::Unknown, room(None, None, table)),
            (Verdict::Fail, limits(10)),
            (Verdict::Warn, limits(64)),
            (Verdict::Ok, limits(1024)),
            (Verdict::Ok, limits(u64::MAX)),
        ] {
            assert_eq!(check.verdict, expected, "{check:?}");
            assert_eq!(check.remedy.is_none(), expected == Verdict::Ok, "{check:?}");
        }
    }

    #[test]
    fn writers_of_a_directory_follow_from_its_mode() {
        let who = |owner, mode| writers(&access(owner, mode)).found;
        let end = "; each of them may take and break any lock";
        assert_eq!(who(7, 0o40700), format!("user ada, and root{end}"));
        assert_eq!(who(0, 0o40755), format!("user ada{end}"));
        assert_eq!(who(7, 0o42770), format!("user ada and the group of the directory, and root{end}"));
        assert_eq!(who(7, 0o41777), format!("every user of this machine{end}"));
    }

    #[test]
    fn directory_is_seen_on_this_machine_beside_those_of_others() {
        let found = |used: &[&str]| {
            let used = used.iter().map(|text| (*text).to_owned()).collect();
            seen(Path::new("/run/rlock"), &Elsewhere { used, unreadable: Vec::new() }).found
        };
        let here = "processes on this machine that use '/run/rlock'; no other machine, and no container without this directory";
        assert_eq!(found(&[]), here);
        let others = format!("{here}; people also lock in /run/lock/rlock-7 (ada), unseen here");
        assert_eq!(found(&["/run/lock/rlock-7 (ada)"]), others);
    }
}
