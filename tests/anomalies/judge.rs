//! Judges what a program reports after a fault.

use std::io;

use super::stage::{OWN_CODE, Stage};
use super::trace::{Fault, Process, Trace};
use rlock_testkit::Ran;

/// The exit codes with which rlock says that the command was not started.
const NOT_STARTED: [i32; 4] = [69, 125, 126, 127];
/// The exit codes with which rlock says that the command may have run: it was lost or failed.
const STARTED: [i32; 2] = [76, 125];

/// What a message says instead of the kernel's words.
const OTHER_WORDS: &[(i32, &str)] = &[
    (libc::EAGAIN, "has no room for another connection"),
    (libc::ECONNREFUSED, "refused the connection"),
    (libc::ECONNRESET, "closed the connection"),
    // pthread_create(3) says so.
    (libc::ENOMEM, "resource temporarily unavailable"),
    (libc::ENOSPC, "resource temporarily unavailable"),
    (libc::ENOSPC, "has no room"),
    (libc::ENOSYS, "needs linux 5.3"),
    (libc::EPERM, "belongs to another user"),
    (libc::EPERM, "permission denied"),
    (libc::EPIPE, "closed the connection"),
];

/// With these codes a call that was answered too late says that there was nothing to do: the first
/// attempt did it, and its answer was lost.
const NOTHING_TO_DO: [i32; 2] = [1, 76];

impl Stage<'_> {
    /// Whether the plan has killed the process that the test started.
    pub(crate) fn is_killed(&self, trace: &Trace) -> bool {
        trace.struck.contains(&Fault::Kill) && self.plan.process == Process::Rlock
    }

    /// Fails unless the exit code and the message of `rlock exec` are true of the command of this
    /// name.
    pub(crate) fn judge_command(&self, (ran, trace): &(Ran, Trace), name: &str) {
        let (starts, ends) = (self.count(&format!("start {name}")), self.count(&format!("end {name}")));
        assert!(starts <= 1 && ends <= starts, "the command ran more than once: {:?}", self.log());
        if self.is_killed(trace) {
            return assert_eq!(ran.code(), None, "rlock was killed: {ran:?}");
        }
        let may_be_killed = !trace.struck.is_empty() && self.plan.process == Process::Command;
        match (starts, ends, ran.code().unwrap_or(-1)) {
            (1, 1, OWN_CODE) => assert_plain(&ran.stderr),
            // The command was killed before it executed its program.
            (0, 0, 137) if may_be_killed => assert_plain(&ran.stderr),
            (0, 0, code) if NOT_STARTED.contains(&code) => self.judge_message(&ran.stderr),
            (1, _, code) if STARTED.contains(&code) => self.judge_message(&ran.stderr),
            _ => panic!("the exit code is not true: {:?} {ran:?}", self.log()),
        }
    }

    /// Fails unless the exit code of another subcommand is 0 or one of these, and a failure has its
    /// message. Returns whether the subcommand succeeded.
    pub(crate) fn judge_other(&self, (ran, trace): &(Ran, Trace), failures: &[i32]) -> bool {
        if self.is_killed(trace) {
            assert_eq!(ran.code(), None, "rlock was killed: {ran:?}");
            return false;
        }
        match ran.code() {
            Some(0) => assert_plain(&ran.stderr),
            Some(code) if NOTHING_TO_DO.contains(&code) && failures.contains(&code) => assert_plain(&ran.stderr),
            Some(code) if failures.contains(&code) => self.judge_message(&ran.stderr),
            _ => panic!("the exit code is not true: {ran:?}"),
        }
        ran.code() == Some(0)
    }

    /// Fails unless a failure has one line, which names the error.
    pub(crate) fn judge_message(&self, stderr: &str) {
        assert_plain(stderr);
        let failures: Vec<_> = stderr.lines().filter(|line| !line.starts_with("rlock: warning: ")).collect();
        let most = 1 + usize::from(self.plan.second.is_some());
        assert!((1..=most).contains(&failures.len()), "each failure has one line: {stderr:?}");
        let [first, second] = [self.plan.strike.map(|(_, fault)| fault), self.plan.second.map(|(_, fault)| fault)];
        let faults: Vec<_> = first.into_iter().chain(second).collect();
        // LMDB calls a short transfer an error of its own.
        let is_short = faults.contains(&Fault::Short);
        let error_of = |fault: &Fault| if let Fault::Error(error) = fault { Some(*error) } else { None };
        let errors: Vec<_> = faults.iter().filter_map(error_of).collect();
        let is_told = |error: &i32| {
            let cause = io::Error::from_raw_os_error(*error).to_string();
            let cause = cause.split(" (os error").next().expect("a split has a first part").to_lowercase();
            let is_named = |text: &str| stderr.to_lowercase().contains(text);
            is_named(&cause) || OTHER_WORDS.iter().any(|(known, text)| known == error && is_named(text))
        };
        assert!(
            is_short || errors.is_empty() || errors.iter().any(is_told),
            "the line names none of {errors:?}: {stderr:?}"
        );
    }
}

/// Fails unless standard error has only whole lines of rlock. No fault here damages a file.
pub(crate) fn assert_plain(stderr: &str) {
    assert!(stderr.is_empty() || stderr.ends_with('\n'), "the last line is cut off: {stderr:?}");
    for line in stderr.lines() {
        let is_plain =
            line.starts_with("rlock: ") && ["panicked", "os error", "damaged"].iter().all(|bad| !line.contains(bad));
        assert!(is_plain, "this is no message of rlock: {stderr:?}");
    }
}
