//! A request that is made later, so that many machines do not make theirs at the same instant.

use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use super::{AcquireOptions, Error, Handle, Obstruction, Released, Standing, Store};
use crate::clock::Boottime;
use crate::lock::deadlock::Reading;
use crate::lock::past::End;
use crate::lock::request::Request;
use crate::lock::resource::Resource;

/// A request that is not made before an instant. Until then the store knows nothing of it.
pub struct Delayed {
    at: Boottime,
    /// What the request is made from.
    maker: Option<(Box<dyn Store>, Request, AcquireOptions)>,
    made: Option<Box<dyn Handle>>,
}

impl Delayed {
    /// The request will be made at the first check after the instant `at`.
    pub fn new(at: Boottime, store: Box<dyn Store>, request: Request, options: AcquireOptions) -> Self {
        Self { at, maker: Some((store, request, options)), made: None }
    }
}

impl Handle for Delayed {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.made.as_ref().map_or_else(Vec::new, |made| made.descriptors())
    }

    fn timeout(&self) -> Option<Boottime> {
        self.made.as_ref().map_or(Some(self.at), |made| made.timeout())
    }

    fn check(&mut self) -> Result<Standing, Error> {
        if let Some(made) = &mut self.made {
            return made.check();
        }
        if Boottime::now() < self.at {
            return Ok(Standing::Asking);
        }
        let Some((store, request, options)) = self.maker.take() else { return Ok(Standing::Lost) };
        self.made.insert(store.acquire(request, options)?).check()
    }

    fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        self.made.as_mut().map_or(Ok(Released::Done), |made| made.release(end))
    }

    fn give_up(&mut self) -> Result<Standing, Error> {
        self.made.as_mut().map_or(Ok(Standing::Asking), |made| made.give_up())
    }

    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        self.made.as_mut().map_or(Ok(Vec::new()), |made| made.inspect())
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        self.made.as_mut().map_or(Ok(None), |made| made.read(resources))
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.made.as_ref().map_or_else(Vec::new, |made| made.kept())
    }

    fn trouble(&self) -> Option<String> {
        self.made.as_ref().and_then(|made| made.trouble())
    }
}
