//! Encodes exact numbers as bytes whose memcmp order is numeric order. Equal numbers have equal
//! bytes, and no key is a prefix of another.
//!
//! Stores keep these bytes and scripts search them, so the bytes are a format: a change here needs
//! a new format version in every store. The module `number` handles numbers as text.
//!
//! # The code
//!
//! A rational number is written as its continued fraction `a0 + 1/(a1 + 1/(a2 + …))`. Floor
//! division computes the terms, so a0 may be any integer. The terms a1, a2, … are at least 1, and
//! the last of these is at least 2. Every rational number has exactly one such list of terms.
//!
//! A larger even term makes the value larger, and a larger odd term makes it smaller. A list that
//! ends is equal to a list that goes on with an infinite term. So lists compare like words with the
//! order of every odd letter reversed. memcmp compares them that way because the bytes of every odd
//! term are complemented. (W. Gosper, "Continued Fraction Arithmetic", HAKMEM item 101, 1972; D.
//! Knuth, TAOCP vol. 2, 4.5.3; P. Kornerup and D. Matula, "LCF: A Lexicographic Binary
//! Representation of the Rationals", 1995.)
//!
//! | bytes | |
//! | --- | --- |
//! | `00` | -inf |
//! | `40` ~code(-a0) terms | a0 below 0 |
//! | `80` terms | a0 is 0 |
//! | `C0` code(a0) terms | a0 above 0 |
//! | `FF` | inf |
//!
//! The terms are ~code(a1) code(a2) ~code(a3) …. The list ends with code(infinity), which is
//! complemented like any term at its position.
//!
//! | code(n) | n |
//! | --- | --- |
//! | `01`..`DF` | that number |
//! | `E0`..`FC`, then 1 to 29 bytes | big-endian, without leading zeros, `E0` and up |
//! | `FE`, two bytes of length, then 30 bytes and more | likewise |
//! | `FF` | infinity |
//!
//! A longer code begins with a larger byte, so codes order as their numbers do, and no code is a
//! prefix of another.

use num_bigint::BigUint;

use super::number::Rational;

/// The key of -inf.
pub(super) const MINUS_INFINITY: [u8; 1] = [0x00];
/// The key of inf.
pub(super) const PLUS_INFINITY: [u8; 1] = [0xFF];

pub(super) const NEGATIVE: u8 = 0x40;
pub(super) const ZERO: u8 = 0x80;
pub(super) const POSITIVE: u8 = 0xC0;

/// The largest term that is its own code.
pub(super) const MAX_PLAIN: u8 = 0xDF;
/// The code byte of a term of one byte. Each further byte of the term adds one to the code byte.
pub(super) const SHORT: u8 = 0xE0;
/// Maximum number of bytes of a term whose code byte tells its length.
pub(super) const MAX_SHORT: usize = 29;
pub(super) const LONG: u8 = 0xFE;
pub(super) const INFINITY: u8 = 0xFF;

/// The key of a finite number. The time is quadratic in the number of digits.
pub(super) fn encode(number: &Rational) -> Vec<u8> {
    let (whole, rest) = split(&number.numerator, &number.denominator);
    let is_zero = |n: &BigUint| n.bits() == 0;
    let mut writer = Writer { key: Vec::with_capacity(16), mask: 0x00 };
    let mut below_one = rest;
    if !number.negative {
        writer.whole(POSITIVE, &whole);
    } else if is_zero(&below_one) {
        writer.whole(NEGATIVE, &whole);
    } else {
        // Floor division splits -1/3 into -1 + 2/3.
        writer.whole(NEGATIVE, &(whole + 1u8));
        below_one = &number.denominator - below_one;
    }
    writer.terms(number.denominator.clone(), below_one);
    writer.key
}

/// The quotient and the remainder.
fn split(numerator: &BigUint, denominator: &BigUint) -> (BigUint, BigUint) {
    let quotient = numerator / denominator;
    let remainder = numerator - &quotient * denominator;
    (quotient, remainder)
}

struct Writer {
    key: Vec<u8>,
    /// The mask that is XORed with each byte of the current term.
    mask: u8,
}

