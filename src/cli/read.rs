//! Converts matched words into an [`Invocation`]. This module holds the rules between several
//! options that clap cannot state or cannot explain.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anstream::ColorChoice;
use clap::ArgMatches;

use crate::lock::mode::Mode;
use crate::lock::request::Claim;
use crate::lock::resource::Resource;
use crate::words;

use super::args::id;
use super::claims;
use super::invocation::{
    Acquire, Cleanup, Doctor, Downgrade, Exec, Form, HeldBy, History, Holder, Inspect, Invocation, Man, Release, Renew,
    RequestOptions, Serve, Shrink, StoreOptions, Until, Whose,
};
use super::pages::Page;
use super::usage::Mistake;
use super::values;

pub(super) fn exec(matches: ArgMatches) -> Result<Invocation, Mistake> {
    no_blank_before_value(&matches, id::SKIP_OK)?;
    run(claims::of_exec(&matches)?, matches)
}

pub(super) fn range(mode: Mode, matches: ArgMatches) -> Result<Invocation, Mistake> {
    no_blank_before_value(&matches, id::SKIP_OK)?;
    run(vec![claims::of_range(&matches, mode)?], matches)
}

/// The part that `exec` and `range-*` share.
fn run(claims: Vec<Claim>, mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let command = command(&mut matches)?;
    let is_whole_write = matches!(&claims[..], [claim] if claim.mode == Mode::Write && claim.span.is_whole());
    if matches.contains_id(id::ONCE_PER) && !is_whole_write {
        return Err(Mistake::plain(
            "--once-per needs one write claim on one whole KEY: give each job a KEY of its own",
        ));
    }
    let request = request(claims, &mut matches)?;
    let supersede = matches.get_flag(id::SUPERSEDE);
    // The next request of the job with that option supersedes this one.
    let may_be_busy = request.wait.is_some() || request.max_waiting.is_some() || supersede;
    let needs_limit = [id::SKIP_OK, id::ELSE].into_iter().find(|id| matches.contains_id(id));
    if let Some(option) = needs_limit.filter(|_| !may_be_busy) {
        return Err(Mistake::plain(format!(
            "--{option} needs -n, -w DUR or --max-waiting N: without one of them, the request waits for ever"
        )));
    }
    Ok(Invocation::Exec(Box::new(Exec {
        request,
        command,
        skip_ok: matches.remove_one(id::SKIP_OK),
        once_per: matches.remove_one(id::ONCE_PER),
        success_codes: matches.remove_many(id::SUCCESS_CODES).into_iter().flatten().collect(),
        hold_at_least: matches.remove_one(id::HOLD_AT_LEAST),
        max_runtime: matches.remove_one(id::MAX_RUNTIME),
        until_ready: matches.get_flag(id::UNTIL_READY),
        supersede,
        splay: matches.remove_one(id::SPLAY).unwrap_or_default(),
        nested: matches.get_flag(id::NESTED),
        status_file: matches.remove_one(id::STATUS_FILE),
        meanwhile: matches.remove_one(id::MEANWHILE),
        otherwise: matches.remove_one(id::ELSE),
    })))
}

/// The part that everything shares that makes a request.
fn request(claims: Vec<Claim>, matches: &mut ArgMatches) -> Result<RequestOptions, Mistake> {
    Ok(RequestOptions {
        claims,
        wait: wait(matches)?,
        conflict_exit_code: given(matches, id::CONFLICT_EXIT_CODE),
        ttl: matches.remove_one(id::TTL),
        grace: matches.remove_one(id::GRACE),
        connect_timeout: matches.remove_one(id::CONNECT_TIMEOUT),
        replicas: matches.remove_one(id::REPLICAS),
        whose: Whose { owner: matches.remove_one(id::OWNER), reason: matches.remove_one(id::REASON) },
        job: matches.remove_one(id::JOB),
        max_waiting: matches.remove_one(id::MAX_WAITING),
        deadlock_timeout: given(matches, id::DEADLOCK_TIMEOUT),
        history: matches.remove_one(id::HISTORY),
        quiet: matches.get_flag(id::QUIET),
        verbose: matches.get_flag(id::VERBOSE),
        no_default_store: matches.get_flag(id::NO_DEFAULT_STORE),
        store: store(matches),
    })
}

