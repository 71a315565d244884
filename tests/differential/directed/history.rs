//! What the keys of a resource keep of the holds that have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use rlock_model::mode::Mode::{Read, Write};
use rlock_model::op::Refusal;
use rlock_model::past::{End, Ending, JOBS_MAX, Past, Totals};
use rlock_model::request::{Job, OncePer, Request};
use rlock_redis::codec::{Call, ScriptReply, Wake};
use rlock_store::Standing;

use super::on_each_server;
use crate::clients::{Clients, NOW, TERMS, id, is_granted, is_waiting, request, resource, tokens, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    each_end_of_a_hold_is_an_entry_of_the_history,
    history_keeps_as_many_entries_as_the_release_asks_for,
    past_counts_the_ends_and_sums_their_times,
    state_is_kept_as_long_as_its_history,
    oldest_of_too_many_jobs_is_forgotten,
    success_is_kept_for_the_longest_period_that_was_asked,
    success_of_a_month_is_kept_beside_later_runs,
    what_a_run_asks_to_remember_is_kept_beside_later_runs,
    full_server_keeps_no_history,
    history_of_a_busy_resource_lasts,
    resource_without_entries_leaves_no_key_of_its_history,
    history_lives_an_hour_until_it_has_an_entry,
    forgotten_resource_leaves_no_key,
    forgotten_resource_gives_no_token_twice,
);

const HOUR: i64 = 3_600_000;

/// The entries, newest first: outcome, instants of request, grant and end, the text of the claim,
/// and the number of the session.
fn history(clients: &mut Clients) -> Vec<(String, [u64; 3], String, u32)> {
    let read = "local entries = {} \
                for i, raw in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do \
                  if raw ~= '' then \
                    local outcome, _, asked, since, ended, token, rest = struct.unpack('>I1c0I4dddd', raw) \
                    local claims, fixed = cmsgpack.unpack(string.sub(raw, rest)) \
                    assert(token >= since and claims[1][3] == 0) \
                    entries[#entries + 1] = { outcome, asked, since, ended, claims[1][6], fixed[5] } \
                  end \
                end \
                return entries";
    let key = clients.side.keys(&resource())[6].clone();
    let entries: Vec<(String, u64, u64, u64, String, String)> =
        redis::cmd("EVAL").arg(read).arg(1).arg(key).query(&mut clients.side.connection).unwrap();
    let entry = |(outcome, asked, since, ended, part, process): (String, u64, u64, u64, String, String)| {
        let process: serde_json::Value = serde_json::from_str(&process).unwrap();
        let begin = NOW.as_micros();
        let number = process[1].as_u64().unwrap() as u32;
        (outcome, [asked - begin, since - begin, ended - begin], part, number)
    };
    entries.into_iter().map(entry).collect()
}

/// Sole holders, holders beside others, waiters, an expired and a broken session.
fn each_end_of_a_hold_is_an_entry_of_the_history(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "ends", Wake::Nobody);
    clients.acquire(1, Write, "");
    clients.advance(us(5));
    clients.end(1, "exit 0", 32);
    clients.acquire(2, Write, "[1,2]");
    clients.advance(us(1));
    assert!(is_waiting(&clients.acquire(3, Write, "")));
    clients.advance(us(2));
    clients.end(2, "signal 9", 32);
    clients.advance(us(2));
    assert!(is_granted(&clients.renew(3, false)));
    assert!(is_waiting(&clients.acquire(4, Read, "")));
    clients.advance(us(10));
    clients.end(3, "exit 7", 32);
    clients.end(9, "exit 0", 32);
    assert!(is_granted(&clients.renew(4, false)));
    clients.side.call(Call::break_grants(resource(), None, Vec::new(), None));
    clients.acquire(5, Write, "");
    clients.advance(TERMS.ttl);
    clients.side.call(Call::expire(vec![resource()]));
    let ttl = TERMS.ttl.as_micros() as u64;
    let whole = String::new;
    let expected = [
        ("expired".to_owned(), [20, 20, 20 + ttl], whole(), 5),
        ("broken".to_owned(), [10, 20, 20], whole(), 4),
        ("exit 7".to_owned(), [6, 8, 20], whole(), 3),
        ("signal 9".to_owned(), [5, 5, 8], "[1,2]".to_owned(), 2),
        ("exit 0".to_owned(), [0, 0, 5], whole(), 1),
    ];
    assert_eq!(history(&mut clients), expected);
}

