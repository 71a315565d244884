//! `rlock inspect --prometheus`: writes the state and the counts of resources in the text format of
//! Prometheus.
//!
//! No metric has a label for a host or a process, because each value of a label is a time series
//! that Prometheus keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;

use super::Inspect;
use crate::cli::replaced::Replaced;
use crate::cli::stdout;
use crate::environment::{after_all_but, context};
use rlock_model::mode::Mode;
use rlock_model::op::{HolderListing, WaiterListing};
use rlock_model::past::{Ending, Past, Remembered};
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_store::Inspection;
use rlock_sys::clock::{StoreTime, micros};
use rlock_sys::exit;
use rlock_words::reason;

/// Prints the metrics or writes them to a file, and returns the exit code.
pub(super) fn run(inspect: &Inspect) -> anyhow::Result<u8> {
    let mut store = context::open_store(&inspect.store)?;
    let file = inspect.output.as_deref().map(Replaced::prepare).transpose();
    let file = file.map_err(|error| error.of_option("-o"))?;
    let inspection = store.inspect(&inspect.resources).map_err(Failure::from)?;
    let found = store.history(&inspect.resources, 0).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    let text = metrics(&inspection, &found);
    match file {
        None => stdout::print(text.as_bytes()).context("can't write to standard output")?,
        Some(file) => file.write(&text).map_err(|error| {
            let text = format!("can't write the metrics to '{}': {}", file.path().display(), reason(&error));
            Failure::new(exit::FAILURE, text)
        })?,
    }
    Ok(after_all_but(&unusable))
}

/// What is known of one resource.
#[derive(Default)]
struct Known<'k> {
    holders: Vec<&'k HolderListing>,
    waiters: &'k [WaiterListing],
    past: Option<&'k Past>,
}

/// One metric.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// The samples of a resource: what follows the name of the metric, further labels, and the
    /// value.
    samples: fn(&Known<'_>, StoreTime) -> Vec<Sample>,
}

type Sample = (&'static str, Option<(&'static str, String)>, String);

const METRICS: [Metric; 15] = [
    Metric {
        name: "rlock_held",
        kind: "gauge",
        help: "Sessions that hold the resource in this mode, and for slots the slots that they hold.",
        samples: |known, _| {
            [Mode::Read, Mode::Prewrite, Mode::Write, Mode::Slot]
                .into_iter()
                .map(|mode| ("", Some(("mode", mode.to_string())), known.held(mode).to_string()))
                .collect()
        },
    },
    Metric {
        name: "rlock_slot_info",
        kind: "gauge",
        help: "1 for each slot of the resource that is held, with its number.",
        samples: |known, _| {
            let numbers: BTreeSet<_> = known.holders.iter().flat_map(|holder| &holder.numbers).collect();
            numbers.into_iter().map(|number| ("", Some(("slot", number.to_string())), "1".to_owned())).collect()
        },
    },
    Metric {
        name: "rlock_waiting",
        kind: "gauge",
        help: "Sessions that wait for the resource.",
        samples: |known, _| one(known.waiting()),
    },
    Metric {
        name: "rlock_oldest_wait_seconds",
        kind: "gauge",
        help: "How long the first of those that wait has waited; 0 if nobody waits.",
        samples: |known, now| {
            let first = known.waiters.iter().map(|waiter| waiter.since).min();
            one(seconds(first.map_or(0, |first| micros(now - first))))
        },
    },
    Metric {
        name: "rlock_hold_start_timestamp_seconds",
        kind: "gauge",
        help: "When the first of those that hold the resource was granted it.",
        samples: |known, _| time(known.holders.iter().map(|it| it.since).min()),
    },
    Metric {
        name: "rlock_last_end_timestamp_seconds",
        kind: "gauge",
        help: "When the last hold ended, at the latest.",
        samples: |known, _| time(known.last().map(|(_, ended)| ended)),
    },
    Metric {
        name: "rlock_last_success_timestamp_seconds",
        kind: "gauge",
        help: "When the last successful run ended.",
        samples: |known, _| time(known.past.and_then(|past| past.last_success)),
    },
    Metric {
        name: "rlock_last_exit_code",
        kind: "gauge",
        help: "The exit code of rlock at the end of the last hold.",
        samples: |known, _| known.last().and_then(|(ending, _)| code(ending)).map_or_else(Vec::new, one),
    },
    Metric {
        name: "rlock_skips_in_a_row",
        kind: "gauge",
        help: "How often a job was skipped in a row; of several jobs the highest number.",
        samples: |known, now| one(known.skips(now)),
    },
    Metric {
        name: "rlock_grants_total",
        kind: "counter",
        help: "Grants whose holds have ended.",
        samples: |known, _| one(known.total(|past| past.totals.ended)),
    },
    Metric {
        name: "rlock_busy_total",
        kind: "counter",
        help: "Requests that were busy, at once or after a wait.",
        samples: |known, _| one(known.total(|past| past.totals.busy)),
    },
    Metric {
        name: "rlock_lost_total",
        kind: "counter",
        help: "Holds that were lost.",
        samples: |known, _| one(known.total(|past| past.totals.lost)),
    },
    Metric {
        name: "rlock_expired_total",
        kind: "counter",
        help: "Holds that ended without a release.",
        samples: |known, _| one(known.total(|past| past.totals.expired)),
    },
    Metric {
        name: "rlock_wait_seconds",
        kind: "summary",
        help: "Waits of the grants whose holds have ended.",
        samples: |known, _| summary(known, |past| past.totals.waited),
    },
    Metric {
        name: "rlock_hold_seconds",
        kind: "summary",
        help: "Holds that have ended.",
        samples: |known, _| summary(known, |past| past.totals.held),
    },
];

