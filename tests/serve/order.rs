//! The order of the queue among clients and `rlock exec`.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::{NONE, on_both};
use rlock_testkit::serve::LockServer;
use rlock_testkit::share::share;
use rlock_testkit::{Lab, Running};

/// "A request is granted when it conflicts with no holder and with no earlier waiter."
#[test]
fn hundred_clients_and_hundred_commands_are_served_in_the_order_of_arrival() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let holder = lab.hold("k");
        let log = lab.folder().join("log");
        let mut clients = Vec::new();
        let mut commands = Vec::new();
        for number in 0..100 {
            let mut client = server.tcp();
            client.say("LOCK k");
            lab.until_waiting("k", 2 * number + 1);
            let log = log.clone();
            clients.push(thread::spawn(move || {
                assert_eq!(client.line(), "ok");
                append(&log, 2 * number);
                assert_eq!(client.ask("UNLOCK"), "ok");
            }));
            let script = format!("echo {} >> log", 2 * number + 1);
            let mut rlock = lab.rlock(["exec", "k", "--", "sh", "-c", &script]);
            commands.push(Running::start(rlock.current_dir(lab.folder())));
            lab.until_waiting("k", 2 * number + 2);
        }
        holder.end().silently(0);
        clients.into_iter().for_each(|client| client.join().expect("the client is served"));
        commands.into_iter().for_each(|command| command.end().silently(0));
        let order: Vec<usize> = read(lab).lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(order, (0..200).collect::<Vec<_>>());
    });
}

fn append(log: &std::path::Path, number: usize) {
    use std::io::Write as _;
    let mut file = fs::File::options().create(true).append(true).open(log).expect("the log opens");
    writeln!(file, "{number}").expect("the log can be written");
}

fn read(lab: &Lab) -> String {
    fs::read_to_string(lab.folder().join("log")).expect("the log is there")
}

#[test]
fn many_clients_that_lock_and_unlock_are_all_served() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    let mut client = server.unix();
                    let mut last = 0;
                    for _ in 0..30 {
                        let token = client.token("LOCK --write k");
                        assert!(token > last);
                        last = token;
                        assert_eq!(client.ask("UNLOCK"), "ok");
                    }
                });
            }
        });
        assert_eq!(lab.counts("k"), (0, 0));
    });
}

/// The clients have more lines ready than a transaction of the embedded store takes in.
#[test]
fn commands_are_served_beside_clients_that_never_pause() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let is_over = AtomicBool::new(false);
    let ended: Vec<_> = thread::scope(|scope| {
        for number in 0..96 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut client = server.unix();
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client.ask(&format!("LOCK k{}", number % 48)), "ok");
                    assert_eq!(client.ask("UNLOCK"), "ok");
                }
            });
        }
        let run = |number| {
            let name = format!("k{number}");
            Running::start(&mut lab.rlock(["exec", "-w", "60", &name, "--", "true"])).end()
        };
        let ended = (0..10).map(run).collect();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    ended.into_iter().for_each(|command| command.silently(0));
}

/// Commands start beside a server under load. A lock of the kernel on a file is
/// the referee: nobody may find it taken.
#[test]
fn commands_and_busy_clients_exclude_each_other_by_the_judgement_of_flock() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let referee = |name: usize| lab.folder().join(format!("referee{name}"));
    let lock = |name: usize| {
        let file = fs::File::create(referee(name)).expect("the referee can be made");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has the lock");
        file
    };
    let is_over = AtomicBool::new(false);
    let (pairs, commands) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..4 {
            let (server, is_over, pairs, lock) = (&server, &is_over, &pairs, &lock);
            scope.spawn(move || {
                let mut connection = server.unix();
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let token = connection.token(&format!("LOCK --write k{}", client % 2));
                    let held = lock(client % 2);
                    assert!(token > last);
                    (last, _) = (token, pairs.fetch_add(1, Ordering::Relaxed));
                    // A child has the file open as well until it executes its command.
                    flock(&held, FlockOperation::Unlock).expect("the referee can be left");
                    assert_eq!(connection.ask("UNLOCK"), "ok");
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(share(3, 60));
        let mut name = 0;
        while Instant::now() < end {
            name = 1 - name;
            let (key, file) = (format!("k{name}"), referee(name));
            let words = ["exec", &key, "--", "flock", "--nonblock", "--conflict-exit-code", "9"];
            let mut rlock = lab.rlock(words);
            Running::start(rlock.arg(file).args(["sleep", "0.002"])).end().silently(0);
            commands.fetch_add(1, Ordering::Relaxed);
            // The clients are among themselves again.
            thread::sleep(Duration::from_millis(30));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(commands.into_inner() > 1 && pairs.into_inner() > 1);
    assert_eq!((lab.counts("k0"), lab.counts("k1")), ((0, 0), (0, 0)));
}
