//! Holds over several calls of a coding agent: `acquire --pid agent`, and how later calls find the
//! hold without its variables, on both kinds of store.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::acquire::is_free;
use rlock_testkit::needs::{excused, programs, skip_unless};
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, RLOCK, Ran, on_both, wait_until};

/// A script of an agent. `call` runs a shell as agents do: in a session of its own, with the mark
/// of the agent, without a terminal. Within it, `rlock` is the program under test.
fn agent(lab: &Lab, script: &str) -> Ran {
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    shell.current_dir(lab.folder());
    let functions = format!(
        "rlock() {{ '{RLOCK}' \"$@\"; }}\n\
         call() {{ RLOCK='{RLOCK}' CLAUDECODE=1 setsid -w sh -c \"rlock() {{ '{RLOCK}' \\\"\\$@\\\"; }}; $1\"; }}\n"
    );
    // The agent goes on after its last call.
    Ran::of(shell.args(["-c", &format!("{functions}{script}\n:")]).stdin(Stdio::null()))
}

/// "The agent is the nearest process above whose environment lacks one of the variables." A program
/// between the agent and rlock changes nothing.
#[test]
fn hold_for_the_agent_lasts_over_its_calls_and_ends_with_it() {
    skip_unless!(programs(&["setsid"]));
    on_both(|lab| {
        let ran = agent(
            lab,
            "call 'timeout 60 env $RLOCK acquire sim --pid agent >/dev/null'\n\
             call 'rlock held sim; echo held $?'\n\
             call 'rlock exec -n --nested sim -- sh -c \"echo nested\"'\n\
             call 'rlock exec -nq sim -- true; echo plain $?'",
        );
        ran.printed("held 0\nnested\nplain 75\n");
        wait_until("the hold ends with the agent", || is_free(lab, "sim"));
    });
}

#[test]
fn later_calls_renew_and_release_the_hold_by_its_key() {
    skip_unless!(programs(&["setsid"]));
    on_both(|lab| {
        let ran = agent(
            lab,
            "call 'rlock acquire sim --pid agent --for 1h >/dev/null'\n\
             call 'rlock renew -v sim --for 2h' 2>&1\n\
             call 'rlock release -v sim' 2>&1\n\
             call 'rlock release sim' 2>&1; echo $?\n\
             call 'rlock held sim'; echo $?",
        );
        ran.printed(
            "rlock: renews 'sim' for write for at least 2h\n\
             rlock: releases 'sim' for write\n\
             rlock: no lock of 'rlock acquire --pid' on 'sim' is for a process above this one\n76\n1\n",
        );
    });
}

/// "`--pid` and `--for` together: whichever ends first."
#[test]
fn hold_with_a_process_and_a_limit_ends_with_the_first_of_both() {
    skip_unless!(programs(&["setsid"]));
    on_both(|lab| {
        agent(lab, "call 'rlock acquire sim --pid agent --for 1h >/dev/null'").printed("");
        wait_until("the hold ends with the agent", || is_free(lab, "sim"));
        let kept = lab.rlock(["acquire", "k", "--for", "200ms", "--pid", &std::process::id().to_string()]);
        let kept = { kept }.stdout(Stdio::null()).status().expect("rlock runs");
        assert!(kept.success());
        // No signal tells this process, which would end the test.
        wait_until("the hold ends at its instant", || lab.run(["exec", "-nq", "k", "--", "true"]).code() == Some(0));
    });
}

