//! The poll loop: reports events to the machine and carries out the machine's actions, in one
//! thread and without periodic polling.
//!
//! The loop makes no decisions. One `poll` waits for the signals, for the descriptors of the
//! request at the store, and for the machine's next timer.

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal as Kernel;

use super::child::Child;
pub(crate) use super::child::CommandSpec;
use super::event::{Action, Consequence, Ended, Event};
use super::machine::{Machine, NOTICE_AFTER, Settings};
use super::notify::NotifySocket;
use super::outbox::Outbox;
use super::reaping::reap_inherited;
use super::report::Report;
use super::signals::{Arrival, Signals};
use super::spare::{SHELL, SpareWork};
use super::spawn;
use super::start_failure::start_failure;
use super::terminal::StatusLine;
use crate::lock::deadlock::Detector;
use crate::lock::past::Streak;
use crate::lock::request::{Claim, Process, SessionId};
use crate::show::failure::Failure;
use crate::show::messages::{self, Messages};
use crate::store::{self, Grant, Handle, Obstruction, Released, Standing};
use crate::system::alarm::Alarm;
use crate::system::clock::{Boottime, StoreTime, micros};
use crate::words::one_line;

/// Maximum number of messages of the command that the loop takes at once, so that a flood of them
/// delays no renewal.
const NOTICES_MAX: usize = 32;

/// The variable in which the work of `--else` finds the busy line.
const BUSY: &str = "RLOCK_BUSY";

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) command: CommandSpec,
    pub(crate) messages: Messages,
    pub(crate) settings: Settings,
    /// The spare work, if the settings have any.
    pub(crate) spare: OsString,
    /// The work of `--else`, if the settings have any.
    pub(crate) otherwise: OsString,
    /// The report on the request, before its first event.
    pub(crate) report: Report,
    /// What looks for a deadlock, if the request is nested.
    pub(crate) detector: Option<Detector>,
    /// What hears that the command is ready, if the lock is given back then.
    pub(crate) notify: Option<NotifySocket>,
}

/// Waits for the grant, runs the command under the grant, releases it, and returns the exit code.
///
/// The caller must install `signals` before it makes the request. `environment` returns the
/// variables for the command; the loop calls it once the grant is known and the command is about to
/// start, and starts no command after an error. `conclude` gets the report before rlock ends, and
/// may return a warning. All messages are on `output` when the function returns.
///
/// # Errors
/// A failure of the kernel that makes supervision impossible. A command that still runs dies with
/// rlock.
pub(crate) fn run(
    handle: &mut dyn Handle,
    task: Task,
    environment: impl FnOnce(&Grant) -> Result<Vec<(OsString, OsString)>, Failure>,
    conclude: impl FnMut(&Report, Option<&Grant>) -> Option<String>,
    signals: Signals,
    output: &mut dyn Write,
) -> anyhow::Result<u8> {
    supervise(handle, task, |grant| environment(grant).map(Begun::Command), conclude, signals, output)
}

/// Waits for the grant, and hands it over instead of running a command. Returns 0 after that.
/// Otherwise it returns the exit code, and the grant or the place in the queue is given back.
///
/// The calling contract is that of [`run`]. A failed hand-over gives the grant back.
///
/// # Errors
/// A failure of the kernel that makes a wait impossible.
pub(crate) fn acquire(
    handle: &mut dyn Handle,
    (messages, settings, detector): (Messages, Settings, Option<Detector>),
    hand_over: impl FnOnce(&Grant) -> Result<(), Failure>,
    signals: Signals,
    output: &mut dyn Write,
) -> anyhow::Result<u8> {
    let command = CommandSpec { argv: Vec::new(), session: String::new() };
    let report = Report::new(Boottime::now(), Vec::new());
    let (spare, otherwise) = (OsString::new(), OsString::new());
    let task = Task { command, messages, settings, spare, otherwise, report, detector, notify: None };
    supervise(handle, task, |grant| hand_over(grant).map(|()| Begun::HandedOver), |_, _| None, signals, output)
}

/// What has followed a grant.
enum Begun {
    /// The command is to start, with these variables.
    Command(Vec<(OsString, OsString)>),
    /// The grant belongs to somebody else.
    HandedOver,
}

