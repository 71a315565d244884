//! Opens the table, and carries it over a boot of the machine: sessions that had a process are
//! removed, and kept holds, successes, streaks and history stay.

use std::io;

use super::beacon::{self, Peer};
use super::directory::{Directory, Locked, advised_inside, foreign};
use super::failure::Error;
use super::file::TableFile;
use super::lock_file::{self, FORMAT};
use super::records::{self, Transaction};
use super::transaction::{EXPIRED_MAX, fate};
use rlock_model::lease::CLAIM;
use rlock_model::op::Op;
use rlock_model::request::CLAIMS_MAX;
use rlock_model::table::LockTable;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_words::Explained;

/// The formats that were never released. A state of them is replaced as soon as no session uses it.
const UNRELEASED: [&[u8]; 2] = [b"1", b"2"];

/// The format before this one. Its records are records of this format without optional fields, so a
/// state of it becomes one of this format as soon as no session uses it.
const PREVIOUS: &[u8] = b"3";

/// When the state was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    ThisBoot,
    EarlierBoot,
}

/// Opens the table. The first process of a boot removes the sessions that ended with the last boot.
pub(super) fn open(locked: &Locked<'_>) -> Result<TableFile, Error> {
    let directory = locked.directory();
    let age = prepare(locked)?;
    let table = TableFile::open(directory, age == Age::EarlierBoot)?;
    if age == Age::EarlierBoot {
        forget_processes(directory, &table)?;
        beacon::remove_all(directory)?;
        table.put_boot(directory)?;
    }
    Ok(table)
}

/// Makes sure that the state has this format. Returns [`Age::EarlierBoot`] for the state of an
/// earlier boot or of the previous format: none of its processes lives, and its table was written
/// without waiting for the disk. So its table loses its seal, and is read whole before it is used.
/// The same holds for a table beside a lock file that somebody has emptied or overwritten.
fn prepare(locked: &Locked<'_>) -> io::Result<Age> {
    let directory = locked.directory();
    let found = lock_file::Text::read(directory.lock_file())?;
    let boot = lock_file::boot();
    if found.is_of(boot) {
        return Ok(Age::ThisBoot);
    }
    let format = found.format();
    let is_previous = format == Some(PREVIOUS);
    let is_new = match format {
        Some(format) if format == FORMAT.as_bytes() => false,
        Some(_) if is_previous && !beacon::anybody_lives(directory)? => false,
        Some(format) if UNRELEASED.contains(&format) && !beacon::anybody_lives(directory)? => true,
        Some(format) => {
            let format = String::from_utf8_lossy(format);
            let what = format!("it has format {format} and this rlock knows format {FORMAT}");
            return Err(Explained::new(what, "use one version of rlock on a machine").into());
        }
        None if found.is_empty() => !directory.has_table()?,
        None if found.is_overwritten() || beacon::anybody_lives(directory)? => false,
        None => return Err(foreign()),
    };
    // A container may show another boot id than its host, so a different id alone proves nothing.
    // If a machine shows no boot id, a reboot cannot be noticed.
    let same_for_all_we_know = boot.is_empty() && format.is_some() && !is_previous;
    if !is_new && (same_for_all_we_know || beacon::anybody_lives(directory)?) {
        if format.is_none() {
            put_boot(locked)?;
        }
        return Ok(Age::ThisBoot);
    }
    if is_new {
        let cleared = beacon::remove_all(directory).and_then(|()| directory.remove_table(locked));
        cleared.map_err(advised_inside)?;
        put_boot(locked)?;
        return Ok(Age::ThisBoot);
    }
    lock_file::remove_seal(directory.lock_file())?;
    Ok(Age::EarlierBoot)
}

/// Notes that the state is of this boot, and removes the seal.
fn put_boot(locked: &Locked<'_>) -> io::Result<()> {
    lock_file::put_boot(locked.directory().lock_file()).map(drop)
}

/// Removes the sessions of all namespaces whose processes ended with the boot, in portions.
fn forget_processes(directory: &Directory, table: &TableFile) -> Result<(), Error> {
    let namespaces = table.write(directory)?.namespaces()?;
    for namespace in namespaces {
        while forget_some(directory, table, &namespace)? {}
    }
    Ok(())
}

/// Removes at most as many sessions of a namespace as a transaction ends. Returns whether there may
/// be more.
fn forget_some(directory: &Directory, table: &TableFile, namespace: &str) -> Result<bool, Error> {
    let records = Transaction::new(table.write(directory)?, namespace);
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
            locks.into_records().map.txn.commit()?;
            table.seal(directory);
            return Ok(true);
        }
        (ended, claims) = (ended + 1, claims + session.claims.len());
        let now = records::advance_clock(locks.records_mut(), StoreTime::of_machine(), Boottime::now())?;
        locks.apply(now, Op::Reap { session: id, ended: None })?;
    }
    locks.into_records().map.txn.commit()?;
    table.seal(directory);
    Ok(false)
}
