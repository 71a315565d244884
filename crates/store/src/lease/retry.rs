//! Decides which failures are worth a retry.

/// What a failure of a store says about the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The failure does not pass.
    Permanent,
    /// Nobody answers at the only address.
    Absent,
    /// The failure may pass, but suggests that the URL names the wrong server.
    WrongServer,
    /// The failure may pass.
    Transient,
}

/// How persistently a client retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not at all.
    Never,
    /// While the failure may pass and does not suggest that the URL names the wrong server.
    WhileUp,
    /// Like [`WhileUp`](Self::WhileUp), and while nobody is there: the server may be about to
    /// start, or to come back.
    UntilUp,
    /// While the failure may pass: this server has answered before, so it is the right one.
    WhileDown,
    /// After every failure: the lease of a holder decides when to stop.
    Always,
}

impl Retry {
    /// Whether to retry after a failure of this class.
    pub fn covers(self, failure: FailureClass) -> bool {
        match self {
            Self::Never => false,
            Self::WhileUp => failure == FailureClass::Transient,
            Self::UntilUp => matches!(failure, FailureClass::Transient | FailureClass::Absent),
            Self::WhileDown => failure != FailureClass::Permanent,
            Self::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns are Permanent, Absent, WrongServer and Transient.
    #[test]
    fn persistence_decides_which_failures_are_retried() {
        use FailureClass::*;
        for (retry, expected) in [
            (Retry::Never, [false, false, false, false]),
            (Retry::WhileUp, [false, false, false, true]),
            (Retry::UntilUp, [false, true, false, true]),
            (Retry::WhileDown, [false, true, true, true]),
            (Retry::Always, [true, true, true, true]),
        ] {
            assert_eq!(
                [Permanent, Absent, WrongServer, Transient].map(|class| retry.covers(class)),
                expected,
                "{retry:?}"
            );
        }
    }
}
