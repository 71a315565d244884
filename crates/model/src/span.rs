//! The part of a resource that a claim covers, and the algebra that decides whether two parts
//! overlap.
//!
//! # Cuts
//!
//! Cuts lie between the numbers: one cut just before and one just after each number. An interval
//! runs from one cut to another: `[a` starts before a, `(a` after it, `b]` ends after b, `b)`
//! before it. So open and closed ends need no separate cases:
//!
//! - an interval is not empty iff lower < upper;
//! - two intervals overlap iff lower1 < upper2 and lower2 < upper1;
//! - one interval covers another iff its lower cut is not above, and its upper cut not below, the
//!   other's.
//!
//! As bytes, a cut is the key of its number followed by `00` (before) or `01` (after). No key is a
//! prefix of another, so memcmp orders cuts like their numbers. No number lies beyond an infinity,
//! so each infinity has a single cut, which is its key alone. An open end at an infinity therefore
//! equals a closed end.

mod path;

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use super::endpoint::{Endpoint, EndpointError, shown};

/// A point between two numbers, or at one of the infinities. Cuts are compared byte by byte. The
/// cut of an ordinary number needs no memory of its own, so a search follows no pointers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cut(SmallVec<[u8; 22]>);

static AT_MINUS_INFINITY: LazyLock<Cut> = LazyLock::new(|| Cut::from_bytes(Cut::MINUS_INFINITY));
static AT_PLUS_INFINITY: LazyLock<Cut> = LazyLock::new(|| Cut::from_bytes(Cut::PLUS_INFINITY));

impl Cut {
    /// The bytes of the cut at -inf, which is below every other cut.
    pub(crate) const MINUS_INFINITY: &'static [u8] = &[0x00];
    /// The bytes of the cut at inf, which is above every other cut.
    pub(crate) const PLUS_INFINITY: &'static [u8] = &[0xFF];

    const BEFORE: u8 = 0x00;
    const AFTER: u8 = 0x01;

    /// The cut with these bytes. The bytes must come from [`Cut::as_bytes`]; they are not checked.
    pub fn from_bytes(bytes: &[u8]) -> Cut {
        Cut(bytes.into())
    }

    /// The bytes of the cut, whose byte order is the order of the cuts.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn beside(end: &Endpoint, side: u8) -> Cut {
        match end.key() {
            Self::MINUS_INFINITY => AT_MINUS_INFINITY.clone(),
            Self::PLUS_INFINITY => AT_PLUS_INFINITY.clone(),
            key => Self::from_bytes(&[key, &[side]].concat()),
        }
    }
}

/// The part of a resource that a claim covers.
///
/// Two spans are equal if they cover the same numbers, in whatever spelling. The whole equals
/// `(-inf,inf)`; [`Span::is_whole`] tells the two apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Span {
    /// The whole resource, claimed without an interval.
    Whole,
    /// The numbers of an interval. Clones share the interval.
    Interval(Arc<Interval>),
}

impl Span {
    /// The interval from `lo` to `hi`, including both ends.
    ///
    /// # Errors
    /// The same as those of [`Span::interval`].
    pub fn closed(lo: Endpoint, hi: Endpoint) -> Result<Span, SpanError> {
        Self::interval(lo, false, hi, false)
    }

    /// The interval from `lo` to `hi`, without its open ends.
    ///
    /// # Errors
    /// `lo` is above `hi`, or no number lies between the ends, as in `(1,1]` or `[inf,inf]`.
    pub fn interval(lo: Endpoint, lo_open: bool, hi: Endpoint, hi_open: bool) -> Result<Span, SpanError> {
        let lower = Cut::beside(&lo, if lo_open { Cut::AFTER } else { Cut::BEFORE });
        let upper = Cut::beside(&hi, if hi_open { Cut::BEFORE } else { Cut::AFTER });
        let is_empty = lower >= upper;
        let interval = Interval { lo, hi, lo_open, hi_open, lower, upper, path: None };
        match is_empty {
            true if interval.lo > interval.hi => Err(SpanError::Backwards(interval.shown())),
            true => Err(SpanError::Empty(interval.shown())),
            false => Ok(Span::Interval(Arc::new(interval))),
        }
    }

    /// The file or folder at an absolute path, and all that is in it: a part of the resource
    /// [`Resource::PATHS`](super::resource::Resource::PATHS). The path is taken as it is written.
    ///
    /// # Errors
    /// The path is relative or too long.
    pub fn path(path: &[u8]) -> Result<Span, SpanError> {
        let components = path::components(path)?;
        if components.is_empty() {
            return Ok(Span::Whole);
        }
        let [lo, hi] = path::ends(&components)?;
        let (lower, upper) = (Cut::beside(&lo, Cut::BEFORE), Cut::beside(&hi, Cut::BEFORE));
        let path = Some(path::written(&components).into());
        Ok(Span::Interval(Arc::new(Interval { lo, hi, lo_open: false, hi_open: true, lower, upper, path })))
    }

