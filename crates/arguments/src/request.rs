//! Defines the options of the subcommands that make a request.

use std::time::Duration;

use clap::{ArgMatches, Args};

use super::mistake::Mistake;
use super::options::StoreOptions;
use super::options::heading::{BUSY, CRON, LEASE, WAITING};
use super::values::{self, Wait};
use rlock_model::request::Claim;
use rlock_store::Replicas;
use rlock_words as words;

/// The options of `exec`, `range-*` and `acquire` about their request. In help, those with a
/// `display_order` stand below the options that a subcommand adds under the same heading.
#[derive(Args, Clone, Debug, PartialEq)]
#[group(skip)]
pub struct RequestOptions {
    /// The claims to hold, in the order of the command line: never empty, no span of a resource
    /// twice. They have a reader of their own.
    #[arg(skip)]
    pub claims: Vec<Claim>,
    /// The words of the command line, if they name paths: the links in these may turn while the
    /// request waits.
    #[arg(skip)]
    pub paths: Option<Box<ArgMatches>>,
    /// The limit of the wait.
    #[command(flatten)]
    pub waiting: WaitOptions,
    /// Exit with 75 at once if N requests already wait; 0 as -n.
    #[arg(long, value_name = "N", value_parser = values::waiters, help_heading = WAITING, hide_short_help = true)]
    pub max_waiting: Option<u32>,
    /// Keep the place in the queue for 15m, for the next request with NAME.
    #[arg(long, value_name = "NAME", value_parser = values::job, help_heading = WAITING, hide_short_help = true)]
    pub place: Option<String>,
    /// Time after which a nested wait looks for a deadlock; 0: never.
    #[arg(long, value_name = "DUR", value_parser = values::duration, default_value = "1s")]
    #[arg(help_heading = WAITING, hide_short_help = true)]
    pub deadlock_timeout: Duration,
    /// Exit with N when busy.
    #[arg(short = 'E', long, value_name = "N", value_parser = values::exit_code, default_value = "75")]
    #[arg(help_heading = BUSY)]
    pub conflict_exit_code: u8,
    /// Print nothing when busy.
    #[arg(short, long, conflicts_with = "verbose", help_heading = BUSY, display_order = 90)]
    pub quiet: bool,
    /// Length of the lease at a server [default: RLOCK_TTL, else 30s].
    // It has no effect in a store where a hold lives as long as its process.
    #[arg(long, value_name = "DUR", value_parser = values::ttl, help_heading = LEASE, hide_short_help = true)]
    pub ttl: Option<Duration>,
    /// Time from TERM to KILL when the lock is lost [default: 5s].
    // It is also how long before the end of its lease a hold without a command counts as lost. The
    // default is lowered if it is too long for `ttl`.
    #[arg(long, value_name = "DUR", value_parser = values::duration, help_heading = LEASE, hide_short_help = true)]
    pub grace: Option<Duration>,
    /// Time in which a server has to be reached [default: 5s].
    #[arg(long, value_name = "DUR", value_parser = values::connect_timeout)]
    #[arg(help_heading = LEASE, hide_short_help = true)]
    pub connect_timeout: Option<Duration>,
    /// Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0].
    #[arg(long, value_name = "N[+disk]", value_parser = values::replicas)]
    #[arg(help_heading = LEASE, hide_short_help = true)]
    pub replicas: Option<Replicas>,
    /// Name of the job in the store [default: derived from user and COMMAND].
    #[arg(long, value_name = "NAME", value_parser = values::job)]
    #[arg(help_heading = CRON, hide_short_help = true, display_order = 91)]
    pub job: Option<String>,
    /// Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32].
    #[arg(long, value_name = "N", value_parser = values::history)]
    #[arg(help_heading = CRON, hide_short_help = true, display_order = 92)]
    pub history: Option<u32>,
    /// Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store.
    #[arg(long, help_heading = CRON, hide_short_help = true, display_order = 93)]
    pub no_default_store: bool,
    /// The owner, the reason and the title of the request.
    #[command(flatten)]
    pub whose: Whose,
    /// Say what is done, and why a run was skipped.
    #[arg(short, long, display_order = 94)]
    pub verbose: bool,
    /// The store to use.
    #[command(flatten)]
    pub store: StoreOptions,
}

impl RequestOptions {
    /// The options beside these claims. `wait` becomes the maximum wait, zero for no wait.
    ///
    /// # Errors
    /// See [`WaitOptions::limit`].
    pub fn with(mut self, claims: Vec<Claim>) -> Result<Self, Mistake> {
        self.waiting.wait = self.waiting.limit()?;
        Ok(Self { claims, ..self })
    }
}

/// The options that limit the wait.
#[derive(Args, Clone, Copy, Debug, PartialEq)]
#[group(skip)]
pub struct WaitOptions {
    /// Exit with 75 at once if the lock is busy.
    #[arg(short = 'n', long, help_heading = WAITING)]
    no_wait: bool,
    /// Wait at most DUR [default: RLOCK_WAIT or ever].
    #[arg(short, long, value_name = "DUR", value_parser = values::wait, help_heading = WAITING)]
    pub wait: Option<Wait>,
}

impl WaitOptions {
    /// The maximum wait, zero for no wait; `None` for the default.
    ///
    /// # Errors
    /// `-n` means `-w 0`, so the two may stand together only if they agree.
    pub fn limit(self) -> Result<Option<Wait>, Mistake> {
        const NONE: Wait = Wait::AtMost(Duration::ZERO);
        match self.wait {
            Some(wait) if self.no_wait && wait != NONE => {
                let wait = wait.limit().map_or_else(|| "ever".to_owned(), words::duration);
                Err(Mistake::plain(format!("--no-wait and --wait {wait} exclude each other: give one of them")))
            }
            wait => Ok(if self.no_wait { Some(NONE) } else { wait }),
        }
    }
}

/// The owner and the reason of a request, and its title, as text for people. The environment and
/// the CI apply where owner or reason are absent.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(skip)]
pub struct Whose {
    /// The person or system that this is for [default: RLOCK_OWNER].
    #[arg(long, value_name = "TEXT", value_parser = values::plain, hide_short_help = true)]
    pub owner: Option<String>,
    /// The reason for this, for others to read [default: RLOCK_REASON].
    #[arg(long, value_name = "TEXT", value_parser = values::plain, hide_short_help = true)]
    pub reason: Option<String>,
    /// What others see in place of COMMAND and its arguments.
    #[arg(long, value_name = "TEXT", value_parser = values::plain, hide_short_help = true)]
    pub title: Option<String>,
}
