//! The sessions of one process share one connection, and each session is served as if it had a
//! connection of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rlock_model::lease::Lease;
use rlock_model::mode::Mode;
use rlock_model::past::End;
use rlock_model::request::{Claim, Job, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::sessions::{Report, Sessions};
use rlock_store::{AcquireOptions, Released, Secrets, Standing};
use rlock_sys::clock::Boottime;
use rustix::event::{PollFd, Timespec, poll};

use crate::world::{each, on_each};
use rlock_testkit::servers::sentinels::Sentinels;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{DEADLINE, Lab, wait_until};

/// How long a call to the store may take at most. Nothing waits in it, but this machine may be
/// busy.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A process with many sessions, and the last state of each.
struct Crowd {
    sessions: Box<dyn Sessions>,
    states: BTreeMap<u8, String>,
    /// The sessions whose requests are over, which are given back.
    over: BTreeSet<SessionId>,
    ttl: Duration,
}

impl Crowd {
    fn new(lab: &Lab, connect_timeout: Duration) -> Self {
        let store = rlock::stores::open(Some(&lab.url()), lab.namespace(), &Secrets::default(), connect_timeout);
        let sessions = store.and_then(|store| store.sessions(true)).expect("the URL is valid");
        Self { sessions, states: BTreeMap::new(), over: BTreeSet::new(), ttl: Duration::from_secs(60) }
    }

    fn acquire(&mut self, number: u8, resource: &str) {
        let resource = Resource::new(resource).expect("the name is valid");
        let claim = Claim { resource, mode: Mode::Write, span: Span::Whole, slots: None };
        let request = Request {
            session: SessionId([number; 16]),
            ancestors: Vec::new(),
            claims: vec![claim],
            wait: true,
            terms: Some(Lease::new(self.ttl).terms()),
            job: Job::default(),
            process: Process::default(),
        };
        self.sessions.acquire(request, AcquireOptions::default());
    }

    fn release(&mut self, number: u8) {
        self.sessions.release(SessionId([number; 16]), Some(End::KEPT), false);
    }

    /// Polls once, for at most a tenth of a second.
    fn turn(&mut self) {
        let now = Boottime::now();
        let limit = Duration::from_millis(100);
        let wait = self.sessions.timeout().map_or(limit, |at| (at - now).min(limit));
        let descriptors = self.sessions.descriptors();
        let mut polled: Vec<_> =
            descriptors.iter().map(|(descriptor, events)| PollFd::from_borrowed_fd(*descriptor, *events)).collect();
        let timeout = Timespec::try_from(wait).expect("the wait is short");
        poll(&mut polled, Some(&timeout)).expect("the descriptors can be polled");
        let began = Instant::now();
        self.sessions.advance();
        assert!(began.elapsed() < AT_ONCE, "advance takes {:?}", began.elapsed());
        while let Some((id, event)) = self.sessions.next_report() {
            if self.over.remove(&id) {
                continue;
            }
            if let Report::Standing(standing) = &event
                && standing.as_ref().map_or(true, Standing::is_over)
            {
                self.sessions.release(id, Some(End::KEPT), false);
                self.over.insert(id);
            }
            let state = match event {
                Report::Standing(Ok(Standing::Granted(_))) => "granted".to_owned(),
                Report::Standing(Ok(standing)) => format!("{standing:?}").to_lowercase(),
                Report::Released(Ok(Released::Done | Released::Kept)) => "released".to_owned(),
                Report::Released(Ok(Released::Lost)) => "lost at release".to_owned(),
                Report::Standing(Err(error)) | Report::Released(Err(error)) => error.to_string(),
            };
            self.states.insert(id.0[0], state);
        }
    }

    fn state(&self, number: u8) -> &str {
        self.states.get(&number).map_or("", String::as_str)
    }

    /// Takes part until a session has a state that begins with `expected`.
    #[track_caller]
    fn until(&mut self, number: u8, expected: &str) {
        let began = Instant::now();
        while !self.state(number).starts_with(expected) {
            let state = self.state(number);
            assert!(began.elapsed() < DEADLINE, "{number} is '{state}' in place of '{expected}'");
            self.turn();
        }
    }

    fn take_part_for(&mut self, length: Duration) {
        let began = Instant::now();
        while began.elapsed() < length {
            self.turn();
        }
    }
}

/// The number of connections that rlock has to a server.
fn connections(server: &Server) -> usize {
    let list: String = server.ask(&["CLIENT", "LIST"]);
    list.lines().filter(|line| line.contains(" name=rlock")).count()
}

#[test]
fn waiters_of_one_process_share_a_connection_and_are_served_in_order() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let mut crowd = Crowd::new(&lab, DEADLINE);
        for number in 1..=40 {
            crowd.acquire(number, "k");
        }
        crowd.until(1, "granted");
        crowd.until(40, "waiting");
        assert_eq!((lab.counts("k"), connections(&server)), ((1, 39), 1));
        for number in 1..40 {
            assert_eq!(crowd.state(number + 1), "waiting");
            crowd.release(number);
            crowd.until(number + 1, "granted");
            crowd.until(number, "released");
        }
        crowd.release(40);
        crowd.until(40, "released");
        lab.assert_idle();
        let channels: Vec<String> = server.ask(&["PUBSUB", "CHANNELS", "*"]);
        assert_eq!(channels, Vec::<String>::new(), "the subscriptions end with the sessions");
    });
}

