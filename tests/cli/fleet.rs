//! A fleet: 20 hosts have the same crontab, and their clocks differ.
//!
//! A host is a process with an owner of its own. A clock that differs starts its host later. Each
//! tick has a KEY of its own, because a period of 20 hours does not pass in a test.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use rlock_testkit::random::Random;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, Ran, Running};

const HOSTS: usize = 20;
/// The exit code of a job that fails.
const FAILURE: i32 = 3;
/// What a host prints whose job runs.
const RAN: &str = "ran\n";

/// One host at one tick.
struct Host {
    /// How late its clock lets it start.
    late: Duration,
    /// How long its job takes, if the job runs here.
    lasts: Duration,
    code: i32,
    /// When the rlock of this host is killed, if it is.
    killed: Option<Duration>,
}

/// A tick on all hosts, whose clocks differ by up to `apart`. If it `fails`, some jobs fail and
/// some rlocks are killed.
fn tick(random: &mut Random, apart: Duration, fails: bool) -> Vec<Host> {
    let limit = u64::try_from(apart.as_micros()).expect("the clocks differ by seconds");
    let mut part = || Duration::from_micros(random.below(limit));
    let lasts = part();
    let mut hosts: Vec<_> =
        (0..HOSTS).map(|_| Host { late: part(), lasts, code: 0, killed: Some(part() + part()) }).collect();
    for host in &mut hosts {
        host.code = if fails && random.once_in(3) { FAILURE } else { 0 };
        host.killed = host.killed.filter(|_| fails && random.once_in(4));
    }
    hosts
}

/// Plays a tick and returns how each host ended.
fn play(lab: &Lab, key: &str, hosts: &[Host]) -> Vec<Ran> {
    let begun = Instant::now();
    let starts = hosts.iter().enumerate().map(|(index, host)| (host.late, false, index));
    let kills = hosts.iter().enumerate().filter_map(|(index, host)| Some((host.killed?.max(host.late), true, index)));
    let mut events: Vec<_> = starts.chain(kills).collect();
    events.sort();
    let mut running: Vec<Option<Running>> = hosts.iter().map(|_| None).collect();
    for (at, is_kill, index) in events {
        thread::sleep(at.saturating_sub(begun.elapsed()));
        if is_kill {
            running[index].as_ref().expect("a host is killed after its start").signal(Signal::KILL);
            continue;
        }
        let job = format!("echo ran; sleep {}; exit {}", hosts[index].lasts.as_secs_f64(), hosts[index].code);
        let owner = format!("host {index}");
        let words = ["exec", "--once-per", "20h", "-n", "--skip-ok", "--owner", &owner, "--write", key, "-c", &job];
        running[index] = Some(Running::start(&mut lab.rlock(words)));
    }
    running.into_iter().flatten().map(Running::end).collect()
}

/// "never two successes in a tick, and exactly one in a tick without a fault". "Cron mails stay
/// empty in all healthy cases."
fn check(ended: &[Ran], is_faulty: bool, has_restarted: bool) {
    let successes = ended.iter().filter(|ran| ran.code() == Some(0) && ran.stdout == RAN).count();
    assert!(successes <= 1, "{successes} successes: {ended:#?}");
    assert!(is_faulty || successes == 1, "no success: {ended:#?}");
    for ran in ended {
        let was_killed = ran.code().is_none();
        let is_known = match ran.code() {
            Some(0) => true,
            Some(FAILURE) => ran.stdout == RAN,
            Some(69 | 76) => has_restarted,
            _ => was_killed && is_faulty,
        };
        assert!(is_known && (is_faulty || ran.stdout.is_empty() || ran.stdout == RAN), "{ran:?}");
        assert!(has_restarted || was_killed || ran.stderr.is_empty(), "{ran:?}");
    }
}

/// Plays this many ticks, `at_once` at a time, on a store. A server restarts in every fourth round.
fn fleet(lab: &Lab, mut server: Option<&mut Server>, ticks: usize, at_once: usize, apart: Duration) {
    let mut random = Random::new();
    for round in 0..ticks / at_once {
        let has_restarted = server.is_some() && round % 4 == 3;
        let restart_at = Duration::from_micros(random.below(2 * apart.as_micros() as u64));
        thread::scope(|scope| {
            for number in 0..at_once {
                let fails = number % 2 == 1;
                let is_faulty = fails || has_restarted;
                let hosts = tick(&mut random, apart, fails);
                let key = format!("tick {round}.{number}");
                scope.spawn(move || check(&play(lab, &key, &hosts), is_faulty, has_restarted));
            }
            if let Some(server) = server.as_mut().filter(|_| has_restarted) {
                thread::sleep(restart_at);
                server.restart();
            }
        });
    }
}

fn fleets(ticks: usize, at_once: usize, apart: Duration) {
    fleet(&Lab::new(), None, ticks, at_once, apart);
    if Kind::Redis7.is_present() {
        let mut server = Server::with(Kind::Redis7, &["--appendonly", "yes", "--appendfsync", "always"]);
        let lab = Lab::at(server.url());
        fleet(&lab, Some(&mut server), ticks, at_once, apart);
    }
}

#[test]
fn fleet_runs_each_tick_at_most_once_whatever_fails() {
    fleets(24, 3, Duration::from_millis(300));
}

#[test]
#[ignore = "takes minutes"]
fn fleet_with_clocks_3s_apart_runs_200_ticks_at_most_once() {
    fleets(200, 10, Duration::from_secs(3));
}
