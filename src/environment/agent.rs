//! Recognises the coding agent that runs a command by the variables that it sets for its commands,
//! and finds its process.
//!
//! The variables are inherited by all that the agent starts, also by what outlives it, and
//! sub-agents share them. So they choose words and the end of a hold only: no lock is granted and
//! no limit is set by them.

use std::env;
use std::fs::{self, File};

use rustix::process::Pid;

use rlock_show::failure::Failure;
use rlock_supervise::above;
use rlock_sys::processes::{self, Stat};

/// Names the agent in place of the other variables. An empty value means that there is none.
const AGENT: &str = "RLOCK_AGENT";

/// How an agent is recognised.
struct Known {
    name: &'static str,
    /// The variables of which every command has one.
    marks: &'static [&'static str],
    /// The variable with the id of the agent's session.
    session: Option<&'static str>,
}

/// The agents that have variables of their own for their commands. A version says that this one was
/// run.
const AGENTS: [Known; 8] = [
    // https://code.claude.com/docs/en/env-vars; the session is in
    // https://github.com/expo/agent-cli-detector, src/agents.ts
    Known { name: "claude", marks: &["CLAUDECODE"], session: Some("CLAUDE_CODE_SESSION_ID") },
    // 0.171.0; https://github.com/openai/codex,
    // codex-rs/core/src/unified_exec/process_manager.rs, and pull request 10096
    Known {
        name: "codex",
        marks: &["CODEX_CI", "CODEX_THREAD_ID", "CODEX_SESSION_ID"],
        session: Some("CODEX_THREAD_ID"),
    },
    // qwen-code 0.24.4 and 0.15.10; before gemini, from whose code it comes
    Known { name: "qwen", marks: &["QWEN_CODE"], session: Some("QWEN_CODE_SESSION_ID") },
    // 0.61.0; https://github.com/google-gemini/gemini-cli,
    // packages/core/src/services/shellExecutionService.ts
    Known { name: "gemini", marks: &["GEMINI_CLI"], session: None },
    // https://github.com/expo/agent-cli-detector, src/agents.ts
    Known { name: "cursor", marks: &["CURSOR_AGENT"], session: Some("CURSOR_CONVERSATION_ID") },
    // 1.0.102; the same file
    Known { name: "copilot", marks: &["COPILOT_CLI"], session: Some("COPILOT_AGENT_SESSION_ID") },
    // 1.18.33; https://github.com/sst/opencode, packages/opencode/src/index.ts
    Known { name: "opencode", marks: &["OPENCODE"], session: None },
    // 0.73.1; https://github.com/earendil-works/pi, packages/coding-agent/src/cli.ts
    Known { name: "pi", marks: &["PI_CODING_AGENT"], session: None },
];

/// The variable of vibe. Since vibe starts itself with this variable, the variable tells the name of
/// the agent and nothing about the process.
// https://github.com/mistralai/mistral-vibe, of November 2026
const VIBE: &str = "VIBE_APP_SERVER_BIN";

/// The variables by which any agent may tell its name.
// https://github.com/vercel/vercel, packages/detect-agent, and
// https://github.com/agentsmd/agents.md, issue 136
const NAMES: [&str; 2] = ["AI_AGENT", "AGENT"];

/// The variables in which an agent names its process.
const PIDS: [&str; 2] = ["CLAUDE_PID", "OPENCODE_PID"];

/// The inode of the pid namespace of the machine, PROC_PID_INIT_INO in include/linux/proc_ns.h.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// How many characters of the session's id tell the sessions of an agent apart.
const ID_CHARS: usize = 8;

