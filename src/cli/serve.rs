//! `rlock serve`: serves locks to any program that speaks lines.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context;
use crate::environment::defaults::Chosen;
use rlock_arguments::help::notes;
use rlock_arguments::options::{self, StoreOptions};
use rlock_arguments::values::{self, Address, Pattern};
use rlock_serve::run::{self, Options};
use rlock_serve::token;

pub(super) const SERVE: Subcommand = Subcommand {
    name: "serve",
    page: "rlock-serve",
    section: 8,
    about: "Serve locks to any program that speaks lines",
    texts: &[include_str!("pages/serve.txt")],
    define: Serve::augment_args,
    read: |mut matches| Ok(Invocation::Serve(options::read(&mut matches))),
    has_numbers: false,
};

/// `rlock serve`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock serve [--listen HOST:PORT|unix:/PATH]... [OPTIONS]\n       rlock serve --stdio [OPTIONS]",
    after_help = notes(
        "A client sends LOCK KEY, reads ok, and holds the lock until its connection ends.\n\
         Default: the sockets that systemd passes, else 127.0.0.1:1006. More: rlock man serve",
        &["rlock serve --listen unix:/run/rlock.sock", "rlock serve --only 'build/*'"],
    )
)]
#[group(skip)]
pub(crate) struct Serve {
    /// Where to listen: HOST:PORT or unix:/PATH.
    #[arg(long, value_name = "ADDRESS", value_parser = values::listen, conflicts_with = "stdio")]
    pub(super) listen: Vec<Address>,
    /// Serve one client on standard input and output.
    #[arg(long)]
    pub(super) stdio: bool,
    /// Clients must send AUTH with the token in FILE.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) token_file: Option<PathBuf>,
    /// Listen beyond this machine without a token.
    #[arg(long, conflicts_with = "token_file")]
    pub(super) insecure: bool,
    /// How many clients may be connected.
    #[arg(long, value_name = "N", value_parser = values::connections, default_value = "1024")]
    pub(super) max_connections: usize,
    /// How many requests may wait; more are busy at once.
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "1000")]
    pub(super) max_waiting: usize,
    /// Serve only KEYs that match one of these patterns.
    #[arg(long, value_name = "GLOB", value_parser = values::glob)]
    pub(super) only: Vec<Pattern>,
    /// Length of the lease at a server [default: RLOCK_TTL, else 30s].
    #[arg(long, value_name = "DUR", value_parser = values::ttl)]
    pub(super) ttl: Option<Duration>,
    /// Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32].
    #[arg(long, value_name = "N", value_parser = values::history)]
    pub(super) history: Option<u32>,
    /// How long holders go on after TERM [default: 5s].
    // It is also how long they go on after their lease could not be renewed.
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(super) grace: Option<Duration>,
    /// Log each connection, lock and unlock.
    #[arg(short, long)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// Serves until a signal ends the server, and returns the exit code.
pub(super) fn run(serve: &Serve) -> anyhow::Result<u8> {
    let Serve { stdio, insecure, max_connections, max_waiting, .. } = *serve;
    let (listen, only) = (serve.listen.clone(), serve.only.clone());
    let verbose = context::verbose(serve.verbose);
    let options = Options { listen, stdio, insecure, max_connections, max_waiting, only, verbose };
    let (named, store) = context::open_named(&serve.store)?;
    let token = serve.token_file.as_deref().map(token::read).transpose()?;
    let Chosen { terms, grace, history } =
        named.defaults.choose(serve.ttl, serve.grace, serve.history, store.leases())?;
    let open = Arc::new(move || named.open(None));
    run::run(&options, token, (terms, grace, history), store, open)
}
