//! Translates between the lock model and the scripts: a [`Call`] goes out, a
//! [`ScriptReply`] comes back.
//!
//! Nothing is sent here. A client sends [`Call::evalsha`] first, and [`Call::eval`] if the server
//! does not know the script. After [`ScriptReply::Need`] it prepares the call by
//! [`Call::declare`] and sends it again.

mod pack;
mod reply;

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Cmd, RedisWrite as _, ToRedisArgs as _};

use self::pack::{Fixed, TIME_MAX, optional_micros};
use super::keys::{KINDS, Keyspace};
pub use super::scripts::Variant;
use super::scripts::{self, Script};
use rlock_model::mode::Mode;
use rlock_model::op::Change;
use rlock_model::past::{End, Ending};
use rlock_model::request::{self, Job, Owner, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_sys::clock::{StoreTime, micros};

pub use reply::ScriptReply;

/// The number of resources that a call may grow to. A server that asks for more would never stop.
pub(crate) const NEEDED_MAX: usize = 100_000;

/// The largest reply in bytes for each resource of a call. A grant of 5,000 claims has 110 KB in
/// all, and a busy reply about 80 KB for each resource.
pub(super) const REPLY_MAX: usize = 1 << 20;

/// The largest listing of all sessions in bytes: 100,000 sessions with the longest commands fit.
pub(super) const LISTING_MAX: usize = 256 << 20;

/// The length of a usual word of a command, in bytes.
const WORD: usize = 32;

/// How a script wakes the sessions that it grants something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// With PUBLISH.
    Publish,
    /// With SPUBLISH, as in a Cluster.
    ShardPublish,
    /// Not at all, and every waiter counts as reachable.
    Nobody,
}

/// The context of a call.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The keys of the namespace.
    pub keyspace: Keyspace,
    /// How waiters are woken.
    pub wake: Wake,
    /// The time; `None` for the clock of the server.
    pub now: Option<StoreTime>,
}

/// A call of a script, which may be sent several times.
#[derive(Clone, Debug)]
pub struct Call {
    script: &'static Script,
    form: Form,
    resources: Vec<Resource>,
    /// How many of the resources belong to the operation; the others were asked for.
    own: usize,
    arguments: Vec<Argument>,
}

/// Which keys and arguments a script takes before its own.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// All keys of all resources; the time, and how to wake waiters. The resources come last.
    Operation,
    /// One key of one resource; the time.
    Alone(Lease),
}

/// The key that has the lease of a holder on one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// `s`, for a sole holder.
    Sole,
    /// `e`, beside other sessions.
    Shared,
}

impl Lease {
    /// Both keys.
    pub const ALL: [Self; 2] = [Self::Sole, Self::Shared];

    fn kind(self) -> &'static str {
        match self {
            Self::Sole => "s",
            Self::Shared => "e",
        }
    }

    /// The place of the key among the keys of a resource.
    fn place(self) -> usize {
        match self {
            Self::Sole => 0,
            Self::Shared => 2,
        }
    }
}

/// An argument of a script.
#[derive(Clone, Debug)]
enum Argument {
    Word(&'static str),
    Text(String),
    Number(u64),
    Session(SessionId),
    /// The two cuts of a span and its text, which is empty for the whole.
    Span(Span),
    /// The packed claims of a request, and the part of its records that never changes. That
    /// contains the channel of the session, which depends on the keyspace.
    Request(Vec<u8>, Box<Fixed>),
    /// The place where a list goes on.
    Bytes(Vec<u8>),
}

impl Argument {
    fn flag(set: bool) -> Self {
        Self::Number(set.into())
    }

    /// A length of time in microseconds.
    fn length(of: Duration) -> Self {
        Self::Number(micros(of).min(TIME_MAX))
    }

    /// A length of time in microseconds, or 0 for none.
    fn optional_length(of: Option<Duration>) -> Self {
        Self::Number(optional_micros(of))
    }

    fn letter(mode: Mode) -> Self {
        Self::Word(&mode.as_str()[..1])
    }
}

impl Call {
    /// Grants or queues a request. `place` is the place of a request that returns after it was
    /// passed over, else 0. `subscribed` says that the session is subscribed to its channel.
    pub fn acquire(request: &Request, place: u64, subscribed: bool) -> Self {
        Self::acquire_after(Duration::ZERO, request, place, subscribed)
    }

