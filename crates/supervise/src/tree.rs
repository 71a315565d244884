//! Decides which processes belong to the command: every process that the command started, in any
//! process group and session, except for daemons.
//!
//! The module is pure: a snapshot of all processes goes in, a selection of them comes out. rlock
//! must be the child subreaper (prctl(2)) when the snapshot is taken, so that rlock is the parent
//! of every orphan.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rustix::process::Pid;

use rlock_sys::processes::{Process, Stat};

/// Facts about the command's processes that are known before any snapshot, and that persist between
/// snapshots.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// rlock itself, the parent of the command and of orphans.
    pub(super) rlock: Pid,
    /// The guardian of the command. It belongs to rlock, not to the tree.
    pub(super) guardian: Option<Pid>,
    /// The command, until it is reaped.
    pub(super) command: Option<Pid>,
    /// Children that this process had before it became rlock, as in `exec > >(tee log); exec rlock
    /// …`.
    pub(super) strangers: Vec<Process>,
    /// The process group of the spare work, whose orphans become children of rlock too.
    pub(super) foreign_group: Option<i32>,
    /// The sessions of the tree before the last signal that may have ended a member. An orphan in
    /// any other session is a daemon.
    pub(super) sessions: BTreeSet<i32>,
    /// The topmost members at the last [`watch`](Self::watch), each with the sessions of the
    /// members below it.
    pub(super) below: HashMap<Pid, BTreeSet<i32>>,
}

impl Family {
    /// The living processes of the tree, parents before their children.
    pub(super) fn members(&self, all: &[Stat]) -> Vec<Process> {
        living(&self.reach(all))
    }

    /// Returns the [`members`](Self::members), and remembers their sessions, so that no member
    /// becomes a daemon when a signal ends its parent.
    pub(super) fn remember(&mut self, all: &[Stat]) -> Vec<Process> {
        let reached = self.reach(all);
        self.sessions.extend(reached.iter().flat_map(|(_, members)| sessions(members)));
        living(&reached)
    }

    /// Returns whether the tree has no living process, and notes the topmost members for
    /// [`topmost_ended`](Self::topmost_ended).
    pub(super) fn watch(&mut self, all: &[Stat]) -> bool {
        let reached = self.reach(all);
        // A zombie has lost its children, and its note still has them.
        let living_roots = reached.iter().filter(|(root, _)| !root.ended);
        self.below.extend(living_roots.map(|(root, members)| (root.process.pid, sessions(members).collect())));
        living(&reached).is_empty()
    }

    /// Notes the end of a child of rlock. A topmost member that exits leaves daemons, as a command
    /// does. What a member leaves that dies of a signal stays in the tree.
    pub(super) fn topmost_ended(&mut self, child: Pid, by_signal: bool) {
        let sessions = self.below.remove(&child).filter(|_| by_signal);
        self.sessions.extend(sessions.into_iter().flatten());
    }

    /// The topmost processes of the tree, each with itself and its descendants.
    fn reach<'a>(&self, all: &'a [Stat]) -> Vec<(&'a Stat, Vec<&'a Stat>)> {
        let children = children(all);
        let of_rlock = children.get(&self.rlock).map_or(&[][..], Vec::as_slice);
        let mut roots: Vec<&Stat> = of_rlock.iter().copied().filter(|stat| self.may_be_root(stat)).collect();
        let mut known = self.sessions.clone();
        let mut reached = Vec::new();
        // An orphan's subtree can show further sessions, and those sessions further orphans.
        loop {
            let (found, left): (Vec<_>, Vec<_>) = roots
                .into_iter()
                .partition(|stat| Some(stat.process.pid) == self.command || known.contains(&stat.session));
            if found.is_empty() {
                return reached;
            }
            for root in found {
                let members = descend(vec![root], &children);
                known.extend(sessions(&members));
                reached.push((root, members));
            }
            roots = left;
        }
    }

    /// Whether a child of rlock belongs to the tree, as far as the child alone shows.
    pub(super) fn has_child(&self, child: &Stat) -> bool {
        let is_known = Some(child.process.pid) == self.command || self.sessions.contains(&child.session);
        is_known && self.may_be_root(child)
    }

    fn may_be_root(&self, stat: &Stat) -> bool {
        let is_foreign = Some(stat.group) == self.foreign_group || self.strangers.contains(&stat.process);
        Some(stat.process.pid) != self.guardian && !is_foreign
    }
}

