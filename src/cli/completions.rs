//! `rlock completions`: generates a completion script from the definitions that clap parses by, and
//! prints it.
//!
//! clap_complete knows options and their fixed values. The files in completions/ beside this one
//! add what a shell finds out only while it completes: live names, and commands after `--`.

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command, ValueHint};
use clap_complete::Shell;

use super::subcommand::Subcommand;
use super::{Invocation, stdout, table};
use rlock_arguments::claims::STRAY;
use rlock_arguments::help::notes;
use rlock_arguments::options::{self, KEY};

pub(super) const COMPLETIONS: Subcommand = Subcommand {
    name: "completions",
    page: "rlock-completions",
    section: 1,
    about: "Print a completion script for a shell",
    texts: &[include_str!("pages/completions.txt")],
    define: Completions::augment_args,
    read: |mut matches| Ok(Invocation::Completions(options::read(&mut matches))),
    has_numbers: false,
};

/// `rlock completions`.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock completions SHELL",
    after_help = notes("", &["rlock completions bash > /etc/bash_completion.d/rlock"])
)]
#[group(skip)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(id = "SHELL", value_parser = shells())]
    pub(super) shell: Shell,
}

fn shells() -> impl TypedValueParser<Value = Shell> {
    let shells = PossibleValuesParser::new(["bash", "zsh", "fish"]);
    shells.map(|name| name.parse().expect("clap takes only the shells of the list"))
}

/// Prints the script for `shell` and returns the exit code.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn run(Completions { shell }: Completions) -> anyhow::Result<u8> {
    stdout::print(&script(shell)).context("cannot write the completions to standard output")?;
    Ok(0)
}

/// The script for one shell.
#[must_use]
pub fn script(shell: Shell) -> Vec<u8> {
    let mut command = table::command(None);
    command.build();
    let topic = |(name, about, _)| Command::new(name).bin_name(format!("rlock help {name}")).about(about);
    let topics = super::TOPICS.map(topic);
    let command = command.mut_subcommand("help", |help| help.subcommands(topics));
    let mut command = command.mut_args(without_files).mut_subcommands(|one| one.mut_args(without_files));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "rlock", &mut script);
    let script = String::from_utf8(script).expect("the definitions are text");
    match shell {
        Shell::Bash => bash(&script, &command),
        Shell::Zsh => zsh(&script, &command),
        _ => fish(&script, &command),
    }
    .into_bytes()
}

/// A shell completes a value by files only where the definition says so.
fn without_files(arg: Arg) -> Arg {
    if arg.get_id() == "once_per" {
        // A length of time is a value, too.
        return arg.value_parser(["hour", "day", "week", "month", "year", "ever"]);
    }
    let is_plain = arg.get_action().takes_values() && arg.get_value_hint() == ValueHint::Unknown;
    if is_plain { arg.value_hint(ValueHint::Other) } else { arg }
}

fn bash(script: &str, command: &Command) -> String {
    let grammar = each_subcommand(command, |name, grammar| format!("        {name}) echo {grammar} ;;"));
    let options: Vec<_> = key_options(command).into_iter().map(|option| format!("--{option}")).collect();
    let ours = include_str!("completions/rlock.bash")
        .replace("@GRAMMAR@", &grammar)
        .replace("@KEY_OPTIONS@", &options.join(" | "));
    with_ours(script, &ours)
}

fn zsh(script: &str, command: &Command) -> String {
    let commands: Vec<_> = command.get_subcommands().filter(|one| runs_command(one)).map(Command::get_name).collect();
    let ours = include_str!("completions/rlock.zsh").replace("@COMMANDS@", &commands.join("|"));
    // The words of a command follow `--`, which `ours` handles.
    let is_word = |line: &&str| [STRAY, "COMMAND"].iter().any(|id| line.starts_with(&format!("'*::{id} -- ")));
    let lines = script.lines().filter(|line| !is_word(line)).map(|line| {
        // zsh would offer what follows an optional word, too.
        let line = line.replace("'::KEY -- ", "':KEY -- ").replace(":KEY::KEY:'", ":KEY:_rlock_names:INTERVAL:'");
        let line = line.replace(":KEY:'", ":KEY:_rlock_names'").replace(":KEY=N:'", ":KEY=N:_rlock_names -S='");
        let line = if line.contains("'--job=[") { line.replace(":NAME:'", ":NAME:_rlock_jobs'") } else { line };
        match line.strip_suffix(":' \\") {
            Some(start) if start.contains(":KEY -- ") => format!("{start}:_rlock_names' \\\n"),
            _ => line + "\n",
        }
    });
    with_ours(&lines.collect::<String>(), &ours)
}

