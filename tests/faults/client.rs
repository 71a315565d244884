//! A client of `rlock serve`, which makes the request of a plan and does its steps while it holds.
//!
//! Nobody kills a client that has lost its lock. So the client looks for the loss with every
//! heartbeat, and counts nothing. An upgrade is the nested run of a client.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{process, thread};

use super::claims;
use super::command::{self, BEAT};
use super::plan::{Level, Plan, Step};
use super::served::Order;
use super::stage::Stage;
use rlock_testkit::random::Random;
use rlock_testkit::serve::{self, Next};

/// How long a request may be unanswered until it counts as queued.
const QUEUED_AFTER: Duration = Duration::from_millis(100);

struct Client<'a> {
    stage: &'a Stage,
    /// The number of its server.
    server: usize,
    connection: serve::Client,
    orders: Receiver<Order>,
    /// The run of the request, and that of its upgrade.
    runs: Vec<Run>,
}

struct Run {
    id: String,
    holds: bool,
}

/// The end of a client before its plan is done.
enum Gone {
    /// The server said that the lock is lost.
    Lost,
    /// The server has ended the connection.
    Ended,
    /// The nemesis killed the client.
    Killed,
    /// The nemesis broke the connection.
    Broken,
    /// The scenario is over, and the server never answered.
    Abandoned,
}

/// Executes a run from its request to its end.
pub(crate) fn execute(stage: &Stage, plan: &Plan, random: &mut Random) {
    let id = stage.next_run();
    command::log_request(stage.log(), &id, &plan.levels[0]);
    let (sender, orders) = channel();
    let (server, connection) = stage.servers.connect(&id, sender, random);
    let mut client = Client { stage, server, connection, orders, runs: vec![Run { id, holds: false }] };
    let exit = match client.play(plan, &line(&plan.levels[0])) {
        Ok(()) => None,
        Err(Gone::Lost) => Some("exit 76"),
        Err(Gone::Ended | Gone::Killed) => Some("exit signal"),
        Err(Gone::Broken) => {
            client.connection.reset();
            return leave(stage, server, client.runs, Some("exit signal"));
        }
        Err(Gone::Abandoned) => None,
    };
    drop(client.connection);
    leave(stage, server, client.runs, exit);
}

fn leave(stage: &Stage, server: usize, runs: Vec<Run>, exit: Option<&str>) {
    for Run { id, .. } in runs.into_iter().rev() {
        stage.servers.remove(server, &id);
        if let Some(exit) = exit {
            stage.log_of_run(&id, exit);
        }
    }
}

impl Client<'_> {
    /// Makes the request of the last run, does the steps of the plan, and ends the run.
    fn play(&mut self, plan: &Plan, line: &str) -> Result<(), Gone> {
        self.connection.say(line);
        let answer = self.answer()?;
        let Some(token) = answer.strip_prefix("ok ") else {
            self.end_run(answer);
            return Ok(());
        };
        let session = self.connection.address();
        self.log(&format!("start {session} {token} {}", process::id()));
        self.last().holds = true;
        for step in &plan.levels[0].steps {
            match step {
                Step::Work(millis) | Step::Count(_, millis) => self.work(Duration::from_millis(*millis))?,
                Step::Register(name) => {
                    command::write_register(self.stage.log(), &self.runs[self.runs.len() - 1].id, name, token);
                }
                Step::Shrink(interval) => {
                    let claim = &plan.levels[0].claims[0];
                    let kept = claims::Claim::part(&claim.resource, claim.mode, interval);
                    self.log(&format!("kept {}", claims::to_text(&[kept])));
                    self.ask(&format!("SHRINK {interval}"))?;
                }
                Step::Downgrade(mode) => {
                    let kept = claims::Claim { mode: *mode, ..plan.levels[0].claims[0].clone() };
                    self.log(&format!("kept {}", claims::to_text(&[kept])));
                    self.ask(&format!("DOWNGRADE {}", mode.name()))?;
                }
                Step::Nest => self.upgrade(&plan.inner().expect("the plan has another level"))?,
            }
        }
        // From now on the client relies on its lock no longer.
        self.log("end");
        self.last().holds = false;
        let answer = self.ask("UNLOCK")?;
        self.end_run(answer);
        Ok(())
    }

    fn upgrade(&mut self, plan: &Plan) -> Result<(), Gone> {
        let id = format!("{}.1", self.runs[0].id);
        command::log_request(self.stage.log(), &id, &plan.levels[0]);
        self.stage.servers.add(self.server, &id);
        self.runs.push(Run { id, holds: false });
        self.play(plan, "UPGRADE")
    }

    /// Works for a while, as long as the lock is not lost.
    fn work(&mut self, time: Duration) -> Result<(), Gone> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if let Some(line) = self.next_line(left.min(BEAT))? {
                panic!("the client asked for nothing, and the server said '{line}'");
            }
        }
    }

    fn ask(&mut self, line: &str) -> Result<String, Gone> {
        self.connection.say(line);
        self.answer()
    }

    fn answer(&mut self) -> Result<String, Gone> {
        let asked = Instant::now();
        let mut is_logged = self.runs[self.runs.len() - 1].holds;
        loop {
            if let Some(line) = self.next_line(BEAT)? {
                return Ok(line);
            }
            if !is_logged && asked.elapsed() > QUEUED_AFTER {
                is_logged = true;
                self.log("queued");
            }
            if self.stage.is_abandoned() {
                return Err(Gone::Abandoned);
            }
        }
    }

    /// The next line, if there is one within this time. If there is none, the client still holds
    /// what it held.
    fn next_line(&mut self, limit: Duration) -> Result<Option<String>, Gone> {
        match self.connection.next_within(limit) {
            Next::Line(line) if line.starts_with("lost ") => return Err(Gone::Lost),
            Next::Line(line) => return Ok(Some(line)),
            Next::End => return Err(Gone::Ended),
            Next::Nothing => {}
        }
        for run in self.runs.iter().filter(|run| run.holds) {
            self.stage.log_of_run(&run.id, "beat");
        }
        match self.orders.try_recv() {
            Ok(Order::Die) => Err(Gone::Killed),
            Ok(Order::Break) => Err(Gone::Broken),
            Ok(Order::Stop(time)) => {
                thread::sleep(time);
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    fn last(&mut self) -> &mut Run {
        self.runs.last_mut().expect("a client has a run")
    }

    fn log(&mut self, event: &str) {
        let stage = self.stage;
        stage.log_of_run(&self.last().id, event);
    }

    /// Ends the last run with the exit code that an rlock with this answer would have.
    fn end_run(&mut self, answer: String) {
        let run = self.runs.pop().expect("a client has a run");
        let code = code(&answer);
        if !matches!(code, 0 | 75) {
            self.stage.keep(&run.id, [answer]);
        }
        leave(self.stage, self.server, vec![run], Some(&format!("exit {code}")));
    }
}

/// The line for a request, whose answer has a token.
fn line(level: &Level) -> String {
    let words = level.words();
    let verb = if words[0] == "exec" { "LOCK".to_owned() } else { words[0].to_uppercase() };
    format!("{verb} {}", words[1..].join(" "))
}

/// The exit code of an rlock with this answer.
fn code(answer: &str) -> i32 {
    match answer.split(' ').next() {
        Some("ok") => 0,
        // An rlock that cannot release warns, and exits as its command did.
        _ if answer.starts_with("unavailable the release of ") => 0,
        Some("busy") => 75,
        Some("refused") => 65,
        Some("unavailable") => 69,
        Some("lost") => 76,
        _ => 64,
    }
}
