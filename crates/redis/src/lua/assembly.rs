//! Puts the Lua scripts together, for the build script.
//!
//! A script begins with the core and its arguments. Its fast path follows, which defines nothing: a
//! server would spend a quarter of its time on the definition of functions. So a fast path has the
//! text of the functions that it calls, see [`rewriting`]. Then come the functions of both paths,
//! and the fast path for several resources, which calls them. The general path is one function with
//! the rest of the prelude. A release may also end at its hand-over, which needs only the first
//! parts of the prelude and stands after them.

use std::fmt::Write as _;
use std::fs;

use self::rewriting::{constants, functions, inlined, stripped, with_values};

mod rewriting;
// The crate makes some of it public.
#[allow(unreachable_pub)]
#[path = "../../../model/src/tables.rs"]
mod tables;

/// The folder of the scripts.
pub(super) const LUA: &str = "src/lua";
/// The file of [`tables`].
pub(super) const TABLES: &str = "../model/src/tables.rs";

/// The core of every operation, and the parts of the prelude, in this order.
const CORE: &str = "core";
const PRELUDE: [&str; 13] = [
    "clock", "past", "record", "wake", "head", "span", "jobs", "queue", "nesting", "conflict", "change", "settle",
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
const OPERATIONS: [(&str, Option<Parts>); 13] = [
    (
        "acquire",
        Some(Parts { fast: &["clock", "past"], general: &["tell", "dead", "shares", "supersede", "listing", "join"] }),
    ),
    ("renew", Some(Parts { fast: &["clock", "several"], general: &["dead"] })),
    ("renew_alone", None),
    ("release", Some(Parts { fast: &["clock", "past", "several"], general: &[] })),
    ("give_up", Some(Parts { fast: &[], general: &[] })),
    ("extend", Some(Parts { fast: &[], general: &["held"] })),
    ("shrink", Some(Parts { fast: &[], general: &["held"] })),
    ("downgrade", Some(Parts { fast: &[], general: &["held"] })),
    ("expire", Some(Parts { fast: &[], general: &["tell"] })),
    ("break", Some(Parts { fast: &[], general: &["tell"] })),
    ("forget", Some(Parts { fast: &[], general: &[] })),
    ("inspect", Some(Parts { fast: &[], general: &["tell"] })),
    ("history", Some(Parts { fast: &[], general: &[] })),
];

struct Parts {
    fast: &'static [&'static str],
    general: &'static [&'static str],
}

/// Generates the module of the scripts: one static for each script, and the core that they share.
pub(super) fn module() -> String {
    let read = |path: String| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let definitions = read(format!("{LUA}/prelude/constants.lua"));
    let shared = shared();
    let mut constants = constants(&definitions);
    for (name, value) in &shared {
        assert_eq!(constants.insert(name, value), None, "{name} has two values");
    }
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
        writeln!(module, "/// `lua/{operation}.lua`.").expect(WRITTEN);
        writeln!(module, "pub static {name}: Script = Script {{ sha1: {sha1:?}, pieces: &[{pieces}] }};")
            .expect(WRITTEN);
    }
    module
}

/// The constants that the model has, too, with their values as Lua writes them.
fn shared() -> Vec<(&'static str, String)> {
    let micros = |seconds: u64| (seconds * 1_000_000).to_string();
    let millis = |seconds: u64| format!("'{}'", seconds * 1_000);
    let of = |format: u32, kind: char| format!("'\\162R{format}{kind}'");
    let format = |kind| of(tables::FORMAT, kind);
    vec![
        // How s begins: with the format of the keys, and the kind of the state. No session uses the
        // resource, one is its sole holder, or it is not quiet.
        ("NOBODY", format('0')),
        ("SOLE", format('1')),
        ("SEVERAL", format('+')),
        ("NOBODY_BEFORE", of(tables::FORMAT - 1, '0')),
        ("SOLE_BEFORE", of(tables::FORMAT - 1, '1')),
        // The time for which the state of an unused resource is kept, in microseconds, and as a
        // text in milliseconds for a command, because servers take longer for a number. Tokens
        // follow the clock, so nothing needs the state for longer.
        ("IDLE", micros(tables::RETENTION_OF_TOTALS)),
        ("IDLE_MS", millis(tables::RETENTION_OF_TOTALS)),
        // The time for which an unused resource keeps its history and what it remembers of jobs.
        ("KEEP", micros(tables::RETENTION)),
        ("KEEP_MS", millis(tables::RETENTION)),
        // How many entries of the history tell of requests without a grant.
        ("WAITS_MAX", tables::WAITS_MAX.to_string()),
        ("WAITS_SHARE", tables::WAITS_SHARE.to_string()),
        ("WAITS_APART", micros(tables::WAITS_APART)),
        // The longest period for which a success is kept, and how far the clock of a machine may be
        // ahead of the server's, so that its calendar counts.
        ("PERIOD_MAX", micros(tables::PERIOD_MAX)),
        ("AHEAD_MAX", micros(tables::AHEAD_MAX)),
        ("KEPT_MAX", micros(tables::KEPT_MAX)),
        ("EVER", tables::EVER.to_string()),
        ("NEVER", tables::NEVER.to_string()),
        ("JOBS_MAX", tables::JOBS_MAX.to_string()),
        ("SUPERSEDED_MAX", tables::SUPERSEDED_MAX.to_string()),
        ("OVERTAKEN_MAX", tables::OVERTAKEN_MAX.to_string()),
        ("HEADS_AHEAD", tables::HEADS_AHEAD.to_string()),
        ("HEAD_NAMES", tables::HEAD_NAMES.to_string()),
        ("FEW", tables::FEW.to_string()),
        ("CLASHING_MODES", by_mode(clashing)),
        ("FATES_BELOW", by_mode(fates)),
    ]
}

/// The modes as a script writes them. A share of a slot nests like a slot, and what clashes with a
/// slot clashes with a share.
const LETTERS: [char; 4] = ['r', 'p', 'w', 's'];
const SHARE: char = 'h';

/// A table of Lua with a text for each mode.
fn by_mode(text: fn(usize) -> String) -> String {
    let mut rows: Vec<_> =
        LETTERS.iter().enumerate().map(|(at, letter)| format!("{letter} = '{}'", text(at))).collect();
    rows.push(format!("{SHARE} = '{}'", text(LETTERS.len() - 1)));
    format!("{{ {} }}", rows.join(", "))
}

/// The modes that clash with a mode.
fn clashing(mode: usize) -> String {
    let clash = |(letter, clashes): (char, bool)| clashes.then_some(letter);
    let letters: String = LETTERS.into_iter().zip(tables::CLASHES[mode]).filter_map(clash).collect();
    letters.replace('s', &format!("s{SHARE}"))
}

/// What becomes of each mode below a hold: granted at once (=), waiting (w) or refused (x).
fn fates(held: usize) -> String {
    let letter = |nesting| match nesting {
        tables::Nesting::AtOnce => '=',
        tables::Nesting::Waits => 'w',
        tables::Nesting::Refused => 'x',
    };
    tables::BELOW[held].map(letter).into_iter().collect()
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
