//! Estimates when it is the turn of a request, by the past holds of its resource.

use std::time::Duration;

use super::messages::whole_seconds;
use rlock_model::past::{Entry, Event};
use rlock_store::Obstruction;
use rlock_sys::clock::StoreTime;

/// Maximum number of past holds that count, and the number below which nothing is said.
const RUNS: (usize, usize) = (8, 3);
/// The number of entries in which to look for them.
pub const ENTRIES: u32 = 32;

/// The lengths of the last holds of a resource at an instant, in ascending order.
#[derive(Clone, Debug)]
pub struct Runs {
    lengths: Vec<Duration>,
    now: StoreTime,
}

impl Runs {
    /// The lengths as the entries of the resource tell them, the newest last.
    pub fn of(entries: &[Entry], now: StoreTime) -> Self {
        let runs = entries.iter().rev().filter(|it| matches!(it.event, Event::Ended(_)) && !it.origin.is_nested);
        let length = |entry: &Entry| Some(entry.ended.known()? - entry.granted?);
        let mut lengths: Vec<_> = runs.filter_map(length).take(RUNS.0).collect();
        lengths.sort_unstable();
        Self { lengths, now }
    }

    /// What is left of the median for the holder, and a median for each of the waiters ahead:
    /// `about 3m by its last 8 runs`. `None` if too few runs are known, or if the holder takes
    /// longer than they did and nobody else is ahead.
    pub fn turn(&self, obstruction: &Obstruction, ahead: u64) -> Option<String> {
        let median = *self.lengths.get(self.lengths.len() / 2).filter(|_| self.lengths.len() >= RUNS.1)?;
        let left = obstruction.listing.holders.iter().map(|holder| median.saturating_sub(self.now - holder.since));
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let time = left.max().unwrap_or_default().saturating_add(median.saturating_mul(ahead));
        let seconds = time.as_secs();
        // Nobody can tell the seconds of what takes minutes.
        let rounded = match seconds {
            0..60 => Duration::from_secs(seconds.max(1)),
            _ => Duration::from_secs((seconds + 30) / 60 * 60),
        };
        let count = self.lengths.len();
        (!time.is_zero()).then(|| format!("about {} by its last {count} runs", whole_seconds(rounded)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{NOW, holder, resource, waiter};
    use super::*;
    use rlock_model::past::{Ended, Ending, Origin};
    use rlock_model::request::Process;

    /// Holds that lasted for so many seconds.
    fn runs(seconds: &[u64]) -> Runs {
        let entry = |seconds: &u64| Entry {
            event: Event::Ended(Ending::Exit(0)),
            process: Process::default(),
            claims: Vec::new(),
            asked: StoreTime::default(),
            granted: Some(StoreTime::default()),
            ended: Ended::At(StoreTime::default() + Duration::from_secs(*seconds)),
            token: None,
            origin: Origin::default(),
            slots: Vec::new(),
            later: Vec::new(),
        };
        Runs::of(&seconds.iter().map(entry).collect::<Vec<_>>(), NOW)
    }

    /// What is told behind a holder that has held for `held` seconds and `ahead` waiters.
    fn told(seconds: &[u64], held: u64, ahead: u64) -> Option<String> {
        let mut holder = holder(1);
        holder.since = StoreTime::from_micros(NOW.as_micros() - 1_000_000 * held);
        let listing = resource("k", vec![holder], vec![waiter(2, 1)]);
        runs(seconds).turn(&Obstruction { listing, waiting: 1 }, ahead)
    }

    #[test]
    fn turn_is_the_rest_of_the_median_and_a_median_for_each_ahead() {
        let minutes = [100, 170, 180, 190, 400];
        assert_eq!(told(&minutes, 0, 0).as_deref(), Some("about 3m by its last 5 runs"));
        assert_eq!(told(&minutes, 60, 2).as_deref(), Some("about 8m by its last 5 runs"));
        assert_eq!(told(&minutes, 1000, 1).as_deref(), Some("about 3m by its last 5 runs"));
        assert_eq!(told(&minutes, 170, 0).as_deref(), Some("about 10s by its last 5 runs"));
        assert_eq!(told(&minutes, 180, 0), None, "it takes longer than usual");
        assert_eq!(told(&[3600; 20], 0, 1).as_deref(), Some("about 2h by its last 8 runs"));
        assert_eq!(told(&[9, 9], 0, 0), None, "two runs are too few");
    }
}