/// The agent that runs this process: its name and the start of its session's id, if they are known.
pub(crate) fn caller() -> Option<String> {
    recognised(&|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// The agent that these variables tell of.
fn recognised(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(name) = variable(AGENT) {
        return Some(name).filter(|name| !name.is_empty());
    }
    let set = |name: &str| variable(name).filter(|value| !["", "0", "false"].contains(&value.as_str()));
    if let Some(known) = AGENTS.iter().find(|known| known.marks.iter().any(|mark| set(mark).is_some())) {
        let session: Option<String> = known.session.and_then(set).map(|id| id.chars().take(ID_CHARS).collect());
        return Some(session.map_or_else(|| known.name.to_owned(), |id| format!("{} {id}", known.name)));
    }
    if set(VIBE).is_some() {
        return Some("vibe".to_owned());
    }
    let name = NAMES.iter().find_map(|name| set(name))?;
    // Some agents only say that they are one.
    Some(if ["1", "true"].contains(&name.as_str()) { "agent".to_owned() } else { name })
}

/// The process of the agent that runs this command. `otherwise` is what to write where none is
/// found.
///
/// # Errors
/// No agent is recognised, or its process is in another pid namespace.
pub(crate) fn process(otherwise: &str) -> Result<Pid, Failure> {
    let marks = AGENTS.iter().flat_map(|known| known.marks).chain(&NAMES);
    let marks: Vec<_> =
        marks.filter_map(|name| Some(format!("{name}={}", env::var(name).ok()?).into_bytes())).collect();
    let named = PIDS.iter().filter_map(|name| env::var(name).ok()?.parse().ok().and_then(Pid::from_raw));
    let is_first = fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST_NAMESPACE);
    let chain = above::parents();
    let leader = Pid::from_raw(processes::own_session()).and_then(|leader| processes::stat(leader).ok());
    let seen = Seen {
        chain: &chain,
        leader,
        has_terminal: File::open("/dev/tty").is_ok(),
        is_marked: |pid: Pid| {
            let read = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            let variables: Vec<_> = read.split(|byte| *byte == 0).collect();
            marks.iter().all(|mark| variables.contains(&&mark[..]))
        },
        adopts: |pid| is_first && pid == Pid::INIT || processes::name(pid) == b"systemd",
        call: |pid| Some(processes::words(pid)).filter(|words| runs_a_string(&processes::name(pid), words)),
    };
    seen.agent(&named.collect::<Vec<_>>(), !marks.is_empty()).map_err(|why| {
        let why = match why {
            Hidden::Namespace => {
                "this command has a pid namespace of its own, so the agent's process is not visible here: "
            }
            Hidden::Unrecognised => {
                "no agent is recognised above this command: name its process, which is $PPID in a call of most agents, or "
            }
        };
        Failure::usage(format!("--pid agent: {why}{otherwise}"))
    })
}

/// Whether a process with this name and this command line is a shell that runs a string, as in
/// `bash -lc STRING`.
fn runs_a_string(name: &[u8], words: &[u8]) -> bool {
    let is_option = |word: &[u8]| word.starts_with(b"-") && !word.starts_with(b"--");
    name.ends_with(b"sh") && words.split(|byte| *byte == 0).skip(1).any(|word| is_option(word) && word.contains(&b'c'))
}

/// Why the process of the agent is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hidden {
    /// It is outside of the pid namespace of this process.
    Namespace,
    Unrecognised,
}

/// What this process sees of those above it.
struct Seen<'s, M, A, C> {
    /// This process and its parents.
    chain: &'s [Stat],
    /// The leader of its session.
    leader: Option<Stat>,
    /// Whether its session has a terminal, as that of a person has.
    has_terminal: bool,
    /// Whether a process was started with all marks of the agent.
    is_marked: M,
    /// Whether a process becomes the parent of orphans that it has nothing to do with.
    adopts: A,
    /// The command line of a shell that runs a string, as agents start a call.
    call: C,
}

