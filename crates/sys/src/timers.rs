//! Keeps the instants at which each of many things is due.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::clock::Boottime;

/// At most one timer for each key.
#[derive(Debug)]
pub struct Timers<K> {
    order: BTreeSet<(Boottime, K)>,
    instants: HashMap<K, Boottime>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), instants: HashMap::new() }
    }
}

impl<K: Copy + Hash + Ord> Timers<K> {
    /// Moves the timer of a key to an instant, or removes it.
    pub fn set(&mut self, key: K, at: Option<Boottime>) {
        let before = match at {
            Some(at) => self.instants.insert(key, at),
            None => self.instants.remove(&key),
        };
        if before != at {
            before.map(|before| self.order.remove(&(before, key)));
            at.map(|at| self.order.insert((at, key)));
        }
    }

    /// Lets a key be due at an instant, unless it is due earlier.
    pub fn set_by(&mut self, key: K, at: Boottime) {
        let before = self.instants.get(&key).copied();
        self.set(key, before.into_iter().chain([at]).min());
    }

    /// The first instant.
    pub fn first(&self) -> Option<Boottime> {
        self.order.first().map(|(at, _)| *at)
    }

    /// The first key whose instant has come. Its timer is removed.
    pub fn take_due(&mut self, now: Boottime) -> Option<K> {
        let (_, key) = self.order.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(key, None);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timer_that_moves_is_due_once_at_its_last_instant() {
        let at = |seconds| Boottime::since_boot(Duration::from_secs(seconds));
        let mut timers = Timers::default();
        for (key, instant) in [('a', Some(at(5))), ('b', Some(at(3))), ('c', Some(at(1))), ('a', Some(at(2)))] {
            timers.set(key, instant);
        }
        timers.set('c', None);
        timers.set_by('a', at(7));
        timers.set_by('b', at(8));
        assert_eq!((timers.first(), timers.take_due(at(1))), (Some(at(2)), None));
        assert_eq!([(); 3].map(|()| timers.take_due(at(9))), [Some('a'), Some('b'), None]);
        assert_eq!(timers.first(), None);
    }
}
