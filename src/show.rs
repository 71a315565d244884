//! What people read: messages, listings, histories and pictures, as text and as JSON.
//!
//! The whole module is pure. Facts come in, and text goes out.
//!
//! - `failure`: failures with their exit codes. `messages`: the text about requests.
//! - `changes`: what happened between two listings.
//! - `columns`: lays out rows in columns that fit a width.
//! - `listing`: the table of holders and waiters.
//! - `edges`: the graph of sessions and resources, which `tree` and `dot` show.
//! - `json`: holders, waiters and changes as JSON.
//! - `history`: ended requests as JSON, tables and bars; their statistics; who made whom wait.
//! - `turn`: when it is the turn of a request.
//! - `doctor`: the questions of `rlock doctor` and their answers.

pub(crate) mod changes;
pub(crate) mod columns;
pub(crate) mod doctor;
pub(crate) mod dot;
mod edges;
pub(crate) mod failure;
pub(crate) mod history;
pub(crate) mod json;
pub(crate) mod listing;
pub(crate) mod messages;
pub(crate) mod tree;
pub(crate) mod turn;

use anstyle::{AnsiColor, Style};

/// How the output looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// The number of columns of the terminal. `None` if the output is not a terminal: then lines
    /// have any length, and each row names its resource, so that grep(1) finds whole rows.
    pub(crate) width: Option<usize>,
    /// Show instants instead of ages, and session ids.
    pub(crate) verbose: bool,
    /// Cut nothing in the table, even if its lines are longer than those of the terminal.
    pub(crate) wide: bool,
    /// The colours.
    pub(crate) palette: Palette,
}

/// The styles of the parts of a listing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Palette {
    /// The headings of columns.
    pub(crate) heading: Style,
    /// A resource that somebody waits for.
    pub(crate) busy: Style,
    /// A holder.
    pub(crate) holder: Style,
    /// A waiter.
    pub(crate) waiter: Style,
    /// What a person may have to repair.
    pub(crate) alarm: Style,
    /// What is less important.
    pub(crate) dim: Style,
}

impl Palette {
    /// No colours at all.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// Colours of the terminal's own palette, which suit its background.
    pub(crate) fn coloured() -> Self {
        let colour = |colour: AnsiColor| colour.on_default();
        Self {
            heading: Style::new().underline(),
            busy: Style::new().bold(),
            holder: colour(AnsiColor::Green),
            waiter: colour(AnsiColor::Yellow),
            alarm: colour(AnsiColor::Red).bold(),
            dim: Style::new().dimmed(),
        }
    }
}
