//! The state machine that decides everything about a supervised command.
//!
//! Pure: no clock, no process, no descriptor. [`super::run`] tells it what happened and when, and
//! does what it says.

use std::time::Duration;

use super::event::{Action, Consequence, Ended, Event, Group, Sender, Signal, Stop};
use crate::exit;
use crate::lock::lease;

/// What the machine has to know beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Where the command will run.
    pub group: Group,
    /// From SIGTERM to SIGKILL when the grant is lost. SIGKILL may come earlier, but no later than
    /// the deadline.
    pub grace: Duration,
    /// How long to stay in the queue; `None` for as long as it takes.
    pub wait: Option<Duration>,
    /// The exit code when the wait is over.
    pub busy_code: u8,
    /// Whether a wait that lasts is shown on the terminal.
    pub notice: bool,
}

/// How long a wait may last before it is shown.
pub const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// How long the store of a wait may be out of reach before that is said. A failover or a new start
/// of a server is no news.
pub const TROUBLE_AFTER: Duration = Duration::from_secs(30);

/// How long the start of a command may take at most. Signals wait meanwhile.
pub const START_LIMIT: Duration = Duration::from_secs(30);

/// The least time for a start, where a lease is about to end anyway.
const START_LIMIT_LEAST: Duration = Duration::from_millis(10);

/// The timers, one slot each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// The wait is over.
    Wait,
    /// The wait is worth a line on the terminal.
    Notice,
    /// The store has been out of reach for so long that nobody should wait for it without knowing.
    Trouble,
    /// The command has to be asked to end, or it will not be gone by the deadline.
    Terminate,
    /// The lost command has had its time.
    Kill,
}

const TIMERS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Requesting,
    Waiting,
    /// The wait is over, and whether the store can still tell who holds decides how to leave.
    GivingUp,
    Starting,
    Running,
    /// The command's tree was asked to end, for the grant is lost; it has until the timer
    /// [`Timer::Kill`].
    Stopping,
    /// The lost command has ended, and what it started has until the same timer.
    Clearing,
    /// The command was sent SIGKILL.
    Killed,
    /// The command has ended by itself, and what the release finds decides how to leave.
    Leaving,
    Done,
}

/// The life of one supervised command.
///
/// ```text
///               Queued            Granted             Started            Lost, overdue            time over
///   Requesting ────────▶ Waiting ─────────▶ Starting ─────────▶ Running ───────────────▶ Stopping ─────────▶ Killed
///       │                   │                   │                  │                        │                  │
///       │ Granted:          │ signal, Denied,   │ signal, Lost,    │ Ended                  │ Ended            │ Ended
///       │ Starting, else    │ Lost, wait over,  │ overdue,         │                        ▼                  │
///       │ as Waiting        │ StoreFailed       │ StartFailed      │                     Clearing             │
///       │                   │                   │                  │                        │ RestEnded,       │
///       ▼                   ▼                   ▼                  ▼                        ▼ time over        ▼
///      Done ◀────────────────────────────────────────────────────────────────────────────────────────────────────
/// ```
///
/// While the command is **starting** rlock stands still until the kernel has opened the program,
/// which may take long on a slow file system. [`start_limit`](Machine::start_limit) bounds that
/// time, so that the lease can be renewed after it.
///
/// A wait that is over where nobody knows whether the store is still there did not end because
/// somebody holds: it is **given up** by asking once more.
///
/// From Running to Done is by **leaving**: the store may have taken the grant away without a word
/// so far, and says so to the release.
///
/// A grant with a deadline is **overdue** from a grace before it until a renewal moves it. A
/// command is then asked to end, so that it is gone by the deadline; one whose deadline has passed
/// already, in a suspend or a stop, is killed at once. Before a signal is passed on the time is
/// looked at, so that no command is continued that has no lease any more. (Where it shares rlock's
/// group, whoever continues rlock has continued the command with it, and nothing can be earlier
/// than that.)
///
/// While rlock is **stopped** nobody renews, so a leased command and what it started must not run
/// on: rlock stops when it has seen the command stopped, and stops the rest of the tree first. A
/// command that ignores SIGTSTP stops neither.
///
/// A command that is seen to have **ended** before its deadline ended with its lock held, and its
/// end counts, unless it was asked to end. When the deadline has passed as well nobody can tell
/// which came first, and a success that may be none is worse than a loss that may be none: the
/// lease counts as lost.
///
/// The calling contract:
/// - Every event goes to [`on`](Self::on), the actions are carried out in order and before the next
///   event is taken in, but for
///   events that an action itself brings about.
/// - The caller of [`Action::Start`] first tells of the signals that came by then, and then of the
///   time by an
///   [`Event::Tick`]. It starts only if [`may_start`](Self::may_start) still says so: after a signal between grant and
///   start, or with a lease that may not last, nothing is started.
/// - When [`next_timeout`](Self::next_timeout) has passed the caller sends [`Event::Tick`]; an
///   early one does no harm.
/// - `now` and the timeouts are instants of one clock that runs through suspend, given as the time
///   since its start.
/// - After [`Action::Exit`] nothing more comes, whatever happens.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    timers: [Option<Duration>; TIMERS],
    /// Nobody knows whether the request still waits.
    out_of_reach: bool,
    /// When the command must be gone, as far as the store has said.
    deadline: Option<Duration>,
    /// When the grace is over that a lost command was given.
    grace_over: Option<Duration>,
    /// The line about the wait was asked for and not taken away for good.
    shown: bool,
    /// What was passed on to the command, to tell a death by it from any other.
    passed: Vec<Signal>,
    /// The terminal sent SIGINT while the command ran.
    interrupted: bool,
    /// The command was told to stop, and rlock is to stop when it has.
    stops: bool,
    /// The command's whole tree was stopped, not the command alone.
    frozen: bool,
    /// How to leave when the grant was held to the end.
    exit: Option<Action>,
}

