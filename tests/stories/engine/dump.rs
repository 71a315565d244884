//! The lock table as text, with one line for each resource.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rlock_model::past::{Ending, Entry, Event, Remembered, Streak};

use super::step::Label;

/// A claim that is held or waits.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) resource: String,
    pub(super) label: Label,
    /// The mode, the slots and the span.
    pub(super) claim: String,
    pub(super) state: State,
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The claim is held, with this token.
    Held(u64),
    /// The claim is queued, at this position.
    Waits(u64),
}

/// The text of a claim without its resource: `read`, `read [0,1)`, `slot of 3`, `2 slots of 3`.
/// `slots` are the number of slots, and how many of them the claim takes.
pub(super) fn claim(mode: &str, slots: Option<(u64, u64)>, span: Option<String>) -> String {
    let what = match slots {
        None => mode.to_owned(),
        Some((slots, 1)) => format!("{mode} of {slots}"),
        Some((slots, count)) => format!("{count} {mode}s of {slots}"),
    };
    let span = span.map(|span| format!(" {span}"));
    [Some(what), span].into_iter().flatten().collect()
}

/// The reply to a request that is busy, with the skips of its job in a row.
pub(super) fn busy(streak: Option<&Streak>) -> String {
    streak.map_or_else(|| "busy".to_owned(), |streak| format!("busy, skipped {} in a row", streak.count))
}

pub(super) fn superseded(streak: Option<&Streak>) -> String {
    streak.map_or_else(|| "superseded".to_owned(), |streak| format!("superseded, skipped {} in a row", streak.count))
}

/// The numbers of slots.
pub(super) fn slots(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The ended requests of a resource, the oldest first.
pub(super) fn history(found: Option<&Remembered>) -> String {
    let entry = |entry: &Entry| {
        let event = match entry.event {
            Event::Ended(Ending::Exit(code)) => format!("exit {code}"),
            Event::Ended(ending) => format!("{ending:?}").to_lowercase(),
            Event::Skipped(count) => format!("skipped {count}"),
            Event::Done(count) => format!("done {count}"),
            Event::Waited { how, count, .. } => format!("{} {count}", how.as_str()),
        };
        format!("{} {event}", entry.process.command.last().map_or("", String::as_str))
    };
    let entries = found.map(|found| found.entries.iter().map(entry).collect::<Vec<_>>()).unwrap_or_default();
    if entries.is_empty() { "nothing".to_owned() } else { entries.join("; ") }
}

/// The tokens of each resource in the order of their grants.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens(BTreeMap<String, Vec<u64>>);

impl Tokens {
    /// The name of a token. A new token must be above all earlier ones.
    fn name(&mut self, resource: &str, token: u64) -> String {
        let seen = self.0.entry(resource.to_owned()).or_default();
        if !seen.contains(&token) {
            if seen.last().is_some_and(|last| *last > token) {
                return format!("{token}, which is below {}", seen[seen.len() - 1]);
            }
            seen.push(token);
        }
        let place = seen.iter().position(|known| *known == token).map_or(0, |index| index + 1);
        format!("t{place}")
    }
}

/// The table by resource: its holders by token and label, then its waiters by position.
pub(super) fn text(mut rows: Vec<Row>, tokens: &mut Tokens) -> String {
    rows.sort_by(|a, b| (&a.resource, a.state, &a.label).cmp(&(&b.resource, b.state, &b.label)));
    if rows.is_empty() {
        return "free".to_owned();
    }
    let mut text = String::new();
    for line in rows.chunk_by(|a, b| a.resource == b.resource) {
        let mut before = if text.is_empty() { "" } else { "\n" }.to_owned() + &line[0].resource + ": ";
        for Row { resource, label, claim, state } in line {
            let state = match state {
                State::Held(token) => tokens.name(resource, *token),
                State::Waits(place) => format!("waits {}", ordinal(*place)),
            };
            write!(text, "{before}{label} {claim} {state}").expect("a string accepts any text");
            before = "; ".to_owned();
        }
    }
    text
}

fn ordinal(place: u64) -> String {
    let ending = match (place % 10, place % 100 / 10) {
        (1, tens) if tens != 1 => "st",
        (2, tens) if tens != 1 => "nd",
        (3, tens) if tens != 1 => "rd",
        _ => "th",
    };
    format!("{place}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(resource: &str, label: &str, state: State) -> Row {
        Row { resource: resource.to_owned(), label: label.to_owned(), claim: "read".to_owned(), state }
    }

    #[test]
    fn tokens_are_numbered_per_resource_in_their_order() {
        let mut tokens = Tokens::default();
        let rows =
            |a, b| vec![row("x", "A", State::Held(a)), row("x", "B", State::Held(b)), row("y", "A", State::Held(7))];
        assert_eq!(text(rows(90, 50), &mut tokens), "x: B read t1; A read t2\ny: A read t1");
        assert_eq!(text(rows(90, 91), &mut tokens), "x: A read t2; B read t3\ny: A read t1");
    }

    #[test]
    fn token_below_an_earlier_one_is_shown_as_an_error() {
        let mut tokens = Tokens::default();
        text(vec![row("x", "A", State::Held(9))], &mut tokens);
        assert_eq!(text(vec![row("x", "B", State::Held(8))], &mut tokens), "x: B read 8, which is below 9");
    }

    #[test]
    fn waiters_come_after_holders() {
        let rows = [("D", State::Waits(22)), ("A", State::Waits(11)), ("C", State::Held(5)), ("B", State::Held(5))];
        let rows = rows.map(|(label, state)| row("x", label, state)).to_vec();
        assert_eq!(text(rows, &mut Tokens::default()), "x: B read t1; C read t1; A read waits 11th; D read waits 22nd");
    }
}
