//! The other end of the codec: reads the commands of clients and writes the replies of scripts.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Arg, Cmd, ServerError, Value};

use rlock_model::mode::Mode;
use rlock_model::op::{Change, Refusal};
use rlock_model::past::{End, Streak};
use rlock_model::records::{ClaimRecord, Phase, Session};
use rlock_model::request::{Calendar, Claim, Job, OncePer, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Lease, ScriptReply};
use rlock_redis::keys::{KINDS, Keyspace};
use rlock_redis::scripts;
use rlock_store::Standing;
use rlock_sys::clock::{StoreTime, micros};

pub(super) const NAMESPACE: &str = "ns";

/// A script that clients call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Script {
    Acquire,
    Renew,
    Release,
    GiveUp,
    Extend,
    Shrink,
    Downgrade,
    Inspect,
    Break,
    RenewAlone,
}

/// A command as it arrives at the server.
#[derive(Debug)]
pub(super) enum Command {
    Call(Box<Call>),
    /// Wait until so many replicas have all changes of the connection.
    Wait {
        replicas: usize,
        timeout: Duration,
    },
}

/// A call of a script.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) script: Script,
    /// Whether the call brings the source of its script.
    pub(super) is_source: bool,
    pub(super) resources: Vec<Resource>,
    pub(super) operation: Operation,
    pub(super) command: Cmd,
}

#[derive(Debug)]
pub(super) enum Operation {
    Acquire {
        request: Box<Request>,
        channel: String,
        place: u64,
        listening: bool,
    },
    Renew {
        session: SessionId,
        listening: bool,
    },
    Release {
        session: SessionId,
        end: Option<End>,
    },
    GiveUp(SessionId),
    Change {
        session: SessionId,
        change: Change,
    },
    /// `is_live` leaves out the waiters that hear nothing any more.
    Inspect {
        is_live: bool,
    },
    Break {
        /// Whether a session whose command may run gives its grant back itself.
        revokes: bool,
    },
    RenewAlone {
        session: SessionId,
        ttl: Duration,
        lease: Lease,
    },
}

impl Operation {
    /// The session that calls.
    pub(super) fn session(&self) -> Option<SessionId> {
        match self {
            Self::Acquire { request, .. } => Some(request.session),
            Self::Renew { session, .. }
            | Self::Release { session, .. }
            | Self::GiveUp(session)
            | Self::Change { session, .. }
            | Self::RenewAlone { session, .. } => Some(*session),
            Self::Inspect { .. } | Self::Break { .. } => None,
        }
    }
}

