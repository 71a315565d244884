//! Kept places in queues: whose they are, and what their requests have left in the store.

use super::caller::fnv_1a;
use crate::stores;
use rlock_model::request::{Request, resources};
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::json::AbsentPlace;
use rlock_show::messages;
use rlock_store::Store;
use rlock_supervise::place::{self, KeptPlace};
use rlock_sys::clock::StoreTime;
use rlock_sys::exit;
use rlock_words::{one_line, reason};

/// Takes the place of this name, and removes from the store what the last request with it has left.
pub(crate) fn take(store: &mut dyn Store, name: &str, request: &Request) -> Result<KeptPlace, Failure> {
    let mut keys: Vec<Resource> = resources(&request.claims).into_iter().cloned().collect();
    keys.sort_unstable();
    let words = [store.url(), store.namespace().to_owned(), name.to_owned()];
    let words: Vec<_> = words.into_iter().chain(keys.iter().map(|key| key.as_str().to_owned())).collect();
    let folder = stores::places()?;
    let hash = fnv_1a(words.iter().flat_map(|word| word.as_bytes().iter().chain(b"\n")));
    let taken = KeptPlace::take(&folder, &words, hash, request.session, StoreTime::of_machine());
    let place = taken.map_err(|error| {
        let text = format!("--place: cannot keep a place in '{}': {}: leave it out", folder.display(), reason(&error));
        Failure::new(exit::UNAVAILABLE, text)
    })?;
    if let Some(earlier) = place.earlier() {
        match store.session(earlier, &keys)? {
            Some(session) => drop(store.release(earlier, &session, None)?),
            // The record of a dead process still has the number. A lease ends with its session.
            None if !store.leases() => drop(store.cleanup(&keys, false)?),
            None => {}
        }
    }
    Ok(place)
}

/// The places of this user on this machine whose waiters are away: those of these KEYs, or of all.
pub(crate) fn absent(store: &dyn Store, keys: &[Resource]) -> Vec<AbsentPlace> {
    let Some(folder) = stores::made_places() else { return Vec::new() };
    let is_asked = |own: &[String]| keys.is_empty() || keys.iter().any(|key| own.iter().any(|own| own == key.as_str()));
    let found = place::absent(&folder, StoreTime::of_machine()).into_iter();
    let found = found.filter_map(|place| match &place.words[..] {
        [url, namespace, name, own @ ..] if *url == store.url() && *namespace == store.namespace() && is_asked(own) => {
            Some(AbsentPlace { name: name.clone(), keys: own.to_vec(), since: place.asked })
        }
        _ => None,
    });
    found.collect()
}

/// A line below the listing for each of these places.
pub(crate) fn lines(places: &[AbsentPlace]) -> String {
    let line = |AbsentPlace { name, keys, since }: &AbsentPlace| {
        let keys: Vec<_> = keys.iter().map(|key| format!("'{key}'")).collect();
        one_line(&format!("{}: place of '{name}' kept since {}", keys.join(", "), messages::time(*since))) + "\n"
    };
    places.iter().map(line).collect()
}
