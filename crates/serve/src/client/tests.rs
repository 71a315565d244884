//! Tests what a client does, state by state.

use std::time::Duration;

use super::super::event::{Action, Answer, Event, Question};
use super::super::line::Line;
use super::super::rules::Rules;
use super::Client;
use rlock_arguments::lines::LineParser;
use rlock_model::mode::Mode;
use rlock_model::op::Change;
use rlock_model::request::{Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_store::sessions::Report;
use rlock_store::{self as store, Changed, Grant, Released, Standing};
use rlock_sys::clock::Boottime;

mod deadlocks;
mod histories;
mod holds;
mod lines;
mod requests;

const SECOND: Duration = Duration::from_secs(1);

/// A client, and a server that writes down what the client makes it do.
struct Lab {
    client: Client,
    rules: Rules,
    now: Boottime,
    may_wait: bool,
    made: u8,
    parser: LineParser,
}

fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn rules() -> Rules {
    Rules { token: None, only: Vec::new(), has_leases: true, grace: 5 * SECOND, is_stopped: |_| false }
}

fn error() -> store::Error {
    store::Error::Unavailable("the store is away".into())
}

impl Lab {
    fn new(rules: Rules) -> Self {
        let now = Boottime::since_boot(100 * SECOND);
        let client = Client::new(&rules, now, false);
        Self { client, rules, now, may_wait: true, made: 0, parser: LineParser::default() }
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        let Self { client, rules, now, may_wait, made, .. } = self;
        let actions = client.on(event, *now, rules, *may_wait, || {
            *made += 1;
            id(*made)
        });
        actions.iter().map(shown).filter(|action| !action.starts_with("log ")).collect()
    }

    fn line(&mut self, line: &str) -> Vec<String> {
        assert!(self.client.takes_lines(), "{line}");
        let line = Line::parse(line.as_bytes(), &mut self.parser);
        self.on(Event::Line(line))
    }

    fn stands(&mut self, session: u8, standing: Standing) -> Vec<String> {
        self.on(Event::Report(id(session), Report::Standing(Ok(standing))))
    }

    fn granted(&mut self, session: u8, token: u64) -> Vec<String> {
        self.granted_until(session, token, self.now + 30 * SECOND)
    }

    fn granted_until(&mut self, session: u8, token: u64, deadline: Boottime) -> Vec<String> {
        self.stands(
            session,
            Standing::Granted(Grant { tokens: vec![1, token], deadline: Some(deadline), ..Grant::default() }),
        )
    }

    fn released(&mut self, session: u8, released: Released) -> Vec<String> {
        self.on(Event::Report(id(session), Report::Released(Ok(released))))
    }

    fn after(&mut self, length: Duration) -> Vec<String> {
        self.now = self.now + length;
        self.on(Event::Tick)
    }

    /// A client that holds a lock by this line, as session 1.
    fn holding(line: &str) -> Self {
        let mut lab = Self::new(rules());
        lab.line(line);
        lab.granted(1, 7);
        lab
    }
}

fn shown(action: &Action) -> String {
    match action {
        Action::Say(text) => format!("say {text}"),
        Action::Show(listing) => format!("show {}", String::from_utf8_lossy(listing.as_bytes()).trim_end()),
        Action::Acquire { session, parent, claims, wait, .. } => {
            let claims: Vec<_> =
                claims.iter().map(|claim| format!("{} {} {}", claim.mode, claim.resource, claim.span)).collect();
            let parent = parent.map(|parent| format!(" below {}", parent.0[0])).unwrap_or_default();
            let wait = if *wait { "" } else { " no-wait" };
            format!("acquire {}{parent}: {}{wait}", session.0[0], claims.join(", "))
        }
        Action::Release(session) => format!("release {}", session.0[0]),
        Action::Ask(Question::Inspect(key)) => format!("inspect {}", key.as_ref().map_or("", Resource::as_str)),
        Action::Ask(Question::Obstructions(_)) => "obstructions".to_owned(),
        Action::Ask(Question::Read(names)) => {
            format!("read {}", names.iter().map(Resource::as_str).collect::<Vec<_>>().join(" "))
        }
        Action::Ask(Question::Change(session, Change::Shrink { resource, span })) => {
            format!("shrink {} {resource} {span}", session.0[0])
        }
        Action::Ask(Question::Change(session, Change::Downgrade { resource, mode })) => {
            format!("downgrade {} {resource} {mode}", session.0[0])
        }
        Action::Ask(Question::Change(_, Change::Extend { .. })) => unreachable!("no line extends a hold"),
        Action::Log(text) => format!("log {text}"),
        Action::Warn(text) => format!("warn {text}"),
        Action::Close => "close".to_owned(),
    }
}
