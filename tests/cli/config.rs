//! /etc/rlock.conf and `RLOCK_CONFIG`, and the word `embedded` in the place of a URL.
//!
//! The tests run in a mount namespace with /etc and /run of their own, so that the host's
//! configuration neither matters nor changes.

use std::fs;

use rlock_testkit::needs;
use rlock_testkit::{Lab, RLOCK, Ran};

/// Runs a script as root in a mount namespace in which no store is named, and in which `conf`
/// writes its input to /etc/rlock.conf.
fn script(lab: &Lab, text: &str) -> Option<Ran> {
    let mut unshare = needs::mount_namespace_as_root()?;
    lab.settle(&mut unshare);
    unshare.env_remove("RLOCK_STORE").env_remove("RLOCK_CONFIG").env("LAB", lab.folder()).env("RLOCK", RLOCK);
    let prelude = format!(
        "mount -t tmpfs -o mode=755 none /run; mount -t tmpfs -o mode=755 none /etc; umask 022\n\
         echo root:x:0:0::/root:/bin/sh > /etc/passwd\n\
         rlock() {{ '{RLOCK}' \"$@\"; }}; conf() {{ cat > /etc/rlock.conf; }}\n\
         shown() {{ rlock \"$@\" -c 'echo \"${{RLOCK_STORE-no}} ${{RLOCK_NAMESPACE-no}}\"'; }}\n"
    );
    Some(Ran::of(unshare.args(["sh", "-ec", &(prelude + text)])))
}

#[track_caller]
fn prints(text: &str, expected: &str) {
    let lab = Lab::new();
    let folder = lab.folder().display().to_string();
    if let Some(ran) = script(&lab, text) {
        ran.printed(&expected.replace("$LAB", &folder));
    }
}

/// The configuration fails with this reason, whatever the subcommand.
#[track_caller]
fn fails(text: &str, reason: &str) {
    let lab = Lab::new();
    let text = format!("{text}\nrlock exec k -- echo started 2>&1 || echo $?; rlock inspect 2>&1 || echo $?");
    if let Some(ran) = script(&lab, &text) {
        let line = format!("rlock: the configuration '/etc/rlock.conf' cannot be used: {reason}\n69\n");
        ran.printed(&line.repeat(2));
    }
}

/// "lines `store = URL`, `namespace = NAME`, comments with #"; "RLOCK_STORE/RLOCK_NAMESPACE where
/// they were named by option, environment or file".
#[test]
fn configuration_names_the_store_and_is_exported_to_the_command() {
    prints("shown exec k", "no no\n");
    let text = "printf '# ours\\nstore = file://%s/d # here\\nnamespace=site\\n' \"$LAB\" | conf\n\
                shown exec k; test -e \"$LAB/d/state/table\"; rlock acquire k --for 1m | grep -c '^RLOCK_STORE=file:'";
    prints(text, "file://$LAB/d site\n1\n");
}

/// "below --store and the environment, above the default".
#[test]
fn options_and_environment_precede_the_configuration() {
    let text = "printf 'store = file://%s/conf\\nnamespace = conf\\n' \"$LAB\" | conf\n\
                RLOCK_STORE=file://$LAB/env shown exec k\n\
                RLOCK_NAMESPACE=env shown exec k\n\
                shown exec --store \"file://$LAB/option\" --namespace option k\n\
                RLOCK_STORE=embedded shown exec k; shown exec --store embedded k";
    let expected = "file://$LAB/env conf\nfile://$LAB/conf env\nfile://$LAB/option option\n\
                    embedded conf\nembedded conf\n";
    prints(text, expected);
}

/// "`RLOCK_STORE=embedded` is the default store."
#[test]
fn embedded_is_the_default_store() {
    let text = "RLOCK_STORE=embedded rlock acquire k --for 1m > /run/env; grep STORE /run/env\n\
                rlock exec -n -E 3 -q k -- true || echo $?\n\
                printf 'store = embedded\\n' | conf; rlock exec -n -E 4 -q k -- true || echo $?";
    prints(text, "RLOCK_STORE=embedded\n3\n4\n");
}

/// "RLOCK_CONFIG=PATH names another, empty none."
#[test]
fn variable_names_another_configuration_or_none() {
    let text = "echo 'namespace = etc' | conf; echo 'namespace = other' > /run/other\n\
                shown exec k; RLOCK_CONFIG=/run/other shown exec k; RLOCK_CONFIG= shown exec k\n\
                RLOCK_CONFIG=/run/none rlock exec k -- true 2>&1 || echo $?\n\
                echo broken | conf; RLOCK_CONFIG= shown exec k";
    let missing = "rlock: the configuration '/run/none' cannot be used: no such file or directory\n69\n";
    prints(text, &format!("no etc\nno other\nno no\n{missing}no no\n"));
}

