//! `rlock man`: prints a man page, or writes them all below a directory.

use std::fs;
use std::io::{IsTerminal as _, Write as _, stdout as terminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};

use super::pages::{self, Page};
use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use rlock_arguments::help::notes;
use rlock_arguments::options;

pub(super) const MAN: Subcommand = Subcommand {
    name: "man",
    page: "rlock-man",
    section: 1,
    about: "Show a man page, or write them all",
    texts: &[include_str!("pages/man.txt")],
    define: Man::augment_args,
    read: |mut matches| Ok(Invocation::Man(options::read(&mut matches))),
    has_numbers: false,
};

/// `rlock man`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock man [PAGE]\n       rlock man --dir DIR",
    after_help = notes("", &["rlock man exec", "rlock man --dir /usr/local/share/man"])
)]
#[group(skip)]
pub(crate) struct Man {
    /// The page: rlock, exec, rlock.conf, redis, recipes and so on.
    #[arg(id = "PAGE", value_parser = pages(), conflicts_with = "dir", hide_possible_values = true)]
    pub(super) page: Option<Page>,
    /// Write all pages below DIR, in man1, man5, man7 and man8.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) dir: Option<PathBuf>,
}

fn pages() -> impl TypedValueParser<Value = Page> {
    let names = PossibleValuesParser::new(pages::all().map(|page| PossibleValue::new(page.name).alias(page.word)));
    names.map(|name| Page::find(&name).expect("clap takes only the pages of the table"))
}

/// Prints or writes the requested pages and returns the exit code.
///
/// # Errors
/// Standard output, the directory or a file in it cannot be written.
pub(super) fn run(man: &Man) -> anyhow::Result<u8> {
    match &man.dir {
        Some(dir) => write_all(dir)?,
        None => {
            let page = man.page.unwrap_or(pages::PROGRAM);
            let roff = page.with_text().roff();
            if !terminal().is_terminal() {
                stdout::print(&roff).context("cannot write the page to standard output")?;
            } else if !is_shown_by("man -l -", &roff) {
                let text = page.with_text().text();
                if !is_shown_by("${PAGER:-less}", text.as_bytes()) {
                    stdout::print(text.as_bytes()).context("cannot write the page to standard output")?;
                }
            }
        }
    }
    Ok(0)
}

/// Has a command line of a shell show the page on the terminal, and returns whether it could. Its
/// reasons do not matter, because something else shows the page then.
fn is_shown_by(line: &str, page: &[u8]) -> bool {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", line]).stdin(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = shell.spawn() else { return false };
    // A pager that is left early reads no further.
    let _ = child.stdin.take().expect("it was asked for").write_all(page);
    child.wait().is_ok_and(|status| status.success())
}

/// Writes every page to the file where man(1) looks for the page, below a directory such as
/// /usr/share/man.
fn write_all(dir: &Path) -> anyhow::Result<()> {
    for page in pages::all() {
        let section = dir.join(format!("man{}", page.section));
        fs::create_dir_all(&section).with_context(|| format!("cannot create '{}'", section.display()))?;
        let path = section.join(page.file_name());
        fs::write(&path, page.roff()).with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Man, run};
    use crate::cli::pages;

    #[test]
    fn every_page_is_written_and_directories_are_created() {
        let dir = tempfile::tempdir().unwrap();
        let man = dir.path().join("share/man");
        assert_eq!(run(&Man { page: None, dir: Some(man.clone()) }).unwrap(), 0);
        let count = |section| fs::read_dir(man.join(section)).unwrap().count();
        assert_eq!(count("man1") + count("man5") + count("man7") + count("man8"), pages::all().count());
        for (file, word) in [
            ("man1/rlock-exec.1", "exec"),
            ("man5/rlock.conf.5", "rlock.conf"),
            ("man7/rlock-redis.7", "redis"),
            ("man8/rlock-serve.8", "serve"),
        ] {
            assert_eq!(fs::read(man.join(file)).unwrap(), pages::Page::find(word).unwrap().roff());
        }
    }

    #[test]
    fn path_that_cannot_be_written_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = run(&Man { page: None, dir: Some(file.clone()) }).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot create '{}'", file.join("man1").display()));
    }
}
