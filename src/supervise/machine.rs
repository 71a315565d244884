//! The state machine that decides everything about a supervised command.
//!
//! Pure: no clock, no process, no descriptor. [`super::run`] tells it what happened and when, and does what it says.

use std::time::Duration;

use super::event::{Action, Ended, Event, Group, Sender, Signal, Stop};
use crate::exit;

/// What the machine has to know beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Where the command will run.
    pub group: Group,
    /// From SIGTERM to SIGKILL when the grant is lost.
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

/// The timers, one slot each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// The wait is over.
    Wait,
    /// The wait is worth a line on the terminal.
    Notice,
    /// The lost command has had its time.
    Grace,
}

const TIMERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Requesting,
    Waiting,
    Starting,
    Running,
    Stopping,
    Done,
}

/// The life of one supervised command.
///
/// ```text
///                 Queued                Granted               Started             Lost
///   Requesting ───────────▶ Waiting ───────────▶ Starting ───────────▶ Running ─────────▶ Stopping
///       │                      │                    │                     │                   │ grace over: Kill
///       │ Granted: Starting    │ signal, Lost,      │ signal,             │ Ended             │
///       │ else as Waiting      │ StoreFailed,       │ Lost,               │                   │ Ended
///       ▼                      ▼ wait over          ▼ StartFailed         ▼                   ▼
///      Done ◀───────────────────────────────────────────────────────────────────────────────────
/// ```
///
/// The calling contract:
/// - Every event goes to [`on`](Self::on), the actions are carried out in order and before the next event is taken in, but for
///   events that an action itself brings about.
/// - The caller of [`Action::Start`] first tells of the signals that came by then, and starts only if
///   [`may_start`](Self::may_start) still says so: a signal between grant and start leaves nothing started.
/// - When [`next_timeout`](Self::next_timeout) has passed the caller sends [`Event::Tick`]; an early one does no harm.
/// - `now` and the timeouts are instants of one clock that runs through suspend, given as the time since its start.
/// - After [`Action::Exit`] nothing more comes, whatever happens.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    timers: [Option<Duration>; TIMERS],
    /// The line about the wait was asked for and not taken away for good.
    shown: bool,
    /// What was passed on to the command, to tell a death by it from any other.
    passed: Vec<Signal>,
    /// The terminal sent SIGINT while the command ran.
    interrupted: bool,
}

