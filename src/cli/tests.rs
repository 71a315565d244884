//! Tests command lines: what each subcommand reads, and the mistakes.

mod claims;
mod help;
mod hints;
mod usage;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::ColorChoice;
use clap_complete::Shell;
use rustix::process::Pid;

use super::cleanup::{BreakOptions, Cleanup};
use super::completions::Completions;
use super::downgrade::Downgrade;
use super::exec::Exec;
use super::history::{self, History};
use super::inspect::{Form, Inspect};
use super::man::Man;
use super::pages::Page;
use super::release::Release;
use super::renew::Renew;
use super::{Invocation, Usage, parse};
use rlock_arguments::narrowing;
use rlock_arguments::options::{LookOptions, PathOptions, StoreOptions};
use rlock_arguments::values::{Load, LostSignal, Owner, Period, Unit, Wait, Which};
use rlock_model::mode::Mode;
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_model::span::Span;

/// Parses words that are separated by spaces. `_` stands for a space within a word.
pub(crate) fn parsed(line: &str) -> Result<Invocation, Usage> {
    parse(["rlock"].into_iter().chain(line.split_whitespace()).map(|word| OsString::from(word.replace('_', " "))))
}

/// The one-line message for a command line with a mistake.
pub(crate) fn mistake(line: &str) -> String {
    match parsed(line) {
        Err(Usage::Mistake(text)) => text,
        other => panic!("'{line}' should be a mistake, not {other:?}"),
    }
}

#[test]
fn nothing_at_all_gets_the_short_help() {
    let Err(Usage::Bare(help)) = parsed("") else { panic!("no words should give the short help") };
    let help = help.to_string();
    assert!(help.contains("Usage: rlock") && help.contains("range-prewrite"), "{help}");
}

