//! Represents the ends of intervals exactly: as numbers in the form that people write, and as bytes
//! in numeric order.
//!
//! No end is rounded: an end is exactly the rational number of its text, or plus or minus infinity.
//! The module `span` builds intervals from ends and decides whether an end belongs to its interval.

mod key;
mod number;
#[cfg(test)]
mod testing;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::text::shortened;
use number::{Rational, Wrong};

/// One end of an interval: an exact rational number, or plus or minus infinity.
///
/// Two endpoints are equal if their numbers are equal, in whatever spelling: `0.5`, `1/2` and
/// `5e-1` are equal. Clones share the text and the key.
#[derive(Clone)]
pub struct Endpoint {
    text: Arc<str>,
    key: Arc<[u8]>,
}

impl Endpoint {
    /// Maximum length of the text of an endpoint, in bytes.
    pub(crate) const MAX_TEXT: usize = 4_096;

    /// Maximum number of decimal digits of the numerator and of the denominator, with the exponent
    /// written out.
    ///
    /// Without this limit, a short text such as `1e1000000000` could ask for a number that fills
    /// the memory.
    pub(crate) const MAX_DIGITS: usize = 4_096;

    /// Parses the text of a number.
    ///
    /// A number is a decimal (`1`, `-1.2`, `.5`, `5.`, `1E+6`, `-3e-9`), a fraction of two integers
    /// (`22/7`, `-1/3`), or `inf` or `infinity` in any case. Each may start with a sign. Spaces,
    /// digit separators and other bases are not allowed.
    ///
    /// # Errors
    /// The text is not such a number or is longer than `Endpoint::MAX_TEXT`. Its denominator is
    /// zero, or the number has more than `Endpoint::MAX_DIGITS` digits.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        if text.len() > Self::MAX_TEXT {
            return Err(EndpointError(Fault::TextTooLong { bytes: text.len() }));
        }
        let key = parse_key(text).map_err(|wrong| EndpointError(Fault::Number { shown: shown(text), wrong }))?;
        Ok(Endpoint { text: text.into(), key })
    }

    /// The text as the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The bytes of the number. Byte order is numeric order, equal numbers have equal bytes, and no
    /// key is a prefix of another.
    ///
    /// -inf is `00`, inf is `FF`, and finite numbers lie between them. Decimals take about two
    /// bytes for each digit, at worst five.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Endpoint) -> bool {
        self.key == other.key
    }
}

impl Eq for Endpoint {}

impl PartialOrd for Endpoint {
    fn partial_cmp(&self, other: &Endpoint) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Endpoint {
    fn cmp(&self, other: &Endpoint) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.text)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// The reason why a text is not an endpoint. The message quotes the text, shortened and without
/// control characters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct EndpointError(Fault);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Fault {
    #[error("an end of an interval may have {} bytes, this one has {bytes}", Endpoint::MAX_TEXT)]
    TextTooLong { bytes: usize },
    #[error("'{shown}' {wrong}")]
    Number { shown: String, wrong: Wrong },
}

/// Sanitises and shortens a user's text for a one-line message.
pub(super) fn shown(text: &str) -> String {
    shortened(&text.replace(char::is_control, "?"))
}

