//! Decides everything about a supervised command, as a state machine.
//!
//! The machine is pure: it has no clock, no process and no descriptor. [`super::run`] reports what
//! happened and when, and carries out the machine's actions.

use std::time::Duration;

use self::draining::Draining;
use self::keeping::Keeping;
use self::running::{Killed, LastTime, Running, Starting, leaving};
use self::spare::Spare;
use self::waiting::{AtGate, Wait, giving_up, requesting};
use super::event::{Action, Cause, Consequence, Event, Group, Line, Sender, Signal, Stop};
use rlock_model::lease;
use rlock_sys::clock::Boottime;

mod draining;
mod keeping;
mod running;
mod spare;
mod waiting;

/// What the command line and the terminal say about the supervision.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Where the command will run.
    pub group: Group,
    /// From SIGTERM to SIGKILL when the grant is lost. SIGKILL may come earlier, but no later than
    /// the deadline.
    pub grace: Duration,
    /// The maximum time in the queue; `None` for no limit.
    pub wait: Option<Duration>,
    /// The maximum run time of the command; `None` for no limit.
    pub max_runtime: Option<Duration>,
    /// The exit code when the request is busy or its wait is over.
    pub conflict_exit_code: u8,
    /// How rlock shows a long wait.
    pub notice: Notice,
    /// Whether rlock suppresses "busy" and the warning that a wait goes on without its store.
    pub quiet: bool,
    /// Whether rlock reports the start of the wait and the grant.
    pub verbose: bool,
    /// Whether a last line tells how the request and the command went, where that is not as usual.
    pub sums_up: bool,
    /// Whether there is spare work.
    pub has_spare: bool,
    /// Whether a busy request ends in silence.
    pub skip: Skip,
    /// Whether a busy request is followed by the work of `--else` instead of the busy line.
    pub has_else: bool,
    /// How long the request waits before it looks for a deadlock; `None` if it never looks.
    pub deadlock_timeout: Option<Duration>,
    /// Whether the command starts only when its machine has room for it, or when the paths of the
    /// request lead where they led when it was made.
    pub has_gate: bool,
}

/// How a long wait is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Not at all.
    Never,
    /// By a line on the terminal, which follows what is in the way.
    Line,
    /// By lines in a log.
    Log,
    /// By lines that tell the place in the queue, for a caller that reads the last lines of an
    /// output and ends a command that seems to hang.
    Progress,
}

impl Notice {
    /// How often lines tell that a wait goes on.
    pub fn period(self) -> Duration {
        Duration::from_secs(if self == Self::Progress { 30 } else { 300 })
    }
}

/// Whether a busy request is skipped: it ends with exit code 0 and without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// A busy request ends with its message and its exit code.
    Never,
    /// However long the job has been skipped in a row.
    Always,
    /// As long as the job has been skipped in a row for less than this time.
    For(Duration),
}

/// How long a wait may last before it is shown.
pub(crate) const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// How often a request looks for a deadlock.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the store of a wait may be out of reach before that is said. A failover or a new start
/// of a server is no news.
pub const TROUBLE_AFTER: Duration = Duration::from_secs(30);

/// How long the start of a command may take at most. Signals wait meanwhile.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(30);

/// The least time for a start, where a lease is about to end anyway.
const START_LIMIT_LEAST: Duration = Duration::from_millis(10);

#[derive(Debug)]
enum State {
    Requesting,
    Waiting(Wait),
    /// The wait is over, and the request leaves the queue.
    GivingUp,
    /// The request is granted, and waits for room on its machine.
    AtGate(AtGate),
    Starting(Starting),
    /// The grant is kept for a process that rlock has not started.
    Keeping(Keeping),
    Running(Running),
    /// The command was ended, and the grant is held until the command's tree is gone.
    Draining(Draining),
    /// The command's tree was sent SIGTERM: the grant is lost or revoked, or the time is over.
    Stopping(LastTime),
    /// The stopped command has ended; the processes that it started have the rest of its time.
    Clearing(LastTime),
    /// The command's tree was sent SIGKILL.
    Killed(Killed),
    /// The command has ended, with the tree if it was ended. The release finds out whether the
    /// grant was held to the end; the action is the exit if it was.
    Leaving(Action),
    /// All that is left before this exit is the end of the spare work.
    Sparing(Action),
    Done,
}

