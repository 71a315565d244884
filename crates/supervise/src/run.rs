//! The poll loop: reports events to the machine and carries out the machine's actions, in one
//! thread and without periodic polling.
//!
//! The loop makes no decisions. One `poll` waits for the signals, for the descriptors of the
//! request at the store, and for the machine's next timer. `request` speaks to the store, `voice`
//! to the user, and `processes` has the command and the spare work.

mod anew;
mod processes;
mod request;
mod voice;

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal as Kernel;

pub use self::anew::{Anew, Granted, MOVES_MAX, Resolve};
use self::processes::Processes;
use self::request::Request;
use self::voice::Voice;
use super::canary::{Canary, Sent};
use super::child::Child;
pub use super::child::CommandSpec;
use super::child::reap::reap_inherited;
use super::event::{Action, Event, Group, Sender, Signal};
use super::gate::{self, Gate};
use super::guardian::Notes;
use super::keeper::Kept;
use super::machine::{Machine, Settings};
use super::notify::NotifySocket;
use super::owner::Owner;
use super::place::KeptPlace;
use super::report::RunReport;
use super::signals::{Arrival, Signals};
use super::spare::SHELL;
use super::spawn;
use super::start_failure::start_failure;
use rlock_model::deadlock::Detector;
use rlock_model::past::End;
use rlock_model::request::Claim;
use rlock_show::failure::Failure;
use rlock_show::messages::Messages;
use rlock_store::{Grant, Handle};
use rlock_sys::alarm::Alarm;
use rlock_sys::clock::Boottime;
use rlock_words::{one_line, reason};

/// The variable in which the work of `--else` finds the busy line.
const BUSY: &str = "RLOCK_BUSY";

