//! The two helps of a subcommand: `-h` shows what is needed every day and fits a terminal, `--help`
//! shows all. Both end with examples.
//!
//! clap's own long help puts each text on a line below its option, which takes twice the room. So
//! both are clap's short help, of definitions that differ in what is hidden.

use std::ffi::OsString;

use clap::builder::{StyledStr, Styles};
use clap::{Arg, Command};

/// The widest line of a help.
pub(super) const COLUMNS: usize = 80;

/// Marks an option that `-h` leaves out.
pub(super) fn advanced(option: Arg) -> Arg {
    option.hide_short_help(true)
}

/// Whether words that ask for help ask for the short one, by `-h`.
pub(super) fn is_short(words: &[OsString]) -> bool {
    let before = words.iter().take_while(|word| *word != "--").map(|word| word.as_encoded_bytes());
    let mut shorts = before.filter_map(|word| word.strip_prefix(b"-")).filter(|word| !word.starts_with(b"-"));
    shorts.any(|letters| letters.contains(&b'h'))
}

/// The help of a subcommand that [`Command::build`] has completed.
pub(super) fn of(command: &Command, is_short: bool) -> StyledStr {
    let has_two = command.get_arguments().any(Arg::is_hide_short_help_set);
    match has_two && is_short {
        true => short(command.clone()).render_help(),
        false => in_full(command).render_help(),
    }
}

/// A completed definition without the marks of the short help, from which clap would conclude that
/// the marked options have no text.
pub(super) fn in_full(command: &Command) -> Command {
    let unmarked = |arg: Arg| arg.hide_short_help(false);
    command.clone().mut_args(|arg| if arg.get_id() == "help" { arg.help("Print help") } else { unmarked(arg) })
}

fn short(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let claim = "CLAIM: KEY, to write alone | --read KEY | --slot KEY=N | ...";
    let usage = match name.as_str() {
        "exec" => Some(format!("rlock exec CLAIM... [OPTIONS] -- COMMAND [ARG]...\n       {claim}")),
        "acquire" => Some(format!("rlock acquire CLAIM... --for DUR | --pid PID [OPTIONS]\n       {claim}")),
        _ => None,
    };
    let notes = command.get_after_help().map(|notes| notes.ansi().to_string()).unwrap_or_default();
    let examples = notes.rsplit("\n\n").next().unwrap_or_default();
    let end = format!("{examples}\n\nMore: rlock {name} --help");
    let command = command.mut_args(|arg| {
        let is_left_out = arg.is_hide_short_help_set() || arg.is_global_set();
        arg.hide(is_left_out).help_heading(None::<&str>)
    });
    // The usage explains the words without dashes.
    let command = usage.into_iter().fold(command, Command::override_usage);
    command.after_help(end).help_template("{about}\n\n{usage-heading} {usage}\n\nOptions:\n{options}{after-help}")
}

/// Notes, then examples under a heading in clap's style. clap wraps both.
pub(super) fn notes(text: &str, examples: &[&str]) -> StyledStr {
    let styles = Styles::styled();
    let header = styles.get_header();
    let space = if text.is_empty() { "" } else { "\n\n" };
    format!("{text}{space}{header}Examples:{header:#}\n  {}", examples.join("\n  ")).into()
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use super::super::{Usage, parse, table};

    #[test]
    fn help_of_each_subcommand_ends_with_examples_that_parse() {
        for name in table::SUBCOMMANDS.iter().map(|subcommand| subcommand.name) {
            let help = parsed(&format!("{name} --help")).unwrap_err().to_string();
            let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{name} has no examples"));
            assert!((1..=2).contains(&examples.lines().count()), "{name}: {examples}");
            for example in examples.lines() {
                let line = &example[example.find("rlock").expect("an example calls rlock")..];
                let line = line.split([')', '|', '>']).next().expect("a first part").trim_end_matches('"');
                // An interval ends in a parenthesis. A shell puts its process id in the place of $$.
                let line = &line.replace("$$", "1");
                let line = if example.contains("'[") { example.trim() } else { line };
                let words = shlex::split(line).unwrap_or_else(|| panic!("{line} has an open quote"));
                assert!(words.contains(&name.to_owned()), "{example}");
                assert!(!matches!(parse(words.into_iter().map(Into::into)), Err(Usage::Mistake(_))), "{example}");
            }
        }
    }

    /// "`-h` of exec, acquire and range-*: at most 24 lines of 80 columns".
    #[test]
    fn short_help_fits_a_terminal_and_shows_the_options_of_every_day() {
        let daily = [
            ("exec", "-n -w -E -q -v -c --read --slot --skip-ok --once-per"),
            ("acquire", "--for --pid --export -n -w -E -q -v --read --slot"),
            ("range-read", "-n -w -E -q -v -c --skip-ok"),
            ("range-prewrite", "-n -w -E -q -v -c --skip-ok"),
            ("range-write", "-n -w -E -q -v -c --skip-ok"),
        ];
        for (name, options) in daily {
            let help = parsed(&format!("{name} -h")).unwrap_err().to_string();
            assert!(help.lines().count() <= 24, "{name}: {} lines\n{help}", help.lines().count());
            assert_eq!(help.lines().find(|line| line.chars().count() > 80), None, "{name}");
            let shown = help.lines().filter(|line| line.trim_start().starts_with('-')).count();
            assert_eq!(shown, options.split(' ').count() + 1, "these and -h: {help}");
            for option in options.split(' ') {
                assert!(help.contains(&format!(" {option}")), "{name} lacks {option}: {help}");
            }
            let (_, examples) = help.split_once("\nExamples:\n").expect("examples");
            let more = format!("\n\nMore: rlock {name} --help\n");
            assert!(examples.ends_with(&more) && examples.lines().count() == 4, "{name}: {examples}");
        }
    }

    #[test]
    fn long_help_shows_every_option_once() {
        for name in ["exec", "acquire", "range-write"] {
            let [short, long] = ["-h", "--help"].map(|word| parsed(&format!("{name} {word}")).unwrap_err().to_string());
            assert!(long.contains("--deadlock-timeout <DUR>") && !short.contains("--deadlock-timeout"), "{name}");
            assert_eq!(long.matches("--deadlock-timeout <DUR>").count(), 1, "{name}");
            assert_eq!(parsed(&format!("{name} -nh")).unwrap_err().to_string(), short);
        }
        assert!(parsed("exec k -- ls -h").is_ok(), "an option of the command");
        assert_eq!(parsed("held -h").unwrap_err().to_string(), parsed("held --help").unwrap_err().to_string());
    }

    #[test]
    fn headings_of_exec_tell_its_options_apart() {
        let help = parsed("exec --help").unwrap_err().to_string();
        for heading in ["Claims", "Waiting", "When busy", "Lease", "Cron and CI"] {
            assert!(help.contains(&format!("\n\n{heading}:\n")), "{heading}: {help}");
        }
    }
}