/// What an event leads to.
enum Next {
    /// The state stays, perhaps with other data.
    Stay(Vec<Action>),
    /// Another state follows.
    Enter(State, Vec<Action>),
    /// Another state follows, which takes in the same event.
    Pass(State, Vec<Action>),
}

impl Next {
    /// The last actions before the exit, and the exit. There is no other way to [`State::Done`]
    /// but by [`State::Sparing`].
    fn finish(actions: impl IntoIterator<Item = Action>, exit: Action) -> Self {
        Self::Enter(State::Done, actions.into_iter().chain([exit]).collect())
    }

    fn nothing() -> Self {
        Self::Stay(vec![])
    }

    /// The other state that follows takes in the same event.
    fn and_pass(self) -> Self {
        if let Self::Enter(state, actions) = self { Self::Pass(state, actions) } else { self }
    }

    /// Hides the line about the wait before the actions, if there are any.
    fn hiding_line(self) -> Self {
        let (Self::Stay(actions) | Self::Enter(_, actions) | Self::Pass(_, actions)) = &self;
        let hide = (!actions.is_empty()).then_some(Action::HideWaiting);
        self.after(hide)
    }

    /// Lets a request that is granted pass the gate before its start, if there is one. `wait` is
    /// its wait so far.
    fn through_gate(self, wait: Wait, now: Boottime, settings: &Settings) -> Self {
        match self {
            Self::Enter(State::Starting(starting), mut actions) if settings.has_gate => {
                actions.retain(|action| *action != Action::Start);
                actions.push(Action::EnterGate);
                Self::Enter(State::AtGate(AtGate::new(starting, wait, now)), actions)
            }
            other => other,
        }
    }

    /// The same after one more action.
    fn after(mut self, first: Option<Action>) -> Self {
        let (Self::Stay(actions) | Self::Enter(_, actions) | Self::Pass(_, actions)) = &mut self;
        actions.splice(0..0, first);
        self
    }
}

/// The life of one supervised command.
///
/// ```text
///               Queued            Granted             Started    Lost, Revoked, overdue            time over
///   Requesting ────────▶ Waiting ─────────▶ Starting ─────────▶ Running ───────────────▶ Stopping ─────────▶ Killed
///       │                   │                   │                  │                        │                  │
///       │ Granted:          │ signal, Denied,   │ signal, Lost,    │ Ended: Draining if     │ Ended            │ Ended
///       │ Starting, else    │ Lost, wait over,  │ Revoked, overdue,│ it was ended           ▼                  │
///       │ as Waiting        │ StoreFailed       │ StartFailed      │   Lost, overdue, ─▶ Clearing             │
///       │                   │                   │                  │   time over            │ RestEnded,       │
///       ▼                   ▼                   ▼                  ▼ RestEnded              ▼ time over        ▼
///      Done ◀────────────────────────────────────────────────────────────────────────────────────────────────────
/// ```
///
/// **Starting**: rlock stands still until the kernel has opened the program, which may take long on
/// a slow file system. [`start_limit`](Machine::start_limit) bounds that time, so that the lease
/// can be renewed after it.
///
/// **AtGate**, between the grant and Starting, if the command needs room on its machine: the grant
/// is held and renewed, and the wait goes on, with its limit and its lines. Every 30 s, if others
/// wait for what it holds, it gives the grant back and is Waiting again.
///
/// **Keeping**, from Starting to Done: the grant is kept for the process of `acquire --pid`. The
/// machine tells the process of a loss, and releases the grant at the end of the process, see
/// `keeping`.
///
/// **GivingUp**, from Waiting to Done: the wait is over, the request leaves the queue, and the
/// store is asked which sessions are in the way. A store that is out of reach is not busy, so the
/// exit code is then another one. A request that is granted meanwhile goes on to Starting.
///
/// **Draining**: the command died of a signal, or rlock got one that asks for the end, see
/// `draining`. What the command has left may still work or clean up, so the grant is held until
/// that has ended. The machine tells the rest once, and kills nothing of it.
///
/// **Leaving**, from Running or Draining to Done: the store may have revoked the grant without a
/// message. The release finds that out.
///
/// **Sparing**, before Done: everything else is over, and rlock waits for the end of its spare
/// work, see `spare`.
///
/// **Overdue**: a grant with a deadline is overdue from one grace before the deadline until a
/// renewal moves the deadline. The machine then asks the command to end, so that the command is
/// gone by the deadline. If the deadline has passed, in a suspend or a stop, the machine kills the
/// command at once. It compares the time before it passes a signal on, so it continues no command
/// without a lease. In a shared group, the sender of SIGCONT continues the command together with
/// rlock, and nothing can be earlier than that.
///
/// **Revoked**: an operator demands the grant. The machine ends the command as it ends one whose
/// grant is lost. But the grant is held, and renewed, until the tree is gone, and may be lost
/// meanwhile.
///
/// **Killed**: SIGKILL may take long, as for a process that waits for a file server. A grant that
/// is not lost is held until nothing of the tree is left.
///
/// **Timeout**: the command has exceeded its maximum run time. The machine ends the command as it
/// ends one whose grant is lost. But the grant is held, and renewed, until the tree is gone, and
/// may be lost meanwhile.
///
/// **Ready**: the machine gives the lock back, and goes on supervising the command. From then on
/// nothing ends the command but itself, a signal and its maximum run time. If the release finds the
/// grant gone, the command is stopped, because another one may have started beside it.
///
/// **Stopped**: while rlock is stopped nobody renews, so a leased command and its process tree must
/// not run on. rlock stops after it has seen the command stopped and has stopped the rest of the
/// tree. A command that ignores SIGTSTP keeps rlock running too.
///
/// **Ended**: if the command ends before its deadline, it held its lock to the end, and its exit
/// code counts, unless it was asked to end. If the deadline has passed as well, nobody can tell
/// which came first. When in doubt, the machine reports the lease as lost.
///
/// An event that a state does not name leads to nothing there. The tables of the tests have every
/// event in every state.
///
/// The calling contract:
/// - Every event goes to [`on`](Self::on). The actions are carried out in order and before the next
///   event, except for events that an action itself causes.
/// - The caller of [`Action::Start`] first reports the signals that arrived by then, and then the
///   time by an [`Event::Tick`]. It starts only if [`may_start`](Self::may_start) still says so.
///   Nothing is started after a signal between grant and start, or with a lease that may not last.
/// - When [`next_timeout`](Self::next_timeout) has passed the caller sends [`Event::Tick`]. An
///   early one does no harm.
/// - After [`Action::Exit`] or [`Action::ExitBy`] no action follows, whatever happens.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    spare: Spare,
}

