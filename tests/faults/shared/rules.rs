//! Tests the rules that every history obeys.

use rlock_testkit::claims::{self, Claim, Mode};
use rlock_testkit::rules::*;

/// The hold of a session, whose ancestors come before it: `1.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample<'a>(&'a str, &'a Claim);

impl Hold for Sample<'_> {
    fn claim(&self) -> &Claim {
        self.1
    }

    fn is_related_to(&self, other: &Self) -> bool {
        self.0.starts_with(other.0) || other.0.starts_with(self.0)
    }

    fn shares_slot_with(&self, other: &Self) -> bool {
        self.0[..1] == other.0[..1]
    }
}

fn claim(text: &str) -> Claim {
    claims::parse(text).remove(0)
}

fn found(current: &[(&str, &str)], new: (&str, &str)) -> usize {
    let claims: Vec<_> = current.iter().map(|(id, text)| (*id, claim(text))).collect();
    let current: Vec<_> = claims.iter().map(|(id, claim)| Sample(id, claim)).collect();
    exclusions(&current, Sample(new.0, &claim(new.1))).count()
}

#[test]
fn conflicting_hold_is_excluded_unless_it_is_related() {
    assert_eq!(found(&[("1", "k:write")], ("2", "k:read")), 1);
    assert_eq!(found(&[("1", "k:read"), ("2", "k:read")], ("3", "k:write")), 2);
    assert_eq!(found(&[("1", "k:write"), ("1.1", "k:write")], ("1.1.1", "k:read")), 0);
    assert_eq!(found(&[("1.1", "k:write")], ("1.2", "k:write")), 1, "siblings exclude each other");
    assert_eq!(found(&[("1", "k:write:[1,2)")], ("2", "k:write:[2,3]")), 0);
    assert_eq!(found(&[("1", "k:write:[1,2]")], ("2", "k:write:[2,3]")), 1);
}

#[test]
fn slots_are_exclusive_when_all_are_taken() {
    let two = [("1", "s:slot:2"), ("2", "s:slot:2")];
    assert_eq!(found(&two[..1], ("3", "s:slot:2")), 0);
    assert_eq!(found(&two, ("3", "s:slot:2")), 1);
    assert_eq!(found(&two, ("3", "s:slot:3")), 1, "the smallest number counts");
    assert_eq!(found(&two[..1], ("3", "s:slot:2:2")), 1);
    assert_eq!(found(&[("1", "s:slot:4:3")], ("3", "s:slot:4")), 0);
    assert_eq!(found(&two, ("3", "t:slot:2")), 0);
    assert_eq!(found(&two, ("2.1", "s:slot:2")), 0, "a nested slot shares the slot of its ancestor");
    assert_eq!(found(&[("1", "s:slot:2"), ("1.1", "s:slot:2")], ("3", "s:slot:2")), 0);
    assert_eq!(found(&two, ("3", "s:write")), 2);
}

#[test]
fn only_a_reported_loss_excuses_an_overlap() {
    assert!(may_overlap(false, true));
    assert!(!may_overlap(true, true) && !may_overlap(false, false));
}

#[test]
fn conflicting_waiter_and_waiter_for_the_same_slot_go_first() {
    let first = |waiter, later| must_go_first(&claims::parse(waiter), &claims::parse(later));
    assert!(first("k:write", "l:read+k:read"));
    assert!(!first("k:read", "k:read") && !first("k:write:[1,2)", "k:write:[2,3]"));
    assert!(first("s:slot:2", "s:slot:2"));
    assert!(!first("s:slot:2+k:write", "s:slot:2"), "the waiter may wait for 'k'");
    assert!(!first("s:slot:2", "t:slot:2"));
}

#[test]
fn token_that_does_not_rise_is_found() {
    let mut tokens = Tokens::default();
    tokens.add(&claim("k:write"), 7, "a");
    tokens.add(&claim("k:write"), 5, "b");
    tokens.add(&claim("k:read"), 8, "c");
    let found = |own, token| tokens.not_below(&claims::parse(own), token, Claim::conflicts_with).collect::<Vec<_>>();
    assert_eq!(found("k:write", 9), [""; 0]);
    assert_eq!(found("k:write", 8), ["c"]);
    assert_eq!(found("k:read", 7), ["a"]);
    assert_eq!(found("l:write", 1), [""; 0]);
}

#[test]
fn nested_claim_has_the_token_around_it_and_an_upgrade_a_higher_one() {
    use Mode::{Prewrite, Read, Slot, Write};
    for (around, own) in [(Write, Write), (Write, Read), (Prewrite, Prewrite), (Read, Read), (Slot, Slot)] {
        assert!(nested_token_fits((around, 5), (own, 5)));
        assert!(!nested_token_fits((around, 5), (own, 6)));
    }
    assert!(nested_token_fits((Prewrite, 5), (Write, 6)));
    assert!(!nested_token_fits((Prewrite, 5), (Write, 5)));
}
