//! What a session asks for, and how its command behaves.

use std::time::Duration;

use super::cluster::SLOTS;
use super::world::World;
use crate::exit;
use crate::lock::lease::Lease;
use crate::lock::mode::Mode;
use crate::lock::request::{Claim, Process, Request};
use crate::lock::resource::Resource;
use crate::lock::span::Span;
use crate::supervise::event::Group;
use crate::supervise::machine::Settings;

pub(super) struct Plan {
    pub(super) request: Request,
    pub(super) settings: Settings,
    /// How many replicas have to have the grant.
    pub(super) replicas: u32,
    /// How long the command takes to start.
    pub(super) starts_after: Duration,
    /// How long the command runs.
    pub(super) runs_for: Duration,
    pub(super) ignores_term: bool,
    /// How long the command takes to end after a signal.
    pub(super) dies_after: Duration,
}

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Plan {
    pub(super) fn random(world: &mut World) -> Self {
        let session = world.next_session();
        let resources = world.resources;
        let replicas = world.replicas() as u64;
        let random = &mut world.random;
        let ttl = MS(*random.pick(&[500, 1000, 3000, 10_000]));
        let mut names: Vec<u64> = (0..1 + random.below(2)).map(|_| random.below(resources)).collect();
        // One request has its resources in one slot of a Cluster.
        let slot = names[0] % SLOTS as u64;
        names.retain(|name| name % SLOTS as u64 == slot);
        names.dedup();
        let claims = names.into_iter().map(|name| Claim {
            resource: resource(name),
            mode: *random.pick(&[Mode::Read, Mode::Prewrite, Mode::Write, Mode::Write]),
            span: Span::Whole,
            slots: None,
        });
        let request = Request {
            session,
            ancestors: Vec::new(),
            claims: claims.collect(),
            wait: !random.once_in(10),
            terms: Some(Lease::new(ttl).terms()),
            process: Process::default(),
        };
        let settings = Settings {
            group: Group::Own,
            grace: ttl / 6,
            wait: random.once_in(4).then(|| MS(random.below(20_000))),
            busy_code: exit::BUSY,
            notice: false,
            quiet: true,
            verbose: false,
            has_spare: false,
            has_else: false,
        };
        let is_slow = random.once_in(10);
        let longest = *random.pick(&[1, 50, 500, 8000]);
        Self {
            request,
            settings,
            replicas: random.below(replicas + 1) as u32,
            starts_after: Duration::from_micros(random.below(if is_slow { 2_000_000 } else { 2_000 })),
            runs_for: Duration::from_micros(random.below(longest * 1000)),
            ignores_term: random.once_in(5),
            dies_after: Duration::from_micros(random.below(if is_slow { 500_000 } else { 2_000 })),
        }
    }
}

/// The resource of this number.
pub(super) fn resource(number: u64) -> Resource {
    Resource::new(&format!("{{t{}}}{number}", number % SLOTS as u64)).expect("a valid name")
}
