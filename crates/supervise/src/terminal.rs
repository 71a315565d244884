//! Detects a controlling terminal, and keeps a status line about the wait on it.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use super::event::Group;
use super::outbox::Outbox;
use rlock_sys::processes::own_group;
use rlock_words::one_line;

/// The process group for the command: shared if this process has a controlling terminal, else the
/// command's own.
pub fn group_for_command() -> Group {
    // The standard descriptors do not tell. The kernel does: opening this name fails if the process
    // has no controlling terminal.
    let terminal = open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    if terminal.is_ok() { Group::Shared } else { Group::Own }
}

/// A line on the terminal that can be changed and erased.
#[derive(Debug, Default)]
pub struct StatusLine {
    shown: Option<String>,
}

/// Erases the line of the cursor.
const ERASED: &str = "\r\x1b[K";

/// Used if the terminal does not report its width.
const COLUMNS: usize = 80;

impl StatusLine {
    /// Shows `text` on standard error, unless the line shows it already, or the terminal takes
    /// nothing.
    pub(super) fn show(&mut self, text: &str, out: &mut Outbox<'_>) {
        let stderr = io::stderr();
        // A background job must not write into the output of the foreground job.
        if tcgetpgrp(&stderr).is_ok_and(|foreground| foreground.as_raw_nonzero().get() != own_group()) {
            return;
        }
        self.show_within(text, columns(&stderr), out);
    }

    fn show_within(&mut self, text: &str, columns: usize, out: &mut Outbox<'_>) {
        // A full line would wrap on some terminals, and then only its last row could be erased.
        let text: String = one_line(text).chars().take(columns.saturating_sub(1)).collect();
        if self.shown.as_ref() != Some(&text) && !out.is_waiting() {
            out.put(&format!("{ERASED}{text}"));
            self.shown = Some(text);
        }
    }

    /// Erases the line, if there is one.
    pub(super) fn hide(&mut self, out: &mut Outbox<'_>) {
        if self.shown.take().is_some() {
            out.put(ERASED);
        }
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
        let mut out = Vec::new();
        let (mut line, mut outbox) = (StatusLine::default(), Outbox::new(&mut out));
        line.show_within("held by a", 80, &mut outbox);
        line.show_within("held by a", 80, &mut outbox);
        line.show_within("held by b", 80, &mut outbox);
        line.hide(&mut outbox);
        line.hide(&mut outbox);
        assert_eq!(out, b"\r\x1b[Kheld by a\r\x1b[Kheld by b\r\x1b[K");
    }

    #[test]
    fn waiting_line_fits_the_terminal_and_has_no_control_characters() {
        let mut out = Vec::new();
        StatusLine::default().show_within("ab\u{1b}[2Jcdefgh", 8, &mut Outbox::new(&mut out));
        assert_eq!(out, "\r\x1b[Kab?[2Jc".as_bytes());
    }
}
