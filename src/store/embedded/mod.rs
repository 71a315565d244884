//! The embedded store: the lock table in an LMDB file, shared by the processes of one machine.
//!
//! - [`directory`]: where the files are and who may use them; the lock on the state.
//! - `records`, `codec`: the table's records in the file.
//! - `beacon`: who lives, and how to wake and to watch them.
//! - `transaction`: one operation from lock to wake-up.
//! - `hold`: a request that is queued or granted.
//!
//! There is no daemon. Each process changes the table itself, under the lock of the directory, and wakes those whom it granted
//! something. A hold lives as long as its process: nothing is renewed, and the death of a process is noticed by those it stood in the
//! way of, each of whom watches whoever it waits for ([`LockTable::blockers`]). So for every waiter, at any time, one of these is
//! true: it has been granted its request and was woken; or it watches a live session that is in its way; or it is awake and about to
//! find out which. When a process dies between a grant and the wake-up, that holds as well, for the one it was to wake watches it.
//!
//! LMDB runs without its own locks and without waiting for the disk. The directory's lock, which the kernel takes from the dead,
//! is all that is needed for one writer at a time; LMDB's table of readers, on the other hand, tells processes by their pids, which
//! are ambiguous where pid namespaces share a directory. And what a crash of the machine may do to the file does not matter: no
//! holder survives it, and the next boot starts with an empty table.
//!
//! [`LockTable::blockers`]: crate::lock::table::LockTable::blockers

mod beacon;
mod codec;
mod directory;
mod hold;
mod records;
mod transaction;

use std::collections::HashSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

use heed::types::Bytes;
use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, MdbError, WithoutTls};
use rustix::fs::Stat;
use rustix::io::FdFlags;

use self::beacon::Beacon;
use self::directory::Directory;
use self::hold::EmbeddedHold;
use self::records::Table;
use self::transaction::{Fate, Work};
use super::{Acquired, Changed, Error, Standing, Store};
use crate::lock::mode::Mode;
use crate::lock::op::{Op, Refusal, Reply, ResourceListing};
use crate::lock::records::{Records, Session};
use crate::lock::request::{Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;

/// How large the table may become, in bytes: some hundred thousand claims. It is a reservation of addresses; the file has the size of
/// what is in it.
pub const TABLE_BYTES_MAX: usize = 256 << 20;

/// The embedded store.
pub struct Embedded {
    directory: Directory,
    env: Env<WithoutTls>,
    table: Table,
    namespace: String,
}

impl Embedded {
    /// Opens the store in `path`, or in the default directory, and makes it where it is missing.
    ///
    /// # Errors
    /// The directory or what is in it can't be used.
    pub fn open(path: Option<PathBuf>, namespace: &str) -> Result<Self, Error> {
        loop {
            let directory = Directory::open(path.clone())?;
            let locked = directory.lock()?;
            if !directory.is_current() {
                continue;
            }
            directory.prepare(&locked)?;
            let (env, table) = open_table(&directory)?;
            drop(locked);
            return Ok(Self { directory, env, table, namespace: namespace.to_owned() });
        }
    }
}

/// Opens the table; a damaged one is made anew if nobody lives who holds or waits.
fn open_table(directory: &Directory) -> Result<(Env<WithoutTls>, Table), Error> {
    let unusable = |error: heed::Error| directory.unusable(&records::Error::from(error));
    match open_file(directory)? {
        Err(heed::Error::Mdb(
            MdbError::Corrupted | MdbError::PageNotFound | MdbError::Invalid | MdbError::VersionMismatch,
        )) if !directory.anybody_lives().map_err(|error| directory.unusable(&error))? => {
            directory.clear().map_err(|error| directory.unusable(&error))?;
            open_file(directory)?.map_err(unusable)
        }
        opened => opened.map_err(unusable),
    }
}

fn open_file(directory: &Directory) -> Result<heed::Result<(Env<WithoutTls>, Table)>, Error> {
    directory.make_table()?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(TABLE_BYTES_MAX);
    let flags = EnvFlags::NO_SUB_DIR | EnvFlags::NO_LOCK | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
    // SAFETY: NO_LOCK asks for one writer at a time and no reader beside it: every transaction on the file, this one included,
    // runs under the directory's lock. NO_SYNC gives up what is in the file when the machine crashes, see the module. The file
    // is mapped, and whoever may write to the directory could change it under the map; they are trusted with it.
    let opened = unsafe { options.flags(flags).open(directory.table_path()) };
    Ok(opened.and_then(|env| {
        close_on_exec(&env)?;
        let table = env
            .open_databases_and_commit(env.read_txn()?, |opener, txn| {
                let table = opener.open_database::<Bytes, Bytes>(txn, None)?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(table))
            })?
            .unwrap_commit()
            .expect("the unnamed database is always there");
        Ok((env, table))
    }))
}

