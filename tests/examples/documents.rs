//! The commands of README.md and of the pages of docs/book/src.
//!
//! A `console` block is a dialogue: each line after `$ ` is typed, and the lines below are what it
//! prints. `…` in such a line stands for any text, and `…` alone for any lines. Users, pids, times
//! and the widths of columns may differ. The blocks of a page are one session of a shell.
//!
//! The lines of `sh` and `crontab` blocks succeed without a message of rlock. What is indented, and
//! blocks of other kinds, are not run.

use std::fs;
use std::path::Path;

use crate::{add_scripts, pages, shell};
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, Ran};

/// The pages with commands.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "docs/book/src/running.md",
    "docs/book/src/agents.md",
    "docs/book/src/tutorial.md",
    "docs/book/src/troubleshooting.md",
    "docs/book/src/migration.md",
];

/// The programs that the pages call. They print their names.
const PROGRAMS: [&str; 13] = [
    "backup.sh",
    "deploy.sh",
    "fetch",
    "git",
    "index",
    "load.sh",
    "migrate",
    "refactor",
    "relink",
    "report.sh",
    "sync.sh",
    "train",
    "work",
];

/// What stands on a page for something outside of the tests, and what they put in its place. `URL`
/// is a store on a server, and `LOCAL` that of the lab; both have the namespace `NAMESPACE`.
const REPLACED: [(&str, &str); 7] = [
    ("redis://locks.example.com", "URL"),
    ("file:///run/lock/rlock-1000", "LOCAL"),
    ("namespace 'rlock'", "namespace 'NAMESPACE'"),
    // The stores of the tests have no password, and the tests no time.
    ("RLOCK_PASSWORD_FILE=", "PASSWORD_FILE="),
    ("--splay 10m", "--splay 5ms"),
    ("--splay 1m", "--splay 5ms"),
    // A runner hands the variables to the steps that follow.
    (">> \"$GITHUB_ENV\"", ">env; set -a; . ./env; set +a"),
];

/// The line that stands before the output of each command of a session.
const MARK: &str = "next command:";

/// The start of a session. A command in the background has had its effect when the next one begins:
/// the store lists another number of sessions.
const PRELUDE: &str = r#"
exec 2>&1
PATH=$HOME:$PATH
mark() { code=$?; echo MARK; return $code; }
sessions() { rlock inspect --json | grep -o '"session"' | wc -l; }
await() { tries=0; until [ "$(sessions)" != "$before" ] || [ $((tries += 1)) = 1000 ]; do sleep 0.01; done; }
trap 'kill $begun 2>/dev/null; wait' EXIT
"#;

/// The blocks of a page, each with the word behind its fence.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            is_inside = !is_inside;
            if is_inside {
                blocks.push((kind, Vec::new()));
            }
        } else if is_inside {
            blocks.last_mut().expect("a fence began it").1.push(line);
        }
    }
    blocks
}

/// One command of a dialogue, and the lines that it prints.
struct Step<'p> {
    command: &'p str,
    printed: Vec<&'p str>,
}

fn steps<'p>(blocks: &[(&str, Vec<&'p str>)]) -> Vec<Step<'p>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in blocks.iter().filter(|(kind, _)| *kind == "console").flat_map(|(_, lines)| lines) {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push(Step { command, printed: Vec::new() }),
            None => steps.last_mut().expect("a dialogue begins with a command").printed.push(line),
        }
    }
    steps
}