impl<M: Fn(Pid) -> bool, A: Fn(Pid) -> bool, C: Fn(Pid) -> Option<Vec<u8>>> Seen<'_, M, A, C> {
    /// The agent is a process that it has `named`, if that is above this one. Else it is the
    /// nearest process above that was started without its marks, because it has set them for what
    /// it starts. Where the chain of parents is broken, or without marks, it is the parent of the
    /// session's leader, if that leads the session of a call.
    fn agent(&self, named: &[Pid], has_marks: bool) -> Result<Pid, Hidden> {
        let above = || self.chain.iter().skip(1).map(|stat| stat.process.pid);
        let by_name = above().find(|pid| named.contains(pid));
        let by_marks = || above().find(|pid| has_marks && !(self.is_marked)(*pid));
        match by_name.or_else(by_marks) {
            Some(agent) if !(self.adopts)(agent) => return Ok(agent),
            None if has_marks => return Err(Hidden::Namespace),
            _ => {}
        }
        if self.has_terminal && !has_marks {
            return Err(Hidden::Unrecognised);
        }
        let leader = self.leader.ok_or(Hidden::Unrecognised)?;
        let parent = leader.parent.ok_or(Hidden::Namespace)?;
        let leads_call = match has_marks {
            true => (self.is_marked)(leader.process.pid) && !(self.is_marked)(parent),
            false => self.is_only_below_call(leader.process.pid),
        };
        if leads_call && !(self.adopts)(parent) { Ok(parent) } else { Err(Hidden::Unrecognised) }
    }

    /// Whether nothing stands between this process and the leader of its session, or only subshells
    /// of the leader, which is the shell of a call or has become this process. Elsewhere the leader
    /// may be the agent, or a process above the agent, because some agents start calls in their own
    /// session.
    fn is_only_below_call(&self, leader: Pid) -> bool {
        let mut chain = self.chain.iter().map(|stat| stat.process.pid);
        if chain.next() == Some(leader) {
            return true;
        }
        let Some(call) = (self.call)(leader) else { return false };
        chain.take_while(|pid| (self.call)(*pid).as_ref() == Some(&call)).any(|pid| pid == leader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(number: i32, parent: i32, session: i32) -> Stat {
        let pid = |number| Pid::from_raw(number);
        let process = processes::Process { pid: pid(number).unwrap(), started: 1 };
        let parent = pid(parent);
        let (stopped, ending, leaderless, ended) = (false, false, false, false);
        Stat { process, parent, group: session, session, stopped, ending, leaderless, ended }
    }

    /// The agent has the number 7, the shell of the call is 20, its subshell 21, and the machine
    /// begins with 1. The processes from 10 on have the marks.
    fn agent(
        chain: &[Stat],
        leader: Option<Stat>,
        named: i32,
        has_marks: bool,
        has_terminal: bool,
    ) -> Result<i32, Hidden> {
        let number = |pid: Pid| pid.as_raw_nonzero().get();
        let seen = Seen {
            chain,
            leader,
            has_terminal,
            is_marked: |pid| has_marks && number(pid) >= 10,
            adopts: |pid| number(pid) == 1,
            call: |pid| [20, 21].contains(&number(pid)).then(|| b"sh\0-c\0true".to_vec()),
        };
        let named: Vec<_> = Pid::from_raw(named).into_iter().collect();
        seen.agent(&named, has_marks).map(number)
    }

    #[test]
    fn agent_is_the_nearest_process_without_its_marks() {
        let (shell, agents, first) = (stat(20, 7, 20), stat(7, 3, 3), stat(1, 0, 1));
        let through_make = [stat(30, 25, 20), stat(25, 20, 20), shell, agents, stat(3, 1, 3), first];
        assert_eq!(agent(&through_make, Some(shell), 0, true, false), Ok(7));
        // A process that is no parent of this one is not the agent, whatever a variable says.
        assert_eq!(agent(&through_make, Some(shell), 99, true, false), Ok(7));
        assert_eq!(agent(&through_make, Some(shell), 3, true, false), Ok(3));
    }

    #[test]
    fn agent_without_marks_is_the_parent_of_the_shell_of_the_call_if_that_leads_the_session() {
        let (own, shell, subshell, agents) = (stat(30, 21, 20), stat(20, 7, 20), stat(21, 20, 20), stat(7, 3, 3));
        let found = |chain: &[Stat], leader| agent(chain, Some(leader), 0, false, false);
        assert_eq!(found(&[own, subshell, shell, agents], shell), Ok(7));
        assert_eq!(agent(&[own, subshell, shell, agents], Some(shell), 0, false, true), Err(Hidden::Unrecognised));
        let instead = stat(20, 7, 20);
        assert_eq!(found(&[instead, agents], instead), Ok(7), "the shell has become rlock");
        // The agent starts its calls in its own session, and leads it, or a shell above it does.
        let (own, call) = (stat(30, 20, 7), stat(20, 7, 7));
        assert_eq!(found(&[own, call, stat(7, 3, 7)], stat(7, 3, 7)), Err(Hidden::Unrecognised));
        let service = stat(21, 3, 21);
        assert_eq!(found(&[own, call, stat(7, 21, 21), service], service), Err(Hidden::Unrecognised));
        assert_eq!(found(&[own, stat(7, 21, 21), service], service), Err(Hidden::Unrecognised));
    }

    #[test]
    fn shell_of_a_call_has_an_option_with_c() {
        for (name, words, is_call) in [
            ("bash", "/bin/bash -c true", true),
            ("bash", "bash --norc --noprofile -c true", true),
            ("zsh", "-zsh -lc true", true),
            ("fish", "fish -l -c true", true),
            ("bash", "bash ./agent.sh --check", false),
            ("python3", "python3 -c pass", false),
        ] {
            assert_eq!(runs_a_string(name.as_bytes(), words.replace(' ', "\0").as_bytes()), is_call, "{words}");
        }
    }

    #[test]
    fn orphan_takes_the_parent_of_the_leader_of_its_session() {
        let orphan = [stat(30, 1, 20), stat(1, 0, 1)];
        assert_eq!(agent(&orphan, Some(stat(20, 7, 20)), 0, true, false), Ok(7));
        assert_eq!(agent(&orphan, None, 0, true, false), Err(Hidden::Unrecognised));
        assert_eq!(agent(&orphan, Some(stat(20, 1, 20)), 0, false, false), Err(Hidden::Unrecognised));
        // A leader without the marks is not of a call.
        assert_eq!(agent(&orphan, Some(stat(7, 3, 7)), 0, true, false), Err(Hidden::Unrecognised));
        assert_eq!(agent(&orphan, Some(stat(20, 7, 20)), 0, false, false), Err(Hidden::Unrecognised));
    }

    #[test]
    fn agent_outside_of_the_pid_namespace_of_a_call_is_not_found() {
        let inside = [stat(30, 20, 20), stat(20, 0, 20)];
        for has_marks in [true, false] {
            assert_eq!(agent(&inside, Some(stat(20, 0, 20)), 0, has_marks, false), Err(Hidden::Namespace));
        }
    }

    #[test]
    fn agent_is_named_with_the_start_of_its_sessions_id() {
        for (variables, agent) in [
            (&[("CLAUDECODE", "1"), ("CLAUDE_CODE_SESSION_ID", "3f2a1b9c-77aa")][..], Some("claude 3f2a1b9c")),
            (&[("CLAUDECODE", "1")], Some("claude")),
            (&[("CODEX_CI", "1")], Some("codex")),
            (&[("CODEX_THREAD_ID", "0199a213-81c0")], Some("codex 0199a213")),
            (&[("GEMINI_CLI", "1")], Some("gemini")),
            (&[("CURSOR_AGENT", "1"), ("CURSOR_CONVERSATION_ID", "c0ffee")], Some("cursor c0ffee")),
            (&[("COPILOT_CLI", "1"), ("COPILOT_AGENT_SESSION_ID", "12345678-9")], Some("copilot 12345678")),
            (&[("OPENCODE", "1"), ("AGENT", "1")], Some("opencode")),
            (&[("QWEN_CODE", "1"), ("QWEN_CODE_SESSION_ID", "0b1c2d3e-4f")], Some("qwen 0b1c2d3e")),
            (&[("PI_CODING_AGENT", "true")], Some("pi")),
            (&[("VIBE_APP_SERVER_BIN", "/opt/vibe-app-server")], Some("vibe")),
            (&[("AI_AGENT", "devin@1"), ("AGENT", "1")], Some("devin@1")),
            (&[("AGENT", "goose")], Some("goose")),
            (&[("AGENT", "true")], Some("agent")),
            (&[("RLOCK_AGENT", "claude 3f2a1b9c-77aa"), ("CLAUDECODE", "1")], Some("claude 3f2a1b9c-77aa")),
            (&[("RLOCK_AGENT", ""), ("CLAUDECODE", "1"), ("AGENT", "1")], None),
            (&[("CLAUDECODE", "0"), ("GEMINI_CLI", ""), ("CLAUDE_CODE_SESSION_ID", "3f2a1b9c")], None),
            (&[], None),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(recognised(&variable).as_deref(), agent, "{variables:?}");
        }
    }
}
