//! The checks of the directory of the embedded store, and of the process that uses it.

use super::check::{Check, size};
use rlock_model::text::shortened;
use rlock_store::facts::DirectoryFacts;
use rlock_store::facts::TABLE_BYTES_MAX;

pub(super) fn directory(facts: &DirectoryFacts) -> Check {
    let DirectoryFacts { path, user, owner, mode, .. } = facts;
    let mut found = format!("'{}' belongs to uid {owner}, mode {:04o}", path.display(), mode & 0o7777);
    if mode & 0o022 == 0 {
        found += &format!("; only user {} locks here", shortened(&facts.owner_name));
    }
    if mode & 0o002 != 0 {
        let remedy = "everybody may take locks away: give the directory to a group, and run 'chmod o-w' on it";
        return Check::warn("directory", found, remedy);
    }
    if owner != user && *owner != 0 && mode & 0o020 == 0 {
        return Check::warn("directory", found, "run rlock as the owner, or name a directory of your own with --store");
    }
    Check::ok("directory", found)
}

/// File systems of which something has to be said, by `f_type` of statfs(2).
pub(super) const OVERLAY: u32 = 0x794C_7630;

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

pub(super) fn file_system(facts: &DirectoryFacts) -> Check {
    let name = "file system";
    let Some(kind) = facts.file_system else {
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

pub(super) fn room(facts: &DirectoryFacts) -> Check {
    let name = "room";
    let Some(free) = facts.free else {
        return Check::unknown(name, "the file system states no free space", "see what df(1) tells of the directory");
    };
    if let Some(left) = facts.files_left.filter(|left| *left < INODES) {
        let found = format!("inodes left on the file system: {left}");
        let remedy = "delete files on the file system, see df -i, or name another directory with --store";
        return if left == 0 { Check::fail(name, found, remedy) } else { Check::warn(name, found, remedy) };
    }
    let (table, most) = (facts.table.unwrap_or(0), TABLE_BYTES_MAX as u64);
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

pub(super) fn limits(facts: &DirectoryFacts) -> Check {
    let found = match facts.files {
        u64::MAX => "any number of open files".to_owned(),
        files => format!("{files} open files"),
    };
    match facts.files {
        ..FILES_MIN => Check::fail("limits", found, "raise the limit: ulimit -n 1024"),
        FILES_MIN..FILES => Check::warn("limits", found, "raise the limit: ulimit -n 1024"),
        _ => Check::ok("limits", found),
    }
}
