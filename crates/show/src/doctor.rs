//! The checks of `rlock doctor` that are the same for every store: what is held and waited for,
//! what a lock costs, and which error kept a check from its answer.

use std::time::Duration;

use rustix::io::Errno;

use rlock_model::op::ResourceListing;
use rlock_model::past::{JOBS_MAX, Remembered};
use rlock_store::check::Check;
use rlock_store::{Inspection, Unusable};
use rlock_words::Explained;

/// The errors of the system by which something is used up, and what to do.
const USED_UP: [(Errno, &str); 5] = [
    (Errno::NOSPC, "delete files on the file system, where df -h and df -i show what is used up"),
    (Errno::DQUOT, "delete files, or raise the quota"),
    (Errno::MFILE, "raise the limit: ulimit -n 1024"),
    (Errno::NFILE, "end processes, or raise the limit: sysctl fs.file-max"),
    (Errno::NOMEM, "end processes, or raise the limit: ulimit -v unlimited"),
];

/// The check that has met an error.
pub fn failed(name: &'static str, words: &Explained) -> Check {
    let used_up = USED_UP.iter().find(|(errno, _)| words.errno == Some(*errno)).map(|(_, remedy)| *remedy);
    let remedy = words.remedy.as_deref().or(used_up).unwrap_or("see STORES in rlock(1)");
    Check::fail(name, words.what.as_str(), remedy)
}

/// From this number of waiters on, a name may need more slots, or its jobs a `--max-waiting`.
const WAITERS: usize = 100;

/// The check of the names in use. `pasts` is what they remember, and `unusable` what the store
/// could not read.
pub fn names(inspection: &Inspection, pasts: &[Remembered], unusable: &[Unusable]) -> Check {
    let resources = &inspection.resources;
    let is_held = |listing: &&ResourceListing| listing.holders.iter().any(|holder| !holder.is_over(inspection.now));
    let held = resources.iter().filter(is_held).count();
    let waited_for = resources.iter().filter(|listing| !listing.waiters.is_empty()).count();
    let found = format!("held: {held}; waited for: {waited_for}");
    let missing = unusable.iter().filter(|found| found.resource.is_none()).map(|found| &found.words);
    if let Some(words) = missing.clone().next() {
        let remedy = words.remedy.as_deref().unwrap_or("see 'rlock inspect'");
        let parts: Vec<_> = missing.map(|words| words.what.as_str()).collect();
        return Check::fail("names", format!("{}; elsewhere {found}", parts.join("; ")), remedy);
    }
    if !unusable.is_empty() {
        let remedy = "see 'rlock inspect', which names them";
        return Check::warn("names", format!("{found}; not rlock's: {}", unusable.len()), remedy);
    }
    let jobs = pasts.iter().max_by_key(|past| past.past.jobs.len());
    if let Some(past) = jobs.filter(|past| past.past.jobs.len() >= JOBS_MAX / 10 * 9) {
        let text = format!("{found}; '{}' remembers {} of at most {JOBS_MAX} jobs", past.name, past.past.jobs.len());
        return Check::warn("names", text, "give jobs with --once-per more names, or the same --job");
    }
    let longest = resources.iter().max_by_key(|listing| listing.waiters.len());
    if let Some(listing) = longest.filter(|listing| listing.waiters.len() >= WAITERS) {
        let text = format!("{found}; {} wait for '{}'", listing.waiters.len(), listing.name);
        return Check::warn("names", text, "see 'rlock inspect'; --max-waiting limits a queue");
    }
    Check::ok("names", found)
}

/// The check for a user who may not list the names. `page` says what the store needs.
pub fn no_names(error: &Explained, page: &str) -> Check {
    let remedy = error.remedy.clone().unwrap_or_else(|| format!("see {page}"));
    Check::unknown("names", format!("they cannot be listed: {}", error.what), remedy)
}

/// The longest test of a lock that is no reason to worry.
const SLOW: Duration = Duration::from_secs(1);

