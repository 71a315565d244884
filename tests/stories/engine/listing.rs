//! Reads the lock table from the JSON of `rlock inspect`.

use serde_json::Value;

use super::dump::{self, Row, State};
use super::step::Label;

/// The rows of a listing. `label` names the session of a claim.
pub(super) fn rows(json: &Value, mut label: impl FnMut(&Value) -> Label) -> Vec<Row> {
    let mut rows = Vec::new();
    for resource in items(&json["resources"]) {
        let mut add = |claim: &Value, state| {
            let words = dump::claim(
                &text(&claim["mode"]),
                claim["slots"].as_u64().zip(claim["count"].as_u64()),
                span(&claim["span"]),
            );
            rows.push(Row { resource: text(&resource["name"]), label: label(claim), claim: words, state });
        };
        for holder in items(&resource["holders"]) {
            add(holder, State::Held(number(&holder["token"])));
        }
        for waiter in items(&resource["waiters"]) {
            add(waiter, State::Waits(number(&waiter["position"])));
        }
    }
    rows
}

fn span(span: &Value) -> Option<String> {
    let bracket = |open: &str, closed, end| if span[open] == Value::Bool(true) { end } else { closed };
    span.is_object().then(|| {
        let (before, after) = (bracket("lo_open", '[', '('), bracket("hi_open", ']', ')'));
        format!("{before}{},{}{after}", text(&span["lo"]), text(&span["hi"]))
    })
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("expected a list, got {value}"))
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("expected a string, got {value}")).to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("expected a number, got {value}"))
}
