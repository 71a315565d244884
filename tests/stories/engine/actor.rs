//! A session of the runner with the real program: a live `rlock exec` or `rlock range-*`, whose command ends when it reads a line.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

use rlock::lock::mode::Mode;
use rlock::lock::request::Claim;
use rlock::lock::span::Span;
use rustix::process::{Pid, Signal, kill_process};

use super::step::Ask;
use crate::support::Lab;

/// A process that was started, and is killed and reaped at the latest when this is dropped.
pub(super) struct Actor {
    child: Child,
    stderr: PathBuf,
    /// The exit status, once it was reaped.
    pub(super) ended: Option<ExitStatus>,
}

impl Actor {
    /// Starts a process that asks for what `ask` says, with these options, below the sessions `above` (innermost first).
    pub(super) fn start(lab: &Lab, ask: &Ask, options: &[&str], above: &[String]) -> Self {
        let mut command = lab.rlock([""; 0]);
        if let Some((session, ancestors)) = above.split_first() {
            command.env("RLOCK_SESSION", session).env("RLOCK_ANCESTORS", ancestors.join(","));
        }
        command.args(words(&ask.claims)).args(options);
        if !ask.wait {
            command.arg("--no-wait");
        }
        // The shell's name is the label, so that `inspect` tells whose process it is.
        command.args(["--", "sh", "-c", "read line", &ask.who]);
        let stderr = lab.folder().join(&ask.who).with_extension("stderr");
        let messages = File::create(&stderr).expect("a file can be made in a fresh folder");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(messages).spawn();
        Self { child: child.expect("the program can be started"), stderr, ended: None }
    }

    /// Reaps the process if it has ended.
    pub(super) fn check(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended
    }

    /// Lets the command end, now or as soon as it is started.
    pub(super) fn end_command(&mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            // Nobody reads it where the process has ended: its exit status tells that better.
            let _ = stdin.write_all(b"\n");
        }
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.check().is_none() {
            kill_process(Pid::from_child(&self.child), signal).expect("a child that was not reaped can be signalled");
        }
    }

    /// What it wrote to standard error.
    pub(super) fn messages(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// How it ended, for people.
    pub(super) fn epitaph(&self) -> String {
        match self.ended {
            None => "runs".to_owned(),
            Some(status) => format!("ended with {status}: {}", self.messages().trim_end()),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The command dies with its rlock. Neither call can fail but for a process that was reaped before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The subcommand and the claims, as a user writes them.
///
/// # Panics
/// Where the command line can't say it.
fn words(claims: &[Claim]) -> Vec<String> {
    if let [Claim { resource, mode, span, slots: None }] = claims
        && !span.is_whole()
    {
        return [vec![format!("range-{mode}"), resource.to_string()], ends(span)].concat();
    }
    let mut words = vec!["exec".to_owned()];
    for Claim { resource, mode, span, slots } in claims {
        assert!(span.is_whole(), "an interval stands alone on the command line: mark the scene 'model only: …'");
        words.push(format!("--{mode}"));
        words.push(if *mode == Mode::Slot {
            format!("{resource}={}", slots.unwrap_or(0))
        } else {
            resource.to_string()
        });
    }
    words
}

/// An interval as a user writes it: by its ends alone where it has both, so that either form is met.
pub(super) fn ends(span: &Span) -> Vec<String> {
    match span.as_interval() {
        Some(interval) if !interval.lo_open() && !interval.hi_open() => {
            vec![interval.lo().text().to_owned(), interval.hi().text().to_owned()]
        }
        _ => vec![span.to_string()],
    }
}
