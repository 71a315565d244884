//! Maps a path to the interval of the folder and of all that is in it.
//!
//! A path is the decimal fraction whose digits are its bytes, three for each. The byte 000, which
//! no path has, ends each component, also the last one. The interval of `/ab` is therefore
//! `[.097098000,.097098001)`. It contains the interval of `/ab/c`, whose fraction begins with the
//! same digits, and not that of `/abc`, which has other digits in the place of the 000. So two
//! paths overlap exactly if one of them leads to the other, or if they are equal.

use std::fmt::Write;

use super::super::text::is_control_or_format;
use super::SpanError;
use crate::endpoint::Endpoint;

/// Maximum length of a path, in bytes. Its digits and their point fill the text of an end.
pub(super) const MAX_BYTES: usize = (Endpoint::MAX_TEXT - 1) / DIGITS;

/// The number of digits of a byte.
const DIGITS: usize = 3;

/// The components of an absolute path. `.` and `..` are resolved by the text of the path alone.
pub(super) fn components(path: &[u8]) -> Result<Vec<&[u8]>, SpanError> {
    if !path.starts_with(b"/") {
        return Err(SpanError::Relative(escaped(path)));
    }
    let mut components = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => _ = components.pop(),
            name => components.push(name),
        }
    }
    let bytes: usize = components.iter().map(|name| name.len() + 1).sum();
    if bytes > MAX_BYTES { Err(SpanError::LongPath { bytes }) } else { Ok(components) }
}

/// The two ends of the interval of these components, without the upper one.
pub(super) fn ends(components: &[&[u8]]) -> Result<[Endpoint; 2], SpanError> {
    let mut digits = String::from(".");
    for byte in components.iter().flat_map(|name| name.iter().chain(&[0])) {
        // Writing to a String cannot fail.
        let _ = write!(digits, "{byte:0DIGITS$}");
    }
    // The last digit is the last one of a component's end.
    let next = format!("{}1", &digits[..digits.len() - 1]);
    let end = |text: &str| Endpoint::parse(text).map_err(SpanError::End);
    Ok([end(&digits)?, end(&next)?])
}

/// The path of these components as one line that [`unescaped`] reads. A byte that is no part of
/// UTF-8, or of a control or format character or a backslash, is written as `\x0a`.
pub(super) fn written(components: &[&[u8]]) -> String {
    components.iter().fold(String::new(), |path, name| path + "/" + &escaped(name))
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{ESCAPE}{byte:02x}");
        }
    };
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || is_control_or_format(c) {
                escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(c);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

const ESCAPE: &str = "\\x";

/// The path that [`written`] has written.
pub(super) fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split(ESCAPE);
    let mut bytes: Vec<u8> = parts.next().unwrap_or_default().into();
    for part in parts {
        let code = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.extend(code);
        bytes.extend_from_slice(&part.as_bytes()[code.map_or(0, |_| 2)..]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::{Span, SpanError};
    use super::MAX_BYTES;

    fn span(path: &str) -> Span {
        Span::path(path.as_bytes()).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn path_covers_what_is_in_it_and_nothing_beside_it() {
        let src = span("/w/src");
        for (path, is_covered) in [
            ("/w/src", true),
            ("/w/src/billing/a.rs", true),
            ("/w/src/\u{1}", true),
            ("/w/srcs", false),
            ("/w/sr", false),
            ("/w/src\u{1}", false),
            ("/w", false),
            ("/", false),
            ("/x/src", false),
        ] {
            assert_eq!(src.covers(&span(path)), is_covered, "{path}");
            let leads_there = ["/w", "/"].contains(&path);
            assert_eq!(src.overlaps(&span(path)), is_covered || leads_there, "{path}");
        }
        assert!(span("/").is_whole() && span("/..//./").is_whole());
        assert_eq!(span("/w/./x/../src//"), src);
    }

    /// A small generator, so that each run takes the same trees.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % end
        }
    }

    /// "Paths against a plain tree model": here a path is the list of its components, and two paths
    /// conflict if one list begins with the other.
    #[test]
    fn intervals_of_random_trees_relate_as_the_lists_of_their_components_do() {
        let mut pairs = 0;
        for seed in 0..8 {
            let mut random = Random(seed);
            let mut nodes: Vec<Vec<Vec<u8>>> = vec![Vec::new()];
            while nodes.len() < 125 {
                let mut node = nodes[random.below(nodes.len())].clone();
                // Few letters, so that names begin with each other; some at the ends of a byte.
                let letter = |random: &mut Random| [b'a', b'b', 1, 255, b'0'][random.below(5)];
                node.push((0..=random.below(3)).map(|_| letter(&mut random)).collect());
                nodes.push(node);
            }
            let path = |node: &Vec<Vec<u8>>| [&b"/"[..], &node.join(&b'/')].concat();
            let spans: Vec<_> = nodes.iter().map(|node| Span::path(&path(node)).unwrap()).collect();
            for ((a, x), (b, y)) in
                nodes.iter().zip(&spans).flat_map(|one| nodes.iter().zip(&spans).map(move |two| (one, two)))
            {
                assert_eq!(x.covers(y), b.starts_with(a), "{x} covers {y}");
                assert_eq!(x.overlaps(y), a.starts_with(b) || b.starts_with(a), "{x} overlaps {y}");
                pairs += 1;
            }
            for (node, span) in nodes.iter().zip(&spans) {
                let again = Span::try_from(String::from(span.clone())).unwrap();
                assert!(again == *span && again.to_string() == span.to_string(), "{node:?}");
            }
        }
        assert!(pairs >= 100_000, "{pairs}");
    }

    #[test]
    fn path_is_shown_on_one_line_and_read_again() {
        for (bytes, shown) in [
            (&b"/srv/my app"[..], "/srv/my app"),
            (b"/a\nb/\xff\\x41", "/a\\x0ab/\\xff\\x5cx41"),
            ("/\u{e9}\u{202e}".as_bytes(), "/\u{e9}\\xe2\\x80\\xae"),
        ] {
            let span = Span::path(bytes).unwrap();
            assert_eq!((span.to_string().as_str(), span.as_path()), (shown, Some(shown)));
            assert_eq!(Span::parse(shown), Ok(span));
        }
        assert_eq!((Span::parse("[0,1)").unwrap().as_path(), Span::Whole.as_path()), (None, None));
    }

    #[test]
    fn path_of_1365_bytes_is_taken_and_a_longer_one_is_refused() {
        // The slash at the start is the end of the last component.
        let path = |bytes: usize| format!("/{}", "x".repeat(bytes - 1)).into_bytes();
        assert_eq!(MAX_BYTES, 1365);
        assert!(Span::path(&path(1365)).is_ok());
        assert_eq!(Span::path(&path(1366)), Err(SpanError::LongPath { bytes: 1366 }));
        let text = "a path may have 1365 bytes, this one has 1366: lock a folder nearer to '/'";
        assert_eq!(Span::path(&path(1366)).unwrap_err().to_string(), text);
        let text = "the path 'src' does not begin with '/': write the whole path";
        assert_eq!(Span::path(b"src").unwrap_err().to_string(), text);
    }
}
