//! What a server knows about locks, which a restart or a failover may lose.

use std::collections::BTreeMap;

use crate::clock::StoreTime;
use crate::lock::op::{Op, Outcome, Reply};
use crate::lock::request::SessionId;
use crate::lock::table::LockTable;

#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) table: LockTable,
    pub(super) channels: BTreeMap<SessionId, Channel>,
    /// The instant of the last change. Time never goes back, whatever the clock says.
    clock: StoreTime,
}

/// The channel of a session.
#[derive(Clone)]
pub(super) struct Channel {
    pub(super) name: String,
    /// Whether the session said that it is subscribed.
    pub(super) is_listening: bool,
}

/// A change, which a replica makes too.
#[derive(Clone)]
pub(super) enum Effect {
    Apply { now: StoreTime, op: Op, caller: Option<SessionId> },
    Listen(SessionId, Channel),
}

/// Unwraps a result of records in memory, which never fail.
pub(super) fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Data {
    /// The instant, which is never before the last change.
    pub(super) fn time(&self, now: StoreTime) -> StoreTime {
        now.max(self.clock)
    }

    /// Applies an operation and forgets the channels of the sessions that have left.
    pub(super) fn apply(&mut self, now: StoreTime, op: Op, caller: Option<SessionId>) -> Outcome {
        self.clock = self.time(now);
        let outcome = sure(self.table.apply(self.clock, op));
        let stays = matches!(outcome.reply, Reply::Granted { .. } | Reply::Waiting);
        self.channels.retain(|id, _| !outcome.expired.contains(id) && (stays || Some(*id) != caller));
        outcome
    }

    /// Repeats a change that the primary has made.
    pub(super) fn repeat(&mut self, effect: Effect) {
        match effect {
            Effect::Apply { now, op, caller } => drop(self.apply(now, op, caller)),
            Effect::Listen(session, channel) => drop(self.channels.insert(session, channel)),
        }
    }
}
