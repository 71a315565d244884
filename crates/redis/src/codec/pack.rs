//! Packs the values that the scripts keep as they are: arrays of numbers and bytes in MessagePack,
//! which every server's Lua can read.

use std::collections::BTreeMap;
use std::time::Duration;

use rmp::encode::{ByteBuf, RmpWrite as _, write_array_len, write_str_len, write_uint};

use rlock_model::request::{Claim, Job, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_sys::clock::micros;

/// The longest duration in a call, a century, which is that of [`EVER`](rlock_model::kept::EVER).
/// Added to any instant it stays below 2^53, where the numbers of Lua are exact.
pub(super) const TIME_MAX: u64 = 1 << 52;

/// The part of a request's records that never changes.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    pub(super) terms: Terms,
    pub(super) session: SessionId,
    pub(super) ancestors: String,
    pub(super) process: String,
    pub(super) job: Job,
}

/// A length of time in microseconds, or 0 for none.
pub(super) fn optional_micros(of: Option<Duration>) -> u64 {
    of.map_or(0, |length| micros(length).clamp(1, TIME_MAX))
}

/// Packs the part of a request's records that never changes.
pub(super) fn fixed(fixed: &Fixed, channel: &str) -> Vec<u8> {
    let mut packed = ByteBuf::new();
    let Job {
        name, is_named, once_per, skips, hold_at_least, keep_for, is_acquire, history, held_above, remember, ..
    } = &fixed.job;
    array(&mut packed, 16);
    length(&mut packed, fixed.terms.claim);
    length(&mut packed, fixed.terms.heartbeat);
    bytes(&mut packed, channel.as_bytes());
    bytes(&mut packed, fixed.ancestors.as_bytes());
    bytes(&mut packed, fixed.process.as_bytes());
    number(&mut packed, (*history).into());
    bytes(&mut packed, name.as_bytes());
    number(&mut packed, optional_micros(once_per.map(|once| once.period)));
    let calendar = once_per.and_then(|once| once.calendar).map(|calendar| [calendar.start, calendar.next]);
    array(&mut packed, calendar.map_or(0, |starts| starts.len()));
    calendar.iter().flatten().for_each(|start| number(&mut packed, start.as_micros()));
    number(&mut packed, (*is_named).into());
    number(&mut packed, (*skips).into());
    number(&mut packed, optional_micros(*hold_at_least));
    number(&mut packed, optional_micros(*keep_for));
    number(&mut packed, (*is_acquire).into());
    array(&mut packed, held_above.len());
    held_above.iter().for_each(|name| bytes(&mut packed, name.as_str().as_bytes()));
    number(&mut packed, optional_micros(*remember));
    packed.into_vec()
}

/// The claims of a request. Each claim has the number of its resource, which counts from 1.
pub(super) fn claims(claims: &[Claim], resources: &[Resource]) -> Vec<u8> {
    let numbers: BTreeMap<&Resource, u64> = resources.iter().zip(1..).collect();
    let mut packed = ByteBuf::new();
    array(&mut packed, claims.len());
    for Claim { resource, mode, span, slots } in claims {
        array(&mut packed, 6);
        number(&mut packed, numbers[resource]);
        bytes(&mut packed, &mode.as_str().as_bytes()[..1]);
        number(&mut packed, slots.unwrap_or(0).into());
        bytes(&mut packed, span.lower().as_bytes());
        bytes(&mut packed, span.upper().as_bytes());
        let text = if span.is_whole() { String::new() } else { span.to_string() };
        bytes(&mut packed, text.as_bytes());
    }
    packed.into_vec()
}

/// Begins an array of so many values.
fn array(packed: &mut ByteBuf, len: usize) {
    let Ok(_) = write_array_len(packed, u32::try_from(len).expect("a request has fewer than 2^32 claims"));
}

fn number(packed: &mut ByteBuf, number: u64) {
    let Ok(_) = write_uint(packed, number);
}

/// Adds a length of time in microseconds.
fn length(packed: &mut ByteBuf, of: Duration) {
    number(packed, micros(of).min(TIME_MAX));
}

/// Adds bytes as a text: the Lua of the servers does not know the type for bytes.
fn bytes(packed: &mut ByteBuf, bytes: &[u8]) {
    let Ok(_) = write_str_len(packed, u32::try_from(bytes.len()).expect("a request is shorter than 4 GiB"));
    let Ok(()) = packed.write_bytes(bytes);
}
