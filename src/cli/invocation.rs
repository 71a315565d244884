//! Defines the parsed command line as plain data. The data is checked as far as the words alone
//! allow; nothing has been looked up yet.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anstream::ColorChoice;
use clap_complete::Shell;
use glob::Pattern;
use rustix::process::Pid;

use crate::lock::mode::Mode;
use crate::lock::request::{Claim, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;
use crate::store::Replicas;

use super::pages::Page;

/// A parsed command line. Each subcommand has one variant, except that `exec` and the `range-*`
/// share one: they differ only in their claims.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    /// Run a command while claims are held.
    Exec(Box<Exec>),
    /// Acquire a lock that outlives the subcommand.
    Acquire(Acquire),
    /// Let a kept hold last longer.
    Renew(Renew),
    /// Give back what `acquire` has locked.
    Release(Release),
    /// Tell whether this process runs below a hold.
    Held(HeldBy),
    /// Show holders and waiters.
    Inspect(Inspect),
    /// Check the store.
    Doctor(Doctor),
    /// Show ended requests.
    History(History),
    /// Remove expired and dead sessions, or break grants.
    Cleanup(Cleanup),
    /// Give up a part of a held span.
    Shrink(Shrink),
    /// Lower the mode of a hold.
    Downgrade(Downgrade),
    /// Serve locks to clients that speak lines.
    Serve(Serve),
    /// Print a completion script.
    Completions(Shell),
    /// Print a man page, or write all of them.
    Man(Man),
}

/// The store options of the command line. The environment and the defaults apply where an option is
/// absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// `--store URL`.
    pub store: Option<String>,
    /// `--namespace NAME`.
    pub namespace: Option<String>,
}

/// The owner and the reason of a request, as text for people. The environment and the CI apply
/// where an option is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whose {
    /// The person or the system that the request is made for.
    pub owner: Option<String>,
    /// The reason for the request.
    pub reason: Option<String>,
}

/// What `exec`, `range-*` and `acquire` say of their request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOptions {
    /// The store to use.
    pub store: StoreOptions,
    /// The claims to hold, in the order of the command line: never empty, no span of a resource
    /// twice.
    pub claims: Vec<Claim>,
    /// The maximum wait for the grant: `None` for no limit, zero for no wait (`--no-wait`).
    pub wait: Option<Duration>,
    /// The exit code when busy.
    pub conflict_exit_code: u8,
    /// The ttl of the lease, at least a second; `None` for the default.
    /// It has no effect in a store where a hold lives as long as its process.
    pub ttl: Option<Duration>,
    /// The time from TERM to KILL when the command must be stopped, and how long before the end of
    /// its lease a hold without a command counts as lost; `None` for the default, which is lowered
    /// if it is too long for `ttl`.
    pub grace: Option<Duration>,
    /// The time that connecting to the store may take; `None` for the default.
    pub connect_timeout: Option<Duration>,
    /// The copies of the grant that a server must have before the grant counts; `None` for the
    /// default.
    pub replicas: Option<Replicas>,
    /// The owner and the reason of the request.
    pub whose: Whose,
    /// The name of the job, which replaces the user and the command.
    pub job: Option<String>,
    /// How many sessions may wait ahead of the request; more make it busy.
    pub max_waiting: Option<u32>,
    /// How long a nested request waits before it looks for a deadlock; zero for never.
    pub deadlock_timeout: Duration,
    /// How many entries the history of each resource keeps; `None` for the default.
    pub history: Option<u32>,
    /// Print nothing when busy or while waiting.
    pub quiet: bool,
    /// Report the start of the wait and the grant.
    pub verbose: bool,
    /// Fail in the default store.
    pub no_default_store: bool,
}

