//! The gate before the start of a command that needs room: one request at a time looks whether the
//! machine has the room, and the next one looks only when the command has had time to take it.
//!
//! ```text
//!   granted ──▶ queue of the gate ──▶ looks for room ──▶ starts, and leaves a kept hold for 2 s
//! ```
//!
//! The gate is a lock in an embedded store of this user, below the directory of the default one, so
//! that no listing of locks shows it. Its store is the same whatever that of the request is. The
//! end of rlock gives the gate up as well. The kept hold is made below the lock, so that no other
//! request comes between.

pub mod room;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::PollFlags;

use self::room::{Needs, Room};
use crate::event::Event;
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_store::{AcquireOptions, Breaking, Error, Handle, Standing, Store, identity};
use rlock_sys::clock::Boottime;
use rlock_sys::exit;
use rlock_words::reason;

/// Opens the store of the gate.
pub type Open = fn() -> Result<Box<dyn Store>, Error>;

/// The name of the gate.
const NAME: &str = "start";

/// How long the gate stays closed for others after a start.
const PACE: Duration = Duration::from_secs(2);

/// How often the request at the gate looks for room.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a request waits at the gate before it lets those behind it look, which may need less
/// room. Then each has its turn for [`LOOK_EVERY`].
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the next request sees one and the same request at the gate before it takes the turn
/// over. A request that is stopped there may never go on. No other one keeps its turn so long.
const TURN: Duration = Duration::from_secs(30);

/// What a request waits for behind another one at the gate.
const BEHIND: &str = "waiting for room: another command waits for it, is about to start, or has just started";

/// The gate, as one request sees it.
pub struct Gate {
    needs: Needs,
    request: Request,
    open: Open,
    /// The store, until the first request for the gate is made.
    store: Option<Box<dyn Store>>,
    handle: Option<Handle>,
    /// The kept hold below the handle, until it is granted.
    kept: Option<Handle>,
    stage: Stage,
    /// When the request lets those behind it look, once it has come to the gate.
    patient_until: Option<Boottime>,
    /// The session whose turn it is, as this request has last seen it, and when that turn ends.
    ahead: Option<(SessionId, Boottime)>,
    /// What the request waits for, in words.
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The request is not granted yet, or its command has started.
    Away,
    /// Another request is at the gate.
    Behind,
    /// The request looks for room, at this instant again.
    Looks(Boottime),
    /// There is room, and the command is about to start.
    Open,
    /// The command has started, and the kept hold is asked for.
    Closes,
}

impl Gate {
    /// The gate for a command with these needs, in the store that `open` opens. `process` is that
    /// of the request.
    ///
    /// # Errors
    /// The machine never has so much memory, or does not tell how much it has, or its embedded
    /// store cannot be used.
    pub fn new(needs: Needs, process: Process, open: Open) -> Result<Self, Failure> {
        if let Some(needed) = needs.memory {
            let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let Some((_, total)) = room::of_machine(&meminfo) else {
                return Err(Failure::usage("--min-memory needs MemAvailable in /proc/meminfo: leave it out"));
            };
            if needs.exceeds(total) {
                let (needed, total) = (room::size(needed), room::size(total));
                return Err(Failure::usage(format!("--min-memory: {needed} is more than the {total} of this machine")));
            }
        }
        let store = Some(open()?);
        let request = Request {
            session: new_session()?,
            ancestors: Vec::new(),
            claims: vec![Claim { resource: name(), mode: Mode::Write, span: Span::Whole, slots: None }],
            wait: true,
            terms: None,
            job: Job { history: 0, ..Job::default() },
            process: Process { reason: Some(needs.to_string()), ..process },
        };
        let (handle, kept, stage, patient_until, ahead, why) = (None, None, Stage::Away, None, None, None);
        Ok(Self { needs, request, open, store, handle, kept, stage, patient_until, ahead, why })
    }

