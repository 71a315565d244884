//! The history of the store has each command that ran exactly once on each of its resources.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::log::Run;

/// An entry of the history of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) resource: String,
    /// The id of the run.
    pub(crate) owner: String,
    pub(crate) outcome: String,
    /// The exit code, for the outcome `exit`.
    pub(crate) exit: Option<i32>,
}

/// The outcomes of requests without a grant. Such an entry tells of all requests of a job since the
/// last run.
const WAITS: [&str; 3] = ["busy", "left", "superseded"];

/// The largest number of entries of a ring.
pub(crate) const RING: usize = 1000;

/// A command may be missing only where its ring was full, so that its entry has gone, or where the
/// store may forget.
pub(super) fn check(runs: &[Run], entries: &[Entry], forgets: bool) -> Vec<Violation> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found: BTreeMap<(&str, &str), Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        *sizes.entry(&entry.resource).or_default() += 1;
        if !WAITS.contains(&entry.outcome.as_str()) {
            found.entry((&entry.owner, &entry.resource)).or_default().push(entry);
        }
    }
    let is_full = |resource: &str| sizes.get(resource).is_some_and(|size| *size >= RING);
    let mut violations = Vec::new();
    // The commands of clients of a server have no entries of their own.
    for run in runs.iter().filter(|run| !run.is_client()) {
        let resources: BTreeSet<_> = run.claims.iter().map(|claim| claim.resource.as_str()).collect();
        for resource in resources {
            let mut entries = found.remove(&(run.id.as_str(), resource)).unwrap_or_default();
            // A grant whose reply was lost ends with its lease, and the run asks again.
            while entries.len() > 1 && run.start.is_some() {
                let Some(at) = entries.iter().position(|entry| entry.outcome == "expired") else { break };
                entries.remove(at);
            }
            let message = match entries.as_slice() {
                [] if run.start.is_none() || forgets || is_full(resource) => continue,
                [] => "is missing".to_owned(),
                [entry] => match judge(run, entry) {
                    None => continue,
                    Some(message) => message,
                },
                _ => format!("has {} entries", entries.len()),
            };
            violations.push(Violation::new(format!("history of '{resource}': {} {message}", run.id), &[run]));
        }
    }
    for (owner, resource) in found.into_keys().filter(|(owner, _)| !owner.is_empty()) {
        let message = format!("history of '{resource}': nobody has made the request of {owner}");
        violations.push(Violation { message, runs: vec![owner.to_owned()] });
    }
    violations
}

/// What is wrong with the only entry of a run.
fn judge(run: &Run, entry: &Entry) -> Option<String> {
    let Entry { outcome, exit, .. } = entry;
    match (outcome.as_str(), exit) {
        // The store ended the hold: the holder was killed or came too late.
        ("expired" | "lost", None) => None,
        // An operator broke the lock. Nobody logs the exit of a nested run whose enclosing command
        // was ended.
        ("broken", None) if run.faulted || run.code().is_none_or(|code| code == super::LOST) => None,
        // A lost lock or a fault may end the command before it has logged its start.
        ("signal", _) if run.start.is_none() => None,
        // timeout(1) exits with 128 + TERM if TERM comes before it has forked. The lock, or that of
        // an enclosing run, was lost; nobody logs the exit in the latter case.
        ("exit", Some(143)) if run.start.is_none() && run.code().is_none_or(|code| code == super::LOST) => None,
        ("exit", _) if run.start.is_none() && !run.faulted => {
            Some("ended with exit, and its command never started".to_owned())
        }
        // Nobody logs the exit of a nested run whose enclosing command was killed.
        // The end of an enclosing run has ended the nested one.
        ("signal", _) if run.parent().is_some() && run.code().is_some_and(|code| code > 128) => None,
        ("exit" | "signal", _) if run.faulted || run.exit.is_none() => None,
        ("exit", Some(code)) if run.code() == Some(*code) || run.code() == Some(super::LOST) => None,
        _ => Some(format!("ended with {outcome} {exit:?}, but rlock with {:?}", run.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, runs};
    use super::*;

    const SESSION: &str = "0123456789abcdef0123456789abcdef";

    /// The messages about run 1, whose history has these outcomes.
    fn found(lines: &str, outcomes: &[(&str, Option<i32>)], forgets: bool) -> Vec<String> {
        let entry = |(outcome, exit): &(&str, Option<i32>)| Entry {
            resource: "k".to_owned(),
            owner: "1".to_owned(),
            outcome: (*outcome).to_owned(),
            exit: *exit,
        };
        let entries: Vec<_> = outcomes.iter().map(entry).collect();
        check(&runs(&[lines]), &entries, forgets).into_iter().map(|violation| violation.message).collect()
    }

    fn ran() -> String {
        run("1", "k:write", 0, 1, 10..20).replace("start s1", &format!("start {SESSION}"))
    }

    #[test]
    fn command_is_in_the_history_once() {
        let exit = ("exit", Some(0));
        assert_eq!(found(&ran(), &[exit], false), [""; 0]);
        assert_eq!(found(&ran(), &[], false), ["history of 'k': 1 is missing"]);
        assert_eq!(found(&ran(), &[exit, exit], true), ["history of 'k': 1 has 2 entries"]);
        let expired = ("expired", None);
        assert_eq!(found(&ran(), &[expired, exit], true), [""; 0]);
        assert_eq!(found(&ran(), &[expired, expired], false), [""; 0], "the second grant ended with its lease, too");
        assert_eq!(found(&ran(), &[], true), [""; 0]);
        assert_eq!(found("0 1 asked k:write -\n5 1 exit 75", &[], false), [""; 0], "no command ran");
        assert_eq!(found(&run("1", "k:write", 0, 1, 10..20), &[], false), [""; 0], "a client has no entry");
        let others: Vec<_> = vec![("exit", Some(0)); RING];
        let other = found("0 2 asked k:write -\n1 2 exit 75", &others, false);
        assert_eq!(other, ["history of 'k': nobody has made the request of 1"]);
    }

    #[test]
    fn outcome_is_that_of_the_command() {
        assert_eq!(found(&ran(), &[("exit", Some(3))], false).len(), 1);
        assert_eq!(found(&ran(), &[("signal", None)], false).len(), 1);
        assert_eq!(found(&ran(), &[("expired", None)], false), [""; 0]);
        let killed = ran() + "\n15 1 faulted kill";
        assert_eq!(found(&killed, &[("signal", None)], false), [""; 0]);
        let busy = "0 1 asked k:write -\n5 1 exit 75";
        assert_eq!(found(busy, &[("exit", Some(0))], false).len(), 1);
        assert_eq!(found(busy, &[("busy", None)], false), [""; 0], "no command ran");
        let ended_early = "0 1 asked k:write -\n5 1 exit 76";
        assert_eq!(found(ended_early, &[("exit", Some(143))], false), [""; 0]);
        assert_eq!(found(busy, &[("exit", Some(143))], false).len(), 1, "nothing was lost");
    }
}
