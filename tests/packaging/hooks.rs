//! What runs rlock in other CIs, played as their runners do.

use std::fs;
use std::process::Command;

use super::{Lab, RLOCK, Ran, path_with, root};
use rlock_testkit::needs::{left_out, skip_unless};

/// A bash that runs a script in the lab, with rlock in PATH.
fn bash(lab: &Lab, script: &str, environment: &[(&str, &str)]) -> Ran {
    let mut bash = Command::new("bash");
    lab.settle(&mut bash);
    bash.args(["-ec", script]).env("PATH", path_with(RLOCK.as_ref())).current_dir(lab.folder());
    bash.env("HOOKS", root().join("integrations/buildkite/hooks"));
    Ran::of(bash.envs(environment.iter().copied()))
}

/// Whether the YAML parser of Python is installed.
fn yaml_parser() -> bool {
    let probe = Command::new("/usr/bin/python3").args(["-c", "import yaml"]).output();
    probe.is_ok_and(|probe| probe.status.success()) || left_out("not installed: the yaml module of python3")
}

fn integration(file: &str) -> String {
    fs::read_to_string(root().join("integrations").join(file)).expect("the file is there")
}

/// The agent takes over what a hook exports, which a subshell cannot show.
#[test]
fn buildkite_plugin_holds_the_lock_from_pre_command_to_pre_exit() {
    let lab = Lab::new();
    let script =
        ". \"$HOOKS/pre-command\"; rlock held -- \"$BUILDKITE_PLUGIN_RLOCK_KEY\"; echo step; \"$HOOKS/pre-exit\"";
    for key in ["deploy", "$(touch hit)", "--break", "'; touch hit; '"] {
        bash(&lab, script, &[("BUILDKITE_PLUGIN_RLOCK_KEY", key)]).printed("step\n");
    }
    assert!(!lab.folder().join("hit").exists());
    lab.assert_idle();
}

#[test]
fn buildkite_step_does_not_run_while_somebody_else_holds() {
    let lab = Lab::new();
    let holder = lab.hold("deploy");
    let environment = [("BUILDKITE_PLUGIN_RLOCK_KEY", "deploy"), ("BUILDKITE_PLUGIN_RLOCK_WAIT", "10ms")];
    let ran = bash(&lab, ". \"$HOOKS/pre-command\"; echo step", &environment);
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(75), ""), "{ran:?}");
    // The agent runs pre-exit although pre-command has failed.
    bash(&lab, "\"$HOOKS/pre-exit\"", &[]).silently(0);
    holder.end();
}

/// The lines of a part of GitLab's component.
fn gitlab_lines(part: &str) -> String {
    let read = "import sys, yaml
job = list(yaml.safe_load_all(open(sys.argv[1])))[1]['.rlock']
print('\\n'.join(job[sys.argv[2]]))";
    let path = root().join("integrations/gitlab/templates/lock.yml");
    let ran = Ran::of(Command::new("/usr/bin/python3").args(["-c", read]).arg(path).arg(part));
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    ran.stdout
}

/// The runner joins before_script and script, and runs after_script in a shell of its own.
#[test]
fn gitlab_component_holds_the_lock_from_before_script_to_after_script() {
    skip_unless!(yaml_parser());
    let lab = Lab::new();
    let lines = gitlab_lines;
    let folder = lab.folder().join("project").display().to_string();
    for key in ["deploy", "$(touch hit)", "-n"] {
        let variables = [
            ("LOCK_KEY", key),
            ("LOCK_MODE", "write"),
            ("LOCK_WAIT", "1m"),
            ("LOCK_FOR", "1h"),
            ("CI_PROJECT_DIR", folder.as_str()),
        ];
        let script = format!("{}rlock held -- \"$LOCK_KEY\"\necho step", lines("before_script"));
        bash(&lab, &script, &variables).printed("step\n");
        assert_eq!(lab.inspect([""; 0])["resources"][0]["name"], key);
        bash(&lab, &lines("after_script"), &variables).silently(0);
        bash(&lab, &lines("after_script"), &variables).silently(0);
    }
    assert!(!lab.folder().join("hit").exists());
    lab.assert_idle();
}