#[test]
fn help_and_version_are_not_mistakes() {
    for line in ["--help", "-h", "help", "help exec", "exec --help", "range-read -h", "help shrink", "--version", "-V"]
    {
        let Err(Usage::Information(text)) = parsed(line) else { panic!("'{line}' should print something") };
        let text = text.to_string();
        assert!(text.contains("rlock") && text.ends_with('\n'), "{line}: {text}");
    }
    assert_eq!(parsed("-V").unwrap_err().to_string(), concat!("rlock ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn help_is_the_same_text_whichever_way_it_is_asked_for() {
    for name in super::table::SUBCOMMANDS.iter().map(|subcommand| subcommand.name) {
        let texts =
            [format!("{name} --help"), format!("help {name}")].map(|line| parsed(&line).unwrap_err().to_string());
        assert_eq!(texts[0], texts[1], "{name}");
    }
}

#[test]
fn help_fits_a_terminal() {
    let subcommands = super::table::SUBCOMMANDS.iter().map(|subcommand| subcommand.name);
    for name in subcommands.chain([""]) {
        let text = parsed(&format!("{name} --help")).unwrap_err().to_string();
        let wide = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "help of {name}");
    }
}

fn exec(line: &str) -> Exec {
    match parsed(line) {
        Ok(Invocation::Exec(exec)) => *exec,
        other => panic!("'{line}' should run a command, not {other:?}"),
    }
}

fn names(names: &[&str]) -> Vec<Resource> {
    names.iter().map(|name| Resource::new(name).unwrap()).collect()
}

#[test]
fn exec_without_options_has_the_documented_defaults() {
    let exec = exec("exec k -- make -j 2 --all");
    assert_eq!(exec.command, ["make", "-j", "2", "--all"]);
    assert_eq!((exec.request.waiting.wait, exec.request.conflict_exit_code, exec.request.replicas), (None, 75, None));
    assert_eq!((exec.request.ttl, exec.request.grace, exec.request.connect_timeout), (None, None, None));
    assert_eq!((exec.request.quiet, exec.request.verbose, exec.request.store), (false, false, StoreOptions::default()));
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn at_most(limit: u64) -> Option<Wait> {
    Some(Wait::AtMost(secs(limit)))
}

#[test]
fn every_option_of_exec_and_range_is_parsed() {
    let options =
        "-w 90s -E 3 --ttl 1m --grace 20s --connect-timeout 500ms --replicas 2 -q --store file:///d --namespace n";
    for start in ["exec k", "range-read k 1 2", "range-prewrite k [1,2)", "range-write k -1 2"] {
        for line in [format!("{start} {options} -- c"), format!("{start} {options} -c c")] {
            let exec = exec(&line);
            assert_eq!(
                (exec.request.waiting.wait, exec.request.conflict_exit_code, exec.request.replicas.map(|it| it.count)),
                (at_most(90), 3, Some(2)),
                "{line}"
            );
            assert_eq!(
                (exec.request.ttl, exec.request.grace, exec.request.connect_timeout),
                (Some(secs(60)), Some(secs(20)), Some(Duration::from_millis(500)))
            );
            assert_eq!((exec.request.quiet, exec.request.verbose), (true, false));
            assert_eq!(
                exec.request.store,
                StoreOptions { store: Some("file:///d".into()), namespace: Some("n".into()) }
            );
        }
    }
    let long = exec("exec --wait=90s --conflict-exit-code=3 --quiet k -- c");
    assert_eq!(
        (long.request.waiting.wait, long.request.conflict_exit_code, long.request.quiet),
        (at_most(90), 3, true)
    );
    let whose = exec("exec k --owner a_b --reason=c_d --title e_f -- c").request.whose;
    assert_eq!(whose.title.as_deref(), Some("e f"));
    assert_eq!((whose.owner.as_deref(), whose.reason.as_deref()), (Some("a b"), Some("c d")));
    let both = exec("exec -n k --meanwhile a_b --else c_d -- c");
    assert_eq!((both.meanwhile, both.otherwise), (Some("a b".into()), Some("c d".into())));
    assert!(mistake("exec k -E 0 --else a -- c").contains("--conflict-exit-code"));
    assert!(
        exec("exec k --no-default-store -- c").request.no_default_store
            && !exec("exec k -- c").request.no_default_store
    );
    let cron = exec("exec k -n --skip-ok --success-codes 3,5 --splay 1m --nested --status-file f -- c");
    assert_eq!((cron.skip_ok, cron.success_codes, cron.splay), (Some(None), vec![3, 5], Some(secs(60))));
    assert_eq!((cron.nested, cron.status_file), (true, Some(PathBuf::from("f"))));
    let room = exec("exec --min-memory 1.5G --max-load 8 k -- c");
    assert_eq!((room.min_memory, room.max_load), (Some(3 << 29), Some(Load::Average(8.0))));
    assert_eq!(exec("exec --max-load 25% k -- c").max_load, Some(Load::Pressure(25.0)));
    assert!(exec("exec --supersede --job j --skip-ok k -- c").supersede && !exec("exec k -- c").supersede);
    assert_eq!(exec("exec --place build k -- c").request.place.as_deref(), Some("build"));
    assert!(mistake("exec --place a --supersede k -- c").contains("--place"));
    assert!(mistake("exec --place a --once-per 1h k -- c").contains("--place"));
    let cron = exec(
        "exec --skip-ok=1h --once-per 2h --remember 90d --hold-at-least 3s --max-runtime 4s --max-waiting 5 k -- c",
    );
    assert_eq!((cron.skip_ok, cron.once_per), (Some(Some(secs(3600))), Some(Period::Within(secs(7200)))));
    assert_eq!(
        (cron.hold_at_least, cron.remember, cron.max_runtime, cron.request.max_waiting),
        (Some(secs(3)), Some(secs(90 * 24 * 3600)), Some(secs(4)), Some(5))
    );
    let calendar =
        ["hour", "day", "week", "month", "year"].map(|word| exec(&format!("exec --once-per {word} k -- c")).once_per);
    assert_eq!(
        calendar,
        [Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year].map(|unit| Some(Period::Calendar(unit)))
    );
    let timeouts = ["exec k -- c", "exec --deadlock-timeout 0 k -- c"].map(|line| exec(line).request.deadlock_timeout);
    assert_eq!(timeouts, [secs(1), secs(0)]);
    assert!(exec("exec -v k -- c").request.verbose && exec("exec --verbose k -- c").request.verbose);
}

#[test]
fn store_options_stand_before_or_after_the_subcommand() {
    for line in ["--store file:///d --namespace n exec k -- c", "--namespace=n exec --store=file:///d k -- c"] {
        let store = exec(line).request.store;
        assert_eq!(store, StoreOptions { store: Some("file:///d".into()), namespace: Some("n".into()) }, "{line}");
    }
    assert_eq!(exec("--store exec exec k -- c").request.store.store.as_deref(), Some("exec"));
}

#[test]
fn string_of_c_runs_by_the_shell() {
    assert_eq!(exec("exec k -c a_&&_b").command, ["/bin/sh", "-c", "a && b"]);
    assert_eq!(exec("range-write k 1 2 --shell -5").command, ["/bin/sh", "-c", "-5"]);
}

#[test]
fn no_wait_is_a_wait_of_zero() {
    for line in
        ["exec -n k -- c", "exec --no-wait k -- c", "exec -w 0 k -- c", "exec -n -w 0s k -- c", "exec -w0 k -n -- c"]
    {
        assert_eq!(exec(line).request.waiting.wait, at_most(0), "{line}");
    }
    let text = "--no-wait and --wait 1m30s exclude each other: give one of them";
    assert_eq!(mistake("exec -n -w 90 k -- c"), text);
    assert_eq!(exec("exec -w ever k -- c").request.waiting.wait, Some(Wait::Ever));
    assert_eq!(mistake("exec -n -w ever k -- c"), "--no-wait and --wait ever exclude each other: give one of them");
}

#[test]
fn last_of_repeated_options_counts() {
    let exec = exec("exec -n -n -E 1 --ttl 9s -E 2 --ttl 60s k -- c");
    assert_eq!((exec.request.conflict_exit_code, exec.request.ttl), (2, Some(secs(60))));
}

#[test]
fn command_may_have_any_bytes() {
    let odd = OsString::from_vec(vec![0xff, b'x']);
    let words = ["rlock", "exec", "k", "--"].map(OsString::from).into_iter().chain([odd.clone(), odd.clone()]);
    let Ok(Invocation::Exec(exec)) = parse(words) else { panic!("bytes after -- are allowed") };
    assert_eq!(exec.command, [odd.clone(), odd.clone()]);
    let words = ["rlock", "exec", "k", "-c"].map(OsString::from).into_iter().chain([odd.clone()]);
    let Ok(Invocation::Exec(exec)) = parse(words) else { panic!("bytes in a string are allowed") };
    assert_eq!(exec.command[2], odd);
}

#[test]
fn other_subcommands_are_parsed() {
    let store = StoreOptions::default();
    let look = |color| LookOptions { color };
    assert_eq!(parsed("inspect").unwrap(), Invocation::Inspect(Inspect::default()));
    let never = look(ColorChoice::Never);
    let json = Inspect { resources: names(&["b", "a"]), json: true, look: never, ..Inspect::default() };
    assert_eq!(parsed("inspect b --json a b --color never").unwrap(), Invocation::Inspect(json));
    let always = Inspect { verbose: true, look: look(ColorChoice::Always), ..Inspect::default() };
    assert_eq!(parsed("inspect -v --color=always").unwrap(), Invocation::Inspect(always));
    let forms = [("", Form::Table), ("--json", Form::Json), ("--names", Form::Names), ("--tree", Form::Tree)];
    for (word, form) in forms.into_iter().chain([("--dot", Form::Dot)]) {
        let Ok(Invocation::Inspect(inspect)) = parsed(&format!("inspect {word}")) else { panic!("{word}") };
        assert_eq!(inspect.form(), form, "{word}");
    }
    for (line, every) in
        [("--watch", None), ("--watch=100ms", Some(Duration::from_millis(100))), ("--watch --json", None)]
    {
        let Ok(Invocation::Inspect(inspect)) = parsed(&format!("inspect {line} k")) else { panic!("{line}") };
        assert_eq!((inspect.watch, inspect.resources), (Some(every), names(&["k"])));
    }
    assert!(mistake("inspect --json --names").contains(" exclude each other"));
    assert!(mistake("inspect --watch --dot").contains(" exclude each other"));
    assert_eq!(mistake("inspect --watch=0"), "--watch: '0' is too short: ask a server at most every 100ms");
    let checks = Inspect { held_longer_than: Some(secs(60)), json: true, ..Inspect::default() };
    assert_eq!(parsed("inspect --held-longer-than 1m --json").unwrap(), Invocation::Inspect(checks));
    let checks = Inspect { waiting_longer_than: Some(secs(60)), ..Inspect::default() };
    assert_eq!(parsed("inspect --waiting-longer-than 1m").unwrap(), Invocation::Inspect(checks));
    let checks = Inspect { resources: names(&["k"]), no_success_for: Some(secs(60)), ..Inspect::default() };
    assert_eq!(parsed("inspect --no-success-for 1m k").unwrap(), Invocation::Inspect(checks));
    let checks = Inspect { no_success_for: Some(secs(60)), job: Some("j".to_owned()), ..Inspect::default() };
    assert_eq!(parsed("inspect --no-success-for 1m --job j").unwrap(), Invocation::Inspect(checks));
    assert!(mistake("inspect --job j").starts_with("--no-success-for is missing"), "{}", mistake("inspect --job j"));
    assert_eq!(parsed("inspect --wide").unwrap(), Invocation::Inspect(Inspect { wide: true, ..Inspect::default() }));
    let metrics = Inspect { prometheus: true, output: Some(PathBuf::from("f")), ..Inspect::default() };
    assert_eq!(parsed("inspect --prometheus -o f").unwrap(), Invocation::Inspect(metrics));
    let history = History { resources: names(&["k"]), last: Some(3), failed: true, json: true, ..History::default() };
    assert_eq!(parsed("history k -n 3 --failed --json").unwrap(), Invocation::History(history));
    let history = History { since: Some(secs(60)), stats: true, ..History::default() };
    assert_eq!(parsed("history --since 1m --stats").unwrap(), Invocation::History(history));
    let history = History { until: Some(secs(60)), trace: true, ..History::default() };
    assert_eq!(parsed("history --until 1m --trace").unwrap(), Invocation::History(history));
    for (word, form) in [
        ("", history::Form::Entries),
        ("--stats", history::Form::Stats),
        ("--blame", history::Form::Blame),
        ("--timeline", history::Form::Timeline),
        ("--trace", history::Form::Trace),
    ] {
        let Ok(Invocation::History(history)) = parsed(&format!("history {word}")) else { panic!("{word}") };
        assert_eq!(history.form(), form, "{word}");
    }
    assert!(parsed("history --blame --stats").is_err() && parsed("history --timeline --json").is_err());
    let cleanup = |resources, dry_run, breaks, how| {
        let store = StoreOptions::default();
        Invocation::Cleanup(Cleanup { store, resources, paths: PathOptions::default(), dry_run, breaks, how })
    };
    let plain = BreakOptions::default();
    assert_eq!(parsed("cleanup").unwrap(), cleanup(vec![], false, false, plain));
    assert_eq!(parsed("cleanup --break a b --dry-run").unwrap(), cleanup(names(&["a", "b"]), true, true, plain));
    assert_eq!(parsed("break a b a --dry-run").unwrap(), cleanup(names(&["a", "b"]), true, true, plain));
    for line in ["cleanup --break k", "break k"] {
        let now = BreakOptions { now: true, ..plain };
        assert_eq!(parsed(&format!("{line} --now")).unwrap(), cleanup(names(&["k"]), false, true, now));
        let limited = BreakOptions { wait: Some(Wait::AtMost(secs(3))), ..plain };
        assert_eq!(parsed(&format!("{line} -w 3s")).unwrap(), cleanup(names(&["k"]), false, true, limited));
        assert!(mistake(&format!("{line} -w 3s --now")).contains(" exclude each other"));
    }
    assert!(mistake("cleanup k --now").contains("--break"), "{}", mistake("cleanup k --now"));
    for line in ["cleanup --break k --pid 7", "break k --pid 7"] {
        let Ok(Invocation::Cleanup(one)) = parsed(line) else { panic!("--pid is an option of {line}") };
        assert_eq!(one.how, BreakOptions { pid: Pid::from_raw(7), ..plain });
    }
    assert_eq!(mistake("break"), "KEY is missing; see 'rlock break --help'");
    assert!(mistake("cleanup k --pid 7").contains("--break"), "{}", mistake("cleanup k --pid 7"));
    let resource = names(&["k"]).pop();
    for (line, mode, resource) in
        [("downgrade --resource k prewrite", Mode::Prewrite, resource.clone()), ("downgrade read", Mode::Read, None)]
    {
        let words = narrowing::Downgrade { mode, resource, verbose: false };
        assert_eq!(parsed(line).unwrap(), Invocation::Downgrade(Downgrade { store: store.clone(), words }));
    }
    for line in [
        "shrink -3 -1 --resource k",
        "shrink --resource k -3 -1",
        "shrink -3 --resource=k -1",
        "shrink [-3,-1] --resource k",
    ] {
        let Ok(Invocation::Shrink(shrink, span)) = parsed(line) else { panic!("{line}") };
        assert_eq!((shrink.words.resource, span), (resource.clone(), Span::parse("[-3,-1]").unwrap()), "{line}");
    }
}

#[test]
fn acquire_renew_and_release_are_parsed() {
    let acquire = |line: &str| match parsed(line) {
        Ok(Invocation::Acquire(acquire)) => acquire,
        other => panic!("'{line}' should acquire, not {other:?}"),
    };
    let kept = acquire("acquire k --read r --range-write t [1,2) --for 1h -w 9s --owner me --export");
    assert_eq!((kept.request.claims.len(), kept.length, kept.pid, kept.export), (3, Some(secs(3600)), None, true));
    assert_eq!(
        (kept.request.waiting.wait, kept.request.whose.owner.as_deref(), kept.request.conflict_exit_code),
        (at_most(9), Some("me"), 75)
    );
    for (words, number) in [
        ("", Some(15)),
        ("--lost-signal usr1", Some(10)),
        ("--lost-signal SIGINT", Some(2)),
        ("--lost-signal 34", Some(34)),
        ("--lost-signal none", None),
    ] {
        let ends = acquire(&format!("acquire k --pid 7 {words}"));
        let expected = (None, Pid::from_raw(7).map(Owner::Pid), LostSignal(number));
        assert_eq!((ends.length, ends.pid, ends.lost_signal), expected, "{words}");
    }
    let words = "such as $$, or 'parent' or 'agent'";
    assert!(mistake("exec k --pid me -- true").contains(words), "{}", mistake("exec k --pid me -- true"));
    let both = acquire("acquire k --pid agent --for 1m");
    assert_eq!((both.length, both.pid), (Some(secs(60)), Some(Owner::Agent)));
    let id = "0123456789abcdef0123456789abcdef";
    let session = Which::Session(id.parse().unwrap());
    let store = StoreOptions::default();
    let renew = |length, lock| {
        Invocation::Renew(Renew { length, lock, export: false, verbose: false, store: StoreOptions::default() })
    };
    assert_eq!(parsed("renew").unwrap(), renew(None, None));
    assert_eq!(parsed(&format!("renew {id} --for 2m")).unwrap(), renew(Some(secs(120)), Some(session.clone())));
    let key = Which::Key(Resource::new("sim").unwrap());
    assert_eq!(parsed("renew sim").unwrap(), renew(None, Some(key.clone())));
    let paths = PathOptions::default();
    let release = Release { store, locks: vec![session, key], paths, export: true, verbose: true };
    assert_eq!(parsed(&format!("release {id} --export -v sim {id}")).unwrap(), Invocation::Release(release));
}

#[test]
fn held_means_writing_unless_it_names_another_mode() {
    let resource = Resource::new("k").unwrap();
    for (line, mode) in [
        ("held k", Mode::Write),
        ("held --write k", Mode::Write),
        ("held --read k", Mode::Read),
        ("held k --prewrite", Mode::Prewrite),
        ("held --slot k", Mode::Slot),
    ] {
        let Ok(Invocation::Held(_, claim)) = parsed(line) else { panic!("{line}") };
        assert_eq!(claim, Claim { resource: resource.clone(), mode, span: Span::Whole, slots: None }, "{line}");
    }
    assert_eq!(mistake("held --read --write k"), "--read and --write exclude each other: give one of them");
    assert_eq!(mistake("held"), "KEY is missing; see 'rlock held --help'");
    let text = "name one --path, since held looks at one claim";
    assert_eq!(mistake("held --path a --path b"), text);
}

#[test]
fn completions_and_man_are_parsed() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        assert_eq!(parsed(&format!("completions {}", shell)).unwrap(), Invocation::Completions(Completions { shell }));
    }
    let print = |name| Invocation::Man(Man { page: Page::find(name), dir: None });
    assert_eq!(parsed("man").unwrap(), Invocation::Man(Man { page: None, dir: None }));
    assert_eq!(parsed("man rlock").unwrap(), print("rlock"));
    assert_eq!(parsed("man rlock-exec").unwrap(), print("rlock-exec"));
    assert_eq!(parsed("man range-read").unwrap(), print("rlock-range-read"));
    assert_eq!(parsed("man --dir d").unwrap(), Invocation::Man(Man { page: None, dir: Some("d".into()) }));
}