pub(super) fn held(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let modes = [(id::READ, Mode::Read), (id::PREWRITE, Mode::Prewrite), (id::SLOT, Mode::Slot)];
    let asked = modes.into_iter().find(|(id, _)| matches.get_flag(id)).map(|(_, mode)| mode);
    Ok(Invocation::Held(HeldBy {
        resource: given(&mut matches, id::KEY),
        mode: asked.unwrap_or(Mode::Write),
        verbose: matches.get_flag(id::VERBOSE),
        store: store(&mut matches),
    }))
}

pub(super) fn acquire(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let claims = claims::of_acquire(&matches)?;
    let until = match (matches.remove_one(id::FOR), matches.remove_one(id::PID)) {
        (Some(length), _) => Until::For(length),
        (None, Some(pid)) => Until::End { pid, signal: given(&mut matches, id::LOST_SIGNAL) },
        (None, None) => {
            let text = "no end: write --for DUR for a lock that ends by itself, or --pid PID for one with a process";
            return Err(Mistake::plain(text));
        }
    };
    Ok(Invocation::Acquire(Acquire {
        until,
        export: matches.get_flag(id::EXPORT),
        request: request(claims, &mut matches)?,
    }))
}

pub(super) fn renew(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Renew(Renew {
        length: matches.remove_one(id::FOR),
        session: matches.remove_one(id::SESSION),
        verbose: matches.get_flag(id::VERBOSE),
        store: store(&mut matches),
    }))
}

pub(super) fn release(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Release(Release {
        sessions: each_once(&mut matches, id::SESSION),
        verbose: matches.get_flag(id::VERBOSE),
        export: matches.get_flag(id::EXPORT),
        store: store(&mut matches),
    }))
}

/// The value of an option that has a default.
fn given<T: Clone + Send + Sync + 'static>(matches: &mut ArgMatches, id: &str) -> T {
    matches.remove_one(id).expect("the option has a default")
}

/// The words to execute.
fn command(matches: &mut ArgMatches) -> Result<Vec<OsString>, Mistake> {
    // Words after `sh -c STRING` are arguments of the shell, and users would expect the same here.
    if matches.index_of(id::KEY) > matches.index_of(id::SHELL_COMMAND).or(Some(usize::MAX)) {
        let key: &Resource = matches.get_one(id::KEY).expect("KEY has a place among the words");
        return Err(Mistake::plain(format!(
            "KEY '{key}' stands after -c: put KEY before -c STRING, which takes no arguments"
        )));
    }
    if let Some(string) = matches.remove_one::<OsString>(id::SHELL_COMMAND) {
        return Ok(vec!["/bin/sh".into(), "-c".into(), string]);
    }
    let words =
        matches.remove_many(id::COMMAND).ok_or_else(|| Mistake::plain("no command: write -- COMMAND, or -c STRING"))?;
    Ok(words.collect())
}

/// The maximum wait. `-n` means `-w 0`, so the two may stand together only if they agree.
pub(super) fn wait(matches: &ArgMatches) -> Result<Option<Duration>, Mistake> {
    let wait = matches.get_one::<Duration>(id::WAIT).copied();
    match (matches.get_flag(id::NO_WAIT), wait) {
        (true, Some(wait)) if !wait.is_zero() => {
            let wait = words::duration(wait);
            Err(Mistake::plain(format!("--no-wait and --wait {wait} exclude each other: give one of them")))
        }
        (true, _) => Ok(Some(Duration::ZERO)),
        (false, wait) => Ok(wait),
    }
}

