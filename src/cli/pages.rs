//! The man pages: name, synopsis and options from the definitions that parse, the rest from the texts in pages/.
//!
//! A page is the same bytes wherever and whenever it is made: it has the version, and no date.

mod prose;

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::args;

/// One man page, of section 1.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Its name, such as `rlock-exec`.
    name: &'static str,
    /// The subcommand that it is about, or none for the page of rlock itself.
    subcommand: Option<&'static str>,
    /// Its text in the markup of [`prose`], to be read one after the other.
    texts: &'static [&'static str],
}

/// What the crate roff puts before whatever it writes, so that an apostrophe stays one.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Every page, the main one first.
pub static ALL: [Page; 11] = [
    Page { name: "rlock", subcommand: None, texts: &[include_str!("pages/rlock.txt")] },
    Page { name: "rlock-exec", subcommand: Some("exec"), texts: &[include_str!("pages/exec.txt")] },
    Page {
        name: "rlock-range-read",
        subcommand: Some("range-read"),
        texts: &[
            include_str!("pages/range-read.txt"),
            include_str!("pages/range.txt"),
            include_str!("pages/range-read-examples.txt"),
        ],
    },
    Page {
        name: "rlock-range-prewrite",
        subcommand: Some("range-prewrite"),
        texts: &[
            include_str!("pages/range-prewrite.txt"),
            include_str!("pages/range.txt"),
            include_str!("pages/range-prewrite-examples.txt"),
        ],
    },
    Page {
        name: "rlock-range-write",
        subcommand: Some("range-write"),
        texts: &[
            include_str!("pages/range-write.txt"),
            include_str!("pages/range.txt"),
            include_str!("pages/range-write-examples.txt"),
        ],
    },
    Page { name: "rlock-inspect", subcommand: Some("inspect"), texts: &[include_str!("pages/inspect.txt")] },
    Page { name: "rlock-cleanup", subcommand: Some("cleanup"), texts: &[include_str!("pages/cleanup.txt")] },
    Page { name: "rlock-shrink", subcommand: Some("shrink"), texts: &[include_str!("pages/shrink.txt")] },
    Page { name: "rlock-downgrade", subcommand: Some("downgrade"), texts: &[include_str!("pages/downgrade.txt")] },
    Page {
        name: "rlock-completions",
        subcommand: Some("completions"),
        texts: &[include_str!("pages/completions.txt")],
    },
    Page { name: "rlock-man", subcommand: Some("man"), texts: &[include_str!("pages/man.txt")] },
];

impl Page {
    /// The page of this name, such as `rlock-exec`, or of this subcommand, such as `exec`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|page| page.name == name || page.subcommand == Some(name))
    }

    /// The name of the file in which man(1) looks for the page.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}.1", self.name)
    }

    /// The page in the format that man(1) reads.
    #[must_use]
    pub fn roff(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out).expect("writing to memory does not fail");
        let page = String::from_utf8(out).expect("a page is text");
        // Each part that was written starts with it, and once is enough.
        [PREAMBLE, &page.replace(PREAMBLE, "")].concat().into_bytes()
    }

    fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let command = self.command();
        let has_subcommands = command.has_subcommands();
        let man = Man::new(command)
            .title(self.name.to_uppercase())
            // A date would change the page with no change in it, and an empty one would let the next field take its place.
            .date(" ")
            .source(concat!("rlock ", env!("CARGO_PKG_VERSION")))
            .manual("User Commands");
        let (description, rest) = self.sections();
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        prose::render(description).to_writer(out)?;
        if has_subcommands {
            man.render_subcommands_section(out)?;
        }
        man.render_options_section(out)?;
        prose::render(rest).to_writer(out)?;
        self.see_also().to_writer(out)
    }

    /// The definition that the page is about, with all that clap adds to it.
    fn command(&self) -> Command {
        // The subcommand `help` has no page, so it is not in the list of pages either.
        let mut root = args::command(None).disable_help_subcommand(true).subcommand_help_heading("SUBCOMMANDS");
        root.build();
        match self.subcommand {
            None => root,
            Some(name) => root.find_subcommand(name).expect("every page is about a subcommand that there is").clone(),
        }
    }

    /// The text of the DESCRIPTION, and that of the sections after it, between which the options stand.
    fn sections(&self) -> (String, String) {
        let mut description = self.texts.concat();
        let end = description.find("\n# ").map_or(description.len(), |newline| newline + 1);
        let rest = description.split_off(end);
        (description, rest)
    }

    /// The last section: all other pages on the main one, and the main one on the others.
    fn see_also(&self) -> Roff {
        let others: Vec<String> = match self.subcommand {
            None => ALL.iter().skip(1).map(|page| page.name).chain(["flock"]).map(reference).collect(),
            Some("exec") => ["rlock", "flock"].map(reference).into(),
            Some(_) => ["rlock", "rlock-exec", "flock"].map(reference).into(),
        };
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
        roff
    }
}

/// A page as others refer to it.
fn reference(name: &str) -> String {
    format!("{name}(1)")
}

#[cfg(test)]
mod tests {
    use super::super::args::SUBCOMMANDS;
    use super::{ALL, PREAMBLE, Page};

    fn text(page: &Page) -> String {
        String::from_utf8(page.roff()).unwrap()
    }

    #[test]
    fn every_subcommand_has_its_page_and_no_other_has_one() {
        let pages: Vec<_> = ALL.iter().filter_map(|page| page.subcommand.map(|name| (name, page.name))).collect();
        assert_eq!(pages, SUBCOMMANDS.map(|subcommand| (subcommand.name, subcommand.page)));
        for name in ["rlock", "rlock-exec", "exec"] {
            assert!(Page::find(name).is_some_and(|page| page.name.ends_with(name)), "{name}");
        }
        assert_eq!(Page::find("rlock-help"), None);
    }

    #[test]
    fn sections_come_in_the_order_that_readers_expect() {
        let page = text(&ALL[0]);
        let titles: Vec<_> =
            page.lines().filter_map(|line| line.strip_prefix(".SH ")).map(|title| title.trim_matches('"')).collect();
        let start = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "SUBCOMMANDS",
            "OPTIONS",
            "STORE OPTIONS",
            "LOCK MODEL",
            "NESTING",
            "STORES",
        ];
        let end = ["EXIT STATUS", "ENVIRONMENT", "SIGNALS", "EXAMPLES", "PROMISE AND LIMITS", "FILES", "SEE ALSO"];
        assert_eq!(titles, [&start[..], &end[..]].concat());
        assert!(!page.contains("help(1)"), "there is no page of help");
    }

    #[test]
    fn every_page_is_plain_ascii_with_its_own_name() {
        for page in &ALL {
            let text = text(page);
            assert!(text.is_ascii(), "{}", page.name);
            assert!(text.contains(&format!(".TH {} 1 \" \" \"rlock ", page.name.to_uppercase())), "{}", page.name);
            assert!(!text.contains('`'), "{}: a mark was left open", page.name);
            assert_eq!(text.matches(PREAMBLE).count(), 1, "{}", page.name);
        }
    }

    #[test]
    fn every_option_of_a_page_is_on_it() {
        for page in &ALL {
            let text = text(page);
            for option in page.command().get_arguments().filter_map(clap::Arg::get_long) {
                let option = format!("\\-\\-{}", option.replace('-', "\\-"));
                assert!(text.contains(&option), "{}: {option}", page.name);
            }
        }
    }
}
