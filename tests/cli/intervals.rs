//! Intervals on the command line.

use rlock_testkit::{Lab, on_both};

/// Negative numbers and -inf need no quoting, before and after any option.
#[test]
fn negative_ends_need_no_quoting_anywhere() {
    let lab = Lab::new();
    for line in [
        "range-write k -2 -1 -n -- sh",
        "range-write -n k -2 -1 -- sh",
        "range-write k -n -2 -1 -- sh",
        "range-write k -2 -n -1 -- sh",
        "range-write k -inf -3e-9 -n -q -w0 -E 3 -- sh",
        "range-write -nq -E3 k -inf -22/7 -- sh",
        "range-write k -.5 inf --namespace n -- sh",
        "--namespace n range-write k -1.0 +7 -v -c :",
    ] {
        let words = line.split(' ');
        let ran = lab.run(words);
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(0), ""), "{line}: {ran:?}");
    }
    lab.run(["range-read", "-3", "-2", "-1", "--", "sh", "-c", "echo \"$RLOCK_RESOURCE\""]).printed("-3\n");
    lab.run(["range-read", "k", "1", "2", "--", "echo", "-3", "-inf"]).printed("-3 -inf\n");
}

/// `LO HI` is a closed interval, so intervals that touch overlap. A single argument such as `[1,2)`
/// states which ends are open.
#[test]
fn intervals_that_touch_overlap_if_both_ends_are_closed() {
    on_both(|lab| {
        let _holder = lab.hold_by(["range-write", "k", "[1.2,1.8)"]);
        for (asked, code) in [
            (&["1.8", "2"][..], 0),
            (&["(1.8,2]"], 0),
            (&["1", "1.2"], 75),
            (&["[1,1.2)"], 0),
            (&["1.79999999999999999999999999999999", "1.8"], 75),
            (&["-inf", "inf"], 75),
            (&["-inf", "6/5"], 75),
            (&["(-inf,6/5)"], 0),
            (&["9/5", "inf"], 0),
        ] {
            let words = [&["range-read", "k", "-n", "-q"], asked, &["--", "true"]].concat();
            lab.run(words).silently(code);
        }
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        lab.run(["exec", "-nq", "--read", "k", "--", "true"]).silently(75);
    });
}

/// Ends of at least 1,000 digits are compared without rounding.
#[test]
fn ends_that_differ_in_digit_1001_are_compared_exactly() {
    on_both(|lab| {
        let digits = "3".repeat(1000);
        let (below, above) = (format!("0.{digits}"), format!("0.{digits}1"));
        let _holder = lab.hold_by(["range-write", "k", "0", &below]);
        lab.run(["range-write", "k", &above, "1", "-nq", "--", "true"]).silently(0);
        lab.run(["range-write", "k", &below, "1", "-nq", "--", "true"]).silently(75);
        lab.run(["range-write", "k", "1/3", "1", "-nq", "--", "true"]).silently(0);
    });
}
