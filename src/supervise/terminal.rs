//! Detects a controlling terminal, and keeps a status line about the wait on it.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use super::event::Group;
use crate::processes::own_group;
use crate::words::one_line;

/// The process group for the command: shared if this process has a controlling terminal, else the
/// command's own.
pub(crate) fn group_for_command() -> Group {
    // The standard descriptors do not tell. The kernel does: opening this name fails if the process
    // has no controlling terminal.
    let terminal = open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    if terminal.is_ok() { Group::Shared } else { Group::Own }
}

/// A line on the terminal that can be changed and erased.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    shown: Option<String>,
}

/// Used if the terminal does not report its width.
const COLUMNS: usize = 80;

impl StatusLine {
    /// Shows `text` on standard error, unless the line shows it already.
    pub(crate) fn show(&mut self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let stderr = io::stderr();
        // A background job must not write into the output of the foreground job.
        if tcgetpgrp(&stderr).is_ok_and(|foreground| foreground.as_raw_nonzero().get() != own_group()) {
            return Ok(());
        }
        self.show_within(text, columns(&stderr), out)
    }

    fn show_within(&mut self, text: &str, columns: usize, out: &mut dyn Write) -> io::Result<()> {
        // A full line would wrap on some terminals, and then only its last row could be erased.
        let text: String = one_line(text).chars().take(columns.saturating_sub(1)).collect();
        if self.shown.as_ref() == Some(&text) {
            return Ok(());
        }
        write!(out, "\r\x1b[K{text}")?;
        out.flush()?;
        self.shown = Some(text);
        Ok(())
    }

    /// Erases the line, if there is one.
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
    fn waiting_line_is_written_on_change_and_removed_once() {
        let (mut line, mut out) = (StatusLine::default(), Vec::new());
        line.show_within("held by a", 80, &mut out).unwrap();
        line.show_within("held by a", 80, &mut out).unwrap();
        line.show_within("held by b", 80, &mut out).unwrap();
        line.hide(&mut out).unwrap();
        line.hide(&mut out).unwrap();
        assert_eq!(out, b"\r\x1b[Kheld by a\r\x1b[Kheld by b\r\x1b[K");
    }

    #[test]
    fn waiting_line_fits_the_terminal_and_has_no_control_characters() {
        let (mut line, mut out) = (StatusLine::default(), Vec::new());
        line.show_within("ab\u{1b}[2Jcdefgh", 8, &mut out).unwrap();
        assert_eq!(out, "\r\x1b[Kab?[2Jc".as_bytes());
    }
}
