//! Runs a story through `rlock serve`. Each session is a connection, and the line INSPECT shows the
//! table.
//!
//! A connection has one session, or a prewrite lock and its upgrade. So a scene with other nested
//! sessions cannot be played.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rlock_model::mode::Mode;
use rlock_model::request::Claim;
use serde_json::Value;

use super::actor;
use super::dump::{Row, State};
use super::listing::{self, text};
use super::program::playable_scenes;
use super::script::{Scene, Story};
use super::step::{Acquire, Label, Step};
use super::{Engine, break_reply, play, play_at_once};
use rlock_testkit::Lab;
use rlock_testkit::serve::{self, LockServer, Next};
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::servers::{Kind, Server};

/// Plays every scene of a story that clients can express, on the embedded store.
pub(crate) fn run_story(path: &Path) {
    for scene in scenes(&Story::read(path)) {
        play(&mut Served::new(Lab::new()), path, scene);
    }
}

/// Plays every scene of a story that clients can express, on a server. Each scene has a namespace
/// of its own.
pub(crate) fn run_story_on(kind: Kind, path: &Path) {
    let server = Server::shared(kind);
    play_at_once(path, scenes(&Story::read(path)), |_| Served::new(Lab::at(server.url())));
}

/// The same on PostgreSQL.
pub(crate) fn run_story_on_postgres(path: &Path) {
    if let Some(server) = Postgres::is_present().then(Postgres::shared) {
        play_at_once(path, scenes(&Story::read(path)), |_| Served::new(Lab::at(server.url())));
    }
}

/// The number of the scenes of a story that clients can express.
pub(crate) fn count_scenes(path: &Path) -> usize {
    scenes(&Story::read(path)).count()
}

fn scenes(story: &Story) -> impl Iterator<Item = &Scene> {
    playable_scenes(story).filter(|scene| is_for_connections(scene))
}

/// Whether the sessions of a scene fit onto connections. Each session has a connection of its own,
/// but an upgrade has that of its prewrite lock, and ends before the lock changes or ends.
fn is_for_connections(scene: &Scene) -> bool {
    // The claims of each session that has not changed them.
    let mut claims: BTreeMap<&str, &[Claim]> = BTreeMap::new();
    // The prewrite lock of each upgrade.
    let mut upgraded: BTreeMap<&str, &str> = BTreeMap::new();
    let steps = scene.steps.iter().map(|scripted| &scripted.step);
    steps.into_iter().all(|step| match step {
        Step::Acquire(acquire @ Acquire { below: None, .. }) => {
            claims.insert(&acquire.label, &acquire.claims);
            true
        }
        Step::Acquire(acquire @ Acquire { below: Some(below), .. }) => {
            let is_first = upgraded.values().all(|label| label != below);
            upgraded.insert(&acquire.label, below);
            is_first && claims.get(below.as_str()).is_some_and(|held| upgrade(held, acquire).is_some())
        }
        Step::Release(label) => {
            upgraded.remove(label.as_str());
            upgraded.values().all(|below| below != label)
        }
        Step::Cancel(label) | Step::Kill(label) => {
            upgraded.iter().all(|(upgrade, below)| upgrade != label && below != label)
        }
        Step::Change(label, _) => {
            claims.remove(label.as_str());
            upgraded.values().all(|below| below != label)
        }
        Step::Break(_) => true,
        Step::Store(_) => false,
    })
}

/// The line for a request below a session with these claims, if the request is an upgrade.
fn upgrade(held: &[Claim], acquire: &Acquire) -> Option<String> {
    let prewrite: Vec<_> = held.iter().filter(|claim| claim.mode == Mode::Prewrite).collect();
    let is_write_of = |claim: &Claim, held: &Claim| claim.mode == Mode::Write && claim.resource == held.resource;
    let pairs = || acquire.claims.iter().zip(&prewrite);
    if !acquire.wait || acquire.claims.len() != prewrite.len() || !pairs().all(|(claim, held)| is_write_of(claim, held))
    {
        None
    } else if pairs().all(|(claim, held)| claim.span == held.span) {
        Some("UPGRADE".to_owned())
    } else if let [Claim { span, .. }] = acquire.claims.as_slice()
        && !span.is_whole()
    {
        Some(format!("UPGRADE {}", actor::ends(span).join(" ")))
    } else {
        None
    }
}

