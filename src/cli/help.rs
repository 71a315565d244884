//! The end of each help: notes and examples.

use clap::builder::{StyledStr, Styles};

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

    #[test]
    fn headings_of_exec_tell_its_options_apart() {
        let help = parsed("exec --help").unwrap_err().to_string();
        for heading in ["Claims", "Waiting", "When busy", "Lease", "Cron and CI"] {
            assert!(help.contains(&format!("\n\n{heading}:\n")), "{heading}: {help}");
        }
    }
}
