//! Transactions that wait for each other, stop half-way, or get no answer.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::Signal;

use rlock_testkit::needs::skip_unless;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::servers::proxy::Proxy;
use rlock_testkit::{Lab, Running, wait_until, wait_within};

/// The number of the message in which a client commits, after its login and the first message.
const COMMIT: u64 = 3;

/// "The lock is a statement of its own, and the reads are later statements": a client that has
/// waited for the lock sees what was granted meanwhile.
#[test]
fn of_two_clients_that_wait_for_the_lock_at_once_one_is_granted() {
    let Some(lab) = Lab::on_postgres() else { return };
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let server = Postgres::shared();
    for _ in 0..3 {
        let mut blocks = locked(&server, lab.namespace());
        let start = || {
            Running::start(lab.rlock(["exec", "-n", "k", "--", "sh", "-c", "echo held; sleep 1"]).stdin(Stdio::null()))
        };
        let both = [start(), start()];
        let blocked =
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'rlock%'";
        wait_until("both wait for the lock", || server.ask(blocked) == "2");
        drop(blocks.stdin.take());
        blocks.wait().expect("psql ends");
        let mut codes = both.map(|running| running.end().code());
        codes.sort_unstable();
        assert_eq!(codes, [Some(0), Some(75)]);
    }
}

/// A transaction that has locked the row of a namespace.
fn locked(server: &Postgres, namespace: &str) -> std::process::Child {
    let mut blocks = server.psql().stdin(Stdio::piped()).spawn().expect("psql runs");
    let lock = format!("begin; select * from rlock.namespaces where name = '{namespace}' for update;\n");
    blocks.stdin.as_mut().expect("a pipe").write_all(lock.as_bytes()).expect("psql reads");
    let locked =
        "select count(*) from pg_stat_activity where state = 'idle in transaction' and query like '%for update%'";
    wait_until("psql has the lock", || server.ask(locked) != "0");
    blocks
}

/// "While somebody else has locked a table, such as VACUUM FULL, requests and releases wait as for
/// a busy store": the line names the lock and its pid, and `-w` bounds the wait.
#[test]
fn locked_table_lets_requests_wait_and_names_who_has_locked_it() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    lab.run(["exec", "k", "--", "true"]).silently(0);
    for table in ["rlock.records", "rlock.namespaces"] {
        let holder = lab.hold_by(["exec", "--ttl", "60s", "k"]);
        let mut blocks = server.psql().stdin(Stdio::piped()).spawn().expect("psql runs");
        let lock = format!("begin; lock table {table} in access exclusive mode;\n");
        blocks.stdin.as_mut().expect("a pipe").write_all(lock.as_bytes()).expect("psql reads");
        let locked = format!(
            "select pid from pg_locks where relation = '{table}'::regclass and mode = 'AccessExclusiveLock' and granted"
        );
        wait_until("the table is locked", || !server.ask(&locked).is_empty());
        let pid = server.ask(&locked);
        let begun = Instant::now();
        let mut new = Running::start(&mut lab.rlock(["exec", "j", "--", "true"]));
        let told = format!("waits for AccessExclusiveLock on {table}, of pid {pid}");
        for words in [["exec", "-w", "1s"], ["exec", "-n", "-v"]] {
            let bounded = lab.run(words.into_iter().chain(["--connect-timeout", "3s", "i", "--", "true"]));
            assert!(bounded.failed(69).contains(&told), "{bounded:?}");
        }
        wait_until("a request without a bound waits on", || begun.elapsed() > Duration::from_secs(12));
        assert!(new.runs());
        drop(blocks.stdin.take());
        blocks.wait().expect("psql ends");
        let new = new.end();
        assert_eq!(new.code(), Some(0), "{new:?}");
        holder.end().silently(0);
    }
}

/// "A request whose wait ends meanwhile ends": it has nothing to take back, and a waiter tries to
/// leave for the connect timeout, once.
#[test]
fn wait_ends_while_somebody_has_locked_the_namespace() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    let mut waits = lab.rlock(["exec", "-w", "4s", "--connect-timeout", "10s", "k", "--", "true"]);
    let waits = Running::start(&mut waits);
    lab.until_waiting("k", 1);
    let mut blocks = locked(&server, lab.namespace());
    let begun = Instant::now();
    let new = lab.run(["exec", "-w", "1s", "--connect-timeout", "60s", "j", "--", "true"]);
    assert!(new.failed(69).contains("ended a transaction that took too long"), "{new:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let begun = Instant::now();
    assert_eq!(waits.end().code(), Some(69));
    assert!(begun.elapsed() < Duration::from_secs(18), "{:?}", begun.elapsed());
    drop(blocks.stdin.take());
    blocks.wait().expect("psql ends");
    holder.end().silently(0);
}

