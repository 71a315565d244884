//! Reads what the subcommands share from the environment: the selected store, and the sessions
//! above this process. It also names the variables for the command.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use super::defaults::Defaults;
use super::names::{ANCESTORS, HELD, NAMESPACE, RESOURCE, SESSION, VERBOSE, variable};
use super::variables::{Form, Line};
use super::{ci, config, say};
use crate::stores;
use rlock_arguments::options::StoreOptions;
use rlock_model::records::Session;
use rlock_model::request::{Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_store::{self as store, Changed, Libpq, Secrets, Store, percent};
use rlock_supervise::above::{Above, Link};
use rlock_words::Explained;

const STORE: &str = "RLOCK_STORE";
/// The word for the default store, in the place of a URL.
const EMBEDDED: &str = "embedded";
/// The password for a server. If it is unset, its value is the first line of the file in
/// `PASSWORD_FILE`.
const PASSWORD: &str = "RLOCK_PASSWORD";
const PASSWORD_FILE: &str = "RLOCK_PASSWORD_FILE";
/// The variables of all clients of PostgreSQL.
const PG_PASSWORD: &str = "PGPASSWORD";
const PG_PASSFILE: &str = "PGPASSFILE";

/// Whether to say what is being done: by the option, else by the variable.
pub(crate) fn verbose(option: bool) -> bool {
    option || env::var_os(VERBOSE).is_some_and(|value| !value.is_empty())
}

/// Opens the store that the options, the environment or the defaults name. It warns if the options
/// reveal the store's password to other users.
pub(crate) fn open_store(options: &StoreOptions) -> Result<Box<dyn Store>, Failure> {
    open_named(options).map(|(_, store)| store)
}

/// Opens the same store, and returns what has named it, too.
pub(crate) fn open_named(options: &StoreOptions) -> Result<(Named, Box<dyn Store>), Failure> {
    let named = Named::find(options)?;
    let store = named.open(None)?;
    warn_of_password(options);
    Ok((named, store))
}

/// Opens the same store, without the warning.
pub(crate) fn open_store_quietly(options: &StoreOptions) -> Result<Box<dyn Store>, Failure> {
    Named::find(options)?.open(None)
}

/// What has chosen the store, for people.
pub(crate) fn source(options: &StoreOptions) -> &'static str {
    let is_configured = || config::read().is_ok_and(|config| config.store.is_some());
    match () {
        () if options.store.is_some() => "--store",
        () if env::var_os(STORE).is_some_and(|value| !value.is_empty()) => {
            "RLOCK_STORE, which sudo and the crond of busybox drop, while /etc/rlock.conf holds for all"
        }
        () if is_configured() => "the configuration file",
        () => "default",
    }
}

/// Whether the warnings about the configuration are printed. A run may open several stores.
static WARNED: Once = Once::new();

/// What the user has named: in an option, else in the environment, else in the configuration file.
pub(crate) struct Named {
    /// The URL of the store, or [`EMBEDDED`].
    store: Option<String>,
    /// Whether `store` is on the command line.
    is_option: bool,
    namespace: Option<String>,
    /// Whether the store or the namespace is that of the configuration file.
    is_configured: bool,
    /// The credentials for a server that demands a password.
    secrets: Secrets,
    /// The settings of the configuration file.
    pub(crate) defaults: Defaults,
}

impl Named {
    pub(crate) fn find(options: &StoreOptions) -> Result<Self, Failure> {
        // An empty variable is often a secret that a CI job did not get. The embedded store would
        // then lock on this host only.
        if options.store.is_none() && env::var_os(STORE).is_some_and(|value| value.is_empty()) {
            let remedy = format!("set {STORE} to {EMBEDDED} for the embedded store, or to the URL of a store");
            return Err(Failure::usage(Explained::new(format!("{STORE} is empty"), remedy)));
        }
        if options.namespace.is_none() && env::var_os(NAMESPACE).is_some_and(|value| value.is_empty()) {
            let remedy = format!("unset {NAMESPACE}, or set {NAMESPACE} to the name of a namespace");
            return Err(Failure::usage(Explained::new(format!("{NAMESPACE} is empty"), remedy)));
        }
        let config = config::read()?;
        WARNED.call_once(|| config.warnings.iter().for_each(|warning| say(warning)));
        let store = options.store.clone().map_or_else(|| variable(STORE), |store| Ok(Some(store)))?;
        let namespace = options.namespace.clone().map_or_else(|| variable(NAMESPACE), |name| Ok(Some(name)))?;
        let is_configured =
            store.is_none() && config.store.is_some() || namespace.is_none() && config.namespace.is_some();
        let value = |name| env::var_os(name).filter(|value| !value.is_empty());
        // Other servers must not learn the password of the file's own store.
        let is_own = |url: &str| config.store.as_deref().is_some_and(|own| stores::are_same_servers(own, url));
        let configured = config.password_file.filter(|_| store.as_deref().is_none_or(is_own));
        let secrets = Secrets {
            password: value(PASSWORD),
            password_file: value(PASSWORD_FILE).map(PathBuf::from).or(configured),
            libpq: Libpq {
                password: value(PG_PASSWORD),
                passfile: value(PG_PASSFILE).map(PathBuf::from),
                home: value("HOME").map(PathBuf::from),
            },
        };
        Ok(Self {
            store: store.or(config.store),
            is_option: options.store.is_some(),
            namespace: namespace.or(config.namespace),
            is_configured,
            secrets,
            defaults: config.defaults,
        })
    }