fn supervise<E, C>(
    handle: &mut dyn Handle,
    Task { command, messages, settings, spare, otherwise, report, detector, notify }: Task,
    begin: E,
    conclude: C,
    signals: Signals,
    output: &mut dyn Write,
) -> anyhow::Result<u8>
where
    E: FnOnce(&Grant) -> Result<Begun, Failure>,
    C: FnMut(&Report, Option<&Grant>) -> Option<String>,
{
    let mut supervision = Supervision {
        handle,
        asks: true,
        grant: None,
        obstructions: Vec::new(),
        streak: None,
        superseded_by: None,
        failure: None,
        detector,
        deadlock: None,
        notify,
        command,
        begin: Some(begin),
        conclude,
        child: None,
        report,
        spare,
        spare_work: None,
        otherwise,
        signals,
        child_changed: false,
        alarm: Alarm::default(),
        machine: Machine::new(settings),
        messages,
        settings,
        has_waited: false,
        line: StatusLine::default(),
        told: None,
        outbox: Outbox::new(output),
        unsaid: Vec::new(),
        exit: None,
    };
    // Processes that ended before the signals were installed raised no SIGCHLD.
    reap_inherited(None);
    supervision.ask()?;
    loop {
        if let Some(code) = supervision.exit {
            return Ok(code);
        }
        supervision.turn()?;
    }
}

struct Supervision<'a, E, C> {
    handle: &'a mut dyn Handle,
    /// Whether the store may still report something.
    asks: bool,
    /// What the request was granted, if it was.
    grant: Option<Grant>,
    /// The sessions that were in the way at the store's last answer.
    obstructions: Vec<Obstruction>,
    /// The skips of the job in a row, if this request is one of them.
    streak: Option<Streak>,
    /// The process whose newer request has superseded this one.
    superseded_by: Option<Box<Process>>,
    /// The message about the last failure, if there is one.
    failure: Option<String>,
    detector: Option<Detector>,
    /// The lines about the deadlock, if there is one.
    deadlock: Option<[String; 2]>,
    notify: Option<NotifySocket>,
    command: CommandSpec,
    begin: Option<E>,
    conclude: C,
    child: Option<Child>,
    report: Report,
    spare: OsString,
    spare_work: Option<SpareWork>,
    otherwise: OsString,
    signals: Signals,
    /// Whether the loop must look at the command and the spare work.
    child_changed: bool,
    alarm: Alarm,
    machine: Machine,
    messages: Messages,
    settings: Settings,
    /// Whether the request has been in the queue.
    has_waited: bool,
    line: StatusLine,
    /// The first session in the way at the last line about the wait, if there was such a line.
    told: Option<Option<SessionId>>,
    outbox: Outbox<'a>,
    /// The messages to print when the lock is free.
    unsaid: Vec<String>,
    exit: Option<u8>,
}

