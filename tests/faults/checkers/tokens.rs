//! Tokens rise as time does.
//!
//! - Of two that conflict, the one that started after the other was gone has the higher token, unless it was told that it lost what it
//!   held: its grant may be older than its start.
//! - So has, of any two on a resource, the one that was asked for after the other was gone.
//! - A nested claim that the hold around it includes has the token of that one, and an upgrade a higher one.
//!
//! A command is told the highest of its tokens, so one with several claims is compared only as the later of two.

use std::collections::BTreeMap;

use super::{LOST, Violation};
use crate::claims::{Claim, Mode};
use crate::log::{Instant, Run};

pub(super) fn check(runs: &[Run]) -> Vec<Violation> {
    let by_id: BTreeMap<&str, &Run> = runs.iter().map(|run| (run.id.as_str(), run)).collect();
    let parent = |run: &Run| run.parent().and_then(|parent| by_id.get(parent).copied());
    let started: Vec<&Run> = runs.iter().filter(|run| run.start.is_some()).collect();
    let (nested, fresh): (Vec<_>, Vec<_>) = started.into_iter().partition(|run| run.parent().is_some());
    let mut found: Vec<_> = nested.iter().filter_map(|run| against_parent(run, parent(run)?)).collect();
    let single: Vec<&Run> = fresh.iter().copied().filter(|run| run.claims.len() == 1).collect();
    let kept: Vec<&Run> = fresh.iter().copied().filter(|run| run.code().is_some_and(|code| code != LOST)).collect();
    in_order(&kept, &single, |run| run.start.unwrap_or_default(), Claim::conflicts_with, &mut found);
    in_order(&fresh, &single, |run| run.asked, |one, other| one.resource == other.resource, &mut found);
    found
}

/// Every run of `later` has a higher token than those of `earlier` that were gone by `instant` of it and are `comparable`.
fn in_order(
    later: &[&Run],
    earlier: &[&Run],
    instant: impl Fn(&Run) -> Instant,
    comparable: impl Fn(&Claim, &Claim) -> bool,
    found: &mut Vec<Violation>,
) {
    let mut later = later.to_vec();
    later.sort_by_key(|run| instant(run));
    let mut earlier = earlier.to_vec();
    earlier.sort_by_key(|run| run.last);
    let mut gone = earlier.into_iter().peekable();
    // The run with the highest token for each claim; there are many runs and few different claims.
    let mut highest: BTreeMap<&Claim, &Run> = BTreeMap::new();
    for run in later {
        while let Some(before) = gone.next_if(|before| before.last < instant(run)) {
            let best = highest.entry(&before.claims[0]).or_insert(before);
            if before.token > best.token {
                *best = before;
            }
        }
        let before = highest.iter().filter(|(claim, _)| run.claims.iter().any(|own| comparable(claim, own)));
        for before in before.map(|(_, before)| before).filter(|before| before.token >= run.token) {
            let what = format!("{} has token {}, and {} before it had {}", run.id, run.token, before.id, before.token);
            found.push(Violation::new(what, &[before, run]));
        }
    }
}

fn against_parent(run: &Run, parent: &Run) -> Option<Violation> {
    let ([own], [around]) = (run.claims.as_slice(), parent.claims.as_slice()) else { return None };
    let settled = parent.start.is_some() && parent.kept.is_empty() && !parent.touched && parent.code() == Some(0);
    if !settled || own.resource != around.resource || !around.span.covers(&own.span) {
        return None;
    }
    let expected = match (around.mode, own.mode) {
        (Mode::Prewrite, Mode::Write) => run.token > parent.token,
        _ => run.token == parent.token,
    };
    let what = || format!("{own} has token {} inside {around} with token {}", run.token, parent.token);
    (!expected).then(|| Violation::new(what(), &[parent, run]))
}

#[cfg(test)]
mod tests {
    use super::super::logs::{named, run, runs};
    use super::*;

    fn found(lines: &[String]) -> usize {
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        check(&runs(&lines)).len()
    }

    #[test]
    fn rising_tokens_are_well() {
        let lines = [run("1", "k:write", 0, 5, 10..20), run("2", "k:write", 0, 6, 21..30)];
        assert_eq!(found(&lines), 0);
        assert_eq!(found(&[run("1", "k:write", 0, 9, 10..20), run("2", "l:write", 0, 2, 21..30)]), 0);
    }

    #[test]
    fn of_two_that_conflict_the_second_has_the_higher_token() {
        for token in [4, 5] {
            let runs = runs(&[&run("1", "k:write", 0, 5, 10..20), &run("2", "k:read", 0, token, 21..30)]);
            assert_eq!(named(&check(&runs)), [["1", "2"]]);
        }
        // The highest of those before counts, not the last.
        let first = run("1", "k:write:[0,2]", 0, 8, 10..20);
        let between = run("2", "k:write:[0,2]", 0, 9, 21..22);
        assert_eq!(found(&[first, between, run("3", "k:write:[2,3]", 0, 8, 30..31)]), 1);
    }

    #[test]
    fn a_lost_grant_may_be_older_than_its_start() {
        let first = run("1", "k:write", 0, 5, 10..20);
        let late = run("2", "k:write", 0, 4, 21..30).replace("left 0", "left 76");
        assert_eq!(found(&[first.clone(), late]), 0);
        let later = run("2", "k:write", 21, 4, 22..30).replace("left 0", "left 76");
        assert_eq!(found(&[first, later]), 1, "it was not even asked for");
    }

    #[test]
    fn readers_granted_together_may_start_in_any_order() {
        assert_eq!(found(&[run("1", "k:read", 0, 6, 10..20), run("2", "k:read", 0, 5, 21..30)]), 0);
        assert_eq!(found(&[run("1", "k:read", 0, 6, 10..20), run("2", "k:read", 21, 5, 22..30)]), 1);
    }

    #[test]
    fn of_several_tokens_only_the_highest_is_known() {
        assert_eq!(found(&[run("1", "a:write+b:write", 0, 9, 10..20), run("2", "a:write", 0, 5, 21..30)]), 0);
        assert_eq!(found(&[run("1", "a:write", 0, 9, 10..20), run("2", "a:write+b:read", 0, 5, 21..30)]), 1);
    }

    #[test]
    fn nested_runs_share_the_token_and_upgrades_have_their_own() {
        let outer = |mode| run("1", &format!("k:{mode}"), 0, 5, 10..50);
        let inner = |mode, token| run("1.1", &format!("k:{mode}"), 11, token, 20..30);
        assert_eq!(found(&[outer("write"), inner("read", 5)]), 0);
        assert_eq!(found(&[outer("write"), inner("read", 6)]), 1);
        assert_eq!(found(&[outer("prewrite"), inner("write", 6)]), 0);
        assert_eq!(found(&[outer("prewrite"), inner("write", 5)]), 1);
        assert_eq!(found(&[outer("prewrite").replace("left 0", "left 76"), inner("write", 5)]), 0);
    }
}
