//! Judges the reports of deadlocks by the whole lock table at one instant.

use crate::lock::deadlock::{Graph, Reading};
use crate::lock::op::Op;
use crate::lock::records::{ClaimRecord, Records as _};
use crate::lock::request::SessionId;
use crate::lock::table::LockTable;
use crate::system::clock::StoreTime;

use super::data::sure;

/// Whether a session is in a cycle, and waits for ever unless a request ends without its grant.
pub(super) fn is_in_a_cycle(table: LockTable, now: StoreTime, session: SessionId) -> bool {
    let cycles = Graph::new(&sessions(&table)).cycles();
    cycles.iter().any(|cycle| cycle.contains(&session)) && waits_for_ever(table, now, session)
}

/// Ends every holder that has no waiter below it, until nothing moves. Who still waits then waits
/// for ever.
fn waits_for_ever(mut table: LockTable, now: StoreTime, session: SessionId) -> bool {
    loop {
        let left = sessions(&table);
        let is_above = |id: &SessionId| left.values().any(|other| !other.is_holder() && other.ancestors.contains(id));
        let mut holders = left.iter().filter(|(_, session)| session.is_holder());
        let Some((done, _)) = holders.find(|(id, holder)| holder.is_kept() || !is_above(id)) else {
            return left.contains_key(&session);
        };
        sure(table.apply(now, Op::Release { session: *done, end: None }));
    }
}

fn sessions(table: &LockTable) -> Reading {
    let names = sure(table.records().resources());
    let ids = names.iter().flat_map(|name| sure(table.sessions_of(name, |_| true)));
    ids.filter_map(|id| Some((id, table.records().get(id)?.clone()))).collect()
}

/// The holders and waiters, each with its claims and the sessions around it.
pub(super) fn shown(table: &LockTable) -> String {
    let short = |id: &SessionId| u128::from_be_bytes(id.0) & u128::from(u64::MAX);
    let lines = sessions(table).into_iter().map(|(id, session)| {
        let claims = session.claims.iter().map(|record| {
            let ClaimRecord { claim, rank, .. } = record;
            format!("{} {} {} of {:?} {rank:?}", claim.mode, claim.resource, claim.span, claim.slots)
        });
        let claims = claims.collect::<Vec<_>>().join(", ");
        let above = session.ancestors.iter().map(short).collect::<Vec<_>>();
        format!("\n{} {:?} below {above:?}: {claims}", short(&id), session.phase)
    });
    lines.collect()
}
