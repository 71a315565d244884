//! Text that rlock prints on demand: completions, manual pages, help and version.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran};

fn committed(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("the package has the file")
}

/// The program prints exactly the files of completions/ and man/.
#[test]
fn completions_and_man_print_the_committed_files() {
    let lab = Lab::new();
    for (shell, file) in [("bash", "rlock.bash"), ("zsh", "_rlock"), ("fish", "rlock.fish")] {
        lab.run(["completions", shell]).printed(&committed(&format!("completions/{file}")));
    }
    lab.run(["man"]).printed(&committed("man/rlock.1"));
    let pages = lab.folder().join("pages");
    lab.run(["man", "--dir", pages.to_str().expect("plain")]).printed("");
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).expect("the pages") {
        let name = entry.expect("a page").file_name().into_string().expect("a plain name");
        let (page, section) = name.rsplit_once('.').expect("a page of some section");
        // The three range-* share a page, to which their files lead.
        let text = if page.starts_with("rlock-range-") { "rlock-range.1" } else { &name };
        lab.run(["man", page]).printed(&committed(&format!("man/{text}")));
        if let Some(word) = page.strip_prefix("rlock-") {
            lab.run(["man", word]).printed(&committed(&format!("man/{text}")));
        }
        // The files lie where man(1) looks for them.
        let path = Path::new(&format!("man{section}")).join(&name);
        assert_eq!(
            fs::read_to_string(pages.join(&path)).expect("rlock wrote the page"),
            committed(&format!("man/{name}"))
        );
        paths.insert(path);
    }
    assert_eq!(files_below(&pages), paths);
    assert!(!lab.directory().exists(), "printing needs no store");
}

/// Returns the files two levels below a folder.
fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files = entries(folder).flat_map(|below| entries(&below).collect::<Vec<_>>());
    files.map(|file| file.strip_prefix(folder).expect("the file is below the folder").to_owned()).collect()
}

/// Help and version were asked for, so rlock prints them to standard output and exits 0.
#[test]
fn help_and_version_go_to_standard_output() {
    let lab = Lab::new();
    let version = concat!("rlock ", env!("CARGO_PKG_VERSION"), "\n");
    lab.run(["-V"]).printed(version);
    let long = lab.run(["--version"]).stdout;
    let details = long.strip_prefix(version).expect("the first line is that of -V").lines();
    let labels: Vec<_> = details.filter_map(|line| line.split_once(": ")).map(|(label, _)| label).collect();
    assert_eq!(labels, ["commit", "target", "stores"], "{long}");
    // Each of them is known: what is missing is the rest of the URL, or a server.
    let stores = long.lines().find_map(|line| line.strip_prefix("stores: ")).expect("a list");
    assert!(stores.ends_with(", postgres, postgresql"), "{stores}");
    for scheme in stores.split(", ") {
        let ran = lab.run(["--store", &format!("{scheme}://127.0.0.1:1/"), "exec", "k", "--", "true"]);
        assert!([64, 69].contains(&ran.code().unwrap()) && !ran.stderr.contains("no URL"), "{scheme}: {}", ran.stderr);
    }
    for words in [&["--help"][..], &["help"], &["exec", "--help"], &["help", "range-read"], &["cleanup", "-h"]] {
        let ran = lab.run(words);
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{words:?}");
        assert!(ran.stdout.contains("Usage: rlock"), "{words:?}");
    }
}

/// On a terminal, help has clap's styles and the width of the terminal. NO_COLOR turns the styles
/// off.
#[test]
fn help_on_a_terminal_is_styled_and_wrapped() {
    skip_unless!(needs::programs(&["script", "stty"]));
    let lab = Lab::new();
    let help = |no_color: &str| {
        let mut script = Command::new("script");
        lab.settle(&mut script);
        let command = format!("stty rows 24 cols 60; {RLOCK} inspect --help");
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", no_color);
        Ran::of(script.env_remove("CLICOLOR").env_remove("CLICOLOR_FORCE")).stdout
    };
    let plain = help("1");
    assert!(!plain.contains('\u{1b}') && plain.contains("\r\nOptions:\r\n"), "{plain}");
    let (_, after_usage) = plain.split_once("Arguments:").expect("the help has arguments");
    assert_eq!(after_usage.lines().find(|line| line.len() > 60), None);
    let styled = help("");
    assert!(styled.contains("\u{1b}[1m\u{1b}[4mExamples:\u{1b}[0m"), "{styled:?}");
}
