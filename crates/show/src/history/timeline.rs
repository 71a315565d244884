//! Draws the holds and waits of a history as bars over a time axis.

use std::ops::Range;
use std::time::Duration;

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use super::spans::{self, Party};
use super::text::outcome;
use crate::columns::{cut, escaped};
use crate::{Look, messages};
use rlock_model::past::{Ending, Entry, Event, Remembered};
use rlock_sys::clock::StoreTime;

/// The width of an output that is no terminal.
const COLUMNS: usize = 80;
/// The widest name of a row, and the narrowest, which is that of a date.
const NAME: (usize, usize) = (24, 10);
/// The narrowest bar.
const BAR: usize = 20;
/// The least number of columns from one time of the axis to the next.
const TICK: u32 = 10;

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
/// The steps of the axis in seconds, up to a week.
const STEPS: [u64; 18] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY];

const HELD: char = '█';
const WAITED: char = '░';
const FAILED: char = 'x';
const LOST: char = '!';

/// Tells what the clock on the wall shows at an instant: the instant at which UTC is the same.
pub type WallClock<'w> = &'w dyn Fn(StoreTime) -> StoreTime;

/// The bars of the part of a history that is within a window: a row for each entry, or two for each
/// resource. The axis covers the window, or what the entries cover where the window has no end.
pub fn lines(
    found: &[Remembered],
    window: &Range<StoreTime>,
    by_entry: bool,
    wall: WallClock<'_>,
    look: &Look,
) -> Vec<String> {
    let (mut rows, mut first, mut last) = (Vec::new(), StoreTime::NEVER, StoreTime::default());
    for known in found {
        let extents = known.entries.iter().filter_map(|entry| Some((extent(entry)?, entry)));
        let mut list: Vec<_> = extents.filter(|(it, _)| it.start < window.end && window.start <= it.end).collect();
        list.sort_by_key(|(it, _)| it.start);
        for (it, entry) in &list {
            (first, last) = (first.min(it.start), last.max(it.end));
            if by_entry {
                let of = if found.len() > 1 { format!("{}: ", known.name) } else { String::new() };
                let (name, end) = (format!("{of}{}", Party::of(entry).text()), outcome(entry));
                rows.push(Row { name, waits: vec![*entry], holds: vec![*entry], end });
            }
        }
        if !by_entry && !list.is_empty() {
            let all: Vec<_> = list.iter().map(|(_, entry)| *entry).collect();
            let waits: Vec<_> = all.iter().copied().filter(|entry| spans::wait(entry).is_some()).collect();
            rows.push(Row { name: known.name.to_string(), waits: Vec::new(), holds: all, end: "held".to_owned() });
            if !waits.is_empty() {
                rows.push(Row { name: String::new(), waits, holds: Vec::new(), end: "waiting".to_owned() });
            }
        }
    }
    if rows.is_empty() {
        return vec!["no entries".to_owned()];
    }
    let from = if window.start == StoreTime::default() { first } else { window.start };
    let to = if window.end == StoreTime::NEVER { last } else { window.end };
    let name = rows.iter().map(|row| escaped(&row.name).width()).max().unwrap_or(0).clamp(NAME.1, NAME.0);
    let end = rows.iter().map(|row| row.end.width()).max().unwrap_or(0);
    let bar = look.width.unwrap_or(COLUMNS).saturating_sub(name + end + 2).max(BAR);
    let step = (to - from).max(Duration::from_millis(1)) / u32::try_from(bar).unwrap_or(u32::MAX);
    let axis = Axis { from, step, bar };
    let mut all = vec![format!("{:name$} {}", part(wall(from), 0..10), axis.labels(wall)).trim_end().to_owned()];
    all.extend(rows.iter().map(|row| row.line(name, &axis, look)));
    let key = [(HELD, "held"), (WAITED, "waiting"), (FAILED, "failed"), (LOST, "lost")];
    all.push(key.map(|(cell, means)| format!("{} {means}", styled(&[cell], look))).join("  "));
    all
}

