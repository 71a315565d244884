//! `rlock exec` and `rlock range-*`: acquire, run the command, release.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::BorrowedFd;

use anyhow::Context;
use rustix::event::PollFlags;

use super::{Failure, context, describe};
use crate::cli::invocation::Exec;
use crate::lock::request::{Claim, Process, Request, SessionId};
use crate::passwd;
use crate::store::{self, Acquired, Store};
use crate::supervise::run::{self, CommandSpec, Options, Standing};
use crate::supervise::signals::Signals;

/// How many bytes of the command are kept at the store, for others to see.
const COMMAND_BYTES: usize = 2048;

/// Runs the command under its claims and gives the exit code.
pub(super) fn run(exec: Exec) -> anyhow::Result<u8> {
    // Before the request, so that no signal that cancels it is lost.
    let signals = Signals::install().context("can't receive signals")?;
    if exec.replicas > 0 {
        return Err(Failure::refused(&"the embedded store has no replicas: leave out --replicas").into());
    }
    let store = context::open_store(&exec.store)?;
    let ancestors = context::sessions_above()?;
    let session = random_id()?;
    let mut variables = inherited(store.as_ref(), session, &ancestors, &exec.claims);
    let no_wait = exec.wait.is_some_and(|wait| wait.is_zero());
    let request = Request {
        session,
        ancestors: ancestors.clone(),
        claims: exec.claims.clone(),
        wait: !no_wait,
        terms: None,
        process: this_process(&exec.command),
    };
    let mut related = ancestors;
    related.push(session);
    let (standing, hold) = match store.acquire(request).map_err(Failure::from)? {
        Acquired::Standing(standing, hold) => (standing, hold),
        Acquired::Refused(refusal) => return Err(Failure::refused(&refusal).into()),
        Acquired::Busy(listings) => {
            if exec.quiet {
                return Ok(exec.conflict_exit_code);
            }
            let text = format!("busy: {}", describe::in_the_way(&exec.claims, &related, &listings));
            return Err(Failure { code: exec.conflict_exit_code, text }.into());
        }
    };
    if exec.verbose {
        let holds = if standing == store::Standing::Waiting { "waits for" } else { "holds" };
        super::say(&format!("{holds} {}", names(&exec.claims)));
    }
    let options = Options {
        grace: exec.grace,
        wait: exec.wait,
        busy_code: exec.conflict_exit_code,
        notice: !exec.quiet && std::io::stderr().is_terminal(),
        quiet: exec.quiet,
    };
    let mut supervised = Supervised { hold, claims: exec.claims, related };
    let first = supervised.in_words(standing);
    let with_token = move |tokens: &[u64]| {
        let highest = tokens.iter().max().copied().unwrap_or_default();
        variables.push((context::TOKEN.into(), highest.to_string().into()));
        variables
    };
    run::run(&mut supervised, first, CommandSpec { argv: exec.command }, with_token, options, signals)
}

/// The request as the loop sees it, with the words for what it tells.
struct Supervised {
    hold: Box<dyn store::Hold>,
    claims: Vec<Claim>,
    related: Vec<SessionId>,
}

impl Supervised {
    fn in_words(&self, standing: store::Standing) -> Standing {
        match standing {
            store::Standing::Waiting => Standing::Waiting,
            store::Standing::Granted(tokens) => Standing::Granted(tokens),
            store::Standing::Lost => Standing::Lost(format!(
                "lost: {} was taken away, as 'rlock cleanup --break' does; the command is stopped",
                names(&self.claims)
            )),
        }
    }
}

impl run::Hold for Supervised {
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.hold.descriptors()
    }

    fn check(&mut self) -> anyhow::Result<Standing> {
        let standing = self.hold.check()?;
        Ok(self.in_words(standing))
    }

    fn release(&mut self) -> anyhow::Result<()> {
        Ok(self.hold.release()?)
    }

    fn blocked_by(&mut self) -> anyhow::Result<String> {
        Ok(describe::in_the_way(&self.claims, &self.related, &self.hold.inspect()?))
    }
}

fn names(claims: &[Claim]) -> String {
    claims.iter().map(|claim| format!("'{}'", claim.resource)).collect::<Vec<_>>().join(", ")
}

fn random_id() -> anyhow::Result<SessionId> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).context("no random numbers can be had")?;
    Ok(SessionId(id))
}

/// What the command is told, but for the token, which nobody knows yet.
fn inherited(
    store: &dyn Store,
    session: SessionId,
    ancestors: &[SessionId],
    claims: &[Claim],
) -> Vec<(OsString, OsString)> {
    let lines = |texts: Vec<&str>| texts.join("\n");
    let mut variables = vec![
        (context::SESSION.into(), session.to_string().into()),
        (context::RESOURCE.into(), lines(claims.iter().map(|claim| claim.resource.as_str()).collect()).into()),
        (context::MODE.into(), lines(claims.iter().map(|claim| claim.mode.as_str()).collect()).into()),
        (context::STORE.into(), store.url().into()),
        (context::NAMESPACE.into(), store.namespace().into()),
    ];
    // One that is left from elsewhere would make strangers of this session's descendants its ancestors.
    if !ancestors.is_empty() || std::env::var_os(context::ANCESTORS).is_some() {
        let ids: Vec<_> = ancestors.iter().map(SessionId::to_string).collect();
        variables.push((context::ANCESTORS.into(), ids.join(",").into()));
    }
    variables
}

fn this_process(command: &[OsString]) -> Process {
    let uid = rustix::process::geteuid().as_raw();
    let mut left = COMMAND_BYTES;
    let mut words = Vec::with_capacity(command.len());
    for word in command {
        let word = word.to_string_lossy();
        if word.len() > left {
            words.push(format!("{}…", &word[..word.floor_char_boundary(left)]));
            break;
        }
        left -= word.len();
        words.push(word.into_owned());
    }
    Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        user: passwd::lookup(uid).map_or_else(|| uid.to_string(), |(name, _)| name),
        command: words,
    }
}
