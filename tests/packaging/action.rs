//! The action of GitHub: its main and its post run in node with the variables and files of a
//! runner.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Lab, RLOCK, Ran, path_with, root};
use rlock_testkit::Running;
use rlock_testkit::needs::{programs, skip_unless};

/// A job of a runner: the files in which a step leaves what later steps get.
struct Job {
    lab: Lab,
    /// What `post.js` finds in its environment.
    state: Vec<(String, String)>,
}

impl Job {
    fn new() -> Self {
        let lab = Lab::new();
        for file in ["ENV", "OUTPUT", "STATE", "PATH"] {
            fs::write(Self::file_of(&lab, file), "").expect("a file can be made");
        }
        Self { lab, state: Vec::new() }
    }

    fn file_of(lab: &Lab, name: &str) -> PathBuf {
        lab.folder().join(format!("GITHUB_{name}"))
    }

    /// The values in a file, as the runner reads them.
    fn values(&self, file: &str) -> Vec<(String, String)> {
        let text = fs::read_to_string(Self::file_of(&self.lab, file)).expect("a file of the job");
        let mut lines = text.lines();
        let mut values = Vec::new();
        while let Some((name, delimiter)) = lines.next().and_then(|line| line.split_once("<<")) {
            let value: Vec<_> = lines.by_ref().take_while(|line| *line != delimiter).collect();
            values.push((name.to_owned(), value.join("\n")));
        }
        values
    }

    fn value(&self, file: &str, name: &str) -> Option<String> {
        self.values(file).into_iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// A script of the action with these inputs.
    fn node(&self, script: &str, inputs: &[(&str, &str)]) -> Command {
        let mut node = Command::new("node");
        self.lab.settle(&mut node);
        node.arg(root().join("action").join(script)).env("PATH", path_with(Path::new(RLOCK)));
        for file in ["ENV", "OUTPUT", "STATE", "PATH"] {
            node.env(format!("GITHUB_{file}"), Self::file_of(&self.lab, file));
        }
        let inputs = inputs.iter().map(|(name, value)| (format!("INPUT_{}", name.to_uppercase()), value));
        node.envs(inputs).envs(self.state.iter().map(|(name, value)| (format!("STATE_{name}"), value)));
        node.env("RUNNER_TEMP", self.lab.folder());
        node
    }

    fn main(&self, inputs: &[(&str, &str)]) -> Ran {
        let defaults = [("mode", "write"), ("for", "1h"), ("wait", ""), ("store", "")];
        Ran::of(&mut self.node("main.js", &[&defaults[..], inputs].concat()))
    }

    fn post(&mut self) -> Ran {
        self.state = self.values("STATE");
        Ran::of(&mut self.node("post.js", &[]))
    }
}

#[test]
fn main_acquires_and_post_releases() {
    skip_unless!(programs(&["node"]));
    let mut job = Job::new();
    job.main(&[("key", "deploy"), ("wait", "1m")]).silently(0);
    assert_eq!(job.lab.counts("deploy"), (1, 0));
    let token = job.value("OUTPUT", "token").expect("an output");
    assert_eq!(job.value("OUTPUT", "acquired").as_deref(), Some("true"));
    assert_eq!(job.value("ENV", "RLOCK_TOKEN").as_deref(), Some(&*token));
    // A later step is below the lock.
    let step = Ran::of(job.lab.rlock(["exec", "--nested", "deploy", "--", "echo", "step"]).envs(job.values("ENV")));
    step.printed("step\n");
    job.post().silently(0);
    job.lab.assert_idle();
}

#[test]
fn main_fails_with_the_output_acquired_false_while_somebody_else_holds() {
    skip_unless!(programs(&["node"]));
    let mut job = Job::new();
    let holder = job.lab.hold("deploy");
    let ran = job.main(&[("key", "deploy"), ("wait", "10ms")]);
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(75), "::error::rlock: the lock is busy\n"), "{ran:?}");
    assert!(ran.stderr.starts_with("rlock: busy: 'deploy' is held"), "{ran:?}");
    assert_eq!(job.value("OUTPUT", "acquired").as_deref(), Some("false"));
    assert_eq!((job.values("ENV"), job.values("STATE")), (vec![], vec![]));
    job.post().silently(0);
    holder.end();
}

#[test]
fn modes_are_those_of_rlock() {
    skip_unless!(programs(&["node"]));
    for (mode, shown) in [("read", "read"), ("prewrite", "prewrite"), ("slot=2", "slot")] {
        let mut job = Job::new();
        job.main(&[("key", "k"), ("mode", mode)]).silently(0);
        assert_eq!(job.lab.inspect(["k"])["resources"][0]["holders"][0]["mode"], shown);
        job.post().silently(0);
    }
}

#[test]
fn store_of_the_input_reaches_the_later_steps_and_post() {
    skip_unless!(programs(&["node"]));
    let mut job = Job::new();
    let url = job.lab.url();
    let inputs = [("key", "k"), ("mode", "write"), ("for", "1h"), ("store", url.as_str())];
    Ran::of(job.node("main.js", &inputs).env_remove("RLOCK_STORE")).silently(0);
    assert_eq!(job.lab.counts("k"), (1, 0));
    assert_eq!(job.value("ENV", "RLOCK_STORE"), Some(url.clone()));
    job.state = job.values("STATE");
    Ran::of(job.node("post.js", &inputs).env_remove("RLOCK_STORE")).silently(0);
    job.lab.assert_idle();
}

