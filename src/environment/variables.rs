//! Builds the variables by which an rlock finds the session that it runs below, for the command of
//! `exec` and as the lines of `acquire` and `release`.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;

use super::names;
use rlock_model::records::Session;
use rlock_model::request::{self, Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_store::percent;

/// A variable and its value, or none for a variable from outside that must not stay behind.
pub(crate) type Line = (&'static str, Option<String>);

/// Where the variables go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Into the environment of a command. A value has a line for each claim.
    Environment,
    /// To standard output, for a file with one line for each variable. So only a single claim has
    /// variables of its own, and several are named in [`names::HELD`]. Several slots of a
    /// resource are one claim here. [`names::HELD`] also has a name that some readers of such a
    /// file would change.
    File,
    /// To standard output, for the `eval` of a shell. The variables are those of a file.
    Shell,
}

impl Form {
    /// Whether a file with the value without quotes can name the resource: systemd, docker compose
    /// and the readers of dotenv files remove quotes, backslashes and blanks at the ends, and
    /// replace `$NAME`. A quote that nothing closes swallows the lines that follow, or is an error.
    /// To some of them, `#` begins a comment.
    fn can_name(self, resource: &Resource) -> bool {
        let name = resource.as_str();
        self != Form::File || name.trim() == name && !name.contains(['"', '\'', '`', '\\', '#', '$'])
    }
}

/// What a session holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) claims: &'a [Claim],
    /// The tokens, claim by claim; none before the grant.
    pub(crate) tokens: &'a [u64],
    /// The numbers of the slots, in the order of the claims on slots.
    pub(crate) slots: &'a [u32],
}

/// The variables for what runs below these sessions, innermost first. `held` is what the innermost
/// session holds, if it still holds something, and `held_above` the resources of the others.
/// `place` are the variables that name the store.
pub(crate) fn of(
    form: Form,
    chain: &[SessionId],
    held: Option<Held<'_>>,
    held_above: &[Resource],
    place: Vec<Line>,
) -> Vec<Line> {
    let Held { claims, tokens, slots } = held.unwrap_or(Held { claims: &[], tokens: &[], slots: &[] });
    let claims: Vec<_> = request::distinct(claims).collect();
    let has_own = form == Form::Environment || claims.len() == 1;
    let (own, slots) = if has_own { (&claims[..], slots) } else { (&[][..], &[][..]) };
    let (named, others) = if has_own && claims.iter().all(|claim| form.can_name(&claim.resource)) {
        (&claims[..], &[][..])
    } else {
        (&[][..], &claims[..])
    };
    let ids: Vec<_> = chain.iter().map(SessionId::to_string).collect();
    let above = ids.get(1..).map(|above| above.join(","));
    let names: Vec<_> = others.iter().map(|claim| &claim.resource).chain(held_above).collect();
    let mut variables = vec![
        (names::SESSION, ids.first().cloned()),
        (names::ANCESTORS, above.filter(|above| form != Form::Environment || !above.is_empty())),
        (names::HELD, (!names.is_empty()).then(|| as_held(names))),
        (names::TOKEN, tokens.iter().max().map(u64::to_string)),
        (names::RESOURCE, lines(named.iter().map(|claim| &claim.resource))),
        (names::MODE, lines(own.iter().map(|claim| claim.mode))),
        (names::SLOT, lines(slots)),
    ];
    variables.retain(is_due);
    if !chain.is_empty() {
        variables.extend(place);
    }
    variables
}

/// Whether a variable has a value, or a value from outside that would tell of another session.
pub(crate) fn is_due((name, value): &Line) -> bool {
    value.is_some() || env::var_os(name).is_some()
}

/// The values, one on each line.
fn lines<T: ToString>(values: impl IntoIterator<Item = T>) -> Option<String> {
    let values: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    (!values.is_empty()).then(|| values.join("\n"))
}

/// The variables for execve(2). A variable that must not stay behind is empty.
pub(crate) fn environment(variables: impl IntoIterator<Item = Line>) -> Vec<(OsString, OsString)> {
    variables.into_iter().map(|(name, value)| (name.into(), value.unwrap_or_default().into())).collect()
}

/// What a session of the store holds, in the parts of [`Held`].
pub(crate) fn parts(session: &Session) -> (Vec<Claim>, Vec<u64>, Vec<u32>) {
    let claims = session.claims.iter().map(|record| record.claim.clone()).collect();
    (claims, session.tokens(), session.slots())
}

/// The text for standard output.
pub(crate) fn text(form: Form, lines: &[Line]) -> String {
    let mut text = String::new();
    for (name, value) in lines {
        // Writing to a String cannot fail.
        let _ = match (form == Form::Shell, value) {
            (true, Some(value)) => writeln!(text, "export {name}='{}'", value.replace('\'', "'\\''")),
            (true, None) => writeln!(text, "unset {name}"),
            // Several numbers of slots have one line in a file.
            (false, value) => writeln!(text, "{name}={}", value.as_deref().unwrap_or_default().replace('\n', " ")),
        };
    }
    text
}

/// The text for the `eval` of a shell after a failure: a command that fails with this code.
pub(crate) fn failed(code: u8) -> String {
    format!("(exit {code})\n")
}

