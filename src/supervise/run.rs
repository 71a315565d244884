//! The loop: tells the machine what happens and does what it says, in one thread and without
//! polling by time.
//!
//! It decides nothing. One `poll` waits for the signals, for the descriptors of the request at the
//! store, and for the machine's next timer.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

pub use super::child::CommandSpec;
use super::child::{self, Change, Child};
use super::event::{Action, Consequence, Event, Group};
use super::machine::{Machine, Settings};
use super::signals::{Arrival, Signals};
use super::terminal::{StatusLine, group_for_command};
use crate::words::{one_line, reason};

/// How a request stands at its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The store has not answered yet.
    Asking,
    /// In the queue.
    Waiting,
    /// In the queue as far as anybody knows, but the store is out of reach; one line that says why.
    OutOfReach(String),
    /// Granted.
    Granted {
        /// The tokens, claim by claim.
        tokens: Vec<u64>,
        /// The instant of `CLOCK_BOOTTIME` by which the command must be gone unless a renewal moves
        /// it.
        deadline: Option<Duration>,
    },
    /// Neither granted nor queued.
    Denied {
        /// The exit code that says why.
        code: u8,
        /// One line that says why, if it is to be said.
        text: Option<String>,
    },
    /// The grant, or the place in the queue, was taken away; one line that says how, and to which
    /// what becomes of the command is added.
    Lost(String),
}

/// What the loop needs of a request at the store, from the moment that it was made.
pub trait Hold {
    /// Descriptors whose readiness means: call [`check`](Self::check). An error or a hang-up counts
    /// as ready.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// The instant of `CLOCK_BOOTTIME` at which [`check`](Self::check) is wanted even if no
    /// descriptor is ready. Each check moves it on.
    fn timeout(&self) -> Option<Duration>;

    /// What became of the request; never blocks. It may be asked more often than something happens.
    ///
    /// # Errors
    /// The store's, one line. After an error, after [`Standing::Denied`] and [`Standing::Lost`], it
    /// is not asked again.
    fn check(&mut self) -> anyhow::Result<Standing>;

    /// Leaves: gives back the grant or the place in the queue, whichever there is. One that was
    /// lost is no error: if it was a grant that should have been there still, gives the line of
    /// [`Standing::Lost`].
    ///
    /// # Errors
    /// One line that says so, what follows from it, and the store's reason.
    fn release(&mut self) -> anyhow::Result<Option<String>>;

    /// One line that says who holds what this request waits for.
    ///
    /// # Errors
    /// The store's; the line is left out then.
    fn blocked_by(&mut self) -> anyhow::Result<String>;

    /// The same once the wait is over, with how long it was.
    ///
    /// # Errors
    /// The store's.
    fn gave_up(&mut self) -> anyhow::Result<String> {
        self.blocked_by()
    }

    /// Descriptors that tell other processes that this one lives, where the store goes by that. A
    /// guardian keeps them open until the command's process tree is gone, even if rlock is killed.
    fn kept(&self) -> Vec<BorrowedFd<'_>>;

    /// One line that says that the lease was not renewed in time, and why; as with
    /// [`Standing::Lost`] it is added to.
    fn overdue(&self) -> String;
}

/// What the command line says about the supervision.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// From SIGTERM to SIGKILL when the grant is lost.
    pub grace: Duration,
    /// How long to stay in the queue; `None` for as long as it takes.
    pub wait: Option<Duration>,
    /// The exit code when the wait is over.
    pub busy_code: u8,
    /// Whether a wait that lasts is shown: standard error is a terminal, and nobody asked for
    /// quiet.
    pub notice: bool,
    /// Whether the lines that say "busy", or that a wait goes on without its store, are left out.
    pub quiet: bool,
}

/// Waits for the grant, runs the command under it, releases, and returns the exit code.
///
/// `signals` were installed before the request was made. `environment` gives the variables for the
/// command, once the tokens are known and the command is about to start. Whatever there is to say
/// has been said on standard error when this returns.
///
/// # Errors
/// A failure of the kernel that leaves nothing to supervise with. A command that still runs dies
/// with rlock.
pub fn run(
    hold: &mut dyn Hold,
    command: CommandSpec,
    environment: impl FnOnce(&[u64]) -> Vec<(OsString, OsString)>,
    options: Options,
    signals: Signals,
) -> anyhow::Result<u8> {
    supervise(hold, command, environment, options, signals, group_for_command(), &mut io::stderr())
}

/// [`run`] with what it finds out itself, so that tests can say it.
fn supervise<E>(
    hold: &mut dyn Hold,
    command: CommandSpec,
    environment: E,
    options: Options,
    signals: Signals,
    group: Group,
    messages: &mut dyn Write,
) -> anyhow::Result<u8>
where
    E: FnOnce(&[u64]) -> Vec<(OsString, OsString)>,
{
    let Options { grace, wait, busy_code, notice, quiet } = options;
    let machine = Machine::new(Settings { group, grace, wait, busy_code, notice });
    let mut supervision = Supervision {
        hold,
        asks: true,
        tokens: Vec::new(),
        failure: None,
        command,
        environment: Some(environment),
        group,
        child: None,
        signals,
        machine,
        quiet,
        line: StatusLine::default(),
        messages,
        unsaid: Vec::new(),
        exit: None,
    };
    // What ended before the signals were installed has told nobody.
    child::reap_inherited();
    supervision.ask()?;
    loop {
        if let Some(code) = supervision.exit {
            return Ok(code);
        }
        supervision.turn()?;
    }
}