    /// Like [`acquire`](Self::acquire), for a request that was made so long ago.
    pub fn acquire_after(waited: Duration, request: &Request, place: u64, subscribed: bool) -> Self {
        let resources: Vec<Resource> = request::resources(&request.claims).into_iter().cloned().collect();
        let ancestors: String = request.ancestors.iter().map(SessionId::to_string).collect();
        let job = &request.job;
        let is_plain = job.once_per.is_none() && job.keep_for.is_none() && !job.supersedes;
        let alone = match request.claims.as_slice() {
            _ if !ancestors.is_empty() || !is_plain || !waited.is_zero() => "0",
            [claim] if claim.mode == Mode::Slot => "s",
            [_] => "1",
            claims if claims.len() == resources.len() => "m",
            _ => "0",
        };
        let terms = request.terms.unwrap_or_default();
        let (session, process) = (request.session, process(&request.process));
        let fixed = Fixed { terms, session, ancestors, process, job: request.job.clone() };
        let max_waiting = job.max_waiting.map(|max| max.to_string()).unwrap_or_default();
        let (wait, waited, listening) = (u8::from(request.wait), micros(waited), u8::from(subscribed));
        let supersedes = u8::from(job.supersedes);
        // A server takes longer for each argument, so the rarely used ones are one text.
        let arguments = vec![
            Argument::Session(request.session),
            Argument::length(terms.ttl),
            Argument::Word(alone),
            Argument::Text(format!("{wait} {place} {waited} {listening} {supersedes} {max_waiting}")),
            Argument::Request(pack::claims(&request.claims, &resources), Box::new(fixed)),
        ];
        Self { script: &scripts::ACQUIRE, form: Form::Operation, own: resources.len(), resources, arguments }
    }

    /// Shows that a session is alive. `resources` are those of its request.
    pub fn renew(session: SessionId, resources: Vec<Resource>, subscribed: bool) -> Self {
        Self::new(&scripts::RENEW, resources, vec![Argument::Session(session), Argument::flag(subscribed)])
    }

    /// Renews the lease in one key of one resource, while its slot migrates.
    pub fn renew_alone(session: SessionId, resource: Resource, ttl: Duration, lease: Lease) -> Self {
        let arguments = vec![Argument::Session(session), Argument::length(ttl), Argument::Word(lease.kind())];
        Self { form: Form::Alone(lease), ..Self::new(&scripts::RENEW_ALONE, vec![resource], arguments) }
    }

    /// Releases a grant or a place in the queue. `resources` are those of the request.
    pub fn release(session: SessionId, resources: Vec<Resource>) -> Self {
        Self::release_after(session, resources, None, &Job::default())
    }

    /// Releases a grant of a job after its command has ended.
    pub fn release_after(session: SessionId, resources: Vec<Resource>, end: Option<End>, job: &Job) -> Self {
        let is_lost = end.is_some_and(|end| end.ending == Ending::Lost);
        let is_success = end.is_some_and(|end| end.is_success);
        let is_remembered = job.once_per.is_some() || job.is_named && is_success || job.remember.is_some();
        let arguments = vec![
            Argument::Session(session),
            Argument::Text(end.map(|end| end.ending.to_string()).unwrap_or_default()),
            Argument::flag(is_success),
            Argument::Number(job.history.into()),
            Argument::flag(job.hold_at_least.is_none() && !is_remembered && !is_lost),
        ];
        Self::new(&scripts::RELEASE, resources, arguments)
    }

    /// Leaves the queue because the wait took too long, unless the request is granted.
    pub fn give_up(session: SessionId, resources: Vec<Resource>) -> Self {
        Self::new(&scripts::GIVE_UP, resources, vec![Argument::Session(session)])
    }

    /// Changes what a session holds. The resource of which it gives up a part comes first, and then
    /// others on which the session may have claims.
    pub fn change(session: SessionId, resources: &[Resource], change: &Change) -> Self {
        let (script, argument) = match change {
            Change::Shrink { span, .. } => (&scripts::SHRINK, Argument::Span(span.clone())),
            Change::Downgrade { mode, .. } => (&scripts::DOWNGRADE, Argument::letter(*mode)),
            Change::Extend { by } => (&scripts::EXTEND, Argument::optional_length(*by)),
        };
        let names = change.frees().into_iter().chain(resources).cloned().collect();
        Self::new(script, names, vec![Argument::Session(session), argument])
    }

    /// Removes what a resource remembers, unless a session uses the resource.
    pub fn forget(resource: Resource) -> Self {
        Self::new(&scripts::FORGET, vec![resource], Vec::new())
    }