    /// Finds the same, for a request that other machines of a CI may make, too. With `no_default`,
    /// the store must be named. Otherwise a line tells of the default store, unless it is `quiet`.
    pub(crate) fn find_for_request(options: &StoreOptions, no_default: bool, quiet: bool) -> Result<Self, Failure> {
        let named = Self::find(options)?;
        let is_default = named.store.is_none();
        if is_default && no_default {
            return Err(Failure::usage(format!(
                "no store is named: set {STORE} to the URL of a store, or to {EMBEDDED} for locks on this machine only"
            )));
        }
        // A nested rlock leaves the line to the one around it.
        let is_nested = env::var_os(SESSION).is_some_and(|value| !value.is_empty());
        if is_default && !quiet && !is_nested && ci::is_present() {
            say(&format!(
                "note: no store is named, so this excludes only this machine: set {STORE} to a server, or to '{EMBEDDED}' \
                 if that is meant"
            ));
        }
        Ok(named)
    }

    /// Opens the store, or the default one. Connecting may take `connect_timeout`, if it is given.
    pub(crate) fn open(&self, connect_timeout: Option<Duration>) -> Result<Box<dyn Store>, Failure> {
        let connect_timeout = self.defaults.connect_timeout(connect_timeout);
        let url = self.store.as_deref().filter(|store| *store != EMBEDDED);
        let namespace = self.namespace.as_deref().unwrap_or(stores::DEFAULT_NAMESPACE);
        stores::open(url, namespace, &self.secrets, connect_timeout).map_err(|error| match error {
            store::Error::Usage(words) if self.is_configured => config::mistake(words),
            error => error.into(),
        })
    }

    /// The variables that lead an rlock below to the opened store, as far as the user named it. The
    /// defaults are not exported: below su(1), an inner rlock uses the default store of its own
    /// user. The lines of a lock without a command name the namespace always, because they may be
    /// read where another one is the default.
    pub(crate) fn exported(&self, store: &dyn Store, form: Form) -> Vec<Line> {
        let mut variables = Vec::new();
        if self.namespace.is_some() || form != Form::Environment {
            variables.push((NAMESPACE, Some(store.namespace().to_owned())));
        }
        // The URL of `store` lacks the password. A URL with a password in the environment or in the
        // configuration file stays there, as the command may need it.
        let has_password = |url: &str| !self.is_option && stores::has_password(url);
        match self.store.as_deref() {
            Some(EMBEDDED) => variables.push((STORE, Some(EMBEDDED.to_owned()))),
            Some(url) if !has_password(url) => variables.push((STORE, Some(store.url()))),
            _ => {}
        }
        variables
    }
}

/// Warns of a password on the command line.
pub(crate) fn warn_of_password(options: &StoreOptions) {
    if options.store.as_deref().is_some_and(stores::has_password) {
        say(&format!("warning: ps shows everybody the password in --store: set {PASSWORD} or {PASSWORD_FILE} instead"));
    }
}

/// The sessions whose commands this process runs below, innermost first: those that the variables
/// name, but for the sessions whose daemon runs this process.
pub(crate) fn sessions_above(store: &mut dyn Store) -> Result<Vec<SessionId>, Failure> {
    let mut ids = named_above()?;
    if ids.is_empty() {
        return Ok(ids);
    }
    let above = Above::find();
    if above.has(Link::Daemon) {
        let names = held_above()?;
        for id in std::mem::take(&mut ids) {
            let link = store.session(id, &names)?.and_then(|found| above.link(&found.process, found.since));
            ids.extend((link != Some(Link::Daemon)).then_some(id));
        }
    }
    Ok(ids)
}

/// Why a process is below fewer sessions than the variables name, or below none.
pub(crate) fn why_not_below() -> Result<String, Failure> {
    let is_set = variable(SESSION)?.is_some();
    let why = if is_set { "comes from a daemon that the command of a lock has left behind" } else { "is not set" };
    Ok(format!("{SESSION} {why}"))
}