/// The living processes that match `is_seed` and all their descendants, parents before their
/// children, without `this`. The guardian needs this function when rlock is gone, and with rlock
/// the link from orphans to the tree.
///
/// `is_seed` gets a process and its parent. If the parent has begun to end, `is_seed` gets the
/// future parent instead: the nearest ancestor that has not begun to end.
pub(super) fn seeded(all: &[Stat], this: Pid, is_seed: impl Fn(&Stat, Option<Pid>) -> bool) -> Vec<Process> {
    let ending: HashMap<Pid, Option<Pid>> =
        all.iter().filter(|stat| stat.ending).map(|stat| (stat.process.pid, stat.parent)).collect();
    let next_parent = |stat: &Stat| {
        // The kernel does not take a snapshot at one instant, so the snapshot may contain a cycle.
        let ancestors = std::iter::successors(stat.parent, |pid| ending.get(pid).copied().flatten());
        ancestors.take(ending.len() + 1).last()
    };
    let is_seed = |stat: &&Stat| stat.process.pid != this && !stat.ended && is_seed(stat, next_parent(stat));
    let seeds = all.iter().filter(is_seed).collect();
    let mut seen = HashSet::new();
    let reached = descend(seeds, &children(all)).into_iter();
    let living = reached.filter(|stat| !stat.ended && stat.process.pid != this);
    living.map(|stat| stat.process).filter(|process| seen.insert(*process)).collect()
}

/// Puts processes in the order in which they are to be killed: each part when the parts before it
/// have ended. What runs below an rlock comes before that rlock, so that the lock is free after its
/// command. Guardians come last, because a guardian keeps the lock of an rlock that has ended
/// before its command. An rlock is the parent of a guardian.
pub(super) fn innermost_first(
    all: &[Stat],
    chosen: &[Process],
    is_guardian: impl Fn(&Process) -> bool,
) -> Vec<Vec<Process>> {
    let parents: HashMap<Pid, Option<Pid>> = all.iter().map(|stat| (stat.process.pid, stat.parent)).collect();
    let parent = |pid: Pid| parents.get(&pid).copied().flatten();
    let pids: HashSet<Pid> = chosen.iter().map(|process| process.pid).collect();
    let children = all.iter().filter(|stat| stat.parent.is_some_and(|parent| pids.contains(&parent)));
    let around = chosen.iter().copied().chain(children.map(|stat| stat.process));
    let guardians: HashSet<Process> = around.filter(is_guardian).collect();
    let rlocks: HashSet<Pid> = guardians.iter().filter_map(|guardian| parent(guardian.pid)).collect();
    let depth = |process: &Process| {
        let ancestors = std::iter::successors(parent(process.pid), |pid| parent(*pid));
        // The kernel does not take a snapshot at one instant, so the snapshot may contain a cycle.
        ancestors.take(all.len()).filter(|pid| rlocks.contains(pid)).count()
    };
    let mut parts: BTreeMap<_, Vec<Process>> = BTreeMap::new();
    for process in chosen {
        let key = (guardians.contains(process), Reverse(depth(process)));
        parts.entry(key).or_default().push(*process);
    }
    parts.into_values().collect()
}

fn living(reached: &[(&Stat, Vec<&Stat>)]) -> Vec<Process> {
    let members = reached.iter().flat_map(|(_, members)| members);
    members.filter(|stat| !stat.ended).map(|stat| stat.process).collect()
}

fn sessions(members: &[&Stat]) -> impl Iterator<Item = i32> {
    members.iter().map(|stat| stat.session)
}