/// Of several words that read as a duration, only the one directly after the option can be
/// meant.
#[test]
fn blank_in_place_of_the_equals_sign_is_a_mistake() {
    for line in [
        "exec -n --skip-ok 6h backup -- c",
        "exec -n backup --skip-ok 6h -- c",
        "exec --read r -n --skip-ok 6h -c c",
        "exec --skip-ok 6h -- c",
        "range-read -n --skip-ok 6h 1 2 -- c",
    ] {
        let text = "'6h' after --skip-ok is a KEY and not its DUR: write --skip-ok=6h, or put the KEY '6h' first";
        assert_eq!(mistake(line), text, "{line}");
    }
    for line in ["inspect --watch 5s", "inspect k --watch 5s j", "inspect --json --watch 5s"] {
        let text = "'5s' after --watch is a KEY and not its DUR: write --watch=5s, or put the KEY '5s' first";
        assert_eq!(mistake(line), text, "{line}");
    }
    for line in [
        "exec 6h -n --skip-ok -- c",
        "exec -n --skip-ok --write 6h -- c",
        "exec --skip-ok -w 6h k -- c",
        "exec -n --skip-ok=1h 6h -- c",
        "range-read k -n --skip-ok 1 2 -- c",
        "range-read 1 -n --skip-ok 1 2 -- c",
    ] {
        assert!(exec(line).skip_ok.is_some(), "{line}");
    }
    for line in ["inspect 5s --watch", "inspect --watch k 5s", "inspect --watch=1s 5s"] {
        assert!(parsed(line).is_ok(), "{line}");
    }
}

