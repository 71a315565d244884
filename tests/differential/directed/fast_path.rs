//! The fast path of a script leaves the same state behind, and gives the same replies, as the
//! general path.

use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::past::{End, Ending};
use rlock_model::request::{Claim, Job, Request};
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, ScriptReply, Wake};
use rlock_redis::keys::KINDS_LEN;

use super::on_each_server;
use crate::clients::{Clients, NOW, TERMS, id, is_granted, is_released, is_waiting, request, resource, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    both_paths_leave_the_same_state,
    both_paths_leave_the_same_state_of_several_resources,
    both_paths_hand_over_in_the_same_way,
    release_of_two_resources_that_names_one_releases_both,
    fast_path_executes_fewer_commands,
    sole_holder_of_several_resources_needs_as_many_commands_as_one_of_each,
    hand_over_executes_fewer_commands,
);

/// The contents of the keys of a resource.
type State = Vec<Vec<Vec<u8>>>;

/// The contents of the keys of the resource.
fn state(clients: &mut Clients) -> State {
    state_of(clients, &resource())
}

/// The contents of the keys of a resource. The counters are a map of MessagePack, whose order
/// depends on how it was made, so the bytes of each value are sorted.
fn state_of(clients: &mut Clients, resource: &Resource) -> State {
    let [s, d, e, q, l, u, h] = clients.side.keys(resource);
    let connection = &mut clients.side.connection;
    let quiet: Option<Vec<u8>> = redis::cmd("GET").arg(&s).query(connection).unwrap();
    let ttl: i64 = redis::cmd("TTL").arg(&s).query(connection).unwrap();
    let flat: Vec<Vec<u8>> = redis::cmd("HGETALL").arg(&d).query(connection).unwrap();
    let mut fields: Vec<Vec<u8>> = flat
        .chunks(2)
        .map(|pair| {
            let mut value = pair[1].clone();
            value.sort();
            [&pair[0][..], &value].concat()
        })
        .collect();
    fields.sort();
    let has_ttl = format!("has a ttl: {}", ttl >= 0).into_bytes();
    let quiet = quiet.map(|mut quiet| {
        quiet.sort();
        quiet
    });
    let mut state = vec![quiet.into_iter().collect(), vec![has_ttl], fields];
    for set in [e, q, l, u] {
        state.push(redis::cmd("ZRANGE").arg(set).arg(0).arg(-1).arg("WITHSCORES").query(connection).unwrap());
    }
    state.push(redis::cmd("LRANGE").arg(h).arg(0).arg(-1).query(connection).unwrap());
    state
}

/// Plays a life of a resource, and returns each reply with the state after it.
fn play(server: &Server, is_general: bool, mode: Mode, part: &str) -> Vec<(ScriptReply, State)> {
    server.ask::<()>(&["FLUSHALL"]);
    let mut clients = Clients::new(server, "paths", Wake::Publish);
    clients.side.variant.is_general = is_general;
    let mut seen = Vec::new();
    for round in 0..3 {
        let number = 10 * round;
        type Step<'a> = Box<dyn FnOnce(&mut Clients) -> ScriptReply + 'a>;
        let steps: Vec<Step<'_>> = vec![
            Box::new(|clients| clients.acquire(number, mode, part)),
            Box::new(|clients| clients.renew(number, true)),
            Box::new(|clients| clients.acquire(number, mode, part)),
            Box::new(|clients| clients.acquire(number + 1, Write, part)),
            Box::new(|clients| clients.renew(number, true)),
            Box::new(|clients| clients.end(number + 1, "exit 0", 2)),
            Box::new(|clients| clients.renew(number, false)),
            Box::new(|clients| clients.end(number, "exit 3", 2)),
            Box::new(|clients| clients.end(number, "exit 3", 2)),
            Box::new(|clients| clients.acquire(number + 2, mode, part)),
            Box::new(|clients| {
                clients.advance(if round == 1 { TERMS.ttl } else { us(round.into()) });
                clients.end(number + 2, "exit 0", 2)
            }),
        ];
        for step in steps {
            clients.advance(us(3));
            let reply = step(&mut clients);
            seen.push((reply, state(&mut clients)));
        }
        // The server's clock goes back.
        clients.side.setting.now = Some(NOW);
    }
    seen
}

