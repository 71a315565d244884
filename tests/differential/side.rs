//! The server's side: calls are sent, asked again where they need more, and their answers read.

use redis::{Connection, ServerError, Value};
use rlock::clock::StoreTime;
use rlock::lock::resource::Resource;
use rlock::store::redis::codec::{Call, ScriptReply, Setting, Wake};
use rlock::store::redis::keys::Keyspace;

use crate::support::servers::Server;

/// A namespace on a server.
pub(crate) struct Side {
    pub(crate) connection: Connection,
    pub(crate) setting: Setting,
}

impl Side {
    pub(crate) fn new(server: &Server, namespace: &str, wake: Wake) -> Self {
        let setting = Setting { keyspace: Keyspace::new(namespace), wake, now: None };
        Self { connection: server.client(), setting }
    }

    /// Carries out a call at an instant.
    pub(crate) fn at(&mut self, now: StoreTime, call: Call) -> ScriptReply {
        self.setting.now = Some(now);
        self.call(call)
    }

    pub(crate) fn call(&mut self, call: Call) -> ScriptReply {
        self.try_call(call).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Carries out a call as the store does: by name, by its text where the server doesn't know it,
    /// and again where it needs more.
    pub(crate) fn try_call(&mut self, mut call: Call) -> Result<ScriptReply, ServerError> {
        for _ in 0..100 {
            let reply = match self.sent(&call.evalsha(&self.setting)) {
                Err(error) if error.code() == "NOSCRIPT" => self.sent(&call.eval(&self.setting)),
                reply => reply,
            }?;
            let ScriptReply::Need(more) = reply else { return Ok(reply) };
            let known = call.resources().len();
            call.extend(more.iter().cloned());
            assert!(more.is_empty() || call.resources().len() > known, "it needs {more:?}, which it was given");
        }
        panic!("it is asked again and again: {call:?}");
    }

    fn sent(&mut self, command: &redis::Cmd) -> Result<ScriptReply, ServerError> {
        use redis::ConnectionLike as _;

        let value = self.connection.req_packed_command(&command.get_packed_command());
        match value.unwrap_or_else(|error| panic!("{error}")) {
            Value::ServerError(error) => Err(error),
            value => Ok(ScriptReply::read(&value).unwrap_or_else(|| panic!("no lock script replies {value:?}"))),
        }
    }

    /// The keys of a resource.
    pub(crate) fn keys(&self, resource: &Resource) -> [String; 5] {
        self.setting.keyspace.keys(resource)
    }
}
