//! The environment variables that the command gets, and those that rlock reads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, on_both};

/// Prints each RLOCK_ variable as `NAME=value`, with `|` for each end of line in the value.
const SHOW: &str = r#"for name in SESSION ANCESTORS TOKEN RESOURCE MODE STORE NAMESPACE; do
    eval "value=\${RLOCK_$name-unset}"; printf '%s=' "$name"; printf '%s' "$value" | tr '\n' '|'; echo; done"#;

type Variables = BTreeMap<String, String>;

fn variables(text: &str) -> Variables {
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().map(|line| pair(line).expect("a variable on each line")).collect()
}

#[track_caller]
fn shown(ran: &Ran) -> Variables {
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    variables(&ran.stdout)
}

fn token(variables: &Variables) -> u64 {
    variables["TOKEN"].parse().expect("a token is a number")
}

/// rlock sets these variables for the command: RLOCK_SESSION, RLOCK_TOKEN, RLOCK_RESOURCE,
/// RLOCK_MODE, and RLOCK_STORE and RLOCK_NAMESPACE if they were named.
#[test]
fn variables_of_the_command_describe_its_grant() {
    on_both(|lab| {
        let told = shown(&lab.run(["exec", "k", "-c", SHOW]));
        let session = &told["SESSION"];
        assert!(session.len() == 32 && session.bytes().all(|byte| byte.is_ascii_hexdigit()), "{session}");
        assert!(token(&told) > 1_500_000_000_000_000, "a token is no less than the clock in microseconds");
        let rest = ["ANCESTORS", "RESOURCE", "MODE", "STORE", "NAMESPACE"].map(|name| told[name].as_str());
        // A default is not exported. The lab names the namespace on a server.
        let namespace = if lab.is_on_server() { lab.namespace() } else { "unset" };
        assert_eq!(rest, ["unset", "k", "write", &lab.url(), namespace]);
        assert!(token(&shown(&lab.run(["exec", "k", "-c", SHOW]))) > token(&told));
    });
}

/// "LISTEN_PID, WATCHDOG_PID and SYSTEMD_EXEC_PID, where they name rlock, name the command."
#[test]
fn variables_that_name_rlock_name_the_command_and_others_stay() {
    let lab = Lab::new();
    let run = |options: &str| {
        let script = format!(
            "exec env LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$PPID LISTEN_PIDFDID=7 LISTEN_FDS=1 {RLOCK} exec \
             {options} k -- sh -c 'echo $$ $LISTEN_PID $WATCHDOG_PID $SYSTEMD_EXEC_PID $LISTEN_FDS ${{LISTEN_PIDFDID-none}}'"
        );
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        shell.args(["-c", &script]).output().expect("sh is there").stdout
    };
    for options in ["", "--until-ready"] {
        let told = String::from_utf8(run(options)).expect("it is text");
        let told: Vec<&str> = told.split_whitespace().collect();
        assert_eq!([told[1], told[2]], [told[0]; 2], "{told:?}");
        assert_eq!(told[3..], [&*std::process::id().to_string(), "1", "none"], "{told:?}");
    }
}

/// "of several claims the highest" token; of resources and modes "one on each line"
#[test]
fn variables_of_several_claims_keep_their_order() {
    let lab = Lab::new();
    let words =
        ["exec", "--read", "b", "--write", "a b", "--slot", "c=d=2", "--prewrite", "e", "--namespace", "n", "-c", SHOW];
    let told = shown(&lab.run(words));
    assert_eq!(
        [&told["RESOURCE"], &told["MODE"], &told["NAMESPACE"]],
        ["b|a b|c=d|e", "read|write|slot|prewrite", "n"]
    );
    let mut last = 0;
    for resource in ["a b", "b"] {
        last = last.max(token(&shown(&lab.run(["exec", "--namespace", "n", resource, "-c", SHOW]))));
    }
    let both = token(&shown(&lab.run(["exec", "--namespace", "n", "b", "--write", "a b", "-c", SHOW])));
    assert!(both > last, "{both} is not above {last}");
}

/// rlock refuses a request whose names do not fit into the command's environment (64) before the
/// request waits.
#[test]
fn names_too_long_for_the_environment_exit_64_before_the_wait() {
    let lab = Lab::new();
    let name = |number: usize| format!("{number:0>512}");
    let _holder = lab.hold(&name(0));
    let exec = |numbers: Range<usize>| {
        let claims = numbers.flat_map(|number| ["--write".to_owned(), name(number)]);
        lab.run(["exec".to_owned()].into_iter().chain(claims).chain(["-c".to_owned(), "exit 3".to_owned()]))
    };
    let text = "the names do not fit into the command's environment: RLOCK_RESOURCE would have 131343 bytes, \
                the limit is 131072; lock fewer resources at once, or give them shorter names";
    if rustix::param::page_size() == 4096 {
        exec(0..256).said(64, text);
    }
    assert_eq!(lab.counts(&name(0)), (1, 0));
    let acquire = |numbers: Range<usize>| {
        let claims = numbers.flat_map(|number| ["--write".to_owned(), name(number)]);
        lab.run(["acquire", "--for", "1h"].map(str::to_owned).into_iter().chain(claims))
    };
    let text = "the names do not fit into an environment: RLOCK_HELD would have 131339 bytes, \
                the limit is 131072; lock fewer resources at once, or give them shorter names";
    if rustix::param::page_size() == 4096 {
        acquire(0..256).said(64, text);
    }
    // This request does not ask for the resource that the holder holds, and its names fit.
    exec(1..255).silently(3);
}

