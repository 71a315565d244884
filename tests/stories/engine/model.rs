//! Tells a story on the bare model: one table in memory, and a clock that goes on by the same time
//! with each operation.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use rlock::clock::StoreTime;
use rlock::lock::op::{Op, Reply, ResourceListing};
use rlock::lock::records::Memory;
use rlock::lock::request::{Process, Request, SessionId};
use rlock::lock::table::LockTable;

use super::dump::{self, Row, State, Tokens};
use super::script::{Scene, Story};
use super::step::{Ask, Label, Step};
use super::{Engine, broke, play, shown};

/// Plays every scene of a story; with `REWRITE` in the environment, writes down how it went
/// instead.
pub(crate) fn tell(path: &Path) {
    let story = Story::read(path);
    if env::var_os("REWRITE").is_some() {
        let blocks: Vec<_> = story.scenes.iter().map(record).collect();
        fs::write(path, story.rewritten(&blocks)).expect("a story can be written");
    } else {
        story.scenes.iter().for_each(|scene| play(&mut Model::default(), path, scene));
    }
}

/// What the model answers to each step of a scene.
fn record(scene: &Scene) -> Vec<String> {
    let mut model = Model::default();
    let mut tokens = Tokens::default();
    let steps = scene.steps.iter();
    steps
        .map(|scripted| {
            model.act(&scripted.step);
            let (text, named) = shown(&mut model, &tokens);
            tokens = named;
            text
        })
        .collect()
}

/// How long an operation takes: more microseconds than there can be grants in one.
const TICK: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Model {
    table: LockTable<Memory>,
    now: StoreTime,
    /// Who asked so far, each with its own id first and its ancestors' after it.
    lines: BTreeMap<Label, Vec<SessionId>>,
    answer: String,
}

impl Engine for Model {
    const PATIENCE: Duration = Duration::ZERO;

    fn act(&mut self, step: &Step) {
        let op = match step {
            Step::Ask(ask) => Op::Acquire(self.request(ask)),
            Step::Release(who) => Op::Release(self.id(who)),
            Step::GiveUp(who) => Op::Cancel(self.id(who)),
            Step::Die(who) => Op::Reap(self.id(who)),
            Step::Shrink(who, resource, span) => {
                Op::Shrink { session: self.id(who), resource: resource.clone(), span: span.clone() }
            }
            Step::Downgrade(who, resource, mode) => {
                Op::Downgrade { session: self.id(who), resource: resource.clone(), mode: *mode }
            }
            Step::Break(resource) => Op::Break(resource.clone()),
        };
        let reply = self.apply(op);
        self.answer = self.said(&reply);
    }

    fn look(&mut self) -> (String, Vec<Row>) {
        (self.answer.clone(), self.rows())
    }

    fn leave(&mut self) -> Result<(), String> {
        loop {
            let rows = self.rows();
            let holders: Vec<_> = rows.iter().filter(|row| matches!(row.state, State::Held(_))).collect();
            if holders.is_empty() {
                let empty = self.table.records().is_empty();
                return if empty { Ok(()) } else { Err(format!("the records keep something of {rows:?}")) };
            }
            for row in holders {
                let id = self.id(&row.who);
                self.apply(Op::Release(id));
            }
        }
    }
}

impl Model {
    fn apply(&mut self, op: Op) -> Reply {
        self.now += TICK;
        self.table.apply(self.now, op).unwrap_or_else(|never| match never {}).reply
    }

    /// The ids of a session and of its ancestors, innermost first.
    fn line(&self, who: &str) -> &[SessionId] {
        self.lines.get(who).unwrap_or_else(|| panic!("{who} has not asked for anything yet"))
    }

    fn id(&self, who: &str) -> SessionId {
        self.line(who)[0]
    }

    fn request(&mut self, ask: &Ask) -> Request {
        let ancestors = ask.below.as_ref().map_or_else(Vec::new, |below| self.line(below).to_vec());
        let session = SessionId((self.lines.len() as u128).to_be_bytes());
        let line = [&[session], ancestors.as_slice()].concat();
        assert!(self.lines.insert(ask.who.clone(), line).is_none(), "{} asks twice", ask.who);
        let process = Process { command: vec![ask.who.clone()], ..Process::default() };
        Request { session, ancestors, claims: ask.claims.clone(), wait: ask.wait, terms: None, process }
    }

    fn said(&self, reply: &Reply) -> String {
        match reply {
            Reply::Granted { .. } => "granted".to_owned(),
            Reply::Waiting => "waiting".to_owned(),
            Reply::Busy(_) => "busy".to_owned(),
            Reply::Refused(refusal) => format!("refused: {refusal}"),
            Reply::Done | Reply::Released(_) => "done".to_owned(),
            Reply::Unknown => "lost".to_owned(),
            Reply::Broken(ids) => {
                let labels = self.lines.iter().filter(|(_, line)| ids.contains(&line[0]));
                broke(&labels.map(|(label, _)| label.as_str()).collect::<Vec<_>>())
            }
            Reply::Listing(_) => unreachable!("no step of a story inspects"),
        }
    }

    fn rows(&mut self) -> Vec<Row> {
        let Reply::Listing(listings) = self.apply(Op::Inspect(Vec::new())) else {
            unreachable!("to inspect is answered by a listing")
        };
        listings.iter().flat_map(rows).collect()
    }
}

fn rows(listing: &ResourceListing) -> Vec<Row> {
    let row = |process: &Process, mode: &str, slots: Option<u32>, span: Option<String>, state| Row {
        resource: listing.name.to_string(),
        who: process.command.last().cloned().unwrap_or_default(),
        claim: dump::claim(mode, slots.map(u64::from), span),
        state,
    };
    let holders = listing.holders.iter().map(|holder| {
        let span = holder.span.as_interval().map(ToString::to_string);
        row(&holder.process, holder.mode.as_str(), holder.slots, span, State::Held(holder.token))
    });
    let waiters = listing.waiters.iter().map(|waiter| {
        let span = waiter.span.as_interval().map(ToString::to_string);
        row(&waiter.process, waiter.mode.as_str(), waiter.slots, span, State::Waits(waiter.position.into()))
    });
    holders.chain(waiters).collect()
}
