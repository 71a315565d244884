//! Runs a story with the real program. Each session is a process, and `inspect --json` shows the
//! table.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use rlock_model::op::Change;
use rlock_model::request;
use rlock_model::resource::Resource;
use rlock_sys::exit;
use rustix::process::Signal;
use serde_json::Value;

use super::actor::{self, Actor, Known};
use super::dump::{Row, State};
use super::listing::{self, items, text};
use super::script::{Scene, Story};
use super::step::{Acquire, Label, Step};
use super::{Engine, break_reply, play, play_at_once};
use rlock_testkit::Lab;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::servers::{Kind, Server};

/// The options of a session that a later step kills. A server notices its death only when the lease
/// ends, so the lease is short.
const SHORT: [&str; 4] = ["--ttl", "3s", "--grace", "1s"];

/// Plays every scene of a story that the command line can express, on the embedded store.
pub(crate) fn run_story(path: &Path) {
    for scene in playable_scenes(&Story::read(path)) {
        play(&mut Program::new(Lab::new(), KillNotice::AtOnce), path, scene);
    }
}

/// Plays every scene of a story that the command line can express, on a server. Some scenes wait
/// for leases to end, so all scenes run in parallel, each in a namespace of its own.
pub(crate) fn run_story_on(kind: Kind, path: &Path) {
    let server = Server::shared(kind);
    run_story_at(&server.url(), path);
}

/// The same on PostgreSQL.
pub(crate) fn run_story_on_postgres(path: &Path) {
    if let Some(server) = Postgres::is_present().then(Postgres::shared) {
        run_story_at(&server.url(), path);
    }
}

fn run_story_at(url: &str, path: &Path) {
    let story = Story::read(path);
    play_at_once(path, playable_scenes(&story), |scene| {
        let kill_notice = KillNotice::AtTheEndOfTheLease(killed_sessions(scene));
        Program::new(Lab::at(url), kill_notice)
    });
}

/// The scenes that the command line can express.
pub(super) fn playable_scenes(story: &Story) -> impl Iterator<Item = &Scene> {
    story.scenes.iter().filter(|scene| !scene.model_only && !scene.store_only)
}

/// The sessions that a later step kills.
fn killed_sessions(scene: &Scene) -> BTreeSet<Label> {
    let dies = |step: &Step| if let Step::Kill(label) = step { Some(label.clone()) } else { None };
    scene.steps.iter().filter_map(|scripted| dies(&scripted.step)).collect()
}

struct Program {
    // Fields drop in this order, so all processes have ended before the store is removed.
    actors: BTreeMap<Label, Actor>,
    /// Each session that has held or waited, with its ancestors, innermost first.
    lineages: BTreeMap<Label, Vec<Known>>,
    /// The sessions that have not yet held or waited.
    starting: BTreeMap<Label, Starting>,
    pending: Pending,
    kill_notice: KillNotice,
    lab: Lab,
}

/// A session whose id is not known yet.
struct Starting {
    resources: Vec<Resource>,
    ancestors: Vec<Known>,
}

/// When the store notices that a process was killed.
enum KillNotice {
    AtOnce,
    /// These sessions get a short lease.
    AtTheEndOfTheLease(BTreeSet<Label>),
}

/// The last step, until its reply is known.
#[derive(Clone)]
enum Pending {
    /// The session has made a request.
    Requested(Label),
    /// The process of the session ends in this way.
    Ending(Label, End),
    /// Some of these sessions lose their grants.
    Breaking(Vec<Label>),
    /// The reply is known.
    Known(String),
}

/// How a process ends.
#[derive(Clone, Copy)]
enum End {
    Released,
    Cancelled,
    Killed,
}

impl Engine for Program {
    // Only a failing step takes this long. A loaded machine is slow, and a killed waiter stays in
    // the queue of a server for 15 s.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn execute(&mut self, step: &Step) {
        self.pending = match step {
            Step::Acquire(acquire) => self.acquire(acquire),
            Step::Release(label) => {
                self.actor(label).end_command();
                Pending::Ending(label.clone(), End::Released)
            }
            Step::Cancel(label) => {
                self.actor(label).signal(Signal::TERM);
                Pending::Ending(label.clone(), End::Cancelled)
            }
            Step::Kill(label) => {
                self.actor(label).signal(Signal::KILL);
                Pending::Ending(label.clone(), End::Killed)
            }
            Step::Change(label, change) => self.change(label, change),
            Step::Break(resource) => {
                let live = self.live();
                match reply(&self.run(None, &["cleanup", "--break", resource.as_str()])) {
                    Ok(()) => Pending::Breaking(live),
                    Err(reply) => Pending::Known(reply),
                }
            }
            Step::Store(step) => unreachable!("the command line has no words for {step:?}"),
        };
    }

    fn observe(&mut self) -> (String, Vec<Row>) {
        // The processes are checked first, so that the table shows everything that an ended process
        // did.
        for actor in self.actors.values_mut() {
            actor.check();
        }
        if let (Pending::Ending(_, End::Killed), KillNotice::AtTheEndOfTheLease(_)) = (&self.pending, &self.kill_notice)
        {
            // An expired lease stays in the table until a script drops it. If the call fails, the
            // `inspect` below fails as well.
            self.run(None, &["cleanup"]);
        }
        let rows = self.rows();
        let reply = match self.pending.clone() {
            Pending::Requested(label) => self.request_reply(&label, &rows),
            Pending::Ending(label, end) => self.end_reply(&label, end),
            Pending::Breaking(live) => self.break_text(&live),
            Pending::Known(reply) => reply,
        };
        (reply, rows)
    }

    fn end_all(&mut self) -> Result<(), String> {
        self.actors.values_mut().for_each(Actor::end_command);
        let left = self.live();
        if !left.is_empty() {
            return Err(format!("{} still run", left.join(", ")));
        }
        let rows = self.rows();
        if rows.is_empty() { Ok(()) } else { Err(format!("the table still has {rows:?}")) }
    }

    fn diagnostics(&self) -> String {
        self.actors.iter().map(|(label, actor)| format!("  {label} {}\n", actor.status_text())).collect()
    }
}

