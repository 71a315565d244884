//! The wake-ups that a transaction owes the sessions of other processes.
//!
//! A waiter that is not told of the end of a session whose process goes on waits for ever. After
//! the commit it is too late to fail, and this process may have no descriptor left to open a pipe.
//! So the pipes are opened before the commit. If that fails, the transaction fails and can be
//! repeated. A crowd has more pipes than a transaction should keep open. The pipes of the others
//! are opened after the first ones are closed, and a wake-up that fails then is repeated.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::beacon::{self, Identity, Peer, Wake};
use super::directory::Directory;
use super::failure;
use rlock_model::request::SessionId;
use rlock_sys::clock::Boottime;

/// Maximum number of pipes that a transaction keeps open until its commit.
const PIPES_MAX: usize = 4;
/// The pause before a wake-up that failed is repeated.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// A message to a session. The identity of the beacon is unknown for a session without a record.
type Call = (SessionId, Option<Identity>, Wake);

/// The wake-ups of one transaction.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    calls: Vec<Call>,
    /// The open pipes. The sessions of one process share a pipe.
    pipes: HashMap<Identity, OwnedFd>,
}

impl Wakeups {
    /// Adds a wake-up, and opens its pipe. The pipe of a session that has to look later is opened
    /// after the commit.
    pub(super) fn add(
        &mut self,
        directory: &Directory,
        session: SessionId,
        identity: Option<Identity>,
        wake: Wake,
    ) -> Result<(), failure::Error> {
        if let Some(beacon) = identity.filter(|beacon| wake == Wake::Now && !self.pipes.contains_key(beacon))
            && self.pipes.len() < PIPES_MAX
        {
            match beacon::reach(directory, session, identity.as_ref())? {
                Peer::Alive(pipe) | Peer::Ending(pipe) => self.keep(Some(beacon), pipe),
                // The process needs no wake-up, or nobody can wake it.
                Peer::Dead | Peer::Missing => return Ok(()),
            }
        }
        self.calls.push((session, identity, wake));
        Ok(())
    }

    /// Keeps a pipe that is open already, for the messages to its sessions.
    pub(super) fn keep(&mut self, identity: Option<Identity>, pipe: OwnedFd) {
        if let Some(beacon) = identity.filter(|_| self.pipes.len() < PIPES_MAX) {
            self.pipes.insert(beacon, pipe);
        }
    }

    /// Sends the messages before the commit.
    pub(super) fn send_now(&mut self, directory: &Directory) -> Result<(), failure::Error> {
        let Self { calls, pipes } = std::mem::take(self);
        for (session, identity, wake) in others(calls, pipes) {
            beacon::wake(directory, session, identity.as_ref(), wake)?;
        }
        Ok(())
    }
}

/// Sends the messages whose pipes are open, and closes the pipes. Returns the other messages.
fn others(mut calls: Vec<Call>, pipes: HashMap<Identity, OwnedFd>) -> Vec<Call> {
    calls.retain(|(session, identity, wake)| {
        let pipe = identity.and_then(|identity| pipes.get(&identity));
        pipe.inspect(|pipe| wake.send(pipe, *session)).is_none()
    });
    calls
}

/// The wake-ups that failed after a commit.
#[derive(Debug, Default)]
pub(super) struct Missed {
    calls: Vec<Call>,
    again_at: Option<Boottime>,
}

impl Missed {
    /// Sends the messages of a transaction after its commit. Those that cannot be sent now are
    /// repeated.
    pub(super) fn send(&mut self, directory: &Directory, Wakeups { calls, pipes }: Wakeups) {
        self.try_each(directory, others(calls, pipes));
    }

    /// The instant at which [`repeat`](Self::repeat) is due.
    pub(super) fn again_at(&self) -> Option<Boottime> {
        self.again_at
    }

    /// Repeats the wake-ups that failed, if that is due.
    pub(super) fn repeat(&mut self, directory: &Directory, now: Boottime) {
        if self.again_at.take_if(|at| *at <= now).is_some() {
            let calls = std::mem::take(&mut self.calls);
            self.try_each(directory, calls);
        }
    }

    fn try_each(&mut self, directory: &Directory, calls: Vec<Call>) {
        let failed =
            |(session, identity, wake): &Call| beacon::wake(directory, *session, identity.as_ref(), *wake).is_err();
        self.calls.extend(calls.into_iter().filter(failed));
        if !self.calls.is_empty() {
            self.again_at.get_or_insert_with(|| Boottime::now() + REPEAT_AFTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::beacon::Beacon;
    use super::*;

    fn id(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn directory(path: &std::path::Path) -> Directory {
        Directory::open(Some(path.to_owned())).unwrap()
    }

    #[test]
    fn message_leaves_through_the_pipe_that_was_opened_before_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let beacon = Beacon::light(&directory, id(1)).unwrap();
        beacon.share(&directory, id(2)).unwrap();
        let identity = Some(*beacon.identity());
        let mut wakeups = Wakeups::default();
        for number in [1, 2] {
            wakeups.add(&directory, id(number), identity, Wake::Now).unwrap();
            // Without a name, nobody can open the pipe any more.
            beacon::remove(&directory, id(number));
        }
        assert_eq!(wakeups.pipes.len(), 1);
        let mut missed = Missed::default();
        missed.send(&directory, wakeups);
        assert_eq!(missed.again_at(), None);
        assert_eq!(beacon.messages().unwrap(), Some(vec![id(1), id(2)]));
    }

    #[test]
    fn crowd_is_woken_with_few_open_pipes() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let beacons: Vec<_> = (0..40).map(|number| Beacon::light(&directory, id(number)).unwrap()).collect();
        let mut wakeups = Wakeups::default();
        for (number, beacon) in (0..).zip(&beacons) {
            wakeups.add(&directory, id(number), Some(*beacon.identity()), Wake::Now).unwrap();
        }
        assert_eq!(wakeups.pipes.len(), PIPES_MAX);
        Missed::default().send(&directory, wakeups);
        for (number, beacon) in (0..).zip(&beacons) {
            assert_eq!(beacon.messages().unwrap(), Some(vec![id(number)]), "{number}");
        }
    }

    #[test]
    fn wake_up_that_fails_after_the_commit_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let beacon = Beacon::light(&directory, id(1)).unwrap();
        let (path, aside) = (folder.path().join("state").join(id(1).to_string()), folder.path().join("aside"));
        // A link stands for a pipe that cannot be opened, whatever the reason.
        fs::rename(&path, &aside).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        let (mut wakeups, mut missed) = (Wakeups::default(), Missed::default());
        wakeups.add(&directory, id(1), None, Wake::Now).unwrap();
        missed.send(&directory, wakeups);
        let first = missed.again_at().unwrap();
        missed.repeat(&directory, first);
        let second = missed.again_at().unwrap();
        fs::rename(&aside, &path).unwrap();
        missed.repeat(&directory, second - Duration::from_millis(1));
        assert_eq!(beacon.messages().unwrap(), Some(vec![]));
        missed.repeat(&directory, second);
        assert_eq!(beacon.messages().unwrap(), Some(vec![id(1)]));
        assert_eq!(missed.again_at(), None);
    }
}