/// "At most 256 names and 1,000 claims in a request"
#[test]
fn request_beyond_256_names_or_1000_claims_is_a_usage_error() {
    on_both(|lab| {
        let names = |count: u32| (0..count).flat_map(|name| ["--read".to_owned(), name.to_string()]);
        let parts = |count: u32| {
            (0..count).flat_map(|part| ["--range-write".to_owned(), "k".to_owned(), format!("[{part},{part}.5]")])
        };
        let exec = |claims: Vec<String>| {
            lab.run(["exec".to_owned()].into_iter().chain(claims).chain(["--".to_owned(), "true".to_owned()]))
        };
        let text = "too many claims: a request has at most 256 names and 1000 claims";
        for [fits, fails] in
            [[256, 257].map(|count| names(count).collect()), [1000, 1001].map(|count| parts(count).collect())]
        {
            let fails: Vec<String> = fails;
            exec(fits).silently(0);
            assert_eq!(exec(fails).failed(64).lines().next(), Some(text));
        }
    });
}

/// The token is a u64 that rises with every grant on a resource.
#[test]
fn tokens_rise_even_after_the_store_was_removed() {
    let lab = Lab::new();
    let mut last = 0;
    for round in 0..20 {
        if round == 10 {
            std::fs::remove_dir_all(lab.directory()).expect("the store can be removed");
        }
        let next = token(&shown(&lab.run(["exec", "k", "-c", SHOW])));
        assert!(next > last, "{next} is not above {last}");
        last = next;
    }
}

/// "A nested claim that is granted at once has the token of the hold around it." "the innermost
/// rlock's values win"
#[test]
fn nested_command_has_the_token_and_the_sessions_of_its_ancestors() {
    let lab = Lab::new();
    let nested = |inner: &[&str]| {
        let inner = inner.join(" ");
        let script = format!("{SHOW}; '{RLOCK}' exec --read other -c '\"{RLOCK}\" {inner} -c \"$SHOW\"'");
        let ran = Ran::of(lab.rlock(["exec", "k", "-c", &script]).env("SHOW", SHOW));
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
        let (outer, inner) = ran.stdout.split_at(ran.stdout.match_indices("SESSION=").nth(1).expect("two sessions").0);
        (variables(outer), variables(inner))
    };
    let (outer, inner) = nested(&["exec", "--read", "k"]);
    assert_eq!(token(&inner), token(&outer));
    assert_eq!([&inner["RESOURCE"], &inner["MODE"]], ["k", "read"]);
    let ancestors: Vec<_> = inner["ANCESTORS"].split(',').collect();
    assert_eq!((ancestors.len(), ancestors[1]), (2, outer["SESSION"].as_str()), "innermost first");
    assert!(!ancestors.contains(&inner["SESSION"].as_str()));
    let (outer, inner) = nested(&["exec", "elsewhere"]);
    assert!(token(&inner) > token(&outer));
}

/// A command that unsets RLOCK_SESSION is no descendant any more, and neither is any rlock below
/// it.
#[test]
fn unset_session_removes_the_ancestors_for_all_nested_rlocks() {
    let lab = Lab::new();
    let script = format!("unset RLOCK_SESSION; exec '{RLOCK}' exec j -- '{RLOCK}' exec -nq k -- true");
    let outer = format!("exec '{RLOCK}' exec i -c \"$INNER\"");
    Ran::of(lab.rlock(["exec", "k", "-c", &outer]).env("INNER", &script)).silently(75);
}

/// `--store` wins over RLOCK_STORE, and `--namespace` wins over RLOCK_NAMESPACE.
#[test]
fn options_win_over_variables() {
    let (lab, other) = (Lab::new(), Lab::new());
    let mut rlock = lab.rlock(["exec", "--store", &other.url(), "--namespace", "mine", "k", "-c", SHOW]);
    let told = shown(&Ran::of(rlock.env("RLOCK_NAMESPACE", "theirs")));
    assert_eq!([&told["STORE"], &told["NAMESPACE"]], [&other.url(), "mine"]);
    assert!(!lab.directory().exists() && other.directory().exists());
    let told = shown(&Ran::of(lab.rlock(["exec", "k", "-c", SHOW]).env("RLOCK_NAMESPACE", "theirs")));
    assert_eq!([&told["STORE"], &told["NAMESPACE"]], [&lab.url(), "theirs"]);
    // An empty RLOCK_NAMESPACE is an error, unless an option names the namespace.
    let text = "RLOCK_NAMESPACE is empty: unset RLOCK_NAMESPACE, or set RLOCK_NAMESPACE to the name of a namespace";
    Ran::of(lab.rlock(["exec", "k", "-c", SHOW]).env("RLOCK_NAMESPACE", "")).said(64, text);
    Ran::of(lab.rlock(["inspect", "--names", "--namespace", "n"]).env("RLOCK_NAMESPACE", "")).silently(0);
    assert_eq!(lab.run(["exec", "k", "--namespace", "rlock", "-c", "exit 3"]).code(), Some(3));
}

