//! Waits for descriptors, at most until an instant.
//!
//! poll(2) measures its timeout by a clock that stands still while the machine is suspended, but a
//! lease ends all the same. So a timer of CLOCK_BOOTTIME ends the wait as well: it expires at the
//! latest when the machine resumes.

use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{io, ptr};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::clock::Boottime;

/// A wait that may end so much late, after the machine resumes, needs no timer.
const SHORT: Duration = Duration::from_millis(10);

/// A timer for the waits of a loop. The first wait with an end makes it.
#[derive(Debug, Default)]
pub struct Alarm(OnceCell<Option<OwnedFd>>);

impl Alarm {
    /// Waits until one of the descriptors is ready, a signal has arrived, or the instant `until`
    /// has come. The events of the descriptors tell which of them are ready.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait<'a>(&'a self, polled: &mut Vec<PollFd<'a>>, until: Option<Boottime>) -> Result<(), Errno> {
        self.wait_with(polled, until, None)
    }

    /// Waits with another mask of signals. The kernel sets the mask as it begins to wait, and
    /// resets the mask afterwards.
    pub(crate) fn wait_with<'a>(
        &'a self,
        polled: &mut Vec<PollFd<'a>>,
        until: Option<Boottime>,
        mask: Option<&libc::sigset_t>,
    ) -> Result<(), Errno> {
        let left = until.map(|until| until - Boottime::now());
        let timer = until.filter(|_| left > Some(SHORT)).and_then(|until| self.set(until));
        // A duration that the kernel cannot express is longer than any wait. Without the timer, the
        // timeout alone ends the wait.
        let timeout = left.and_then(timespec);
        let descriptors = polled.len();
        polled.extend(timer.map(|timer| PollFd::new(timer, PollFlags::IN)));
        let outcome = ppoll(polled, timeout, mask);
        polled.truncate(descriptors);
        match outcome {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets the timer to this instant. Returns `None` if the kernel gives no timer.
    fn set(&self, until: Boottime) -> Option<&OwnedFd> {
        let make = || timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).ok();
        let timer = self.0.get_or_init(make).as_ref()?;
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: once, it_value: Timespec::try_from(until - Boottime::default()).ok()? };
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &value).ok()?;
        Some(timer)
    }
}

/// Returns `None` if the kernel cannot express the duration.
fn timespec(length: Duration) -> Option<libc::timespec> {
    let tv_nsec = libc::c_long::from(length.subsec_nanos().cast_signed());
    Some(libc::timespec { tv_sec: length.as_secs().try_into().ok()?, tv_nsec })
}

/// ppoll(2). rustix has no mask for it.
fn ppoll(
    polled: &mut [PollFd<'_>],
    timeout: Option<libc::timespec>,
    mask: Option<&libc::sigset_t>,
) -> Result<(), Errno> {
    const { assert!(size_of::<PollFd<'_>>() == size_of::<libc::pollfd>()) };
    let (first, count) = (polled.as_mut_ptr().cast(), polled.len() as libc::nfds_t);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: rustix gives its type to the same call, as a `pollfd`. The descriptors are borrowed.
    // The timeout and the mask are null or come from references.
    let ready = unsafe { libc::ppoll(first, count, timeout, mask.map_or(ptr::null(), ptr::from_ref)) };
    if ready < 0 { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::event::poll;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn is_ready(descriptor: &OwnedFd, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)).unwrap() > 0
    }

    #[test]
    fn wait_ends_at_the_instant() {
        let alarm = Alarm::default();
        for until in [Boottime::default(), Boottime::now() + Duration::from_millis(30)] {
            alarm.wait(&mut Vec::new(), Some(until)).unwrap();
            assert!(until <= Boottime::now());
        }
    }

    #[test]
    fn wait_ends_when_a_descriptor_is_ready() {
        let alarm = Alarm::default();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(writer);
        for until in [None, Some(Boottime::now() + MINUTE)] {
            let mut polled = vec![PollFd::new(&reader, PollFlags::IN)];
            alarm.wait(&mut polled, until).unwrap();
            assert_eq!(polled.len(), 1);
            assert!(!polled[0].revents().is_empty());
        }
    }

    /// No test can suspend the machine. But the timer is set, and to the last instant.
    #[test]
    fn timer_expires_at_the_instant_of_the_last_wait() {
        let alarm = Alarm::default();
        assert!(!is_ready(alarm.set(Boottime::now() + MINUTE).unwrap(), Duration::ZERO));
        alarm.wait(&mut Vec::new(), Some(Boottime::now() + Duration::from_millis(30))).unwrap();
        assert!(is_ready(alarm.0.get().unwrap().as_ref().unwrap(), MINUTE));
    }
}