fn children(all: &[Stat]) -> HashMap<Pid, Vec<&Stat>> {
    let mut children: HashMap<Pid, Vec<&Stat>> = HashMap::new();
    for stat in all {
        if let Some(parent) = stat.parent {
            children.entry(parent).or_default().push(stat);
        }
    }
    children
}

/// These processes and all their descendants, level by level.
fn descend<'a>(roots: Vec<&'a Stat>, children: &HashMap<Pid, Vec<&'a Stat>>) -> Vec<&'a Stat> {
    let mut reached = Vec::new();
    let mut seen = HashSet::new();
    let mut level = roots;
    while !level.is_empty() {
        // The kernel does not take a snapshot at one instant, so the snapshot may contain a cycle.
        level.retain(|stat| seen.insert(stat.process.pid));
        let next = level.iter().flat_map(|stat| children.get(&stat.process.pid).into_iter().flatten().copied());
        let next = next.collect();
        reached.append(&mut level);
        level = next;
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const RLOCK: i32 = 10;
    const GUARDIAN: i32 = 11;
    const COMMAND: i32 = 12;
    /// The session of rlock.
    const SESSION: i32 = 1;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    fn process(number: i32, parent: i32, session: i32) -> Stat {
        let process = Process { pid: pid(number), started: 1 };
        Stat {
            process,
            parent: Pid::from_raw(parent),
            group: number,
            session,
            stopped: false,
            ending: false,
            leaderless: false,
            ended: false,
        }
    }

    fn family() -> Family {
        Family {
            rlock: pid(RLOCK),
            guardian: Some(pid(GUARDIAN)),
            command: Some(pid(COMMAND)),
            strangers: vec![process(13, RLOCK, SESSION).process],
            foreign_group: Some(15),
            sessions: BTreeSet::from([SESSION]),
            below: HashMap::new(),
        }
    }

    fn numbers(processes: &[Process]) -> Vec<i32> {
        processes.iter().map(|process| process.pid.as_raw_nonzero().get()).collect()
    }

    #[test]
    fn members_are_all_descendants_except_guardian_and_processes_of_others() {
        let all = [
            process(1, 0, 1),
            process(RLOCK, 1, SESSION),
            process(GUARDIAN, RLOCK, SESSION),
            process(13, RLOCK, SESSION),
            process(14, 13, SESSION),
            process(15, RLOCK, SESSION),
            process(16, 15, SESSION),
            process(30, 20, SESSION),
            process(20, COMMAND, SESSION),
            process(COMMAND, RLOCK, SESSION),
            process(40, 1, SESSION),
        ];
        assert_eq!(numbers(&family().members(&all)), [COMMAND, 20, 30]);
    }

    #[test]
    fn orphan_in_the_session_is_a_member_and_orphan_in_its_own_session_a_daemon() {
        let all = [
            process(COMMAND, RLOCK, SESSION),
            process(50, RLOCK, SESSION),
            process(51, 50, 51),
            process(60, RLOCK, 60),
            process(61, 60, SESSION),
        ];
        assert_eq!(numbers(&family().members(&all)), [COMMAND, 50, 51]);
    }

    #[test]
    fn remembered_member_in_its_own_session_stays_one_when_its_parent_ends() {
        let mut family = family();
        let job = process(70, COMMAND, 70);
        assert_eq!(numbers(&family.remember(&[process(COMMAND, RLOCK, SESSION), job])), [COMMAND, 70]);
        family.command = None;
        let orphan = Stat { parent: Some(pid(RLOCK)), ..job };
        assert_eq!(numbers(&family.members(&[orphan])), [70]);
    }

    /// "A topmost member that ends *by itself with an exit code* leaves daemons as a command does."
    #[test]
    fn topmost_member_that_exits_leaves_daemons_and_one_that_is_killed_does_not() {
        let client = process(50, RLOCK, SESSION);
        let server = process(70, 50, 70);
        let orphan = Stat { parent: Some(pid(RLOCK)), ..server };
        for by_signal in [false, true] {
            let mut family = Family { command: None, ..family() };
            assert!(!family.watch(&[client, server]));
            // The snapshot may show the zombie with its orphan.
            family.watch(&[Stat { ended: true, ..client }, orphan]);
            family.topmost_ended(client.process.pid, by_signal);
            assert_eq!(family.watch(&[orphan]), !by_signal);
            assert_eq!(family.has_child(&orphan), by_signal);
        }
        let mut signalled = Family { command: None, ..family() };
        signalled.remember(&[client, server]);
        signalled.watch(&[client, server]);
        signalled.topmost_ended(client.process.pid, false);
        assert!(!signalled.watch(&[orphan]), "the server was in the family when the signal came");
    }

    #[test]
    fn orphan_in_the_session_of_another_orphan_is_found_in_any_order() {
        let all = [process(81, RLOCK, 80), process(50, RLOCK, SESSION), process(80, 50, 80)];
        let mut found = numbers(&family().members(&all));
        found.sort_unstable();
        assert_eq!(found, [50, 80, 81]);
    }

    #[test]
    fn zombies_are_no_members_but_show_their_session() {
        let family = family();
        let zombie = Stat { ended: true, ..process(COMMAND, RLOCK, COMMAND) };
        let orphan = process(90, RLOCK, COMMAND);
        assert_eq!(numbers(&family.members(&[zombie, orphan])), [90]);
    }

    #[test]
    fn seeds_bring_their_descendants_once_and_never_this_process() {
        let all = [process(5, 1, 5), process(6, 5, 5), process(7, 6, 5), process(8, 1, 5), process(9, 6, 9)];
        let seeds = [pid(5), pid(6), pid(9)];
        let found = seeded(&all, pid(9), |stat, _| seeds.contains(&stat.process.pid));
        assert_eq!(numbers(&found), [5, 6, 7]);
    }

    /// Two rlocks, one below the other, each with its guardian and its command, and a guardian
    /// whose rlock has ended.
    #[test]
    fn commands_are_killed_before_their_rlocks_and_guardians_last() {
        let all = [
            process(1, 0, 1),
            process(3, 1, 1),
            process(4, 3, 1),
            process(5, 4, 1),
            process(6, 4, 1),
            process(7, 6, 1),
            process(8, 7, 1),
            process(9, 7, 1),
            process(10, 9, 1),
            process(11, 1, 1),
        ];
        let chosen: Vec<_> = all[1..].iter().map(|stat| stat.process).collect();
        let is_guardian = |process: &Process| [pid(5), pid(8), pid(11)].contains(&process.pid);
        let parts = innermost_first(&all, &chosen, is_guardian);
        let parts: Vec<_> = parts.iter().map(|part| numbers(part)).collect();
        assert_eq!(parts, [vec![9, 10], vec![6, 7], vec![3, 4], vec![8], vec![5], vec![11]]);
        let without: Vec<_> = chosen.iter().copied().filter(|process| !is_guardian(process)).collect();
        let parts = innermost_first(&all, &without, is_guardian);
        let parts: Vec<_> = parts.iter().map(|part| numbers(part)).collect();
        assert_eq!(parts, [vec![9, 10], vec![6, 7], vec![3, 4]], "guardians that are not chosen tell the rlocks, too");
        let simple = innermost_first(&all, &chosen, |_| false);
        assert_eq!(simple.len(), 1, "without an rlock, all are killed at once");
    }

    /// PR_SET_PDEATHSIG has killed timeout(1), and the child of timeout(1) is about to become an
    /// orphan.
    #[test]
    fn child_of_an_ending_process_counts_as_an_orphan() {
        let dying = |number, parent| Stat { ending: true, ..process(number, parent, number) };
        let all = [dying(5, 1), dying(6, 5), process(7, 6, 7), process(8, 7, 8), process(9, 2, 9)];
        let found = seeded(&all, pid(20), |stat, parent| !stat.ending && parent == Some(pid(1)));
        assert_eq!(numbers(&found), [7, 8]);
        let cycle = [dying(5, 6), dying(6, 5), process(7, 6, 7)];
        assert!(seeded(&cycle, pid(20), |_, parent| parent == Some(pid(1))).is_empty());
    }
}
