//! What people read: messages, listings, histories and pictures, as text and as JSON.
//!
//! The whole crate is pure. Facts come in, and text goes out.
//!
//! - `failure`: failures with their exit codes. `messages`: the text about requests.
//! - `changes`: what happened between two listings.
//! - `columns`: lays out rows in columns that fit a width.
//! - `listing`: the table of holders and waiters.
//! - `edges`: the graph of sessions and resources, which `tree` and `dot` show.
//! - `json`: holders, waiters and changes as JSON.
//! - `history`: ended requests as JSON, tables and bars; their statistics; who made whom wait.
//! - `turn`: when it is the turn of a request.
//! - `doctor`: the checks of `rlock doctor` that are the same for every store.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod changes;
pub mod columns;
pub mod doctor;
pub mod dot;
mod edges;
pub mod failure;
pub mod history;
pub mod json;
pub mod listing;
pub mod messages;
pub mod tree;
pub mod turn;

use anstyle::{AnsiColor, Style};

/// How the output looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The number of columns of the terminal. `None` if the output is not a terminal: then lines
    /// have any length, and each row names its resource, so that grep(1) finds whole rows.
    pub width: Option<usize>,
    /// Show instants instead of ages, and session ids.
    pub verbose: bool,
    /// Cut nothing in the table, even if its lines are longer than those of the terminal.
    pub wide: bool,
    /// The colours.
    pub palette: Palette,
}

/// The styles of the parts of a listing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Palette {
    /// The headings of columns.
    pub heading: Style,
    /// A resource that somebody waits for.
    pub busy: Style,
    /// A holder.
    pub holder: Style,
    /// A waiter.
    pub waiter: Style,
    /// What a person may have to repair.
    pub alarm: Style,
    /// What is less important.
    pub dim: Style,
}

impl Palette {
    /// No colours at all.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Colours of the terminal's own palette, which suit its background.
    pub fn coloured() -> Self {
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
