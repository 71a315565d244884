//! Checks whether the command can be started with the variables that rlock adds: execve(2) limits
//! the size of each string and of all strings together.
//!
//! The names of all resources go into one variable, so a request for many names might never start
//! its command. rlock refuses such a request before it is made: its wait would be useless and would
//! delay other requests.

use std::ffi::{OsStr, OsString};

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// The limits of execve(2), in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// One string with its NUL: `MAX_ARG_STRLEN` of the kernel.
    one: usize,
    /// All strings of arguments and environment with their NULs and pointers.
    all: usize,
}

impl Limits {
    /// The limits of this process, which the command inherits.
    pub(crate) fn of_this_process() -> Self {
        let stack = getrlimit(Resource::Stack).current.and_then(|bytes| usize::try_from(bytes).ok());
        Self { one: 32 * page_size(), all: all(stack) }
    }
}

/// The kernel's rule: a quarter of the stack, at most 6 MiB and at least 128 KiB.
fn all(stack: Option<usize>) -> usize {
    stack.map_or(usize::MAX, |bytes| bytes / 4).clamp(128 << 10, 6 << 20)
}

/// Says in one line what does not fit, if anything. `added` are the variables that rlock adds to
/// the inherited ones.
///
/// The check may accept a command that the kernel refuses by a few bytes, for example because of
/// the path found in PATH. It refuses only commands that the kernel refuses too.
pub(crate) fn complaint(
    argv: &[OsString],
    inherited: impl Iterator<Item = (OsString, OsString)>,
    added: &[(OsString, OsString)],
    limits: Limits,
) -> Option<String> {
    let variable = |name: &OsStr, value: &OsStr| name.len() + "=".len() + value.len() + NUL;
    for (name, value) in added {
        let bytes = variable(name, value);
        if bytes > limits.one {
            let name = name.to_string_lossy();
            return Some(format!("{name} would have {bytes} bytes, the limit is {}; {ADVICE}", limits.one));
        }
    }
    let kept = inherited.filter(|(name, _)| added.iter().all(|(replacing, _)| name != replacing));
    let kept: usize = kept.map(|(name, value)| POINTER + variable(&name, &value)).sum();
    let added: usize = added.iter().map(|(name, value)| POINTER + variable(name, value)).sum();
    let words: usize = argv.iter().map(|word| POINTER + word.len() + NUL).sum();
    let bytes = kept + added + words;
    (bytes > limits.all)
        .then(|| format!("arguments and environment would have {bytes} bytes, the limit is {}; {ADVICE}", limits.all))
}

const NUL: usize = 1;
const POINTER: usize = size_of::<usize>();
const ADVICE: &str = "lock fewer resources at once, or give them shorter names";

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { one: 100, all: 1000 };

    fn pair(name: &str, bytes: usize) -> (OsString, OsString) {
        (name.into(), "x".repeat(bytes).into())
    }

    #[test]
    fn one_variable_fits_up_to_its_limit() {
        let complaint_of = |bytes| complaint(&["true".into()], std::iter::empty(), &[pair("NAME", bytes)], LIMITS);
        assert_eq!(complaint_of(94), None);
        let text =
            "NAME would have 101 bytes, the limit is 100; lock fewer resources at once, or give them shorter names";
        assert_eq!(complaint_of(95).as_deref(), Some(text));
    }

    #[test]
    fn all_strings_together_fit_up_to_their_limit() {
        // "cmd" takes 8 + 4 bytes, and a variable takes 8 + 3 bytes and its value.
        let complaint_of = |bytes| {
            let inherited = (0..9).map(|n| pair(&n.to_string(), 89));
            complaint(&["cmd".into()], inherited, &[pair("a", bytes)], LIMITS)
        };
        assert_eq!(complaint_of(77), None);
        let text = "arguments and environment would have 1001 bytes, the limit is 1000; \
                    lock fewer resources at once, or give them shorter names";
        assert_eq!(complaint_of(78).as_deref(), Some(text));
    }

    #[test]
    fn replaced_variable_counts_once() {
        let inherited = || (0..9).map(|n| pair(&n.to_string(), 89)).chain([pair("a", 60)]);
        assert_eq!(complaint(&["cmd".into()], inherited(), &[pair("a", 77)], LIMITS), None);
        assert!(complaint(&["cmd".into()], inherited(), &[pair("b", 77)], LIMITS).is_some());
    }

    #[test]
    fn limit_of_all_strings_follows_the_stack() {
        assert_eq!(all(Some(8 << 20)), 2 << 20);
        assert_eq!(all(Some(64 << 10)), 128 << 10);
        assert_eq!((all(None), all(Some(usize::MAX))), (6 << 20, 6 << 20));
    }
}