impl<E, C> Supervision<'_, E, C>
where
    E: FnOnce(&Grant) -> Result<Begun, Failure>,
    C: FnMut(&Report, Option<&Grant>) -> Option<String>,
{
    /// Waits for events and reports them to the machine.
    ///
    /// If several events are ready, their order matters. Signals come first, because a signal
    /// cancels a grant that arrives with it. The store comes before the command: a lost grant is
    /// reported as lost even if the command ended at the same instant. What the command said comes
    /// before its end. The tick comes last, because a renewal may have come in time.
    fn turn(&mut self) -> anyhow::Result<()> {
        let store_is_ready = self.wait()?;
        self.take_signals()?;
        if store_is_ready && self.asks {
            self.ask()?;
        }
        self.take_notices()?;
        if std::mem::take(&mut self.child_changed) {
            self.look_at_spare()?;
            self.look_at_child()?;
        }
        self.on(Event::Tick)
    }

    /// Sleeps until a descriptor is ready or a timer has expired. Returns whether the loop must ask
    /// the store.
    fn wait(&mut self) -> anyhow::Result<bool> {
        let (descriptors, asking) =
            if self.asks { (self.handle.descriptors(), self.handle.timeout()) } else { (Vec::new(), None) };
        let mut polled = Vec::with_capacity(1 + descriptors.len());
        if self.outbox.awaits_reader() {
            polled.push(PollFd::from_borrowed_fd(rustix::stdio::stderr(), PollFlags::OUT));
        }
        let of_store = polled.len();
        polled.extend(descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)));
        let of_command = polled.len();
        polled.extend(self.notify.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        let due = self.machine.next_timeout().into_iter().chain(asking).min();
        let until = if self.child_changed { Some(Boottime::default()) } else { due };
        self.signals.wait(&self.alarm, &mut polled, until).context("cannot wait for signals and the store")?;
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let store_spoke = polled[of_store..of_command].iter().any(is_ready);
        if polled[..of_store].iter().any(is_ready) {
            self.outbox.push();
        }
        Ok(store_spoke || asking.is_some_and(|at| at <= Boottime::now()))
    }

    /// Reports the received signals to the machine.
    fn take_signals(&mut self) -> anyhow::Result<()> {
        while let Some(arrival) = self.signals.next() {
            match arrival {
                Arrival::Child => self.child_changed = true,
                Arrival::Signal(signal, source) => {
                    let sender = source.sender(signal, self.child.as_ref().and_then(Child::pid));
                    self.on(Event::Signal { signal, sender })?;
                }
            }
        }
        Ok(())
    }

    /// Reports whether the command says that it is ready.
    fn take_notices(&mut self) -> anyhow::Result<()> {
        for _ in 0..NOTICES_MAX {
            match self.notify.as_ref().and_then(NotifySocket::next) {
                None => break,
                Some(false) => {}
                Some(true) => self.on(Event::Ready)?,
            }
        }
        Ok(())
    }

    /// Asks the store for the state of the request and reports it to the machine.
    fn ask(&mut self) -> anyhow::Result<()> {
        let standing = self.handle.check();
        self.tell(standing)
    }

    fn tell(&mut self, standing: Result<Standing, store::Error>) -> anyhow::Result<()> {
        // The descriptors of a finished request may stay ready for ever, and the loop would spin.
        self.asks = standing.as_ref().is_ok_and(|standing| !standing.is_over());
        let event = match standing {
            Ok(Standing::Asking) => return Ok(()),
            Ok(Standing::Waiting) => self.waiting(),
            Ok(Standing::Granted(grant)) => {
                let deadline = grant.deadline;
                self.grant = Some(grant);
                Event::Granted { deadline }
            }
            Ok(Standing::Busy { obstructions, streak }) => {
                self.obstructions = obstructions;
                self.busy(streak)
            }
            Ok(Standing::Superseded { by, streak }) => {
                self.superseded_by = Some(by);
                self.busy(streak)
            }
            Ok(Standing::Refused(refusal)) => self.denied(Failure::from(&refusal)),
            Ok(Standing::AlreadyDone) => Event::AlreadyDone,
            Ok(Standing::Lost) => Event::Lost,
            Err(error) => self.store_failed(error),
        };
        self.on(event)
    }

    fn busy(&mut self, streak: Option<Streak>) -> Event {
        let skipped_for = streak.as_ref().map(|streak| streak.last - streak.since);
        self.streak = streak;
        Event::Busy { skipped_for }
    }

    fn waiting(&mut self) -> Event {
        if !std::mem::replace(&mut self.has_waited, true) && self.settings.verbose {
            self.say(&self.messages.waits());
        }
        match self.handle.trouble() {
            Some(trouble) => {
                self.failure = Some(self.messages.cannot_lock(&trouble));
                Event::OutOfReach
            }
            None => Event::Queued,
        }
    }

    fn denied(&mut self, failure: Failure) -> Event {
        self.failure = Some(failure.to_string());
        Event::Denied(failure.code)
    }

    fn store_failed(&mut self, error: store::Error) -> Event {
        match error {
            store::Error::Unavailable(reason) => {
                self.failure = Some(self.messages.cannot_lock(&reason));
                Event::StoreFailed
            }
            error => self.denied(error.into()),
        }
    }

    fn look_at_child(&mut self) -> anyhow::Result<()> {
        if self.child.is_none() {
            reap_inherited(self.spare_work.as_ref().map(|work| work.ids().shell));
        }
        let Some(child) = &mut self.child else { return Ok(()) };
        // The loop takes one look for each SIGCHLD. A later change raises another SIGCHLD, and the
        // loop handles it after the signals that came meanwhile.
        match child.look(&self.signals).context("cannot see what became of the command")? {
            Some(event) => self.on(event),
            None => Ok(()),
        }
    }

    /// Reports the end of the spare work.
    fn look_at_spare(&mut self) -> anyhow::Result<()> {
        let Some(work) = &self.spare_work else { return Ok(()) };
        let Some(ended) = work.look().context("cannot see what became of the spare work")? else { return Ok(()) };
        self.spare_work = None;
        self.on_child(Child::forget_spare);
        self.on(Event::SpareEnded(ended))
    }

    fn start_spare(&mut self) -> anyhow::Result<()> {
        match SpareWork::start(&self.spare, &self.command.session, &self.signals) {
            Ok(work) => {
                self.on_child(|child| child.set_apart(work.ids()));
                self.spare_work = Some(work);
                Ok(())
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                self.on(Event::SpareFailed)
            }
        }
    }

    /// Executes the work of `--else` in place of rlock. Returns the exit code if that fails.
    fn run_else(&mut self) -> anyhow::Result<u8> {
        self.say_the_rest();
        (self.signals.undo_in_child())().context("cannot restore the signals")?;
        let busy = one_line(&self.busy_line());
        let argv: [OsString; 3] = [SHELL.into(), "-c".into(), self.otherwise.clone()];
        let error = spawn::execute(&argv, &[(BUSY.into(), busy.into())]);
        let failure = start_failure(SHELL.as_ref(), &error, Duration::ZERO);
        self.unsaid.push(format!("rlock: {}", one_line(&failure.to_string())));
        self.say_the_rest();
        Ok(failure.code)
    }

    fn busy_line(&self) -> String {
        self.messages.busy(&self.why_busy(), self.streak.as_ref())
    }

    fn why_busy(&self) -> String {
        match &self.superseded_by {
            Some(by) => self.messages.superseded(by, self.waited()),
            None => self.messages.in_the_way(&self.obstructions, self.waited()),
        }
    }

    /// The length of the wait that is over, if there was one.
    fn waited(&self) -> Option<Duration> {
        self.settings.wait.filter(|_| self.has_waited)
    }

    fn on(&mut self, event: Event) -> anyhow::Result<()> {
        let now = Boottime::now();
        self.report.on(event, now);
        for action in self.machine.on(event, now) {
            self.report.act(action, now);
            if action.is_exit()
                && let Some(warning) = (self.conclude)(&self.report, self.grant.as_ref())
            {
                self.say(&format!("warning: {warning}"));
            }
            self.perform(action)?;
        }
        Ok(())
    }

    fn perform(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Start => self.start()?,
            Action::StopSelf(stop) => self.signals.stop_self(stop).context("cannot stop")?,
            Action::Release => self.release()?,
            Action::ReleaseEarly => self.release_early()?,
            Action::Dismiss => {
                self.on_child(Child::dismiss_guardian);
                self.reap_guardian()?;
            }
            Action::ShowWaiting => self.show_waiting(),
            Action::TellWaiting => self.tell_waiting(true),
            Action::TellChange => self.tell_waiting(false),
            Action::HideWaiting => self.line.hide(&mut self.outbox),
            Action::Look => self.look()?,
            Action::GiveUp => self.give_up()?,
            Action::ReportBusy | Action::WarnWaiting if self.settings.quiet => {}
            Action::ReportBusy => self.say(&self.busy_line()),
            Action::ReportSkip => self.say(&self.messages.skip(&self.why_busy(), self.streak.as_ref())),
            Action::ReportDone => self.say(&self.messages.done()),
            Action::StartSpare => self.start_spare()?,
            Action::PassSpare(signal) => self.on_spare(signal.kernel()),
            Action::KillSpare => self.on_spare(Kernel::KILL),
            Action::ReportSpare(Ended::Code(code)) => self.say(&messages::spare_exited(code)),
            Action::ReportSpare(Ended::Signal(number)) => self.say(&messages::spare_killed(number)),
            Action::RunElse => self.exit = Some(self.run_else()?),
            Action::ReportDeadlock => self.deadlock.take().into_iter().flatten().for_each(|line| self.say(&line)),
            Action::ReportFailure => self.say_failure("", ""),
            Action::Warn => self.say_failure("warning: ", ""),
            Action::WarnWaiting => self.say_failure("warning: ", messages::WAIT_GOES_ON),
            Action::ReportLost(consequence) => self.say(&self.messages.lost(self.outcome(consequence))),
            Action::ReportTimeout => self.say(&messages::timeout(self.settings.max_runtime)),
            Action::ReportOverdue(consequence) => {
                let trouble = self.handle.trouble();
                self.say(&self.messages.overdue(trouble.as_deref(), self.outcome(consequence)));
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
            Action::Pass(signal) => self.on_child(|child| child.pass(signal)),
            Action::PassGroup(signal) => self.on_child(|child| child.pass_group(signal)),
            Action::Freeze => self.on_child(Child::freeze),
            Action::Thaw => self.on_child(Child::thaw),
            Action::Terminate => self.on_child(Child::terminate),
            Action::Kill => self.on_child(Child::kill),
            Action::Reap => {
                if let Some(child) = &mut self.child {
                    child.reap().context("cannot reap the command")?;
                }
            }
            Action::AwaitRest => {
                self.on_child(Child::await_rest);
                self.look_at_child()?;
            }
        }
        Ok(())
    }

    fn on_spare(&self, signal: Kernel) {
        if let Some(work) = &self.spare_work {
            work.pass(signal);
        }
    }

    fn on_child(&mut self, act: impl FnOnce(&mut Child)) {
        if let Some(child) = &mut self.child {
            act(child);
        }
    }

    fn start(&mut self) -> anyhow::Result<()> {
        if self.settings.verbose || self.told.is_some() {
            let waited = self.report.waited(Boottime::now());
            self.say(&self.messages.holds(Some(waited).filter(|waited| self.has_waited && *waited >= NOTICE_AFTER)));
        }
        self.take_signals()?;
        self.on(Event::Tick)?;
        if !self.machine.may_start() {
            return Ok(());
        }
        let begun = match (self.begin.take(), &self.grant) {
            (Some(begin), Some(grant)) => begin(grant),
            _ => Ok(Begun::Command(Vec::new())),
        };
        let environment = match begun {
            Ok(Begun::Command(environment)) => environment,
            Ok(Begun::HandedOver) => return self.on(Event::HandedOver),
            Err(failure) => return self.start_failed(failure),
        };
        let limit = self.machine.start_limit(Boottime::now());
        let warn = |text: &str| self.outbox.put(&format!("rlock: {text}\n"));
        let (group, kept) = (self.settings.group, self.handle.kept());
        match Child::start(&self.command, &environment, group, &self.signals, &kept, limit, warn) {
            Ok(mut child) => {
                if let Some(work) = &self.spare_work {
                    child.set_apart(work.ids());
                }
                self.child = Some(child);
                self.on(Event::Started)
            }
            Err(failure) => self.start_failed(failure),
        }
    }

    fn start_failed(&mut self, failure: Failure) -> anyhow::Result<()> {
        self.failure = Some(failure.to_string());
        self.on(Event::StartFailed(failure.code))
    }

    fn release(&mut self) -> anyhow::Result<()> {
        self.on_child(Child::dismiss_guardian);
        let event = self.give_back();
        self.reap_guardian()?;
        self.on(event)
    }

    fn release_early(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child {
            child.guard_without_lock(&self.signals).context("cannot replace the guardian")?;
        }
        let event = self.give_back();
        self.on(event)
    }

    fn reap_guardian(&mut self) -> anyhow::Result<()> {
        self.child.as_mut().map_or(Ok(()), Child::reap_guardian).context("cannot reap the guardian")
    }

    /// Gives back the grant or the place in the queue.
    fn give_back(&mut self) -> Event {
        // Spare work and a command that is ready may outlast the release. Another renewal would put
        // the request back into the queue.
        self.asks = false;
        let held = if self.settings.verbose && self.grant.is_some() { self.held_by_now() } else { Vec::new() };
        match self.handle.release(self.report.end()) {
            Ok(released @ (Released::Done | Released::Kept)) => {
                if !held.is_empty() {
                    self.say(&Messages::releases(&held, released == Released::Kept));
                }
                Event::Released
            }
            Ok(Released::Lost) => Event::Lost,
            Err(error) => {
                self.say(&format!("warning: {}", self.messages.not_released(&error)));
                Event::Released
            }
        }
    }

    /// The claims that the session holds. The command may have given up a part of the granted ones.
    fn held_by_now(&mut self) -> Vec<Claim> {
        let listed = self.handle.inspect().map(|listed| self.messages.listed(&listed)).unwrap_or_default();
        if listed.is_empty() { self.messages.claims.clone() } else { listed }
    }

    fn show_waiting(&mut self) {
        if let Ok(obstructions) = self.handle.inspect() {
            let waited = micros(self.report.waited(Boottime::now()));
            let asked = StoreTime::from_micros(StoreTime::of_machine().as_micros().saturating_sub(waited));
            let text = format!("rlock: {}", self.messages.status(&obstructions, asked));
            self.line.show(&text, &mut self.outbox);
        }
    }

    /// Prints what the request waits for, if the first in the way has changed or the line `is_due`
    /// anyway.
    fn tell_waiting(&mut self, is_due: bool) {
        let Ok(obstructions) = self.handle.inspect() else { return };
        let first = self.messages.first_in_the_way(&obstructions);
        // Nobody is in the way for as long as the grant is on its way.
        if is_due || first.is_some() && self.told != Some(first) {
            self.told = Some(first);
            self.say(&self.messages.waiting(&obstructions));
        }
    }

    fn look(&mut self) -> anyhow::Result<()> {
        let Some(detector) = &mut self.detector else { return Ok(()) };
        // A store that can't tell now may tell at the next look.
        let Ok(Some(reading)) = self.handle.read(detector.names()) else { return Ok(()) };
        match detector.read(&reading) {
            Some(deadlock) if deadlock.ends == detector.session() => {
                self.deadlock = Some(self.messages.deadlock(&reading, &deadlock));
                self.on(Event::Deadlock)
            }
            _ => Ok(()),
        }
    }

    fn give_up(&mut self) -> anyhow::Result<()> {
        // The holders are those of the last moment of the wait.
        let seen = self.handle.inspect();
        let given_up = seen.and_then(|seen| {
            let standing = self.handle.give_up()?;
            Ok(match standing {
                Standing::Busy { streak, .. } => Standing::Busy { obstructions: seen, streak },
                standing => standing,
            })
        });
        match given_up {
            Err(error) => {
                self.failure = Some(self.messages.cannot_lock(&error));
                self.on(Event::StoreFailed)
            }
            standing => self.tell(standing),
        }
    }

    fn outcome(&self, consequence: Consequence) -> &'static str {
        match consequence {
            Consequence::NotStarted if self.command.argv.is_empty() => messages::NOT_PRINTED,
            Consequence::NotStarted => messages::NOT_STARTED,
            Consequence::Stopped => messages::STOPPED,
            Consequence::EndedLate => messages::ENDED_LATE,
        }
    }

    fn say_failure(&mut self, kind: &str, addition: &str) {
        if let Some(failure) = &self.failure {
            self.say(&format!("{kind}{failure}{addition}"));
        }
    }

    /// Prints a line. While the command runs, the lines are kept until its end.
    fn say(&mut self, text: &str) {
        let line = format!("rlock: {}", one_line(text));
        if self.child.is_none() {
            self.outbox.put(&(line + "\n"));
        } else {
            self.unsaid.push(line);
        }
    }

    /// Prints all that is still to say, before rlock ends.
    fn say_the_rest(&mut self) {
        self.outbox.finish(self.unsaid.drain(..));
    }
}

#[cfg(test)]
mod tests;
