//! The committed completions and man pages are what the program prints: nobody can change an option and forget its reference.
//!
//! They are made from the definitions in src/cli. `RLOCK_REFRESH=1 cargo test --test reference` writes them anew.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use rlock::cli::completions::SHELLS;
use rlock::cli::{completions, pages};

/// What to do when a file is not as it should be.
const REFRESH: &str = "run: RLOCK_REFRESH=1 cargo test --test reference";

#[test]
fn completions_are_current() {
    let files = SHELLS.map(|shell| (completions::file_name(shell), completions::script(shell)));
    compare("completions", files.into());
}

#[test]
fn man_pages_are_current() {
    compare("man", pages::all().map(|page| (page.file_name(), page.roff())).collect());
}

/// Fails where a directory of the package holds anything else than these files, or writes them if that is asked for.
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
    assert!(stray.is_empty(), "{dir}/ has files that belong to nothing: {}; {REFRESH}", stray.join(", "));
}

/// Makes the directory hold these files and no others.
fn refresh(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for stray in names(dir).into_iter().filter(|name| !files.contains_key(name)) {
        fs::remove_file(dir.join(stray)).expect("a stray file can be removed");
    }
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).expect("a file of the package can be written");
    }
}

/// The names of the files in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the package has the directory");
    entries.map(|entry| entry.expect("the directory can be read").file_name().to_string_lossy().into_owned()).collect()
}
