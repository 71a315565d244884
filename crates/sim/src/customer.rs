//! A client of a lock server: the lines that it sends, and the work that it does while it holds
//! locks.

use std::collections::VecDeque;
use std::time::Duration;

use super::desk::{Ask, End};
use super::plan::{claim, part, some_claims};
use super::processes::Process;
use super::random::Random;
use super::world::World;
use rlock_model::mode::Mode;
use rlock_model::request::Claim;
use rlock_supervise::event::Ended;
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// How long a line is on its way at most.
const DELAY_MAX: Duration = Duration::from_micros(500);

/// What a client sends.
#[derive(Debug)]
pub(super) enum ToDesk {
    Line(Ask),
    End(End),
}

/// What a client gets.
#[derive(Debug)]
pub(super) enum FromDesk {
    Line(String),
    Closed,
}

/// What a client expects an answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Lock,
    Change,
    Unlock,
}

/// A lock that the client holds.
struct Held {
    run: usize,
    claims: Vec<Claim>,
}

pub(super) struct Customer {
    id: u64,
    /// The task of the lock server.
    task: usize,
    outbox: VecDeque<(Boottime, ToDesk)>,
    inbox: VecDeque<(Boottime, FromDesk)>,
    awaited: VecDeque<Awaited>,
    /// The run of the request that the lock server makes for the client, with its tokens.
    requested: Option<(usize, Vec<u64>)>,
    /// The claims of the last request.
    claims: Vec<Claim>,
    held: Vec<Held>,
    /// When the client sends its next line, if it awaits no answer.
    acts_at: Boottime,
    /// When the client leaves, whatever it does.
    leaves_at: Option<Boottime>,
    requests_left: u64,
    /// How long the client takes to end its work after its lock is lost.
    dies_after: Duration,
    has_left: bool,
}

impl Customer {
    /// A client that connects now, and whose work ends within the `grace`.
    pub(super) fn new(id: u64, task: usize, grace: Duration, world: &mut World) -> Self {
        let now = world.boottime(task);
        let random = &mut world.random;
        let longest_life = *random.pick(&[10, 1000, 20_000]);
        let slowest = grace - 2 * DELAY_MAX;
        Self {
            id,
            task,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            awaited: VecDeque::new(),
            requested: None,
            claims: Vec::new(),
            held: Vec::new(),
            acts_at: now,
            leaves_at: random.once_in(3).then(|| now + micros(random, MS(longest_life))),
            requests_left: 1 + random.below(5),
            dies_after: micros(random, slowest),
            has_left: false,
        }
    }

    /// When the client does something of its own accord, or something arrives.
    pub(super) fn timeout(&self) -> Option<Boottime> {
        let arrivals = [self.outbox.front().map(|(at, _)| *at), self.inbox.front().map(|(at, _)| *at)];
        let acts = Some(self.acts_at).filter(|_| self.awaited.is_empty());
        let own = [acts, self.leaves_at].into_iter().flatten().filter(|_| !self.has_left);
        arrivals.into_iter().flatten().chain(own).min()
    }

    /// Whether the lock server has closed the connection, and the client knows it.
    pub(super) fn is_over(&self) -> bool {
        self.has_left && self.inbox.is_empty() && self.outbox.is_empty()
    }

    /// What the lock server gets by now.
    pub(super) fn next_sent(&mut self, now: Boottime) -> Option<ToDesk> {
        self.outbox.pop_front_if(|(at, _)| *at <= now).map(|(_, sent)| sent)
    }

    /// The lock server sends something.
    pub(super) fn hear(&mut self, heard: FromDesk, world: &mut World) {
        let at = self.arrival(self.inbox.back().map(|(at, _)| *at), world);
        self.inbox.push_back((at, heard));
    }

    /// The lock server makes a request for the client.
    pub(super) fn request(&mut self, run: usize, world: &mut World) {
        if self.has_left {
            return world.leave(self.task, run, None);
        }
        self.requested = Some((run, Vec::new()));
    }

    /// The request is granted.
    pub(super) fn grant(&mut self, run: usize, tokens: &[u64]) {
        if let Some((_, known)) = self.requested.as_mut().filter(|(requested, _)| *requested == run) {
            tokens.clone_into(known);
        }
    }

    /// Takes in what has arrived, and does what is due.
    pub(super) fn go_on(&mut self, world: &mut World) {
        let now = world.boottime(self.task);
        while let Some((_, heard)) = self.inbox.pop_front_if(|(at, _)| *at <= now) {
            self.note(world, || format!("gets {heard:?}"));
            match heard {
                FromDesk::Closed => return self.lose(world),
                FromDesk::Line(_) if self.has_left => {}
                FromDesk::Line(line) => self.on_line(&line, world),
            }
        }
        if self.has_left {
            return;
        }
        if self.leaves_at.is_some_and(|at| at <= now) {
            self.leave(world);
        } else if self.awaited.is_empty() && self.acts_at <= now {
            self.act(world);
        }
    }