    /// Parses an interval such as `[1.2,1.8)`, `(a,b]` or `[-inf, 3)`. A square bracket includes
    /// its end, a round bracket excludes it. White space around the ends is ignored. A path, as
    /// [`Span::as_path`] returns it, stands for its interval.
    ///
    /// # Errors
    /// The text is not an interval, an end is not a number, or [`Span::interval`] or [`Span::path`]
    /// refuses the ends.
    pub fn parse(text: &str) -> Result<Span, SpanError> {
        if text.starts_with('/') {
            return Self::path(&path::unescaped(text));
        }
        let malformed = || SpanError::Malformed(shown(text));
        let (lo_open, rest) = match text.strip_prefix('(') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('[').ok_or_else(malformed)?),
        };
        let (hi_open, ends) = match rest.strip_suffix(')') {
            Some(ends) => (true, ends),
            None => (false, rest.strip_suffix(']').ok_or_else(malformed)?),
        };
        let (lo, hi) = ends.split_once(',').filter(|(_, hi)| !hi.contains(',')).ok_or_else(malformed)?;
        let end = |text: &str| Endpoint::parse(text.trim()).map_err(SpanError::End);
        Self::interval(end(lo)?, lo_open, end(hi)?, hi_open)
    }

    /// Whether the whole resource was claimed without an interval.
    pub fn is_whole(&self) -> bool {
        matches!(self, Span::Whole)
    }

    /// The interval, unless the span is the whole.
    pub fn as_interval(&self) -> Option<&Interval> {
        match self {
            Span::Whole => None,
            Span::Interval(interval) => Some(interval),
        }
    }

    /// The path, on one line, if [`Span::path`] made the span. The whole has none.
    pub fn as_path(&self) -> Option<&str> {
        self.as_interval()?.path.as_deref()
    }

    /// The cut at which the span starts.
    pub fn lower(&self) -> &Cut {
        match self {
            Span::Whole => &AT_MINUS_INFINITY,
            Span::Interval(interval) => &interval.lower,
        }
    }

    /// The cut at which the span ends. This cut is always above [`Span::lower`].
    pub fn upper(&self) -> &Cut {
        match self {
            Span::Whole => &AT_PLUS_INFINITY,
            Span::Interval(interval) => &interval.upper,
        }
    }

    /// Whether some number lies in both spans.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.lower() < other.upper() && other.lower() < self.upper()
    }

    /// Whether every number of the other span lies in this span.
    pub fn covers(&self, other: &Span) -> bool {
        self.lower() <= other.lower() && other.upper() <= self.upper()
    }
}

impl PartialEq for Span {
    fn eq(&self, other: &Span) -> bool {
        self.lower() == other.lower() && self.upper() == other.upper()
    }
}

impl Eq for Span {}

/// Formats the span as `whole`, or as the interval that the user wrote, or as its path.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Whole => f.pad("whole"),
            Span::Interval(interval) => interval.fmt(f),
        }
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl TryFrom<String> for Span {
    type Error = SpanError;

    fn try_from(text: String) -> Result<Self, SpanError> {
        if text == Span::Whole.to_string() { Ok(Span::Whole) } else { Span::parse(&text) }
    }
}

/// An interval that is not empty. [`Span::interval`], [`Span::closed`], [`Span::path`] and
/// [`Span::parse`] create it, and it is written as `[1.2,1.8)` or as its path.
#[derive(Clone, Debug)]
pub struct Interval {
    lo: Endpoint,
    hi: Endpoint,
    lo_open: bool,
    hi_open: bool,
    lower: Cut,
    upper: Cut,
    /// The path whose interval this is. It stands for the ends wherever the interval is written.
    path: Option<Box<str>>,
}

impl Interval {
    /// The lower end, as the user wrote it.
    pub fn lo(&self) -> &Endpoint {
        &self.lo
    }

    /// The upper end, as the user wrote it.
    pub fn hi(&self) -> &Endpoint {
        &self.hi
    }

    /// Whether the interval excludes its lower end.
    pub fn lo_open(&self) -> bool {
        self.lo_open
    }

    /// Whether the interval excludes its upper end.
    pub fn hi_open(&self) -> bool {
        self.hi_open
    }

    fn shown(&self) -> String {
        self.written(&shown(self.lo.text()), &shown(self.hi.text()))
    }