/// "A script in the background whose shell has ended finds the hold that it was granted."
#[test]
fn orphan_of_a_call_finds_its_hold_for_the_agent_by_the_key() {
    let is_first = fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]");
    skip_unless!(
        programs(&["setsid"])
            && (is_first || excused("another pid namespace has no process that adopts orphans of agents"))
    );
    on_both(|lab| {
        let job = "while kill -0 $1 2>/dev/null; do sleep .01; done\n\
                   \"$RLOCK\" acquire sim --pid agent >/dev/null; \"$RLOCK\" exec -n sim -- true\n\
                   \"$RLOCK\" held sim; echo held: $?\n\
                   \"$RLOCK\" exec --nested -n sim -- echo in\n\
                   \"$RLOCK\" release sim; echo released: $?\n";
        for (name, script) in [("job", job), ("start", "sh job $$ >out 2>&1 &\n")] {
            fs::write(lab.folder().join(name), script).expect("a file can be written");
        }
        let script = "echo $$\ncall 'sh start; until grep -q released: out; do sleep .01; done; cat out'";
        let ran = agent(lab, script);
        let (pid, said) = ran.stdout.split_once('\n').expect("the pid has a line");
        let (busy, rest) = said.split_once('\n').expect("the busy line");
        assert!(busy.contains(&format!(" is a hold for process {pid}, above this command: ")), "{said}");
        assert_eq!(rest, "held: 0\nin\nreleased: 0\n");
    });
}

/// "76 if no hold of it is there (any more)", whether or not the store has recorded the end.
#[test]
fn release_by_key_after_the_end_of_the_hold_exits_76_on_each_store() {
    for lab in [Some(Lab::new()), Some(Lab::on(Kind::Redis7)), Lab::on_postgres()].into_iter().flatten() {
        let own = std::process::id().to_string();
        for owner in [&["--pid", &own][..], &[]] {
            let kept =
                lab.rlock([&["acquire", "sim", "--for", "500ms"], owner].concat()).stdout(Stdio::null()).status();
            assert!(kept.is_ok_and(|status| status.success()));
            thread::sleep(Duration::from_millis(510));
            let text = "no lock of 'rlock acquire --pid' on 'sim' is for a process above this one";
            for word in ["release", "renew"] {
                lab.run([word, "sim"]).said(76, text);
            }
        }
    }
}

