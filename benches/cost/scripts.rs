//! The scripts of rlock, called without the rlock program.

use std::time::Duration;

use redis::{Connection, Value};

use rlock_model::mode::Mode;
use rlock_model::past::{End, Ending};
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Call, ScriptReply, Setting, Wake};
use rlock_redis::keys::Keyspace;

use super::peers::Pair;

/// A lease that outlives the bench.
const HOUR: Duration = Duration::from_secs(3600);
/// The number of intervals that one session takes when many have to be held.
const AT_ONCE: u64 = 500;

/// A client of the scripts, with one resource.
pub(crate) struct Client {
    resource: Resource,
    setting: Setting,
    session: u128,
}

impl Client {
    /// Makes a client for the resource of this name. Each client has another `number`.
    pub(crate) fn new(name: &str, number: u128) -> Self {
        let resource = Resource::new(name).expect("the name is valid");
        Self { resource, setting: setting(), session: number << 64 }
    }

    /// Holds this number of disjoint intervals for writing. The n-th is from 2n to 2n + 1.
    pub(crate) fn fill(&mut self, client: &mut Connection, held: u64) {
        for first in (0..held).step_by(AT_ONCE as usize) {
            let spans = (first..(first + AT_ONCE).min(held)).map(|number| interval(number as f64 * 2.0, 1.0));
            self.acquire(client, Mode::Write, spans);
        }
    }

    /// Acquires a claim and releases it.
    pub(crate) fn pair(&mut self, client: &mut Connection, mode: Mode, span: Span) {
        let session = self.acquire(client, mode, [span]);
        let release = Call::release(session, vec![self.resource.clone()]);
        assert!(matches!(self.ask(client, &release), ScriptReply::Released(_)), "the lock was lost");
    }

    /// The commands whose time counts as the cost.
    pub(crate) const COMMANDS: [&str; 2] = ["evalsha", "eval"];

    /// The session of a new request for the whole resource, and the call that makes it as a waiter
    /// does that listens on its channel.
    pub(crate) fn ask_for_all(&mut self) -> (SessionId, Call) {
        let request = self.request(Mode::Write, [Span::Whole]);
        (request.session, Call::acquire(&request, 0, true))
    }

    /// Renews a hold, or claims a grant.
    pub(crate) fn renew(&self, session: SessionId) -> Call {
        Call::renew(session, vec![self.resource.clone()], true)
    }

    /// Releases a hold whose command has ended well.
    pub(crate) fn end(&self, session: SessionId) -> Call {
        let end = End { ending: Ending::Exit(0), is_success: true };
        Call::release_after(session, vec![self.resource.clone()], Some(end), &Job::default())
    }

    /// The channel on which a session learns of its grant.
    pub(crate) fn channel(&self, session: SessionId) -> String {
        self.setting.keyspace.channel(&self.resource, session)
    }

    fn acquire(&mut self, client: &mut Connection, mode: Mode, spans: impl IntoIterator<Item = Span>) -> SessionId {
        let request = self.request(mode, spans);
        let reply = self.ask(client, &Call::acquire(&request, 0, false));
        assert!(matches!(reply, ScriptReply::Granted { .. }), "another client has the lock");
        request.session
    }

    /// Makes a request of a new session.
    fn request(&mut self, mode: Mode, spans: impl IntoIterator<Item = Span>) -> Request {
        self.session += 1;
        // The ids are scattered like random ids.
        let session = SessionId(self.session.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes());
        let claim = |span| Claim { resource: self.resource.clone(), mode, span, slots: None };
        Request {
            session,
            ancestors: Vec::new(),
            claims: spans.into_iter().map(claim).collect(),
            wait: true,
            terms: Some(Terms { ttl: HOUR, claim: HOUR, heartbeat: HOUR }),
            job: Job::default(),
            process: Process {
                host: "host".into(),
                pid: 4711,
                user: "user".into(),
                command: vec!["true".into()],
                ..Process::default()
            },
        }
    }

    /// Calls a script that the server may not know yet.
    pub(crate) fn ask(&self, client: &mut Connection, call: &Call) -> ScriptReply {
        let answer = call.evalsha(&self.setting).query::<Value>(client);
        let answer = answer.or_else(|_| call.eval(&self.setting).query(client));
        ScriptReply::read(&answer.expect("the server takes the script")).expect("the reply is valid")
    }
}

/// Sends calls of scripts that the server knows in one go, and returns the replies.
pub(crate) fn ask_together(client: &mut Connection, calls: &[Call]) -> Vec<ScriptReply> {
    let setting = setting();
    let mut pipe = redis::pipe();
    for call in calls {
        pipe.add_command(call.evalsha(&setting));
    }
    let answers: Vec<Value> = pipe.query(client).expect("the server knows the scripts");
    answers.iter().map(|answer| ScriptReply::read(answer).expect("the reply is valid")).collect()
}

fn setting() -> Setting {
    Setting { keyspace: Keyspace::new("bench"), wake: Wake::Publish, now: None }
}

/// Returns a closed interval from `low` with this length.
pub(crate) fn interval(low: f64, length: f64) -> Span {
    Span::parse(&format!("[{low},{}]", low + length)).expect("the interval is valid")
}

/// Returns a pair that acquires and releases the whole of a resource.
pub(crate) fn whole(name: &str, number: u128, mode: Mode) -> Pair {
    let mut own = Client::new(name, number);
    Box::new(move |client| own.pair(client, mode, Span::Whole))
}
