//! Finds the sessions of `rlock acquire` that `renew` and `release` are about.

use super::{context, names};
use crate::lock::records::Session;
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::show::failure::Failure;
use crate::store::Store;
use crate::system::exit;

/// The innermost session around this process that `acquire` made.
///
/// A session that has ended counts, because the store has forgotten what made it. Otherwise a
/// command that is late would meet a lock further out, which is still in use.
pub(crate) fn innermost(store: &mut dyn Store) -> Result<SessionId, Failure> {
    let above = context::sessions_above()?;
    if above.is_empty() {
        return Err(Failure::usage(format!(
            "{} is not set, so it names no lock of 'rlock acquire': name the SESSION, which 'rlock acquire' has printed",
            names::SESSION
        )));
    }
    for id in above {
        if find(store, id)?.is_none_or(|session| session.job.is_acquire) {
            return Ok(id);
        }
    }
    Err(Failure::usage(format!(
        "{} names no lock of 'rlock acquire': name the SESSION, which 'rlock acquire' has printed",
        names::SESSION
    )))
}

/// A session that `acquire` made, if it still holds something.
pub(crate) fn held(store: &mut dyn Store, id: SessionId) -> Result<Option<Session>, Failure> {
    match find(store, id)? {
        Some(session) if !session.job.is_acquire => {
            Err(Failure::usage(format!("session {id} is not one of 'rlock acquire': its lock ends with its command")))
        }
        session => Ok(session.filter(Session::is_holder)),
    }
}

/// A session of the store. A server finds a session by its resources, so all of them are searched
/// if the environment names others.
pub(crate) fn find(store: &mut dyn Store, id: SessionId) -> Result<Option<Session>, Failure> {
    let found = store.session(id, &context::resources_above()?)?;
    if found.is_some() || !store.leases() {
        return Ok(found);
    }
    let all = store.inspect(&[])?.resources;
    let is_its = |name: &&crate::lock::op::ResourceListing| name.holders.iter().any(|holder| holder.session == id);
    let names: Vec<Resource> = all.iter().filter(is_its).map(|listing| listing.name.clone()).collect();
    if names.is_empty() { Ok(None) } else { Ok(store.session(id, &names)?) }
}

/// The resources of a session, for the calls that change it.
pub(crate) fn resources(session: &Session) -> Vec<Resource> {
    session.resources().into_iter().cloned().collect()
}

/// The failure of a command that comes too late.
pub(crate) fn not_held(id: SessionId) -> Failure {
    let text = format!("session {id} holds nothing any more: its time is over, or it was released or taken away");
    Failure::new(exit::LOST, text)
}
