//! Runs the scenes that the command line cannot express on a store, through the interface that the
//! subcommands use. A handle stands for a process, which dies with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rlock_model::op::Change;
use rlock_model::past::{End, HISTORY_MAX};
use rlock_model::request::{self, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_store::{AcquireOptions, Breaking, Changed, Handle, Released, Secrets, Standing, Store};
use rlock_sys::clock::StoreTime;
use rustix::event::{PollFd, Timespec, poll};

use super::dump::{self, Row};
use super::play_at_once;
use super::script::Story;
use super::step::{Acquire, Label, Step, StoreStep};
use super::{Engine, break_reply, model, play};
use rlock_testkit::Lab;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::servers::{Kind, Server};

/// The leases on a server. A killed session ends with its lease.
const TERMS: Terms =
    Terms { ttl: Duration::from_secs(6), claim: Duration::from_secs(6), heartbeat: Duration::from_secs(6) };

/// How many times as long as a story says its times are on a server, where many scenes that are
/// played at once delay each other's steps.
const SLOWER: u32 = 3;

/// How often the sessions are looked after while time passes.
const STEP: Duration = Duration::from_millis(50);

/// Plays the scenes of a story that the command line cannot express on the embedded store.
pub(crate) fn run_story(path: &Path) {
    let story = Story::read(path);
    let scenes = story.scenes.iter().filter(|scene| scene.store_only);
    scenes.for_each(|scene| play(&mut Library::new(Lab::new(), None), path, scene));
}

/// Plays the same scenes on a server, all in parallel, each in a namespace of its own.
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
    let scenes = story.scenes.iter().filter(|scene| scene.store_only);
    play_at_once(path, scenes, |_| Library::new(Lab::at(url), Some(TERMS)));
}

struct Library {
    // Fields drop in this order, so all sessions have ended before the store is removed.
    handles: BTreeMap<Label, Handle>,
    /// The sessions that have left. Their handles are not looked at any more, as by a process that
    /// ends.
    left: BTreeSet<Label>,
    /// The ids of each session and of its ancestors, innermost first.
    lineages: BTreeMap<Label, Vec<SessionId>>,
    /// The resources that each session claims.
    resources: BTreeMap<SessionId, Vec<Resource>>,
    terms: Option<Terms>,
    /// The reply to the last step, or the session whose standing is the reply.
    pending: Option<Result<String, Label>>,
    lab: Lab,
}

impl Engine for Library {
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn execute(&mut self, step: &Step) {
        self.settle();
        self.pending = Some(match step {
            Step::Acquire(acquire) => {
                self.acquire(acquire);
                Err(acquire.label.clone())
            }
            Step::Release(label) | Step::Cancel(label) => Ok(self.release(label, None)),
            Step::Kill(label) => {
                self.handles.remove(label);
                Ok("done".to_owned())
            }
            Step::Break(resource) => {
                let broken = self.store().break_grants(resource, None, Breaking::Now).expect("the store can be used");
                let labels = broken.iter().filter_map(|(_, session)| session.process.command.last());
                Ok(break_reply(&labels.map(String::as_str).collect::<Vec<_>>()))
            }
            Step::Change(label, change) => {
                let id = self.lineages[label][0];
                Ok(changed(self.store().change(id, &[], change)))
            }
            Step::Store(step) => Ok(self.step(step)),
        });
    }

    fn observe(&mut self) -> (String, Vec<Row>) {
        self.settle();
        let standings = self.standings();
        self.settle();
        let reply = match self.pending.as_ref().expect("a step was executed") {
            Ok(reply) => reply.clone(),
            Err(label) => standings[label].clone(),
        };
        let mut store = self.store();
        if self.terms.is_some() {
            // Only an operation on the resource drops a killed session whose lease has ended.
            store.cleanup(&[], false).expect("the store can be used");
        }
        let inspection = store.inspect(&[]).expect("the store can be used");
        (reply, inspection.resources.iter().flat_map(model::rows).collect())
    }

    fn end_all(&mut self) -> Result<(), String> {
        self.handles.clear();
        let mut store = self.store();
        store.cleanup(&[], false).map_err(|error| error.to_string())?;
        for (id, resources) in &self.resources {
            let session = store.session(*id, resources).map_err(|error| error.to_string())?;
            if let Some(session) = session {
                store.release(*id, &session, None).map_err(|error| error.to_string())?;
            }
        }
        let left = store.inspect(&[]).map_err(|error| error.to_string())?.resources;
        if left.is_empty() { Ok(()) } else { Err(format!("the table still has {left:?}")) }
    }
}

impl Library {
    fn new(lab: Lab, terms: Option<Terms>) -> Self {
        let (handles, lineages, resources) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { handles, left: BTreeSet::new(), lineages, resources, terms, pending: None, lab }
    }

    fn store(&self) -> Box<dyn Store> {
        let limit = Duration::from_secs(10);
        let namespace = if self.terms.is_some() { self.lab.namespace() } else { "stories" };
        rlock::stores::open(Some(&self.lab.url()), namespace, &Secrets::default(), limit).expect("the store opens")
    }

    fn handle(&mut self, label: &str) -> &mut Handle {
        self.handles.get_mut(label).unwrap_or_else(|| panic!("{label} has made no request yet"))
    }

