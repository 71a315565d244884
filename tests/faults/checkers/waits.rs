//! Nobody waits for nobody.
//!
//! Resources that some run claimed together make one group. While anybody runs in a group others in it may have to wait, so what is
//! looked for are the times in which nobody ran and somebody waited: hand-overs, the leases of the dead, and what never ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;
use crate::log::{Instant, Run};

/// A time in which a run waited and nobody ran.
#[derive(Debug)]
pub(super) struct Stretch<'a> {
    waiter: &'a Run,
    from: Instant,
    to: Instant,
    /// How many of the group were killed or stopped and may have held something then.
    touched: u32,
}

impl Stretch<'_> {
    pub(super) fn length(&self) -> Duration {
        Duration::from_nanos(self.to - self.from)
    }
}

/// Each of the dead may have had a lease and each of the stopped a grant to claim; nothing else takes longer than `idle`.
pub(super) fn check(stretches: &[Stretch<'_>], idle: Duration, lease: Duration) -> Vec<Violation> {
    let too_long = |stretch: &&Stretch<'_>| stretch.length() > idle + lease * stretch.touched;
    let violation = |stretch: &Stretch<'_>| {
        let (length, id) = (stretch.length(), &stretch.waiter.id);
        let what = format!("{id} waited for {length:.1?} from {} on although nobody ran", stretch.from);
        Violation::new(what, &[stretch.waiter])
    };
    stretches.iter().filter(too_long).map(violation).collect()
}

/// The longest stretch of each waiter.
pub(super) fn idle_stretches(runs: &[Run], lease: Duration) -> Vec<Stretch<'_>> {
    let groups = groups(runs);
    let group = |run: &Run| run.claims.first().map(|claim| groups[claim.resource.as_str()]);
    let mut members: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        if let Some(group) = group(run) {
            members.entry(group).or_default().push(run);
        }
    }
    members.values().flat_map(|members| stretches(members, lease)).collect()
}

fn stretches<'a>(members: &[&'a Run], lease: Duration) -> Vec<Stretch<'a>> {
    let busy = merged(members.iter().filter_map(|run| Some((run.start?, run.last))).collect());
    // What the dead held may last for a lease after they are gone.
    let gone = |run: &Run| run.left.map_or(Instant::MAX, |left| left.at + lease.as_nanos() as u64);
    let touched: Vec<_> = members.iter().filter(|run| run.touched).map(|run| (run.asked, gone(run))).collect();
    let mut found = Vec::new();
    for waiter in members.iter().filter(|run| !run.touched) {
        let (Some(queued), Some(until)) = (waiter.queued, waiter.start.or(waiter.left.map(|left| left.at))) else {
            continue;
        };
        // Each idle time lies between the end of one busy time and the start of the next.
        let first = busy.partition_point(|(_, to)| *to < queued);
        let mut from = queued;
        let mut longest = (queued, queued);
        for (start, end) in busy[first..].iter().copied().chain([(until, until)]) {
            let to = start.min(until);
            if to > from && to - from > longest.1 - longest.0 {
                longest = (from, to);
            }
            from = from.max(end);
            if start >= until {
                break;
            }
        }
        let (from, to) = longest;
        if to > from {
            let touched = touched.iter().filter(|(asked, gone)| *asked < to && *gone > from).count() as u32;
            found.push(Stretch { waiter, from, to, touched });
        }
    }
    found
}

/// The times in which anybody of them ran.
fn merged(mut times: Vec<(Instant, Instant)>) -> Vec<(Instant, Instant)> {
    times.sort_unstable();
    let mut merged: Vec<(Instant, Instant)> = Vec::new();
    for (from, to) in times {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// The group of each resource, named by one of its members.
fn groups(runs: &[Run]) -> BTreeMap<&str, &str> {
    let mut group: BTreeMap<&str, &str> = BTreeMap::new();
    for run in runs {
        for claim in &run.claims {
            group.entry(&claim.resource).or_insert(&claim.resource);
        }
        for pair in run.claims.windows(2) {
            let (kept, joined) = (group[pair[0].resource.as_str()], group[pair[1].resource.as_str()]);
            if kept != joined {
                group.values_mut().filter(|name| **name == joined).for_each(|name| *name = kept);
            }
        }
    }
    group
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, runs};
    use super::*;

    fn waiter(id: &str, claims: &str, queued: u64, start: u64) -> String {
        format!("{}\n{queued} {id} queued", run(id, claims, queued - 1, 1, start..start + 5))
    }

    fn longest(lines: &[&str]) -> u128 {
        idle_stretches(&runs(lines), Duration::ZERO)
            .iter()
            .map(|stretch| stretch.length().as_nanos())
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn only_time_in_which_nobody_ran_counts() {
        let holder = run("1", "k:write", 0, 1, 10..80);
        assert_eq!(longest(&[&holder, &waiter("2", "k:write", 20, 90)]), 10);
        assert_eq!(longest(&[&holder, &waiter("2", "k:write", 20, 79)]), 0);
        assert_eq!(longest(&[&holder, &run("3", "k:read", 0, 1, 82..85), &waiter("2", "k:write", 20, 88)]), 3);
        assert_eq!(longest(&[&holder, &waiter("2", "k:write", 95, 99)]), 4);
        assert_eq!(longest(&[&holder, "9 2 asked k:write 5\n85 2 queued\n105 2 left 75"]), 20);
    }

    #[test]
    fn others_do_not_count_unless_somebody_claims_both() {
        let holder = run("1", "k:write", 0, 1, 10..80);
        let elsewhere = waiter("2", "l:write", 20, 50);
        assert_eq!(longest(&[&holder, &elsewhere]), 30);
        assert_eq!(longest(&[&holder, &elsewhere, &run("3", "a:read+k:read+l:read", 0, 1, 85..86)]), 0);
    }

    #[test]
    fn the_dead_cost_a_lease_each() {
        let holder = run("1", "k:write", 0, 1, 10..20);
        let late = waiter("2", "k:write", 15, 120);
        let dead = "5 3 asked k:write -\n6 3 touched kill\n7 3 left signal";
        let (idle, lease) = (Duration::from_nanos(60), Duration::from_nanos(40));
        let found = |lines: &[&str]| check(&idle_stretches(&runs(lines), lease), idle, lease).len();
        assert_eq!((found(&[&holder, &late]), found(&[&holder, &late, dead])), (1, 0));
    }
}
