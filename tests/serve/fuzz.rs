//! Random lines, cut and mixed at random: no input ends the server, leaks memory or blocks others.
//!
//! RLOCK_FUZZ_LINES sets the number of lines, which is 60,000 otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::NONE;
use rlock_testkit::random::Random;
use rlock_testkit::serve::LockServer;
use rlock_testkit::{Lab, wait_until};

/// The number of clients at a time.
const CLIENTS: u64 = 8;

const VERBS: &[&str] = &[
    "LOCK",
    "lock",
    "TRY",
    "RANGE-READ",
    "RANGE-PREWRITE",
    "RANGE-WRITE",
    "UPGRADE",
    "UNLOCK",
    "SHRINK",
    "DOWNGRADE",
    "INSPECT",
    "AUTH",
    "PING",
    "HELO",
    "",
    "GET /",
];
const WORDS: &[&str] = &[
    "k",
    "j",
    "--read",
    "--write",
    "--prewrite",
    "--slot",
    "s=2",
    "s=3",
    "-n",
    "-w",
    "5ms",
    "0",
    "1",
    "-3",
    "[0,1)",
    "(2,1]",
    "-inf",
    "'a b'",
    "\"",
    "\\",
    "--resource",
    "read",
    "--ttl",
    "\u{202e}",
];

/// One line, mostly of known words.
fn line(random: &mut Random) -> Vec<u8> {
    match random.below(20) {
        0 => (0..random.below(200)).map(|_| random.below(256) as u8).collect(),
        1 => vec![b'x'; random.below(4090) as usize],
        _ => {
            let mut line = String::new() + *random.pick(VERBS);
            for _ in 0..random.below(5) {
                line.push(' ');
                line += *random.pick(WORDS);
            }
            line.into_bytes()
        }
    }
}

/// Sends up to `lines` lines over one connection, and ends it in one of several ways. Returns the
/// number of answers.
fn connection(server: &LockServer, random: &mut Random, lines: u64) -> u64 {
    let client = server.tcp();
    let count = 1 + random.below(lines);
    if random.once_in(8) {
        let mut client = client;
        for _ in 0..20 {
            client.send(&line(random));
            client.send(b"\n");
        }
        client.reset();
        return 0;
    }
    let (mut send, read_all) = client.split();
    let mut theirs = random.branch();
    thread::scope(|scope| {
        let reader = scope.spawn(read_all);
        // A first line that is not understood would close the connection.
        send(b"PING\n");
        for _ in 0..count {
            let mut bytes = line(&mut theirs);
            bytes.extend_from_slice(if theirs.once_in(5) { b"\r\n" } else { b"\n" });
            let (head, tail) = bytes.split_at(theirs.below(bytes.len() as u64) as usize);
            if !(send(head) && send(tail)) {
                break;
            }
        }
        // The last line closes the connection, whatever came before it.
        send(&vec![b'x'; 5000]);
        reader.join().expect("the reader does not panic") as u64
    })
}

#[test]
fn random_lines_neither_end_nor_bloat_nor_block_the_server() {
    let total = std::env::var("RLOCK_FUZZ_LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(60_000);
    let lab = Lab::new();
    let mut server = LockServer::start(&lab, NONE);
    let mut random = Random::new();
    let sent = AtomicU64::new(0);
    let memory = |server: &LockServer| super::limits::memory(server);
    let mut before = None;
    while sent.load(Ordering::Relaxed) < total {
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                let mut random = random.branch();
                let (server, sent) = (&server, &sent);
                scope.spawn(move || sent.fetch_add(connection(server, &mut random, 2000), Ordering::Relaxed));
            }
        });
        assert!(server.runs(), "{:?}", server.log().last());
        assert_eq!(server.tcp().ask("PING"), "pong");
        // The first round fills caches and buffers.
        before.get_or_insert_with(|| memory(&server));
    }
    wait_until("nothing is held", || lab.inspect(NONE)["resources"] == serde_json::json!([]));
    let growth = memory(&server).saturating_sub(before.unwrap_or_default());
    assert!(growth < 16 << 20, "the server grew by {growth} bytes");
}
