//! Asks the terminal whether there is one, and keeps one line on it that says what is waited for.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use super::event::Group;
use super::processes::own_group;
use crate::words::one_line;

/// The group for the command: shared where this process has a controlling terminal, its own where
/// it has none.
pub(crate) fn group_for_command() -> Group {
    // Only the kernel knows, whatever the standard descriptors are: opening this name fails where
    // there is none.
    let terminal = open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    if terminal.is_ok() { Group::Shared } else { Group::Own }
}

/// A line on the terminal that can change and go away again.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    shown: Option<String>,
}

/// Used where the terminal doesn't say how wide it is.
const COLUMNS: usize = 80;

impl StatusLine {
    /// Shows `text` on standard error, unless it stands there already.
    pub(crate) fn show(&mut self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let stderr = io::stderr();
        // A background job must not write into what the foreground shows.
        if tcgetpgrp(&stderr).is_ok_and(|foreground| foreground.as_raw_nonzero().get() != own_group()) {
            return Ok(());
        }
        self.show_within(text, columns(&stderr), out)
    }

    fn show_within(&mut self, text: &str, columns: usize, out: &mut dyn Write) -> io::Result<()> {
        // A full line would wrap on some terminals, and only its last row could be taken away
        // again.
        let text: String = one_line(text).chars().take(columns.saturating_sub(1)).collect();
        if self.shown.as_ref() == Some(&text) {
            return Ok(());
        }
        write!(out, "\r\x1b[K{text}")?;
        out.flush()?;
        self.shown = Some(text);
        Ok(())
    }

    /// Takes the line away, if there is one.
    pub(crate) fn hide(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.shown.take().is_some() {
            write!(out, "\r\x1b[K")?;
            out.flush()?;
        }
        Ok(())
    }
}

fn columns(terminal: &impl AsFd) -> usize {
    let told = tcgetwinsize(terminal).map_or(0, |size| usize::from(size.ws_col));
    if told == 0 { COLUMNS } else { told }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_written_when_it_changes_and_taken_away_once() {
        let (mut line, mut out) = (StatusLine::default(), Vec::new());
        line.show_within("held by a", 80, &mut out).unwrap();
        line.show_within("held by a", 80, &mut out).unwrap();
        line.show_within("held by b", 80, &mut out).unwrap();
        line.hide(&mut out).unwrap();
        line.hide(&mut out).unwrap();
        assert_eq!(out, b"\r\x1b[Kheld by a\r\x1b[Kheld by b\r\x1b[K");
    }

    #[test]
    fn it_fits_the_terminal_and_commands_it_nothing() {
        let (mut line, mut out) = (StatusLine::default(), Vec::new());
        line.show_within("ab\u{1b}[2Jcdefgh", 8, &mut out).unwrap();
        assert_eq!(out, "\r\x1b[Kab?[2Jc".as_bytes());
    }
}
