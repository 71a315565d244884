//! Sums up how a request and its command went, for the history of the store and for
//! `--status-file`.
//!
//! The report follows the events and the actions of [`super::machine`] and decides nothing.

use std::time::Duration;

use super::event::{Action, Cause, Ended, Event, Line};
use rlock_model::past::{End, Ending};
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ran to its end.
    Ran,
    /// Another request was in the way, and the user was told so.
    Busy,
    /// The request was busy, and ended in silence.
    Skipped,
    /// A run had succeeded lately.
    Done,
    /// The request can never be granted as it was made.
    Refused,
    /// The request waited for itself.
    Deadlock,
    /// The store could not be used.
    Unavailable,
    /// The lease ended, or the store no longer had the grant.
    Lost,
    /// An operator has revoked the grant.
    Broken,
    /// The command exceeded its maximum run time.
    Timeout,
    /// The command could not be started.
    NotStarted,
    /// A signal came before the command was started.
    Cancelled,
}

impl Outcome {
    /// The word for the outcome in a status file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ran => "ran",
            Self::Busy => "busy",
            Self::Skipped => "skipped",
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Deadlock => "deadlock",
            Self::Unavailable => "unavailable",
            Self::Lost => "lost",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
            Self::NotStarted => "not-started",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How a request and its command have gone so far.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The exit codes of a success besides 0.
    success_codes: Vec<u8>,
    outcome: Outcome,
    asked: Boottime,
    /// When the wait ended.
    answered: Option<Boottime>,
    is_granted: bool,
    /// Whether the request is granted and waits for room, so that its wait has not ended.
    is_at_gate: bool,
    started: Option<Boottime>,
    /// How the command ended, and when. A signal that cancelled the request counts as well.
    ended: Option<(Ended, Boottime)>,
}

impl RunReport {
    /// The report on a request that failed at the instant `now`, before it was made.
    pub fn failed(outcome: Outcome, now: Boottime) -> Self {
        Self { outcome, ..Self::new(now, Vec::new()) }
    }

    /// The report on a request that is made at the instant `asked`.
    pub fn new(asked: Boottime, success_codes: Vec<u8>) -> Self {
        let (answered, is_granted, is_at_gate, started, ended) = (None, false, false, None, None);
        Self { success_codes, outcome: Outcome::Cancelled, asked, answered, is_granted, is_at_gate, started, ended }
    }

    /// Takes in an event that the machine is told.
    pub fn on(&mut self, event: Event, now: Boottime) {
        match event {
            Event::Granted { .. } | Event::Revoked { .. } => {
                if !self.is_at_gate {
                    self.answered.get_or_insert(now);
                }
                self.is_granted = true;
            }
            // The wait for room is a part of the wait.
            Event::NoRoom => (self.answered, self.is_at_gate) = (None, true),
            Event::Room => (self.answered, self.is_at_gate) = (Some(now), false),
            Event::Started => {
                self.started = Some(now);
                self.outcome = Outcome::Ran;
            }
            Event::Ended(ended) => self.ended = Some((ended, now)),
            // A later signal ends the spare work only.
            Event::Signal { signal, .. } if self.is_open() && signal.ends_by_default() => {
                self.ended = Some((Ended::Signal(signal.kernel().as_raw()), now));
            }
            Event::StartFailed(exit::LOST) => self.outcome = Outcome::Lost,
            Event::StartFailed(code) => {
                self.outcome = Outcome::NotStarted;
                self.ended = Some((Ended::Code(code), now));
            }
            // The actions tell a busy request that is no skip.
            Event::Busy { .. } => self.answer(Outcome::Skipped, now),
            Event::AlreadyDone => self.answer(Outcome::Done, now),
            Event::Denied(code) if code == exit::UNAVAILABLE => self.answer(Outcome::Unavailable, now),
            Event::Denied(_) => self.answer(Outcome::Refused, now),
            Event::Deadlock => self.answer(Outcome::Deadlock, now),
            _ => {}
        }
    }

    /// Whether nothing but a signal can have ended the request so far.
    fn is_open(&self) -> bool {
        self.outcome == Outcome::Cancelled
    }

    fn answer(&mut self, outcome: Outcome, now: Boottime) {
        self.outcome = outcome;
        self.answered.get_or_insert(now);
    }

