//! Takes in the lines of a client.

use std::mem;
use std::time::Duration;

use subtle::ConstantTimeEq;

use super::super::event::{Action, Question};
use super::super::line::Line;
use super::look::Look;
use super::state::{Pending, State};
use super::turn::Turn;
use rlock_model::mode::Mode;
use rlock_model::op::Change;
use rlock_model::request::{self, Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;

/// How long a client waits for the answer to a wrong token, so that guessing takes long.
const WRONG_TOKEN_PAUSE: Duration = Duration::from_secs(1);

/// How long the store may take to queue a request. The wait of a request counts from its place in
/// the queue, as in `rlock exec`.
const QUEUE_LIMIT: Duration = Duration::from_secs(5);

/// How long a client waits for a listing. Other questions go first.
const INSPECT_LIMIT: Duration = Duration::from_secs(30);

const NO_LOCK: &str = "error this connection holds no lock: send LOCK first";
const NO_PREWRITE: &str = "error there is nothing to upgrade: hold a prewrite lock first";
const UNKNOWN: &str = "error this line is not understood: send LOCK KEY, UNLOCK or PING, see rlock-serve(8)";

impl Turn<'_> {
    pub(super) fn on_line(&mut self, line: Line, new_id: impl FnOnce() -> SessionId) {
        let is_first = !mem::replace(&mut self.client.has_greeted, true);
        match line {
            Line::Unknown if is_first => {
                self.say(UNKNOWN);
                return self.close();
            }
            Line::Unknown if self.client.holds.first().is_some_and(|hold| hold.plain) => return self.close(),
            Line::Ping => return self.say_after_greeting("pong"),
            Line::Auth(token) => return self.on_token(&token),
            _ if !self.client.is_trusted => {
                self.say("error this server needs a token: send AUTH TOKEN first");
                return self.close();
            }
            Line::Mistake(_) => {}
            _ => self.client.greeting_until = None,
        }
        match line {
            Line::Lock { .. } if !self.client.holds.is_empty() => {
                self.say("error this connection holds a lock already: send UNLOCK first, or use another connection");
            }
            Line::Lock { claims, wait, plain } => self.acquire(new_id(), claims, wait, plain),
            Line::Upgrade(span) => match self.upgrade(span) {
                Ok(claims) => self.acquire(new_id(), claims, None, false),
                Err(text) => self.say(text),
            },
            Line::Unlock => self.unlock(),
            Line::Shrink(span, key) => self.change(key, |resource| Change::Shrink { resource, span }),
            Line::Downgrade(mode, key) => self.change(key, |resource| Change::Downgrade { resource, mode }),
            Line::Inspect(key) => match key.as_ref().filter(|key| !self.rules.serves(key)) {
                Some(key) => self.say(self.rules.refusal(key)),
                None => self.ask(Question::Inspect(key)),
            },
            Line::Mistake(text) => self.say(format!("error {text}")),
            Line::Unknown | Line::Ping | Line::Auth(_) => self.say(UNKNOWN),
        }
    }

    /// A line that a client without the right token may send does not end the time for the token.
    fn say_after_greeting(&mut self, text: &str) {
        if self.client.is_trusted {
            self.client.greeting_until = None;
        }
        self.say(text);
    }

    fn on_token(&mut self, token: &str) {
        let is_right =
            self.rules.token.as_ref().is_none_or(|right| bool::from(right.as_bytes().ct_eq(token.as_bytes())));
        if is_right {
            self.client.is_trusted = true;
            self.say_after_greeting("ok");
        } else {
            self.client.state = State::Refusing { until: self.now + WRONG_TOKEN_PAUSE };
        }
    }

    fn acquire(&mut self, session: SessionId, claims: Vec<Claim>, wait: Option<Duration>, plain: bool) {
        if let Some(claim) = claims.iter().find(|claim| !self.rules.serves(&claim.resource)) {
            return self.say(self.rules.refusal(&claim.resource));
        }
        let is_patient = wait != Some(Duration::ZERO);
        // A request beyond the limit is granted if nothing is in its way, and busy otherwise.
        let is_limited = is_patient && !self.may_wait;
        let waits = is_patient && self.may_wait;
        let until = wait.filter(|_| waits).map(|wait| self.now + QUEUE_LIMIT + wait);
        // Only an upgrade is requested below a hold.
        let above = self.client.holds.last();
        let held_above = above.map(|hold| request::resources(&hold.claims).into_iter().cloned().collect());
        self.actions.push(Action::Acquire {
            session,
            parent: above.map(|hold| hold.session),
            held_above: held_above.unwrap_or_default(),
            claims: claims.clone(),
            wait: waits,
        });
        let look = above.map(|hold| Look::new(session, &claims, &hold.claims));
        let pending = Pending { session, claims, plain, wait, until, is_queued: false, is_limited, look };
        self.client.state = State::Requesting(Box::new(pending));
    }

    /// The claims of an upgrade of the only hold.
    fn upgrade(&self, span: Option<Span>) -> Result<Vec<Claim>, String> {
        let hold = match self.client.holds.as_slice() {
            [] => return Err(NO_PREWRITE.to_owned()),
            [hold] => hold,
            _ => return Err("error the lock is upgraded already: send UNLOCK first".to_owned()),
        };
        let held = hold.claims.iter().filter(|claim| claim.mode == Mode::Prewrite);
        let mut claims: Vec<_> = held.map(|claim| Claim { mode: Mode::Write, ..claim.clone() }).collect();
        match (claims.as_mut_slice(), span) {
            ([], _) => Err(NO_PREWRITE.to_owned()),
            // Beyond its lock the client would wait like any other, and two clients for each other.
            ([claim], Some(span)) if !claim.span.covers(&span) => Err(format!(
                "refused {span} is not inside the prewrite lock on {} of '{}': upgrade that or a part of it",
                claim.span, claim.resource
            )),
            ([claim], Some(span)) => {
                claim.span = span;
                Ok(claims)
            }
            (_, Some(_)) => Err("error UPGRADE LO HI needs exactly one prewrite lock: leave out LO HI".to_owned()),
            (_, None) => Ok(claims),
        }
    }

    fn unlock(&mut self) {
        match self.client.holds.last() {
            // Nobody can tell which came first, the end of the work or that of the lease.
            Some(hold) if hold.deadline.is_some_and(|deadline| deadline <= self.now) => self.end_if_overdue(),
            Some(hold) => {
                self.actions.push(Action::Release(hold.session));
                self.client.state = State::Unlocking;
            }
            None => self.say(NO_LOCK),
        }
    }

    /// Asks for a change of the innermost hold.
    fn change(&mut self, key: Option<Resource>, change: impl FnOnce(Resource) -> Change) {
        let Some(hold) = self.client.holds.last() else {
            return self.say(NO_LOCK);
        };
        let key = match (key, request::resources(&hold.claims).as_slice()) {
            (Some(key), held) if !held.contains(&&key) => {
                return self.say(format!("refused this connection holds nothing of '{key}': name what it holds"));
            }
            (Some(key), _) => key,
            (None, [only]) => Resource::clone(only),
            (None, _) => return self.say("error this connection holds several resources: name one with --resource"),
        };
        self.ask(Question::Change(hold.session, change(key)));
    }

    fn ask(&mut self, question: Question) {
        // A change that the client does not wait for could happen all the same.
        let until = matches!(question, Question::Inspect(_)).then(|| self.now + INSPECT_LIMIT);
        self.actions.push(Action::Ask(question.clone()));
        self.client.state = State::Asking { question, until };
    }
}
