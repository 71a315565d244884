//! The random plan of a round: who competes for the lock, their trees, and what is done to them.

use std::time::Duration;

use rlock_testkit::RLOCK;
use rlock_testkit::random::Random;
use rustix::process::Signal;

use crate::scripts::{Kind, Node};

/// Where the lock of a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Embedded,
    Server,
    /// A server of the round's own, which is stopped for longer than a lease.
    StoppedServer,
}

pub(crate) struct Plan {
    pub(crate) store: Store,
    pub(crate) commands: Vec<Command>,
}

/// One of the commands that compete for the lock.
pub(crate) struct Command {
    pub(crate) role: Role,
    /// What is done to the command and its rlock, each so many milliseconds after its start.
    pub(crate) moves: Vec<(u64, Move)>,
}

pub(crate) enum Role {
    /// `rlock exec` with these options, and its tree.
    Exec(Vec<&'static str>, Node),
    /// A process that holds the lock by `rlock acquire --pid` for so many milliseconds.
    Owner(u64),
}

/// What is done to a command that holds the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Send(Target, Signal),
    /// STOP, and CONT after so many milliseconds.
    Pause(Target, u64),
    Break,
    Cleanup,
    /// KILL to rlock, and then to each copy of its guardian.
    KillWithCopies,
    /// KILL to the guardian and to rlock.
    KillWithGuardian,
    /// The server is stopped for so many milliseconds.
    StopServer(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A random process of the tree.
    Member,
    /// The process that rlock has started.
    Command,
    /// rlock, or the keeper of an owner.
    Rlock,
    Guardian,
    /// A random rlock that waits.
    Waiter,
}

/// The maximum run time of some commands, which the judge has as [`RUNTIME`].
const MAX_RUNTIME: &str = "200ms";
pub(crate) const RUNTIME: Duration = Duration::from_millis(200);

/// The lease on a server, in milliseconds. TTL of [`LEASED`] says the same.
const LEASE: u64 = 3000;

/// The options on a server.
const LEASED: [&str; 2] = ["--ttl", "3s"];

impl Plan {
    /// A plan, with members of 2 GiB if `has_big`, and without a server unless `has_server`.
    pub(crate) fn new(random: &mut Random, has_big: bool, has_server: bool) -> Self {
        let store = match random.below(12) {
            0..=6 => Store::Embedded,
            7..=10 => Store::Server,
            _ => Store::StoppedServer,
        };
        let store = if has_server { store } else { Store::Embedded };
        let commands = (0..3 + random.below(3)).map(|_| Command::new(random, store, has_big)).collect();
        Self { store, commands }
    }

    /// Whether a process of this kind takes part.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.commands.iter().any(|command| matches!(&command.role, Role::Exec(_, root) if root.count(kind) > 0))
    }
}

impl Command {
    fn new(random: &mut Random, store: Store, has_big: bool) -> Self {
        let root = Node::random(random, has_big);
        let mut options = vec!["--grace", "100ms"];
        if random.once_in(3) {
            options.extend(["--max-runtime", MAX_RUNTIME]);
        }
        if store != Store::Embedded {
            options.extend(LEASED);
        }
        let lasts = 100 + random.below(900);
        let is_owner = random.once_in(10) && store != Store::StoppedServer;
        let count = *random.pick(&[0, 1, 1, 1, 2, 2, 3]);
        let mut moves: Vec<_> =
            (0..count).map(|_| (random.below(700), Move::random(random, store, is_owner))).collect();
        moves.sort_by_key(|(after, _)| *after);
        let role = if is_owner { Role::Owner(lasts) } else { Role::Exec(options, root) };
        Self { role, moves }
    }

    /// The words that start the command. `root` are those of its tree.
    pub(crate) fn words(&self, referee: &str, root: &str) -> Vec<String> {
        match &self.role {
            Role::Exec(options, _) => {
                let words = [RLOCK, "exec", "k"].into_iter().chain(options.iter().copied());
                words.chain(["--", "perl", referee]).chain(root.split(' ')).map(str::to_owned).collect()
            }
            Role::Owner(lasts) => {
                let lasts = lasts.to_string();
                ["perl", referee, "owner", &lasts, RLOCK, "acquire", "k"].map(str::to_owned).to_vec()
            }
        }
    }
}

impl Move {
    fn random(random: &mut Random, store: Store, is_owner: bool) -> Self {
        let pause = 50 + random.below(350);
        // Nothing renews the lease of a stopped rlock.
        let long = if store == Store::Embedded || is_owner { pause } else { LEASE + 1000 };
        let ends = [Signal::TERM, Signal::KILL, Signal::USR1];
        match random.below(24) {
            0..=2 => Self::Send(Target::Member, *random.pick(&ends)),
            3 => Self::Send(Target::Member, Signal::CONT),
            4..=5 => Self::Pause(Target::Member, pause),
            6..=7 => Self::Send(Target::Command, *random.pick(&ends)),
            8..=11 => {
                let passed = [Signal::TERM, Signal::TERM, Signal::USR1, Signal::USR2, Signal::INT, Signal::HUP];
                Self::Send(Target::Rlock, *random.pick(&passed))
            }
            12..=13 => Self::Send(Target::Rlock, Signal::KILL),
            14 => Self::Pause(Target::Rlock, *random.pick(&[pause, long])),
            15 => Self::Send(Target::Guardian, Signal::KILL),
            16 => Self::Pause(Target::Guardian, pause),
            17 => Self::KillWithCopies,
            18 => Self::KillWithGuardian,
            19 => Self::Send(Target::Waiter, *random.pick(&ends)),
            20 => Self::Pause(Target::Waiter, pause),
            _ if store == Store::StoppedServer => Self::StopServer(LEASE + 500),
            21 | 22 => Self::Break,
            _ => Self::Cleanup,
        }
    }
}
