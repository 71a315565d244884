//! The poll loop of a server.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use glob::Pattern;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;

use super::listen;
use super::rules::Rules;
use super::server::{Limits, Server};
use super::worker::{Open, Worker};
use rlock_arguments::values::Address;
use rlock_model::request::Terms;
use rlock_store::{Store, identity};
use rlock_sys::alarm::Alarm;
use rlock_sys::background::Bell;
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

/// What the options of `rlock serve` say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen. If empty, the sockets of systemd or the default address.
    pub listen: Vec<Address>,
    /// Serve one client on standard input and output.
    pub stdio: bool,
    /// Listen beyond this machine without a token.
    pub insecure: bool,
    /// How many clients may be connected.
    pub max_connections: usize,
    /// How many requests may wait.
    pub max_waiting: usize,
    /// The patterns of the names that clients may lock. If empty, all names.
    pub only: Vec<Pattern>,
    /// Log connections, locks and unlocks.
    pub verbose: bool,
}

/// Serves until all clients of a drained server are gone, or until the client on standard input and
/// output is gone. Returns the exit code.
///
/// # Errors
/// The server cannot listen, or the kernel fails it.
pub fn run(
    options: &Options,
    token: Option<String>,
    (terms, grace, history): (Option<Terms>, Duration, u32),
    store: Box<dyn Store>,
    open: Arc<Open>,
) -> anyhow::Result<u8> {
    let is_guarded = token.is_some() || options.insecure;
    let has_leases = store.leases();
    let rules =
        Arc::new(Rules { token, only: options.only.clone(), has_leases, grace, is_stopped: identity::is_stopped });
    let listeners = if options.stdio { Vec::new() } else { listen::open(&options.listen, is_guarded)? };
    let signals = signals()?;
    raise_descriptor_limit();
    let worker = Worker::new(open, Arc::clone(&rules)).context("can't prepare the worker")?;
    let sessions = store.sessions(true).map_err(rlock_show::failure::Failure::from)?;
    let limits = Limits { connections: options.max_connections, waiting: options.max_waiting };
    let server = Server::new(rules, limits, (terms, history), options.verbose, sessions, worker);
    let mut server = server.context("can't prepare the server")?;
    for listener in listeners {
        server.listen(listener).context("can't listen")?;
    }
    if options.stdio {
        server.serve_stdio().context("can't use standard input and output")?;
    }
    // A service manager that does not answer does not matter.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let alarm = Alarm::default();
    let mut is_draining = false;
    // When holders have to end.
    let mut stops_at = None;
    loop {
        server.settle();
        if (is_draining || options.stdio) && server.is_empty() {
            return Ok(if options.stdio && server.has_lost { exit::LOST } else { 0 });
        }
        server.register();
        let is_ringing = wait(&server, &signals, &alarm, stops_at).context("cannot wait for clients and the store")?;
        // A bell that could not be read rings on, and would count twice.
        let signalled = if is_ringing { signals.silence() } else { 0 };
        if signalled > 0 {
            if is_draining || signalled > 1 {
                return Ok(exit::SIGNAL_BASE + INTERRUPT);
            }
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            is_draining = true;
            stops_at = Some(Boottime::now() + grace);
            server.drain();
        }
        server.receive().context("cannot receive from clients")?;
        // The store comes before the timers: a renewal may have come in time.
        server.settle();
        server.tick().context("cannot listen again")?;
        // The loop would spin if the instant stayed among its timers until the store has answered.
        if stops_at.take_if(|at| *at <= Boottime::now()).is_some() {
            server.stop();
        }
    }
}

/// The number of SIGINT.
const INTERRUPT: u8 = 2;

/// Lets INT, TERM and HUP ring a bell.
fn signals() -> anyhow::Result<Arc<Bell>> {
    let bell = Arc::new(Bell::new().context("can't receive signals")?);
    let theirs = Arc::clone(&bell);
    ctrlc::set_handler(move || theirs.ring())
        .map_err(|error| match error {
            // The crate's own text does not name the cause.
            ctrlc::Error::System(cause) => anyhow::Error::new(cause),
            error => error.into(),
        })
        .context("can't receive signals")?;
    Ok(bell)
}

/// Each client needs a descriptor, and the usual limit is 1024.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With the lower limit, clients beyond it have to wait.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Sleeps until something is ready or due. Returns whether the bell for signals rings.
fn wait(server: &Server, signals: &Bell, alarm: &Alarm, stops_at: Option<Boottime>) -> Result<bool, Errno> {
    let of_store = server.sessions.descriptors();
    let others = server.descriptors();
    let mut polled = Vec::with_capacity(1 + others.len() + of_store.len());
    polled.push(PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN));
    polled.extend(
        others.iter().chain(&of_store).map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)),
    );
    let timer = [server.timeout(), server.sessions.timeout(), stops_at].into_iter().flatten().min();
    alarm.wait(&mut polled, timer)?;
    Ok(!polled[0].revents().is_empty())
}
