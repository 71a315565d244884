//! The workloads: random plans for the runs of a scenario.
//!
//! Each workload has resources of its own, so several workloads can share a store and a log.

use std::time::Duration;

use super::claims::{Claim, Mode};
use super::command::TTL;
use super::plan::{Level, Plan, Step};
use rlock_testkit::random::Random;

/// How the name of the resource of [`Workload::Newest`] begins.
pub(crate) const NEWEST: &str = "newest";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Writers of one resource, which increment a number and write to a register.
    Mutex,
    /// Writers among many readers.
    Readers,
    /// Prewriters that upgrade, beside readers.
    Upgrade,
    /// Intervals that overlap, some of which shrink.
    Intervals,
    /// Holders of one or two of three slots, and some writers. Some holders state two slots.
    Slots,
    /// Requests for two of three resources, in any order.
    Several,
    /// Nested claims of a resource that an ancestor holds, and downgrades.
    Nesting,
    /// Claims of several resources, one inside the other, in any order.
    Crossing,
    /// Requests with a short `--wait` for a resource with long holds.
    Waits,
    /// Writers of one job, each of which supersedes those that wait.
    Newest,
    /// Requests with many claims, which need room in the store.
    Many,
    /// Commands that outlast a lease.
    Long,
}

impl Workload {
    /// The workloads of most scenarios.
    pub(crate) const ALL: [Self; 9] = [
        Self::Mutex,
        Self::Readers,
        Self::Upgrade,
        Self::Intervals,
        Self::Slots,
        Self::Several,
        Self::Nesting,
        Self::Waits,
        Self::Newest,
    ];

    /// The workloads that clients of a server can do as well. They cannot nest, but upgrade, and
    /// belong to no job.
    pub(crate) const OF_CLIENTS: [Self; 7] =
        [Self::Mutex, Self::Readers, Self::Upgrade, Self::Intervals, Self::Slots, Self::Several, Self::Waits];

    /// A random plan for the next run. Each name contains `tag`, which in a Cluster decides the
    /// slot of the name.
    pub(crate) fn plan(self, tag: &str, random: &mut Random) -> Plan {
        let mut plan = match self {
            Self::Mutex => Plan::single(mutex(&format!("mutex{tag}"), random)),
            Self::Readers => Plan::single(readers(&format!("readers{tag}"), random)),
            Self::Upgrade => upgrade(&format!("upgrade{tag}"), random),
            Self::Intervals => Plan::single(intervals(&format!("axis{tag}"), random)),
            Self::Slots => Plan::single(slots(&format!("slots{tag}"), random)),
            Self::Several => Plan::single(several(["a", "b", "c"].map(|name| format!("{name}{tag}")), random)),
            Self::Nesting => nesting(&format!("nest{tag}"), random),
            Self::Crossing => crossing(["x", "y", "z"].map(|name| format!("{name}{tag}")), random),
            Self::Waits => Plan::single(waits(&format!("waits{tag}"), random)),
            Self::Newest => {
                let name = format!("{NEWEST}{tag}");
                Plan::single(Level { supersedes: true, ..mutex(&name, random) })
            }
            Self::Many => Plan::single(many(&format!("many{tag}"), random)),
            Self::Long => Plan::single(long(&format!("long{tag}"), random)),
        };
        // A cycle is seen only after a second or two.
        if self == Self::Crossing {
            return plan;
        }
        let outermost = &mut plan.levels[0];
        if self == Self::Waits || random.once_in(5) {
            outermost.wait_limit = Some(Duration::from_millis(random.below(400)));
        }
        plan
    }
}

fn mutex(name: &str, random: &mut Random) -> Level {
    writer(name, Claim::whole(name, Mode::Write), random)
}

/// A command that holds its claim alone. Its steps show the checkers any overlap.
fn writer(name: &str, claim: Claim, random: &mut Random) -> Level {
    let register = || Step::Register(name.to_owned());
    Level::new([claim], [register(), Step::Count(name.to_owned(), random.below(25)), register()])
}

fn reader(claim: Claim, random: &mut Random) -> Level {
    Level::new([claim], [Step::Work(random.below(40))])
}

fn readers(name: &str, random: &mut Random) -> Level {
    if random.once_in(4) { mutex(name, random) } else { reader(Claim::whole(name, Mode::Read), random) }
}

fn upgrade(name: &str, random: &mut Random) -> Plan {
    if random.once_in(2) {
        return Plan::single(reader(Claim::whole(name, Mode::Read), random));
    }
    let steps = [Step::Work(random.below(20)), Step::Nest, Step::Work(random.below(20))];
    Plan { levels: vec![Level::new([Claim::whole(name, Mode::Prewrite)], steps), mutex(name, random)] }
}