    fn release(&mut self, label: &Label, end: Option<End>) -> String {
        self.left.insert(label.clone());
        released(self.handle(label).release(end))
    }

    /// Looks after the sessions until none of them has anything to do now. In PostgreSQL each has a
    /// transaction of its own, which ends only if its handle is looked after, and everybody else
    /// waits for its end.
    fn settle(&mut self) {
        if !self.lab.url().starts_with("postgres:") {
            return;
        }
        loop {
            self.standings();
            let here = self.handles.iter().filter(|(label, _)| !self.left.contains(*label));
            let descriptors: Vec<_> = here.flat_map(|(_, handle)| handle.descriptors()).collect();
            let mut polled: Vec<_> =
                descriptors.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
            let quiet = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            if poll(&mut polled, Some(&quiet)).expect("descriptors can be polled") == 0 {
                return;
            }
        }
    }

    /// How each session stands that has not left.
    fn standings(&mut self) -> BTreeMap<Label, String> {
        let here = self.handles.iter_mut().filter(|(label, _)| !self.left.contains(*label));
        here.map(|(label, handle)| (label.clone(), standing(handle))).collect()
    }

    fn acquire(&mut self, acquire: &Acquire) {
        let ancestors = acquire.below.as_ref().map_or_else(Vec::new, |below| self.lineages[below].clone());
        let mut job = acquire.job_at(StoreTime::of_machine(), self.slower());
        job.held_above = ancestors.iter().flat_map(|ancestor| self.resources[ancestor].clone()).collect();
        let session = SessionId((self.lineages.len() as u128 + 1).to_be_bytes());
        let line = [&[session], ancestors.as_slice()].concat();
        assert!(self.lineages.insert(acquire.label.clone(), line).is_none(), "{} makes two requests", acquire.label);
        let request = Request {
            session,
            ancestors,
            claims: acquire.claims.clone(),
            wait: acquire.wait,
            terms: self.terms,
            job,
            process: Process { command: vec![acquire.label.clone()], ..Process::default() },
        };
        let names = request::resources(&request.claims).into_iter().cloned();
        self.resources.insert(session, names.collect());
        let sessions = self.store().sessions(false).expect("the store can be used");
        let handle = Handle::new(sessions, request, AcquireOptions::default());
        self.handles.insert(acquire.label.clone(), handle.expect("the store can be used"));
    }

    fn slower(&self) -> u32 {
        if self.terms.is_some() { SLOWER } else { 1 }
    }

    fn step(&mut self, step: &StoreStep) -> String {
        match step {
            StoreStep::Ended(label, end) => self.release(label, Some(*end)),
            StoreStep::GiveUp(label) => {
                let standing = self.handle(label).give_up().expect("the store can be used");
                if !matches!(standing, Standing::Granted(_)) {
                    self.left.insert(label.clone());
                }
                text(&standing)
            }
            StoreStep::Extend(label, by) => {
                let id = self.lineages[label][0];
                let change = Change::Extend { by: Some(*by * self.slower()) };
                changed(self.store().change(id, &self.resources[&id], &change))
            }
            StoreStep::Pass(time) => {
                let end = Instant::now() + *time * self.slower();
                while Instant::now() < end {
                    thread::sleep(STEP);
                    drop(self.standings());
                }
                "done".to_owned()
            }
            StoreStep::History(resource) => self.history(resource),
            StoreStep::Forget(resource) => {
                self.store().forget(resource).expect("the store can be used");
                "done".to_owned()
            }
            StoreStep::Slots(label) => {
                let id = self.lineages[label][0];
                let session = self.store().session(id, &self.resources[&id]).expect("the store can be used");
                dump::slots(&session.map(|session| session.slots()).unwrap_or_default())
            }
        }
    }

    fn history(&self, resource: &Resource) -> String {
        let found = self.store().history(std::slice::from_ref(resource), HISTORY_MAX).expect("the store can be used");
        dump::history(found.first())
    }
}

fn standing(handle: &mut Handle) -> String {
    // A check returns the last known standing first.
    let _ = handle.check();
    text(&handle.check().expect("the store can be used"))
}

fn text(standing: &Standing) -> String {
    match standing {
        Standing::Granted(_) => "granted".to_owned(),
        Standing::Waiting | Standing::Asking => "waiting".to_owned(),
        Standing::Busy { streak, .. } => dump::busy(streak.as_ref()),
        Standing::Superseded { streak, .. } => dump::superseded(streak.as_ref()),
        Standing::AlreadyDone => "already done".to_owned(),
        Standing::Refused(refusal) => format!("refused: {refusal}"),
        Standing::Lost => "lost".to_owned(),
    }
}

fn released(result: Result<Released, rlock_store::Error>) -> String {
    match result.expect("the store can be used") {
        Released::Done | Released::Kept => "done".to_owned(),
        Released::Lost => "lost".to_owned(),
    }
}

fn changed(result: Result<Changed, rlock_store::Error>) -> String {
    match result.expect("the store can be used") {
        Changed::Done => "done".to_owned(),
        Changed::Refused(refusal) => format!("refused: {refusal}"),
        Changed::Lost => "lost".to_owned(),
    }
}
