//! Draws the holds and waits of a history as bars over a time axis.

use std::ops::Range;
use std::time::Duration;

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use super::spans::{self, Party};
use super::text::outcome;
use crate::lock::past::{Ending, Entry, Event, Remembered};
use crate::show::Look;
use crate::show::columns::{cut, escaped};
use crate::system::clock::StoreTime;

/// The width of an output that is no terminal.
const COLUMNS: usize = 80;
/// The widest name of a row, and the narrowest, which is that of a date.
const NAME: (usize, usize) = (24, 10);
/// The narrowest bar.
const BAR: usize = 20;
/// The least number of columns from one time of the axis to the next.
const TICK: i64 = 10;

// Microseconds.
const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// The steps of the axis.
const STEPS: [i64; 19] = {
    const SECONDS: [i64; 12] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];
    const HOURS: [i64; 7] = [1, 2, 3, 6, 12, 24, 7 * 24];
    let mut steps = [0; 19];
    let mut at = 0;
    while at < 19 {
        steps[at] = if at < 12 { SECONDS[at] * SECOND } else { HOURS[at - 12] * HOUR };
        at += 1;
    }
    steps
};

/// An instant as the clock on the wall shows it: the microseconds since the start of 1970
/// there.
pub(crate) type WallClock<'w> = &'w dyn Fn(StoreTime) -> i64;

/// The bars of the part of a history that is within a window: a row for each entry, or two for each
/// resource. The axis covers the window, or what the entries cover where the window has no end.
pub(crate) fn lines(
    found: &[Remembered],
    window: &Range<StoreTime>,
    by_entry: bool,
    wall: WallClock<'_>,
    look: &Look,
) -> Vec<String> {
    let touches = |entry: &&Entry| extent(entry).is_some_and(|it| it.start < window.end && window.start <= it.end);
    let mut entries: Vec<Vec<&Entry>> =
        found.iter().map(|known| known.entries.iter().filter(touches).collect()).collect();
    entries.iter_mut().for_each(|list| list.sort_by_key(|entry| extent(entry).map(|it| it.start)));
    let extents = || entries.iter().flatten().filter_map(|entry| extent(entry));
    let (Some(first), Some(last)) = (extents().map(|it| it.start).min(), extents().map(|it| it.end).max()) else {
        return vec!["no entries".to_owned()];
    };
    let from = if window.start == StoreTime::default() { first } else { window.start };
    let to = if window.end == StoreTime::NEVER { last } else { window.end };
    let mut rows = Vec::new();
    for (known, list) in found.iter().zip(&entries) {
        if by_entry {
            let several = if found.len() > 1 { format!("{}: ", known.name.as_str()) } else { String::new() };
            rows.extend(list.iter().map(|entry| Row {
                name: format!("{several}{}", Party::of(entry).text()),
                end: outcome(entry),
                bars: vec![Bar::Wait, Bar::Hold],
                entries: vec![*entry],
            }));
        } else if !list.is_empty() {
            let row = |name: &str, bar: Bar| Row {
                name: name.to_owned(),
                end: if bar == Bar::Hold { "held" } else { "waiting" }.to_owned(),
                bars: vec![bar],
                entries: list.clone(),
            };
            rows.push(row(known.name.as_str(), Bar::Hold));
            rows.extend(list.iter().any(|entry| spans::wait(entry).is_some()).then(|| row("", Bar::Wait)));
        }
    }
    let name = rows.iter().map(|row| escaped(&row.name).width()).max().unwrap_or(0).clamp(NAME.1, NAME.0);
    let end = rows.iter().map(|row| row.end.width()).max().unwrap_or(0);
    let bar = look.width.unwrap_or(COLUMNS).saturating_sub(name + end + 2).max(BAR);
    let axis = Axis { from, step: (to - from).max(Duration::from_millis(1)) / u32::try_from(bar).unwrap_or(1), bar };
    let mut all = vec![format!("{:name$} {}", date(wall(from)), axis.labels(wall)).trim_end().to_owned()];
    all.extend(rows.iter().map(|row| row.line(name, &axis, look)));
    let (held, waits, alarm) = (look.palette.holder, look.palette.waiter, look.palette.alarm);
    all.push(format!(
        "{held}{HELD}{held:#} held  {waits}{WAITED}{waits:#} waiting  {alarm}{FAILED}{alarm:#} failed  \
         {alarm}{LOST}{alarm:#} lost"
    ));
    all
}

