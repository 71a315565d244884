//! Builds the claims of a request from the matched words.

use clap::ArgMatches;

use crate::lock::endpoint::Endpoint;
use crate::lock::mode::Mode;
use crate::lock::request::{self, CLAIMS_MAX, Claim, NAMES_MAX};
use crate::lock::resource::Resource;
use crate::lock::span::Span;

use super::args::id;
use super::usage::Mistake;
use super::values::{self, Slots};
use crate::words::shell_quoted;

/// The claims of `exec`, in the order of the command line, each span of a resource at most once.
pub(super) fn of_exec(matches: &ArgMatches) -> Result<Vec<Claim>, Mistake> {
    only_one_bare_key(matches)?;
    all(matches)
}

/// The claims of `acquire`, as those of `exec`.
pub(super) fn of_acquire(matches: &ArgMatches) -> Result<Vec<Claim>, Mistake> {
    if let Some([key, stray]) = stray(matches) {
        let text = format!("unexpected second KEY '{stray}': for two locks write {}", two_writes(key, stray));
        return Err(Mistake::plain(text));
    }
    all(matches)
}

fn all(matches: &ArgMatches) -> Result<Vec<Claim>, Mistake> {
    let mut claims = Vec::new();
    for (id, mode) in
        [(id::KEY, Mode::Write), (id::READ, Mode::Read), (id::PREWRITE, Mode::Prewrite), (id::WRITE, Mode::Write)]
    {
        claims
            .extend(with_places::<Resource>(matches, id).map(|(place, resource)| (place, whole(resource, mode, None))));
    }
    let slots = || with_places::<Slots>(matches, id::SLOT);
    claims.extend(slots().map(|(place, its)| (place, whole(&its.resource, Mode::Slot, Some(its.of)))));
    for (id, mode) in
        [(id::RANGE_READ, Mode::Read), (id::RANGE_PREWRITE, Mode::Prewrite), (id::RANGE_WRITE, Mode::Write)]
    {
        for range in ranges(matches, id) {
            let (place, [key, interval]) = range;
            let claim = interval_claim(key, interval, mode);
            claims.push((place, claim.map_err(|reason| Mistake::plain(format!("--{id}: {reason}")))?));
        }
    }
    claims.sort_by_key(|(place, _)| *place);

    let mut merged: Vec<Claim> = Vec::with_capacity(claims.len());
    for (_, claim) in claims {
        merge_into(&mut merged, claim)?;
        if merged.len() > CLAIMS_MAX {
            break;
        }
    }
    if merged.is_empty() {
        return Err(Mistake::plain(
            "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write",
        ));
    }
    // Each slot is a claim of its own.
    for (_, Slots { resource, taken, .. }) in slots() {
        let place = merged.iter().position(|claim| claim.resource == *resource).unwrap_or_default();
        let more = taken.saturating_sub(1).min(CLAIMS_MAX);
        merged.splice(place..place, vec![merged[place].clone(); more]);
    }
    if merged.len() > CLAIMS_MAX || request::resources(&merged).len() > NAMES_MAX {
        return Err(Mistake::plain(format!(
            "too many claims: a request has at most {NAMES_MAX} names and {CLAIMS_MAX} claims"
        )));
    }
    Ok(merged)
}

/// Refuses a second bare KEY. It is nearly always the first word of a command without its `--`. If
/// rlock locked that name, it would run the rest of the command line, on this host.
fn only_one_bare_key(matches: &ArgMatches) -> Result<(), Mistake> {
    let Some([key, stray]) = stray(matches) else { return Ok(()) };
    let two_writes = two_writes(key, stray);
    if matches.contains_id(id::SHELL_COMMAND) {
        return Err(Mistake::plain(format!(
            "unexpected '{stray}' beside KEY '{key}': -c takes one STRING and no arguments; \
             for two locks write {two_writes}"
        )));
    }
    Err(Mistake::plain(format!(
        "unexpected second KEY '{stray}': did you forget -- before the command? for two locks write {two_writes}"
    )))
}

