//! Writes a history as a trace in Chrome's format, which Perfetto and chrome://tracing open.
//!
//! A resource is a process, and each place of a holder or waiter a thread. Perfetto reads other
//! events than `X`, `C` and `M` incompletely, so the trace has none of them.

use std::ops::Range;

use serde_json::{Value, json};

use super::spans::{self, Party};
use rlock_model::mode::Mode;
use rlock_model::past::{Entry, Remembered};
use rlock_sys::clock::StoreTime;

/// The first thread of waiters. No resource has so many holders at once.
const WAITERS: usize = 1_000_001;

/// The trace of the entries that overlap a window.
pub fn trace(found: &[Remembered], window: &Range<StoreTime>) -> String {
    let mut events = Vec::new();
    for (known, pid) in found.iter().zip(1..) {
        events.extend(of_resource(known, pid, window).iter().map(Value::to_string));
    }
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
}

fn of_resource(known: &Remembered, pid: usize, window: &Range<StoreTime>) -> Vec<Value> {
    let is_in_window = |span: &Range<StoreTime>| span.start < window.end && window.start <= span.end;
    let in_order = |span: fn(&Entry) -> Option<Range<StoreTime>>| {
        let spans = known.entries.iter().filter_map(|entry| Some((span(entry)?, entry)));
        let mut spans: Vec<_> = spans.filter(|(span, _)| is_in_window(span)).collect();
        spans.sort_by_key(|(span, _)| span.start);
        spans
    };
    let (holds, waits) = (in_order(spans::hold), in_order(spans::wait));
    let meta =
        |name: &str, tid: usize, value: Value| json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": value});
    let mut events = vec![meta("process_name", 0, json!({ "name": known.name.as_str() }))];
    let is_slot = |(_, entry): &(_, &Entry)| entry.claims.iter().any(|claim| claim.mode == Mode::Slot);
    let holder = if holds.iter().any(is_slot) { "slot" } else { "holder" };
    for (kind, place, first, list) in [("hold", holder, 1, &holds), ("wait", "waiter", WAITERS, &waits)] {
        let mut ends: Vec<StoreTime> = Vec::new();
        for (span, entry) in list {
            // The threads nest no blocks, so each block takes the first thread that is free.
            let free = ends.iter().position(|end| *end <= span.start).unwrap_or(ends.len());
            if free == ends.len() {
                ends.push(span.end);
                events.push(meta("thread_name", first + free, json!({ "name": format!("{place} {}", free + 1) })));
                events.push(meta("thread_sort_index", first + free, json!({ "sort_index": first + free })));
            }
            ends[free] = span.end;
            events.push(json!({
                "ph": "X",
                "cat": kind,
                "name": Party::of(entry).text(),
                "pid": pid,
                "tid": first + free,
                "ts": span.start.as_micros(),
                "dur": span.end.as_micros().saturating_sub(span.start.as_micros()),
                "args": super::entry(entry),
            }));
        }
    }
    for (name, list) in [("held", &holds), ("waiting", &waits)] {
        // Nobody knows when each of the waits was that share an entry.
        let single = list.iter().filter(|(_, entry)| spans::waits(entry).0 == 1);
        let mut changes: Vec<_> = single.flat_map(|(span, _)| [(span.start, 1_i64), (span.end, -1)]).collect();
        changes.sort_unstable();
        let mut count = 0;
        for at in changes.chunk_by(|(one, _), (other, _)| one == other) {
            count += at.iter().map(|(_, change)| change).sum::<i64>();
            let args = json!({ name: count });
            events.push(json!({"ph": "C", "name": name, "pid": pid, "ts": at[0].0.as_micros(), "args": args}));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, entry_of};
    use super::*;
    use rlock_model::past::{Ending, Past};
    use rlock_model::resource::Resource;

    /// The blocks, the names and the counters of two holders and a waiter.
    #[test]
    fn trace_has_a_block_for_each_hold_and_wait_and_counts_both() {
        let entries = [[0, 0, 5], [1, 1, 3], [2, 5, 6]].map(|times| entry_of(Ending::Exit(0), times)).to_vec();
        let found = [Remembered { name: Resource::new("k").unwrap(), past: Past::default(), entries }];
        let of = |window: Range<StoreTime>| {
            let trace: Value = serde_json::from_str(&trace(&found, &window)).expect("a trace is JSON");
            let events = trace["traceEvents"].as_array().expect("a list").clone();
            let second = |event: &Value, of: &str| event[of].as_u64().map(|micros| micros / 1_000_000);
            let shown = |event: &Value| match event["ph"].as_str() {
                Some("X") => {
                    let [from, length] = ["ts", "dur"].map(|of| second(event, of).unwrap());
                    format!("{} {} {from}+{length}", event["cat"].as_str().unwrap(), event["tid"])
                }
                Some("C") => format!("{} {}", second(event, "ts").unwrap(), event["args"]),
                Some("M") => event["args"].to_string(),
                other => panic!("no reader knows {other:?}"),
            };
            events.iter().map(shown).collect::<Vec<_>>()
        };
        let expected = [
            r#"{"name":"k"}"#,
            r#"{"name":"holder 1"}"#,
            r#"{"sort_index":1}"#,
            "hold 1 0+5",
            r#"{"name":"holder 2"}"#,
            r#"{"sort_index":2}"#,
            "hold 2 1+2",
            "hold 1 5+1",
            r#"{"name":"waiter 1"}"#,
            r#"{"sort_index":1000001}"#,
            "wait 1000001 2+3",
            r#"0 {"held":1}"#,
            r#"1 {"held":2}"#,
            r#"3 {"held":1}"#,
            r#"5 {"held":1}"#,
            r#"6 {"held":0}"#,
            r#"2 {"waiting":1}"#,
            r#"5 {"waiting":0}"#,
        ];
        assert_eq!(of(at(0)..at(9)), expected);
        assert_eq!(of(at(7)..at(9)), [r#"{"name":"k"}"#]);
    }
}
