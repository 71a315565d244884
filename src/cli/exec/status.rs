//! Writes how a request went into the file of `--status-file`.

use std::path::Path;

use serde_json::json;

use crate::cli::replaced::Replaced;
use rlock_model::request::{self, Claim};
use rlock_show::failure::Failure;
use rlock_store::Grant;
use rlock_supervise::event::Ended;
use rlock_supervise::report::{Outcome, RunReport};
use rlock_sys::clock::Boottime;
use rlock_words::{self as words, reason};

/// The file of `--status-file`.
pub(super) struct StatusFile {
    file: Replaced,
    resources: Vec<String>,
}

impl StatusFile {
    /// Tries whether the file can be written. Changes nothing that is there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn prepare(path: &Path, claims: &[Claim]) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Err(Failure::usage("--status-file: '-' is not standard output here: name a file"));
        }
        let file = Replaced::prepare(path).map_err(|error| error.of_option("--status-file"))?;
        let resources = request::resources(claims).iter().map(|name| name.as_str().to_owned()).collect();
        Ok(Self { file, resources })
    }

    /// Writes the status. Returns a warning if that fails.
    pub(super) fn write(&self, report: &RunReport, grant: Option<&Grant>) -> Option<String> {
        let now = Boottime::now();
        let (exit, signal) = match report.ended() {
            Some(Ended::Code(code)) => (Some(code), None),
            Some(Ended::Signal(number)) => (None, Some(number)),
            None => (None, None),
        };
        // At the gate, a request has its grant already.
        let has_given_up = report.ran(now).is_none() && matches!(report.outcome(), Outcome::Busy | Outcome::Cancelled);
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let status = json!({
            "outcome": report.outcome().as_str(),
            "exit": exit,
            "signal": signal,
            "waited_ms": millis(report.waited(now)),
            "ran_ms": report.ran(now).map(millis),
            "token": grant.and_then(|grant| grant.tokens.iter().max()).filter(|_| !has_given_up),
            "resources": self.resources,
        });
        let error = self.file.write(&(words::json(&status) + "\n")).err()?;
        Some(format!("can't write the status to '{}': {}", self.file.path().display(), reason(&error)))
    }
}