/// The bare KEY and the word after it, if there is one.
fn stray(matches: &ArgMatches) -> Option<[&str; 2]> {
    let stray = matches.get_many::<String>(id::STRAY)?.next()?;
    Some([matches.get_one::<Resource>(id::KEY).map_or("", Resource::as_str), stray])
}

/// The words that claim both resources for writing.
fn two_writes(one: &str, other: &str) -> String {
    format!("--write {} --write {}", shell_quoted(one), shell_quoted(other))
}

/// The values of an argument, each with its position among the words.
pub(super) fn with_places<'a, T>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = (usize, &'a T)>
where
    T: Clone + Send + Sync + 'static,
{
    let places = matches.indices_of(id).into_iter().flatten();
    places.zip(matches.get_many::<T>(id).into_iter().flatten())
}

/// A claim on the whole of a resource.
fn whole(resource: &Resource, mode: Mode, slots: Option<u32>) -> Claim {
    Claim { resource: resource.clone(), mode, span: Span::Whole, slots }
}

/// The pairs of values of an option for an interval, each with its position among the words.
fn ranges<'a>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = (usize, [&'a str; 2])> {
    let mut values = with_places::<String>(matches, id);
    std::iter::from_fn(move || {
        let ((place, key), (_, interval)) = (values.next()?, values.next()?);
        Some((place, [key.as_str(), interval.as_str()]))
    })
}

/// The claim on an interval that one word describes.
fn interval_claim(key: &str, interval: &str, mode: Mode) -> Result<Claim, String> {
    let resource = values::resource(key)?;
    if !interval.starts_with(['[', '(']) {
        return Err(format!("'{interval}' is not an interval: write it as one word, such as '[1.2,1.8)'"));
    }
    let span = Span::parse(interval).map_err(|error| error.to_string())?;
    Ok(Claim { resource, mode, span, slots: None })
}

/// Adds a claim. Of two claims on the same span, the stronger mode counts, as it allows what either
/// mode allows. Slots have no such order.
fn merge_into(merged: &mut Vec<Claim>, claim: Claim) -> Result<(), Mistake> {
    let key = &claim.resource;
    for earlier in merged.iter_mut().filter(|earlier| earlier.resource == *key) {
        match (earlier.slots, claim.slots) {
            (Some(one), Some(other)) if one != other => {
                let text = format!("'{key}' cannot have both {one} and {other} slots: give one --slot {key}=N");
                return Err(Mistake::plain(text));
            }
            (Some(_), Some(_)) => {
                let text = format!("'{key}' has two slots in one request: give one --slot {key}=N");
                return Err(Mistake::plain(text));
            }
            (None, None) if earlier.span == claim.span => {
                earlier.mode = earlier.mode.max(claim.mode);
                return Ok(());
            }
            (None, None) => {}
            _ => {
                let text = format!("--slot cannot be combined with another mode on '{key}': give one of them");
                return Err(Mistake::plain(text));
            }
        }
    }
    merged.push(claim);
    Ok(())
}

/// The claim of `range-*` in this mode.
pub(super) fn of_range(matches: &ArgMatches, mode: Mode) -> Result<Claim, Mistake> {
    let Some(resource) = matches.get_one::<Resource>(id::KEY).cloned() else {
        return Err(Mistake::plain("nothing to lock: name a KEY and its interval, LO HI or '[LO,HI)'"));
    };
    Ok(Claim { resource, mode, span: span(matches)?, slots: None })
}

