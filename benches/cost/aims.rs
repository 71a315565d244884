//! The aims of the project, and whether the figures meet them.

/// The bound that a figure has to meet.
pub(crate) enum Bound {
    /// The figure must not exceed this.
    AtMost(f64),
    /// The figure must not be below this.
    AtLeast(f64),
}

/// An aim with its figure.
pub(crate) struct Aim {
    /// The name of the figure.
    pub(crate) what: String,
    pub(crate) bound: Bound,
    /// The figure, or none if it was not measured.
    pub(crate) figure: Option<f64>,
    pub(crate) unit: &'static str,
}

impl Aim {
    /// Makes an aim for the ratio of a figure to the figure of a peer.
    pub(crate) fn times(what: String, bound: Bound, figure: Option<f64>) -> Self {
        Self { what, bound, figure, unit: "×" }
    }

    /// Returns whether the figure meets the bound, as a word.
    pub(crate) fn verdict(&self) -> &'static str {
        let met = match (self.figure, &self.bound) {
            (None, _) => return "not measured",
            (Some(figure), Bound::AtMost(most)) => figure <= *most,
            (Some(figure), Bound::AtLeast(least)) => figure >= *least,
        };
        if met { "met" } else { "missed" }
    }
}
