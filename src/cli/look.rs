//! Asks the terminal how listings and help may look.

use std::io;

use anstream::AutoStream;
use anstream::stream::RawStream;
use clap::ColorChoice;
use clap::builder::StyledStr;
use rustix::termios::{isatty, tcgetwinsize};

use crate::environment::context;
use rlock_show::{Look, Palette};

/// Used if the terminal does not report its width.
const COLUMNS: usize = 80;

/// The look for standard output.
pub(super) fn look(color: ColorChoice, verbose: bool) -> Look {
    let stdout = io::stdout();
    let columns = || match tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col)) {
        0 => COLUMNS,
        columns => columns,
    };
    let is_coloured = match color {
        ColorChoice::Auto => AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
        color => color != ColorChoice::Never,
    };
    Look {
        width: isatty(&stdout).then(columns),
        verbose: context::verbose(verbose),
        wide: false,
        palette: if is_coloured { Palette::coloured() } else { Palette::plain() },
    }
}

/// The text as this output shows it: with the styles of clap or without.
pub(super) fn styled(text: &StyledStr, output: &impl RawStream) -> String {
    match AutoStream::choice(output) {
        anstream::ColorChoice::Never => text.to_string(),
        _ => text.ansi().to_string(),
    }
}
