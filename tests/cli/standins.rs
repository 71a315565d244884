//! Coding agents as they start, limit and end their calls: each row of the table in agents.md, by
//! a stand-in, with a wait, a place and a hold.

use std::process::{Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::acquire::is_free;
use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::{Lab, RLOCK, Running, wait_until};

const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/agent");

/// The limit of a call that waits, in seconds. A wait tells of itself after one.
const LIMIT: u32 = 6;
/// The limit of a call that ends, as long as that of every wait of a test.
const LONG: u32 = 60;

/// What reaches a call at the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AtLimit {
    Group,
    ShellAlone,
    Nothing,
}
use AtLimit::{Group, Nothing, ShellAlone};

/// An agent: its name, the owner that rlock finds, whether `--pid agent` finds the process, and
/// what ends a call.
const AGENTS: [(&str, Option<&str>, bool, AtLimit); 12] = [
    ("codex", Some("codex 0199a213"), true, Nothing),
    ("gemini", Some("gemini"), true, Nothing),
    ("qwen", Some("qwen 0b1c2d3e"), true, Group),
    ("qwen-0.15", Some("qwen 0b1c2d3e"), true, Group),
    ("opencode", Some("opencode"), true, Group),
    ("pi", Some("pi"), true, Group),
    ("cline", None, true, Group),
    ("copilot", Some("copilot 12345678"), true, Nothing),
    ("continue", None, false, ShellAlone),
    ("mini", None, true, Group),
    ("kimi", None, false, ShellAlone),
    ("vibe", Some("vibe"), true, Group),
];

/// A stand-in at work.
struct Agent {
    running: Running,
    pid: Pid,
}

impl Agent {
    fn start(lab: &Lab, name: &str) -> Self {
        let mut agent = Command::new(STAND_IN);
        lab.settle(&mut agent);
        // A login shell reads the files of HOME, which may print.
        agent.arg(name).env("HOME", lab.folder()).current_dir(lab.folder()).stdin(Stdio::piped());
        let mut running = Running::start(&mut agent);
        let pid = running.line().parse().ok().and_then(Pid::from_raw).expect("it prints its process id");
        Self { running, pid }
    }

    /// Starts a call of rlock with these words.
    fn ask(&mut self, limit: u32, words: &str) {
        // A shell would become its last command.
        self.running.write(&format!("{limit} '{RLOCK}' {words}; exit $?\n"));
    }

    /// The exit code, if the call has ended, and its output.
    fn answer(&mut self) -> (Option<i64>, String) {
        let answer: Value = serde_json::from_str(&self.running.line()).expect("it answers in JSON");
        (answer["code"].as_i64(), answer["output"].as_str().expect("a text").replace('\r', ""))
    }

    fn call(&mut self, limit: u32, words: &str) -> (Option<i64>, String) {
        self.ask(limit, words);
        self.answer()
    }
}

/// Plays a scene with each agent at the same time.
fn with_each(scene: impl Fn(&Lab, &mut Agent, (Option<&str>, bool, AtLimit)) + Sync) {
    thread::scope(|scope| {
        for (name, owner, is_found, at_limit) in AGENTS {
            let scene = &scene;
            let play = move || {
                let lab = Lab::new();
                scene(&lab, &mut Agent::start(&lab, name), (owner, is_found, at_limit));
            };
            thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, play).expect("a thread starts");
        }
    });
}

/// The table "When a call is killed", and the owner that others see.
#[test]
fn wait_that_meets_the_limit_of_each_agent_ends_as_the_table_says() {
    skip_unless!(programs(&["python3", "bash"]));
    with_each(|lab, agent, (owner, _, at_limit)| {
        let mut holder = lab.hold("k");
        let (_, output) = agent.call(LIMIT, "exec k -- echo ran");
        let is_told = output.starts_with("rlock: waiting for 'k', 1 of 1, ");
        assert_eq!(is_told, owner.is_some(), "{output}");
        if at_limit == Group {
            wait_until("the request has left", || lab.counts("k") == (1, 0));
        } else {
            let waiter = &lab.inspect(["k"])["resources"][0]["waiters"][0];
            assert_eq!(waiter["owner"].as_str(), owner, "{waiter}");
        }
        let _held = lab.hold("p");
        agent.call(LIMIT, "exec --pid parent p -- true");
        wait_until("--pid parent ends a request without its shell", || {
            at_limit == Nothing || lab.counts("p") == (1, 0)
        });
        holder.close();
        holder.end();
    });
}

/// "With `--place NAME`, the next call with NAME returns to the place", and the call before it, if
/// that goes on without its shell, never runs its command.
#[test]
fn next_call_of_each_agent_takes_up_the_place_of_the_last() {
    skip_unless!(programs(&["python3", "bash"]));
    with_each(|lab, agent, (_, _, at_limit)| {
        let mut holder = lab.hold("k");
        agent.call(LIMIT, "exec --place mine k -c 'echo first >>log'");
        let _behind = lab.wait_by(["exec", "k"]);
        wait_until("another waits behind", || lab.counts("k").1 == 2 || at_limit == Group && lab.counts("k").1 == 1);
        agent.ask(LONG, "exec --place mine k -c 'echo second >>log; cat log'");
        wait_until("the call has returned to the place", || {
            lab.inspect(["k"])["resources"][0]["waiters"][0]["command"].to_string().contains("second")
        });
        holder.close();
        holder.end();
        assert_eq!(
            agent.answer().1.lines().filter(|line| !line.starts_with("rlock: ")).collect::<Vec<_>>(),
            ["second"]
        );
    });
}

/// "`rlock acquire --pid agent` holds a lock until the agent's process ends", whatever starts the
/// agent, and `exec --pid agent` ends with it.
#[test]
fn hold_over_calls_ends_with_each_agent_whose_process_is_found() {
    skip_unless!(programs(&["python3", "bash"]));
    with_each(|lab, agent, (_, is_found, _)| {
        let (code, output) = agent.call(LONG, "acquire sim --pid agent --for 1h");
        if !is_found {
            let text = "rlock: --pid agent: no agent is recognised above this command: name its process, which is \
                        $PPID in a call of most agents, or write --for DUR\n";
            assert_eq!((code, &*output), (Some(64), text));
            let (code, output) = agent.call(LONG, "exec --pid agent k -- true");
            assert!(code == Some(64) && output.ends_with(", or write --pid parent\n"), "{output}");
            assert_eq!(agent.call(LONG, "acquire sim --pid $PPID --for 1h >/dev/null").0, Some(0));
        }
        assert_eq!(agent.call(LONG, "held sim").0, Some(0));
        assert!(agent.call(LONG, "exec --nested sim -- echo in").1.starts_with("in\n"));
        // A shell with a single command becomes rlock.
        agent.running.write(&format!("{LONG} '{RLOCK}' acquire own --pid agent --for 1h\n"));
        assert_eq!(agent.answer().0, Some(if is_found { 0 } else { 64 }));
        // The launcher, where there is one, ends alone.
        if agent.running.pid().cast_signed() != agent.pid.as_raw_nonzero().get() {
            agent.running.signal(Signal::TERM);
            assert_eq!(agent.call(LONG, "held sim").0, Some(0));
        }
        agent.ask(LONG, &format!("exec --pid {} k -- sleep 600", if is_found { "agent" } else { "$PPID" }));
        wait_until("the call works", || lab.counts("k") == (1, 0));
        kill_process(agent.pid, Signal::KILL).expect("the agent lives");
        wait_until("all end with the agent", || ["sim", "own", "k"].iter().all(|key| is_free(lab, key)));
    });
}
