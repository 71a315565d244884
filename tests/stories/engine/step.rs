//! The steps of a story.

use std::str::FromStr;

use rlock::lock::mode::Mode;
use rlock::lock::request::Claim;
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;

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
    /// A holder shrinks a held interval.
    Shrink(Label, Resource, Span),
    /// A holder lowers its mode.
    Downgrade(Label, Resource, Mode),
    /// An operator takes away all grants on a resource.
    Break(Resource),
}

#[derive(Clone, Debug)]
pub(super) struct Acquire {
    pub(super) label: Label,
    pub(super) claims: Vec<Claim>,
    /// Whether the request may queue.
    pub(super) wait: bool,
    /// The session below whose command the request is made.
    pub(super) below: Option<Label>,
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        Ok(match words[..] {
            ["break", resource] => Self::Break(parse_resource(resource)?),
            [label, "releases"] => Self::Release(label.to_owned()),
            [label, "cancels"] => Self::Cancel(label.to_owned()),
            [label, "is", "killed"] => Self::Kill(label.to_owned()),
            [label, "shrinks", resource, "to", span] => {
                Self::Shrink(label.to_owned(), parse_resource(resource)?, interval(span)?)
            }
            [label, "downgrades", resource, "to", mode] => {
                Self::Downgrade(label.to_owned(), parse_resource(resource)?, mode.parse().map_err(message)?)
            }
            [label, ref asked @ ..] => Self::Acquire(acquire(label, asked)?),
            [] => return Err("a step is empty".to_owned()),
        })
    }
}

fn acquire(label: &str, mut words: &[&str]) -> Result<Acquire, String> {
    let mut acquire = Acquire { label: label.to_owned(), claims: Vec::new(), wait: true, below: None };
    loop {
        match *words {
            [ref rest @ .., "no-wait"] => (acquire.wait, words) = (false, rest),
            [ref rest @ .., "below", ancestor] => (acquire.below, words) = (Some(ancestor.to_owned()), rest),
            _ => break,
        }
    }
    acquire.claims = words.split(|word| *word == "+").map(claim).collect::<Result<_, _>>()?;
    Ok(acquire)
}

fn claim(words: &[&str]) -> Result<Claim, String> {
    let (mode, name, span) = match *words {
        [mode, name] => (mode, name, Span::Whole),
        [mode, name, span] => (mode, name, interval(span)?),
        _ => return Err(format!("'{}' is neither a step nor a claim", words.join(" "))),
    };
    let mode: Mode = mode.parse().map_err(message)?;
    let (name, slots) = match (mode, name.split_once('=')) {
        (Mode::Slot, Some((name, slots))) => (name, Some(slots.parse().map_err(message)?)),
        _ => (name, None),
    };
    Ok(Claim { resource: parse_resource(name)?, mode, span, slots })
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
