//! Counts which event came in which state: of the supervision machine, of the lease client, of the
//! exchange below it and of single questions.
//!
//! What the random episodes never reach has a directed test: the tables in
//! `supervise/machine/tests` and in the tests of `store/lease/client` and
//! `store/redis/conversation`.

use std::fmt::Write as _;

use redis::Value;

use super::task::Site;
use rlock_redis::conversation::{Question, SessionsConversation};
use rlock_redis::interface::{Action, Conversation, Event};
use rlock_supervise::event::Event as Supervised;
use rlock_supervise::machine::Machine;
use rlock_sys::clock::Boottime;

/// The number of each event in each state.
struct Table {
    name: &'static str,
    states: &'static [&'static str],
    events: &'static [&'static str],
    counts: Vec<u64>,
}

impl Table {
    fn new(name: &'static str, states: &'static [&'static str], events: &'static [&'static str]) -> Self {
        Self { name, states, events, counts: vec![0; states.len() * events.len()] }
    }

    fn count(&mut self, state: &str, event: &str) {
        let place = |names: &[&str], name: &str| {
            names
                .iter()
                .position(|known| *known == name)
                .unwrap_or_else(|| panic!("'{name}' has no place in {names:?}"))
        };
        self.counts[place(self.states, state) * self.events.len() + place(self.events, event)] += 1;
    }

    /// A row for each event and a column for each state.
    fn shown(&self) -> String {
        let mut text = format!("\n{:<18}", self.name);
        self.states.iter().for_each(|state| _ = write!(text, "{state:>13}"));
        for (row, event) in self.events.iter().enumerate() {
            let _ = write!(text, "\n{event:<18}");
            for count in self.counts.iter().skip(row).step_by(self.events.len()) {
                let _ = if *count == 0 { write!(text, "{:>13}", "-") } else { write!(text, "{count:>13}") };
            }
        }
        text + "\n"
    }
}

const MACHINE: [&str; 12] = [
    "requesting",
    "waiting",
    "giving up",
    "starting",
    "running",
    "draining",
    "stopping",
    "clearing",
    "killed",
    "leaving",
    "sparing",
    "done",
];
const SUPERVISED: [&str; 20] = [
    "queued",
    "out of reach",
    "granted",
    "revoked",
    "denied",
    "deadlock",
    "lost",
    "store failed",
    "started",
    "handed over",
    "start failed",
    "ended",
    "command stopped",
    "released",
    "busy",
    "already done",
    "rest ended",
    "spare ended",
    "signal",
    "tick",
];
const LEASE_CLIENT: [&str; 11] = [
    "asking",
    "waiting",
    "replicating",
    "held",
    "too few",
    "busy",
    "already done",
    "refused",
    "lost",
    "failed",
    "releasing",
];
const QUESTION: [&str; 2] = ["asking", "over"];
const EXCHANGE: [&str; 6] = ["closed", "locating", "quiet", "in flight", "ignoring", "delayed"];
const ARRIVED: [&str; 24] = [
    "connecting",
    "granted",
    "waiting",
    "busy",
    "already",
    "refused",
    "released",
    "kept",
    "unknown",
    "need",
    "listing",
    "renewed",
    "number",
    "NOSCRIPT",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "other reply",
    "other error",
    "message",
    "subscribe failed",
    "failed",
    "timed out",
    "late reply",
];

pub(super) struct Coverage {
    machine: Table,
    lease_client: Table,
    question: Table,
    exchange: Table,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            machine: Table::new("machine", &MACHINE, &SUPERVISED),
            lease_client: Table::new("lease client", &LEASE_CLIENT, &ARRIVED),
            question: Table::new("question", &QUESTION, &ARRIVED),
            exchange: Table::new("exchange", &EXCHANGE, &ARRIVED),
        }
    }
}