/// "A client that stops between the round trips holds the namespace's row": the server ends its
/// transaction, and the others go on.
#[test]
fn client_that_stops_before_its_commit_keeps_the_others_for_a_moment_only() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let proxy = Proxy::before(server.socket());
    let lab = Lab::at(server.url());
    let stopped = Lab::at(proxy.postgres_url()).with("RLOCK_NAMESPACE", lab.namespace());
    lab.run(["exec", "k", "--", "true"]).silently(0);
    proxy.hold_at(COMMIT);
    let waits = Running::start(&mut stopped.rlock(["exec", "k", "--", "true"]));
    proxy.until_held();
    lab.run(["exec", "-w", "20s", "k", "--", "true"]).silently(0);
    wait_until("the server has ended the transaction", || server.log().contains("idle-in-transaction timeout"));
    proxy.pass();
    waits.end().silently(0);
    lab.assert_idle();
}

/// Its rows are written, and its COMMIT has not left.
#[test]
fn backend_that_ends_before_the_commit_leaves_nothing() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let proxy = Proxy::before(server.socket());
    let lab = Lab::at(server.url());
    let cut_off = Lab::at(proxy.postgres_url()).with("RLOCK_NAMESPACE", lab.namespace());
    lab.run(["exec", "k", "--", "true"]).silently(0);
    proxy.hold_at(COMMIT);
    let waits = Running::start(&mut cut_off.rlock(["exec", "-w", "20s", "k", "--", "true"]));
    proxy.until_held();
    server.ask("select pg_terminate_backend(pid) from pg_stat_activity where state like 'idle in transaction%'");
    assert_eq!(lab.counts("k"), (0, 0));
    proxy.pass();
    waits.end().silently(0);
    lab.assert_idle();
}

/// The command ends before its lease does, and the next one starts when the server goes on.
#[test]
fn server_stopped_for_longer_than_a_lease_lets_no_two_commands_run() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let mut holder = lab.hold_by(["exec", "--ttl", "2s", "--grace", "200ms", "k"]);
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    server.signal_all(Signal::STOP);
    wait_until("the command has ended", || !holder.runs());
    assert!(waiter.runs());
    server.signal_all(Signal::CONT);
    waiter.expect_held();
    assert_eq!(holder.end().code(), Some(76));
    waiter.end().silently(0);
    lab.assert_idle();
}

/// "Where COMMIT got no answer, the next step finds out."
#[test]
fn commit_without_an_answer_grants_once() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    for lost in [COMMIT, COMMIT + 2] {
        let proxy = Proxy::before(server.socket());
        let lab = Lab::at(proxy.postgres_url());
        lab.run(["exec", "k", "--", "true"]).silently(0);
        proxy.lose_reply(proxy.requests() + lost);
        lab.run(["exec", "-w", "20s", "k", "--", "true"]).silently(0);
        lab.assert_idle();
    }
}

/// "The granting step passes over those that pg_stat_activity no longer has, so five killed waiters
/// cost no 15 s."
#[test]
fn killed_waiters_are_passed_over_at_once() {
    let Some(lab) = Lab::on_postgres() else { return };
    let holder = lab.hold("k");
    let dead: Vec<_> = (1..=5)
        .map(|count| {
            let waiter = lab.wait_by(["exec", "k"]);
            lab.until_waiting("k", count);
            waiter
        })
        .collect();
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 6);
    // The holder listens, too.
    lab.until_subscribed("k", 7);
    dead.into_iter().for_each(|waiter| drop(waiter.kill()));
    holder.end().silently(0);
    // Each of them would cost its claim lease of 3 s.
    wait_within(Duration::from_secs(10), "the sixth is granted", || lab.counts("k") == (1, 0));
    next.expect_held();
    next.end().silently(0);
}

/// "A restart … waited out as an absent Redis is, until the lease ends."
#[test]
fn holder_and_waiter_outlive_a_restart() {
    skip_unless!(Postgres::is_present());
    let mut server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    server.restart(Signal::INT);
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
    lab.assert_idle();
}

