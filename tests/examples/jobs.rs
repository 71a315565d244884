//! The examples for CI and containers. A YAML parser reads the files, and a shell runs their steps.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{example, labs_with, path, settle, shell};
use rlock_testkit::Ran;
use rlock_testkit::needs::{left_out, skip_unless};

const TO_JSON: &str = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)";

/// Whether the YAML parser of Python is installed.
fn yaml_parser() -> bool {
    let probe = Command::new("/usr/bin/python3").args(["-c", "import yaml"]).output();
    probe.is_ok_and(|probe| probe.status.success()) || left_out("not installed: the yaml module of python3")
}

fn yaml(name: &str) -> Value {
    let file = fs::File::open(path(name)).expect("the package has its examples");
    let ran = Ran::of(Command::new("/usr/bin/python3").args(["-c", TO_JSON]).stdin(file));
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("json.dump prints JSON")
}

/// The steps share the lock by the variables that the first one appends to the file `GITHUB_ENV`.
#[test]
fn github_steps_run_under_the_lock_of_the_first() {
    skip_unless!(yaml_parser());
    for lab in labs_with(&["upload", "switch"]) {
        let workflow = yaml("github-workflow.yml");
        let steps = workflow["jobs"]["deploy"]["steps"].as_array().expect("a list of steps").clone();
        let variables = lab.folder().join("variables");
        fs::write(&variables, "").expect("a file can be made");
        let run = |name: &str| {
            let step = steps.iter().find(|step| step["name"] == name).expect("a step of this name");
            let mut shell = shell(&lab, step["run"].as_str().expect("a command"));
            let text = fs::read_to_string(&variables).expect("the file of the variables");
            shell.envs(text.lines().map(|line| line.split_once('=').expect("NAME=value")));
            Ran::of(shell.env("GITHUB_ENV", &variables).env("GITHUB_SHA", "4711"))
        };
        run("lock").silently(0);
        assert_eq!(lab.counts("deploy/production"), (1, 0));
        run("upload").printed("upload\n");
        run("switch").printed("switch 4711\n");
        run("unlock").silently(0);
        assert_eq!(lab.counts("deploy/production"), (0, 0));
        run("upload").failed(rlock_sys::exit::LOST.into());
        let unlock = steps.last().expect("a step");
        assert_eq!((&unlock["name"], &unlock["if"]), (&"unlock".into(), &"always() && env.RLOCK_SESSION != ''".into()));
    }
}

#[test]
fn gitlab_jobs_are_those_that_the_shell_runs() {
    skip_unless!(yaml_parser());
    let jobs = yaml("gitlab-ci.yml");
    for (job, script) in [("integration", "./integration-tests"), ("build", "./build"), ("deploy", "./deploy")] {
        let command = jobs[job]["script"][0].as_str().expect("a command");
        assert!(command.starts_with("rlock exec ") && command.contains(&format!(" -- {script}")), "{command}");
    }
    assert_eq!(jobs["integration"]["retry"]["exit_codes"], i32::from(rlock_sys::exit::BUSY));
}

#[test]
fn jenkins_step_runs_under_the_lock() {
    for lab in labs_with(&["deploy"]) {
        let text = example("Jenkinsfile");
        let mut steps = text.lines().filter_map(|line| line.trim().strip_prefix("sh '")?.strip_suffix('\''));
        let step = steps.next().expect("a step of the shell");
        Ran::of(shell(&lab, step).env("GIT_COMMIT", "4711")).printed("deploy 4711\n");
        assert_eq!(steps.next(), None);
    }
}

#[test]
fn buildkite_hook_runs_the_command_under_the_lock() {
    for lab in labs_with(&["deploy"]) {
        let hook = || {
            let mut hook = Command::new(path("buildkite/command"));
            settle(&lab, &mut hook);
            hook.env("BUILDKITE_PIPELINE_SLUG", "web")
                .env("BUILDKITE_COMMAND", "./deploy a && rlock held buildkite/web");
            hook.current_dir(lab.folder());
            hook
        };
        Ran::of(&mut hook()).printed("deploy a\n");
        Ran::of(hook().env("BUILDKITE_COMMAND", "exit 3")).silently(3);
        lab.assert_idle();
    }
}

#[test]
fn container_runs_its_script_under_a_lock_of_the_server() {
    skip_unless!(yaml_parser());
    for lab in labs_with(&["import.sh"]) {
        let services = &yaml("compose.yaml")["services"];
        let import = &services["import"];
        Ran::of(&mut shell(&lab, import["command"].as_str().expect("a command"))).printed("import.sh\n");
        assert_eq!(import["environment"]["RLOCK_STORE"], "redis://locks");
        let password = import["environment"]["RLOCK_PASSWORD"].as_str().expect("a password");
        let server = services["locks"]["command"].as_str().expect("a command");
        assert!(server.contains(&format!("--requirepass {password} ")), "{server}");
        assert_eq!(import["depends_on"][0], "locks");
    }
}
