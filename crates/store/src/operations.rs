//! Defines the operations that a store offers to the subcommands.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::check::Check;
use super::error::Error;
use super::handle::Released;
use super::sessions::Sessions;
use rlock_model::deadlock::Reading;
use rlock_model::op::{Change, Refusal, ResourceListing};
use rlock_model::past::{End, Ended, Remembered};
use rlock_model::records::Session;
use rlock_model::request::{Process, SessionId};
use rlock_model::resource::Resource;
use rlock_sys::clock::StoreTime;
use rlock_words::Explained;

/// What a store had to skip.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unusable {
    /// The resource whose state rlock did not write; none if it is not known which are missing.
    pub resource: Option<Resource>,
    /// What is wrong.
    pub words: Explained,
}

/// The places of other stores on this machine, as text for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Somebody holds or waits there.
    pub used: Vec<String>,
    /// This user may not see whether anybody does.
    pub unreadable: Vec<String>,
}

/// The holders and waiters at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The instant of the inspection on the store's clock. All other instants in here are on that
    /// clock.
    pub now: StoreTime,
    /// The holders and waiters of each resource.
    pub resources: Vec<ResourceListing>,
    /// Their sessions, with their claims on these resources at least.
    pub sessions: Reading,
}

/// What becomes ready when a listing may have changed since its inspection.
#[derive(Debug)]
pub struct Notices {
    /// The descriptors to poll for reading. An error or a hang-up tells of a change as well.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the descriptors tell of every change but the end of a kept hold. If not, somebody
    /// has to ask again now and then.
    pub are_complete: bool,
}

/// The result of a change of what a session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The store has made the change.
    Done,
    /// The store cannot make the change.
    Refused(Refusal),
    /// The session holds nothing any more.
    Lost,
}

/// What a break does with the grants that it finds.
#[derive(Clone, Copy, Debug)]
pub enum Breaking<'a> {
    /// Nothing: the store only reports their sessions.
    DryRun,
    /// This process revokes them. A session whose command may run is told, and holds until it gives
    /// its grant back; any other session loses its grant at once.
    Revoke(&'a Process),
    /// All of these sessions lose their grants at once, while their commands may run.
    Now,
}

/// A place that keeps the lock table.
pub trait Store {
    /// The URL that leads another process to the same store, without a password.
    fn url(&self) -> String;

    /// The namespace of the store's resources.
    fn namespace(&self) -> &str;

    /// Whether a grant is a lease, so that a request needs terms. In a store without leases, a
    /// grant lives as long as its process.
    fn leases(&self) -> bool;

    /// Prepares the store for the requests of this process. `serves` tells whether clients wait for
    /// it, as for `rlock serve`.
    ///
    /// # Errors
    /// The store cannot be used. The errors of the methods below mean the same.
    fn sessions(self: Box<Self>, serves: bool) -> Result<Box<dyn Sessions>, Error>;

    /// Returns a session if it is a holder or a waiter. `resources` names the resources on which
    /// the session may have claims, for a store that finds sessions only by their resources.
    fn session(&mut self, id: SessionId, resources: &[Resource]) -> Result<Option<Session>, Error>;

    /// Changes what a session holds. `resources` are all resources of the session, unless the
    /// change names one itself.
    fn change(&mut self, session: SessionId, resources: &[Resource], change: &Change) -> Result<Changed, Error>;

    /// Lists the holders and waiters of the named resources, or of all resources if none is named.
    /// Changes nothing.
    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error>;

    /// Reads the live sessions that hold or wait for these resources, for the search for a
    /// deadlock. Of a long queue, the reading may contain only the beginning. `None` if the store
    /// can't tell at once.
    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error>;

    /// Like [`inspect`](Self::inspect), with what tells of the next change if the store can tell.
    fn inspect_and_watch(&mut self, resources: &[Resource]) -> Result<(Inspection, Option<Notices>), Error> {
        Ok((self.inspect(resources)?, None))
    }

    /// Removes expired and dead sessions that hold or wait for the named resources, or for any
    /// resource if none is named. With `dry_run`, the store only reports these sessions.
    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error>;

    /// Breaks all grants on a resource, or only that of one session, and tells the holders. Returns
    /// the holders as they were before.
    fn break_grants(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        how: Breaking<'_>,
    ) -> Result<Vec<(SessionId, Session)>, Error>;

    /// Ends the grant of a session of another process, such as a kept hold.
    fn release(&mut self, id: SessionId, session: &Session, end: Option<End>) -> Result<Released, Error>;

    /// Returns what the named resources remember of ended sessions, or all resources if none is
    /// named, with at most so many of the last entries of each. Changes nothing.
    fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Error>;

    /// What the resources of a listing remember, without their entries.
    ///
    /// # Errors
    /// The store cannot be used.
    fn pasts(&mut self, inspection: &Inspection) -> Result<Vec<Remembered>, Error> {
        let names: Vec<_> = inspection.resources.iter().map(|listing| listing.name.clone()).collect();
        // No names would mean all resources.
        if names.is_empty() { Ok(Vec::new()) } else { self.history(&names, 0) }
    }

    /// Returns the holders of the named resources, or of all resources if none is named, that have
    /// ended without a release and are still in the table, because nobody has used their resources
    /// since. Their ends are not in the history yet. Changes nothing.
    fn unrecorded(&mut self, resources: &[Resource]) -> Result<Vec<(Session, Ended)>, Error>;

    /// Removes what a resource remembers, unless a session uses the resource.
    fn forget(&mut self, resource: &Resource) -> Result<(), Error>;

    /// Checks the store's place, and tells who shares it, for `rlock doctor`. `ttl` is the ttl of
    /// leases.
    fn examine(&mut self, ttl: Duration) -> Result<Vec<Check>, Error>;

    /// The places of other stores on this machine, such as those of other users.
    fn elsewhere(&self) -> Elsewhere {
        Elsewhere::default()
    }

    /// Returns what the calls before this one could not read or change. They went on with the rest.
    fn take_unusable(&mut self) -> Vec<Unusable> {
        Vec::new()
    }
}
