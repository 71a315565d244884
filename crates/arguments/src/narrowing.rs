//! Defines and reads what `shrink` and `downgrade` have in common with the lines of clients of
//! `rlock serve`.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgMatches};

use super::options::{id, option, word};
use super::values;
use rlock_model::mode::Mode;

/// The remaining part of a held span.
pub fn remaining() -> [Arg; 2] {
    [
        word(id::LO, values::plain, "The new lower end, or the whole interval: '[1.2,1.8)'").required(true),
        word(id::HI, values::plain, "The new upper end"),
    ]
}

/// The new mode of a downgrade.
pub fn new_mode() -> Arg {
    // The store judges `write` as it judges a prewrite for a read. Being an alias keeps the word
    // out of help and completions, and the parser passes on what the user has typed.
    let modes = [PossibleValue::new("read"), PossibleValue::new("prewrite").alias("write")];
    word(id::MODE, PossibleValuesParser::new(modes), "The new mode").required(true)
}

/// Selects one of several holds.
pub fn which() -> Arg {
    option(id::RESOURCE, "KEY", values::resource, "Which lock, where the command holds several")
}

/// The new mode of a downgrade.
pub fn read_mode(matches: &mut ArgMatches) -> Mode {
    let mode: String = matches.remove_one(id::MODE).expect("clap requires a mode");
    mode.parse().expect("clap takes only the modes of the list")
}
