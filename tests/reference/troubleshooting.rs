//! The troubleshooting page quotes every message that ends with one of its exit codes.
//!
//! The texts come from the source. A function that makes a failure of these codes is found by the
//! names that it uses; its literals are the texts. So a new message without an entry fails the
//! test.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};
use syn::{LitByteStr, LitStr};

/// The page. Each line of its `text` blocks quotes a message.
const PAGE: &str = include_str!("../../docs/book/src/troubleshooting.md");

/// The exit codes of the page, as the source names them. A function that uses one makes a failure.
const CODES: [&str; 6] = ["REFUSED", "UNAVAILABLE", "BUSY", "LOST", "FAILURE", "NOT_EXECUTABLE"];

/// Functions and variants that make a failure out of a text.
const MAKERS: [&str; 7] = ["Refused", "Unavailable", "Unresolved", "ConnectionFailed", "Tls", "refused", "unusable"];

/// Methods whose argument is a text of an error of any type, which ends with 125.
const CONTEXTS: [&str; 2] = ["context", "with_context"];

/// The macro whose rows are the errors of servers.
const ROWS: &str = "server_errors";

/// Where all words about a failure end with one of the codes.
const EXPLAINING: &str = "crates/embedded/src/";

/// Where the texts of error types end with one of the codes. The other types are about words on the
/// command line.
const ERROR_TYPES: [&str; 5] = [
    "crates/model/src/op.rs",
    "crates/store/src/",
    "crates/embedded/src/",
    "crates/redis/src/",
    "crates/postgres/src/",
];

/// Functions and constants whose texts go to a maker elsewhere, belong to an exit code that the
/// supervision chooses, or are answers of the lock server.
const OTHERS: [(&str, &[&str]); 17] = [
    (
        "crates/show/src/messages.rs",
        &[
            "asked_again",
            "cannot_lock",
            "cure",
            "cycle",
            "deadlock",
            "in_the_way",
            "lost",
            "not_confirmed",
            "not_released",
            "not_renewed",
            "rest",
            "revoked",
            "superseded",
            "taken_away",
            "timeout",
            "ENDED_LATE",
            "COMMAND",
            "LOCK",
            "NOT_STARTED",
            "OTHER_USER",
            "STOPPED",
            "UNNAMED",
        ],
    ),
    ("src/cli/cleanup/revoked.rs", &["still_held"]),
    ("src/environment/context.rs", &["NOTHING_HELD"]),
    ("crates/serve/src/client.rs", &["on"]),
    ("crates/serve/src/client/answers.rs", &["end_deadlock"]),
    ("crates/serve/src/client/ending.rs", &["LATE"]),
    ("crates/serve/src/client/lines.rs", &["change", "on_line", "upgrade", "NO_LOCK", "NO_PREWRITE", "UNKNOWN"]),
    ("crates/serve/src/client/timeouts.rs", &["on_tick"]),
    ("crates/serve/src/rules.rs", &["refusal"]),
    ("crates/embedded/src/failure.rs", &["from"]),
    ("crates/embedded/src/fault.rs", &["LINE", "SLOW_LINE"]),
    ("crates/embedded/src/transaction.rs", &["REPLACED"]),
    ("crates/redis/src/conversation/replication.rs", &["lacking"]),
    ("crates/redis/src/failure.rs", &["fmt", "SPELLING"]),
    ("crates/store/src/network/error.rs", &["words"]),
    ("crates/store/src/network/tls.rs", &["in_words"]),
    ("crates/supervise/src/start_failure.rs", &["hint"]),
];

/// Calls whose texts end with another exit code, go to the log of the lock server, or are for those
/// who work on rlock.
const OTHER_CALLS: [&str; 10] =
    ["usage", "plain_usage", "Usage", "log", "expect", "panic", "unreachable", "assert", "assert_eq", "debug_assert"];

/// Texts that no user sees: they tell a part of rlock to begin anew, or answer what no client asks.
const INTERNAL: [&str; 4] = [
    "refused by an earlier run",
    "processes of killed holders have not ended",
    "more sessions are due than a transaction ends",
    "more sessions are dead than a transaction ends",
];

/// The fewest words of a literal that counts as a text of its own.
const WORDS_MIN: usize = 3;

#[test]
fn every_message_has_an_entry() {
    let quoted = quoted();
    let messages = messages();
    assert!(messages.len() > 100, "the rule finds the messages: {messages:#?}");
    let missing: Vec<_> = messages.iter().filter(|(_, text)| !quoted.iter().any(|line| contains(line, text))).collect();
    assert!(missing.is_empty(), "docs/book/src/troubleshooting.md quotes no such message: {missing:#?}");
}