impl Known<'_> {
    /// The number of sessions that hold the resource in a mode, or of the slots that they hold.
    fn held(&self, mode: Mode) -> usize {
        let holders = self.holders.iter().filter(|holder| holder.mode == mode);
        match mode {
            Mode::Slot => holders.map(|holder| holder.count).sum(),
            _ => holders.map(|holder| holder.session).collect::<BTreeSet<_>>().len(),
        }
    }

    fn waiting(&self) -> usize {
        self.waiters.iter().map(|waiter| waiter.session).collect::<BTreeSet<_>>().len()
    }

    fn last(&self) -> Option<(Ending, StoreTime)> {
        self.past.and_then(|past| past.last)
    }

    fn skips(&self, now: StoreTime) -> u32 {
        let streaks = self.past.iter().flat_map(|past| past.jobs.keys().filter_map(|job| past.streak(now, job)));
        streaks.map(|streak| streak.count).max().unwrap_or_default()
    }

    fn total(&self, of: impl Fn(&Past) -> u64) -> u64 {
        self.past.map_or(0, of)
    }
}

fn one(value: impl ToString) -> Vec<Sample> {
    vec![("", None, value.to_string())]
}

fn time(instant: Option<StoreTime>) -> Vec<Sample> {
    instant.map(|instant| one(seconds(instant.as_micros()))).unwrap_or_default()
}

fn summary(known: &Known<'_>, sum: impl Fn(&Past) -> Duration) -> Vec<Sample> {
    let sum = known.past.map(sum).unwrap_or_default();
    vec![("_sum", None, seconds(micros(sum))), ("_count", None, known.total(|past| past.totals.ended).to_string())]
}

fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// The exit code with which rlock told of this end, if it could.
fn code(ending: Ending) -> Option<u8> {
    match ending {
        Ending::Exit(code) => Some(code),
        Ending::Signal(signal) => Some(exit::SIGNAL_BASE.saturating_add(signal)),
        Ending::Lost | Ending::Broken => Some(exit::LOST),
        Ending::Timeout => Some(exit::TIMEOUT),
        Ending::Expired | Ending::Kept | Ending::Ready => None,
    }
}

fn metrics(inspection: &Inspection, found: &[Remembered]) -> String {
    let mut resources: BTreeMap<&Resource, Known<'_>> = BTreeMap::new();
    for listing in &inspection.resources {
        let known = resources.entry(&listing.name).or_default();
        known.holders = listing.holders.iter().filter(|holder| !holder.is_over(inspection.now)).collect();
        known.waiters = &listing.waiters;
    }
    for Remembered { name, past, .. } in found {
        resources.entry(name).or_default().past = Some(past);
    }
    let mut text = String::new();
    for Metric { name, kind, help, samples } in METRICS {
        // Writing to a `String` can't fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (resource, known) in &resources {
            for (suffix, label, value) in samples(known, inspection.now) {
                let label = label.map(|(label, its)| format!(",{label}=\"{its}\"")).unwrap_or_default();
                let resource = escaped(resource.as_str());
                let _ = writeln!(text, "{name}{suffix}{{resource=\"{resource}\"{label}}} {value}");
            }
        }
    }
    text
}

/// The value of a label as the text format needs it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
        assert_eq!(escaped("plain {a=b} ä"), "plain {a=b} ä");
    }

    #[test]
    fn numbers_of_seconds_have_all_microseconds() {
        assert_eq!([0, 1, 1_795_385_406_301_692].map(seconds), ["0.000000", "0.000001", "1795385406.301692"]);
    }

    #[test]
    fn code_is_that_with_which_rlock_ends() {
        let endings = [Ending::Exit(3), Ending::Signal(9), Ending::Lost, Ending::Broken, Ending::Timeout];
        assert_eq!(endings.map(code), [3, 137, 76, 76, 124].map(Some));
        assert_eq!([Ending::Expired, Ending::Kept, Ending::Ready].map(code), [None; 3]);
    }
}