fn intervals(name: &str, random: &mut Random) -> Level {
    let lo = random.below(10);
    let hi = lo + 2 + random.below(4);
    let mode = *random.pick(&[Mode::Read, Mode::Read, Mode::Prewrite, Mode::Write, Mode::Write]);
    let (left, right) = (*random.pick(&['[', '(']), *random.pick(&[']', ')']));
    let claim = Claim::part(name, mode, &format!("{left}{lo},{hi}{right}"));
    let mut steps = vec![Step::Work(random.below(15))];
    if random.once_in(2) {
        steps.push(Step::Shrink(format!("({},{}{right}", lo + 1, hi)));
        steps.push(Step::Work(random.below(25)));
    }
    Level::new([claim], steps)
}

fn slots(name: &str, random: &mut Random) -> Level {
    if random.once_in(8) {
        return mutex(name, random);
    }
    let slots = if random.once_in(4) { 2 } else { 3 };
    reader(Claim::slots(name, slots, 1 + random.below(2) as u32), random)
}

fn several(names: [String; 3], random: &mut Random) -> Level {
    let first = random.below(3) as usize;
    let second = (first + 1 + random.below(2) as usize) % 3;
    let mode = |random: &mut Random| *random.pick(&[Mode::Read, Mode::Write, Mode::Write]);
    let claims = [first, second].map(|index| Claim::whole(&names[index], mode(random)));
    reader_of(claims, random)
}

fn reader_of(claims: impl Into<Vec<Claim>>, random: &mut Random) -> Level {
    Level::new(claims, [Step::Work(random.below(20))])
}

fn nesting(name: &str, random: &mut Random) -> Plan {
    let (outer, inner) = *random.pick(&[
        (Mode::Write, Mode::Write),
        (Mode::Write, Mode::Read),
        (Mode::Prewrite, Mode::Read),
        (Mode::Read, Mode::Read),
        (Mode::Read, Mode::Read),
    ]);
    let mut steps = vec![Step::Work(random.below(10)), Step::Nest, Step::Work(random.below(10))];
    if outer == Mode::Write && random.once_in(2) {
        steps.extend([Step::Downgrade(*random.pick(&[Mode::Read, Mode::Prewrite])), Step::Work(random.below(20))]);
    }
    let inside = if inner == Mode::Write { mutex(name, random) } else { reader(Claim::whole(name, inner), random) };
    Plan { levels: vec![Level::new([Claim::whole(name, outer)], steps), inside] }
}

/// One to three of the names, each in a request below the one before, or two of them at once.
fn crossing(names: [String; 3], random: &mut Random) -> Plan {
    let first = random.below(3) as usize;
    let step = 1 + random.below(2) as usize;
    let mode = |random: &mut Random| *random.pick(&[Mode::Read, Mode::Write, Mode::Write, Mode::Write]);
    let mut claims = (0..3).map(|at| Claim::whole(&names[(first + at * step) % 3], mode(random))).collect::<Vec<_>>();
    let work = |random: &mut Random| Step::Work(random.below(30));
    if random.once_in(5) {
        claims.truncate(2);
        return Plan::single(Level::new(claims, [work(random)]));
    }
    claims.truncate(1 + random.below(3) as usize);
    let last = claims.len() - 1;
    let level = |(at, claim)| {
        let nest = (at < last).then_some(Step::Nest);
        let steps: Vec<_> = [Some(work(random)), nest].into_iter().flatten().collect();
        Level::new([claim], steps)
    };
    Plan { levels: claims.into_iter().enumerate().map(level).collect() }
}

fn waits(name: &str, random: &mut Random) -> Level {
    let claim = Claim::whole(name, *random.pick(&[Mode::Read, Mode::Write]));
    Level::new([claim], [Step::Work(20 + random.below(150))])
}

fn many(name: &str, random: &mut Random) -> Level {
    let first = random.below(1000);
    let names = (first..=first + random.below(200)).map(|number| format!("{name}-{number:0>80}"));
    let claims = names.map(|name| Claim::whole(&name, Mode::Read)).collect::<Vec<_>>();
    reader_of(claims, random)
}

fn long(name: &str, random: &mut Random) -> Level {
    let claim = Claim::whole(name, *random.pick(&[Mode::Read, Mode::Read, Mode::Read, Mode::Write]));
    Level::new([claim], [Step::Work(TTL.as_millis() as u64 + random.below(1000))])
}