/// An input from a secret that is missing is empty.
#[test]
fn job_without_a_store_fails_and_does_not_lock_on_the_machine_of_the_runner() {
    skip_unless!(programs(&["node"]));
    let inputs = [("key", "k"), ("mode", "write"), ("for", "1h"), ("store", "")];
    for variable in [None, Some("")] {
        let mut job = Job::new();
        let mut main = job.node("main.js", &inputs);
        main.env_remove("RLOCK_STORE").envs(variable.map(|value| ("RLOCK_STORE", value)));
        let ran = Ran::of(&mut main);
        assert_eq!(ran.code(), Some(64), "{ran:?}");
        assert!(ran.stdout.starts_with("::error::rlock: "), "{ran:?}");
        assert!(ran.stderr.contains("set RLOCK_STORE to "), "{ran:?}");
        assert_ne!(job.value("OUTPUT", "acquired").as_deref(), Some("true"));
        assert_eq!((job.values("ENV"), job.values("STATE")), (vec![], vec![]));
        job.post().silently(0);
    }
}

#[test]
fn post_warns_when_the_lock_has_ended_before_the_job() {
    skip_unless!(programs(&["node"]));
    let mut job = Job::new();
    job.main(&[("key", "k")]).silently(0);
    assert_eq!(job.lab.run(["cleanup", "--break", "k"]).code(), Some(0));
    let ran = job.post();
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("::warning::rlock: the lock was not held any more"), "{ran:?}");
}

#[test]
fn post_without_a_lock_does_nothing() {
    skip_unless!(programs(&["node"]));
    Job::new().post().silently(0);
}

/// Inputs may come from strangers, such as the name of a branch.
#[test]
fn input_reaches_neither_a_shell_nor_the_options() {
    skip_unless!(programs(&["node"]));
    for key in
        ["$(touch hit)", "`touch hit`", "'; touch hit; '", "--break", "-n", "a=b", "%0A::error::x", "k && touch hit"]
    {
        let mut job = Job::new();
        let mut main = job.node("main.js", &[("key", key), ("mode", "write"), ("for", "1h")]);
        Ran::of(main.current_dir(job.lab.folder())).silently(0);
        assert_eq!(job.lab.inspect([""; 0])["resources"][0]["name"], key);
        assert!(!job.lab.folder().join("hit").exists(), "{key}");
        job.post().silently(0);
    }
    for inputs in [[("key", ""), ("mode", "write")], [("key", "k"), ("mode", "write=x --slot")]] {
        let ran = Job::new().main(&inputs);
        assert_eq!(ran.code(), Some(1), "{ran:?}");
        assert!(ran.stdout.starts_with("::error::rlock: the input '"), "{ran:?}");
    }
    // A line feed in an input cannot begin a command of the runner.
    let ran = Job::new().main(&[("key", "k"), ("mode", "x\n::set-env name=A::b")]);
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
}

/// The runner sends INT when a job is cancelled.
#[test]
fn cancelled_wait_leaves_no_waiter() {
    skip_unless!(programs(&["node"]));
    let job = Job::new();
    let holder = job.lab.hold("k");
    let main = Running::start(&mut job.node("main.js", &[("key", "k"), ("mode", "write"), ("for", "1h")]));
    job.lab.until_waiting("k", 1);
    main.signal(rustix::process::Signal::INT);
    assert_eq!(main.end().code(), Some(130));
    assert_eq!(job.lab.counts("k"), (1, 0));
    holder.end();
}

#[test]
fn missing_program_is_named_with_the_remedy() {
    skip_unless!(programs(&["node"]));
    let job = Job::new();
    super::sh("ln -s \"$(command -v node)\" \"$1\"", &[job.lab.folder()]);
    let mut main = job.node("main.js", &[("key", "k"), ("mode", "write"), ("for", "1h")]);
    let ran = Ran::of(main.env("PATH", job.lab.folder()));
    assert_eq!(ran.code(), Some(127), "{ran:?}");
    assert!(ran.stdout.contains("use action/setup before"), "{ran:?}");
}

#[test]
fn setup_installs_the_wheel_of_the_version_and_extends_the_path() {
    skip_unless!(programs(&["node"]));
    let job = Job::new();
    let python = job.lab.folder().join("python3");
    fs::write(&python, "#!/bin/sh\necho \"$*\"\n").expect("a file can be made");
    super::sh("chmod +x \"$1\"", &[&python]);
    let setup = |version: &str| {
        let mut node = job.node("setup/main.js", &[("version", version)]);
        Ran::of(node.env("PATH", path_with(&python)))
    };
    let ran = setup("1.0.0");
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("-m pip install ") && ran.stdout.ends_with(" rlock-cli==1.0.0\n"), "{ran:?}");
    let path = fs::read_to_string(Job::file_of(&job.lab, "PATH")).expect("the file of the job");
    assert_eq!(path, format!("{}\n", job.lab.folder().join("rlock-cli/bin").display()));
    assert_eq!(setup("1.0 --index-url http://x").code(), Some(1));
}

/// The runner reads the definitions, which name each script and input.
#[test]
fn definitions_name_existing_scripts_and_all_inputs() {
    for (file, inputs) in
        [("action.yml", &["key", "mode", "wait", "for", "store"][..]), ("setup/action.yml", &["version"])]
    {
        let path = root().join("action").join(file);
        let text = fs::read_to_string(&path).expect("the action has a definition");
        for script in
            text.lines().filter_map(|line| line.trim().strip_prefix("main: ").or(line.trim().strip_prefix("post: ")))
        {
            assert!(path.parent().expect("a folder").join(script).exists(), "{script}");
        }
        for input in inputs {
            assert!(text.contains(&format!("\n  {input}:\n    description: ")), "{input}");
        }
    }
}
