//! The mutants of `tests/mutants` must fit the source. This test fails with the edit that makes a
//! mutant stale, long before the mutants are run.
//!
//! A mutant is a file in tests/mutation/mutants. It states one way to break the program and the
//! test that must fail then:
//!
//! ```text
//! Mutant: the mistake, in words
//! Caught by: variables for the environment, then what `cargo test` takes
//! File: crates/one/src/file.rs
//! Simulation: `catches it`, or `cannot, because …`
//!
//! --- find
//! whole lines that occur exactly once in that file
//! --- replace
//! the lines that replace them; none to delete them
//! ```

use std::fs;
use std::path::{Path, PathBuf};

struct Mutant {
    name: String,
    description: String,
    caught_by: String,
    file: String,
    simulation: String,
    find: String,
    replacement: String,
}

impl Mutant {
    fn all() -> Vec<Self> {
        let files = files_below(&root().join("tests/mutation/mutants"));
        files.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Self {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(path).expect("a mutant is text");
        let (head, edit) = text.split_once("\n\n--- find\n").unwrap_or_else(|| panic!("{name} has no '--- find'"));
        let (find, replacement) =
            edit.split_once("--- replace\n").unwrap_or_else(|| panic!("{name} has no '--- replace'"));
        let field = |field: &str| {
            let mut values = head.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
            values.next().unwrap_or_else(|| panic!("{name} has no line '{field}: …'")).to_owned()
        };
        let (description, caught_by, file) = (field("Mutant"), field("Caught by"), field("File"));
        let (find, replacement) = (find.to_owned(), replacement.to_owned());
        Self { simulation: field("Simulation"), name, description, caught_by, file, find, replacement }
    }

    /// Returns the folder of the suite that `Caught by` names, and the name of the test or module
    /// in it.
    fn suite(&self) -> (PathBuf, &str) {
        let words: Vec<&str> = self.caught_by.split(' ').filter(|word| !word.contains('=')).collect();
        let (suite, test) = match words[..] {
            ["--test", suite, test] => (Path::new("tests").join(suite), test),
            ["-p", "rlock-cli", "--lib", test] => (PathBuf::from("src"), test),
            ["-p", package, "--lib", test] => (Path::new("crates").join(package.trim_start_matches("rlock-")), test),
            _ => panic!("{}: 'Caught by' must name exactly one test: {}", self.name, self.caught_by),
        };
        (suite, test.split("::").filter(|part| !part.is_empty()).last().expect("a test has a name"))
    }
}

#[test]
fn every_snippet_occurs_exactly_once_in_its_file() {
    for mutant in Mutant::all() {
        let source = fs::read_to_string(root().join(&mutant.file))
            .unwrap_or_else(|error| panic!("{}: {}: {error}; name the current file", mutant.name, mutant.file));
        // A snippet is whole lines, so an occurrence starts at the start of a line.
        let found = format!("\n{source}").matches(&format!("\n{}", mutant.find)).count();
        assert_eq!(
            found, 1,
            "{}: the snippet occurs {found} times in {}, not once; adapt the snippet to the current source",
            mutant.name, mutant.file
        );
    }
}

#[test]
fn every_replacement_changes_the_source() {
    for mutant in Mutant::all() {
        assert!(mutant.find.ends_with('\n') && mutant.find.trim() != "", "{}: nothing to find", mutant.name);
        assert_ne!(mutant.find, mutant.replacement, "{}", mutant.name);
        assert!(!mutant.description.is_empty(), "{}", mutant.name);
    }
}

/// `tests/simulate` either finds the mistake within ten seconds, or the reason why it can't is
/// known.
#[test]
fn every_mutant_says_whether_the_simulation_catches_it() {
    for Mutant { name, simulation, .. } in Mutant::all() {
        let has_reason = simulation.starts_with("cannot, because ");
        assert!(simulation == "catches it" || has_reason, "{name}: 'Simulation: {simulation}'");
    }
}

/// A filter that matches no test would let `cargo test` pass, so the mutant would seem to survive.
#[test]
fn every_mutant_names_a_test_that_exists() {
    for mutant in Mutant::all() {
        let (suite, test) = mutant.suite();
        // Macros in the shared helpers name some of the tests.
        let folders = [suite.as_path(), Path::new("crates/testkit/src")];
        let mut sources = folders.iter().flat_map(|folder| files_below(&root().join(folder))).filter(|path| {
            let end = path.extension().unwrap_or_default();
            end == "rs" || end == "story"
        });
        let is_there = |path: PathBuf| {
            let is_module = path.file_stem().is_some_and(|stem| stem == test);
            is_module || fs::read_to_string(&path).is_ok_and(|text| text.contains(test))
        };
        assert!(sources.any(is_there), "{}: {} has no test '{test}'", mutant.name, suite.display());
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all files below a folder, sorted.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("the folder can be read").path()) {
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