impl Machine {
    /// A machine that waits to hear what became of the request.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Requesting,
            timers: [None; TIMERS],
            out_of_reach: false,
            deadline: None,
            grace_over: None,
            shown: false,
            passed: Vec::new(),
            interrupted: false,
            stops: false,
            frozen: false,
            exit: None,
        }
    }

    /// Takes in what happened at `now` and says what to do, in order.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match self.state {
            State::Requesting | State::Waiting => self.before_grant(event, now),
            State::GivingUp => self.giving_up(event),
            State::Starting => self.starting(event, now),
            State::Running => self.running(event, now),
            State::Stopping => self.stopping(event, now),
            State::Clearing => self.clearing(event, now),
            State::Killed => self.killed(event),
            State::Leaving => self.leaving(event),
            State::Done => vec![],
        }
    }

    /// The instant at which the machine wants to hear [`Event::Tick`], if any.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.timers.iter().flatten().min().copied()
    }

    /// Whether a start that was asked for is still wanted.
    pub fn may_start(&self) -> bool {
        self.state == State::Starting
    }

    /// How long the start of the command may take. The second half of the time until the command
    /// would have to end is left for the renewal.
    pub fn start_limit(&self, now: Duration) -> Duration {
        let left = self.timers[Timer::Terminate as usize].map(|at| at.saturating_sub(now) / 2);
        left.map_or(START_LIMIT, |left| left.clamp(START_LIMIT_LEAST, START_LIMIT))
    }

    fn before_grant(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Queued | Event::OutOfReach if self.state == State::Requesting => {
                self.enter_queue(now);
                self.on(event, now)
            }
            Event::Queued => {
                self.out_of_reach = false;
                self.timers[Timer::Trouble as usize] = None;
                self.show_again()
            }
            Event::OutOfReach => {
                if !std::mem::replace(&mut self.out_of_reach, true) {
                    self.timers[Timer::Trouble as usize] = Some(now.saturating_add(TROUBLE_AFTER));
                }
                vec![]
            }
            Event::Granted { deadline } => {
                self.timers = [None; TIMERS];
                self.state = State::Starting;
                self.hold_until(deadline);
                self.hide_for_good([Action::Start])
            }
            // Nothing is held or queued, so there is nothing to give back.
            Event::Denied(code) => self.finish([Action::ReportFailure, Action::Exit(code)]),
            Event::Lost => {
                let report = Action::ReportLost(Consequence::NotStarted);
                self.finish([report, Action::Release, Action::Exit(exit::UNAVAILABLE)])
            }
            Event::StoreFailed => {
                self.finish([Action::ReportFailure, Action::Release, Action::Exit(exit::UNAVAILABLE)])
            }
            Event::Signal { signal, sender } => self.signal_before_grant(signal, sender),
            Event::Tick => self.tick_before_grant(now),
            Event::Started | Event::StartFailed(_) | Event::CommandStopped(_) | Event::Ended(_) => vec![],
            Event::RestEnded | Event::Released | Event::BusyReported => vec![],
        }
    }

    fn enter_queue(&mut self, now: Duration) {
        self.state = State::Waiting;
        self.timers[Timer::Wait as usize] = self.settings.wait.map(|wait| now.saturating_add(wait));
        self.timers[Timer::Notice as usize] = self.settings.notice.then(|| now.saturating_add(NOTICE_AFTER));
    }

    fn signal_before_grant(&mut self, signal: Signal, sender: Sender) -> Vec<Action> {
        match signal {
            Signal::Winch => vec![],
            Signal::Cont => self.show_again(),
            // The line goes, for the shell is about to write its prompt; `show_again` brings it
            // back.
            Signal::Tstp if self.shown => vec![Action::HideWaiting, Action::StopSelf(Stop::Tstp)],
            Signal::Tstp => vec![Action::StopSelf(Stop::Tstp)],
            cancelling => self.cancel(cancelling, sender),
        }
    }

    fn cancel(&mut self, signal: Signal, sender: Sender) -> Vec<Action> {
        let exit = exit_after(signal, signal == Signal::Int && sender == Sender::Terminal);
        self.finish([Action::Release, exit])
    }

    fn tick_before_grant(&mut self, now: Duration) -> Vec<Action> {
        if self.due(Timer::Wait, now) {
            self.timers = [None; TIMERS];
            self.state = State::GivingUp;
            return if self.out_of_reach {
                self.giving_up(Event::StoreFailed)
            } else {
                self.hide_for_good([Action::ReportBusy])
            };
        }
        if self.due(Timer::Trouble, now) {
            // Not into the line, and it comes back behind that.
            let (hide, show) = (self.shown.then_some(Action::HideWaiting), self.shown.then_some(Action::ShowWaiting));
            return hide.into_iter().chain([Action::WarnWaiting]).chain(show).collect();
        }
        if self.due(Timer::Notice, now) {
            self.shown = true;
            return vec![Action::ShowWaiting];
        }
        vec![]
    }

    /// The grant may have come in this very instant: a release gives back whichever there is.
    fn giving_up(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::BusyReported => self.finish([Action::Release, Action::Exit(self.settings.busy_code)]),
            Event::StoreFailed => {
                self.finish([Action::ReportFailure, Action::Release, Action::Exit(exit::UNAVAILABLE)])
            }
            _ => vec![],
        }
    }

    /// Notes a deadline, and when to ask the command to end for its sake.
    fn hold_until(&mut self, deadline: Option<Duration>) {
        self.deadline = deadline;
        let terminate = deadline.map(|deadline| lease::terminate_at(deadline, self.settings.grace));
        self.timers[Timer::Terminate as usize] = terminate;
    }

    fn starting(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let lost = |report: fn(Consequence) -> Action| {
            [report(Consequence::NotStarted), Action::Release, Action::Exit(exit::LOST)]
        };
        match event {
            Event::Started => {
                self.state = State::Running;
                vec![]
            }
            Event::StartFailed(code) => self.finish([Action::ReportFailure, Action::Release, Action::Exit(code)]),
            Event::Granted { deadline } => {
                self.hold_until(deadline);
                vec![]
            }
            Event::Lost => self.finish(lost(Action::ReportLost)),
            Event::Tick if self.due(Timer::Terminate, now) => self.finish(lost(Action::ReportOverdue)),
            Event::StoreFailed => vec![Action::Warn],
            Event::Signal { signal: Signal::Tstp, .. } => vec![Action::StopSelf(Stop::Tstp)],
            Event::Signal { signal, sender } if signal.ends_by_default() => self.cancel(signal, sender),
            Event::Signal { .. } | Event::Queued | Event::OutOfReach | Event::Denied(_) | Event::Tick => vec![],
            Event::CommandStopped(_) | Event::Ended(_) | Event::RestEnded => vec![],
            Event::Released | Event::BusyReported => vec![],
        }
    }

    fn running(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Granted { deadline } => {
                self.hold_until(deadline);
                vec![]
            }
            Event::Lost => self.end(Action::ReportLost(Consequence::Stopped), now),
            // Silence is not loss: the command goes on.
            Event::StoreFailed => vec![Action::Warn],
            Event::Ended(_) if self.is_past_deadline(now) => {
                let report = Action::ReportOverdue(Consequence::EndedLate);
                std::iter::once(report).chain(self.end_as_lost()).collect()
            }
            Event::Ended(ended) => {
                self.state = State::Leaving;
                self.timers = [None; TIMERS];
                self.exit = Some(self.exit_as(ended));
                self.passed_to_rest(ended).into_iter().chain([Action::Reap, Action::Release]).collect()
            }
            // The time goes first: what is overdue must be neither continued nor left alone while
            // rlock stops.
            Event::Signal { .. } | Event::CommandStopped(_) | Event::Tick if self.due(Timer::Terminate, now) => {
                let mut actions = self.end(Action::ReportOverdue(Consequence::Stopped), now);
                actions.extend(self.on(event, now));
                actions
            }
            Event::Signal { signal, sender } => self.signal_running(signal, sender),
            // With a terminal a shell waits for rlock, so rlock has to stop for the shell to get
            // the terminal back.
            Event::CommandStopped(stop) if self.settings.group == Group::Shared => vec![Action::StopSelf(stop)],
            Event::CommandStopped(_) if std::mem::take(&mut self.stops) => {
                self.frozen = true;
                vec![Action::Freeze, Action::StopSelf(Stop::Tstp)]
            }
            Event::CommandStopped(_) => vec![],
            Event::Queued | Event::OutOfReach | Event::Denied(_) | Event::Started | Event::StartFailed(_) => vec![],
            Event::RestEnded | Event::Released | Event::BusyReported | Event::Tick => vec![],
        }
    }

    /// Ends the command whose grant is lost, as gently as the time allows.
    fn end(&mut self, report: Action, now: Duration) -> Vec<Action> {
        self.timers = [None; TIMERS];
        if self.is_past_deadline(now) {
            self.state = State::Killed;
            return vec![report, Action::Kill];
        }
        self.state = State::Stopping;
        self.grace_over = Some(now.saturating_add(self.settings.grace));
        self.set_kill();
        vec![report, Action::Terminate]
    }

    /// The grace, but never past the deadline.
    fn set_kill(&mut self) {
        self.timers[Timer::Kill as usize] = self.grace_over.into_iter().chain(self.deadline).min();
    }

    fn is_past_deadline(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    fn signal_running(&mut self, signal: Signal, sender: Sender) -> Vec<Action> {
        self.interrupted |= signal == Signal::Int && sender == Sender::Terminal;
        let pass = self.pass(signal, sender);
        // In a shared group rlock stops when the command has, not before: a shell that took the
        // terminal back earlier would stop an editor in the middle of putting the screen in order.
        let stops = signal == Signal::Tstp && self.settings.group == Group::Own;
        let leased = self.deadline.is_some();
        self.stops = signal != Signal::Cont && (self.stops || stops && leased);
        let stop_now = (stops && !leased).then_some(Action::StopSelf(Stop::Tstp));
        pass.into_iter().chain(stop_now).collect()
    }

    fn stopping(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            // It stays lost, for the command has been told; but it may have its whole grace if that
            // was cut short.
            Event::Granted { deadline } => {
                self.deadline = deadline;
                self.set_kill();
                vec![]
            }
            Event::Signal { .. } | Event::Tick if self.due(Timer::Kill, now) => {
                self.state = State::Killed;
                vec![Action::Kill]
            }
            // Nobody but rlock will kill the command when its time is over, so rlock must not stop
            // now.
            Event::Signal { signal: Signal::Tstp, .. } => vec![],
            Event::Signal { signal, sender } => self.pass(signal, sender).into_iter().collect(),
            Event::Ended(_) => {
                self.state = State::Clearing;
                vec![Action::Reap, Action::AwaitRest]
            }
            Event::Queued | Event::OutOfReach | Event::Denied(_) | Event::Lost | Event::StoreFailed | Event::Tick => {
                vec![]
            }
            Event::Started | Event::StartFailed(_) | Event::CommandStopped(_) | Event::RestEnded => vec![],
            Event::Released | Event::BusyReported => vec![],
        }
    }

    /// What the lost command started has its grace as the command had. The command itself takes no
    /// signal any more.
    fn clearing(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Granted { deadline } => {
                self.deadline = deadline;
                self.set_kill();
                vec![]
            }
            Event::RestEnded => self.finish([Action::Release, Action::Exit(exit::LOST)]),
            Event::Signal { .. } | Event::Tick if self.due(Timer::Kill, now) => self.end_as_lost(),
            _ => vec![],
        }
    }

    fn killed(&mut self, event: Event) -> Vec<Action> {
        if let Event::Ended(_) = event { self.end_as_lost() } else { vec![] }
    }

    fn leaving(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Released => {
                let exit = self.exit;
                self.finish(exit)
            }
            // It was taken away while the command ran, or in the instant since: as with a deadline,
            // nobody can tell.
            Event::Lost => self.finish([Action::ReportLost(Consequence::EndedLate), Action::Exit(exit::LOST)]),
            _ => vec![],
        }
    }

    fn end_as_lost(&mut self) -> Vec<Action> {
        // What the command leaves behind would go on without the lock, hence the second kill. And
        // the grant is gone, but not what else the store keeps for it.
        self.finish([Action::Kill, Action::Reap, Action::Release, Action::Exit(exit::LOST)])
    }

    /// The passing on of a signal that the command has not had from its sender already.
    fn pass(&mut self, signal: Signal, sender: Sender) -> Option<Action> {
        let had_it = self.settings.group == Group::Shared && sender != Sender::Other;
        // A second SIGCONT does no harm, a missing one leaves the command stopped: rlock may have
        // been continued alone.
        if had_it && signal != Signal::Cont {
            return None;
        }
        if !self.passed.contains(&signal) {
            self.passed.push(signal);
        }
        let to_all = signal == Signal::Cont && std::mem::take(&mut self.frozen);
        Some(if to_all { Action::Thaw } else { Action::Pass(signal) })
    }

    /// The signal that ended the command, for the rest of what it started in its group: else `sh -c
    /// 'a; b'` would leave `a` running without the lock, since a passed signal reaches the shell
    /// only.
    fn passed_to_rest(&self, ended: Ended) -> Option<Action> {
        let Ended::Signal(number) = ended else { return None };
        let signal = Signal::from_number(number)?;
        self.passed.contains(&signal).then_some(Action::PassGroup(signal))
    }

    fn exit_as(&self, ended: Ended) -> Action {
        match ended {
            Ended::Signal(number) if number == Signal::Int.kernel().as_raw() => {
                exit_after(Signal::Int, self.interrupted)
            }
            _ => Action::Exit(ended.exit_code()),
        }
    }

    fn show_again(&self) -> Vec<Action> {
        if self.shown { vec![Action::ShowWaiting] } else { vec![] }
    }

    /// These actions, after the line about the wait was taken away if there is one.
    fn hide_for_good(&mut self, actions: impl IntoIterator<Item = Action>) -> Vec<Action> {
        let hide = std::mem::take(&mut self.shown).then_some(Action::HideWaiting);
        hide.into_iter().chain(actions).collect()
    }

    fn finish(&mut self, actions: impl IntoIterator<Item = Action>) -> Vec<Action> {
        self.state = State::Done;
        self.timers = [None; TIMERS];
        self.hide_for_good(actions)
    }

    /// Whether the timer has run out; it is cleared if so.
    fn due(&mut self, timer: Timer, now: Duration) -> bool {
        self.timers[timer as usize].take_if(|at| *at <= now).is_some()
    }
}

/// How to leave when the signal ended the command, or the request.
///
/// After Ctrl-C a shell ends its script or loop only if the program that it waited for was ended by
/// SIGINT too: one that exits, be it with 130, has handled the key and wants the script to go on.
fn exit_after(signal: Signal, by_key: bool) -> Action {
    if by_key { Action::ExitBy(signal) } else { Action::Exit(signal.exit_code()) }
}

#[cfg(test)]
mod tests;
