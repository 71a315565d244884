//! The modes of a claim and the three tables over them: which modes clash, which mode nests below
//! which, and which mode lowers to which. The scripts have the first two, too, so these are in
//! `tables`.
//!
//! This module compares modes only. The module `conflict` decides whether two claims meet at all
//! (resource, span, session) and counts the slots that are taken.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::tables::Nesting;
use crate::tables::{BELOW, CLASHES};

/// How a claim shares its span with other claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Shared: goes with reads, prewrites and slots.
    Read,
    /// A read that may later become a write: goes with reads and slots, but not with another
    /// prewrite.
    Prewrite,
    /// Exclusive.
    Write,
    /// One of the N slots of a resource.
    Slot,
}

impl Mode {
    /// Every mode, in the order of the documentation.
    pub const ALL: [Mode; 4] = [Mode::Read, Mode::Prewrite, Mode::Write, Mode::Slot];

    /// The mode's name: `read`, `prewrite`, `write` or `slot`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Read => "read",
            Mode::Prewrite => "prewrite",
            Mode::Write => "write",
            Mode::Slot => "slot",
        }
    }

    /// Whether a claim of this mode clashes with a claim of mode `held` of another session over an
    /// overlapping span. The relation is symmetric.
    ///
    /// `slot` against `slot` returns false. Two slots clash only when all N are taken, which needs
    /// a count of the holders, so the module `conflict` decides it.
    pub const fn clashes_with(self, held: Mode) -> bool {
        self.clashing().contains(held)
    }

    /// The modes that [clash](Mode::clashes_with) with this one.
    pub const fn clashing(self) -> Modes {
        let (row, mut modes, mut at) = (CLASHES[self as usize], 0, 0);
        while at < row.len() {
            modes |= (row[at] as u8) << at;
            at += 1;
        }
        Modes(modes)
    }

    /// How a claim of this mode is treated below an ancestor's hold of mode `held` that covers the
    /// claim.
    ///
    /// The rule behind the table: a descendant's claim may wait only if no session that it can wait
    /// for can be waiting for the ancestor. The ancestor ends no sooner than its descendant.
    ///
    /// - Below `write` the claim has nothing to wait for: no other session holds a clashing claim.
    /// - Below `prewrite`, the hold already includes `read` and `prewrite`. `write` is the upgrade
    ///   and waits for readers and slots. There is only one prewrite at a time, so no two upgrades
    ///   can wait for each other.
    /// - Below `read` or `slot`, growth to `prewrite` or `write` is refused. Two such holders would
    ///   wait for each other's first hold for ever.
    /// - A `slot` below `read` or `prewrite` waits for a free slot. No holder of a slot can be
    ///   waiting for that read or prewrite, because a slot hold cannot grow either.
    /// - Below `slot`, the hold already includes `slot`. `read` clashes with no claim that can be
    ///   held beside a slot.
    pub const fn below(self, held: Mode) -> Nesting {
        BELOW[held as usize][self as usize]
    }

    /// Whether a hold of this mode may be downgraded to `to`. A downgrade to the same mode is
    /// allowed and changes nothing.
    ///
    /// No mode lowers to or from `slot`, because a slot is counted and is neither more nor less
    /// than a read.
    pub const fn lowers_to(self, to: Mode) -> bool {
        matches!(
            (self, to),
            (Mode::Write, Mode::Write | Mode::Prewrite | Mode::Read)
                | (Mode::Prewrite, Mode::Prewrite | Mode::Read)
                | (Mode::Read, Mode::Read)
        )
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Mode, ModeError> {
        let named = Mode::ALL.into_iter().find(|mode| mode.as_str() == text);
        named.ok_or_else(|| ModeError { shown: text.replace(char::is_control, "?") })
    }
}

/// The error for a text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{shown}' is not a mode: write read, prewrite, write or slot")]
pub struct ModeError {
    shown: String,
}

/// A set of modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Modes(u8);

impl Modes {
    /// The empty set.
    pub const EMPTY: Modes = Modes(0);
    /// The set of all modes.
    pub const ALL: Modes = Modes::of(&Mode::ALL);

    /// The set of the given modes.
    pub const fn of(modes: &[Mode]) -> Modes {
        let mut set = Modes::EMPTY;
        let mut rest = modes;
        while let [first, others @ ..] = rest {
            set.insert(*first);
            rest = others;
        }
        set
    }

    /// Adds a mode.
    pub const fn insert(&mut self, mode: Mode) {
        self.0 |= mode.bit();
    }

    /// Whether the mode is in the set.
    pub const fn contains(self, mode: Mode) -> bool {
        self.0 & mode.bit() != 0
    }

    /// The modes that are in either set.
    #[must_use]
    pub const fn union(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }

    /// The modes that are in both sets.
    #[must_use]
    pub(crate) const fn intersection(self, other: Modes) -> Modes {
        Modes(self.0 & other.0)
    }

    /// The modes that are not in the set.
    #[must_use]
    pub const fn complement(self) -> Modes {
        Modes(self.0 ^ Modes::ALL.0)
    }

