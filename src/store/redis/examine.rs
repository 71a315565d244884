//! Gathers the facts about a server for `rlock doctor`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::{Cmd, Value, from_redis_value_ref};

use super::client::Client;
use super::failure::{ErrorKind, Failure};
use super::node::Node;
use crate::store::facts::ServerFacts;
use crate::system::clock::StoreTime;

/// The number of questions by which the latency is measured.
const PINGS: usize = 10;

/// Asks the server about itself. What the server does not tell is absent.
///
/// # Errors
/// The server cannot be reached or used.
pub(super) fn gather(mut client: Client, is_encrypted: bool) -> Result<ServerFacts, Failure> {
    // Each user has the right to this one.
    match client.command(redis::cmd("TIME")) {
        Err(failure) if !matches!(failure.kind(), ErrorKind::NoRight(_)) => return Err(failure),
        _ => {}
    }
    let is_local = match client.node() {
        Node::Unix(_) => true,
        Node::Tcp { host, .. } => host == "localhost" || host.starts_with("127.") || host == "::1",
    };
    let left = |end: Duration| end.saturating_sub(Duration::from_micros(StoreTime::of_machine().as_micros()));
    let certificate_left = client.certificate_end().map(left);
    // A user may lack the right to each of these commands.
    let mut ask = |command: Cmd| client.command(command).ok();
    let info = ask(redis::cmd("INFO")).and_then(|value| text(&value)).unwrap_or_default();
    let mut login = redis::cmd("ACL");
    login.arg("WHOAMI");
    let login = ask(login).and_then(|value| text(&value));
    let before = (StoreTime::of_machine(), Instant::now());
    let clock = ask(redis::cmd("TIME")).and_then(|value| micros(&value)).map(|told| {
        let half = before.1.elapsed() / 2;
        let own = (before.0 + half).as_micros();
        (i64::try_from(i128::from(told) - i128::from(own)).unwrap_or(i64::MAX), half)
    });
    let mut pings = Vec::new();
    for _ in 0..PINGS {
        let asked = Instant::now();
        if ask(redis::cmd("TIME")).is_some() {
            pings.push(asked.elapsed());
        }
    }
    pings.sort_unstable();
    Ok(ServerFacts { is_encrypted, certificate_left, is_local, login, info: fields(&info), clock, pings })
}

fn text(value: &Value) -> Option<String> {
    from_redis_value_ref(value).ok()
}

fn micros(value: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = from_redis_value_ref(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

/// The fields of the text of INFO: lines `name:value`.
fn fields(info: &str) -> BTreeMap<String, String> {
    let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
