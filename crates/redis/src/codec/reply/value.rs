//! Parses the values of which replies consist.

use std::time::Duration;

use redis::Value;

use rlock_model::mode::Mode;
use rlock_model::past::{Ending, Streak};
use rlock_model::request::{Owner, Process};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_sys::clock::StoreTime;

/// The skips of a job in a row, or `None` if there are none.
pub(super) fn streak(value: &Value) -> Option<Option<Streak>> {
    match list(value)? {
        [] => Some(None),
        [count, since, last, process] => Some(Some(Streak {
            count: small(count)?,
            since: instant(since)?,
            last: instant(last)?,
            command: self::process(process)?.command,
            entry: None,
        })),
        _ => None,
    }
}

/// How a hold ended, or `None` if that is not known.
pub(super) fn ending(value: &Value) -> Option<Option<Ending>> {
    match text(value)? {
        "" => Some(None),
        words => words.parse().ok().map(Some),
    }
}

pub(super) fn process(value: &Value) -> Option<Process> {
    let words: serde_json::Value = serde_json::from_str(text(value)?).ok()?;
    // A later version may say more of a process.
    let [host, pid, user, command, owner, reason, rest @ ..] = words.as_array()?.as_slice() else { return None };
    let lasts_for = rest.first().and_then(|owner| {
        Some(Owner { pid: owner.get(0)?.as_u64()?.try_into().ok()?, started: owner.get(1)?.as_u64()? })
    });
    let word = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let optional = |value: &serde_json::Value| if value.is_null() { Some(None) } else { word(value).map(Some) };
    Some(Process {
        host: word(host)?,
        pid: pid.as_u64()?.try_into().ok()?,
        user: word(user)?,
        command: command.as_array()?.iter().map(word).collect::<Option<_>>()?,
        owner: optional(owner)?,
        reason: optional(reason)?,
        lasts_for,
    })
}

pub(super) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => (*number).try_into().ok(),
        _ => None,
    }
}

pub(super) fn small(value: &Value) -> Option<u32> {
    number(value)?.try_into().ok()
}

pub(super) fn instant(value: &Value) -> Option<StoreTime> {
    number(value).map(StoreTime::from_micros)
}

pub(super) fn length(value: &Value) -> Option<Duration> {
    number(value).map(Duration::from_micros)
}

pub(super) fn name(value: &Value) -> Option<Resource> {
    Resource::new(text(value)?).ok()
}

pub(super) fn span(value: &Value) -> Option<Span> {
    match text(value)? {
        "" => Some(Span::Whole),
        written => Span::parse(written).ok(),
    }
}

pub(super) fn mode(value: &Value) -> Option<Mode> {
    let letter = text(value)?;
    Mode::ALL.into_iter().find(|mode| letter.len() == 1 && mode.as_str().starts_with(letter))
}
