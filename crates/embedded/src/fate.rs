//! Whether the process of a session lives, by its record and its beacon.

use super::beacon::{self, Peer};
use super::directory::Directory;
use super::failure::Error;
use super::records::{self, Transaction};
use rlock_model::records::Records;
use rlock_model::request::SessionId;

/// Maximum number of due sessions, and of dead ones, that a transaction ends.
pub(super) const EXPIRED_MAX: usize = 100;

/// The state of a holder's or waiter's process. A kept hold needs none. A waiter without its beacon
/// counts as dead: no process can wake it, and it runs no command. It learns that it is lost when
/// it looks.
pub(super) fn fate(directory: &Directory, records: &Transaction<'_>, id: SessionId) -> Result<Peer, Error> {
    let identity = records::beacon(records, id)?;
    Ok(match beacon::look(directory, id, identity.as_ref())? {
        Peer::Dead if records.session(id)?.is_some_and(|session| session.is_kept()) => Peer::Missing,
        Peer::Missing if records.session(id)?.is_none_or(|session| !session.is_holder()) => Peer::Dead,
        peer => peer,
    })
}
