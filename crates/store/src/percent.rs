//! Percent-encodes and decodes text for URLs and for the keys on servers.

/// Resolves percent escapes. Returns `None` if an escape is malformed.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first == b'%' {
            let digits = tail.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    Some(bytes)
}

const HEX: [&str; 16] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "A", "B", "C", "D", "E", "F"];

/// Escapes all bytes except letters, digits and the bytes in `plain`. [`decode`] restores the
/// original bytes.
pub fn encode(bytes: &[u8], plain: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    append_encoded(&mut text, bytes, plain);
    text
}

/// Appends what [`encode`] returns.
pub fn append_encoded(text: &mut String, bytes: &[u8], plain: &[u8]) {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.extend(["%", HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_decode_to_the_original() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all, b"/.")).unwrap(), all);
        assert_eq!(encode("a/ü%".as_bytes(), b"/"), "a/%C3%BC%25");
    }

    #[test]
    fn escape_without_two_digits_is_rejected() {
        for text in ["%", "%0", "%zz", "%+1", "a%2"] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode("%2f%2F").unwrap(), b"//");
    }
}
