//! Parses exact finite numbers and writes them in lowest terms. The parser accepts decimals with
//! exponents and fractions.
//!
//! The parent module handles infinities, messages and the limit on the text. The module `key`
//! handles the bytes in numeric order.

use num_bigint::BigUint;
use thiserror::Error;

use super::Endpoint;

pub(super) const MAX_DIGITS: usize = Endpoint::MAX_DIGITS;

/// The reason why a text is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Wrong {
    #[error("is not a number: write it as 1.2, -3e-9, 22/7, -inf or inf")]
    NotANumber,
    #[error("divides by zero: write inf or -inf for an interval without end")]
    ZeroDenominator,
    #[error("has more than {MAX_DIGITS} digits when written out: use an exponent nearer to zero")]
    TooManyDigits,
}

/// An exact finite number: sign, numerator and denominator. The denominator is never 0, the
/// fraction need not be in lowest terms, and zero may have either sign.
#[derive(Clone, Debug)]
pub(super) struct Rational {
    pub(super) negative: bool,
    pub(super) numerator: BigUint,
    pub(super) denominator: BigUint,
}

impl Rational {
    /// Parses a signed decimal or fraction.
    pub(super) fn parse(text: &str) -> Result<Rational, Wrong> {
        let (negative, unsigned) = split_sign(text);
        let (numerator, denominator) = match unsigned.split_once('/') {
            Some((numerator, denominator)) => parse_fraction(numerator, denominator)?,
            None => parse_decimal(unsigned)?,
        };
        Ok(Rational { negative, numerator, denominator })
    }
}

/// Whether the text has a minus sign, and the rest of the text after its sign.
pub(super) fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn parse_fraction(numerator: &str, denominator: &str) -> Result<(BigUint, BigUint), Wrong> {
    let part = |digits: &str| match digits {
        "" => Err(Wrong::NotANumber),
        _ => integer(digits),
    };
    let (numerator, denominator) = (part(numerator)?, part(denominator)?);
    if denominator.bits() == 0 {
        return Err(Wrong::ZeroDenominator);
    }
    Ok((numerator, denominator))
}

fn parse_decimal(text: &str) -> Result<(BigUint, BigUint), Wrong> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
        None => (text, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, part].concat();
    if digits.is_empty() {
        return Err(Wrong::NotANumber);
    }
    // Trailing zeros move into the exponent, so the limit on digits applies to the number and not
    // to its spelling.
    let significant = digits.trim_end_matches('0');
    let dropped = digits.len() - significant.len();
    let mantissa = integer(significant)?;
    let exponent = exponent.saturating_sub(part.len() as i64).saturating_add(dropped as i64);
    scaled(mantissa, significant.trim_start_matches('0').len(), exponent)
}

/// `mantissa × 10^exponent` as numerator and denominator. A number that would be too large is
/// refused before it is computed.
fn scaled(mantissa: BigUint, mantissa_digits: usize, exponent: i64) -> Result<(BigUint, BigUint), Wrong> {
    let one = BigUint::from(1u8);
    if mantissa_digits == 0 {
        return Ok((mantissa, one));
    }
    let grown = if exponent < 0 { 1 } else { mantissa_digits };
    if exponent.unsigned_abs().saturating_add(grown as u64) > MAX_DIGITS as u64 {
        return Err(Wrong::TooManyDigits);
    }
    let power = BigUint::from(10u8).pow(exponent.unsigned_abs() as u32);
    Ok(if exponent < 0 { (mantissa, power) } else { (mantissa * power, one) })
}

/// The exponent after the `e`. An exponent beyond the range of an i64 saturates, which is harmless
/// because such a number is far beyond the limit.
fn parse_exponent(text: &str) -> Result<i64, Wrong> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() || !is_digits(digits) {
        return Err(Wrong::NotANumber);
    }
    let size = digits.bytes().fold(0i64, |size, digit| size.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    Ok(if negative { -size } else { size })
}

/// The integer of these decimal digits, or 0 for no digits. (num-bigint alone would accept signs
/// and underscores too.)
fn integer(digits: &str) -> Result<BigUint, Wrong> {
    match digits {
        "" => Ok(BigUint::ZERO),
        _ if !is_digits(digits) => Err(Wrong::NotANumber),
        _ => BigUint::parse_bytes(digits.as_bytes(), 10).ok_or(Wrong::NotANumber),
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}
