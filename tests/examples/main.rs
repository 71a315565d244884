//! Tests of the files in examples/. A shell runs their commands with the real program. The other
//! programs that they name are scripts that print their name and arguments.

mod agents;
mod clients;
mod daemons;
mod documents;
mod jobs;
mod monitoring;
mod pages;
mod recipes;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlock_testkit::needs::{programs, root, skip_unless};
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, RLOCK, Ran, Running};
use serde_json::Value;

fn example(name: &str) -> String {
    fs::read_to_string(path(name)).expect("the package has its examples")
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// "examples/ in the Debian package": each file of the folder is an asset.
#[test]
fn debian_package_has_every_example() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let ran = Ran::of(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    let metadata: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let mut packages = metadata["packages"].as_array().expect("a list of packages").iter();
    let root = packages.find(|package| package["name"] == "rlock-cli").expect("the package of the program");
    let assets = root["metadata"]["deb"]["assets"].as_array().expect("a list of assets").clone();
    let matches = |pattern: &str, name: &str| match pattern.split_once('*') {
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => name == pattern,
    };
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(path("").join(&folder)).expect("the package has its examples") {
            let file = folder.join(entry.expect("a file").file_name());
            if path("").join(&file).is_dir() {
                folders.push(file);
                continue;
            }
            let is_executable = fs::metadata(path("").join(&file)).expect("a file").permissions().mode() & 0o111 != 0;
            let mode = if is_executable { "755" } else { "644" };
            let target = Path::new("usr/share/doc/rlock-cli/examples").join(&folder);
            let is_asset = |asset: &Value| {
                let source = Path::new(asset[0].as_str().expect("a pattern"));
                let (place, pattern) = (source.parent(), source.file_name().expect("a name").to_string_lossy());
                place == Some(&Path::new("examples").join(&folder))
                    && matches(&pattern, &file.file_name().expect("a name").to_string_lossy())
                    && Path::new(asset[1].as_str().expect("a folder")) == target
                    && asset[2] == mode
            };
            assert!(assets.iter().any(is_asset), "no asset installs {} with mode {mode}", file.display());
        }
    }
}

/// A lab on each kind of store, whose folder has a script for each of these programs.
fn labs_with(programs: &[&str]) -> Vec<Lab> {
    let on_server = Kind::Redis7.is_present().then(|| Lab::on(Kind::Redis7));
    [Lab::new()].into_iter().chain(on_server).inspect(|lab| add_scripts(lab, programs)).collect()
}

/// Puts a script for each of these programs into the lab's folder.
fn add_scripts(lab: &Lab, programs: &[&str]) {
    for program in programs {
        let path = lab.folder().join(program);
        fs::create_dir_all(path.parent().expect("the program is in the folder")).expect("a folder can be made");
        fs::write(&path, "#!/bin/sh\necho \"${0##*/}${*:+ $*}\"\n").expect("a file can be made");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its permissions");
    }
}

/// A shell that runs a command as cron and CI do, with rlock in PATH and the lab's folder as its
/// home directory.
fn shell(lab: &Lab, command: &str) -> Command {
    let mut shell = Command::new("sh");
    settle(lab, &mut shell);
    shell.args(["-c", command]).env("HOME", lab.folder()).current_dir(lab.folder());
    shell
}

fn settle(lab: &Lab, command: &mut Command) {
    let rlock = Path::new(RLOCK).parent().expect("the program is in a folder").display().to_string();
    lab.settle(command);
    command.env("PATH", format!("{rlock}:{}", std::env::var("PATH").unwrap_or_default()));
}

/// Returns the commands of a crontab as cron passes them to the shell.
fn jobs_of(crontab: &str) -> Vec<String> {
    let text = example(crontab);
    let jobs = text.lines().filter(|line| line.starts_with(|c: char| c == '*' || c.is_ascii_digit()));
    jobs.map(|job| {
        let command = job.splitn(6, ' ').last().expect("five fields of time stand before the command");
        assert!(command.starts_with("rlock "), "{job}");
        command.replace("\\%", "%")
    })
    .collect()
}

