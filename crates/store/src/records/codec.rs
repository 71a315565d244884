//! Writes and reads the bytes of the table's records, format 4, in the encoding of postcard.
//!
//! The table writes the keys itself, because their order counts. A record is read whole or not at
//! all: input that is too short, too long or invalid is [`Damaged`].
//!
//! An [`Open`] record may end with optional fields: for each a byte with its number, its length and
//! its bytes. A version keeps the fields that it does not know, so a later version may add one
//! without a new format.

use serde::Serialize;
use serde::de::DeserializeOwned;

use rlock_model::past::{Entry, Past};
use rlock_model::records::{Later, Session};
use rlock_sys::clock::StoreTime;

/// Bytes that are not a record of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Fails unless what must hold for a record does.
pub fn ensure(holds: bool) -> Result<(), Damaged> {
    if holds { Ok(()) } else { Err(Damaged) }
}

/// Encodes a record. `encode_open` does so for a record with optional fields.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(record, Vec::with_capacity(256)).expect("every record has an encoding")
}

/// Decodes a record that fills all of `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Damaged),
    }
}

/// A record that may have optional fields.
pub trait Open: Serialize + DeserializeOwned {
    /// The optional fields that the record has.
    fn fields(&self) -> Later;

    /// Sets an optional field, or keeps it with the record if this version does not know it.
    fn set(&mut self, field: (u8, Vec<u8>)) -> Result<(), Damaged>;
}

/// The number of the field [`Session::revoked`].
const REVOKED: u8 = 0;
/// The number of the field [`Process::lasts_for`](rlock_model::request::Process::lasts_for).
const LASTS_FOR: u8 = 1;
/// The number of the field [`Job::remember`](rlock_model::request::Job::remember).
const REMEMBER: u8 = 2;

impl Open for Session {
    fn fields(&self) -> Later {
        let revoked = self.revoked.iter().map(|revoked| (REVOKED, encode(revoked)));
        let owner = self.process.lasts_for.iter().map(|owner| (LASTS_FOR, encode(owner)));
        let remember = self.job.remember.iter().map(|length| (REMEMBER, encode(length)));
        revoked.chain(owner).chain(remember).chain(self.later.iter().cloned()).collect()
    }

    fn set(&mut self, (number, bytes): (u8, Vec<u8>)) -> Result<(), Damaged> {
        match number {
            REVOKED => self.revoked = Some(decode(&bytes)?),
            LASTS_FOR => self.process.lasts_for = Some(decode(&bytes)?),
            REMEMBER => self.job.remember = Some(decode(&bytes)?),
            _ => self.later.push((number, bytes)),
        }
        Ok(())
    }
}

/// The number of the field [`Past::waits`].
const WAITS: u8 = 0;
/// The number of the field [`Past::bound`].
const BOUND: u8 = 1;

impl Open for Past {
    fn fields(&self) -> Later {
        let waits = (!self.waits.is_empty()).then(|| (WAITS, encode(&self.waits)));
        let bound = (self.bound > StoreTime::default()).then(|| (BOUND, encode(&self.bound)));
        waits.into_iter().chain(bound).chain(self.later.iter().cloned()).collect()
    }

    fn set(&mut self, (number, bytes): (u8, Vec<u8>)) -> Result<(), Damaged> {
        match number {
            WAITS => self.waits = decode(&bytes)?,
            BOUND => self.bound = decode(&bytes)?,
            _ => self.later.push((number, bytes)),
        }
        Ok(())
    }
}

/// The number of the field [`Entry::origin`].
const ORIGIN: u8 = 0;
/// The number of the field [`Entry::slots`].
const SLOTS: u8 = 1;

impl Open for Entry {
    fn fields(&self) -> Later {
        let slots = (!self.slots.is_empty()).then(|| (SLOTS, encode(&self.slots)));
        std::iter::once((ORIGIN, encode(&self.origin))).chain(slots).chain(self.later.iter().cloned()).collect()
    }

    fn set(&mut self, (number, bytes): (u8, Vec<u8>)) -> Result<(), Damaged> {
        match number {
            ORIGIN => self.origin = decode(&bytes)?,
            SLOTS => self.slots = decode(&bytes)?,
            _ => self.later.push((number, bytes)),
        }
        Ok(())
    }
}

/// Encodes a record with its optional fields.
pub(crate) fn encode_open(record: &impl Open) -> Vec<u8> {
    let append = |bytes, field: &(u8, Vec<u8>)| postcard::to_extend(field, bytes).expect("every field has an encoding");
    record.fields().iter().fold(encode(record), append)
}

/// Decodes a record with its optional fields.
pub fn decode_open<T: Open>(bytes: &[u8]) -> Result<T, Damaged> {
    let (mut record, mut rest): (T, _) = postcard::take_from_bytes(bytes).map_err(|_| Damaged)?;
    while !rest.is_empty() {
        let field;
        (field, rest) = postcard::take_from_bytes(rest).map_err(|_| Damaged)?;
        record.set(field)?;
    }
    Ok(record)
}

/// The number of kinds of [`Event`](rlock_model::past::Event) that this version knows.
const EVENTS: u8 = 4;

