//! `acquire --for`, `renew` and `release`: locks without a process, on both kinds of store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, program_in_message, wait_until};

/// The variables that `acquire` prints with these words.
pub(super) fn acquire(lab: &Lab, words: &[&str]) -> BTreeMap<String, String> {
    printed(&Ran::of(lab.rlock(["acquire"]).args(words)))
}

#[track_caller]
pub(super) fn printed(ran: &Ran) -> BTreeMap<String, String> {
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    ran.stdout.lines().map(|line| pair(line).expect("each line is NAME=value")).collect()
}

/// The program with these words, below the lock with these variables.
pub(super) fn below(lab: &Lab, variables: &BTreeMap<String, String>, words: &[&str]) -> Command {
    let mut command = lab.rlock(words);
    command.envs(variables);
    command
}

fn run_below(lab: &Lab, variables: &BTreeMap<String, String>, words: &[&str]) -> Ran {
    Ran::of(&mut below(lab, variables, words))
}

pub(super) fn is_free(lab: &Lab, key: &str) -> bool {
    lab.counts(key).0 == 0
}

/// A script of /bin/sh in which `rlock` is the program under test.
fn script(lab: &Lab, text: &str) -> Ran {
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    Ran::of(shell.args(["-e", "-c", &format!("rlock() {{ '{RLOCK}' \"$@\"; }}\n{text}")]))
}

/// "gets a lock that outlives it, and prints one `NAME=value` a line: RLOCK_SESSION,
/// RLOCK_ANCESTORS (even if empty), RLOCK_TOKEN, RLOCK_NAMESPACE; RLOCK_STORE unless it is the
/// default; RLOCK_RESOURCE, RLOCK_MODE and RLOCK_SLOT for a single claim."
#[test]
fn acquire_for_leaves_a_kept_hold_and_prints_its_variables() {
    on_both(|lab| {
        let variables = acquire(lab, &["k", "--for", "1h"]);
        let names: Vec<_> = variables.keys().map(String::as_str).collect();
        let expected = [
            "RLOCK_ANCESTORS",
            "RLOCK_MODE",
            "RLOCK_NAMESPACE",
            "RLOCK_RESOURCE",
            "RLOCK_SESSION",
            "RLOCK_STORE",
            "RLOCK_TOKEN",
        ];
        assert_eq!(names, expected);
        let namespace = if lab.url().starts_with("file:") { "rlock" } else { lab.namespace() };
        assert_eq!((variables["RLOCK_ANCESTORS"].as_str(), variables["RLOCK_NAMESPACE"].as_str()), ("", namespace));
        assert_eq!((variables["RLOCK_RESOURCE"].as_str(), variables["RLOCK_MODE"].as_str()), ("k", "write"));
        assert_eq!(variables["RLOCK_STORE"], lab.url());
        let holder = &lab.inspect(["k"])["resources"][0]["holders"][0];
        assert_eq!(holder["session"], variables["RLOCK_SESSION"]);
        assert_eq!(holder["token"].to_string(), variables["RLOCK_TOKEN"]);
        assert_eq!((&holder["kept"], holder["span"].is_null()), (&true.into(), true));
        assert!(holder["expires_in_ms"].as_u64().unwrap() > 3_500_000, "{holder}");
        assert!(lab.run(["exec", "-n", "k", "--", "true"]).failed(75).contains(program_in_message()));
    });
}

#[test]
fn slot_has_its_number_and_several_claims_have_no_resource() {
    on_both(|lab| {
        assert_eq!(acquire(lab, &["--slot", "db=2", "--for", "1h"])["RLOCK_SLOT"], "0");
        assert_eq!(acquire(lab, &["--slot", "db=2", "--for", "1h"])["RLOCK_SLOT"], "1");
        // This hold is shorter than the default ttl.
        assert_eq!(acquire(lab, &["--slot", "short=2", "--for", "11s"])["RLOCK_SLOT"], "0");
        let several = acquire(lab, &["--read", "a", "--range-write", "b", "[1,2)", "--for", "1h"]);
        assert!(["RLOCK_RESOURCE", "RLOCK_MODE", "RLOCK_SLOT"].iter().all(|name| !several.contains_key(*name)));
        assert_eq!((lab.counts("a"), lab.counts("b")), ((1, 0), (1, 0)));
        // A number of a slot around must not be taken for one of these claims.
        let outer = BTreeMap::from([("RLOCK_SLOT".to_owned(), "7".to_owned())]);
        let inner = printed(&run_below(lab, &outer, &["acquire", "c", "--for", "1h"]));
        assert_eq!(inner["RLOCK_SLOT"], "");
    });
}

