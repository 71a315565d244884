//! The two helps of a subcommand: `-h` shows what is needed every day and fits a terminal, `--help`
//! shows all. Both end with examples.
//!
//! clap's own long help puts each text on a line below its option, which takes twice the room. So
//! both are clap's short help, of definitions that differ in what is hidden.

use std::ffi::OsString;

use clap::builder::{StyledStr, Styles};
use clap::{Arg, Command};

/// The widest line of a help.
pub const COLUMNS: usize = 80;

/// Marks an option that `-h` leaves out.
pub fn advanced(option: Arg) -> Arg {
    option.hide_short_help(true)
}

/// Whether words that ask for help ask for the short one, by `-h`.
pub fn is_short(words: &[OsString]) -> bool {
    let before = words.iter().take_while(|word| *word != "--").map(|word| word.as_encoded_bytes());
    let mut shorts = before.filter_map(|word| word.strip_prefix(b"-")).filter(|word| !word.starts_with(b"-"));
    shorts.any(|letters| letters.contains(&b'h'))
}

/// The help of a subcommand that [`Command::build`] has completed.
pub fn of(command: &Command, is_short: bool) -> StyledStr {
    let has_two = command.get_arguments().any(Arg::is_hide_short_help_set);
    match has_two && is_short {
        true => short(command.clone()).render_help(),
        false => in_full(command).render_help(),
    }
}

/// A completed definition without the marks of the short help, from which clap would conclude that
/// the marked options have no text.
pub fn in_full(command: &Command) -> Command {
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
pub fn notes(text: &str, examples: &[&str]) -> StyledStr {
    let styles = Styles::styled();
    let header = styles.get_header();
    let space = if text.is_empty() { "" } else { "\n\n" };
    format!("{text}{space}{header}Examples:{header:#}\n  {}", examples.join("\n  ")).into()
}