/// `rlock exec` and `rlock range-*`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exec {
    /// The request for the lock.
    pub request: RequestOptions,
    /// The words to execute: never empty; the first names the program.
    pub command: Vec<OsString>,
    /// End a busy request with 0 and without a message: `Some(None)` always, `Some(Some(time))` as
    /// long as the job has been skipped in a row for less than this time.
    pub skip_ok: Option<Option<Duration>>,
    /// Run nothing if a run began so lately and succeeded. The request then has one write claim on
    /// a whole resource.
    pub once_per: Option<Period>,
    /// The exit codes of a success besides 0.
    pub success_codes: Vec<u8>,
    /// How long the hold lasts from its grant even if the command ends sooner.
    pub hold_at_least: Option<Duration>,
    /// The maximum run time of the command.
    pub max_runtime: Option<Duration>,
    /// Whether the lock is given back once the command says that it is ready.
    pub until_ready: bool,
    /// Whether the waiting requests of the same job end.
    pub supersede: bool,
    /// Sleep for a random part of this time before the request is made.
    pub splay: Duration,
    /// Run nothing unless live holds above cover the claims.
    pub nested: bool,
    /// The file to write the status to.
    pub status_file: Option<PathBuf>,
    /// The spare work, for /bin/sh: it runs beside the wait or after the release.
    pub meanwhile: Option<OsString>,
    /// The work for /bin/sh in place of the busy line and the exit code.
    pub otherwise: Option<OsString>,
}

/// `rlock acquire`.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    /// The request for the lock.
    pub request: RequestOptions,
    /// When the hold ends.
    pub until: Until,
    /// Print commands for a shell instead of lines for a file.
    pub export: bool,
}

/// When a hold of `rlock acquire` ends, unless it is released or broken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The hold is kept for this long from its grant.
    For(Duration),
    /// The hold ends with a process.
    End {
        /// The process.
        pid: Pid,
        /// The signal that tells the process that the hold is lost.
        signal: LostSignal,
    },
}

/// The value of `--once-per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// So long ago at most.
    Within(Duration),
    /// In the same hour, day, week or month.
    Calendar(Unit),
}

/// A part of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// From minute 0.
    Hour,
    /// A date.
    Day,
    /// From Monday.
    Week,
    /// From the first day.
    Month,
}

impl Unit {
    /// A length of time that is longer than any such part, in any time zone.
    pub fn upper_bound(self) -> Duration {
        let day = Duration::from_secs(24 * 3600);
        match self {
            Self::Hour => day / 12,
            Self::Day => 2 * day,
            Self::Week => 8 * day,
            Self::Month => 32 * day,
        }
    }
}

/// The number of a signal, or none to send nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSignal(pub Option<i32>);

/// `rlock renew`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The store to use.
    pub store: StoreOptions,
    /// How long the hold lasts from now. If `None`, as long as `acquire` was told.
    pub length: Option<Duration>,
    /// The session, if not the innermost of `acquire`.
    pub session: Option<SessionId>,
    /// Report what was renewed.
    pub verbose: bool,
}

/// `rlock release`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The store to use.
    pub store: StoreOptions,
    /// The sessions, none twice. If empty, the innermost of `acquire`.
    pub sessions: Vec<SessionId>,
    /// Print the variables of the session around.
    pub export: bool,
    /// Report what was released.
    pub verbose: bool,
}

/// `rlock held`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldBy {
    /// The store to ask.
    pub store: StoreOptions,
    /// The resource.
    pub resource: Resource,
    /// The mode in which it has to be held, or a stronger one.
    pub mode: Mode,
    /// Say in words what the exit code tells.
    pub verbose: bool,
}

/// `rlock inspect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspect {
    /// The store to inspect.
    pub store: StoreOptions,
    /// The resources to show, none twice. If empty, all resources with holders or waiters are
    /// shown.
    pub resources: Vec<Resource>,
    /// What to print.
    pub form: Form,
    /// Go on with each change, and ask a store that cannot tell of changes at these intervals.
    pub watch: Option<Duration>,
    /// Show instants instead of ages, and session ids.
    pub verbose: bool,
    /// Cut nothing, even if lines are longer than those of the terminal.
    pub wide: bool,
    /// When to use colours.
    pub color: ColorChoice,
    /// Show only holds that have lasted for longer than this time.
    pub held_longer_than: Option<Duration>,
    /// Report the resources without a successful run in this time. Then some are named, or a job.
    pub no_success_for: Option<Duration>,
    /// Only the runs of this job count as successful.
    pub job: Option<String>,
    /// Print metrics for Prometheus instead of a table.
    pub prometheus: bool,
    /// The file for the metrics, in place of standard output.
    pub output: Option<PathBuf>,
}

