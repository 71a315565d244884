//! `rlock exec` and `rlock range-*`: acquire, run the command, release.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::Context;
use rustix::event::PollFlags;

use super::room::{self, Limits};
use super::{Failure, context, describe};
use crate::cli;
use crate::cli::invocation::Exec;

use crate::lock::lease::Lease;
use crate::lock::request::{Claim, Process, Request, SessionId};
use crate::passwd;
use crate::store::{self, AcquireOptions, Grant, Released, Store};
use crate::supervise::run::{self, CommandSpec, Options, Standing};
use crate::supervise::signals::Signals;
use crate::words::without_passwords;

/// How many bytes of the command are kept at the store, for others to see.
const COMMAND_BYTES: usize = 2048;

/// How many resources a message names.
const NAMES_MAX: usize = 8;

/// Runs the command under its claims and gives the exit code.
pub(super) fn run(exec: Exec) -> anyhow::Result<u8> {
    // Opening a store reads files. As long as their file system does not answer, signals end rlock
    // as they end any program.
    let store = context::open_store_within(&exec.store, exec.connect_timeout)?;
    if !exec.quiet {
        context::warn_of_password(&exec.store);
    }
    // Before the request, so that no signal that cancels it is lost.
    let signals = Signals::install().context("can't receive signals")?;
    let ancestors = context::sessions_above()?;
    let session = random_id()?;
    let mut variables = inherited(store.as_ref(), session, &ancestors, &exec)?;
    if let Some(complaint) = room::complaint(&exec.command, std::env::vars_os(), &variables, Limits::of_this_process())
    {
        return Err(Failure::usage(format!("the names do not fit into the command's environment: {complaint}")).into());
    }
    let leases = store.leases();
    let grace = grace(&exec, leases)?;
    let no_wait = exec.wait.is_some_and(|wait| wait.is_zero());
    let request = Request {
        session,
        ancestors: ancestors.clone(),
        claims: exec.claims.clone(),
        wait: !no_wait,
        terms: leases.then(|| Lease::new(exec.ttl).terms()),
        process: this_process(&exec.command),
    };
    let mut related = ancestors;
    related.push(session);
    let hold = store.acquire(request, AcquireOptions { replicas: exec.replicas }).map_err(Failure::from)?;
    let options = Options {
        grace,
        wait: exec.wait,
        busy_code: exec.conflict_exit_code,
        notice: !exec.quiet && io::stderr().is_terminal(),
        quiet: exec.quiet,
    };
    let holds = exec.verbose.then(|| format!("holds {}", names(&exec.claims)));
    let start_with = move |tokens: &[u64]| {
        // Said here and not when the grant is seen, for the line about the wait is gone by now.
        holds.inspect(|holds| super::say(holds));
        let highest = tokens.iter().max().copied().unwrap_or_default();
        variables.push((context::TOKEN.into(), highest.to_string().into()));
        variables
    };
    // Not dropped: rlock ends when this returns, and the kernel takes back the table's map and all
    // else sooner than it could be given.
    let mut supervised = ManuallyDrop::new(Supervised {
        hold,
        claims: exec.claims,
        related,
        leases,
        busy_code: exec.conflict_exit_code,
        quiet: exec.quiet,
        wait: exec.wait,
        tells_wait: exec.verbose,
    });
    let command = CommandSpec { argv: exec.command, session: session.to_string() };
    run::run(&mut *supervised, command, start_with, options, signals)
}

/// The grace to keep. Where a grant is a lease, the command is told to stop a grace before its
/// deadline, and the last renewal is tried a third of the ttl before it, so a longer grace would
/// stop commands that hold their lock.
fn grace(exec: &Exec, leases: bool) -> Result<Duration, Failure> {
    let Exec { ttl, grace, grace_yields, .. } = *exec;
    match ttl / 3 {
        _ if !leases => Ok(grace),
        limit if grace <= limit => Ok(grace),
        // A default must not be the reason for a mistake.
        limit if grace_yields => Ok(limit),
        _ => Err(Failure::usage(format!(
            "--grace {} is more than a third of --ttl {}: lower --grace or raise --ttl",
            cli::shown(grace),
            cli::shown(ttl)
        ))),
    }
}

/// The request as the loop sees it, with the words for what it tells.
struct Supervised {
    hold: Box<dyn store::Hold>,
    claims: Vec<Claim>,
    related: Vec<SessionId>,
    /// Whether a grant is a lease.
    leases: bool,
    busy_code: u8,
    quiet: bool,
    /// How long the request may wait.
    wait: Option<Duration>,
    /// Whether a wait is still to be told.
    tells_wait: bool,
}

