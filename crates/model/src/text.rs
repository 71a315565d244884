//! Finds the characters that a terminal obeys or hides instead of showing them, so that no name
//! contains one.
//!
//! Two names that differ only in such a character look the same to people. A text with such a
//! character can appear as a different text.

use std::fmt;

/// The format characters (general category Cf), line separators (Zl), paragraph separators (Zp) and
/// other default-ignorable characters of Unicode 17.0, in order. [`SELECTORS`] are not among them.
///
/// The table includes the joiners of scripts and emoji (U+200C, U+200D), because they are invisible
/// too.
const FORMAT: [(char, char); 25] = [
    ('\u{AD}', '\u{AD}'),
    ('\u{34F}', '\u{34F}'),
    ('\u{600}', '\u{605}'),
    ('\u{61C}', '\u{61C}'),
    ('\u{6DD}', '\u{6DD}'),
    ('\u{70F}', '\u{70F}'),
    ('\u{890}', '\u{891}'),
    ('\u{8E2}', '\u{8E2}'),
    ('\u{115F}', '\u{1160}'),
    ('\u{17B4}', '\u{17B5}'),
    ('\u{180B}', '\u{180F}'),
    ('\u{200B}', '\u{200F}'),
    ('\u{2028}', '\u{202E}'),
    ('\u{2060}', '\u{206F}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{FEFF}', '\u{FEFF}'),
    ('\u{FFA0}', '\u{FFA0}'),
    ('\u{FFF0}', '\u{FFFB}'),
    ('\u{110BD}', '\u{110BD}'),
    ('\u{110CD}', '\u{110CD}'),
    ('\u{13430}', '\u{1343F}'),
    ('\u{1BCA0}', '\u{1BCA3}'),
    ('\u{1D173}', '\u{1D17A}'),
    ('\u{E0000}', '\u{E00FF}'),
    ('\u{E01F0}', '\u{E0FFF}'),
];

/// The variation selectors, which change the look of the character before them: an emoji or another
/// symbol, or an ideograph. Behind other characters of ASCII they are invisible.
const SELECTORS: [(char, char); 2] = [('\u{FE00}', '\u{FE0F}'), ('\u{E0100}', '\u{E01EF}')];

/// Maximum number of characters of a command or of a user's text in a message.
const SHOWN_MAX: usize = 60;

/// The text as a message repeats it: without its end if it is long.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether a terminal obeys or hides a character instead of showing it.
pub fn is_control_or_format(c: char) -> bool {
    c.is_control() || is_format(c)
}

fn is_format(c: char) -> bool {
    if c.is_ascii() {
        return false;
    }
    let next = FORMAT.partition_point(|(_, last)| *last < c);
    FORMAT.get(next).is_some_and(|(first, _)| *first <= c)
}

/// Whether a variation selector changes nothing that people see.
fn is_hidden_selector(before: Option<char>, c: char) -> bool {
    let is_selector_itself = |c: char| SELECTORS.iter().any(|(first, last)| (*first..=*last).contains(&c));
    let is_selector = is_selector_itself(c);
    // ASCII has no ideographs, and no emoji but the digits, # and * of keycaps.
    let takes_none = |before: char| before.is_ascii() && !before.is_ascii_digit() && before != '#' && before != '*';
    is_selector && before.is_none_or(|before| takes_none(before) || is_selector_itself(before))
}

/// The first control or format character of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprintable {
    /// The text with `?` for each such character, so that a terminal can print it safely.
    shown: String,
    first: char,
}

impl Unprintable {
    /// The first character that makes `text` unfit for a name, if any.
    pub fn find(text: &str) -> Option<Self> {
        let before = std::iter::once(None).chain(text.chars().map(Some));
        let is_unfit = |(before, c): &(Option<char>, char)| is_control_or_format(*c) || is_hidden_selector(*before, *c);
        let (_, first) = before.zip(text.chars()).find(is_unfit)?;
        Some(Self { shown: text.replace(|c| is_control_or_format(c) || c == first, "?"), first })
    }
}

impl Unprintable {
    /// What to do about it.
    pub const CURE: &'static str = "leave out control and format characters";

    /// What is wrong.
    pub fn what(&self) -> String {
        let Self { shown, first } = self;
        let (kind, code) = (if first.is_control() { "control" } else { "format" }, u32::from(*first));
        format!("'{shown}' has the {kind} character U+{code:04X}")
    }
}

impl fmt::Display for Unprintable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what(), Self::CURE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_table_is_sorted_so_a_search_finds_each_range() {
        assert!(FORMAT.iter().all(|(first, last)| first <= last));
        assert!(FORMAT.windows(2).all(|pair| pair[0].1 < pair[1].0));
        for (first, last) in FORMAT {
            assert!((first..=last).all(is_format));
            let outside = [u32::from(first) - 1, u32::from(last) + 1];
            assert!(outside.into_iter().filter_map(char::from_u32).all(|c| !is_format(c)), "beside {first:?}");
        }
    }

    #[test]
    fn bidi_zero_width_and_tag_characters_are_format_characters() {
        for c in "\u{7F}\u{9B}\u{AD}\u{34F}\u{61C}\u{115F}\u{180B}\u{180E}\u{3164}\u{FFA0}\u{200B}\u{200D}\u{200F}\u{2028}\u{2029}\u{202A}\u{202E}\u{2060}\u{2066}\u{2069}\u{FEFF}\u{FFF9}\u{E0001}\u{E0041}".chars() {
            assert!(is_control_or_format(c), "U+{:04X}", u32::from(c));
        }
        for c in " aä名é\u{301}\u{2010}\u{2030}\u{3000}\u{FE0F}\u{E0100}😀".chars() {
            assert!(!is_control_or_format(c), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn first_forbidden_character_is_named_and_all_are_masked() {
        let text = |name| Unprintable::find(name).map(|found| found.to_string());
        let advice = "leave out control and format characters";
        assert_eq!(text("a\u{202E}b\n"), Some(format!("'a?b?' has the format character U+202E: {advice}")));
        assert_eq!(text("a\n\u{202E}"), Some(format!("'a??' has the control character U+000A: {advice}")));
        assert_eq!(text("\u{E0041}"), Some(format!("'?' has the format character U+E0041: {advice}")));
        assert_eq!(text("plain"), None);
        assert_eq!(text("a\u{FE0F}b"), Some(format!("'a?b' has the format character U+FE0F: {advice}")));
        assert!(text("a-\u{FE0F}").is_some() && text("\u{2764}\u{FE0F}\u{E0100}").is_some());
        for fine in ["\u{2764}\u{FE0F}", "1\u{FE0F}\u{20E3}", "\u{845B}\u{E0100}"] {
            assert_eq!(text(fine), None);
        }
    }
}
