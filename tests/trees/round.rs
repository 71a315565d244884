//! Plays a round: starts the commands, does what the plan says to the one that holds the lock, and
//! looks what is left.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rlock_sys::processes::Process;
use rlock_testkit::random::Random;
use rlock_testkit::servers::{Kind as Server, Server as RunningServer};
use rlock_testkit::{Lab, Ran};
use rustix::process::{Pid, Signal};

use crate::census::{Census, Class, MARK, Seen, number, send};
use crate::judge::{Facts, Overlap};
use crate::plan::{Move, Plan, Role, Store, Target};
use crate::scripts::{Kind, Scripts};

/// The pause between two looks at the files of the round, and the one between two looks at /proc.
const TICK: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(100);

/// How long a tree lives at most by itself. After that the round kills it.
const LIFE: Duration = Duration::from_secs(6);

/// How long after the last life, or the last sign of it, the lock is free at the latest. A lease of
/// a killed rlock lasts three seconds.
const FREE: Duration = Duration::from_secs(30);

/// For how long a process that stops itself is left stopped.
const STOPPED: Duration = Duration::from_millis(500);

/// For how long rlock or a guardian may have a process stopped.
const LEFT: Duration = Duration::from_secs(5);

/// How long copies of a guardian are looked for, once rlock is killed, and how many are killed.
const HUNT: Duration = Duration::from_millis(150);
const COPIES: usize = 3;

/// The processor time that a process of rlock uses at most while nothing forks, and otherwise.
const QUIET: Duration = Duration::from_secs(1);
const CHASING: Duration = Duration::from_secs(4);

/// A command that was started.
struct Run {
    child: Child,
    tree: PathBuf,
    status: Option<ExitStatus>,
    begun: Option<Instant>,
    /// What is still to be done.
    moves: Vec<(u64, Move)>,
    facts: Facts,
    /// Whether the round has begun to end the tree.
    is_over: bool,
}

pub(crate) struct Round<'a> {
    plan: &'a Plan,
    random: Random,
    lab: Lab,
    /// The server of this round alone.
    server: Option<RunningServer>,
    started: Instant,
    census: Census,
    runs: Vec<Run>,
    /// What is to be continued, and when.
    pauses: Vec<(Instant, Option<Process>)>,
    /// The processes that somebody else has stopped, and since when each look has found them so.
    stopped: HashMap<Process, Instant>,
    /// The breaks.
    helpers: Vec<Child>,
    /// The processor time that any process of rlock has used at most.
    used: Duration,
    log: Vec<String>,
    faults: Vec<String>,
}

/// What a round has found.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) commands: usize,
    pub(crate) moves: usize,
    /// The overlaps that the contract permits.
    pub(crate) permitted: usize,
    pub(crate) used: Duration,
    pub(crate) faults: Vec<String>,
    /// The plan, the scripts and what was done, for people.
    pub(crate) story: String,
}

impl<'a> Round<'a> {
    /// Plays a plan. `late` is the folder in which writes hang, if there is one.
    pub(crate) fn play(plan: &'a Plan, random: Random, late: Option<&Path>) -> Outcome {
        let mut round = Self::new(plan, random);
        round.start(late);
        round.run();
        round.finish();
        round.judge()
    }

    fn new(plan: &'a Plan, random: Random) -> Self {
        let server = (plan.store == Store::StoppedServer).then(|| RunningServer::start(Server::Redis7));
        let lab = match (&server, plan.store) {
            (Some(server), _) => Lab::at(server.url()),
            (None, Store::Embedded) => Lab::new(),
            (None, _) => Lab::on(Server::Redis7),
        };
        let census = Census::new(lab.folder());
        let (pauses, helpers, log, faults) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (started, runs, used, stopped) = (Instant::now(), Vec::new(), Duration::ZERO, HashMap::new());
        Self { plan, random, lab, server, started, census, runs, pauses, stopped, helpers, used, log, faults }
    }

