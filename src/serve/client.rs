//! Decides everything about one client: what each of its lines, each report of the store and each
//! instant means for its locks.
//!
//! A client has no clock, no socket and no randomness. The client takes in each [`Event`] with the
//! instant at which the event happened, and returns the [`Action`]s that follow.

use std::mem;
use std::time::Duration;

use subtle::ConstantTimeEq;

use self::look::Look;
use super::event::{Action, Answer, Event, Question};
use super::line::Line;
use super::rules::Rules;
use crate::lock::mode::Mode;
use crate::lock::request::{self, Claim, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;
use crate::show::messages::{self, Messages};
use crate::store::sessions::Event as Report;
use crate::store::{self, Changed, Grant, Obstruction, Released, Standing};
use crate::system::clock::Boottime;
use crate::words;

/// How long a client may take until its first line is understood, and until its token is right.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// How long a client waits for the answer to a wrong token, so that guessing takes long.
const WRONG_TOKEN_PAUSE: Duration = Duration::from_secs(1);

/// How long the store may take to queue a request. The wait of a request counts from its place in
/// the queue, as in `rlock exec`.
const QUEUE_LIMIT: Duration = Duration::from_secs(5);

/// How long a request whose wait is over waits for the store to leave the queue, and to learn who
/// was in the way.
const EXPLANATION_LIMIT: Duration = Duration::from_secs(1);
/// How long a client waits for a listing. Other questions go first.
const INSPECT_LIMIT: Duration = Duration::from_secs(30);

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    state: State,
    /// The locks that the client holds: none, one, or a prewrite lock and its upgrade.
    holds: Vec<Hold>,
    /// Whether a line of the client has been understood.
    has_greeted: bool,
    /// Until when the client has to send a line that is understood, and the right token.
    greeting_until: Option<Boottime>,
    /// Whether the token is right, or none is needed.
    is_trusted: bool,
    is_draining: bool,
    /// Whether the store took a lock of this client away.
    has_lost: bool,
    /// The sessions whose release was begun and whose result is not told to the client, with the
    /// claims of a hold.
    leaving: Vec<(SessionId, Option<Vec<Claim>>)>,
}

#[derive(Debug)]
enum State {
    Idle,
    /// The store has a request.
    Requesting(Box<Pending>),
    /// The request's wait is over, and it leaves the queue. The client is answered at `until` at
    /// the latest.
    Leaving {
        pending: Box<Pending>,
        until: Boottime,
    },
    /// The store is asked who was in the way of the request. The same limit holds.
    Explaining {
        pending: Box<Pending>,
        until: Boottime,
    },
    Unlocking,
    /// The store is asked a question.
    Asking {
        question: Question,
        until: Option<Boottime>,
    },
    /// The token was wrong.
    Refusing {
        until: Boottime,
    },
    /// The connection is closed because a lock is lost. The client stops its work until the rest is
    /// released at `until`.
    Lingering {
        until: Boottime,
    },
    /// The connection is closed.
    Closed,
}

#[derive(Debug)]
struct Hold {
    session: SessionId,
    claims: Vec<Claim>,
    /// Until when the lease lasts, if there is one.
    deadline: Option<Boottime>,
    /// Whether `LOCK KEY` made the hold, so that any foreign line ends it.
    plain: bool,
}

#[derive(Debug)]
struct Pending {
    session: SessionId,
    claims: Vec<Claim>,
    plain: bool,
    wait: Option<Duration>,
    /// When the wait is over.
    until: Option<Boottime>,
    /// Whether the store has queued the request.
    is_queued: bool,
    /// Whether the request does not wait because too many others do.
    is_limited: bool,
    /// The search for a deadlock, for a request below a hold.
    look: Option<Look>,
}

impl Client {
    /// A client that connected at `now`. `has_time` is false for a client that must say something
    /// soon.
    pub(super) fn new(rules: &Rules, now: Boottime, has_time: bool) -> Self {
        Self {
            state: State::Idle,
            holds: Vec::new(),
            has_greeted: false,
            greeting_until: (!has_time).then(|| now + GREETING_LIMIT),
            is_trusted: rules.token.is_none(),
            is_draining: false,
            has_lost: false,
            leaving: Vec::new(),
        }
    }

