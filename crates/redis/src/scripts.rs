//! Holds the scripts that the build script assembles from lua/. Most scripts are the prelude and
//! one operation.

/// What tests change of a script.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant {
    /// The script has no fast path.
    pub is_general: bool,
    /// One call does so little that a few sessions are a crowd.
    pub is_bounded: bool,
}

/// How a script begins to say what one call does at most: the work on queues, the number of expired
/// sessions that it removes, the length of a queue that it does not read, and of how many
/// waiters it declares all names.
const BOUNDS: &str = "local work, crowd, long, heads = ";

/// A script with its SHA-1, by which a server knows it.
#[derive(Debug)]
pub struct Script {
    pieces: &'static [Piece],
    sha1: &'static str,
}

/// A part of the source.
#[derive(Debug)]
enum Piece {
    Always(&'static str),
    /// Handles common cases faster. Without it, the script has the same effect.
    Fast(&'static str),
}

impl Script {
    /// The SHA-1 of the source.
    pub fn sha1(&self) -> &'static str {
        self.sha1
    }

    /// The source.
    pub fn source(&self) -> String {
        self.variant(Variant::default())
    }

    /// The source of a variant, which has the same effect.
    pub fn variant(&self, variant: Variant) -> String {
        let text = |piece: &Piece| match *piece {
            Piece::Fast(_) if variant.is_general => "",
            Piece::Always(text) | Piece::Fast(text) => text,
        };
        let source: String = self.pieces.iter().map(text).collect();
        match source.split_once(BOUNDS) {
            Some((before, after)) if variant.is_bounded => format!("{before}{BOUNDS}1, 2, 1, 1 --{after}"),
            _ => source,
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// The build script uses this module, so its tests are here.
#[cfg(test)]
#[path = "lua/rewriting.rs"]
mod rewriting;

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::kept::{EVER, KEPT_MAX};
    use rlock_model::mode::{Mode, Nesting};
    use rlock_model::past::{JOBS_MAX, RETENTION, RETENTION_OF_TOTALS};
    use rlock_sys::clock::StoreTime;

    /// The build script has written the tables of the model into the scripts.
    #[test]
    fn scripts_have_the_tables_and_limits_of_the_model() {
        let letter = |mode: Mode| if mode == Mode::Slot { 's' } else { mode.as_str().chars().next().unwrap() };
        let fate = |nesting| match nesting {
            Nesting::AtOnce => '=',
            Nesting::Waits => 'w',
            Nesting::Refused => 'x',
        };
        let source = ACQUIRE.source();
        for held in Mode::ALL {
            let clashing: String = Mode::ALL.into_iter().filter(|mode| mode.clashes_with(held)).map(letter).collect();
            // A share clashes with what a slot clashes with.
            let clashing = clashing.replace('s', "sh");
            let fates: String = Mode::ALL.into_iter().map(|asked| fate(asked.below(held))).collect();
            for row in [clashing, fates] {
                let row = format!("{} = '{row}'", letter(held));
                assert!(source.contains(&row), "{row}");
            }
        }
        let micros = [RETENTION, RETENTION_OF_TOTALS, KEPT_MAX, EVER].map(|length| length.as_micros().to_string());
        let counts = [StoreTime::NEVER.as_micros().to_string(), JOBS_MAX.to_string()];
        for number in micros.iter().chain(&counts) {
            assert!(source.contains(number.as_str()), "{number}");
        }
    }

    /// The library struct knows integers as long as the server's `long`, which has four bytes on a
    /// server of 32 bits, and more on the servers of the other tests.
    #[test]
    fn binary_integers_have_at_most_four_bytes() {
        let mut formats = 0;
        for script in [&ACQUIRE, &RENEW, &RENEW_ALONE, &RELEASE, &HISTORY] {
            for format in script.source().split('\'').skip(1).step_by(2).filter(|text| text.starts_with('>')) {
                formats += 1;
                let mut rest = &format[1..];
                while let Some(kind) = rest.chars().next() {
                    let digits = rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |end| end + 1);
                    let size = &rest[1..digits];
                    assert!(kind == 'd' || kind == 'c' || kind == 'I' && matches!(size, "1" | "4"), "{format}");
                    rest = &rest[digits..];
                }
            }
        }
        assert!(formats > 5, "{formats}");
    }
}