    /// Whether the sets have a mode in common.
    pub const fn intersects(self, other: Modes) -> bool {
        self.0 & other.0 != 0
    }
}

/// The modes of the requests that a claim of this mode may block.
pub(super) fn blocked_by(mode: Mode) -> Modes {
    let mut modes = mode.clashing();
    if mode == Mode::Slot {
        modes.insert(Mode::Slot);
    }
    modes
}

#[cfg(test)]
mod tests {
    use super::Mode::{Prewrite, Read, Slot, Write};
    use super::Nesting::{AtOnce, Refused, Waits};
    use super::*;

    /// Each row is in the order of `Mode::ALL`, as in the tables of the documentation.
    fn assert_table<T: PartialEq + fmt::Debug>(rows: [(Mode, [T; 4]); 4], f: impl Fn(Mode, Mode) -> T) {
        for (row, cells) in rows {
            for (column, expected) in Mode::ALL.into_iter().zip(cells) {
                assert_eq!(f(row, column), expected, "{row} × {column}");
            }
        }
    }

    #[test]
    fn clashes_match_the_table() {
        let rows = [
            (Read, [false, false, true, false]),
            (Prewrite, [false, true, true, false]),
            (Write, [true, true, true, true]),
            (Slot, [false, false, true, false]),
        ];
        assert_table(rows, Mode::clashes_with);
        assert_table(rows, |a, b| b.clashes_with(a));
        assert_table(rows, |a, b| a.clashing().contains(b));
    }

    #[test]
    fn nesting_matches_the_table() {
        let rows_by_held = [
            (Read, [AtOnce, Refused, Refused, Waits]),
            (Prewrite, [AtOnce, AtOnce, Waits, Waits]),
            (Write, [AtOnce, AtOnce, AtOnce, AtOnce]),
            (Slot, [AtOnce, Refused, Refused, AtOnce]),
        ];
        assert_table(rows_by_held, |held, asked| asked.below(held));
    }

    #[test]
    fn nested_claim_granted_at_once_clashes_with_no_holder_compatible_with_the_ancestor() {
        for held in Mode::ALL {
            for asked in Mode::ALL.into_iter().filter(|asked| asked.below(held) == AtOnce) {
                for beside in Mode::ALL.into_iter().filter(|beside| !beside.clashes_with(held)) {
                    assert!(!asked.clashes_with(beside), "{asked} below {held} beside {beside}");
                }
            }
        }
    }

    #[test]
    fn compatible_holders_never_wait_for_each_other() {
        let waits_for = |asked: Mode, own: Mode, other: Mode| asked.below(own) == Waits && asked.clashes_with(other);
        for (one, other) in pairs().filter(|(one, other)| !one.clashes_with(*other)) {
            for (a, b) in pairs() {
                assert!(!(waits_for(a, one, other) && waits_for(b, other, one)), "{one}+{a} and {other}+{b}");
            }
        }
    }

    #[test]
    fn lowering_matches_the_table() {
        let rows = [
            (Read, [true, false, false, false]),
            (Prewrite, [true, true, false, false]),
            (Write, [true, true, true, false]),
            (Slot, [false, false, false, false]),
        ];
        assert_table(rows, Mode::lowers_to);
    }

    #[test]
    fn lowered_mode_clashes_with_no_further_mode() {
        for (from, to) in pairs().filter(|(from, to)| from.lowers_to(*to)) {
            assert_eq!(from.clashing().union(to.clashing()), from.clashing(), "{from} to {to}");
        }
    }

    #[test]
    fn names_of_modes_round_trip() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let refusal = |text: &str| text.parse::<Mode>().unwrap_err().to_string();
        assert_eq!(refusal("Write"), "'Write' is not a mode: write read, prewrite, write or slot");
        assert_eq!(refusal("\u{1b}"), "'?' is not a mode: write read, prewrite, write or slot");
    }

    #[test]
    fn set_contains_exactly_its_members() {
        for bits in 0..16u8 {
            let members: Vec<Mode> =
                Mode::ALL.into_iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, m)| m).collect();
            let mut set = Modes::EMPTY;
            members.iter().for_each(|mode| set.insert(*mode));
            assert_eq!(set, Modes::of(&members));
            assert_eq!(Mode::ALL.into_iter().filter(|mode| set.contains(*mode)).collect::<Vec<_>>(), members);
            assert_eq!(set.intersects(Modes::ALL), !members.is_empty());
            assert_eq!(set.union(set.complement()), Modes::ALL);
            assert!(!set.intersects(set.complement()));
            assert_eq!((set.intersection(set), set.intersection(set.complement())), (set, Modes::EMPTY));
        }
        assert!(!Modes::of(&[Read, Slot]).intersects(Modes::of(&[Prewrite, Write])));
        assert!(Modes::of(&[Read, Slot]).union(Modes::of(&[Write])).intersects(Modes::of(&[Prewrite, Write])));
    }

    fn pairs() -> impl Iterator<Item = (Mode, Mode)> {
        Mode::ALL.into_iter().flat_map(|a| Mode::ALL.into_iter().map(move |b| (a, b)))
    }
}
