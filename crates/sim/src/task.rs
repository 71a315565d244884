//! A task of an episode: one process after another, each with its own sessions.

use std::cell::RefMut;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::change;
use super::client::Supervision;
use super::plan::{Plan, Program};
use super::script;
use super::serve;
use super::tree::Job;
use super::world::{Shared, World};
use rlock_model::request::Process;
use rlock_redis::codec::Call;
use rlock_sys::clock::Boottime;

/// Only these first tasks run lock servers, because a lock server has many sessions.
const SERVING: usize = 3;

/// The time between two runs of cron.
const TICK: Duration = Duration::from_secs(4);

/// How far the clocks of the hosts are apart that run cron.
const SKEW_MAX: Duration = Duration::from_secs(3);

/// Runs one process after another until the world closes.
pub(super) async fn run(world: Shared, task: usize) {
    let site = Site { shared: world, task };
    loop {
        let pause = site.world().random_pause();
        site.sleep(pause).await;
        if site.world().is_closed() {
            return site.world().lane_over(task);
        }
        let broken = site.world().next_to_break();
        if let Some(resource) = broken {
            let revokes = site.world().random.once_in(2);
            let by = revokes.then(Process::default);
            drop(change::run(&site, Call::break_grants(resource, None, Vec::new(), by.as_ref())).await);
        } else if task < SERVING && site.world().random.once_in(4) {
            serve::run(&site).await;
        } else if site.world().random.once_in(8) {
            script::run(&site).await;
        } else if site.world().random.once_in(6) {
            let pause = until_tick(site.world().now, task);
            site.sleep(pause).await;
            let plan = Plan::of_cron(&mut site.world());
            Supervision::new(&site, plan).run().await;
        } else {
            let plan = Plan::random(&mut site.world());
            Supervision::new(&site, plan).run().await;
        }
    }
}

/// Runs the inner rlocks that the commands of another task start.
pub(super) async fn run_inner(world: Shared, task: usize) {
    let site = Site { shared: world, task };
    loop {
        let job = site.world().next_job(task);
        match job {
            Job::Run(program) => {
                match program {
                    Program::Exec(plan) => drop(Supervision::new(&site, *plan).run().await),
                    Program::Change(call) => drop(change::run(&site, call).await),
                }
                site.world().inner_over(task);
            }
            Job::Wait => site.wait(None).await,
            Job::Over => return site.world().lane_over(task),
        }
    }
}

/// How long the host of a task sleeps until the next run of cron, on its own clock.
fn until_tick(now: Duration, task: usize) -> Duration {
    let skew = SKEW_MAX * (task % 10) as u32 / 10;
    let (now, tick) = ((now + skew).as_micros() as u64, TICK.as_micros() as u64);
    Duration::from_micros(tick - now % tick)
}

/// Where a process runs.
pub(super) struct Site {
    pub(super) shared: Shared,
    pub(super) task: usize,
}

impl Site {
    pub(super) fn world(&self) -> RefMut<'_, World> {
        self.shared.borrow_mut()
    }

    pub(super) fn now(&self) -> Boottime {
        self.world().boottime(self.task)
    }

    /// Waits until something arrives, or until an instant; it may return early.
    pub(super) async fn wait(&self, until: Option<Boottime>) {
        if let Some(until) = until {
            let mut world = self.world();
            let at = world.mailboxes[self.task].clock.when_boottime(until);
            world.wake(self.task, at);
        }
        let mut has_waited = false;
        poll_fn(|_| if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    pub(super) async fn sleep(&self, length: Duration) {
        let until = self.now() + length;
        while self.now() < until {
            self.wait(Some(until)).await;
        }
    }
}