/// "`--export` prints `export NAME='…'` for `eval`." "Under that environment an `rlock exec KEY --
/// …` is a descendant: granted at once, with its own lease and supervision."
#[test]
fn steps_of_a_script_run_below_the_lock_until_its_release() {
    on_both(|lab| {
        let text = "eval \"$(rlock acquire \"it's\" --for 1h --export)\"\n\
                rlock exec -n \"it's\" -- sh -c 'echo \"$RLOCK_ANCESTORS\"' | grep -qx \"$RLOCK_SESSION\"\n\
                echo \"$RLOCK_RESOURCE\"\n\
                eval \"$(rlock release --export)\"\n\
                env | grep -c '^RLOCK_[SART]' || true";
        let ran = script(lab, text);
        // RLOCK_STORE stays.
        ran.printed("it's\n1\n");
        assert!(is_free(lab, "it's"));
    });
}

/// "A KEY that some readers of such lines would change is in `RLOCK_HELD` instead of
/// `RLOCK_RESOURCE`, unless `--export` is given".
#[test]
fn lock_of_a_name_that_readers_change_is_found_by_lines_without_it() {
    on_both(|lab| {
        let variables = acquire(lab, &["\"a\\b #", "--for", "1h"]);
        assert_eq!(variables["RLOCK_HELD"], "%22a%5Cb%20%23");
        assert!(!variables.contains_key("RLOCK_RESOURCE"));
        run_below(lab, &variables, &["exec", "-n", "\"a\\b #", "--", "echo", "nested"]).printed("nested\n");
        run_below(lab, &variables, &["release"]).silently(0);
        assert!(is_free(lab, "\"a\\b #"));
    });
}

/// The lines of OTHER SHELLS in rlock-acquire(1) for a shell.
fn lines_for(shell: &str) -> String {
    let page = include_str!("../../src/cli/pages/acquire.txt");
    let item = page.split("\n\n").find_map(|item| item.strip_prefix(&format!("{shell}:: ")));
    let item = item.expect("the page has an item for the shell").replace('\n', " ");
    // The item for fish also names a command that fish lacks.
    let lines: Vec<_> = item.split('`').skip(1).step_by(2).filter(|line| *line != "unset").collect();
    lines.join("\n")
}

#[test]
fn other_shells_lock_and_release_by_the_lines_of_the_page() {
    let lab = Lab::new();
    for (shell, options) in [("fish", &["--no-config"][..]), ("tcsh", &["-f"]), ("elvish", &[])] {
        skip_unless!(programs(&[shell]));
        let text = lines_for(shell);
        let (acquire, release) = text.split_once("\nrlock release").expect("the page releases after the lock");
        let text = format!(
            "{acquire}\nrlock exec -n KEY -- echo inside\nrlock release{release}\nrlock inspect --names\n\
                            sh -c 'echo \"left: $RLOCK_SESSION\"'\n"
        );
        let file = lab.folder().join("lines");
        fs::write(&file, text).expect("a file can be made");
        let mut command = Command::new(shell);
        lab.settle(&mut command);
        let folder = Path::new(RLOCK).parent().expect("the program is in a folder").display().to_string();
        command.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap_or_default()));
        Ran::of(command.args(options).arg(&file).current_dir(lab.folder())).printed("inside\nleft: \n");
    }
}

/// "`release --export` prints the variables of the session around the released one, so that acquire
/// prewrite, acquire write, release, release works in a script."
#[test]
fn upgrade_of_a_script_is_released_before_its_prewrite() {
    on_both(|lab| {
        let text = "eval \"$(rlock acquire --prewrite k --for 1h --export)\"; outer=$RLOCK_SESSION; token=$RLOCK_TOKEN\n\
                eval \"$(rlock acquire --write k --for 1h --export)\"\n\
                [ \"$RLOCK_ANCESTORS\" = \"$outer\" ]; [ \"$RLOCK_TOKEN\" -gt \"$token\" ]; echo \"$RLOCK_MODE\"\n\
                eval \"$(rlock release --export)\"\n\
                [ \"$RLOCK_SESSION\" = \"$outer\" ]; [ -z \"$RLOCK_ANCESTORS\" ]; [ \"$RLOCK_TOKEN\" = \"$token\" ]\n\
                echo \"$RLOCK_MODE $RLOCK_RESOURCE\"\n\
                eval \"$(rlock release --export)\"; echo \"${RLOCK_SESSION-none}\"";
        script(lab, text).printed("write\nprewrite k\nnone\n");
        assert!(is_free(lab, "k"));
    });
}

