//! Carries a table over a boot of the machine: sessions that had a process are removed, and kept
//! holds, successes, streaks and history stay.

use super::beacon::Peer;
use super::directory::Directory;
use super::file::TableFile;
use super::records::{Error, Transaction};
use super::transaction::{EXPIRED_MAX, fate};
use crate::lock::lease::CLAIM;
use crate::lock::op::Op;
use crate::lock::request::CLAIMS_MAX;
use crate::lock::table::LockTable;
use crate::system::clock::{Boottime, StoreTime};

/// Removes the sessions of all namespaces whose processes ended with the boot, in portions.
pub(super) fn forget_processes(directory: &Directory, table: &TableFile) -> Result<(), Error> {
    let namespaces = Transaction::new(table.write(directory)?, "", 0).namespaces()?;
    for namespace in namespaces {
        while forget_some(directory, table, &namespace)? {}
    }
    Ok(())
}

/// Removes at most as many sessions of a namespace as a transaction ends. Returns whether there may
/// be more.
fn forget_some(directory: &Directory, table: &TableFile, namespace: &str) -> Result<bool, Error> {
    let pages_max = table.pages_max();
    let records = Transaction::new(table.write(directory)?, namespace, pages_max);
    // The removal of a waiter may let in another one, which never claims its grant.
    let mut locks = LockTable::with_claim_lease(records, CLAIM);
    locks.expire_at_most(0);
    let mut sessions = locks.records().sessions()?;
    // Waiters leave first, because the removal of a holder would grant them something.
    sessions.sort_by_key(|(_, session)| session.is_holder());
    let (mut ended, mut claims) = (0, 0);
    for (id, session) in sessions {
        // Somebody may have changed the boot in the lock file, or may see another one.
        if !matches!(fate(directory, locks.records(), id)?, Peer::Dead) {
            continue;
        }
        if ended == EXPIRED_MAX || claims >= CLAIMS_MAX {
            locks.into_records().commit()?;
            table.seal(directory);
            return Ok(true);
        }
        (ended, claims) = (ended + 1, claims + session.claims.len());
        let now = locks.records_mut().advance_clock(StoreTime::of_machine(), Boottime::now())?;
        locks.apply(now, Op::Reap { session: id, ended: None })?;
    }
    locks.into_records().commit()?;
    table.seal(directory);
    Ok(false)
}
