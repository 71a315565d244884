//! Finds the sessions of `rlock acquire` that `renew` and `release` are about.

use super::{agent, context, names};
use rlock_arguments::values::Which;
use rlock_model::records::Session;
use rlock_model::request::{Process, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::{Inspection, Store};
use rlock_supervise::above;
use rlock_sys::exit;

/// The innermost session around this process that `acquire` made.
///
/// A session that has ended counts, because the store has forgotten what made it. Otherwise a
/// command that is late would meet a lock further out, which is still in use.
pub(crate) fn innermost(store: &mut dyn Store) -> Result<SessionId, Failure> {
    // A lock of `acquire` has no command that could leave a daemon behind.
    let above = context::named_above()?;
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

/// The number of the process for which a session with this process holds its lock: one above this
/// one, or the agent that `acquire --pid agent` would find.
pub(crate) fn owner(process: &Process) -> Option<u32> {
    above::owner(process, || agent::process("").ok())
}

/// The live holds of a listing that `acquire --pid` has made for such a process, by this user.
pub(crate) fn lasting_for_parents(seen: &Inspection) -> Vec<SessionId> {
    let holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let mut found = Vec::new();
    for holder in holders.filter(|holder| !holder.is_over(seen.now)) {
        if !found.contains(&holder.session) && owner(&holder.process).is_some() {
            found.push(holder.session);
        }
    }
    found
}

/// What a word means: a session itself, or that which holds a KEY for a process above this one.
///
/// # Errors
/// No hold of the KEY is for a process above this one, or several are, or the store cannot be used.
pub(crate) fn meant(store: &mut dyn Store, which: &Which) -> Result<SessionId, Failure> {
    match which {
        Which::Session(id) => Ok(*id),
        Which::Key(name) => holds(store, name, None),
    }
}

/// The session that holds this KEY, or what overlaps this path, for a process above this one.
///
/// # Errors
/// Those of [`meant`].
pub(crate) fn holds(store: &mut dyn Store, name: &Resource, path: Option<&Span>) -> Result<SessionId, Failure> {
    let mut seen = store.inspect(std::slice::from_ref(name))?;
    let holders = seen.resources.iter_mut().map(|listing| &mut listing.holders);
    holders.for_each(|them| them.retain(|it| path.is_none_or(|path| it.span.overlaps(path))));
    let what = messages::part(name.as_str(), path.unwrap_or(&Span::Whole));
    match lasting_for_parents(&seen).as_slice() {
        [only] => Ok(*only),
        // A word that the store does not know is rather a mistake than a lock that has ended.
        [] if path.is_none() && is_free(&seen) && is_unknown(store, name)? => {
            let text =
                format!("'{name}' is not a session, and no KEY that the store knows: name the SESSION or the KEY");
            Err(Failure::usage(text))
        }
        [] => {
            let text = format!("no lock of 'rlock acquire --pid' on {what} is for a process above this one");
            Err(Failure::new(exit::LOST, text + &kept(&seen, name)))
        }
        several => {
            let ids: Vec<_> = several.iter().map(SessionId::to_string).collect();
            let text =
                format!("several locks on {what} are for processes above this one: name one, of {}", ids.join(", "));
            Err(Failure::usage(text))
        }
    }
}

/// Whether the store remembers nothing of a resource that nobody uses. The end of a hold may be
/// unrecorded until the next change.
fn is_unknown(store: &mut dyn Store, name: &Resource) -> Result<bool, Failure> {
    let name = std::slice::from_ref(name);
    Ok(store.history(name, 0)?.is_empty() && store.unrecorded(name)?.is_empty())
}

/// Names the session of a lock without a process.
fn kept(seen: &Inspection, name: &Resource) -> String {
    let mut holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let kept = holders.find(|holder| holder.kept && !holder.is_over(seen.now));
    kept.map_or_else(String::new, |holder| {
        let words = messages::words(name, &holder.span);
        format!("; it is kept for session {}: name that, or 'rlock break {words}'", holder.session)
    })
}

/// Whether nobody holds or waits.
fn is_free(seen: &Inspection) -> bool {
    seen.resources.iter().all(|listing| listing.holders.is_empty() && listing.waiters.is_empty())
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
    let is_its = |name: &&rlock_model::op::ResourceListing| name.holders.iter().any(|holder| holder.session == id);
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
