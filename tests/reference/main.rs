//! The committed completions and manual pages must be the output of the program. So an option and
//! its reference always change together.
//!
//! src/cli has the definitions. `RLOCK_REFRESH=1 cargo test --test reference` rewrites the files.

mod tools;
mod troubleshooting;

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use clap_complete::{Generator as _, Shell};
use rlock::cli::{completions, pages};

/// The advice if a file is not current.
const REFRESH: &str = "run: RLOCK_REFRESH=1 cargo test --test reference";

#[test]
fn committed_completions_are_the_output_of_the_program() {
    let shells = [Shell::Bash, Shell::Zsh, Shell::Fish];
    // A shell looks for the script in a file of this name.
    let files = shells.map(|shell| (shell.file_name("rlock"), completions::script(shell)));
    compare("completions", files.into());
}

#[test]
fn committed_man_pages_are_the_output_of_the_program() {
    compare("man", pages::all().map(|page| (page.file_name(), page.roff())).collect());
}

/// Fails if a directory of the package has other files or other contents than `files`. With
/// RLOCK_REFRESH, writes the files first.
fn compare(dir: &str, files: BTreeMap<String, Vec<u8>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    if env::var_os("RLOCK_REFRESH").is_some() {
        refresh(&path, &files);
    }
    for (name, expected) in &files {
        let found = fs::read(path.join(name)).unwrap_or_default();
        assert!(found == *expected, "{dir}/{name} is not current; {REFRESH}");
    }
    let stray: Vec<_> = names(&path).into_iter().filter(|name| !files.contains_key(name)).collect();
    assert!(stray.is_empty(), "{dir}/ has files without a source: {}; {REFRESH}", stray.join(", "));
}

/// Writes these files to the directory and removes all others.
fn refresh(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for stray in names(dir).into_iter().filter(|name| !files.contains_key(name)) {
        fs::remove_file(dir.join(stray)).expect("a stray file can be removed");
    }
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).expect("a file of the package can be written");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the package has the directory");
    entries.map(|entry| entry.expect("the directory can be read").file_name().to_string_lossy().into_owned()).collect()
}
