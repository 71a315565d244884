//! The instant at which a guardian saw that nothing of its tree is left, noted on a file that
//! outlives the guardian.
//!
//! The note is the access time of a beacon. The kernel sets this time to the wall clock when rlock
//! reads the beacon, but rlock is dead when its guardian notes the end. The guardian sets it to an
//! instant of CLOCK_BOOTTIME. An instant of the wall clock lies decades later, so it is no note.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_OMIT, futimens};

use crate::clock::Boottime;

/// Notes that the tree has ended by now.
pub fn note(file: impl AsFd) -> io::Result<()> {
    let since_boot = Timespec::try_from(Boottime::now() - Boottime::default()).unwrap_or_default();
    let last_modification = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Ok(futimens(file, &Timestamps { last_access: since_boot, last_modification })?)
}

/// The instant that a guardian of this boot has noted, if it has.
pub fn noted(stat: &Stat) -> Option<Boottime> {
    let (seconds, nanos) = (u64::try_from(stat.st_atime).ok()?, u32::try_from(stat.st_atime_nsec).ok()?);
    let noted = Boottime::since_boot(Duration::new(seconds, nanos));
    (noted <= Boottime::now()).then_some(noted)
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn only_a_note_of_this_boot_is_read() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(noted(&fstat(&file).unwrap()), None, "the file system has noted the wall clock");
        let before = Boottime::now();
        note(&file).unwrap();
        let found = noted(&fstat(&file).unwrap());
        assert!(found.is_some_and(|found| before <= found && found <= Boottime::now()), "{found:?}");
    }
}
