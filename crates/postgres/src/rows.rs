//! The rows of a transaction as an ordered map in memory: what was fetched, and what is changed.
//!
//! A read of something that was not fetched fails and names it. The caller fetches that and runs
//! the operation again, on the rows as they were fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use rlock_store::records::codec::Damaged;
use rlock_store::records::{Item, Map};

/// The keys from one to below another, at most so many.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    pub(super) low: Vec<u8>,
    pub(super) high: Vec<u8>,
    pub(super) count: usize,
}

impl Range {
    /// One key.
    pub(super) fn key(key: &[u8]) -> Self {
        Self { low: key.to_vec(), high: after(key), count: 1 }
    }

    /// The first keys that begin with a prefix.
    pub(super) fn prefix(prefix: &[u8], count: usize) -> Self {
        Self { low: prefix.to_vec(), high: behind(prefix), count }
    }
}

/// The key right after this one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The first key behind all that begin with a prefix.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX).map_or(0, |at| at + 1);
    let mut key = prefix[..kept].to_vec();
    if let Some(last) = key.last_mut() {
        *last += 1;
    }
    key
}

/// A row as it was fetched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) backend: Named,
}

/// What a row tells of the backend of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Named {
    /// It names none.
    Nobody,
    /// The backend that it names is there, as far as the role may know.
    Alive,
    /// The backend that it names is gone.
    Gone,
}

/// Why an operation cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// These rows have to be fetched.
    Missing(Vec<Range>),
    /// A record can't be read.
    Damaged,
}

impl From<Damaged> for Stop {
    fn from(_: Damaged) -> Self {
        Self::Damaged
    }
}

/// The rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    fetched: BTreeMap<Vec<u8>, Vec<u8>>,
    current: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Which keys are fetched: from each to below another. None touches the next.
    known: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The fetched rows that name a backend, and whether that is gone.
    named: BTreeMap<Vec<u8>, bool>,
    /// The rows that were removed, whether or not they were fetched.
    removed: BTreeSet<Vec<u8>>,
}

impl Rows {
    /// Takes in the rows of a range, in order, each with whether its backend is gone.
    pub(super) fn fetch(&mut self, range: Range, rows: Vec<Row>) {
        let high = match rows.last() {
            Some(last) if rows.len() >= range.count => after(&last.key),
            _ => range.high,
        };
        for Row { key, value, backend } in rows {
            if backend != Named::Nobody {
                self.named.insert(key.clone(), backend == Named::Gone);
            }
            self.fetched.insert(key, value);
        }
        let (mut low, mut high) = (range.low, high);
        // An earlier range that reaches this one, and later ones that this one reaches, are one
        // with it.
        if let Some((first, last)) = self.known.range(..=low.clone()).next_back().filter(|(_, last)| **last >= low) {
            (low, high) = (first.clone(), high.max(last.clone()));
        }
        while let Some((next, last)) = self.known.range(low.clone()..=high.clone()).next() {
            let (next, last) = (next.clone(), last.clone());
            self.known.remove(&next);
            high = high.max(last);
        }
        self.known.insert(low, high);
    }

    /// Forgets all changes.
    pub(super) fn reset(&mut self) {
        self.current = self.fetched.clone();
        self.removed.clear();
    }

    /// Whether the backend of a row that was fetched is gone.
    pub(super) fn is_gone(&self, key: &[u8]) -> bool {
        self.named.get(key) == Some(&true)
    }

    /// The value with which a row was fetched that names no backend.
    pub(super) fn nameless(&self, key: &[u8]) -> Option<&[u8]> {
        self.fetched.get(key).filter(|_| !self.named.contains_key(key)).map(Vec::as_slice)
    }

    /// Those of these ranges that are not fetched.
    pub(super) fn missing(&self, ranges: impl IntoIterator<Item = Range>) -> Vec<Range> {
        ranges.into_iter().filter(|range| self.end_of_known(&range.low).is_none()).collect()
    }

    /// The rows that have changed, `None` for those that are removed.
    pub(super) fn changes(&self) -> Vec<(&[u8], Option<&[u8]>)> {
        let is_new = |(key, value): &(&Vec<u8>, &Vec<u8>)| self.fetched.get(*key) != Some(*value);
        let put = self.current.iter().filter(is_new).map(|(key, value)| (key.as_slice(), Some(value.as_slice())));
        put.chain(self.removed.iter().map(|key| (key.as_slice(), None))).collect()
    }

    /// Up to which key all are known from this one on.
    fn end_of_known(&self, key: &[u8]) -> Option<&[u8]> {
        let (_, high) = self.known.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        (high.as_slice() > key).then_some(high)
    }
}

