//! The tree of `rlock inspect --tree`: resources, their holders with what runs below them, and
//! their waiters with what they wait for.

use std::collections::{BTreeMap, BTreeSet};

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use super::Look;
use super::columns::{cut, escaped};
use super::edges::{Graph, Member, Part, blockers};
use super::listing::{command, holder_state, waiter_state};
use crate::messages;
use rlock_model::deadlock::Claims;
use rlock_model::mode::Mode;
use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
use rlock_model::request::{Process, SessionId};
use rlock_model::span::Span;
use rlock_store::Inspection;
use rlock_sys::clock::StoreTime;

/// Maximum number of sessions that the line of a waiter names.
const NAMED: usize = 3;

/// The tree of the resources. `is_stopped` tells whether a process is stopped.
pub fn tree(inspection: &Inspection, look: &Look, is_stopped: &mut dyn FnMut(&Process) -> bool) -> Vec<String> {
    let (graph, claims) = (Graph::of(inspection), Claims::new(&inspection.sessions));
    let blocked = graph.blocked(&claims);
    let mut tree = Tree { graph, blocked, claims: &claims, now: inspection.now, look, is_stopped, lines: Vec::new() };
    for listing in &inspection.resources {
        tree.resource(listing);
    }
    tree.lines
}

struct Tree<'l, 'a> {
    graph: Graph<'l>,
    /// See [`Graph::blocked`].
    blocked: BTreeMap<SessionId, usize>,
    claims: &'a Claims<'a>,
    now: StoreTime,
    look: &'a Look,
    is_stopped: &'a mut dyn FnMut(&Process) -> bool,
    lines: Vec<String>,
}

/// A session with one of its claims, as a line of the tree.
struct Branch<'l> {
    session: SessionId,
    listing: &'l ResourceListing,
    part: Part<'l>,
}

