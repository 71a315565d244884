//! Writes and reads the bytes of the table's records, format 3, in the encoding of postcard.
//!
//! The table writes the keys itself, because their order counts. A record is read whole or not at
//! all: input that is too short, too long or invalid is [`Damaged`].

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes that are not a record of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// Fails unless what must hold for a record does.
pub(super) fn ensure(holds: bool) -> Result<(), Damaged> {
    if holds { Ok(()) } else { Err(Damaged) }
}

pub(super) fn encode(record: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(record, Vec::with_capacity(256)).expect("every record has an encoding")
}

/// Decodes a record that fills all of `bytes`.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Damaged),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::index::{Child, Entry, Node, Rank, Tree};
    use crate::lock::mode::{Mode, Modes};
    use crate::lock::past::Ending;
    use crate::lock::records::{ClaimRecord, Phase, ResourceState, Session};
    use crate::lock::request::{Claim, Job, Process, SessionId, Terms};
    use crate::lock::resource::Resource;
    use crate::lock::span::Span;
    use crate::system::clock::StoreTime;

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
            },
        }
    }

    #[test]
    fn session_record_round_trips() {
        let session = session();
        assert_eq!(decode(&encode(&session)), Ok(session));
    }

    #[test]
    fn record_with_missing_or_extra_bytes_is_damaged() {
        let bytes = encode(&session());
        for len in 0..bytes.len() {
            assert_eq!(decode::<Session>(&bytes[..len]), Err(Damaged), "{len} of {} bytes", bytes.len());
        }
        assert_eq!(decode::<Session>(&[&bytes[..], &[0]].concat()), Err(Damaged));
    }

    #[test]
    fn decoding_of_any_bytes_ends_without_a_panic() {
        let bytes = encode(&session());
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = decode::<Session>(&bytes);
                let _ = decode::<Node>(&bytes);
                let _ = decode::<ResourceState>(&bytes);
                // An excessive length is refused before memory of that size is allocated.
                bytes.splice(at..at, [0xFF; 4]);
                let _ = decode::<Session>(&bytes);
            }
        }
    }

    #[test]
    fn both_kinds_of_node_round_trip() {
        let entry = Entry {
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
