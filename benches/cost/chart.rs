//! The results as an SVG chart: one panel for each table, with a dot and its spread for each figure
//! on a logarithmic axis. The chart follows the light or dark colour scheme of the page.

use super::numbers::figure;
use super::table::{Spread, Table};

/// Horizontal positions.
const WIDTH: f64 = 820.0;
const NAMES_END: f64 = 230.0;
const PLOT: [f64; 2] = [245.0, 660.0];
const FIGURES: f64 = 675.0;
/// Heights.
const TITLE: f64 = 44.0;
const LINE: f64 = 19.0;
const AXIS: f64 = 26.0;
const LEGEND: f64 = 30.0;

const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 14px }
  .quiet, .peer text { fill: #57606a }
  .own text { font-weight: 600 }
  line { stroke: #d8dee4 }
  .peer line { stroke: #8c959f; stroke-width: 2 }
  .peer cycle { fill: #6e7781 }
  .own line { stroke: #54aeff; stroke-width: 2 }
  .own cycle { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .quiet, .peer text { fill: #8d96a0 }
    line { stroke: #30363d }
    .peer line { stroke: #6e7681 }
    .peer cycle { fill: #9198a1 }
    .own line { stroke: #1f6feb }
    .own cycle { fill: #58a6ff }
  }
";

/// Draws all tables that belong into the chart.
pub(crate) fn draw(tables: &[Table]) -> String {
    let (mut body, mut y) = (String::new(), 0.0);
    for table in tables.iter().filter(|table| table.drawn) {
        y = panel(&mut body, table, y);
    }
    y += LEGEND;
    body += &label(
        WIDTH / 2.0,
        y - 12.0,
        "middle",
        "quiet",
        "dot: the median; line: from the 10th to the 90th of a hundred; logarithmic axes",
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" width=\"{WIDTH}\" height=\"{y:.0}\" \
         role=\"img\" aria-label=\"What a lock costs\">\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}

/// Draws one table from the height `y` on, and returns the height at its end.
fn panel(body: &mut String, table: &Table, mut y: f64) -> f64 {
    let spreads = || table.rows.iter().flat_map(|row| row.cells.iter().flatten());
    let axis = Axis::over(spreads());
    *body += &label(0.0, y + 30.0, "start", "title", &format!("{} ({})", table.title, table.unit));
    y += TITLE;
    let (top, mut marks) = (y, String::new());
    for (column, name) in table.columns.iter().enumerate() {
        if table.columns.len() > 1 {
            marks += &label(NAMES_END, y + 13.0, "end", "quiet", name);
            y += LINE;
        }
        for row in &table.rows {
            if let Some(spread) = row.cells.get(column).copied().flatten() {
                let class = if row.name.starts_with("rlock") { "own" } else { "peer" };
                marks += &format!("<g class=\"{class}\">{}</g>\n", mark(&axis, &row.name, &spread, y));
                y += LINE;
            }
        }
    }
    for tick in axis.ticks() {
        let x = axis.place(tick);
        *body += &format!("<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{y:.1}\"/>\n");
        *body += &label(x, y + 15.0, "middle", "quiet", &figure(tick));
    }
    *body += &marks;
    y + AXIS
}

/// Draws a name, a dot with its spread, and the figure.
fn mark(axis: &Axis, name: &str, spread: &Spread, y: f64) -> String {
    let (text, middle) = (y + 13.0, y + 9.0);
    let [low, median, high] = [spread.low, spread.median, spread.high].map(|value| axis.place(value));
    format!(
        "{}<line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
         <cycle cx=\"{median:.1}\" cy=\"{middle:.1}\" r=\"4\"/>{}",
        label(NAMES_END, text, "end", "", name),
        label(FIGURES, text, "start", "", &figure(spread.median)),
    )
}

fn label(x: f64, y: f64, anchor: &str, class: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('`', "");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>\n")
}

struct Axis {
    from: f64,
    to: f64,
}

/// The steps that divide a power of ten.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

impl Axis {
    /// Makes an axis that contains all spreads and ends at steps.
    fn over<'a>(spreads: impl Iterator<Item = &'a Spread>) -> Self {
        let bounds = (f64::INFINITY, f64::NEG_INFINITY);
        let (least, most) = spreads.fold(bounds, |(least, most), one| (one.low.min(least), one.high.max(most)));
        // The values must be above zero for the logarithm. An empty table needs an axis as well.
        let (least, most) = (least.clamp(1e-3, 1e9), most.clamp(1e-3, 1e9));
        let from = steps().filter(|&step| step <= least).last().unwrap_or(least);
        let to = steps().find(|&step| step >= most && step > from).unwrap_or(most);
        Self { from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (value.clamp(self.from, self.to) / self.from).ln() / (self.to / self.from).ln();
        PLOT[0] + part * (PLOT[1] - PLOT[0])
    }

    /// Returns all steps if there is room for them, else the powers of ten.
    fn ticks(&self) -> Vec<f64> {
        let ticks: Vec<f64> = steps().filter(|&step| step >= self.from && step <= self.to).collect();
        if ticks.len() <= 7 {
            return ticks;
        }
        ticks.into_iter().filter(|tick| (tick.log10().round() - tick.log10()).abs() < 1e-9).collect()
    }
}

fn steps() -> impl Iterator<Item = f64> {
    (-3..10).flat_map(|power| STEPS.map(|step| step * 10f64.powi(power)))
}
