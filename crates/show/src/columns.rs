//! Lays out rows of text in columns that fit the width of a terminal.

use std::iter::repeat_n;

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use rlock_model::text::is_control_or_format;

/// The text of a cell that has nothing to say.
pub const NONE: &str = "-";

/// The number of spaces between two columns.
const GAP: usize = 2;

/// The mark in the place of what was cut.
const CUT: char = '…';

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The heading.
    pub heading: &'static str,
    /// The width below which the column is not narrowed. Only columns whose cells may be long have
    /// one; the others are as wide as their widest cell.
    pub narrowest: Option<usize>,
    /// Whether a long cell loses its middle instead of its end.
    pub keeps_end: bool,
    /// When the column is left out: if all its cells are empty, and if the narrowest table is too
    /// wide, the column with the highest number first. A column without a number always stays.
    pub leaves: Option<u8>,
}

/// A cell: one line of text that a terminal shows as it is.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with this text, in which control and format characters are escaped.
    pub fn new(text: &str, style: Style) -> Self {
        Self { text: escaped(text), style }
    }

    /// A cell that has nothing to say.
    pub fn none() -> Self {
        Self::new(NONE, Style::new())
    }

    /// A cell below one with the same text.
    pub(crate) fn ditto() -> Self {
        Self::new("", Style::new())
    }

    fn width(&self) -> usize {
        self.text.width()
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty() || self.text == NONE
    }
}

/// `text` with escapes, such as `\n` and `\u{202e}`, for the characters that a terminal obeys or
/// hides.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control_or_format(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// The lines of a table, with its headings first. A row may have fewer cells than there are
/// columns. Without a `width`, nothing is cut. No line ends with a space.
pub fn lines(columns: &[Column], heading: Style, rows: &[Vec<Cell>], width: Option<usize>) -> Vec<String> {
    let widths = widths(columns, rows, width);
    let headings = columns.iter().map(|column| Cell::new(column.heading, heading)).collect();
    let all = std::iter::once(&headings).chain(rows);
    all.map(|row| line(columns, row, &widths, width)).collect()
}

/// The width of each column; `None` for a column that is left out.
fn widths(columns: &[Column], rows: &[Vec<Cell>], width: Option<usize>) -> Vec<Option<usize>> {
    let cells = |index: usize| rows.iter().filter_map(move |row: &Vec<Cell>| row.get(index));
    let mut widths: Vec<Option<usize>> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let is_shown = column.leaves.is_none() || cells(index).any(|cell| !cell.is_empty());
            let widest = cells(index).map(Cell::width).max().unwrap_or(0).max(column.heading.len());
            is_shown.then_some(widest)
        })
        .collect();
    let Some(width) = width else { return widths };
    let narrowest = |column: &Column, widest: usize| column.narrowest.map_or(widest, |narrowest| narrowest.min(widest));
    loop {
        let least: Vec<_> = columns.iter().zip(&widths).map(|(c, widest)| widest.map(|it| narrowest(c, it))).collect();
        if total(&least) <= width {
            break;
        }
        let candidates = (0..columns.len()).filter(|index| widths[*index].is_some());
        let Some(leaves) = candidates.filter_map(|index| Some((columns[index].leaves?, index))).max() else { break };
        widths[leaves.1] = None;
    }
    // The widest column gives way first, so that short cells stay whole.
    while total(&widths) > width {
        let can_shrink = |index: &usize| widths[*index].is_some_and(|it| it > narrowest(&columns[*index], it));
        let Some(widest) = (0..columns.len()).filter(can_shrink).max_by_key(|index| widths[*index]) else { break };
        widths[widest] = widths[widest].map(|it| it - 1);
    }
    widths
}

fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + shown.count().saturating_sub(1) * GAP
}

fn line(columns: &[Column], row: &[Cell], widths: &[Option<usize>], width: Option<usize>) -> String {
    let mut line = String::new();
    let (mut used, mut gap) = (0, 0);
    for ((column, cell), widest) in columns.iter().zip(row).zip(widths) {
        let Some(mut widest) = *widest else { continue };
        if let Some(width) = width {
            // The narrowest table may still be too wide for the terminal.
            widest = widest.min(width.saturating_sub(used + gap));
        }
        let text = cut(&cell.text, widest, column.keeps_end);
        let room = widest.saturating_sub(text.width());
        if !text.is_empty() {
            line.extend(repeat_n(' ', gap));
            let style = cell.style;
            line.push_str(&format!("{style}{text}{style:#}"));
            used += gap + text.width();
            gap = 0;
        }
        gap += room + GAP;
    }
    line
}

/// As much of `text` as fits `width`, with a mark if it was cut.
pub fn cut(text: &str, width: usize, keeps_end: bool) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let mark = if width == 0 { String::new() } else { CUT.to_string() };
    let end = if keeps_end { last(text, room / 2) } else { "" };
    format!("{}{mark}{end}", first(text, room - end.width()))
}

/// The longest start of `text` that fits `width`.
fn first(text: &str, width: usize) -> &str {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| text[..*end].width() <= width).last().unwrap_or(0);
    &text[..end]
}

