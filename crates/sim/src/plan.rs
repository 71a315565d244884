//! What a session asks for, and how its command behaves.

use std::time::Duration;

use super::cluster::{SLOTS, slot_of};
use super::random::Random;
use super::world::World;
use rlock_model::lease::Lease;
use rlock_model::mode::{Mode, Nesting};
use rlock_model::op::Change;
use rlock_model::request::{self, Calendar, Claim, Job, OncePer, Process, Request};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::Call;
use rlock_supervise::event::{Ended, Group};
use rlock_supervise::machine::{Notice, Settings, Skip};
use rlock_sys::clock::{StoreTime, micros};
use rlock_sys::exit;

pub(super) struct Plan {
    pub(super) request: Request,
    pub(super) settings: Settings,
    /// How many replicas have to have the grant.
    pub(super) replicas: u32,
    /// How long the command takes to start.
    pub(super) starts_after: Duration,
    /// Whether the command does not exist.
    pub(super) cannot_start: bool,
    /// How long the command runs, if it waits for nothing.
    pub(super) runs_for: Duration,
    /// How the command then ends.
    pub(super) ends: Ended,
    /// For `--nested`: the token of the hold above that covers each claim, or `None` for an
    /// upgrade.
    pub(super) nested: Option<Vec<Option<u64>>>,
    pub(super) ignores_term: bool,
    /// How long the command takes to end after a signal.
    pub(super) dies_after: Duration,
    /// How long a process that the command leaves behind outlives it.
    pub(super) leaves_for: Option<Duration>,
    /// How long the kernel takes to end a process of the tree that was killed, such as one whose
    /// write hangs.
    pub(super) hangs_for: Option<Duration>,
    /// How long the spare work runs, if the settings have any; `None` if it cannot be started.
    pub(super) spare_for: Option<Duration>,
    /// Another rlock, which the command runs and waits for.
    pub(super) inner: Option<Inner>,
}

pub(super) struct Inner {
    /// How long after the start of the command the inner rlock starts.
    pub(super) after: Duration,
    pub(super) program: Program,
}

/// What an inner rlock does.
pub(super) enum Program {
    /// It runs a command below another lock.
    Exec(Box<Plan>),
    /// It gives up a part of the lock around it.
    Change(Call),
}

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The names of jobs.
const JOBS: [&str; 2] = ["a", "b"];

/// How many rlocks run inside each other at most.
pub(super) const DEPTH: usize = 3;

impl Plan {
    pub(super) fn random(world: &mut World) -> Self {
        let resources = world.resources;
        let claims = some_claims(world, |random| claim(random, resources));
        Self::with(world, claims, &[])
    }

    /// A run of cron, which hosts start at the same time or nearly so.
    pub(super) fn of_cron(world: &mut World) -> Self {
        let number = world.random.below(world.resources);
        let claim = Claim { resource: resource(number), mode: Mode::Write, span: Span::Whole, slots: None };
        let mut plan = Self::with(world, vec![claim], &[]);
        // Machines have the same calendar, and clocks that differ a little from that of the server.
        let server_time = world.server_time();
        let random = &mut world.random;
        let period = MS(*random.pick(&[500, 3200, 3200, 10_000]));
        let now = (server_time + MS(random.below(200)) - MS(100)).as_micros();
        let start = StoreTime::from_micros(now - now % micros(period));
        let calendar = random.once_in(3).then(|| Calendar { start, next: start + period });
        plan.request.job.once_per = Some(OncePer { period, calendar });
        plan.request.job.is_named = random.once_in(2);
        plan
    }

    /// A request of `rlock acquire --for`, below these requests, the innermost first.
    pub(super) fn of_acquire(world: &mut World, above: &[&Request]) -> Self {
        let claims = Self::claims_below(world, above);
        let plan = Self::with(world, claims, above);
        let keep_for = Some(MS(*world.random.pick(&[300, 1000, 3000, 10_000])));
        let job = Job { skips: false, hold_at_least: None, keep_for, is_acquire: true, ..plan.request.job };
        let settings = Settings {
            grace: Duration::ZERO,
            max_runtime: None,
            skip: Skip::Never,
            has_spare: false,
            has_else: false,
            has_gate: false,
            sums_up: false,
            ..plan.settings
        };
        Self { request: Request { job, ..plan.request }, settings, inner: None, ..plan }
    }

    /// A step below these locks, the innermost first, each with its tokens. Returns `None` for a
    /// step with `--nested` that none of the locks covers.
    pub(super) fn of_step(world: &mut World, held: &[(&Request, &[u64])]) -> Option<Self> {
        let above: Vec<_> = held.iter().map(|(request, _)| *request).collect();
        let claims = Self::claims_below(world, &above);
        let nested = match world.random.once_in(2) {
            true => Some(claims.iter().map(|claim| cover(claim, held)).collect::<Option<Vec<_>>>()?),
            false => None,
        };
        Some(Self { nested, ..Self::with(world, claims, &above) })
    }