fn both_paths_leave_the_same_state(kind: Kind) {
    let server = Server::start(kind);
    for (mode, part) in [(Read, ""), (Prewrite, "[1,2)"), (Write, ""), (Write, "(-inf,3]"), (Slot, "")] {
        let [fast, general] = [false, true].map(|is_general| play(&server, is_general, mode, part));
        for (step, (fast, general)) in fast.iter().zip(&general).enumerate() {
            assert_eq!(fast, general, "{mode} {part}: step {step}");
        }
    }
}

/// A request for `count` resources with a claim on each.
fn several(number: u32, mode: Mode, count: usize) -> Request {
    let one = request(number, mode, "");
    let claim = |number| Claim { resource: Resource::new(&format!("{{r}}{number}")).unwrap(), ..one.claims[0].clone() };
    Request { claims: (0..count).map(claim).collect(), ..one.clone() }
}

/// Plays a life of several resources, and returns each reply with the states after it.
fn play_several(server: &Server, is_general: bool, mode: Mode, count: usize) -> Vec<(ScriptReply, Vec<State>)> {
    server.ask::<()>(&["FLUSHALL"]);
    let mut clients = Clients::new(server, "paths", Wake::Publish);
    clients.side.variant.is_general = is_general;
    let names: Vec<Resource> = several(0, mode, count).claims.into_iter().map(|claim| claim.resource).collect();
    let acquire = |number, count| Call::acquire(&several(number, mode, count), 0, false);
    let renew = |number, count| Call::renew(id(number), names[..count].to_vec(), false);
    let end = |number, count| {
        let end = End { ending: Ending::Exit(3), is_success: false };
        Call::release_after(id(number), names[..count].to_vec(), Some(end), &Job { history: 2, ..Job::default() })
    };
    let mut seen = Vec::new();
    for round in 0..3 {
        let number = 10 * round;
        let calls = [
            acquire(number, count),
            renew(number, count),
            acquire(number, count),
            // A call that names one resource is asked for the others.
            renew(number, 1),
            // From here on the first resource is not quiet. The others are, until the next renewal.
            acquire(number + 1, 1),
            renew(number, count),
            end(number, count),
            renew(number + 1, 1),
            end(number + 1, 1),
            acquire(number + 2, count),
            renew(number + 2, count),
            end(number + 2, count),
            end(number + 2, count),
            acquire(number + 3, count),
            end(number + 3, 1),
            acquire(number + 4, count),
        ];
        for call in calls {
            clients.advance(us(3));
            let reply = clients.side.call(call);
            let states = names.iter().map(|name| state_of(&mut clients, name)).collect();
            seen.push((reply, states));
        }
        // The lease of the last session is over.
        clients.advance(TERMS.ttl);
        clients.side.call(renew(number + 4, count));
    }
    seen
}

fn both_paths_leave_the_same_state_of_several_resources(kind: Kind) {
    let server = Server::start(kind);
    // With more than 16 resources, only the first record has all names.
    for (mode, count) in [(Write, 2), (Read, 3), (Slot, 2), (Write, 17)] {
        let [fast, general] = [false, true].map(|is_general| play_several(&server, is_general, mode, count));
        assert!(fast.iter().any(|(reply, _)| matches!(reply, ScriptReply::Released(tokens) if tokens.len() == count)));
        for (step, (fast, general)) in fast.iter().zip(&general).enumerate() {
            assert_eq!(fast.0, general.0, "{mode} of {count}: step {step}");
            assert!(fast.1 == general.1, "{mode} of {count}: step {step}");
        }
    }
}

