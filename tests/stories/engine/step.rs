//! The steps of a story.

use std::str::FromStr;
use std::time::Duration;

use rlock_model::kept::EVER;
use rlock_model::mode::Mode;
use rlock_model::op::Change;
use rlock_model::past::{End, Ending};
use rlock_model::request::{Calendar, Claim, Job, OncePer};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_sys::clock::StoreTime;

/// The name of a session in a story, such as `A`.
pub(super) type Label = String;

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A session makes a request.
    Acquire(Acquire),
    /// A holder releases its grant.
    Release(Label),
    /// A waiter leaves the queue.
    Cancel(Label),
    /// The process of a holder or waiter is killed with SIGKILL.
    Kill(Label),
    /// A holder changes what it holds.
    Change(Label, Change),
    /// An operator revokes all grants on a resource.
    Break(Resource),
    /// A step for which the command line has no words.
    Store(StoreStep),
}

#[derive(Clone, Debug)]
pub(super) enum StoreStep {
    /// A holder releases its grant and tells how its command ended.
    Ended(Label, End),
    /// A waiter has waited for too long.
    GiveUp(Label),
    /// A kept hold lasts for so long from now.
    Extend(Label, Duration),
    /// Time passes.
    Pass(Duration),
    /// Shows the ended requests of a resource.
    History(Resource),
    /// A resource forgets what it remembers.
    Forget(Resource),
    /// Shows the numbers of a holder's slots.
    Slots(Label),
}

#[derive(Clone, Debug)]
pub(super) struct Acquire {
    pub(super) label: Label,
    pub(super) claims: Vec<Claim>,
    /// Whether the request may queue.
    pub(super) wait: bool,
    /// The session below whose command the request is made.
    pub(super) below: Option<Label>,
    /// What the request asks for besides.
    pub(super) job: Job,
    /// The period of one run is a part of the calendar that began so long ago.
    pub(super) since: Option<Duration>,
}

