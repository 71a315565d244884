//! Parses what a resource remembers.

use redis::Value;

use super::value::{self, ending, instant, length, list, mode, name, number, small, span, streak, text};
use rlock_model::mode::Mode;
use rlock_model::past::{
    Ended, EndingError, Entry, Event, JobPast, Origin, Past, Remembered, Spared, Superseded, Totals, WaitEnd,
};
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_sys::clock::StoreTime;

pub(super) fn remembered(value: &Value) -> Option<Remembered> {
    let [resource, past, entries] = list(value)? else { return None };
    let resource = name(resource)?;
    let [outcome, jobs, ended, entered, success, ends, held, waited, busy, lost, expired, bound] = list(past)? else {
        return None;
    };
    let listed = list(entries)?;
    // The script lists the newest first.
    let entries = listed.iter().rev().map(|value| entry(value, &resource)).collect::<Option<Vec<_>>>()?;
    let entered = number(entered)?;
    let past = Past {
        last: ending(outcome)?.zip(instant(ended)),
        last_success: optional(success)?,
        jobs: list(jobs)?.iter().map(job).collect::<Option<_>>()?,
        totals: Totals {
            ended: number(ends)?,
            busy: number(busy)?,
            lost: number(lost)?,
            expired: number(expired)?,
            waited: length(waited)?,
            held: length(held)?,
        },
        bound: instant(bound)?,
        ring: entered.saturating_sub(listed.len() as u64)..entered,
        ..Past::default()
    };
    Some(Remembered { name: resource, past, entries: entries.into_iter().flatten().collect() })
}

/// An instant, or `None` for 0.
fn optional(value: &Value) -> Option<Option<StoreTime>> {
    instant(value).map(|instant| Some(instant).filter(|instant| *instant > StoreTime::default()))
}

fn job(value: &Value) -> Option<(String, JobPast)> {
    let [name, success, count, since, last, _, process, period, ended, spared, first_spared, _, before, at, by] =
        list(value)?
    else {
        return None;
    };
    let streak = match number(count)? {
        0 => None,
        _ => streak(&Value::Array([count, since, last, process].map(Value::clone).to_vec()))?,
    };
    let spared = match small(spared)? {
        0 => None,
        count => Some(Spared { count, since: instant(first_spared)?, entry: None }),
    };
    let (success, ended) = (optional(success)?, optional(ended)?);
    let superseded = match number(before)? {
        0 => None,
        before => Some(Superseded { before, at: instant(at)?, by: value::process(by)? }),
    };
    Some((text(name)?.to_owned(), JobPast { success, period: length(period)?, spared, ended, streak, superseded }))
}

/// An entry; `None` inside if a later version has written it about something else.
fn entry(value: &Value, resource: &Resource) -> Option<Option<Entry>> {
    let [outcome, times, asked, granted, ended, token, claims, fixed, nested @ ..] = list(value)? else { return None };
    let event = match text(outcome)? {
        "skipped" => Event::Skipped(small(times)?),
        "done" => Event::Done(small(times)?),
        words => match (words.parse(), WaitEnd::ALL.into_iter().find(|how| how.as_str() == words)) {
            (Ok(ending), _) => Event::Ended(ending),
            (_, Some(how)) => {
                Event::Waited { how, count: small(times)?, sum: length(granted)?, longest: length(token)? }
            }
            (Err(EndingError), None) => return Some(None),
        },
    };
    let [_, _, _, _, process, _, job, _, _, is_named, ..] = list(fixed)? else { return None };
    // The sum and the longest of some waits are in place of the grant and the token.
    let was_granted = !matches!(event, Event::Waited { .. });
    Some(Some(Entry {
        event,
        process: value::process(process)?,
        slots: if matches!(event, Event::Ended(_)) { slots(list(claims)?)? } else { Vec::new() },
        claims: list(claims)?.iter().map(|value| claim(value, resource)).collect::<Option<_>>()?,
        asked: instant(asked)?,
        granted: optional(granted)?.filter(|_| was_granted),
        ended: Ended::At(instant(ended)?),
        token: Some(number(token)?).filter(|token| *token > 0 && was_granted),
        origin: Origin { job: text(job)?.to_owned(), is_named: number(is_named)? == 1, is_nested: !nested.is_empty() },
        later: Vec::new(),
    }))
}

fn claim(value: &Value, resource: &Resource) -> Option<Claim> {
    let [_, mode, slots, _, _, part, ..] = list(value)? else { return None };
    // A share of a slot is a claim on a slot.
    let mode = if text(mode)? == "h" { Mode::Slot } else { self::mode(mode)? };
    let slots = (mode == Mode::Slot).then_some(small(slots)?);
    Some(Claim { resource: resource.clone(), mode, span: span(part)?, slots })
}

/// The numbers of the slots that were held. A sole holder has the number 0, which its claim leaves
/// out.
fn slots(claims: &[Value]) -> Option<Vec<u32>> {
    let number = |claim: &Value| match list(claim)? {
        [_, mode, _, _, _, _, _, slot] if matches!(text(mode)?, "s" | "h") => small(slot).map(Some),
        [_, mode, ..] => Some((text(mode)? == "s").then_some(0)),
        _ => None,
    };
    let numbers = claims.iter().map(number).collect::<Option<Vec<_>>>()?;
    Some(numbers.into_iter().flatten().collect())
}