/// The texts of the scripts.
pub(super) fn texts() -> [(&'static scripts::Script, Script); 10] {
    [
        (&scripts::ACQUIRE, Script::Acquire),
        (&scripts::RENEW, Script::Renew),
        (&scripts::RELEASE, Script::Release),
        (&scripts::GIVE_UP, Script::GiveUp),
        (&scripts::EXTEND, Script::Extend),
        (&scripts::SHRINK, Script::Shrink),
        (&scripts::DOWNGRADE, Script::Downgrade),
        (&scripts::INSPECT, Script::Inspect),
        (&scripts::BREAK, Script::Break),
        (&scripts::RENEW_ALONE, Script::RenewAlone),
    ]
}

/// The scripts by their names and by their sources.
static SCRIPTS: LazyLock<Vec<(Vec<u8>, Script)>> = LazyLock::new(|| {
    let both = texts().into_iter().flat_map(|(text, script)| {
        [text.sha1().as_bytes().to_vec(), text.source().into_bytes()].map(|name| (name, script))
    });
    both.collect()
});

pub(super) fn words(command: &Cmd) -> Vec<&[u8]> {
    let words = command.args_iter().map(|word| match word {
        Arg::Simple(bytes) => bytes,
        _ => panic!("a client sends plain words only"),
    });
    words.collect()
}

/// Reads a command.
pub(super) fn read(command: Cmd) -> Command {
    let words = words(&command);
    if words[0] == b"WAIT" {
        let (replicas, timeout) = (number(words[1]) as usize, Duration::from_millis(number(words[2])));
        return Command::Wait { replicas, timeout };
    }
    let (script, is_source) = (script(&words), words[0] == b"EVAL");
    let (resources, operation) = operation(script, &words);
    Command::Call(Box::new(Call { script, is_source, resources, operation, command }))
}

fn script(words: &[&[u8]]) -> Script {
    let (_, script) = *SCRIPTS.iter().find(|(name, _)| name == words[1]).expect("a script of rlock");
    script
}

/// The resources that a call names, and what it asks for.
fn operation(script: Script, words: &[&[u8]]) -> (Vec<Resource>, Operation) {
    if script == Script::RenewAlone {
        let lease = Lease::ALL[usize::from(words[7] == b"e")];
        let operation = Operation::RenewAlone { session: session(words[5]), ttl: length(words[6]), lease };
        return (vec![resource_of(text(words[3]))], operation);
    }
    let (keys, arguments) = words[3..].split_at(number(words[2]) as usize);
    // The clock and the way to wake waiters come first, and the resources last.
    let (own, names) = arguments[2..].split_at(arguments.len() - 2 - keys.len() / KINDS.len());
    let resources: Vec<_> = names.iter().map(|name| resource_named(name)).collect();
    let operation = match script {
        Script::Acquire => {
            let terms: Vec<&[u8]> = own[3].split(|byte| *byte == b' ').collect();
            let (request, channel) = request(own, &terms, &resources);
            let (place, listening) = (number(terms[1]), number(terms[3]) == 1);
            Operation::Acquire { request: Box::new(request), channel, place, listening }
        }
        Script::Renew => Operation::Renew { session: session(own[0]), listening: number(own[1]) == 1 },
        Script::Release => Operation::Release { session: session(own[0]), end: end(own) },
        Script::GiveUp => Operation::GiveUp(session(own[0])),
        Script::Extend | Script::Shrink | Script::Downgrade => {
            let resource = resources[0].clone();
            let change = match script {
                Script::Extend => Change::Extend { by: optional(number(own[1])) },
                Script::Shrink => Change::Shrink { resource, span: span(own[3]) },
                _ => Change::Downgrade { resource, mode: mode(own[1]) },
            };
            Operation::Change { session: session(own[0]), change }
        }
        Script::Inspect => Operation::Inspect { is_live: own[1] == b"live" },
        Script::Break => Operation::Break { revokes: !own[3].is_empty() },
        Script::RenewAlone => unreachable!("it names one key and no resources"),
    };
    (resources, operation)
}

/// The resource of a key.
fn resource_of(key: &str) -> Resource {
    let (prefix, _) = key.rsplit_once(':').expect("a key has a kind");
    Keyspace::new(NAMESPACE).resource(format!("{prefix}:s").as_bytes()).expect("a key of a resource")
}

/// Reads how the command ended that ran until a release.
fn end(own: &[&[u8]]) -> Option<End> {
    let ending = Some(text(own[1])).filter(|words| !words.is_empty())?;
    Some(End { ending: ending.parse().expect("a word is an ending"), is_success: number(own[2]) == 1 })
}

/// Reads a request and the channel of its session.
fn request(own: &[&[u8]], terms: &[&[u8]], resources: &[Resource]) -> (Request, String) {
    let mut packed = own[4];
    let mut claims = Vec::new();
    for _ in 0..unpack_array(&mut packed) {
        unpack_array(&mut packed);
        let resource = resources[unpack_number(&mut packed) as usize - 1].clone();
        let mode = mode(unpack_bytes(&mut packed));
        let slots = Some(unpack_number(&mut packed) as u32).filter(|slots| *slots > 0);
        let [_, _, text] = [(); 3].map(|()| unpack_bytes(&mut packed));
        claims.push(Claim { resource, mode, span: span(text), slots });
    }
    let (wait, max_waiting) = (number(terms[0]) == 1, Some(terms[5]).filter(|max| !max.is_empty()));
    let supersedes = number(terms[4]) == 1;
    unpack_array(&mut packed);
    let mut packed_length = || Duration::from_micros(unpack_number(&mut packed));
    let terms = Terms { ttl: length(own[1]), claim: packed_length(), heartbeat: packed_length() };
    let channel = text(unpack_bytes(&mut packed)).to_owned();
    let ancestors = unpack_bytes(&mut packed).chunks(32).map(session).collect();
    let _process = unpack_bytes(&mut packed);
    let max_waiting = max_waiting.map(|max| number(max) as u32);
    let job = Job { max_waiting, supersedes, ..job(&mut packed) };
    let process = Process::default();
    let (session, terms) = (session(own[0]), Some(terms));
    (Request { session, ancestors, claims, wait, terms, job, process }, channel)
}

/// Reads the job of a request.
fn job(fixed: &mut &[u8]) -> Job {
    let history = unpack_number(fixed) as u32;
    let name = text(unpack_bytes(fixed)).to_owned();
    let period = optional(unpack_number(fixed));
    let calendar = (unpack_array(fixed) == 2).then(|| {
        let [start, next] = [(); 2].map(|()| StoreTime::from_micros(unpack_number(fixed)));
        Calendar { start, next }
    });
    let is_named = unpack_number(fixed) == 1;
    Job {
        name,
        is_named,
        once_per: period.map(|period| OncePer { period, calendar }),
        skips: unpack_number(fixed) == 1,
        max_waiting: None,
        supersedes: false,
        hold_at_least: optional(unpack_number(fixed)),
        keep_for: optional(unpack_number(fixed)),
        is_acquire: unpack_number(fixed) == 1,
        history,
        held_above: (0..unpack_array(fixed)).map(|_| resource_named(unpack_bytes(fixed))).collect(),
        remember: optional(unpack_number(fixed)),
    }
}

fn resource_named(bytes: &[u8]) -> Resource {
    Resource::new(text(bytes)).expect("a valid name")
}

fn unpack_array(packed: &mut &[u8]) -> u32 {
    rmp::decode::read_array_len(packed).expect("an array comes here")
}

fn unpack_number(packed: &mut &[u8]) -> u64 {
    rmp::decode::read_int(packed).expect("a number comes here")
}

fn unpack_bytes<'p>(packed: &mut &'p [u8]) -> &'p [u8] {
    let len = rmp::decode::read_str_len(packed).expect("bytes come here");
    let (bytes, rest) = packed.split_at(len as usize);
    *packed = rest;
    bytes
}

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).expect("a word is text")
}

