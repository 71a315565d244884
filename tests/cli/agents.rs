//! What differs where an agent runs rlock: words only. `messages` has the lines about a wait.

use std::process::Command;

use rustix::process::Signal;

use rlock_testkit::{Lab, Ran, Running, on_both, wait_until};

/// An rlock of an agent.
fn of_agent(lab: &Lab, words: &[&str]) -> Command {
    let mut rlock = lab.rlock(words);
    rlock.env("CLAUDECODE", "1").env("CLAUDE_CODE_SESSION_ID", "3f2a1b9c-77aa-4b1e").current_dir(lab.folder());
    rlock
}

/// "Default owner: the agent's name and eight characters of its session id; default reason: `in`
/// and the working directory", where nothing else names them.
#[test]
fn agent_and_folder_are_owner_and_reason_where_nothing_else_names_them() {
    on_both(|lab| {
        let folder = lab.folder().canonicalize().expect("the folder is there");
        let place = format!("in {}", folder.display());
        let whose = |rlock: &mut Command| {
            let mut holder = Running::waiter(rlock);
            holder.expect_held();
            let held = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
            holder.end();
            [held["owner"].as_str().map(str::to_owned), held["reason"].as_str().map(str::to_owned)]
        };
        let [owner, reason] = ["claude 3f2a1b9c", &place].map(|text| Some(text.to_owned()));
        let exec = || of_agent(lab, &["exec", "k"]);
        assert_eq!(whose(&mut exec()), [owner.clone(), reason.clone()]);
        let named = Some("reviewer".to_owned());
        assert_eq!(whose(exec().env("RLOCK_AGENT", "reviewer")), [named.clone(), reason.clone()]);
        assert_eq!(whose(exec().env("RLOCK_AGENT", "")), [None, None]);
        assert_eq!(whose(exec().env("RLOCK_OWNER", "reviewer")), [named.clone(), reason.clone()]);
        assert_eq!(whose(exec().args(["--reason", "issue 12"])), [owner, Some("issue 12".to_owned())]);
        let ci = [("GITHUB_ACTIONS", "true"), ("GITHUB_ACTOR", "reviewer")];
        assert_eq!(whose(exec().envs(ci)), [named, reason], "the CI knows the person");
    });
}

/// A reason without an owner stands behind the user, and an id is whole where somebody gives it.
#[test]
fn reason_without_an_owner_follows_the_user() {
    on_both(|lab| {
        let busy = |holder: &mut Command| {
            let mut holder = Running::waiter(holder);
            holder.expect_held();
            let busy = lab.run(["exec", "-n", "k", "--", "true"]);
            holder.end();
            busy.busy().to_owned()
        };
        let user = busy(&mut lab.rlock(["exec", "k"])).split(',').next().expect("a part").to_owned();
        let line = busy(&mut lab.rlock(["exec", "--reason", "issue 12", "k"]));
        assert!(line.starts_with(&format!("{user} (issue 12), pid ")), "{line}");
        let whole = "claude 3f2a1b9c-77aa-4b1e";
        for name in ["RLOCK_AGENT", "RLOCK_OWNER"] {
            let line = busy(of_agent(lab, &["exec", "--reason", "x", "k"]).env(name, whole));
            assert!(line.contains(&format!(" by {whole} (x), ")), "{line}");
        }
    });
}

/// "A last line for agents and with `-v`, if the request waited a second or more, or the whole did
/// not end with 0".
#[test]
fn last_line_tells_how_a_command_ended_unless_it_was_granted_at_once_and_succeeded() {
    on_both(|lab| {
        Ran::of(&mut of_agent(lab, &["exec", "k", "--", "true"])).silently(0);
        let said = |words: &[&str], code: i32| Ran::of(&mut of_agent(lab, words)).failed(code).to_owned();
        for (script, code, line) in
            [("exit 75", 75, "ran: exit 75 after "), ("kill $$", 143, "ran: ended by TERM after ")]
        {
            let said = said(&["exec", "k", "--", "sh", "-c", script], code);
            assert!(said.starts_with(line) && said.ends_with('s'), "{said}");
        }
        let _holder = lab.hold("held");
        let busy = said(&["exec", "-n", "held", "--", "true"], 75);
        assert!(busy.ends_with("; the command was not started"), "{busy}");
        assert!(said(&["exec", "k", "--", "no-such-program"], 127).starts_with("cannot run "));
        let timeout = said(&["exec", "--max-runtime", "10ms", "k", "--", "sleep", "60"], 124);
        assert!(
            timeout == "timeout: 'k': 'sleep 60' ran for longer than --max-runtime 10ms and is stopped",
            "{timeout}"
        );
        Ran::of(&mut of_agent(lab, &["exec", "-q", "k", "--", "false"])).silently(1);
        Ran::of(of_agent(lab, &["exec", "k", "--", "false"]).env("RLOCK_AGENT", "")).silently(1);
        let verbose = lab.run(["exec", "-v", "k", "--", "false"]);
        assert!(verbose.stderr.contains("\nrlock: ran: exit 1 after "), "{verbose:?}");
    });
}

/// "`rlock: ended by TERM after 1m58s in the queue, place 2 of 3; the command was not started`".
#[test]
fn last_line_of_a_request_that_a_signal_has_ended_tells_its_place() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        let _first = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        for (words, undone) in [
            (&["exec", "k", "--", "true"][..], "the command was not started"),
            (&["acquire", "k", "--for", "1h"], "nothing was acquired"),
        ] {
            let log = lab.folder().join("log");
            let file = std::fs::File::create(&log).expect("a file can be made");
            let mut waiter = of_agent(lab, words).stderr(file).spawn().expect("rlock starts");
            let told = || std::fs::read_to_string(&log).expect("the log exists");
            wait_until("the wait tells of itself", || told().lines().count() == 1);
            let pid = rustix::process::Pid::from_child(&waiter);
            rustix::process::kill_process(pid, Signal::TERM).expect("the process lives");
            assert_eq!(waiter.wait().expect("it is a child").code(), Some(128 + 15));
            let told = told();
            let last = told.lines().last().expect("a line");
            assert!(last.starts_with("rlock: ended by TERM after "), "{last}");
            assert!(last.ends_with(&format!("s in the queue, place 2 of 2; {undone}")), "{last}");
        }
    });
}

/// "`--skip-ok` … says nothing", but nobody is to take a skip after a wait for a success.
#[test]
fn skip_after_a_long_wait_is_told_to_an_agent() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let skip = |wait: &str| Ran::of(&mut of_agent(&lab, &["exec", "-w", wait, "--skip-ok", "k", "--", "true"]));
    skip("1ms").silently(0);
    let long = skip("1s");
    let last = long.stderr.lines().last().expect("a line");
    assert!(last.starts_with("rlock: skipped: 'k' is held ") && last.contains("; waited 1s"), "{long:?}");
}
