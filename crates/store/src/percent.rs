//! Percent-encodes and decodes text for URLs and for the keys on servers.

/// The characters of a path in a URL that need no escape, besides letters and digits.
pub const PATH: &[u8] = b"-._~/+=,";

/// The same of a word.
pub const WORD: &[u8] = b"-._~";

/// Resolves percent escapes. Returns `None` if an escape is malformed.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(&part.as_bytes()[2..]);
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
