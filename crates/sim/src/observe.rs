//! Shows the checkers what the nodes do for calls.

use super::server::{Consequences, Replied};
use super::wire::{Call, Operation};
use super::world::World;
use rlock_model::mode::{Mode, Nesting};
use rlock_model::op::Change;
use rlock_model::request::{self, Claim, SessionId};
use rlock_model::tables::SUPERSEDED_MAX;
use rlock_redis::codec::ScriptReply;
use rlock_store::Standing;

impl World {
    /// Shows the checkers what the primary has done for a call.
    pub(super) fn check(&mut self, also: &Consequences) {
        also.session.into_iter().for_each(|session| self.checkers.count_call(session));
        also.displaced.into_iter().for_each(|session| self.checkers.displace(session));
        for session in &also.broken {
            self.checkers.break_grant(*session);
            self.checkers.end_hold(*session, false, also.now, self.now);
        }
        also.revoked.iter().for_each(|session| self.checkers.revoke(*session));
        let server = &self.nodes[self.primary].server;
        for (number, granted) in also.granted.iter().enumerate() {
            let has_joined = |other| also.joined.is_none_or(|(session, before)| session != other || before <= number);
            self.checkers.check_order(*granted, |other| has_joined(other) && server.waits(other));
        }
    }

    /// Shows the checkers what a session asks for over a connection, whichever node answers.
    pub(super) fn check_call(&mut self, id: usize, call: &Call, reply: &Replied) {
        let (Ok(reply), checkers) = (reply, &mut self.checkers) else { return };
        match (&call.operation, reply) {
            (Operation::Renew { session, .. }, ScriptReply::Need(names)) => checkers.need(*session, id, names),
            (_, ScriptReply::Need(_)) => {}
            (Operation::Renew { session, .. }, _) => checkers.check_names(*session, id, &call.resources),
            (Operation::Acquire { request, .. }, _) => checkers.check_request(request.session, id),
            (Operation::Release { session, .. }, _) => checkers.release(*session, id),
            _ => {}
        }
    }

    /// Shows the checkers which part of its lock a session has given up, or for how long the server
    /// keeps the lock.
    fn check_change(&mut self, call: &Call, reply: &ScriptReply, also: &Consequences) {
        let (now, checkers) = (self.now, &mut self.checkers);
        let node = &self.nodes[self.primary];
        let server_now = node.store_time(now);
        match (&call.operation, reply) {
            (Operation::Change { session, change }, ScriptReply::Done | ScriptReply::Granted { .. }) => match change {
                Change::Shrink { resource, span } => checkers.shrink(*session, resource, span, now),
                Change::Downgrade { resource, mode } => checkers.lower(*session, resource, *mode, now),
                Change::Extend { by } => {
                    let clocks = call.resources.iter().map(|name| node.server.data.clock([name]).max(server_now));
                    // What the operation has granted may have moved the clock on afterwards.
                    let first = clocks.min().map_or(also.now, |first| first.min(also.now));
                    checkers.extend(*session, *by, first..=also.now);
                }
            },
            (Operation::Release { session, end }, ScriptReply::Released(_)) => {
                checkers.end_hold(*session, end.is_some(), also.now, now);
            }
            _ => {}
        }
    }

    /// Shows the checkers the result of a call.
    pub(super) fn check_result(&mut self, call: &Call, reply: &Replied, also: &Consequences) {
        let Ok(reply) = reply else { return };
        self.check_jobs(call, reply, also);
        self.check_crowd(call, reply, also);
        self.check_superseded(call, reply, also);
        self.check_change(call, reply, also);
        let node = &self.nodes[self.primary];
        let Some(id) = call.operation.session() else { return };
        if let Some(session) = node.server.session(id).filter(|session| session.is_kept()) {
            let ends = session.expiry.map(|expiry| node.when_store_time(expiry)).unwrap_or_default();
            self.checkers.keep(id, session.expiry, ends, node.ahead(session, self.now));
        }
    }