pub(super) fn number(word: &[u8]) -> u64 {
    text(word).parse().expect("a word is a number")
}

/// A length of time in microseconds, and 0 for none.
fn optional(micros: u64) -> Option<Duration> {
    Some(Duration::from_micros(micros)).filter(|length| !length.is_zero())
}

fn length(word: &[u8]) -> Duration {
    Duration::from_micros(number(word))
}

fn session(word: &[u8]) -> SessionId {
    text(word).parse().expect("a word is a session")
}

fn span(word: &[u8]) -> Span {
    if word.is_empty() { Span::Whole } else { Span::parse(text(word)).expect("a word is a span") }
}

fn mode(word: &[u8]) -> Mode {
    Mode::ALL.into_iter().find(|mode| mode.as_str().starts_with(text(word))).expect("a word is a mode")
}

/// Writes a reply as the scripts do.
pub(super) fn value(reply: &ScriptReply) -> Value {
    let word = |text: &str| Value::BulkString(text.into());
    let number = |number: u64| Value::Int(number as i64);
    let mut words = Vec::new();
    match reply {
        ScriptReply::Granted { lease, tokens, slots, last, is_revoked } => {
            let granted = if *is_revoked { "revoked" } else { "granted" };
            words.extend([word(granted), number(micros(lease.unwrap_or_default()))]);
            words.extend(tokens.iter().copied().map(number));
            if !slots.is_empty() {
                words.push(Value::Array(slots.iter().map(|slot| number((*slot).into())).collect()));
            }
            words.push(word(&last.map(|ending| ending.to_string()).unwrap_or_default()));
        }
        ScriptReply::Waiting { seq, position, next } => {
            let next = micros(next.unwrap_or_default());
            words.extend([word("waiting"), number(*seq), number((*position).into()), number(next)]);
        }
        ScriptReply::Over(Standing::Busy { obstructions: listed, streak }) => {
            words.extend([word("busy"), Value::Array(streak.as_ref().map(skips).unwrap_or_default())]);
            let listing = |name: &Resource, waiting| Value::Array(vec![word(name.as_str()), number(waiting)]);
            words.extend(listed.iter().map(|obstruction| listing(&obstruction.listing.name, obstruction.waiting)));
        }
        ScriptReply::Refused(refusal) => {
            words.push(word("refused"));
            words.extend(refused(refusal));
        }
        ScriptReply::Need(names) => {
            words.push(word("need"));
            words.extend(names.iter().map(|name| word(name.as_str())));
        }
        ScriptReply::Released(tokens) => {
            words.push(word("released"));
            words.extend(tokens.iter().copied().map(number));
        }
        ScriptReply::KeptUntil(until) => words.extend([word("kept"), number(until.as_micros())]),
        ScriptReply::Over(Standing::Superseded { streak, .. }) => {
            let streak = Value::Array(streak.as_ref().map(skips).unwrap_or_default());
            words.extend([word("superseded"), streak, word(NO_PROCESS)]);
        }
        ScriptReply::Over(Standing::AlreadyDone) => words.push(word("already")),
        ScriptReply::Renewed(lease) => words.extend([word("renewed"), number(micros(*lease))]),
        ScriptReply::Done => words.push(word("done")),
        // No client looks at the holders.
        ScriptReply::Broken { next, .. } => words.extend([word("broken"), Value::BulkString(next.clone())]),
        ScriptReply::Unknown => words.push(word("unknown")),
        ScriptReply::Listing { now, next, resources, sessions } => {
            words.extend([word("listing"), number(now.as_micros()), Value::BulkString(next.clone())]);
            words.extend(resources.iter().map(|told| listed(&told.listing.name, sessions)));
        }
        reply => panic!("the server never replies {reply:?}"),
    }
    Value::Array(words)
}

