//! Writes and reads the bytes of the table's records, format 1.
//!
//! Numbers are little-endian; a length precedes each text and each list. A record is read whole or
//! not at all: input that is too short, too long or invalid is [`Damaged`].

use std::time::Duration;

use super::beacon::Identity;
use crate::clock::{StoreTime, micros};
use crate::lock::endpoint::Endpoint;
use crate::lock::index::{Child, Entry, Node, Rank, Tree};
use crate::lock::mode::{Mode, Modes};
use crate::lock::records::{ClaimRecord, ResourceState, Session};
use crate::lock::request::{Claim, Process, SessionId, Terms};
use crate::lock::resource::Resource;
use crate::lock::span::{Cut, Span};

/// Bytes that are not a record of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// A type with an encoding in bytes.
pub(super) trait Record: Sized {
    /// Appends the encoding to `out`.
    fn write(&self, out: &mut Vec<u8>);
    /// Decodes a record from the front of `input`.
    fn read(input: &mut &[u8]) -> Result<Self, Damaged>;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        self.write(&mut out);
        out
    }

    /// Decodes a record that fills all of `bytes`.
    fn from_bytes(mut bytes: &[u8]) -> Result<Self, Damaged> {
        let record = Self::read(&mut bytes)?;
        if bytes.is_empty() { Ok(record) } else { Err(Damaged) }
    }
}

fn take<'a>(input: &mut &'a [u8], len: usize) -> Result<&'a [u8], Damaged> {
    let (head, tail) = input.split_at_checked(len).ok_or(Damaged)?;
    *input = tail;
    Ok(head)
}

macro_rules! number {
    ($($number:ty),+) => {$(
        impl Record for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
                let bytes = take(input, size_of::<$number>())?;
                bytes.try_into().map(<$number>::from_le_bytes).map_err(|_| Damaged)
            }
        }
    )+};
}

number!(u8, u32, u64);

impl Record for StoreTime {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_micros().write(out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        u64::read(input).map(Self::from_micros)
    }
}

impl Record for Duration {
    fn write(&self, out: &mut Vec<u8>) {
        micros(*self).write(out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        u64::read(input).map(Self::from_micros)
    }
}

impl Record for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        match u8::read(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged),
        }
    }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    u32::try_from(bytes.len()).expect("no record has 4 GiB").write(out);
    out.extend_from_slice(bytes);
}

fn read_bytes<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], Damaged> {
    let len = u32::read(input)? as usize;
    take(input, len)
}

fn read_str<'a>(input: &mut &'a [u8]) -> Result<&'a str, Damaged> {
    std::str::from_utf8(read_bytes(input)?).map_err(|_| Damaged)
}

impl Record for String {
    fn write(&self, out: &mut Vec<u8>) {
        write_bytes(self.as_bytes(), out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        read_str(input).map(str::to_owned)
    }
}

impl<T: Record> Record for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).expect("no list has 2^32 items").write(out);
        self.iter().for_each(|item| item.write(out));
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        let len = u32::read(input)?;
        (0..len).map(|_| T::read(input)).collect()
    }
}

impl<T: Record> Record for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(item) = self {
            item.write(out);
        }
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        if bool::read(input)? { T::read(input).map(Some) } else { Ok(None) }
    }
}

impl Record for SessionId {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        take(input, 16)?.try_into().map(Self).map_err(|_| Damaged)
    }
}

impl Record for Resource {
    fn write(&self, out: &mut Vec<u8>) {
        write_bytes(self.as_str().as_bytes(), out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        Self::new(read_str(input)?).map_err(|_| Damaged)
    }
}

impl Record for Mode {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Read => b'r',
            Self::Prewrite => b'p',
            Self::Write => b'w',
            Self::Slot => b's',
        });
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        match u8::read(input)? {
            b'r' => Ok(Self::Read),
            b'p' => Ok(Self::Prewrite),
            b'w' => Ok(Self::Write),
            b's' => Ok(Self::Slot),
            _ => Err(Damaged),
        }
    }
}

