//! Others' words, put in rlock's manner.

use std::fmt::Display;

/// A reason in lower case and without the error's number, whether it comes from the system or not.
pub(crate) fn reason(error: &dyn Display) -> String {
    let text = error.to_string();
    let Some((words, _)) = text.split_once(" (os error") else { return text };
    // Only the system's own words start in upper case, and they stand last where there are others before them.
    let (before, words) = words.rsplit_once(": ").map_or(("", words), |(before, words)| (before, words));
    let mut letters = words.chars();
    let words = letters.next().into_iter().flat_map(char::to_lowercase).chain(letters);
    let gap = if before.is_empty() { "" } else { ": " };
    before.chars().chain(gap.chars()).chain(words).collect()
}

/// `text` with `?` for each control character: names and commands are others' text, and a terminal obeys.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::reason;

    #[test]
    fn the_systems_words_lose_their_capital_and_their_number() {
        assert_eq!(reason(&io::Error::from_raw_os_error(13)), "permission denied");
        assert_eq!(
            reason(&"cannot write 'X': No space left on device (os error 28)"),
            "cannot write 'X': no space left on device"
        );
        assert_eq!(reason(&rustix::io::Errno::NOTDIR), "not a directory");
    }

    #[test]
    fn other_words_stay() {
        assert_eq!(reason(&"LMDB says no"), "LMDB says no");
    }
}
