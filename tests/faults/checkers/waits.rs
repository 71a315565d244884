//! No run waits while no command runs (invariant 2 of the lock table).
//!
//! Resources that a run claimed together form a group. While a command of a group runs, other runs
//! of the group may have to wait. So the checker looks for idle periods, in which a run waited and
//! no command ran: hand-overs, leases of dead runs, and waits without end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;
use crate::log::{Instant, Run};

/// A time in which a run waited and no command of its group ran.
#[derive(Debug)]
pub(super) struct IdlePeriod<'a> {
    waiter: &'a Run,
    from: Instant,
    to: Instant,
    /// The number of killed or stopped runs of the group that may have held a claim then.
    faulted: u32,
}

impl IdlePeriod<'_> {
    pub(super) fn length(&self) -> Duration {
        Duration::from_nanos(self.to - self.from)
    }
}

/// Each dead run excuses one lease, and each stopped run one claim lease. No other idle period may
/// be longer than `idle`.
pub(super) fn check(periods: &[IdlePeriod<'_>], idle: Duration, lease: Duration) -> Vec<Violation> {
    let too_long = |period: &&IdlePeriod<'_>| period.length() > idle + lease * period.faulted;
    let violation = |period: &IdlePeriod<'_>| {
        let (length, id) = (period.length(), &period.waiter.id);
        let message = format!("{id} waited for {length:.1?} from {} on while no command ran", period.from);
        Violation::new(message, &[period.waiter])
    };
    periods.iter().filter(too_long).map(violation).collect()
}

/// The longest idle period of each waiter.
pub(super) fn idle_periods(runs: &[Run], lease: Duration) -> Vec<IdlePeriod<'_>> {
    let groups = groups(runs);
    let group = |run: &Run| run.claims.first().map(|claim| groups[claim.resource.as_str()]);
    let mut members: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        if let Some(group) = group(run) {
            members.entry(group).or_default().push(run);
        }
    }
    members.values().flat_map(|members| periods(members, lease)).collect()
}

fn periods<'a>(members: &[&'a Run], lease: Duration) -> Vec<IdlePeriod<'a>> {
    let busy = merged(members.iter().filter_map(|run| Some((run.start?, run.last_seen))).collect());
    // The hold of a dead run may last for a lease after its end.
    let gone = |run: &Run| run.exit.map_or(Instant::MAX, |exit| exit.at + lease.as_nanos() as u64);
    let faulted: Vec<_> = members.iter().filter(|run| run.faulted).map(|run| (run.asked, gone(run))).collect();
    let mut found = Vec::new();
    for waiter in members.iter().filter(|run| !run.faulted) {
        let (Some(queued), Some(until)) = (waiter.queued, waiter.start.or(waiter.exit.map(|exit| exit.at))) else {
            continue;
        };
        // Each idle period lies between two busy periods.
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
            let faulted = faulted.iter().filter(|(asked, gone)| *asked < to && *gone > from).count() as u32;
            found.push(IdlePeriod { waiter, from, to, faulted });
        }
    }
    found
}

/// The union of the times, as disjoint periods in order.
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

/// The group of each resource, named after one of its resources.
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
        idle_periods(&runs(lines), Duration::ZERO).iter().map(|period| period.length().as_nanos()).max().unwrap_or(0)
    }

    #[test]
    fn only_periods_without_a_running_command_count() {
        let holder = run("1", "k:write", 0, 1, 10..80);
        assert_eq!(longest(&[&holder, &waiter("2", "k:write", 20, 90)]), 10);
        assert_eq!(longest(&[&holder, &waiter("2", "k:write", 20, 79)]), 0);
        assert_eq!(longest(&[&holder, &run("3", "k:read", 0, 1, 82..85), &waiter("2", "k:write", 20, 88)]), 3);
        assert_eq!(longest(&[&holder, &waiter("2", "k:write", 95, 99)]), 4);
        assert_eq!(longest(&[&holder, "9 2 asked k:write 5\n85 2 queued\n105 2 exit 75"]), 20);
    }

    #[test]
    fn resources_are_separate_unless_a_run_claims_both() {
        let holder = run("1", "k:write", 0, 1, 10..80);
        let elsewhere = waiter("2", "l:write", 20, 50);
        assert_eq!(longest(&[&holder, &elsewhere]), 30);
        assert_eq!(longest(&[&holder, &elsewhere, &run("3", "a:read+k:read+l:read", 0, 1, 85..86)]), 0);
    }

    #[test]
    fn each_killed_run_excuses_one_lease() {
        let holder = run("1", "k:write", 0, 1, 10..20);
        let late = waiter("2", "k:write", 15, 120);
        let dead = "5 3 asked k:write -\n6 3 faulted kill\n7 3 exit signal";
        let (idle, lease) = (Duration::from_nanos(60), Duration::from_nanos(40));
        let found = |lines: &[&str]| check(&idle_periods(&runs(lines), lease), idle, lease).len();
        assert_eq!((found(&[&holder, &late]), found(&[&holder, &late, dead])), (1, 0));
    }
}