/// The sessions that the variables name, innermost first.
pub(crate) fn named_above() -> Result<Vec<SessionId>, Failure> {
    let Some(session) = variable(SESSION)? else { return Ok(Vec::new()) };
    let ancestors = variable(ANCESTORS)?.unwrap_or_default();
    let ids = std::iter::once(session.as_str()).chain(ancestors.split(',').filter(|id| !id.is_empty()));
    ids.map(|id| {
        let error = format!(
            "{SESSION} or {ANCESTORS} is not a list of session ids: unset both outside of the command of an rlock"
        );
        id.parse().map_err(|_| Failure::usage(error))
    })
    .collect()
}

/// What a session holds of a resource.
pub(crate) struct HoldAbove {
    pub(crate) session: SessionId,
    pub(crate) resource: Resource,
    pub(crate) claims: Vec<Claim>,
}

/// The hold that a `shrink` or `downgrade` in this process changes. With `resource`, it belongs to
/// the innermost session above that holds `resource`. Without it, the hold is the only resource of
/// the innermost session.
pub(crate) fn hold_above(store: &mut dyn Store, resource: Option<&Resource>) -> Result<HoldAbove, Failure> {
    let above = sessions_above(store)?;
    if above.is_empty() {
        let why = why_not_below()?;
        return Err(Failure::usage(format!(
            "not inside a hold: {why}, so run this in the command of 'rlock exec' or 'rlock range-write'"
        )));
    }
    let (looked_at, places) = match resource {
        Some(resource) => (&above[..], vec![resource.clone()]),
        None => (&above[..1], resources_above()?),
    };
    for id in looked_at {
        let Some(session) = store.session(*id, &places)? else { continue };
        let held = held_by(&session);
        let hold = |resource: &Resource| {
            let claims = session.claims.iter().map(|record| &record.claim);
            let claims = claims.filter(|claim| claim.resource == *resource).cloned().collect();
            Ok(HoldAbove { session: *id, resource: resource.clone(), claims })
        };
        match (resource, held.as_slice()) {
            (Some(name), held) if held.contains(name) => return hold(name),
            (Some(_), _) | (None, []) => {}
            (None, [only]) => return hold(only),
            (None, several) => {
                let names: Vec<_> = several.iter().map(|name| format!("'{name}'")).collect();
                return Err(Failure::usage(format!(
                    "the innermost rlock holds several resources: name one with --resource, of {}",
                    names.join(", ")
                )));
            }
        }
    }
    Err(Failure::refused(&match resource {
        Some(name) => format!("no rlock around this command holds '{name}': 'rlock inspect' shows what is held"),
        None => NOTHING_HELD.to_owned(),
    }))
}

/// The resources of the innermost session above, as far as the environment names them correctly.
pub(crate) fn resources_above() -> Result<Vec<Resource>, Failure> {
    let lines = variable(RESOURCE)?.unwrap_or_default();
    Ok(lines.lines().filter_map(|name| Resource::new(name).ok()).collect())
}

/// Maximum number of resources above that a request names. The environment has room for no more
/// than some thousands.
const HELD_MAX: usize = 1_000;

/// The resources that the sessions above hold, as far as the environment names them.
pub(crate) fn held_above() -> Result<Vec<Resource>, Failure> {
    if variable(SESSION)?.is_none() {
        return Ok(Vec::new());
    }
    let outer = variable(HELD)?.unwrap_or_default();
    let outer = outer.split(',').filter_map(|name| String::from_utf8(percent::decode(name)?).ok());
    let outer = outer.filter_map(|name| Resource::new(&name).ok());
    let mut seen = BTreeSet::new();
    let names = resources_above()?.into_iter().chain(outer).filter(|name| seen.insert(name.clone()));
    Ok(names.take(HELD_MAX).collect())
}

/// The exit code of a change to a hold. If it is `verbose`, `report` describes the change.
pub(crate) fn changed(changed: Changed, verbose: bool, report: impl FnOnce() -> String) -> anyhow::Result<u8> {
    match changed {
        Changed::Done => {
            if verbose {
                say(&report());
            }
            Ok(0)
        }
        Changed::Refused(refusal) => Err(Failure::refused(&refusal).into()),
        Changed::Lost => Err(Failure::refused(&NOTHING_HELD).into()),
    }
}

const NOTHING_HELD: &str =
    "the innermost rlock holds nothing any more: change a hold while the command of its rlock runs";

/// The resources that a session holds, each once; none if the session waits.
pub(crate) fn held_by(session: &Session) -> Vec<Resource> {
    if session.is_holder() { session.resources().into_iter().cloned().collect() } else { Vec::new() }
}
