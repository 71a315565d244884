//! Judges a case by the sentences of rlock(1) and rlock-exec(1).

use std::time::Duration;

use crate::case::{Case, Claim, Command, Form, Sent, Way};
use crate::stage::Seen;

/// The time by which an event may come earlier than a case says, or rlock take longer, without a
/// judgement.
const SLACK: Duration = Duration::from_millis(250);

/// What the request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Usage,
    /// `--nested` without an rlock around.
    NotCovered,
    Done,
    Busy,
    Granted,
}

/// Returns the sentence that the case breaks, if it breaks one.
pub(crate) fn judge(case: &Case, seen: &Seen) -> Option<String> {
    let ends = ends(case);
    let complaints: Vec<_> = ends.iter().map(|end| complaint(case, seen, *end)).collect();
    // A case may have come to any of these ends.
    if complaints.iter().any(Option::is_none) {
        return None;
    }
    let list = ends.iter().zip(complaints).filter_map(|(end, complaint)| Some(format!("{end:?}: {}", complaint?)));
    Some(list.collect::<Vec<_>>().join("; "))
}

/// The ends that the facts allow.
fn ends(case: &Case) -> Vec<End> {
    if is_mistake(case) {
        return vec![End::Usage];
    }
    if case.nested {
        return vec![End::NotCovered];
    }
    let is_read = matches!(case.claims[0], Claim::Read(_)) && case.form != Form::Range;
    debug_assert!(!is_read || case.once_per.is_none(), "--once-per needs a write");
    let waits_not = case.limit() == Some(0) || case.max_waiting == Some(0);
    match case.way {
        // A success counts for all jobs without `--job`, and with it for the jobs of this name.
        Way::Succeeded if case.once_per.is_some() => vec![End::Done],
        Way::Free | Way::Succeeded => vec![End::Granted],
        Way::Held => vec![End::Busy],
        Way::HeldFor(_) if waits_not || case.limit() == Some(300) => vec![End::Granted, End::Busy],
        Way::HeldFor(_) => vec![End::Granted],
    }
}

/// "64 usage": the rules between options, as rlock-exec(1) has them.
fn is_mistake(case: &Case) -> bool {
    let has_limit = case.no_wait || case.wait.is_some() || case.max_waiting.is_some() || case.supersede;
    let is_whole_write = matches!(case.claims[..], [Claim::Bare | Claim::Write(_)]) && case.form == Form::Exec;
    let slots = case.claims.iter().filter(|claim| matches!(claim, Claim::Slot | Claim::Slots)).count();
    case.nonsense.is_some()
        || case.stray
        || slots > 1
        || case.quiet && case.verbose
        || case.no_wait && (case.waits_for_ever || case.wait.is_some_and(|wait| wait > 0))
        || case.otherwise.is_some() && (case.code.is_some() || case.skip_ok.is_some() || !has_limit)
        || case.skip_ok.is_some() && (case.code.is_some() || !has_limit)
        || case.once_per.is_some() && !is_whole_write
        || case.place && (case.supersede || case.once_per.is_some())
}

/// Why the case did not come to this end, if it did not.
fn complaint(case: &Case, seen: &Seen, end: End) -> Option<String> {
    let count = |line: &str| seen.log.iter().filter(|logged| *logged == line).count();
    let (runs, others, spares) = (count("start"), count("else"), count("spare"));
    let mut own: Vec<_> = seen.stderr.lines().filter(|line| line.starts_with("rlock: ")).collect();
    let fail = |text: String| Some(text);
    if seen.stderr.contains("panicked") {
        return fail("rlock panicked".to_owned());
    }
    if seen.waiters > 0 {
        return fail("a waiter is left".to_owned());
    }
    let interrupted = case.signal.and_then(|(sent, after)| {
        let number = match sent {
            Sent::Term => 15,
            Sent::Int => 2,
            Sent::Hup => 1,
            Sent::Pause | Sent::Winch => return None,
        };
        (seen.took + SLACK > Duration::from_millis(after)).then_some(number)
    });
    if let Some(signal) = interrupted {
        // The signal reaches the spare work, too.
        own.retain(|line| *line != format!("rlock: the work of --meanwhile was ended by signal {signal}"));
    }
    // At the very start of rlock, the signal ends it as it ends any program.
    let is_cancelled = interrupted.is_some_and(|signal| seen.code == 128 + signal && runs == 0 && others == 0);
    if seen.died {
        // So it does to the work of --else, which rlock has become.
        let is_else = case.otherwise.is_some() && end == End::Busy && interrupted.is_some();
        let is_fine = is_else || is_cancelled && seen.log.is_empty() && seen.stderr.is_empty();
        return (!is_fine).then(|| format!("a signal ended rlock: {}", seen.code));
    }
    let codes = match end {
        End::Usage => vec![64],
        End::NotCovered => vec![76],
        End::Done => vec![0],
        End::Busy if case.skip_ok.is_some() => vec![0],
        End::Busy => vec![i32::from(case.otherwise.or(case.code).unwrap_or(75))],
        End::Granted if case.form == Form::Acquire => vec![0],
        End::Granted => codes_of_command(case, interrupted),
    };
    if !codes.contains(&seen.code) && !is_cancelled {
        // The signal reaches the work of --else, which rlock has become.
        let is_else = interrupted.is_some_and(|signal| seen.code == 128 + signal) && end == End::Busy;
        if !is_else {
            return fail(format!("exit code {}, not one of {codes:?}", seen.code));
        }
    }
    let is_run = end == End::Granted && case.form != Form::Acquire && starts(case.command);
    let expected = if is_cancelled {
        0..=0
    } else if is_run && interrupted.is_some() {
        0..=1
    } else {
        usize::from(is_run)..=usize::from(is_run)
    };
    if !expected.contains(&runs) {
        return fail(format!("the command ran {runs} times"));
    }
    let is_else = end == End::Busy && case.otherwise.is_some() && !is_cancelled;
    if others > usize::from(is_else) || interrupted.is_none() && others != usize::from(is_else) {
        return fail(format!("the work of --else ran {others} times"));
    }
    let may_spare = case.spare && !matches!(end, End::Usage | End::NotCovered);
    let must_spare = may_spare && interrupted.is_none() && end != End::Done;
    if !(usize::from(must_spare)..=usize::from(may_spare)).contains(&spares) {
        return fail(format!("the spare work ran {spares} times"));
    }
    if end == End::Busy
        && !is_cancelled
        && case.limit().is_some_and(|wait| seen.took < Duration::from_millis(wait))
        && case.max_waiting != Some(0)
    {
        return fail("busy before --wait".to_owned());
    }
    words(case, seen, end, &own, is_cancelled).or_else(|| traces(case, seen, end, runs, is_cancelled, interrupted))
}