/// Decodes an entry of a history; `None` if a later version has written it about something else.
pub fn decode_entry(bytes: &[u8]) -> Result<Option<Entry>, Damaged> {
    match bytes {
        [EVENTS..0x80, ..] => Ok(None),
        _ => decode_open(bytes).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rlock_model::index::{Child, Entry as Claimed, Node, Rank, Tree};
    use rlock_model::mode::{Mode, Modes};
    use rlock_model::past::{Ended, Ending, Event, Origin};
    use rlock_model::records::{ClaimRecord, Phase, ResourceState, Revocation};
    use rlock_model::request::{Claim, Job, Owner, Process, SessionId, Terms};
    use rlock_model::resource::Resource;
    use rlock_model::span::Span;

    fn session() -> Session {
        let us = Duration::from_micros;
        let span = Span::parse("[-1/3,2.50)").unwrap();
        let claim = Claim { resource: Resource::new("tree").unwrap(), mode: Mode::Prewrite, span, slots: None };
        Session {
            ancestors: vec![SessionId([7; 16])],
            claims: vec![ClaimRecord { claim, rank: Rank::waiting(5), token: 9, shares: true, slot: Some(1) }],
            phase: Phase::Waiting,
            asked: StoreTime::from_micros(1),
            since: StoreTime::from_micros(1),
            expiry: Some(StoreTime::from_micros(u64::MAX)),
            terms: Some(Terms { ttl: us(1), claim: us(2), heartbeat: us(3) }),
            job: Job { name: "job".into(), hold_at_least: Some(us(4)), ..Job::default() },
            last: Some(Ending::Signal(9)),
            process: Process {
                host: "höst".into(),
                pid: 4,
                user: String::new(),
                command: vec!["a b".into()],
                owner: Some("owner".into()),
                reason: None,
                lasts_for: None,
            },
            revoked: None,
            later: Vec::new(),
        }
    }

    #[test]
    fn session_record_round_trips() {
        let mut session = session();
        assert_eq!(decode_open(&encode_open(&session)), Ok(session.clone()));
        session.job.remember = Some(Duration::from_secs(9));
        session.revoked = Some(Revocation { at: StoreTime::from_micros(7), by: session.process.clone() });
        assert_eq!(decode_open(&encode_open(&session)), Ok(session));
    }

    #[test]
    fn field_of_a_later_version_stays_with_its_record() {
        let later = vec![(200, vec![1, 2, 3]), (201, Vec::new())];
        let session = Session { later: later.clone(), ..session() };
        assert_eq!(decode_open(&encode_open(&session)), Ok(session));
        let past = Past { later, waits: vec![300, 301], bound: StoreTime::from_micros(9), ..Past::default() };
        assert_eq!(decode_open(&encode_open(&past)), Ok(past));
    }

    #[test]
    fn process_of_a_hold_is_an_optional_field_of_its_session() {
        let mut session = session();
        session.process.lasts_for = Some(Owner { pid: 9, started: 1 << 40 });
        let bytes = encode_open(&session);
        assert_eq!(decode_open(&bytes), Ok(session.clone()));
        session.process.lasts_for = None;
        assert!(bytes.starts_with(&encode_open(&session)), "the other bytes stay");
    }

    #[test]
    fn entry_of_a_later_version_is_skipped() {
        let entry = Entry {
            event: Event::Done(1),
            process: session().process,
            claims: Vec::new(),
            asked: StoreTime::default(),
            granted: None,
            ended: Ended::At(StoreTime::default()),
            token: None,
            origin: Origin { job: "j".into(), is_named: true, is_nested: false },
            slots: vec![2, 0],
            later: vec![(9, vec![9])],
        };
        let mut bytes = encode_open(&entry);
        assert_eq!(decode_entry(&bytes), Ok(Some(entry)));
        bytes[0] = EVENTS;
        assert_eq!(decode_entry(&bytes), Ok(None));
    }

    #[test]
    fn record_with_missing_or_extra_bytes_is_damaged() {
        let bytes = encode(&session());
        for len in 0..bytes.len() {
            assert_eq!(decode_open::<Session>(&bytes[..len]), Err(Damaged), "{len} of {} bytes", bytes.len());
        }
        assert_eq!(decode_open::<Session>(&[&bytes[..], &[0]].concat()), Err(Damaged));
    }

    #[test]
    fn decoding_of_any_bytes_ends_without_a_panic() {
        let bytes = encode(&session());
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = decode_open::<Session>(&bytes);
                let _ = decode::<Node>(&bytes);
                let _ = decode::<ResourceState>(&bytes);
                // An excessive length is refused before memory of that size is allocated.
                bytes.splice(at..at, [0xFF; 4]);
                let _ = decode_open::<Session>(&bytes);
            }
        }
    }

    #[test]
    fn both_kinds_of_node_round_trip() {
        let entry = Claimed {
            lower: Span::Whole.lower().clone(),
            upper: Span::Whole.upper().clone(),
            mode: Mode::Slot,
            rank: Rank::HELD,
            session: SessionId([1; 16]),
            claim: 0,
            shares: false,
            slot: None,
            slots: Some(3),
        };
        let child = Child {
            node: 3,
            first: entry.clone(),
            upper: entry.upper.clone(),
            held: Modes::ALL,
            waiting: Modes::EMPTY,
            first_waiting: Rank::LAST,
        };
        for root in [Node::Leaf(vec![entry]), Node::Inner(vec![child])] {
            let state = ResourceState { tree: Tree { root, next: 4 }, ..ResourceState::default() };
            assert_eq!(decode(&encode(&state)), Ok(state));
        }
    }
}