    fn start(&mut self, late: Option<&Path>) {
        let folder = self.lab.folder().to_owned();
        let [referee, chain] = ["referee.pl", "chain.pl"].map(|name| folder.join(name));
        fs::write(&referee, include_str!("referee.pl")).expect("a file can be written");
        fs::write(&chain, include_str!("chain.pl")).expect("a file can be written");
        for (index, command) in self.plan.commands.iter().enumerate() {
            let tree = folder.join(index.to_string());
            let (root, sessions) = match &command.role {
                Role::Exec(_, root) => (Scripts::write(&tree, &chain, late, root), root.count(Kind::Session)),
                Role::Owner(_) => (String::new(), 0),
            };
            let words = command.words(&referee.display().to_string(), &root);
            self.log(&format!("{index}: {}", words.join(" ")));
            let mut started = std::process::Command::new(&words[0]);
            self.lab.settle(&mut started);
            let errors = File::create(tree.with_extension("err")).expect("a file can be made");
            started.args(&words[1..]).env(MARK, &tree).current_dir(&folder).stdout(Stdio::null()).stderr(errors);
            let child = started.spawn().expect("the program starts");
            let is_owner = matches!(command.role, Role::Owner(_));
            let facts = Facts { is_on_server: self.lab.is_on_server(), is_owner, sessions, ..Facts::default() };
            let moves = command.moves.iter().rev().copied().collect();
            self.runs.push(Run { child, tree, status: None, begun: None, moves, facts, is_over: false });
        }
    }