/// Whether the command can start.
fn starts(command: Command) -> bool {
    !matches!(command, Command::Missing | Command::NotExecutable)
}

/// The codes with which a granted request may end.
fn codes_of_command(case: &Case, interrupted: Option<i32>) -> Vec<i32> {
    let own = match case.command {
        Command::Exits(_, code) => i32::from(code),
        Command::DiesBy(signal) => 128 + signal,
        Command::Traps(_) | Command::Ignores(_) | Command::Closes(_) => 0,
        Command::Leaves(_) => 5,
        Command::Missing => 127,
        Command::NotExecutable => 126,
    };
    let limit = case.max_runtime.map(Duration::from_millis);
    let mut codes = Vec::new();
    if limit.is_none_or(|limit| limit + SLACK * 8 > case.duration()) {
        codes.push(own);
    }
    if limit.is_some_and(|limit| limit < case.duration() + SLACK * 8 && starts(case.command)) {
        codes.push(124);
    }
    if let Some(signal) = interrupted.filter(|_| starts(case.command)) {
        codes.extend([128 + signal, 7]);
    }
    codes
}

/// What rlock says.
fn words(case: &Case, seen: &Seen, end: End, own: &[&str], is_cancelled: bool) -> Option<String> {
    if case.form != Form::Acquire && !seen.stdout.is_empty() {
        return Some("rlock wrote to standard output".to_owned());
    }
    if case.form == Form::Acquire
        && (seen.code == 0 && end == End::Granted) != seen.stdout.starts_with("RLOCK_SESSION=")
    {
        return Some("the variables are printed exactly if the lock is held".to_owned());
    }
    let undone = match case.form {
        Form::Acquire => "; nothing was acquired",
        Form::Exec | Form::Range => "; the command was not started",
    };
    let lines = own.len();
    let holds = match end {
        End::Usage => lines == 1,
        End::NotCovered => lines >= 1,
        End::Busy if is_cancelled => true,
        End::Busy if case.verbose => true,
        End::Busy if case.quiet || case.skip_ok.is_some() || case.otherwise.is_some() => lines == 0,
        End::Busy => lines == 1 && own[0].starts_with("rlock: busy: ") && own[0].ends_with(undone),
        End::Done => case.verbose || lines == 0,
        End::Granted if case.verbose || is_cancelled || !starts(case.command) => true,
        End::Granted if seen.code == 124 => lines == 1,
        End::Granted => lines == 0,
    };
    (!holds).then(|| format!("{lines} lines of rlock"))
}

/// What is left: the status file, processes, and the lock.
fn traces(
    case: &Case,
    seen: &Seen,
    end: End,
    runs: usize,
    is_cancelled: bool,
    interrupted: Option<i32>,
) -> Option<String> {
    let outcome = seen.status.as_ref().and_then(|status| status["outcome"].as_str());
    let outcomes: &[_] = match end {
        _ if !case.status_file || case.form == Form::Acquire || end == End::Usage => &[None],
        _ if is_cancelled => &[Some("cancelled"), Some("done")],
        // rlock has become the work of --else.
        End::Busy if case.skip_ok.is_some() => &[Some("skipped")],
        End::Busy => &[Some("busy")],
        End::Done => &[Some("done")],
        End::NotCovered => &[Some("lost")],
        End::Granted if !starts(case.command) => &[Some("not-started")],
        End::Granted if seen.code == 124 => &[Some("timeout")],
        End::Granted => &[Some("ran")],
        End::Usage => unreachable!("handled above"),
    };
    if !outcomes.contains(&outcome) {
        return Some(format!("the status file says {outcome:?}, not {outcomes:?}"));
    }
    // A child that a command leaves behind goes on, unless rlock has stopped the command.
    let may_leave = matches!(case.command, Command::Leaves(_)) && seen.code != 124;
    if !seen.left.is_empty() && !may_leave && interrupted.is_none() {
        return Some(format!("processes are left: {:?}", seen.left));
    }
    let is_kept = case.hold_at_least == Some(600_000) && runs > 0;
    let is_shared = !is_kept && case.way != Way::Held;
    if is_shared && seen.next != Some(0) || is_kept && case.way != Way::Held && seen.next != Some(75) {
        return Some(format!("the next request exits with {:?}", seen.next));
    }
    None
}
