//! examples/agents and `rlock help agents`: a program calls as coding agents do, by a new shell in
//! a session of its own, with one pipe for both outputs.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{add_scripts, example, path, settle};
use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::{Lab, Ran, on_both};

/// A call of an agent. The scripts in the lab's folder come first in PATH.
fn call(lab: &Lab, command: &str) -> Command {
    let mut shell = Command::new("sh");
    settle(lab, &mut shell);
    shell.args(["-c", &format!("exec 2>&1; PATH=$PWD:$PATH; {command}")]).current_dir(lab.folder());
    shell.env("CLAUDECODE", "1").stdin(Stdio::null());
    // SAFETY: between fork and exec, setsid is the only call.
    unsafe { shell.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    shell
}

/// What a busy line ends with.
const NOT_STARTED: &str = "; the command was not started\n";

/// "Prints the ~20 lines …": each command in them does what they say.
#[test]
fn commands_of_the_help_for_agents_run() {
    on_both(|lab| {
        add_scripts(lab, &["cargo", "make", "migrate", "bench", "test", "use"]);
        let help = Ran::of(&mut call(lab, "rlock help agents"));
        assert_eq!((help.code(), help.stderr.as_str()), (Some(0), ""));
        let commands: Vec<_> = help.stdout.lines().filter_map(|line| line.strip_prefix("    ")).collect();
        assert_eq!(commands.len(), 8, "{commands:?}");
        for command in commands {
            let ran = Ran::of(&mut call(lab, command));
            assert_eq!(ran.code(), Some(0), "{command}: {ran:?}");
            assert!(!ran.stdout.contains("rlock: "), "{command}: {ran:?}");
        }
        assert_eq!(lab.counts("sim"), (0, 0));
        assert!(help.stdout.lines().all(|line| line.len() <= 80), "it fits a terminal");
        assert!(help.stdout.lines().count() <= 40, "an agent has better things to read");
    });
}

#[test]
fn wrapper_of_cargo_takes_a_turn_for_builds_and_none_for_questions() {
    on_both(|lab| {
        add_scripts(lab, &["real/cargo"]);
        let wrapper = path("agents/cargo");
        let run = |words: &str, real: &str| {
            Ran::of(call(lab, &format!("{} {words}", wrapper.display())).env("REAL_CARGO", lab.folder().join(real)))
        };
        run("test --all", "real/cargo").printed("cargo test --all\n");
        // What a build starts is nested, so it takes no second turn.
        let nested = format!("#!/bin/sh\n[ $1 = --version ] && echo 1 || exec {} --version\n", wrapper.display());
        fs::write(lab.folder().join("real/cargo"), nested).expect("a file can be written");
        run("build", "real/cargo").printed("1\n");
        let _both = lab.hold_by(["exec", "--slot", "heavy=2:2"]);
        let busy = Ran::of(
            call(lab, &format!("{} test", wrapper.display()))
                .env("REAL_CARGO", lab.folder().join("real/cargo"))
                .env("RLOCK_WAIT", "0"),
        );
        assert!(busy.code() == Some(75) && busy.stdout.ends_with(NOT_STARTED), "{busy:?}");
        run("--version", "real/cargo").printed("1\n");
    });
}

#[test]
fn runner_of_cargo_runs_the_tests_under_the_lock_and_builds_without_it() {
    let lab = Lab::new();
    let folder = |name: &str| lab.folder().join("crate").join(name);
    fs::create_dir_all(folder("src")).expect("a folder can be made");
    fs::create_dir_all(folder(".cargo")).expect("a folder can be made");
    fs::write(folder("Cargo.toml"), "[package]\nname = \"tried\"\nedition = \"2021\"\n[workspace]\n").expect("a file");
    let test = format!("#[test]\nfn is_locked() {{\n    assert!({HELD}.success());\n}}\n");
    fs::write(folder("src/lib.rs"), test).expect("a file");
    fs::write(folder(".cargo/config.toml"), example("agents/cargo-config.toml")).expect("a file");
    let cargo = |wait: &str| {
        let command = format!("cd crate && {} test --offline --lib", env!("CARGO"));
        Ran::of(call(&lab, &command).env("RLOCK_WAIT", wait))
    };
    let free = cargo("1m");
    assert!(free.code() == Some(0) && free.stdout.contains("1 passed"), "{free:?}");
    let _holder = lab.hold("testdb");
    let busy = cargo("0");
    assert!(busy.code() == Some(75) && busy.stdout.contains(NOT_STARTED), "{busy:?}");
}

/// Whether the test runs below the lock, as an expression of Rust.
const HELD: &str = r#"std::process::Command::new("rlock").args(["held", "testdb"]).status().unwrap()"#;

#[test]
fn hook_denies_heavy_commands_without_a_lock_and_says_what_to_write() {
    let lab = Lab::new();
    let hook = |command: &str| {
        let call_of_tool = serde_json::json!({"tool_name": "Bash", "tool_input": {"command": command}}).to_string();
        fs::write(lab.folder().join("call"), call_of_tool).expect("a file can be written");
        Ran::of(&mut call(&lab, &format!("{} <call", path("agents/deny.sh").display())))
    };
    for command in ["ls", "rlock exec --slot heavy=2 -- cargo test", "git commit -m 'make it so'"] {
        hook(command).silently(0);
    }
    for command in ["cargo test 2>&1 | tail -5", "cd a && make -j4", "npm test"] {
        let denied = hook(command);
        assert_eq!(denied.code(), Some(2), "{command}: {denied:?}");
        assert!(denied.stdout.contains("rlock exec --slot heavy=2 -- COMMAND"), "{denied:?}");
    }
}

/// The variables of the settings reach every call, and a sandbox lets calls write to the store.
#[test]
fn settings_give_every_call_a_limit_and_a_store_that_the_sandbox_lets_it_write() {
    skip_unless!(programs(&["python3"]));
    let lab = Lab::new();
    let settings: Value = serde_json::from_str(&example("agents/settings.json")).expect("it is JSON");
    let to_json = "import json, sys, tomllib; json.dump(tomllib.load(sys.stdin.buffer), sys.stdout)";
    let codex = fs::File::open(path("agents/codex.toml")).expect("the package has its examples");
    let codex = Ran::of(Command::new("python3").args(["-c", to_json]).stdin(codex));
    let codex: Value = serde_json::from_str(&codex.stdout).expect("json.dump prints JSON");
    let store = settings["env"]["RLOCK_STORE"].as_str().expect("a store");
    let folder = store.strip_prefix("file://").expect("a folder");
    assert_eq!(settings["sandbox"]["filesystem"]["allowWrite"][0], folder);
    assert_eq!(codex["sandbox_workspace_write"]["writable_roots"][0], folder);
    assert_eq!(codex["shell_environment_policy"]["set"], settings["env"]);
    let hook = settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"].as_str().expect("a command");
    assert!(path("agents").join(hook.rsplit('/').next().expect("a name")).exists(), "{hook}");
    let _holder = lab.hold("k");
    let limit = settings["env"]["RLOCK_WAIT"].as_str().expect("a limit");
    assert_eq!(limit, "110s", "below the two minutes of a call");
    let mut waiter = call(&lab, "rlock exec k -- true");
    let mut waiter = waiter.env("RLOCK_WAIT", limit).stdout(Stdio::piped()).spawn().expect("a shell starts");
    lab.until_waiting("k", 1);
    let mut line = String::new();
    let output = waiter.stdout.take().expect("it has a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
    assert!(line.contains("s of 110s: held for write by "), "{line}");
    let group = rustix::process::Pid::from_child(&waiter);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("the group is there");
    waiter.wait().expect("it is a child");
}

#[test]
fn room_lets_jobs_start_one_by_one_while_there_is_memory_and_little_load() {
    on_both(|lab| {
        add_scripts(lab, &["job"]);
        fs::copy(path("agents/room.sh"), lab.folder().join("room.sh")).expect("a file can be copied");
        let write = |name: &str, text: &str| fs::write(lab.folder().join(name), text).expect("a file can be written");
        write("loadavg", "3.10 1.00 1.00 1/100 4711\n");
        write("meminfo", "MemTotal: 16777216 kB\nMemAvailable: 5242880 kB\n");
        let text = example("agents/room.sh");
        let job = text.lines().find_map(|line| line.strip_prefix("#   ")).expect("a command");
        let gated = || {
            let mut shell = call(lab, job);
            shell.env("PROC", lab.folder());
            shell
        };
        Ran::of(&mut gated()).printed("job\n");
        write("meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n");
        let child = gated().stdout(Stdio::piped()).spawn().expect("a shell starts");
        rlock_testkit::wait_until("the job looks for room", || lab.counts("room") == (1, 0));
        write("meminfo", "MemTotal: 16777216 kB\nMemAvailable: 5242880 kB\n");
        let ended = child.wait_with_output().expect("it is a child");
        let printed = String::from_utf8_lossy(&ended.stdout);
        // A call that waited for a second for the one before says so.
        let lines = printed.lines().filter(|line| !line.starts_with("rlock: ran: "));
        assert!(ended.status.success() && lines.eq(["job"]), "{ended:?}");
    });
}

/// The scripts of the book's page about agents.
#[test]
fn scripts_of_the_page_about_agents_run_their_commands_under_the_lock() {
    on_both(|lab| {
        add_scripts(lab, &["work"]);
        let page = fs::read_to_string(path("../docs/book/src/agents.md")).expect("the page is there");
        let blocks = page.split("```").filter_map(|block| block.strip_prefix("text\n"));
        let scripts: Vec<_> = blocks.filter(|block| block.starts_with("#!/bin/sh\n")).collect();
        let [build, host, checks] = scripts[..] else { panic!("three scripts, not {scripts:?}") };
        let run = |script: &str, words: &str| {
            fs::write(lab.folder().join("script"), script).expect("a file can be written");
            Ran::of(call(lab, &format!("sh ./script {words}")).env("RLOCK_AGENT", ""))
        };
        for (script, words, key) in [
            (build, "", "build"),
            (host, "--shared", "host"),
            (host, "--exclusive", "host"),
            (checks, "run", "heavy-verify"),
        ] {
            run(script, &format!("{words} rlock held --read {key}")).silently(0);
            run(script, &format!("{words} work a 'b c'")).printed("work a b c\n");
        }
        assert_eq!(run(checks, "ledger").stdout.lines().filter(|line| line.contains("exit 0")).count(), 2);
        let short = |script: &str| script.replace("45m", "1ms").replace("540", "1ms");
        let _holder = lab.hold_by(["exec", "host", "--write", "heavy-verify"]);
        let anyway = run(&short(host), "--shared work");
        assert!(anyway.stdout.starts_with("no lock: busy: 'host' is held ") && anyway.stdout.ends_with("\nwork\n"));
        assert_eq!(run(&short(host), "--exclusive work").code(), Some(75));
        let busy = run(&short(checks), "run work");
        assert!(busy.code() == Some(99) && busy.stdout.ends_with(NOT_STARTED), "{busy:?}");
    });
}