impl Writer {
    /// Writes the sign and a0, whose absolute value is `magnitude`, then sets the mask for a1.
    fn whole(&mut self, sign: u8, magnitude: &BigUint) {
        if magnitude.bits() == 0 {
            self.key.push(ZERO);
        } else {
            self.key.push(sign);
            self.mask = if sign == NEGATIVE { 0xFF } else { 0x00 };
            self.term(&magnitude.to_bytes_be());
        }
        self.mask = 0xFF;
    }

    /// Writes the terms a1, a2, … of `denominator / below_one` and the end, where `below_one` is
    /// less than `denominator`.
    fn terms(&mut self, denominator: BigUint, below_one: BigUint) {
        let (mut large, mut small) = (denominator, below_one);
        loop {
            if let (Ok(large), Ok(small)) = (u64::try_from(&large), u64::try_from(&small)) {
                return self.small_terms(large, small);
            }
            if small.bits() == 0 {
                return self.push(INFINITY);
            }
            let (term, remainder) = split(&large, &small);
            self.term(&term.to_bytes_be());
            self.mask = !self.mask;
            (large, small) = (small, remainder);
        }
    }

    /// Does the work of [`Writer::terms`] in machine words, which are enough for everyday numbers.
    fn small_terms(&mut self, mut large: u64, mut small: u64) {
        while small != 0 {
            let term = large / small;
            let leading_zeros = term.leading_zeros() as usize / 8;
            self.term(&term.to_be_bytes()[leading_zeros..]);
            self.mask = !self.mask;
            (large, small) = (small, large % small);
        }
        self.push(INFINITY);
    }

    /// Writes the code of one term, which is given as big-endian bytes without leading zeros.
    fn term(&mut self, bytes: &[u8]) {
        match bytes {
            [plain] if *plain <= MAX_PLAIN => return self.push(*plain),
            short if short.len() <= MAX_SHORT => self.push(SHORT + (short.len() - 1) as u8),
            long => {
                let len = u16::try_from(long.len()).expect("the limit on digits keeps terms far below 65,536 bytes");
                self.push(LONG);
                len.to_be_bytes().iter().for_each(|byte| self.push(*byte));
            }
        }
        bytes.iter().for_each(|byte| self.push(*byte));
    }