fn history_keeps_as_many_entries_as_the_release_asks_for(kind: Kind) {
    let server = Server::shared(kind);
    for kept in [0, 1, 2, 5] {
        let mut clients = Clients::new(&server, &format!("kept {kept}"), Wake::Nobody);
        for number in 1..=8 {
            clients.acquire(number, Write, "");
            if number % 3 == 0 {
                clients.acquire(20, Write, "");
            }
            clients.end(number, "exit 0", kept);
            clients.release(20);
        }
        let numbers: Vec<u32> = history(&mut clients).into_iter().map(|(.., number)| number).collect();
        assert_eq!(numbers, (1..=8).rev().take(kept as usize).collect::<Vec<_>>(), "{kept}");
    }
}

/// A grant from the queue that nobody has claimed counts as no hold.
fn past_counts_the_ends_and_sums_their_times(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "past", Wake::Nobody);
    let past = |clients: &mut Clients| {
        let reply = clients.side.call(Call::history(vec![resource()], 0, u32::MAX, 0));
        let ScriptReply::History { remembered: past, .. } = reply else { panic!("history replies {reply:?}") };
        let Past { last, last_success, totals, .. } = past.into_iter().next().expect("it has a past").past;
        let Totals { ended, busy, lost, expired, waited, held } = totals;
        let last = last.map(|(ending, ended)| (ending.to_string(), ended - NOW));
        (last, last_success.map(|ended| ended - NOW), [ended, busy, lost, expired], [held, waited])
    };
    clients.acquire(1, Write, "");
    clients.advance(us(7));
    clients.end(1, "exit 0", 0);
    let success = Some(us(7));
    assert_eq!(past(&mut clients), (Some(("exit 0".to_owned(), us(7))), success, [1, 0, 0, 0], [us(7), us(0)]));
    clients.acquire(2, Write, "");
    clients.acquire(3, Write, "");
    clients.advance(us(4));
    clients.end(2, "lost", 0);
    let lost = Some(("lost".to_owned(), us(11)));
    assert_eq!(past(&mut clients), (lost.clone(), success, [2, 0, 1, 0], [us(11), us(0)]), "while a session holds");
    clients.advance(TERMS.claim);
    clients.side.call(Call::expire(vec![resource()]));
    let unclaimed = past(&mut clients);
    assert_eq!(unclaimed, (lost, success, [2, 0, 1, 0], [us(11), us(0)]), "after a grant that nobody claimed");
    clients.acquire(4, Write, "");
    assert_eq!(past(&mut clients), unclaimed, "while a sole session holds");
    clients.acquire(5, Write, "");
    clients.advance(us(3));
    clients.release(4);
    clients.renew(5, false);
    let (last, ..) = past(&mut clients);
    assert_eq!(last, unclaimed.0, "after a release without an outcome");
    clients.advance(TERMS.ttl);
    clients.side.call(Call::expire(vec![resource()]));
    let ended = us(14) + TERMS.claim + TERMS.ttl;
    let expected = (Some(("expired".to_owned(), ended)), success, [4, 0, 1, 1], [us(14) + TERMS.ttl, us(3)]);
    assert_eq!(past(&mut clients), expected);
    clients.acquire(6, Write, "");
    clients.advance(us(2));
    clients.end(6, "lost", 1);
    let lost = Some(("lost".to_owned(), ended + us(2)));
    let expected = (lost, success, [5, 0, 2, 1], [us(16) + TERMS.ttl, us(3)]);
    assert_eq!(past(&mut clients), expected, "after the lost hold of a sole session");
}

