//! Splits the bytes of a connection into lines.

/// The maximum length of a line in bytes, without its end.
pub(super) const LINE_BYTES_MAX: usize = 4096;

/// The bytes that are received and not yet taken as lines.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// The number of bytes that have been searched for the end of a line.
    searched: usize,
}

/// A line that is longer than [`LINE_BYTES_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Input {
    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next line without its end, which is LF or CRLF. `None` if no line is complete.
    pub(super) fn next_line(&mut self) -> Option<Result<Vec<u8>, TooLong>> {
        let Some(found) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return (self.searched > LINE_BYTES_MAX + 1).then_some(Err(TooLong));
        };
        let end = self.searched + found;
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        self.searched = 0;
        if self.bytes.is_empty() {
            // An idle client must not keep the memory of its longest line.
            self.bytes = Vec::new();
        }
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(if line.len() > LINE_BYTES_MAX { Err(TooLong) } else { Ok(line) })
    }

    /// Whether a complete line may be left.
    pub(super) fn has_unsearched(&self) -> bool {
        self.searched < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &mut Input) -> Vec<String> {
        std::iter::from_fn(|| input.next_line()).map(|line| String::from_utf8(line.unwrap()).unwrap()).collect()
    }

    #[test]
    fn lines_end_in_lf_or_crlf_wherever_the_bytes_are_cut() {
        let text = b"LOCK a\nPING\r\n\n\r\nrest";
        for cut in 0..text.len() {
            let mut input = Input::default();
            input.push(&text[..cut]);
            let mut found = lines(&mut input);
            input.push(&text[cut..]);
            found.extend(lines(&mut input));
            assert_eq!(found, ["LOCK a", "PING", "", ""], "cut at {cut}");
            assert!(!input.has_unsearched());
        }
    }

    #[test]
    fn longest_line_is_taken_and_a_longer_one_is_not() {
        for end in ["\n", "\r\n"] {
            let mut input = Input::default();
            input.push(&[b'x'; LINE_BYTES_MAX]);
            assert_eq!(input.next_line(), None);
            input.push(end.as_bytes());
            assert_eq!(input.next_line().unwrap().unwrap().len(), LINE_BYTES_MAX);
            input.push(&[b'x'; LINE_BYTES_MAX + 1]);
            input.push(end.as_bytes());
            assert_eq!(input.next_line(), Some(Err(TooLong)));
        }
        let mut endless = Input::default();
        endless.push(&[b'x'; LINE_BYTES_MAX + 2]);
        assert_eq!(endless.next_line(), Some(Err(TooLong)));
    }
}
