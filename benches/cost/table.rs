//! Figures with their spreads, and tables of them.

use super::aims::Aim;

/// The results of a section.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) tables: Vec<Table>,
    pub(crate) aims: Vec<Aim>,
}

/// The median of the measurements, and their spread from the 10th to the 90th percentile.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    /// The 10th percentile.
    pub(crate) low: f64,
    pub(crate) median: f64,
    /// The 90th percentile.
    pub(crate) high: f64,
}

impl Spread {
    /// Computes the spread of the measurements, or none without measurements.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |percent: usize| values[(values.len() - 1) * percent / 100];
        (!values.is_empty()).then(|| Self { low: at(10), median: at(50), high: at(90) })
    }

    /// A single figure without a spread.
    pub(crate) fn exactly(value: f64) -> Self {
        Self { low: value, median: value, high: value }
    }
}

/// A table: one row for each candidate, one column for each situation.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// How the figures were measured.
    pub(crate) about: String,
    /// The situations.
    pub(crate) columns: Vec<String>,
    /// The row to which all other rows are compared.
    pub(crate) against: Option<&'static str>,
    pub(crate) rows: Vec<Row>,
    /// Whether the table belongs into the chart.
    pub(crate) drawn: bool,
}

/// The figures of one candidate.
pub(crate) struct Row {
    /// The name of the candidate.
    pub(crate) name: String,
    /// One figure for each column, or none if nothing was measured.
    pub(crate) cells: Vec<Option<Spread>>,
}

impl Table {
    /// Returns the median of a row in a column.
    pub(crate) fn median(&self, row: &str, column: usize) -> Option<f64> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        row.cells.get(column)?.map(|spread| spread.median)
    }

    /// Returns the median of `row` divided by the median of `other`.
    pub(crate) fn ratio(&self, row: &str, other: &str, column: usize) -> Option<f64> {
        Some(self.median(row, column)? / self.median(other, column)?)
    }
}