#[test]
fn crontab_jobs_run_without_output_of_rlock() {
    for lab in labs_with(&["bin/sync", "bin/backup", "bin/report", "bin/archive"]) {
        let printed: Vec<_> = jobs_of("crontab").iter().map(|job| Ran::of(&mut shell(&lab, job))).collect();
        let [sync, backup, report, archive] = &printed[..] else { panic!("{} jobs", printed.len()) };
        sync.printed("sync\n");
        backup.printed("backup\n");
        report.printed("report\n");
        let date = archive.stdout.strip_prefix("archive ").expect("its name and the date");
        assert_eq!((archive.code(), date.len()), (Some(0), "2026-11-22\n".len()), "{archive:?}");
        lab.assert_idle();
    }
}

#[test]
fn crontab_job_is_skipped_silently_while_the_sync_runs() {
    for lab in labs_with(&["bin/sync"]) {
        let holder = lab.hold("sync");
        Ran::of(&mut shell(&lab, &jobs_of("crontab")[0])).silently(0);
        holder.end().silently(0);
    }
}

#[test]
fn crontab_backup_waits_for_the_sync() {
    for lab in labs_with(&["bin/backup"]) {
        let holder = lab.hold("sync");
        let backup = Running::start(&mut shell(&lab, &jobs_of("crontab")[1]));
        lab.until_waiting("sync", 1);
        holder.end().silently(0);
        assert_eq!(backup.end().stdout, "backup\n");
    }
}

#[test]
fn crontab_backup_is_stopped_after_its_longest_time() {
    let backup = &jobs_of("crontab")[1];
    assert!(backup.contains(" --max-runtime 4h "), "{backup}");
    for lab in labs_with(&[]) {
        fs::create_dir(lab.folder().join("bin")).expect("a folder can be made");
        let script = lab.folder().join("bin/backup");
        fs::write(&script, "#!/bin/sh\nexec sleep 1000\n").expect("a file can be made");
        fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("its permissions");
        let ran = Ran::of(&mut shell(&lab, &backup.replace("4h", "100ms")));
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(rlock_sys::exit::TIMEOUT.into()), ""), "{ran:?}");
    }
}

/// Two machines with the same crontab; the second one comes while the first one holds or is done.
#[test]
fn fleet_runs_each_job_once_in_its_turn() {
    for lab in labs_with(&["bin/sync", "bin/report", "bin/upgrade"]) {
        let jobs = jobs_of("crontab.fleet");
        let [sync, report, upgrade] = &jobs[..] else { panic!("{jobs:?}") };
        let run = |job: &str| Ran::of(&mut shell(&lab, job));
        run(sync).printed("sync\n");
        run(sync).silently(0);
        run(report).printed("report\n");
        run(report).silently(0);
        run(upgrade).printed("upgrade\n");
        run(upgrade).printed("upgrade\n");
    }
}

#[test]
fn configuration_names_the_store_and_the_namespace() {
    skip_unless!(root("own the configuration"));
    let lab = Lab::new();
    let text = example("rlock.conf");
    assert!(text.contains("\nstore = redis://locks.example.com\n"), "{text}");
    let configuration = lab.folder().join("rlock.conf");
    let text = text.replace("redis://locks.example.com", &lab.url());
    fs::write(&configuration, text).expect("a file can be made");
    let mut shell = shell(&lab, "rlock exec k -c 'echo \"$RLOCK_STORE $RLOCK_NAMESPACE\"'");
    shell.env_remove("RLOCK_STORE").env("RLOCK_CONFIG", configuration);
    Ran::of(&mut shell).printed(&format!("{} site\n", lab.url()));
}

/// Returns the settings of a systemd unit as (section, key, value).
fn unit(name: &str) -> Vec<(String, String, String)> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in example(name).lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = header.to_owned();
        } else {
            let (key, value) = line.split_once('=').expect("a setting");
            settings.push((section.clone(), key.to_owned(), value.to_owned()));
        }
    }
    settings
}

fn setting(unit: &[(String, String, String)], section: &str, key: &str) -> String {
    let mut found = unit.iter().filter(|setting| (setting.0.as_str(), setting.1.as_str()) == (section, key));
    found.next().unwrap_or_else(|| panic!("[{section}] has no {key}")).2.clone()
}

#[test]
fn service_runs_its_command_and_counts_busy_as_success() {
    for lab in labs_with(&["backup"]) {
        let service = unit("systemd/backup.service");
        let rlock = Path::new(RLOCK).parent().expect("the program is in a folder").display().to_string();
        let command = setting(&service, "Service", "ExecStart");
        // systemd executes the words as they are; no word is quoted.
        let command = command.replacen("/usr/local/bin", &rlock, 1);
        let command = command.replace("/usr/local/bin", &lab.folder().display().to_string());
        Ran::of(&mut shell(&lab, &command)).printed("backup\n");
        assert_eq!(setting(&service, "Service", "SuccessExitStatus"), rlock_sys::exit::BUSY.to_string());
    }
}