/// A request with its command, and all that the loop needs to carry both out.
pub struct Task {
    /// The command that runs while the request holds.
    pub command: CommandSpec,
    /// Writes what the user reads.
    pub messages: Messages,
    /// What the machine decides by.
    pub settings: Settings,
    /// The spare work, if the settings have any.
    pub spare: OsString,
    /// The work of `--else`, if the settings have any.
    pub otherwise: OsString,
    /// The report on the request, before its first event.
    pub report: RunReport,
    /// What looks for a deadlock, if the request is nested.
    pub detector: Option<Detector>,
    /// What hears that the command is ready, if the lock is released then.
    pub notify: Option<NotifySocket>,
    /// The process whose end ends the request as SIGTERM does, if there is one.
    pub owner: Option<Owner>,
    /// The gate before the start, if the settings have one.
    pub gate: Option<Gate>,
    /// What makes the request again if it has to pass a gate or has paths.
    pub anew: Option<Anew>,
    /// The kept place of the request, if it has one.
    pub place: Option<KeptPlace>,
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
pub fn run(
    handle: &mut Handle,
    task: Task,
    environment: impl FnOnce(Granted<'_>) -> Result<Vec<(OsString, OsString)>, Failure>,
    conclude: impl FnMut(&RunReport, Option<&Grant>) -> Option<String>,
    signals: Signals,
    output: &mut dyn Write,
) -> anyhow::Result<u8> {
    supervise(handle, task, |granted| environment(granted).map(Begun::Command), conclude, signals, output)
}

/// Waits for the grant, and hands it over instead of running a command. Returns 0 after that, or
/// keeps the grant for a process and returns 0 when nothing is left to do. Otherwise it returns the
/// exit code, and the grant or the place in the queue is released.
///
/// The calling contract is that of [`run`]. A failed hand-over releases the grant.
///
/// # Errors
/// A failure of the kernel that makes a wait impossible.
pub fn acquire(
    handle: &mut Handle,
    (messages, settings, detector, anew): (Messages, Settings, Option<Detector>, Anew),
    hand_over: impl FnOnce(Granted<'_>) -> Result<(), Failure>,
    kept: Option<Kept<'_>>,
    place: Option<KeptPlace>,
    signals: Signals,
    output: &mut dyn Write,
) -> anyhow::Result<u8> {
    let command = CommandSpec { argv: Vec::new(), session: String::new() };
    let report = RunReport::new(Boottime::now(), Vec::new());
    let (spare, otherwise) = (OsString::new(), OsString::new());
    let (notify, owner, gate, anew) = (None, None, None, Some(anew));
    let task =
        Task { command, messages, settings, spare, otherwise, report, detector, notify, owner, gate, anew, place };
    let begin = |granted: Granted<'_>| hand_over(granted).map(|()| kept.map_or(Begun::HandedOver, Begun::Kept));
    supervise(handle, task, begin, |_, _| None, signals, output)
}

/// What has followed a grant.
enum Begun<'a> {
    /// The command is to start, with these variables.
    Command(Vec<(OsString, OsString)>),
    /// The grant belongs to somebody else.
    HandedOver,
    /// The grant belongs to a process, and this process keeps it.
    Kept(Kept<'a>),
}

fn supervise<'a, E, C>(
    handle: &'a mut Handle,
    Task { command, messages, settings, spare, otherwise, report, detector, notify, owner, gate, anew, place }: Task,
    begin: E,
    conclude: C,
    signals: Signals,
    output: &'a mut dyn Write,
) -> anyhow::Result<u8>
where
    E: FnOnce(Granted<'_>) -> Result<Begun<'a>, Failure>,
    C: FnMut(&RunReport, Option<&Grant>) -> Option<String>,
{
    let mut supervision = Supervision {
        request: Request::new(handle, detector),
        voice: Voice::new(messages, settings, &command, output),
        processes: Processes::new(command, settings.group, spare),
        child_changed: false,
        canary: Canary::default(),
        notify,
        owner,
        kept: None,
        gate,
        anew,
        moved: None,
        place,
        begin: Some(begin),
        conclude,
        report,
        otherwise,
        signals,
        alarm: Alarm::default(),
        machine: Machine::new(settings),
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
    request: Request<'a>,
    voice: Voice<'a>,
    processes: Processes,
    /// Whether the loop must look at the command and the spare work.
    child_changed: bool,
    canary: Canary,
    notify: Option<NotifySocket>,
    owner: Option<Owner>,
    /// Whom the grant is kept for, from the hand-over on.
    kept: Option<Kept<'a>>,
    gate: Option<Gate>,
    anew: Option<Anew>,
    /// The claims with which the request is to be made again, if its paths lead elsewhere.
    moved: Option<Vec<Claim>>,
    place: Option<KeptPlace>,
    begin: Option<E>,
    conclude: C,
    report: RunReport,
    otherwise: OsString,
    signals: Signals,
    alarm: Alarm,
    machine: Machine,
    exit: Option<u8>,
}

impl<'a, E, C> Supervision<'a, E, C>
where
    E: FnOnce(Granted<'_>) -> Result<Begun<'a>, Failure>,
    C: FnMut(&RunReport, Option<&Grant>) -> Option<String>,
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
        if store_is_ready {
            self.ask()?;
        }
        self.look_at_gate()?;
        self.take_notices()?;
        if self.is_child_due() {
            self.child_changed = false;
            let event = self.processes.look_at_spare()?;
            self.on_any(event)?;
            self.look_at_child()?;
        }
        // A change that has to wait for a signal comes before the time, too.
        if self.child_changed { Ok(()) } else { self.on(Event::Tick) }
    }

    /// Sleeps until a descriptor is ready or a timer has expired. Returns whether the loop must ask
    /// the store.
    fn wait(&mut self) -> anyhow::Result<bool> {
        let (descriptors, asking) = self.request.awaited();
        let mut polled = Vec::with_capacity(1 + descriptors.len());
        if self.voice.outbox.awaits_reader() {
            polled.push(PollFd::from_borrowed_fd(rustix::stdio::stderr(), PollFlags::OUT));
        }
        let of_store = polled.len();
        polled.extend(descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)));
        let of_command = polled.len();
        polled.extend(self.owner.as_ref().map(|owner| PollFd::new(owner, PollFlags::IN)));
        polled.extend(self.kept.as_ref().map(|kept| PollFd::new(&kept.process.life, PollFlags::IN)));
        polled.extend(self.processes.notes().map(|notes| PollFd::new(notes, PollFlags::IN)));
        polled.extend(self.notify.iter().flat_map(NotifySocket::awaited));
        let (of_gate, looking) = self.gate.as_ref().map(Gate::awaited).unwrap_or_default();
        polled.extend(of_gate.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)));
        let notices = self.notify.as_ref().and_then(NotifySocket::timeout);
        let due = [self.machine.next_timeout(), asking, notices, looking, self.canary.decides_at()];
        let due = due.into_iter().flatten().min();
        let until = if self.is_child_due() { Some(Boottime::default()) } else { due };
        self.signals.wait(&self.alarm, &mut polled, until).context("cannot wait for signals and the store")?;
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let store_spoke = polled[of_store..of_command].iter().any(is_ready);
        if polled[..of_store].iter().any(is_ready) {
            self.voice.outbox.push();
        }
        Ok(store_spoke || asking.is_some_and(|at| at <= Boottime::now()))
    }

    /// Whether the loop is to look at the command now. A signal that came before the end of the
    /// command may be the reason for it, so the signal is decided first.
    fn is_child_due(&self) -> bool {
        self.child_changed && self.canary.decides_at().is_none()
    }

    /// Reports the received signals to the machine. The canary decides those that every process may
    /// have received.
    fn take_signals(&mut self) -> anyhow::Result<()> {
        let now = Boottime::now();
        while let Some(note) = self.processes.notes().and_then(Notes::next) {
            self.canary.note(note, now);
        }
        while let Some(arrival) = self.signals.next_arrival() {
            match arrival {
                Arrival::Child => self.child_changed = true,
                Arrival::Signal(signal, source) => {
                    let sender = source.sender(signal, self.processes.command());
                    match self.may_be_for_everyone(signal, sender) {
                        true => self.canary.signal(Sent { signal, by: source.number() }, sender, now),
                        false => self.on(Event::Signal { signal, sender })?,
                    }
                }
            }
        }
        while let Some((signal, sender)) = self.canary.next(now) {
            self.on(Event::Signal { signal, sender })?;
        }
        if self.owner.take_if(|owner| owner.has_ended()).is_some() {
            self.on(Event::Signal { signal: Signal::Term, sender: Sender::Other })?;
        }
        // Nobody is left to be told of a loss, so this end comes before what the store says.
        if self.kept.as_ref().is_some_and(|kept| kept.process.life.has_ended()) {
            self.on(Event::RestEnded)?;
        }
        Ok(())
    }

    /// Whether the guardian may have received the signal, too. In a shared group, a SIGCONT that
    /// comes late could undo a Ctrl-Z.
    fn may_be_for_everyone(&self, signal: Signal, sender: Sender) -> bool {
        let is_late = signal == Signal::Cont && self.voice.settings.group == Group::Shared;
        let is_candidate = sender == Sender::Other && Signal::TO_EVERYONE.contains(&signal) && !is_late;
        is_candidate && self.processes.notes().is_some()
    }

    /// Reports whether the command says that it is ready.
    fn take_notices(&mut self) -> anyhow::Result<()> {
        if self.notify.as_mut().is_some_and(NotifySocket::take) {
            self.on(Event::Ready)?;
        }
        Ok(())
    }

    /// Asks the store for the state of the request and reports it to the machine.
    fn ask(&mut self) -> anyhow::Result<()> {
        let event = self.request.ask(&mut self.voice);
        if let (Some(place), Some(number)) = (&mut self.place, self.request.place()) {
            place.note(number);
        }
        if let (Some(Event::Lost), Some(kept), Some(grant)) = (event, &mut self.kept, self.request.grant())
            && (kept.was_released)(grant)
        {
            return self.on(Event::Released);
        }
        self.on_any(event)
    }

    /// Looks whether there is room for the command, if the request is at the gate.
    fn look_at_gate(&mut self) -> anyhow::Result<()> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        if !self.machine.awaits_start() {
            gate.give_up();
        }
        match gate.look(Boottime::now()) {
            Ok(event) => {
                self.voice.note_gate(gate.why());
                if event == Some(Event::Room) { self.look_at_paths() } else { self.on_any(event) }
            }
            Err(failure) => {
                self.gate = None;
                self.start_failed(&failure)
            }
        }
    }

    /// Looks whether the paths of the request lead where they led when it was made. If so, the
    /// command may start.
    fn look_at_paths(&mut self) -> anyhow::Result<()> {
        let claims = &self.voice.messages.claims;
        match self.anew.as_mut().map_or(Ok(None), |anew| anew.moved(claims)) {
            Ok(None) => self.on(Event::Room),
            Ok(moved) => {
                self.moved = moved;
                self.on(Event::Moved)
            }
            Err(failure) => self.start_failed(&failure),
        }
    }

    /// Gives the grant back and asks for what the paths lead to now. The session is a new one,
    /// because a release that arrives late must not free what it gets.
    fn ask_anew(&mut self) -> anyhow::Result<()> {
        let (Some(anew), Some(claims)) = (&mut self.anew, self.moved.take()) else { return Ok(()) };
        self.gate.iter_mut().for_each(Gate::step_back);
        self.voice.note_gate(None);
        // Nothing has run under the grant, so it does not matter whether it was lost.
        self.request.release(None, &mut self.voice);
        // The place is in a queue for something else.
        self.request.leave_place();
        self.voice.tell_news("a link in --path leads elsewhere now");
        self.voice.messages.claims = claims;
        let claims = &self.voice.messages.claims;
        let again = gate::new_session().and_then(|session| {
            // A kill from here on leaves nothing that the next request with the place cannot find.
            self.place.iter_mut().for_each(|place| place.rename(session));
            Ok((session, (anew.ask)(session, claims)?))
        });
        match again {
            Ok((session, handle)) => {
                self.request.go_on_as(session, handle);
                self.processes.rename(session);
                self.voice.messages.related.last_mut().into_iter().for_each(|own| *own = session);
                self.ask()
            }
            Err(failure) => {
                self.voice.note_failure(&failure);
                self.on(Event::Denied(failure.code))
            }
        }
    }

    fn look_at_child(&mut self) -> anyhow::Result<()> {
        let event = self.processes.look_at_child(&self.signals)?;
        self.on_any(event)
    }

    fn on_any(&mut self, event: Option<Event>) -> anyhow::Result<()> {
        event.map_or(Ok(()), |event| self.on(event))
    }

    fn on(&mut self, event: Event) -> anyhow::Result<()> {
        let now = Boottime::now();
        self.report.on(event, now);
        for action in self.machine.on(event, now) {
            self.report.act(action, now);
            if action.is_exit() {
                if let Some(warning) = (self.conclude)(&self.report, self.request.grant()) {
                    self.voice.say(&format!("warning: {warning}"));
                }
                self.voice.sum_up(&self.report);
                if let Some(place) = &self.place {
                    place.leave(self.report.outcome());
                }
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
                self.processes.on_child(Child::dismiss_guardian);
                self.processes.reap_guardian()?;
            }
            Action::Say(line) => {
                let waited = self.report.waited(Boottime::now());
                self.voice.report(line, &mut self.request, &mut self.processes, waited);
            }
            Action::ShowWaiting => self.voice.show_waiting(&mut self.request, self.report.waited(Boottime::now())),
            Action::HideWaiting => self.voice.hide_waiting(),
            Action::EnterGate => match self.gate.as_mut().map(|gate| gate.enter(Boottime::now())) {
                None => self.look_at_paths()?,
                Some(Ok(())) => self.look_at_gate()?,
                Some(Err(failure)) => self.start_failed(&failure)?,
            },
            Action::LeaveGate => {
                self.gate.iter_mut().for_each(Gate::leave);
                self.on(Event::Busy { skipped_for: None })?;
            }
            Action::AskAnew => self.ask_anew()?,
            Action::Look => {
                let event = self.request.look(&mut self.voice);
                self.on_any(event)?;
            }
            Action::GiveUp => {
                let event = self.request.give_up(&mut self.voice);
                self.on_any(event)?;
            }
            Action::StartSpare => self.start_spare()?,
            Action::PassSpare(signal) => self.processes.on_spare(signal.kernel()),
            Action::KillSpare => self.processes.on_spare(Kernel::KILL),
            Action::RunElse => self.exit = Some(self.run_else()?),
            Action::Exit(code) => {
                self.finish();
                self.exit = Some(code);
            }
            Action::ExitBy(signal) => {
                self.finish();
                self.signals.end_self(signal);
                self.exit = Some(signal.exit_code());
            }
            Action::Pass(signal) => self.processes.on_child(|child| child.pass(signal)),
            Action::PassUncaught(signal) => self.processes.on_child(|child| child.pass_uncaught(signal)),
            Action::PassGroup(signal) => self.processes.on_child(|child| child.pass_group(signal)),
            Action::Survey => self.processes.on_child(Child::survey),
            Action::TellLoss => self.kept.iter().for_each(|kept| kept.process.tell()),
            Action::TellRest { signal, spares_group } => {
                self.processes.on_child(|child| child.tell_rest(signal, spares_group));
            }
            Action::Freeze => self.processes.on_child(Child::freeze),
            Action::Thaw => self.processes.on_child(Child::thaw),
            Action::Terminate => self.processes.on_child(Child::terminate),
            Action::Kill => self.processes.on_child(Child::kill),
            Action::Reap => self.processes.reap()?,
            Action::AwaitRest => {
                self.processes.on_child(Child::await_rest);
                self.look_at_child()?;
            }
        }
        Ok(())
    }

    /// Hands over what waits for its readers, because rlock ends.
    fn finish(&mut self) {
        if let Some(notify) = &mut self.notify {
            notify.finish();
        }
        self.voice.finish();
    }

    fn start(&mut self) -> anyhow::Result<()> {
        if self.place.take().is_some_and(|place| !place.use_up()) {
            self.voice.say("another request has taken the place of --place over; the command was not started");
            return self.on(Event::Signal { signal: Signal::Term, sender: Sender::Other });
        }
        self.voice.report_grant(self.report.waited(Boottime::now()));
        self.take_signals()?;
        self.on(Event::Tick)?;
        if !self.machine.may_start() {
            return Ok(());
        }
        let Messages { claims, related, .. } = &self.voice.messages;
        let session = *related.last().expect("the session of the request is the last of these");
        let begun = match (self.begin.take(), self.request.grant()) {
            (Some(begin), Some(grant)) => begin(Granted { session, claims, grant }),
            _ => Ok(Begun::Command(Vec::new())),
        };
        let environment = match begun {
            Ok(Begun::Command(environment)) => environment,
            Ok(Begun::HandedOver) => return self.on(Event::HandedOver),
            Ok(Begun::Kept(kept)) => return self.keep(kept),
            Err(failure) => return self.start_failed(&failure),
        };
        let limit = self.machine.start_limit(Boottime::now());
        let warn = |text: &str| self.voice.say(text);
        match self.processes.start(&environment, &self.signals, &self.request.kept(), limit, warn) {
            Ok(()) => {
                self.voice.keep_lines();
                if let Some(gate) = &mut self.gate {
                    gate.note_start();
                }
                self.on(Event::Started)
            }
            Err(failure) => self.start_failed(&failure),
        }
    }

    /// Goes on as a keeper, which has detached.
    fn keep(&mut self, kept: Kept<'a>) -> anyhow::Result<()> {
        // The signal that announces a release is for `was_released`.
        self.signals.leave_foreign();
        // Nobody reads what a keeper says.
        self.voice.settings.verbose = false;
        let hears = kept.process.hears();
        self.kept = Some(kept);
        self.on(Event::Kept { hears })
    }

    fn start_failed(&mut self, failure: &Failure) -> anyhow::Result<()> {
        self.voice.note_failure(failure);
        self.on(Event::StartFailed(failure.code))
    }

    fn start_spare(&mut self) -> anyhow::Result<()> {
        match self.processes.start_spare(&self.signals) {
            Ok(()) => Ok(()),
            Err(failure) => {
                self.voice.note_failure(&failure);
                self.on(Event::SpareFailed)
            }
        }
    }

    /// Executes the work of `--else` in place of rlock, with the words of the command as its
    /// arguments. Returns the exit code if that fails.
    fn run_else(&mut self) -> anyhow::Result<u8> {
        self.voice.finish();
        (self.signals.undo_in_child())().context("cannot restore the signals")?;
        let busy = one_line(&self.voice.busy_line(&mut self.request));
        // The second SHELL is `$0`, as without arguments.
        let argv =
            [&[SHELL.into(), "-c".into(), self.otherwise.clone(), SHELL.into()], self.processes.words()].concat();
        let error = spawn::execute(&argv, &[(BUSY.into(), busy.into())]);
        let failure = start_failure(SHELL.as_ref(), &error, Duration::ZERO);
        self.voice.say(&failure.to_string());
        self.voice.finish();
        Ok(failure.code)
    }

    fn release(&mut self) -> anyhow::Result<()> {
        self.processes.on_child(Child::dismiss_guardian);
        let end = if self.kept.is_some() { Some(End::KEPT) } else { self.report.end() };
        let event = self.request.release(end, &mut self.voice);
        self.processes.reap_guardian()?;
        self.on(event)
    }

    fn release_early(&mut self) -> anyhow::Result<()> {
        if self.request.is_leaving() {
            return Ok(());
        }
        if let Some(error) = self.processes.guard_without_lock(&self.signals)? {
            let why = reason(&error);
            self.voice.say(&format!(
                "warning: no guardian can be started, so a kill of rlock leaves the command running: {why}"
            ));
        }
        let event = self.request.release_early(self.report.end(), &mut self.voice);
        self.on_any(event)
    }
}

#[cfg(test)]
pub(crate) mod tests;
