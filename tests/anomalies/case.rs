//! A case: a scene on a store, and the fault that strikes it.

use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::calls;
use super::scenes::{SCENES, Scene};
use super::stage::Stage;
use super::trace::{Fault, Place, Plan, Process, Trace};
use rlock_testkit::Lab;
use rlock_testkit::servers::Kind;
use rlock_testkit::servers::postgres::Postgres;

/// Renewals of a lease go on while a process is traced; a dead holder's lease ends soon.
const TTL: &str = "3s";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Store {
    Embedded,
    Redis,
    Postgres,
}

impl Store {
    const ALL: [Self; 3] = [Self::Embedded, Self::Redis, Self::Postgres];

    /// The stores that this machine has.
    pub(crate) fn present() -> Vec<Self> {
        Self::ALL.into_iter().filter(|store| store.is_present()).collect()
    }

    fn is_present(self) -> bool {
        match self {
            Self::Embedded => true,
            Self::Redis => Kind::Redis7.is_present(),
            Self::Postgres => Postgres::is_present(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    /// A store that nobody has used.
    fn new_lab(self) -> Lab {
        let lab = match self {
            Self::Embedded => Lab::new(),
            Self::Redis => Lab::on(Kind::Redis7),
            Self::Postgres => Lab::on_postgres().expect("the cases ask whether it is present"),
        };
        lab.with("RLOCK_TTL", TTL)
    }

    /// A store for many cases.
    pub(crate) fn lab(self) -> Lab {
        let lab = self.new_lab();
        lab.run(["exec", "first", "--", "true"]).silently(0);
        lab
    }
}

impl Process {
    const ALL: [Self; 3] = [Self::Rlock, Self::Forked, Self::Command];

    fn name(self) -> &'static str {
        match self {
            Self::Rlock => "rlock",
            Self::Forked => "forked",
            Self::Command => "command",
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) scene: &'static Scene,
    pub(crate) store: Store,
    pub(crate) process: Process,
    pub(crate) strike: Option<(Place, Fault)>,
    /// See [`Plan::second`].
    pub(crate) second: Option<(usize, Fault)>,
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.store.name(), self.scene.name, self.process.name())?;
        let Some((place, fault)) = self.strike else { return Ok(()) };
        write!(f, "/{}/{}/{}", calls::name(place.number), place.before + 1, fault.name())?;
        let Some((others, fault)) = self.second else { return Ok(()) };
        write!(f, "/{others}/{}", fault.name())
    }
}

impl Case {
    /// Reads the words that [`Display`] writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split('/').collect();
        let (head, strike) = words.split_at_checked(3)?;
        let store = Store::ALL.into_iter().find(|store| store.name() == head[0])?;
        let scene = SCENES.iter().find(|scene| scene.name == head[1])?;
        let process = Process::ALL.into_iter().find(|process| process.name() == head[2])?;
        let (strike, second) = strike.split_at(strike.len().min(3));
        let second = match second {
            [] => None,
            [others, fault] => Some((others.parse().ok()?, Fault::named(fault)?)),
            _ => return None,
        };
        let strike = match strike {
            [] => None,
            [call, count, fault] => {
                let before = count.parse::<usize>().ok()?.checked_sub(1)?;
                Some((Place { number: calls::number(call)?, before }, Fault::named(fault)?))
            }
            _ => return None,
        };
        Some(Self { scene, store, process, strike, second })
    }

    fn plan(&self) -> Plan {
        Plan { process: self.process, strike: self.strike, second: self.second }
    }

    /// Plays the case on this store, or on a new one if the scene needs it, and checks that the
    /// store works afterwards.
    ///
    /// # Errors
    /// What went wrong, and the command that replays the case.
    pub(crate) fn play(&self, lab: &Lab) -> Result<Trace, String> {
        let new = self.scene.is_first_use.then(|| self.store.new_lab());
        let stage = Stage::new(new.as_ref().unwrap_or(lab), self.plan());
        let played = catch_unwind(AssertUnwindSafe(|| {
            let trace = (self.scene.play)(&stage);
            stage.assert_recovered();
            trace
        }));
        played.map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
            format!("{text}\n    RLOCK_ANOMALY={self} tests/run --test anomalies chosen -- --ignored")
        })
    }

    /// All cases of the scene with this process, after a run without a fault.
    pub(crate) fn all(&self, trace: &Trace, faults: impl Fn(&super::trace::Call) -> Vec<Fault>) -> Vec<Self> {
        let mut counts = std::collections::HashMap::<i64, usize>::new();
        let (mut cases, mut previous) = (Vec::new(), 0);
        for call in &trace.calls {
            let ends_folder = std::mem::replace(&mut previous, call.number) == libc::SYS_getdents64;
            let count = counts.entry(call.number).or_default();
            let place = Place { number: call.number, before: *count };
            *count += 1;
            // The standard library panics if closedir(3) fails, which it never does for a folder of
            // /proc or of a local disk.
            if ends_folder && call.number == libc::SYS_close && !faults(call).contains(&Fault::Kill) {
                continue;
            }
            cases.extend(faults(call).into_iter().map(|fault| Self { strike: Some((place, fault)), ..*self }));
        }
        cases
    }
}
