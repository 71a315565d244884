//! A kept hold has no process, so it needs neither a subscriber nor a renewal.

use std::time::Duration;

use rlock_model::mode::Mode::{Slot, Write};
use rlock_model::request::{Job, Request};
use rlock_redis::codec::{Call, Lease, ScriptReply, Wake};

use super::on_each_server;
use crate::clients::{Clients, TERMS, id, is_granted, is_waiting, request, resource, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(number_of_slots_of_a_kept_hold_bounds_others, kept_hold_is_not_renewed_while_its_slot_migrates,);

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Makes the grant of a request a kept hold that lasts an hour.
fn kept(request: Request) -> Call {
    let job = Job { keep_for: Some(HOUR), is_acquire: true, ..Job::default() };
    Call::acquire(&Request { job, ..request }, 0, false)
}

fn number_of_slots_of_a_kept_hold_bounds_others(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "kept slots", Wake::Publish);
    assert!(is_granted(&clients.side.call(kept(request(1, Slot, "")))));
    clients.advance(HOUR - us(1));
    let mut other = request(2, Slot, "");
    other.claims[0].slots = Some(3);
    assert!(is_granted(&clients.side.call(Call::acquire(&other, 0, false))));
    other.session = id(3);
    assert!(is_waiting(&clients.side.call(Call::acquire(&other, 0, false))));
}

fn kept_hold_is_not_renewed_while_its_slot_migrates(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "kept alone", Wake::Nobody);
    assert!(is_granted(&clients.side.call(kept(request(1, Write, "")))));
    clients.advance(HOUR - us(1));
    let late = Call::renew_alone(id(1), resource(), TERMS.ttl, Lease::Sole);
    assert_eq!(clients.side.call(late), ScriptReply::Unknown);
    clients.advance(us(1));
    assert!(is_granted(&clients.acquire(2, Write, "")), "the kept hold ends at its instant");
}
