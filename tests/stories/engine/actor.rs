//! A session that is a real process: an `rlock exec` or `rlock range-*` whose command ends when it
//! reads a line.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

use rlock_model::op::Change;
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rustix::process::{Pid, Signal, kill_process};

use super::step::Acquire;
use rlock_testkit::Lab;

/// A process, which is killed and reaped on drop if it still runs.
pub(super) struct Actor {
    child: Child,
    stderr: PathBuf,
    /// The exit status, once the process is reaped.
    pub(super) ended: Option<ExitStatus>,
}

/// A session that has held or waited, as its descendants know it from their environment.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) id: String,
    pub(super) resources: Vec<Resource>,
}

impl Actor {
    /// Starts a process that makes this request with these options, below the sessions `ancestors`
    /// (innermost first).
    pub(super) fn start(lab: &Lab, acquire: &Acquire, options: &[&str], ancestors: &[Known]) -> Self {
        let mut command = lab.rlock([""; 0]);
        if let Some((session, ancestors)) = ancestors.split_first() {
            let ids: Vec<_> = ancestors.iter().map(|ancestor| ancestor.id.as_str()).collect();
            let resources: Vec<_> = session.resources.iter().map(Resource::as_str).collect();
            let held: Vec<_> = ancestors.iter().flat_map(|ancestor| &ancestor.resources).map(encoded).collect();
            command.env("RLOCK_SESSION", &session.id).env("RLOCK_ANCESTORS", ids.join(","));
            command.env("RLOCK_RESOURCE", resources.join("\n")).env("RLOCK_HELD", held.join(","));
        }
        command.args(words(&acquire.claims)).args(options);
        if !acquire.wait {
            command.arg("--no-wait");
        }
        // The label is the shell's name, so that `inspect` shows the label of each process.
        command.args(["--", "sh", "-c", "read line", &acquire.label]);
        let stderr = lab.folder().join(&acquire.label).with_extension("stderr");
        let messages = File::create(&stderr).expect("the file is created");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(messages).spawn();
        Self { child: child.expect("rlock starts"), stderr, ended: None }
    }

    /// Reaps the process if it has ended.
    pub(super) fn check(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the process is a child");
        }
        self.ended
    }

    /// Ends the command, now or as soon as it is started.
    pub(super) fn end_command(&mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            // The write fails if the process has ended, which its exit status shows better.
            let _ = stdin.write_all(b"\n");
        }
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.check().is_none() {
            kill_process(Pid::from_child(&self.child), signal).expect("the child is not reaped yet");
        }
    }

    /// The contents of standard error.
    pub(super) fn messages(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// The state of the process for messages.
    pub(super) fn status_text(&self) -> String {
        match self.ended {
            None => "runs".to_owned(),
            Some(status) => format!("ended with {status}: {}", self.messages().trim_end()),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The command dies with its rlock. Both calls fail only if the process has been reaped
        // already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A name, percent-encoded.
fn encoded(resource: &Resource) -> String {
    resource.as_str().bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The subcommand and the claims, as a user types them.
pub(super) fn words(claims: &[Claim]) -> Vec<String> {
    if let [Claim { resource, mode, span, slots: None }] = claims
        && !span.is_whole()
    {
        return [vec![format!("range-{mode}"), resource.to_string()], ends(span)].concat();
    }
    let mut words = vec!["exec".to_owned()];
    for same in claims.chunk_by(|one, other| one == other) {
        let Claim { resource, mode, span, slots } = &same[0];
        words.extend(match slots {
            _ if !span.is_whole() => vec![format!("--range-{mode}"), resource.to_string(), span.to_string()],
            Some(slots) if same.len() > 1 => vec![format!("--{mode}"), format!("{resource}={slots}:{}", same.len())],
            Some(slots) => vec![format!("--{mode}"), format!("{resource}={slots}")],
            None => vec![format!("--{mode}"), resource.to_string()],
        });
    }
    words
}

/// The words of a change, on the command line and, in capitals, for a server.
pub(super) fn change_words(change: &Change) -> Vec<String> {
    let (word, what, resource) = match change {
        Change::Shrink { resource, span } => ("shrink", ends(span), resource),
        Change::Downgrade { resource, mode } => ("downgrade", vec![mode.to_string()], resource),
        Change::Extend { .. } => unreachable!("no story extends a hold by a command"),
    };
    let resource = ["--resource", resource.as_str()].map(str::to_owned);
    [word.to_owned()].into_iter().chain(what).chain(resource).collect()
}

/// The arguments for an interval. A closed interval is given by its ends, so that the stories use
/// both forms.
pub(super) fn ends(span: &Span) -> Vec<String> {
    match span.as_interval() {
        Some(interval) if !interval.lo_open() && !interval.hi_open() => {
            vec![interval.lo().text().to_owned(), interval.hi().text().to_owned()]
        }
        _ => vec![span.to_string()],
    }
}