#[test]
fn sessions_and_exec_exclude_each_other_and_wake_each_other() {
    on_each(|lab| {
        let mut crowd = Crowd::new(&lab, DEADLINE);
        let holder = lab.hold("k");
        crowd.acquire(1, "k");
        crowd.until(1, "waiting");
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        holder.end().silently(0);
        crowd.until(1, "granted");
        crowd.release(1);
        crowd.until(1, "released");
        waiter.expect_held();
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

#[test]
fn session_that_is_released_before_the_answer_leaves_nothing_behind() {
    on_each(|lab| {
        let mut crowd = Crowd::new(&lab, DEADLINE);
        crowd.acquire(1, "k");
        crowd.turn();
        crowd.release(1);
        crowd.until(1, "released");
        lab.assert_idle();
        crowd.acquire(2, "k");
        crowd.acquire(3, "k");
        crowd.turn();
        crowd.release(3);
        crowd.until(3, "released");
        crowd.until(2, "granted");
        assert_eq!(lab.counts("k"), (1, 0));
        crowd.release(2);
        crowd.until(2, "released");
        lab.assert_idle();
    });
}

/// `cleanup --break` reaches a subscribed holder at once, and its lease of an hour does not end
/// before.
#[test]
fn broken_lock_is_lost_and_the_other_sessions_keep_theirs() {
    on_each(|lab| {
        let mut crowd = Crowd::new(&lab, DEADLINE);
        crowd.ttl = Duration::from_secs(3600);
        crowd.acquire(1, "k");
        crowd.acquire(2, "other");
        crowd.until(1, "granted");
        crowd.until(2, "granted");
        crowd.take_part_for(Duration::from_millis(1500));
        lab.run(["break", "--now", "k"]);
        crowd.until(1, "lost");
        crowd.release(2);
        crowd.until(2, "released");
        lab.assert_idle();
    });
}

#[test]
fn lost_connection_is_replaced_and_all_sessions_go_on() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let mut crowd = Crowd::new(&lab, DEADLINE);
        crowd.acquire(1, "k");
        crowd.until(1, "granted");
        crowd.acquire(2, "k");
        crowd.until(2, "waiting");
        for _ in 0..3 {
            server.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            server.ask::<()>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            crowd.take_part_for(Duration::from_millis(300));
        }
        assert_eq!((lab.counts("k"), connections(&server)), ((1, 1), 1));
        crowd.release(1);
        crowd.until(1, "released");
        crowd.until(2, "granted");
        crowd.release(2);
        crowd.until(2, "released");
        lab.assert_idle();
    });
}

