//! An episode: some clients work under some faults, until the last one has exited.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::deadlocks;
use super::faults::{self, Fault, Nemesis};
use super::random::Random;
use super::report::Summary;
use super::setup::Setup;
use super::task;
use super::world::{Happening, Shared, World};

/// How long after the last request everything may take to end.
const END_LIMIT: Duration = Duration::from_secs(3600);
/// How many commands an episode may take. Most take some hundreds. A client that repeats its
/// command without end would take hours until [`END_LIMIT`].
const CALLS_MAX: u64 = 100_000;
/// When every lease that was granted or prolonged in an episode is over.
const ALL_LEASES: Duration = Duration::from_secs(60);

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Plays an episode.
pub(super) fn play(setup: &Setup, has_timeline: bool) -> Summary {
    let mut random = Random::seeded(setup.seed).branch();
    let mut nemesis = Nemesis::new(setup.faults.clone(), setup.servers, &mut random);
    let mut world =
        World::new(random, setup.sessions, setup.servers, setup.scripts, Duration::from_secs(setup.seconds));
    world.resources = 1 + world.random.below(setup.sessions as u64 / 4 + 2);
    world.crosses = world.random.once_in(4);
    world.checkers.is_calm = nemesis.is_calm();
    world.checkers.is_mild = nemesis.is_mild();
    world.checkers.is_gentle = nemesis.is_gentle();
    world.checkers.is_reachable = nemesis.spares_new_connections();
    world.checkers.is_strict = setup.is_strict;
    world.timeline = has_timeline.then(VecDeque::new);
    nemesis.schedule(&mut world);
    if setup.faults.contains(&Fault::ServerRestartedWithOldData) {
        world.at(Duration::ZERO, Happening::Snapshot);
    }
    let world = Rc::new(RefCell::new(world));
    run(&world, &mut nemesis, setup.sessions);
    let mut world = world.borrow_mut();
    finish(&mut world);
    let checkers = std::mem::take(&mut world.checkers);
    Summary {
        events: world.events,
        calls: world.calls,
        sessions: checkers.runs.len() as u64,
        time: world.now,
        longest_wait: checkers.longest_wait,
        faults: nemesis.struck,
        coverage: std::mem::take(&mut world.coverage),
        violations: checkers.violations,
        timeline: world.timeline.take().unwrap_or_default(),
    }
}

/// Handles one event after another, until all tasks are over or a checker has found a violation.
fn run(world: &Shared, nemesis: &mut Nemesis, clients: usize) {
    let start = |task| -> Option<Task> {
        world.borrow_mut().wake(task, Duration::ZERO);
        let world = Rc::clone(world);
        if task < clients {
            Some(Box::pin(task::run(world, task)))
        } else {
            Some(Box::pin(task::run_inner(world, task)))
        }
    };
    let all = 0..world.borrow().mailboxes.len();
    let mut tasks: Vec<_> = all.map(start).collect();
    while world.borrow().checkers.violations.is_empty() {
        let killed = std::mem::take(&mut world.borrow_mut().killed);
        killed.into_iter().for_each(|task| tasks[task] = start(task));
        let mut here = world.borrow_mut();
        let happening = here.next();
        let (now, closes) = (here.now, here.closes);
        let World { checkers, nodes, primary, .. } = &mut *here;
        checkers.check_waiters(now, |session| nodes[*primary].server.place_of(session));
        match happening {
            Some(Happening::Wake(task)) => {
                let goes_on = here.awake(task);
                drop(here);
                let Some(future) = tasks[task].as_mut().filter(|_| goes_on) else { continue };
                if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    tasks[task] = None;
                    if tasks.iter().all(Option::is_none) {
                        return;
                    }
                }
            }
            Some(Happening::Strike) => {
                let Some(task) = nemesis.strike(&mut here) else { continue };
                here.kill(task);
            }
            Some(Happening::Repair(fault)) => faults::repair(fault, &mut here),
            Some(happening) if now < closes + END_LIMIT && here.calls < CALLS_MAX => here.handle(happening),
            _ => {
                let waits = deadlocks::shown(&here.primary().server.data.table);
                here.checkers.violations.push(format!("a session never ends, or spins{waits}"));
            }
        }
    }
}

/// Checks what holds when all sessions are over.
fn finish(world: &mut World) {
    if !world.checkers.violations.is_empty() {
        return;
    }
    let is_released = world.checkers.is_mild && world.checkers.abandoned.is_none();
    let keeps_more = is_released && !world.primary().server.has_only_kept();
    let now = world.server_time();
    world.primary().server.expire(now, ALL_LEASES);
    if keeps_more || !world.primary().server.is_empty() {
        world.checkers.violations.push("the server keeps a session for ever".to_owned());
    }
}