#[test]
fn every_quoted_line_is_a_message() {
    let messages = messages();
    let stale: Vec<_> =
        quoted().into_iter().filter(|line| !messages.iter().any(|(_, text)| contains(line, text))).collect();
    assert!(stale.is_empty(), "no source has these messages: {stale:#?}");
}

#[test]
fn every_entry_says_what_happened_and_what_to_do() {
    for entry in PAGE.split("\n### ").skip(1).filter(|entry| entry.contains("```text")) {
        let title = entry.lines().next().unwrap_or_default();
        for part in ["**What happened.**", "**What to do.**"] {
            assert!(entry.contains(part), "'{title}' lacks: {part}");
        }
    }
}

#[test]
fn message_of_another_exit_code_needs_no_entry() {
    let source = r#"
        fn one() -> Error { Error::Unavailable(format!("'{url}' sleeps at night: wake it")) }
        fn two() -> Failure { Failure { code: exit::LOST, text: "the lock has melted: freeze it".into() } }
        fn three() { open(path).context("cannot open the window")?; let other = "not a message at all"; }
        fn four() -> Failure { Failure::usage("a word is missing here: add it") }
        #[cfg(test)]
        mod tests { fn five() -> Error { Error::Unavailable("a text for the tests".to_owned()) } }
        const SIX: &str = "a constant that is named";
        server_errors! { Cold(text: String) ["the reply of a server"] Permanent: "has frozen over: {text}", "thaw it"; }
    "#;
    let mut reader = Reader { name: "src/one.rs", others: &["SIX"], found: Vec::new() };
    reader.walk(source.parse().expect("the tokens of Rust"));
    let found = [
        "'{url}' sleeps at night: wake it",
        "the lock has melted: freeze it",
        "cannot open the window",
        "a constant that is named",
        "has frozen over: {text}",
    ];
    assert_eq!(reader.found, found);
    assert!(contains("rlock: 'redis://h' sleeps at night: wake it", found[0]));
    assert!(!contains("rlock: 'redis://h' sleeps at night: let it", found[0]));
}

#[test]
fn every_named_function_and_constant_exists() {
    for (file, names) in OTHERS {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("the source is there");
        for name in names {
            let is_there = source.contains(&format!("fn {name}(")) || source.contains(&format!("const {name}:"));
            assert!(is_there, "{file} has no {name}");
        }
    }
}

/// The lines of the page that quote messages.
fn quoted() -> Vec<&'static str> {
    let mut is_quote = false;
    let mut lines = Vec::new();
    for line in PAGE.lines() {
        if line.starts_with("```") {
            is_quote = line == "```text";
        } else if is_quote {
            lines.push(line);
        }
    }
    lines
}

/// Whether a line contains the words of a format string in their order.
fn contains(line: &str, text: &str) -> bool {
    let mut rest = line;
    pieces(text).iter().all(|piece| match rest.split_once(piece.as_str()) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// The parts of a format string around its placeholders.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' if chars.peek() == Some(&c) => pieces.last_mut().expect("it has one").extend(chars.next()),
            '{' => {
                chars.by_ref().find(|c| *c == '}');
                pieces.push(String::new());
            }
            c => pieces.last_mut().expect("it has one").push(c),
        }
    }
    pieces
}

/// The messages of all files, each with its file.
fn messages() -> Vec<(String, String)> {
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    sources(Path::new("crates"), &mut files);
    files.sort();
    let mut messages: Vec<_> = files.iter().flat_map(|file| texts(file)).collect();
    messages.sort();
    messages.dedup();
    messages
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).expect("the source can be read");
    for entry in entries {
        let name = entry.expect("the source can be read").file_name().to_string_lossy().into_owned();
        let path = folder.join(&name);
        match name.as_str() {
            "sim" | "testkit" | "build.rs" | "tests" | "tests.rs" | "testing.rs" => {}
            name if name.ends_with(".rs") => found.push(path),
            _ if Path::new(env!("CARGO_MANIFEST_DIR")).join(&path).is_dir() => sources(&path, found),
            _ => {}
        }
    }
}

fn texts(file: &Path) -> Vec<(String, String)> {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("the source can be read");
    let tokens: TokenStream = source.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let name = file.to_string_lossy().into_owned();
    let others = OTHERS.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, names)| names);
    let mut reader = Reader { name: &name, others, found: Vec::new() };
    reader.walk(tokens);
    let is_shown = |text: &String| !INTERNAL.contains(&text.as_str()) && !text.starts_with("warning: ");
    reader.found.into_iter().filter(is_shown).map(|text| (name.clone(), text)).collect()
}