/// Refuses a bare KEY that reads as a duration, directly after an option whose value may be absent.
/// It is nearly always the value, behind a blank in place of the `=`.
fn no_blank_before_value(matches: &ArgMatches, option: &str) -> Result<(), Mistake> {
    let is_absent = matches.get_one::<Option<Duration>>(option).is_some_and(Option::is_none);
    let Some(at) = matches.index_of(option).filter(|_| is_absent) else { return Ok(()) };
    let keys = claims::with_places::<Resource>(matches, id::KEY).map(|(place, key)| (place, key.as_str()));
    let strays = matches.try_contains_id(id::STRAY).is_ok().then(|| claims::with_places::<String>(matches, id::STRAY));
    let strays = strays.into_iter().flatten().map(|(place, stray)| (place, stray.as_str()));
    let mut next = keys.chain(strays).filter(|(place, _)| *place == at + 1).map(|(_, word)| word);
    match next.find(|word| values::duration(word).is_ok()) {
        None => Ok(()),
        Some(word) => Err(Mistake::plain(format!(
            "'{word}' after --{option} is a KEY and not its DUR: write --{option}={word}, or put the KEY '{word}' first"
        ))),
    }
}

pub(super) fn inspect(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    no_blank_before_value(&matches, id::WATCH)?;
    let inspect = Inspect {
        resources: resources(&mut matches),
        form: match [id::JSON, id::NAMES, id::TREE, id::DOT].map(|id| matches.get_flag(id)) {
            [true, ..] => Form::Json,
            [_, true, ..] => Form::Names,
            [.., true, _] => Form::Tree,
            [.., true] => Form::Dot,
            _ => Form::Table,
        },
        watch: matches.remove_one::<Option<Duration>>(id::WATCH).map(|every| every.unwrap_or(WATCH_EVERY)),
        verbose: matches.get_flag(id::VERBOSE),
        wide: matches.get_flag(id::WIDE),
        color: color(&mut matches),
        held_longer_than: matches.remove_one(id::HELD_LONGER_THAN),
        no_success_for: matches.remove_one(id::NO_SUCCESS_FOR),
        job: matches.remove_one(id::JOB),
        prometheus: matches.get_flag(id::PROMETHEUS),
        output: matches.remove_one(id::OUTPUT),
        store: store(&mut matches),
    };
    if inspect.no_success_for.is_some() && inspect.resources.is_empty() && inspect.job.is_none() {
        return Err(Mistake::plain("--no-success-for needs a KEY: name what has to run"));
    }
    Ok(Invocation::Inspect(inspect))
}

pub(super) fn history(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::History(History {
        resources: resources(&mut matches),
        last: matches.remove_one(id::LAST),
        since: matches.remove_one(id::SINCE),
        failed: matches.get_flag(id::FAILED),
        stats: matches.get_flag(id::STATS),
        json: matches.get_flag(id::JSON),
        color: color(&mut matches),
        store: store(&mut matches),
    }))
}

/// How often `--watch` asks a server, unless it is told.
const WATCH_EVERY: Duration = Duration::from_secs(1);

fn color(matches: &mut ArgMatches) -> ColorChoice {
    match matches.remove_one::<String>(id::COLOR).as_deref() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

pub(super) fn doctor(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Doctor(Doctor {
        json: matches.get_flag(id::JSON),
        ttl: matches.remove_one(id::TTL),
        color: color(&mut matches),
        store: store(&mut matches),
    }))
}

pub(super) fn break_locks(matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Cleanup(cleaned(matches, true)))
}

/// What `cleanup` and `break` share.
fn cleaned(mut matches: ArgMatches, break_grants: bool) -> Cleanup {
    let session = matches.remove_one(id::HOLDER).map(Holder::Session);
    Cleanup {
        resources: resources(&mut matches),
        dry_run: matches.get_flag(id::DRY_RUN),
        break_grants,
        only: session.or_else(|| matches.remove_one(id::PID).map(Holder::Process)),
        store: store(&mut matches),
    }
}

pub(super) fn cleanup(matches: ArgMatches) -> Result<Invocation, Mistake> {
    let break_grants = matches.get_flag(id::BREAK);
    let cleanup = cleaned(matches, break_grants);
    if cleanup.break_grants && cleanup.resources.is_empty() {
        return Err(Mistake::plain("--break needs a KEY: name the locks to take away"));
    }
    Ok(Invocation::Cleanup(cleanup))
}

pub(super) fn shrink(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Shrink(Shrink {
        span: claims::span(&matches)?,
        resource: matches.remove_one(id::RESOURCE),
        verbose: matches.get_flag(id::VERBOSE),
        store: store(&mut matches),
    }))
}

