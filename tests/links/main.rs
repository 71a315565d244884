//! Checks the pages for contributors: their links and anchors, the paths that they cite, and the
//! citations of pages in the source.

mod map;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlock_testkit::needs::{programs, skip_unless};

/// The pages outside of docs/.
const PAGES: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

/// The folders whose files may cite a page.
const SOURCES: [&str; 4] = ["src", "crates", "tests", "benches"];

#[test]
fn every_link_of_a_page_has_a_target() {
    let broken: Vec<_> = pages().iter().flat_map(|page| broken_links(page, &text(page))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_path_that_a_page_cites_exists() {
    let broken: Vec<_> = pages().iter().flat_map(|page| broken_paths(page, &text(page))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// These pages name the functions on the way of a grant, and the tests that rule failures out.
#[test]
fn every_function_and_test_that_a_page_names_exists() {
    let mut pages = pages();
    pages.retain(|page| page.starts_with("docs/failures.md") || page.to_string_lossy().starts_with("docs/grant-"));
    assert!(pages.len() > 1);
    let broken: Vec<_> = pages.iter().flat_map(|page| broken_functions(page, &text(page))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_that_the_source_cites_exists() {
    let mut sources = vec![PathBuf::from("build.rs")];
    SOURCES.iter().for_each(|folder| files_below(Path::new(folder), &mut sources));
    // This file cites missing pages as examples.
    sources.retain(|file| !file.starts_with("tests/links"));
    let broken: Vec<_> = sources.iter().flat_map(|file| broken_citations(file, &text(file))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// "Those of the last column occur nowhere."
#[test]
fn no_word_is_used_that_the_vocabulary_forbids() {
    let forbidden = forbidden_words(&text(Path::new(VOCABULARY)));
    assert!(forbidden.len() > 8, "{forbidden:?}");
    let mut files = pages();
    ["src", "crates", "man"].iter().for_each(|folder| files_below(Path::new(folder), &mut files));
    files.retain(|file| file != Path::new(VOCABULARY));
    let used: Vec<_> = files.iter().flat_map(|file| uses(file, &text(file), &forbidden)).collect();
    assert!(used.is_empty(), "{}", used.join("\n"));
}

/// The page with the table of words.
const VOCABULARY: &str = "docs/design.md";

/// The words between backticks in the last column of the vocabulary.
fn forbidden_words(page: &str) -> Vec<String> {
    let table = page.split("| word | meaning | not |").nth(1).and_then(|rest| rest.split("\n\n").next());
    let columns = table.expect("the page has the table").lines().filter_map(|row| row.split('|').nth(3));
    columns.flat_map(|column| column.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// The lines that use a forbidden word.
fn uses(file: &Path, text: &str, forbidden: &[String]) -> Vec<String> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.to_lowercase()));
    let found = lines.flat_map(|(number, line)| {
        let used = forbidden.iter().filter(move |word| line.contains(word.as_str()));
        used.map(move |word| format!("{}:{number}: '{word}', see the vocabulary of {VOCABULARY}", file.display()))
    });
    found.collect()
}

/// The contents of the book.
const SUMMARY: &str = "docs/book/src/SUMMARY.md";

#[test]
fn book_has_every_page_once() {
    let summary = text(Path::new(SUMMARY));
    let folder = root().join(SUMMARY).parent().expect("it is in a folder").to_owned();
    let mut listed: Vec<_> =
        targets(&summary).map(|target| fs::canonicalize(folder.join(target)).expect("a page")).collect();
    let mut pages = pages();
    files_below(Path::new("man"), &mut pages);
    // A manual page without text of its own only names another one.
    pages.retain(|page| page != Path::new(SUMMARY) && !text(page).starts_with(".so "));
    pages.extend(["examples/README.md", "benches/results/results.md"].map(PathBuf::from));
    let mut pages: Vec<_> = pages.iter().map(|page| root().join(page)).collect();
    listed.sort();
    pages.sort();
    assert_eq!(listed, pages);
}

#[test]
fn every_link_of_the_made_book_leads_to_a_page_of_it() {
    skip_unless!(programs(&["python3"]));
    let made = std::env::temp_dir().join(format!("rlock-book-{}", std::process::id()));
    let status = Command::new(root().join("docs/build")).arg("--pages").arg(&made).status().expect("docs/build runs");
    assert!(status.success(), "{status}");
    let mut files = Vec::new();
    files_below(&made, &mut files);
    let pages: Vec<_> = files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md")).collect();
    let broken: Vec<_> = pages.iter().flat_map(|page| broken_links(page, &text(page))).collect();
    fs::remove_dir_all(&made).expect("the pages can be removed");
    assert!(pages.len() > 30 && broken.is_empty(), "{} pages: {}", pages.len(), broken.join("\n"));
}

#[test]
fn every_picture_of_the_book_is_drawn_from_its_source() {
    skip_unless!(programs(&["dot"]));
    let mut sources = Vec::new();
    files_below(Path::new("docs/book/pictures"), &mut sources);
    let mut drawn = Vec::new();
    files_below(Path::new("docs/book/src/pictures"), &mut drawn);
    assert_eq!(sources.len(), drawn.len(), "{sources:?} {drawn:?}");
    // Another version of Graphviz sets the same words elsewhere.
    let words = |svg: &str| {
        let texts = svg.split("</text>").filter_map(|part| Some(part.rsplit_once('>')?.1.to_owned()));
        texts.collect::<BTreeSet<_>>()
    };
    for source in sources {
        let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
        let made = Command::new("dot").arg("-Tsvg").arg(root().join(&source)).output().expect("dot runs");
        let picture = text(Path::new(&format!("docs/book/src/pictures/{name}.svg")));
        assert_eq!(words(&String::from_utf8_lossy(&made.stdout)), words(&picture), "run: docs/build --pictures");
    }
}

#[test]
fn link_path_or_citation_without_a_target_is_reported() {
    let page = Path::new("docs/design.md");
    let links = "[a](protocol.md) [b](nowhere.md) [c](#the-one-rule) [d](#nowhere) [e](../README.md#installing) \
                 [f](https://example.com/x) <img src=\"nowhere.svg\">\n```\n[g](nowhere.md)\n```\n";
    assert_eq!(broken_links(page, links).len(), 3);
    let paths = "`crates/model/src/table.rs` `src/nowhere.rs` `src/cli/NAME.rs` `tests/run --test x` `nowhere/NAME` `src/nowhere/NAME`";
    assert_eq!(broken_paths(page, paths).len(), 2);
    let functions = "`apply` in `crates/model/src/table.rs`, `leave` in `crates/redis/src/lua/prelude/change.lua`, \
                     `nothing` in `crates/model/src/table.rs`, `apply` in `src/nowhere.rs`";
    assert_eq!(broken_functions(page, functions).len(), 2);
    let forbidden =
        forbidden_words("| word | meaning | not |\n| --- | --- | --- |\n| token | a number | `magic number` |\n\n");
    assert_eq!(uses(page, "A Magic number\nand a token", &forbidden).len(), 1);
    let citations = "docs/design.md docs/design.md#nesting, docs/nowhere.md (docs/design.md#nowhere).";
    assert_eq!(broken_citations(Path::new("src/lib.rs"), citations).len(), 2);
}

/// Returns the links `[…](target)` that lead to no file or to no heading. Links to the web are not
/// checked.
fn broken_links(page: &Path, text: &str) -> Vec<String> {
    let prose = prose(text);
    let local = targets(&prose).filter(|target| !target.contains("://"));
    local.filter_map(|target| broken(page, page.parent().unwrap_or(Path::new("")), target)).collect()
}

/// The targets of the links and pictures of a page.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let behind = |start, end| text.split(start).skip(1).filter_map(move |rest: &str| rest.split(end).next());
    behind("](", ')').chain(behind("src=\"", '"')).chain(behind("srcset=\"", '"'))
}

/// Returns the paths between backticks that do not exist. For a path with a placeholder such as
/// NAME, only the part before the placeholder has to exist.
fn broken_paths(page: &Path, text: &str) -> Vec<String> {
    let prose = prose(text);
    let cited = prose.split('`').skip(1).step_by(2).filter_map(|code| code.split_whitespace().next());
    let folders = folders();
    let paths = cited.filter(|path| path.split_once('/').is_some_and(|(folder, _)| folders.contains(folder)));
    let missing = paths.filter(|path| {
        let certain = path.split(['*', '…']).next().unwrap_or_default();
        let certain = certain.split_once("/NAME").map_or(certain, |(folder, _)| folder);
        !root().join(certain).exists()
    });
    missing.map(|path| format!("{}: `{path}` does not exist", page.display())).collect()
}

/// Returns the functions cited as "`name` in `path`" that the file does not define.
fn broken_functions(page: &Path, text: &str) -> Vec<String> {
    let parts: Vec<_> = text.split('`').collect();
    let cited = parts.windows(3).filter(|parts| parts[1] == " in ").map(|parts| (parts[0], parts[2]));
    let missing = cited.filter(|(name, path)| {
        let code = fs::read_to_string(root().join(path)).unwrap_or_default();
        let is_head = |line: &str| {
            let behind =
                line.split_once("fn ").or_else(|| line.split_once("function ")).map_or("", |(_, behind)| behind);
            behind.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<']))
        };
        !code.lines().any(is_head)
    });
    missing.map(|(name, path)| format!("{}: `{path}` has no function `{name}`", page.display())).collect()
}

/// Returns the cited pages that do not exist or lack the heading. A source cites a page by its path
/// from the root.
fn broken_citations(file: &Path, text: &str) -> Vec<String> {
    let ends = |c: char| c.is_whitespace() || "()[]`'\",;:".contains(c);
    let words = text.split(ends).map(|word| word.trim_end_matches('.'));
    let is_page = |word: &str| {
        let path = word.split('#').next().unwrap_or_default();
        path.starts_with("docs/") && path.ends_with(".md") || PAGES.contains(&path)
    };
    words.filter(|word| is_page(word)).filter_map(|word| broken(file, Path::new(""), word)).collect()
}

/// Describes what is wrong with a target: a path from `folder`, a heading of `from`, or both.
fn broken(from: &Path, folder: &Path, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { from.to_owned() } else { folder.join(path) };
    if !root().join(&file).exists() {
        return Some(format!("{}: '{target}' leads to no file", from.display()));
    }
    let is_found = anchor.is_empty() || anchors(&text(&file)).contains(anchor);
    (!is_found).then(|| format!("{}: '{target}' leads to no heading", from.display()))
}

/// Returns the anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

/// Returns a page without its code blocks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.extend([line, "\n"]);
        }
    }
    prose
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<_> = PAGES.map(PathBuf::from).into();
    files_below(Path::new("docs"), &mut pages);
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages
}

/// Returns the folders of the package, which distinguish a path from other words between backticks.
fn folders() -> BTreeSet<String> {
    let entries = fs::read_dir(root()).expect("the package can be read").map(|entry| entry.expect("an entry"));
    let folders = entries.filter(|entry| entry.path().is_dir() && entry.file_name() != "target");
    folders.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect()
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(folder)).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

fn text(file: &Path) -> String {
    let bytes = fs::read(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