impl Program {
    fn new(lab: Lab, kill_notice: KillNotice) -> Self {
        let pending = Pending::Known(String::new());
        Self {
            actors: BTreeMap::new(),
            lineages: BTreeMap::new(),
            starting: BTreeMap::new(),
            pending,
            kill_notice,
            lab,
        }
    }

    fn actor(&mut self, label: &str) -> &mut Actor {
        self.actors.get_mut(label).unwrap_or_else(|| panic!("{label} has made no request yet"))
    }

    /// A session and its ancestors, innermost first.
    fn lineage(&self, label: &str) -> &[Known] {
        self.lineages.get(label).unwrap_or_else(|| panic!("{label} has never held or waited"))
    }

    /// The sessions whose processes still run.
    fn live(&mut self) -> Vec<Label> {
        let live = self.actors.iter_mut().filter_map(|(label, actor)| actor.check().is_none().then_some(label));
        live.cloned().collect()
    }

    fn acquire(&mut self, acquire: &Acquire) -> Pending {
        let ancestors = acquire.below.as_ref().map_or_else(Vec::new, |below| self.lineage(below).to_vec());
        let options: &[&str] = match &self.kill_notice {
            KillNotice::AtTheEndOfTheLease(killed_sessions) if killed_sessions.contains(&acquire.label) => &SHORT,
            _ => &[],
        };
        let actor = Actor::start(&self.lab, acquire, options, &ancestors);
        assert!(self.actors.insert(acquire.label.clone(), actor).is_none(), "{} makes two requests", acquire.label);
        let resources = request::resources(&acquire.claims).into_iter().cloned().collect();
        self.starting.insert(acquire.label.clone(), Starting { resources, ancestors });
        Pending::Requested(acquire.label.clone())
    }

    fn change(&self, label: &str, change: &Change) -> Pending {
        let words = actor::change_words(change);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = reply(&self.run(Some(&self.lineage(label)[0].id), &words));
        Pending::Known(reply.map_or_else(|reply| reply, |()| "done".to_owned()))
    }

    /// Runs a subcommand that does not wait, inside the command of `session` if there is one.
    fn run(&self, session: Option<&str>, words: &[&str]) -> Output {
        let mut command = self.lab.rlock(words);
        command.envs(session.map(|session| ("RLOCK_SESSION", session)));
        command.output().expect("rlock starts")
    }

    fn request_reply(&self, label: &str, rows: &[Row]) -> String {
        let actor = &self.actors[label];
        let state = rows.iter().find(|row| row.label == label).map(|row| row.state);
        match (actor.ended.and_then(|status| status.code()), state) {
            (None, Some(State::Held(_))) => "granted".to_owned(),
            (None, Some(State::Waits(_))) => "waiting".to_owned(),
            (Some(code), None) if code == i32::from(exit::BUSY) => "busy".to_owned(),
            (Some(code), None) if code == i32::from(exit::REFUSED) => refused(&actor.messages()),
            (_, state) => format!("{label} {}; in the table: {state:?}", actor.status_text()),
        }
    }

    fn end_reply(&self, label: &str, end: End) -> String {
        let actor = &self.actors[label];
        let is_expected = actor.ended.is_some_and(|status| match end {
            End::Released => status.success(),
            End::Cancelled => status.code() == Some(128 + Signal::TERM.as_raw()),
            End::Killed => status.signal() == Some(Signal::KILL.as_raw()),
        });
        if is_expected { "done".to_owned() } else { format!("{label} {}", actor.status_text()) }
    }

    fn break_text(&self, live: &[Label]) -> String {
        let lost =
            |label: &&Label| self.actors[*label].ended.and_then(|status| status.code()) == Some(i32::from(exit::LOST));
        break_reply(&live.iter().filter(lost).map(String::as_str).collect::<Vec<_>>())
    }

    fn rows(&mut self) -> Vec<Row> {
        let output = self.run(None, &["inspect", "--json"]);
        let json = serde_json::from_slice::<Value>(&output.stdout);
        let json = json.unwrap_or_else(|error| panic!("inspect: {error}: {output:?}"));
        listing::rows(&json, |claim| {
            let label = items(&claim["command"]).last().map(text).expect("a command has arguments");
            if let Some(Starting { resources, ancestors }) = self.starting.remove(&label) {
                let session = Known { id: text(&claim["session"]), resources };
                self.lineages.insert(label.clone(), [vec![session], ancestors].concat());
            }
            label
        })
    }
}

/// Whether the subcommand succeeded, or else the text of its reply.
fn reply(output: &Output) -> Result<(), String> {
    let messages = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        // The break found no holder. The table shows that nothing changed.
        Some(code) if code == i32::from(exit::NOT_HELD) => Ok(()),
        Some(code) if code == i32::from(exit::REFUSED) => Err(refused(&messages)),
        _ => Err(format!("{}: {}", output.status, messages.trim_end())),
    }
}

/// A refusal without the name of the program.
fn refused(messages: &str) -> String {
    let messages = messages.trim_end();
    messages.strip_prefix("rlock: ").unwrap_or(messages).to_owned()
}