impl Machine {
    /// A machine that waits for the store's first answer.
    pub fn new(settings: Settings) -> Self {
        Self { spare: Spare::new(&settings), settings, state: State::Requesting }
    }

    /// The name of the state, for tests that count what they reach.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Requesting => "requesting",
            State::Waiting(_) => "waiting",
            State::GivingUp => "giving up",
            State::AtGate(_) => "at the gate",
            State::Starting(_) => "starting",
            State::Keeping(_) => "keeping",
            State::Running(_) => "running",
            State::Draining(_) => "draining",
            State::Stopping(_) => "stopping",
            State::Clearing(_) => "clearing",
            State::Killed(_) => "killed",
            State::Leaving(_) => "leaving",
            State::Sparing(_) => "sparing",
            State::Done => "done",
        }
    }

    /// Takes in what happened at `now` and returns the actions that follow, in order.
    pub fn on(&mut self, event: Event, now: Boottime) -> Vec<Action> {
        let mut actions = self.spare.before(event, &self.state, now, &self.settings);
        actions.extend(self.step(event, now));
        if let Some(exit) = actions.pop_if(|action| action.is_exit()) {
            let (is_delayed, start) = self.spare.delays();
            if is_delayed {
                self.state = State::Sparing(exit);
                actions.extend(start);
            } else {
                actions.push(exit);
            }
        }
        actions
    }

    /// Takes in an event apart from the spare work.
    fn step(&mut self, event: Event, now: Boottime) -> Vec<Action> {
        let settings = &self.settings;
        let next = match &mut self.state {
            State::Requesting => requesting(event, now, settings).through_gate(Wait::new(now, settings), now, settings),
            State::Waiting(wait) => {
                let next = wait.on(event, now, settings);
                next.through_gate(*wait, now, settings)
            }
            State::GivingUp => giving_up(event, settings).through_gate(Wait::until(now), now, settings),
            State::AtGate(at_gate) => at_gate.on(event, now, settings),
            State::Starting(starting) => starting.on(event, now, settings),
            State::Keeping(keeping) => keeping.on(event, now, settings),
            State::Running(running) => running.on(event, now, settings),
            State::Draining(draining) => draining.on(event, now, settings),
            State::Stopping(last_time) => last_time.stopping_on(event, now, settings),
            State::Clearing(last_time) => last_time.clearing_on(event, now, settings),
            State::Killed(killed) => killed.on(event, now, settings),
            State::Leaving(exit) => leaving(event, *exit),
            State::Sparing(exit) => {
                *exit = spare::delayed(*exit, event);
                match (&self.spare, event) {
                    (Spare::Over, _) => Next::finish([], *exit),
                    (_, Event::Signal { signal: Signal::Tstp, .. }) => Next::Stay(vec![Action::StopSelf(Stop::Tstp)]),
                    _ => Next::nothing(),
                }
            }
            State::Done => Next::nothing(),
        };
        match next {
            Next::Stay(actions) => actions,
            Next::Enter(state, actions) => {
                self.state = state;
                actions
            }
            Next::Pass(state, mut actions) => {
                self.state = state;
                actions.extend(self.step(event, now));
                actions
            }
        }
    }

    /// The instant at which the machine wants [`Event::Tick`], if any.
    pub fn next_timeout(&self) -> Option<Boottime> {
        let of_request = match &self.state {
            State::Waiting(wait) => wait.next_timeout(),
            State::AtGate(at_gate) => at_gate.next_timeout(&self.settings),
            State::Starting(Starting { deadline }) => terminate_at(*deadline, &self.settings),
            State::Keeping(keeping) => keeping.next_timeout(&self.settings),
            State::Running(running) => running.next_timeout(&self.settings),
            State::Draining(draining) => draining.next_timeout(&self.settings),
            State::Stopping(last_time) | State::Clearing(last_time) => Some(last_time.kill_at()),
            State::Killed(killed) => Some(killed.next_timeout(&self.settings)),
            State::Requesting | State::GivingUp | State::Leaving(_) => None,
            State::Sparing(_) | State::Done => None,
        };
        of_request.into_iter().chain(self.spare.kill_at()).min()
    }

    /// Whether the request has its grant, and the command has not started yet.
    pub fn awaits_start(&self) -> bool {
        matches!(self.state, State::AtGate(_) | State::Starting(_))
    }

    /// Whether a requested start is still wanted.
    pub fn may_start(&self) -> bool {
        matches!(self.state, State::Starting(_))
    }

    /// How long the start of the command may take. The second half of the time until the command
    /// would have to end is left for the renewal.
    pub fn start_limit(&self, now: Boottime) -> Duration {
        let State::Starting(Starting { deadline }) = self.state else { return START_LIMIT };
        let left = terminate_at(deadline, &self.settings).map(|at| (at - now) / 2);
        left.map_or(START_LIMIT, |left| left.clamp(START_LIMIT_LEAST, START_LIMIT))
    }
}

