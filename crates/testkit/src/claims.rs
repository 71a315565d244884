//! The claims of a run, and a second implementation of docs/design.md#conflicts that shares no code
//! with the program. The ends of intervals are whole numbers.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Read,
    Prewrite,
    Write,
    Slot,
}

impl Mode {
    pub const ALL: [Self; 4] = [Self::Read, Self::Prewrite, Self::Write, Self::Slot];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Prewrite => "prewrite",
            Self::Write => "write",
            Self::Slot => "slot",
        }
    }

    /// Two slots clash only when no slot is left, which two claims alone do not show.
    fn clashes_with(self, other: Self) -> bool {
        use Mode::{Prewrite, Write};
        matches!((self, other), (Write, _) | (_, Write) | (Prewrite, Prewrite))
    }
}

/// The whole resource, or an interval with its text: `[1,3)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    text: Option<String>,
    /// Each cut is twice the end, plus one if the cut lies just after the end.
    lower: i64,
    upper: i64,
}

impl Span {
    pub const WHOLE: Self = Self { text: None, lower: i64::MIN, upper: i64::MAX };

    pub fn interval(text: &str) -> Self {
        let parse = || {
            let (lo, hi) = text.get(1..text.len().checked_sub(1)?)?.split_once(',')?;
            let lower = 2 * lo.parse::<i64>().ok()? + i64::from(text.starts_with('('));
            let upper = 2 * hi.parse::<i64>().ok()? + i64::from(text.ends_with(']'));
            Some(Self { text: Some(text.to_owned()), lower, upper })
        };
        parse().unwrap_or_else(|| panic!("'{text}' is not an interval of whole numbers"))
    }

    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    pub fn covers(&self, other: &Self) -> bool {
        self.lower <= other.lower && other.upper <= self.upper
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.lower < other.upper && other.lower < self.upper
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    pub resource: String,
    pub mode: Mode,
    pub span: Span,
    /// The number of slots of the resource, in mode slot.
    pub slots: Option<u32>,
    /// How many of the slots the claim takes, in mode slot.
    pub taken: u32,
}

impl Claim {
    pub fn whole(resource: &str, mode: Mode) -> Self {
        Self { resource: resource.to_owned(), mode, span: Span::WHOLE, slots: None, taken: 1 }
    }

    pub fn part(resource: &str, mode: Mode, interval: &str) -> Self {
        Self { span: Span::interval(interval), ..Self::whole(resource, mode) }
    }

    pub fn slot(resource: &str, slots: u32) -> Self {
        Self { slots: Some(slots), ..Self::whole(resource, Mode::Slot) }
    }

    /// Some of so many slots.
    pub fn slots(resource: &str, slots: u32, taken: u32) -> Self {
        Self { taken, ..Self::slot(resource, slots) }
    }

    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.mode.clashes_with(other.mode) && self.resource == other.resource && self.span.overlaps(&other.span)
    }
}

/// Whether a claim of one request conflicts with a claim of the other.
pub fn conflict(one: &[Claim], other: &[Claim]) -> bool {
    one.iter().any(|claim| other.iter().any(|other| claim.conflicts_with(other)))
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.resource, self.mode.name())?;
        match (self.slots, self.span.text()) {
            (Some(slots), _) if self.taken > 1 => write!(f, ":{slots}:{}", self.taken),
            (Some(slots), _) => write!(f, ":{slots}"),
            (None, Some(interval)) => write!(f, ":{interval}"),
            (None, None) => Ok(()),
        }
    }
}

/// Panics on text that [`Display`](fmt::Display) does not write: only these tests write logs.
impl FromStr for Claim {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.splitn(3, ':');
        let resource = words.next().expect("a claim has a resource");
        let mode = words.next().and_then(|name| Mode::ALL.into_iter().find(|mode| mode.name() == name));
        let mode = mode.unwrap_or_else(|| panic!("'{text}' has no mode"));
        Ok(match words.next() {
            Some(slots) if mode == Mode::Slot => {
                let (slots, taken) = slots.split_once(':').unwrap_or((slots, "1"));
                let [slots, taken] = [slots, taken].map(|count| count.parse().expect("the slots are a number"));
                Self::slots(resource, slots, taken)
            }
            Some(interval) => Self::part(resource, mode, interval),
            None => Self::whole(resource, mode),
        })
    }
}

/// Formats claims as a single word.
pub fn to_text(claims: &[Claim]) -> String {
    claims.iter().map(Claim::to_string).collect::<Vec<_>>().join("+")
}

/// Parses the claims of such a word.
pub fn parse(text: &str) -> Vec<Claim> {
    text.split('+').map(|claim| claim.parse().unwrap_or_else(|never| match never {})).collect()
}