/// A success is worth keeping, and so is an entry of the history.
fn state_is_kept_as_long_as_its_history(kind: Kind) {
    let server = Server::shared(kind);
    for (history, outcome, is_long) in
        [(0, "exit 1", [false, false]), (0, "exit 0", [true, false]), (1, "exit 1", [true; 2])]
    {
        let mut clients = Clients::new(&server, &format!("kept for {history} after {outcome}"), Wake::Nobody);
        clients.acquire(1, Write, "");
        clients.end(1, outcome, history);
        let [state, .., past] = clients.side.keys(&resource());
        let [state, past] = [state, past]
            .map(|key| -> i64 { redis::cmd("PTTL").arg(key).query(&mut clients.side.connection).unwrap() });
        assert_eq!([state > HOUR, past > HOUR], is_long, "{state} {past}");
    }
}

fn oldest_of_too_many_jobs_is_forgotten(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "jobs", Wake::Nobody);
    clients.acquire(1, Write, "");
    let count = JOBS_MAX as u32 + 2;
    for number in 0..count {
        let mut request = request(2 + number, Write, "");
        request.wait = false;
        request.job = Job { name: number.to_string(), skips: true, ..Job::default() };
        clients.advance(us(1));
        let reply = clients.side.call(Call::acquire(&request, 0, false));
        assert!(matches!(reply, ScriptReply::Over(Standing::Busy { streak: Some(_), .. })), "{reply:?}");
    }
    let reply = clients.side.call(Call::history(vec![resource()], 0, u32::MAX, 0));
    let ScriptReply::History { remembered: past, .. } = reply else { panic!("history replies {reply:?}") };
    let names: BTreeSet<_> = past[0].past.jobs.keys().cloned().collect();
    assert_eq!(names, (2..count).map(|number| number.to_string()).collect());
}

/// The time to live of a history is renewed at least once an hour, however often holds end.
fn history_of_a_busy_resource_lasts(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "busy history", Wake::Nobody);
    let left = |clients: &mut Clients| -> i64 {
        let key = clients.side.keys(&resource())[6].clone();
        redis::cmd("PTTL").arg(key).query(&mut clients.side.connection).unwrap()
    };
    let run = |clients: &mut Clients, number| {
        clients.acquire(number, Write, "");
        clients.end(number, "exit 0", 32);
    };
    (1..=2).for_each(|number| run(&mut clients, number));
    let key = clients.side.keys(&resource())[6].clone();
    redis::cmd("PEXPIRE").arg(&key).arg(HOUR).exec(&mut clients.side.connection).unwrap();
    // Half an hour before the next hour of the clock, and a moment after it.
    let hour = Duration::from_secs(3600).as_micros() as u64;
    let to_next = hour - clients.now().as_micros() % hour;
    clients.advance(us(to_next) - us(hour / 2).min(us(to_next - 1)));
    run(&mut clients, 3);
    assert!(left(&mut clients) <= HOUR, "an end in the same hour leaves it");
    clients.advance(us(hour / 2));
    run(&mut clients, 4);
    assert!(left(&mut clients) > HOUR, "{}", left(&mut clients));
}

/// While sessions wait, the key is there, with an entry or without.
fn resource_without_entries_leaves_no_key_of_its_history(kind: Kind) {
    let server = Server::shared(kind);
    for (kept, is_left) in [(0, false), (2, true)] {
        let mut clients = Clients::new(&server, &format!("no entries {kept}"), Wake::Nobody);
        let key = clients.side.keys(&resource())[6].clone();
        let exists = |clients: &mut Clients| -> bool {
            redis::cmd("EXISTS").arg(&key).query(&mut clients.side.connection).unwrap()
        };
        clients.acquire(1, Write, "");
        clients.acquire(2, Write, "");
        assert!(exists(&mut clients));
        clients.end(1, "exit 0", kept);
        assert!(exists(&mut clients));
        assert!(is_granted(&clients.renew(2, false)));
        clients.end(2, "exit 0", kept);
        assert_eq!(exists(&mut clients), is_left);
        assert_eq!(history(&mut clients).len(), kept.try_into().unwrap_or(0));
    }
}

