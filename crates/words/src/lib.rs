//! Formats and sanitises text for one-line messages.
//!
//! `explained`: a failure as data, with what to do about it. `reason`: the text of an error.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use rlock_model::text::is_control_or_format;

mod explained;
mod reason;

pub use explained::Explained;
pub use reason::reason;

/// `text` with `?` for each control or format character. Names and commands are external text, and
/// a terminal obeys such characters.
pub fn one_line(text: &str) -> String {
    text.replace(is_control_or_format, "?")
}

/// The value as JSON on one line, with escapes for all control and format characters.
pub fn json(value: &Value) -> String {
    // Such characters occur in strings only.
    let mut text = String::new();
    for c in value.to_string().chars() {
        if is_control_or_format(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` can't fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

/// `text` with `***` for the passwords in its URLs. When in doubt, the function masks more.
pub fn without_passwords(text: &str) -> String {
    const MASK: &str = "***";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(|c: char| c.is_whitespace() || c == '\'' || c == '"').unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        shown.extend([before, "://"]);
        let (login, mut place) = url.rsplit_once('@').map_or(("", url), |(login, place)| (login, place));
        match login.split_once(':') {
            Some((user, _)) => shown.extend([user, ":", MASK, "@"]),
            None if login.len() < url.len() - place.len() => shown.extend([login, "@"]),
            None => {}
        }
        while let Some((before, value)) = place.split_once("password=") {
            shown.extend([before, "password=", MASK]);
            place = value.find('&').map_or("", |end| &value[end..]);
        }
        shown.push_str(place);
        rest = behind;
    }
    shown + rest
}

/// A word in shell syntax: quoted if a shell would read the bare word differently.
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Formats a length of time in the units that the options accept, down to milliseconds.
pub fn duration(length: Duration) -> String {
    let (seconds, millis) = (length.as_secs(), length.subsec_millis());
    let mut text = String::new();
    for (value, unit) in [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (millis.into(), "ms")] {
        if value > 0 {
            // Writing to a `String` can't fail.
            let _ = write!(text, "{value}{unit}");
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {

    use serde_json::{Value, json as value};

    use std::io;

    use super::{json, reason, without_passwords};

    #[test]
    fn json_has_no_character_that_a_terminal_obeys_or_hides() {
        let words = value!(["a\n\u{9b}b\u{7f}", "\u{202e}\u{3164}", "\u{e0041}é\u{2764}\u{fe0f}"]);
        let text = json(&words);
        assert_eq!(text, r#"["a\n\u009bb\u007f","\u202e\u3164","\udb40\udc41é❤️"]"#);
        assert_eq!(text.parse::<Value>().unwrap(), words);
    }

    #[test]
    fn passwords_in_urls_are_masked() {
        for (text, shown) in [
            ("redis://:secret@h:1/2", "redis://:***@h:1/2"),
            ("--store=redis://u:se@cr/et@h", "--store=redis://u:***@h"),
            ("a 'b://u:secret@h' c://u@h d://h:1 e://@h", "a 'b://u:***@h' c://u@h d://h:1 e://@h"),
            ("s://a,b/m?sentinel-password=secret&db=1", "s://a,b/m?sentinel-password=***&db=1"),
            ("s://h?password=secret", "s://h?password=***"),
            ("no url: a@b, password=x", "no url: a@b, password=x"),
            ("ends://", "ends://"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }

    #[test]
    fn system_error_text_is_lower_case_without_its_number() {
        assert_eq!(reason(&io::Error::from_raw_os_error(13)), "permission denied");
        assert_eq!(reason(&rustix::io::Errno::NOTDIR), "not a directory");
    }

    #[test]
    fn other_error_text_is_unchanged() {
        assert_eq!(reason(&io::Error::other("LMDB says No (os error 1)")), "LMDB says No (os error 1)");
    }
}
