//! Judges the reports of deadlocks by the whole lock table at one instant.

use std::time::Duration;

use rlock_model::deadlock::{self, Graph, Reading};
use rlock_model::op::Op;
use rlock_model::records::{ClaimRecord, Records as _, Session};
use rlock_model::request::SessionId;
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

use super::data::sure;

/// Whether a session is in a cycle, and waits for ever unless a request ends without its grant. A
/// kept hold ends by itself unless it outlasts the request, which waits for so long at most.
pub(super) fn is_in_a_cycle(table: LockTable, now: StoreTime, session: SessionId, wait: Option<Duration>) -> bool {
    let left = sessions(&table);
    let Some(own) = left.get(&session) else { return false };
    let stays = |id, kept: &Session| deadlock::outlasts((id, kept), own, wait);
    let cycles = Graph::seen(&left, stays).cycles();
    cycles.iter().any(|cycle| cycle.contains(&session)) && waits_for_ever(table, now, session, stays)
}

/// Ends every holder that has no waiter below it and every kept hold that ends by itself, until
/// nothing moves. Who still waits then waits for ever.
fn waits_for_ever(
    mut table: LockTable,
    now: StoreTime,
    session: SessionId,
    stays: impl Fn(SessionId, &Session) -> bool,
) -> bool {
    loop {
        let left = sessions(&table);
        let is_above = |id: &SessionId| left.values().any(|other| !other.is_holder() && other.ancestors.contains(id));
        let mut holders = left.iter().filter(|(_, session)| session.is_holder());
        let ends = |id: &SessionId, holder: &Session| holder.is_kept() && !stays(*id, holder) || !is_above(id);
        let Some((done, _)) = holders.find(|(id, holder)| ends(id, holder)) else {
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
