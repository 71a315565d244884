//! Prints the variables by which other rlocks find a lock of `rlock acquire`.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;

use super::context;
use crate::lock::records::Session;
use crate::lock::request::{Claim, SessionId};
use crate::lock::resource::Resource;

/// A line to print: the value of a variable, or none for a variable that is to be removed.
pub(super) type Line = (OsString, Option<String>);

/// What a session holds.
#[derive(Clone, Debug)]
pub(super) struct Held<'a> {
    pub(super) claims: &'a [Claim],
    /// The tokens, claim by claim.
    pub(super) tokens: &'a [u64],
    /// The numbers of the slots, in the order of the claims on slots.
    pub(super) slots: &'a [u32],
}

/// The variables for commands below these sessions, innermost first. `held` is what the innermost
/// session holds, if it still holds something, and `held_above` the resources of the others.
/// `place` are the variables that name the store.
pub(super) fn of(
    chain: &[SessionId],
    held: Option<Held<'_>>,
    held_above: &[Resource],
    place: Vec<(OsString, OsString)>,
    namespace: &str,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut line = |name: &str, value: Option<String>| {
        // A variable of an outer session must not stay behind.
        if value.is_some() || env::var_os(name).is_some() {
            lines.push((name.into(), value));
        }
    };
    let ids: Vec<_> = chain.iter().map(SessionId::to_string).collect();
    line(context::SESSION, ids.first().cloned());
    line(context::ANCESTORS, ids.get(1..).map(|above| above.join(",")));
    let held = held.as_ref();
    // Only a single claim has a variable of its own.
    let several = held.map(|held| held.claims).filter(|claims| claims.len() > 1).unwrap_or_default();
    let names: Vec<_> = several.iter().map(|claim| &claim.resource).chain(held_above).collect();
    line(context::HELD, (!names.is_empty()).then(|| context::as_held(names)));
    line(context::TOKEN, held.and_then(|held| held.tokens.iter().max()).map(u64::to_string));
    let single = held.and_then(|held| if let [claim] = held.claims { Some((claim, held.slots)) } else { None });
    line(context::RESOURCE, single.map(|(claim, _)| claim.resource.to_string()));
    line(context::MODE, single.map(|(claim, _)| claim.mode.to_string()));
    line(context::SLOT, single.and_then(|(_, slots)| slots.first()).map(u32::to_string));
    if !chain.is_empty() {
        line(context::NAMESPACE, Some(namespace.to_owned()));
        let store = place.into_iter().filter(|(name, _)| name != context::NAMESPACE);
        lines.extend(store.map(|(name, value)| (name, Some(value.to_string_lossy().into_owned()))));
    }
    lines
}

/// What a session of the store holds, in the parts of [`Held`].
pub(super) fn parts(session: &Session) -> (Vec<Claim>, Vec<u64>, Vec<u32>) {
    let claims = session.claims.iter().map(|record| record.claim.clone()).collect();
    (claims, session.tokens(), session.slots())
}

/// The lines for a file of variables, or with `export` for the `eval` of a shell.
pub(super) fn text(lines: &[Line], export: bool) -> String {
    let mut text = String::new();
    for (name, value) in lines {
        let name = name.to_string_lossy();
        // Writing to a String cannot fail.
        let _ = match (export, value) {
            (true, Some(value)) => writeln!(text, "export {name}='{}'", value.replace('\'', "'\\''")),
            (true, None) => writeln!(text, "unset {name}"),
            (false, value) => writeln!(text, "{name}={}", value.as_deref().unwrap_or_default()),
        };
    }
    text
}

/// The text for the `eval` of a shell after a failure: a command that fails with this code.
pub(super) fn failed(code: u8) -> String {
    format!("(exit {code})\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::mode::Mode;
    use crate::lock::span::Span;

    /// "RLOCK_STORE unless it is the default": then there is no place.
    #[test]
    fn single_claim_has_its_resource_and_the_default_store_has_no_line() {
        let session = SessionId([7; 16]);
        let claim =
            Claim { resource: Resource::new("k").unwrap(), mode: Mode::Slot, span: Span::Whole, slots: Some(3) };
        let one = Held { claims: std::slice::from_ref(&claim), tokens: &[9], slots: &[2] };
        let lines = of(&[session, session], Some(one), &[], Vec::new(), "n");
        let expected = format!(
            "RLOCK_SESSION={session}\nRLOCK_ANCESTORS={session}\nRLOCK_TOKEN=9\nRLOCK_RESOURCE=k\nRLOCK_MODE=slot\n\
             RLOCK_SLOT=2\nRLOCK_NAMESPACE=n\n"
        );
        assert_eq!(text(&lines, false), expected);
        let claims = [claim.clone(), claim];
        let two = Held { claims: &claims, tokens: &[9, 11], slots: &[2, 0] };
        let place = vec![("RLOCK_NAMESPACE".into(), "n".into()), ("RLOCK_STORE".into(), "file:///d".into())];
        let lines = of(&[session], Some(two), &[], place, "n");
        let expected = format!(
            "RLOCK_SESSION={session}\nRLOCK_ANCESTORS=\nRLOCK_HELD=k,k\nRLOCK_TOKEN=11\nRLOCK_NAMESPACE=n\nRLOCK_STORE=file:///d\n"
        );
        assert_eq!(text(&lines, false), expected);
    }

    #[test]
    fn shell_gets_any_value_and_a_file_gets_one_line_each() {
        let lines =
            [("A".into(), Some("it's; $(x)".to_owned())), ("B".into(), None), ("C".into(), Some(String::new()))];
        assert_eq!(text(&lines, true), "export A='it'\\''s; $(x)'\nunset B\nexport C=''\n");
        assert_eq!(text(&lines, false), "A=it's; $(x)\nB=\nC=\n");
    }
}
