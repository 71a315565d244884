//! The graph of `rlock inspect --dot`, in the language of Graphviz.
//!
//! An arrow leads to what its start waits for: from a waiter to its resource, from a resource to
//! its holders, and from a holder to the sessions below it, since it ends after them. So each
//! deadlock is a cycle. The boxes and arrows of its sessions are red.

use super::columns::{cut, escaped};
use super::edges::{Graph, Member, Part};
use super::listing::command;
use super::tree::{claim, held};
use crate::messages;
use rlock_model::request::SessionId;
use rlock_store::Inspection;

/// Maximum width of a command in a box.
const COMMAND: usize = 40;

/// The graph of the resources.
pub fn dot(inspection: &Inspection) -> String {
    let graph = Graph::of(inspection);
    let mut lines = vec![
        "digraph rlock {".to_owned(),
        "  rankdir=LR;".to_owned(),
        "  node [fontname=\"sans-serif\"];".to_owned(),
        "  edge [fontname=\"sans-serif\", fontsize=10];".to_owned(),
    ];
    for listing in &inspection.resources {
        let name = listing.name.as_str();
        lines.push(format!("  {} [shape=ellipse, label={}];", resource(name), quoted(name)));
    }
    for (id, member) in &graph.members {
        let process = member.process;
        let who = messages::who_and_why(process);
        let command = cut(&command(&process.command), COMMAND, false);
        let label = [escaped(&who), format!("pid {}", process.pid), escaped(&command)].map(|line| within_quotes(&line));
        let red = red(member);
        lines.push(format!("  {} [shape=box{red}, label=\"{}\"];", session(*id), label.join("\\n")));
    }
    for (id, member) in &graph.members {
        let red = red(member);
        for (listing, part) in &member.parts {
            let name = resource(listing.name.as_str());
            lines.push(match part {
                Part::Held(it) => {
                    let kept = if it.kept { "kept " } else { "" };
                    let label = format!("{kept}{}", held(it));
                    format!("  {name} -> {} [label={}{red}];", session(*id), quoted(&label))
                }
                Part::Waiting(it) => {
                    let label = format!("waits {}, {}", it.position, claim(it.mode, it.slots, it.count, &it.span));
                    format!("  {} -> {name} [style=dashed, label={}{red}];", session(*id), quoted(&label))
                }
            });
        }
        if let Some(parent) = member.parent {
            lines.push(format!("  {} -> {} [style=dotted, label=\"around\"{red}];", session(parent), session(*id)));
        }
    }
    lines.push("}\n".to_owned());
    lines.join("\n")
}

/// The colour of a session in a deadlock.
fn red(member: &Member<'_>) -> &'static str {
    if member.is_deadlocked { ", color=red" } else { "" }
}

fn resource(name: &str) -> String {
    quoted(&format!("resource {name}"))
}

fn session(id: SessionId) -> String {
    quoted(&format!("session {id}"))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", within_quotes(&escaped(text)))
}

/// Text within double quotes, in which Graphviz reads backslashes as escapes.
fn within_quotes(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{holder, inspection, process, resource, session, waiter};
    use super::super::tree::tests::deadlock;
    use super::dot;
    use rlock_model::op::{HolderListing, WaiterListing};

    #[test]
    fn arrows_lead_to_what_is_waited_for() {
        let inner = WaiterListing { ancestors: vec![session(2)], ..waiter(3, 1) };
        let text =
            dot(&inspection(&[resource("a", vec![holder(1)], vec![inner]), resource("b", vec![holder(2)], vec![])]));
        let id = |number: u8| format!("\"session {}\"", session(number));
        for line in [
            "  \"resource a\" [shape=ellipse, label=\"a\"];".to_owned(),
            format!("  {} [shape=box, label=\"ada@web1\\npid 5003\\nmake\"];", id(3)),
            format!("  \"resource a\" -> {} [label=\"write\"];", id(1)),
            format!("  {} -> \"resource a\" [style=dashed, label=\"waits 1, write\"];", id(3)),
            format!("  {} -> {} [style=dotted, label=\"around\"];", id(2), id(3)),
        ] {
            assert_eq!(text.lines().filter(|found| **found == *line).count(), 1, "{line} in {text}");
        }
        assert!(text.starts_with("digraph rlock {\n") && text.ends_with("\n}\n"), "{text}");
    }

    #[test]
    fn sessions_that_wait_for_each_other_are_red() {
        let red = |text: &str| text.lines().filter(|line| line.contains("color=red")).count();
        // Four boxes, two arrows to holders, two from waiters, and two to nested sessions.
        assert_eq!(red(&dot(&inspection(&deadlock()))), 10);
        let [a, b] = deadlock();
        assert_eq!((red(&dot(&inspection(&[a]))), red(&dot(&inspection(&[b])))), (0, 0), "a part of the cycle is none");
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        let odd = HolderListing { process: process(1, "a\"b\\c \n"), ..holder(1) };
        let text = dot(&inspection(&[resource("x\"y\\z", vec![odd], vec![])]));
        assert!(text.contains(r#""resource x\"y\\z" [shape=ellipse, label="x\"y\\z"]"#), "{text}");
        assert!(text.contains(r#"'a\"b\\c' $'\\n'"#), "{text}");
    }
}