impl Acquire {
    /// The job of the request at an instant. All its times are so many times as long.
    pub(super) fn job_at(&self, now: StoreTime, slower: u32) -> Job {
        let slowed = |time: Duration| time * slower;
        let calendar = |period| {
            let start = now - slowed(self.since?);
            Some(Calendar { start, next: start + period })
        };
        let once_per = self.job.once_per.map(|once| {
            let period = slowed(once.period);
            OncePer { period, calendar: calendar(period) }
        });
        Job {
            keep_for: self.job.keep_for.map(slowed),
            hold_at_least: self.job.hold_at_least.map(slowed),
            once_per,
            ..self.job.clone()
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        Ok(match words[..] {
            ["break", resource] => Self::Break(parse_resource(resource)?),
            [time, "pass"] => Self::Store(StoreStep::Pass(duration(time)?)),
            ["history", "of", resource] => Self::Store(StoreStep::History(parse_resource(resource)?)),
            ["forget", resource] => Self::Store(StoreStep::Forget(parse_resource(resource)?)),
            ["slots", "of", label] => Self::Store(StoreStep::Slots(label.to_owned())),
            [label, "exits", code] => {
                let ending = Ending::Exit(code.parse().map_err(message)?);
                Self::Store(StoreStep::Ended(label.to_owned(), End { ending, is_success: code == "0" }))
            }
            [label, "gives", "up"] => Self::Store(StoreStep::GiveUp(label.to_owned())),
            [label, "is", "extended", "by", time] => Self::Store(StoreStep::Extend(label.to_owned(), duration(time)?)),
            [label, "releases"] => Self::Release(label.to_owned()),
            [label, "cancels"] => Self::Cancel(label.to_owned()),
            [label, "is", "killed"] => Self::Kill(label.to_owned()),
            [label, "shrinks", resource, "to", span] => {
                let (resource, span) = (parse_resource(resource)?, interval(span)?);
                Self::Change(label.to_owned(), Change::Shrink { resource, span })
            }
            [label, "downgrades", resource, "to", mode] => {
                let (resource, mode) = (parse_resource(resource)?, mode.parse().map_err(message)?);
                Self::Change(label.to_owned(), Change::Downgrade { resource, mode })
            }
            [label, ref asked @ ..] => Self::Acquire(acquire(label, asked)?),
            [] => return Err("a step is empty".to_owned()),
        })
    }
}

fn acquire(label: &str, mut words: &[&str]) -> Result<Acquire, String> {
    let (claims, job) = (Vec::new(), Job::default());
    let mut acquire = Acquire { label: label.to_owned(), claims, wait: true, below: None, job, since: None };
    loop {
        match *words {
            [ref rest @ .., "no-wait"] => (acquire.wait, words) = (false, rest),
            [ref rest @ .., "below", ancestor] => (acquire.below, words) = (Some(ancestor.to_owned()), rest),
            [ref rest @ .., "skip-ok"] => (acquire.job.skips, words) = (true, rest),
            [ref rest @ .., "supersede"] => (acquire.job.supersedes, words) = (true, rest),
            [ref rest @ .., "max-waiting", count] => {
                (acquire.job.max_waiting, words) = (Some(count.parse().map_err(message)?), rest);
            }
            [ref rest @ .., "as", job] => {
                acquire.job.is_named = true;
                (acquire.job.name, words) = (job.to_owned(), rest);
            }
            [ref rest @ .., "for", time] => {
                acquire.job.is_acquire = true;
                (acquire.job.keep_for, words) = (Some(duration(time)?), rest);
            }
            [ref rest @ .., "at-least", time] => {
                (acquire.job.hold_at_least, words) = (Some(duration(time)?), rest);
            }
            [ref rest @ .., "once-per", time] => {
                let (period, calendar) = (duration(time)?, None);
                (acquire.job.once_per, words) = (Some(OncePer { period, calendar }), rest);
            }
            [ref rest @ .., "since", time] => (acquire.since, words) = (Some(duration(time)?), rest),
            [ref rest @ .., "history", count] => {
                (acquire.job.history, words) = (count.parse().map_err(message)?, rest);
            }
            _ => break,
        }
    }
    let parts = words.split(|word| *word == "+").map(slots_or_claim).collect::<Result<Vec<_>, _>>()?;
    acquire.claims = parts.concat();
    Ok(acquire)
}

/// A claim, or several slots of a resource.
fn slots_or_claim(words: &[&str]) -> Result<Vec<Claim>, String> {
    let (mode, name, span) = match *words {
        [mode, name] => (mode, name, Span::Whole),
        [mode, name, span] => (mode, name, interval(span)?),
        _ => return Err(format!("'{}' is neither a step nor a claim", words.join(" "))),
    };
    let mode: Mode = mode.parse().map_err(message)?;
    let (name, slots, count) = match (mode, name.split_once('=')) {
        (Mode::Slot, Some((name, slots))) => {
            let (slots, count) = slots.split_once(':').unwrap_or((slots, "1"));
            (name, Some(slots.parse().map_err(message)?), count.parse().map_err(message)?)
        }
        _ => (name, None, 1),
    };
    Ok(vec![Claim { resource: parse_resource(name)?, mode, span, slots }; count])
}

/// A length of time such as `300ms`, `2s` or `1h`, or `ever`.
fn duration(text: &str) -> Result<Duration, String> {
    if text == "ever" {
        return Ok(EVER);
    }
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..unit].parse().map_err(message)?;
    match &text[unit..] {
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        "h" => Ok(Duration::from_secs(count * 3_600)),
        other => Err(format!("'{other}' is no unit of time")),
    }
}

fn parse_resource(name: &str) -> Result<Resource, String> {
    Resource::new(name).map_err(message)
}

fn interval(text: &str) -> Result<Span, String> {
    Span::parse(text).map_err(message)
}

fn message(error: impl ToString) -> String {
    error.to_string()
}