/// The longest end of `text` that fits `width`.
fn last(text: &str, width: usize) -> &str {
    let starts = text.char_indices().rev().map(|(at, _)| at);
    let start = starts.take_while(|start| text[*start..].width() <= width).last().unwrap_or(text.len());
    &text[start..]
}

#[cfg(test)]
mod tests {
    use anstyle::Style;

    use unicode_width::UnicodeWidthStr as _;

    use super::{Cell, Column, cut, escaped, lines};

    const COLUMNS: [Column; 4] = [
        Column { heading: "NAME", narrowest: Some(6), keeps_end: true, leaves: None },
        Column { heading: "AGE", narrowest: None, keeps_end: false, leaves: Some(2) },
        Column { heading: "NOTE", narrowest: None, keeps_end: false, leaves: Some(3) },
        Column { heading: "COMMAND", narrowest: Some(8), keeps_end: false, leaves: None },
    ];

    fn table(rows: &[&[&str]], width: Option<usize>) -> Vec<String> {
        let cells = |row: &&[&str]| row.iter().map(|text| Cell::new(text, Style::new())).collect();
        let rows: Vec<_> = rows.iter().map(cells).collect();
        lines(&COLUMNS, Style::new(), &rows, width)
    }

    #[test]
    fn columns_are_aligned_and_as_wide_as_their_widest_cell() {
        let shown = table(&[&["a", "1h", "x", "sleep 1"], &["long name", "3s"], &["", "2s", "-", "true"]], None);
        assert_eq!(
            shown,
            [
                "NAME       AGE  NOTE  COMMAND",
                "a          1h   x     sleep 1",
                "long name  3s",
                "           2s   -     true"
            ]
        );
    }

    #[test]
    fn column_without_content_is_left_out() {
        assert_eq!(table(&[&["a", "-", "", "c"], &["b", "", "-", "d"]], None), ["NAME  COMMAND", "a     c", "b     d"]);
        assert_eq!(table(&[], None), ["NAME  COMMAND"]);
    }

    #[test]
    fn widest_column_gives_way_first() {
        let row: &[&str] = &["deploy-production", "3m 12s", "n", "rsync -a /srv/www backup:/srv/www --delete"];
        assert_eq!(
            table(&[row], Some(80))[1],
            "deploy-production  3m 12s  n     rsync -a /srv/www backup:/srv/www --delete"
        );
        assert_eq!(table(&[row], Some(60))[1], "deploy-production  3m 12s  n     rsync -a /srv/www backup:/…");
        assert_eq!(table(&[row], Some(40))[1], "deploy…ction  3m 12s  n     rsync -a /s…");
    }

    #[test]
    fn columns_leave_in_order_if_even_the_narrowest_table_is_too_wide() {
        let row: &[&str] = &["deploy-production", "3m 12s", "nothing new", "rsync -a /srv/www"];
        assert_eq!(table(&[row], Some(24))[1], "dep…on  3m 12s  rsync -…");
        assert_eq!(table(&[row], Some(20))[1], "depl…tion  rsync -a…");
        assert_eq!(table(&[row], Some(10))[1], "dep…on  r…");
        assert_eq!(table(&[row], Some(1))[1], "…");
        assert_eq!(table(&[row], Some(0))[1], "");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let shown = table(&[&["バックアップ", "1s", "", "c"], &["e\u{301}tude", "2s", "", "d"]], None);
        assert_eq!(shown, ["NAME          AGE  COMMAND", "バックアップ  1s   c", "e\u{301}tude         2s   d"]);
        assert_eq!(cut("バックアップ", 12, false), "バックアップ");
        assert_eq!(cut("バックアップ", 8, false), "バック…", "half a character is not shown");
        assert_eq!(cut("バックアップ", 8, true), "バッ…プ");
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}", 2, false), "e\u{301}…", "an accent stays with its letter");
    }

    #[test]
    fn control_bidi_and_zero_width_characters_are_escaped() {
        assert_eq!(escaped("a\nb\t\u{1b}[2J\u{202e}\u{200b}ü"), r"a\nb\t\u{1b}[2J\u{202e}\u{200b}ü");
        assert_eq!(table(&[&["\u{202e}"]], None)[1], r"\u{202e}");
    }

    /// Every width, with short, long and odd cells.
    #[test]
    fn line_never_exceeds_the_width_or_ends_with_a_space() {
        let texts = [
            "",
            "-",
            "a",
            "a much longer cell than the others",
            "日本語の名前がここにある",
            "👩‍👩‍👧 família",
            "\u{7}\u{200d}",
        ];
        for width in 0..120 {
            for one in texts {
                for two in texts {
                    for line in table(&[&[one, two, one, two], &[two, one], &["x", two, one, one]], Some(width)) {
                        assert!(line.width() <= width, "{width}: {line:?}");
                        assert!(!line.ends_with(' '), "{width}: {line:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn styles_do_not_count_as_width() {
        let bold = Style::new().bold();
        let rows = [vec![Cell::new("abcdefgh", bold), Cell::new("1s", Style::new())]];
        assert_eq!(lines(&COLUMNS, Style::new(), &rows, Some(22))[1], "\u{1b}[1mabcdefgh\u{1b}[0m  1s");
    }
}
