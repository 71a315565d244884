//! `rlock serve`: serves locks to any program that speaks lines.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, ArgMatches, Command, ValueHint, value_parser};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context;
use crate::environment::defaults::Chosen;
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{StoreOptions, given, history, id, option, read_store, switch, ttl, verbose};
use rlock_arguments::values;
use rlock_serve::run::{self, Options};
use rlock_serve::token;

pub(super) const SERVE: Subcommand = Subcommand {
    name: "serve",
    page: "rlock-serve",
    section: 8,
    about: "Serve locks to any program that speaks lines",
    texts: &[include_str!("pages/serve.txt")],
    define,
    read,
    has_numbers: false,
    runs_command: false,
};

/// `rlock serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// The store of the locks.
    pub(super) store: StoreOptions,
    /// The file with the token that clients must send.
    pub(super) token_file: Option<PathBuf>,
    /// What the server is to do.
    pub(super) options: Options,
    /// The ttl of the leases, see
    /// [`RequestOptions::ttl`](rlock_arguments::request::RequestOptions::ttl).
    pub(super) ttl: Option<Duration>,
    /// See [`RequestOptions::history`](rlock_arguments::request::RequestOptions::history).
    pub(super) history: Option<u32>,
    /// How long holders may go on after TERM, or after their lease could not be renewed; see
    /// [`RequestOptions::grace`](rlock_arguments::request::RequestOptions::grace).
    pub(super) grace: Option<Duration>,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    command
        .override_usage(
            "rlock serve [--listen HOST:PORT|unix:/PATH]... [OPTIONS]\n       rlock serve --stdio [OPTIONS]",
        )
        .after_help(notes(
            "A client sends LOCK KEY, reads ok, and holds the lock until its connection ends.\n\
             Default: the sockets that systemd passes, else 127.0.0.1:1006. More: rlock man serve | man -l -",
            &["rlock serve --listen unix:/run/rlock.sock", "rlock serve --only 'build/*'"],
        ))
        .arg(
            option(id::LISTEN, "ADDRESS", values::listen, "Where to listen: HOST:PORT or unix:/PATH")
                .action(ArgAction::Append)
                .conflicts_with(id::STDIO),
        )
        .arg(switch(id::STDIO, "Serve one client on standard input and output"))
        .arg(
            option(id::TOKEN_FILE, "FILE", value_parser!(PathBuf), "Clients must send AUTH with the token in FILE")
                .value_hint(ValueHint::FilePath),
        )
        .arg(switch(id::INSECURE, "Listen beyond this machine without a token").conflicts_with(id::TOKEN_FILE))
        .arg(
            option(id::MAX_CONNECTIONS, "N", values::connections, "How many clients may be connected")
                .default_value("1024"),
        )
        .arg(
            option(id::MAX_WAITING, "N", values::count, "How many requests may wait; more are busy at once")
                .default_value("1000"),
        )
        .arg(
            option(id::ONLY, "GLOB", values::glob, "Serve only KEYs that match one of these patterns")
                .action(ArgAction::Append),
        )
        .arg(ttl())
        .arg(history())
        .arg(option(id::GRACE, "DUR", values::duration, "How long holders go on after TERM [default: 5s]"))
        .arg(verbose("Log each connection, lock and unlock"))
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let options = Options {
        listen: matches.remove_many(id::LISTEN).into_iter().flatten().collect(),
        stdio: matches.get_flag(id::STDIO),
        insecure: matches.get_flag(id::INSECURE),
        max_connections: given(&mut matches, id::MAX_CONNECTIONS),
        max_waiting: given(&mut matches, id::MAX_WAITING),
        only: matches.remove_many(id::ONLY).into_iter().flatten().collect(),
        verbose: matches.get_flag(id::VERBOSE),
    };
    Ok(Invocation::Serve(Serve {
        options,
        token_file: matches.remove_one(id::TOKEN_FILE),
        ttl: matches.remove_one(id::TTL),
        history: matches.remove_one(id::HISTORY),
        grace: matches.remove_one(id::GRACE),
        store: read_store(&mut matches),
    }))
}

/// Serves until a signal ends the server, and returns the exit code.
pub(super) fn run(serve: &Serve) -> anyhow::Result<u8> {
    let options = Options { verbose: context::verbose(serve.options.verbose), ..serve.options.clone() };
    let (named, store) = context::open_named(&serve.store)?;
    let token = serve.token_file.as_deref().map(token::read).transpose()?;
    let Chosen { terms, grace, history } =
        named.defaults.choose(serve.ttl, serve.grace, serve.history, store.leases())?;
    let open = Arc::new(move || named.open(None));
    run::run(&options, token, (terms, grace, history), store, open)
}
