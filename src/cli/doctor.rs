//! `rlock doctor`: checks whether the store can be used, and says what to do where it cannot.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::look::look;
use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::context::{self, Named};
use rlock_arguments::help::notes;
use rlock_arguments::options::{self, LookOptions, StoreOptions};
use rlock_arguments::values;
use rlock_model::lease::Lease;
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Request};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_show::doctor::{cost, failed, names, no_names};
use rlock_store::check::{Check, Verdict};
use rlock_store::network;
use rlock_store::{self as store, AcquireOptions, Handle, Standing, Store, identity};
use rlock_sys::clock::Boottime;
use rlock_sys::exit;
use rlock_words::{self as words, Explained};

pub(super) const DOCTOR: Subcommand = Subcommand {
    name: "doctor",
    page: "rlock-doctor",
    section: 1,
    about: "Check the store, and say what to do",
    texts: &[include_str!("pages/doctor.txt")],
    define: Doctor::augment_args,
    read: |mut matches| Ok(Invocation::Doctor(options::read(&mut matches))),
    has_numbers: false,
};

/// `rlock doctor`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock doctor [OPTIONS]",
    after_help = notes(
        "Exit: 0, or 69 if something makes rlock unusable.",
        &["rlock doctor --store redis://locks.example"],
    )
)]
#[group(skip)]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Length of the lease at a server [default: RLOCK_TTL, else 30s].
    #[arg(long, value_name = "DUR", value_parser = values::ttl)]
    pub(super) ttl: Option<Duration>,
    #[command(flatten)]
    pub(super) look: LookOptions,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// How long each step of the self-test may take.
const STEP: Duration = Duration::from_secs(10);

/// Prints a line for each check and returns the exit code.
pub(super) fn run(doctor: &Doctor) -> anyhow::Result<u8> {
    let checks = examine(doctor)?;
    let is_usable = checks.iter().all(|check| check.verdict != Verdict::Fail);
    let text = if doctor.json { as_json(&checks, is_usable) } else { lines(doctor, &checks) };
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    Ok(if is_usable { 0 } else { exit::UNAVAILABLE })
}

fn examine(doctor: &Doctor) -> anyhow::Result<Vec<Check>> {
    let source = context::source(&doctor.store);
    let named = match Named::find(&doctor.store) {
        Ok(named) => named,
        Err(failure) => return Ok(vec![failed("store", &failure.words)]),
    };
    let ttl = named.defaults.ttl(doctor.ttl)?;
    let mut store = match named.open(None) {
        Ok(store) => store,
        Err(failure) => return Ok(vec![failed("store", &failure.words)]),
    };
    context::warn_of_password(&doctor.store);
    let chosen = format!("{}, namespace '{}', chosen by {source}", store.url(), store.namespace());
    let mut found = vec![Check::ok("store", chosen)];
    match store.examine(ttl) {
        Ok(checks) => found.extend(checks),
        Err(error) => {
            found.push(failed("connection", error.words()));
            return Ok(found);
        }
    }
    let page = if store.leases() { "RIGHTS in rlock-redis(7)" } else { "STORES in rlock(1)" };
    found.push(in_use(store.as_mut()).unwrap_or_else(|error| no_names(error.words(), page)));
    drop(store);
    let begun = Boottime::now();
    let locked = locks(doctor, ttl);
    if locked.is_ok() {
        found.push(cost(Boottime::now() - begun));
    }
    found.push(match locked {
        Ok(found) => Check::ok("locks", found),
        Err(words) => failed("locks", &words),
    });
    Ok(found)
}

/// The check of the names that are held or waited for.
fn in_use(store: &mut dyn Store) -> Result<Check, store::Error> {
    let inspection = store.inspect(&[])?;
    let pasts = store.pasts(&inspection)?;
    Ok(names(&inspection, &pasts, &store.take_unusable()))
}