    /// Shows the checkers what the primary grants, skips or takes for done, in this order.
    fn check_jobs(&mut self, call: &Call, reply: &ScriptReply, also: &Consequences) {
        let (before, after) = also.granted.split_at(also.granted_before);
        match (&call.operation, reply) {
            (Operation::Release { session, end: Some(end) }, ScriptReply::Released(_) | ScriptReply::KeptUntil(_))
                if end.is_success =>
            {
                self.checkers.succeed(*session, before.contains(session).then_some(also.now));
            }
            _ => {}
        }
        let (passed_before, passed_after) = also.passed.split_at(also.passed_before);
        before.iter().for_each(|session| self.check_grant(*session));
        passed_before.iter().for_each(|session| self.checkers.pass_over(*session));
        match (&call.operation, reply) {
            (Operation::Acquire { request, .. }, ScriptReply::Over(Standing::AlreadyDone)) => {
                self.checkers.check_done(request.session, also.now);
            }
            (operation, ScriptReply::Over(Standing::Busy { streak, .. } | Standing::Superseded { streak, .. })) => {
                let session = operation.session().expect("a session is told that it is busy");
                self.checkers.check_skip(session, streak.as_ref(), also.now);
            }
            _ => {}
        }
        after.iter().for_each(|session| self.check_grant(*session));
        passed_after.iter().for_each(|session| self.checkers.pass_over(*session));
        also.done.iter().for_each(|session| self.checkers.check_done(*session, also.now));
        also.gone.iter().for_each(|session| self.checkers.doubt(*session));
        // The grants may have come before the skip or after it.
        if let (Operation::GiveUp(_), ScriptReply::Over(Standing::Busy { .. })) = (&call.operation, reply) {
            before.iter().for_each(|session| self.checkers.doubt(*session));
        }
    }

    /// Shows the checkers what the primary grants without a call.
    pub(super) fn check_grants(&mut self, also: &Consequences) {
        also.granted.iter().for_each(|session| self.check_grant(*session));
        also.passed.iter().for_each(|session| self.checkers.pass_over(*session));
        also.done.iter().for_each(|session| self.checkers.check_done(*session, also.now));
    }

    fn check_grant(&mut self, id: SessionId) {
        let server = &self.nodes[self.primary].server;
        let Some(session) = server.session(id) else { return };
        let around =
            || session.ancestors.iter().filter_map(|id| server.session(*id).filter(|session| session.is_holder()));
        let covers = |held: &Claim, claim: &Claim| {
            let can_become = held.mode == Mode::Prewrite && claim.mode == Mode::Write;
            let is_inside = held.resource == claim.resource && held.span.covers(&claim.span);
            is_inside && (can_become || claim.mode.below(held.mode) == Nesting::AtOnce)
        };
        let held: Vec<_> = around().flat_map(|session| &session.claims).map(|record| &record.claim).collect();
        let is_covered = session.claims.iter().all(|record| held.iter().any(|held| covers(held, &record.claim)));
        self.checkers.grant(id, session.since, around().count() < session.ancestors.len(), is_covered);
    }

    /// Checks that no waiter of the job is left behind a request that supersedes them, and that a
    /// superseded request has been followed by one that supersedes it.
    fn check_superseded(&mut self, call: &Call, reply: &ScriptReply, also: &Consequences) {
        let Operation::Acquire { request, place, .. } = &call.operation else { return };
        let is_new = *place == 0 && also.joined.is_some() && request.job.supersedes && also.crowd <= SUPERSEDED_MAX;
        if is_new && matches!(reply, ScriptReply::Waiting { .. } | ScriptReply::Granted { .. }) {
            let server = &self.nodes[self.primary].server;
            let names = request::resources(&request.claims);
            let mut left: Vec<_> = names.iter().flat_map(|name| server.waiters_of(name, &request.job.name)).collect();
            left.retain(|id| *id != request.session && !request.ancestors.contains(id));
            if !left.is_empty() {
                self.checkers.violations.push(format!("{:?} leaves {left:?} in the queue", call.operation));
            }
        }
        if let ScriptReply::Over(Standing::Superseded { .. }) = reply {
            self.checkers.check_superseded(request.session);
        }
    }

    /// Checks that a request with `--max-waiting` waits if fewer sessions do, and only then.
    fn check_crowd(&mut self, call: &Call, reply: &ScriptReply, also: &Consequences) {
        let Operation::Acquire { request, place: 0, .. } = &call.operation else { return };
        if also.joined.is_none() || !request.wait {
            return;
        }
        let server = &self.nodes[self.primary].server;
        let names = request::resources(&request.claims);
        let crowd = names.into_iter().map(|name| server.waiting(name)).max().unwrap_or_default();
        let max = request.job.max_waiting.map_or(usize::MAX, |max| max as usize);
        let is_wrong = match reply {
            // The request is one of those that wait.
            ScriptReply::Waiting { .. } => crowd > max,
            ScriptReply::Over(Standing::Busy { .. }) => crowd < max,
            _ => false,
        };
        if is_wrong {
            let violation = format!("{:?} with {crowd} waiters: {reply:?}", call.operation);
            self.checkers.violations.push(violation);
        }
    }
}
