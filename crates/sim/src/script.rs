//! A script that locks by `rlock acquire --for`, runs its steps under that lock, extends the lock
//! and releases it. Sometimes the script ends without a release.

use std::time::Duration;

use super::change;
use super::client::{Ending, Held, Supervision};
use super::plan::Plan;
use super::task::Site;
use rlock_model::op::Change;
use rlock_model::past::End;
use rlock_model::request::Job;
use rlock_redis::codec::{Call, ScriptReply};
use rlock_sys::exit;

/// How many locks the script holds at most, each below the one before.
const DEPTH: usize = 2;

/// How many steps the script has at most.
const STEPS: u64 = 6;

/// Runs a script, unless its first lock is not granted.
pub(super) async fn run(site: &Site) {
    // The innermost lock comes first.
    let mut held: Vec<Held> = Vec::new();
    if !acquire(site, &mut held).await {
        return;
    }
    let steps = site.world().random.below(STEPS + 1);
    for _ in 0..steps {
        let pause = site.world().between(Duration::ZERO, Duration::from_millis(500));
        site.sleep(pause).await;
        let choice = site.world().random.below(6);
        let goes_on = match choice {
            0 if held.len() < DEPTH => acquire(site, &mut held).await,
            1 => renew(site, &held[0]).await,
            2 if held.len() > 1 => release(site, &mut held).await,
            _ => step(site, &held).await,
        };
        if !goes_on {
            break;
        }
    }
    let forgets = site.world().random.once_in(4);
    while !forgets && release(site, &mut held).await {}
    // Nobody ends what is left but the server, at its instant.
}

/// Locks below what the script holds. Returns whether the lock is granted.
async fn acquire(site: &Site, held: &mut Vec<Held>) -> bool {
    let plan = {
        let above: Vec<_> = held.iter().map(|held| &held.request).collect();
        Plan::of_acquire(&mut site.world(), &above)
    };
    match Supervision::new(site, plan).run().await {
        Ending::HandedOver(lock) => held.insert(0, *lock),
        Ending::Exit(_) => return false,
    }
    true
}

/// Runs a command. Returns whether the script goes on, which it does unless a lock is lost.
async fn step(site: &Site, held: &[Held]) -> bool {
    let locks: Vec<_> = held.iter().map(|held| (&held.request, held.tokens.as_slice())).collect();
    let plan = Plan::of_step(&mut site.world(), &locks);
    // A step with --nested that no lock covers ends with this code too.
    let Some(plan) = plan else { return false };
    !matches!(Supervision::new(site, plan).run().await, Ending::Exit(exit::LOST))
}

/// Lets the innermost lock last longer. Returns whether the script still has the lock.
async fn renew(site: &Site, held: &Held) -> bool {
    let by = {
        let random = &mut site.world().random;
        random.once_in(2).then(|| Duration::from_millis(1 + random.below(6000)))
    };
    let call = Call::change(held.request.session, &resources(held), &Change::Extend { by });
    change::run(site, call).await.is_some_and(|reply| matches!(reply, ScriptReply::Granted { .. }))
}

/// Releases the innermost lock, on which the script counts no longer. Returns whether there was
/// one.
async fn release(site: &Site, held: &mut Vec<Held>) -> bool {
    if held.is_empty() {
        return false;
    }
    let lock = held.remove(0);
    site.world().checkers.kept.leave(lock.run);
    let call = Call::release_after(lock.request.session, resources(&lock), Some(End::KEPT), &Job::default());
    drop(change::run(site, call).await);
    true
}

fn resources(held: &Held) -> Vec<rlock_model::resource::Resource> {
    rlock_model::request::resources(&held.request.claims).into_iter().cloned().collect()
}
