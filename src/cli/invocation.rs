//! What a command line asks for, as plain data: checked as far as the words alone allow, and not
//! yet looked up anywhere.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::lock::mode::Mode;
use crate::lock::request::Claim;
use crate::lock::resource::Resource;
use crate::lock::span::Span;

use super::pages::Page;

/// A parsed command line: one variant for each subcommand, but for `exec` and the `range-*`, which
/// differ only in their claims.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    /// Run a command while claims are held.
    Exec(Exec),
    /// Show who holds and who waits.
    Inspect(Inspect),
    /// Remove what is expired or dead, or break grants.
    Cleanup(Cleanup),
    /// Give up a part of a held span.
    Shrink(Shrink),
    /// Lower the mode of a hold.
    Downgrade(Downgrade),
    /// Print a completion script.
    Completions(Shell),
    /// Print a man page, or write them all.
    Man(Man),
}

/// Where the lock table lives, as far as the command line says so; the environment and the defaults
/// come after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// `--store URL`.
    pub store: Option<String>,
    /// `--namespace NAME`.
    pub namespace: Option<String>,
}

/// `rlock exec` and `rlock range-*`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exec {
    /// The store to ask.
    pub store: StoreOptions,
    /// What to hold: never empty, no resource twice, in the order of the command line.
    pub claims: Vec<Claim>,
    /// The words to execute: never empty, the first names the program.
    pub command: Vec<OsString>,
    /// How long to wait for the grant: `None` for as long as it takes, zero for not at all
    /// (`--no-wait`).
    pub wait: Option<Duration>,
    /// The exit code when busy.
    pub conflict_exit_code: u8,
    /// The lease to ask for, at least a second; of no effect in a store where a hold lives as long
    /// as its process.
    pub ttl: Duration,
    /// The time from TERM to KILL when the command must be stopped.
    pub grace: Duration,
    /// Whether `grace` is the default, which yields where it is too long for `ttl`.
    pub grace_yields: bool,
    /// The time that connecting to the store may take.
    pub connect_timeout: Duration,
    /// How many replicas must have the grant before the command starts.
    pub replicas: u32,
    /// Say nothing when busy and nothing while waiting.
    pub quiet: bool,
    /// Say what is being done.
    pub verbose: bool,
}

/// `rlock inspect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// The store to ask.
    pub store: StoreOptions,
    /// The resources to show, none twice; all that have holders or waiters if empty.
    pub resources: Vec<Resource>,
    /// Print JSON, not a table.
    pub json: bool,
}

/// `rlock cleanup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// The store to clean.
    pub store: StoreOptions,
    /// The resources to look at, none twice; all if empty, which it never is with `break_grants`.
    pub resources: Vec<Resource>,
    /// Only say what would be removed.
    pub dry_run: bool,
    /// Take live grants away, too.
    pub break_grants: bool,
}

/// `rlock shrink`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shrink {
    /// The store to ask.
    pub store: StoreOptions,
    /// What is left of the held span.
    pub span: Span,
    /// Which of the held resources; needed only where there are several.
    pub resource: Option<Resource>,
}

/// `rlock downgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downgrade {
    /// The store to ask.
    pub store: StoreOptions,
    /// The mode to lower the hold to: read or prewrite.
    pub mode: Mode,
    /// Which of the held resources; needed only where there are several.
    pub resource: Option<Resource>,
}

/// A shell that completions are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// GNU bash.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

impl Shell {
    /// Every shell there is a script for.
    pub const ALL: [Self; 3] = [Self::Bash, Self::Zsh, Self::Fish];

    /// The shell's name, as a user writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }
}

/// `rlock man`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Man {
    /// Print this page to standard output.
    Print(Page),
    /// Write all pages below this directory.
    WriteAll(PathBuf),
}