    /// Claims, most of which are parts of what the innermost of these requests holds.
    fn claims_below(world: &mut World, above: &[&Request]) -> Vec<Claim> {
        let (resources, inside_of_4) = (world.resources, if world.crosses { 1 } else { 3 });
        some_claims(world, |random| match above.first() {
            Some(around) if random.below(4) < inside_of_4 => inside(random, around),
            _ => claim(random, resources),
        })
    }

    /// A plan with these claims, below these requests, the innermost first.
    fn with(world: &mut World, claims: Vec<Claim>, above: &[&Request]) -> Self {
        let session = world.next_session();
        let replicas = world.replicas() as u64;
        let random = &mut world.random;
        let ttl = MS(*random.pick(&[500, 1000, 3000, 10_000]));
        let request = Request {
            session,
            ancestors: above.iter().map(|request| request.session).collect(),
            claims,
            wait: !random.once_in(10),
            terms: Some(Lease::new(ttl).terms()),
            job: Job::default(),
            process: Process::default(),
        };
        let has_else = random.once_in(10);
        let skip = match random.below(8) {
            _ if has_else => Skip::Never,
            0 => Skip::Always,
            1 => Skip::For(MS(random.below(5000))),
            _ => Skip::Never,
        };
        let job = Job {
            name: (*random.pick(&JOBS)).to_owned(),
            skips: skip != Skip::Never,
            max_waiting: random.once_in(10).then(|| 1 + random.below(4) as u32),
            supersedes: random.once_in(10),
            hold_at_least: random.once_in(10).then(|| MS(random.below(6000))),
            held_above: above.iter().flat_map(|above| request::resources(&above.claims)).cloned().collect(),
            ..Job::default()
        };
        let request = Request { job, ..request };
        let has_limit = random.once_in(4);
        let is_quiet = random.once_in(2);
        let settings = Settings {
            group: Group::Own,
            grace: ttl / 6,
            wait: has_limit.then(|| MS(random.below(20_000))),
            conflict_exit_code: exit::BUSY,
            notice: match random.below(3) {
                _ if is_quiet => Notice::Never,
                0 => Notice::Never,
                1 => Notice::Line,
                _ => Notice::Log,
            },
            quiet: is_quiet,
            verbose: random.once_in(4),
            max_runtime: random.once_in(10).then(|| MS(random.below(8000))),
            skip,
            has_spare: random.once_in(10),
            has_else,
            sums_up: false,
            has_gate: false,
            deadlock_timeout: (!above.is_empty()).then(|| MS(*random.pick(&[200, 1000, 1000]))),
        };
        let is_slow = random.once_in(10);
        // What hangs hears no signal.
        let hangs = random.once_in(10);
        let leaves_for = if hangs { Some(5_000_000) } else { random.once_in(10).then_some(1_000_000) };
        let longest = *random.pick(&[1, 50, 500, 8000]);
        let runs_for = Duration::from_micros(random.below(longest * 1000));
        let plan = Self {
            request,
            settings,
            replicas: random.below(replicas + 1) as u32,
            starts_after: Duration::from_micros(random.below(if is_slow { 2_000_000 } else { 2_000 })),
            cannot_start: random.once_in(30),
            runs_for,
            ends: Ended::Code(u8::from(random.once_in(4))),
            nested: None,
            ignores_term: random.once_in(5),
            dies_after: Duration::from_micros(random.below(if is_slow { 500_000 } else { 2_000 })),
            leaves_for: leaves_for.map(|longest| Duration::from_micros(random.below(longest))),
            hangs_for: hangs.then(|| Duration::from_micros(random.below(3_000_000))),
            spare_for: (!random.once_in(10)).then(|| Duration::from_micros(random.below(2_000_000))),
            inner: None,
        };
        let has_inner = if world.crosses { !world.random.once_in(3) } else { world.random.once_in(5) };
        if above.len() + 1 == DEPTH || !has_inner {
            return plan;
        }
        let above: Vec<_> = std::iter::once(&plan.request).chain(above.iter().copied()).collect();
        let after = Duration::from_micros(world.random.below(runs_for.as_micros() as u64 + 1));
        if world.random.once_in(3) {
            let program = Program::Change(change(&mut world.random, &plan.request));
            return Self { inner: Some(Inner { after, program }), ..plan };
        }
        let claims = Self::claims_below(world, &above);
        let program = Program::Exec(Box::new(Self::with(world, claims, &above)));
        Self { inner: Some(Inner { after, program }), ..plan }
    }
}