/// The mode of a claim, and its span as [`Clients::acquire`] takes it.
type Asked = (Mode, &'static str);

/// What a resource loses.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The key at this place among its keys.
    Key(usize),
    /// The record of the last session in `d`.
    Record,
}

impl Loss {
    fn all() -> impl Iterator<Item = Self> {
        (0..KINDS_LEN).map(Self::Key).chain([Self::Record])
    }

    fn strike(self, clients: &mut Clients, sessions: u32) {
        let keys = clients.side.keys(&resource());
        let connection = &mut clients.side.connection;
        match self {
            Self::Key(place) => redis::cmd("DEL").arg(&keys[place]).exec(connection),
            Self::Record => redis::cmd("HDEL").arg(&keys[1]).arg(id(sessions - 1).to_string()).exec(connection),
        }
        .unwrap();
    }
}

/// Hands a resource over from its holders to each waiter in turn, and returns each reply with the
/// state after it.
fn play_queue(
    server: &Server,
    is_general: bool,
    holders: &[Asked],
    waiters: &[Asked],
    loss: Option<Loss>,
) -> Vec<(ScriptReply, State)> {
    server.ask::<()>(&["FLUSHALL"]);
    let mut clients = Clients::new(server, "paths", Wake::Publish);
    clients.side.variant.is_general = is_general;
    let mut seen = Vec::new();
    let asked: Vec<Asked> = holders.iter().chain(waiters).copied().collect();
    for (&(mode, part), number) in asked.iter().zip(0..) {
        clients.advance(us(3));
        seen.push((clients.acquire(number, mode, part), state(&mut clients)));
    }
    let sessions = u32::try_from(asked.len()).unwrap();
    if let Some(loss) = loss {
        loss.strike(&mut clients, sessions);
    }
    for number in 0..sessions {
        clients.advance(us(3));
        let outcome = if number % 2 == 0 { "exit 0" } else { "exit 3" };
        seen.push((clients.end(number, outcome, 2), state(&mut clients)));
        seen.push((clients.renew(number + 1, false), state(&mut clients)));
    }
    seen
}

fn both_paths_hand_over_in_the_same_way(kind: Kind) {
    const LOW: &str = "[1,2)";
    const WIDE: &str = "[0,3)";
    let server = Server::start(kind);
    let lives: [(&[Asked], &[Asked]); 12] = [
        (&[(Write, "")], &[(Write, ""), (Write, ""), (Read, ""), (Write, "")]),
        (&[(Write, "")], &[(Write, ""), (Slot, ""), (Prewrite, "")]),
        (&[(Write, "")], &[(Read, ""), (Read, ""), (Write, "")]),
        (&[(Write, "")], &[(Prewrite, ""), (Prewrite, "")]),
        (&[(Read, "")], &[(Write, ""), (Read, "")]),
        (&[(Read, ""), (Read, "")], &[(Write, ""), (Write, "")]),
        (&[(Prewrite, "")], &[(Write, ""), (Write, "")]),
        (&[(Slot, "")], &[(Write, ""), (Write, "")]),
        (&[(Write, LOW)], &[(Write, LOW), (Read, LOW), (Write, LOW)]),
        (&[(Write, LOW)], &[(Write, WIDE), (Write, "")]),
        (&[(Write, WIDE)], &[(Write, LOW), (Write, "[2,3)"), (Write, "")]),
        (&[(Write, LOW), (Write, "[5,6)")], &[(Write, LOW), (Write, "[5,6)"), (Write, "")]),
    ];
    for (holders, waiters) in lives {
        for loss in Loss::all().map(Some).chain([None]) {
            let play = |is_general| play_queue(&server, is_general, holders, waiters, loss);
            let [fast, general] = [false, true].map(play);
            for (step, (fast, general)) in fast.iter().zip(&general).enumerate() {
                assert_eq!(fast, general, "{holders:?} before {waiters:?}, loss {loss:?}: step {step}");
            }
        }
    }
}

