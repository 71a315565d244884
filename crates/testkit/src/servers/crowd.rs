//! More leases on one resource than a script removes in one call, all of which expire at the same
//! instant.

use std::time::Duration;

use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Call, Setting, Wake};
use rlock_redis::keys::Keyspace;
use rlock_sys::clock::StoreTime;

use super::Server;
use crate::wait_until;

/// The number of sessions in the crowd.
const MANY: u128 = 1_100;
/// The lease of each session. Adding the whole crowd must take less time.
const LEASE: Duration = Duration::from_millis(700);

/// Queues the request of one session to write several resources. The session never renews, so it
/// counts as dead when its lease is over.
pub fn wait_for(server: &Server, namespace: &str, resources: &[&str]) {
    let setting = Setting { keyspace: Keyspace::new(namespace), wake: Wake::Nobody, now: None };
    let claims = resources.iter().map(|resource| claim(resource, Mode::Write)).collect();
    let _: redis::Value = Call::acquire(&request([7; 16], claims), 0, false)
        .eval(&setting)
        .query(&mut server.client())
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Adds a crowd of readers or waiters to a resource, and returns when all their leases are over.
pub fn expire(server: &Server, namespace: &str, resource: &str) {
    let now = StoreTime::of_machine();
    let setting = Setting { keyspace: Keyspace::new(namespace), wake: Wake::Nobody, now: Some(now) };
    let mut pipeline = redis::pipe();
    for number in 0..MANY {
        let session = (u128::from(now.as_micros()) << 64 | number).to_be_bytes();
        let call = Call::acquire(&request(session, vec![claim(resource, Mode::Read)]), 0, false);
        pipeline.add_command(if number == 0 { call.eval(&setting) } else { call.evalsha(&setting) });
    }
    let mut client = server.client();
    // The replies do not matter: the server may tell some sessions to ask again.
    let _: Vec<redis::Value> = pipeline.query(&mut client).unwrap_or_else(|error| panic!("{error}"));
    wait_until("the leases of the crowd are over", || {
        let (seconds, micros): (u64, u64) = super::ask(&mut client, &["TIME"]);
        StoreTime::from_micros(1_000_000 * seconds + micros) > now + LEASE
    });
}

fn claim(resource: &str, mode: Mode) -> Claim {
    Claim { resource: Resource::new(resource).expect("the name is valid"), mode, span: Span::Whole, slots: None }
}

/// The request of a session that waits, with [`LEASE`] for all of its terms.
fn request(session: [u8; 16], claims: Vec<Claim>) -> Request {
    Request {
        session: SessionId(session),
        ancestors: Vec::new(),
        claims,
        wait: true,
        terms: Some(Terms { ttl: LEASE, claim: LEASE, heartbeat: LEASE }),
        job: Job::default(),
        process: Process::default(),
    }
}
