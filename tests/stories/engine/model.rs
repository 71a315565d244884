//! Runs a story on the bare model: a table in memory, and a clock that advances by the same time
//! with each operation.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use rlock_model::op::{Change, Op, Reply, ResourceListing};
use rlock_model::past::HISTORY_MAX;
use rlock_model::records::{Memory, Session};
use rlock_model::request::{Process, Request, SessionId};
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

use super::dump::{self, Row, State, Tokens};
use super::script::{Scene, Story};
use super::step::{Acquire, Label, Step, StoreStep};
use super::{Engine, break_reply, play, render};

/// Plays every scene of a story. If `REWRITE` is set in the environment, writes the model's replies
/// into the file instead.
pub(crate) fn run_story(path: &Path) {
    let story = Story::read(path);
    if env::var_os("REWRITE").is_some() {
        let blocks: Vec<_> = story.scenes.iter().map(record).collect();
        fs::write(path, story.rewritten(&blocks)).expect("the story is written");
    } else {
        story.scenes.iter().for_each(|scene| play(&mut Model::default(), path, scene));
    }
}

/// The reply and the table of the model after each step of a scene.
fn record(scene: &Scene) -> Vec<String> {
    let mut model = Model::default();
    let mut tokens = Tokens::default();
    let steps = scene.steps.iter();
    steps
        .map(|scripted| {
            model.execute(&scripted.step);
            let (text, named) = render(&mut model, &tokens);
            tokens = named;
            text
        })
        .collect()
}

/// The time of an operation. An operation has fewer grants than this time has microseconds.
const TICK: Duration = Duration::from_millis(1);

/// The first instant. It is later than any length of time in a story.
const START: StoreTime = StoreTime::from_micros(1 << 40);

struct Model {
    table: LockTable<Memory>,
    now: StoreTime,
    /// The ids of each session and of its ancestors, innermost first.
    lineages: BTreeMap<Label, Vec<SessionId>>,
    reply: String,
}

impl Default for Model {
    fn default() -> Self {
        Self { table: LockTable::default(), now: START, lineages: BTreeMap::new(), reply: String::new() }
    }
}

impl Engine for Model {
    const TIMEOUT: Duration = Duration::ZERO;

    fn execute(&mut self, step: &Step) {
        let op = match step {
            Step::Acquire(acquire) => Op::Acquire { request: self.request(acquire), place: None },
            Step::Release(label) => Op::Release { session: self.id(label), end: None },
            Step::Cancel(label) => Op::Release { session: self.id(label), end: None },
            Step::Kill(label) => Op::Reap { session: self.id(label), ended: None },
            Step::Change(label, change) => Op::Change { session: self.id(label), change: change.clone() },
            Step::Break(resource) => Op::Break { resource: resource.clone(), only: None, by: None },
            Step::Store(step) => match self.store_op(step) {
                Ok(op) => op,
                Err(reply) => {
                    self.reply = reply;
                    return;
                }
            },
        };
        let reply = self.apply(op);
        self.reply = match (step, &reply) {
            // A kept hold outlives its process, and lasts longer once it is extended.
            (Step::Kill(_) | Step::Store(StoreStep::Extend(..)), Reply::Granted { .. }) => "done".to_owned(),
            _ => self.reply_text(&reply),
        };
    }

    fn observe(&mut self) -> (String, Vec<Row>) {
        (self.reply.clone(), self.rows())
    }

    fn end_all(&mut self) -> Result<(), String> {
        loop {
            let rows = self.rows();
            let holders: Vec<_> = rows.iter().filter(|row| matches!(row.state, State::Held(_))).collect();
            if holders.is_empty() {
                let empty = self.table.records().is_empty();
                return if empty { Ok(()) } else { Err(format!("the table still has records of {rows:?}")) };
            }
            for row in holders {
                // A release without an end ends a kept hold, too.
                let id = self.id(&row.label);
                self.apply(Op::Release { session: id, end: None });
            }
        }
    }
}

impl Model {
    fn apply(&mut self, op: Op) -> Reply {
        self.now += TICK;
        self.table.apply(self.now, op).unwrap_or_else(|never| match never {}).reply
    }