    /// What the request waits for, in words.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The descriptors to poll, and when to look without them.
    pub fn awaited(&self) -> (Vec<(BorrowedFd<'_>, PollFlags)>, Option<Boottime>) {
        let asked = match self.stage {
            Stage::Behind => &self.handle,
            Stage::Closes if self.kept.is_some() => &self.kept,
            Stage::Closes => &self.handle,
            Stage::Looks(at) => return (Vec::new(), Some(at)),
            Stage::Away | Stage::Open => &None,
        };
        let (descriptors, at) = asked.as_ref().map(|it| (it.descriptors(), it.timeout())).unwrap_or_default();
        let turn_ends = self.ahead.filter(|_| self.stage == Stage::Behind).map(|(_, at)| at);
        (descriptors, at.into_iter().chain(turn_ends).min())
    }

    /// Joins the queue of the gate.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn enter(&mut self, now: Boottime) -> Result<(), Failure> {
        self.patient_until.get_or_insert(now + PATIENCE);
        self.join()
    }

    fn join(&mut self) -> Result<(), Failure> {
        let store = match self.store.take() {
            Some(store) => store,
            None => {
                self.request.session = new_session()?;
                (self.open)()?
            }
        };
        self.handle = Some(Handle::new(store.sessions(false)?, self.request.clone(), AcquireOptions::default())?);
        self.stage = Stage::Behind;
        Ok(())
    }