    fn push(&mut self, byte: u8) {
        self.key.push(byte ^ self.mask);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::decode;
    use super::*;
    use proptest::prelude::*;

    const MAX_BITS: u64 = 20_000;

    fn rational(negative: bool, numerator: BigUint, denominator: BigUint) -> Rational {
        Rational { negative, numerator, denominator }
    }

    fn key(numerator: i64, denominator: u64) -> Vec<u8> {
        encode(&rational(numerator < 0, numerator.unsigned_abs().into(), denominator.into()))
    }

    #[test]
    fn key_format_is_fixed() {
        assert_eq!(key(0, 1), [0x80, 0x00]);
        assert_eq!(key(1, 1), [0xC0, 0x01, 0x00]);
        assert_eq!(key(-1, 1), [0x40, 0xFE, 0x00]);
        assert_eq!(key(1, 2), [0x80, 0xFD, 0xFF]);
        assert_eq!(key(-1, 3), [0x40, 0xFE, 0xFE, 0x02, 0x00]);
        assert_eq!(key(22, 7), [0xC0, 0x03, 0xF8, 0xFF]);
        assert_eq!(key(223, 1), [0xC0, 0xDF, 0x00]);
        assert_eq!(key(224, 1), [0xC0, 0xE0, 0xE0, 0x00]);
        assert_eq!(key(256, 1), [0xC0, 0xE1, 0x01, 0x00, 0x00]);
        assert_eq!(key(1, 300), [0x80, 0x1E, 0xFE, 0xD3, 0xFF]);
    }

    #[test]
    fn key_format_of_long_terms_is_fixed() {
        let of_bytes = |len: usize| encode(&rational(false, BigUint::from_bytes_be(&vec![0xAB; len]), 1u8.into()));
        assert_eq!(of_bytes(29), [&[0xC0, 0xFC][..], &[0xAB; 29], &[0x00]].concat());
        assert_eq!(of_bytes(30), [&[0xC0, 0xFE, 0x00, 0x1E][..], &[0xAB; 30], &[0x00]].concat());
    }

    #[test]
    fn codes_stay_in_order_where_their_form_changes() {
        let powers = (0..=300).map(|n| BigUint::from(1u8) << (8 * n));
        let around =
            powers.flat_map(|n: BigUint| [&n - 1u8, n.clone(), n + 1u8]).chain((1..=600u16).map(BigUint::from));
        let mut terms: Vec<BigUint> = around.filter(|n| n.bits() > 0).collect();
        terms.sort();
        terms.dedup();
        let one = BigUint::from(1u8);
        for pair in terms.windows(2) {
            let of = |negative, n: &BigUint, d: &BigUint| encode(&rational(negative, n.clone(), d.clone()));
            assert!(of(false, &pair[0], &one) < of(false, &pair[1], &one), "{pair:?}");
            assert!(of(true, &pair[0], &one) > of(true, &pair[1], &one), "{pair:?}");
            assert!(of(false, &one, &pair[0]) > of(false, &one, &pair[1]), "{pair:?}");
            let back = decode(&of(false, &pair[1], &one), MAX_BITS).unwrap();
            assert_eq!(back.numerator, pair[1]);
        }
    }

    #[test]
    fn non_canonical_and_invalid_keys_are_rejected() {
        let bad: [&[u8]; 16] = [
            &[],
            &[0x80],                               // the end is missing
            &[0x80, 0x00, 0x00],                   // bytes after the end
            &[0x80, 0x01],                         // a truncated term
            &[0x41, 0x00],                         // no such sign
            &[0xC0, 0x00, 0x00],                   // a term 0
            &[0xC0, 0xFF, 0x00],                   // an infinite whole
            &[0x80, 0xFE, 0xFF],                   // [0; 1], which is 1
            &[0xC0, 0x03, 0xF9, 0x01, 0x00],       // [3; 6, 1], which is [3; 7]
            &[0xC0, 0xE0, 0xDF, 0x00],             // 223 in two bytes
            &[0xC0, 0xE1, 0x00, 0xFF, 0x00],       // a leading zero
            &[0xC0, 0xE1, 0x01],                   // one byte of two
            &[0xC0, 0xFD, 0x01, 0x00],             // no such length
            &[0xC0, 0xFE, 0x00, 0x01, 0xE0, 0x00], // a long code of one byte
            &[0xC0, 0xFE, 0xFF, 0xFF, 0x01, 0x00], // longer than the key
            &[0xFF],                               // inf is no finite number
        ];
        for key in bad {
            assert!(decode(key, MAX_BITS).is_none(), "{key:02x?}");
        }
    }

    #[test]
    fn too_large_a_number_is_rejected_during_decoding() {
        let wide = encode(&rational(false, BigUint::from(1u8) << 99, BigUint::from(1u8)));
        assert!(decode(&wide, 100).is_some());
        assert!(decode(&wide, 99).is_none());
        let ones: Vec<u8> = std::iter::once(0x80).chain([0xFE, 0x01].into_iter().cycle().take(1_000_000)).collect();
        assert!(decode(&ones, 100).is_none());
    }

    proptest! {
        #[test]
        fn bytes_that_decode_are_the_key_of_their_number(
            tag in prop::sample::select(vec![NEGATIVE, ZERO, POSITIVE]),
            rest in prop::collection::vec(prop::sample::select(vec![0x00u8, 0x01, 0x02, 0x1F, 0x20, 0xE0, 0xE1, 0xFD, 0xFE, 0xFF]), 0..8),
        ) {
            let key = [&[tag][..], &rest[..]].concat();
            if let Some(number) = decode(&key, MAX_BITS) {
                prop_assert_eq!(encode(&number), key);
            }
        }

        #[test]
        fn common_factors_do_not_change_the_key(n in any::<i32>(), d in 1..u32::MAX, factor in 1..=u32::MAX) {
            let factor_is_invisible = key(i64::from(n), d.into())
                == encode(&rational(n < 0, BigUint::from(n.unsigned_abs()) * factor, BigUint::from(d) * factor));
            prop_assert!(factor_is_invisible);
        }
    }
}
