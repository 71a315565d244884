//! Assembles the Lua scripts, links the binary statically if the C library allows it, and finds the
//! commit that `rlock --version` tells.
//!
//! A static binary starts in half the time of a dynamic one: it needs no loader and no relocation.
//! Starting is most of what `rlock exec` costs. A static binary also runs on any machine that it is
//! copied to.
//!
//! `-C target-feature=+crt-static` would have the same effect. But as a flag for all crates, it
//! breaks the procedural macros that some build dependencies use. A package cannot set a flag for
//! one crate only. So rustc links as usual, but finds archives first where it looks for shared
//! libraries.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The libraries that rustc names when it links against glibc. libgcc_s has no archive; libgcc_eh
/// has the symbols of libgcc_s that std needs.
const LIBRARIES: [(&str, &str); 7] = [
    ("libgcc_s.a", "libgcc_eh.a"),
    ("libc.a", "libc.a"),
    ("libm.a", "libm.a"),
    ("libdl.a", "libdl.a"),
    ("librt.a", "librt.a"),
    ("libpthread.a", "libpthread.a"),
    ("libutil.a", "libutil.a"),
];

const LUA: &str = "src/store/redis/lua";

/// The core of every operation, and the parts of the prelude, in this order.
///
/// A script begins with the core and its arguments. Its fast path follows, which defines nothing: a
/// server would spend a quarter of its time on the definition of functions. So a fast path has the
/// text of the functions that it calls, see [`inlined`]. Then come the functions of both paths, and
/// the fast path for several resources, which calls them. The general path is one function with the
/// rest of the prelude. A release may also end at its hand-over, which needs only the first parts
/// of the prelude and stands after them.
const CORE: &str = "core";
const PRELUDE: [&str; 13] = [
    "clock", "past", "record", "wake", "head", "span", "jobs", "queue", "conflict", "nesting", "change", "settle",
    "flow",
];
const FAST: &str = "--- the fast path ---\n";
const BOTH: &str = "--- both paths ---\n";
const SEVERAL: &str = "--- the fast path for several resources ---\n";
const HAND_OVER: &str = "--- the hand-over ---\n";
const GENERAL: &str = "--- the general path ---\n";
/// The last part of the prelude before the hand-over.
const BEFORE_HAND_OVER: &str = "wake";
/// The part of the prelude with which a second function begins. For each local variable that a
/// function uses, Lua goes through a list of those that other functions of its level use. Two short
/// lists take less time than one.
const SECOND_LEVEL: &str = "span";
const BEGIN: &str = "return (function()\n";
const END: &str = "end)()\n";

/// Why writing to a text cannot fail.
const WRITTEN: &str = "a text takes what is written";

/// The operations. Each has the parts that its fast paths need, and those that its general path
/// needs beside the prelude. An operation without parts needs neither core nor prelude.
const OPERATIONS: [(&str, Option<Parts>); 12] = [
    ("acquire", Some(Parts { fast: &["clock", "past"], general: &["tell"] })),
    ("renew", Some(Parts { fast: &["clock", "several"], general: &[] })),
    ("renew_alone", None),
    ("release", Some(Parts { fast: &["clock", "past", "several"], general: &[] })),
    ("give_up", Some(Parts { fast: &[], general: &[] })),
    ("extend", Some(Parts { fast: &[], general: &["held"] })),
    ("shrink", Some(Parts { fast: &[], general: &["held"] })),
    ("downgrade", Some(Parts { fast: &[], general: &["held"] })),
    ("expire", Some(Parts { fast: &[], general: &["tell"] })),
    ("break", Some(Parts { fast: &[], general: &["tell"] })),
    ("inspect", Some(Parts { fast: &[], general: &["tell"] })),
    ("history", Some(Parts { fast: &[], general: &[] })),
];

struct Parts {
    fast: &'static [&'static str],
    general: &'static [&'static str],
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={LUA}");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("scripts.rs"), scripts()).expect("OUT_DIR is writable");
    let linking = if link_statically(&out) { "static" } else { "dynamic" };
    println!("cargo:rustc-env=RLOCK_TARGET={}, {linking}", env::var("TARGET").expect("cargo sets TARGET"));
    println!("cargo:rustc-env=RLOCK_COMMIT={}", commit().as_deref().unwrap_or("unknown"));
}