impl Machine {
    /// A machine that waits to hear what became of the request.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Requesting,
            timers: [None; TIMERS],
            shown: false,
            passed: Vec::new(),
            interrupted: false,
        }
    }

    /// Takes in what happened at `now` and says what to do, in order.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match self.state {
            State::Requesting | State::Waiting => self.before_grant(event, now),
            State::Starting => self.starting(event),
            State::Running => self.running(event, now),
            State::Stopping => self.stopping(event, now),
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

    fn before_grant(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Queued if self.state == State::Requesting => self.enter_queue(now),
            Event::Queued => self.show_again(),
            Event::Granted => {
                self.timers = [None; TIMERS];
                self.state = State::Starting;
                self.hide_for_good([Action::Start])
            }
            Event::Lost | Event::StoreFailed => {
                self.finish([Action::ReportFailure, Action::Release, Action::Exit(exit::UNAVAILABLE)])
            }
            Event::Signal { signal, sender } => self.signal_before_grant(signal, sender),
            Event::Tick => self.tick_before_grant(now),
            Event::Started | Event::StartFailed(_) | Event::CommandStopped(_) | Event::Ended(_) => vec![],
        }
    }

    fn enter_queue(&mut self, now: Duration) -> Vec<Action> {
        self.state = State::Waiting;
        self.timers[Timer::Wait as usize] = self.settings.wait.map(|wait| now.saturating_add(wait));
        self.timers[Timer::Notice as usize] = self.settings.notice.then(|| now.saturating_add(NOTICE_AFTER));
        vec![]
    }

    fn signal_before_grant(&mut self, signal: Signal, sender: Sender) -> Vec<Action> {
        match signal {
            Signal::Winch => vec![],
            Signal::Cont => self.show_again(),
            // The line goes, for the shell is about to write its prompt; `show_again` brings it back.
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
            // The grant may have come in this very instant: a release gives back whichever there is.
            return self.finish([Action::ReportBusy, Action::Release, Action::Exit(self.settings.busy_code)]);
        }
        if self.due(Timer::Notice, now) {
            self.shown = true;
            return vec![Action::ShowWaiting];
        }
        vec![]
    }

    fn starting(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Started => {
                self.state = State::Running;
                vec![]
            }
            Event::StartFailed(code) => self.finish([Action::ReportFailure, Action::Release, Action::Exit(code)]),
            Event::Lost => self.finish([Action::ReportFailure, Action::Release, Action::Exit(exit::LOST)]),
            Event::StoreFailed => vec![Action::Warn],
            Event::Signal { signal: Signal::Tstp, .. } => vec![Action::StopSelf(Stop::Tstp)],
            Event::Signal { signal, sender } if signal.ends_by_default() => self.cancel(signal, sender),
            Event::Signal { .. } | Event::Queued | Event::Granted | Event::Tick => vec![],
            Event::CommandStopped(_) | Event::Ended(_) => vec![],
        }
    }

    fn running(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Lost => {
                self.state = State::Stopping;
                self.timers[Timer::Grace as usize] = Some(now.saturating_add(self.settings.grace));
                vec![Action::ReportFailure, Action::Terminate]
            }
            // Silence is not loss: the command goes on.
            Event::StoreFailed => vec![Action::Warn],
            Event::Signal { signal, sender } => self.signal_running(signal, sender),
            // With a terminal a shell waits for rlock, so rlock has to stop for the shell to get the terminal back.
            Event::CommandStopped(stop) if self.settings.group == Group::Shared => vec![Action::StopSelf(stop)],
            Event::CommandStopped(_) => vec![],
            Event::Ended(ended) => {
                let rest = self.passed_to_rest(ended);
                let end = [Action::Reap, Action::Release, self.exit_as(ended)];
                self.finish(rest.into_iter().chain(end))
            }
            Event::Queued | Event::Granted | Event::Started | Event::StartFailed(_) | Event::Tick => vec![],
        }
    }

    fn signal_running(&mut self, signal: Signal, sender: Sender) -> Vec<Action> {
        self.interrupted |= signal == Signal::Int && sender == Sender::Terminal;
        let pass = self.pass(signal, sender);
        // In a shared group rlock stops when the command has, not before: a shell that took the terminal back earlier would
        // stop an editor in the middle of putting the screen in order.
        let stop =
            (signal == Signal::Tstp && self.settings.group == Group::Own).then_some(Action::StopSelf(Stop::Tstp));
        pass.into_iter().chain(stop).collect()
    }

    fn stopping(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            // Nobody but rlock will kill the command when its time is over, so rlock must not stop now.
            Event::Signal { signal: Signal::Tstp, .. } => vec![],
            Event::Signal { signal, sender } => self.pass(signal, sender).into_iter().collect(),
            Event::Tick if self.due(Timer::Grace, now) => vec![Action::Kill],
            Event::Ended(_) => {
                // What the command leaves behind in its group would go on without the lock.
                let rest = (self.settings.group == Group::Own).then_some(Action::Kill);
                // The grant is gone, but not what else the store keeps for it.
                self.finish(rest.into_iter().chain([Action::Reap, Action::Release, Action::Exit(exit::LOST)]))
            }
            Event::Queued | Event::Granted | Event::Lost | Event::StoreFailed | Event::Tick => vec![],
            Event::Started | Event::StartFailed(_) | Event::CommandStopped(_) => vec![],
        }
    }

    /// The passing on of a signal that the command has not had from its sender already.
    fn pass(&mut self, signal: Signal, sender: Sender) -> Option<Action> {
        let had_it = self.settings.group == Group::Shared && sender != Sender::Other;
        // A second SIGCONT does no harm, a missing one leaves the command stopped: rlock may have been continued alone.
        if had_it && signal != Signal::Cont {
            return None;
        }
        if !self.passed.contains(&signal) {
            self.passed.push(signal);
        }
        Some(Action::Pass(signal))
    }

    /// The signal that ended the command, for the rest of its own group: else `sh -c 'a; b'` would leave `a` running without
    /// the lock, since a passed signal reaches the shell only.
    fn passed_to_rest(&self, ended: Ended) -> Option<Action> {
        let Ended::Signal(number) = ended else { return None };
        let signal = Signal::from_number(number)?;
        (self.settings.group == Group::Own && self.passed.contains(&signal)).then_some(Action::PassGroup(signal))
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
/// After Ctrl-C a shell ends its script or loop only if the program that it waited for was ended by SIGINT too: one that exits, be it
/// with 130, has handled the key and wants the script to go on.
fn exit_after(signal: Signal, by_key: bool) -> Action {
    if by_key { Action::ExitBy(signal) } else { Action::Exit(signal.exit_code()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);
    const WAIT: Duration = Duration::from_secs(60);
    const START: Duration = Duration::from_secs(1_000);

    fn settings(group: Group) -> Settings {
        Settings { group, grace: GRACE, wait: Some(WAIT), busy_code: 75, notice: true }
    }

    fn signal(signal: Signal, sender: Sender) -> Event {
        Event::Signal { signal, sender }
    }

    /// The columns of the table: how to get a machine there, and in which group the command is.
    #[derive(Clone, Copy, Debug)]
    enum Column {
        Requesting,
        Waiting,
        Shown,
        Starting,
        RunningOwn,
        RunningShared,
        StoppingOwn,
        StoppingShared,
        Done,
    }

    const COLUMNS: [Column; 9] = [
        Column::Requesting,
        Column::Waiting,
        Column::Shown,
        Column::Starting,
        Column::RunningOwn,
        Column::RunningShared,
        Column::StoppingOwn,
        Column::StoppingShared,
        Column::Done,
    ];

    fn machine(column: Column) -> Machine {
        use Event::{Ended as End, Granted, Lost, Queued, Started};
        let (group, path): (Group, &[Event]) = match column {
            Column::Requesting => (Group::Own, &[]),
            Column::Waiting | Column::Shown => (Group::Own, &[Queued]),
            Column::Starting => (Group::Own, &[Granted]),
            Column::RunningOwn => (Group::Own, &[Granted, Started]),
            Column::RunningShared => (Group::Shared, &[Granted, Started]),
            Column::StoppingOwn => (Group::Own, &[Granted, Started, Lost]),
            Column::StoppingShared => (Group::Shared, &[Granted, Started, Lost]),
            Column::Done => (Group::Own, &[Granted, Started, End(Ended::Code(0))]),
        };
        let mut machine = Machine::new(settings(group));
        for event in path {
            machine.on(*event, START);
        }
        if let Column::Shown = column {
            assert_eq!(machine.on(Event::Tick, START + NOTICE_AFTER), [Action::ShowWaiting]);
        }
        machine
    }

    fn every_event() -> Vec<Event> {
        let mut events = vec![Event::Queued, Event::Granted, Event::Lost, Event::StoreFailed, Event::Started];
        events.extend([Event::StartFailed(127), Event::Tick]);
        events.extend([Stop::Tstp, Stop::Stop, Stop::Ttin, Stop::Ttou].map(Event::CommandStopped));
        events.extend([Ended::Code(3), Ended::Signal(15)].map(Event::Ended));
        for sender in [Sender::Terminal, Sender::Command, Sender::Other] {
            events.extend(Signal::ALL.map(|which| signal(which, sender)));
        }
        events
    }

    /// One row of the table: what each column answers. The match makes the compiler ask for a row for every event.
    #[rustfmt::skip]
    fn expected(event: Event) -> [String; 9] {
        let row = |cells: [&str; 9]| cells.map(str::to_owned);
        match event {
            //                             requesting  waiting  shown          starting  run own  run shared  stop own  stop shared  done
            Event::Queued          => row(["",         "",      "ShowWaiting", "",       "",      "",         "",       "",          ""]),
            Event::Granted         => row(["Start",    "Start", "HideWaiting, Start", "", "",     "",         "",       "",          ""]),
            Event::Started         => row(["",         "",      "",            "",       "",      "",         "",       "",          ""]),
            Event::Tick            => row(["",         "",      "",            "",       "",      "",         "",       "",          ""]),
            Event::Lost => row([
                "ReportFailure, Release, Exit(69)", "ReportFailure, Release, Exit(69)", "HideWaiting, ReportFailure, Release, Exit(69)",
                "ReportFailure, Release, Exit(76)",
                "ReportFailure, Terminate", "ReportFailure, Terminate",
                "", "", "",
            ]),
            Event::StoreFailed => row([
                "ReportFailure, Release, Exit(69)", "ReportFailure, Release, Exit(69)", "HideWaiting, ReportFailure, Release, Exit(69)",
                "Warn", "Warn", "Warn", "", "", "",
            ]),
            Event::StartFailed(_)  => row(["", "", "", "ReportFailure, Release, Exit(127)", "", "", "", "", ""]),
            Event::CommandStopped(stop) => {
                let stop_too = format!("StopSelf({stop:?})");
                row(["", "", "", "", "", &stop_too, "", "", ""])
            }
            Event::Ended(ended) => {
                let end = format!("Reap, Release, Exit({})", ended.exit_code());
                row(["", "", "", "", &end, &end, "Kill, Reap, Release, Exit(76)", "Reap, Release, Exit(76)", ""])
            }
            Event::Signal { signal: signal @ (Signal::Term | Signal::Int | Signal::Hup | Signal::Quit | Signal::Usr1 | Signal::Usr2), sender } => {
                let by_key = signal == Signal::Int && sender == Sender::Terminal;
                let exit = if by_key { "ExitBy(Int)".into() } else { format!("Exit({})", 128 + signal.kernel().as_raw()) };
                let cancel = format!("Release, {exit}");
                let cancel_shown = format!("HideWaiting, {cancel}");
                let pass = format!("Pass({signal:?})");
                let pass_new = if sender == Sender::Other { pass.as_str() } else { "" };
                row([&cancel, &cancel, &cancel_shown, &cancel, &pass, pass_new, &pass, pass_new, ""])
            }
            Event::Signal { signal: Signal::Winch, sender } => {
                let pass_new = if sender == Sender::Other { "Pass(Winch)" } else { "" };
                row(["", "", "", "", "Pass(Winch)", pass_new, "Pass(Winch)", pass_new, ""])
            }
            Event::Signal { signal: Signal::Cont, .. } =>
                row(["", "", "ShowWaiting", "", "Pass(Cont)", "Pass(Cont)", "Pass(Cont)", "Pass(Cont)", ""]),
            Event::Signal { signal: Signal::Tstp, sender } => {
                let pass_new = if sender == Sender::Other { "Pass(Tstp)" } else { "" };
                let stop = "StopSelf(Tstp)";
                row([stop, stop, "HideWaiting, StopSelf(Tstp)", stop, "Pass(Tstp), StopSelf(Tstp)", pass_new, "", "", ""])
            }
        }
    }

    fn text(actions: &[Action]) -> String {
        actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn every_state_answers_every_event_as_the_table_says() {
        for event in every_event() {
            for (column, expected) in COLUMNS.into_iter().zip(expected(event)) {
                let mut machine = machine(column);
                let now = START + if let Column::Shown = column { NOTICE_AFTER } else { Duration::ZERO };
                assert_eq!(text(&machine.on(event, now)), expected, "{event:?} in {column:?}");
            }
        }
    }

    /// Of two events in a row, whatever they are: at most one exit, nothing after it, and each thing at most once where twice
    /// would be wrong.
    #[test]
    fn every_pair_of_events_ends_at_most_once() {
        for column in COLUMNS {
            for first in every_event() {
                for second in every_event() {
                    let mut machine = machine(column);
                    let mut actions = machine.on(first, START + NOTICE_AFTER);
                    let is_exit = |action: &Action| matches!(action, Action::Exit(_) | Action::ExitBy(_));
                    let over = actions.last().is_some_and(is_exit);
                    let more = machine.on(second, START + NOTICE_AFTER);
                    assert!(!over || more.is_empty(), "{first:?}, {second:?} in {column:?}");
                    actions.extend(more);
                    for once in [Action::Start, Action::Release, Action::Reap, Action::Terminate] {
                        let count = actions.iter().filter(|action| **action == once).count();
                        assert!(count <= 1, "{once:?}: {first:?}, {second:?} in {column:?}");
                    }
                    let exit = actions.iter().position(is_exit);
                    assert!(exit.is_none_or(|at| at + 1 == actions.len()), "{first:?}, {second:?} in {column:?}");
                    assert!(exit.is_none() || machine.next_timeout().is_none(), "{first:?}, {second:?} in {column:?}");
                }
            }
        }
    }

    /// Lets virtual time pass up to `end`, ticking when the machine asks for it; gives each action with its instant.
    fn pass_time(machine: &mut Machine, end: Duration) -> Vec<(Duration, Action)> {
        let mut done = Vec::new();
        while let Some(at) = machine.next_timeout().filter(|at| *at <= end) {
            done.extend(machine.on(Event::Tick, at).into_iter().map(|action| (at - START, action)));
        }
        done
    }

    #[test]
    fn a_wait_is_shown_after_a_second_and_over_when_it_is_over() {
        let mut machine = machine(Column::Waiting);
        let expected = [
            (NOTICE_AFTER, Action::ShowWaiting),
            (WAIT, Action::HideWaiting),
            (WAIT, Action::ReportBusy),
            (WAIT, Action::Release),
            (WAIT, Action::Exit(75)),
        ];
        assert_eq!(pass_time(&mut machine, START + WAIT * 2), expected);
    }

    #[test]
    fn a_wait_of_nothing_is_over_at_once_and_one_without_end_never() {
        let mut machine = Machine::new(Settings { wait: Some(Duration::ZERO), busy_code: 9, ..settings(Group::Own) });
        machine.on(Event::Queued, START);
        assert_eq!(machine.on(Event::Tick, START), [Action::ReportBusy, Action::Release, Action::Exit(9)]);
        let mut machine = Machine::new(Settings { wait: None, notice: false, ..settings(Group::Own) });
        machine.on(Event::Queued, START);
        assert_eq!(machine.next_timeout(), None);
    }

    #[test]
    fn the_wait_runs_from_the_first_place_in_the_queue() {
        let mut machine = machine(Column::Waiting);
        machine.on(Event::Queued, START + WAIT / 2);
        pass_time(&mut machine, START + WAIT / 2);
        assert_eq!(machine.next_timeout(), Some(START + WAIT));
    }

    #[test]
    fn a_grant_ends_the_timers_of_the_wait() {
        let mut machine = machine(Column::Shown);
        assert_eq!(machine.on(Event::Granted, START + WAIT), [Action::HideWaiting, Action::Start]);
        assert_eq!(machine.next_timeout(), None);
        machine.on(Event::Started, START + WAIT);
        assert_eq!(machine.next_timeout(), None);
    }

    #[test]
    fn a_lost_command_has_its_grace_and_is_killed_once() {
        let mut machine = machine(Column::StoppingOwn);
        assert_eq!(pass_time(&mut machine, START + GRACE * 3), [(GRACE, Action::Kill)]);
        let end = machine.on(Event::Ended(Ended::Signal(9)), START + GRACE);
        assert_eq!(end, [Action::Kill, Action::Reap, Action::Release, Action::Exit(76)]);
    }

    #[test]
    fn a_lost_command_that_ends_well_is_lost_all_the_same() {
        let mut machine = machine(Column::StoppingShared);
        let end = machine.on(Event::Ended(Ended::Code(0)), START);
        assert_eq!(end, [Action::Reap, Action::Release, Action::Exit(76)]);
        assert_eq!(machine.next_timeout(), None);
    }

    #[test]
    fn a_start_is_off_when_a_signal_comes_first() {
        let mut machine = machine(Column::Starting);
        assert!(machine.may_start());
        machine.on(signal(Signal::Winch, Sender::Other), START);
        assert!(machine.may_start());
        assert_eq!(machine.on(signal(Signal::Hup, Sender::Other), START), [Action::Release, Action::Exit(129)]);
        assert!(!machine.may_start());
    }

    #[test]
    fn death_by_a_passed_signal_reaches_the_rest_of_an_own_group() {
        let mut own = machine(Column::RunningOwn);
        own.on(signal(Signal::Int, Sender::Other), START);
        own.on(signal(Signal::Int, Sender::Other), START);
        let end = own.on(Event::Ended(Ended::Signal(2)), START);
        assert_eq!(end, [Action::PassGroup(Signal::Int), Action::Reap, Action::Release, Action::Exit(130)]);
        let ordinary = [Action::Reap, Action::Release, Action::Exit(143)];
        let mut other = machine(Column::RunningOwn);
        other.on(signal(Signal::Int, Sender::Other), START);
        assert_eq!(other.on(Event::Ended(Ended::Signal(15)), START), ordinary, "not by the one that was passed");
        let mut shared = machine(Column::RunningShared);
        shared.on(signal(Signal::Term, Sender::Other), START);
        assert_eq!(shared.on(Event::Ended(Ended::Signal(15)), START), ordinary, "the group is not the command's");
    }

    #[test]
    fn ctrl_c_ends_rlock_as_it_ended_the_command() {
        let interrupt = |sender| {
            let mut machine = machine(Column::RunningShared);
            machine.on(signal(Signal::Int, sender), START);
            machine
        };
        let died = Event::Ended(Ended::Signal(2));
        let by_key = [Action::Reap, Action::Release, Action::ExitBy(Signal::Int)];
        assert_eq!(interrupt(Sender::Terminal).on(died, START), by_key);
        assert_eq!(interrupt(Sender::Other).on(died, START).last(), Some(&Action::Exit(130)), "by hand");
        let handled = Event::Ended(Ended::Code(130));
        assert_eq!(interrupt(Sender::Terminal).on(handled, START).last(), Some(&Action::Exit(130)), "it exited");
    }

    #[test]
    fn ctrl_z_stops_rlock_once_and_after_the_command() {
        let mut machine = machine(Column::RunningShared);
        assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), START), []);
        assert_eq!(machine.on(Event::CommandStopped(Stop::Tstp), START), [Action::StopSelf(Stop::Tstp)]);
        assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), START), [Action::Pass(Signal::Cont)]);
    }

    #[test]
    fn ctrl_z_in_the_queue_takes_the_line_away_until_it_goes_on() {
        let mut machine = machine(Column::Shown);
        let now = START + NOTICE_AFTER;
        let stop = [Action::HideWaiting, Action::StopSelf(Stop::Tstp)];
        assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), now), stop);
        assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), now), [Action::ShowWaiting]);
    }
}