    fn written(&self, lo: &str, hi: &str) -> String {
        let left = if self.lo_open { '(' } else { '[' };
        let right = if self.hi_open { ')' } else { ']' };
        format!("{left}{lo},{hi}{right}")
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => f.pad(path),
            None => f.pad(&self.written(self.lo.text(), self.hi.text())),
        }
    }
}

/// The reason why a text or a pair of ends is not an interval.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    /// The lower end is above the upper end.
    #[error("the interval {0} ends before it starts")]
    Backwards(String),
    /// No number lies between the ends.
    #[error("the interval {0} is empty")]
    Empty(String),
    /// The text does not have the form of an interval.
    #[error("'{0}' is not an interval: write it as [1.2,1.8], [1.2,1.8), (1.2,1.8] or (1.2,1.8)")]
    Malformed(String),
    /// The text of an end is not a number.
    #[error("{0}")]
    End(EndpointError),
    /// The path does not begin with a slash.
    #[error("the path '{0}' does not begin with '/': write the whole path")]
    Relative(String),
    /// The path has more bytes than fit into the ends of an interval.
    #[error("a path may have {} bytes, this one has {bytes}: lock a folder nearer to '/'", path::MAX_BYTES)]
    LongPath {
        /// The length of the path, in bytes.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end(text: &str) -> Endpoint {
        Endpoint::parse(text).unwrap()
    }

    fn span(text: &str) -> Span {
        Span::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refusal(text: &str) -> String {
        Span::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn touching_intervals_overlap_only_if_both_ends_are_closed() {
        assert!(span("[1,2]").overlaps(&span("[2,3]")));
        assert!(span("[1,0.5e1]").overlaps(&span("[10/2,9]")));
        for (left, right) in [("[1,2)", "[2,3]"), ("[1,2]", "(2,3]"), ("[1,2)", "(2,3]")] {
            assert!(!span(left).overlaps(&span(right)), "{left} {right}");
            assert!(!span(right).overlaps(&span(left)), "{right} {left}");
        }
    }

    /// The numbers 0, 2 and 4 serve as ends, and the numbers 0 to 4 as test points, so each gap
    /// between two ends contains a point.
    #[derive(Clone, Copy)]
    struct Grid {
        lo: i32,
        hi: i32,
        lo_open: bool,
        hi_open: bool,
    }

    impl Grid {
        fn all() -> Vec<Grid> {
            let bits = (0..3).flat_map(|lo| (0..3).flat_map(move |hi| (0..4).map(move |open| (lo * 2, hi * 2, open))));
            bits.map(|(lo, hi, open)| Grid { lo, hi, lo_open: open & 1 == 1, hi_open: open & 2 == 2 }).collect()
        }

        fn points(self) -> Vec<i32> {
            let above = |x: i32| if self.lo_open { x > self.lo } else { x >= self.lo };
            let below = |x: i32| if self.hi_open { x < self.hi } else { x <= self.hi };
            (0..=4).filter(|x| above(*x) && below(*x)).collect()
        }

        fn span(self) -> Result<Span, SpanError> {
            let end = |x: i32| end(&x.to_string());
            Span::interval(end(self.lo), self.lo_open, end(self.hi), self.hi_open)
        }
    }

    #[test]
    fn overlaps_and_covers_agree_with_the_points_for_every_kind_of_ends() {
        let valid: Vec<Grid> = Grid::all().into_iter().filter(|grid| !grid.points().is_empty()).collect();
        assert_eq!(valid.len(), 3 * 4 + 3);
        for (a, b) in valid.iter().flat_map(|a| valid.iter().map(move |b| (a, b))) {
            let (x, y) = (a.span().unwrap(), b.span().unwrap());
            let (p, q) = (a.points(), b.points());
            assert_eq!(x.overlaps(&y), p.iter().any(|point| q.contains(point)), "{x} overlaps {y}");
            assert_eq!(x.covers(&y), q.iter().all(|point| p.contains(point)), "{x} covers {y}");
            assert_eq!(x == y, p == q, "{x} equals {y}");
        }
    }

    #[test]
    fn interval_without_points_is_rejected() {
        for grid in Grid::all().into_iter().filter(|grid| grid.points().is_empty()) {
            let left = if grid.lo_open { '(' } else { '[' };
            let right = if grid.hi_open { ')' } else { ']' };
            let why = if grid.lo > grid.hi { "ends before it starts" } else { "is empty" };
            let expected = format!("the interval {left}{},{}{right} {why}", grid.lo, grid.hi);
            assert_eq!(grid.span().unwrap_err().to_string(), expected);
        }
        assert_eq!(refusal("[5,3]"), "the interval [5,3] ends before it starts");
        assert_eq!(refusal("(1,1]"), "the interval (1,1] is empty");
        assert_eq!(refusal("[1,2/2)"), "the interval [1,2/2) is empty");
        assert_eq!(refusal("[inf,inf]"), "the interval [inf,inf] is empty");
        assert_eq!(refusal("[-inf,-inf]"), "the interval [-inf,-inf] is empty");
        assert_eq!(refusal("(inf,0)"), "the interval (inf,0) ends before it starts");
    }

    #[test]
    fn whole_equals_the_infinite_interval_but_remains_distinguishable() {
        for text in ["(-inf,inf)", "[-inf,inf]", "(-Infinity,+inf]"] {
            assert_eq!(span(text), Span::Whole);
            assert!(!span(text).is_whole() && Span::Whole.is_whole());
        }
        let half = span("[-inf,3)");
        assert!(Span::Whole.covers(&half) && !half.covers(&Span::Whole) && half.overlaps(&Span::Whole));
        assert_eq!(half, span("(-inf,3)"));
        assert_eq!(Span::Whole.to_string(), "whole");
        assert!(Span::Whole.as_interval().is_none());
    }

    #[test]
    fn cuts_are_the_key_and_a_side() {
        let of = |text: &str| (span(text).lower().as_bytes().to_vec(), span(text).upper().as_bytes().to_vec());
        let with = |text: &str, side: u8| [end(text).key(), &[side]].concat();
        assert_eq!(of("[1,2]"), (with("1", 0), with("2", 1)));
        assert_eq!(of("(1,2)"), (with("1", 1), with("2", 0)));
        assert_eq!(of("(-inf,inf)"), (vec![0x00], vec![0xFF]));
        assert_eq!(end("-inf").key(), Cut::MINUS_INFINITY);
        assert_eq!(end("inf").key(), Cut::PLUS_INFINITY);
        assert_eq!(&Cut::from_bytes(span("[1,2]").lower().as_bytes()), span("[1,2]").lower());
    }

    #[test]
    fn short_and_long_cuts_order_as_their_bytes_do() {
        let mut all: Vec<Vec<u8>> = vec![vec![]];
        for count in [1, 2, 3, 21, 22, 23, 24, 40] {
            for (fill, last) in [(0, 0), (0, 1), (0, 255), (1, 0), (1, 1), (255, 0), (255, 255)] {
                let mut bytes = vec![fill; count];
                bytes[count - 1] = last;
                all.push(bytes);
            }
        }
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let (one, other) = (Cut::from_bytes(a), Cut::from_bytes(b));
            assert_eq!(one.cmp(&other), a.cmp(b), "{a:?} and {b:?}");
            assert_eq!(one == other, a == b, "{a:?} and {b:?}");
            assert_eq!(one.as_bytes(), a);
        }
    }

    #[test]
    fn intervals_are_printed_as_they_were_written() {
        let written = span("[ 1.20 , 18e-1\t)");
        assert_eq!(written.to_string(), "[1.20,18e-1)");
        let interval = written.as_interval().unwrap();
        assert_eq!((interval.lo().text(), interval.lo_open()), ("1.20", false));
        assert_eq!((interval.hi().text(), interval.hi_open()), ("18e-1", true));
        assert_eq!(Span::closed(end("1"), end("1")).unwrap().to_string(), "[1,1]");
    }

    #[test]
    fn invalid_interval_text_is_rejected_with_advice() {
        for text in ["", "[", "[]", "1,2", "[1,2", "1,2]", "[1;2]", "[1]", "[1,2,3]", "]1,2[", " [1,2]", "whole"] {
            let expected =
                format!("'{text}' is not an interval: write it as [1.2,1.8], [1.2,1.8), (1.2,1.8] or (1.2,1.8)");
            assert_eq!(refusal(text), expected);
        }
        for (text, wrong) in [("[a,2]", "a"), ("(1,]", ""), ("[1,2 3]", "2 3"), ("[[1,2]]", "[1")] {
            assert!(refusal(text).starts_with(&format!("'{wrong}' is not a number: ")), "{text}");
        }
    }

    #[test]
    fn long_interval_is_shortened_in_messages_only() {
        let digits = "7".repeat(1_000);
        assert!(refusal(&format!("({digits},{digits})")).len() < 200);
        assert_eq!(span(&format!("[{digits},{digits}]")).to_string().len(), 2_003);
    }

    proptest! {
        #[test]
        fn any_text_is_an_interval_or_a_one_line_error(text in prop_oneof![any::<String>(), r"[\[(][-0-9./einf ]{0,6},[-0-9./einf ]{0,6}[\])]"]) {
            match Span::parse(&text) {
                Ok(parsed) => {
                    prop_assert!(parsed.lower() < parsed.upper());
                    prop_assert_eq!(&Span::try_from(parsed.to_string()).unwrap(), &parsed);
                }
                Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
            }
        }
    }
}