/// A crash keeps what was committed.
#[test]
fn lock_is_held_after_an_immediate_shutdown() {
    skip_unless!(Postgres::is_present());
    let mut server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    server.restart(Signal::QUIT);
    lab.run(["exec", "-n", "k", "--", "true"]).busy();
    holder.end().silently(0);
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

/// A server whose role `locks` may have so many connections, and a store of that role.
fn limited(limit: i32) -> (Postgres, Lab) {
    let server = Postgres::start(&[]);
    server.ask(&format!("create role locks login connection limit {limit}"));
    server.ask("grant create on database postgres to locks");
    let lab = Lab::at(server.url().replace("tester", "locks"));
    (server, lab)
}

const OWN: &str = "select count(*) from pg_stat_activity where application_name like 'rlock%'";

/// "A holder keeps its connection while …": a server that fills up later costs it nothing.
#[test]
fn holder_on_a_server_with_room_outlives_a_time_without_free_connections() {
    skip_unless!(Postgres::is_present());
    let (server, lab) = limited(10);
    let mut holder = lab.hold_by(["exec", "--ttl", "3s", "--grace", "200ms", "k"]);
    server.ask("alter role locks connection limit 0");
    std::thread::sleep(Duration::from_secs(8));
    assert!(holder.runs());
    assert_eq!(server.ask(OWN), "1");
    holder.end().silently(0);
}

/// "With more of them, a holder has none until half of its lease. If there is none then, rlock asks
/// each second until the deadline": the line about the loss tells the reason.
#[test]
fn holder_on_a_full_server_renews_over_new_connections_and_tells_why_it_gets_none() {
    skip_unless!(Postgres::is_present());
    let (server, lab) = limited(3);
    let mut holder = lab.hold_by(["exec", "--ttl", "6s", "--grace", "200ms", "k"]);
    for _ in 0..2 {
        wait_until("the holder has no connection", || server.ask(OWN) == "0");
        wait_until("the holder renews", || server.ask(OWN) == "1");
    }
    wait_until("the holder has no connection", || server.ask(OWN) == "0");
    server.ask("alter role locks connection limit 0");
    let refused = || server.log().matches("too many connections for role").count();
    wait_until("it asks twice", || refused() > 1);
    server.ask("alter role locks connection limit 3");
    std::thread::sleep(Duration::from_secs(6));
    assert!(holder.runs());
    server.ask("alter role locks connection limit 0");
    wait_until("the holder ends", || !holder.runs());
    let lost = holder.end();
    assert_eq!(lost.code(), Some(76));
    assert!(lost.stderr.contains("takes no more clients"), "{lost:?}");
}

/// "A revocation reaches a holder without a connection at its renewal."
#[test]
fn holder_without_a_connection_hears_of_a_revocation_at_its_renewal() {
    skip_unless!(Postgres::is_present());
    let (server, lab) = limited(3);
    let holder = lab.hold_by(["exec", "--ttl", "30s", "k"]);
    wait_until("the holder has no connection", || server.ask(OWN) == "0");
    assert_eq!(lab.run(["break", "-w", "20s", "k"]).code(), Some(0));
    assert_eq!(holder.end().code(), Some(76));
}

/// "The first twenty of a queue keep one each; the others close theirs once queued."
#[test]
fn long_queue_leaves_room_for_the_release_and_is_served_in_order() {
    skip_unless!(Postgres::is_present());
    // Three of them are for superusers.
    let server = Postgres::start(&["max_connections=30"]);
    server.ask("create role locks login");
    server.ask("grant create on database postgres to locks");
    let lab = Lab::at(server.url().replace("tester", "locks"));
    let holder = lab.hold("k");
    let waiters: Vec<_> = (1..=40)
        .map(|count| {
            let script = format!("echo {count} >> log");
            let mut rlock = lab.rlock(["exec", "-w", "100s", "k", "--", "sh", "-c", &script]);
            let waiter = Running::start(rlock.current_dir(lab.folder()));
            lab.until_waiting("k", count);
            waiter
        })
        .collect();
    let own = "select count(*) from pg_stat_activity where usename = 'locks'";
    wait_until("only the first have a connection", || server.ask(own).parse::<u32>().is_ok_and(|count| count <= 21));
    holder.end().silently(0);
    waiters.into_iter().for_each(|waiter| waiter.end().silently(0));
    let order = std::fs::read_to_string(lab.folder().join("log")).expect("the log is there");
    let expected: String = (1..=40).map(|count| format!("{count}\n")).collect();
    assert_eq!(order, expected);
}

/// "53300 … is retried within --wait": requests that find no connection at first are served in the
/// end.
#[test]
fn request_without_a_connection_asks_again_until_there_is_one() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    server.ask("create role locks login");
    server.ask("grant create on database postgres to locks");
    let lab = Lab::at(server.url().replace("tester", "locks"));
    lab.run(["exec", "k", "--", "true"]).silently(0);
    server.ask("alter role locks connection limit 0");
    let waits = Running::start(&mut lab.rlock(["exec", "-w", "100s", "--connect-timeout", "1s", "k", "--", "true"]));
    // The connect timeout is over before it asks for the second time.
    wait_until("it asks for longer", || server.log().matches("too many connections for role").count() > 2);
    server.ask("alter role locks connection limit -1");
    waits.end().silently(0);
    server.ask("alter role locks connection limit 0");
    let refused = lab.run(["exec", "-n", "--connect-timeout", "1s", "k", "--", "true"]);
    assert!(refused.failed(69).contains("takes no more clients"), "{refused:?}");
    let waited = lab.run(["exec", "-w", "2s", "k", "--", "true"]);
    assert!(waited.failed(69).contains("takes no more clients"), "{waited:?}");
}