    /// Goes on as far as there is something to do: returns whether there is room, or still none.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn look(&mut self, now: Boottime) -> Result<Option<Event>, Failure> {
        let Some(handle) = &mut self.handle else { return Ok(None) };
        if self.stage == Stage::Behind {
            match handle.check()? {
                Standing::Granted(_) => {
                    (self.stage, self.ahead) = (Stage::Looks(now), None);
                    self.patient_until = self.patient_until.max(Some(now + LOOK_EVERY));
                }
                // The store is in use just now, or has no news.
                Standing::Asking => {
                    if self.ahead.is_some() {
                        self.take_turn_over(now);
                    }
                    return Ok(None);
                }
                standing if standing.is_over() => {
                    return Err(Failure::new(
                        exit::UNAVAILABLE,
                        "the gate for --min-memory and --max-load was taken away",
                    ));
                }
                _ => {
                    self.take_turn_over(now);
                    let is_new = self.why.replace(BEHIND.to_owned()).is_none();
                    return Ok(is_new.then_some(Event::NoRoom));
                }
            }
        }
        match self.stage {
            Stage::Looks(at) if at <= now => {
                // This request was stopped, and another one has taken its turn over.
                if handle.check()?.is_over() {
                    self.leave();
                    self.join()?;
                    return self.look(now);
                }
                self.why = self.needs.missing_in(&seen());
                if self.why.is_none() {
                    self.stage = Stage::Open;
                    return Ok(Some(Event::Room));
                }
                if self.patient_until <= Some(now)
                    && handle.inspect().is_ok_and(|seen| seen.iter().any(|seen| seen.waiting > 0))
                {
                    self.leave();
                    self.join()?;
                    return self.look(now);
                }
                self.stage = Stage::Looks(now + LOOK_EVERY);
                Ok(Some(Event::NoRoom))
            }
            Stage::Closes => {
                self.close();
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Ends the turn of the request that this one has seen at the gate for [`TURN`].
    fn take_turn_over(&mut self, now: Boottime) {
        if self.ahead.is_some_and(|(_, until)| now < until) {
            return;
        }
        let seen = self.handle.as_mut().and_then(|handle| handle.inspect().ok()).unwrap_or_default();
        let mut holders = seen.iter().flat_map(|seen| &seen.listing.holders).filter(|holder| !holder.kept);
        let found = holders.next().map(|holder| holder.session);
        if let Some((session, _)) = self.ahead.filter(|(session, _)| found == Some(*session)) {
            // If that fails, the next look tries again.
            let _ = (self.open)().and_then(|mut store| store.break_grants(&name(), Some(session), Breaking::Now));
        }
        self.ahead = found.map(|session| (session, now + TURN));
    }

    /// Leaves the queue of the gate, because the wait is over.
    pub fn leave(&mut self) {
        // If that fails, the end of rlock does so.
        let _ = self.handle.take().map(|mut handle| handle.release(None));
        (self.kept, self.stage, self.ahead) = (None, Stage::Away, None);
    }

    /// Leaves the gate if the request has not started its command, and will not.
    pub(crate) fn give_up(&mut self) {
        if self.stage != Stage::Closes {
            self.leave();
        }
    }

    /// Leaves the queue of the gate until the request is granted again.
    pub(crate) fn step_back(&mut self) {
        self.leave();
        self.why = None;
    }

    /// Gives the gate up behind the start of the command, and keeps it closed for others until the
    /// command has had time to take its memory. If that fails, the next command may look too early.
    pub(crate) fn note_start(&mut self) {
        if self.handle.is_some() {
            self.kept = self.ask_for_kept().ok();
            self.stage = Stage::Closes;
            self.close();
        }
    }

    fn ask_for_kept(&self) -> Result<Handle, Failure> {
        let job = Job { keep_for: Some(PACE), ..self.request.job.clone() };
        let above = vec![self.request.session];
        let request = Request { session: new_session()?, ancestors: above, job, ..self.request.clone() };
        Ok(Handle::new((self.open)()?.sessions(false)?, request, AcquireOptions::default())?)
    }

    /// Gives the gate up as soon as the store has answered for the kept hold. It never blocks,
    /// because the command runs.
    fn close(&mut self) {
        if let Some(kept) = &mut self.kept
            && matches!(kept.check(), Ok(Standing::Asking | Standing::Waiting))
        {
            return;
        }
        self.kept = None;
        if self.handle.as_mut().is_none_or(|handle| !matches!(handle.release_early(None), Ok(None))) {
            (self.handle, self.stage) = (None, Stage::Away);
        }
    }
}

/// What the requests at the gate need, in words, by host and process. The requests that have
/// started are not among them. Nothing is known if the store of the gate cannot be used.
pub fn waiting(store: &mut dyn Store) -> HashMap<(String, u32), String> {
    let listings = store.inspect(&[name()]).map(|seen| seen.resources).unwrap_or_default();
    let holders = listings.iter().flat_map(|listing| &listing.holders).filter(|it| !it.kept).map(|it| &it.process);
    let waiters = listings.iter().flat_map(|listing| &listing.waiters).map(|it| &it.process);
    let at_gate = holders.chain(waiters);
    at_gate.map(|it| ((it.host.clone(), it.pid), it.reason.clone().unwrap_or_default())).collect()
}

fn name() -> Resource {
    Resource::new(NAME).expect("the name is valid")
}

pub(crate) fn new_session() -> Result<SessionId, Failure> {
    let failed = |error| Failure::new(exit::FAILURE, format!("can't get random numbers: {}", reason(&error)));
    identity::new_session().map_err(failed)
}

/// What the machine and the cgroups of this process have.
fn seen() -> Room {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = room::of_machine(&read("/proc/meminfo")).map(|(available, _)| available);
    Room {
        memory: machine.into_iter().chain(groups()).min(),
        average: room::average(&read("/proc/loadavg")),
        pressure: room::pressure(&read("/proc/pressure/cpu")),
    }
}

/// What the memory cgroups around this process leave of their limits.
fn groups() -> Vec<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let lines = own.lines().filter_map(|line| {
        let (kinds, path) = line.split_once(':')?.1.split_once(':')?;
        let is_memory = kinds.split(',').any(|kind| kind == "memory");
        let unified = Path::new("/sys/fs/cgroup").to_owned();
        let (root, names) = match (kinds, is_memory) {
            ("", _) => (unified, [["memory.max", "memory.current"], ["memory.high", "memory.current"]]),
            (_, true) => (unified.join("memory"), [["memory.limit_in_bytes", "memory.usage_in_bytes"]; 2]),
            _ => return None,
        };
        Some((root, path.trim_start_matches('/').to_owned(), names))
    });
    let mut found = Vec::new();
    for (root, path, names) in lines {
        let folder: PathBuf = root.join(path);
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&root)) {
            let read = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
            let stat = read("memory.stat");
            found.extend(names.iter().filter_map(|[limit, used]| room::of_group(&read(limit), &read(used), &stat)));
        }
    }
    found
}