/// "If they can't be printed the hold is released again (125)."
#[test]
fn lock_that_cannot_be_printed_is_released_again() {
    on_both(|lab| {
        for end in [vec!["--for".to_owned(), "1h".to_owned()], vec!["--pid".to_owned(), std::process::id().to_string()]]
        {
            let mut rlock = lab.rlock(["acquire", "k"]);
            let full = File::options().write(true).open("/dev/full").unwrap();
            let child = rlock.args(&end).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
            let output = child.wait_with_output().unwrap();
            let text =
                "rlock: can't write to standard output, so the lock is released again: no space left on device\n";
            assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(125), text));
            assert!(is_free(lab, "k"));
            // A closed descriptor and a pipe without a reader are no better.
            let words = format!("'{RLOCK}' acquire k {} >&-; echo \"closed $?\"", end.join(" "));
            let mut shell = Command::new("sh");
            lab.settle(&mut shell);
            let ran = Ran::of(shell.args(["-c", &words]));
            assert_eq!(ran.stdout, "closed 125\n", "{ran:?}");
            assert!(is_free(lab, "k"));
        }
    });
}

/// "0 given back, 76 if it was no longer held; never touches another's."
#[test]
fn second_release_exits_76_and_leaves_the_next_holder_alone() {
    on_both(|lab| {
        let first = acquire(lab, &["k", "--for", "1h"]);
        run_below(lab, &first, &["release"]).silently(0);
        let second = acquire(lab, &["k", "--for", "1h"]);
        assert!(run_below(lab, &first, &["release"]).failed(76).contains("holds nothing any more"));
        assert!(run_below(lab, &first, &["renew"]).failed(76).contains("holds nothing any more"));
        assert!(!is_free(lab, "k"));
        let ids = [first["RLOCK_SESSION"].as_str(), second["RLOCK_SESSION"].as_str()];
        lab.run(["release", ids[0], ids[1]]).failed(76);
        assert!(is_free(lab, "k"), "the others of the words are released");
    });
}

/// "without any 64; a live session that acquire did not make is 64 as well."
#[test]
fn release_and_renew_refuse_what_acquire_did_not_make() {
    on_both(|lab| {
        for word in ["release", "renew"] {
            let text = "RLOCK_SESSION is not set, so it names no lock of 'rlock acquire': name the SESSION, which 'rlock \
                        acquire' has printed";
            assert_eq!(lab.run([word]).failed(64), text);
            assert!(lab.run([word, "abc"]).failed(64).contains("'abc' is not a session"));
            let inside = format!("'{RLOCK}' {word}; '{RLOCK}' {word} $RLOCK_SESSION; true");
            let ran = lab.run(["exec", "k", "-c", &inside]);
            let lines: Vec<_> = ran.stderr.lines().collect();
            assert!(lines[0].contains("names no lock of 'rlock acquire'"), "{ran:?}");
            assert!(lines[1].contains("is not one of 'rlock acquire'"), "{ran:?}");
        }
        // A mistake leaves the other sessions alone.
        let kept = acquire(lab, &["j", "--for", "1h"]);
        let both = format!("'{RLOCK}' release {} $RLOCK_SESSION; echo $?", kept["RLOCK_SESSION"]);
        assert_eq!(lab.run(["exec", "k", "-c", &both]).stdout, "64\n");
        assert!(!is_free(lab, "j"));
    });
}

/// "SESSION defaults to the innermost session made by acquire among RLOCK_SESSION and
/// RLOCK_ANCESTORS."
#[test]
fn release_inside_a_command_finds_the_acquire_around_it() {
    on_both(|lab| {
        let kept = acquire(lab, &["k", "--for", "1h"]);
        run_below(lab, &kept, &["exec", "j", "--", RLOCK, "release"]).silently(0);
        assert!(is_free(lab, "k"));
    });
}

