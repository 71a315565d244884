//! The exit code says what has happened.

use std::time::Duration;

use super::{LOST, TOO_SLUGGISH, Violation};
use crate::log::Run;

/// Codes with which rlock says that the command was not started: usage, refused, no store, busy, failure.
const NOT_STARTED: [i32; 5] = [64, 65, 69, 75, 125];

/// What a killed rlock or command comes to nobody can say, nor what those below it come to, or below one that lost what it held. All
/// others end as they should, with `codes` beside 0 and busy.
pub(super) fn check(runs: &[Run], codes: &[i32], sluggishness: Duration) -> Vec<Violation> {
    let late = (sluggishness >= TOO_SLUGGISH).then_some(LOST);
    let codes: Vec<_> = codes.iter().copied().chain(late).collect();
    let fell = |run: &&Run| run.touched || run.code() != Some(0);
    let fallen: Vec<_> = runs.iter().filter(fell).collect();
    let below_the_fallen =
        |run: &Run| run.parent().is_some() && fallen.iter().any(|other| other.id != run.id && other.is_related_to(run));
    runs.iter().filter(|run| !run.touched && !below_the_fallen(run)).filter_map(|run| judge(run, &codes)).collect()
}

fn judge(run: &Run, codes: &[i32]) -> Option<Violation> {
    let what = match (run.left, run.code()) {
        (None, _) => "it never ended".to_owned(),
        (_, None) => "a signal ended it, and nobody here sent one".to_owned(),
        (_, Some(code)) if NOT_STARTED.contains(&code) && run.start.is_some() => {
            format!("exit {code} says that its command was not started, and it was")
        }
        (_, Some(0)) if !run.ended => "exit 0, and its command did not come to its end".to_owned(),
        (_, Some(0 | 75)) => return None,
        // A late answer or a busy machine left too little of the lease.
        (_, Some(126)) if run.late && run.start.is_none() => return None,
        (_, Some(code)) if codes.contains(&code) => return None,
        (_, Some(code)) => format!("exit {code}, which nothing explains"),
    };
    Some(Violation::new(format!("{}: {what}", run.id), &[run]))
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, runs};
    use super::*;

    fn found(lines: &str) -> usize {
        check(&runs(&[lines]), &[76], Duration::ZERO).len()
    }

    #[test]
    fn what_fits_is_well() {
        let ran = run("1", "k:write", 0, 1, 10..20);
        assert_eq!(found(&ran), 0);
        assert_eq!(found(&ran.replace("left 0", "left 76")), 0);
        assert_eq!(found("0 1 asked k:write 5\n9 1 left 75"), 0);
        assert_eq!(found("0 1 asked k:write -\n5 1 touched kill\n9 1 left signal"), 0);
        for fate in ["1 1 touched kill", "9 1 left 76"] {
            assert_eq!(found(&format!("0 1 asked k:write -\n{fate}\n1 1.1 asked k:write -\n8 1.1 left 143")), 0);
        }
    }

    #[test]
    fn command_may_be_left_out_only_where_rlock_says_that_it_is_late() {
        let ran = "0 1 asked k:write -\n8 1 late\n9 1 left 126";
        assert_eq!(found(ran), 0);
        assert_eq!(found(&ran.replace("8 1 late\n", "")), 1);
        assert_eq!(found(&ran.replace("late", "start 1 1 1")), 1);
    }

    #[test]
    fn a_lease_is_lost_for_a_reason() {
        let lost = runs(&[&run("1", "k:write", 0, 1, 10..20).replace("left 0", "left 76")]);
        assert_eq!(check(&lost, &[], Duration::ZERO).len(), 1);
        assert_eq!(check(&lost, &[], TOO_SLUGGISH), []);
    }

    #[test]
    fn what_does_not_fit_is_found() {
        let ran = run("1", "k:write", 0, 1, 10..20);
        for code in ["69", "75", "125", "137", "signal", "1"] {
            assert_eq!(found(&ran.replace("left 0", &format!("left {code}"))), 1, "{code}");
        }
        assert_eq!(found("0 1 asked k:write -\n9 1 left 0"), 1, "nothing ran");
        assert_eq!(found("0 1 asked k:write -\n9 1 left 69"), 1, "the store was there");
        assert_eq!(found("0 1 asked k:write -"), 1, "it waits for ever");
    }
}