fn release_of_two_resources_that_names_one_releases_both(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "paths", Wake::Publish);
    let second = Resource::new("{r}2").unwrap();
    let mut both = request(1, Write, "");
    both.claims.push(Claim { resource: second.clone(), ..both.claims[0].clone() });
    assert!(is_granted(&clients.side.call(Call::acquire(&both, 0, false))));
    assert!(is_waiting(&clients.acquire(2, Write, "")));
    let reply = clients.end(1, "exit 0", 2);
    assert!(matches!(&reply, ScriptReply::Released(tokens) if tokens.len() == 2), "{reply:?}");
    assert!(is_granted(&clients.renew(2, false)));
    let alone = Request { session: id(3), claims: vec![both.claims.remove(1)], ..both };
    assert!(is_granted(&clients.side.call(Call::acquire(&alone, 0, false))), "the second resource is free");
}

/// The number of commands that the server has executed since its statistics began.
fn executed(server: &Server) -> u64 {
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter_map(calls).sum()
}

/// The number of commands that the server executes for `measured`, on the fast paths and without
/// them.
fn counted(kind: Kind, before: fn(&mut Clients), measured: fn(&mut Clients)) -> [u64; 2] {
    let server = Server::start(kind);
    [false, true].map(|is_general| {
        server.ask::<()>(&["FLUSHALL"]);
        let mut clients = Clients::new(&server, "paths", Wake::Publish);
        clients.side.variant.is_general = is_general;
        before(&mut clients);
        server.ask::<()>(&["CONFIG", "RESETSTAT"]);
        measured(&mut clients);
        executed(&server)
    })
}

fn fast_path_executes_fewer_commands(kind: Kind) {
    // The first request makes the resource known.
    let before = |clients: &mut Clients| {
        clients.acquire(1, Write, "");
        clients.release(1);
    };
    let measured = |clients: &mut Clients| {
        clients.acquire(2, Write, "");
        clients.renew(2, false);
        clients.release(2);
    };
    let [fast, general] = counted(kind, before, measured);
    assert!(fast * 4 < general * 3, "{fast} and {general}");
}

fn sole_holder_of_several_resources_needs_as_many_commands_as_one_of_each(kind: Kind) {
    const COUNT: usize = 10;
    let server = Server::start(kind);
    let life = |clients: &mut Clients, number: u32, count: usize| {
        let names: Vec<Resource> = several(0, Write, count).claims.into_iter().map(|claim| claim.resource).collect();
        assert!(is_granted(&clients.side.call(Call::acquire(&several(number, Write, count), 0, false))));
        assert!(is_granted(&clients.side.call(Call::renew(id(number), names.clone(), false))));
        assert!(is_released(&clients.side.call(Call::release(id(number), names))));
    };
    let [one, many] = [1, COUNT].map(|count| {
        server.ask::<()>(&["FLUSHALL"]);
        let mut clients = Clients::new(&server, "several", Wake::Publish);
        // The first request makes the resources known.
        life(&mut clients, 1, count);
        server.ask::<()>(&["CONFIG", "RESETSTAT"]);
        life(&mut clients, 2, count);
        executed(&server)
    });
    assert!(many <= one * COUNT as u64, "{many} commands for {COUNT} resources, and {one} for one");
}

fn hand_over_executes_fewer_commands(kind: Kind) {
    let before = |clients: &mut Clients| {
        for number in 1..4 {
            clients.acquire(number, Write, "");
        }
    };
    let measured = |clients: &mut Clients| {
        clients.end(1, "exit 0", 2);
        clients.end(2, "exit 0", 2);
    };
    let [fast, general] = counted(kind, before, measured);
    assert!(fast * 4 < general * 3, "{fast} and {general}");
}
