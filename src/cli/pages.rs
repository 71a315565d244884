//! The man pages: those of subcommands have name, synopsis and options from the definitions that parse, the rest from the texts in
//! pages/; those of topics have all but the name from there.
//!
//! A page is the same bytes wherever and whenever it is made: it has the version, and no date.

mod prose;

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use self::Subject::{Program, Subcommand, Topic};
use super::args;

/// One man page.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Its name, such as `rlock-exec`.
    name: &'static str,
    /// What it is about.
    subject: Subject,
    /// Its text in the markup of [`prose`], to be read one after the other.
    texts: &'static [&'static str],
}

/// What a page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// rlock itself.
    Program,
    /// The subcommand of this name.
    Subcommand(&'static str),
    /// The topic of this name: nothing to run.
    Topic(&'static str),
}

/// What the crate roff puts before whatever it writes, so that an apostrophe stays one.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Every page, the main one first.
pub static ALL: [Page; 12] = [
    Page { name: "rlock", subject: Program, texts: &[include_str!("pages/rlock.txt")] },
    Page { name: "rlock-exec", subject: Subcommand("exec"), texts: &[include_str!("pages/exec.txt")] },
    Page {
        name: "rlock-range-read",
        subject: Subcommand("range-read"),
        texts: &[
            include_str!("pages/range-read.txt"),
            include_str!("pages/range.txt"),
            include_str!("pages/range-read-examples.txt"),
        ],
    },
    Page {
        name: "rlock-range-prewrite",
        subject: Subcommand("range-prewrite"),
        texts: &[
            include_str!("pages/range-prewrite.txt"),
            include_str!("pages/range.txt"),
            include_str!("pages/range-prewrite-examples.txt"),
        ],
    },
    Page {
        name: "rlock-range-write",
        subject: Subcommand("range-write"),
        texts: &[
            include_str!("pages/range-write.txt"),
            include_str!("pages/range.txt"),
            include_str!("pages/range-write-examples.txt"),
        ],
    },
    Page { name: "rlock-inspect", subject: Subcommand("inspect"), texts: &[include_str!("pages/inspect.txt")] },
    Page { name: "rlock-cleanup", subject: Subcommand("cleanup"), texts: &[include_str!("pages/cleanup.txt")] },
    Page { name: "rlock-shrink", subject: Subcommand("shrink"), texts: &[include_str!("pages/shrink.txt")] },
    Page { name: "rlock-downgrade", subject: Subcommand("downgrade"), texts: &[include_str!("pages/downgrade.txt")] },
    Page {
        name: "rlock-completions",
        subject: Subcommand("completions"),
        texts: &[include_str!("pages/completions.txt")],
    },
    Page { name: "rlock-man", subject: Subcommand("man"), texts: &[include_str!("pages/man.txt")] },
    Page { name: "rlock-redis", subject: Topic("redis"), texts: &[include_str!("pages/redis.txt")] },
];

impl Page {
    /// The page of this name, such as `rlock-exec`, or of the subcommand or topic of this name, such as `exec`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|page| page.name == name || page.subject.word() == Some(name))
    }

    /// The section of the manual that it belongs to.
    #[must_use]
    pub fn section(&self) -> u8 {
        match self.subject {
            Program | Subcommand(_) => 1,
            Topic(_) => 7,
        }
    }

    /// The name of the file in which man(1) looks for the page.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section())
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
        let (is_topic, manual) = match self.subject {
            Program | Subcommand(_) => (false, "User Commands"),
            Topic(_) => (true, "Miscellaneous Information"),
        };
        let man = Man::new(command)
            .title(self.name.to_uppercase())
            .section(self.section().to_string())
            // A date would change the page with no change in it, and an empty one would let the next field take its place.
            .date(" ")
            .source(concat!("rlock ", env!("CARGO_PKG_VERSION")))
            .manual(manual);
        let (description, rest) = self.sections();
        man.render_title(out)?;
        man.render_name_section(out)?;
        if !is_topic {
            man.render_synopsis_section(out)?;
        }
        prose::render(description).to_writer(out)?;
        if has_subcommands {
            man.render_subcommands_section(out)?;
        }
        if !is_topic {
            man.render_options_section(out)?;
        }
        prose::render(rest).to_writer(out)?;
        self.see_also().to_writer(out)
    }

    /// The definition that the page is about, with all that clap adds to it.
    fn command(&self) -> Command {
        // The subcommand `help` has no page, so it is not in the list of pages either.
        let mut root = args::command(None).disable_help_subcommand(true).subcommand_help_heading("SUBCOMMANDS");
        root.build();
        match self.subject {
            Program => root,
            Subcommand(name) => {
                root.find_subcommand(name).expect("every page is about a subcommand that there is").clone()
            }
            Topic(name) => {
                let topic = args::TOPICS.into_iter().find(|topic| topic.name == name);
                Command::new(self.name).about(topic.expect("every page is about a topic that there is").about)
            }
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
        let found = |words: &[&str]| words.iter().filter_map(|word| Self::find(word)).collect();
        let own: Vec<&Self> = match self.subject {
            Program => ALL.iter().skip(1).collect(),
            Subcommand("exec") => found(&["rlock", "redis"]),
            Subcommand(_) => found(&["rlock", "exec", "redis"]),
            Topic(_) => found(&["rlock", "exec", "inspect", "cleanup"]),
        };
        let peer = (self.section() == 1).then(|| "flock(1)".to_owned());
        let others: Vec<_> = own.into_iter().map(Self::reference).chain(peer).collect();
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
        roff
    }

    /// The page as others refer to it.
    fn reference(&self) -> String {
        format!("{}({})", self.name, self.section())
    }
}

impl Subject {
    /// The word for it on the command line.
    fn word(self) -> Option<&'static str> {
        match self {
            Program => None,
            Subcommand(word) | Topic(word) => Some(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::{SUBCOMMANDS, TOPICS};
    use super::{ALL, PREAMBLE, Page};

    fn text(page: &Page) -> String {
        String::from_utf8(page.roff()).unwrap()
    }

    #[test]
    fn every_subcommand_and_topic_has_its_page_and_no_other_has_one() {
        let pages: Vec<_> = ALL.iter().filter_map(|page| Some((page.subject.word()?, page.name))).collect();
        let subcommands = SUBCOMMANDS.iter().map(|subcommand| (subcommand.name, subcommand.page));
        let topics = TOPICS.iter().map(|topic| (topic.name, topic.page));
        assert_eq!(pages, subcommands.chain(topics).collect::<Vec<_>>());
        for (name, file) in
            [("rlock", "rlock.1"), ("rlock-exec", "rlock-exec.1"), ("exec", "rlock-exec.1"), ("redis", "rlock-redis.7")]
        {
            assert_eq!(Page::find(name).map(Page::file_name).as_deref(), Some(file));
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
            let title = format!(".TH {} {} \" \" \"rlock ", page.name.to_uppercase(), page.section());
            assert!(text.contains(&title), "{}", page.name);
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