    /// Removes the sessions whose leases have ended.
    pub fn expire(resources: Vec<Resource>) -> Self {
        Self::new(&scripts::EXPIRE, resources, vec![Argument::Word(""); 2])
    }

    /// Revokes the grants on a resource, a limited number in one call. `from` is where an earlier
    /// reply says that the call goes on, or empty. With `by`, the process that revokes them, a
    /// session whose command may run holds until it gives its grant back.
    ///
    /// With `only`, the call revokes no grant but that of this session.
    pub fn break_grants(resource: Resource, only: Option<SessionId>, from: Vec<u8>, by: Option<&Process>) -> Self {
        let only = only.map_or(Argument::Word(""), Argument::Session);
        let by = Argument::Text(by.map(process).unwrap_or_default());
        Self::new(&scripts::BREAK, vec![resource], vec![Argument::Word(""), only, Argument::Bytes(from), by])
    }

    /// Reports the sessions that [`break_grants`](Self::break_grants) would break, and changes
    /// nothing.
    pub fn breakable(resource: Resource, only: Option<SessionId>, from: Vec<u8>) -> Self {
        let mut call = Self::break_grants(resource, only, from, None);
        call.arguments[0] = Argument::Word("dry");
        call
    }

    /// Reports those of these sessions whose leases have ended. They have claims on the resource.
    pub fn expired(resource: Resource, sessions: &[SessionId]) -> Self {
        let ids = sessions.iter().map(SessionId::to_string).collect();
        Self::new(&scripts::EXPIRE, vec![resource], vec![Argument::Word("dry"), Argument::Text(ids)])
    }

    /// Lists all holders and waiters, or at most `limit` of each for every resource unless that is
    /// 0. A script with a limit takes little time: of sessions with many claims it lists fewer.
    pub fn inspect(resources: Vec<Resource>, limit: u32) -> Self {
        Self::list(resources, limit, "", 0, Vec::new())
    }

    /// Lists as [`inspect_part`](Self::inspect_part) does, without the sessions whose leases are
    /// over, and without the waiters that hear nothing any more.
    pub fn inspect_live(resources: Vec<Resource>, most: u32, from: Vec<u8>) -> Self {
        Self::list(resources, 0, "live", most, from)
    }

    /// Lists sessions until they have `most` claims, which is at least 1. `from` is where the
    /// listing of the first resource goes on, as an earlier reply states it, or empty.
    pub fn inspect_part(resources: Vec<Resource>, most: u32, from: Vec<u8>) -> Self {
        Self::list(resources, 0, "", most, from)
    }

    fn list(resources: Vec<Resource>, limit: u32, which: &'static str, most: u32, from: Vec<u8>) -> Self {
        let arguments = vec![
            Argument::Number(limit.into()),
            Argument::Word(which),
            Argument::Number(most.into()),
            Argument::Bytes(from),
        ];
        Self { own: resources.len(), resources, ..Self::new(&scripts::INSPECT, Vec::new(), arguments) }
    }

    /// Lists what the resources remember, with at most `limit` entries of each history, until
    /// the reply has about `most` names, jobs and entries; that is at least 1. The first resource
    /// goes on at `from`, unless this is 0.
    pub fn history(resources: Vec<Resource>, limit: u32, most: u32, from: u64) -> Self {
        let arguments = [limit.into(), most.into(), from].map(Argument::Number).into();
        Self { own: resources.len(), resources, ..Self::new(&scripts::HISTORY, Vec::new(), arguments) }
    }

    fn new(script: &'static Script, resources: Vec<Resource>, arguments: Vec<Argument>) -> Self {
        let mut call = Self { script, form: Form::Operation, resources: Vec::new(), own: 0, arguments };
        // A script that gets a resource twice would change two copies of its state.
        call.extend(resources);
        call.own = call.resources.len();
        call
    }

    /// The resources that the call names so far.
    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// The name by which a server knows the script.
    pub(super) fn sha1(&self) -> &'static str {
        self.script.sha1()
    }

    /// Prepares the call for its repetition after [`ScriptReply::Need`]. The repetition names the
    /// resources that the script asks for. If the script asks for none, it has done a part of its
    /// work, and the rest needs other resources.
    pub fn declare(&mut self, needed: Vec<Resource>) {
        if needed.is_empty() {
            self.resources.truncate(self.own);
        }
        self.extend(needed);
    }

