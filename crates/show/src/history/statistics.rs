//! Sums up the entries of a history: how long requests waited and held, and how they ended.

use std::time::Duration;

use rlock_model::past::{Entry, Event, Remembered};

/// What the entries of one resource have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Statistics {
    /// The number of holds that ended, without nested ones, which other holds cover.
    pub(super) ended: usize,
    /// How many of them failed.
    pub(super) failures: usize,
    /// The share of the requests that were told to be busy. It counts all requests that the
    /// resource remembers, because several busy requests share an entry. `None` if there were none.
    pub(super) busy_share: Option<f64>,
    /// The greatest number of requests that waited at the same time.
    pub(super) longest_queue: usize,
    /// The times from the request to the grant. `None` if no hold ended.
    pub(super) waits: Option<Spread>,
    /// The times from the grant to the end. `None` if no hold ended whose end is known.
    pub(super) holds: Option<Spread>,
}

/// The median, the 95th percentile and the maximum, by the nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    pub(super) p50: Duration,
    pub(super) p95: Duration,
    pub(super) max: Duration,
}

impl Statistics {
    pub(super) fn of(found: &Remembered) -> Self {
        let is_end = |entry: &&Entry| matches!(entry.event, Event::Ended(_)) && !entry.origin.is_nested;
        let ends = || found.entries.iter().filter(is_end);
        let held = || ends().filter_map(|entry| entry.granted.map(|granted| (entry.asked, granted, entry.ended)));
        let totals = found.past.totals;
        let requests = totals.busy + totals.ended;
        // Each wait adds one to the queue and removes it again. Where one wait ends as another
        // begins, the end comes first.
        let waits = held().filter(|(asked, granted, _)| asked < granted);
        let mut changes: Vec<_> = waits.flat_map(|(asked, granted, _)| [(asked, 1), (granted, -1)]).collect();
        changes.sort_unstable();
        let lengths = changes.iter().scan(0_isize, |length, (_, change)| {
            *length += change;
            Some(*length)
        });
        Self {
            ended: ends().count(),
            failures: ends().filter(|entry| entry.event.has_failed()).count(),
            // The counts are far below 2^52.
            busy_share: (requests > 0).then(|| totals.busy as f64 / requests as f64),
            longest_queue: lengths.max().unwrap_or_default().unsigned_abs(),
            waits: Spread::of(held().map(|(asked, granted, _)| granted - asked).collect()),
            holds: Spread::of(held().filter_map(|(_, granted, ended)| Some(ended.known()? - granted)).collect()),
        }
    }
}

impl Spread {
    fn of(mut lengths: Vec<Duration>) -> Option<Self> {
        lengths.sort_unstable();
        let max = *lengths.last()?;
        let percentile = |percent: usize| lengths[(lengths.len() * percent).div_ceil(100) - 1];
        Some(Self { p50: percentile(50), p95: percentile(95), max })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, entry_of};
    use super::*;
    use rlock_model::past::{Ending, Origin, Past, Totals};
    use rlock_model::resource::Resource;

    fn statistics(totals: Totals, entries: Vec<Entry>) -> Statistics {
        let past = Past { totals, ..Past::default() };
        Statistics::of(&Remembered { name: Resource::new("k").unwrap(), past, entries })
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let spread = |lengths: &[u64]| {
            let found = Spread::of(lengths.iter().map(|length| Duration::from_secs(*length)).collect());
            found.map(|Spread { p50, p95, max }| [p50, p95, max].map(|length| length.as_secs()))
        };
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[7]), Some([7, 7, 7]));
        assert_eq!(spread(&[4, 1, 3, 2]), Some([2, 4, 4]));
        assert_eq!(spread(&(1..=100).rev().collect::<Vec<_>>()), Some([50, 95, 100]));
    }

    #[test]
    fn skips_are_neither_ends_nor_failures() {
        let skipped =
            Entry { event: Event::Skipped(3), granted: None, token: None, ..entry_of(Ending::Lost, [1, 1, 9]) };
        let found = statistics(Totals { busy: 3, ..Totals::default() }, vec![skipped]);
        assert_eq!((found.ended, found.failures, found.longest_queue), (0, 0, 0));
        assert_eq!((found.waits, found.holds, found.busy_share), (None, None, Some(1.0)));
        assert_eq!(statistics(Totals::default(), Vec::new()).busy_share, None);
    }

    /// A nested hold is covered by another one.
    #[test]
    fn nested_holds_do_not_count() {
        let origin = Origin { is_nested: true, ..Origin::default() };
        let nested = Entry { origin, ..entry_of(Ending::Exit(1), [1, 2, 3]) };
        let found = statistics(Totals::default(), vec![nested, entry_of(Ending::Exit(0), [1, 1, 9])]);
        assert_eq!((found.ended, found.failures, found.longest_queue), (1, 0, 0));
        assert_eq!(found.holds.map(|spread| spread.p50), Some(Duration::from_secs(8)));
    }

    #[test]
    fn longest_queue_counts_requests_that_waited_at_the_same_time() {
        let waits = |times: &[[u64; 2]]| {
            let entry = |[asked, granted]: &[u64; 2]| entry_of(Ending::Exit(2), [*asked, *granted, 99]);
            statistics(Totals { ended: 3, busy: 1, ..Totals::default() }, times.iter().map(entry).collect())
        };
        assert_eq!(waits(&[[1, 5], [5, 9], [7, 7]]).longest_queue, 1);
        assert_eq!(waits(&[[1, 5], [2, 9], [4, 6], [6, 8]]).longest_queue, 3);
        let found = waits(&[[1, 5]]);
        assert_eq!((found.ended, found.failures, found.busy_share), (1, 1, Some(0.25)));
        assert_eq!(found.holds.unwrap().max, at(99) - at(5));
    }
}
