//! More leases of one resource than a script drops at once, all over at the same instant.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlock::lock::mode::Mode;
use rlock::lock::request::{Claim, Process, Request, SessionId, Terms};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::store::redis::codec::{Call, Setting, Wake};
use rlock::store::redis::keys::Keyspace;

use super::Server;

/// How many sessions crowd in.
const MANY: u128 = 1_100;
/// How long they live; adding them has to take less.
const LEASE: Duration = Duration::from_millis(700);

/// Lets one session that is dead by then wait to write several resources, for as long as it takes
/// until its lease is over.
pub(crate) fn wait_for(server: &Server, namespace: &str, resources: &[&str]) {
    let setting = Setting { keyspace: Keyspace::new(namespace), wake: Wake::Nobody, now: None };
    let lease = u64::try_from(LEASE.as_micros()).expect("it is short");
    let claim = |name: &&str| Claim {
        resource: Resource::new(name).expect("it is a name"),
        mode: Mode::Write,
        span: Span::Whole,
        slots: None,
    };
    let request = Request {
        session: SessionId([7; 16]),
        ancestors: Vec::new(),
        claims: resources.iter().map(claim).collect(),
        wait: true,
        terms: Some(Terms { ttl: lease, claim: lease, heartbeat: lease }),
        process: Process::default(),
    };
    let _: redis::Value = Call::acquire(&request, 0, false)
        .eval(&setting)
        .query(&mut server.client())
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Lets a crowd read a resource, or wait for it, and returns when the leases of all are over.
pub(crate) fn expire(server: &Server, namespace: &str, resource: &str) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    let now = u64::try_from(since.as_micros()).expect("it is earlier than the year 500000");
    let setting = Setting { keyspace: Keyspace::new(namespace), wake: Wake::Nobody, now: Some(now) };
    let lease = u64::try_from(LEASE.as_micros()).expect("it is short");
    let claim = Claim {
        resource: Resource::new(resource).expect("it is a name"),
        mode: Mode::Read,
        span: Span::Whole,
        slots: None,
    };
    let mut pipeline = redis::pipe();
    for number in 0..MANY {
        let request = Request {
            session: SessionId((u128::from(now) << 64 | number).to_be_bytes()),
            ancestors: Vec::new(),
            claims: vec![claim.clone()],
            wait: true,
            terms: Some(Terms { ttl: lease, claim: lease, heartbeat: lease }),
            process: Process::default(),
        };
        let call = Call::acquire(&request, 0, false);
        pipeline.add_command(if number == 0 { call.eval(&setting) } else { call.evalsha(&setting) });
    }
    let mut client = server.client();
    // What is answered does not matter: some may be told to ask again.
    let _: Vec<redis::Value> = pipeline.query(&mut client).unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(LEASE);
}