/// The time that an entry covers.
fn extent(entry: &Entry) -> Option<Range<StoreTime>> {
    match (spans::wait(entry), spans::hold(entry)) {
        (Some(wait), Some(hold)) => Some(wait.start..hold.end),
        (wait, hold) => wait.or(hold),
    }
}

struct Row<'h> {
    name: String,
    waits: Vec<&'h Entry>,
    holds: Vec<&'h Entry>,
    /// What stands behind the bars.
    end: String,
}

impl Row<'_> {
    fn line(&self, name: usize, axis: &Axis, look: &Look) -> String {
        let mut cells = vec![' '; axis.bar];
        for span in self.waits.iter().filter_map(|entry| spans::wait(entry)) {
            cells[axis.columns(&span)].fill(WAITED);
        }
        for span in self.holds.iter().filter_map(|entry| spans::hold(entry)) {
            cells[axis.columns(&span)].fill(HELD);
        }
        // The marks come last, so that no later hold covers them.
        for entry in self.holds.iter().filter(|entry| entry.event.has_failed()) {
            let is_lost = matches!(entry.event, Event::Ended(Ending::Lost | Ending::Expired | Ending::Broken));
            if let Some(last) = spans::hold(entry).and_then(|span| axis.columns(&span).last()) {
                cells[last] = if is_lost { LOST } else { FAILED };
            }
        }
        let bars: String = cells.chunk_by(|one, other| one == other).map(|same| styled(same, look)).collect();
        let text = cut(&escaped(&self.name), name, true);
        let room = " ".repeat(name.saturating_sub(text.width()));
        format!("{text}{room} {bars} {}", self.end).trim_end().to_owned()
    }
}

/// Equal cells in their colour.
fn styled(cells: &[char], look: &Look) -> String {
    let style = match cells.first() {
        Some(&HELD) => look.palette.holder,
        Some(&WAITED) => look.palette.waiter,
        Some(&(FAILED | LOST)) => look.palette.alarm,
        _ => Style::new(),
    };
    format!("{style}{}{style:#}", cells.iter().collect::<String>())
}

/// The time that each column of the bars stands for.
struct Axis {
    from: StoreTime,
    step: Duration,
    bar: usize,
}

impl Axis {
    /// The columns of a span, at least one.
    fn columns(&self, span: &Range<StoreTime>) -> Range<usize> {
        let column = |at: StoreTime| (at - self.from).as_nanos() / self.step.as_nanos().max(1);
        let at_most = |column: u128, max: usize| usize::try_from(column).unwrap_or(max).min(max);
        let first = at_most(column(span.start), self.bar - 1);
        first..at_most(column(span.end), self.bar).max(first + 1)
    }

    /// The times on the axis, each at its column: with seconds if these differ, or as dates.
    fn labels(&self, wall: WallClock<'_>) -> String {
        let start = |column: usize| wall(self.from + self.step * u32::try_from(column).unwrap_or(u32::MAX));
        let least = (self.step * TICK).as_secs_f64();
        let step = STEPS.into_iter().find(|step| *step as f64 >= least).unwrap_or(7 * DAY);
        let shown = match step {
            ..MINUTE => 11..19,
            MINUTE..DAY => 11..16,
            _ => 5..10,
        };
        let (step, mut text) = (step * 1_000_000, String::new());
        for column in 0..self.bar {
            let time = StoreTime::from_micros(start(column).as_micros().div_ceil(step) * step);
            let label = format!("|{}", part(time, shown.clone()));
            if time < start(column + 1) && text.width() <= column && column + label.width() <= self.bar {
                text.push_str(&" ".repeat(column - text.width()));
                text.push_str(&label);
            }
        }
        text
    }
}