/// A release that comes too late must not end the lock around it, which is still in use.
#[test]
fn release_of_an_ended_lock_leaves_the_lock_around_it_alone() {
    on_both(|lab| {
        let outer = acquire(lab, &["--prewrite", "k", "--for", "1h"]);
        let inner = printed(&run_below(lab, &outer, &["acquire", "j", "--for", "1h"]));
        lab.run(["release", &inner["RLOCK_SESSION"]]).silently(0);
        let ran = run_below(lab, &inner, &["release", "--export"]);
        assert_eq!(ran.code(), Some(76), "{ran:?}");
        assert!(ran.stdout.contains(&format!("export RLOCK_SESSION='{}'\n", outer["RLOCK_SESSION"])), "{ran:?}");
        assert!(ran.stdout.contains("export RLOCK_RESOURCE='k'\nexport RLOCK_MODE='prewrite'\n"), "{ran:?}");
        assert!(!is_free(lab, "k"));
    });
}

/// "acquire in step 1, five steps by exec": each step is its own process with the file of the
/// variables, and the job is cancelled as a runner does it.
#[test]
fn job_of_steps_holds_its_lock_however_it_is_cancelled() {
    let lab = Lab::new();
    for (round, signal) in [Signal::INT, Signal::TERM, Signal::KILL].into_iter().enumerate() {
        let mut job = Command::new("sh");
        lab.settle(&mut job);
        let text = format!(
            "set -a; out=$('{RLOCK}' acquire k --pid $$) || exit; eval \"$out\"\n\
             for step in 1 2 3 4 5; do '{RLOCK}' exec k -- sh -c 'echo step; sleep 0.2' || exit; done"
        );
        let mut job = Running::start(job.args(["-c", &text]));
        for _ in 0..=round {
            assert_eq!(job.line(), "step");
        }
        assert_eq!(lab.run(["exec", "-n", "-q", "k", "--", "true"]).code(), Some(75));
        job.signal(signal);
        drop(job);
        // The lock is free when the shell and the step that was running have ended.
        lab.run(["exec", "k", "--", "true"]).silently(0);
        assert!(is_free(&lab, "k"));
    }
}

/// "later, never sooner; without --for by acquire's DUR".
#[test]
fn renew_moves_the_end_later_and_never_sooner() {
    on_both(|lab| {
        let kept = acquire(lab, &["k", "--for", "1h"]);
        let left = || lab.inspect(["k"])["resources"][0]["holders"][0]["expires_in_ms"].as_u64().unwrap();
        run_below(lab, &kept, &["renew", "--for", "1m"]).silently(0);
        assert!(left() > 3_000_000);
        run_below(lab, &kept, &["renew", "--for", "2h"]).silently(0);
        assert!(left() > 7_000_000);
        run_below(lab, &kept, &["renew"]).silently(0);
        assert!(left() > 7_000_000);
        let session = &kept["RLOCK_SESSION"];
        lab.run(["renew", "--for", "3h", session]).silently(0);
        assert!(left() > 10_000_000);
    });
}

/// "the store ends it at its instant".
#[test]
fn waiter_gets_the_lock_when_the_time_is_over() {
    on_both(|lab| {
        let kept = acquire(lab, &["k", "--for", "3s"]);
        lab.run(["exec", "k", "--", "true"]).silently(0);
        run_below(lab, &kept, &["release"]).failed(76);
    });
}

#[test]
fn acquire_waits_its_turn_and_has_the_exit_codes_of_exec() {
    on_both(|lab| {
        let holder = lab.hold("k");
        assert!(
            lab.run(["acquire", "k", "--for", "1h", "-n"]).failed(75).ends_with("; nobody waits; nothing was acquired")
        );
        lab.run(["acquire", "k", "--for", "1h", "-n", "-q", "-E", "0"]).silently(0);
        let waiter = Running::start(&mut lab.rlock(["acquire", "k", "--for", "1h"]));
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        let variables = printed(&waiter.end());
        lab.run(["release", &variables["RLOCK_SESSION"]]).silently(0);
        let holder = lab.hold("k");
        let waiter = Running::start(&mut lab.rlock(["acquire", "k", "--for", "1h"]));
        lab.until_waiting("k", 1);
        waiter.signal(Signal::TERM);
        waiter.end().silently(143);
        lab.until_waiting("k", 0);
        holder.end().silently(0);
        assert!(is_free(lab, "k"));
        let refused = format!("'{RLOCK}' acquire k --for 1h");
        lab.run(["exec", "--read", "k", "-c", &refused]).failed(65);
    });
}