/// The interval in the words LO HI, or in one word such as `[LO,HI)`.
pub(super) fn span(matches: &ArgMatches) -> Result<Span, Mistake> {
    let word = |id| matches.get_one::<String>(id).map(String::as_str);
    let span = match (word(id::LO), word(id::HI)) {
        (Some(interval), None) if interval.starts_with(['[', '(']) => Span::parse(interval),
        (Some(interval), Some(word)) if interval.starts_with(['[', '(']) => {
            let text = format!("unexpected '{word}' after the interval '{interval}': put the command after --");
            return Err(Mistake::plain(text));
        }
        (Some(lo), Some(hi)) => Span::closed(endpoint(lo)?, endpoint(hi)?),
        (Some(lo), None) => {
            return Err(Mistake::plain(format!("the interval from '{lo}' lacks its end: write LO HI or '[LO,HI)'")));
        }
        (None, _) => return Err(Mistake::plain("no interval: write LO HI or '[LO,HI)' after the KEY")),
    };
    span.map_err(|error| Mistake::plain(error.to_string()))
}

fn endpoint(word: &str) -> Result<Endpoint, Mistake> {
    Endpoint::parse(word).map_err(|error| Mistake::plain(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::Invocation;
    use super::super::tests::{mistake, parsed};

    /// Returns the claims of a command line, each as `mode resource` with its span or slots.
    fn claims(line: &str) -> Vec<String> {
        let Ok(Invocation::Exec(exec)) = parsed(line) else { panic!("'{line}' should be parsed") };
        let slots = |slots: Option<u32>| slots.map(|slots| format!("={slots}")).unwrap_or_default();
        exec.request
            .claims
            .iter()
            .map(|claim| format!("{} {}{} {}", claim.mode, claim.resource, slots(claim.slots), claim.span))
            .collect()
    }

    #[test]
    fn claims_keep_the_order_of_the_command_line() {
        let line = "exec --slot s=3 b --read a --write c --prewrite d --write e -q --write f -- true";
        assert_eq!(
            claims(line),
            [
                "slot s=3 whole",
                "write b whole",
                "read a whole",
                "write c whole",
                "prewrite d whole",
                "write e whole",
                "write f whole"
            ]
        );
    }

    #[test]
    fn stronger_of_two_modes_on_one_resource_counts() {
        assert_eq!(claims("exec --read a --prewrite a -- true"), ["prewrite a whole"]);
        assert_eq!(claims("exec --write a --read b --read a -- true"), ["write a whole", "read b whole"]);
        assert_eq!(claims("exec a --read a -- true"), ["write a whole"]);
        assert_eq!(claims("exec --write a --write a -- true"), ["write a whole"]);
    }

    #[test]
    fn several_intervals_stand_beside_other_claims() {
        let line = "exec --range-write t [1,2) --read c --range-read t (5,6] k --range-write t (-inf,0] -- true";
        assert_eq!(
            claims(line),
            ["write t [1,2)", "read c whole", "read t (5,6]", "write k whole", "write t (-inf,0]"]
        );
        let line = "exec --range-read t [1,2] --range-write t [1.0,2] --read t --range-read t [1,2) -- true";
        assert_eq!(claims(line), ["write t [1,2]", "read t whole", "read t [1,2)"]);
        let text = "--slot cannot be combined with another mode on 't': give one of them";
        assert_eq!(mistake("exec --range-read t [1,2] --slot t=3 -- true"), text);
    }

    #[test]
    fn second_bare_key_is_rejected_with_advice_to_write_the_separator() {
        let text = "unexpected second KEY 'ssh': did you forget -- before the command? for two locks write \
                    --write deploy --write ssh";
        for line in [
            "exec deploy ssh db1 -- hostname",
            "exec deploy -n ssh -- hostname",
            "exec --read x deploy ssh -- hostname",
            "exec deploy ssh",
            "exec deploy ssh db1 -w 5",
        ] {
            assert_eq!(mistake(line), text, "{line}");
        }
        let text = "unexpected second KEY 'it's': did you forget -- before the command? for two locks write \
                    --write 'a b' --write 'it'\\''s'";
        assert_eq!(mistake("exec a_b it's -- c"), text);
        assert!(mistake("exec a a -- true").starts_with("unexpected second KEY 'a': "));
    }

    #[test]
    fn bare_key_after_the_c_string_is_rejected() {
        let text = "unexpected 'extra' beside KEY 'k': -c takes one STRING and no arguments; for two locks write \
                    --write k --write extra";
        assert_eq!(mistake("exec k -c x extra"), text);
        assert_eq!(mistake("exec k extra -c x"), text);
        for line in ["exec -c x k", "exec --read r -c x k", "range-read -c x k 1 2"] {
            let text = "KEY 'k' stands after -c: put KEY before -c STRING, which takes no arguments";
            assert_eq!(mistake(line), text, "{line}");
        }
        assert_eq!(claims("exec -c x --write k"), ["write k whole"]);
        assert_eq!(claims("exec k -c x --read r -n"), ["write k whole", "read r whole"]);
    }

    #[test]
    fn slot_beside_another_claim_on_one_resource_is_rejected() {
        let text = "--slot cannot be combined with another mode on 'a': give one of them";
        assert_eq!(mistake("exec --slot a=2 --read a -- true"), text);
        assert_eq!(mistake("exec a --slot a=2 -- true"), text);
        let text = "'a' cannot have both 2 and 3 slots: give one --slot a=N";
        assert_eq!(mistake("exec --slot a=2 --slot a=3 -- true"), text);
        let text = "'a' has two slots in one request: give one --slot a=N";
        assert_eq!(mistake("exec --slot a=2 --slot a=2 -- true"), text);
        assert_eq!(mistake("acquire --slot a=2 --for 1s --slot a=2"), text);
    }

    #[test]
    fn range_subcommand_gives_a_mode_and_an_interval() {
        assert_eq!(claims("range-read t 1 2 -- true"), ["read t [1,2]"]);
        assert_eq!(claims("range-prewrite t [1,2) -- true"), ["prewrite t [1,2)"]);
        assert_eq!(claims("range-write t (-inf,2] -- true"), ["write t (-inf,2]"]);
    }

    #[test]
    fn negative_numbers_need_no_quoting_before_or_after_options() {
        for (line, claim) in [
            ("range-write tree -inf -3 -n -- cmd", "write tree [-inf,-3]"),
            ("range-write -n tree -22/7 5 -w 0 -- cmd", "write tree [-22/7,5]"),
            ("range-write tree -n -.5 -q -3e-9 -- cmd", "write tree [-.5,-3e-9]"),
            ("range-read tree -E 5 -3 -E 6 -1 -- cmd -9", "read tree [-3,-1]"),
            ("range-read --store file:///x tree -3 --ttl 9s -1 --grace 1s -- cmd", "read tree [-3,-1]"),
            ("--namespace n range-read tree -3 -1 -- cmd", "read tree [-3,-1]"),
            ("range-read -5 -3 inf -- cmd", "read -5 [-3,inf]"),
        ] {
            assert_eq!(claims(line), [claim], "{line}");
        }
    }

    #[test]
    fn invalid_interval_is_rejected_with_advice() {
        for (line, text) in [
            (
                "exec -- true",
                "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write",
            ),
            (
                "exec --range-read t 5 -- true",
                "--range-read: '5' is not an interval: write it as one word, such as '[1.2,1.8)'",
            ),
            ("exec --range-write t -- true", "--range-write needs KEY and INTERVAL; see 'rlock exec --help'"),
            ("exec --range-write t [5,3] -- true", "--range-write: the interval [5,3] ends before it starts"),
            ("range-read -- true", "nothing to lock: name a KEY and its interval, LO HI or '[LO,HI)'"),
            ("range-read t -- true", "no interval: write LO HI or '[LO,HI)' after the KEY"),
            ("range-read t 1 -- true", "the interval from '1' lacks its end: write LO HI or '[LO,HI)'"),
            ("range-read t [1,2] true -- x", "unexpected 'true' after the interval '[1,2]': put the command after --"),
            ("range-read t 5 3 -- true", "the interval [5,3] ends before it starts"),
        ] {
            assert_eq!(mistake(line), text, "{line}");
        }
        assert!(mistake("range-read t 1 x -- true").starts_with("'x' is not a number"));
    }
}