/// The session as a script.
fn script(steps: &[Step<'_>]) -> String {
    let mut script = PRELUDE.replace("MARK", &format!("'{MARK}'"));
    for Step { command, .. } in steps {
        let line = match command.ends_with(" &") {
            true => format!("mark\nbefore=$(sessions)\n{command}\nbegun=\"$begun $!\"\nawait\n"),
            false => format!("mark\n{command}\n"),
        };
        script += &line;
    }
    script
}

/// Whether the lines that were printed are those that a page shows.
fn are_as_shown(printed: &[&str], shown: &[&str]) -> bool {
    match shown {
        [] => printed.is_empty(),
        ["…", rest @ ..] => (0..=printed.len()).any(|skipped| are_as_shown(&printed[skipped..], rest)),
        [line, rest @ ..] => printed.first().is_some_and(|first| {
            is_as_shown(&without_chance(first), &without_chance(line)) && are_as_shown(&printed[1..], rest)
        }),
    }
}

/// A line with the same word for each user, pid, time and length of time.
fn without_chance(line: &str) -> String {
    let (mut words, mut before) = (Vec::new(), "");
    for word in line.split_whitespace() {
        let core = word.trim_end_matches([',', ';']);
        let unit = core.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let kind = if core.contains('@') {
            "USER"
        } else if (before == "pid" || before.contains('@')) && unit.is_empty() {
            "PID"
        } else if core.len() == "2026-11-21T03:00:01.204Z".len() && core.ends_with('Z') {
            "TIME"
        } else if unit != core && ["ms", "s", "m", "h"].contains(&unit) {
            "LENGTH"
        } else {
            core
        };
        before = core;
        words.push(format!("{kind}{}", &word[core.len()..]));
    }
    words.join(" ")
}

fn is_as_shown(printed: &str, shown: &str) -> bool {
    let (first, rest) = shown.split_once('…').map_or((shown, None), |(first, rest)| (first, Some(rest)));
    let Some(behind) = printed.strip_prefix(first) else { return false };
    match rest {
        None => behind.is_empty(),
        Some(rest) => {
            let mut starts = behind.char_indices().map(|(at, _)| at).chain([behind.len()]);
            starts.any(|at| is_as_shown(&behind[at..], rest))
        }
    }
}

/// Runs a test with each page, whose examples name places of the lab.
fn on_each_page(test: impl Fn(&str, &Lab, &str)) {
    Kind::Redis7.run(|kind| {
        for document in DOCUMENTS {
            let server = Lab::on(kind);
            let lab = Lab::new().with("RLOCK_NAMESPACE", server.namespace());
            add_scripts(&lab, &PROGRAMS);
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
            let mut page = fs::read_to_string(path).expect("the page is there");
            for (from, to) in REPLACED {
                page = page.replace(from, to);
            }
            let page = page.replace("URL", &server.url()).replace("LOCAL", &lab.url());
            test(document, &lab, &page.replace("NAMESPACE", server.namespace()));
        }
    });
}

#[test]
fn dialogues_of_a_page_print_what_it_shows() {
    on_each_page(|document, lab, page| {
        let steps = steps(&blocks(page));
        assert!(!steps.is_empty(), "{document} has dialogues");
        let ran = Ran::of(&mut shell(lab, &script(&steps)));
        let parts: Vec<_> = ran.stdout.split(&format!("{MARK}\n")).skip(1).collect();
        assert_eq!(parts.len(), steps.len(), "{document}: {}", ran.stdout);
        for (Step { command, printed }, part) in steps.iter().zip(parts) {
            let lines: Vec<_> = part.lines().collect();
            assert!(are_as_shown(&lines, printed), "{document}: $ {command}\n{part}\n{printed:#?}");
        }
    });
}

#[test]
fn scripts_and_crontabs_of_a_page_run_without_a_message() {
    on_each_page(|document, lab, page| {
        for (kind, lines) in blocks(page) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let text = match kind {
                "sh" => text,
                "crontab" => pages::without_times(&text),
                "console" | "text" | "groovy" | "ini" | "java" | "sql" | "yaml" => continue,
                other => panic!("{document}: nobody runs a block of the kind '{other}'"),
            };
            let ran = Ran::of(&mut shell(lab, &format!("set -e\n{text}")));
            assert!(ran.code() == Some(0) && ran.stderr.is_empty(), "{document}: {text}\n{ran:?}");
        }
    });
}

#[test]
fn dialogue_that_prints_something_else_is_noticed() {
    for (printed, shown, is_same) in [
        ("a", "a", true),
        ("a", "b", false),
        ("a 7 b", "a … b", true),
        ("a 7 c", "a … b", false),
        ("a\nb\nc", "a\n…", true),
        ("a\nb\nc", "…\nc", true),
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        (
            "by ada@db1, pid 4711,   since 2026-11-21T03:00:01.204Z",
            "by b@c, pid 7, since 2026-11-22T03:00:01.204Z",
            true,
        ),
        ("75", "76", false),
    ] {
        let [printed, shown] = [printed, shown].map(|text| text.lines().collect::<Vec<_>>());
        assert_eq!(are_as_shown(&printed, &shown), is_same, "{printed:?} {shown:?}");
    }
}
