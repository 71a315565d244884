//! Describes who makes a request: the process, the owner and the reason for people, and the job for
//! the store.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::ci::{self, Run};
use super::{agent, names};
use rlock_arguments::request::Whose;
use rlock_model::request::Process;
use rlock_store::identity;
use rlock_words::{TITLE_BYTES, for_others, without_secrets};

/// Maximum number of bytes of the command that the store keeps, for other users to see.
const COMMAND_BYTES: usize = 2048;

/// Maximum length of the owner and of the reason, in bytes.
const OWNER_BYTES: usize = 128;
const REASON_BYTES: usize = 512;

/// The description of this process, which runs `command`. The owner and the reason come from the
/// options, else from the environment, else from the CI run, else from the agent.
pub(crate) fn process(whose: &Whose, run: Option<&Run>, agent: Option<&str>, command: &[OsString]) -> Process {
    let of_run = |text: fn(&Run) -> &Option<String>| run.and_then(|run| text(run).clone());
    let owner = of_run(|run| &run.person).or(agent.map(str::to_owned));
    let reason = of_run(|run| &run.url).or_else(|| agent.and_then(|_| place()));
    let title = whose.title.as_deref().map(|title| for_others(title, TITLE_BYTES)).filter(|title| !title.is_empty());
    Process {
        owner: text(&whose.owner, names::OWNER, owner, OWNER_BYTES),
        reason: text(&whose.reason, names::REASON, reason, REASON_BYTES),
        ..identity::process(
            rustix::process::geteuid().as_raw(),
            std::process::id(),
            title.map_or_else(|| words(command), |title| vec![title]),
        )
    }
}

/// The description of this process, which runs no command.
pub(crate) fn of_subcommand() -> Process {
    let words: Vec<_> = env::args_os().collect();
    process(&Whose::default(), ci::run().as_ref(), agent::caller().as_deref(), &words)
}

/// The working directory, which tells the agents apart that work for one person.
fn place() -> Option<String> {
    env::current_dir().ok().map(|folder| format!("in {}", folder.display()))
}

/// The text of an option, else of the variable that is its default, else `otherwise`. An empty
/// option stands for no text. A text for people must not stop a deploy, so it is cut and sanitised
/// instead of refused.
fn text(given: &Option<String>, name: &str, otherwise: Option<String>, bytes_max: usize) -> Option<String> {
    let variable = || env::var_os(name).filter(|text| !text.is_empty());
    let variable = || variable().map(|text| text.to_string_lossy().into_owned());
    let text = given.clone().or_else(variable).or(otherwise)?;
    Some(for_others(&text, bytes_max)).filter(|text| !text.is_empty())
}

/// The words of a command, as every user of the store may read them.
fn words(command: &[OsString]) -> Vec<String> {
    let mut left = COMMAND_BYTES;
    let mut words = Vec::with_capacity(command.len());
    for word in without_secrets(command.iter().map(|word| word.to_string_lossy())) {
        if word.len() > left {
            words.push(format!("{}…", &word[..word.floor_char_boundary(left)]));
            break;
        }
        left -= word.len();
        words.push(word);
    }
    words
}

/// The name of the job: the given one, or a hash of the user and the command. The hash is the same
/// on every machine and in every version.
pub(crate) fn job(given: Option<String>, user: &str, command: &[OsString]) -> String {
    given.unwrap_or_else(|| {
        let words = command.iter().flat_map(|word| std::iter::once(&0).chain(word.as_bytes()));
        format!("{:016x}", fnv_1a(user.as_bytes().iter().chain(words)))
    })
}

/// The 64-bit FNV-1a hash.
pub(crate) fn fnv_1a<'b>(bytes: impl Iterator<Item = &'b u8>) -> u64 {
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
    fn text_for_people_is_cut_and_sanitised() {
        assert_eq!(for_others(" a\n\tb https://u:secret@h\u{7}\u{202e}\n", 99), "a b https://u:***@h??");
        assert_eq!([for_others("ééé", 5), for_others("a b", 2), for_others("\n", 9)], ["éé", "a", ""]);
    }
}
