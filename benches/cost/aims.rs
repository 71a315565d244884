//! What the project set out for, and whether it is so.

/// A bound for a figure.
pub(crate) enum Bound {
    /// It is met by this or less.
    AtMost(f64),
    /// It is met by this or more.
    AtLeast(f64),
}

/// An aim, with what was found.
pub(crate) struct Aim {
    /// What the figure is.
    pub(crate) what: String,
    /// What was set out for.
    pub(crate) bound: Bound,
    /// The figure; none where it was not measured.
    pub(crate) figure: Option<f64>,
    /// Its unit.
    pub(crate) unit: &'static str,
}

impl Aim {
    /// How many times what a peer takes.
    pub(crate) fn times(what: String, bound: Bound, figure: Option<f64>) -> Self {
        Self { what, bound, figure, unit: "×" }
    }

    /// Whether it is met.
    pub(crate) fn verdict(&self) -> &'static str {
        let met = match (self.figure, &self.bound) {
            (None, _) => return "not measured",
            (Some(figure), Bound::AtMost(most)) => figure <= *most,
            (Some(figure), Bound::AtLeast(least)) => figure >= *least,
        };
        if met { "met" } else { "missed" }
    }
}