pub(super) fn downgrade(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Downgrade(Downgrade {
        mode: mode(&mut matches),
        resource: matches.remove_one(id::RESOURCE),
        verbose: matches.get_flag(id::VERBOSE),
        store: store(&mut matches),
    }))
}

/// The new mode of a downgrade.
pub(super) fn mode(matches: &mut ArgMatches) -> Mode {
    let mode: String = matches.remove_one(id::MODE).expect("clap requires a mode");
    mode.parse().expect("clap takes only the modes of the list")
}

pub(super) fn serve(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Serve(Serve {
        listen: matches.remove_many(id::LISTEN).into_iter().flatten().collect(),
        stdio: matches.get_flag(id::STDIO),
        token_file: matches.remove_one(id::TOKEN_FILE),
        insecure: matches.get_flag(id::INSECURE),
        max_connections: given(&mut matches, id::MAX_CONNECTIONS),
        max_waiting: given(&mut matches, id::MAX_WAITING),
        only: matches.remove_many(id::ONLY).into_iter().flatten().collect(),
        ttl: matches.remove_one(id::TTL),
        history: matches.remove_one(id::HISTORY),
        grace: matches.remove_one(id::GRACE),
        verbose: matches.get_flag(id::VERBOSE),
        store: store(&mut matches),
    }))
}

pub(super) fn completions(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let name: String = matches.remove_one(id::SHELL).expect("clap requires a shell");
    Ok(Invocation::Completions(name.parse().expect("clap takes only the shells of the list")))
}

pub(super) fn man(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    if let Some(dir) = matches.remove_one::<PathBuf>(id::DIR) {
        return Ok(Invocation::Man(Man::WriteAll(dir)));
    }
    let name: String = matches.remove_one(id::PAGE).unwrap_or_else(|| "rlock".to_owned());
    Ok(Invocation::Man(Man::Print(Page::find(&name).expect("clap takes only the pages of the table"))))
}

/// The options of the store.
fn store(matches: &mut ArgMatches) -> StoreOptions {
    StoreOptions { store: matches.remove_one(id::STORE), namespace: matches.remove_one(id::NAMESPACE) }
}

/// The KEYs, each once, in the order of the command line.
fn resources(matches: &mut ArgMatches) -> Vec<Resource> {
    each_once(matches, id::KEY)
}