#[test]
fn mistake_in_the_words_of_acquire_exits_64_and_says_why() {
    let lab = Lab::new();
    for (words, text) in [
        ("k", "how long? write --for DUR, or --pid PID for as long as a process"),
        ("k --for 8days", "--for: '8days' is too long: a lock without a process lasts at most 7 days, or 'ever'"),
        ("k --for 0", "--for: '0' is too short: a lock without a process lasts at least 1ms"),
        ("k --for 1ns", "--for: '1ns' is too short: a lock without a process lasts at least 1ms"),
        ("k --for 1s --lost-signal none", "--for and --lost-signal exclude each other: give one of them"),
        ("k --pid 0", "--pid: '0' is not a process id: give the number of a process, such as $$"),
        ("k --pid 2147483647", "--pid: there is no process 2147483647: name one that runs"),
        (
            "k --pid 1 --lost-signal x",
            "--lost-signal: 'x' is not a signal: write it as TERM, INT, HUP, USR1, a number, or none",
        ),
        ("k j --for 1s", "unexpected second KEY 'j': for two locks write --write k --write j"),
        ("k --for 1s --meanwhile x", "--meanwhile is for the command of 'rlock exec': 'rlock acquire' runs none"),
        ("k --for 1s --else x", "--else is for the command of 'rlock exec': 'rlock acquire' runs none"),
        ("k --for 1s -c x", "-c is for the command of 'rlock exec': 'rlock acquire' runs none"),
        ("--for 1s", "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write"),
    ] {
        lab.run(["acquire"].into_iter().chain(words.split(' '))).said(64, text);
    }
    acquire(&lab, &["k", "--for", "7days"]);
}

/// "`ever` is a lock without an end: only `rlock release` or a break ends it, and no renewal makes
/// it shorter."
#[test]
fn lock_for_ever_ends_by_a_release_or_a_break() {
    on_both(|lab| {
        let kept = acquire(lab, &["k", "--for", "ever", "--reason", "frozen"]);
        let holder = || lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        let has_no_end = || (holder()["kept"] == true, holder()["expires_in_ms"].is_null()) == (true, true);
        assert!(has_no_end(), "{}", holder());
        assert!(lab.run(["inspect", "k"]).stdout.contains("kept, no end"));
        assert_eq!(lab.run(["inspect", "--held-longer-than", "0"]).code(), Some(1));
        lab.run(["cleanup"]).silently(0);
        run_below(lab, &kept, &["renew", "--for", "1s"]).silently(0);
        run_below(lab, &kept, &["renew"]).silently(0);
        assert!(has_no_end(), "{}", holder());
        let busy = lab.run(["exec", "-n", "k", "--", "true"]);
        assert!(busy.failed(75).contains("'k' is kept without an end for write by "), "{busy:?}");
        run_below(lab, &kept, &["exec", "-n", "k", "--", "echo", "below"]).printed("below\n");
        run_below(lab, &kept, &["release"]).silently(0);
        assert!(is_free(lab, "k"));
        assert!(lab.run(["history", "k"]).stdout.contains("  kept "));

        let mut waiter = lab.wait_by(["exec", "j"]);
        waiter.expect_held();
        let several = ["--write", "j", "--read", "k", "--for", "ever", "-w", "1m"];
        let queued = Running::start(lab.rlock(["acquire"].into_iter().chain(several)).stdout(Stdio::piped()));
        lab.until_waiting("j", 1);
        waiter.end().silently(0);
        assert_eq!(queued.end().code(), Some(0));
        for key in ["j", "k"] {
            assert!(lab.inspect([key])["resources"][0]["holders"][0]["expires_in_ms"].is_null());
        }
        lab.run(["cleanup", "--break", "j"]);
        assert!(is_free(lab, "j") && is_free(lab, "k"));

        let finite = acquire(lab, &["k", "--for", "1h"]);
        assert!(!has_no_end());
        let renewed = run_below(lab, &finite, &["renew", "-v", "--for", "ever"]);
        assert_eq!(renewed.stderr, "rlock: renews 'k' for write without an end\n");
        assert!(has_no_end());
    });
}

/// "`cleanup` leaves it, `cleanup --break KEY` takes it."
#[test]
fn cleanup_tells_of_a_kept_hold_whose_time_is_over() {
    on_both(|lab| {
        drop(acquire(lab, &["k", "--for", "100ms"]));
        let mut said = String::new();
        wait_until("the hold is over", || {
            said = lab.run(["cleanup", "k"]).stdout;
            !said.is_empty()
        });
        assert!(said.starts_with("removed the hold for write on 'k'"), "{said}");
        lab.run(["cleanup", "k"]).printed("");
    });
}