fn fish(script: &str, command: &Command) -> String {
    let options = key_options(command);
    // `help` has been seen where its words begin.
    let script = script.replace(" completions man help ", " completions man ");
    let lines = script.lines().map(|line| {
        let of = |option: &&String| line.contains(&format!(" -l {option} ")) && line.ends_with(" -r -f");
        match options.iter().find(of).map(String::as_str) {
            _ if line.contains(" -l job ") => format!("{line} -a \"(__fish_rlock_names \'\' --names=jobs)\"\n"),
            Some("slot") => format!("{line} -a \"(__fish_rlock_names =)\"\n"),
            Some(_) => format!("{line} -a \"(__fish_rlock_names)\"\n"),
            None => format!("{line}\n"),
        }
    });
    let grammar = each_subcommand(command, |name, grammar| format!("        case {name}\n            echo {grammar}"));
    let ours = include_str!("completions/rlock.fish").replace("@GRAMMAR@", &grammar);
    lines.collect::<String>() + &ours + &fish_words(command)
}

/// Completes the fixed values of words, which clap_complete leaves out for fish.
fn fish_words(command: &Command) -> String {
    let words = command.get_subcommands().filter_map(|one| {
        let values: Vec<_> = one.get_positionals().flat_map(Arg::get_possible_values).collect();
        let values: Vec<_> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        let condition = format!("__fish_rlock_using_subcommand {}", one.get_name());
        (!values.is_empty()).then(|| format!("complete -c rlock -n \"{condition}\" -f -a \"{}\"\n", values.join(" ")))
    });
    words.collect()
}

/// Puts `ours` before the function of the script, which gets another name.
fn with_ours(script: &str, ours: &str) -> String {
    script.replacen("_rlock() {", &format!("{ours}_rlock_static() {{"), 1)
}

/// One line for each subcommand, made of its name and its grammar.
fn each_subcommand(command: &Command, line: impl Fn(&str, String) -> String) -> String {
    let lines: Vec<_> = command.get_subcommands().map(|one| line(one.get_name(), grammar(one))).collect();
    lines.join("\n")
}

/// How many KEYs the subcommand takes, then its options that take a value, each as often as it
/// takes one. `--` stands for the command.
fn grammar(subcommand: &Command) -> String {
    let keys = subcommand.get_positionals().find(|arg| arg.get_id() == KEY);
    let mut grammar = keys.map_or(0, |arg| values(arg).min(999)).to_string();
    for option in subcommand.get_opts().filter(|option| !option.is_require_equals_set()) {
        let names = option.get_long().map(|long| format!(" --{long}")).into_iter();
        for name in names.chain(option.get_short().map(|short| format!(" -{short}"))) {
            grammar += &name.repeat(values(option));
        }
    }
    if runs_command(subcommand) {
        grammar += " --";
    }
    grammar
}

/// How many values the argument takes at most.
fn values(arg: &Arg) -> usize {
    arg.get_num_args().map_or(1, |range| range.max_values())
}

fn runs_command(subcommand: &Command) -> bool {
    subcommand.get_positionals().any(Arg::is_last_set)
}

/// The options whose value is a KEY, without dashes and each once.
fn key_options(command: &Command) -> Vec<String> {
    let mut names = Vec::new();
    for option in command.get_subcommands().flat_map(Command::get_opts) {
        let takes_key = option.get_value_names().is_some_and(|names| names[0].starts_with("KEY"));
        if let Some(name) = option.get_long().filter(|name| takes_key && !names.iter().any(|known| known == name)) {
            names.push(name.to_owned());
        }
    }
    names
}