/// The check of how long a lock and its release take. The test of locks took `at_most` so long.
pub fn cost(at_most: Duration) -> Check {
    let found = format!("at most {:.1}ms for a lock and its release", at_most.as_secs_f64() * 1000.0);
    if at_most > SLOW {
        return Check::warn("cost", found, "see the load of this machine, of the store and of the network");
    }
    Check::ok("cost", found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::{NOW, holder, inspection, resource, waiter};
    use rlock_model::past::{JobPast, Past};
    use rlock_store::check::Verdict;

    fn remembered(jobs: usize) -> Remembered {
        let jobs = (0..jobs).map(|number| (number.to_string(), JobPast::default())).collect();
        let name = resource("k", vec![], vec![]).name;
        Remembered { name, past: Past { jobs, ..Past::default() }, entries: Vec::new() }
    }

    /// A resource that the store can't read, or a part of a Cluster.
    fn unusable(name: Option<&str>, words: Explained) -> Unusable {
        Unusable { resource: name.map(|name| resource(name, vec![], vec![]).name), words }
    }

    #[test]
    fn part_of_a_cluster_that_is_missing_is_no_foreign_name() {
        let missing = |slots: &str| {
            unusable(None, Explained::new(format!("what is in the slots {slots} is missing: it is down"), "start it"))
        };
        let found = [unusable(Some("k"), "it is foreign".into()), missing("0-9"), missing("20-29")];
        let check = names(&inspection(&[resource("a", vec![holder(1)], vec![])]), &[], &found);
        let text = "what is in the slots 0-9 is missing: it is down; what is in the slots 20-29 is missing: it is down; \
                    elsewhere held: 1; waited for: 0";
        assert_eq!(check, Check::fail("names", text, "start it"));
    }

    #[test]
    fn names_in_use_are_counted() {
        let mut expired = holder(3);
        expired.expiry = Some(NOW);
        let resources = vec![
            resource("a", vec![holder(1)], vec![waiter(2, 1)]),
            resource("b", vec![holder(2)], vec![]),
            resource("c", vec![expired], vec![]),
        ];
        assert_eq!(names(&inspection(&resources), &[], &[]), Check::ok("names", "held: 2; waited for: 1"));
        assert_eq!(names(&inspection(&[]), &[], &[]), Check::ok("names", "held: 0; waited for: 0"));
    }

    #[test]
    fn limit_that_is_near_is_told() {
        let crowd = |count| inspection(&[resource("k", vec![holder(1)], (0..count).map(|_| waiter(2, 1)).collect())]);
        for (check, verdict, text) in [
            (names(&crowd(99), &[remembered(899)], &[]), Verdict::Ok, ""),
            (names(&crowd(100), &[], &[]), Verdict::Warn, "; 100 wait for 'k'"),
            (names(&crowd(1), &[remembered(900)], &[]), Verdict::Warn, "; 'k' remembers 900 of at most 1000 jobs"),
            (
                names(&crowd(1), &[], &[unusable(Some("a"), "x".into()), unusable(Some("b"), "x".into())]),
                Verdict::Warn,
                "; not rlock's: 2",
            ),
            (cost(Duration::from_micros(1_250)), Verdict::Ok, "at most 1.2ms"),
            (cost(Duration::from_millis(1_001)), Verdict::Warn, "at most 1001.0ms"),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.found.contains(text), "{check:?}");
        }
    }

    #[test]
    fn names_that_cannot_be_listed_have_the_remedy_of_the_error_or_name_the_page_of_the_store() {
        for (error, remedy) in [("no right".into(), "see PAGE(1)"), (Explained::new("no right", "give it"), "give it")]
        {
            let check = no_names(&error, "PAGE(1)");
            assert_eq!(check, Check::unknown("names", "they cannot be listed: no right", remedy));
        }
    }

    #[test]
    fn error_of_the_system_gets_a_remedy_where_something_is_used_up() {
        let store = "the store in /d can't be used";
        for (errno, remedy) in USED_UP {
            let words = Explained::from(&std::io::Error::from(errno)).behind(store);
            assert_eq!(failed("locks", &words), Check::fail("locks", words.to_string(), remedy));
        }
        let own = failed("store", &Explained::new("no: no", "do this: now"));
        assert_eq!(own, Check::fail("store", "no: no", "do this: now"));
        let other = failed("store", &"it is broken: why".into());
        assert_eq!(other, Check::fail("store", "it is broken: why", "see STORES in rlock(1)"));
    }
}