/// LMDB opens its file so that programs inherit it; no command, nor what it leaves behind, may keep the table open or write to it.
fn close_on_exec(env: &Env<WithoutTls>) -> heed::Result<()> {
    let clone = env.try_clone_inner_file()?;
    let file = |stat: Stat| (stat.st_dev, stat.st_ino);
    let table = file(rustix::fs::fstat(&clone).map_err(std::io::Error::from)?);
    // The kernel gives the lowest number that is free, so the clone's is above that of LMDB.
    for number in 0..clone.as_raw_fd() {
        // SAFETY: LMDB does not tell its number, so the open ones are looked at. Nothing is done but to mark those that are the table,
        // and a number that isn't open, or is closed meanwhile by another thread, is an error without effect.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::fs::fstat(descriptor).is_ok_and(|stat| file(stat) == table) {
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        }
    }
    Ok(())
}

/// What came of asking, before it is handed out.
enum Asked {
    Standing(Standing, Vec<std::os::fd::OwnedFd>),
    Busy(Vec<ResourceListing>),
    Refused(Refusal),
}

impl Embedded {
    fn ask(work: &mut Work<'_>, request: Request) -> Result<Asked, records::Error> {
        loop {
            match work.apply(Op::Acquire(request.clone()))? {
                Reply::Busy(blockers) => {
                    if !work.reap_dead(&blockers)? {
                        let resources: Vec<_> = request.claims.iter().map(|claim| claim.resource.clone()).collect();
                        return Ok(Asked::Busy(work.inspect(&resources)?));
                    }
                }
                Reply::Refused(refusal) => {
                    // It may be the dead who are in the way.
                    let mut suspects = request.ancestors.clone();
                    for claim in &request.claims {
                        suspects.extend(work.sessions_of(&claim.resource)?);
                    }
                    if !work.reap_dead(&suspects)? {
                        return Ok(Asked::Refused(refusal));
                    }
                }
                _ => {
                    let (standing, watched) = work.stand(request.session)?;
                    return Ok(Asked::Standing(standing, watched));
                }
            }
        }
    }

    fn change(&self, session: SessionId, resource: &Resource, op: Op) -> Result<Changed, Error> {
        self.transact(Some(session), |work| {
            Ok(match work.apply(op)? {
                Reply::Refused(refusal) => Changed::Refused(refusal),
                Reply::Unknown => Changed::Lost,
                _ => {
                    // Who waits for this session and was not granted anything may be waiting for another now.
                    let waiters = work.waiters_of(resource)?;
                    work.wake_later(&waiters)?;
                    // This process is not the one that they watch, so they are woken before the change can be lost with it.
                    work.wake_now();
                    Changed::Done
                }
            })
        })
    }
}

impl Store for Embedded {
    fn url(&self) -> String {
        super::url::of_directory(self.directory.path())
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn acquire(self: Box<Self>, request: Request) -> Result<Acquired, Error> {
        let id = request.session;
        let resources: Vec<_> = request.claims.iter().map(|claim| claim.resource.clone()).collect();
        let mut lit = None;
        let asked = self.transact(Some(id), |work| {
            lit = Some(Beacon::light(&self.directory, id).map_err(records::Error::Io)?);
            Self::ask(work, request)
        });
        let asked = asked.inspect_err(|_| beacon::remove(&self.directory, id))?;
        let beacon = lit.expect("it was lit before the request was made");
        Ok(match asked {
            Asked::Standing(standing, watched) => {
                Acquired::Standing(standing, Box::new(EmbeddedHold::new(*self, id, resources, beacon, watched)))
            }
            Asked::Busy(listings) => {
                beacon.remove(&self.directory);
                Acquired::Busy(listings)
            }
            Asked::Refused(refusal) => {
                beacon.remove(&self.directory);
                Acquired::Refused(refusal)
            }
        })
    }

    fn session(&mut self, id: SessionId) -> Result<Option<Session>, Error> {
        self.transact(None, |work| work.records().session(id))
    }

    fn shrink(&mut self, session: SessionId, resource: &Resource, span: Span) -> Result<Changed, Error> {
        self.change(session, resource, Op::Shrink { session, resource: resource.clone(), span })
    }

    fn downgrade(&mut self, session: SessionId, resource: &Resource, mode: Mode) -> Result<Changed, Error> {
        self.change(session, resource, Op::Downgrade { session, resource: resource.clone(), mode })
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<ResourceListing>, Error> {
        self.transact(None, |work| work.inspect(resources))
    }

    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        self.transact(None, |work| {
            let mut dead = Vec::new();
            for (id, session) in work.records().sessions()? {
                let concerned = |name: &Resource| session.claims.iter().any(|claim| claim.claim.resource == *name);
                if (resources.is_empty() || resources.iter().any(concerned)) && matches!(work.fate(id)?, Fate::Dead) {
                    dead.push((id, session));
                }
            }
            if !dry_run {
                dead.iter().try_for_each(|(id, _)| work.reap(*id))?;
                if resources.is_empty() {
                    work.sweep()?;
                }
            }
            Ok(dead)
        })
    }

    fn break_grants(&mut self, resource: &Resource, dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        self.transact(None, |work| {
            let mut broken = Vec::new();
            let holders: HashSet<_> = work.holders_of(resource)?.into_iter().collect();
            for id in holders {
                broken.extend(work.records().session(id)?.map(|session| (id, session)));
            }
            if !dry_run {
                let ids: Vec<_> = broken.iter().map(|(id, _)| *id).collect();
                work.wake_later(&ids)?;
                work.apply(Op::Break(resource.clone()))?;
                work.wake_now();
            }
            Ok(broken)
        })
    }
}
