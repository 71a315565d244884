//! Calls as coding agents make them: each call is a new shell, the leader of a session, without
//! state and without a terminal. The agent reads one pipe, decides by the exit code, and ends a
//! call at its limit: by TERM to the group, by KILL to the group, or by KILL to the shell alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Signal, kill_process_group};

use crate::session::{Session, script};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, on_both, wait_until};

/// What every busy line of a command ends with.
const NOT_STARTED: &str = "; the command was not started\n";

/// A call of the agent with this session.
fn call(lab: &Lab, session: &str, command: &str) -> Session {
    // A server learns of a killed process by its lease.
    let marks = ["CLAUDECODE=1".to_owned(), format!("CLAUDE_CODE_SESSION_ID={session}"), "RLOCK_TTL=2s".to_owned()];
    let script = format!("exec 2>&1 </dev/null; {command}\n exit");
    Session::start(lab, ["env".to_owned()].into_iter().chain(marks).chain(["sh".into(), "-c".into(), script]))
}

/// The exit code and the output of a call that nothing ends.
fn called(lab: &Lab, command: &str) -> (i32, String) {
    let mut call = call(lab, "3f2a1b9c-77aa", command);
    let code = call.code();
    (code, call.output.all().to_owned())
}

/// How an agent ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    TermGroup,
    KillGroup,
    KillShell,
}

impl End {
    const ALL: [Self; 3] = [Self::TermGroup, Self::KillGroup, Self::KillShell];

    fn strike(self, call: &Session) {
        match self {
            Self::TermGroup => kill_process_group(call.pid(), Signal::TERM).expect("the group is there"),
            Self::KillGroup => kill_process_group(call.pid(), Signal::KILL).expect("the group is there"),
            Self::KillShell => call.signal(Signal::KILL),
        }
    }
}

/// A killed call leaves neither a waiter nor a turn behind, unless only its shell was killed. Then
/// `--pid parent` is the remedy.
#[test]
fn waiter_of_a_killed_call_leaves_the_queue_unless_only_its_shell_was_killed() {
    on_both(|lab| {
        for end in End::ALL {
            for option in ["", "--pid parent"] {
                let holder = lab.hold("k");
                let mut waiter = call(lab, "3f2a1b9c", &format!("rlock exec {option} k -- echo ran"));
                waiter.output.expect("rlock: waiting for 'k', 1 of 1, ");
                end.strike(&waiter);
                if end != End::KillShell || !option.is_empty() {
                    waiter.until_gone();
                }
                holder.end().silently(0);
                let told = waiter.output.all().to_owned();
                assert_eq!(told.contains("ran\n"), end == End::KillShell && option.is_empty(), "{end:?}: {told}");
                let is_told = end == End::TermGroup || end == End::KillShell && !option.is_empty();
                assert_eq!(told.contains("s in the queue, place 1 of 1"), is_told, "{end:?}: {told}");
                assert_eq!(told.ends_with(NOT_STARTED), is_told, "{end:?}: {told}");
                lab.run(["exec", "k", "--", "true"]).silently(0);
            }
        }
    });
}

/// The lock of a killed call is free when its command is gone.
#[test]
fn command_of_a_killed_call_dies_unless_only_its_shell_was_killed() {
    on_both(|lab| {
        for end in End::ALL {
            let mut holder = call(lab, "3f2a1b9c", "rlock exec k -- sh -c 'echo runs; sleep 0.5; echo ends'");
            holder.output.expect("runs\n");
            end.strike(&holder);
            holder.until_gone();
            assert_eq!(holder.output.all().contains("ends\n"), end == End::KillShell, "{end:?}");
            lab.run(["exec", "k", "--", "true"]).silently(0);
        }
    });
}

/// "Real cargo prints 'test failed' after it": the line before says that nothing was started.
#[test]
fn busy_line_says_through_other_programs_that_nothing_was_started() {
    skip_unless!(needs::programs(&["make", "git"]));
    let lab = Lab::new();
    let _holder = lab.hold("testdb");
    let folder = |name: &str| {
        fs::create_dir_all(lab.folder().join(name)).expect("a folder can be made");
    };
    folder("crate/src");
    folder("crate/.cargo");
    script(&lab, "crate/Cargo.toml", "[package]\nname = \"tried\"\nedition = \"2021\"\n[workspace]\n");
    script(&lab, "crate/src/lib.rs", "#[test]\nfn passes() {}\n");
    let runner = "[target.'cfg(all())']\nrunner = ['rlock', 'exec', '-w', '1s', 'testdb', '--']\n";
    script(&lab, "crate/.cargo/config.toml", runner);
    script(&lab, "Makefile", "check:\n\trlock exec -n testdb -- ./test\n");
    script(&lab, "pre-commit", "#!/bin/sh\nexec rlock exec -n testdb -- ./test\n");
    fs::set_permissions(lab.folder().join("pre-commit"), Permissions::from_mode(0o755)).expect("its permissions");
    let git = "git init -q g && cd g && git config core.hooksPath .. && \
               git -c user.name=a -c user.email=a commit -qm x --allow-empty";
    let cargo = format!("cd crate && {} test --offline --lib", env!("CARGO"));
    for (command, code) in [(&*cargo, 75), ("make check", 2), (git, 1), ("rlock exec -n testdb -- ./test | tail -5", 0)]
    {
        let (found, told) = called(&lab, command);
        assert_eq!(found, code, "{command}: {told}");
        assert!(told.contains("rlock: busy: 'testdb' is held for write by "), "{command}: {told}");
        assert!(told.contains(NOT_STARTED), "{command}: {told}");
    }
}