/// The values of an argument, each once, in the order of the command line.
fn each_once<T: Clone + PartialEq + Send + Sync + 'static>(matches: &mut ArgMatches, id: &str) -> Vec<T> {
    let mut values = Vec::new();
    for value in matches.remove_many(id).into_iter().flatten() {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;
    use std::path::PathBuf;
    use std::time::Duration;

    use rustix::process::Pid;

    use anstream::ColorChoice;
    use clap_complete::Shell;

    use super::super::invocation::{
        Cleanup, Downgrade, Exec, Form, HeldBy, History, Inspect, Invocation, LostSignal, Man, Period, Release, Renew,
        Shrink, StoreOptions, Unit, Until,
    };
    use super::super::pages::Page;
    use super::super::parse;
    use super::super::tests::{mistake, parsed};
    use crate::lock::mode::Mode;
    use crate::lock::request::SessionId;
    use crate::lock::resource::Resource;
    use crate::lock::span::Span;

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
        assert_eq!((exec.request.wait, exec.request.conflict_exit_code, exec.request.replicas), (None, 75, None));
        assert_eq!((exec.request.ttl, exec.request.grace, exec.request.connect_timeout), (None, None, None));
        assert_eq!(
            (exec.request.quiet, exec.request.verbose, exec.request.store),
            (false, false, StoreOptions::default())
        );
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn every_option_of_exec_and_range_is_parsed() {
        let options =
            "-w 90s -E 3 --ttl 1m --grace 20s --connect-timeout 500ms --replicas 2 -q --store file:///d --namespace n";
        for start in ["exec k", "range-read k 1 2", "range-prewrite k [1,2)", "range-write k -1 2"] {
            for line in [format!("{start} {options} -- c"), format!("{start} {options} -c c")] {
                let exec = exec(&line);
                assert_eq!(
                    (exec.request.wait, exec.request.conflict_exit_code, exec.request.replicas.map(|it| it.count)),
                    (Some(secs(90)), 3, Some(2)),
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
        assert_eq!((long.request.wait, long.request.conflict_exit_code, long.request.quiet), (Some(secs(90)), 3, true));
        let whose = exec("exec k --owner a_b --reason=c_d -- c").request.whose;
        assert_eq!((whose.owner.as_deref(), whose.reason.as_deref()), (Some("a b"), Some("c d")));
        let both = exec("exec -n k --meanwhile a_b --else c_d -- c");
        assert_eq!((both.meanwhile, both.otherwise), (Some("a b".into()), Some("c d".into())));
        assert!(mistake("exec k -E 0 --else a -- c").contains("--conflict-exit-code"));
        assert!(
            exec("exec k --no-default-store -- c").request.no_default_store
                && !exec("exec k -- c").request.no_default_store
        );
        let cron = exec("exec k -n --skip-ok --success-codes 3,5 --splay 1m --nested --status-file f -- c");
        assert_eq!((cron.skip_ok, cron.success_codes, cron.splay), (Some(None), vec![3, 5], secs(60)));
        assert_eq!((cron.nested, cron.status_file), (true, Some(PathBuf::from("f"))));
        assert!(exec("exec --supersede --skip-ok k -- c").supersede && !exec("exec k -- c").supersede);
        let cron = exec("exec --skip-ok=1h --once-per 2h --hold-at-least 3s --max-runtime 4s --max-waiting 5 k -- c");
        assert_eq!((cron.skip_ok, cron.once_per), (Some(Some(secs(3600))), Some(Period::Within(secs(7200)))));
        assert_eq!(
            (cron.hold_at_least, cron.max_runtime, cron.request.max_waiting),
            (Some(secs(3)), Some(secs(4)), Some(5))
        );
        let calendar =
            ["hour", "day", "week", "month"].map(|word| exec(&format!("exec --once-per {word} k -- c")).once_per);
        assert_eq!(calendar, [Unit::Hour, Unit::Day, Unit::Week, Unit::Month].map(|unit| Some(Period::Calendar(unit))));
        let timeouts =
            ["exec k -- c", "exec --deadlock-timeout 0 k -- c"].map(|line| exec(line).request.deadlock_timeout);
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
        for line in [
            "exec -n k -- c",
            "exec --no-wait k -- c",
            "exec -w 0 k -- c",
            "exec -n -w 0s k -- c",
            "exec -w0 k -n -- c",
        ] {
            assert_eq!(exec(line).request.wait, Some(Duration::ZERO), "{line}");
        }
        let text = "--no-wait and --wait 1m30s exclude each other: give one of them";
        assert_eq!(mistake("exec -n -w 90 k -- c"), text);
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
        let inspect = |resources, form, verbose, color| {
            Invocation::Inspect(Inspect { resources, form, verbose, color, ..Inspect::default() })
        };
        assert_eq!(parsed("inspect").unwrap(), inspect(vec![], Form::Table, false, ColorChoice::Auto));
        let json = inspect(names(&["b", "a"]), Form::Json, false, ColorChoice::Never);
        assert_eq!(parsed("inspect b --json a b --color never").unwrap(), json);
        assert_eq!(
            parsed("inspect -v --color=always").unwrap(),
            inspect(vec![], Form::Table, true, ColorChoice::Always)
        );
        for (word, form) in [("--names", Form::Names), ("--tree", Form::Tree), ("--dot", Form::Dot)] {
            assert_eq!(parsed(&format!("inspect {word}")).unwrap(), inspect(vec![], form, false, ColorChoice::Auto));
        }
        for (line, every) in [("--watch", 1000), ("--watch=100ms", 100), ("--watch --json", 1000)] {
            let Ok(Invocation::Inspect(inspect)) = parsed(&format!("inspect {line} k")) else { panic!("{line}") };
            assert_eq!((inspect.watch, inspect.resources), (Some(Duration::from_millis(every)), names(&["k"])));
        }
        assert!(mistake("inspect --json --names").contains(" exclude each other"));
        assert!(mistake("inspect --watch --dot").contains(" exclude each other"));
        assert_eq!(mistake("inspect --watch=0"), "--watch: '0' is too short: ask a server at most every 100ms");
        let checks = Inspect { held_longer_than: Some(secs(60)), form: Form::Json, ..Inspect::default() };
        assert_eq!(parsed("inspect --held-longer-than 1m --json").unwrap(), Invocation::Inspect(checks));
        let checks = Inspect { resources: names(&["k"]), no_success_for: Some(secs(60)), ..Inspect::default() };
        assert_eq!(parsed("inspect --no-success-for 1m k").unwrap(), Invocation::Inspect(checks));
        let checks = Inspect { no_success_for: Some(secs(60)), job: Some("j".to_owned()), ..Inspect::default() };
        assert_eq!(parsed("inspect --no-success-for 1m --job j").unwrap(), Invocation::Inspect(checks));
        assert!(
            mistake("inspect --job j").starts_with("--no-success-for is missing"),
            "{}",
            mistake("inspect --job j")
        );
        assert_eq!(
            parsed("inspect --wide").unwrap(),
            Invocation::Inspect(Inspect { wide: true, ..Inspect::default() })
        );
        let metrics = Inspect { prometheus: true, output: Some(PathBuf::from("f")), ..Inspect::default() };
        assert_eq!(parsed("inspect --prometheus -o f").unwrap(), Invocation::Inspect(metrics));
        let history =
            History { resources: names(&["k"]), last: Some(3), failed: true, json: true, ..History::default() };
        assert_eq!(parsed("history k -n 3 --failed --json").unwrap(), Invocation::History(history));
        let history = History { since: Some(secs(60)), stats: true, ..History::default() };
        assert_eq!(parsed("history --since 1m --stats").unwrap(), Invocation::History(history));
        let cleanup = |resources, dry_run, break_grants| {
            let (store, only) = (StoreOptions::default(), None);
            Invocation::Cleanup(Cleanup { store, resources, dry_run, break_grants, only })
        };
        assert_eq!(parsed("cleanup").unwrap(), cleanup(vec![], false, false));
        assert_eq!(parsed("cleanup --break a b --dry-run").unwrap(), cleanup(names(&["a", "b"]), true, true));
        assert_eq!(parsed("break a b --dry-run").unwrap(), cleanup(names(&["a", "b"]), true, true));
        for line in ["cleanup --break k --pid 7", "break k --pid 7"] {
            let Ok(Invocation::Cleanup(one)) = parsed(line) else { panic!("--pid is an option of {line}") };
            assert!(matches!(one.only, Some(super::Holder::Process(pid)) if pid.as_raw_nonzero().get() == 7));
        }
        assert_eq!(mistake("break"), "KEY is missing; see 'rlock break --help'");
        assert!(mistake("cleanup k --pid 7").contains("--break"), "{}", mistake("cleanup k --pid 7"));
        let resource = names(&["k"]).pop();
        assert_eq!(
            parsed("downgrade --resource k prewrite").unwrap(),
            Invocation::Downgrade(Downgrade {
                store: store.clone(),
                mode: Mode::Prewrite,
                resource: resource.clone(),
                verbose: false
            })
        );
        assert_eq!(
            parsed("downgrade read").unwrap(),
            Invocation::Downgrade(Downgrade { store: store.clone(), mode: Mode::Read, resource: None, verbose: false })
        );
        for line in [
            "shrink -3 -1 --resource k",
            "shrink --resource k -3 -1",
            "shrink -3 --resource=k -1",
            "shrink [-3,-1] --resource k",
        ] {
            let span = Span::parse("[-3,-1]").unwrap();
            assert_eq!(
                parsed(line).unwrap(),
                Invocation::Shrink(Shrink { store: store.clone(), span, resource: resource.clone(), verbose: false })
            );
        }
    }

    #[test]
    fn acquire_renew_and_release_are_parsed() {
        let acquire = |line: &str| match parsed(line) {
            Ok(Invocation::Acquire(acquire)) => acquire,
            other => panic!("'{line}' should acquire, not {other:?}"),
        };
        let kept = acquire("acquire k --read r --range-write t [1,2) --for 1h -w 9s --owner me --export");
        assert_eq!((kept.request.claims.len(), kept.until, kept.export), (3, Until::For(secs(3600)), true));
        assert_eq!(
            (kept.request.wait, kept.request.whose.owner.as_deref(), kept.request.conflict_exit_code),
            (Some(secs(9)), Some("me"), 75)
        );
        let pid = Pid::from_raw(7).unwrap();
        for (words, number) in [("", Some(15)), ("--lost-signal usr1", Some(10)), ("--lost-signal SIGINT", Some(2))] {
            let until = Until::End { pid, signal: LostSignal(number) };
            assert_eq!(acquire(&format!("acquire k --pid 7 {words}")).until, until);
        }
        for (words, number) in [("--lost-signal 34", Some(34)), ("--lost-signal none", None)] {
            let until = Until::End { pid, signal: LostSignal(number) };
            assert_eq!(acquire(&format!("acquire k --pid 7 {words}")).until, until);
        }
        let id = "0123456789abcdef0123456789abcdef";
        let session: SessionId = id.parse().unwrap();
        let store = StoreOptions::default();
        let renew = |length, session| {
            Invocation::Renew(Renew { length, session, verbose: false, store: StoreOptions::default() })
        };
        assert_eq!(parsed("renew").unwrap(), renew(None, None));
        assert_eq!(parsed(&format!("renew {id} --for 2m")).unwrap(), renew(Some(secs(120)), Some(session)));
        let release = Release { store, sessions: vec![session], export: true, verbose: true };
        assert_eq!(parsed(&format!("release {id} --export -v {id}")).unwrap(), Invocation::Release(release));
    }

    #[test]
    fn held_means_writing_unless_it_names_another_mode() {
        let held = |mode| {
            let resource = Resource::new("k").unwrap();
            Ok(Invocation::Held(HeldBy { store: StoreOptions::default(), resource, mode, verbose: false }))
        };
        assert_eq!(parsed("held k"), held(Mode::Write));
        assert_eq!(parsed("held --write k"), held(Mode::Write));
        assert_eq!(parsed("held --read k"), held(Mode::Read));
        assert_eq!(parsed("held k --prewrite"), held(Mode::Prewrite));
        assert_eq!(parsed("held --slot k"), held(Mode::Slot));
        assert_eq!(mistake("held --read --write k"), "--read and --write exclude each other: give one of them");
        assert_eq!(mistake("held"), "KEY is missing; see 'rlock held --help'");
    }

    #[test]
    fn completions_and_man_are_parsed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert_eq!(parsed(&format!("completions {}", shell)).unwrap(), Invocation::Completions(shell));
        }
        let print = |name| Invocation::Man(Man::Print(Page::find(name).unwrap()));
        assert_eq!(parsed("man").unwrap(), print("rlock"));
        assert_eq!(parsed("man rlock").unwrap(), print("rlock"));
        assert_eq!(parsed("man rlock-exec").unwrap(), print("rlock-exec"));
        assert_eq!(parsed("man range-read").unwrap(), print("rlock-range-read"));
        assert_eq!(parsed("man --dir d").unwrap(), Invocation::Man(Man::WriteAll(PathBuf::from("d"))));
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
            let text = "needs -n, -w DUR or --max-waiting N: without one of them, the request waits for ever";
            assert_eq!(mistake(line), format!("{option} {text}"));
            for limit in ["-n", "-w 1h", "--max-waiting 3"] {
                exec(&line.replacen(" --", &format!(" {limit} --"), 1));
            }
        }
    }

    #[test]
    fn violated_rule_is_named_in_the_message() {
        for (line, text) in [
            ("exec k", "no command: write -- COMMAND, or -c STRING"),
            ("range-read k 1 2", "no command: write -- COMMAND, or -c STRING"),
            ("cleanup --break", "--break needs a KEY: name the locks to take away"),
            ("shrink 1", "the interval from '1' lacks its end: write LO HI or '[LO,HI)'"),
        ] {
            assert_eq!(mistake(line), text, "{line}");
        }
    }
}