/// Collects the texts of a file.
struct Reader<'n> {
    name: &'n str,
    /// The functions and constants of the file whose texts count in any case.
    others: &'n [&'n str],
    found: Vec<String>,
}

impl Reader<'_> {
    fn walk(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(rest) = tokens.get(at..).filter(|rest| !rest.is_empty()) {
            at += 1;
            match rest {
                [TokenTree::Punct(mark), TokenTree::Group(attribute), ..] if mark.as_char() == '#' => {
                    at += 1;
                    let text = attribute.stream().to_string();
                    if text.starts_with("error") && ERROR_TYPES.iter().any(|start| self.name.starts_with(start)) {
                        self.read(attribute.stream());
                    }
                    // An item for the tests alone ends like any other.
                    if text == "cfg(test)" || text == "cfg (test)" {
                        at += length_of_item(&tokens[at..]);
                    }
                }
                [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "fn" || word == "const" => {
                    let length = length_of_item(rest);
                    let item: TokenStream = rest.iter().take(length).cloned().collect();
                    at += length - 1;
                    let explains = self.name.starts_with(EXPLAINING) && item.to_string().contains("Explained ::");
                    if self.others.contains(&name.to_string().as_str()) || explains || fails(item.clone()) {
                        self.read(item);
                    } else {
                        self.read_contexts(item);
                    }
                }
                // The words of a row stand beside its name, the replies and the data in brackets.
                [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Group(rows), ..] if name == ROWS => {
                    at += 2;
                    let literals = rows.stream().into_iter().filter_map(|token| match token {
                        TokenTree::Literal(literal) => text(&literal),
                        _ => None,
                    });
                    self.found.extend(literals);
                }
                [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => self.walk(group.stream()),
                _ => {}
            }
        }
    }

    /// Collects the texts among these tokens.
    fn read(&mut self, tokens: TokenStream) {
        for (before, token) in with_names(tokens) {
            match token {
                TokenTree::Literal(literal) => self.found.extend(text(&literal)),
                TokenTree::Group(group) if !OTHER_CALLS.contains(&before.as_str()) => self.read(group.stream()),
                _ => {}
            }
        }
    }

    /// Collects the texts that describe errors of any type.
    fn read_contexts(&mut self, tokens: TokenStream) {
        for (before, token) in with_names(tokens) {
            let TokenTree::Group(group) = token else { continue };
            if CONTEXTS.contains(&before.as_str()) {
                self.read(group.stream())
            } else {
                self.read_contexts(group.stream())
            }
        }
    }
}

/// The number of tokens of the item that starts here.
fn length_of_item(tokens: &[TokenTree]) -> usize {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    };
    tokens.iter().position(is_end).map_or(tokens.len(), |end| end + 1)
}

/// These tokens, each with the name before it: of the function or macro whose arguments it has.
fn with_names(tokens: TokenStream) -> Vec<(String, TokenTree)> {
    let mut name = String::new();
    let pair = |token: TokenTree| {
        let before = name.clone();
        if !matches!(&token, TokenTree::Punct(mark) if mark.as_char() == '!') {
            name = token.to_string();
        }
        (before, token)
    };
    tokens.into_iter().map(pair).collect()
}

/// Whether these tokens make a failure.
fn fails(tokens: TokenStream) -> bool {
    let tokens = with_names(tokens);
    let words: Vec<_> = tokens.iter().map(|(_, token)| token.to_string()).collect();
    let uses = |module: &str, names: &[&str]| {
        words.windows(4).any(|path| path[0] == module && path[1] == ":" && names.contains(&path[3].as_str()))
    };
    let is_inside = |(before, token): &(String, TokenTree)| match token {
        TokenTree::Group(group) => MAKERS.contains(&before.as_str()) || fails(group.stream()),
        _ => false,
    };
    uses("exit", &CODES) || uses("Error", &["other"]) || tokens.iter().any(is_inside)
}

/// The value of a literal that is a text.
fn text(literal: &Literal) -> Option<String> {
    let source = literal.to_string();
    let text = match syn::parse_str::<LitByteStr>(&source) {
        Ok(bytes) => String::from_utf8(bytes.value()).ok()?,
        Err(_) => syn::parse_str::<LitStr>(&source).ok()?.value(),
    };
    let words = text.split_whitespace().filter(|word| word.contains(char::is_alphabetic));
    (words.count() >= WORDS_MIN).then(|| text.trim_end().to_owned())
}
