//! Tokens rise with time (invariant 4 of the lock table).
//!
//! - Of two runs that conflict, the run that started after the end of the other one has the higher
//!   token. A run that lost its lease is excepted, because its grant may be older than its start.
//! - Of any two runs on a resource, the run that was requested after the end of the other one has
//!   the higher token.
//! - A nested claim that the ancestor's hold includes has the ancestor's token, and an upgrade has
//!   a higher one.
//!
//! A command knows only the highest of its tokens. So a run with several claims is compared only as
//! the later of two runs.

use std::collections::BTreeMap;

use super::{LOST, Violation};
use crate::claims::Claim;
use crate::log::{Instant, Run};
use crate::rules::{self, Tokens};

pub(super) fn check(runs: &[Run]) -> Vec<Violation> {
    let by_id: BTreeMap<&str, &Run> = runs.iter().map(|run| (run.id.as_str(), run)).collect();
    let parent = |run: &Run| run.parent().and_then(|parent| by_id.get(parent).copied());
    let started: Vec<&Run> = runs.iter().filter(|run| run.start.is_some()).collect();
    let (nested, fresh): (Vec<_>, Vec<_>) = started.into_iter().partition(|run| run.parent().is_some());
    let mut found: Vec<_> = nested.iter().filter_map(|run| check_nested(run, parent(run)?)).collect();
    let single: Vec<&Run> = fresh.iter().copied().filter(|run| run.claims.len() == 1).collect();
    let kept: Vec<&Run> = fresh.iter().copied().filter(|run| run.code().is_some_and(|code| code != LOST)).collect();
    check_order(&kept, &single, |run| run.start.unwrap_or_default(), Claim::conflicts_with, &mut found);
    check_order(&fresh, &single, |run| run.asked, |one, other| one.resource == other.resource, &mut found);
    found
}

/// Checks that each run of `later` has a higher token than every `comparable` run of `earlier` that
/// had ended by `instant(later)`.
fn check_order(
    later: &[&Run],
    earlier: &[&Run],
    instant: impl Fn(&Run) -> Instant,
    comparable: impl Fn(&Claim, &Claim) -> bool,
    found: &mut Vec<Violation>,
) {
    let mut later = later.to_vec();
    later.sort_by_key(|run| instant(run));
    let mut earlier = earlier.to_vec();
    earlier.sort_by_key(|run| run.last_seen);
    let mut gone = earlier.into_iter().peekable();
    let mut tokens = Tokens::default();
    for run in later {
        while let Some(before) = gone.next_if(|before| before.last_seen < instant(run)) {
            tokens.add(&before.claims[0], before.token, before);
        }
        for before in tokens.not_below(&run.claims, run.token, &comparable) {
            let message =
                format!("{} has token {}, but the earlier {} had {}", run.id, run.token, before.id, before.token);
            found.push(Violation::new(message, &[before, run]));
        }
    }
}

fn check_nested(run: &Run, parent: &Run) -> Option<Violation> {
    let ([own], [around]) = (run.claims.as_slice(), parent.claims.as_slice()) else { return None };
    let settled = parent.start.is_some() && parent.kept.is_empty() && !parent.faulted && parent.code() == Some(0);
    if !settled || own.resource != around.resource || !around.span.covers(&own.span) {
        return None;
    }
    let expected = rules::nested_token_fits((around.mode, parent.token), (own.mode, run.token));
    let message = || format!("{own} has token {} inside {around} with token {}", run.token, parent.token);
    (!expected).then(|| Violation::new(message(), &[parent, run]))
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, run_ids, runs};
    use super::*;

    fn found(lines: &[String]) -> usize {
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        check(&runs(&lines)).len()
    }

    #[test]
    fn rising_tokens_are_accepted() {
        let lines = [run("1", "k:write", 0, 5, 10..20), run("2", "k:write", 0, 6, 21..30)];
        assert_eq!(found(&lines), 0);
        assert_eq!(found(&[run("1", "k:write", 0, 9, 10..20), run("2", "l:write", 0, 2, 21..30)]), 0);
    }

    #[test]
    fn later_conflicting_run_without_a_higher_token_is_a_violation() {
        for token in [4, 5] {
            let runs = runs(&[&run("1", "k:write", 0, 5, 10..20), &run("2", "k:read", 0, token, 21..30)]);
            assert_eq!(run_ids(&check(&runs)), [["1", "2"]]);
        }
        // The highest token of the earlier runs counts, not the last one.
        let first = run("1", "k:write:[0,2]", 0, 8, 10..20);
        let between = run("2", "k:write:[0,2]", 0, 9, 21..22);
        assert_eq!(found(&[first, between, run("3", "k:write:[2,3]", 0, 8, 30..31)]), 1);
    }

    #[test]
    fn lost_grant_may_be_older_than_its_start() {
        let first = run("1", "k:write", 0, 5, 10..20);
        let late = run("2", "k:write", 0, 4, 21..30).replace("exit 0", "exit 76");
        assert_eq!(found(&[first.clone(), late]), 0);
        let later = run("2", "k:write", 21, 4, 22..30).replace("exit 0", "exit 76");
        assert_eq!(found(&[first, later]), 1, "the request came after the end of the first run");
    }

    #[test]
    fn readers_granted_together_may_start_in_any_order() {
        assert_eq!(found(&[run("1", "k:read", 0, 6, 10..20), run("2", "k:read", 0, 5, 21..30)]), 0);
        assert_eq!(found(&[run("1", "k:read", 0, 6, 10..20), run("2", "k:read", 21, 5, 22..30)]), 1);
    }

    #[test]
    fn run_with_several_claims_is_only_compared_as_the_later_one() {
        assert_eq!(found(&[run("1", "a:write+b:write", 0, 9, 10..20), run("2", "a:write", 0, 5, 21..30)]), 0);
        assert_eq!(found(&[run("1", "a:write", 0, 9, 10..20), run("2", "a:write+b:read", 0, 5, 21..30)]), 1);
    }

    #[test]
    fn nested_run_shares_the_token_and_upgrade_has_a_higher_one() {
        let outer = |mode| run("1", &format!("k:{mode}"), 0, 5, 10..50);
        let inner = |mode, token| run("1.1", &format!("k:{mode}"), 11, token, 20..30);
        assert_eq!(found(&[outer("write"), inner("read", 5)]), 0);
        assert_eq!(found(&[outer("write"), inner("read", 6)]), 1);
        assert_eq!(found(&[outer("prewrite"), inner("write", 6)]), 0);
        assert_eq!(found(&[outer("prewrite"), inner("write", 5)]), 1);
        assert_eq!(found(&[outer("prewrite").replace("exit 0", "exit 76"), inner("write", 5)]), 0);
    }
}