/// A keeper whose store is gone has nothing left to end.
#[test]
fn keeper_of_a_hold_with_a_limit_ends_with_its_process_if_the_store_is_gone() {
    let lab = Lab::new();
    let mut process = Command::new("sleep").arg("600").spawn().expect("sleep runs");
    let pid = process.id().to_string();
    assert_eq!(lab.run(["acquire", "k", "--for", "1h", "--pid", &pid]).code(), Some(0));
    let keeper = lab.inspect(["k"])["resources"][0]["holders"][0]["pid"].to_string();
    fs::remove_dir_all(lab.directory()).expect("the store is there");
    process.kill().expect("sleep runs");
    process.wait().expect("sleep is a child");
    wait_until("the keeper ends", || {
        let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// "Plain `exec` still waits, and its line says what to do if the hold is one's own."
#[test]
fn busy_line_below_a_hold_for_the_agent_says_how_to_use_it() {
    skip_unless!(programs(&["setsid"]));
    on_both(|lab| {
        let ran = agent(
            lab,
            "echo $$\n\
             call 'rlock acquire sim --pid agent >/dev/null'\n\
             call 'rlock exec -n sim -- true' 2>&1",
        );
        let (pid, line) = ran.stdout.split_once('\n').expect("the pid has a line");
        let advice = format!(
            "rlock: busy: 'sim' is a hold for process {pid}, above this command: if it is yours, add --nested to \
             'rlock exec', or run 'rlock release sim'; 'sim' is held for write by "
        );
        assert!(line.starts_with(&advice), "{line}");
    });
}

#[test]
fn several_holds_of_a_key_are_named_and_an_unknown_word_is_a_mistake() {
    skip_unless!(programs(&["setsid"]));
    on_both(|lab| {
        let ran = agent(
            lab,
            "call 'for n in 1 2; do rlock acquire --read k --pid agent; done' >ids; sed -n 's/.*; session //p' ids\n\
             call 'rlock release k' 2>&1; echo $?",
        );
        let lines: Vec<_> = ran.stdout.lines().collect();
        assert_eq!(lines.len(), 4, "{ran:?}");
        let text = "rlock: several locks on 'k' are for processes above this one: name one, of ";
        let named = lines[2].strip_prefix(text).unwrap_or_default();
        assert!(named.contains(lines[0]) && named.contains(lines[1]) && lines[3] == "64", "{ran:?}");
        let text = "'abc' is not a session, and no KEY that the store knows: name the SESSION or the KEY";
        for word in ["release", "renew"] {
            lab.run([word, "abc"]).said(64, text);
        }
    });
}

#[test]
fn hold_of_another_process_is_not_found_by_its_key() {
    on_both(|lab| {
        let mut other = Command::new("sleep").arg("600").spawn().expect("sleep runs");
        let acquired = lab.run(["acquire", "k", "--pid", &other.id().to_string()]);
        assert_eq!(acquired.code(), Some(0), "{acquired:?}");
        assert!(lab.run(["held", "k"]).failed(1).contains("somebody else holds it"));
        assert!(lab.run(["release", "k"]).failed(76).contains("is for a process above this one"));
        assert!(lab.run(["exec", "--nested", "k", "--", "true"]).failed(76).contains("no rlock around this command"));
        other.kill().expect("sleep runs");
        other.wait().expect("sleep is a child");
    });
}

/// "Such a hold does not wait", but its owner does, from one call to the next.
#[test]
fn call_below_a_hold_with_an_end_overtakes_those_who_wait_for_the_hold() {
    on_both(|lab| {
        let own = std::process::id().to_string();
        assert_eq!(lab.run(["acquire", "k", "--pid", &own, "--for", "1h"]).code(), Some(0));
        let mut other = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        lab.run(["exec", "--nested", "-n", "k", "--", "echo", "ran"]).printed("ran\n");
        lab.run(["release", "k"]).silently(0);
        other.expect_held();
        other.end().silently(0);
    });
}

/// "If the process that has started it ends while it waits, the lock is released": with its output
/// in a file, nobody would know of the hold.
#[test]
fn acquire_whose_shell_was_killed_releases_its_grant() {
    on_both(|lab| {
        let mut holder = lab.hold("k");
        let file = lab.folder().join("variables");
        let words = format!("'{RLOCK}' acquire k --pid {} 2>err >variables; :", std::process::id());
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        let mut shell = shell.args(["-c", &words]).current_dir(lab.folder()).spawn().expect("sh runs");
        lab.until_waiting("k", 1);
        kill_process(Pid::from_child(&shell), Signal::KILL).expect("sh runs");
        shell.wait().expect("sh is a child");
        holder.close();
        holder.end();
        wait_until("nothing is held", || lab.counts("k") == (0, 0));
        wait_until("rlock says why", || {
            let said = fs::read_to_string(lab.folder().join("err")).unwrap_or_default();
            said.contains("the process that started 'rlock acquire' has ended")
        });
        assert_eq!(fs::read_to_string(file).expect("the shell has made the file"), "");
    });
}

#[test]
fn agent_outside_of_the_pid_namespace_or_none_at_all_exits_64() {
    skip_unless!(programs(&["setsid", "unshare"]));
    let lab = Lab::new();
    let mut inside = Command::new("unshare");
    lab.settle(&mut inside);
    let words = format!("CLAUDECODE=1 exec '{RLOCK}' acquire k --pid agent");
    let ran = Ran::of(inside.args(["--user", "--map-root-user", "-p", "-f", "--mount-proc", "sh", "-c", &words]));
    if !ran.stderr.starts_with("unshare: ") {
        let text = "--pid agent: this command has a pid namespace of its own, so the agent's process is not visible \
                    here: write --for DUR";
        ran.said(64, text);
    }
    lab.run(["acquire", "k", "--pid", "agent", "--lost-signal", "none", "--for", "1s"]).failed(64);
}

/// "`--pid agent` prints one line in place of the variables, unless `--export` is given."
#[test]
fn hold_for_the_agent_prints_one_line() {
    skip_unless!(programs(&["setsid"]));
    let lab = Lab::new();
    let script = "echo $$\n\
                  call 'rlock acquire sim --pid agent --for 1h'\n\
                  call 'rlock acquire gpu --pid agent --export' | grep -c '^export '";
    let ran = agent(&lab, script);
    let lines: Vec<_> = ran.stdout.lines().collect();
    let start = format!("holds 'sim' until process {} ends, at most for 1h; session ", lines[0]);
    assert!(lines[1].starts_with(&start) && lines.len() == 3 && lines[2] != "0", "{ran:?}");
}