/// "Not owned by root, writable by others, a mistaken line: 69 with the reason."
#[test]
fn foreign_or_mistaken_configuration_exits_69() {
    fails("echo 'redis://h' | conf", "line 1: 'redis://h' is not of the form NAME = VALUE");
    fails("echo 'store =' | conf", "line 1: store has no value: write store = VALUE");
    fails("printf 'namespace = a\\nnamespace = b' | conf", "line 2: namespace is set twice");
    fails("printf 'store = a\\377' | conf", "it is not UTF-8 text");
    fails("mkdir /etc/rlock.conf", "it is a directory");
    fails("mkfifo /etc/rlock.conf", "it is a pipe, not a regular file");
    for mode in ["0666", "0622", "0664"] {
        let text = format!("echo 'namespace = a' | conf; chmod {mode} /etc/rlock.conf");
        fails(&text, &format!("others may write to it (mode {mode}): take that right away"));
    }
    fails("echo namespace = $(printf '%0129d' 1) | conf", "a namespace may have 128 bytes, this one has 129");
    if needs::root("give a file away") {
        let text = "echo 'namespace = a' | conf; chown 65534 /etc/rlock.conf";
        fails(text, "it belongs to uid 65534: only root may own it");
    }
}

/// Another version of rlock may know the key, so a fleet with two versions goes on.
#[test]
fn unknown_key_in_the_configuration_is_a_warning() {
    let text = "printf 'splay = 3s\\nnamespace = etc\\n' | conf; shown exec k 2>&1";
    let warning = "rlock: warning: the configuration '/etc/rlock.conf', line 1: 'splay' is none of store, namespace, \
                   password-file, wait, ttl, replicas, connect-timeout, grace and history\n";
    prints(text, &format!("{warning}no etc\n"));
}

/// "ttl, replicas, connect-timeout, grace and history may also be set in /etc/rlock.conf": below
/// options and variables. "A key that does not apply to the store in use is ignored".
#[test]
fn configuration_sets_what_options_and_variables_leave_open() {
    let text = "printf 'history = 1\nreplicas = 3\nttl = 9s\ngrace = 5s\nconnect-timeout = 50ms\n' | conf\n\
                entries() { rlock history k | grep -c exit; }\n\
                rlock exec k -- true; rlock exec k -- true; entries\n\
                RLOCK_HISTORY=2 rlock exec k -- true; entries\n\
                RLOCK_HISTORY=2 rlock exec --history 3 k -- true; entries";
    prints(text, "1\n2\n3\n");
    fails("echo 'ttl = 1ms' | conf", "line 1: ttl: '1ms' is too short: a lease lasts at least 1s");
    fails("printf 'grace = 1s\ngrace = 2s' | conf", "line 2: grace is set twice");
}

/// "`RLOCK_WAIT`, `wait =`: the default of `--wait` …; option over variable over file".
#[test]
fn wait_of_the_configuration_counts_below_option_and_variable() {
    let text = "echo 'wait = 0' | conf\n\
                rlock acquire k --for 1h >/dev/null\n\
                busy() { \"$@\" 2>&1 | grep -o 'nobody waits.*'; }\n\
                busy rlock exec k -- true\n\
                export RLOCK_WAIT=20ms; busy rlock exec k -- true\n\
                busy rlock exec -w 30ms k -- true";
    let undone = "the command was not started";
    prints(
        text,
        &format!("nobody waits; {undone}\nnobody waits; waited 20ms; {undone}\nnobody waits; waited 30ms; {undone}\n"),
    );
    fails("echo 'wait = soon' | conf", "line 1: wait: 'soon' is not a duration: write it as 90s, 5m, 1h30m or 500ms");
}

/// The password file of the configuration is read unless the environment names a password.
#[test]
fn password_file_of_the_configuration_is_used_for_a_server() {
    let text = "printf 'store = redis://127.0.0.1:1\\npassword-file = /run/secret\\n' | conf\n\
                rlock exec k -- true 2>&1 || echo $?\n\
                RLOCK_PASSWORD=x rlock exec -w 1ms --connect-timeout 200ms k -- true 2>/dev/null || echo $?";
    let lab = Lab::new();
    let Some(ran) = script(&lab, text) else { return };
    assert!(ran.stdout.contains("cannot read the password file '/run/secret'"), "{ran:?}");
    assert!(ran.stdout.ends_with("\n69\n"), "{ran:?}");
}