/// The commit that an optimised build is made from. `cargo package` notes it in a file; otherwise
/// git knows it, unless the repository around the sources is another one. A debug build has none,
/// because every commit would build the crate anew.
fn commit() -> Option<String> {
    const NOTE: &str = ".cargo_vcs_info.json";
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    if let Ok(note) = fs::read_to_string(NOTE) {
        let (_, rest) = note.split_once("\"sha1\": \"")?;
        return Some(rest.split('"').next()?.to_owned());
    }
    if !Path::new(".git").exists() {
        return None;
    }
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let moved = ["HEAD", "logs/HEAD"].map(|file| git(&["rev-parse", "--git-path", file]));
    let changed = ["src", "Cargo.toml", "Cargo.lock"].map(|path| Some(path.to_owned()));
    for path in moved.into_iter().chain(changed).flatten().filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
    git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with changes"])
}

/// Generates the module of the scripts: one static for each script, and the core that they share.
fn scripts() -> String {
    let read = |path: String| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let definitions = read(format!("{LUA}/prelude/constants.lua"));
    let constants = constants(&definitions);
    let lean = |lua: &str| with_values(&stripped(lua), &constants);
    let source = |name: &&str| read(format!("{LUA}/prelude/{name}.lua"));
    let part = |name: &&str| lean(&source(name));
    let core = part(&CORE);
    let mut module = format!("const CORE: &str = {core:?};\n");
    for name in PRELUDE {
        writeln!(module, "const {}: &str = {:?};", name.to_uppercase(), part(&name)).expect(WRITTEN);
    }
    for (operation, parts) in OPERATIONS {
        let own = read(format!("{LUA}/{operation}.lua"));
        let (first, general) = own.split_once(GENERAL).unwrap_or(("", &own));
        let (first, hand_over) = first.split_once(HAND_OVER).unwrap_or((first, ""));
        let (first, several) = first.split_once(SEVERAL).unwrap_or((first, ""));
        let (first, both) = first.split_once(BOTH).unwrap_or((first, ""));
        let (arguments, fast) = first.split_once(FAST).unwrap_or_default();
        let mut script = Script::default();
        if let Some(parts) = parts {
            let both = parts.fast.iter().map(source).collect::<String>() + both;
            let fast = inlined(fast, &functions(&both));
            let [arguments, fast, both, several, hand_over, general] =
                [arguments, &fast, &both, several, hand_over, general].map(lean);
            script.add("CORE", &core);
            script.add_text(&arguments);
            script.add_fast(&fast);
            script.add_text(&both);
            script.add_fast(&several);
            script.add_text(BEGIN);
            for name in PRELUDE.iter().filter(|name| !parts.fast.contains(name)) {
                if *name == SECOND_LEVEL {
                    script.add_text(BEGIN);
                }
                script.add(&name.to_uppercase(), &part(name));
                if *name == BEFORE_HAND_OVER {
                    script.add_fast(&hand_over);
                }
            }
            script.add_text(&format!("{}{general}{END}{END}", parts.general.iter().map(part).collect::<String>()));
        } else {
            script.add_text(&lean(general));
        }
        let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
        let (name, pieces) = (operation.to_uppercase(), script.pieces.join(", "));
        writeln!(module, "pub(super) static {name}: Script = Script {{ sha1: {sha1:?}, pieces: &[{pieces}] }};")
            .expect(WRITTEN);
    }
    module
}

/// A script in the making: its source, and the pieces of it as the module writes them.
#[derive(Default)]
struct Script {
    source: String,
    pieces: Vec<String>,
}

impl Script {
    /// Adds the text that the module has in a constant.
    fn add(&mut self, constant: &str, text: &str) {
        self.source += text;
        self.pieces.push(format!("Piece::Always({constant})"));
    }

    fn add_text(&mut self, text: &str) {
        self.add(&format!("{text:?}"), text);
    }

    /// Adds what only handles common cases faster.
    fn add_fast(&mut self, text: &str) {
        self.source += text;
        self.pieces.push(format!("Piece::Fast({text:?})"));
    }
}

/// A function of Lua whose text a fast path may have in place of a call.
struct Function<'l> {
    /// The call, with the names of the parameters as arguments.
    call: &'l str,
    body: Vec<&'l str>,
}

/// The functions in a text, apart from those within others.
fn functions(lua: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut lines = lua.lines();
    while let Some(line) = lines.next() {
        if let Some(call) = line.strip_prefix("local function ") {
            let body = lines.by_ref().take_while(|line| *line != "end").map(str::trim_start);
            let body: Vec<_> = body.filter(|line| !line.starts_with("--")).collect();
            let (_, parameters) = call.trim_end_matches(')').split_once('(').expect("a function has parameters");
            for (name, line) in parameters.split(", ").flat_map(|name| body.iter().map(move |line| (name, line))) {
                let is_assigned = |mark| line.starts_with(&format!("{name}{mark}"));
                assert!(!is_assigned(" =") && !is_assigned(","), "{call} assigns a parameter: {line}");
            }
            found.push(Function { call, body });
        }
    }
    found
}