/// The jobs of a machine that agents share, each call by itself.
#[test]
fn agents_take_turns_at_builds_a_database_a_host_and_simulators() {
    on_both(|lab| {
        // Builds: two at a time, and a third one is told to come again.
        let build = |name: &str| call(lab, name, "rlock exec --slot heavy=2 -- sh -c 'echo built; sleep 1000'");
        let mut builds = [build("aaaaaaaa-1"), build("bbbbbbbb-2")];
        builds.iter_mut().for_each(|build| drop(build.output.expect("built\n")));
        let (code, told) = called(lab, "RLOCK_WAIT=1s rlock exec --slot heavy=2 -- ./build");
        assert!(code == 75 && told.ends_with(NOT_STARTED), "{code}: {told}");
        assert!(told.contains("claude aaaaaaaa (in ") || told.contains("claude bbbbbbbb (in "), "{told}");
        builds.iter().for_each(|build| End::TermGroup.strike(build));
        builds.iter().for_each(Session::until_gone);
        // A host: benchmarks are alone.
        let mut reader = call(lab, "aaaaaaaa", "rlock exec --read host -- sh -c 'echo reads; sleep 1000'");
        reader.output.expect("reads\n");
        assert_eq!(called(lab, "rlock exec -n --read host -- echo beside"), (0, "beside\n".to_owned()));
        assert_eq!(called(lab, "rlock exec -n --write host -- ./bench").0, 75);
        End::KillGroup.strike(&reader);
        reader.until_gone();
        assert_eq!(called(lab, "rlock exec -w 30s --write host -- echo alone >&2").0, 0);
        // Simulators: any one of two, by its number.
        let mut first = call(lab, "aaaaaaaa", "rlock exec --slot sims=2 -- sh -c 'echo sim$RLOCK_SLOT; sleep 1000'");
        first.output.expect("sim0\n");
        let (code, told) = called(lab, "rlock exec --slot sims=2 -- sh -c 'echo sim$RLOCK_SLOT'");
        assert_eq!((code, &*told), (0, "sim1\n"));
        // A database: a make below the lock is nested, and the default wait does not end it.
        let nested = "RLOCK_WAIT=0 rlock exec db -- rlock exec db -- echo migrated";
        assert_eq!(called(lab, nested), (0, "migrated\n".to_owned()));
        // Run anyway, without the lock.
        let anyway = "rlock exec -n --else 'echo no lock; exec \"$@\"' other -- echo ran";
        let _other = lab.hold("other");
        assert_eq!(called(lab, anyway), (0, "no lock\nran\n".to_owned()));
    });
}

/// A hold over several calls, which know it by a file.
#[test]
fn hold_over_several_calls_outlives_each_of_them() {
    on_both(|lab| {
        let acquire = "rlock acquire sim --for 1h --export > sim.env && . ./sim.env && rlock held sim";
        assert_eq!(called(lab, acquire), (0, String::new()));
        assert_eq!(called(lab, "rlock exec -n sim -- ./use").0, 75, "another agent");
        assert_eq!(called(lab, ". ./sim.env; rlock exec sim -- echo used"), (0, "used\n".to_owned()));
        let mut killed = call(lab, "3f2a1b9c", ". ./sim.env; rlock exec sim -- sh -c 'echo uses; sleep 1000'");
        killed.output.expect("uses\n");
        End::KillGroup.strike(&killed);
        killed.until_gone();
        assert_eq!(called(lab, ". ./sim.env; rlock held sim && rlock release").0, 0);
        let (code, told) = called(lab, "rlock exec sim -- echo free");
        assert!(code == 0 && told.contains("free\n"), "{code}: {told}");
    });
}

/// A request whose caller reads nothing more goes on, and its command is not held up.
#[test]
fn call_whose_pipe_is_closed_still_ends_with_the_code_of_its_command() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let code = lab.folder().join("code");
    let command = format!("(rlock exec k -- sh -c 'exit 3'; echo $? > {}) | head -n 1", code.display());
    let mut waiter = call(&lab, "3f2a1b9c", &command);
    waiter.output.expect("rlock: waiting for 'k', 1 of 1, ");
    holder.end().silently(0);
    wait_until("the command has ended", || fs::read_to_string(&code).is_ok_and(|code| code == "3\n"));
    assert_eq!(waiter.code(), 0);
}
