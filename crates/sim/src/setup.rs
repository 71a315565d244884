//! What an episode is made of. The options of `tests/simulate` describe it, so each episode can be
//! replayed.

use std::fmt;
use std::str::FromStr;

use super::faults::{self, Fault};
use super::location::Servers;
use super::random::Random;
use rlock_testkit::servers::Kind;

/// The numbers of sessions at a time.
const SESSIONS: [usize; 7] = [1, 2, 3, 5, 10, 20, 50];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) seed: u64,
    /// The number of sessions at a time.
    pub(super) sessions: usize,
    pub(super) servers: Servers,
    /// The faults that strike.
    pub(super) faults: Vec<Fault>,
    /// For how long sessions begin and faults strike, in seconds.
    pub(super) seconds: u64,
    /// Whether the checkers make no exception where the promise does not hold, so that they find
    /// violations.
    pub(super) is_strict: bool,
    /// The real server whose databases carry out the scripts, instead of tables.
    pub(super) scripts: Option<Kind>,
}

impl Setup {
    /// The episode of a seed.
    pub(super) fn random(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let sessions = *random.pick(&SESSIONS);
        let seconds = 5 + random.below(60);
        let servers = Servers::random(&mut random);
        let faults = faults::choose(&mut random, servers);
        Self { seed, sessions, servers, faults, seconds, is_strict: false, scripts: None }
    }

    /// Episodes that are somewhat smaller, beginning with those that are played fastest.
    pub(super) fn smaller(&self) -> impl Iterator<Item = Self> {
        let sessions = [self.sessions / 2, self.sessions - 1].map(|sessions| Self { sessions, ..self.clone() });
        let seconds = [self.seconds / 2, self.seconds - self.seconds / 4, self.seconds - 1];
        let seconds = seconds.map(|seconds| Self { seconds, ..self.clone() });
        let (one, other) = self.faults.split_at(self.faults.len() / 2);
        let without = |out: usize| [&self.faults[..out], &self.faults[out + 1..]].concat();
        let faults: Vec<_> =
            [one.to_vec(), other.to_vec()].into_iter().chain((0..self.faults.len()).map(without)).collect();
        let faults = faults.into_iter().map(|faults| Self { faults, ..self.clone() });
        let servers = Self { servers: Servers::One, ..self.clone() };
        let all: Vec<_> = sessions.into_iter().chain([servers]).chain(faults).chain(seconds).collect();
        all.into_iter().filter(move |smaller| smaller != self && smaller.sessions > 0 && smaller.seconds > 0)
    }
}

/// Writes the options that replay the episode.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, sessions, servers, faults, seconds, is_strict, scripts } = self;
        let names: Vec<_> = faults.iter().map(|fault| format!("{fault:?}")).collect();
        let names = if names.is_empty() { NO_FAULT.to_owned() } else { names.join(",") };
        let strict = if *is_strict { " --strict" } else { "" };
        let scripts = scripts.map(|kind| format!(" --scripts={kind:?}")).unwrap_or_default();
        write!(
            f,
            "--seed {seed} --sessions {sessions} --servers {servers:?} --faults {names} --seconds {seconds}\
             {strict}{scripts}"
        )
    }
}

/// How the options name an empty list of faults.
const NO_FAULT: &str = "none";

/// What to play, as the options of `tests/simulate` tell.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) minutes: Option<f64>,
    pub(super) seed: Option<u64>,
    sessions: Option<usize>,
    servers: Option<Servers>,
    faults: Option<Vec<Fault>>,
    seconds: Option<u64>,
    is_strict: bool,
    scripts: Option<Kind>,
}

impl Options {
    /// Random episodes with the scripts on a real server.
    pub(super) fn with_scripts(kind: Kind) -> Self {
        Self { scripts: Some(kind), ..Self::default() }
    }

    /// The episode of a seed, as far as the options do not tell otherwise.
    pub(super) fn setup(&self, seed: u64) -> Setup {
        let random = Setup::random(seed);
        Setup {
            sessions: self.sessions.unwrap_or(random.sessions),
            servers: self.servers.unwrap_or(random.servers),
            faults: self.faults.clone().unwrap_or(random.faults),
            seconds: self.seconds.unwrap_or(random.seconds),
            is_strict: self.is_strict,
            scripts: self.scripts,
            ..random
        }
    }

    /// Whether the options describe one episode, which is replayed with its timeline.
    pub(super) fn is_replay(&self) -> bool {
        self.seed.is_some() && self.minutes.is_none() && self.seconds.is_some()
    }
}

impl FromStr for Options {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = text.split_whitespace();
        while let Some(option) = words.next() {
            if option == "--strict" {
                options.is_strict = true;
                continue;
            }
            if let Some(kind) = option.strip_prefix("--scripts") {
                let named = |kind| named(kind, &Kind::ALL);
                options.scripts = Some(kind.strip_prefix('=').map_or(Ok(Kind::Redis7), named)?);
                continue;
            }
            let value = words.next().ok_or(format!("'{option}' needs a value"))?;
            match option {
                "--minutes" => options.minutes = Some(parsed(option, value)?),
                "--seed" => options.seed = Some(parsed(option, value)?),
                "--sessions" => options.sessions = Some(parsed(option, value)?),
                "--seconds" => options.seconds = Some(parsed(option, value)?),
                "--servers" => options.servers = Some(named(value, &Servers::ALL)?),
                "--faults" if value == NO_FAULT => options.faults = Some(Vec::new()),
                "--faults" => options.faults = Some(value.split(',').map(fault).collect::<Result<_, _>>()?),
                _ => return Err(format!("'{option}' is no option")),
            }
        }
        Ok(options)
    }
}

fn parsed<T: FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("'{option}' does not take '{value}'"))
}

fn fault(name: &str) -> Result<Fault, String> {
    named(name, &Fault::ALL)
}

fn named<T: Copy + fmt::Debug>(name: &str, all: &[T]) -> Result<T, String> {
    let meant = all.iter().find(|one| format!("{one:?}") == name);
    meant.copied().ok_or(format!("'{name}' is none of {all:?}"))
}

#[test]
fn written_episode_is_read_back() {
    for (seed, scripts) in (0..20).zip([None, Some(Kind::Valkey9)].into_iter().cycle()) {
        let setup = Setup { is_strict: seed % 2 == 0, scripts, ..Setup::random(seed) };
        let options: Options = setup.to_string().parse().unwrap();
        assert!(options.is_replay());
        assert_eq!(options.setup(seed), setup);
    }
}

#[test]
fn unknown_option_or_value_is_refused() {
    for text in ["--sessions", "--seed x", "--faults Rain", "--servers Two", "--bogus 1"] {
        assert!(text.parse::<Options>().is_err(), "{text}");
    }
}
