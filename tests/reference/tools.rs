//! What the pages say about other programs is what somebody has seen.
//!
//! The tables of four pages record it. The last cell of each row is the marker: a test, a finding,
//! the day of the only run, or `not run` with the source.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The pages whose tables tell what other programs do.
const TABLES: [&str; 4] = ["locks", "supervisors", "servers", "sandboxes"];

/// Other programs of which the README, the book, the manual pages or the examples say something.
/// Each is named by the first cell of a row of the tables.
const TOOLS: &str = "\
    anacron at bazel Buildkite busybox bwrap chpst consul cron cronie daemontools doas docker elvish etcdctl \
    firejail fish flock git GitHub GitLab gradle haproxy Jenkins LMDB lockf nushell podman PostgreSQL proot \
    Redisson run-one runuser sccache sem setlock ShedLock Slurm socat start-stop-daemon stunnel su sudo systemd \
    systemd-cron systemd-nspawn tcsh timeout twemproxy unshare Valkey xonsh yacron zsh";

#[test]
fn every_row_about_a_tool_names_a_test_a_finding_a_day_or_that_it_was_not_run() {
    let unproved: Vec<_> = rows().into_iter().filter(|row| !is_source(row.last().expect("a cell"))).collect();
    assert!(unproved.is_empty(), "{unproved:#?}");
}

#[test]
fn every_tool_that_the_pages_tell_of_has_a_row() {
    let rows = rows();
    let first: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    let missing: Vec<_> =
        TOOLS.split_whitespace().filter(|tool| !first.iter().any(|cell| has_word(cell, tool))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let pages = pages();
    let unnamed: Vec<_> =
        TOOLS.split_whitespace().filter(|tool| !pages.iter().any(|page| has_word(page, tool))).collect();
    assert!(unnamed.is_empty(), "no page tells of {unnamed:?}");
}

#[test]
fn every_finding_is_short_and_listed_with_the_version_that_it_names() {
    let list = text("findings/README.md");
    let listed: Vec<_> = list.lines().filter(|line| line.starts_with("| [")).map(cells).collect();
    let scripts = files("findings", "sh");
    assert_eq!(listed.len(), scripts.len());
    for script in scripts {
        let name = script.file_name().expect("a name").to_string_lossy();
        let row = listed.iter().find(|row| row[0] == format!("[{name}]({name})"));
        let [_, tool, version] = row.unwrap_or_else(|| panic!("{name} is not listed")).as_slice() else {
            panic!("{name}")
        };
        let lines: Vec<_> = text(&script).lines().map(str::to_owned).collect();
        let comment: Vec<_> = lines[1..].iter().take_while(|line| line.starts_with('#')).collect();
        assert!(comment[0].contains(version.as_str()), "{name} does not name {tool} {version}");
        assert!((3..=6).contains(&comment.len()) && lines.len() < 60, "{name} is too long");
        assert!(lines.contains(&"set -euo pipefail".to_owned()), "{name} does not fail if a step fails");
        let mode = fs::metadata(root().join(&script)).expect("it exists").permissions().mode();
        assert!(mode & 0o111 == 0o111, "{name} cannot be executed");
    }
}

/// The rows of the tables, without heads and rules.
fn rows() -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for page in TABLES {
        let page = text(Path::new("docs/book/src").join(page).with_extension("md"));
        let lines: Vec<_> = page.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with('|')) {
            if line.starts_with("| ---") {
                assert_eq!(cells(lines[number - 1]).last().map(String::as_str), Some("source"));
            } else if !lines.get(number + 1).is_some_and(|next| next.starts_with("| ---")) {
                rows.push(cells(line));
            }
        }
    }
    rows
}

/// Whether this is one of the markers, and what it names exists.
fn is_source(cell: &str) -> bool {
    let seen = cell.strip_prefix("seen once, ").is_some_and(|day| day.len() == 10 && day.split('-').count() == 3);
    let finding = cell.strip_prefix("[finding](../../../").and_then(|rest| rest.strip_suffix(')'));
    let test =
        cell.split_once("`: `").and_then(|(file, name)| Some((file.strip_prefix('`')?, name.strip_suffix('`')?)));
    seen || cell.starts_with("not run; ")
        || finding.is_some_and(|file| root().join(file).is_file())
        || test.is_some_and(|(file, name)| text(file).contains(&format!("#[test]\nfn {name}(")))
}

fn cells(row: &str) -> Vec<String> {
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The README, the other pages of the book, the sources of the manual pages, and the examples.
fn pages() -> Vec<String> {
    let mut pages = vec![PathBuf::from("README.md"), PathBuf::from("examples/README.md")];
    pages.extend(files("docs/book/src", "md"));
    pages.retain(|page| !TABLES.iter().any(|table| page.ends_with(format!("{table}.md"))));
    pages.extend(files("src/cli/pages", "txt"));
    pages.iter().map(text).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let bounds = |c: char| !c.is_alphanumeric() && c != '-' && c != '_';
    text.match_indices(word).any(|(at, _)| {
        text[..at].chars().next_back().is_none_or(bounds) && text[at + word.len()..].chars().next().is_none_or(bounds)
    })
}

/// The files of a folder with this ending.
fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder can be read");
    let names = entries.map(|entry| Path::new(folder).join(entry.expect("an entry").file_name()));
    names.filter(|name| name.extension().is_some_and(|found| found == end)).collect()
}

fn text(file: impl AsRef<Path>) -> String {
    let file = file.as_ref();
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
