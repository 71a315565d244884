//! Lets the ends of an interval stand unquoted if they start with a minus sign, in any position
//! among the options.
//!
//! clap would read `-inf` as the options -i, -n, -f and refuse `-22/7`. So before clap sees the
//! words, numbers that look like options get a prefix, which every value parser removes. The prefix
//! is a control character, which no name, number, duration or mode may contain. So a marked word
//! cannot be mistaken for a typed word.

use std::ffi::OsString;

use rlock_model::endpoint::Endpoint;

/// The prefix of a marked word.
const MARK: char = '\u{1}';

/// Marks the numbers that start with a minus sign among the words before `--`. No option is spelt
/// like a number, so no option is lost.
pub fn mark(words: &mut [OsString]) {
    for word in words.iter_mut().take_while(|word| *word != "--") {
        if let Some(text) = word.to_str().filter(|text| text.starts_with('-') && Endpoint::parse(text).is_ok()) {
            *word = format!("{MARK}{text}").into();
        }
    }
}

/// The word without its mark.
pub(crate) fn unmark(word: &str) -> &str {
    word.strip_prefix(MARK).filter(|rest| rest.starts_with('-')).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::{mark, unmark};

    #[test]
    fn only_negative_numbers_before_the_command_are_marked() {
        let typed = ["range-write", "-n", "-inf", "-22/7", "-.5", "-3e-9", "-E", "5", "-nq", "--", "-3"];
        let mut words = typed.map(Into::into);
        mark(&mut words);
        let marked: Vec<usize> = (0..typed.len()).filter(|&at| words[at] != typed[at]).collect();
        assert_eq!(marked, [2, 3, 4, 5]);
        for at in marked {
            assert_eq!(unmark(words[at].to_str().unwrap()), typed[at]);
        }
    }

    #[test]
    fn typed_control_character_is_kept() {
        assert_eq!(unmark("\u{1}x"), "\u{1}x");
        assert_eq!(unmark("-3"), "-3");
    }
}