/// The line for a request. The only word after a LOCK is a KEY for writing, whose answer has no
/// token.
fn line(acquire: &Acquire) -> String {
    let words = actor::words(&acquire.claims);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match (words.as_slice(), acquire.wait) {
        (["exec", "--write", key], true) => format!("LOCK {key}"),
        (["exec", claims @ ..], true) => format!("LOCK {}", claims.join(" ")),
        (["exec", claims @ ..], false) => format!("TRY {}", claims.join(" ")),
        ([range, claim @ ..], wait) => {
            let no_wait = if wait { "" } else { " -n" };
            format!("{} {}{no_wait}", range.to_uppercase(), claim.join(" "))
        }
        ([], _) => unreachable!("a request has a subcommand"),
    }
}

/// A server with its clients.
struct Served {
    clients: Vec<Client>,
    /// The session of each label that has held or waited.
    labels: BTreeMap<String, Label>,
    pending: Pending,
    inspector: serve::Client,
    /// The server ends before its store is removed.
    server: LockServer,
    lab: Lab,
}

/// A client, which is the session of one label and of its upgrades.
struct Client {
    labels: Vec<Label>,
    claims: Vec<Claim>,
    /// `None` if the client was killed.
    connection: Option<serve::Client>,
    /// Whether the server has closed the connection.
    has_ended: bool,
    /// The lines that the client has received since its last one.
    received: Vec<String>,
}

/// The last step, until its reply is known.
#[derive(Clone)]
enum Pending {
    /// The client has sent this request.
    Requested(Label, String),
    /// The client has sent another line.
    Sent(Label),
    /// The client has ended its connection.
    Ended(Label),
    /// Some of these sessions lose their grants.
    Breaking(Vec<Label>),
    /// The reply is known.
    Known(String),
}

impl Engine for Served {
    // Only a failing step takes this long.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn execute(&mut self, step: &Step) {
        self.pending = match step {
            Step::Acquire(acquire) => self.acquire(acquire),
            Step::Release(label) => self.send(label, "UNLOCK"),
            Step::Cancel(label) => {
                self.client(label).connection.as_ref().expect("the client lives").half_close();
                Pending::Ended(label.clone())
            }
            Step::Kill(label) => {
                self.client(label).connection.take().expect("the client lives").reset();
                Pending::Known("done".to_owned())
            }
            Step::Change(label, change) => {
                let words = actor::change_words(change);
                self.send(label, &format!("{} {}", words[0].to_uppercase(), words[1..].join(" ")))
            }
            Step::Break(resource) => {
                let live = self.clients.iter().filter(|client| client.is_live());
                let live = live.flat_map(|client| client.labels.clone()).collect();
                self.lab.run(["cleanup", "--break", resource.as_str()]);
                Pending::Breaking(live)
            }
            Step::Store(step) => unreachable!("the protocol has no words for {step:?}"),
        };
    }

    fn observe(&mut self) -> (String, Vec<Row>) {
        let rows = self.rows();
        // The answers are read after the table, so that a client that waits in the table and has no
        // answer still waited at that time.
        self.clients.iter_mut().for_each(Client::receive);
        // The server learns of a grant after the table shows it, and tells the client.
        let untold =
            rows.iter().find(|row| matches!(row.state, State::Held(_)) && self.client(&row.label).waits(&row.label));
        let reply = match (untold, self.pending.clone()) {
            (Some(row), _) => format!("{} holds, and received nothing", row.label),
            (None, Pending::Requested(label, line)) => self.request_reply(&label, &line, &rows),
            (None, Pending::Sent(label)) => match self.answer(&label).as_slice() {
                ["ok"] => "done".to_owned(),
                [line] if line.starts_with("refused ") => line.replacen(' ', ": ", 1),
                lines => format!("{label} received {lines:?}"),
            },
            (None, Pending::Ended(label)) => match self.client(&label) {
                client if client.received.is_empty() && !client.is_live() => "done".to_owned(),
                client => format!("{label} is still connected, and received {:?}", client.received),
            },
            (None, Pending::Breaking(live)) => self.break_text(&live),
            (None, Pending::Known(reply)) => reply,
        };
        (reply, rows)
    }

    fn end_all(&mut self) -> Result<(), String> {
        self.clients.iter().filter_map(|client| client.connection.as_ref()).for_each(serve::Client::half_close);
        self.clients.iter_mut().for_each(Client::receive);
        let live = self.clients.iter().filter(|client| client.is_live()).count();
        let rows = self.rows();
        if live == 0 && rows.is_empty() {
            Ok(())
        } else {
            Err(format!("{live} are connected, and the table has {rows:?}"))
        }
    }

    fn diagnostics(&self) -> String {
        let clients = self.clients.iter();
        let clients = clients.map(|client| format!("  {} received {:?}\n", client.labels.join(", "), client.received));
        clients.collect::<String>() + &self.server.log().join("\n")
    }
}

