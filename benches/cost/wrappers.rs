//! Two wrappers that do the least for a lock on Redis. The bench runs itself as a wrapper, so that
//! each lock comes from a process of its own, as with rlock.

use std::process::Command;

use redis::{Connection, cmd, pipe};

use super::candidate::with;
use super::peers;

/// The words that make this program a wrapper. The URL of the server follows, then a script for the
/// naive wrapper, and then the command.
const NAIVE: &str = "--naive";
const BATON: &str = "--baton";

/// The keys: the lock of the naive wrapper, and the numbers of batons that were taken and given.
const LOCK: &str = "naive";
const TAKEN: &str = "baton:taken";
const GIVEN: &str = "baton:given";

/// A wrapper with SET NX PX before the command, and compare and delete after it. `script` is the
/// hash of the script that the server has for it.
pub(crate) fn naive(url: &str, script: &str, words: &[&str]) -> Command {
    with(wrapper(NAIVE, url, &[script]), words)
}

/// A wrapper without a lock, for commands that run one after another. Each waits for a message of
/// the one before, makes one round trip, and sends a message to the next. So a hand-over has the
/// round trips of a release and of a claim, and the server does next to nothing.
pub(crate) fn baton(url: &str, words: &[&str]) -> Command {
    wrapper(BATON, url, words)
}

fn wrapper(word: &str, url: &str, words: &[&str]) -> Command {
    let this = std::env::current_exe().expect("the program has a path");
    with(with(Command::new(this), &[word, url]), words)
}

/// Runs a wrapper if this process was started as one, and returns whether it was.
pub(crate) fn were_asked_for() -> bool {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [NAIVE, url, script, command @ ..] => hold(url, script, command),
        [BATON, url, command @ ..] => pass(url, command),
        _ => return false,
    }
    true
}

fn hold(url: &str, script: &str, command: &[&str]) {
    let mut client = connect(url);
    peers::take(&mut client, LOCK, 1);
    run(command);
    peers::compare_and_delete(&mut client, script, LOCK, 1);
}

fn pass(url: &str, command: &[&str]) {
    let (mut client, mut listener) = (connect(url), connect(url));
    let mut listener = listener.as_pubsub();
    let own: u64 = cmd("INCR").arg(TAKEN).query(&mut client).expect("the server answers");
    let channel = |number: u64| format!("baton:{number}");
    listener.subscribe(channel(own)).expect("the server answers");
    let given: Option<u64> = cmd("GET").arg(GIVEN).query(&mut client).expect("the server answers");
    if given.unwrap_or(0) + 1 < own {
        listener.get_message().expect("the server answers");
        cmd("PING").exec(&mut client).expect("the server answers");
    }
    run(command);
    let mut end = pipe();
    end.cmd("INCR").arg(GIVEN).cmd("PUBLISH").arg(channel(own + 1)).arg("");
    end.exec(&mut client).expect("the server answers");
    // Nothing is to be unsubscribed in a process that ends.
    std::process::exit(0);
}

fn connect(url: &str) -> Connection {
    let client = redis::Client::open(url).expect("the URL is valid");
    client.get_connection().expect("the server is up")
}

fn run(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status().expect("the command can be started");
    assert!(status.success(), "{words:?} fails");
}
