//! A request in the embedded store, from the moment that it is queued or granted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;

use super::beacon::Beacon;
use super::{Embedded, Error, records};
use crate::lock::op::{Op, ResourceListing};
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::store::{Hold, Standing};

pub(super) struct EmbeddedHold {
    store: Embedded,
    session: SessionId,
    resources: Vec<Resource>,
    beacon: Beacon,
    /// The beacons of those whom it waits for.
    watched: Vec<OwnedFd>,
}

impl EmbeddedHold {
    pub(super) fn new(
        store: Embedded,
        session: SessionId,
        resources: Vec<Resource>,
        beacon: Beacon,
        watched: Vec<OwnedFd>,
    ) -> Self {
        Self { store, session, resources, beacon, watched }
    }
}

impl Hold for EmbeddedHold {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let watched = self.watched.iter().map(|pipe| (pipe.as_fd(), PollFlags::empty()));
        std::iter::once((self.beacon.as_fd(), PollFlags::IN)).chain(watched).collect()
    }

    fn check(&mut self) -> Result<Standing, Error> {
        let (standing, watched) = self.store.transact(Some(self.session), |work| {
            self.beacon.drain().map_err(records::Error::Io)?;
            work.stand(self.session)
        })?;
        self.watched = watched;
        if standing == Standing::Lost {
            // Nobody looks for it any more, and nobody releases what was lost.
            self.beacon.remove(&self.store.directory);
        }
        Ok(standing)
    }

    fn release(&mut self) -> Result<(), Error> {
        self.watched.clear();
        self.store.transact(Some(self.session), |work| work.apply(Op::Release(self.session)).map(drop))?;
        self.beacon.remove(&self.store.directory);
        Ok(())
    }

    fn inspect(&mut self) -> Result<Vec<ResourceListing>, Error> {
        self.store.transact(Some(self.session), |work| work.inspect(&self.resources))
    }
}