#[test]
fn timer_has_the_name_of_its_service() {
    let timer = unit("systemd/backup.timer");
    assert!(path("systemd/backup.service").exists(), "a timer starts the service of its name");
    assert!(!setting(&timer, "Timer", "OnCalendar").is_empty());
    assert_eq!(setting(&timer, "Install", "WantedBy"), "timers.target");
}

#[test]
fn units_of_the_backup_are_valid() {
    skip_unless!(programs(&["systemd-analyze"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["backup.service", "backup.timer"] {
        let text = example(&format!("systemd/{name}")).replace("/usr/local/bin/rlock", RLOCK);
        fs::write(folder.path().join(name), text).expect("a file can be made");
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "backup.service", "backup.timer"]).current_dir(&folder);
    Ran::of(&mut verify).silently(0);
}

/// Puts the units of the server into a folder, where systemd finds the program to start.
fn server_units() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["rlock.socket", "rlock.service"] {
        let text = example(&format!("systemd/{name}")).replace("/usr/bin/rlock", RLOCK);
        fs::write(folder.path().join(name), text).expect("a file can be made");
    }
    folder
}

#[test]
fn units_of_the_server_are_valid() {
    skip_unless!(programs(&["systemd-analyze"]));
    let folder = server_units();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "rlock.socket", "rlock.service"]).current_dir(&folder);
    Ran::of(&mut verify).silently(0);
}

/// "systemd-analyze security" shows an exposure of at most 2.0 of 10.
#[test]
fn service_of_the_server_has_a_low_exposure() {
    skip_unless!(programs(&["systemd-analyze"]));
    let folder = server_units();
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=yes", "--threshold=20", "--no-pager", "rlock.service"]);
    let ran = Ran::of(security.current_dir(&folder));
    assert!(ran.code() == Some(0) && ran.stdout.contains("Overall exposure level"), "{ran:?}");
}

#[test]
fn ci_jobs_run_under_the_lock() {
    for lab in labs_with(&["integration-tests", "build", "deploy"]) {
        let text = example("gitlab-ci.yml");
        let jobs: Vec<_> = text.lines().filter_map(|line| line.trim_start().strip_prefix("- ")).collect();
        let run = |job: &str| Ran::of(shell(&lab, job).env("CI_COMMIT_SHA", "4711"));
        let [integration, build, deploy] = jobs[..] else { panic!("{jobs:?}") };
        run(integration).printed("integration-tests\n");
        run(build).printed("build\n");
        run(deploy).printed("deploy 4711\n");
        assert!(text.contains(&format!("exit_codes: {}\n", rlock_sys::exit::BUSY)));
    }
}

/// Makes a command that runs the script as a user would.
fn script(lab: &Lab, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(path(name));
    settle(lab, &mut command);
    command.args(arguments);
    command
}

#[test]
fn nightly_script_waits_for_the_lock_and_runs_once() {
    for lab in labs_with(&[]) {
        Ran::of(&mut script(&lab, "nightly.sh", &[])).printed("collecting\nreporting\n");
        let holder = lab.hold_by(["exec", "--read", "nightly"]);
        let nightly = Running::start(&mut script(&lab, "nightly.sh", &[]));
        lab.until_waiting("nightly", 1);
        holder.end().silently(0);
        assert_eq!(nightly.end().stdout, "collecting\nreporting\n");
        lab.assert_idle();
    }
}

#[test]
fn rows_scripts_exclude_each_other_only_on_the_same_rows() {
    for lab in labs_with(&[]) {
        let holder = lab.hold_by(["range-write", "rows", "300", "400"]);
        Ran::of(&mut script(&lab, "rows.sh", &["100", "102"])).printed("row 100\nrow 101\nrow 102\n");
        let waiter = Running::start(&mut script(&lab, "rows.sh", &["399", "401"]));
        lab.until_waiting("rows", 1);
        holder.end().silently(0);
        assert_eq!(waiter.end().stdout, "row 399\nrow 400\nrow 401\n");
        lab.assert_idle();
    }
}
