//! Takes in what the store reports about the sessions of a client.

use std::mem;

use super::super::event::{Action, Question};
use super::ending::LATE;
use super::state::{Hold, Pending, State};
use super::turn::Turn;
use rlock_model::request::SessionId;
use rlock_show::messages::Messages;
use rlock_store::sessions::Report;
use rlock_store::{self as store, Grant, Released, Standing};
use rlock_sys::clock::Boottime;

impl Turn<'_> {
    pub(super) fn on_report(&mut self, session: SessionId, report: Report) {
        if let Some(at) = self.client.releasing.iter().position(|(releasing, _)| *releasing == session) {
            if let Report::Released(released) = report
                && let (_, Some(claims)) = self.client.releasing.swap_remove(at)
            {
                self.note_release(&self.messages(&claims, session), &released);
            }
            return;
        }
        match report {
            Report::Standing(standing) => match &mut self.client.state {
                State::Requesting(pending) if pending.session == session => self.on_standing(standing),
                _ => self.on_hold(session, standing),
            },
            Report::Released(released) => match mem::replace(&mut self.client.state, State::Idle) {
                State::Unlocking => self.on_unlocked(&released),
                State::Leaving { pending, until } => self.on_left(pending, until),
                state => self.client.state = state,
            },
        }
    }

    fn on_standing(&mut self, standing: Result<Standing, store::Error>) {
        let State::Requesting(mut pending) = mem::replace(&mut self.client.state, State::Idle) else { return };
        let messages = self.messages(&pending.claims, pending.session);
        match standing {
            Ok(Standing::Asking) => self.client.state = State::Requesting(pending),
            Ok(Standing::Waiting) => {
                let is_new = !mem::replace(&mut pending.is_queued, true);
                if is_new && !self.may_wait {
                    // It was not known before that the request has to wait.
                    pending.is_limited = true;
                    return self.end_wait(pending);
                }
                if is_new {
                    pending.until = pending.until.and(pending.wait).map(|wait| self.now + wait);
                    pending.look.iter_mut().for_each(|look| look.begin(self.now));
                }
                self.client.state = State::Requesting(pending);
            }
            Ok(Standing::Granted(grant)) => self.on_grant(*pending, &grant, &messages),
            Ok(Standing::Busy { obstructions, .. }) => self.say_busy(&pending, &obstructions),
            Ok(Standing::Refused(refusal)) => self.say(format!("refused {refusal}")),
            // The requests of clients belong to no job.
            Ok(Standing::AlreadyDone | Standing::Superseded { .. }) => self.say("refused by an earlier run".to_owned()),
            // The place in the queue was revoked. What the client holds besides is not lost.
            Ok(Standing::Lost) => self.say(format!("unavailable {}", messages.taken_away())),
            Err(store::Error::Unavailable(reason)) => {
                self.say(format!("unavailable {}", messages.cannot_lock(&reason)));
            }
            Err(error) => self.say_failure(error),
        }
    }

    fn on_grant(&mut self, pending: Pending, grant: &Grant, messages: &Messages) {
        let Pending { session, claims, plain, .. } = pending;
        // The work of the client would begin with less than a grace to stop. The client does not
        // know of the grant, so a release now ends nobody's work.
        if self.is_overdue(grant.deadline) || self.client.holds.iter().any(|hold| self.is_overdue(hold.deadline)) {
            self.release(session, None);
            return self.say(format!("unavailable {}", messages.cannot_lock(&LATE)));
        }
        let token = grant.tokens.iter().max().copied().unwrap_or_default();
        self.log(format!("locked {}, token {token}", messages.names()));
        self.say(if plain { "ok".to_owned() } else { format!("ok {token}") });
        self.client.holds.push(Hold { session, claims, deadline: grant.deadline, plain });
    }

    fn on_hold(&mut self, session: SessionId, standing: Result<Standing, store::Error>) {
        let Some(at) = self.client.holds.iter().position(|hold| hold.session == session) else { return };
        let is_lingering = matches!(self.client.state, State::Lingering { .. });
        if let Ok(Standing::Granted(grant)) = standing {
            let hold = &mut self.client.holds[at];
            hold.deadline = grant.deadline;
            if grant.is_revoked && !is_lingering {
                let claims = hold.claims.clone();
                let text = self.messages(&claims, session).taken_away();
                self.report_lost(&text);
                self.linger();
            }
            return;
        }
        let hold = self.client.holds.remove(at);
        if !is_lingering {
            let messages = self.messages(&hold.claims, session);
            self.report_lost(&match standing {
                Err(error) => messages.not_renewed(Some(&error.to_string())),
                Ok(_) => messages.taken_away(),
            });
            self.linger();
        }
        self.release_hold(hold);
        self.end_if_released();
    }

    fn on_unlocked(&mut self, released: &Result<Released, store::Error>) {
        let Some(hold) = self.client.holds.pop() else { return };
        let messages = self.messages(&hold.claims, hold.session);
        match released {
            Ok(Released::Done | Released::Kept) => {
                self.log(format!("unlocked {}", messages.names()));
                self.say("ok");
            }
            Ok(Released::Lost) => {
                self.client.has_lost = true;
                self.log(format!("lost {}", messages.names()));
                self.say("lost");
            }
            Err(error) => {
                let text = messages.not_confirmed(error);
                self.log(text.clone());
                self.say(format!("unavailable {text}"));
            }
        }
        self.close_if_drained();
    }

    /// Logs the result of a release that is not reported to the client.
    fn note_release(&mut self, messages: &Messages, released: &Result<Released, store::Error>) {
        match released {
            // The log has the loss already.
            Ok(_) if self.client.has_lost => {}
            Ok(Released::Done | Released::Kept) => self.log(format!("unlocked {}", messages.names())),
            Ok(Released::Lost) => self.log(format!("lost {}", messages.names())),
            Err(error) => self.actions.push(Action::Warn(messages.not_confirmed(error))),
        }
    }

    /// The request has left the queue.
    fn on_left(&mut self, pending: Box<Pending>, until: Boottime) {
        let resources = pending.claims.iter().map(|claim| claim.resource.clone()).collect();
        self.actions.push(Action::Ask(Question::Obstructions(resources)));
        self.client.state = State::Explaining { pending, until };
    }
}