    /// Whether the client's next line can be taken in now.
    pub(super) fn takes_lines(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether the client waits for the answer to [`Action::Ask`].
    pub(super) fn asks(&self) -> bool {
        match &self.state {
            State::Explaining { .. } | State::Asking { .. } => true,
            State::Requesting(pending) => pending.look.as_ref().is_some_and(Look::reads),
            _ => false,
        }
    }

    /// Whether the client holds a lock.
    pub(super) fn holds(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Whether the store has queued the client's request.
    pub(super) fn is_queued(&self) -> bool {
        matches!(&self.state, State::Requesting(pending) if pending.is_queued)
    }

    /// Whether the connection is closed and the store has no session of this client any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Closed) && self.leaving.is_empty()
    }

    /// Whether the store took a lock of this client away.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// The instant at which [`Event::Tick`] is due.
    pub(super) fn timeout(&self, rules: &Rules) -> Option<Boottime> {
        let of_state = match &self.state {
            State::Closed => return None,
            State::Requesting(pending) => {
                pending.until.into_iter().chain(pending.look.as_ref().and_then(Look::at)).min()
            }
            State::Asking { until, .. } => *until,
            State::Leaving { until, .. } | State::Explaining { until, .. } | State::Refusing { until } => Some(*until),
            State::Lingering { until } => return Some(*until),
            _ => None,
        };
        let of_holds = self.needed().iter().filter_map(|hold| rules.overdue_at(hold.deadline));
        of_holds.chain(of_state).chain(self.greeting_until).min()
    }

    /// The holds that the work of the client needs. The work below a hold that the client gives
    /// back is over.
    fn needed(&self) -> &[Hold] {
        match (&self.state, self.holds.as_slice()) {
            (State::Unlocking, [rest @ .., _]) => rest,
            (_, holds) => holds,
        }
    }

    /// Takes in an event that happened at `now`. `new_id` makes the id of a new session, and
    /// `may_wait` says whether one more request may wait.
    pub(super) fn on(
        &mut self,
        event: Event,
        now: Boottime,
        rules: &Rules,
        may_wait: bool,
        new_id: impl FnOnce() -> SessionId,
    ) -> Vec<Action> {
        let mut turn = Turn { client: self, rules, now, may_wait, actions: Vec::new() };
        turn.on(event, new_id);
        turn.actions
    }
}

/// One event with what it causes.
struct Turn<'a> {
    client: &'a mut Client,
    rules: &'a Rules,
    now: Boottime,
    may_wait: bool,
    actions: Vec<Action>,
}