/// "`--skip-ok` and `--else` need `-n`, `-w` or `--max-waiting`".
#[test]
fn option_for_busy_requests_needs_a_limit_of_the_wait() {
    for (line, option) in [
        ("exec k --skip-ok -- c", "--skip-ok"),
        ("exec k --skip-ok=1h -- c", "--skip-ok"),
        ("exec k --else a -- c", "--else"),
        ("range-write k 1 2 --else a -- c", "--else"),
    ] {
        let text = "needs -n, -w DUR, --max-waiting N or --supersede: without one of them, the request waits for ever";
        assert_eq!(mistake(line), format!("{option} {text}"));
        assert_eq!(mistake(&line.replacen(" --", " -w ever --", 1)), format!("{option} {text}"));
        for limit in ["-n", "-w 1h", "--max-waiting 3", "--supersede --job j"] {
            exec(&line.replacen(" --", &format!(" {limit} --"), 1));
        }
    }
}

#[test]
fn violated_rule_is_named_in_the_message() {
    for (line, text) in [
        ("exec k", "no command: write -- COMMAND, or -c STRING"),
        ("range-read k 1 2", "no command: write -- COMMAND, or -c STRING"),
        ("cleanup --break", "--break needs a KEY: name the locks to break"),
        ("shrink 1", "the interval from '1' lacks its end: write LO HI or '[LO,HI)'"),
    ] {
        assert_eq!(mistake(line), text, "{line}");
    }
}
