//! The server's side of a comparison: sends a call, repeats it if the server needs more resources,
//! and reads the reply.

use redis::{Connection, ServerError, Value};
use rlock::lock::records::Session;
use rlock::lock::request::SessionId;
use rlock::lock::resource::Resource;
use rlock::store::redis::codec::{Call, ScriptReply, Setting, Variant, Wake};
use rlock::store::redis::keys::{KINDS_LEN, Keyspace};
use rlock::system::clock::StoreTime;

use crate::support::servers::Server;

/// A namespace on a server.
pub(crate) struct Side {
    pub(crate) connection: Connection,
    pub(crate) setting: Setting,
    /// The variant of the scripts that the calls use.
    pub(crate) variant: Variant,
}

impl Side {
    pub(crate) fn new(server: &Server, namespace: &str, wake: Wake) -> Self {
        let setting = Setting { keyspace: Keyspace::new(namespace), wake, now: None };
        Self { connection: server.client(), setting, variant: Variant::default() }
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
            let reply = match self.send(&first) {
                Err(error) if error.code() == "NOSCRIPT" => self.send(&call.eval(&self.setting)),
                reply => reply,
            }?;
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