    /// Takes in an action of the machine before it is carried out.
    pub fn act(&mut self, action: Action, now: Boottime) {
        match action {
            Action::Say(Line::Busy) | Action::RunElse => self.outcome = Outcome::Busy,
            Action::Say(Line::Ends(cause, _)) => match cause {
                Cause::Timeout | Cause::TimeoutReleased => self.outcome = Outcome::Timeout,
                Cause::Revoked => self.outcome = Outcome::Broken,
                Cause::Lost | Cause::Overdue if self.is_granted => self.outcome = Outcome::Lost,
                Cause::Lost | Cause::Overdue => {}
            },
            Action::AskAnew => (self.answered, self.is_granted, self.is_at_gate) = (None, false, false),
            Action::Exit(exit::UNAVAILABLE) if self.is_open() => self.answer(Outcome::Unavailable, now),
            _ => {}
        }
        if action.is_exit() {
            self.answered.get_or_insert(now);
        }
    }

    /// How the request ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What the release says of the command, if it ran.
    pub fn end(&self) -> Option<End> {
        self.started?;
        let failed = |ending| Some(End { ending, is_success: false });
        match (self.outcome, self.ended) {
            (Outcome::Lost, _) => failed(Ending::Lost),
            (Outcome::Broken, _) => failed(Ending::Broken),
            (Outcome::Timeout, _) => failed(Ending::Timeout),
            (_, Some((Ended::Signal(number), _))) => failed(Ending::Signal(u8::try_from(number).unwrap_or(u8::MAX))),
            (_, Some((Ended::Code(code), _))) => {
                let is_success = code == 0 || self.success_codes.contains(&code);
                Some(End { ending: Ending::Exit(code), is_success })
            }
            // A command that runs on after its release is ready.
            (_, None) => Some(End { ending: Ending::Ready, is_success: true }),
        }
    }

    /// How the command ended, or why it never ran.
    pub fn ended(&self) -> Option<Ended> {
        self.ended.map(|(ended, _)| ended)
    }

    /// How long the request waited for its answer.
    pub fn waited(&self, now: Boottime) -> Duration {
        self.answered.unwrap_or(now) - self.asked
    }

