//! Lists the holders and waiters of a whole server, or of all masters of a Cluster.
//!
//! SCAN finds the keys in steps. No step takes the server long, however many foreign keys it has.

use std::collections::BTreeMap;

use redis::{Cmd, Value};

use super::client::Client;
use super::failure::{ErrorKind, Failure};
use super::findings::{Findings, remembered};
use super::nodes::primaries;
use rlock_model::past::Remembered;
use rlock_model::resource::Resource;
use rlock_store::node::Node;
use rlock_store::operations::Unusable;

/// How many keys the server looks at in a step: a fraction of a millisecond.
const SCAN_COUNT: u32 = 1_000;

/// How many resources one call lists, so that the server soon serves other clients. A busy resource
/// costs the server about 50 µs.
const LISTED_AT_ONCE: usize = 200;

/// After how many claims a reply ends. A session with one claim costs the server about 35 µs.
pub(super) const CLAIMS_AT_ONCE: u32 = 200;

/// After how many names, jobs and entries a reply about the past ends. Each costs the server up to
/// 30 µs.
const REMEMBERED_AT_ONCE: u32 = 400;

/// What to do with the resources that a scan finds.
type Look<'a> = dyn FnMut(&mut Client, &[Resource], &mut Vec<Unusable>) -> Result<(), Failure> + 'a;

/// Lists these resources in their order, or all if none is named, and notes those that can't be
/// used.
pub(super) fn survey(
    mut client: Client,
    resources: &[Resource],
    unusable: &mut Vec<Unusable>,
) -> Result<Findings, Failure> {
    let mut findings = Findings::default();
    if resources.is_empty() {
        scan_all(&mut client, unusable, &mut |client, names, unusable| look(client, names, &mut findings, unusable))?;
    } else {
        look(&mut client, resources, &mut findings, unusable)?;
    }
    Ok(findings)
}

/// Lists what these resources remember, or all if none is named, with at most `limit` entries of
/// the history of each. Notes the resources that can't be used.
pub(super) fn survey_past(
    mut client: Client,
    resources: &[Resource],
    limit: u32,
    unusable: &mut Vec<Unusable>,
) -> Result<Vec<Remembered>, Failure> {
    let mut found = Vec::new();
    if resources.is_empty() {
        scan_all(&mut client, unusable, &mut |client, names, unusable| {
            recall(client, names, limit, &mut found, unusable)
        })?;
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
    } else {
        recall(&mut client, resources, limit, &mut found, unusable)?;
    }
    Ok(found)
}

/// A resource whose keys have foreign values.
pub(super) fn unusable_resource(resource: &Resource, failure: &Failure) -> Unusable {
    let words = failure.words().behind(format_args!("'{resource}' cannot be used: "));
    Unusable { resource: Some(resource.clone()), words }
}

/// Lists what these resources remember.
fn recall(
    client: &mut Client,
    resources: &[Resource],
    limit: u32,
    found: &mut Vec<Remembered>,
    unusable: &mut Vec<Unusable>,
) -> Result<(), Failure> {
    for resources in resources.chunks(listed_at_once(client)) {
        let listed = remembered(resources, limit, REMEMBERED_AT_ONCE, |call| client.call(call));
        match listed.and_then(|listed| listed.ok_or_else(|| client.failure(ErrorKind::UnexpectedReply))) {
            Ok(listed) => found.extend(listed),
            Err(failure) if !failure.concerns_one_resource() => return Err(failure),
            Err(failure) if resources.len() == 1 => unusable.push(unusable_resource(&resources[0], &failure)),
            Err(_) => {
                let (some, others) = resources.split_at(resources.len() / 2);
                recall(client, some, limit, found, unusable)?;
                recall(client, others, limit, found, unusable)?;
            }
        }
    }
    Ok(())
}

/// Lists these resources.
fn look(
    client: &mut Client,
    resources: &[Resource],
    findings: &mut Findings,
    unusable: &mut Vec<Unusable>,
) -> Result<(), Failure> {
    for resources in resources.chunks(listed_at_once(client)) {
        let listed = match findings.list(resources, CLAIMS_AT_ONCE, |call| client.call(call)) {
            Ok(false) => Err(client.failure(ErrorKind::UnexpectedReply)),
            listed => listed,
        };
        match listed {
            Ok(_) => {}
            Err(failure) if !failure.concerns_one_resource() => return Err(failure),
            Err(failure) if resources.len() == 1 => unusable.push(unusable_resource(&resources[0], &failure)),
            // One of the resources is unusable, and the reply does not name it.
            Err(_) => {
                let (some, others) = resources.split_at(resources.len() / 2);
                look(client, some, findings, unusable)?;
                look(client, others, findings, unusable)?;
            }
        }
    }
    Ok(())
}

/// In a Cluster, a script gets the keys of one slot, so resources are listed one by one.
fn listed_at_once(client: &Client) -> usize {
    if client.is_cluster() { 1 } else { LISTED_AT_ONCE }
}

/// Calls `look` with the names of all resources, some at a time. A name may come twice.
fn scan_all(client: &mut Client, unusable: &mut Vec<Unusable>, look: &mut Look<'_>) -> Result<(), Failure> {
    if !client.is_cluster() {
        return scan(client, unusable, look);
    }
    for (primary, slots) in primaries_of(client)? {
        // The other nodes are listed even if one can't be used.
        if let Err(failure) = scan(&mut client.at(primary), unusable, look) {
            let words = failure.words().behind(format_args!("what is in the slots {slots} is missing: "));
            unusable.push(Unusable { resource: None, words });
        }
    }
    Ok(())
}

fn scan(client: &mut Client, unusable: &mut Vec<Unusable>, look: &mut Look<'_>) -> Result<(), Failure> {
    let keyspace = client.setting().keyspace.clone();
    // In a Cluster a redirect may lead a client away, while the scan has to go on here.
    let mut redirected = client.is_cluster().then(|| client.another());
    let mut cursor = 0_u64;
    let mut is_first = true;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(keyspace.pattern()).arg("COUNT").arg(SCAN_COUNT);
        let value = if std::mem::take(&mut is_first) && client.is_single() {
            first_of_single(client, scan)?
        } else {
            client.command(scan)?
        };
        let (next, keys): (u64, Vec<Vec<u8>>) = read(client, value)?;
        let names: Vec<_> = keys.iter().filter_map(|key| keyspace.resource(key)).collect();
        look(redirected.as_mut().unwrap_or(client), &names, unusable)?;
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// Sends the first command to what should be a single server.
///
/// A node of a Cluster would answer for itself alone, as if nothing were held elsewhere. A server
/// that does not tell its mode counts as single.
fn first_of_single(client: &mut Client, command: Cmd) -> Result<Value, Failure> {
    let (about, value) = client.command_after(Some(redis::cmd("HELLO")), command)?;
    let about = about.and_then(|about| redis::from_redis_value::<BTreeMap<String, Value>>(about).ok());
    let mode = about.and_then(|mut about| redis::from_redis_value::<String>(about.remove("mode")?).ok());
    if mode.is_some_and(|mode| mode == "cluster") { Err(client.failure(ErrorKind::IsACluster)) } else { Ok(value) }
}

/// The primaries of a Cluster that have slots, each with its slots in words.
pub(super) fn primaries_of(client: &mut Client) -> Result<Vec<(Node, String)>, Failure> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let reply = client.command(slots)?;
    Ok(primaries(&reply, client.node()))
}

fn read<T: redis::FromRedisValue>(client: &Client, value: Value) -> Result<T, Failure> {
    redis::from_redis_value(value).map_err(|_| client.failure(ErrorKind::NotRedis))
}
