//! Chooses the cases and plays them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::calls;
use super::case::{Case, Store};
use super::scenes::SCENES;
use super::trace::{Call, Fault};
use rlock_testkit::needs;
use rlock_testkit::random::Random;
use rlock_testkit::share::share;

/// Number of cases of one scene and process that are played in a row.
const IN_A_ROW: usize = 12;

/// "That one call fails with an error that its manual page lists."
#[test]
fn some_calls_fail() {
    play_some(calls::faults, false);
}

/// "rlock, its guardian, a waiter, the keeper or serve is killed at a system call."
#[test]
fn some_processes_die() {
    play_some(deaths, false);
}

/// "While rlock handles one failure, another call fails, or the process dies."
#[test]
fn second_failure_comes_while_the_first_is_handled() {
    play_some(calls::faults, true);
}

/// "A signal interrupts the call that reserves room, and another one the repeated call."
#[test]
fn interrupted_reservation_is_no_full_disk() {
    let case = Case::parse("embedded/first-use/rlock/fallocate/1/EINTR/0/EINTR").expect("the words of a case");
    match case.play(&case.store.lab()) {
        Ok(trace) => assert_eq!(trace.struck, [Fault::Error(libc::EINTR); 2]),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
#[ignore = "takes some minutes"]
fn every_call_fails() {
    play_all(calls::faults);
}

#[test]
#[ignore = "takes some minutes"]
fn every_process_dies_at_each_call() {
    play_all(deaths);
}

/// Plays the case in RLOCK_ANOMALY, as a failure prints it.
#[test]
#[ignore = "needs RLOCK_ANOMALY"]
fn chosen_case() {
    let Ok(words) = std::env::var("RLOCK_ANOMALY") else {
        needs::excused("RLOCK_ANOMALY names no case");
        return;
    };
    let case = Case::parse(&words).unwrap_or_else(|| panic!("these are not the words of a case: {words}"));
    match case.play(&case.store.lab()) {
        Ok(trace) => println!("struck: {:?}, {} calls", trace.struck, trace.calls.len()),
        Err(failure) => panic!("{failure}"),
    }
}

fn deaths(call: &Call) -> Vec<Fault> {
    calls::name(call.number);
    vec![Fault::Kill]
}

/// The scenes on all stores with each of their processes, without a fault.
fn starts() -> Vec<Case> {
    let of_store = |store: Store| {
        // A server that nobody has used differs only in the scripts that it knows.
        let scenes = SCENES.iter().filter(move |scene| store == Store::Embedded || !scene.is_first_use);
        scenes.flat_map(move |scene| {
            scene.processes.iter().map(move |process| Case {
                scene,
                store,
                process: *process,
                strike: None,
                second: None,
            })
        })
    };
    Store::present().into_iter().flat_map(of_store).collect()
}

/// The seed of an ordinary run, which plays the same cases every time, so that a change is to blame
/// for what it finds. `RLOCK_SEED` and the ignored tests play others.
const SEED: u64 = 33;

/// The longest way from one fault to the next, in calls.
const APART: u64 = 16;

/// Plays random cases for a time, each with a second fault if asked for. RLOCK_ANOMALIES chooses
/// cases without a second fault, which are all played.
fn play_some(faults: fn(&Call) -> Vec<Fault>, in_pairs: bool) {
    if !in_pairs && std::env::var_os("RLOCK_ANOMALIES").is_some() {
        return play_all(faults);
    }
    let time = Duration::from_secs(if in_pairs { share(3, 8) } else { share(7, 75) });
    let until = Instant::now() + time;
    let mut random = Random::seeded(Random::given().unwrap_or(SEED));
    let starts = starts();
    let failures = Mutex::new(Vec::new());
    let played = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..workers() {
            let mut random = random.branch();
            let (starts, failures, played) = (&starts, &failures, &played);
            scope.spawn(move || {
                let mut player = Player::default();
                while Instant::now() < until {
                    let start = random.pick(starts);
                    let Some(cases) = player.cases(start, faults, failures) else { continue };
                    for _ in 0..IN_A_ROW {
                        if Instant::now() < until && !cases.is_empty() {
                            let second = (random.below(APART) as usize, *random.pick(&Fault::all()));
                            let case = Case { second: in_pairs.then_some(second), ..*random.pick(&cases) };
                            player.play_twice(&case, failures);
                            played.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    eprintln!("{} cases", played.into_inner());
    report(failures);
}

/// Plays all cases. RLOCK_ANOMALIES chooses those whose words begin so.
fn play_all(faults: fn(&Call) -> Vec<Fault>) {
    let chosen = std::env::var("RLOCK_ANOMALIES").unwrap_or_default();
    let failures = Mutex::new(Vec::new());
    let mut total = 0;
    for start in starts().iter().filter(|start| start.to_string().starts_with(&chosen)) {
        let begun = Instant::now();
        let Some(cases) = Player::default().cases(start, faults, &failures) else { continue };
        let (turn, struck) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..workers() {
                scope.spawn(|| {
                    let mut player = Player::default();
                    while let Some(case) = cases.get(turn.fetch_add(1, Ordering::Relaxed)) {
                        struck.fetch_add(usize::from(player.play(case, &failures)), Ordering::Relaxed);
                    }
                });
            }
        });
        let (struck, failed) = (struck.into_inner(), failures.lock().expect("no thread panics with the list").len());
        println!("{start}: {} cases, {struck} struck, {failed} failed so far, {:.1?}", cases.len(), begun.elapsed());
        total += cases.len();
    }
    println!("{total} cases");
    report(failures);
}

/// Number of cases at a time. They mostly wait.
fn workers() -> usize {
    2 * thread::available_parallelism().map_or(2, usize::from)
}

fn report(failures: Mutex<Vec<String>>) {
    let failures = failures.into_inner().expect("no thread panics with the list");
    let shown = failures.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(failures.is_empty(), "{} cases failed:\n\n{shown}", failures.len());
}

/// Plays cases one after another on one store of each kind. A store that a failed case has used is
/// not used again.
#[derive(Default)]
struct Player {
    labs: HashMap<Store, rlock_testkit::Lab>,
}

impl Player {
    /// Plays a case, and returns whether its fault struck.
    fn play(&mut self, case: &Case, failures: &Mutex<Vec<String>>) -> bool {
        let lab = self.labs.entry(case.store).or_insert_with(|| case.store.lab());
        match case.play(lab) {
            Ok(trace) => !trace.struck.is_empty(),
            Err(failure) => {
                self.labs.remove(&case.store);
                println!("{failure}\n");
                failures.lock().expect("no thread panics with the list").push(failure);
                true
            }
        }
    }

    /// Plays a case, and again if it fails: on a machine with other work, a failure that does not
    /// repeat says nothing. It is printed.
    fn play_twice(&mut self, case: &Case, failures: &Mutex<Vec<String>>) {
        let first = Mutex::new(Vec::new());
        self.play(case, &first);
        if !first.into_inner().expect("no thread panics with the list").is_empty() {
            self.play(case, failures);
        }
    }

    /// The cases of a scene, by a run without a fault.
    fn cases(
        &mut self,
        start: &Case,
        faults: fn(&Call) -> Vec<Fault>,
        failures: &Mutex<Vec<String>>,
    ) -> Option<Vec<Case>> {
        let lab = self.labs.entry(start.store).or_insert_with(|| start.store.lab());
        match start.play(lab) {
            Ok(trace) => Some(start.all(&trace, faults)),
            Err(failure) => {
                self.labs.remove(&start.store);
                failures.lock().expect("no thread panics with the list").push(failure);
                None
            }
        }
    }
}