struct Supervision<'a, E> {
    hold: &'a mut dyn Hold,
    /// Whether the store may still have something to say.
    asks: bool,
    tokens: Vec<u64>,
    /// What failed last, in words, if it is to be said.
    failure: Option<String>,
    command: CommandSpec,
    environment: Option<E>,
    group: Group,
    child: Option<Child>,
    signals: Signals,
    machine: Machine,
    quiet: bool,
    line: StatusLine,
    messages: &'a mut dyn Write,
    /// What is to be said when the lock is free.
    unsaid: Vec<String>,
    exit: Option<u8>,
}

impl<E> Supervision<'_, E>
where
    E: FnOnce(&[u64]) -> Vec<(OsString, OsString)>,
{
    /// Waits for something to happen and tells the machine.
    ///
    /// The order matters where several things have: signals first, for they cancel a grant that
    /// came with them; the store before the command, so that a grant that was lost is lost even if
    /// the command ended in the same instant; the time last, for a renewal may have come in time.
    fn turn(&mut self) -> anyhow::Result<()> {
        let store_is_ready = self.wait()?;
        let child_changed = self.take_signals()?;
        if store_is_ready && self.asks {
            self.ask()?;
        }
        if child_changed {
            self.look_at_child()?;
        }
        self.on(Event::Tick)
    }

    /// Sleeps until a descriptor is ready or a timer has run out; tells whether the store is to be
    /// asked.
    fn wait(&self) -> anyhow::Result<bool> {
        let (descriptors, asking) =
            if self.asks { (self.hold.descriptors(), self.hold.timeout()) } else { (Vec::new(), None) };
        let mut polled = Vec::with_capacity(1 + descriptors.len());
        polled.push(PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN));
        polled.extend(descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)));
        let timer = self.machine.next_timeout().into_iter().chain(asking).min();
        let left = timer.map(|at| at.saturating_sub(now()));
        let timeout = if self.signals.has_more() { Some(Duration::ZERO) } else { left };
        // A time that the kernel can't express is longer than anybody waits.
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let store_spoke = match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => polled[1..].iter().any(|descriptor| !descriptor.revents().is_empty()),
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => return Err(error).context("cannot wait for signals and the store"),
        };
        Ok(store_spoke || asking.is_some_and(|at| at <= now()))
    }

    /// Tells the machine of the signals that have come; says whether the command is to be looked
    /// at.
    fn take_signals(&mut self) -> anyhow::Result<bool> {
        let mut child_changed = false;
        while let Some(arrival) = self.signals.next() {
            match arrival {
                Arrival::Child => child_changed = true,
                Arrival::Signal(signal, source) => {
                    let sender = source.sender(signal, self.child.as_ref().and_then(Child::pid));
                    self.on(Event::Signal { signal, sender })?;
                }
            }
        }
        Ok(child_changed)
    }

    /// Asks the store and tells the machine.
    fn ask(&mut self) -> anyhow::Result<()> {
        let standing = self.hold.check();
        // What failed or is over may have descriptors that stay ready for ever, and asking again
        // would turn the loop into a busy one.
        self.asks = matches!(
            standing,
            Ok(Standing::Asking | Standing::Waiting | Standing::OutOfReach(_) | Standing::Granted { .. })
        );
        let event = match standing {
            Ok(Standing::Asking) => return Ok(()),
            Ok(Standing::Waiting) => Event::Queued,
            Ok(Standing::OutOfReach(reason)) => {
                self.failure = Some(reason);
                Event::OutOfReach
            }
            Ok(Standing::Granted { tokens, deadline }) => {
                self.tokens = tokens;
                Event::Granted { deadline }
            }
            Ok(Standing::Denied { code, text }) => {
                self.failure = text;
                Event::Denied(code)
            }
            Ok(Standing::Lost(reason)) => {
                self.failure = Some(reason);
                Event::Lost
            }
            Err(error) => {
                self.failure = Some(format!("{error:#}"));
                Event::StoreFailed
            }
        };
        self.on(event)
    }

    fn look_at_child(&mut self) -> anyhow::Result<()> {
        if self.child.is_none() {
            child::reap_inherited();
        }
        let Some(child) = &mut self.child else { return Ok(()) };
        // One look for each SIGCHLD: what changes after it brings another, and comes after the
        // signals that were noted meanwhile.
        match child.look(&self.signals).context("cannot see what became of the command")? {
            None => Ok(()),
            Some(Change::Stopped(stop)) => self.on(Event::CommandStopped(stop)),
            Some(Change::Ended(ended)) => self.on(Event::Ended(ended)),
            Some(Change::RestEnded) => self.on(Event::RestEnded),
        }
    }

    fn on(&mut self, event: Event) -> anyhow::Result<()> {
        for action in self.machine.on(event, now()) {
            self.perform(action)?;
        }
        Ok(())
    }

    fn perform(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Start => self.start()?,
            Action::StopSelf(stop) => self.signals.stop_self(stop).context("cannot stop")?,
            Action::Release => self.release()?,
            Action::ShowWaiting => self.show_waiting(),
            // Nothing that can't be said may keep the lock held: that goes for all the messages
            // here.
            Action::HideWaiting => drop(self.line.hide(self.messages)),
            Action::ReportBusy => self.report_busy()?,
            Action::ReportFailure => self.say_failure("", ""),
            Action::Warn => self.say_failure("warning: ", ""),
            Action::WarnWaiting if self.quiet => {}
            Action::WarnWaiting => self.say_failure("warning: ", "; the wait goes on"),
            Action::ReportLost(consequence) => self.say_failure("", words(consequence)),
            Action::ReportOverdue(consequence) => {
                self.failure = Some(self.hold.overdue());
                self.say_failure("", words(consequence));
            }
            Action::Exit(code) => {
                self.say_the_rest();
                self.exit = Some(code);
            }
            Action::ExitBy(signal) => {
                self.say_the_rest();
                self.signals.end_self(signal);
                self.exit = Some(signal.exit_code());
            }
            Action::Pass(_)
            | Action::PassGroup(_)
            | Action::Freeze
            | Action::Thaw
            | Action::Terminate
            | Action::Kill
            | Action::Reap => {
                self.perform_on_child(action)?;
            }
            Action::AwaitRest => {
                if let Some(child) = &mut self.child {
                    child.await_rest();
                }
                self.look_at_child()?;
            }
        }
        Ok(())
    }

    fn perform_on_child(&mut self, action: Action) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match action {
            Action::Pass(signal) => child.pass(signal),
            Action::PassGroup(signal) => child.pass_group(signal),
            Action::Freeze => child.freeze(),
            Action::Thaw => child.thaw(),
            Action::Terminate => child.terminate(),
            Action::Kill => child.kill(),
            _ => child.reap().context("cannot reap the command")?,
        }
        Ok(())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let environment = self.environment.take().map_or_else(Vec::new, |environment| environment(&self.tokens));
        self.take_signals()?;
        self.on(Event::Tick)?;
        if !self.machine.may_start() {
            return Ok(());
        }
        let limit = self.machine.start_limit(now());
        match Child::start(&self.command, &environment, self.group, &self.signals, &self.hold.kept(), limit) {
            Ok(child) => {
                self.child = Some(child);
                self.on(Event::Started)
            }
            Err(error) => {
                self.failure = Some(error.text);
                self.on(Event::StartFailed(error.code))
            }
        }
    }

    fn release(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child {
            child.dismiss_guardian();
        }
        let released = self.hold.release();
        if let Some(child) = &mut self.child {
            child.reap_guardian().context("cannot reap the guardian")?;
        }
        match released {
            Ok(None) => self.on(Event::Released),
            Ok(Some(lost)) => {
                self.failure = Some(lost);
                self.on(Event::Lost)
            }
            Err(error) => {
                self.say("warning: ", &format!("{error:#}"));
                self.on(Event::Released)
            }
        }
    }

    fn show_waiting(&mut self) {
        if let Ok(holder) = self.hold.blocked_by() {
            let _ = self.line.show(&format!("rlock: waiting: {holder}"), self.messages);
        }
    }

    fn report_busy(&mut self) -> anyhow::Result<()> {
        match self.hold.gave_up() {
            Ok(holder) => {
                if !self.quiet {
                    self.say("busy: ", &holder);
                }
                self.on(Event::BusyReported)
            }
            Err(error) => {
                self.failure = Some(format!("{error:#}"));
                self.on(Event::StoreFailed)
            }
        }
    }

    fn say_failure(&mut self, kind: &str, addition: &str) {
        if let Some(failure) = &self.failure {
            let text = format!("{}{addition}", reason(failure));
            self.say(kind, &text);
        }
    }

    /// Says a line; from the start of the command on, only when all is over. Standard error may be
    /// a pipe that nobody reads or a terminal that is held, and to wait for it could mean to miss
    /// the command's deadline.
    fn say(&mut self, kind: &str, text: &str) {
        self.unsaid.push(format!("rlock: {kind}{}", one_line(&reason(&text))));
        if self.child.is_none() {
            self.say_the_rest();
        }
    }

    fn say_the_rest(&mut self) {
        for line in self.unsaid.drain(..) {
            let _ = writeln!(self.messages, "{line}");
        }
    }
}

/// What becomes of the command, to be added to why.
fn words(consequence: Consequence) -> &'static str {
    match consequence {
        Consequence::NotStarted => "; the command was not started",
        Consequence::Stopped => "; the command is stopped",
        Consequence::EndedLate => "; the command has ended, but maybe too late",
    }
}

/// The time since the start of the machine, suspend included.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
