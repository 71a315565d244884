//! The server's side of a comparison: sends a call, repeats it if the server needs more resources,
//! and reads the reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Connection, ServerError, Value};
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, ScriptReply, Setting, Variant, Wake};
use rlock_redis::keys::{KINDS_LEN, Keyspace};
use rlock_sys::clock::StoreTime;

use rlock_testkit::servers::{Server, ask};

/// A namespace on a server.
pub(crate) struct Side {
    pub(crate) connection: Connection,
    pub(crate) setting: Setting,
    /// The variant of the scripts that the calls use.
    pub(crate) variant: Variant,
    /// The slot of all keys, if it migrates during each script that the server then runs.
    pub(crate) migrating: Option<Migrating>,
}

/// A slot that never arrives.
pub(crate) struct Migrating {
    pub(crate) slot: String,
    /// The id of the node to which the slot goes.
    pub(crate) to: String,
    /// How many scripts have run meanwhile.
    pub(crate) scripts: Arc<AtomicU64>,
}

impl Side {
    pub(crate) fn new(server: &Server, namespace: &str, wake: Wake) -> Self {
        let setting = Setting { keyspace: Keyspace::new(namespace), wake, now: None };
        Self { connection: server.client(), setting, variant: Variant::default(), migrating: None }
    }

    /// Drops all expired sessions and lets the scripts finish what they have put off, at an
    /// instant. Returns the sessions.
    pub(crate) fn catch_up(&mut self, now: StoreTime, resources: &[Resource]) -> Vec<(SessionId, Session)> {
        let mut dropped = Vec::new();
        loop {
            let reply = self.at(now, Call::expire(resources.to_vec()));
            let ScriptReply::Expired(sessions) = reply else { panic!("expire replies {reply:?}") };
            if sessions.is_empty() {
                return dropped;
            }
            dropped.extend(sessions);
        }
    }

    /// Executes a call at an instant.
    pub(crate) fn at(&mut self, now: StoreTime, call: Call) -> ScriptReply {
        self.setting.now = Some(now);
        self.call(call)
    }

    pub(crate) fn call(&mut self, call: Call) -> ScriptReply {
        self.try_call(call).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Executes a call as the store does. The call names its script by hash, and by text if the
    /// server does not know the hash. The call is repeated if the script needs more resources.
    pub(crate) fn try_call(&mut self, mut call: Call) -> Result<ScriptReply, ServerError> {
        // The names that the test gave the call belong to the operation.
        let named = call.resources().to_vec();
        for _ in 0..100 {
            let Variant { is_general, is_bounded } = self.variant;
            let is_variant = is_general || is_bounded;
            let first =
                if is_variant { call.eval_variant(self.variant, &self.setting) } else { call.evalsha(&self.setting) };
            let migrates = self.begin_migration(call.resources());
            let reply = match self.send(&first) {
                Err(error) if error.code() == "NOSCRIPT" => self.send(&call.eval(&self.setting)),
                reply => reply,
            };
            if migrates {
                self.end_migration();
            }
            let reply = reply?;
            let ScriptReply::Need(more) = reply else { return Ok(reply) };
            let known = call.resources().len();
            call.declare(more.clone());
            call.extend(named.iter().cloned());
            assert!(
                more.is_empty() || call.resources().len() > known,
                "the script needs {more:?}, which the call has named already"
            );
        }
        panic!("the script asks for more without end: {:?}", call.resources());
    }

    /// Lets the slot migrate if all keys of these resources exist, because the server runs no other
    /// script meanwhile.
    fn begin_migration(&mut self, resources: &[Resource]) -> bool {
        let Some(Migrating { slot, to, scripts }) = &self.migrating else { return false };
        let keys: Vec<_> = resources.iter().flat_map(|resource| self.keys(resource)).collect();
        let existing: usize = redis::cmd("EXISTS").arg(&keys).query(&mut self.connection).expect("EXISTS counts");
        let migrates = !keys.is_empty() && existing == keys.len();
        if migrates {
            scripts.fetch_add(1, Ordering::Relaxed);
            ask::<()>(&mut self.connection, &["CLUSTER", "SETSLOT", slot, "MIGRATING", to]);
        }
        migrates
    }

    fn end_migration(&mut self) {
        let Some(Migrating { slot, .. }) = &self.migrating else { return };
        ask::<()>(&mut self.connection, &["CLUSTER", "SETSLOT", slot, "STABLE"]);
    }

    fn send(&mut self, command: &redis::Cmd) -> Result<ScriptReply, ServerError> {
        use redis::ConnectionLike as _;

        let value = self.connection.req_packed_command(&command.get_packed_command());
        match value.unwrap_or_else(|error| panic!("{error}")) {
            Value::ServerError(error) => Err(error),
            value => Ok(ScriptReply::read(&value).unwrap_or_else(|| panic!("no lock script replies {value:?}"))),
        }
    }

    /// The keys of a resource.
    pub(crate) fn keys(&self, resource: &Resource) -> [String; KINDS_LEN] {
        self.setting.keyspace.keys(resource)
    }
}