/// The sessions with claims on a resource.
fn listed(name: &Resource, sessions: &[(SessionId, Session)]) -> Value {
    let here = |session: &Session| session.claims.iter().any(|record| record.claim.resource == *name);
    let head = [Value::BulkString(name.as_str().into()), Value::Int(0)];
    let told = sessions.iter().filter(|(_, session)| here(session)).map(|(id, session)| told(name, *id, session));
    Value::Array(head.into_iter().chain(told).collect())
}

/// A session with its claims on a resource. The simulation has no description of its process.
fn told(name: &Resource, id: SessionId, session: &Session) -> Value {
    let word = |text: &str| Value::BulkString(text.into());
    let number = |number: u64| Value::Int(number as i64);
    let length = |length: Option<Duration>| number(micros(length.unwrap_or_default()));
    let instant = |at: StoreTime| number(at.as_micros());
    let phase = match session.phase {
        Phase::Waiting => 0,
        Phase::Held => 1,
        Phase::Kept => 2,
        Phase::Granted => 3,
    };
    let terms = session.terms.unwrap_or_default();
    let ancestors: String = session.ancestors.iter().map(SessionId::to_string).collect();
    let job = &session.job;
    let calendar = job.once_per.and_then(|once| once.calendar).map(|calendar| [calendar.start, calendar.next]);
    let held_above = job.held_above.iter().map(|name| word(name.as_str())).collect();
    let job = vec![
        number(job.history.into()),
        word(&job.name),
        length(job.once_per.map(|once| once.period)),
        Value::Array(calendar.iter().flatten().copied().map(instant).collect()),
        number(job.is_named.into()),
        number(job.skips.into()),
        length(job.hold_at_least),
        length(job.keep_for),
        number(job.is_acquire.into()),
        Value::Array(held_above),
    ];
    let mut words = vec![
        word(&id.to_string()),
        instant(session.expiry.unwrap_or_default()),
        number(phase),
        number(session.place()),
        instant(session.asked),
        instant(session.since),
        length(Some(terms.ttl)),
        length(Some(terms.claim)),
        length(Some(terms.heartbeat)),
        word(&ancestors),
        word(NO_PROCESS),
        word(&session.last.map(|ending| ending.to_string()).unwrap_or_default()),
        Value::Array(job),
    ];
    let own = session.claims.iter().enumerate().filter(|(_, record)| record.claim.resource == *name);
    words.extend(own.map(|(index, ClaimRecord { claim, token, shares, slot, .. })| {
        let line = [
            number(index as u64),
            word(name.as_str()),
            word(&claim.mode.as_str()[..1]),
            number((*shares).into()),
            number(claim.slots.unwrap_or_default().into()),
            if claim.span.is_whole() { word("") } else { word(&claim.span.to_string()) },
            number(*token),
            number(0),
        ];
        Value::Array(line.into_iter().chain(slot.map(|slot| number(slot.into()))).collect())
    }));
    Value::Array(words)
}

