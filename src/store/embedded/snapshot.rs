//! Builds an answer from a copy of the records while other processes use the table.

use std::collections::{HashMap, HashSet};

use super::beacon::{self, Identity, Peer, Watched};
use super::codec::{decode, decode_open};
use super::directory::Directory;
use super::failure::Error;
use super::records::Raw;
use crate::lock::deadlock::Reading;
use crate::lock::index::Node;
use crate::lock::op::{Op, Reply, ResourceListing};
use crate::lock::records::{Memory, Records, ResourceState, Session};
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::system::clock::StoreTime;

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
pub(super) struct Answer {
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
    raw: &Raw,
    directory: &Directory,
    names: &[Resource],
    watched: Interest,
) -> Result<Answer, Error> {
    let mut memory = Memory::default();
    let mut holders = HashMap::new();
    // A kept hold lives until its instant.
    let mut kept = HashMap::new();
    let mut sessions = Reading::new();
    for (id, bytes) in &raw.sessions {
        let session: Session = decode_open(bytes)?;
        holders.insert(*id, session.is_holder());
        kept.extend(session.expiry.filter(|_| session.is_kept()).map(|expiry| (*id, expiry)));
        sessions.insert(*id, session.clone());
        memory.put_session(*id, session).unwrap_or_else(|never| match never {});
    }
    for (name, bytes) in &raw.resources {
        let state: ResourceState = decode(bytes)?;
        memory.put_resource(name, state).unwrap_or_else(|never| match never {});
    }
    for (name, number, bytes) in &raw.nodes {
        let node: Node = decode(bytes)?;
        memory.put_node(name, *number, node).unwrap_or_else(|never| match never {});
    }
    let Ok(outcome) = LockTable::new(memory).apply(StoreTime::default(), Op::Inspect(names.to_vec()));
    let Reply::Listing(listings) = outcome.reply else { unreachable!("inspect answers with a listing") };
    let mut answer = Answer { now: raw.now, ..Answer::default() };
    answer.listings = without_the_dead(listings, &mut |id| {
        if let Some(expiry) = kept.get(&id) {
            return Ok(raw.now < *expiry);
        }
        let identity = raw.beacons.get(&id).map(|bytes| decode::<Identity>(bytes)).transpose()?;
        let holds = holders.get(&id).copied().unwrap_or(false);
        Ok(match beacon::look(directory, id, identity.as_ref())? {
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
        })
    })?;
    let listed: HashSet<_> = answer
        .listings
        .iter()
        .flat_map(|listing| {
            let holders = listing.holders.iter().map(|holder| holder.session);
            holders.chain(listing.waiters.iter().map(|waiter| waiter.session))
        })
        .collect();
    sessions.retain(|id, _| listed.contains(id));
    answer.sessions = sessions;
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
