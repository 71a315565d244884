//! Tests the help of each subcommand.

use super::super::{Usage, parse, table};
use super::parsed;

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

/// "each at most 40 lines".
#[test]
fn each_topic_fits_on_a_screen() {
    for (name, _, text) in super::super::TOPICS {
        let said = super::super::parse(["rlock", "help", name].map(Into::into).into_iter());
        assert_eq!(said, Err(super::super::Usage::Information(text.into())));
        assert!(text.lines().count() <= 40 && text.lines().all(|line| line.chars().count() <= 80), "{name}");
    }
}
