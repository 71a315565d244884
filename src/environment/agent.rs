//! Recognises the coding agent that runs a command by the variables that it sets for its commands.
//!
//! The variables are inherited by all that the agent starts, also by what outlives it, and
//! sub-agents share them. So they choose words only: no lock is granted and no limit is set by
//! them.

use std::env;

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

/// The agents that have variables of their own.
const AGENTS: [Known; 6] = [
    // https://code.claude.com/docs/en/env-vars; the session is in
    // https://github.com/expo/agent-cli-detector, src/agents.ts
    Known { name: "claude", marks: &["CLAUDECODE"], session: Some("CLAUDE_CODE_SESSION_ID") },
    // https://github.com/openai/codex, codex-rs/core/src/unified_exec/process_manager.rs, and pull
    // request 10096
    Known { name: "codex", marks: &["CODEX_CI", "CODEX_THREAD_ID"], session: Some("CODEX_THREAD_ID") },
    // https://github.com/google-gemini/gemini-cli,
    // packages/core/src/services/shellExecutionService.ts
    Known { name: "gemini", marks: &["GEMINI_CLI"], session: None },
    // https://github.com/expo/agent-cli-detector, src/agents.ts
    Known { name: "cursor", marks: &["CURSOR_AGENT"], session: Some("CURSOR_CONVERSATION_ID") },
    // the same file
    Known { name: "copilot", marks: &["COPILOT_CLI"], session: Some("COPILOT_AGENT_SESSION_ID") },
    // https://github.com/sst/opencode, packages/opencode/src/index.ts
    Known { name: "opencode", marks: &["OPENCODE"], session: None },
];

/// The variables by which any agent may tell its name.
// https://github.com/vercel/vercel, packages/detect-agent, and
// https://github.com/agentsmd/agents.md, issue 136
const NAMES: [&str; 2] = ["AI_AGENT", "AGENT"];

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
    let name = NAMES.iter().find_map(|name| set(name))?;
    // Some agents only say that they are one.
    Some(if ["1", "true"].contains(&name.as_str()) { "agent".to_owned() } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (&[("AI_AGENT", "devin@1"), ("AGENT", "1")], Some("devin@1")),
            (&[("AGENT", "goose")], Some("goose")),
            (&[("AGENT", "true")], Some("agent")),
            (&[("RLOCK_AGENT", "reviewer"), ("CLAUDECODE", "1")], Some("reviewer")),
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
