//! Parses the replies of the scripts into the types of the model.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

mod past;
mod value;

use self::value::{bytes, ending, instant, length, list, mode, name, number, process, small, span, streak, text};
use rlock_model::index::Rank;
use rlock_model::mode::Mode;
use rlock_model::op::{Refusal, ResourceListing};
use rlock_model::past::{Ending, Remembered};
use rlock_model::records::{ClaimRecord, Phase, Revocation, Session};
use rlock_model::request::{Calendar, Claim, Job, OncePer, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_store::handle::{Grant, Obstruction, Standing};
use rlock_store::lease::LeaseReply;
use rlock_sys::clock::StoreTime;

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptReply {
    /// The session holds the lock.
    Granted {
        /// The rest of its lease; `None` for a session without terms.
        lease: Option<Duration>,
        /// Its tokens, claim by claim.
        tokens: Vec<u64>,
        /// The numbers of its slots, claim by claim. A repeated renewal may leave them out.
        slots: Vec<u32>,
        /// How the last hold of its first resource had ended at the grant, if that is known. A
        /// repeated renewal may leave it out.
        last: Option<Ending>,
        /// Whether the grant is revoked, so that the session has to give it back.
        is_revoked: bool,
    },
    /// The session waits.
    Waiting {
        /// The number of its request, by which it finds its place after it was passed over.
        seq: u64,
        /// Its position in the queue of its first resource; the first is 1.
        position: u32,
        /// How long until a lease on its resources ends.
        next: Option<Duration>,
    },
    /// The request is over and stands so: it is busy or superseded, or its job is already done.
    Over(Standing),
    /// The request can never be granted.
    Refused(Refusal),
    /// The call has to be repeated with these resources too. There are none if earlier calls have
    /// left over more than one call does.
    Need(Vec<Resource>),
    /// The change is made.
    Done,
    /// The grant or the place in the queue is released. These are the tokens, claim by claim, each
    /// 0 for a waiter.
    Released(Vec<u64>),
    /// The command has ended, and the hold stays until this instant.
    KeptUntil(StoreTime),
    /// The lease is renewed for this long.
    Renewed(Duration),
    /// The session neither holds nor waits.
    Unknown,
    /// The sessions that were removed because their leases had ended.
    Expired(Vec<(SessionId, Session)>),
    /// Some of the sessions that lost their grants.
    Broken {
        /// Where the next call goes on; empty if these are the last.
        next: Vec<u8>,
        /// The sessions.
        sessions: Vec<(SessionId, Session)>,
    },
    /// The holders and waiters.
    Listing {
        /// The instant on the clock of the server.
        now: StoreTime,
        /// Where the listing of the last of these resources goes on; empty if it is complete.
        next: Vec<u8>,
        /// One entry for each resource, in the order of the call. A part of a listing may leave out
        /// the last resources of the call.
        resources: Vec<Obstruction>,
        /// The listed sessions, in the order of their ids, with their claims on these resources.
        sessions: Vec<(SessionId, Session)>,
    },
    /// What the resources remember.
    History {
        /// How many of the resources are complete.
        complete: usize,
        /// Where the next one goes on; 0 if it has not been listed yet.
        next: u64,
        /// What they remember, and the next one as far as it is listed.
        remembered: Vec<Remembered>,
    },
}

impl ScriptReply {
    /// Parses a reply; `None` if no script gives it.
    pub fn read(value: &Value) -> Option<Self> {
        let (word, rest) = list(value)?.split_first()?;
        Some(match (text(word)?, rest) {
            (word @ ("granted" | "revoked"), [lease, grant @ ..]) => {
                let is_token = |value: &&Value| matches!(value, Value::Int(_));
                let tokens: Vec<u64> = grant.iter().take_while(is_token).map(number).collect::<Option<_>>()?;
                let (slots, last) = match &grant[tokens.len()..] {
                    [] => (Vec::new(), None),
                    [last] => (Vec::new(), ending(last)?),
                    [slots, last] => (list(slots)?.iter().map(small).collect::<Option<_>>()?, ending(last)?),
                    _ => return None,
                };
                let lease = Some(length(lease)?).filter(|lease| !lease.is_zero());
                Self::Granted { lease, tokens, slots, last, is_revoked: word == "revoked" }
            }
            ("waiting", [seq, position, next]) => Self::Waiting {
                seq: number(seq)?,
                position: number(position)?.try_into().ok()?,
                next: Some(length(next)?).filter(|next| !next.is_zero()),
            },
            ("busy", [streak, resources @ ..]) => {
                let obstructions = obstructions(resources)?.0;
                Self::Over(Standing::Busy { obstructions, streak: self::streak(streak)? })
            }
            ("superseded", [streak, by]) => {
                Self::Over(Standing::Superseded { by: process(by)?.into(), streak: self::streak(streak)? })
            }
            ("already", []) => Self::Over(Standing::AlreadyDone),
            ("refused", refusal) => Self::Refused(self::refusal(refusal)?),
            ("need", names) => Self::Need(names.iter().map(name).collect::<Option<_>>()?),
            ("done", []) => Self::Done,
            ("released", tokens) => Self::Released(tokens.iter().map(number).collect::<Option<_>>()?),
            ("kept", [until]) => Self::KeptUntil(instant(until)?),
            ("renewed", [lease]) => Self::Renewed(length(lease)?),
            ("unknown", []) => Self::Unknown,
            ("expired", sessions) => Self::Expired(all(sessions)?),
            ("broken", [next, sessions @ ..]) => Self::Broken { next: bytes(next)?.to_vec(), sessions: all(sessions)? },
            ("listing", [now, next, resources @ ..]) => {
                let (resources, sessions) = obstructions(resources)?;
                Self::Listing { now: instant(now)?, next: bytes(next)?.to_vec(), resources, sessions }
            }
            ("history", [complete, next, resources @ ..]) => Self::History {
                complete: number(complete)?.try_into().ok()?,
                next: number(next)?,
                remembered: resources.iter().map(past::remembered).collect::<Option<_>>()?,
            },
            _ => return None,
        })
    }
}

impl From<ScriptReply> for LeaseReply {
    fn from(reply: ScriptReply) -> Self {
        match reply {
            ScriptReply::Granted { lease: Some(lease), tokens, slots, last, is_revoked } => {
                Self::Granted { lease, grant: Grant { tokens, slots, last, deadline: None, is_revoked } }
            }
            ScriptReply::Waiting { seq, position, next } => Self::Waiting { place: seq, position, next },
            ScriptReply::Over(standing) => Self::Over(standing),
            ScriptReply::Refused(refusal) => Self::Over(Standing::Refused(refusal)),
            ScriptReply::Released(tokens) => Self::Released(tokens),
            ScriptReply::KeptUntil(_) => Self::Kept,
            ScriptReply::Unknown => Self::Unknown,
            _ => Self::Other,
        }
    }
}

fn refusal(words: &[Value]) -> Option<Refusal> {
    let (kind, rest) = words.split_first()?;
    let (resource, rest) = rest.split_first()?;
    let resource = name(resource)?;
    Some(match (text(kind)?, rest) {
        ("grow", [held, asked]) => Refusal::CannotGrow { resource, held: mode(held)?, asked: mode(asked)? },
        ("past", [held, asked]) => Refusal::ReachesPast { resource, held: span(held)?, asked: span(asked)? },
        ("slots", [held]) => Refusal::TooFewSlots { resource, held: number(held)?.try_into().ok()? },
        ("jobs", []) => Refusal::TooManyJobs { resource },
        ("none", []) => Refusal::NotHeld { resource },
        ("outside", [asked]) => Refusal::NotInside { resource, asked: span(asked)? },
        ("whole", []) => Refusal::SlotIsWhole { resource },
        ("below", [held, asked]) => Refusal::NotBelow { resource, held: mode(held)?, asked: mode(asked)? },
        ("nested", []) => Refusal::NestedWaits { resource },
        ("kept", []) => Refusal::NotKept,
        _ => return None,
    })
}

/// A claim of a session, as a script lists it.
struct Line {
    index: u32,
    record: ClaimRecord,
    position: u32,
}

/// The sessions of `expired` and `broken`, with all of their claims.
fn all(sessions: &[Value]) -> Option<Vec<(SessionId, Session)>> {
    sessions.iter().map(|value| session(value).map(|(id, session, _)| (id, session))).collect()
}

/// Sessions in order of their ids.
type Sessions = Vec<(SessionId, Session)>;

/// The holders and waiters by resource, and by session.
fn obstructions(resources: &[Value]) -> Option<(Vec<Obstruction>, Sessions)> {
    let mut told = Vec::with_capacity(resources.len());
    let mut met: std::collections::BTreeMap<SessionId, (Session, Vec<Line>)> = std::collections::BTreeMap::new();
    for resource in resources {
        let (head, sessions) = list(resource)?.split_at_checked(2)?;
        let sessions = sessions.iter().map(session).collect::<Option<Vec<_>>>()?;
        told.push(Obstruction { listing: listing(name(&head[0])?, &sessions), waiting: number(&head[1])? });
        for (id, session, mut lines) in sessions {
            match met.entry(id) {
                std::collections::btree_map::Entry::Occupied(mut known) => known.get_mut().1.append(&mut lines),
                std::collections::btree_map::Entry::Vacant(new) => drop(new.insert((session, lines))),
            }
        }
    }
    let whole = |(id, (session, lines))| (id, Session { claims: in_order(lines), ..session });
    Some((told, met.into_iter().map(whole).collect()))
}

fn in_order(mut lines: Vec<Line>) -> Vec<ClaimRecord> {
    lines.sort_by_key(|line| line.index);
    lines.dedup_by_key(|line| line.index);
    lines.into_iter().map(|line| line.record).collect()
}

fn listing(name: Resource, sessions: &[(SessionId, Session, Vec<Line>)]) -> ResourceListing {
    let lines = sessions.iter().flat_map(|(id, session, lines)| lines.iter().map(move |line| (*id, session, line)));
    let claims = lines.clone().map(|(id, session, line)| (id, session, &line.record));
    let mut listing = ResourceListing::of(name, claims.collect());
    // The waiters that the listing leaves out have places too.
    let waiting = lines.filter(|(_, _, line)| !line.record.rank.is_held());
    let places: HashMap<_, _> = waiting.map(|(id, _, line)| (id, line.position)).collect();
    for waiter in &mut listing.waiters {
        waiter.position = places[&waiter.session];
    }
    listing
}

/// A session with its listed claims in order.
fn session(value: &Value) -> Option<(SessionId, Session, Vec<Line>)> {
    let (head, claims) = list(value)?.split_at_checked(13)?;
    let [id, expiry, phase, seq, asked, since, ttl, claim, heartbeat, ancestors, process, last, job] = head else {
        return None;
    };
    let phase = match number(phase)? {
        0 => Phase::Waiting,
        1 => Phase::Held,
        2 => Phase::Kept,
        3 => Phase::Granted,
        _ => return None,
    };
    let (held, seq) = (phase != Phase::Waiting, number(seq)?);
    let terms = Terms { ttl: length(ttl)?, claim: length(claim)?, heartbeat: length(heartbeat)? };
    let ancestors = text(ancestors)?.as_bytes().chunks(32);
    let ancestors = ancestors.map(|id| std::str::from_utf8(id).ok()?.parse().ok()).collect::<Option<_>>()?;
    let mut lines = claims.iter().map(|claim| line(claim, held, seq)).collect::<Option<Vec<_>>>()?;
    lines.sort_by_key(|line| line.index);
    let (job, revoked) = self::job(job)?;
    let session = Session {
        ancestors,
        claims: lines.iter().map(|line| line.record.clone()).collect(),
        phase,
        asked: instant(asked)?,
        since: instant(since)?,
        expiry: Some(instant(expiry)?).filter(|expiry| *expiry > StoreTime::default()),
        terms: Some(terms).filter(|terms| !terms.ttl.is_zero()),
        job,
        last: ending(last)?,
        process: self::process(process)?,
        revoked,
        later: Vec::new(),
    };
    Some((text(id)?.parse().ok()?, session, lines))
}

fn line(value: &Value, held: bool, seq: u64) -> Option<Line> {
    let (words, slot) = list(value)?.split_at_checked(8)?;
    let [index, resource, mode, share, slots, part, token, position] = words else { return None };
    let slot = match slot {
        [] => None,
        [number] => Some(small(number)?),
        _ => return None,
    };
    let (mode, slots) = (self::mode(mode)?, number(slots)?.try_into().ok()?);
    let slots = (mode == Mode::Slot).then_some(slots);
    let claim = Claim { resource: name(resource)?, mode, span: span(part)?, slots };
    let rank = if held { Rank::HELD } else { Rank::waiting(seq) };
    let record = ClaimRecord { claim, rank, token: number(token)?, shares: number(share)? == 1, slot };
    Some(Line { index: number(index)?.try_into().ok()?, record, position: number(position)?.try_into().ok()? })
}

/// The job of a session, and the revocation of its grant.
fn job(value: &Value) -> Option<(Job, Option<Revocation>)> {
    let (words, revoked) = list(value)?.split_at_checked(10)?;
    let [history, job, once_per, calendar, is_named, skips, hold_at_least, keep_for, is_acquire, held_above] = words
    else {
        return None;
    };
    let revoked = match revoked {
        [] => None,
        [revoked] => match list(revoked)? {
            [at, by] => Some(Revocation { at: instant(at)?, by: process(by)? }),
            _ => return None,
        },
        _ => return None,
    };
    let flag = |value| number(value).map(|number| number == 1);
    let optional = |value| length(value).map(|length| Some(length).filter(|length| !length.is_zero()));
    let calendar = match list(calendar)? {
        [] => None,
        [start, next] => Some(Calendar { start: instant(start)?, next: instant(next)? }),
        _ => return None,
    };
    let job = Job {
        name: text(job)?.to_owned(),
        is_named: flag(is_named)?,
        once_per: optional(once_per)?.map(|period| OncePer { period, calendar }),
        skips: flag(skips)?,
        hold_at_least: optional(hold_at_least)?,
        keep_for: optional(keep_for)?,
        is_acquire: flag(is_acquire)?,
        history: small(history)?,
        held_above: list(held_above)?.iter().map(name).collect::<Option<_>>()?,
        ..Job::default()
    };
    Some((job, revoked))
}
