//! Tells a story through the real program: each session is a process, `inspect --json` shows the
//! table.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

use rlock::exit;
use rustix::process::Signal;
use serde_json::Value;

use super::actor::{self, Actor};
use super::dump::{self, Row, State};
use super::script::{Scene, Story};
use super::step::{Ask, Label, Step};
use super::{Engine, broke, play};
use crate::support::Lab;
use crate::support::servers::{Kind, Server};

/// The lease of a holder that is going to be killed: nobody else learns of its death before it
/// ends.
const SHORT: [&str; 4] = ["--ttl", "3s", "--grace", "1s"];

/// Plays every scene of a story that the command line has words for, on the embedded store.
pub(crate) fn tell(path: &Path) {
    for scene in told(&Story::read(path)) {
        play(&mut Program::new(Lab::new(), Deaths::ShowAtOnce), path, scene);
    }
}

/// The same on a server. The scenes are played at the same time, each in a namespace of its own,
/// for some of them wait for leases to end.
pub(crate) fn tell_on(kind: Kind, path: &Path) {
    let server = Server::shared(kind);
    let story = Story::read(path);
    thread::scope(|scope| {
        for scene in told(&story) {
            let deaths = Deaths::ShowAtTheEndOfALease(mortals(scene));
            let mut program = Program::new(Lab::at(server.url()), deaths);
            scope.spawn(move || play(&mut program, path, scene));
        }
    });
}

/// The scenes that the command line has words for.
fn told(story: &Story) -> impl Iterator<Item = &Scene> {
    story.scenes.iter().filter(|scene| !scene.model_only)
}

/// Those who are going to be killed.
fn mortals(scene: &Scene) -> BTreeSet<Label> {
    let dies = |step: &Step| if let Step::Die(who) = step { Some(who.clone()) } else { None };
    scene.steps.iter().filter_map(|scripted| dies(&scripted.step)).collect()
}

struct Program {
    // Dropped in this order: nobody is left when the store goes.
    actors: BTreeMap<Label, Actor>,
    /// The session ids, and those of the ancestors after them, of all that were seen to hold or
    /// wait.
    lines: BTreeMap<Label, Vec<String>>,
    /// The ids of the ancestors of those that were not seen yet.
    above: BTreeMap<Label, Vec<String>>,
    doing: Doing,
    deaths: Deaths,
    lab: Lab,
}

/// When the store learns that a process was killed.
enum Deaths {
    ShowAtOnce,
    /// These get a short lease.
    ShowAtTheEndOfALease(BTreeSet<Label>),
}

/// What was done last, as far as the answer to it has still to be found out.
#[derive(Clone)]
enum Doing {
    /// The session asks.
    Asking(Label),
    /// The process ends in this way.
    Ending(Label, End),
    /// The grants of these, or of some of them, are taken away.
    Breaking(Vec<Label>),
    /// The answer.
    Answered(String),
}

/// How a process ends.
#[derive(Clone, Copy)]
enum End {
    Released,
    GaveUp,
    Died,
}

impl Engine for Program {
    // Nobody waits so long but for a step that goes wrong: a loaded machine may take its time, and
    // a killed waiter stands in the queue of a server for a quarter of a minute.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn act(&mut self, step: &Step) {
        self.doing = match step {
            Step::Ask(ask) => self.ask(ask),
            Step::Release(who) => {
                self.actor(who).end_command();
                Doing::Ending(who.clone(), End::Released)
            }
            Step::GiveUp(who) => {
                self.actor(who).signal(Signal::TERM);
                Doing::Ending(who.clone(), End::GaveUp)
            }
            Step::Die(who) => {
                self.actor(who).signal(Signal::KILL);
                Doing::Ending(who.clone(), End::Died)
            }
            Step::Shrink(who, resource, span) => {
                let ends = actor::ends(span);
                let words = ["shrink", "--resource", resource.as_str()].into_iter();
                self.change(who, &words.chain(ends.iter().map(String::as_str)).collect::<Vec<_>>())
            }
            Step::Downgrade(who, resource, mode) => {
                self.change(who, &["downgrade", mode.as_str(), "--resource", resource.as_str()])
            }
            Step::Break(resource) => {
                let live = self.live();
                match answer(&self.run(None, &["cleanup", "--break", resource.as_str()])) {
                    Ok(()) => Doing::Breaking(live),
                    Err(answer) => Doing::Answered(answer),
                }
            }
        };
    }

    fn look(&mut self) -> (String, Vec<Row>) {
        // The processes first: what one of them did before it ended is in the table that is read
        // after that.
        for actor in self.actors.values_mut() {
            actor.check();
        }
        if let (Doing::Ending(_, End::Died), Deaths::ShowAtTheEndOfALease(_)) = (&self.doing, &self.deaths) {
            // What has expired stays in the table until somebody comes by. It fails no less loudly
            // here than below.
            self.run(None, &["cleanup"]);
        }
        let rows = self.rows();
        let answer = match self.doing.clone() {
            Doing::Asking(who) => self.asked(&who, &rows),
            Doing::Ending(who, end) => self.ended(&who, end),
            Doing::Breaking(live) => self.broken(&live),
            Doing::Answered(answer) => answer,
        };
        (answer, rows)
    }

    fn leave(&mut self) -> Result<(), String> {
        self.actors.values_mut().for_each(Actor::end_command);
        let left = self.live();
        if !left.is_empty() {
            return Err(format!("{} runs on", left.join(", ")));
        }
        let rows = self.rows();
        if rows.is_empty() { Ok(()) } else { Err(format!("the table keeps {rows:?}")) }
    }

    fn notes(&self) -> String {
        self.actors.iter().map(|(who, actor)| format!("  {who} {}\n", actor.epitaph())).collect()
    }
}

