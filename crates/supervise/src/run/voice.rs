//! Speaks to the user: keeps what the store and the processes have answered until the machine asks
//! for a report, and prints no line while the command runs.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use signal_hook::low_level::signal_name;

use super::super::child::CommandSpec;
use super::super::event::{Cause, Consequence, Ended, Line};
use super::super::machine::{NOTICE_AFTER, Notice, Settings};
use super::super::outbox::Outbox;
use super::super::report::{Outcome, RunReport};
use super::super::terminal::StatusLine;
use super::processes::Processes;
use super::request::Request;
use rlock_model::past::Streak;
use rlock_model::request::{Process, SessionId};
use rlock_show::messages::{self, Messages, Undone};
use rlock_store::Obstruction;
use rlock_sys::clock::{Boottime, StoreTime, micros};
use rlock_words::one_line;

pub(super) struct Voice<'a> {
    pub(super) messages: Messages,
    pub(super) settings: Settings,
    pub(super) outbox: Outbox<'a>,
    line: StatusLine,
    /// The lines to print when the lock is free, from the start of the command on.
    unsaid: Option<Vec<String>>,
    /// Whether the request has been in the queue.
    has_waited: bool,
    /// The first session in the way at the last line about the wait, if there was such a line.
    reported: Option<Option<SessionId>>,
    /// The place in the queue at the store's last answer, if it told one.
    place: Option<String>,
    /// The sessions that were in the way at the store's last answer.
    obstructions: Vec<Obstruction>,
    /// What the request waits for at the gate, if it is there.
    gate: Option<String>,
    /// The process whose newer request has superseded this one.
    superseded_by: Option<Box<Process>>,
    /// The skips of the job in a row, if this request is one of them.
    streak: Option<Streak>,
    /// The lines about the last failure, if there is one.
    pub(super) failure: Vec<String>,
    /// What neither a busy request nor a loss before the start of the command has brought about.
    undone: Undone,
    /// The first word of the command.
    command: String,
}

