//! What is printed on demand: completions, man pages, help and version.

use std::fs;
use std::path::Path;

use crate::support::Lab;

fn committed(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("the package has the file")
}

/// "completions/ man/: generated, committed": the program prints the very files.
#[test]
fn the_committed_files_are_printed() {
    let lab = Lab::new();
    for (shell, file) in [("bash", "rlock.bash"), ("zsh", "_rlock"), ("fish", "rlock.fish")] {
        lab.run(["completions", shell]).printed(&committed(&format!("completions/{file}")));
    }
    lab.run(["man"]).printed(&committed("man/rlock.1"));
    let pages = lab.folder().join("pages");
    lab.run(["man", "--dir", pages.to_str().expect("plain")]).printed("");
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).expect("the pages") {
        let name = entry.expect("a page").file_name().into_string().expect("a plain name");
        let page = name.strip_suffix(".1").expect("a page of section 1");
        lab.run(["man", page]).printed(&committed(&format!("man/{name}")));
        if let Some(subcommand) = page.strip_prefix("rlock-") {
            lab.run(["man", subcommand]).printed(&committed(&format!("man/{name}")));
        }
        assert_eq!(fs::read_to_string(pages.join(&name)).expect("it was written"), committed(&format!("man/{name}")));
        names.push(name);
    }
    assert_eq!(fs::read_dir(pages).expect("the folder").count(), names.len());
    assert!(!lab.directory().exists(), "printing needs no store");
}

/// Help and version are what was asked for, so they go to standard output with 0.
#[test]
fn help_and_version_are_printed() {
    let lab = Lab::new();
    lab.run(["--version"]).printed(concat!("rlock ", env!("CARGO_PKG_VERSION"), "\n"));
    for words in [&["--help"][..], &["help"], &["exec", "--help"], &["help", "range-read"], &["cleanup", "-h"]] {
        let ran = lab.run(words);
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{words:?}");
        assert!(ran.stdout.contains("Usage: rlock"), "{words:?}");
    }
}
