//! What the lines of a client ask for, and the answers to those that the client itself answers.

use glob::Pattern;

use super::*;
use crate::listing::Unread;

const UNKNOWN: &str = "say error this line is not understood: send LOCK KEY, UNLOCK or PING, see rlock-serve(8)";

#[test]
fn plain_lock_is_answered_ok_and_freed_by_the_end_of_the_connection() {
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK k"), ["acquire 1: write k whole"]);
    assert!(!lab.client.takes_lines() && !lab.client.is_queued());
    assert!(lab.stands(1, Standing::Waiting).is_empty());
    assert!(lab.client.is_queued());
    assert_eq!(lab.granted(1, 7), ["say ok"]);
    assert_eq!(lab.on(Event::End), ["release 1", "close"]);
    assert!(!lab.client.is_over());
    assert!(lab.released(1, Released::Done).is_empty());
    assert!(lab.client.is_over() && !lab.client.has_lost());
}

#[test]
fn lock_by_words_is_answered_with_the_highest_token() {
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK --read a --write b"), ["acquire 1: read a whole, write b whole"]);
    assert_eq!(lab.granted(1, 7), ["say ok 7"]);
}

#[test]
fn connection_may_lock_again_after_an_unlock() {
    let mut lab = Lab::holding("LOCK k");
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
    assert_eq!(lab.released(1, Released::Done), ["say ok"]);
    assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
    lab.granted(2, 8);
    lab.line("UNLOCK");
    assert_eq!(lab.released(2, Released::Lost), ["say lost"]);
    assert_eq!(lab.line("UNLOCK"), ["say error this connection holds no lock: send LOCK first"]);
}

#[test]
fn second_lock_while_one_is_held_is_an_error() {
    for line in ["LOCK j", "TRY j", "RANGE-READ j 1 2"] {
        let mut lab = Lab::holding("LOCK k");
        let text = "say error this connection holds a lock already: send UNLOCK first, or use another connection";
        assert_eq!(lab.line(line), [text], "{line}");
        assert_eq!(lab.line("PING"), ["say pong"]);
    }
}

#[test]
fn first_line_that_is_not_understood_closes() {
    for first in ["POST / HTTP/1.1", "", "HELLO"] {
        assert_eq!(Lab::new(rules()).line(first), [UNKNOWN, "close"], "{first}");
    }
    let mut lab = Lab::new(rules());
    lab.line("PING");
    assert_eq!(lab.line("HELLO"), [UNKNOWN]);
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK --nonsense"), ["say error unexpected argument '--nonsense'"]);
    assert_eq!(lab.line("PING"), ["say pong"]);
}

#[test]
fn unknown_line_ends_a_plain_hold_and_no_other() {
    assert_eq!(Lab::holding("LOCK k").line("bye"), ["release 1", "close"]);
    assert_eq!(Lab::holding("LOCK --write k").line("bye"), [UNKNOWN]);
}

#[test]
fn upgrade_needs_prewrite_locks_and_ends_before_them() {
    let nothing = "say error there is nothing to upgrade: hold a prewrite lock first";
    assert_eq!(Lab::new(rules()).line("UPGRADE"), [nothing]);
    assert_eq!(Lab::holding("LOCK k").line("UPGRADE"), [nothing]);
    let mut lab = Lab::holding("LOCK --prewrite a --prewrite b --read c");
    assert_eq!(lab.line("UPGRADE"), ["acquire 2 below 1: write a whole, write b whole"]);
    assert_eq!(lab.granted(2, 9), ["say ok 9"]);
    assert_eq!(lab.line("UPGRADE"), ["say error the lock is upgraded already: send UNLOCK first"]);
    assert_eq!(lab.line("UNLOCK"), ["release 2"]);
    assert_eq!(lab.released(2, Released::Done), ["say ok"]);
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
    assert_eq!(lab.released(1, Released::Done), ["say ok"]);
}

#[test]
fn upgrade_of_a_part_needs_exactly_one_prewrite_lock() {
    let mut lab = Lab::holding("RANGE-PREWRITE t 0 9");
    assert_eq!(lab.line("UPGRADE 1 2"), ["acquire 2 below 1: write t [1,2]"]);
    let text = "say refused [5,10] is not inside the prewrite lock on [0,9] of 't': upgrade that or a part of it";
    assert_eq!(Lab::holding("RANGE-PREWRITE t 0 9").line("UPGRADE 5 10"), [text]);
    let mut lab = Lab::holding("LOCK --prewrite a --prewrite b");
    assert_eq!(lab.line("UPGRADE 1 2"), ["say error UPGRADE LO HI needs exactly one prewrite lock: leave out LO HI"]);
}

#[test]
fn shrink_and_downgrade_change_the_innermost_hold() {
    let mut lab = Lab::holding("RANGE-PREWRITE t 0 9");
    assert_eq!(lab.line("SHRINK 0 5"), ["shrink 1 t [0,5]"]);
    assert_eq!(lab.on(Event::Answer(Answer::Changed(Changed::Done))), ["say ok"]);
    assert_eq!(lab.line("UPGRADE"), ["acquire 2 below 1: write t [0,5]"]);
    lab.granted(2, 9);
    assert_eq!(lab.line("DOWNGRADE read"), ["downgrade 2 t read"]);
    assert_eq!(
        lab.on(Event::Answer(Answer::Changed(Changed::Lost))),
        ["say refused this connection holds nothing any more"]
    );
    assert_eq!(lab.line("SHRINK 1 2"), ["shrink 2 t [1,2]"]);
    assert_eq!(lab.on(Event::Answer(Answer::Failed(error()))), ["say unavailable the store is away"]);
    let mut lab = Lab::holding("LOCK --read a --read b");
    let several = "say error this connection holds several resources: name one with --resource";
    assert_eq!(lab.line("SHRINK 0 1"), [several]);
    let text = "say refused this connection holds nothing of 'c': name what it holds";
    assert_eq!(lab.line("DOWNGRADE read --resource c"), [text]);
    assert_eq!(lab.line("SHRINK 0 1 --resource b"), ["shrink 1 b [0,1]"]);
    assert_eq!(Lab::new(rules()).line("SHRINK 0 1"), ["say error this connection holds no lock: send LOCK first"]);
}