impl<'a> Voice<'a> {
    pub(super) fn new(
        messages: Messages,
        settings: Settings,
        command: &CommandSpec,
        output: &'a mut dyn Write,
    ) -> Self {
        let undone = if command.argv.is_empty() { Undone::LOCK } else { Undone::COMMAND };
        Self {
            messages,
            settings,
            outbox: Outbox::new(output),
            line: StatusLine::default(),
            unsaid: None,
            has_waited: false,
            reported: None,
            place: None,
            obstructions: Vec::new(),
            gate: None,
            superseded_by: None,
            streak: None,
            failure: Vec::new(),
            undone,
            command: command.argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    }

    /// Prints a line. While the command runs, the lines are kept until its end.
    pub(super) fn say(&mut self, text: &str) {
        let line = format!("rlock: {}", one_line(text));
        match &mut self.unsaid {
            None => self.outbox.put(&(line + "\n")),
            Some(unsaid) => unsaid.push(line),
        }
    }

    /// Keeps all further lines, because the command has started.
    pub(super) fn keep_lines(&mut self) {
        self.unsaid.get_or_insert_default();
    }

    /// Prints all that is still to say, before rlock ends.
    pub(super) fn finish(&mut self) {
        self.outbox.finish(self.unsaid.iter_mut().flat_map(std::mem::take));
    }

    /// Notes that the request is in the queue.
    pub(super) fn note_waiting(&mut self) {
        if !std::mem::replace(&mut self.has_waited, true) && self.settings.verbose {
            self.say(&self.messages.waits());
        }
    }

    /// Notes which sessions keep the request from being granted.
    pub(super) fn note_busy(&mut self, obstructions: Vec<Obstruction>, streak: Option<Streak>) {
        (self.obstructions, self.streak) = (obstructions, streak);
    }

    /// Notes that a newer request of this process has superseded the request.
    pub(super) fn note_superseded(&mut self, by: Box<Process>, streak: Option<Streak>) {
        (self.superseded_by, self.streak) = (Some(by), streak);
    }

    /// Notes a failure.
    pub(super) fn note_failure(&mut self, failure: &dyn Display) {
        self.failure = vec![failure.to_string()];
    }

    /// Notes that the store has failed.
    pub(super) fn note_store_failure(&mut self, reason: &dyn Display) {
        self.failure = vec![self.messages.cannot_lock(reason)];
    }

    /// Notes what the request waits for at the gate, or that it does not wait there.
    pub(super) fn note_gate(&mut self, why: Option<&str>) {
        self.has_waited |= why.is_some();
        self.gate = why.map(str::to_owned);
    }

    /// Shows on the terminal what the request waits for.
    pub(super) fn show_waiting(&mut self, request: &mut Request<'_>, waited: Duration) {
        let text = if let Some(why) = &self.gate {
            why.clone()
        } else if let Ok(obstructions) = request.inspect() {
            self.look_back(request);
            self.place = self.messages.place(&obstructions);
            let asked = StoreTime::of_machine().as_micros().saturating_sub(micros(waited));
            self.messages.status(&obstructions, StoreTime::from_micros(asked))
        } else {
            return;
        };
        self.line.show(&format!("rlock: {text}"), &mut self.outbox);
    }

    pub(super) fn hide_waiting(&mut self) {
        self.line.hide(&mut self.outbox);
    }

    /// Finds out how long past holds took, to tell the user when it is the turn of the request.
    fn look_back(&mut self, request: &mut Request<'_>) {
        if let Some(name) = self.messages.has_turns().filter(|_| !self.settings.quiet).cloned() {
            self.messages.runs = request.runs(&name);
        }
    }

    /// Prints a line of the machine. `waited` is the time of the wait so far.
    pub(super) fn report(
        &mut self,
        line: Line,
        request: &mut Request<'_>,
        processes: &mut Processes,
        waited: Duration,
    ) {
        let text = match line {
            Line::Busy | Line::WaitGoesOn if self.settings.quiet => return,
            Line::Waiting | Line::Change => return self.report_waiting(line == Line::Waiting, request, waited),
            Line::Busy => format!("{}{}", self.busy_line(request), self.undone.busy),
            Line::Skip => self.skip_line(),
            Line::Done => self.messages.done(),
            Line::Failure => return self.say_failure("", ""),
            Line::Warning => return self.say_failure("warning: ", ""),
            Line::WaitGoesOn => return self.say_failure("warning: ", messages::WAIT_GOES_ON),
            Line::Ends(cause, consequence) => self.ends(cause, consequence, request),
            Line::Rest { .. } | Line::Unkilled { .. } => {
                let (count, rest) = processes.rest();
                if count == 0 {
                    return;
                }
                // The command has ended or is about to, so nothing is kept any more.
                self.unsaid.take().into_iter().flatten().for_each(|line| self.outbox.put(&(line + "\n")));
                match line {
                    Line::Rest { by, had_term } => {
                        self.messages.rest(&self.command, &name_of(by), count, &rest, had_term)
                    }
                    _ => self.messages.unkilled(count, &rest, line == Line::Unkilled { holds: true }),
                }
            }
            Line::Spare(Ended::Code(code)) => messages::spare_exited(code),
            Line::Spare(Ended::Signal(number)) => messages::spare_killed(number),
        };
        self.say(&text);
    }

    /// Prints what the request waits for, if the first in the way has changed or the line `is_due`
    /// anyway.
    fn report_waiting(&mut self, is_due: bool, request: &mut Request<'_>, waited: Duration) {
        if let Some(why) = &self.gate {
            let limit = self.settings.wait.map(|limit| format!(" of {}", messages::in_seconds(limit)));
            let text = format!("{why}; {}{}", messages::in_seconds(waited), limit.unwrap_or_default());
            self.reported = Some(None);
            return self.say(&text);
        }
        let Ok(obstructions) = request.inspect() else { return };
        self.look_back(request);
        self.place = self.messages.place(&obstructions);
        let first = self.messages.first_in_the_way(&obstructions);
        // Nobody is in the way for as long as the grant is on its way.
        let is_due = is_due && (first.is_some() || self.settings.notice == Notice::Progress);
        if is_due || first.is_some() && self.reported != Some(first) {
            self.reported = Some(first);
            self.say(&match self.settings.notice {
                Notice::Progress => self.messages.progress(&obstructions, waited, self.settings.wait),
                _ => self.messages.waiting(&obstructions),
            });
        }
    }

    fn ends(&self, cause: Cause, consequence: Consequence, request: &Request<'_>) -> String {
        let outcome = match consequence {
            Consequence::NotStarted => self.undone.lost,
            Consequence::Stopped => messages::STOPPED,
            Consequence::EndedLate => messages::ENDED_LATE,
        };
        let names_command = matches!(consequence, Consequence::Stopped) && !self.command.is_empty();
        let lost = if names_command { self.messages.stopped() } else { outcome.to_owned() };
        match cause {
            Cause::Lost => self.messages.lost(request.change_of_store().as_deref(), &lost),
            Cause::Overdue => self.messages.overdue(request.trouble().as_deref(), &lost),
            Cause::Revoked => format!("revoked: {}{outcome}", self.messages.revoked()),
            Cause::Timeout | Cause::TimeoutReleased => self.messages.timeout(self.settings.max_runtime),
        }
    }

    /// Prints the last failure.
    fn say_failure(&mut self, kind: &str, addition: &str) {
        self.failure.clone().iter().for_each(|failure| self.say(&format!("{kind}{failure}{addition}")));
    }

    /// Prints that the request is granted, if its wait was reported or the user wants to know.
    pub(super) fn report_grant(&mut self, waited: Duration) {
        if self.settings.verbose || self.reported.is_some() {
            let shown = Some(waited).filter(|waited| self.has_waited && *waited >= NOTICE_AFTER);
            self.say(&self.messages.holds(shown));
        }
    }

    fn skip_line(&self) -> String {
        self.messages.skip(&self.why_busy(), self.streak.as_ref())
    }

    /// The busy line without its end: what follows a busy request is up to the caller.
    pub(super) fn busy_line(&mut self, request: &mut Request<'_>) -> String {
        self.look_back(request);
        self.messages.busy(&self.why_busy(), self.streak.as_ref())
    }

    fn why_busy(&self) -> String {
        // The length of the wait that is over, if there was one.
        let waited = self.settings.wait.filter(|wait| self.has_waited && !wait.is_zero());
        match (&self.superseded_by, &self.gate) {
            (Some(by), _) => self.messages.superseded(by, waited),
            (None, Some(why)) => format!("{why}{}", messages::after(waited)),
            (None, None) => self.messages.in_the_way(&self.obstructions, waited),
        }
    }

    /// Prints how the request and the command went, unless that is as usual, or a message has said
    /// it already.
    pub(super) fn sum_up(&mut self, report: &RunReport) {
        let now = Boottime::now();
        let waited = Some(report.waited(now)).filter(|waited| self.has_waited && *waited >= NOTICE_AFTER);
        let line = match (report.outcome(), report.ended()) {
            _ if !self.settings.sums_up => None,
            (Outcome::Ran, Some(ended)) if waited.is_some() || ended != Ended::Code(0) => {
                let how = match ended {
                    Ended::Code(code) => format!("exit {code}"),
                    Ended::Signal(number) => format!("ended by {}", name_of(number)),
                };
                Some(self.messages.ran(&how, report.ran(now).unwrap_or_default(), waited))
            }
            (Outcome::Cancelled, Some(Ended::Signal(number))) => {
                let waited = self.has_waited.then(|| report.waited(now));
                let left = messages::left(&name_of(number), waited, self.place.as_deref());
                Some(format!("{left}{}", self.undone.busy))
            }
            // With --verbose, the machine has reported these.
            (Outcome::Skipped, _) if waited.is_some() && !self.settings.verbose => Some(self.skip_line()),
            (Outcome::Done, _) if waited.is_some() && !self.settings.verbose => Some(self.messages.done()),
            _ => None,
        };
        line.into_iter().for_each(|line| self.say(&line));
    }

    /// Prints that a waiting request was made again at another server, unless rlock is quiet.
    pub(super) fn tell_news(&mut self, news: &str) {
        if !self.settings.quiet {
            self.hide_waiting();
            self.say(&self.messages.asked_again(news));
        }
    }
}

/// The name of a signal for people.
fn name_of(signal: i32) -> String {
    let name = signal_name(signal).and_then(|name| name.strip_prefix("SIG"));
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
