//! Who holds and who waits on a whole server, or on all the masters of a Cluster.
//!
//! The keys are found by SCAN, a step at a time: no step takes the server long, however many
//! foreign keys it has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value, from_redis_value_ref};

use super::client::Client;
use super::codec::{Call, Reply, Setting};
use super::failure::{ErrorKind, Failure};
use super::target::{Kind, Node, Target};
use super::transport::link::LISTING_MAX;
use super::transport::now;
use super::transport::route::Route;
use crate::lock::op::ResourceListing;
use crate::lock::records::Session;
use crate::lock::request::{Micros, SessionId};
use crate::lock::resource::Resource;

/// How many keys the server looks at in a step: a fraction of a millisecond.
const SCAN_COUNT: u32 = 1_000;

/// What was seen.
#[derive(Default)]
pub(super) struct Seen {
    /// The latest instant on the clock of a server.
    pub(super) now: Micros,
    pub(super) resources: Vec<ResourceListing>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// The resources whose keys have foreign values, a line for each.
    pub(super) unusable: Vec<String>,
}

/// Looks at what is held of the resources of a store.
pub(super) struct Survey<'t> {
    target: &'t Arc<Target>,
    setting: Setting,
    /// How long one answer may take.
    limit: Duration,
}

impl<'t> Survey<'t> {
    pub(super) fn new(target: &'t Arc<Target>, setting: Setting, limit: Duration) -> Self {
        Self { target, setting, limit }
    }

    fn is_cluster(&self) -> bool {
        self.target.kind == Kind::Cluster
    }

    fn route(&self, target: Arc<Target>) -> Route {
        Route::new(target, self.limit).with_reply_max(LISTING_MAX)
    }

    /// What is to be seen of these resources, in their order.
    pub(super) fn of(&self, resources: &[Resource]) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        let mut route = self.route(Arc::clone(self.target));
        if !self.is_cluster() {
            self.look(&mut route, resources, &mut seen)?;
            return Ok(seen);
        }
        for resource in resources {
            self.look(&mut route, std::slice::from_ref(resource), &mut seen)?;
        }
        Ok(seen)
    }

    /// All that is held or waited for, by name.
    pub(super) fn of_all(&self) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        let mut route = self.route(Arc::clone(self.target));
        if self.is_cluster() {
            for master in self.masters(&mut route)? {
                let mut alone = Target::clone(self.target);
                alone.nodes = vec![master];
                let mut route = self.route(Arc::new(alone));
                self.scan(&mut route, &mut seen)?;
            }
        } else {
            self.scan(&mut route, &mut seen)?;
        }
        seen.resources.retain(|listing| !listing.holders.is_empty() || !listing.waiters.is_empty());
        seen.resources.sort_by(|a, b| a.name.cmp(&b.name));
        // A scan may come across a key twice while the server rearranges its table.
        seen.resources.dedup_by(|a, b| a.name == b.name);
        Ok(seen)
    }

    fn look(&self, route: &mut Route, resources: &[Resource], seen: &mut Seen) -> Result<(), Failure> {
        let mut call = Call::inspect(resources.to_vec(), 0);
        match Client::new(route, self.until()).call(&mut call, &self.setting, 0) {
            Ok(Reply::Listing { now, resources, sessions }) => {
                seen.now = seen.now.max(now);
                seen.resources.extend(resources.into_iter().map(|resource| resource.listing));
                seen.sessions.extend(sessions);
            }
            Ok(_) => {}
            Err(failure) if !failure.concerns_one_resource() => return Err(failure),
            Err(failure) if resources.len() == 1 => {
                seen.unusable.push(unusable(&self.setting, &resources[0], failure));
            }
            // One of them is unusable, and the reply does not tell which.
            Err(_) => {
                let (some, others) = resources.split_at(resources.len() / 2);
                self.look(route, some, seen)?;
                self.look(route, others, seen)?;
            }
        }
        Ok(())
    }

    fn scan(&self, route: &mut Route, seen: &mut Seen) -> Result<(), Failure> {
        let pattern = self.setting.keyspace.pattern();
        // What lies elsewhere by now leads there, and the scan has to go on here.
        let mut leading_away = route.another().with_reply_max(LISTING_MAX);
        let mut cursor = 0_u64;
        let mut is_known = self.target.kind != Kind::Single;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
            let value = match std::mem::replace(&mut is_known, true) {
                true => Client::new(route, self.until()).command(scan)?,
                false => self.first_of_single(route, scan)?,
            };
            let (next, keys): (u64, Vec<Vec<u8>>) = read(route, value)?;
            let names: Vec<_> = keys.iter().filter_map(|key| self.setting.keyspace.resource(key)).collect();
            if self.is_cluster() {
                names.iter().try_for_each(|name| self.look(&mut leading_away, std::slice::from_ref(name), seen))?;
            } else if !names.is_empty() {
                self.look(route, &names, seen)?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Sends the first command to what should be a single server. A node of a Cluster would answer
    /// for itself alone, as if nothing were held elsewhere; one that doesn't say what it is is
    /// believed to be single.
    fn first_of_single(&self, route: &mut Route, command: Cmd) -> Result<Value, Failure> {
        let (about, value) = Client::new(route, self.until()).command_after(redis::cmd("HELLO"), command)?;
        let about = about.and_then(|about| redis::from_redis_value::<BTreeMap<String, Value>>(about).ok());
        let mode = about.and_then(|mut about| redis::from_redis_value::<String>(about.remove("mode")?).ok());
        if mode.is_some_and(|mode| mode == "cluster") { Err(route.failure(ErrorKind::IsACluster)) } else { Ok(value) }
    }

    /// The nodes of a Cluster that have slots.
    fn masters(&self, route: &mut Route) -> Result<Vec<Node>, Failure> {
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let ranges: Vec<Vec<Value>> = self.ask(route, slots)?;
        let mut masters = Vec::new();
        for range in &ranges {
            // The first slot, the last slot, the master and its replicas, each as its address, its
            // port and more.
            let Some(Value::Array(master)) = range.get(2) else { continue };
            let [host, port, ..] = master.as_slice() else { continue };
            let address = (from_redis_value_ref::<Option<String>>(host), from_redis_value_ref::<u16>(port));
            let (Ok(host), Ok(port)) = address else { continue };
            let Some(node) = route.node().sibling(host.as_deref().unwrap_or_default(), port) else { continue };
            if !masters.contains(&node) {
                masters.push(node);
            }
        }
        Ok(masters)
    }

    fn ask<T: redis::FromRedisValue>(&self, route: &mut Route, command: Cmd) -> Result<T, Failure> {
        let value = Client::new(route, self.until()).command(command)?;
        read(route, value)
    }

    fn until(&self) -> Duration {
        now().saturating_add(self.limit)
    }
}

/// The line about a resource that can't be used because of what its keys have.
pub(super) fn unusable(setting: &Setting, resource: &Resource, failure: Failure) -> String {
    let failure = failure.naming(|| setting.keyspace.shown(std::slice::from_ref(resource)));
    format!("'{resource}' cannot be used: {failure}")
}

fn read<T: redis::FromRedisValue>(route: &Route, value: Value) -> Result<T, Failure> {
    redis::from_redis_value(value).map_err(|_| route.failure(ErrorKind::NotRedis))
}