    /// Adds resources that the call does not name yet.
    pub fn extend(&mut self, resources: impl IntoIterator<Item = Resource>) {
        self.resources.extend(resources);
        let mut seen = BTreeSet::new();
        let is_new: Vec<bool> = self.resources.iter().map(|resource| seen.insert(resource)).collect();
        let mut is_new = is_new.into_iter();
        self.resources.retain(|_| is_new.next().unwrap_or(true));
    }

    /// The command for a server that knows the script.
    pub fn evalsha(&self, setting: &Setting) -> Cmd {
        self.command("EVALSHA", self.script.sha1(), setting)
    }

    /// The command for a server that does not know it.
    pub fn eval(&self, setting: &Setting) -> Cmd {
        self.command("EVAL", &self.script.source(), setting)
    }

    /// The command with a variant of the script, which has the same effect: tests compare them.
    pub fn eval_variant(&self, variant: Variant, setting: &Setting) -> Cmd {
        self.command("EVAL", &self.script.variant(variant), setting)
    }

    fn command(&self, name: &str, script: &str, setting: &Setting) -> Cmd {
        // A span is three words.
        let words = 8 + (KINDS.len() + 1) * self.resources.len() + 2 * self.arguments.len();
        let mut command = Cmd::with_capacity(words, script.len() + words * WORD);
        let now = setting.now.map(|now| now.as_micros().to_string()).unwrap_or_default();
        command.arg(name).arg(script);
        match self.form {
            Form::Alone(lease) => {
                let keys = self.resources.iter().map(|resource| setting.keyspace.keys(resource));
                let leases: Vec<_> = keys.map(|keys| keys[lease.place()].clone()).collect();
                command.arg(leases.len()).arg(leases).arg(now);
            }
            Form::Operation => {
                let wake = match setting.wake {
                    Wake::Publish => "PUBLISH",
                    Wake::ShardPublish => "SPUBLISH",
                    Wake::Nobody => "",
                };
                command.arg(KINDS.len() * self.resources.len());
                self.resources.iter().for_each(|resource| setting.keyspace.add_keys(resource, &mut command));
                command.arg(now).arg(wake);
            }
        }
        for argument in &self.arguments {
            match argument {
                Argument::Word(word) => command.write_arg(word.as_bytes()),
                Argument::Text(text) => command.write_arg(text.as_bytes()),
                Argument::Number(number) => number.write_redis_args(&mut command),
                Argument::Session(session) => command.write_arg_fmt(session),
                Argument::Span(span) => {
                    command.write_arg(span.lower().as_bytes());
                    command.write_arg(span.upper().as_bytes());
                    if span.is_whole() { command.write_arg(b"") } else { command.write_arg_fmt(span) }
                }
                Argument::Request(claims, fixed) => {
                    let channel = setting.keyspace.channel(&self.resources[0], fixed.session);
                    command.write_arg(&[claims.as_slice(), &pack::fixed(fixed, &channel)].concat());
                }
                Argument::Bytes(bytes) => command.write_arg(bytes),
            }
        }
        if let Form::Operation = self.form {
            for resource in &self.resources {
                command.arg(resource.as_str());
            }
        }
        command
    }
}