const HELD: char = '█';
const WAITED: char = '░';
const FAILED: char = 'x';
const LOST: char = '!';

/// The time that an entry covers.
fn extent(entry: &Entry) -> Option<Range<StoreTime>> {
    match (spans::wait(entry), spans::hold(entry)) {
        (Some(wait), Some(hold)) => Some(wait.start..hold.end),
        (wait, hold) => wait.or(hold),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bar {
    Hold,
    Wait,
}

struct Row<'h> {
    name: String,
    /// What stands behind the bars.
    end: String,
    /// What is drawn; the later over the earlier.
    bars: Vec<Bar>,
    entries: Vec<&'h Entry>,
}

impl Row<'_> {
    fn line(&self, name: usize, axis: &Axis, look: &Look) -> String {
        let mut cells = vec![' '; axis.bar];
        for bar in &self.bars {
            for entry in &self.entries {
                let (span, cell) = match bar {
                    Bar::Wait => (spans::wait(entry), WAITED),
                    Bar::Hold => (spans::hold(entry), HELD),
                };
                if let Some(span) = span {
                    cells[axis.columns(&span)].fill(cell);
                }
            }
        }
        // The marks come last, so that no later hold covers them.
        for entry in self.entries.iter().filter(|entry| self.bars.contains(&Bar::Hold) && entry.event.has_failed()) {
            let is_lost = matches!(entry.event, Event::Ended(Ending::Lost | Ending::Expired | Ending::Broken));
            if let Some(last) = spans::hold(entry).and_then(|span| axis.columns(&span).last()) {
                cells[last] = if is_lost { LOST } else { FAILED };
            }
        }
        let style = |cell: char| match cell {
            HELD => look.palette.holder,
            WAITED => look.palette.waiter,
            FAILED | LOST => look.palette.alarm,
            _ => Style::new(),
        };
        let bars: String = cells
            .chunk_by(|one, other| one == other)
            .map(|same| {
                let style = style(same[0]);
                format!("{style}{}{style:#}", same.iter().collect::<String>())
            })
            .collect();
        let text = cut(&escaped(&self.name), name, true);
        let room = " ".repeat(name.saturating_sub(text.width()));
        format!("{text}{room} {bars} {}", self.end).trim_end().to_owned()
    }
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

    /// The times on the axis, each at its column.
    fn labels(&self, wall: WallClock<'_>) -> String {
        let start = |column: usize| wall(self.from + self.step * u32::try_from(column).unwrap_or(u32::MAX));
        let per_tick = i64::try_from(self.step.as_micros()).unwrap_or(i64::MAX).saturating_mul(TICK);
        let step = STEPS.into_iter().find(|step| *step >= per_tick).unwrap_or(STEPS[STEPS.len() - 1]);
        let mut text = String::new();
        for column in 0..self.bar {
            let time = (start(column) + step - 1).div_euclid(step) * step;
            let label = format!("|{}", of_axis(time, step));
            if time < start(column + 1) && text.width() <= column && column + label.width() <= self.bar {
                text.push_str(&" ".repeat(column - text.width()));
                text.push_str(&label);
            }
        }
        text
    }
}

/// A time of the axis: with seconds if these differ, or as a date.
fn of_axis(at: i64, step: i64) -> String {
    let of_day = at.rem_euclid(DAY);
    let (hour, minute, second) = (of_day / HOUR, of_day / MINUTE % 60, of_day / SECOND % 60);
    match step {
        ..MINUTE => format!("{hour:02}:{minute:02}:{second:02}"),
        MINUTE..DAY => format!("{hour:02}:{minute:02}"),
        _ => date(at)[5..].to_owned(),
    }
}

/// The date of an instant of the clock on the wall.
fn date(at: i64) -> String {
    let start = StoreTime::default() + Duration::from_micros(at.max(0).unsigned_abs());
    crate::show::messages::time(start)[..10].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, entry_of};
    use super::*;
    use crate::lock::past::{Origin, Past, WaitEnd};
    use crate::lock::resource::Resource;
    use crate::show::Palette;

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
    fn ahead(at: StoreTime) -> i64 {
        i64::try_from(at.as_micros()).unwrap() + HOUR
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
        let shown =
            [(3_661 * SECOND, SECOND), (3_660 * SECOND, MINUTE), (DAY, DAY)].map(|(at, step)| of_axis(at, step));
        assert_eq!(shown, ["01:01:01", "01:01", "01-02"]);
    }
}