impl Supervised {
    fn in_words(&mut self, standing: store::Standing) -> Standing {
        match standing {
            store::Standing::Asking => Standing::Asking,
            store::Standing::Waiting => {
                if std::mem::take(&mut self.tells_wait) {
                    super::say(&format!("waits for {}", names(&self.claims)));
                }
                let out_of_reach = |trouble| Standing::OutOfReach(format!("{}: {trouble}", self.cannot_lock()));
                self.hold.trouble().map_or(Standing::Waiting, out_of_reach)
            }
            store::Standing::Granted(Grant { tokens, deadline }) => Standing::Granted { tokens, deadline },
            store::Standing::Busy(listings) => {
                let busy = || format!("busy: {}", describe::in_the_way(&self.claims, &self.related, &listings));
                Standing::Denied { code: self.busy_code, text: (!self.quiet).then(busy) }
            }
            store::Standing::Refused(refusal) => denied(Failure::refused(&refusal)),
            store::Standing::Lost => Standing::Lost(self.lost()),
        }
    }

    fn cannot_lock(&self) -> String {
        format!("cannot lock {}", names(&self.claims))
    }

    fn lost(&self) -> String {
        let (names, how) = (names(&self.claims), if self.leases { LEASE_LOST } else { HOLD_LOST });
        let were = if self.claims.len() == 1 { "was" } else { "were" };
        format!("lost: {names} {were} taken away, {how}")
    }
}

/// Who else takes a hold away that lives as long as its process.
const HOLD_LOST: &str = "as 'rlock cleanup --break' does";

/// Who else takes a lease away.
const LEASE_LOST: &str = "by 'rlock cleanup --break' or with the server's data";

fn denied(failure: Failure) -> Standing {
    Standing::Denied { code: failure.code, text: Some(failure.text) }
}

impl run::Hold for Supervised {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.hold.descriptors()
    }

    fn timeout(&self) -> Option<Duration> {
        self.hold.timeout()
    }

    fn check(&mut self) -> anyhow::Result<Standing> {
        match self.hold.check() {
            Ok(standing) => Ok(self.in_words(standing)),
            Err(error @ store::Error::Unavailable(_)) => Err(error).with_context(|| self.cannot_lock()),
            Err(error) => Ok(denied(error.into())),
        }
    }

    fn release(&mut self) -> anyhow::Result<Option<String>> {
        let released = self.hold.release().with_context(|| {
            let end = if self.leases { "the lease ends" } else { "rlock has ended" };
            let names = names(&self.claims);
            format!("could not release {names}, held until {end}")
        })?;
        Ok((released == Released::Lost).then(|| self.lost()))
    }

    fn blocked_by(&mut self) -> anyhow::Result<String> {
        let listings = self.hold.inspect().with_context(|| self.cannot_lock())?;
        Ok(describe::in_the_way(&self.claims, &self.related, &listings))
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.hold.kept()
    }

    fn gave_up(&mut self) -> anyhow::Result<String> {
        let waited = self.wait.map(|wait| format!("; waited {}", cli::shown(wait)));
        Ok(self.blocked_by()? + &waited.unwrap_or_default())
    }

    fn overdue(&self) -> String {
        let what = format!("lost: the lease on {} was not renewed in time", names(&self.claims));
        match self.hold.trouble() {
            Some(trouble) => format!("{what}: {trouble}"),
            None => what,
        }
    }
}

fn names(claims: &[Claim]) -> String {
    let shown = claims.iter().take(NAMES_MAX).map(|claim| format!("'{}'", claim.resource));
    let others = (claims.len() > NAMES_MAX).then(|| format!("{} others", claims.len() - NAMES_MAX));
    shown.chain(others).collect::<Vec<_>>().join(", ")
}

fn random_id() -> anyhow::Result<SessionId> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).context("can't get random numbers")?;
    Ok(SessionId(id))
}

/// What the command is told, but for the token, which nobody knows yet.
fn inherited(
    store: &dyn Store,
    session: SessionId,
    ancestors: &[SessionId],
    exec: &Exec,
) -> Result<Vec<(OsString, OsString)>, Failure> {
    let lines = |texts: Vec<&str>| texts.join("\n");
    let mut variables = vec![
        (context::SESSION.into(), session.to_string().into()),
        (context::RESOURCE.into(), lines(exec.claims.iter().map(|claim| claim.resource.as_str()).collect()).into()),
        (context::MODE.into(), lines(exec.claims.iter().map(|claim| claim.mode.as_str()).collect()).into()),
    ];
    variables.extend(context::exported(&exec.store, store)?);
    // One that is left from elsewhere would make strangers of this session's descendants its
    // ancestors.
    if !ancestors.is_empty() || std::env::var_os(context::ANCESTORS).is_some() {
        let ids: Vec<_> = ancestors.iter().map(SessionId::to_string).collect();
        variables.push((context::ANCESTORS.into(), ids.join(",").into()));
    }
    Ok(variables)
}

fn this_process(command: &[OsString]) -> Process {
    let uid = rustix::process::geteuid().as_raw();
    let mut left = COMMAND_BYTES;
    let mut words = Vec::with_capacity(command.len());
    for word in command {
        // Everybody who uses the store sees it.
        let word = without_passwords(&word.to_string_lossy());
        if word.len() > left {
            words.push(format!("{}…", &word[..word.floor_char_boundary(left)]));
            break;
        }
        left -= word.len();
        words.push(word);
    }
    Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        user: passwd::lookup(uid).map_or_else(|| uid.to_string(), |(name, _)| name),
        command: words,
    }
}