/// An empty RLOCK_STORE is a usage error, since it is often a secret that is missing.
#[test]
fn empty_store_variable_is_a_usage_error() {
    let lab = Lab::new();
    let text = "RLOCK_STORE is empty: set RLOCK_STORE to embedded for the embedded store, or to the URL of a store";
    for words in [&["exec", "k", "--", "true"][..], &["inspect"], &["cleanup"], &["downgrade", "read"]] {
        Ran::of(lab.rlock(words).env("RLOCK_STORE", "")).said(64, text);
    }
    // With `--store`, the variable has no effect.
    let told = shown(&Ran::of(lab.rlock(["exec", "--store", &lab.url(), "k", "-c", SHOW]).env("RLOCK_STORE", "")));
    assert_eq!(told["STORE"], lab.url());
}

/// "rlock does not export a default: below su(1), an inner rlock uses the default store of its own
/// user."
#[test]
fn default_store_is_not_exported() {
    skip_unless!(needs::root("become another user"));
    let lab = Lab::new();
    let Some(mut unshare) = needs::mount_namespace_as_root() else { return };
    lab.settle(&mut unshare);
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 1777 /run/lock
        cp "$1" /run/rlock-program
        /run/rlock-program exec k -c 'echo "${RLOCK_STORE-unset} ${RLOCK_NAMESPACE-unset}"'
        other="setpriv --reuid=65534 --regid=65534 --clear-groups"
        /run/rlock-program exec k -- $other /run/rlock-program exec k -- echo inner
        /run/rlock-program exec k --store file:///run/named -- /run/rlock-program exec -n k -c 'echo "$RLOCK_STORE"'"#;
    Ran::of(unshare.env_remove("RLOCK_STORE").args(["sh", "-ec", script, "sh", RLOCK]))
        .printed("unset unset\ninner\nfile:///run/named\n");
}

/// A store that was named, by option or environment, is also the store of a nested rlock.
#[test]
fn nested_rlock_uses_the_named_store() {
    let (lab, other) = (Lab::new(), Lab::new());
    let words = ["exec", "--store", &other.url(), "k", "--", RLOCK, "exec", "-n", "k", "-c", SHOW];
    assert_eq!(shown(&lab.run(words))["STORE"], other.url());
    // A nested `--store` names the store for all rlocks that are nested more deeply.
    let words =
        ["exec", "k", "--", RLOCK, "exec", "--store", &other.url(), "k", "--", RLOCK, "exec", "-n", "k", "-c", SHOW];
    let told = shown(&lab.run(words));
    assert_eq!((&told["STORE"], told["NAMESPACE"].as_str()), (&other.url(), "unset"));
    let words = ["exec", "--namespace", "n", "k", "--", RLOCK, "exec", "-n", "k", "-c", SHOW];
    assert_eq!(shown(&lab.run(words))["NAMESPACE"], "n");
}

/// "the same KEY in two namespaces is two resources"
#[test]
fn same_key_in_two_namespaces_is_two_resources() {
    let lab = Lab::new();
    let _holder = lab.hold_by(["exec", "k", "--namespace", "a"]);
    lab.run(["exec", "-nq", "k", "--namespace", "a", "--", "true"]).silently(75);
    for other in ["b", "A", "aa", "a b", "rlock"] {
        lab.run(["exec", "-nq", "k", "--namespace", other, "--", "true"]).silently(0);
        assert!(lab.run(["inspect", "--namespace", other]).stdout.starts_with("nobody holds or waits\n"));
        lab.run(["cleanup", "--break", "k", "--namespace", other]).failed(1);
    }
    assert_eq!(lab.inspect(["--namespace", "a"])["resources"][0]["name"], "k");
    lab.run(["exec", "k", "--namespace", "", "--", "true"]).said(64, "a namespace must not be empty");
    let text = |shown: &str, what: &str| {
        format!("the namespace '{shown}' has the {what}: leave out control and format characters")
    };
    lab.run(["inspect", "--namespace", "a\nb"]).said(64, &text("a?b", "control character U+000A"));
    lab.run(["inspect", "--namespace", "a\u{2066}b"]).said(64, &text("a?b", "format character U+2066"));
    let long = "a namespace may have 128 bytes, this one has 129";
    lab.run(["inspect", "--namespace", &"n".repeat(129)]).said(64, long);
}
