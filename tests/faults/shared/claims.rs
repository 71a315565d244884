//! Tests the claims of runs.

use rlock_testkit::claims::*;

fn conflicting(one: &str, other: &str) -> bool {
    conflict(&parse(one), &parse(other)) && conflict(&parse(other), &parse(one))
}

#[test]
fn modes_clash_as_in_the_table_of_the_design() {
    for (one, row) in Mode::ALL.into_iter().zip(["..x.", ".xx.", "xxxx", "..x."]) {
        for (other, cell) in Mode::ALL.into_iter().zip(row.chars()) {
            let (one, other) = (Claim::whole("k", one), Claim::whole("k", other));
            assert_eq!(one.conflicts_with(&other), cell == 'x', "{one} {other}");
        }
    }
    assert!(!conflicting("k:write", "l:write"));
    assert!(conflicting("k:read+l:write", "a:write+l:read"));
}

#[test]
fn closed_ends_that_touch_overlap() {
    assert!(conflicting("k:write:[1,2]", "k:read:[2,3]"));
    assert!(!conflicting("k:write:[1,2)", "k:read:[2,3]"));
    assert!(!conflicting("k:write:[1,2]", "k:read:(2,3]"));
    assert!(conflicting("k:write", "k:read:(2,3]"));
    assert!(Span::interval("[1,3)").covers(&Span::interval("(1,3)")));
    assert!(!Span::interval("(1,3)").covers(&Span::interval("[1,2]")));
}

#[test]
fn claims_survive_a_round_trip_through_text() {
    let claims = [Claim::whole("k", Mode::Prewrite), Claim::slot("s", 3), Claim::part("axis", Mode::Read, "(-1,4]")];
    assert_eq!(to_text(&claims), "k:prewrite+s:slot:3+axis:read:(-1,4]");
    assert_eq!(parse(&to_text(&claims)), claims);
}