impl<'l> Tree<'l, '_> {
    fn resource(&mut self, listing: &'l ResourceListing) {
        let palette = self.look.palette;
        let style = match (listing.holders.is_empty(), listing.waiters.is_empty()) {
            (_, false) => palette.busy,
            (true, true) => palette.dim,
            _ => Style::new(),
        };
        let free = if listing.holders.is_empty() && listing.waiters.is_empty() { ": free" } else { "" };
        self.push("", &format!("{}{free}", listing.name), style);
        let here: BTreeSet<_> = listing.holders.iter().map(|it| it.session).collect();
        let is_root = |session: &SessionId| {
            let parent = self.graph.members.get(session).and_then(|member| member.parent);
            parent.is_none_or(|parent| !here.contains(&parent))
        };
        let holders = listing.holders.iter().filter(|it| is_root(&it.session));
        let holders = holders.map(|it| Branch { session: it.session, listing, part: Part::Held(it) });
        let waiters = listing.waiters.iter();
        let waiters = waiters.map(|it| Branch { session: it.session, listing, part: Part::Waiting(it) });
        let branches: Vec<_> = holders.chain(waiters).collect();
        self.branches(&branches, "", listing, &mut BTreeSet::new());
    }

    /// Adds branches and what runs below those that hold. `path` has the sessions above, so that
    /// sessions that contradict each other cannot lead in a cycle.
    fn branches(
        &mut self,
        branches: &[Branch<'l>],
        indent: &str,
        top: &ResourceListing,
        path: &mut BTreeSet<SessionId>,
    ) {
        for (index, branch) in branches.iter().enumerate() {
            let is_last = index + 1 == branches.len();
            let (text, style) = self.text(branch, top, path.is_empty());
            self.push(&format!("{indent}{}", if is_last { "└─ " } else { "├─ " }), &text, style);
            // A session with several claims here shows what is below it once.
            let is_repeated = branches[..index].iter().any(|earlier| earlier.session == branch.session);
            if matches!(branch.part, Part::Waiting(_)) || is_repeated || !path.insert(branch.session) {
                continue;
            }
            let below: Vec<_> = self
                .graph
                .children(branch.session)
                .filter(|(id, _)| !path.contains(id))
                .flat_map(|(session, member)| {
                    member.parts.iter().map(move |(listing, part)| Branch { session, listing, part: *part })
                })
                // A nested waiter stands in its queue, too.
                .collect();
            self.branches(&below, &format!("{indent}{}", if is_last { "   " } else { "│  " }), top, path);
            path.remove(&branch.session);
        }
    }

    fn text(&mut self, branch: &Branch<'l>, top: &ResourceListing, is_outermost: bool) -> (String, Style) {
        let palette = &self.look.palette;
        let of = if branch.listing.name == top.name { String::new() } else { format!(" of '{}'", branch.listing.name) };
        let member = &self.graph.members[&branch.session];
        let (state, what, since, relations) = match branch.part {
            Part::Held(it) => {
                let state = holder_state(it, self.now, palette, self.is_stopped);
                (state, held(it), it.since, String::new())
            }
            Part::Waiting(it) => {
                let state = waiter_state(it, palette, self.is_stopped);
                let relations = self.relations(branch.listing, it, member, is_outermost);
                (state, claim(it.mode, it.slots, it.count, &it.span), it.since, relations)
            }
        };
        let who = format!("{}, pid {}", messages::who_and_why(member.process), member.process.pid);
        let age = if self.look.verbose { messages::time(since) } else { messages::duration(self.now - since) };
        let blocks = match (branch.part, self.blocked.get(&branch.session)) {
            (Part::Held(_), Some(count @ 1..)) if is_outermost => format!(", blocks {count}"),
            _ => String::new(),
        };
        let (deadlock, style) = if member.is_deadlocked { (", deadlock", palette.alarm) } else { ("", state.1) };
        (
            format!(
                "{} {what}{of}{relations}{deadlock}: {who}, {age}{blocks}, {}",
                state.0,
                command(&member.process.command)
            ),
            style,
        )
    }

    /// What a waiter waits for, here and elsewhere, and what it runs below.
    fn relations(
        &self,
        listing: &ResourceListing,
        waiter: &WaiterListing,
        member: &Member<'_>,
        is_outermost: bool,
    ) -> String {
        let pid = |session: SessionId| {
            let process = self.graph.members.get(&session).map(|member| member.process);
            process.map(|process| match process.host == member.process.host {
                true => format!("pid {}", process.pid),
                false => format!("pid {} at {}", process.pid, process.host),
            })
        };
        let mut seen = BTreeSet::new();
        let mut first = blockers(self.claims, listing, waiter).filter(|session| seen.insert(*session));
        let named: Vec<_> = first.by_ref().take(NAMED).filter_map(pid).collect();
        let more = if first.next().is_some() { " and more" } else { "" };
        let mut text = match named.is_empty() {
            true => String::new(),
            false => format!(", behind {}{more}", named.join(", ")),
        };
        let mut others: Vec<_> = member.parts.iter().map(|(other, _)| &other.name).collect();
        others.retain(|name| **name != listing.name);
        others.dedup();
        if !others.is_empty() {
            let names: Vec<_> = others.iter().map(|name| format!("'{name}'")).collect();
            text.push_str(&format!(", also for {}", names.join(", ")));
        }
        if let Some(parent) = member.parent.filter(|_| is_outermost).and_then(pid) {
            text.push_str(&format!(", below {parent}"));
        }
        text
    }

    fn push(&mut self, indent: &str, text: &str, style: Style) {
        let text = escaped(text);
        let text = match self.look.width {
            Some(width) => cut(&text, width.saturating_sub(indent.width()), false),
            None => text,
        };
        let indent = self.look.width.map_or_else(|| indent.to_owned(), |width| cut(indent, width, false));
        self.lines.push(format!("{indent}{style}{text}{style:#}"));
    }
}

/// A claim in a few words: `write [1,2)`, `slot of 3`, `2 slots of 3`.
pub(super) fn claim(mode: Mode, slots: Option<u32>, count: usize, span: &Span) -> String {
    let span = if span.is_whole() { String::new() } else { format!(" {span}") };
    format!("{}{span}", messages::mode(mode, slots, count))
}

/// What a holder has, in a few words: `write [1,2)`, `slot 1 of 3`.
pub(super) fn held(holder: &HolderListing) -> String {
    let span = if holder.span.is_whole() { String::new() } else { format!(" {}", holder.span) };
    format!("{}{span}", messages::holding(holder))
}

