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

/// What stands for a secret.
const MASK: &str = "***";

/// How the names of options and variables end whose values are secrets, in any case.
const SECRETS: [&str; 4] = ["PASSWORD", "PASSWD", "TOKEN", "SECRET"];

fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    SECRETS.iter().any(|end| name.ends_with(end))
}

/// The words of a command line as every user may read them: with `***` for the passwords in URLs,
/// for the values in `NAME=value` and `--name value` where the name is that of a secret, and for
/// what follows `Bearer`. When in doubt, the function masks more.
pub fn without_secrets(words: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<String> {
    let mut is_value = false;
    let shown = words.into_iter().map(|word| {
        let word = word.as_ref();
        let shown = if is_value && word != "--" { MASK.to_owned() } else { without_values(&without_passwords(word)) };
        is_value = word.starts_with("--") && is_secret(word) || word == "Bearer" || word.ends_with(" Bearer");
        shown
    });
    shown.collect()
}

/// One word without the secrets that the word itself names.
fn without_values(word: &str) -> String {
    let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || "-_.=".contains(c));
    let mut signs = word.match_indices('=').map(|(at, _)| at);
    if let Some(at) = signs.find(|at| is_name(&word[..*at]) && is_secret(&word[..*at])) {
        return format!("{}={MASK}", &word[..at]);
    }
    let (mut shown, mut rest) = (String::with_capacity(word.len()), word);
    while let Some((before, after)) = rest.split_once("Bearer ") {
        let end = after.find(|c: char| c.is_whitespace() || c == '\'' || c == '"').unwrap_or(after.len());
        shown.extend([before, "Bearer ", if end == 0 { "" } else { MASK }]);
        rest = &after[end..];
    }
    shown + rest
}

/// Maximum length of a title in bytes.
pub const TITLE_BYTES: usize = 128;

/// A text for people as every user may read it: without secrets, on one line, and cut.
pub fn for_others(text: &str, bytes_max: usize) -> String {
    let text = one_line(&without_secrets(text.split_whitespace()).join(" "));
    text[..text.floor_char_boundary(bytes_max)].trim_end().to_owned()
}

/// `text` with `***` for the passwords in its URLs. When in doubt, the function masks more.
pub fn without_passwords(text: &str) -> String {
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

    use super::{json, reason, without_passwords, without_secrets};

    /// "The value is `***` where the name ends in PASSWORD, PASSWD, TOKEN or SECRET, and after
    /// `Bearer `", and no more than that.
    #[test]
    fn values_of_secret_names_are_masked() {
        for (line, expected) in [
            ("env PGPASSWORD=a|DB_PASSWD=b=c|X=d", "env PGPASSWORD=***|DB_PASSWD=***|X=d"),
            ("--api-token=a|--client-secret=|--tokens=a", "--api-token=***|--client-secret=***|--tokens=a"),
            ("--password|a b|c|--token|--x|y", "--password|***|c|--token|***|y"),
            ("--token|--|c", "--token|--|c"),
            ("--env=MY_TOKEN=a|-eMY_TOKEN=a", "--env=MY_TOKEN=***|-eMY_TOKEN=***"),
            ("-H|Authorization: Bearer a.b", "-H|Authorization: Bearer ***"),
            ("Authorization:|Bearer|a|b", "Authorization:|Bearer|***|b"),
            ("curl -H 'A: Bearer a' u 'B: Bearer b'", "curl -H 'A: Bearer ***' u 'B: Bearer ***'"),
            ("echo TOKEN=a|-pa|secret|a|https://u:p@h", "echo TOKEN=a|-pa|secret|a|https://u:***@h"),
        ] {
            let line = line.replacen("env ", "env|", 1);
            assert_eq!(without_secrets(line.split('|')).join("|"), expected.replacen("env ", "env|", 1));
        }
    }

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
