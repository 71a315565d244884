//! A request in the embedded store, from the moment that it was made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;

use super::beacon::Beacon;
use super::transaction::Fate;
use super::{Embedded, Error, records};
use crate::lock::op::{Op, Reply};
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::store::{Hold, Obstruction, Released, Standing};

/// How many holders that were told of are watched. A line has room for one of them and a number.
const TOLD_MAX: usize = 16;

/// A request that is queued or granted.
pub(super) struct EmbeddedHold {
    store: Embedded,
    session: SessionId,
    resources: Vec<Resource>,
    beacon: Beacon,
    /// How it stood when it was made, until somebody asks.
    first: Option<Standing>,
    /// The beacons of those whom it waits for.
    watched: Vec<OwnedFd>,
    /// The beacons of the holders that [`Hold::inspect`] told of, so that whoever shows them learns when they end. A waiter is not
    /// woken for that otherwise, where another waiter stands between.
    told: Vec<OwnedFd>,
}

impl EmbeddedHold {
    pub(super) fn new(
        store: Embedded,
        session: SessionId,
        resources: Vec<Resource>,
        beacon: Beacon,
        standing: Standing,
        watched: Vec<OwnedFd>,
    ) -> Self {
        Self { store, session, resources, beacon, first: Some(standing), watched, told: Vec::new() }
    }
}

impl Hold for EmbeddedHold {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let watched = self.watched.iter().chain(&self.told).map(|pipe| (pipe.as_fd(), PollFlags::empty()));
        std::iter::once((self.beacon.as_fd(), PollFlags::IN)).chain(watched).collect()
    }

    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn check(&mut self) -> Result<Standing, Error> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let (standing, watched) = self.store.transact(Some(self.session), |work| {
            self.beacon.drain().map_err(records::Error::Io)?;
            work.stand(self.session)
        })?;
        self.watched = watched;
        // Those that have ended stay ready for ever.
        self.told.clear();
        if standing == Standing::Lost {
            // Nobody looks for it any more, and nobody releases what was lost.
            self.beacon.remove(&self.store.directory);
        }
        Ok(standing)
    }

    fn release(&mut self) -> Result<Released, Error> {
        self.watched.clear();
        self.told.clear();
        let reply = self.store.transact(Some(self.session), |work| work.apply(Op::Release(self.session)))?;
        self.beacon.remove(&self.store.directory);
        Ok(if reply == Reply::Unknown { Released::Lost } else { Released::Done })
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        let (listings, told) = self.store.transact(Some(self.session), |work| {
            // The dead go first, so that the listing shows who holds instead of them. Waiters that this grants are woken; if this
            // session is one, the beacon of the dead that it watches calls for the next check.
            for resource in &self.resources {
                let holders = work.holders_of(resource)?;
                work.reap_dead(&holders)?;
            }
            let listings = work.inspect(&self.resources)?;
            let mut told = Vec::new();
            for holder in listings.iter().flat_map(|listing| &listing.holders).take(TOLD_MAX) {
                if let Fate::Alive(pipe) = work.fate(holder.session)? {
                    told.push(pipe);
                }
            }
            Ok((listings, told))
        })?;
        self.told = told;
        Ok(listings.into_iter().map(Obstruction::from).collect())
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}

/// A request that is neither: it has its answer, and there is nothing to give back.
pub(super) struct Denied(pub(super) Standing);

impl Hold for Denied {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        Vec::new()
    }

    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn check(&mut self) -> Result<Standing, Error> {
        Ok(self.0.clone())
    }

    fn release(&mut self) -> Result<Released, Error> {
        Ok(Released::Done)
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        Ok(Vec::new())
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}
