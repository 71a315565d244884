//! The names of the variables that rlock reads and sets.

use std::env;

use rlock_show::failure::Failure;
use rlock_words::Explained;

pub(crate) const NAMESPACE: &str = "RLOCK_NAMESPACE";
pub(crate) const SESSION: &str = "RLOCK_SESSION";
/// The sessions above [`SESSION`], innermost first, separated by commas.
pub(crate) const ANCESTORS: &str = "RLOCK_ANCESTORS";
/// The resources that the sessions in [`ANCESTORS`] hold, each percent-encoded, separated by
/// commas.
pub(crate) const HELD: &str = "RLOCK_HELD";
pub(crate) const TOKEN: &str = "RLOCK_TOKEN";
pub(crate) const RESOURCE: &str = "RLOCK_RESOURCE";
pub(crate) const MODE: &str = "RLOCK_MODE";
/// The default of --owner.
pub(crate) const OWNER: &str = "RLOCK_OWNER";
/// The default of --reason.
pub(crate) const REASON: &str = "RLOCK_REASON";
/// The default of --wait.
pub(crate) const WAIT: &str = "RLOCK_WAIT";
/// The default of --ttl.
pub(crate) const TTL: &str = "RLOCK_TTL";
/// The numbers of the slots.
pub(crate) const SLOT: &str = "RLOCK_SLOT";
/// The default of --verbose. Set below an rlock with --verbose.
pub(crate) const VERBOSE: &str = "RLOCK_VERBOSE";
/// How the last hold of the resource ended.
pub(crate) const LAST: &str = "RLOCK_LAST";

/// The value of a variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.into_string()) {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(_)) => {
            let remedy = format!("unset {name}, or set {name} to UTF-8 text");
            Err(Failure::usage(Explained::new(format!("{name} is not UTF-8 text"), remedy)))
        }
    }
}
