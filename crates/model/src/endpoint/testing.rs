//! Reads a key back into its number, so that the tests can prove that a key keeps the whole number.

use num_bigint::BigUint;

use super::Endpoint;
use super::key::{self, INFINITY, LONG, MAX_PLAIN, MAX_SHORT, NEGATIVE, POSITIVE, SHORT, ZERO};
use super::number::{MAX_DIGITS, Rational};

/// Enough bits for [`Endpoint::MAX_DIGITS`] digits: 10/3 is a little more than log2(10).
const MAX_BITS: u64 = (MAX_DIGITS as u64 * 10).div_ceil(3);

impl Endpoint {
    /// The number with this key. Its text is in lowest terms: `5`, `-1/3`, `inf`.
    ///
    /// Returns none if the bytes are not exactly the [`Endpoint::key`] of a number within
    /// [`Endpoint::MAX_DIGITS`]. The text may be longer than [`Endpoint::MAX_TEXT`], because a
    /// fraction can be longer than the decimal that was parsed.
    pub(super) fn decode(key: &[u8]) -> Option<Endpoint> {
        let text = if key == key::MINUS_INFINITY {
            "-inf".to_owned()
        } else if key == key::PLUS_INFINITY {
            "inf".to_owned()
        } else {
            decode(key, MAX_BITS)?.lowest_terms()?
        };
        Some(Endpoint { text: text.into(), key: key.into() })
    }
}

impl Rational {
    /// The text of a number in lowest terms, or none if the number exceeds the limit on digits.
    fn lowest_terms(&self) -> Option<String> {
        let sign = if self.negative { "-" } else { "" };
        let (numerator, denominator) = (self.numerator.to_string(), self.denominator.to_string());
        let is_within_limit = numerator.len().max(denominator.len()) <= MAX_DIGITS;
        is_within_limit.then(|| match denominator.as_str() {
            "1" => format!("{sign}{numerator}"),
            _ => format!("{sign}{numerator}/{denominator}"),
        })
    }
}

/// The finite number with this key, in lowest terms. Returns none if [`key::encode`] writes no such
/// key, or if the numerator or the denominator needs more than `max_bits` bits.
pub(super) fn decode(key: &[u8], max_bits: u64) -> Option<Rational> {
    let (&tag, rest) = key.split_first()?;
    let mut reader = Reader { rest, mask: 0x00, max_bits };
    let whole = reader.whole(tag)?;
    let (numerator, denominator) = reader.terms()?;
    let whole = whole * &denominator;
    let negative = tag == NEGATIVE;
    let numerator = if negative { whole - numerator } else { whole + numerator };
    (numerator.bits() <= max_bits).then_some(Rational { negative, numerator, denominator })
}

/// Advances two successive numerators, or two successive denominators, of the convergents by one
/// term.
fn next_convergent((before, last): (BigUint, BigUint), term: &BigUint) -> (BigUint, BigUint) {
    let next = &last * term + before;
    (last, next)
}

struct Reader<'k> {
    rest: &'k [u8],
    mask: u8,
    max_bits: u64,
}

impl Reader<'_> {
    /// Reads the absolute value of a0, which follows the byte `tag`, then sets the mask for a1.
    fn whole(&mut self, tag: u8) -> Option<BigUint> {
        self.mask = if tag == NEGATIVE { 0xFF } else { 0x00 };
        let whole = match tag {
            ZERO => BigUint::ZERO,
            NEGATIVE | POSITIVE => self.term()??,
            _ => return None,
        };
        self.mask = 0xFF;
        Some(whole)
    }

    /// Reads the numerator and the denominator of `0 + 1/(a1 + 1/(a2 + …))`, by the recurrence of
    /// the convergents.
    fn terms(&mut self) -> Option<(BigUint, BigUint)> {
        let one = BigUint::from(1u8);
        let mut numerators = (one.clone(), BigUint::ZERO);
        let mut denominators = (BigUint::ZERO, one.clone());
        let mut last = None;
        while let Some(term) = self.term()? {
            numerators = next_convergent(numerators, &term);
            denominators = next_convergent(denominators, &term);
            if denominators.1.bits() > self.max_bits {
                return None;
            }
            last = Some(term);
            self.mask = !self.mask;
        }
        // A list that ends in 1 is a second spelling of a shorter list.
        let is_canonical = self.rest.is_empty() && last != Some(one);
        is_canonical.then_some((numerators.1, denominators.1))
    }

    /// Reads one term. The inner none is infinity. The outer none is a code that is truncated, too
    /// large or not the shortest.
    fn term(&mut self) -> Option<Option<BigUint>> {
        let first = self.byte()?;
        let len = match first {
            0x00 => return None,
            1..=MAX_PLAIN => return Some(Some(BigUint::from(first))),
            INFINITY => return Some(None),
            LONG => usize::from(self.byte()?) << 8 | usize::from(self.byte()?),
            short => usize::from(short - SHORT) + 1,
        };
        let is_long = first == LONG;
        if is_long != (len > MAX_SHORT) || len as u64 > self.max_bits.div_ceil(8) {
            return None;
        }
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte ^ self.mask).collect();
        let is_shortest = bytes[0] != 0 && (len > 1 || bytes[0] > MAX_PLAIN);
        is_shortest.then(|| Some(BigUint::from_bytes_be(&bytes)))
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte ^ self.mask)
    }
}