/// The token of the innermost hold that covers a claim, or `None` inside for an upgrade. Returns
/// `None` if no hold covers the claim.
fn cover(claim: &Claim, held: &[(&Request, &[u64])]) -> Option<Option<u64>> {
    let holds = held.iter().flat_map(|(request, tokens)| request.claims.iter().zip(*tokens));
    let around = holds.filter(|(held, _)| held.resource == claim.resource && held.span.covers(&claim.span));
    around.into_iter().find_map(|(held, token)| match claim.mode.below(held.mode) {
        Nesting::AtOnce => Some(Some(*token)),
        Nesting::Waits if claim.mode == Mode::Write => Some(None),
        Nesting::Waits | Nesting::Refused => None,
    })
}

/// One to four claims. A request names a resource twice for several intervals only, and has its
/// resources in one slot of a Cluster.
pub(super) fn some_claims(world: &mut World, mut claim: impl FnMut(&mut Random) -> Claim) -> Vec<Claim> {
    let is_cluster = world.cluster.is_some();
    let count = *world.random.pick(&[1, 1, 1, 1, 2, 2, 3, 4]);
    let mut claims: Vec<Claim> = Vec::new();
    for _ in 0..count {
        let next = claim(&mut world.random);
        let is_part = |claim: &Claim| !claim.span.is_whole();
        let fits = |other: &Claim| {
            let is_near = !is_cluster || slot_of(other.resource.as_str()) == slot_of(next.resource.as_str());
            is_near && (other.resource != next.resource || is_part(other) && is_part(&next))
        };
        if claims.iter().all(fits) {
            claims.push(next);
        }
    }
    claims
}

pub(super) fn claim(random: &mut Random, resources: u64) -> Claim {
    let number = random.below(resources);
    let mode = *random.pick(&[Mode::Read, Mode::Prewrite, Mode::Write, Mode::Write, Mode::Slot]);
    let is_part = mode != Mode::Slot && random.once_in(3);
    Claim {
        resource: resource(number),
        mode,
        span: if is_part { interval(random) } else { Span::Whole },
        // Some disagree about the number of slots, and are refused.
        slots: (mode == Mode::Slot).then(|| 1 + number as u32 % 3 + u32::from(random.once_in(20))),
    }
}

/// A claim on what a request above holds. Some are refused, because they ask for more.
fn inside(random: &mut Random, above: &Request) -> Claim {
    let around = random.pick(&above.claims).clone();
    let mode = match around.mode {
        _ if random.once_in(20) => *random.pick(&Mode::ALL),
        Mode::Read => Mode::Read,
        Mode::Prewrite => *random.pick(&[Mode::Read, Mode::Prewrite, Mode::Write, Mode::Write]),
        Mode::Write => *random.pick(&[Mode::Read, Mode::Prewrite, Mode::Write]),
        Mode::Slot => *random.pick(&[Mode::Read, Mode::Slot, Mode::Slot]),
    };
    let is_part = mode != Mode::Slot && random.once_in(4);
    Claim {
        mode,
        span: if mode == Mode::Slot {
            Span::Whole
        } else if is_part {
            interval(random)
        } else {
            around.span
        },
        slots: (mode == Mode::Slot).then(|| around.slots.unwrap_or(2)),
        ..around
    }
}

/// Gives up a part of what a request holds. Some are refused, because they ask for more.
fn change(random: &mut Random, held: &Request) -> Call {
    let claim = random.pick(&held.claims);
    let resource = claim.resource.clone();
    let change = if random.once_in(2) {
        Change::Shrink { resource, span: part(random, &claim.span) }
    } else {
        Change::Downgrade { resource, mode: *random.pick(&[Mode::Read, Mode::Prewrite]) }
    };
    Call::change(held.session, &[], &change)
}

/// An interval, which is seldom outside another one.
pub(super) fn part(random: &mut Random, around: &Span) -> Span {
    let inside = (0..10).map(|_| interval(random)).find(|span| around.covers(span));
    inside.unwrap_or_else(|| interval(random))
}

fn interval(random: &mut Random) -> Span {
    let lower = random.below(6);
    let upper = lower + random.below(4);
    let (open, close) = match lower == upper {
        true => ("[", "]"),
        false => (*random.pick(&["[", "("]), *random.pick(&["]", ")"])),
    };
    Span::parse(&format!("{open}{lower},{upper}{close}")).expect("a valid interval")
}

impl World {
    /// The resource whose lock a task breaks before its next session.
    pub(super) fn next_to_break(&mut self) -> Option<Resource> {
        self.to_break = self.to_break.checked_sub(1)?;
        Some(resource(self.random.below(self.resources)))
    }
}

/// The resource of this number.
pub(super) fn resource(number: u64) -> Resource {
    Resource::new(&format!("{{t{}}}{number}", number % SLOTS as u64)).expect("a valid name")
}
