//! Decides which failures are worth a retry.

use std::time::Duration;

use crate::lock::request::SessionId;
use crate::store::redis::failure::ErrorKind;
use crate::store::redis::target::Kind;

/// How persistently an exchange retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
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
    /// Whether to retry after a failure at a store of this kind.
    pub(super) fn covers(self, failure: &ErrorKind, store: &Kind) -> bool {
        match self {
            Self::Never => false,
            Self::WhileUp => failure.is_transient() && !suggests_wrong_server(failure, store),
            Self::UntilUp => failure.is_transient() && (is_absent(failure) || !suggests_wrong_server(failure, store)),
            Self::WhileDown => failure.is_transient(),
            Self::Always => true,
        }
    }
}

/// Whether nobody answers at the address.
fn is_absent(failure: &ErrorKind) -> bool {
    matches!(failure, ErrorKind::Refused | ErrorKind::NoSocket | ErrorKind::Unresolved(_) | ErrorKind::Unreachable(_))
}

/// Whether the failure suggests that the URL names the wrong server. Where the URL leads to several
/// servers, another one may be right.
pub(super) fn suggests_wrong_server(failure: &ErrorKind, store: &Kind) -> bool {
    let suggests = is_absent(failure) || matches!(failure, ErrorKind::ReadOnly | ErrorKind::OutOfMemory);
    suggests && *store == Kind::Single
}

/// The part of a pause that a session waits after so many failures, between half and all of it. A
/// server that comes back is not asked by all sessions at once.
pub(super) fn spread(pause: Duration, session: SessionId, failures: u32) -> Duration {
    let byte = session.0[failures as usize % session.0.len()];
    pause / 2 + pause / 2 * u32::from(byte) / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::failure::Stage;

    /// The columns are WhileUp at a single server, WhileUp at several, and WhileDown at either.
    #[test]
    fn retries_depend_on_failure_persistence_and_store() {
        use ErrorKind::*;
        let text = String::new;
        let (single, cluster) = (Kind::Single, Kind::Cluster);
        let sentinel = Kind::Sentinel { master: text() };
        for (failure, expected) in [
            (Refused, [false, true, true]),
            (NoSocket, [false, true, true]),
            (Unresolved(text()), [false, true, true]),
            (Unreachable(text()), [false, true, true]),
            (ReadOnly, [false, true, true]),
            (OutOfMemory, [false, true, true]),
            (TimedOut(Stage::Used), [true, true, true]),
            (Closed(Stage::Used), [true, true, true]),
            (ConnectionFailed(text()), [true, true, true]),
            (Loading, [true, true, true]),
            (ClusterDown, [true, true, true]),
            (Migrating, [true, true, true]),
            (Busy, [true, true, true]),
            (MasterDown, [true, true, true]),
            (CannotSave, [true, true, true]),
            (TooFewReplicas, [true, true, true]),
            (TooManyClients, [true, true, true]),
            (QueueFull, [true, true, true]),
            (NotTheMaster, [true, true, true]),
            (LostReplica, [true, true, true]),
            (NotAllowed, [false, false, false]),
            (NoPassword, [false, false, false]),
            (TooOld, [false, false, false]),
            (UnexpectedReply, [false, false, false]),
            (ForeignValue(text()), [false, false, false]),
            (Other(text()), [false, false, false]),
        ] {
            for store in [&sentinel, &cluster] {
                assert_eq!(Retry::WhileUp.covers(&failure, store), expected[1], "{failure:?} {store:?}");
            }
            assert_eq!(Retry::WhileUp.covers(&failure, &single), expected[0], "{failure:?}");
            let is_absent = matches!(failure, Refused | NoSocket | Unresolved(_) | Unreachable(_));
            assert_eq!(Retry::UntilUp.covers(&failure, &single), expected[0] || is_absent, "{failure:?}");
            for store in [&single, &sentinel, &cluster] {
                assert_eq!(Retry::WhileDown.covers(&failure, store), expected[2], "{failure:?} {store:?}");
                assert!(Retry::Always.covers(&failure, store), "{failure:?} {store:?}");
                assert!(!Retry::Never.covers(&failure, store), "{failure:?} {store:?}");
            }
        }
    }

    #[test]
    fn sessions_wait_for_different_parts_of_a_pause() {
        let pause = Duration::from_millis(400);
        let parts: Vec<_> = (0..=255).map(|byte| spread(pause, SessionId([byte; 16]), u32::MAX)).collect();
        assert_eq!([parts[0], parts[255]], [pause / 2, pause]);
        assert!(parts.is_sorted_by(|one, next| one < next));
        assert_eq!(spread(Duration::ZERO, SessionId([7; 16]), 1), Duration::ZERO);
    }
}
