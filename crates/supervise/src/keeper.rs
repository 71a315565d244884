//! The keeper: a process that `rlock acquire --pid` leaves behind, and that holds the lock until
//! another process ends.
//!
//! ```text
//!   rlock acquire ──fork──▶ keeper: requests the lock, prints, detaches ──▶ keeps the lock
//!        │                                                │
//!        └── waits, passes signals on ◀── "detached" ─────┘
//! ```
//!
//! The keeper makes the request itself, because the embedded store ties a lock to the process that
//! requests it. Until it detaches, it dies with `rlock acquire`. `machine` decides what follows
//! from an event; [`process`] starts, detaches and signals; this module has the poll loop.

pub mod announcement;
mod machine;
pub mod process;

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use self::machine::{Action, Event, Machine};
use self::process::Watched;

use rlock_model::past::End;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::{Grant, Handle, Standing, Store};
use rlock_sys::alarm::Alarm;
use rlock_sys::clock::Boottime;

/// Keeps the grant of `handle` until the process ends or the grant is released or lost. A process
/// whose grant is lost or revoked is told, on a store with leases `grace` before the end of the
/// lease. `was_released` tells whether a grant that is gone was released.
///
/// # Errors
/// The kernel's.
pub fn keep(
    handle: &mut dyn Handle,
    process: &Watched,
    grace: Duration,
    was_released: impl FnMut() -> bool,
) -> Result<(), Errno> {
    let (alarm, machine) = (Alarm::default(), Machine::new(grace, process.hears()));
    let mut keeper = Keeper { handle, process, was_released, alarm, machine, asks: true, is_over: false };
    keeper.ask();
    while !keeper.is_over {
        keeper.turn()?;
    }
    Ok(())
}

/// The pause before the keeper looks again for a hold whose release was announced, and how often it
/// does so; and the pause where the store does not answer.
const SOON: Duration = Duration::from_millis(100);
const LOOKS_SOON: u32 = 50;
const AGAIN: Duration = Duration::from_secs(5);

/// How long the keeper tries to end a hold of a process that has ended, at a server that does not
/// answer. Then the hold lasts to its own end.
const TRIES: Duration = Duration::from_secs(600);

/// Ends a kept hold of these resources with the process. Returns when nothing is left to do: the
/// hold may have ended at its instant, which a renewal moves, or by a release or a break.
///
/// # Errors
/// The kernel's.
pub fn watch(store: &mut dyn Store, process: &Watched, session: SessionId, names: &[Resource]) -> io::Result<()> {
    let (alarm, announced) = (Alarm::default(), announcement::descriptor()?);
    let (mut ended, mut looks_soon) = (None, 0);
    loop {
        looks_soon = if announcement::is_there(session) { LOOKS_SOON } else { looks_soon.saturating_sub(1) };
        let now = Boottime::now();
        let again = match store.inspect(names) {
            // What an embedded store had is gone with it.
            Err(_) if ended.is_some_and(|ended| !store.leases() || now - ended > TRIES) => return Ok(()),
            Err(_) => AGAIN,
            Ok(mut seen) => {
                let Some(hold) = seen.sessions.remove(&session) else { return Ok(()) };
                let left = hold.expiry.map_or(Duration::MAX, |expiry| expiry - seen.now);
                if left.is_zero() || ended.is_some() && store.release(session, &hold, Some(End::KEPT)).is_ok() {
                    return Ok(());
                }
                if ended.is_some() { AGAIN } else { left }
            }
        };
        let mut polled = vec![PollFd::new(&announced, PollFlags::IN)];
        if ended.is_none() {
            polled.push(PollFd::new(process.descriptor(), PollFlags::IN));
        }
        alarm.wait(&mut polled, Some(now + if looks_soon > 0 { again.min(SOON) } else { again }))?;
        let is_over = polled.get(1).is_some_and(|process| !process.revents().is_empty());
        ended = ended.or_else(|| is_over.then(Boottime::now));
    }
}

struct Keeper<'a, R> {
    handle: &'a mut dyn Handle,
    process: &'a Watched,
    was_released: R,
    alarm: Alarm,
    machine: Machine,
    /// Whether the store may still report something.
    asks: bool,
    is_over: bool,
}

impl<R: FnMut() -> bool> Keeper<'_, R> {
    /// Waits for events and reports them. The end of the process comes first: nobody is left to be
    /// told of a loss. The tick comes last, because a renewal may have come in time.
    fn turn(&mut self) -> Result<(), Errno> {
        let (has_ended, store_is_ready) = self.wait()?;
        if has_ended {
            self.on(Event::Ended);
        }
        if store_is_ready && !self.is_over {
            self.ask();
        }
        self.on(Event::Tick);
        Ok(())
    }

    /// Sleeps until a descriptor is ready or a timer has expired. Returns whether the process has
    /// ended, and whether the loop must ask the store.
    fn wait(&self) -> Result<(bool, bool), Errno> {
        let (descriptors, asking) =
            if self.asks { (self.handle.descriptors(), self.handle.timeout()) } else { (Vec::new(), None) };
        let mut polled = vec![PollFd::new(self.process.descriptor(), PollFlags::IN)];
        polled.extend(descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)));
        let due = self.machine.next_timeout().into_iter().chain(asking).min();
        self.alarm.wait(&mut polled, due)?;
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let store_spoke = polled[1..].iter().any(is_ready);
        Ok((is_ready(&polled[0]), store_spoke || asking.is_some_and(|at| at <= Boottime::now())))
    }

    /// Asks the store for the state of the grant.
    fn ask(&mut self) {
        let event = match self.handle.check() {
            Ok(Standing::Granted(Grant { deadline, is_revoked: true, .. })) => Event::Revoked { deadline },
            Ok(Standing::Granted(Grant { deadline, .. })) => Event::Granted { deadline },
            Ok(Standing::Asking | Standing::Waiting) => return,
            Ok(_) if (self.was_released)() => Event::Released,
            Ok(_) => Event::Lost,
            Err(_) => {
                // The handle makes no further attempt, and its descriptors may stay ready.
                self.asks = false;
                return;
            }
        };
        self.on(event);
    }

    fn on(&mut self, event: Event) {
        for action in self.machine.on(event, Boottime::now()) {
            match action {
                Action::Tell => self.process.tell(),
                // The end of this process gives the lock back as well, on a server with its lease.
                Action::Release => drop(self.handle.release(Some(End::KEPT))),
                Action::Exit => self.is_over = true,
            }
        }
    }
}
