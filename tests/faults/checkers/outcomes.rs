//! The exit code of each run fits the events of the run.

use std::time::Duration;

use super::{LOST, MAX_SCHEDULING_DELAY, Violation};
use crate::log::Run;

/// The exit codes of runs whose command did not start: usage, refused, no store, busy, failure.
const NOT_STARTED: [i32; 5] = [64, 65, 69, 75, 125];

/// A run with a fault may exit with any code, and so may the runs below a failed run. All other
/// runs must exit with 0, busy, a reported deadlock or one of `codes`. A client whose server was
/// killed must end.
pub(super) fn check(runs: &[Run], codes: &[i32], scheduling_delay: Duration) -> Vec<Violation> {
    let late = (scheduling_delay >= MAX_SCHEDULING_DELAY).then_some(LOST);
    let codes: Vec<_> = codes.iter().copied().chain(late).collect();
    let failed = |run: &&Run| run.faulted || run.code() != Some(0) && run.deadlock.is_none();
    let failed_runs: Vec<_> = runs.iter().filter(failed).collect();
    let is_below_a_failed_run = |run: &Run| {
        run.parent().is_some() && failed_runs.iter().any(|other| other.id != run.id && other.is_related_to(run))
    };
    let judged = runs.iter().filter(|run| !run.faulted && !is_below_a_failed_run(run));
    let deaf = runs.iter().filter(|run| run.freed.is_some() && run.exit.is_none());
    let deaf = deaf.map(|run| Violation::new(format!("{} never saw the end of its server", run.id), &[run]));
    judged.filter_map(|run| judge(run, &codes)).chain(deaf).collect()
}

fn judge(run: &Run, codes: &[i32]) -> Option<Violation> {
    let message = match (run.exit, run.code()) {
        (None, _) => "the run never ended".to_owned(),
        (_, None) => "a signal ended rlock, but the nemesis sent none".to_owned(),
        (_, Some(code)) if NOT_STARTED.contains(&code) && run.start.is_some() => {
            format!("exit {code} means that the command did not start, but it did")
        }
        (_, Some(0)) if !run.ended => "exit 0, but the command did not come to its end".to_owned(),
        (_, Some(0 | 75)) => return None,
        (_, Some(65)) if run.deadlock.is_some() => return None,
        // A late reply or a busy machine left too little of the lease.
        (_, Some(126)) if run.late && run.start.is_none() => return None,
        (_, Some(code)) if codes.contains(&code) => return None,
        (_, Some(code)) => format!("exit {code} without an explanation"),
    };
    Some(Violation::new(format!("{}: {message}", run.id), &[run]))
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, runs};
    use super::*;

    fn found(lines: &str) -> usize {
        check(&runs(&[lines]), &[76], Duration::ZERO).len()
    }

    #[test]
    fn explained_exits_are_accepted() {
        let ran = run("1", "k:write", 0, 1, 10..20);
        assert_eq!(found(&ran), 0);
        assert_eq!(found(&ran.replace("exit 0", "exit 76")), 0);
        assert_eq!(found("0 1 asked k:write 5\n9 1 exit 75"), 0);
        assert_eq!(found("0 1 asked k:write -\n5 1 faulted kill\n9 1 exit signal"), 0);
        for fate in ["1 1 faulted kill", "9 1 exit 76"] {
            assert_eq!(found(&format!("0 1 asked k:write -\n{fate}\n1 1.1 asked k:write -\n8 1.1 exit 143")), 0);
        }
    }

    #[test]
    fn client_of_a_killed_server_must_end() {
        let freed = "0 1 asked k:write -\n5 1 freed";
        assert_eq!(found(freed), 1);
        assert_eq!(found(&format!("{freed}\n7 1 exit signal")), 0);
    }

    #[test]
    fn exit_126_is_accepted_only_if_rlock_was_late() {
        let ran = "0 1 asked k:write -\n8 1 late\n9 1 exit 126";
        assert_eq!(found(ran), 0);
        assert_eq!(found(&ran.replace("8 1 late\n", "")), 1);
        assert_eq!(found(&ran.replace("late", "start 1 1 1")), 1);
    }

    #[test]
    fn lost_lease_requires_an_allowed_code_or_a_slow_machine() {
        let lost = runs(&[&run("1", "k:write", 0, 1, 10..20).replace("exit 0", "exit 76")]);
        assert_eq!(check(&lost, &[], Duration::ZERO).len(), 1);
        assert_eq!(check(&lost, &[], MAX_SCHEDULING_DELAY), []);
    }

    #[test]
    fn unexplained_exits_are_violations() {
        let ran = run("1", "k:write", 0, 1, 10..20);
        for code in ["69", "75", "125", "137", "signal", "1"] {
            assert_eq!(found(&ran.replace("exit 0", &format!("exit {code}"))), 1, "{code}");
        }
        assert_eq!(found("0 1 asked k:write -\n9 1 exit 0"), 1, "no command ran");
        assert_eq!(found("0 1 asked k:write -\n9 1 exit 69"), 1, "the store was reachable");
        assert_eq!(found("0 1 asked k:write -"), 1, "the run never ended");
    }
}
