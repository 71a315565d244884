//! A state of the previous format, and what a later version adds to a state of this format.

use std::time::Duration;

use rlock_model::mode::Mode::{Read, Write};
use rlock_model::past::Ending;
use rlock_model::request::{Job, Process, Request};
use rlock_redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::clients::{Clients, TERMS, id, is_granted, is_released, is_waiting, request, resource};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    what_a_later_version_adds_stays,
    unused_state_of_the_previous_format_serves,
    state_of_the_previous_format_with_a_live_holder_is_refused,
);

/// Adds to the record of a session, to the state, and to the past in it.
const ADD: &str = "
    local raw = redis.call('HGET', KEYS[2], ARGV[1])
    local after, known = cmsgpack.unpack_one(raw)
    known[10] = { later = 'kept' }
    redis.call('HSET', KEYS[2], ARGV[1], cmsgpack.pack(known) .. string.sub(raw, after + 1))
    local s = redis.call('GET', KEYS[1])
    local clock, token, seq, past, rest = struct.unpack('>dddI4c0', s, 5)
    local fields = { struct.unpack('>I1c0I4c0dI4I4dI4ddI1c0', past) }
    local counts = struct.pack('>dI4I4I4', 0, 0, 0, 0) .. 'tail'
    past = string.sub(past, 1, #past - 1 - #fields[10]) .. struct.pack('>I1c0', #counts, counts)
    local slots, epoch, count, walks = cmsgpack.unpack(string.sub(s, rest))
    local more = cmsgpack.pack(slots, epoch, count, walks, { later = 'kept' })
    redis.call('SET', KEYS[1], string.sub(s, 1, 4) .. struct.pack('>dddI4c0', clock, token, seq, #past, past) .. more)
";

/// Returns what is left in the record, in the state, and at the end of the past in it.
const LEFT: &str = "
    local raw = redis.call('HGET', KEYS[2], ARGV[1])
    local known = raw and select(2, cmsgpack.unpack_one(raw))
    local s = redis.call('GET', KEYS[1])
    local is_quiet = string.sub(s, 4, 4) == '0'
    local past, rest = string.sub(s, 29), nil
    if not is_quiet then
      past, rest = select(4, struct.unpack('>dddI4c0', s, 5))
    end
    local more = not is_quiet and select(5, cmsgpack.unpack(string.sub(s, rest)))
    return { known and known[10].later or '', more and more.later or '', string.sub(past, -4) }
";

fn eval<T: redis::FromRedisValue>(clients: &mut Clients, script: &str, argument: &str) -> T {
    let keys = clients.side.keys(&resource());
    let [s, d, ..] = &keys;
    redis::cmd("EVAL").arg(script).arg(2).arg(s).arg(d).arg(argument).query(&mut clients.side.connection).unwrap()
}

fn what_a_later_version_adds_stays(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "later", Wake::Publish);
    for number in [1, 2] {
        assert!(is_granted(&clients.acquire(number, Read, "")));
    }
    eval::<()>(&mut clients, ADD, &id(1).to_string());
    assert!(is_granted(&clients.renew(1, false)));
    assert!(is_waiting(&clients.acquire(3, Write, "")));
    let by = Process::default();
    clients.side.call(Call::break_grants(resource(), Some(id(1)), Vec::new(), Some(&by)));
    assert!(matches!(clients.renew(1, false), ScriptReply::Granted { is_revoked: true, .. }));
    assert!(is_released(&clients.end(2, "exit 3", 2)));
    let left = |clients: &mut Clients| eval::<Vec<String>>(clients, LEFT, &id(1).to_string());
    assert_eq!(left(&mut clients), ["kept", "kept", "tail"]);
    assert!(is_released(&clients.end(1, "exit 3", 2)));
    assert_eq!(left(&mut clients), ["", "kept", "tail"]);
    assert!(is_granted(&clients.renew(3, false)));
    assert!(is_released(&clients.end(3, "exit 3", 2)));
    assert_eq!(left(&mut clients), ["", "", "tail"]);
}

/// Makes the state one of the previous format.
fn make_older(clients: &mut Clients) {
    let script = "redis.call('SETRANGE', KEYS[1], 2, ARGV[1])";
    eval::<()>(clients, script, "3");
}

/// A request for a hold without a process.
fn keeping(number: u32) -> Request {
    let job = Job { keep_for: Some(Duration::from_secs(60)), ..Job::default() };
    Request { job, ..request(number, Write, "") }
}

fn unused_state_of_the_previous_format_serves(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "older", Wake::Publish);
    assert!(is_granted(&clients.acquire(1, Write, "")));
    clients.end(1, "exit 3", 2);
    make_older(&mut clients);
    let reply = clients.acquire(2, Write, "");
    assert!(matches!(reply, ScriptReply::Granted { last: Some(Ending::Exit(3)), .. }), "{reply:?}");
    make_older(&mut clients);
    clients.advance(TERMS.ttl);
    let reply = clients.acquire(3, Write, "");
    assert!(matches!(reply, ScriptReply::Granted { last: Some(Ending::Expired), .. }), "{reply:?}");
    clients.release(3);
    assert!(is_granted(&clients.side.call(Call::acquire(&keeping(4), 0, false))));
    make_older(&mut clients);
    assert!(is_waiting(&clients.acquire(5, Write, "")));
    assert!(is_released(&clients.release(4)));
}

fn state_of_the_previous_format_with_a_live_holder_is_refused(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "older and live", Wake::Publish);
    let refused = |clients: &mut Clients| clients.try_acquire(9, Write, "").unwrap_err().to_string();
    assert!(is_granted(&clients.acquire(1, Write, "")));
    make_older(&mut clients);
    assert!(refused(&mut clients).contains("RLOCKFORMAT"));
    eval::<()>(&mut clients, "redis.call('SETRANGE', KEYS[1], 2, ARGV[1])", "4");
    assert!(is_waiting(&clients.acquire(2, Write, "")));
    make_older(&mut clients);
    assert!(refused(&mut clients).contains("RLOCKFORMAT"));
}
