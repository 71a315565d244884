//! Random command lines: all options of `exec`, `range-*` and `acquire`, with commands that behave
//! badly, holders in the way and signals at random instants.
//!
//! [`case`] makes a case, [`stage`] plays it, and [`oracle`] judges what was seen by the sentences
//! of the manual. A run lasts some seconds; `tests/faults-long --scenario options` plays for
//! longer. RLOCK_SEED repeats one case, and RLOCK_SECONDS sets the length of a run.

mod case;
mod oracle;
mod stage;

use std::thread;
use std::time::{Duration, Instant};

use case::Case;
use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::random::Random;
use rlock_testkit::servers::Kind;
use rlock_testkit::share::share;
use stage::Stage;

/// The number of cases that are played at the same time. They mostly wait.
const AT_ONCE: u64 = 6;

/// The first seed of an ordinary run, which plays the same cases every time, so that a change is to
/// blame for what it finds. The long run plays others.
const SEED: u64 = 33_000;

/// Plays the case of a seed on a store, and again if it breaks a sentence: on a machine with other
/// work, a complaint that does not repeat says nothing. Returns a report if both do.
fn play(seed: u64, kind: Option<Kind>) -> Option<String> {
    play_once(seed, kind).inspect(|report| eprintln!("{report}\n")).and_then(|_| play_once(seed, kind))
}

fn play_once(seed: u64, kind: Option<Kind>) -> Option<String> {
    let case = Case::new(&mut Random::seeded(seed), kind.is_some());
    let stage = Stage::new(kind);
    let seen = stage.play(&case);
    let complaint = oracle::judge(&case, &seen)?;
    let store = if kind.is_some() { "redis" } else { "embedded" };
    Some(format!(
        "RLOCK_SEED={seed} ({store}): {complaint}\n  rlock {}\n  {case:?}\n  {seen:?}",
        case.words().join(" ")
    ))
}

/// Plays the cases from a seed on, or the one in RLOCK_SEED.
fn run(seed: u64, seconds: u64) {
    skip_unless!(programs(&["perl", "flock"]));
    let kinds: &[_] = if Kind::Redis7.is_present() { &[None, Some(Kind::Redis7)] } else { &[None] };
    // The server lives as long as the run.
    let _server = kinds.iter().flatten().map(|kind| rlock_testkit::servers::Server::shared(*kind)).next();
    let given = Random::given().is_some();
    let (first, until) = (Random::given().unwrap_or(seed), Instant::now() + Duration::from_secs(seconds));
    let reports = thread::scope(|scope| {
        let play_some = move |from: u64| {
            let mut reports = Vec::new();
            let mut played = 0;
            for seed in (first + from..).step_by(AT_ONCE as usize) {
                reports.extend(kinds.iter().filter_map(|kind| play(seed, *kind)));
                played += kinds.len();
                if given || Instant::now() >= until || reports.len() > 2 {
                    break;
                }
            }
            (played, reports)
        };
        let threads: Vec<_> =
            (0..if given { 1 } else { AT_ONCE }).map(|from| scope.spawn(move || play_some(from))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| (0, vec!["see the panic above".to_owned()])))
            .collect::<Vec<_>>()
    });
    let played: usize = reports.iter().map(|(played, _)| played).sum();
    let reports: Vec<_> = reports.into_iter().flat_map(|(_, reports)| reports).collect();
    eprintln!("{played} cases from RLOCK_SEED={first}, {} violations", reports.len());
    assert!(reports.is_empty(), "\n{}", reports.join("\n\n"));
}

#[test]
fn random_command_lines_do_what_the_manual_says() {
    let seconds = std::env::var("RLOCK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    run(SEED, seconds.unwrap_or(share(10, 20)));
}

/// `tests/faults-long --scenario options`.
#[test]
#[ignore = "plays for RLOCK_MINUTES"]
fn long_run() {
    let minutes = std::env::var("RLOCK_MINUTES").ok().and_then(|minutes| minutes.parse().ok());
    run(Random::seed(), (60.0 * minutes.unwrap_or(60.0_f64)) as u64);
}
