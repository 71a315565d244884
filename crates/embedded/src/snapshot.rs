//! Builds an answer from a copy of the records while other processes use the table.

use std::collections::HashMap;

use super::beacon::{self, Peer, Watched};
use super::directory::Directory;
use super::failure::Error;
use super::records::{self, Copied};
use rlock_model::deadlock::Reading;
use rlock_model::op::{Op, Reply, ResourceListing};
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

/// Tells whether a session of a listing lives.
pub(super) type Lives<'a> = dyn FnMut(SessionId) -> Result<bool, Error> + 'a;

/// Whose end the caller wants to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// The first holders: a status line names one of them.
    Holders,
    /// All sessions, as far as there are descriptors for them.
    All,
}

impl Interest {
    /// The maximum number of sessions to watch.
    fn max(self) -> usize {
        match self {
            Self::Holders => 8,
            Self::All => 200,
        }
    }
}

/// The holders and waiters.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) listings: Vec<ResourceListing>,
    /// The watched sessions.
    pub(super) watched: Vec<Watched>,
    /// Whether the listings have a live session with a process that is not watched.
    pub(super) is_incomplete: bool,
    /// The listed holders that have no beacon: they were released after the copy, or somebody has
    /// removed their beacons.
    pub(super) missing: Vec<SessionId>,
    /// Holders that have died and are still in the table.
    pub(super) dead: Vec<SessionId>,
    /// The instant of the answer.
    pub(super) now: StoreTime,
    /// The sessions in the listings.
    pub(super) sessions: Reading,
}

/// Lists the live holders and waiters. The claims come from the copied records; whether a session
/// lives comes from its beacon, read now.
pub(super) fn listings(
    Copied { now, records }: Copied,
    directory: &Directory,
    names: &[Resource],
    watched: Interest,
) -> Result<Seen, Error> {
    let mut table = LockTable::new(records);
    let reply = table.apply(StoreTime::default(), Op::Inspect(names.to_vec()))?.reply;
    let Reply::Listing(listings) = reply else { unreachable!("inspect answers with a listing") };
    let records = table.records();
    let mut sessions: Reading = records.sessions()?.into_iter().collect();
    let mut answer = Seen { now, ..Seen::default() };
    answer.listings = without_the_dead(listings, &mut |id| {
        let session = sessions.remove(&id);
        let holds = session.as_ref().is_some_and(Session::is_holder);
        let kept = session.as_ref().filter(|session| session.is_kept());
        let lives = if let Some(expiry) = kept.and_then(|session| session.expiry) {
            // A kept hold lives until its instant.
            now < expiry
        } else {
            match beacon::look(directory, id, records::beacon(records, id)?.as_ref())? {
                Peer::Alive(pipe) | Peer::Ending(pipe) => {
                    if (holds || watched == Interest::All) && answer.watched.len() < watched.max() {
                        answer.watched.push((id, pipe));
                    } else {
                        answer.is_incomplete = true;
                    }
                    true
                }
                Peer::Dead => {
                    answer.dead.extend(holds.then_some(id));
                    false
                }
                Peer::Missing => {
                    answer.is_incomplete |= holds;
                    answer.missing.extend(holds.then_some(id));
                    holds
                }
            }
        };
        answer.sessions.extend(session.filter(|_| lives).map(|session| (id, session)));
        Ok(lives)
    })?;
    if names.is_empty() {
        answer.listings.retain(|listing| !listing.holders.is_empty() || !listing.waiters.is_empty());
    }
    Ok(answer)
}

/// Removes dead sessions from listings. Each session is looked at once.
pub(super) fn without_the_dead(
    mut listings: Vec<ResourceListing>,
    lives: &mut Lives<'_>,
) -> Result<Vec<ResourceListing>, Error> {
    let mut known: HashMap<SessionId, Result<bool, Error>> = HashMap::new();
    let mut stays = |id| *known.entry(id).or_insert_with(|| lives(id)).as_ref().unwrap_or(&true);
    for listing in &mut listings {
        listing.holders.retain(|holder| stays(holder.session));
        listing.waiters.retain(|waiter| stays(waiter.session));
        let mut last = None;
        let mut position = 0;
        for waiter in &mut listing.waiters {
            position += u32::from(last.replace(waiter.session) != Some(waiter.session));
            waiter.position = position;
        }
    }
    known.into_values().find_map(Result::err).map_or(Ok(listings), Err)
}
