//! Compares the map of the code in CONTRIBUTING.md with the imports in src, so that it stays true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{files_below, text};

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

/// Modules with I/O whose types pure files name through them, and a function that only converts.
const DATA: [&str; 3] = ["store", "store::sessions", "system::clock::micros"];

/// The rows of the table in CONTRIBUTING.md whose first heading is this one.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = text(Path::new("CONTRIBUTING.md"));
    let rows = page.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |"))).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
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

/// The module of src that a file belongs to.
fn module(file: &Path) -> String {
    let part = file.components().nth(1).expect("the file is below src").as_os_str().to_string_lossy();
    part.trim_end_matches(".rs").to_owned()
}

/// The paths behind `crate::` in this code, such as `lock::op::Reply`.
fn uses(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    // `pub(in crate::…)` uses nothing.
    for (at, start) in code.match_indices("crate::").filter(|(at, _)| !code[..*at].ends_with("in ")) {
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

/// The modules of the map in their order, each with those that it may use.
fn modules() -> Vec<(String, BTreeSet<String>)> {
    let rows = table("module").into_iter();
    rows.map(|row| (quoted(&row[0]).remove(0), quoted(&row[1]).into_iter().collect())).collect()
}

#[test]
fn every_module_of_the_program_is_on_the_map_and_the_map_has_no_cycle() {
    let mut above = BTreeSet::new();
    for (module, used) in modules() {
        assert!(used.is_subset(&above), "{module} uses what does not stand above it");
        above.insert(module);
    }
    let there: BTreeSet<_> = sources(Path::new("src")).iter().map(|file| module(file)).collect();
    let there: BTreeSet<_> = there.into_iter().filter(|name| name != "lib" && name != "main").collect();
    assert_eq!(there, above);
}

#[test]
fn no_import_contradicts_the_map() {
    let modules: BTreeMap<_, _> = modules().into_iter().collect();
    let mut unused: BTreeSet<_> = modules.iter().flat_map(|(one, used)| used.iter().map(move |it| (one, it))).collect();
    let mut wrong = BTreeSet::new();
    for file in sources(Path::new("src")) {
        let own = module(&file);
        let Some((own, may_use)) = modules.get_key_value(&own) else { continue };
        for path in uses(&code(&file)) {
            let top = path.split("::").next().unwrap_or_default().to_owned();
            if let Some((top, _)) = modules.get_key_value(&top)
                && top != own
            {
                unused.remove(&(own, top));
                if !may_use.contains(top) {
                    wrong.insert(format!("{} uses {path}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(unused.is_empty(), "the map allows what nobody uses: {unused:?}");
}

/// The files that the map calls pure.
fn pure() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for row in table("path") {
        let (path, cell) = (PathBuf::from(quoted(&row[0]).remove(0)), &row[2]);
        let named: Vec<_> = quoted(cell).iter().map(|name| path.join(name)).collect();
        let of_all = |files: &mut Vec<PathBuf>| files.extend(sources(&path));
        match cell.split(' ').next().unwrap_or_default() {
            "" => {}
            "yes" => of_all(&mut files),
            "all" => {
                of_all(&mut files);
                files.retain(|file| !named.contains(file));
            }
            _ => files.extend(named.iter().flat_map(|name| sources(name))),
        }
    }
    files
}

/// A pure file takes from modules with I/O only their types, which are data.
#[test]
fn pure_files_have_no_clock_and_no_input_or_output() {
    let pure = pure();
    assert!(pure.len() > 40, "{pure:?}");
    let modules: BTreeSet<_> = modules().into_iter().map(|(module, _)| module).collect();
    let is_pure = |path: &str| {
        let parts: Vec<_> = path.split("::").collect();
        let is_type = |part: &&str| part.starts_with(char::is_uppercase) || *part == "self";
        let below = |length: usize| Path::new("src").join(parts[..length].join("/"));
        let is_file = |length| {
            pure.iter().any(|file| *file == below(length).with_extension("rs") || *file == below(length).join("mod.rs"))
        };
        !modules.contains(parts[0])
            || DATA.contains(&path)
            || parts.iter().any(is_type)
            || (1..=parts.len()).any(is_file)
    };
    let mut wrong = Vec::new();
    for file in &pure {
        let code = code(file);
        let mut impure: Vec<_> =
            IMPURE.iter().filter(|word| code.contains(*word)).map(|word| (*word).to_owned()).collect();
        // `use rustix::process::Pid;` and the like.
        let is_data = |line: &str| {
            line == "use rustix::io::Errno;" || line.starts_with("use rustix::process::") && !line.contains("_")
        };
        let other = code.lines().filter(|line| !is_data(line)).any(|line| line.contains("rustix::"));
        impure.retain(|word| word != "rustix::" || other);
        impure.extend(uses(&code).into_iter().filter(|path| !is_pure(path)));
        wrong.extend(impure.into_iter().map(|what| format!("{}: {what}", file.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn imports_are_found_in_any_form() {
    let code = "use crate::a::{self, B, c::{d, E}};\nuse crate::f;\nlet x = crate::g::h(1);\nuse crate::i::J as K;";
    assert_eq!(uses(code), ["a::self", "a::B", "a::c::d", "a::c::E", "f", "g::h", "i::J"]);
}