/// What `rlock inspect` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A table for people.
    #[default]
    Table,
    /// One JSON object.
    Json,
    /// The names alone.
    Names,
    /// A tree of sessions below resources.
    Tree,
    /// A graph in the language of Graphviz.
    Dot,
}

/// `rlock doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doctor {
    /// The store to check.
    pub store: StoreOptions,
    /// Print JSON instead of lines.
    pub json: bool,
    /// The ttl to compare with; `None` for the default.
    pub ttl: Option<Duration>,
    /// When to use colours.
    pub color: ColorChoice,
}

/// `rlock history`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The store to ask.
    pub store: StoreOptions,
    /// The resources to show, none twice. If empty, all resources that remember anything are shown.
    pub resources: Vec<Resource>,
    /// Show at most so many of the last entries of each resource.
    pub last: Option<u32>,
    /// Show only what ended less than this time ago.
    pub since: Option<Duration>,
    /// Show only holds that failed.
    pub failed: bool,
    /// Sum up the entries.
    pub stats: bool,
    /// Print JSON instead of a table.
    pub json: bool,
    /// When to use colours.
    pub color: ColorChoice,
}

/// `rlock cleanup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// The store to clean.
    pub store: StoreOptions,
    /// The resources to clean, none twice. If empty, all resources are cleaned; with `break_grants`
    /// it is never empty.
    pub resources: Vec<Resource>,
    /// Only report what would be removed.
    pub dry_run: bool,
    /// Take live grants away too.
    pub break_grants: bool,
    /// Take only the grants of this holder away.
    pub only: Option<Holder>,
}

/// Selects one of several holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The holder with this session.
    Session(SessionId),
    /// The holder with this process, on whatever host.
    Process(Pid),
}

/// `rlock shrink`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shrink {
    /// The store to use.
    pub store: StoreOptions,
    /// The remaining part of the held span.
    pub span: Span,
    /// Selects one of the held resources; needed only if there are several.
    pub resource: Option<Resource>,
    /// Report the change.
    pub verbose: bool,
}

/// `rlock downgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downgrade {
    /// The store to use.
    pub store: StoreOptions,
    /// The mode to lower the hold to. The store refuses write for a lower hold.
    pub mode: Mode,
    /// Selects one of the held resources; needed only if there are several.
    pub resource: Option<Resource>,
    /// Report the change.
    pub verbose: bool,
}

/// `rlock serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serve {
    /// The store of the locks.
    pub store: StoreOptions,
    /// Where to listen. If empty, the sockets of systemd or the default address.
    pub listen: Vec<Address>,
    /// Serve one client on standard input and output.
    pub stdio: bool,
    /// The file with the token that clients must send.
    pub token_file: Option<PathBuf>,
    /// Listen beyond this machine without a token.
    pub insecure: bool,
    /// How many clients may be connected.
    pub max_connections: usize,
    /// How many requests may wait.
    pub max_waiting: usize,
    /// The patterns of the names that clients may lock. If empty, all names.
    pub only: Vec<Pattern>,
    /// The ttl of the leases, see [`RequestOptions::ttl`].
    pub ttl: Option<Duration>,
    /// See [`RequestOptions::history`].
    pub history: Option<u32>,
    /// How long holders may go on after TERM, or after their lease could not be renewed; see
    /// [`RequestOptions::grace`].
    pub grace: Option<Duration>,
    /// Log connections, locks and unlocks.
    pub verbose: bool,
}

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// `rlock man`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Man {
    /// Print this page to standard output.
    Print(Page),
    /// Write all pages below this directory.
    WriteAll(PathBuf),
}