impl Record for Modes {
    fn write(&self, out: &mut Vec<u8>) {
        let modes: Vec<Mode> = Mode::ALL.into_iter().filter(|mode| self.contains(*mode)).collect();
        modes.write(out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        Vec::read(input).map(|modes| Self::of(&modes))
    }
}

impl Record for Rank {
    fn write(&self, out: &mut Vec<u8>) {
        self.to_bits().write(out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        u64::read(input).map(Self::from_bits)
    }
}

impl Record for Cut {
    fn write(&self, out: &mut Vec<u8>) {
        write_bytes(self.as_bytes(), out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        read_bytes(input).map(Self::from_bytes)
    }
}

impl Record for Endpoint {
    fn write(&self, out: &mut Vec<u8>) {
        write_bytes(self.text().as_bytes(), out);
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        Self::parse(read_str(input)?).map_err(|_| Damaged)
    }
}

impl Record for Span {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Whole => false.write(out),
            Self::Interval(interval) => {
                true.write(out);
                interval.lo_open().write(out);
                interval.hi_open().write(out);
                interval.lo().write(out);
                interval.hi().write(out);
            }
        }
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        if !bool::read(input)? {
            return Ok(Self::Whole);
        }
        let (lo_open, hi_open) = (bool::read(input)?, bool::read(input)?);
        let (lo, hi) = (Endpoint::read(input)?, Endpoint::read(input)?);
        Self::interval(lo, lo_open, hi, hi_open).map_err(|_| Damaged)
    }
}

/// Implements [`Record`] for structs: the fields are encoded one after the other.
macro_rules! fields {
    ($($name:ident { $($field:ident),+ })+) => {$(
        impl Record for $name {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)+
            }

            fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
                Ok(Self { $($field: Record::read(input)?),+ })
            }
        }
    )+};
}

fields! {
    Identity { inode, owner, users, pid, pids }
    Claim { resource, mode, span, slots }
    ClaimRecord { claim, rank, token, shares }
    Terms { ttl, claim, heartbeat }
    Process { host, pid, user, command }
    Session { ancestors, claims, since, expiry, terms, process }
    Entry { lower, upper, mode, rank, session, claim, shares }
    Child { node, first, upper, held, waiting, first_waiting }
    Tree { root, next }
    ResourceState { last_token, slots, slot_claims, shared_slots, held, waiting, tree }
}

impl Record for Node {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Leaf(entries) => {
                false.write(out);
                entries.write(out);
            }
            Self::Inner(children) => {
                true.write(out);
                children.write(out);
            }
        }
    }

    fn read(input: &mut &[u8]) -> Result<Self, Damaged> {
        if bool::read(input)? { Vec::read(input).map(Self::Inner) } else { Vec::read(input).map(Self::Leaf) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let us = Duration::from_micros;
        let span = Span::parse("[-1/3,2.50)").unwrap();
        let claim = Claim { resource: Resource::new("tree").unwrap(), mode: Mode::Prewrite, span, slots: None };
        Session {
            ancestors: vec![SessionId([7; 16])],
            claims: vec![ClaimRecord { claim, rank: Rank::waiting(5, true), token: 9, shares: true }],
            since: StoreTime::from_micros(1),
            expiry: Some(StoreTime::MAX),
            terms: Some(Terms { ttl: us(1), claim: us(2), heartbeat: us(3) }),
            process: Process { host: "höst".into(), pid: 4, user: String::new(), command: vec!["a b".into()] },
        }
    }

    #[test]
    fn a_record_comes_back_as_it_went() {
        let session = session();
        assert_eq!(Session::from_bytes(&session.to_bytes()), Ok(session));
    }

    #[test]
    fn too_few_or_too_many_bytes_are_damage() {
        let bytes = session().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Session::from_bytes(&bytes[..len]), Err(Damaged), "{len} of {} bytes", bytes.len());
        }
        assert_eq!(Session::from_bytes(&[&bytes[..], &[0]].concat()), Err(Damaged));
    }

    #[test]
    fn whatever_the_bytes_are_reading_them_ends_without_a_panic() {
        let bytes = session().to_bytes();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = Session::from_bytes(&bytes);
                let _ = Node::from_bytes(&bytes);
                let _ = ResourceState::from_bytes(&bytes);
                // An excessive length is refused before memory of that size is allocated.
                bytes.splice(at..at, [0xFF; 4]);
                let _ = Session::from_bytes(&bytes);
            }
        }
    }

    #[test]
    fn both_kinds_of_node_come_back() {
        let entry = Entry {
            lower: Span::Whole.lower().clone(),
            upper: Span::Whole.upper().clone(),
            mode: Mode::Slot,
            rank: Rank::HELD,
            session: SessionId([1; 16]),
            claim: 0,
            shares: false,
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
            assert_eq!(ResourceState::from_bytes(&state.to_bytes()), Ok(state));
        }
    }
}
