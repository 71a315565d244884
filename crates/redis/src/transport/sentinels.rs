//! Asks the Sentinels which server is the master.
//!
//! A Sentinel learns of a failover up to some seconds after another one, and the old master serves
//! its clients until a Sentinel makes it a replica. So all Sentinels are asked at the same time,
//! and the answer with the newest epoch counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use redis::{ServerError, Value};

use super::blocking;
use super::link::{Address, Link, replicas_of};
use super::locate::resolve;
use crate::failure::{ErrorKind, Failure, Right};
use crate::target::{Kind, Target};
use rlock_store::network::lookup::Pool;
use rlock_store::network::{NetworkError, Stage};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// How long the first answer waits for the others if a majority does not answer.
const OTHERS_AFTER: Duration = Duration::from_millis(300);

/// How long the Sentinels may take to hear of a master that they have made: they ask it each
/// second, and then tell each other.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// The pause between two questions for a new master.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The threads that ask a Sentinel each. The threads of the lookups wait for these.
static THREADS: Pool = Pool::new(32);

/// What a Sentinel answers.
struct Master {
    master: Node,
    /// The epoch of its configuration, which rises with each failover; 0 if the Sentinel does not
    /// tell it.
    epoch: u64,
}

/// Connects to the master. If that is the `doubtful` one, the Sentinels first have the time to hear
/// of another.
pub(super) fn connect(target: &Arc<Target>, doubtful: Option<&Node>, deadline: Boottime) -> Result<Address, Failure> {
    let until = deadline.min(Boottime::now() + TOLD_AFTER);
    let mut answer = newest(target, deadline)?;
    while Some(&answer.master) == doubtful && Boottime::now() < until {
        thread::sleep(ASK_AGAIN_AFTER);
        answer = newest(target, deadline)?;
    }
    let Master { master, epoch } = answer;
    let server = target.shown_node(&master);
    let address = resolve(target, &master, deadline).map_err(|kind| kind.of(&server))?;
    let mut link = Link::open(target, address)?;
    let role = blocking::ask(&mut link, &redis::cmd("ROLE"), deadline)?;
    link.replicas = role.as_ref().ok().and_then(replicas_of);
    match is_master(role) {
        Ok(true) => Ok(Address { epoch, ..Address::open(link, &master) }),
        Ok(false) => Err(ErrorKind::NotTheMaster.of(&server)),
        Err(kind) => Err(kind.of(&server)),
    }
}

/// Fails if another server than `node` is the master by now, by a newer configuration than that of
/// `epoch`. Tells whether any Sentinel has answered by `deadline`.
pub(super) fn check(target: &Arc<Target>, node: &Node, epoch: u64, deadline: Boottime) -> Result<bool, Failure> {
    let Ok(newest) = newest(target, deadline) else { return Ok(false) };
    let is_news = newest.epoch == 0 || epoch < newest.epoch;
    if is_news && newest.master != *node { Err(ErrorKind::NotTheMaster.of(&target.shown_node(node))) } else { Ok(true) }
}

/// The answer with the newest epoch, of a majority of the Sentinels or of those that answer soon.
fn newest(target: &Arc<Target>, deadline: Boottime) -> Result<Master, Failure> {
    let (sender, answers) = channel();
    let waits = Arc::new(());
    for node in &target.nodes {
        let (target, node, sender) = (Arc::clone(target), node.clone(), sender.clone());
        let run = move || drop(sender.send(ask(&target, &node, deadline)));
        // A Sentinel for which there is no thread counts as silent.
        let _ = THREADS.run(&waits, run);
    }
    drop(sender);
    let majority = target.nodes.len() / 2 + 1;
    let (mut best, mut heard, mut until): (Option<Master>, _, _) = (None, 0, deadline);
    let mut worst: Option<Failure> = None;
    while heard < majority {
        match answers.recv_timeout(until - Boottime::now()) {
            Ok(Ok(answer)) => {
                heard += 1;
                until = until.min(Boottime::now() + OTHERS_AFTER);
                if best.as_ref().is_none_or(|best| best.epoch < answer.epoch) {
                    best = Some(answer);
                }
            }
            // A lasting failure says more than a passing one.
            Ok(Err(failure)) if worst.as_ref().is_none_or(Failure::is_transient) => worst = Some(failure),
            Ok(Err(_)) => {}
            Err(_) => break,
        }
    }
    best.ok_or_else(|| {
        worst.unwrap_or_else(|| ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)).of(&target.shown()))
    })
}

/// Asks the Sentinel at `node`.
fn ask(target: &Target, node: &Node, deadline: Boottime) -> Result<Master, Failure> {
    let Kind::Sentinel { master: name } = &target.kind else {
        unreachable!("only a URL with Sentinels names a master")
    };
    let sentinel = target.shown_node(node);
    let address = resolve(target, node, deadline).map_err(|kind| kind.of(&sentinel))?;
    let mut link = Link::open_sentinel(target, address)?;
    let mut question = |words: &str| {
        let mut question = redis::cmd("SENTINEL");
        question.arg(words).arg(name);
        blocking::ask(&mut link, &question, deadline)
    };
    // The epoch comes first: one that is newer than the address would hide the next master.
    let epoch = epoch(question("MASTER")?);
    let master = master_node(question("get-master-addr-by-name")?, name).map_err(|kind| kind.of(&sentinel))?;
    Ok(Master { master, epoch })
}

/// The epoch in what a Sentinel knows of the master. A user without the right to ask gets none.
fn epoch(reply: Result<Value, ServerError>) -> u64 {
    let fields: Option<BTreeMap<String, String>> = reply.ok().and_then(|reply| redis::from_redis_value(reply).ok());
    fields.and_then(|fields| fields.get("config-epoch")?.parse().ok()).unwrap_or(0)
}

fn master_node(reply: Result<Value, ServerError>, name: &str) -> Result<Node, ErrorKind> {
    let parts = match reply {
        Ok(Value::Nil) => return Err(ErrorKind::UnknownMaster(name.to_owned())),
        Ok(Value::Array(parts)) => parts,
        Err(error) => {
            return Err(match ErrorKind::from_reply(&error) {
                ErrorKind::TooOld => ErrorKind::NotASentinel,
                ErrorKind::NoPassword => ErrorKind::NoSentinelPassword,
                ErrorKind::UnknownMaster(_) => ErrorKind::UnknownMaster(name.to_owned()),
                kind => kind,
            });
        }
        _ => return Err(ErrorKind::NotASentinel),
    };
    let text = |part: &Value| match part {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let node = match &parts[..] {
        [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
        _ => None,
    };
    node.map(|(host, port)| Node::Tcp { host, port }).ok_or(ErrorKind::NotASentinel)
}

/// A Sentinel that has not noticed a failover names a server that is no master any more.
fn is_master(reply: Result<Value, ServerError>) -> Result<bool, ErrorKind> {
    match reply {
        Ok(Value::Array(parts)) => Ok(parts.first() == Some(&Value::BulkString(b"master".to_vec()))),
        Err(error) => match ErrorKind::from_reply(&error) {
            // Without the right to ask, the first write tells.
            ErrorKind::NoRight(Right::Command(_)) => Ok(true),
            kind => Err(kind),
        },
        _ => Err(ErrorKind::NotRedis),
    }
}