impl Coverage {
    pub(super) fn count_supervised(&mut self, machine: &Machine, event: Supervised) {
        let event = match event {
            Supervised::Queued => "queued",
            Supervised::OutOfReach => "out of reach",
            Supervised::Granted { .. } => "granted",
            Supervised::Revoked { .. } => "revoked",
            Supervised::Denied(_) => "denied",
            Supervised::Deadlock => "deadlock",
            Supervised::NotNested => unreachable!("only nested requests of the simulation look"),
            Supervised::NoRoom | Supervised::Room | Supervised::Moved => {
                unreachable!("no simulated command needs room")
            }
            Supervised::Lost => "lost",
            Supervised::StoreFailed => "store failed",
            Supervised::Started => "started",
            Supervised::HandedOver => "handed over",
            Supervised::Kept { .. } => unreachable!("no keeper takes part"),
            Supervised::StartFailed(_) => "start failed",
            Supervised::Ended(_) => "ended",
            Supervised::CommandStopped(_) => "command stopped",
            Supervised::Ready => unreachable!("no simulated command says that it is ready"),
            Supervised::Released => "released",
            Supervised::Busy { .. } => "busy",
            Supervised::AlreadyDone => "already done",
            Supervised::RestEnded => "rest ended",
            Supervised::SpareEnded(_) | Supervised::SpareFailed => "spare ended",
            Supervised::Signal { .. } => "signal",
            Supervised::Tick => "tick",
        };
        self.machine.count(machine.state_name(), event);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (table, other) in self.tables_mut().into_iter().zip(other.tables()) {
            table.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        }
    }

    /// The tables, with a dash for each pair that never came.
    pub(super) fn shown(&self) -> String {
        self.tables().map(Table::shown).concat()
    }

    fn tables(&self) -> [&Table; 4] {
        [&self.machine, &self.lease_client, &self.question, &self.exchange]
    }

    fn tables_mut(&mut self) -> [&mut Table; 4] {
        [&mut self.machine, &mut self.lease_client, &mut self.question, &mut self.exchange]
    }
}

/// A conversation whose states are counted.
pub(super) trait Observed: Conversation {
    fn count(&self, event: &'static str, coverage: &mut Coverage);
}

/// An event may concern one of many requests, and then only the exchange is counted.
impl Observed for SessionsConversation {
    fn count(&self, event: &'static str, coverage: &mut Coverage) {
        if let Some(state) = self.sole_state_name() {
            coverage.lease_client.count(state, event);
        }
        coverage.exchange.count(self.server().state_name(), event);
    }
}

impl Observed for Question<'_> {
    fn count(&self, event: &'static str, coverage: &mut Coverage) {
        let [own, exchange] = self.state_names();
        coverage.question.count(own, event);
        coverage.exchange.count(exchange, event);
    }
}

/// A conversation whose events are counted before it takes them in.
pub(super) struct Counted<'c, C>(pub(super) &'c mut C, pub(super) &'c Site);

impl<C: Observed> Conversation for Counted<'_, C> {
    fn on(&mut self, event: Event, now: Boottime) {
        self.0.count(arrived(&event), &mut self.1.world().coverage);
        self.0.on(event, now);
    }

    fn tick(&mut self, now: Boottime) {
        self.0.tick(now);
    }

    fn next_action(&mut self) -> Option<Action> {
        self.0.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.0.timeout()
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

fn arrived(event: &Event) -> &'static str {
    let known = |word: &str, other| ARRIVED.into_iter().find(|known| *known == word).unwrap_or(other);
    match event {
        Event::Connecting(_) => "connecting",
        Event::Reply(Ok(Value::Int(_))) => "number",
        Event::Reply(Ok(Value::Array(words))) => match words.first() {
            Some(Value::BulkString(word)) => known(&String::from_utf8_lossy(word), "other reply"),
            _ => "other reply",
        },
        Event::Reply(Ok(_)) => "other reply",
        Event::Reply(Err(error)) => known(error.code(), "other error"),
        Event::Message(_) => "message",
        Event::SubscribeFailed(..) => "subscribe failed",
        Event::Failed(_) => "failed",
        Event::TimedOut(_) => "timed out",
        Event::Aside(_) => "late reply",
    }
}