/// The hold before the first entry ended in the same hour of the clock, and left no entry.
fn history_lives_an_hour_until_it_has_an_entry(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "hour", Wake::Nobody);
    let key = clients.side.keys(&resource())[6].clone();
    let left =
        |clients: &mut Clients| -> i64 { redis::cmd("PTTL").arg(&key).query(&mut clients.side.connection).unwrap() };
    clients.acquire(1, Write, "");
    clients.end(1, "exit 0", 0);
    clients.acquire(2, Write, "");
    clients.acquire(3, Write, "");
    assert!((1..=HOUR).contains(&left(&mut clients)), "{}", left(&mut clients));
    clients.end(2, "exit 0", 32);
    assert!(left(&mut clients) > HOUR, "{}", left(&mut clients));
    assert!(is_granted(&clients.renew(3, false)));
    clients.acquire(4, Write, "");
    clients.end(3, "exit 0", 0);
    assert!((1..=HOUR).contains(&left(&mut clients)), "{}", left(&mut clients));
}

/// The keys of a resource that are there.
fn keys_left(clients: &mut Clients) -> Vec<String> {
    let keys = clients.side.keys(&resource());
    let connection = &mut clients.side.connection;
    let exists = |key: &String| redis::cmd("EXISTS").arg(key).query::<bool>(connection).unwrap();
    keys.into_iter().filter(exists).collect()
}

fn forgotten_resource_leaves_no_key(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "forgotten", Wake::Nobody);
    let forget = |clients: &mut Clients| clients.side.call(Call::forget(resource()));
    clients.acquire(1, Write, "");
    clients.acquire(2, Write, "");
    clients.end(1, "exit 0", 32);
    clients.advance(us(10));
    let used = keys_left(&mut clients);
    assert_eq!(forget(&mut clients), ScriptReply::Done);
    assert_eq!(keys_left(&mut clients), used, "a session uses the resource");
    clients.advance(TERMS.ttl);
    assert_eq!(forget(&mut clients), ScriptReply::Done);
    assert_eq!(keys_left(&mut clients), [""; 0], "the lease of the session is over");
}

/// A token is ahead of the clock after many grants in a microsecond.
fn forgotten_resource_gives_no_token_twice(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "forgotten token", Wake::Nobody);
    let mut last = Vec::new();
    for _ in 0..2 {
        last = tokens(clients.acquire(1, Write, ""));
        clients.end(1, "exit 0", 32);
    }
    clients.side.call(Call::forget(resource()));
    assert_eq!((keys_left(&mut clients).len(), history(&mut clients)), (1, Vec::new()));
    assert!(tokens(clients.acquire(1, Write, "")) > last);
}

/// As many jobs as a resource remembers, all within their periods, and one more.
fn success_is_kept_for_the_longest_period_that_was_asked(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "periods", Wake::Nobody);
    let job = |name: u32, period| {
        let once_per = Some(OncePer { period: us(period), calendar: None });
        Job { name: name.to_string(), is_named: true, once_per, ..Job::default() }
    };
    let asks = |clients: &mut Clients, number: u32, name: u32, period: u64| {
        let request = Request { job: job(name, period), ..request(number, Write, "") };
        clients.side.call(Call::acquire(&request, 0, false))
    };
    let succeeds = |clients: &mut Clients, number: u32| {
        let end = End { ending: Ending::Exit(0), is_success: true };
        assert!(is_granted(&asks(clients, number, number, 100)));
        clients.side.call(Call::release_after(id(number), vec![resource()], Some(end), &job(number, 100)));
    };
    let count = JOBS_MAX as u32;
    (0..count).for_each(|number| succeeds(&mut clients, number));
    assert!(matches!(asks(&mut clients, count, 7, 200), ScriptReply::Over(Standing::AlreadyDone)));
    let refused = |reply: &ScriptReply| matches!(reply, ScriptReply::Refused(Refusal::TooManyJobs { .. }));
    let reply = asks(&mut clients, count, count, 100);
    assert!(refused(&reply), "{reply:?}");
    clients.advance(us(100));
    succeeds(&mut clients, count);
    let reply = clients.side.call(Call::history(vec![resource()], 0, u32::MAX, 0));
    let ScriptReply::History { remembered: past, .. } = reply else { panic!("history replies {reply:?}") };
    let jobs = &past[0].past.jobs;
    assert_eq!(jobs.len(), JOBS_MAX);
    assert!(jobs.contains_key("7") && !jobs.contains_key("0"), "7 is kept for longer, and 0 comes first of the others");
    assert_eq!(jobs["7"].period, us(200));
}

