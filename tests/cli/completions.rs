//! Completion in the shells themselves: live names where a KEY stands, commands after `--`, and the
//! values of options.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran};

const BASH_COMPLETION: &str = "/usr/share/bash-completion/bash_completion";

/// Lines, each with what Tab makes of it in every shell. Backslashes are left out.
const LINES: [(&str, &str); 42] = [
    // A KEY.
    ("rlock exec b", "rlock exec backup:one"),
    ("rlock exec backup:o", "rlock exec backup:one"),
    ("rlock exec my", "rlock exec my job"),
    ("rlock exec -n b", "rlock exec -n backup:one"),
    ("rlock exec --wait 5s b", "rlock exec --wait 5s backup:one"),
    ("rlock exec --read b", "rlock exec --read backup:one"),
    ("rlock exec --read x --write=b", "rlock exec --read x --write=backup:one"),
    ("rlock exec --range-write b", "rlock exec --range-write backup:one"),
    ("rlock exec --slot b", "rlock exec --slot backup:one="),
    ("rlock range-read b", "rlock range-read backup:one"),
    ("rlock acquire --for 5s b", "rlock acquire --for 5s backup:one"),
    ("rlock inspect x b", "rlock inspect x backup:one"),
    ("rlock history -n 5 b", "rlock history -n 5 backup:one"),
    ("rlock break b", "rlock break backup:one"),
    ("rlock cleanup --break b", "rlock cleanup --break backup:one"),
    ("rlock held --read b", "rlock held --read backup:one"),
    ("rlock downgrade read --resource b", "rlock downgrade read --resource backup:one"),
    // The store.
    ("rlock --store file://OTHER exec b", "rlock --store file://OTHER exec b$(touch ran)"),
    ("rlock exec --store=file://OTHER --write b", "rlock exec --store=file://OTHER --write b$(touch ran)"),
    ("rlock --store redis://127.0.0.1:1 exec b", "rlock --store redis://127.0.0.1:1 exec b"),
    // What the store remembers.
    ("rlock history ear", "rlock history earlier"),
    ("rlock inspect --no-success-for 25h ear", "rlock inspect --no-success-for 25h earlier"),
    ("rlock exec ear", "rlock exec ear"),
    ("rlock exec --job ni", "rlock exec --job nightly"),
    ("rlock inspect --no-success-for 25h --job ni", "rlock inspect --no-success-for 25h --job nightly"),
    ("rlock help stu", "rlock help stuck"),
    // No KEY.
    ("rlock exec x b", "rlock exec x b"),
    ("rlock exec frob", "rlock exec frob"),
    ("rlock exec --wait b", "rlock exec --wait b"),
    ("rlock exec --range-write x b", "rlock exec --range-write x b"),
    ("rlock range-read x b", "rlock range-read x b"),
    // A subcommand that does not exist.
    ("rlock exce b", "rlock exce b"),
    ("rlock exce x -- frob", "rlock exce x -- frob"),
    // The command.
    ("rlock exec x -- frob", "rlock exec x -- frobnicate"),
    ("rlock exec --write x -- cat unus", "rlock exec --write x -- cat unusual.txt"),
    ("rlock range-read x 1 2 -- rlock inspect b", "rlock range-read x 1 2 -- rlock inspect backup:one"),
    // Values.
    ("rlock inspect --color al", "rlock inspect --color always"),
    ("rlock downgrade pre", "rlock downgrade prewrite"),
    ("rlock exec --once-per mon", "rlock exec --once-per month"),
    ("rlock completions fi", "rlock completions fish"),
    ("rlock man rlock-ins", "rlock man rlock-inspect"),
    ("rlock exec --status-file unus", "rlock exec --status-file unusual.txt"),
];

#[test]
fn bash_completes_live_names_commands_and_values() {
    skip_unless!(is_installed("bash"));
    assert_completes("bash");
}

#[test]
fn zsh_completes_live_names_commands_and_values() {
    skip_unless!(is_installed("zsh"));
    assert_completes("zsh");
}

#[test]
fn fish_completes_live_names_commands_and_values() {
    skip_unless!(is_installed("fish"));
    assert_completes("fish");
}

#[track_caller]
fn assert_completes(shell: &str) {
    let lab = Lab::new();
    let other = Lab::new();
    lab.run(["exec", "--once-per", "day", "--job", "nightly", "earlier", "--", "true"]).silently(0);
    let _holders = [lab.hold("backup:one"), lab.hold("my job"), other.hold("b$(touch ran)")];
    let folder = prepare(&lab);
    std::os::unix::fs::symlink(RLOCK, folder.join("rlock")).expect("a link");
    // A slow machine must not cut the names off.
    script(&folder.join("timeout"), "shift; exec \"$@\"");
    let placed = |line: &str| line.replace("file://OTHER", &other.url());
    let results = complete(&lab, shell, &LINES.map(|(line, _)| placed(line)));
    assert_eq!(results, LINES.map(|(_, expected)| placed(expected)));
    assert!(!folder.join("ran").exists(), "the shell ran a name");
}

/// A store that does not answer delays completion by no more than the limit.
#[test]
fn completion_does_not_wait_for_a_store_that_hangs() {
    skip_unless!(needs::programs(&["timeout"]));
    for shell in ["bash", "zsh", "fish"] {
        skip_unless!(is_installed(shell));
        let lab = Lab::new();
        script(&prepare(&lab).join("rlock"), "exec sleep 1000");
        let start = Instant::now();
        assert_eq!(complete(&lab, shell, &["rlock exec b".to_owned()]), ["rlock exec b"]);
        assert!(start.elapsed() < Duration::from_secs(900), "{shell} waited for the store");
    }
}

fn is_installed(shell: &str) -> bool {
    let has_library = || Path::new(BASH_COMPLETION).exists() || needs::left_out("not installed: bash-completion");
    needs::programs(&[shell]) && (shell != "bash" || has_library())
}

/// Makes a folder with the scripts, a command and a file. It is first in PATH.
fn prepare(lab: &Lab) -> std::path::PathBuf {
    let folder = lab.folder().join("bin");
    fs::create_dir(&folder).expect("a folder");
    for (shell, file) in [("bash", "rlock.bash"), ("zsh", "_rlock"), ("fish", "rlock.fish")] {
        fs::write(folder.join(file), lab.run(["completions", shell]).stdout).expect("a script");
    }
    script(&folder.join("frobnicate"), "true");
    fs::write(folder.join("unusual.txt"), "").expect("a file");
    folder
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("an executable file");
}

/// What Tab makes of each line in this shell. `|` separates several results.
#[track_caller]
fn complete(lab: &Lab, shell: &str, lines: &[String]) -> Vec<String> {
    let folder = lab.folder().join("bin");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a path"));
    let driver = format!("{}/tests/cli/completions/drive.{shell}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(shell);
    lab.settle(&mut command);
    command.env("PATH", path).env("SCRIPTS", &folder).env("BASH_COMPLETION", BASH_COMPLETION);
    command.env("HOME", lab.folder()).env_remove("XDG_CONFIG_HOME").current_dir(&folder);
    let ran = Ran::of(command.args((shell == "zsh").then_some("-f")).arg(driver).args(lines));
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let line = |line: &str| line.trim_end_matches('|').trim_end().replace('\\', "");
    ran.stdout.lines().map(line).collect()
}
