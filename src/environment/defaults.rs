//! The settings of a request that an option names, else a variable, else the configuration file.

use std::env;
use std::time::Duration;

use super::names::{TTL, WAIT, variable};
use rlock_arguments::values::{self, Wait};
use rlock_model::lease::Lease;
use rlock_model::request::{self, Terms};
use rlock_show::failure::Failure;
use rlock_store::Replicas;
use rlock_words::{self as words, Explained};

/// The default of --history.
const HISTORY: &str = "RLOCK_HISTORY";

/// The ttl of a lease that nothing sets.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The time from TERM to KILL that nothing sets.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// The time that connecting to a server may take if nothing limits it.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of the configuration file. A setting has no effect in a store that does not have
/// what the setting is about, so one file serves all stores of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) wait: Option<Wait>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) history: Option<u32>,
}

/// What applies to the requests at one store.
pub(crate) struct Chosen {
    /// The lengths of the leases, in a store that has leases.
    pub(crate) terms: Option<Terms>,
    /// See [`Defaults::grace`].
    pub(crate) grace: Duration,
    pub(crate) history: u32,
}

impl Defaults {
    /// Chooses what the options, the environment and the configuration file say of requests.
    pub(crate) fn choose(
        &self,
        ttl: Option<Duration>,
        grace: Option<Duration>,
        history: Option<u32>,
        has_leases: bool,
    ) -> Result<Chosen, Failure> {
        let ttl = self.ttl(ttl)?;
        Ok(Chosen {
            terms: has_leases.then(|| Lease::new(ttl).terms()),
            grace: self.grace(grace, ttl, has_leases)?,
            history: self.history(history)?,
        })
    }

    /// The maximum wait; `None` for no limit. A nested request has no default but to wait for ever:
    /// the command around it would fail half-way.
    pub(crate) fn wait(&self, option: Option<Wait>, is_nested: bool) -> Result<Option<Duration>, Failure> {
        let chosen = match option {
            None if is_nested => None,
            None if env::var_os(WAIT).is_some_and(|value| value.is_empty()) => {
                let remedy = format!("unset {WAIT}, or set {WAIT} to 110s, 5m, 0 or ever");
                return Err(Failure::usage(Explained::new(format!("{WAIT} is empty"), remedy)));
            }
            None => of_variable(WAIT, values::wait)?.or(self.wait),
            option => option,
        };
        Ok(chosen.and_then(Wait::limit))
    }

    /// The ttl of a lease.
    pub(crate) fn ttl(&self, option: Option<Duration>) -> Result<Duration, Failure> {
        let ttl = option.map_or_else(|| of_variable(TTL, values::ttl), |ttl| Ok(Some(ttl)))?;
        Ok(ttl.or(self.ttl).unwrap_or(DEFAULT_TTL))
    }

    /// The number of entries that a history keeps.
    fn history(&self, option: Option<u32>) -> Result<u32, Failure> {
        let history = option.map_or_else(|| of_variable(HISTORY, values::history), |entries| Ok(Some(entries)))?;
        Ok(history.or(self.history).unwrap_or(request::HISTORY))
    }

    /// The time that connecting to a server may take.
    pub(crate) fn connect_timeout(&self, option: Option<Duration>) -> Duration {
        option.or(self.connect_timeout).unwrap_or(DEFAULT_CONNECT_TIMEOUT)
    }

    /// The copies of a grant that must exist before it counts. Only a store with leases has
    /// replicas.
    pub(crate) fn replicas(&self, option: Option<Replicas>, has_leases: bool) -> Replicas {
        option.or(self.replicas.filter(|_| has_leases)).unwrap_or_default()
    }

    /// The grace to use. If a grant is a lease, rlock tells its holder to stop a grace before the
    /// deadline. The last renewal is tried a third of the ttl before the deadline. So a longer
    /// grace would stop holders that hold their lock. A default is lowered, because it must not
    /// cause a usage error.
    fn grace(&self, option: Option<Duration>, ttl: Duration, has_leases: bool) -> Result<Duration, Failure> {
        let limit = if has_leases { ttl / 3 } else { Duration::MAX };
        match option {
            Some(grace) if grace > limit => Err(Failure::usage(format!(
                "--grace {} is more than a third of --ttl {}: lower --grace or raise --ttl",
                words::duration(grace),
                words::duration(ttl)
            ))),
            Some(grace) => Ok(grace),
            None => Ok(self.grace.unwrap_or(DEFAULT_GRACE).min(limit)),
        }
    }
}

/// The value of a variable that is set and not empty.
fn of_variable<T>(name: &str, parse: fn(&str) -> Result<T, Explained>) -> Result<Option<T>, Failure> {
    let text = variable(name)?;
    text.map(|text| parse(&text).map_err(|words| Failure::usage(words.behind(format_args!("{name}: "))))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TWO: Replicas = Replicas { count: 2, on_disk: false };

    #[test]
    fn option_precedes_the_file_and_the_file_the_default() {
        let file =
            Defaults { grace: Some(SECOND), connect_timeout: Some(SECOND), replicas: Some(TWO), ..Defaults::default() };
        let none = Defaults::default();
        assert_eq!(file.connect_timeout(Some(3 * SECOND)), 3 * SECOND);
        assert_eq!([file.connect_timeout(None), none.connect_timeout(None)], [SECOND, 5 * SECOND]);
        let zero = Replicas::default();
        let replicas = [file.replicas(Some(zero), true), file.replicas(None, true), none.replicas(None, true)];
        assert_eq!(replicas, [zero, TWO, zero]);
        let grace = |defaults: &Defaults, option| defaults.grace(option, 30 * SECOND, true).unwrap();
        assert_eq!(grace(&file, Some(3 * SECOND)), 3 * SECOND);
        assert_eq!([grace(&file, None), grace(&none, None)], [SECOND, 5 * SECOND]);
    }

    /// "a key that does not apply to the store in force is ignored".
    #[test]
    fn replicas_of_the_file_are_for_servers_only() {
        let file = Defaults { replicas: Some(TWO), ..Defaults::default() };
        assert_eq!([file.replicas(None, false), file.replicas(Some(TWO), false)], [Replicas::default(), TWO]);
    }

    #[test]
    fn only_a_grace_on_the_command_line_is_too_long_for_a_ttl() {
        let file = Defaults { grace: Some(20 * SECOND), ..Defaults::default() };
        assert_eq!(file.grace(None, 6 * SECOND, true).unwrap(), 2 * SECOND);
        assert_eq!(file.grace(None, 6 * SECOND, false).unwrap(), 20 * SECOND);
        assert_eq!(file.grace(Some(9 * SECOND), 6 * SECOND, false).unwrap(), 9 * SECOND);
        let failure = file.grace(Some(3 * SECOND), 6 * SECOND, true).unwrap_err();
        assert_eq!(failure.to_string(), "--grace 3s is more than a third of --ttl 6s: lower --grace or raise --ttl");
    }
}