    /// Goes on until all rlocks have ended.
    fn run(&mut self) {
        let mut last_life = Instant::now();
        let mut looked = Instant::now();
        while self.runs.iter().any(|run| run.status.is_none()) || !self.pauses.is_empty() {
            self.note_starts_and_ends();
            self.continue_paused();
            self.make_moves();
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let seen = self.look();
                self.free_stopped(&seen);
                self.end_old_trees(&seen);
                // An owner that waits is no holder.
                let holds = |one: &Seen| one.class == Class::Member && self.runs[one.tree].begun.is_some();
                let lives = seen.iter().any(holds) || !self.pauses.is_empty();
                let just_begun = self.runs.iter().any(|run| run.begun.is_some_and(|begun| begun.elapsed() < LOOK));
                if lives || just_begun {
                    last_life = looked;
                }
                if last_life.elapsed() > FREE {
                    self.fault("the lock stays without a living process", &seen);
                    return;
                }
            }
            thread::sleep(TICK);
        }
    }

    fn note_starts_and_ends(&mut self) {
        for index in 0..self.runs.len() {
            let run = &mut self.runs[index];
            if run.begun.is_none() && run.tree.with_extension("ref").exists() {
                run.begun = Some(Instant::now());
                self.log(&format!("{index} begins"));
            }
            let run = &mut self.runs[index];
            run.facts.note_end(&run.tree);
            if run.status.is_none() {
                run.status = run.child.try_wait().expect("the process is a child");
                if let Some(status) = run.status {
                    self.log(&format!("{index} ends: {status}"));
                }
            }
        }
        self.helpers.retain_mut(|helper| helper.try_wait().is_ok_and(|status| status.is_none()));
    }

    fn continue_paused(&mut self) {
        let (over, left) = self.pauses.drain(..).partition(|(until, _)| *until <= Instant::now());
        self.pauses = left;
        let over: Vec<(Instant, Option<Process>)> = over;
        for (_, process) in over {
            match (process, &self.server) {
                (Some(process), _) => send(process, Signal::CONT),
                (None, Some(server)) => server.cont(),
                (None, None) => {}
            }
            let name = process.map_or("the server".to_owned(), |process| process.pid.to_string());
            self.log(&format!("CONT to {name}"));
        }
    }

    fn make_moves(&mut self) {
        for index in 0..self.runs.len() {
            let run = &mut self.runs[index];
            let Some(begun) = run.begun.filter(|_| run.status.is_none()) else { continue };
            let is_due = |(after, _): &mut (u64, Move)| begun.elapsed() >= Duration::from_millis(*after);
            if let Some((_, next)) = run.moves.pop_if(is_due) {
                self.make(index, next);
            }
        }
    }

    fn make(&mut self, index: usize, next: Move) {
        let seen = self.look();
        let now = SystemTime::now();
        self.runs[index].facts.touched.get_or_insert(now);
        match next {
            Move::Send(target, signal) => {
                if let Some(victim) = self.victim(&seen, index, target) {
                    self.hit(&victim, signal);
                }
            }
            Move::Pause(target, time) => {
                if let Some(victim) = self.victim(&seen, index, target) {
                    self.hit(&victim, Signal::STOP);
                    self.pauses.push((Instant::now() + Duration::from_millis(time), Some(victim.process)));
                }
            }
            Move::Break | Move::Cleanup => {
                let words: &[_] = if matches!(next, Move::Break) { &["break"] } else { &["cleanup", "--break"] };
                self.log(&format!("rlock {} -w 5s k", words.join(" ")));
                let mut helper = self.lab.rlock(words.iter().chain(&["-w", "5s", "k"]));
                let helper = helper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("rlock starts");
                self.helpers.push(helper);
            }
            Move::KillWithCopies => {
                let Some(rlock) = self.victim(&seen, index, Target::Rlock) else { return };
                self.hit(&rlock, Signal::KILL);
                let (until, mut killed) = (Instant::now() + HUNT, HashSet::new());
                while Instant::now() < until && killed.len() < COPIES {
                    let mut seen = self.look();
                    seen.retain(|one| one.class == Class::Copy && one.tree == index && killed.insert(one.process));
                    seen.iter().for_each(|copy| self.hit(copy, Signal::KILL));
                }
            }
            Move::KillWithGuardian => {
                for target in [Target::Guardian, Target::Rlock] {
                    if let Some(victim) = self.victim(&seen, index, target) {
                        self.hit(&victim, Signal::KILL);
                    }
                }
            }
            Move::StopServer(time) => {
                let Some(server) = &self.server else { return };
                server.stop();
                self.log("STOP to the server");
                self.pauses.push((Instant::now() + Duration::from_millis(time), None));
            }
        }
    }

    /// The process that a move means.
    fn victim(&mut self, seen: &[Seen], index: usize, target: Target) -> Option<Seen> {
        let rlock = number(Pid::from_child(&self.runs[index].child));
        let guards = |seen: &&Seen| seen.tree == index && seen.class == Class::Guardian;
        let found: Vec<&Seen> = match target {
            Target::Member => seen.iter().filter(|seen| seen.tree == index && seen.class == Class::Member).collect(),
            Target::Rlock => seen.iter().filter(|seen| seen.tree == index && seen.class == Class::Rlock).collect(),
            // The guardians of inner rlocks are not meant.
            Target::Guardian => seen.iter().filter(guards).filter(|seen| seen.parent == rlock).collect(),
            Target::Command => {
                let is_one = |seen: &&Seen| {
                    seen.class == Class::Member && [number(seen.process.pid), seen.parent].contains(&rlock)
                };
                seen.iter().filter(is_one).take(1).collect()
            }
            Target::Waiter => {
                let waits = |seen: &&Seen| seen.class == Class::Rlock && self.runs[seen.tree].begun.is_none();
                seen.iter().filter(waits).collect()
            }
        };
        (!found.is_empty()).then(|| (*self.random.pick(&found)).clone())
    }

    /// Sends a signal, and takes note of it.
    fn hit(&mut self, victim: &Seen, signal: Signal) {
        let now = SystemTime::now();
        send(victim.process, signal);
        let facts = &mut self.runs[victim.tree].facts;
        let is_pause = [Signal::STOP, Signal::CONT].contains(&signal);
        match victim.class {
            _ if is_pause => {}
            Class::Member => drop(facts.member_hit.get_or_insert(now)),
            Class::Guardian => facts.guardian_killed = Some(now),
            Class::Copy => {}
            Class::Rlock => {
                if signal == Signal::KILL {
                    facts.rlock_killed = Some(now);
                }
                if [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP].contains(&signal) {
                    facts.asked.get_or_insert(now);
                }
            }
        }
        let signal = format!("{signal:?}").replace("Signal::", "").replace('"', "");
        self.log(&format!("{signal} to {:?} of {}: {}", victim.class, victim.tree, victim.line));
    }

    /// Looks at the processes, continues those that stop themselves, and measures those of rlock.
    fn look(&mut self) -> Vec<Seen> {
        let rlocks: Vec<Pid> = self.living().collect();
        let seen = self.census.take(&rlocks);
        let mut stopped = HashMap::new();
        for one in &seen {
            let is_paused = self.pauses.iter().any(|(_, process)| *process == Some(one.process));
            if one.is_stopped && one.stops && !is_paused {
                self.pauses.push((Instant::now() + STOPPED, Some(one.process)));
            } else if one.is_stopped && !is_paused {
                let since = self.stopped.get(&one.process).copied();
                stopped.insert(one.process, since.unwrap_or_else(Instant::now));
            }
            if one.class != Class::Member {
                let ticks = rustix::param::clock_ticks_per_second();
                self.used = self.used.max(Duration::from_millis(one.used * 1000 / ticks));
            }
        }
        self.stopped = stopped;
        seen
    }

    /// The rlocks and owners that have not been reaped.
    fn living(&self) -> impl Iterator<Item = Pid> {
        self.runs.iter().filter(|run| run.status.is_none()).map(|run| Pid::from_child(&run.child))
    }

    /// Continues what is left stopped, which is a fault.
    fn free_stopped(&mut self, seen: &[Seen]) {
        let is_left = |one: &&Seen| self.stopped.get(&one.process).is_some_and(|since| since.elapsed() > LEFT);
        let left: Vec<_> = seen.iter().filter(is_left).cloned().collect();
        if !left.is_empty() {
            self.fault("processes are left stopped", &left);
            left.iter().for_each(|one| send(one.process, Signal::CONT));
        }
    }

    /// Ends trees that have lived for longer than they do by themselves, since a process is deaf to
    /// what should have ended it.
    fn end_old_trees(&mut self, seen: &[Seen]) {
        for index in 0..self.runs.len() {
            let run = &mut self.runs[index];
            if run.begun.is_none_or(|begun| begun.elapsed() < LIFE) {
                continue;
            }
            let members: Vec<_> = seen.iter().filter(|one| one.tree == index && one.class == Class::Member).collect();
            // What is left stopped is looked at first.
            if members.is_empty() || members.iter().any(|one| self.stopped.contains_key(&one.process)) {
                continue;
            }
            if !std::mem::replace(&mut run.is_over, true) {
                self.log(&format!("the round ends the tree of {index}"));
            }
            members.iter().for_each(|one| send(one.process, Signal::KILL));
        }
    }

    /// Looks what is left when all rlocks have ended, and at the lock.
    fn finish(&mut self) {
        if self.living().next().is_some() {
            return;
        }
        let until = Instant::now() + FREE;
        loop {
            let seen = self.look();
            self.free_stopped(&seen);
            if seen.is_empty() {
                break;
            }
            if Instant::now() > until {
                self.fault("processes are left", &seen);
                break;
            }
            self.continue_paused();
            // Guardians end their trees, but for those of inner rlocks, which are members. What is
            // left then are daemons, and processes of a command that has ended by itself.
            let members: Vec<_> = seen.iter().filter(|one| one.class == Class::Member).collect();
            let is_inner = |one: &Seen| members.iter().any(|member| number(member.process.pid) == one.parent);
            let is_busy = seen.iter().any(|one| one.class != Class::Member && !is_inner(one));
            if !is_busy && members.iter().all(|one| !one.is_stopped) {
                members.iter().for_each(|one| send(one.process, Signal::KILL));
            }
            thread::sleep(LOOK);
        }
        loop {
            let ran = Ran::of(&mut self.lab.rlock(["exec", "-n", "k", "--", "true"]));
            if ran.code() == Some(0) {
                return;
            }
            if Instant::now() > until {
                return self.fault(&format!("the lock stays without a living process: {}", ran.stderr.trim()), &[]);
            }
            thread::sleep(LOOK);
        }
    }

    fn judge(mut self) -> Outcome {
        if self.used > if self.plan.has(Kind::Chain) { CHASING } else { QUIET } {
            self.fault(&format!("a process of rlock has used {:?} of a processor", self.used), &[]);
        }
        let mut permitted = 0;
        for index in 0..self.runs.len() {
            for overlap in Overlap::read(&self.runs[index].tree) {
                let earlier = &self.runs[overlap.with];
                let after = overlap.at.duration_since(SystemTime::now() - self.started.elapsed()).unwrap_or_default();
                let what = format!(
                    "{index} has begun after {:.3} s beside living processes of {}{}: {}",
                    after.as_secs_f64(),
                    overlap.with,
                    if overlap.by_session { " in sessions of their own" } else { "" },
                    overlap.living
                );
                match earlier.facts.permit(&overlap, &earlier.tree) {
                    Some(sentence) => {
                        permitted += 1;
                        self.log(&format!("{what}; permitted: {sentence}"));
                    }
                    None => self.fault(&what, &[]),
                }
            }
            let run = &self.runs[index];
            let said = fs::read_to_string(run.tree.with_extension("err")).unwrap_or_default();
            let is_crash =
                run.status.and_then(|status| status.signal()).is_some_and(|signal| CRASHES.contains(&signal));
            // The scripts of the round do not fail either.
            if said.contains("panicked") || said.contains(".pl line") || said.contains("Error:") || is_crash {
                self.fault(&format!("{index} crashed: {said}"), &[]);
            }
        }
        let commands = self.runs.iter().filter(|run| run.begun.is_some()).count();
        let left = self.runs.iter().map(|run| run.moves.len()).sum::<usize>();
        let moves = self.plan.commands.iter().map(|command| command.moves.len()).sum::<usize>() - left;
        let story = if self.faults.is_empty() { String::new() } else { self.story() };
        Outcome { commands, moves, permitted, used: self.used, faults: std::mem::take(&mut self.faults), story }
    }

    fn story(&self) -> String {
        let mut story = self.log.join("\n");
        let entries = fs::read_dir(self.lab.folder()).expect("the folder exists").flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        let is_shown = |file: &PathBuf| {
            // The others are the referee's, and fifos.
            let is_text = ["sh", "py", "err"].iter().any(|kind| file.extension().is_some_and(|other| other == *kind));
            is_text && fs::metadata(file).is_ok_and(|data| data.len() > 0)
        };
        for file in files.into_iter().filter(is_shown) {
            let text = fs::read_to_string(&file).expect("the file can be read");
            story += &format!("\n--- {}\n{}", file.display(), text.trim_end());
        }
        story
    }

    fn log(&mut self, line: &str) {
        self.log.push(format!("{:7.3} {line}", self.started.elapsed().as_secs_f64()));
    }

    fn fault(&mut self, what: &str, seen: &[Seen]) {
        let lines: String =
            seen.iter().map(|one| format!("\n    {:?} of {}: {}", one.class, one.tree, one.line)).collect();
        self.log(&format!("fault: {what}{lines}"));
        self.faults.push(format!("{what}{lines}"));
    }
}

/// The signals of a program that has failed, and that no round sends.
const CRASHES: [i32; 4] = [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGILL];

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.cont();
        }
        for seen in self.look() {
            send(seen.process, Signal::CONT);
            send(seen.process, Signal::KILL);
        }
        for child in self.runs.iter_mut().map(|run| &mut run.child).chain(&mut self.helpers) {
            // Both calls fail only if the child has been reaped already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
