//! Compares the map of the code in CONTRIBUTING.md with the manifests and the imports, so that it
//! stays true. The compiler checks who depends on whom.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{files_below, root, text};

/// What a pure file does not contain: a clock, I/O, the environment, threads and randomness.
/// Numbers of processes and signals are data.
const IMPURE: [&str; 14] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "io::std",
    "::now()",
    "SystemTime",
    "rustix::",
    "libc::",
    "getrandom",
    "signal_hook",
    "unsafe",
];

/// Files with I/O whose types pure files name through them, and functions that only convert.
const DATA: [&str; 4] = ["store", "store::sessions", "sys::clock::micros", "redis::nodes::redirected"];

/// The rows of the table in CONTRIBUTING.md whose first heading is this one.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = text(Path::new("CONTRIBUTING.md"));
    let rows = page.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |"))).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    rows.map(cells).collect()
}

/// The words of a cell in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A source file without its tests and comments.
fn code(file: &Path) -> String {
    let text = text(file);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The Rust files of the program, without those of its tests.
fn sources(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if path.is_dir() {
        files_below(path, &mut files)
    } else {
        files.push(path.to_owned())
    }
    let is_source = |file: &PathBuf| {
        let is_test = file.ends_with("tests.rs")
            || file.ends_with("testing.rs")
            || file.components().any(|part| part.as_os_str() == "tests");
        file.extension().is_some_and(|extension| extension == "rs") && !is_test
    };
    files.retain(is_source);
    files
}

/// The folder of a crate's sources.
fn folder(of: &str) -> PathBuf {
    if of == "cli" { PathBuf::from("src") } else { Path::new("crates").join(of).join("src") }
}

/// The paths into the workspace in this code of a crate, such as `model::op::Reply`.
fn uses(code: &str, own: &str) -> Vec<String> {
    let mut found = Vec::new();
    let own = format!("{own}::");
    // `pub(in crate::…)` uses nothing.
    for (at, start) in code.match_indices("crate::").filter(|(at, _)| !code[..*at].ends_with("in ")) {
        expand(&own, &code[at + start.len()..], &mut found);
    }
    for (at, start) in code.match_indices("rlock_") {
        expand("", &code[at + start.len()..], &mut found);
    }
    found
}

/// Adds the paths at the start of `text`, each behind `prefix`. Returns what follows them.
fn expand<'t>(prefix: &str, text: &'t str, found: &mut Vec<String>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut list) = text.strip_prefix('{') {
        while !list.trim_start().starts_with('}') {
            list = expand(prefix, list, found);
            list = list.trim_start().trim_start_matches(',');
        }
        return &list.trim_start()[1..];
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(rest) if name.is_empty() || rest.starts_with('<') => rest,
        Some(rest) => expand(&format!("{prefix}{name}::"), rest, found),
        None => {
            found.push(format!("{prefix}{name}"));
            // A glob or an alias adds no path.
            rest.strip_prefix('*').unwrap_or(rest).trim_start_matches(|c: char| c != ',' && c != '}' && c != ';')
        }
    }
}

/// A row of the map.
struct Room {
    name: String,
    uses: BTreeSet<String>,
    pure: String,
}

/// The rows of the map, in their order.
fn rooms() -> Vec<Room> {
    let mut rooms: Vec<Room> = Vec::new();
    for row in table("crate") {
        let mut uses: BTreeSet<_> = quoted(&row[2]).into_iter().collect();
        if row[2] == "all of these" {
            uses = rooms.iter().map(|room| room.name.clone()).collect();
        }
        rooms.push(Room { name: quoted(&row[0]).remove(0), uses, pure: row[3].clone() });
    }
    rooms
}

/// The crates of the workspace that a manifest names, without those that only its tests use. The
/// simulation is a test as a whole.
fn dependencies(of: &str) -> BTreeSet<String> {
    let manifest = folder(of).parent().expect("a crate has a folder").join("Cargo.toml");
    let section = if of == "sim" { "\n[dev-dependencies]\n" } else { "\n[dependencies]\n" };
    let text = text(&manifest);
    let lines = text.split_once(section).map_or("", |(_, rest)| rest).lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| Some(line.strip_prefix("rlock-")?.split_once('.')?.0.to_owned())).collect()
}

#[test]
fn map_has_every_crate_with_what_its_manifest_names() {
    let mut above = BTreeSet::new();
    for Room { name, uses, .. } in rooms() {
        assert!(uses.is_subset(&above), "{name} uses what does not stand above it");
        assert_eq!(dependencies(&name), uses, "{name}");
        above.insert(name);
    }
    let there = fs::read_dir(root().join("crates")).expect("the folder can be read");
    let there = there.map(|entry| entry.expect("the folder can be read").file_name().to_string_lossy().into_owned());
    assert_eq!(there.chain(["cli".to_owned()]).collect::<BTreeSet<_>>(), above);
}

/// The files that the map calls pure, each with its crate.
fn pure() -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    for Room { name, pure, .. } in rooms() {
        let folder = folder(&name);
        let paths = match pure.split(' ').next().unwrap_or_default() {
            "yes" => vec![folder],
            _ => quoted(&pure).iter().map(|path| folder.join(path)).collect(),
        };
        files.extend(paths.iter().flat_map(|path| sources(path)).map(|file| (name.clone(), file)));
    }
    files
}

/// A pure file takes from modules with I/O only their types, which are data.
#[test]
fn pure_files_have_no_clock_and_no_input_or_output() {
    let pure = pure();
    assert!(pure.len() > 40, "{pure:?}");
    let rooms: BTreeSet<_> = rooms().into_iter().map(|room| room.name).collect();
    let is_pure = |path: &str| {
        let parts: Vec<_> = path.split("::").collect();
        let is_type = |part: &&str| part.starts_with(char::is_uppercase) || *part == "self";
        let is_file = |length: usize| {
            let below = folder(parts[0]).join(parts[1..length].join("/"));
            let file = if length == 1 { below.join("lib.rs") } else { below.with_extension("rs") };
            pure.iter().any(|(_, pure)| *pure == file)
        };
        !rooms.contains(parts[0]) || DATA.contains(&path) || parts.iter().any(is_type) || (1..=parts.len()).any(is_file)
    };
    let mut wrong = Vec::new();
    for (own, file) in &pure {
        let code = code(file);
        let mut impure: Vec<_> =
            IMPURE.iter().filter(|word| code.contains(*word)).map(|word| (*word).to_owned()).collect();
        // `use rustix::process::Pid;` and the like.
        let is_data = |line: &str| {
            line == "use rustix::io::Errno;" || line.starts_with("use rustix::process::") && !line.contains("_")
        };
        let other = code.lines().filter(|line| !is_data(line)).any(|line| line.contains("rustix::"));
        impure.retain(|word| word != "rustix::" || other);
        impure.extend(uses(&code, own).into_iter().filter(|path| !is_pure(path)));
        wrong.extend(impure.into_iter().map(|what| format!("{}: {what}", file.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn imports_are_found_in_any_form() {
    let code = "use crate::a::{self, B, c::{d, E}};\nuse rlock_f::g;\nlet x = crate::h::i(1);\nuse crate::j::K as L;";
    assert_eq!(
        uses(code, "own"),
        ["own::a::self", "own::a::B", "own::a::c::d", "own::a::c::E", "own::h::i", "own::j::K", "f::g"]
    );
}