/// Names as the value of [`HELD`](names::HELD).
pub(crate) fn as_held<'r>(names: impl IntoIterator<Item = &'r Resource>) -> String {
    let names = names.into_iter().map(|name| percent::encode(name.as_str().as_bytes(), b"-._~/@+=:"));
    names.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::mode::Mode;
    use rlock_model::span::Span;

    /// "RLOCK_STORE unless it is the default": then there is no place.
    #[test]
    fn single_claim_has_its_resource_and_the_default_store_has_no_line() {
        let session = SessionId([7; 16]);
        let claim =
            Claim { resource: Resource::new("k").unwrap(), mode: Mode::Slot, span: Span::Whole, slots: Some(3) };
        let one = Held { claims: std::slice::from_ref(&claim), tokens: &[9], slots: &[2] };
        let place = || vec![("RLOCK_NAMESPACE", Some("n".to_owned()))];
        let lines = of(Form::File, &[session, session], Some(one), &[], place());
        let expected = format!(
            "RLOCK_SESSION={session}\nRLOCK_ANCESTORS={session}\nRLOCK_TOKEN=9\nRLOCK_RESOURCE=k\nRLOCK_MODE=slot\n\
             RLOCK_SLOT=2\nRLOCK_NAMESPACE=n\n"
        );
        assert_eq!(text(Form::File, &lines), expected);
        let slots = [claim.clone(), claim.clone()];
        let both = Held { claims: &slots, tokens: &[9, 9], slots: &[0, 2] };
        let lines = of(Form::File, &[session, session], Some(both), &[], place());
        assert_eq!(text(Form::File, &lines), expected.replace("RLOCK_SLOT=2", "RLOCK_SLOT=0 2"));
        assert!(text(Form::Shell, &lines).contains("export RLOCK_SLOT='0\n2'\n"));
        let claims = [claim.clone(), Claim { resource: Resource::new("m").unwrap(), ..claim }];
        let two = Held { claims: &claims, tokens: &[9, 11], slots: &[2, 0] };
        let store = [("RLOCK_STORE", Some("file:///d".to_owned()))];
        let lines = of(Form::File, &[session], Some(two), &[], place().into_iter().chain(store).collect());
        let expected = format!(
            "RLOCK_SESSION={session}\nRLOCK_ANCESTORS=\nRLOCK_HELD=k,m\nRLOCK_TOKEN=11\nRLOCK_NAMESPACE=n\nRLOCK_STORE=file:///d\n"
        );
        assert_eq!(text(Form::File, &lines), expected);
    }

    /// "A KEY that some readers of such lines would change is in `RLOCK_HELD` instead".
    #[test]
    fn name_that_a_reader_of_lines_would_change_is_percent_encoded() {
        let session = SessionId([7; 16]);
        for name in ["\"x", "it's", "a\\b", "a #b", "$x", "`x`", " x", "x\u{a0}"] {
            let claim =
                Claim { resource: Resource::new(name).unwrap(), mode: Mode::Slot, span: Span::Whole, slots: Some(3) };
            let held = Held { claims: std::slice::from_ref(&claim), tokens: &[9], slots: &[2] };
            let of = |form| of(form, &[session], Some(held), &[], Vec::new());
            let encoded = as_held([&claim.resource]);
            let expected = format!(
                "RLOCK_SESSION={session}\nRLOCK_ANCESTORS=\nRLOCK_HELD={encoded}\nRLOCK_TOKEN=9\nRLOCK_MODE=slot\n\
                 RLOCK_SLOT=2\n"
            );
            assert_eq!(text(Form::File, &of(Form::File)), expected);
            assert!(encoded.contains('%') && encoded.is_ascii());
            assert!(of(Form::Shell).contains(&("RLOCK_RESOURCE", Some(name.to_owned()))));
        }
    }

    /// "The resource; of several claims one on each line."
    #[test]
    fn command_has_a_line_for_each_claim_and_ancestors_only_if_it_is_nested() {
        let session = SessionId([7; 16]);
        let claim = |name, mode| Claim { resource: Resource::new(name).unwrap(), mode, span: Span::Whole, slots: None };
        let claims = [claim("a", Mode::Slot), claim("a", Mode::Slot), claim("b", Mode::Read), claim("c", Mode::Slot)];
        let held = Held { claims: &claims, tokens: &[9, 9, 11, 10], slots: &[1, 2, 0] };
        let value = |chain: &[SessionId], above: &[Resource], name| {
            let variables = environment(of(Form::Environment, chain, Some(held), above, Vec::new()));
            variables.into_iter().find(|(found, _)| found == name).map(|(_, value)| value.into_string().unwrap())
        };
        for (name, expected) in [
            ("RLOCK_RESOURCE", Some("a\nb\nc")),
            ("RLOCK_MODE", Some("slot\nread\nslot")),
            ("RLOCK_SLOT", Some("1\n2\n0")),
            ("RLOCK_TOKEN", Some("11")),
            ("RLOCK_ANCESTORS", None),
            ("RLOCK_HELD", None),
        ] {
            assert_eq!(value(&[session], &[], name).as_deref(), expected, "{name}");
        }
        let above = [Resource::new("x,y").unwrap()];
        assert_eq!(value(&[session, session], &above, "RLOCK_ANCESTORS"), Some(session.to_string()));
        assert_eq!(value(&[session, session], &above, "RLOCK_HELD").as_deref(), Some("x%2Cy"));
    }

    #[test]
    fn shell_gets_any_value_and_a_file_gets_one_line_each() {
        let lines = [("A", Some("it's; $(x)".to_owned())), ("B", None), ("C", Some(String::new()))];
        assert_eq!(text(Form::Shell, &lines), "export A='it'\\''s; $(x)'\nunset B\nexport C=''\n");
        assert_eq!(text(Form::File, &lines), "A=it's; $(x)\nB=\nC=\n");
    }
}