    /// The operation of a step, or the reply of a step without one.
    fn store_op(&mut self, step: &StoreStep) -> Result<Op, String> {
        Ok(match step {
            StoreStep::Ended(label, end) => Op::Release { session: self.id(label), end: Some(*end) },
            StoreStep::GiveUp(label) => Op::GiveUp(self.id(label)),
            StoreStep::Extend(label, by) => {
                Op::Change { session: self.id(label), change: Change::Extend { by: Some(*by) } }
            }
            StoreStep::Pass(time) => {
                self.now += *time;
                self.apply(Op::Expire);
                return Err("done".to_owned());
            }
            StoreStep::History(resource) => {
                let Ok(found) = self.table.past(self.now, resource, HISTORY_MAX);
                return Err(dump::history(found.as_ref()));
            }
            StoreStep::Forget(resource) => Op::Forget(resource.clone()),
            StoreStep::Slots(label) => {
                let session = self.table.records().get(self.id(label));
                return Err(dump::slots(&session.map(Session::slots).unwrap_or_default()));
            }
        })
    }

    /// The ids of a session and of its ancestors, innermost first.
    fn lineage(&self, label: &str) -> &[SessionId] {
        self.lineages.get(label).unwrap_or_else(|| panic!("{label} has made no request yet"))
    }

    fn id(&self, label: &str) -> SessionId {
        self.lineage(label)[0]
    }

    fn request(&mut self, acquire: &Acquire) -> Request {
        let ancestors = acquire.below.as_ref().map_or_else(Vec::new, |below| self.lineage(below).to_vec());
        let session = SessionId((self.lineages.len() as u128).to_be_bytes());
        let line = [&[session], ancestors.as_slice()].concat();
        assert!(self.lineages.insert(acquire.label.clone(), line).is_none(), "{} makes two requests", acquire.label);
        let process = Process { command: vec![acquire.label.clone()], ..Process::default() };
        Request {
            session,
            ancestors,
            claims: acquire.claims.clone(),
            wait: acquire.wait,
            terms: None,
            job: acquire.job_at(self.now, 1),
            process,
        }
    }

    fn reply_text(&self, reply: &Reply) -> String {
        match reply {
            Reply::Granted { .. } => "granted".to_owned(),
            Reply::Waiting => "waiting".to_owned(),
            Reply::Busy { streak, .. } => dump::busy(streak.as_ref()),
            Reply::Superseded { streak, .. } => dump::superseded(streak.as_ref()),
            Reply::AlreadyDone => "already done".to_owned(),
            Reply::Refused(refusal) => format!("refused: {refusal}"),
            Reply::Done | Reply::Released(_) => "done".to_owned(),
            Reply::KeptUntil(_) => "done".to_owned(),
            Reply::Unknown => "lost".to_owned(),
            Reply::Broken(ids) => {
                let labels = self.lineages.iter().filter(|(_, line)| ids.contains(&line[0]));
                break_reply(&labels.map(|(label, _)| label.as_str()).collect::<Vec<_>>())
            }
            Reply::Listing(_) => unreachable!("no step inspects the table"),
        }
    }

    fn rows(&mut self) -> Vec<Row> {
        let Reply::Listing(listings) = self.apply(Op::Inspect(Vec::new())) else {
            unreachable!("inspect replies with a listing")
        };
        listings.iter().flat_map(rows).collect()
    }
}

/// The claims of a listing.
pub(super) fn rows(listing: &ResourceListing) -> Vec<Row> {
    let row = |process: &Process, mode: &str, slots: Option<(u32, usize)>, span: Option<String>, state| Row {
        resource: listing.name.to_string(),
        label: process.command.last().cloned().unwrap_or_default(),
        claim: dump::claim(mode, slots.map(|(slots, count)| (slots.into(), count as u64)), span),
        state,
    };
    let holders = listing.holders.iter().map(|holder| {
        let span = holder.span.as_interval().map(ToString::to_string);
        let mut row = row(
            &holder.process,
            holder.mode.as_str(),
            holder.slots.map(|slots| (slots, holder.count)),
            span,
            State::Held(holder.token),
        );
        row.claim.push_str(if holder.kept { " kept" } else { "" });
        row
    });
    let waiters = listing.waiters.iter().map(|waiter| {
        let span = waiter.span.as_interval().map(ToString::to_string);
        row(
            &waiter.process,
            waiter.mode.as_str(),
            waiter.slots.map(|slots| (slots, waiter.count)),
            span,
            State::Waits(waiter.position.into()),
        )
    });
    holders.chain(waiters).collect()
}