/// Otherwise any user could have the password sent to a server of their own.
#[test]
fn password_of_the_configuration_goes_only_to_the_servers_of_its_store() {
    let text = "printf 'store = redis://127.0.0.1:1\\npassword-file = /run/secret\\n' | conf\n\
                ask() { rlock exec -w 1ms --connect-timeout 200ms \"$@\" k -- true 2>&1 || echo $?; }\n\
                for store in redis://127.0.0.1:2 redis://127.0.0.2:1 redis+cluster://127.0.0.1:1; do\n\
                  RLOCK_STORE=$store ask; ask --store $store; done\n\
                echo own; RLOCK_STORE=redis://127.0.0.1:1/2 ask; ask --store redis://127.0.0.1:1\n\
                echo named; RLOCK_STORE=redis://127.0.0.1:2 RLOCK_PASSWORD_FILE=/run/other ask";
    let lab = Lab::new();
    let Some(ran) = script(&lab, text) else { return };
    let parts: Vec<_> = ran.stdout.split("own\n").flat_map(|part| part.split("named\n")).collect();
    let reads = [&parts[0], &parts[1], &parts[2]].map(|part| part.matches("cannot read the password file").count());
    assert_eq!((parts.len(), reads), (3, [0, 2, 1]), "{ran:?}");
    assert_eq!(parts[0].matches("69\n").count(), 6, "{ran:?}");
}

/// The tests of this program must not depend on the configuration of the host.
#[test]
fn labs_use_no_configuration() {
    let lab = Lab::new();
    let path = lab.folder().join("conf");
    fs::write(&path, "broken").unwrap();
    lab.run(["exec", "k", "--", "true"]).silently(0);
    Ran::of(lab.rlock(["exec", "k", "--", "true"]).env("RLOCK_CONFIG", &path)).failed(69);
}

/// "fail unless a store is named by their input, RLOCK_STORE or /etc/rlock.conf of the runner;
/// `store: embedded` says that this machine is meant".
#[test]
fn no_default_store_needs_a_store_by_option_variable_or_configuration() {
    let text = "rlock range-read --no-default-store k 1 2 -- true 2>/dev/null || echo $?\n\
                rlock acquire --no-default-store k --for 1m 2>/dev/null || echo $?\n\
                rlock exec --no-default-store k -- true 2>&1 || echo $?; ls -d /run/rlock 2>/dev/null || echo none\n\
                RLOCK_STORE=embedded shown exec --no-default-store k\n\
                shown exec --store embedded --no-default-store k\n\
                printf 'store = file://%s/d\\n' \"$LAB\" | conf; shown exec --no-default-store k";
    let expected = "64\n64\nrlock: no store is named: set RLOCK_STORE to the URL of a store, or to embedded for \
                    locks on this machine only\n64\nnone\nembedded no\nembedded no\nfile://$LAB/d no\n";
    prints(text, expected);
}

/// "In a CI (CI=true is enough), not with -q, once per nesting, with the default store".
#[test]
fn default_store_in_a_ci_is_told_once() {
    let line = "rlock: note: no store is named, so this excludes only this machine: set RLOCK_STORE to a server, or to \
                'embedded' if that is meant\n";
    let text = "exec 2>&1; rlock exec k -- echo no CI\n\
                CI=true rlock exec k -c \"'$RLOCK' exec j -- echo nested\"\n\
                GITLAB_CI=1 rlock range-write k 1 2 -- echo range\n\
                CI=true rlock acquire k --for 300ms > /dev/null\n\
                CI=true rlock acquire j --pid $$ > /dev/null\n\
                CI=true rlock exec -q k -- echo quiet\n\
                CI=false rlock exec k -- echo false\n\
                CI=true RLOCK_STORE=embedded rlock exec k -- echo named\n\
                CI=true rlock inspect --names\n\
                printf 'store = embedded\\n' | conf; CI=true rlock exec k -- echo named";
    let told = |what: &str| format!("{line}{what}");
    let expected = ["no CI\n", &told("nested\n"), &told("range\n"), line, line, "quiet\nfalse\nnamed\nj\nnamed\n"];
    prints(text, &expected.concat());
}