/// The source of a script is long, and all sessions renew at once after a lost connection.
#[test]
fn forgotten_script_is_sent_once_for_all_sessions() {
    each(|kind| {
        let server = Server::start(kind);
        let mut crowd = Crowd::new(&Lab::at(server.url()), DEADLINE);
        for number in 1..=200 {
            crowd.acquire(number, &format!("k{number}"));
        }
        (1..=200).for_each(|number| crowd.until(number, "granted"));
        server.ask::<()>(&["SCRIPT", "FLUSH"]);
        server.ask::<()>(&["CONFIG", "RESETSTAT"]);
        crowd.states.clear();
        server.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.ask::<()>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        (1..=200).for_each(|number| crowd.until(number, "granted"));
        let stats: String = server.ask(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls=")?.split(',').next());
        let calls: u32 = calls.and_then(|calls| calls.parse().ok()).expect("a source was sent");
        assert!(calls < 10, "{calls}");
    });
}

#[test]
fn restarted_server_without_data_loses_the_locks_and_keeps_the_queue() {
    each(|kind| {
        let mut server = Server::start(kind);
        let lab = Lab::at(server.url());
        let mut crowd = Crowd::new(&lab, DEADLINE);
        crowd.acquire(1, "k");
        crowd.until(1, "granted");
        crowd.acquire(2, "k");
        crowd.until(2, "waiting");
        server.restart();
        crowd.until(1, "lost");
        crowd.until(2, "granted");
        crowd.release(2);
        crowd.until(2, "released");
        lab.assert_idle();
    });
}

/// No call to the store waits for the server. What the server carries out late is released.
#[test]
fn stopped_server_blocks_nothing_and_unanswered_requests_are_given_back() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let mut crowd = Crowd::new(&lab, Duration::from_secs(2));
        crowd.acquire(1, "held");
        crowd.acquire(2, "released");
        crowd.until(1, "granted");
        crowd.until(2, "granted");
        server.stop();
        let began = Instant::now();
        crowd.acquire(3, "k");
        crowd.acquire(4, "held");
        crowd.release(2);
        crowd.until(3, "'redis");
        crowd.until(4, "'redis");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        crowd.until(2, "'redis");
        assert_eq!(crowd.state(1), "granted");
        server.cont();
        let began = Instant::now();
        while (lab.counts("k"), lab.counts("released"), lab.counts("held")) != ((0, 0), (0, 0), (1, 0)) {
            assert!(began.elapsed() < Duration::from_secs(20), "the leases of a minute do not end before");
            crowd.take_part_for(Duration::from_millis(100));
        }
        crowd.release(1);
        crowd.until(1, "released");
        lab.assert_idle();
    });
}

#[test]
fn foreign_value_and_full_memory_concern_one_session() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let mut crowd = Crowd::new(&lab, DEADLINE);
        crowd.acquire(1, "k");
        crowd.until(1, "granted");
        server.ask::<()>(&["SET", &format!("{}:{{foreign}}:d", lab.namespace()), "x"]);
        crowd.acquire(2, "foreign");
        crowd.acquire(3, "k");
        crowd.until(2, "'redis");
        assert!(crowd.state(2).contains("a value that rlock did not write"), "{}", crowd.state(2));
        crowd.until(3, "waiting");
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        crowd.acquire(4, "new");
        crowd.until(4, "'redis");
        assert!(crowd.state(4).contains("has no memory left"), "{}", crowd.state(4));
        crowd.release(1);
        crowd.until(1, "released");
        crowd.until(3, "granted");
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        crowd.release(3);
        crowd.until(3, "released");
        assert_eq!(connections(&server), 1);
    });
}

#[test]
fn wrong_password_fails_every_session_at_once() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::with(Kind::Redis7, &["--requirepass", "right"]);
    let mut crowd = Crowd::new(&Lab::at(server.url()), DEADLINE);
    crowd.acquire(1, "k");
    crowd.acquire(2, "k");
    crowd.until(1, "'redis");
    crowd.until(2, "'redis");
    assert!(crowd.state(1).contains("asks for a password"), "{}", crowd.state(1));
}

#[test]
fn sessions_follow_a_failover_of_sentinels() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let mut sentinels = Sentinels::start(Kind::Redis7);
    let lab = Lab::at(sentinels.url());
    let mut crowd = Crowd::new(&lab, DEADLINE);
    crowd.acquire(1, "k");
    crowd.until(1, "granted");
    crowd.acquire(2, "k");
    crowd.until(2, "waiting");
    sentinels.replica().until_replicated();
    sentinels.switch();
    let began = Instant::now();
    while connections(sentinels.master()) == 0 {
        assert!(began.elapsed() < DEADLINE, "the sessions go to the new master");
        crowd.take_part_for(Duration::from_millis(100));
    }
    crowd.release(1);
    crowd.until(1, "released");
    crowd.until(2, "granted");
    crowd.release(2);
    crowd.until(2, "released");
    wait_until("nothing is held at the new master", || lab.counts("k") == (0, 0));
}