/// The same where the queue of the server's socket is full, as in a crowd.
#[test]
fn request_at_a_full_socket_asks_again_until_it_is_let_in() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&["max_connections=10"]);
    let lab = Lab::at(server.url());
    lab.run(["exec", "k", "--", "true"]).silently(0);
    server.signal(Signal::STOP);
    let address = SocketAddrUnix::new(server.socket()).expect("the path is short");
    let connect = || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None);
        let socket = socket.expect("there are descriptors");
        rustix::net::connect(&socket, &address).map(|()| socket)
    };
    let crowd: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
    assert!(crowd.len() > 10, "{}", crowd.len());
    let mut rlock = lab.rlock(["exec", "-w", "100s", "--connect-timeout", "100ms", "k", "--", "true"]);
    let (begun, mut waits) = (Instant::now(), Running::start(&mut rlock));
    wait_until("the connect timeout is long over", || begun.elapsed() > Duration::from_secs(1));
    assert!(waits.runs());
    drop(crowd);
    server.signal(Signal::CONT);
    waits.end().silently(0);
}

/// A look at the holders may finish the transaction that claims the grant, and the command starts
/// at once.
#[test]
fn grant_that_a_look_at_the_holders_finds_starts_the_command() {
    let Some(lab) = Lab::on_postgres() else { return };
    let holder = lab.hold("k");
    let waiters: Vec<_> = (1..=4)
        .map(|count| {
            let said = lab.folder().join(format!("said-{count}"));
            let file = std::fs::File::create(&said).expect("the folder can be written");
            let mut rlock = lab.rlock(["exec", "-v", "-w", "60s", "k", "--", "true"]);
            let waiter = rlock.stdin(Stdio::null()).stderr(file).spawn().expect("rlock runs");
            // It looks at each change from then on.
            let text = || std::fs::read_to_string(&said).unwrap_or_default();
            wait_until("the wait is reported", || text().contains("waiting:"));
            waiter
        })
        .collect();
    holder.end().silently(0);
    let all = || lab.counts("k") == (0, 0);
    // The next timer of each of them would be 5 s later.
    wait_within(Duration::from_secs(15), "all were granted", all);
    waiters.into_iter().for_each(|mut waiter| assert!(waiter.wait().expect("a child").success()));
}

/// "The command must be gone by the deadline": a holder that the server does not answer ends before
/// somebody else starts.
#[test]
fn holder_without_an_answer_ends_before_its_lease() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let proxy = Proxy::before(server.socket());
    let lab = Lab::at(server.url());
    let cut = Lab::at(proxy.postgres_url()).with("RLOCK_NAMESPACE", lab.namespace());
    let mut holder = cut.hold_by(["exec", "--ttl", "3s", "--grace", "1s", "k"]);
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    proxy.hold();
    wait_until("the holder ends", || !holder.runs());
    waiter.expect_held();
    proxy.pass();
    assert_eq!(holder.end().code(), Some(76));
    waiter.end().silently(0);
}
