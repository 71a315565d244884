//! More leases of one resource than a script drops at once, all over at the same instant.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlock::lock::mode::Mode;
use rlock::lock::request::{Claim, Process, Request, SessionId, Terms};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::store::redis::codec::{Call, Setting, Wake};
use rlock::store::redis::keys::Keyspace;

use super::Server;
use crate::support::wait_until;

/// How many sessions crowd in.
const MANY: u128 = 1_100;
/// How long they live; adding them has to take less.
const LEASE: Duration = Duration::from_millis(700);

/// Lets one session that is dead by then wait to write several resources, for as long as it takes
/// until its lease is over.
pub(crate) fn wait_for(server: &Server, namespace: &str, resources: &[&str]) {
    let setting = Setting { keyspace: Keyspace::new(namespace), wake: Wake::Nobody, now: None };
    let claims = resources.iter().map(|resource| claim(resource, Mode::Write)).collect();
    let _: redis::Value = Call::acquire(&request([7; 16], claims), 0, false)
        .eval(&setting)
        .query(&mut server.client())
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Lets a crowd read a resource, or wait for it, and returns when the leases of all are over.
pub(crate) fn expire(server: &Server, namespace: &str, resource: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    let setting = Setting { keyspace: Keyspace::new(namespace), wake: Wake::Nobody, now: Some(micros(now)) };
    let mut pipeline = redis::pipe();
    for number in 0..MANY {
        let session = (u128::from(micros(now)) << 64 | number).to_be_bytes();
        let call = Call::acquire(&request(session, vec![claim(resource, Mode::Read)]), 0, false);
        pipeline.add_command(if number == 0 { call.eval(&setting) } else { call.evalsha(&setting) });
    }
    let mut client = server.client();
    // The replies do not matter: some sessions may be told to ask again.
    let _: Vec<redis::Value> = pipeline.query(&mut client).unwrap_or_else(|error| panic!("{error}"));
    wait_until("the leases of the crowd are over", || {
        let (seconds, micros): (u64, u32) = super::ask(&mut client, &["TIME"]);
        Duration::new(seconds, 1_000 * micros) > now + LEASE
    });
}

fn claim(resource: &str, mode: Mode) -> Claim {
    Claim { resource: Resource::new(resource).expect("it is a name"), mode, span: Span::Whole, slots: None }
}

/// A request of a session that waits, with [`LEASE`] for all of its terms.
fn request(session: [u8; 16], claims: Vec<Claim>) -> Request {
    let lease = micros(LEASE);
    Request {
        session: SessionId(session),
        ancestors: Vec::new(),
        claims,
        wait: true,
        terms: Some(Terms { ttl: lease, claim: lease, heartbeat: lease }),
        process: Process::default(),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("it is earlier than the year 500000")
}
