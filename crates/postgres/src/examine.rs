//! Gathers the facts about a server for `rlock doctor`.

use std::time::{Duration, Instant};

use super::client::Client;
use super::failure::Failure;
use super::target::{SslMode, Target};
use rlock_store::facts::DatabaseFacts;
use rlock_sys::clock::StoreTime;

/// The number of questions by which the latency is measured.
const PINGS: usize = 10;

const ABOUT: &str = "SELECT current_setting('server_version_num'), current_setting('max_connections'), \
    (SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'), \
    (current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off')::text, \
    current_setting('synchronous_standby_names')";

/// Asks the server about itself, and makes the tables if there are none.
///
/// # Errors
/// The server cannot be reached or used.
pub(super) fn gather(client: &mut Client, target: &Target) -> Result<DatabaseFacts, Failure> {
    let (told, is_pooled) = client.told(ABOUT, |work| Ok((work.told.clone(), work.is_pooled)))?;
    let (mut pings, mut clock) = (Vec::new(), None);
    for _ in 0..PINGS {
        let (before, asked) = (StoreTime::of_machine(), Instant::now());
        let now = client.look(Vec::new(), |work| Ok(work.clock))?;
        let taken = asked.elapsed();
        let ahead = i128::from(now.as_micros()) - i128::from((before + taken / 2).as_micros());
        clock = Some((i64::try_from(ahead).unwrap_or(i64::MAX), taken / 2));
        pings.push(taken);
    }
    pings.sort_unstable();
    let number = |index: usize| told.get(index).and_then(|text: &String| text.parse::<u64>().ok());
    let connection = &client.exchange.connection;
    let (is_encrypted, certificate_end) = connection.security();
    let left = |end: Duration| end.saturating_sub(Duration::from_micros(StoreTime::of_machine().as_micros()));
    Ok(DatabaseFacts {
        is_encrypted,
        is_verified: target.ssl_mode == SslMode::VerifyFull,
        certificate_left: certificate_end.map(left),
        is_local: connection.is_local(),
        login: target.user().to_owned(),
        is_pooled,
        version: number(0).and_then(|version| u32::try_from(version).ok()).unwrap_or(0),
        connections: number(2).zip(number(1)),
        is_durable: told.get(3).is_some_and(|text| text == "true"),
        standbys: told.get(4).cloned().unwrap_or_default(),
        clock,
        pings,
    })
}
