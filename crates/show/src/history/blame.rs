//! Who made whom wait: the waits of a history against the holds that were in their way.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use anstyle::Style;
use serde_json::{Value, json};

use super::spans::{self, Party};
use super::text::{column, length};
use crate::Look;
use crate::columns::{Cell, Column, lines};
use crate::messages;
use rlock_model::mode::Mode;
use rlock_model::past::{Entry, Remembered};
use rlock_sys::clock::StoreTime;

/// A holder that made a waiter wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'h> {
    /// The holder, by its job or its command.
    pub who: Party<'h>,
    /// The waiter, by its job or its command.
    pub whom: Party<'h>,
    /// For how long.
    pub waited: Duration,
    /// How many requests of the waiter waited for the holder.
    pub times: u32,
    /// The longest of these waits.
    pub longest: Duration,
}

/// Who made whom wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blame<'h> {
    /// The pairs, that of the longest time first.
    pub pairs: Vec<Pair<'h>>,
    /// The waits of which nobody knows when each of them was: several share an entry, and no hold
    /// covers all of them. Their number and the sum of their lengths.
    pub unknown: (u32, Duration),
    /// The instant since which the histories know each hold that ended, if they know any.
    pub since: Option<StoreTime>,
}

/// Compares the waits with the holds on the same resource that conflict with them, within a window.
/// A request below a hold of the resource counts neither as one nor as the other, because that hold
/// covers it. Where several holders were in the way, the time counts for each of them.
pub fn blame<'h>(found: &'h [Remembered], window: &Range<StoreTime>) -> Blame<'h> {
    let mut sums: BTreeMap<(Party<'h>, Party<'h>), (Duration, u32, Duration)> = BTreeMap::new();
    let mut blame = Blame::default();
    // A request with several resources has an entry at each of them.
    let mut seen = HashSet::new();
    let mut oldest = None;
    for known in found {
        let own = || known.entries.iter().filter(|entry| !entry.origin.is_nested);
        let mut holds: Vec<_> = own().filter_map(|entry| Some((spans::hold(entry)?, entry))).collect();
        // A ring that has lost entries knows the holds that ended since the first that it has.
        let is_complete = known.past.ring.start == 0;
        let first_asked = known.entries.iter().map(|entry| entry.asked).min();
        let first_ended = holds.iter().map(|(span, _)| span.end).min().filter(|_| !is_complete);
        oldest = first_asked.into_iter().chain(oldest).min();
        blame.since = blame.since.max(first_ended);
        holds.sort_by_key(|(span, _)| span.start);
        // The latest end of each hold and those before it, so that the search back ends early.
        let latest: Vec<_> = holds
            .iter()
            .scan(StoreTime::default(), |latest, (span, _)| {
                *latest = span.end.max(*latest);
                Some(*latest)
            })
            .collect();
        for entry in own() {
            let Some(wait) = spans::wait(entry) else { continue };
            let part = spans::within(&wait, window);
            let (count, longest) = spans::waits(entry);
            let mut is_known = count == 1;
            let begun = holds.partition_point(|(span, _)| span.start < part.end);
            for ((span, holder), latest) in holds[..begun].iter().zip(&latest[..begun]).rev() {
                if *latest <= part.start {
                    break;
                }
                let both = spans::within(span, &part);
                if both.is_empty() || !conflict(holder, entry) {
                    continue;
                }
                let covers = both == wait;
                is_known |= covers;
                let id = |entry: &'h Entry, at: StoreTime| (&entry.process.host, entry.process.pid, at.as_micros());
                if count > 1 && !covers || !seen.insert((id(holder, span.start), id(entry, wait.start))) {
                    continue;
                }
                let (waited, longest) = if count > 1 {
                    (entry.waited().unwrap_or_default(), longest)
                } else {
                    (both.end - both.start, both.end - both.start)
                };
                let sum = sums.entry((Party::of(holder), Party::of(entry))).or_default();
                *sum = (sum.0 + waited, sum.1.saturating_add(count), sum.2.max(longest));
            }
            if !is_known && !part.is_empty() {
                let (times, sum) = blame.unknown;
                blame.unknown = (times.saturating_add(count), sum + entry.waited().unwrap_or_default());
            }
        }
    }
    blame.since = blame.since.or(oldest).map(|since| since.max(window.start));
    let pair = |((who, whom), (waited, times, longest))| Pair { who, whom, waited, times, longest };
    blame.pairs = sums.into_iter().map(pair).collect();
    blame.pairs.sort_by_key(|pair| std::cmp::Reverse(pair.waited));
    blame
}