/// Takes and releases a lock on a name of its own, which the store then forgets. On a server, a
/// second request waits meanwhile and has to be woken: that needs other rights.
fn locks(doctor: &Doctor, ttl: Duration) -> Result<&'static str, Explained> {
    let open = || context::open_store_quietly(&doctor.store).map_err(|failure| failure.words);
    let new_session =
        || identity::new_session().map_err(|error| format!("no random numbers: {}", words::reason(&error)));
    let random = new_session()?;
    let resource = Resource::new(&format!("rlock-doctor-{random}")).map_err(|error| error.to_string())?;
    let request = |store: &dyn Store, wait| -> Result<Request, Explained> {
        Ok(Request {
            session: new_session()?,
            ancestors: Vec::new(),
            claims: vec![Claim { resource: resource.clone(), mode: Mode::Write, span: Span::Whole, slots: None }],
            wait,
            terms: store.leases().then(|| Lease::new(ttl).terms()),
            // Nobody wants to read of this later.
            job: Job { name: "rlock doctor".to_owned(), history: 0, ..Job::default() },
            process: identity::process(
                rustix::process::geteuid().as_raw(),
                std::process::id(),
                vec!["rlock".to_owned(), "doctor".to_owned()],
            ),
        })
    };
    let words = |error: store::Error| error.words().clone();
    let store = open()?;
    let has_leases = store.leases();
    let first = request(store.as_ref(), false)?;
    let ask = |store: Box<dyn Store>, request| Handle::new(store.sessions(false)?, request, AcquireOptions::default());
    let mut first = ask(store, first).map_err(words)?;
    until(&mut first, |standing| matches!(standing, Standing::Granted(_)))?;
    let mut second = None;
    // LMDB does not allow one process to open a table twice.
    if has_leases {
        let store = open()?;
        let request = request(store.as_ref(), true)?;
        let mut waiter = ask(store, request).map_err(words)?;
        until(&mut waiter, |standing| matches!(standing, Standing::Waiting))?;
        second = Some(waiter);
    }
    first.release(None).map_err(words)?;
    drop(first);
    let mut found = "a lock was taken and released";
    if let Some(mut waiter) = second {
        until(&mut waiter, |standing| matches!(standing, Standing::Granted(_)))?;
        waiter.release(None).map_err(words)?;
        found = "a lock was taken, waited for, handed over and released";
    }
    open()?.forget(&resource).map_err(words)?;
    Ok(found)
}

/// Drives a request until the store says what is expected of it.
fn until(handle: &mut Handle, is_expected: fn(&Standing) -> bool) -> Result<(), Explained> {
    let deadline = Boottime::now() + STEP;
    loop {
        match handle.check().map_err(|error| error.words().clone())? {
            standing if is_expected(&standing) => return Ok(()),
            Standing::Asking | Standing::Waiting => {}
            Standing::Granted(_) => {
                let remedy = "do not use it: see whether a proxy or a replica answers in the place of the server";
                return Err(Explained::new("the store granted a lock that was held", remedy));
            }
            _ => return Err(Explained::new("the store gave an unexpected answer", "run this again")),
        }
        let now = Boottime::now();
        if now >= deadline {
            let trouble = handle.trouble().map(|trouble| format!("{trouble}; ")).unwrap_or_default();
            let what = format!("{trouble}the store did not answer in time");
            return Err(Explained::new(what, "see its log, its network and its load"));
        }
        let due = handle.timeout().map_or(deadline, |timeout| timeout.min(deadline));
        network::wait(&handle.descriptors(), Some(due));
    }
}

fn lines(doctor: &Doctor, checks: &[Check]) -> String {
    let palette = look(doctor.look.color, false).palette;
    let mut text = String::new();
    for check in checks {
        let style = match check.verdict {
            Verdict::Ok => palette.holder,
            Verdict::Warn => palette.waiter,
            Verdict::Fail => palette.alarm,
            Verdict::Unknown => palette.dim,
        };
        let remedy = check.remedy.as_deref().map(|remedy| format!(": {remedy}")).unwrap_or_default();
        text += &format!("{style}{:<8}{style:#}{:<12} {}{remedy}\n", check.verdict.as_str(), check.name, check.found);
    }
    text
}

fn as_json(checks: &[Check], is_usable: bool) -> String {
    words::json(&json!({ "usable": is_usable, "checks": checks })) + "\n"
}