/// The process of every session.
const NO_PROCESS: &str = r#"["",0,"",[],null,null]"#;

/// The skips in a row. The simulation has no description of the process that was skipped last.
fn skips(Streak { count, since, last, .. }: &Streak) -> Vec<Value> {
    let instant = |at: &StoreTime| Value::Int(at.as_micros() as i64);
    let process = Value::BulkString(NO_PROCESS.into());
    vec![Value::Int((*count).into()), instant(since), instant(last), process]
}

fn refused(refusal: &Refusal) -> Vec<Value> {
    let word = |text: &str| Value::BulkString(text.into());
    let letter = |mode: &Mode| word(&mode.as_str()[..1]);
    let span = |span: &Span| if span.is_whole() { word("") } else { word(&span.to_string()) };
    match refusal {
        Refusal::CannotGrow { resource, held, asked } => {
            vec![word("grow"), word(resource.as_str()), letter(held), letter(asked)]
        }
        Refusal::ReachesPast { resource, held, asked } => {
            vec![word("past"), word(resource.as_str()), span(held), span(asked)]
        }
        Refusal::TooFewSlots { resource, held } => {
            vec![word("slots"), word(resource.as_str()), Value::Int((*held).into())]
        }
        Refusal::NotHeld { resource } => vec![word("none"), word(resource.as_str())],
        Refusal::NotInside { resource, asked } => vec![word("outside"), word(resource.as_str()), span(asked)],
        Refusal::SlotIsWhole { resource } => vec![word("whole"), word(resource.as_str())],
        Refusal::NotBelow { resource, held, asked } => {
            vec![word("below"), word(resource.as_str()), letter(held), letter(asked)]
        }
        Refusal::NestedWaits { resource } => vec![word("nested"), word(resource.as_str())],
        Refusal::TooManyJobs { resource } => vec![word("jobs"), word(resource.as_str())],
        Refusal::NotKept => vec![word("kept"), word("k")],
    }
}

/// The error reply of this text.
pub(super) fn error(text: &str) -> ServerError {
    match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error,
        other => panic!("{other:?} is no error"),
    }
}