impl Program {
    fn new(lab: Lab, deaths: Deaths) -> Self {
        let doing = Doing::Answered(String::new());
        Self { actors: BTreeMap::new(), lines: BTreeMap::new(), above: BTreeMap::new(), doing, deaths, lab }
    }

    fn actor(&mut self, who: &str) -> &mut Actor {
        self.actors.get_mut(who).unwrap_or_else(|| panic!("{who} has not asked for anything yet"))
    }

    /// The ids of a session and of its ancestors, innermost first.
    fn line(&self, who: &str) -> &[String] {
        self.lines.get(who).unwrap_or_else(|| panic!("{who} was never seen to hold or wait"))
    }

    /// Those whose processes have not ended.
    fn live(&mut self) -> Vec<Label> {
        let live = self.actors.iter_mut().filter_map(|(who, actor)| actor.check().is_none().then_some(who));
        live.cloned().collect()
    }

    fn ask(&mut self, ask: &Ask) -> Doing {
        let above = ask.below.as_ref().map_or_else(Vec::new, |below| self.line(below).to_vec());
        let options: &[&str] = match &self.deaths {
            Deaths::ShowAtTheEndOfALease(mortals) if mortals.contains(&ask.who) => &SHORT,
            _ => &[],
        };
        let actor = Actor::start(&self.lab, ask, options, &above);
        assert!(self.actors.insert(ask.who.clone(), actor).is_none(), "{} asks twice", ask.who);
        self.above.insert(ask.who.clone(), above);
        Doing::Asking(ask.who.clone())
    }

    fn change(&self, who: &str, words: &[&str]) -> Doing {
        let answer = answer(&self.run(Some(&self.line(who)[0]), words));
        Doing::Answered(answer.map_or_else(|answer| answer, |()| "done".to_owned()))
    }

    /// Runs a subcommand that doesn't wait, inside the command of `session` if there is one.
    fn run(&self, session: Option<&str>, words: &[&str]) -> Output {
        let mut command = self.lab.rlock(words);
        command.envs(session.map(|session| ("RLOCK_SESSION", session)));
        command.output().expect("the program can be run")
    }

    fn asked(&self, who: &str, rows: &[Row]) -> String {
        let actor = &self.actors[who];
        let state = rows.iter().find(|row| row.who == who).map(|row| row.state);
        match (actor.ended.and_then(|status| status.code()), state) {
            (None, Some(State::Held(_))) => "granted".to_owned(),
            (None, Some(State::Waits(_))) => "waiting".to_owned(),
            (Some(code), None) if code == i32::from(exit::BUSY) => "busy".to_owned(),
            (Some(code), None) if code == i32::from(exit::REFUSED) => refused(&actor.messages()),
            (_, state) => format!("{who} {}; in the table: {state:?}", actor.epitaph()),
        }
    }

    fn ended(&self, who: &str, end: End) -> String {
        let actor = &self.actors[who];
        let as_it_should = actor.ended.is_some_and(|status| match end {
            End::Released => status.success(),
            End::GaveUp => status.code() == Some(128 + Signal::TERM.as_raw()),
            End::Died => status.signal() == Some(Signal::KILL.as_raw()),
        });
        if as_it_should { "done".to_owned() } else { format!("{who} {}", actor.epitaph()) }
    }

    fn broken(&self, live: &[Label]) -> String {
        let lost =
            |who: &&Label| self.actors[*who].ended.and_then(|status| status.code()) == Some(i32::from(exit::LOST));
        broke(&live.iter().filter(lost).map(String::as_str).collect::<Vec<_>>())
    }

    fn rows(&mut self) -> Vec<Row> {
        let output = self.run(None, &["inspect", "--json"]);
        let json = serde_json::from_slice::<Value>(&output.stdout);
        let json = json.unwrap_or_else(|error| panic!("inspect: {error}: {output:?}"));
        let mut rows = Vec::new();
        for resource in items(&json["resources"]) {
            for holder in items(&resource["holders"]) {
                rows.push(self.row(&resource["name"], holder, State::Held(number(&holder["token"]))));
            }
            for waiter in items(&resource["waiters"]) {
                rows.push(self.row(&resource["name"], waiter, State::Waits(number(&waiter["position"]))));
            }
        }
        rows
    }

    fn row(&mut self, resource: &Value, claim: &Value, state: State) -> Row {
        let who = items(&claim["command"]).last().map(text).expect("a command has words");
        if let Some(above) = self.above.remove(&who) {
            self.lines.insert(who.clone(), [vec![text(&claim["session"])], above].concat());
        }
        let words = dump::claim(&text(&claim["mode"]), claim["slots"].as_u64(), span(&claim["span"]));
        Row { resource: text(resource), who, claim: words, state }
    }
}

/// The words of an answer that is not simply that it is done.
fn answer(output: &Output) -> Result<(), String> {
    let messages = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        // A break of what nobody holds: what is held shows that nothing changed.
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

fn span(span: &Value) -> Option<String> {
    let bracket = |open: &str, closed, end| if span[open] == Value::Bool(true) { end } else { closed };
    span.is_object().then(|| {
        let (before, after) = (bracket("lo_open", '[', '('), bracket("hi_open", ']', ')'));
        format!("{before}{},{}{after}", text(&span["lo"]), text(&span["hi"]))
    })
}

fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, not {value}"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}")).to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))
}