    fn on_line(&mut self, line: &str, world: &mut World) {
        let (word, reason) = line.split_once(' ').unwrap_or((line, ""));
        if word == "lost" && !reason.is_empty() {
            // The end of the connection follows.
            return self.end_work(world);
        }
        match (self.awaited.pop_front(), word) {
            (Some(Awaited::Lock), "ok") => self.on_grant(world),
            (Some(Awaited::Lock), _) => {
                if let Some((run, _)) = self.requested.take() {
                    world.leave(self.task, run, Some(exit::BUSY));
                }
            }
            (Some(Awaited::Unlock), _) => {
                if let Some(Held { run, .. }) = self.held.pop() {
                    world.leave(self.task, run, Some(if word == "lost" { exit::LOST } else { 0 }));
                }
            }
            (Some(Awaited::Change), _) => {}
            (None, _) => world.checkers.violations.push(format!("a client got '{line}' unasked")),
        }
        let longest = *world.random.pick(&[1, 50, 500, 8000]);
        self.acts_at = world.boottime(self.task) + micros(&mut world.random, MS(longest));
    }

    fn on_grant(&mut self, world: &mut World) {
        let Some((run, tokens)) = self.requested.take() else { return };
        // A client that has sent its UNLOCK already does no work.
        if self.awaited.is_empty() {
            world.start(run, &tokens, Process::work(self.task, self.dies_after));
        }
        self.held.push(Held { run, claims: std::mem::take(&mut self.claims) });
    }

    /// Sends the next line.
    fn act(&mut self, world: &mut World) {
        let is_closed = world.is_closed();
        let choice = world.random.below(5);
        match self.held.as_mut_slice() {
            [] if is_closed || self.requests_left == 0 => self.leave(world),
            [] => self.lock(world),
            // Each holder of one prewrite lock waits only for readers, which wait for nobody.
            [Held { claims, .. }]
                if choice == 0 && matches!(claims.as_slice(), [only] if only.mode == Mode::Prewrite) =>
            {
                self.claims = vec![Claim { mode: Mode::Write, ..claims[0].clone() }];
                self.send(Ask::Upgrade, Awaited::Lock, world);
            }
            // The work keeps to the lower mode, or to the part, before the lock does.
            [.., Held { claims, .. }] if choice == 1 && claims.len() == 1 && claims[0].mode == Mode::Write => {
                claims[0].mode = *world.random.pick(&[Mode::Read, Mode::Prewrite]);
                let mode = claims[0].mode;
                self.send(Ask::Downgrade(mode), Awaited::Change, world);
            }
            [.., Held { claims, .. }] if choice == 2 && claims.len() == 1 => {
                let span = part(&mut world.random, &claims[0].span);
                claims[0].span = span.clone();
                self.send(Ask::Shrink(span), Awaited::Change, world);
            }
            [.., Held { run, .. }] => {
                world.end_process(*run, Duration::ZERO, Ended::Code(0));
                self.send(Ask::Unlock, Awaited::Unlock, world);
            }
        }
    }

    fn lock(&mut self, world: &mut World) {
        self.requests_left -= 1;
        let resources = world.resources;
        self.claims = some_claims(world, |random| claim(random, resources));
        let random = &mut world.random;
        let wait = match random.below(10) {
            0 => Some(Duration::ZERO),
            1..4 => Some(micros(random, MS(20_000))),
            _ => None,
        };
        let (is_brief, is_gone) = (random.once_in(20), random.once_in(20));
        self.send(Ask::Lock { claims: self.claims.clone(), wait }, Awaited::Lock, world);
        if is_brief {
            self.send(Ask::Unlock, Awaited::Unlock, world);
        } else if is_gone {
            self.leave(world);
        }
    }

    fn send(&mut self, ask: Ask, awaited: Awaited, world: &mut World) {
        self.note(world, || format!("sends {ask:?}"));
        self.awaited.push_back(awaited);
        self.dispatch(ToDesk::Line(ask), world);
    }

    fn dispatch(&mut self, sent: ToDesk, world: &mut World) {
        let at = self.arrival(self.outbox.back().map(|(at, _)| *at), world);
        self.outbox.push_back((at, sent));
    }

    /// The client ends its work and its connection. It never learns whether it held its lock to the
    /// end.
    fn leave(&mut self, world: &mut World) {
        self.note(world, || "leaves".to_owned());
        for Held { run, .. } in &self.held {
            world.end_process(*run, Duration::ZERO, Ended::Code(0));
        }
        self.forget(None, world);
        let end = if world.random.once_in(2) { End::Closed } else { End::Reset };
        self.dispatch(ToDesk::End(end), world);
    }

    /// The connection has ended, so the client counts its locks as lost.
    fn lose(&mut self, world: &mut World) {
        self.end_work(world);
        self.outbox.clear();
        self.forget(Some(exit::LOST), world);
    }

    fn end_work(&self, world: &mut World) {
        for Held { run, .. } in &self.held {
            world.end_process(*run, self.dies_after, Ended::Code(0));
        }
    }

    fn forget(&mut self, code: Option<u8>, world: &mut World) {
        let held = self.held.drain(..).map(|held| held.run);
        let requested = self.requested.take().map(|(run, _)| run);
        for run in held.chain(requested) {
            world.leave(self.task, run, code);
        }
        self.has_left = true;
    }

    /// When something that is sent now arrives, behind what is on the way.
    fn arrival(&self, last: Option<Boottime>, world: &mut World) -> Boottime {
        let at = world.boottime(self.task) + micros(&mut world.random, DELAY_MAX);
        last.map_or(at, |last| last.max(at))
    }

    fn note(&self, world: &mut World, text: impl FnOnce() -> String) {
        let Self { id, task, .. } = self;
        world.note(|| format!("task {task}: client {id} {}", text()));
    }
}

fn micros(random: &mut Random, longest: Duration) -> Duration {
    Duration::from_micros(random.below(longest.as_micros() as u64 + 1))
}
