//! The steps that a story is made of.

use std::str::FromStr;

use rlock::lock::mode::Mode;
use rlock::lock::request::Claim;
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;

/// The name of a session in a story, such as `A`.
pub(super) type Label = String;

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A session asks.
    Ask(Ask),
    /// A holder gives back its grant.
    Release(Label),
    /// A waiter waits no longer.
    GiveUp(Label),
    /// The process of a holder or waiter is killed.
    Die(Label),
    /// A holder gives up a part of a span.
    Shrink(Label, Resource, Span),
    /// A holder lowers its mode.
    Downgrade(Label, Resource, Mode),
    /// An operator takes away what is held of a resource.
    Break(Resource),
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// Who asks.
    pub(super) who: Label,
    /// What is asked.
    pub(super) claims: Vec<Claim>,
    /// Whether it may queue.
    pub(super) wait: bool,
    /// The session below which it asks.
    pub(super) below: Option<Label>,
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        Ok(match words[..] {
            ["break", resource] => Self::Break(named(resource)?),
            [who, "releases"] => Self::Release(who.to_owned()),
            [who, "gives", "up"] => Self::GiveUp(who.to_owned()),
            [who, "dies"] => Self::Die(who.to_owned()),
            [who, "shrinks", resource, "to", span] => Self::Shrink(who.to_owned(), named(resource)?, interval(span)?),
            [who, "downgrades", resource, "to", mode] => {
                Self::Downgrade(who.to_owned(), named(resource)?, mode.parse().map_err(said)?)
            }
            [who, ref asked @ ..] => Self::Ask(ask(who, asked)?),
            [] => return Err("a step has words".to_owned()),
        })
    }
}

fn ask(who: &str, mut words: &[&str]) -> Result<Ask, String> {
    let mut ask = Ask { who: who.to_owned(), claims: Vec::new(), wait: true, below: None };
    loop {
        match *words {
            [ref rest @ .., "no-wait"] => (ask.wait, words) = (false, rest),
            [ref rest @ .., "below", ancestor] => (ask.below, words) = (Some(ancestor.to_owned()), rest),
            _ => break,
        }
    }
    ask.claims = words.split(|word| *word == "+").map(claim).collect::<Result<_, _>>()?;
    Ok(ask)
}

fn claim(words: &[&str]) -> Result<Claim, String> {
    let (mode, name, span) = match *words {
        [mode, name] => (mode, name, Span::Whole),
        [mode, name, span] => (mode, name, interval(span)?),
        _ => return Err(format!("'{}' is neither a step nor a claim", words.join(" "))),
    };
    let mode: Mode = mode.parse().map_err(said)?;
    let (name, slots) = match (mode, name.split_once('=')) {
        (Mode::Slot, Some((name, slots))) => (name, Some(slots.parse().map_err(said)?)),
        _ => (name, None),
    };
    Ok(Claim { resource: named(name)?, mode, span, slots })
}

fn named(name: &str) -> Result<Resource, String> {
    Resource::new(name).map_err(said)
}

fn interval(text: &str) -> Result<Span, String> {
    Span::parse(text).map_err(said)
}

fn said(error: impl ToString) -> String {
    error.to_string()
}