/// "`exec --remember DUR`: how long the name's last success, totals and entries stay."
fn what_a_run_asks_to_remember_is_kept_beside_later_runs(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "remember", Wake::Nobody);
    let [state, .., past] = clients.side.keys(&resource());
    let days_left = |clients: &mut Clients| {
        [&state, &past].map(|key| {
            let ttl: i64 = redis::cmd("PTTL").arg(key).query(&mut clients.side.connection).unwrap();
            (ttl + HOUR) / (24 * HOUR)
        })
    };
    let job = Job { remember: Some(Duration::from_secs(90 * 24 * 3600)), ..Job::default() };
    let asks = Request { job: job.clone(), ..request(1, Write, "") };
    assert!(is_granted(&clients.side.call(Call::acquire(&asks, 0, false))));
    let end = End { ending: Ending::Exit(1), is_success: false };
    clients.side.call(Call::release_after(id(1), vec![resource()], Some(end), &job));
    assert_eq!(days_left(&mut clients), [90; 2]);
    clients.advance(Duration::from_secs(10 * 24 * 3600));
    clients.acquire(2, Write, "");
    clients.end(2, "exit 0", 32);
    assert_eq!(days_left(&mut clients), [80; 2], "after a run on the fast path");
    clients.acquire(3, Write, "");
    clients.acquire(4, Write, "");
    clients.end(3, "exit 0", 32);
    clients.renew(4, false);
    clients.end(4, "exit 0", 32);
    assert_eq!(days_left(&mut clients), [80; 2], "after a wait");
    clients.advance(Duration::from_secs(79 * 24 * 3600));
    clients.acquire(5, Write, "");
    clients.end(5, "exit 0", 32);
    assert_eq!(days_left(&mut clients), [7; 2]);
}

/// The later runs end on the fast path.
fn success_of_a_month_is_kept_beside_later_runs(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "month", Wake::Nobody);
    let key = clients.side.keys(&resource())[0].clone();
    let days_left = |clients: &mut Clients| -> i64 {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut clients.side.connection).unwrap();
        ttl / (24 * HOUR)
    };
    let period = Duration::from_secs(32 * 24 * 3600);
    let job = Job { once_per: Some(OncePer { period, calendar: None }), ..Job::default() };
    let end = |job: &Job, session| {
        let end = End { ending: Ending::Exit(0), is_success: true };
        Call::release_after(id(session), vec![resource()], Some(end), job)
    };
    let asks = Request { job: job.clone(), ..request(1, Write, "") };
    assert!(is_granted(&clients.side.call(Call::acquire(&asks, 0, false))));
    clients.side.call(end(&job, 1));
    assert!(days_left(&mut clients) >= 31);
    clients.advance(Duration::from_secs((10 * 24 + 12) * 3600));
    clients.acquire(2, Write, "");
    clients.side.call(end(&Job::default(), 2));
    assert_eq!(days_left(&mut clients), 21);
    let asks = Request { job, ..request(3, Write, "") };
    assert!(matches!(clients.side.call(Call::acquire(&asks, 0, false)), ScriptReply::Over(Standing::AlreadyDone)));
    assert_eq!(days_left(&mut clients), 21);
    clients.advance(Duration::from_secs(22 * 24 * 3600));
    clients.acquire(4, Write, "");
    clients.side.call(end(&Job::default(), 4));
    assert!(days_left(&mut clients) <= 7);
}

/// A release on a full server frees the lock and leaves the history as it is.
fn full_server_keeps_no_history(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "full", Wake::Nobody);
    clients.acquire(1, Write, "");
    clients.end(1, "exit 0", 32);
    clients.acquire(2, Write, "");
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    clients.end(2, "exit 0", 32);
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
    assert_eq!(history(&mut clients).len(), 1);
}
