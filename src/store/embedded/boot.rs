//! Carries a table over a boot of the machine: sessions that had a process are removed, and kept
//! holds, successes, streaks and history stay.

use super::beacon::Peer;
use super::directory::Directory;
use super::file::TableFile;
use super::records::{Error, Transaction};
use super::transaction::fate;
use crate::clock::{Boottime, StoreTime};
use crate::lock::lease::CLAIM;
use crate::lock::op::Op;
use crate::lock::table::LockTable;

/// Removes the sessions of all namespaces whose processes ended with the boot.
pub(super) fn forget_processes(directory: &Directory, table: &TableFile) -> Result<(), Error> {
    let namespaces = Transaction::new(table.write(directory)?, "", false).namespaces()?;
    for namespace in namespaces {
        let has_room = table.has_room();
        let records = Transaction::new(table.write(directory)?, &namespace, has_room);
        // The removal of a waiter may let in another one, which never claims its grant.
        let mut locks = LockTable::with_claim_lease(records, CLAIM);
        let mut sessions = locks.records().sessions()?;
        // Waiters leave first, because the removal of a holder would grant them something.
        sessions.sort_by_key(|(_, session)| session.is_holder());
        for (id, _) in sessions {
            // Somebody may have changed the boot in the lock file, or may see another one.
            if !matches!(fate(directory, locks.records(), id)?, Peer::Dead) {
                continue;
            }
            let now = locks.records_mut().advance_clock(StoreTime::of_machine(), Boottime::now())?;
            locks.apply(now, Op::Reap(id))?;
        }
        locks.into_records().commit()?;
        table.seal(directory);
    }
    Ok(())
}
