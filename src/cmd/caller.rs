//! Describes who makes a request: the process, the owner and the reason for people, and the job for
//! the store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::ci::Run;
use super::context;
use crate::cli::invocation::Whose;
use crate::cli::{OWNER_BYTES, REASON_BYTES};
use crate::failure::Failure;
use crate::identity;
use crate::lock::request::Process;
use crate::words::{one_line, without_passwords};

/// Maximum number of bytes of the command that the store keeps, for other users to see.
const COMMAND_BYTES: usize = 2048;

/// The description of this process, which runs `command`. The owner and the reason come from the
/// options, else from the environment, else from the CI run.
///
/// # Errors
/// A variable is not text for people.
pub(super) fn process(whose: &Whose, run: Option<&Run>, command: &[OsString]) -> Result<Process, Failure> {
    let of_run = |text: fn(&Run) -> &Option<String>, bytes| {
        run.and_then(|run| text(run).as_deref()).map(|text| shown(text, bytes))
    };
    let owner = context::text(&whose.owner, context::OWNER, OWNER_BYTES)?;
    let reason = context::text(&whose.reason, context::REASON, REASON_BYTES)?;
    Ok(Process {
        owner: owner.unwrap_or_else(|| of_run(|run| &run.person, OWNER_BYTES)),
        reason: reason.unwrap_or_else(|| of_run(|run| &run.url, REASON_BYTES)),
        ..identity::process(rustix::process::geteuid().as_raw(), std::process::id(), words(command))
    })
}

/// The words of a command, as every user of the store may read them.
fn words(command: &[OsString]) -> Vec<String> {
    let mut left = COMMAND_BYTES;
    let mut words = Vec::with_capacity(command.len());
    for word in command {
        let word = without_passwords(&word.to_string_lossy());
        if word.len() > left {
            words.push(format!("{}…", &word[..word.floor_char_boundary(left)]));
            break;
        }
        left -= word.len();
        words.push(word);
    }
    words
}

/// A text from outside, cut and sanitised: the user has not written it and could not mend it.
fn shown(text: &str, bytes_max: usize) -> String {
    let text = one_line(&without_passwords(text));
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

/// The name of the job: the given one, or a hash of the user and the command. The hash is the same
/// on every machine and in every version.
pub(super) fn job(given: Option<String>, user: &str, command: &[OsString]) -> String {
    given.unwrap_or_else(|| {
        let words = command.iter().flat_map(|word| std::iter::once(&0).chain(word.as_bytes()));
        format!("{:016x}", fnv_1a(user.as_bytes().iter().chain(words)))
    })
}

/// The 64-bit FNV-1a hash.
fn fnv_1a<'b>(bytes: impl Iterator<Item = &'b u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_without_a_name_is_a_hash_of_user_and_words() {
        let job = |user, words: &[&str]| job(None, user, &words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(job("u", &["a", "b"]), "f99674fb996abe41");
        let others = [("v", vec!["a", "b"]), ("u", vec!["a b"]), ("u", vec!["ab"]), ("u", vec!["a", "b", ""])];
        assert!(others.iter().all(|(user, words)| job(user, words) != job("u", &["a", "b"])));
        assert_eq!(super::job(Some("j".to_owned()), "u", &[]), "j");
    }

    #[test]
    fn text_of_a_ci_is_cut_and_sanitised() {
        assert_eq!(shown("a\nb https://u:secret@h", 99), "a?b https://u:***@h");
        assert_eq!(shown("ééé", 5), "éé");
    }
}