/// When to ask the command to end for the sake of a deadline.
fn terminate_at(deadline: Option<Boottime>, settings: &Settings) -> Option<Boottime> {
    deadline.map(|deadline| lease::terminate_at(deadline, settings.grace))
}

fn is_over(instant: Option<Boottime>, now: Boottime) -> bool {
    instant.is_some_and(|instant| instant <= now)
}

/// The end before the start of the command, because the grant or the place in the queue is gone or
/// demanded.
fn not_started(cause: Cause, code: u8) -> Next {
    let report = Action::Say(Line::Ends(cause, Consequence::NotStarted));
    Next::finish([report, Action::Release], Action::Exit(code))
}

/// The end before the start of the command, because of a failure.
fn failed(code: u8) -> Next {
    Next::finish([Action::Say(Line::Failure), Action::Release], Action::Exit(code))
}

fn cancel(signal: Signal, sender: Sender) -> Next {
    Next::finish([Action::Release], exit_after(signal, signal == Signal::Int && sender == Sender::Terminal))
}

/// The exit after a signal that ended the command, or cancelled the request.
///
/// After Ctrl-C a shell ends its script or loop only if SIGINT also ended the program that the
/// shell waited for. A program that exits, even with 130, has handled the key.
fn exit_after(signal: Signal, by_key: bool) -> Action {
    if by_key { Action::ExitBy(signal) } else { Action::Exit(signal.exit_code()) }
}

#[cfg(test)]
mod tests;