impl Map for Rows {
    type Error = Stop;
    type Bytes<'m> = &'m [u8];

    fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Stop> {
        match self.current.get(key) {
            Some(value) => Ok(Some(value)),
            None if self.removed.contains(key) || self.end_of_known(key).is_some() => Ok(None),
            None => Err(Stop::Missing(vec![Range::key(key)])),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.current.insert(key.to_vec(), value.to_vec());
        self.removed.remove(key);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Stop> {
        self.current.remove(key);
        self.removed.insert(key.to_vec());
        Ok(())
    }

    fn scan(&self, prefix: &[u8], count: usize) -> Result<Vec<Item<'_, Self>>, Stop> {
        let all = Range::prefix(prefix, count);
        let end = self.end_of_known(prefix).unwrap_or(prefix);
        let known = all.high.as_slice().min(end);
        let items = self.current.range::<[u8], _>((Bound::Included(prefix), Bound::Excluded(known)));
        let items: Vec<_> = items.take(count).map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        if items.len() < count && known < all.high.as_slice() {
            // Removed rows at the beginning make room for as many behind them.
            return Err(Stop::Missing(vec![Range { low: known.to_vec(), high: all.high, count: count.min(SCANNED) }]));
        }
        Ok(items)
    }
}

/// How many rows one fetch of a long range gets.
const SCANNED: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str) -> Row {
        Row { key: key.into(), value: b"v".to_vec(), backend: Named::Nobody }
    }

    fn keys(rows: &Rows, prefix: &str, count: usize) -> Result<Vec<String>, Stop> {
        let items = rows.scan(prefix.as_bytes(), count)?;
        Ok(items.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect())
    }

    #[test]
    fn read_of_a_row_that_was_not_fetched_names_it() {
        let mut rows = Rows::default();
        assert_eq!(rows.get(b"a"), Err(Stop::Missing(vec![Range::key(b"a")])));
        rows.fetch(Range::key(b"a"), Vec::new());
        rows.reset();
        assert_eq!(rows.get(b"a"), Ok(None));
        assert!(rows.get(b"a\0").is_err());
        rows.delete(b"b").unwrap();
        assert_eq!(rows.get(b"b"), Ok(None), "a removed row need not be fetched");
    }

    #[test]
    fn scan_goes_on_behind_what_was_fetched() {
        let mut rows = Rows::default();
        let range = Range::prefix(b"s", 2);
        rows.fetch(range.clone(), vec![row("s1"), row("s2")]);
        rows.reset();
        assert_eq!(keys(&rows, "s", 2), Ok(vec!["s1".to_owned(), "s2".to_owned()]));
        rows.delete(b"s1").unwrap();
        let Err(Stop::Missing(more)) = keys(&rows, "s", 2) else { panic!("a row is missing") };
        assert_eq!(more, [Range { low: b"s2\0".to_vec(), high: b"t".to_vec(), count: 2 }]);
        rows.fetch(more[0].clone(), vec![row("s3")]);
        rows.reset();
        assert_eq!(keys(&rows, "s", 9).map(|keys| keys.len()), Ok(3), "there are no more");
        assert_eq!(rows.known.len(), 1);
    }

    #[test]
    fn changes_are_those_against_what_was_fetched() {
        let mut rows = Rows::default();
        let all = Range { low: b"a".to_vec(), high: b"z".to_vec(), count: 9 };
        rows.fetch(all, vec![row("a"), row("b"), row("c")]);
        rows.reset();
        rows.put(b"a", b"v").unwrap();
        rows.put(b"b", b"w").unwrap();
        rows.put(b"d", b"x").unwrap();
        rows.delete(b"c").unwrap();
        let expected: [(&[u8], Option<&[u8]>); 3] = [(b"b", Some(b"w")), (b"d", Some(b"x")), (b"c", None)];
        assert_eq!(rows.changes(), expected);
        rows.reset();
        assert!(rows.changes().is_empty());
    }

    /// Ranges in any order, against a map that has everything.
    #[test]
    fn known_ranges_are_joined() {
        let mut rows = Rows::default();
        for (low, high) in [("a", "c"), ("e", "f"), ("c", "d"), ("b", "e"), ("x", "y")] {
            rows.fetch(Range { low: low.into(), high: high.into(), count: 9 }, Vec::new());
        }
        let known: Vec<_> = rows.known.iter().map(|(low, high)| (low.as_slice(), high.as_slice())).collect();
        assert_eq!(known, [(&b"a"[..], &b"f"[..]), (b"x", b"y")]);
    }
}
