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
//! requests it. Until it detaches, it dies with `rlock acquire`.
//! [`run::acquire`](super::run::acquire) makes the request and keeps its grant; [`process`] starts,
//! detaches and signals; [`watch`] ends a hold that the store keeps.

pub mod announcement;
pub mod process;

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::owner::Watched;
use rlock_model::past::End;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::{Grant, Store};
use rlock_sys::alarm::Alarm;
use rlock_sys::clock::Boottime;

/// A process that a grant is kept for, by [`run::acquire`](super::run::acquire). The process is
/// told if the grant is lost or revoked; on a store with leases, one grace before the end of the
/// lease.
pub struct Kept<'k> {
    /// The process, whose end ends the grant.
    pub process: &'k Watched,
    /// Whether a grant that is gone was released.
    pub was_released: Box<dyn FnMut(&Grant) -> bool + 'k>,
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
            polled.push(PollFd::new(&process.life, PollFlags::IN));
        }
        alarm.wait(&mut polled, Some(now + if looks_soon > 0 { again.min(SOON) } else { again }))?;
        let is_over = polled.get(1).is_some_and(|process| !process.revents().is_empty());
        ended = ended.or_else(|| is_over.then(Boottime::now));
    }
}