/// The process as text, which the scripts only store.
fn process(process: &Process) -> String {
    let Process { host, pid, user, command, owner, reason, lasts_for } = process;
    match lasts_for {
        None => serde_json::to_string(&(host, pid, user, command, owner, reason)),
        Some(Owner { pid: last, started }) => {
            serde_json::to_string(&(host, pid, user, command, owner, reason, (last, started)))
        }
    }
    .expect("text and numbers are valid JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::request::{Calendar, Claim, OncePer, Terms};

    fn words(command: &redis::Cmd) -> Vec<String> {
        let shown = |arg: &[u8]| arg.escape_ascii().to_string();
        let arguments = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => shown(bytes),
            _ => "?".to_owned(),
        });
        arguments.collect()
    }

    fn name(text: &str) -> Resource {
        Resource::new(text).unwrap()
    }

    fn setting(wake: Wake, now: Option<StoreTime>) -> Setting {
        Setting { keyspace: Keyspace::new("ns"), wake, now }
    }

    fn keys(tag: &str) -> Vec<String> {
        ["s", "d", "e", "q", "l", "u", "h"].map(|kind| format!("ns:{{{tag}}}:{kind}")).to_vec()
    }

    #[test]
    fn acquire_contains_the_whole_request() {
        let claims = vec![
            Claim { resource: name("a"), mode: Mode::Read, span: Span::parse("[1,2)").unwrap(), slots: None },
            Claim { resource: name("b"), mode: Mode::Slot, span: Span::Whole, slots: Some(3) },
            Claim { resource: name("a"), mode: Mode::Prewrite, span: Span::parse("(-inf,inf]").unwrap(), slots: None },
        ];
        let us = Duration::from_micros;
        let process = Process {
            host: "h\"".into(),
            pid: 7,
            user: "u".into(),
            command: vec!["a b".into(), "ü\n".into()],
            owner: Some("o".into()),
            reason: None,
            lasts_for: None,
        };
        let request = Request {
            session: SessionId([0x1A; 16]),
            ancestors: vec![SessionId([2; 16]), SessionId([3; 16])],
            claims,
            wait: true,
            terms: Some(Terms { ttl: us(30), claim: us(3), heartbeat: Duration::MAX }),
            job: Job {
                name: "j".into(),
                is_named: true,
                once_per: Some(OncePer {
                    period: Duration::ZERO,
                    calendar: Some(Calendar { start: StoreTime::from_micros(6), next: StoreTime::from_micros(7) }),
                }),
                skips: true,
                hold_at_least: Some(us(5)),
                is_acquire: true,
                max_waiting: Some(4),
                supersedes: true,
                held_above: vec![name("p")],
                ..Job::default()
            },
            process,
        };
        let call = Call::acquire(&request, 9, false);
        let sent = words(&call.evalsha(&setting(Wake::ShardPublish, Some(StoreTime::from_micros(5)))));
        let id = "1a".repeat(16);
        // Numbers, and bytes behind their lengths.
        let fixed = [
            "\\xdc\\x00\\x10\\x03\\xcf\\x00\\x10\\x00\\x00\\x00\\x00\\x00\\x00",
            &format!("\\xd9)ns:{{a}}:w:{id}\\xd9@{}{}", "02".repeat(16), "03".repeat(16)),
            &format!("\\xd9%{} ", r#"["h\"",7,"u",["a b","ü\n"],"o",null]"#.as_bytes().escape_ascii()),
            r"\xa1j\x01\x92\x06\x07\x01\x01\x05\x00\x01\x91\xa1p\x00",
        ]
        .concat();
        let claims = [
            r"\x93\x96\x01\xa1r\x00\xa4\xc0\x01\x00\x00\xa4\xc0\x02\x00\x00\xa5[1,2)",
            r"\x96\x02\xa1s\x03\xa1\x00\xa1\xff\xa0",
            r"\x96\x01\xa1p\x00\xa1\x00\xa1\xff\xaa(-inf,inf]",
        ];
        let expected: Vec<String> = [
            vec!["EVALSHA".to_owned(), sent[1].clone(), "14".to_owned()],
            keys("a"),
            keys("b"),
            ["5", "SPUBLISH", &id, "30", "0", "1 9 0 0 1 4", &(claims.concat() + &fixed), "a", "b"]
                .map(str::to_owned)
                .to_vec(),
        ]
        .concat();
        assert_eq!(sent, expected);
    }

    #[test]
    fn extended_call_declares_each_resource_once() {
        let mut call = Call::release(SessionId([1; 16]), vec![name("a")]);
        call.extend([name("c"), name("a"), name("c")]);
        assert_eq!(call.resources(), [name("a"), name("c")]);
        let sent = words(&call.eval(&setting(Wake::Nobody, None)));
        assert_eq!((sent[0].as_str(), sent[2].as_str()), ("EVAL", "14"));
        assert_eq!(sent[17..], ["", "", &"01".repeat(16), "", "0", "32", "1", "a", "c"]);
    }

    /// "The client then forgets the names that it was asked for and repeats the call as it first
    /// was".
    #[test]
    fn empty_need_makes_the_call_forget_the_names_it_was_asked_for() {
        let mut call = Call::release(SessionId([1; 16]), vec![name("b"), name("a")]);
        call.declare(vec![name("c"), name("a")]);
        assert_eq!(call.resources(), [name("b"), name("a"), name("c")]);
        call.declare(vec![]);
        assert_eq!(call.resources(), [name("b"), name("a")]);
    }

    #[test]
    fn renewal_of_one_resource_declares_one_key() {
        for (lease, kind) in Lease::ALL.into_iter().zip(["s", "e"]) {
            let call = Call::renew_alone(SessionId([1; 16]), name("a"), Duration::MAX, lease);
            let sent = words(&call.evalsha(&setting(Wake::Publish, None)));
            assert_eq!(sent[2..], ["1", &format!("ns:{{a}}:{kind}"), "", &"01".repeat(16), "4503599627370496", kind]);
        }
    }
}
