//! The promise in environments that refuse something: containers, filters of system calls, users
//! without privileges, missing files and descriptors.
//!
//! `tests/support/within` is the table of the environments. A [`trial`] runs in each of them in
//! every run of the tests. The suites `cli` and `signals` run in them by
//! `tests/run --test environments -- --ignored --nocapture`.

mod refused;
mod suites;
mod trial;

use std::fmt::Write as _;
use std::process::Command;
use std::thread;

use rlock_testkit::needs::{namespaces, programs, root, skip_unless};
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, Ran};
use trial::{Expected, trial};

const WITHIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/within");

/// Whether this machine can make the environments.
fn can_play() -> bool {
    root("change to another user")
        && namespaces(&["--mount"]).is_some()
        && namespaces(&["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]).is_some()
        && programs(&["python3", "cc", "setpriv"])
}

/// The environments of the table.
fn environments() -> Vec<String> {
    let listed = Ran::of(Command::new(WITHIN).arg("--list"));
    assert_eq!(listed.code(), Some(0), "{listed:?}");
    listed.stdout.lines().map(str::to_owned).collect()
}

/// What an environment leaves of the promise.
fn expected(environment: &str, is_embedded: bool) -> Expected {
    let all = Expected { refusal: None, warning: None, spare: true, output: true };
    match environment {
        "no-proc" if is_embedded => Expected { refusal: Some((69, "/proc is not mounted")), ..all },
        "no-proc" => Expected { warning: Some("/proc"), ..all },
        "no-dev" => Expected { spare: false, ..all },
        "closed" => Expected { output: false, ..all },
        _ => all,
    }
}

/// Runs a trial in each environment on the stores that `lab` makes.
fn trials(lab: impl Fn() -> Lab + Sync) {
    let failures = |environment: &String| {
        let lab = lab();
        let expected = expected(environment, lab.url().starts_with("file:"));
        trial(environment, &lab, &expected)
    };
    // The loops would take the processors from the other trials.
    let environments: Vec<_> = environments().into_iter().filter(|name| name != "loaded").collect();
    assert!(environments.len() > 10, "{environments:?}");
    let mut report = String::new();
    thread::scope(|scope| {
        let failures = &failures;
        // A panic names its thread.
        let trials = environments.iter().map(|one| {
            let named = thread::Builder::new().name(one.clone());
            (one, named.spawn_scoped(scope, move || failures(one)).expect("a thread starts"))
        });
        let trials: Vec<_> = trials.collect();
        for (environment, trial) in trials {
            for failure in trial.join().unwrap_or_else(|_| vec!["see the panic above".to_owned()]) {
                writeln!(report, "{environment}: {failure}").expect("a string takes everything");
            }
        }
    });
    assert!(report.is_empty(), "\n{report}");
}

/// rlock(1): in each environment the promise holds, or one line says what is weaker, or the command
/// does not start.
#[test]
fn embedded_store_keeps_the_promise_in_every_environment_or_says_what_is_weaker() {
    skip_unless!(can_play());
    // /etc/rlock.conf names another namespace.
    trials(|| Lab::new().with("RLOCK_NAMESPACE", "lab"));
}

/// The same on a server.
#[test]
fn server_keeps_the_promise_in_every_environment_or_says_what_is_weaker() {
    skip_unless!(can_play() && Kind::Redis7.is_present());
    // Another user reaches the server by TCP only: its socket is in a folder of the tests' user.
    let server = Server::on_tcp(Kind::Redis7);
    trials(|| Lab::at(server.url()).with("RLOCK_TTL", "3s"));
}