impl Turn<'_> {
    fn on(&mut self, event: Event, new_id: impl FnOnce() -> SessionId) {
        match event {
            Event::Report(session, report) => self.on_report(session, report),
            Event::Tick => self.on_tick(),
            _ if matches!(self.client.state, State::Closed | State::Lingering { .. }) => {}
            Event::Line(line) => self.on_line(line, new_id),
            Event::LineTooLong => {
                self.say("error the line is too long: send at most 4096 bytes");
                self.close();
            }
            Event::End => self.close(),
            Event::Answer(answer) => self.on_answer(answer),
            Event::Drain => {
                self.client.is_draining = true;
                self.close_if_drained();
            }
            Event::Stop if self.client.holds.is_empty() => self.close(),
            Event::Stop => {
                self.report_lost("the server ends and gives the lock back");
                self.close();
            }
        }
    }

    fn on_line(&mut self, line: Line, new_id: impl FnOnce() -> SessionId) {
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
            Line::Shrink(span, key) => self.change(key, |session, key| Question::Shrink(session, key, span)),
            Line::Downgrade(mode, key) => self.change(key, |session, key| Question::Downgrade(session, key, mode)),
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
        // A request beyond the limit is granted if nothing is in its way, and busy otherwise.
        let is_limited = !self.may_wait && wait.is_none_or(|wait| !wait.is_zero());
        let wait = if is_limited { Some(Duration::ZERO) } else { wait };
        let until = wait.filter(|wait| !wait.is_zero()).map(|wait| self.now + QUEUE_LIMIT + wait);
        let waits = wait.is_none_or(|wait| !wait.is_zero());
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
            None => self.say("error this connection holds no lock: send LOCK first"),
        }
    }

    /// Asks for a change of the innermost hold.
    fn change(&mut self, key: Option<Resource>, question: impl FnOnce(SessionId, Resource) -> Question) {
        let Some(hold) = self.client.holds.last() else {
            return self.say("error this connection holds no lock: send LOCK first");
        };
        let key = match (key, request::resources(&hold.claims).as_slice()) {
            (Some(key), held) if !held.contains(&&key) => {
                return self.say(format!("refused this connection holds nothing of '{key}': name what it holds"));
            }
            (Some(key), _) => key,
            (None, [only]) => Resource::clone(only),
            (None, _) => return self.say("error this connection holds several resources: name one with --resource"),
        };
        self.ask(question(hold.session, key));
    }

    fn ask(&mut self, question: Question) {
        // A change that the client does not wait for could happen all the same.
        let until = matches!(question, Question::Inspect(_)).then(|| self.now + INSPECT_LIMIT);
        self.actions.push(Action::Ask(question.clone()));
        self.client.state = State::Asking { question, until };
    }

    fn on_report(&mut self, session: SessionId, report: Report) {
        if let Some(at) = self.client.leaving.iter().position(|(leaving, _)| *leaving == session) {
            if let Report::Released(released) = report
                && let (_, Some(claims)) = self.client.leaving.swap_remove(at)
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
                    self.actions.push(Action::Release(pending.session));
                    return self.leave(pending);
                }
                if is_new {
                    pending.until = pending.until.and(pending.wait).map(|wait| self.now + wait);
                    pending.look.iter_mut().for_each(|look| look.begin(self.now));
                }
                self.client.state = State::Requesting(pending);
            }
            Ok(Standing::Granted(grant)) => self.on_grant(*pending, &grant, &messages),
            Ok(Standing::Busy { obstructions, .. }) => {
                self.say_busy(&pending, &obstructions);
            }
            Ok(Standing::Refused(refusal)) => self.say(format!("refused {refusal}")),
            // The requests of clients belong to no job.
            Ok(Standing::AlreadyDone | Standing::Superseded { .. }) => self.say("refused by an earlier run".to_owned()),
            // The place in the queue was taken away. What the client holds besides is not lost.
            Ok(Standing::Lost) => self.say(format!("unavailable {}", messages.taken_away())),
            Err(store::Error::Unavailable(reason)) => {
                self.say(format!("unavailable {}", messages.cannot_lock(&reason)));
            }
            Err(error) => self.say_failure(error),
        }
        self.close_if_drained();
    }

    fn on_grant(&mut self, pending: Pending, grant: &Grant, messages: &Messages) {
        let Pending { session, claims, plain, .. } = pending;
        // The work of the client would begin with less than a grace to stop. The client does not
        // know of the grant, so a release now ends nobody's work.
        if self.is_overdue(grant.deadline) || self.client.holds.iter().any(|hold| self.is_overdue(hold.deadline)) {
            self.client.leaving.push((session, None));
            self.actions.push(Action::Release(session));
            return self.say(format!("unavailable {}", messages.cannot_lock(&LATE)));
        }
        let token = grant.tokens.iter().max().copied().unwrap_or_default();
        self.log(format!("locked {}, token {token}", messages.names()));
        self.say(if plain { "ok".to_owned() } else { format!("ok {token}") });
        self.client.holds.push(Hold { session, claims, deadline: grant.deadline, plain });
    }

    fn on_hold(&mut self, session: SessionId, standing: Result<Standing, store::Error>) {
        let Some(at) = self.client.holds.iter().position(|hold| hold.session == session) else { return };
        if let Ok(Standing::Granted(grant)) = standing {
            self.client.holds[at].deadline = grant.deadline;
            return;
        }
        let hold = self.client.holds.remove(at);
        if !matches!(self.client.state, State::Lingering { .. }) {
            let messages = self.messages(&hold.claims, session);
            self.report_lost(&match standing {
                Err(error) => messages.not_renewed(Some(&error.to_string())),
                Ok(_) => messages.taken_away(),
            });
            self.linger();
        }
        self.release(hold);
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

    /// Tells the log how a release has ended of which no client hears.
    fn note_release(&mut self, messages: &Messages, released: &Result<Released, store::Error>) {
        match released {
            // The log has the loss already.
            Ok(_) if self.client.has_lost => {}
            Ok(Released::Done | Released::Kept) => self.log(format!("unlocked {}", messages.names())),
            Ok(Released::Lost) => self.log(format!("lost {}", messages.names())),
            Err(error) => self.actions.push(Action::Warn(messages.not_confirmed(error))),
        }
    }

    /// The wait of a request is over. If the request is not in the queue, the store is out of
    /// reach, and the answer does not wait for it.
    fn leave(&mut self, pending: Box<Pending>) {
        if pending.is_queued {
            self.client.state = State::Leaving { pending, until: self.now + EXPLANATION_LIMIT };
        } else {
            self.client.leaving.push((pending.session, None));
            let messages = self.messages(&pending.claims, pending.session);
            self.say(format!("unavailable {}", messages.cannot_lock(&LATE)));
        }
    }

    /// The request has left the queue.
    fn on_left(&mut self, pending: Box<Pending>, until: Boottime) {
        let resources = pending.claims.iter().map(|claim| claim.resource.clone()).collect();
        self.actions.push(Action::Ask(Question::Obstructions(resources)));
        self.client.state = State::Explaining { pending, until };
    }

    /// The request is over because something was in its way, as far as that is known.
    fn say_busy(&mut self, pending: &Pending, obstructions: &[Obstruction]) {
        let messages = self.messages(&pending.claims, pending.session);
        let waited = pending.wait.filter(|wait| !wait.is_zero() && !pending.is_limited);
        let limit = if pending.is_limited { "; no more requests may wait" } else { "" };
        self.say(format!("busy {}{limit}", messages.in_the_way(obstructions, waited)));
    }

    /// Leaves the queue, because the request waits for itself.
    fn end_deadlock(&mut self, pending: &Pending, circle: &str) {
        self.client.leaving.push((pending.session, None));
        self.actions.push(Action::Release(pending.session));
        self.say(format!("refused {circle}: send UNLOCK, then ask for all in one LOCK"));
    }

    fn on_answer(&mut self, answer: Answer) {
        match (mem::replace(&mut self.client.state, State::Idle), answer) {
            (State::Requesting(mut pending), answer) => {
                let reading = if let Answer::Reading(reading) = &answer { Some(&**reading) } else { None };
                let found = pending.look.as_mut().and_then(|look| look.on_reading(reading, self.now));
                match reading.zip(found) {
                    Some((reading, deadlock)) => self.end_deadlock(&pending, &messages::circle(reading, &deadlock)),
                    None => self.client.state = State::Requesting(pending),
                }
            }
            (State::Explaining { pending, .. }, Answer::Obstructions(found)) => self.say_busy(&pending, &found),
            (State::Explaining { pending, .. }, _) => self.say_busy(&pending, &[]),
            (State::Asking { .. }, Answer::Listing(listing)) => self.actions.push(Action::Show(listing)),
            (State::Asking { question, .. }, Answer::Changed(Changed::Done)) => {
                self.apply(question);
                self.say("ok");
            }
            (State::Asking { .. }, Answer::Changed(Changed::Refused(refusal))) => {
                self.say(format!("refused {refusal}"));
            }
            (State::Asking { .. }, Answer::Changed(Changed::Lost)) => {
                self.say("refused this connection holds nothing any more");
            }
            (State::Asking { .. }, Answer::Failed(error)) => self.say_failure(error),
            (state, _) => self.client.state = state,
        }
        self.close_if_drained();
    }

    /// Notes a change of the innermost hold, by which an upgrade knows what is held.
    fn apply(&mut self, question: Question) {
        let Some(hold) = self.client.holds.last_mut() else { return };
        for claim in &mut hold.claims {
            match &question {
                Question::Shrink(_, key, span) if claim.resource == *key && claim.shrinks_to(span) => {
                    claim.span = span.clone();
                }
                Question::Downgrade(_, key, mode) if claim.resource == *key && claim.mode.lowers_to(*mode) => {
                    claim.mode = *mode;
                }
                _ => {}
            }
        }
    }

    fn on_tick(&mut self) {
        match self.client.state {
            State::Closed => return,
            State::Lingering { until } => {
                if until <= self.now {
                    self.release_holds();
                    self.end_if_released();
                }
                return;
            }
            _ => {}
        }
        self.end_if_overdue();
        if self.client.greeting_until.is_some_and(|until| until <= self.now) {
            return self.close();
        }
        match mem::replace(&mut self.client.state, State::Idle) {
            State::Requesting(pending) if pending.until.is_some_and(|until| until <= self.now) => {
                self.actions.push(Action::Release(pending.session));
                self.leave(pending);
            }
            State::Requesting(mut pending) => {
                let names = pending.look.as_mut().and_then(|look| look.read(self.now));
                self.actions.extend(names.map(|names| Action::Ask(Question::Read(names))));
                self.client.state = State::Requesting(pending);
            }
            State::Leaving { pending, until } if until <= self.now => {
                // A grant that crosses the release is given back by it.
                self.client.leaving.push((pending.session, None));
                self.say_busy(&pending, &[]);
                self.close_if_drained();
            }
            State::Explaining { pending, until } if until <= self.now => {
                self.say_busy(&pending, &[]);
                self.close_if_drained();
            }
            State::Asking { until: Some(until), .. } if until <= self.now => {
                self.say("unavailable the store did not answer in time: try again");
                self.close_if_drained();
            }
            State::Refusing { until } if until <= self.now => {
                self.log("sent a wrong token".to_owned());
                self.say("error the token is wrong");
                self.close();
            }
            state => self.client.state = state,
        }
    }

    /// Whether a hold with this deadline counts as lost.
    fn is_overdue(&self, deadline: Option<Boottime>) -> bool {
        self.rules.overdue_at(deadline).is_some_and(|at| at <= self.now)
    }

    fn end_if_overdue(&mut self) {
        let mut needed = self.client.needed().iter();
        if let Some(hold) = needed.find(|hold| self.is_overdue(hold.deadline)) {
            let text = self.messages(&hold.claims, hold.session).not_renewed(None);
            self.report_lost(&text);
            self.linger();
        }
    }

    /// Closes the connection, and keeps what the client holds for a grace. A release now, or at a
    /// deadline that a renewal may still move, could let the next holder in before the client has
    /// stopped its work.
    fn linger(&mut self) {
        self.leave_request();
        self.client.state = State::Lingering { until: self.now + self.rules.grace };
        self.actions.push(Action::Close);
    }

    fn report_lost(&mut self, text: &str) {
        self.client.has_lost = true;
        self.say(format!("lost {text}"));
    }

    fn close_if_drained(&mut self) {
        let is_done = !matches!(self.client.state, State::Closed | State::Unlocking) && self.client.holds.is_empty();
        if self.client.is_draining && is_done {
            self.close();
        }
    }

    /// Closes the connection and gives back all that the client holds or waits for, the innermost
    /// first.
    fn close(&mut self) {
        if matches!(self.client.state, State::Closed) {
            return;
        }
        self.leave_request();
        self.release_holds();
        self.actions.push(Action::Close);
    }

    /// Gives back what the client waits for, and takes in nothing more.
    fn leave_request(&mut self) {
        self.client.greeting_until = None;
        match mem::replace(&mut self.client.state, State::Closed) {
            State::Requesting(pending) => {
                self.client.leaving.push((pending.session, None));
                self.actions.push(Action::Release(pending.session));
            }
            State::Leaving { pending, .. } => self.client.leaving.push((pending.session, None)),
            State::Unlocking => {
                self.client.leaving.extend(self.client.holds.pop().map(|hold| (hold.session, Some(hold.claims))));
            }
            _ => {}
        }
    }

    fn release_holds(&mut self) {
        while let Some(hold) = self.client.holds.pop() {
            self.release(hold);
        }
    }

    fn release(&mut self, hold: Hold) {
        if self.client.has_lost {
            self.log(format!("lost {}", self.messages(&hold.claims, hold.session).names()));
        }
        self.client.leaving.push((hold.session, Some(hold.claims)));
        self.actions.push(Action::Release(hold.session));
    }

    /// A client that holds nothing has nothing to stop.
    fn end_if_released(&mut self) {
        if self.client.holds.is_empty() {
            self.client.state = State::Closed;
        }
    }

    fn messages(&self, claims: &[Claim], session: SessionId) -> Messages {
        let above = self.client.holds.iter().map(|hold| hold.session).filter(|above| *above != session);
        let related = above.chain([session]).collect();
        let Rules { has_leases, is_stopped, .. } = *self.rules;
        Messages { claims: claims.to_vec(), related, has_leases, is_stopped }
    }

    fn say_failure(&mut self, error: store::Error) {
        let kind = match &error {
            store::Error::Usage(_) => "error",
            store::Error::Refused(_) => "refused",
            store::Error::Unavailable(_) => "unavailable",
        };
        self.say(format!("{kind} {error}"));
    }

    fn say(&mut self, text: impl Into<String>) {
        self.actions.push(Action::Say(words::one_line(&text.into())));
    }

    fn log(&mut self, text: String) {
        self.actions.push(Action::Log(text));
    }
}

const LATE: &str = "the store did not answer in time";
const NO_PREWRITE: &str = "error there is nothing to upgrade: hold a prewrite lock first";
const UNKNOWN: &str = "error this line is not understood: send LOCK KEY, UNLOCK or PING, see rlock-serve(8)";

mod look;

#[cfg(test)]
mod tests;