    /// How long the command ran, if it was started.
    pub fn ran(&self, now: Boottime) -> Option<Duration> {
        Some(self.ended.map_or(now, |(_, at)| at) - self.started?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Consequence, Sender, Signal};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Boottime = Boottime::since_boot(SECOND);
    const GRANTED: Event = Event::Granted { deadline: None };
    const CODE: Event = Event::Ended(Ended::Code(3));
    const TERM: Event = Event::Signal { signal: Signal::Term, sender: Sender::Other };

    /// The report after these events and then these actions, one a second.
    fn after(events: &[Event], actions: &[Action]) -> RunReport {
        let mut report = RunReport::new(START, vec![3]);
        let mut now = START;
        for event in events {
            now = now + SECOND;
            report.on(*event, now);
        }
        actions.iter().for_each(|action| report.act(*action, now));
        report
    }

    #[test]
    fn wait_for_room_is_a_part_of_the_wait_whatever_the_renewals() {
        let waited = |events: &[Event]| after(events, &[]).waited(START + SECOND * 100);
        assert_eq!(waited(&[GRANTED, GRANTED]), SECOND);
        assert_eq!(waited(&[GRANTED, Event::NoRoom, GRANTED, Event::NoRoom, Event::Room, GRANTED]), SECOND * 5);
        assert_eq!(waited(&[GRANTED, Event::NoRoom, GRANTED]), SECOND * 100);
    }

    #[test]
    fn request_that_gave_its_grant_back_waits_again_and_loses_none() {
        let mut report = after(&[GRANTED, Event::NoRoom], &[Action::AskAnew]);
        assert_eq!(report.waited(START + SECOND * 100), SECOND * 100);
        report.act(Action::Say(Line::Ends(Cause::Lost, Consequence::NotStarted)), START);
        report.act(Action::Exit(69), START);
        assert_eq!(report.outcome(), Outcome::Unavailable);
    }

    /// Events and actions, and what the report then says.
    type Row<'r> = (&'r [Event], &'r [Action], Outcome, Option<Ended>);

    #[test]
    fn each_way_to_end_has_its_outcome() {
        use Event::{AlreadyDone, Deadlock, Denied, Lost, Queued, StartFailed, Started};
        let busy = Event::Busy { skipped_for: None };
        let lost = Action::Say(Line::Ends(Cause::Lost, Consequence::Stopped));
        let rows: &[Row<'_>] = &[
            (&[GRANTED, Started, CODE], &[], Outcome::Ran, Some(Ended::Code(3))),
            (&[GRANTED, Started, TERM, CODE], &[], Outcome::Ran, Some(Ended::Code(3))),
            (&[Queued, busy], &[Action::Say(Line::Busy), Action::Exit(75)], Outcome::Busy, None),
            (&[busy], &[Action::RunElse], Outcome::Busy, None),
            // -E may choose any code, and a signal may end the spare work.
            (&[busy], &[Action::Say(Line::Busy), Action::Exit(69)], Outcome::Busy, None),
            (&[busy, TERM], &[Action::Exit(75)], Outcome::Skipped, None),
            (&[busy], &[Action::Exit(0)], Outcome::Skipped, None),
            (&[AlreadyDone], &[Action::Exit(0)], Outcome::Done, None),
            (&[Denied(65)], &[Action::Exit(65)], Outcome::Refused, None),
            (&[Queued, Deadlock], &[Action::Say(Line::Failure), Action::Exit(65)], Outcome::Deadlock, None),
            (&[Queued], &[Action::Say(Line::Failure), Action::Exit(69)], Outcome::Unavailable, None),
            (&[Queued, Lost], &[lost, Action::Exit(69)], Outcome::Unavailable, None),
            (&[GRANTED, Started, Lost], &[lost, Action::Exit(76)], Outcome::Lost, None),
            (
                &[GRANTED, Started],
                &[Action::Say(Line::Ends(Cause::Timeout, Consequence::Stopped))],
                Outcome::Timeout,
                None,
            ),
            (&[GRANTED, StartFailed(127)], &[Action::Exit(127)], Outcome::NotStarted, Some(Ended::Code(127))),
            (&[Queued, TERM], &[Action::Exit(143)], Outcome::Cancelled, Some(Ended::Signal(15))),
        ];
        for (events, actions, outcome, ended) in rows {
            let report = after(events, actions);
            assert_eq!((report.outcome(), report.ended()), (*outcome, *ended), "{events:?}, {actions:?}");
        }
    }

    #[test]
    fn release_says_how_a_command_that_ran_has_ended() {
        let end = |last: Event, actions: &[Action]| after(&[GRANTED, Event::Started, last], actions).end();
        let of = |ending, is_success| Some(End { ending, is_success });
        let overdue = Action::Say(Line::Ends(Cause::Overdue, Consequence::Stopped));
        assert_eq!(end(Event::Ended(Ended::Code(0)), &[]), of(Ending::Exit(0), true));
        assert_eq!(end(CODE, &[]), of(Ending::Exit(3), true), "a code of --success-codes");
        assert_eq!(end(Event::Ended(Ended::Code(4)), &[]), of(Ending::Exit(4), false));
        assert_eq!(end(Event::Ended(Ended::Signal(9)), &[]), of(Ending::Signal(9), false));
        assert_eq!(
            end(CODE, &[Action::Say(Line::Ends(Cause::Timeout, Consequence::Stopped))]),
            of(Ending::Timeout, false)
        );
        assert_eq!(
            end(CODE, &[Action::Say(Line::Ends(Cause::Timeout, Consequence::Stopped)), overdue]),
            of(Ending::Lost, false)
        );
        assert_eq!(after(&[GRANTED, Event::Lost], &[overdue]).end(), None, "the command was not started");
        assert_eq!(after(&[GRANTED, Event::StartFailed(126)], &[]).end(), None);
        assert_eq!(after(&[GRANTED, TERM], &[]).end(), None);
    }

    #[test]
    fn wait_ends_with_the_answer_and_the_run_with_the_command() {
        let report = after(&[Event::Queued, GRANTED, GRANTED, Event::Started, CODE], &[]);
        let later = START + SECOND * 9;
        assert_eq!((report.waited(later), report.ran(later)), (SECOND * 2, Some(SECOND)));
        let report = after(&[Event::Queued], &[]);
        assert_eq!((report.waited(later), report.ran(later)), (SECOND * 9, None));
    }
}