/// Jenkins runs each `sh` in a shell of its own, with the variables of withEnv.
#[test]
fn jenkins_step_holds_the_lock_around_its_body() {
    let lab = Lab::new();
    let text = integration("jenkins/vars/withRlock.groovy");
    let scripts: Vec<_> = text.split('\'').filter(|part| part.starts_with("rlock ")).collect();
    let [acquire, release] = scripts[..] else { panic!("{scripts:?}") };
    let environment = [("LOCK_CLAIM", "--write=$(touch hit)"), ("LOCK_WAIT", "1m"), ("LOCK_FOR", "1h")];
    assert_needs_a_store(&bash(&lab, &format!("unset RLOCK_STORE; {acquire}"), &environment));
    let lines = bash(&lab, acquire, &environment).stdout;
    let variables: Vec<_> = lines.lines().filter_map(|line| line.split_once('=')).collect();
    assert_eq!(lab.counts("$(touch hit)"), (1, 0));
    bash(&lab, release, &variables).silently(0);
    assert!(!lab.folder().join("hit").exists());
    lab.assert_idle();
}

/// Ansible starts an argv without a shell. The templates are filled in as Ansible would.
#[test]
fn ansible_tasks_acquire_and_release() {
    skip_unless!(yaml_parser());
    let lab = Lab::new();
    let read = "import json, re, sys, yaml
acquire, guarded = yaml.safe_load(open(sys.argv[1]))
argvs = [task['ansible.builtin.command']['argv'] for task in (acquire, guarded['always'][0])]
values = {'rlock_key': 'a key; touch hit', 'rlock_wait': '1m', 'rlock_for': '1h', 'rlock.stdout': 'SESSION'}
stores = {task['environment'] for task in (acquire, guarded['always'][0])}
assert stores == {\"{{ {'RLOCK_STORE': rlock_store} if rlock_store is defined else {} }}\"}
for argv in argvs:
    print(json.dumps([re.sub(r'{{ ([a-z_.]+).*?}}', lambda found: values[found[1]], word) for word in argv]))";
    let path = root().join("integrations/ansible/locked.yml");
    let ran = Ran::of(Command::new("/usr/bin/python3").args(["-c", read]).arg(path));
    let argvs: Vec<Vec<String>> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("words")).collect();
    let [acquire, release] = &argvs[..] else { panic!("{ran:?}") };
    assert_needs_a_store(&Ran::of(lab.rlock(&acquire[1..]).env_remove("RLOCK_STORE")));
    let printed = lab.run(&acquire[1..]).stdout;
    let session = printed.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION=")).expect("a session");
    assert_eq!(lab.counts("a key; touch hit"), (1, 0));
    lab.run(release[1..].iter().map(|word| if word == "SESSION" { session } else { word })).silently(0);
    lab.assert_idle();
}

#[track_caller]
fn assert_needs_a_store(ran: &Ran) {
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(64), ""), "{ran:?}");
    assert!(ran.stderr.starts_with("rlock: no store is named: "), "{ran:?}");
}

/// "fail unless a store is named by their input, RLOCK_STORE or /etc/rlock.conf".
#[test]
fn buildkite_step_needs_a_store() {
    let lab = Lab::new();
    let without = "unset RLOCK_STORE; . \"$HOOKS/pre-command\"; echo step";
    assert_needs_a_store(&bash(&lab, without, &[("BUILDKITE_PLUGIN_RLOCK_KEY", "k")]));
    let url = lab.url();
    let with = [("BUILDKITE_PLUGIN_RLOCK_KEY", "k"), ("BUILDKITE_PLUGIN_RLOCK_STORE", &url)];
    bash(&lab, &format!("{without}; rlock held k; \"$HOOKS/pre-exit\""), &with).printed("step\n");
    lab.assert_idle();
}

#[test]
fn gitlab_job_needs_a_store() {
    skip_unless!(yaml_parser());
    let lab = Lab::new();
    let (url, folder) = (lab.url(), lab.folder().join("project").display().to_string());
    let variables = |store| {
        let fixed = [("LOCK_KEY", "k"), ("LOCK_MODE", "write"), ("LOCK_WAIT", "1m"), ("LOCK_FOR", "1h")];
        [&fixed[..], &[("CI_PROJECT_DIR", folder.as_str()), ("LOCK_STORE", store)]].concat()
    };
    let [before, after] =
        ["before_script", "after_script"].map(|part| format!("unset RLOCK_STORE\n{}", gitlab_lines(part)));
    assert_needs_a_store(&bash(&lab, &format!("{before}echo step"), &variables("")));
    bash(&lab, &after, &variables("")).silently(0);
    bash(&lab, &format!("{before}rlock held k && echo step"), &variables(&url)).printed("step\n");
    assert_eq!(lab.counts("k"), (1, 0));
    bash(&lab, &after, &variables(&url)).silently(0);
    lab.assert_idle();
}