impl Served {
    fn new(lab: Lab) -> Self {
        let server = LockServer::start(&lab, [""; 0]);
        let inspector = server.tcp();
        let (clients, labels, pending) = (Vec::new(), BTreeMap::new(), Pending::Known(String::new()));
        Self { clients, labels, pending, inspector, server, lab }
    }

    fn client(&mut self, label: &str) -> &mut Client {
        let client = self.clients.iter_mut().find(|client| client.labels.iter().any(|own| own == label));
        client.unwrap_or_else(|| panic!("{label} has made no request yet"))
    }

    fn acquire(&mut self, acquire: &Acquire) -> Pending {
        let label = acquire.label.clone();
        let line = if let Some(below) = &acquire.below {
            let client = self.client(below);
            client.labels.push(label.clone());
            upgrade(&client.claims, acquire).expect("the scene fits onto connections")
        } else {
            let (labels, claims) = (vec![label.clone()], acquire.claims.clone());
            let connection = Some(self.server.tcp());
            self.clients.push(Client { labels, claims, connection, has_ended: false, received: Vec::new() });
            line(acquire)
        };
        self.send(&label, &line);
        Pending::Requested(label, line)
    }

    fn send(&mut self, label: &str, line: &str) -> Pending {
        let client = self.client(label);
        client.received.clear();
        client.connection.as_mut().expect("the client lives").say(line);
        Pending::Sent(label.to_owned())
    }

    /// The lines that the client has received since its last one.
    fn answer(&mut self, label: &str) -> Vec<&str> {
        self.client(label).received.iter().map(String::as_str).collect()
    }

    fn request_reply(&mut self, label: &str, line: &str, rows: &[Row]) -> String {
        let state = rows.iter().filter(|row| row.label == label).map(|row| row.state).max();
        match (self.answer(label).as_slice(), state) {
            (["ok"], Some(State::Held(_))) if is_plain(line) => "granted".to_owned(),
            ([ok], Some(State::Held(token))) if *ok == format!("ok {token}") => "granted".to_owned(),
            ([], Some(State::Waits(_))) => "waiting".to_owned(),
            ([line], None) if line.starts_with("busy ") => "busy".to_owned(),
            ([line], None) if line.starts_with("refused ") => line.replacen(' ', ": ", 1),
            (lines, _) => format!("{label} received {lines:?} for '{line}'; in the table: {state:?}"),
        }
    }

    fn break_text(&mut self, live: &[Label]) -> String {
        let has_lost = |label: &&str| {
            let client = self.client(label);
            matches!(client.received.as_slice(), [.., line] if line.starts_with("lost ")) && !client.is_live()
        };
        break_reply(&live.iter().map(String::as_str).filter(has_lost).collect::<Vec<_>>())
    }

    fn rows(&mut self) -> Vec<Row> {
        let answer = self.inspector.ask("INSPECT");
        let json = serde_json::from_str::<Value>(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let Self { clients, labels, .. } = self;
        listing::rows(&json, |claim| {
            labels.entry(text(&claim["session"])).or_insert_with(|| newest(clients, claim)).clone()
        })
    }
}

/// The label of a new session: the last one of the client with the address in the claim.
fn newest(clients: &[Client], claim: &Value) -> Label {
    let host = text(&claim["host"]);
    let is_its = |client: &&Client| client.connection.as_ref().is_some_and(|own| own.address().to_string() == host);
    let client = clients.iter().find(is_its).and_then(|client| client.labels.last());
    client.unwrap_or_else(|| panic!("no client has the address of {claim}")).clone()
}

/// Whether this is the line `LOCK KEY`.
fn is_plain(line: &str) -> bool {
    line.strip_prefix("LOCK ").is_some_and(|rest| !rest.contains(' '))
}

impl Client {
    fn receive(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        while !self.has_ended {
            match connection.next_within(Duration::ZERO) {
                Next::Line(line) => self.received.push(line),
                Next::End => self.has_ended = true,
                Next::Nothing => return,
            }
        }
    }

    /// Whether the request of this label is the last line, and has no answer.
    fn waits(&self, label: &str) -> bool {
        self.received.is_empty() && self.labels.last().is_some_and(|last| last == label)
    }

    /// Whether the connection lasted when the last lines were read.
    fn is_live(&self) -> bool {
        self.connection.is_some() && !self.has_ended
    }
}
