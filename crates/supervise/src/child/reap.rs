//! Sees the stops and the ends of children: of the command, which it reaps with all that the
//! command leaves behind, and of the spare work.

use std::io;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, waitid, waitpid};

use super::super::event::{Ended, Event, Stop};
use super::super::signals::{Signals, show_reaped};
use super::Child;
use rlock_sys::{exit, processes};

impl Child {
    /// Checks the state of the command without waiting. The caller must call it after each SIGCHLD.
    ///
    /// The function also reaps the processes that rlock inherited, and replaces a guardian that has
    /// died.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn look(&mut self, signals: &Signals) -> io::Result<Option<Event>> {
        if let Some(pid) = self.pid() {
            // The command is not reaped here: while it is a zombie, its ids are reserved, so a
            // signal to its group cannot reach other processes. Both are asked at once: the kernel
            // answers ECHILD to a question about stops alone if the command has just ended.
            let change = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            match seen(pid, change)? {
                Some(status) if status.stopping_signal().is_some() => {
                    // Consumes the stop. If the command has gone on meanwhile, another SIGCHLD
                    // comes.
                    let stop = seen(pid, WaitIdOptions::STOPPED).ok().flatten();
                    if let Some(number) = stop.and_then(|status| status.stopping_signal()) {
                        self.stopped = true;
                        return Ok(Some(Event::CommandStopped(Stop::from_number(number))));
                    }
                }
                Some(status) => {
                    // What is left in the session of a command that was ended is its rest.
                    if status.terminating_signal().is_some() {
                        self.family.sessions.extend(processes::session(pid));
                    }
                    return Ok(Some(Event::Ended(ended(&status))));
                }
                None => {}
            }
        }
        self.reap_others(signals)?;
        if !self.awaits_rest {
            return Ok(None);
        }
        let is_empty = self.family.watch(&processes::all());
        self.tell_topmost();
        let is_over = is_empty && self.has_no_child();
        Ok(is_over.then_some(Event::RestEnded))
    }

    /// From here on, [`look`](Self::look) reports when no process of the tree is left.
    pub(crate) fn await_rest(&mut self) {
        self.awaits_rest = true;
        show_reaped(true);
    }

    /// Whether no child of rlock is of the tree. While a process of the tree lives, one is a child
    /// of rlock, even if it starts another one and ends before any snapshot shows it.
    fn has_no_child(&mut self) -> bool {
        loop {
            let mut has_reaped = false;
            for pid in processes::children(self.family.rlock).into_iter().rev() {
                match processes::stat(pid) {
                    Ok(child) if !self.family.has_child(&child) => {}
                    Ok(child) if !child.ended => return false,
                    _ => has_reaped |= self.reap_orphan(pid),
                }
            }
            if !has_reaped {
                return true;
            }
        }
    }

    /// Reaps all ended children except the command and the spare work, and replaces a guardian that
    /// has died.
    fn reap_others(&mut self, signals: &Signals) -> io::Result<()> {
        while let Some(ended) = next_ended()? {
            if Some(ended) == self.pid() || Some(ended) == self.spare {
                // The process has ended just now. The command's SIGCHLD, or the end of the spare
                // work, brings another look.
                return Ok(());
            }
            self.reap_topmost(ended, WaitOptions::empty())?;
            if Some(ended) == self.family.guardian {
                self.replace_guardian(signals)?;
            }
        }
        Ok(())
    }

    /// Reaps an ended child that nothing else reaps. Returns whether it is reaped.
    pub(super) fn reap_orphan(&mut self, child: Pid) -> bool {
        let is_other = ![self.pid(), self.spare, self.family.guardian].contains(&Some(child));
        is_other && self.reap_topmost(child, WaitOptions::NOHANG).unwrap_or(false)
    }

    /// Reaps a child, which may be a topmost process of the tree. Returns whether it is reaped.
    fn reap_topmost(&mut self, child: Pid, options: WaitOptions) -> io::Result<bool> {
        let reaped = waitpid(Some(child), options)?;
        reaped.iter().for_each(|(_, status)| self.family.topmost_ended(child, status.signaled()));
        Ok(reaped.is_some())
    }

    /// Reaps the ended command.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn reap(&mut self) -> io::Result<()> {
        if let Some(pid) = self.family.command.take() {
            waitpid(Some(pid), WaitOptions::empty())?;
        }
        Ok(())
    }
}

/// The status of a child, if the child has made one of the changes in `what`.
pub(crate) fn seen(pid: Pid, what: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    Ok(waitid(WaitId::Pid(pid), what | WaitIdOptions::NOHANG)?)
}

/// A child that has ended and is not reaped. rustix does not report the child's id.
pub(crate) fn next_ended() -> io::Result<Option<Pid>> {
    // The kernel hands orphans to the main thread, which this thread is. In the unit tests, other
    // threads have children of their own.
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
    // SAFETY: all zeros are a valid, empty siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` has room for the data that the kernel writes.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) };
    }
    // SAFETY: waitid filled in the fields for a child, or left the zeros.
    Ok(Pid::from_raw(unsafe { info.si_pid() }))
}

/// As process 1, reaps the processes that rlock inherited while it has no command, but not this
/// shell of the spare work. In any other process the function does nothing.
pub(crate) fn reap_inherited(spare: Option<Pid>) {
    while getpid().is_init()
        && let Ok(Some(ended)) = next_ended()
        && Some(ended) != spare
    {
        let _ = waitpid(Some(ended), WaitOptions::empty());
    }
}

/// How a child with this status has ended.
pub(crate) fn ended(status: &WaitIdStatus) -> Ended {
    match status.terminating_signal() {
        Some(number) => Ended::Signal(number),
        // The kernel keeps eight bits of an exit code.
        None => {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            Ended::Code(code.unwrap_or(exit::FAILURE))
        }
    }
}
