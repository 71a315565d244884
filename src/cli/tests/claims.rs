//! Tests the claims that command lines ask for.

use super::super::Invocation;
use super::{mistake, parsed};

/// Returns the claims of a command line, each as `mode resource` with its span or slots.
fn claims(line: &str) -> Vec<String> {
    let Ok(Invocation::Exec(exec)) = parsed(line) else { panic!("'{line}' should be parsed") };
    let slots = |slots: Option<u32>| slots.map(|slots| format!("={slots}")).unwrap_or_default();
    exec.request
        .claims
        .iter()
        .map(|claim| format!("{} {}{} {}", claim.mode, claim.resource, slots(claim.slots), claim.span))
        .collect()
}

#[test]
fn claims_keep_the_order_of_the_command_line() {
    let line = "exec --slot s=3 b --read a --write c --prewrite d --write e -q --write f -- true";
    assert_eq!(
        claims(line),
        [
            "slot s=3 whole",
            "write b whole",
            "read a whole",
            "write c whole",
            "prewrite d whole",
            "write e whole",
            "write f whole"
        ]
    );
}

#[test]
fn stronger_of_two_modes_on_one_resource_counts() {
    assert_eq!(claims("exec --read a --prewrite a -- true"), ["prewrite a whole"]);
    assert_eq!(claims("exec --write a --read b --read a -- true"), ["write a whole", "read b whole"]);
    assert_eq!(claims("exec a --read a -- true"), ["write a whole"]);
    assert_eq!(claims("exec --write a --write a -- true"), ["write a whole"]);
}

#[test]
fn several_intervals_stand_beside_other_claims() {
    let line = "exec --range-write t [1,2) --read c --range-read t (5,6] k --range-write t (-inf,0] -- true";
    assert_eq!(claims(line), ["write t [1,2)", "read c whole", "read t (5,6]", "write k whole", "write t (-inf,0]"]);
    let line = "exec --range-read t [1,2] --range-write t [1.0,2] --read t --range-read t [1,2) -- true";
    assert_eq!(claims(line), ["write t [1,2]", "read t whole", "read t [1,2)"]);
    let text = "--slot cannot be combined with another mode on 't': give one of them";
    assert_eq!(mistake("exec --range-read t [1,2] --slot t=3 -- true"), text);
}

#[test]
fn several_paths_stand_beside_other_claims_as_parts_of_one_resource() {
    let line = "exec --path /no/such/a --read c --path-read /no/such/b --path-read /no/such/a -- true";
    assert_eq!(claims(line), ["write / /no/such/a", "read c whole", "read / /no/such/b"]);
    assert_eq!(claims("exec --path / -- true"), claims("exec / -- true"));
}

#[test]
fn second_bare_key_is_rejected_with_advice_to_write_the_separator() {
    let text = "unexpected second KEY 'ssh': did you forget -- before the command, or did poetry or hatch take it away? for two locks write \
                --write deploy --write ssh";
    for line in [
        "exec deploy ssh db1 -- hostname",
        "exec deploy -n ssh -- hostname",
        "exec --read x deploy ssh -- hostname",
        "exec deploy ssh",
        "exec deploy ssh db1 -w 5",
    ] {
        assert_eq!(mistake(line), text, "{line}");
    }
    let text = "unexpected second KEY 'it's': did you forget -- before the command, or did poetry or hatch take it away? for two locks write \
                --write 'a b' --write 'it'\\''s'";
    assert_eq!(mistake("exec a_b it's -- c"), text);
    assert!(mistake("exec a a -- true").starts_with("unexpected second KEY 'a': "));
}

#[test]
fn bare_key_after_the_c_string_is_rejected() {
    let text = "unexpected 'extra' beside KEY 'k': -c takes one STRING and no arguments; for two locks write \
                --write k --write extra";
    assert_eq!(mistake("exec k -c x extra"), text);
    assert_eq!(mistake("exec k extra -c x"), text);
    for line in ["exec -c x k", "exec --read r -c x k", "range-read -c x k 1 2"] {
        let text = "KEY 'k' stands after -c: put KEY before -c STRING, which takes no arguments";
        assert_eq!(mistake(line), text, "{line}");
    }
    assert_eq!(claims("exec -c x --write k"), ["write k whole"]);
    assert_eq!(claims("exec k -c x --read r -n"), ["write k whole", "read r whole"]);
}

#[test]
fn slot_beside_another_claim_on_one_resource_is_rejected() {
    let text = "--slot cannot be combined with another mode on 'a': give one of them";
    assert_eq!(mistake("exec --slot a=2 --read a -- true"), text);
    assert_eq!(mistake("exec a --slot a=2 -- true"), text);
    let text = "'a' cannot have both 2 and 3 slots: give one --slot a=N";
    assert_eq!(mistake("exec --slot a=2 --slot a=3 -- true"), text);
    let text = "'a' has two slots in one request: give one --slot a=N";
    assert_eq!(mistake("exec --slot a=2 --slot a=2 -- true"), text);
    assert_eq!(mistake("acquire --slot a=2 --for 1s --slot a=2"), text);
}

#[test]
fn range_subcommand_gives_a_mode_and_an_interval() {
    assert_eq!(claims("range-read t 1 2 -- true"), ["read t [1,2]"]);
    assert_eq!(claims("range-prewrite t [1,2) -- true"), ["prewrite t [1,2)"]);
    assert_eq!(claims("range-write t (-inf,2] -- true"), ["write t (-inf,2]"]);
}

#[test]
fn negative_numbers_need_no_quoting_before_or_after_options() {
    for (line, claim) in [
        ("range-write tree -inf -3 -n -- cmd", "write tree [-inf,-3]"),
        ("range-write -n tree -22/7 5 -w 0 -- cmd", "write tree [-22/7,5]"),
        ("range-write tree -n -.5 -q -3e-9 -- cmd", "write tree [-.5,-3e-9]"),
        ("range-read tree -E 5 -3 -E 6 -1 -- cmd -9", "read tree [-3,-1]"),
        ("range-read --store file:///x tree -3 --ttl 9s -1 --grace 1s -- cmd", "read tree [-3,-1]"),
        ("--namespace n range-read tree -3 -1 -- cmd", "read tree [-3,-1]"),
        ("range-read -5 -3 inf -- cmd", "read -5 [-3,inf]"),
    ] {
        assert_eq!(claims(line), [claim], "{line}");
    }
}

#[test]
fn invalid_interval_is_rejected_with_advice() {
    for (line, text) in [
        ("exec -- true", "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write"),
        (
            "exec --range-read t 5 -- true",
            "--range-read: '5' is not an interval: write it as one word, such as '[1.2,1.8)'",
        ),
        ("exec --range-write t -- true", "--range-write needs KEY and INTERVAL; see 'rlock exec --help'"),
        ("exec --range-write t [5,3] -- true", "--range-write: the interval [5,3] ends before it starts"),
        ("range-read -- true", "nothing to lock: name a KEY and its interval, LO HI or '[LO,HI)'"),
        ("range-read t -- true", "no interval: write LO HI or '[LO,HI)' after the KEY"),
        ("range-read t 1 -- true", "the interval from '1' lacks its end: write LO HI or '[LO,HI)'"),
        ("range-read t [1,2] true -- x", "unexpected 'true' after the interval '[1,2]': put the command after --"),
        ("range-read t 5 3 -- true", "the interval [5,3] ends before it starts"),
    ] {
        assert_eq!(mistake(line), text, "{line}");
    }
    assert!(mistake("range-read t 1 x -- true").starts_with("'x' is not a number"));
}