/// Writes the text of functions in place of the calls whose arguments have the names of the
/// parameters. A function that is one return of an expression takes the place of its call in an
/// expression, without parentheses. Any other takes the place of a line. So a function must not
/// assign its parameters, which may be variables of the fast path.
fn inlined(lua: &str, functions: &[Function]) -> String {
    let mut written = String::new();
    for line in lua.lines().map(str::trim_start).filter(|line| !line.starts_with("--")) {
        let procedure = functions.iter().find(|function| line == function.call);
        if let Some(Function { body, .. }) = procedure {
            written += &format!("do\n{}end\n", inlined(&body.join("\n"), functions));
            continue;
        }
        let call = |line: &str| functions.iter().find(|function| line.contains(function.call));
        let mut line = line.to_owned();
        while let Some(Function { call, body }) = call(&line) {
            let body = body.join("\n");
            let value = body.strip_prefix("return ").unwrap_or_else(|| panic!("{call} is not one return: {line}"));
            line = line.replace(call, value);
        }
        let name = |function: &Function| function.call.split_inclusive('(').next().map(str::to_owned);
        let other = functions.iter().filter_map(name).find(|name| line.contains(name.as_str()));
        assert_eq!(other, None, "the arguments have other names than the parameters: {line}");
        written += &(line + "\n");
    }
    written
}

/// Removes indentation, empty lines and comment lines from a script. They would be a third of the
/// bytes that are sent.
fn stripped(lua: &str) -> String {
    code_lines(lua).fold(String::new(), |script, line| script + line + "\n")
}

fn code_lines(lua: &str) -> impl Iterator<Item = &str> {
    lua.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--"))
}

/// The names and values of constants, which are defined by lines such as `local ONE, TWO = 1, 2`.
fn constants(lua: &str) -> BTreeMap<&str, &str> {
    code_lines(lua)
        .flat_map(|line| {
            let definition = line.strip_prefix("local ").and_then(|line| line.split_once(" = "));
            let (names, values) = definition.unwrap_or_else(|| panic!("not a definition of constants: {line}"));
            let (names, values): (Vec<_>, Vec<_>) = (names.split(", ").collect(), values.split(", ").collect());
            assert_eq!(names.len(), values.len(), "{line}");
            names.into_iter().zip(values)
        })
        .fold(BTreeMap::new(), |mut known, (name, value)| {
            assert_eq!(known.insert(name, value), None, "{name} has two values");
            known
        })
}

/// Writes the values of constants in place of their names, except within quotes.
fn with_values(lua: &str, constants: &BTreeMap<&str, &str>) -> String {
    let (mut written, mut rest, mut is_quoted) = (String::new(), lua, false);
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len()).max(first.len_utf8());
        let (word, after) = rest.split_at(length);
        is_quoted ^= word == "'";
        written += if is_quoted { word } else { constants.get(word).unwrap_or(&word) };
        rest = after;
    }
    written
}

/// Whether the binary is static now.
fn link_statically(out: &Path) -> bool {
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let is_host = env::var("HOST") == env::var("TARGET");
    let already_static = target("FEATURE").split(',').any(|feature| feature == "crt-static");
    if already_static || target("OS") != "linux" || target("ENV") != "gnu" || !is_host {
        return already_static;
    }
    let Some(archives) = LIBRARIES.iter().map(|(_, archive)| find(archive)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    for ((asked, _), archive) in LIBRARIES.iter().zip(archives) {
        fs::write(out.join(asked), format!("INPUT ( {archive} )\n")).expect("OUT_DIR is writable");
    }
    // The benches are linked statically too: one of them is the command whose start is measured,
    // and its own start must cost little.
    for kind in ["bins", "benches"] {
        for argument in [&format!("-L{}", out.display()), "-static", "-no-pie"] {
            println!("cargo:rustc-link-arg-{kind}={argument}");
        }
    }
    true
}

/// The path of an archive that comes with the C compiler or its library. Some distributions have
/// libc.a in a package of its own.
fn find(archive: &str) -> Option<String> {
    let answer = Command::new("cc").arg(format!("-print-file-name={archive}")).output().ok()?;
    let path = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
    Path::new(&path).is_absolute().then_some(path)
}