/// Whether the hold of one entry was in the way of the requests of another. A request for slots
/// waits only while all of them are taken.
fn conflict(holder: &Entry, waiter: &Entry) -> bool {
    holder.claims.iter().any(|held| {
        let clashes = |asked: Mode| asked.clashes_with(held.mode) || (asked, held.mode) == (Mode::Slot, Mode::Slot);
        waiter.claims.iter().any(|asked| clashes(asked.mode) && asked.span.overlaps(&held.span))
    })
}

const COLUMNS: [Column; 5] = [
    column("SECONDS", 0),
    column("TIMES", 1),
    column("LONGEST", 2),
    Column { narrowest: Some(10), leaves: None, ..column("WHO", 0) },
    Column { narrowest: Some(14), leaves: None, ..column("MADE WHOM WAIT", 0) },
];

impl Blame<'_> {
    /// The table of the pairs, and what is known and not known.
    pub fn lines(&self, look: &Look) -> Vec<String> {
        let row = |pair: &Pair<'_>| {
            let seconds = format!("{:.1}", pair.waited.as_secs_f64());
            let texts = [seconds, pair.times.to_string(), length(pair.longest), pair.who.text(), pair.whom.text()];
            texts.iter().map(|text| Cell::new(text, Style::new())).collect()
        };
        let rows: Vec<_> = self.pairs.iter().map(row).collect();
        let mut all = match rows.as_slice() {
            [] => vec!["no waits".to_owned()],
            rows => lines(&COLUMNS, look.palette.heading, rows, look.width),
        };
        let dim = look.palette.dim;
        let mut note = |text: String| all.push(format!("{dim}{text}{dim:#}"));
        if let (times @ 1.., sum) = self.unknown {
            let what = if times == 1 { "wait" } else { "waits" };
            let was = if times == 1 { "was" } else { "were" };
            note(format!("{times} {what} ({}) {was} for holds that still run or are forgotten", length(sum)));
        }
        note(match self.since {
            Some(since) => format!("complete since {}", messages::time(since)),
            None => "no hold is known that has ended".to_owned(),
        });
        all
    }

    /// The same for `rlock history --blame --json`.
    pub fn as_json(&self, store: &str) -> Value {
        let party = |party: &Party<'_>| {
            let command = party.job.is_none().then_some(party.command);
            json!({ "job": party.job, "command": command, "owner": party.owner })
        };
        let pair = |pair: &Pair<'_>| {
            json!({
                "seconds": pair.waited.as_secs_f64(),
                "times": pair.times,
                "longest_seconds": pair.longest.as_secs_f64(),
                "who": party(&pair.who),
                "whom": party(&pair.whom),
            })
        };
        let (times, sum) = self.unknown;
        json!({
            "store": store,
            "since": self.since.map(messages::time),
            "pairs": self.pairs.iter().map(pair).collect::<Vec<_>>(),
            "unknown": { "times": times, "seconds": sum.as_secs_f64() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, entry_of};
    use super::*;
    use crate::Palette;
    use rlock_model::op::Op;
    use rlock_model::past::{End, Ending, Event, Origin, Past, WaitEnd};
    use rlock_model::request::{Claim, Job, Process, Request, SessionId};
    use rlock_model::resource::Resource;
    use rlock_model::span::Span;
    use rlock_model::table::LockTable;

    /// The hold of a named job that was asked for, granted and ended in these seconds.
    fn run(job: &str, mode: Mode, times: [u64; 3]) -> Entry {
        let resource = Resource::new("k").unwrap();
        let mut entry = entry_of(Ending::Exit(0), times);
        entry.claims = vec![Claim { resource, mode, span: Span::Whole, slots: (mode == Mode::Slot).then_some(1) }];
        entry.origin = Origin { job: job.to_owned(), is_named: true, is_nested: false };
        entry.process.pid = u32::from(job.as_bytes()[0]);
        entry
    }

    /// Requests of a named job without a grant: from the first to the last, their number, and the
    /// sum and the longest of their waits.
    fn waits(job: &str, [from, to]: [u64; 2], count: u32, [sum, longest]: [u64; 2]) -> Entry {
        let [sum, longest] = [sum, longest].map(Duration::from_secs);
        let event = Event::Waited { how: WaitEnd::Busy, count, sum, longest };
        Entry { event, granted: None, ..run(job, Mode::Write, [from, from, to]) }
    }

    fn known(name: &str, entries: Vec<Entry>) -> Remembered {
        Remembered { name: Resource::new(name).unwrap(), past: Past::default(), entries }
    }

    const ALWAYS: Range<StoreTime> = StoreTime::from_micros(0)..StoreTime::NEVER;

    /// Each pair: who, whom, seconds, times and the longest.
    fn pairs<'h>(blame: &Blame<'h>) -> Vec<(&'h str, &'h str, u64, u32, u64)> {
        let job = |party: &Party<'h>| party.job.unwrap();
        let seconds = |length: Duration| length.as_secs();
        let pair = |it: &Pair<'h>| (job(&it.who), job(&it.whom), seconds(it.waited), it.times, seconds(it.longest));
        blame.pairs.iter().map(pair).collect()
    }

    /// A night of cron jobs in virtual time: the table enters what they did, and the sums are
    /// exact.
    #[test]
    fn night_in_a_table_has_the_exact_sums() {
        let mut table: LockTable = LockTable::default();
        let mut apply = |second, op| {
            let Ok(outcome) = table.apply(at(second), op);
            outcome.reply
        };
        let ask = |session: u8, name: &str| {
            let job = Job { name: name.to_owned(), is_named: true, ..Job::default() };
            let process = Process { pid: u32::from(session), ..Process::default() };
            let claims = run(name, Mode::Write, [0; 3]).claims;
            let session = SessionId([session; 16]);
            let request = Request { session, ancestors: vec![], claims, wait: true, terms: None, job, process };
            Op::Acquire { request, place: None }
        };
        let id = |session: u8| SessionId([session; 16]);
        let release = |session: u8| Op::Release { session: id(session), end: Some(End::KEPT) };
        apply(0, ask(1, "backup"));
        for (attempt, second) in [(10, 600), (11, 1200), (12, 2340)] {
            apply(second, ask(attempt, "sync"));
            apply(second + 60, Op::GiveUp(id(attempt)));
        }
        for (second, op) in [(1800, ask(2, "report")), (3000, ask(3, "index")), (3600, release(1))] {
            apply(second, op);
        }
        for (second, op) in [(3600, Op::Renew(id(2))), (3900, release(2)), (3900, Op::Renew(id(3))), (4000, release(3))]
        {
            apply(second, op);
        }
        let Ok(found) = table.past(at(4000), &Resource::new("k").unwrap(), 100);
        let expected = [
            ("backup", "report", 1800, 1, 1800),
            ("backup", "index", 600, 1, 600),
            ("report", "index", 300, 1, 300),
            ("backup", "sync", 180, 3, 60),
        ];
        assert_eq!(pairs(&blame(&[found.unwrap()], &ALWAYS)), expected);
    }

    /// Four cron jobs of a night on one lock: what each waited for each other is known.
    #[test]
    fn night_of_cron_jobs_has_the_exact_sums() {
        let night = vec![
            run("backup", Mode::Write, [0, 0, 3600]),
            waits("sync", [600, 2400], 3, [180, 60]),
            run("report", Mode::Write, [1800, 3600, 3900]),
            run("index", Mode::Write, [3000, 3900, 4000]),
            run("backup", Mode::Write, [86_400, 86_400, 86_410]),
            run("report", Mode::Write, [86_405, 86_410, 86_420]),
        ];
        let mut found = [known("k", night)];
        found[0].past.ring = 7..13;
        let blamed = blame(&found, &ALWAYS);
        let expected = [
            ("backup", "report", 1805, 2, 1800),
            ("backup", "index", 600, 1, 600),
            ("report", "index", 300, 1, 300),
            ("backup", "sync", 180, 3, 60),
        ];
        assert_eq!(pairs(&blamed), expected);
        assert_eq!((blamed.unknown, blamed.since), ((0, Duration::ZERO), Some(at(3600))));
        let second = blame(&found, &(at(50_000)..at(86_408)));
        assert_eq!(pairs(&second), [("backup", "report", 3, 1, 3)], "within the window only");
        assert_eq!(second.since, Some(at(50_000)));
        found[0].past.ring = 0..6;
        assert_eq!(blame(&found, &ALWAYS).since, Some(at(0)), "the ring has lost nothing");
    }

    #[test]
    fn only_holds_that_conflict_with_a_wait_are_blamed() {
        let mut part = run("part", Mode::Write, [0, 0, 9]);
        part.claims[0].span = Span::parse("[0,1]").unwrap();
        let mut other = run("other", Mode::Write, [1, 9, 10]);
        other.claims[0].span = Span::parse("[1,2]").unwrap();
        let mut far = run("far", Mode::Write, [1, 9, 10]);
        far.claims[0].span = Span::parse("[5,6]").unwrap();
        assert_eq!(pairs(&blame(&[known("k", vec![part, other, far])], &ALWAYS)), [("part", "other", 8, 1, 8)]);
        let readers = ["a", "b"].map(|job| run(job, Mode::Read, [0, 0, 4]));
        let waiter = [run("w", Mode::Write, [1, 4, 5]), run("r", Mode::Read, [2, 4, 5])];
        let found = [known("k", readers.into_iter().chain(waiter).collect())];
        assert_eq!(pairs(&blame(&found, &ALWAYS)), [("a", "w", 3, 1, 3), ("b", "w", 3, 1, 3)]);
        let slots = [run("a", Mode::Slot, [0, 0, 4]), run("b", Mode::Slot, [1, 4, 5])];
        assert_eq!(pairs(&blame(&[known("k", slots.to_vec())], &ALWAYS)), [("a", "b", 3, 1, 3)]);
    }

    /// "It guesses nothing": nobody knows which of two holds some of the waits were for.
    #[test]
    fn waits_that_share_an_entry_across_holds_are_told_apart_by_nobody() {
        let entries =
            || vec![run("a", Mode::Write, [0, 0, 5]), run("b", Mode::Write, [5, 5, 10]), waits("w", [3, 7], 2, [2, 1])];
        let found = [known("k", entries())];
        let blamed = blame(&found, &ALWAYS);
        assert_eq!((blamed.pairs.len(), blamed.unknown), (0, (2, Duration::from_secs(2))));
        let mut single = entries();
        single[2] = waits("w", [3, 7], 1, [4, 4]);
        assert_eq!(pairs(&blame(&[known("k", single)], &ALWAYS)), [("a", "w", 2, 1, 2), ("b", "w", 2, 1, 2)]);
    }

    /// A nested request is covered by the hold above it, and a request with two resources waits
    /// once.
    #[test]
    fn no_wait_counts_twice() {
        let mut nested = run("n", Mode::Write, [0, 1, 2]);
        nested.origin.is_nested = true;
        let entries = || vec![nested.clone(), run("a", Mode::Write, [0, 0, 5]), run("b", Mode::Write, [1, 5, 6])];
        let found = [known("k", entries()), known("l", entries())];
        assert_eq!(pairs(&blame(&found, &ALWAYS)), [("a", "b", 4, 1, 4)]);
    }

    #[test]
    fn table_says_what_is_known() {
        let look = Look { width: None, verbose: false, wide: false, palette: Palette::plain() };
        let mut plain = run("x", Mode::Write, [0, 0, 90]);
        plain.origin.is_named = false;
        (plain.process.command, plain.process.owner) = (vec!["make".into(), "it all".into()], Some("ada".into()));
        let found = [known("k", vec![plain, run("b", Mode::Write, [8, 90, 91])])];
        let expected = [
            "SECONDS  TIMES  LONGEST  WHO                  MADE WHOM WAIT",
            "82.0     1      1m 22s   make 'it all' (ada)  b",
            "complete since 1970-01-01T00:00:00.000Z",
        ];
        assert_eq!(blame(&found, &ALWAYS).lines(&look), expected);
        let nothing = ["no waits", "no hold is known that has ended"];
        assert_eq!(blame(&[], &ALWAYS).lines(&look), nothing);
    }

    /// "100,000 entries in a second": 100 resources with as many entries as a ring has.
    #[test]
    fn hundred_thousand_entries_take_less_than_a_second_or_so() {
        let entries = |_| (0..1000).map(|at| run("job", Mode::Write, [at * 10, at * 10 + 5, at * 10 + 14])).collect();
        let found: Vec<_> = (0..100).map(|name| known(&format!("k{name}"), entries(name))).collect();
        let begun = std::time::Instant::now();
        let blamed = blame(&found, &ALWAYS);
        assert_eq!(blamed.pairs.len(), 1);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