#[test]
fn shrink_and_downgrade_leave_the_other_intervals_of_a_hold() {
    let mut lab = Lab::holding("LOCK --range-prewrite t [0,9] --range-prewrite t [20,29] --range-read t [40,49]");
    for (line, asked) in [("SHRINK 1 2", "shrink 1 t [1,2]"), ("DOWNGRADE prewrite", "downgrade 1 t prewrite")] {
        assert_eq!(lab.line(line), [asked]);
        assert_eq!(lab.on(Event::Answer(Answer::Changed(Changed::Done))), ["say ok"], "{line}");
    }
    assert_eq!(lab.line("UPGRADE"), ["acquire 2 below 1: write t [1,2], write t [20,29]"]);
}

#[test]
fn downgraded_lock_can_no_longer_be_upgraded() {
    let mut lab = Lab::holding("LOCK --prewrite a");
    lab.line("DOWNGRADE read");
    lab.on(Event::Answer(Answer::Changed(Changed::Done)));
    assert_eq!(lab.line("UPGRADE"), ["say error there is nothing to upgrade: hold a prewrite lock first"]);
}

#[test]
fn names_outside_of_only_are_neither_locked_nor_shown() {
    let only = vec![Pattern::new("app-*").unwrap(), Pattern::new("x").unwrap()];
    let mut lab = Lab::new(Rules { only, ..rules() });
    let text = "say refused this server does not serve 'k': name a KEY that matches app-* or x";
    assert_eq!(lab.line("LOCK --read app-1 --write k"), [text]);
    assert_eq!(lab.line("INSPECT k"), [text]);
    assert_eq!(lab.line("INSPECT"), ["inspect "]);
    lab.on(Event::Answer(Answer::Listing(Unread::default().listing("{}".to_owned()))));
    assert_eq!(lab.line("LOCK app-1"), ["acquire 2: write app-1 whole"]);
}

#[test]
fn token_must_come_before_anything_but_ping() {
    let with_token = || Lab::new(Rules { token: Some("secret".to_owned()), ..rules() });
    let text = "say error this server needs a token: send AUTH TOKEN first";
    for line in ["LOCK k", "INSPECT", "UNLOCK", "LOCK --bad"] {
        let mut lab = with_token();
        assert_eq!(lab.line("PING"), ["say pong"]);
        assert_eq!(lab.line(line), [text, "close"], "{line}");
    }
    let mut lab = with_token();
    assert_eq!(lab.line("AUTH secret"), ["say ok"]);
    assert_eq!(lab.line("LOCK k"), ["acquire 1: write k whole"]);
    assert_eq!(Lab::new(rules()).line("AUTH any"), ["say ok"]);
}

#[test]
fn wrong_token_is_answered_after_a_pause_and_closes() {
    for token in ["", "secre", "secret1", "Secret"] {
        let mut lab = Lab::new(Rules { token: Some("secret".to_owned()), ..rules() });
        assert!(lab.line(&format!("AUTH {token}")).is_empty());
        assert!(!lab.client.takes_lines());
        assert!(lab.after(SECOND / 2).is_empty());
        assert_eq!(lab.after(SECOND / 2), ["say error the token is wrong", "close"]);
    }
}

#[test]
fn client_without_a_first_line_is_closed_after_ten_seconds() {
    let mut lab = Lab::new(rules());
    assert!(lab.after(9 * SECOND).is_empty());
    assert_eq!(lab.after(SECOND), ["close"]);
    let mut lab = Lab::new(rules());
    lab.line("PING");
    assert_eq!(lab.client.timeout(&lab.rules), None);
    // A mistake does not give a client more time.
    let mut lab = Lab::new(rules());
    lab.line("LOCK /dav HTTP/1.1");
    assert_eq!(lab.after(10 * SECOND), ["close"]);
    // A PING does not give a client without the token more time.
    let mut lab = Lab::new(Rules { token: Some("secret".to_owned()), ..rules() });
    lab.line("PING");
    assert_eq!(lab.after(10 * SECOND), ["close"]);
    assert_eq!(Client::new(&rules(), Boottime::default(), true).timeout(&rules()), None);
}

#[test]
fn line_that_is_too_long_closes() {
    let text = "say error the line is too long: send at most 4096 bytes";
    assert_eq!(Lab::new(rules()).on(Event::LineTooLong), [text, "close"]);
    assert_eq!(Lab::holding("LOCK k").on(Event::LineTooLong), [text, "release 1", "close"]);
}

#[test]
fn client_that_sends_descriptors_is_disconnected() {
    let text = "say error this server takes no descriptors: send lines alone";
    assert_eq!(Lab::new(rules()).on(Event::Descriptors), [text, "close"]);
    assert_eq!(Lab::holding("LOCK k").on(Event::Descriptors), [text, "release 1", "close"]);
}