fn parse_key(text: &str) -> Result<Arc<[u8]>, Wrong> {
    let (negative, unsigned) = number::split_sign(text);
    let is_infinite = ["inf", "infinity"].iter().any(|word| unsigned.eq_ignore_ascii_case(word));
    Ok(match (is_infinite, negative) {
        (true, true) => key::MINUS_INFINITY.into(),
        (true, false) => key::PLUS_INFINITY.into(),
        (false, _) => key::encode(&Rational::parse(text)?).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::{BigInt, BigUint, Sign};
    use proptest::prelude::*;

    fn end(text: &str) -> Endpoint {
        Endpoint::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refusal(text: &str) -> String {
        Endpoint::parse(text).unwrap_err().to_string()
    }

    /// Checks that the numbers of the texts ascend.
    fn assert_ascending(texts: &[&str]) {
        for pair in texts.windows(2) {
            assert!(end(pair[0]) < end(pair[1]), "{} < {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn numbers_compare_by_value_in_any_spelling() {
        assert_ascending(&[
            "-inf",
            "-1e4000",
            "-224",
            "-223",
            "-1.5",
            "-1",
            "-999999/1000000",
            "-1/2",
            "-1/3",
            "-3e-9",
            "0",
        ]);
        assert_ascending(&[
            "0", "1e-4000", "3e-9", "0.333", "1/3", "0.334", ".5", "1", "3.14159", "22/7", "10", "1e4000", "INF",
        ]);
        assert_ascending(&["9007199254740991", "9007199254740992", "9007199254740993"]);
        assert_ascending(&["0.3", "0.30000000000000004", "0.3000000000000000444089209850062616169452667236328125"]);
    }

    #[test]
    fn spellings_of_one_number_are_equal() {
        let families: [&[&str]; 6] = [
            &["0", "-0", "+0", "0.", ".0", "0/5", "-0e99999999999999999999", "0.000"],
            &["0.5", ".5", "1/2", "5e-1", "+50.0E-2", "000.5", "500/1000"],
            &["-1.2", "-6/5", "-12e-1", "-0.00012e+4", "-120000e-5"],
            &["1e3", "1000", "1000.", "1000/1", "0.0001e7"],
            &["inf", "+inf", "Infinity", "+INFINITY"],
            &["-inf", "-INF", "-infinity"],
        ];
        for family in families {
            for text in family {
                assert_eq!(end(text), end(family[0]), "{text}");
                assert_eq!(end(text).text(), *text);
            }
        }
    }

    #[test]
    fn invalid_number_is_rejected_with_advice() {
        for text in [
            "", "+", "-", ".", "-.", "e5", ".e5", "1e", "1e+", "1e1.5", "1.2.3", "1_000", "0x10", " 1", "1 ", "--1",
            "+-1", "1,5", "nan", "NaN", "in", "infin", "1/", "/2", "/", "1/2/3", "1/-2", "1.5/2", "1/2e3", "１", "1e٣",
            "½",
        ] {
            let expected = format!("'{text}' is not a number: write it as 1.2, -3e-9, 22/7, -inf or inf");
            assert_eq!(refusal(text), expected);
        }
        assert_eq!(refusal("-1/000"), "'-1/000' divides by zero: write inf or -inf for an interval without end");
    }

    #[test]
    fn invalid_text_is_shortened_and_sanitised_in_messages() {
        assert!(refusal("1\n\u{1b}[2J").starts_with("'1??[2J' is not"));
        let long = refusal(&"é".repeat(500));
        assert!(long.starts_with(&format!("'{}…' is not", "é".repeat(60))), "{long}");
    }

    #[test]
    fn number_beyond_a_limit_is_rejected_with_the_limit() {
        let tail = "has more than 4096 digits when written out: use an exponent nearer to zero";
        for text in ["1e4096", "1e1000000000", "1e-4096", "-1e-99999999999999999999999", "12e4095", "0.1e4097"] {
            assert_eq!(refusal(text), format!("'{text}' {tail}"));
        }
        for text in ["1e4095", "1e-4095", "12e4094", "1000e-4098", "0.1e4096"] {
            assert_eq!(Endpoint::decode(end(text).key()), Some(end(text)));
        }
        assert_eq!(refusal(&"1".repeat(5000)), "an end of an interval may have 4096 bytes, this one has 5000");
        let longest = end(&"9".repeat(4096));
        assert_eq!(Endpoint::decode(longest.key()).unwrap().text(), longest.text());
        assert_eq!(Endpoint::decode(end(&format!("-{}/9", "1".repeat(4093))).key()).unwrap().text().len(), 4096);
        assert!(Endpoint::decode(&[&[0xC0, 0xFE, 0x06, 0xA6, 0x80][..], &[0; 1701], &[0x00]].concat()).is_none());
    }

    #[test]
    fn decoded_texts_are_in_lowest_terms() {
        for (text, lowest) in
            [("5.", "5"), ("-2/6", "-1/3"), ("-0", "0"), ("0.125", "1/8"), ("-Infinity", "-inf"), ("+INF", "inf")]
        {
            let back = Endpoint::decode(end(text).key()).unwrap();
            assert_eq!((back.text(), &back), (lowest, &end(text)));
        }
    }

    #[test]
    fn intervals_nest_thousands_of_terms_deep() {
        // The quotients of successive Fibonacci numbers enclose the golden ratio, each pair inside
        // the pair before it. All terms of their continued fractions are 1.
        let mut below = vec![];
        let mut above = vec![];
        let (mut last, mut next) = (BigUint::from(1u8), BigUint::from(1u8));
        for n in 0..9_600 {
            if n < 40 || n % 1_600 < 2 {
                let side = if n % 2 == 0 { &mut below } else { &mut above };
                side.push(end(&format!("{next}/{last}")));
            }
            (last, next) = (next.clone(), last + next);
        }
        assert!(below.last().unwrap().key().len() > 8_000);
        assert!(below.is_sorted_by(|a, b| a < b));
        assert!(above.is_sorted_by(|a, b| a > b));
        assert!(below.last() < above.last());
        let deepest = below.last().unwrap();
        assert_eq!(Endpoint::decode(deepest.key()).unwrap().text(), deepest.text());
    }

    /// An exact number for the comparison: the numerator and the positive denominator.
    type Exact = (BigInt, BigInt);

    /// A number and one of its spellings.
    fn spelled() -> impl Strategy<Value = (Exact, String)> {
        let exact = |negative: bool, digits: &str| {
            let magnitude = BigInt::parse_bytes(digits.as_bytes(), 10).unwrap();
            if negative { -magnitude } else { magnitude }
        };
        let sign = |negative| if negative { "-" } else { "" };
        let fraction = (any::<bool>(), "[0-9]{1,40}", "[0-9]{0,40}[1-9]").prop_map(move |(negative, p, q)| {
            let denominator = BigInt::parse_bytes(q.as_bytes(), 10).unwrap();
            ((exact(negative, &p), denominator), format!("{}{p}/{q}", sign(negative)))
        });
        let small = (-30i32..30, 1i32..30).prop_map(|(p, q)| ((p.into(), q.into()), format!("{p}/{q}")));
        let decimal = (any::<bool>(), "[0-9]{0,30}", "[0-9]{1,30}", -40i32..40).prop_map(
            move |(negative, whole, part, exponent)| {
                let scale = |exponent: i32| BigInt::from(10).pow(exponent.max(0).unsigned_abs());
                let shift = exponent - part.len() as i32;
                let numerator = exact(negative, &format!("{whole}{part}")) * scale(shift);
                ((numerator, scale(-shift)), format!("{}{whole}.{part}e{exponent}", sign(negative)))
            },
        );
        prop_oneof![fraction, small, decimal]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn numbers_that_differ_in_digit_1000_differ(digits in "[0-9]{1000}", whole in "-?[0-9]{1,3}") {
            let (a, b) = (format!("{whole}.{digits}"), format!("{whole}.{digits}1"));
            let (low, high) = if whole.starts_with('-') { (&b, &a) } else { (&a, &b) };
            prop_assert!(end(low) < end(high));
            prop_assert_eq!(end(&a), end(&format!("{}{}e-1000", whole, digits)));
        }
    }

    proptest! {
        #[test]
        fn keys_order_as_the_exact_numbers_do(((p, q), a) in spelled(), ((r, s), b) in spelled()) {
            prop_assert_eq!(end(&a).cmp(&end(&b)), (p * s).cmp(&(r * q)), "{} and {}", a, b);
        }

        #[test]
        fn numbers_that_almost_agree_differ(((p, q), a) in spelled(), gap in "1[0-9]{0,60}") {
            // a + 1/(q·gap), which is closer to a than any number of a's own size.
            let wider = &q * BigInt::parse_bytes(gap.as_bytes(), 10).unwrap();
            let above = format!("{}/{wider}", p * &wider / q + 1);
            prop_assert!(end(&a) < end(&above), "{} < {}", a, above);
        }

        #[test]
        fn no_key_is_a_prefix_of_another((_, a) in spelled(), (_, b) in spelled()) {
            let (a, b) = (end(&a), end(&b));
            prop_assert!(a == b || !a.key().starts_with(b.key()));
            for infinite in ["-inf", "inf"] {
                prop_assert!(!a.key().starts_with(end(infinite).key()));
            }
        }

        #[test]
        fn key_decodes_to_its_number((exact, text) in spelled()) {
            let (numerator, denominator) = exact;
            let back = Endpoint::decode(end(&text).key()).unwrap();
            prop_assert_eq!(&end(&text), &back);
            prop_assert_eq!(&end(back.text()), &back);
            let (p, q) = back.text().split_once('/').unwrap_or((back.text(), "1"));
            let parse = |digits: &str| BigInt::parse_bytes(digits.as_bytes(), 10).unwrap();
            prop_assert_eq!(parse(p) * denominator, numerator * parse(q));
            prop_assert!(parse(q).sign() == Sign::Plus);
        }

        #[test]
        fn any_text_is_a_number_or_a_one_line_error(text in prop_oneof![any::<String>(), "[-+0-9./eE inf]{0,12}"]) {
            match Endpoint::parse(&text) {
                Ok(number) => prop_assert_eq!(Endpoint::decode(number.key()), Some(number)),
                Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
            }
        }

        #[test]
        fn any_bytes_are_the_key_of_a_number_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(number) = Endpoint::decode(&bytes) {
                prop_assert_eq!(number.key(), &bytes[..]);
                prop_assert_eq!(&end(number.text()), &number);
            }
        }
    }
}