#[test]
fn cleanup_leaves_a_kept_hold_and_break_takes_it() {
    on_both(|lab| {
        let kept = acquire(lab, &["k", "--for", "1h"]);
        lab.run(["cleanup"]).silently(0);
        assert!(!is_free(lab, "k"));
        assert!(lab.run(["cleanup", "--break", "k"]).stdout.starts_with("broke the hold for write on 'k'"));
        run_below(lab, &kept, &["release"]).failed(76);
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    });
}

/// A file as `$GITHUB_ENV` gathers the lines, and a later step reads them.
#[test]
fn lines_appended_to_a_file_serve_as_its_environment() {
    on_both(|lab| {
        let path = lab.folder().join("environment");
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let status = lab.rlock(["acquire", "k", "--for", "1h"]).stdout(file).status().unwrap();
        assert!(status.success());
        let text = fs::read_to_string(&path).unwrap();
        let variables = text.lines().filter_map(|line| line.split_once('=')).map(|(a, b)| (a.to_owned(), b.to_owned()));
        let variables = variables.collect();
        run_below(lab, &variables, &["exec", "-n", "k", "--", "true"]).silently(0);
        run_below(lab, &variables, &["release"]).silently(0);
        wait_until("the lock is free", || is_free(lab, "k"));
    });
}

/// "on failure they print `(exit N)` on standard output with their exit code, usage errors
/// included"
#[test]
fn failure_with_export_prints_a_command_that_fails() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let gone = "0123456789abcdef0123456789abcdef";
        let pid = std::process::id().to_string();
        for (words, code) in [
            (&["acquire", "k", "-n", "--for", "1h"][..], 75),
            (&["acquire", "k", "-n", "--for", "1h", "-E", "9"], 9),
            // The keeper has failed, and its caller prints.
            (&["acquire", "k", "-n", "--pid", &pid], 75),
            (&["acquire", "k", "-n", "--for", "1h", "--store", "gopher://h"], 64),
            (&["acquire", "k", "-n"], 64),
            (&["acquire", "k", "--for", "soon"], 64),
            (&["acquire", "k", "--colour"], 64),
            (&["aquire", "k", "--for", "1h"], 64),
            (&["renew"], 64),
            (&["renew", "soon"], 64),
            (&["renew", gone], 76),
            (&["release"], 64),
            (&["release", gone], 76),
        ] {
            let ran = lab.run([words, &["--export"]].concat());
            assert_eq!((ran.code(), ran.stdout), (Some(code), format!("(exit {code})\n")), "{words:?}");
            assert_eq!(ran.stderr.lines().count(), 1, "{words:?}: {}", ran.stderr);
            let ran = lab.run(words);
            assert_eq!((ran.code(), ran.stdout.as_str()), (Some(code), ""), "{words:?}");
        }
        assert_eq!(lab.run(["acquire", "--help", "--export"]).code(), Some(0));
        // The option of a command is its own.
        assert_eq!(lab.run(["exec", "k", "-n", "-q", "--", "c", "--export"]).stdout, "");
        holder.end().silently(0);
    });
    let ran =
        Lab::at("redis://127.0.0.1:1").run(["acquire", "k", "--for", "1h", "--connect-timeout", "1ms", "--export"]);
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(69), "(exit 69)\n"), "{ran:?}");
}

/// A script with `set -e` that forgets to look at the status of rlock.
#[test]
fn script_with_set_e_ends_where_eval_gets_a_failure() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let ran = script(lab, "eval \"$(rlock acquire k -n -q --for 1h --export)\"\necho deploy");
        ran.silently(75);
        holder.end().silently(0);
        let held = "lock=$(rlock acquire k --for 1h --export) || exit; eval \"$lock\"; ";
        script(lab, &format!("{held} eval \"$(rlock renew --export)\"; rlock held k; echo held")).printed("held\n");
        lab.run(["cleanup", "--break", "k"]);
        for late in ["renew", "release"] {
            let take = format!("{held} rlock cleanup --break k >/dev/null; ");
            let ran = script(lab, &format!("{take} eval \"$(rlock {late} --export)\"; echo deploy"));
            assert_eq!((ran.code(), ran.stdout.as_str()), (Some(76), ""), "{ran:?}");
        }
    });
}
