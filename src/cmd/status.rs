//! Writes how a request went into the file of `--status-file`: beside the file first, and then
//! renamed, so that a reader finds the old or the new content.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use serde_json::json;

use crate::clock::Boottime;
use crate::failure::Failure;
use crate::lock::request::{self, Claim};
use crate::store::Grant;
use crate::supervise::event::Ended;
use crate::supervise::report::Report;
use crate::words::reason;

/// A file that can be written, as far as anybody can tell beforehand.
pub(super) struct StatusFile {
    /// The file that the user named.
    path: PathBuf,
    /// The file that the status is written to first.
    beside: PathBuf,
    resources: Vec<String>,
}

impl StatusFile {
    /// Tries whether the file can be written. Changes nothing that is there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn prepare(path: &Path, claims: &[Claim]) -> Result<Self, Failure> {
        let mistake = |reason: &dyn std::fmt::Display| {
            let text = format!(
                "--status-file: can't write '{}': {reason}: name a file in a directory that you may write to",
                path.display()
            );
            Failure::usage(text)
        };
        // Renaming would replace a link or a device, and not what it leads to.
        let path = match fs::canonicalize(path) {
            Ok(found) if !found.is_file() => return Err(mistake(&"it is not a regular file")),
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(mistake(&reason(&error))),
        };
        let Some(name) = path.file_name() else { return Err(mistake(&"it is not a regular file")) };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", process::id()));
        let file = Self {
            beside: path.with_file_name(hidden),
            path,
            resources: request::resources(claims).iter().map(|name| name.as_str().to_owned()).collect(),
        };
        fs::write(&file.beside, "")
            .and_then(|()| fs::remove_file(&file.beside))
            .map_err(|error| mistake(&reason(&error)))?;
        Ok(file)
    }

    /// Writes the status. Returns a warning if that fails.
    pub(super) fn write(&self, report: &Report, grant: Option<&Grant>) -> Option<String> {
        let now = Boottime::now();
        let (exit, signal) = match report.ended() {
            Some(Ended::Code(code)) => (Some(code), None),
            Some(Ended::Signal(number)) => (None, Some(number)),
            None => (None, None),
        };
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let status = json!({
            "outcome": report.outcome().as_str(),
            "exit": exit,
            "signal": signal,
            "waited_ms": millis(report.waited(now)),
            "ran_ms": report.ran(now).map(millis),
            "token": grant.and_then(|grant| grant.tokens.iter().max()),
            "resources": self.resources,
        });
        let written =
            fs::write(&self.beside, format!("{status}\n")).and_then(|()| fs::rename(&self.beside, &self.path));
        let error = written.err()?;
        let _ = fs::remove_file(&self.beside);
        Some(format!("can't write the status to '{}': {}", self.path.display(), reason(&error)))
    }
}
