//! Figures: a median with its spread, and tables of them.

use super::aims::Aim;

/// What a section found.
#[derive(Default)]
pub(crate) struct Findings {
    /// The figures.
    pub(crate) tables: Vec<Table>,
    /// What they say about the aims.
    pub(crate) aims: Vec<Aim>,
}

/// The middle of what was measured, and how far it spreads: from the 10th to the 90th of a hundred.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    /// A tenth is less.
    pub(crate) low: f64,
    /// Half is less.
    pub(crate) median: f64,
    /// A tenth is more.
    pub(crate) high: f64,
}

impl Spread {
    /// Of many measurements; none where there are none.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |percent: usize| values[(values.len() - 1) * percent / 100];
        (!values.is_empty()).then(|| Self { low: at(10), median: at(50), high: at(90) })
    }

    /// A figure that does not spread.
    pub(crate) fn exactly(value: f64) -> Self {
        Self { low: value, median: value, high: value }
    }
}

/// Figures that belong together: a row for each who was measured, a column for each situation.
pub(crate) struct Table {
    /// What the figures are.
    pub(crate) title: &'static str,
    /// Their unit.
    pub(crate) unit: &'static str,
    /// How they came about.
    pub(crate) about: String,
    /// The situations.
    pub(crate) columns: Vec<String>,
    /// The row whose figures all others are compared with.
    pub(crate) against: Option<&'static str>,
    /// Who was measured.
    pub(crate) rows: Vec<Row>,
    /// Whether it is drawn.
    pub(crate) drawn: bool,
}

/// Who was measured, and what was found in each situation.
pub(crate) struct Row {
    /// Who.
    pub(crate) name: String,
    /// One figure for each column; none where nothing was measured.
    pub(crate) cells: Vec<Option<Spread>>,
}

impl Table {
    /// The median of a row in a column.
    pub(crate) fn median(&self, row: &str, column: usize) -> Option<f64> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        row.cells.get(column)?.map(|spread| spread.median)
    }

    /// How many times the median of another row that of a row is.
    pub(crate) fn ratio(&self, row: &str, other: &str, column: usize) -> Option<f64> {
        Some(self.median(row, column)? / self.median(other, column)?)
    }
}