/// A part of an instant as text.
fn part(at: StoreTime, range: Range<usize>) -> String {
    messages::time(at)[range].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, entry_of};
    use super::*;
    use crate::Palette;
    use rlock_model::past::{Origin, Past, WaitEnd};
    use rlock_model::resource::Resource;

    const PIPE: Look = Look { width: None, verbose: false, wide: false, palette: PLAIN };
    const PLAIN: Palette = {
        let plain = Style::new();
        Palette { heading: plain, busy: plain, holder: plain, waiter: plain, alarm: plain, dim: plain }
    };

    fn run(job: &str, ending: Ending, minutes: [u64; 3]) -> Entry {
        let origin = Origin { job: job.to_owned(), is_named: true, is_nested: false };
        Entry { origin, ..entry_of(ending, minutes.map(|minute| 60 * minute)) }
    }

    fn night() -> Vec<Remembered> {
        let sum = Duration::from_secs(1200);
        let busy = Event::Waited { how: WaitEnd::Busy, count: 2, sum, longest: sum };
        let sync = Entry { event: busy, granted: None, ..run("sync", Ending::Kept, [60, 60, 90]) };
        let entries = vec![
            sync,
            run("backup", Ending::Exit(0), [0, 0, 120]),
            run("report", Ending::Exit(3), [60, 120, 180]),
            run("index", Ending::Expired, [240, 240, 300]),
        ];
        vec![Remembered { name: Resource::new("k").unwrap(), past: Past::default(), entries }]
    }

    const ALWAYS: Range<StoreTime> = StoreTime::from_micros(0)..StoreTime::NEVER;

    /// The clock on the wall is an hour ahead of UTC.
    fn ahead(at: StoreTime) -> StoreTime {
        at + Duration::from_secs(3600)
    }

    /// "Readable at 80 columns, without colours and in a pipe."
    #[test]
    fn row_of_an_entry_has_its_wait_before_its_hold_and_a_mark_at_a_failure() {
        let expected = [
            "1970-01-01 |01:00     |02:00     |03:00     |04:00     |05:00",
            "backup     ██████████████████████                                   exit 0",
            "sync                  ░░░░░                                         busy 2 times",
            "report                ░░░░░░░░░░░██████████x                        exit 3",
            "index                                                  ███████████! expired",
            "█ held  ░ waiting  x failed  ! lost",
        ];
        let lines = lines(&night(), &ALWAYS, true, &ahead, &PIPE);
        assert!(lines.iter().all(|line| line.width() <= 80), "{lines:#?}");
        assert_eq!(lines, expected, "{lines:#?}");
    }

    #[test]
    fn row_of_a_resource_has_its_waits_below_it() {
        let expected = [
            "1970-01-01 |01:00      |02:00      |03:00      |04:00      |05:00",
            "k          ███████████████████████████████████x            ████████████! held",
            "                       ░░░░░░░░░░░░                                      waiting",
            "█ held  ░ waiting  x failed  ! lost",
        ];
        let lines = lines(&night(), &ALWAYS, false, &ahead, &PIPE);
        assert_eq!(lines, expected, "{lines:#?}");
    }

    #[test]
    fn axis_covers_the_window_and_leaves_out_what_is_outside() {
        let found = night();
        let lines = lines(&found, &(at(4 * 3600)..at(10 * 3600)), true, &ahead, &Look { width: Some(40), ..PIPE });
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(lines.iter().all(|line| line.width() <= 40) && lines[1].starts_with("index      ██"), "{lines:#?}");
        let empty = super::lines(&found, &(at(9 * 3600)..at(10 * 3600)), true, &ahead, &PIPE);
        assert_eq!(empty, ["no entries"]);
    }

    #[test]
    fn times_have_as_much_as_tells_them_apart() {
        let labels = |seconds: u64| {
            let axis = Axis { from: at(0), step: Duration::from_secs(seconds) / 40, bar: 40 };
            axis.labels(&ahead).split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!([60, 6 * 3600, 4 * DAY].map(labels), ["|01:00:00", "|02:00", "|01-02"]);
    }
}
