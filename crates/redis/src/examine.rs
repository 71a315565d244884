//! Gathers the facts about a server for `rlock doctor`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::{Cmd, Value, from_redis_value_ref};

use super::client::Client;
use super::failure::{ErrorKind, Failure};
use super::nodes::open_slots;
use super::survey::primaries_of;
use rlock_store::facts::{ClusterFacts, ServerFacts};
use rlock_sys::clock::StoreTime;

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
    let is_local = client.node().is_local();
    let left = |end: Duration| end.saturating_sub(Duration::from_micros(StoreTime::of_machine().as_micros()));
    let certificate_left = client.certificate_end().map(left);
    let cluster = client.is_cluster().then(|| slots(&mut client)).transpose()?;
    // A user may lack the right to each of these commands, or the server the command.
    let mut unknown = Vec::new();
    let mut ask = |command: &'static str| match client.command(command_of(command)) {
        Ok(value) => Some(value),
        Err(failure) => {
            unknown.extend((*failure.kind() == ErrorKind::TooOld).then_some(command));
            None
        }
    };
    let info = ask("info").and_then(|value| text(&value)).unwrap_or_default();
    let login = ask("acl|whoami").and_then(|value| text(&value));
    let before = (StoreTime::of_machine(), Instant::now());
    let clock = ask("time").and_then(|value| micros(&value)).map(|told| {
        let half = before.1.elapsed() / 2;
        let own = (before.0 + half).as_micros();
        (i64::try_from(i128::from(told) - i128::from(own)).unwrap_or(i64::MAX), half)
    });
    let mut pings = Vec::new();
    for _ in 0..PINGS {
        let asked = Instant::now();
        if ask("time").is_some() {
            pings.push(asked.elapsed());
        }
    }
    pings.sort_unstable();
    let info = fields(&info);
    Ok(ServerFacts { is_encrypted, certificate_left, is_local, login, info, clock, pings, unknown, cluster })
}

/// A command by the name that its right has.
fn command_of(right: &str) -> Cmd {
    let mut words = right.split('|');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    command.arg(words.collect::<Vec<_>>());
    command
}

/// Asks each primary of a Cluster about its slots.
///
/// # Errors
/// No node tells the primaries, for another reason than a right.
fn slots(client: &mut Client) -> Result<ClusterFacts, Failure> {
    let mut facts = ClusterFacts::default();
    let primaries = match primaries_of(client) {
        Err(failure) if matches!(failure.kind(), ErrorKind::NoRight(_)) => {
            return Ok(ClusterFacts { lacks_right: true, ..facts });
        }
        primaries => primaries?,
    };
    facts.primaries = primaries.len();
    for (primary, slots) in primaries {
        match client.at(primary.clone()).command(command_of("cluster|nodes")) {
            Ok(nodes) => {
                let open = text(&nodes).map(|nodes| open_slots(&nodes)).unwrap_or_default();
                facts.open.extend(open.into_iter().map(|slot| (slot, primary.to_string())));
            }
            Err(failure) if matches!(failure.kind(), ErrorKind::NoRight(_)) => facts.lacks_right = true,
            Err(failure) => facts.missing.push((slots, failure.words())),
        }
    }
    Ok(facts)
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