#[cfg(test)]
pub(super) mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::super::listing::tests::{holder, inspection, process, resource, session, waiter};
    use super::super::{Look, Palette};
    use super::tree;
    use rlock_model::mode::Mode;
    use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};

    fn shown(listings: &[ResourceListing], width: Option<usize>) -> Vec<String> {
        let look = Look { width, verbose: false, wide: false, palette: Palette::plain() };
        tree(&inspection(listings), &look, &mut |_| false)
    }

    /// Two jobs that wait for each other, each below what it holds.
    pub(crate) fn deadlock() -> [ResourceListing; 2] {
        let inner = |number, around| WaiterListing { ancestors: vec![session(around)], ..waiter(number, 1) };
        [resource("a", vec![holder(1)], vec![inner(4, 2)]), resource("b", vec![holder(2)], vec![inner(3, 1)])]
    }

    #[test]
    fn tree_shows_nested_sessions_below_their_holders() {
        assert_eq!(
            shown(&deadlock(), None),
            [
                "a",
                "├─ holds write, deadlock: ada@web1, pid 4001, 3m 12s, blocks 2, ./deploy.sh --to web1",
                "│  └─ waits 1 write of 'b', behind pid 4002, deadlock: ada@web1, pid 5003, 20s, make",
                "└─ waits 1 write, behind pid 4001, below pid 4002, deadlock: ada@web1, pid 5004, 20s, make",
                "b",
                "├─ holds write, deadlock: ada@web1, pid 4002, 3m 12s, blocks 2, ./deploy.sh --to web1",
                "│  └─ waits 1 write of 'a', behind pid 4001, deadlock: ada@web1, pid 5004, 20s, make",
                "└─ waits 1 write, behind pid 4002, below pid 4001, deadlock: ada@web1, pid 5003, 20s, make",
            ]
        );
    }

    /// "Whom each root blocks, as a number": the waiters of both resources wait for the holder of
    /// the second in the end.
    #[test]
    fn root_tells_how_many_it_blocks() {
        let inner = WaiterListing { ancestors: vec![session(1)], ..waiter(4, 1) };
        let listings = [
            resource("a", vec![holder(1)], vec![waiter(3, 1)]),
            resource("b", vec![holder(2)], vec![inner, waiter(5, 2)]),
            resource("c", vec![holder(6)], vec![]),
        ];
        let lines = shown(&listings, None);
        let of = |pid: &str| lines.iter().find(|line| line.contains(pid) && line.contains("holds")).cloned().unwrap();
        assert!(of("pid 4001").contains("3m 12s, blocks 1, ./deploy"), "{lines:#?}");
        assert!(of("pid 4002").contains("3m 12s, blocks 3, ./deploy"), "{lines:#?}");
        assert!(!of("pid 4006").contains("blocks"), "{lines:#?}");
    }

    #[test]
    fn nested_hold_of_the_same_resource_stands_below_its_holder_only() {
        let inner = HolderListing { mode: Mode::Read, ancestors: vec![session(1)], ..holder(2) };
        let lines = shown(&[resource("k", vec![holder(1), inner], vec![]), resource("free", vec![], vec![])], None);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[2].starts_with("   └─ holds read: "), "{lines:?}");
        assert_eq!(lines[3], "free: free");
    }

    #[test]
    fn waiter_names_a_few_of_those_ahead_and_its_other_resources() {
        let mut far = waiter(9, 5);
        far.process = process(77, "make all");
        "web2".clone_into(&mut far.process.host);
        let waiters = vec![waiter(2, 1), waiter(3, 2), waiter(4, 3), waiter(5, 4), far.clone()];
        let lines = shown(&[resource("a", vec![holder(1)], waiters), resource("b", vec![holder(6)], vec![far])], None);
        assert_eq!(
            lines[6],
            "└─ waits 5 write, behind pid 4001 at web1, pid 5002 at web1, pid 5003 at web1 and more, also for 'b': \
             ada@web2, pid 77, 20s, make all"
        );
    }

    #[test]
    fn ancestors_that_lead_in_a_cycle_end() {
        let around = |number, outer| HolderListing { ancestors: vec![session(outer)], ..holder(number) };
        let lines = shown(&[resource("k", vec![around(1, 2), around(2, 1)], vec![waiter(3, 1)])], None);
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn tree_fits_the_terminal() {
        let waiters = (1..=250).map(|number| waiter(number, u32::from(number))).collect();
        let listings = [resource(&"長い名前".repeat(30), vec![holder(1)], waiters), deadlock()[0].clone()];
        for width in [0, 1, 5, 60, 80, 200] {
            let lines = shown(&listings, Some(width));
            assert_eq!(lines.iter().find(|line| line.width() > width), None, "at {width}");
        }
    }
}
