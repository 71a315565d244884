//! Generates the manual pages.
//!
//! The page of a subcommand takes its name, synopsis and options from the clap definitions, and the
//! rest from the texts in pages/. The page of a topic takes everything except its name from pages/.
//! A page holds the version and no date, so every build produces the same bytes.

mod prose;

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::subcommand::Subcommand;
use super::table;
use rlock_arguments::help::in_full;

/// One man page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The page's name, such as `rlock-exec`.
    pub name: &'static str,
    /// The word that selects the page on the command line: the name of the subcommand or topic.
    pub(super) word: &'static str,
    /// The section of the manual that the page belongs to: 1 for programs, 5 for files, 7 for
    /// topics, 8 for daemons.
    pub section: u8,
    /// A summary in one line.
    about: &'static str,
    /// The texts of the page in the markup of [`prose`].
    texts: &'static [&'static str],
}

/// The main page.
pub(super) const PROGRAM: Page =
    Page { name: "rlock", word: "rlock", section: 1, about: table::ABOUT, texts: &[include_str!("pages/rlock.txt")] };

/// The page about the three subcommands `range-*`, whose own pages lead to this one.
const RANGE: Page = Page {
    name: "rlock-range",
    word: "range",
    section: 1,
    about: "Run a command while holding a lock on an interval",
    texts: &[include_str!("pages/range.txt")],
};

/// The page about the configuration file.
const CONF: Page = Page {
    name: "rlock.conf",
    word: "config",
    section: 5,
    about: "The store and the defaults of a host",
    texts: &[include_str!("pages/conf.txt")],
};

/// The page about the stores on servers.
const REDIS: Page = Page {
    name: "rlock-redis",
    word: "redis",
    section: 7,
    about: "Locks across machines, on Redis and Valkey servers",
    texts: &[include_str!("pages/redis.txt")],
};

/// The page about the stores in PostgreSQL.
const POSTGRES: Page = Page {
    name: "rlock-postgres",
    word: "postgres",
    section: 7,
    about: "Locks across machines, in PostgreSQL",
    texts: &[include_str!("pages/postgres.txt")],
};

/// The page about idioms, and about other lock programs.
const RECIPES: Page = Page {
    name: "rlock-recipes",
    word: "recipes",
    section: 7,
    about: "Locks for cron, CI and scripts, and for users of other lock programs",
    texts: &[include_str!("pages/recipes.txt")],
};

/// The crate roff puts this preamble before all its output, so that an apostrophe stays an
/// apostrophe.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Every page, the main one first.
pub fn all() -> impl Iterator<Item = Page> {
    std::iter::once(PROGRAM).chain(subcommands()).chain([RANGE, CONF, REDIS, POSTGRES, RECIPES])
}

fn subcommands() -> impl Iterator<Item = Page> {
    table::SUBCOMMANDS.iter().map(|subcommand| {
        let Subcommand { name, page, section, about, texts, .. } = *subcommand;
        Page { name: page, word: name, section, about, texts }
    })
}

/// The list of the subcommands. clap would put all of them into the section of the main page.
fn subcommand_list() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SUBCOMMANDS"]);
    for page in subcommands() {
        roff.control("TP", []).text([roman(page.reference())]).text([roman(page.about)]);
    }
    roff
}

impl Page {
    /// The page of this name, such as `rlock-exec`, or the page of this subcommand or topic, such
    /// as `exec`.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        all().find(|page| page.name == name || page.word == name)
    }

    /// The name of the file in which man(1) looks for the page.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// Whether the page only leads to that of `range-*`.
    fn is_link(self) -> bool {
        self.texts.is_empty()
    }

    /// The page with the text: this one, or the one that it leads to.
    #[must_use]
    pub fn with_text(self) -> Self {
        if self.is_link() { RANGE } else { self }
    }

    /// The page in the format that man(1) reads.
    #[must_use]
    pub fn roff(self) -> Vec<u8> {
        if self.is_link() {
            return format!(".so man{}/{}\n", RANGE.section, RANGE.file_name()).into_bytes();
        }
        let mut out = Vec::new();
        self.write(&mut out).expect("writing to memory does not fail");
        let page = String::from_utf8(out).expect("a page is text");
        // Each rendered part starts with the preamble; the page needs it once.
        [PREAMBLE, &page.replace(PREAMBLE, "")].concat().into_bytes()
    }

    /// The page as plain text, with lines of at most 80 columns.
    pub(super) fn text(self) -> String {
        let title = format!("NAME\n       {} - {}\n", self.name, self.about);
        title + &prose::plain(&self.texts.concat())
    }

    fn write(self, out: &mut Vec<u8>) -> io::Result<()> {
        let command = self.command();
        let is_topic = [CONF.section, REDIS.section].contains(&self.section);
        let manual = match self.section {
            5 => "File Formats",
            7 => "Miscellaneous Information",
            8 => "System Administration Commands",
            _ => "User Commands",
        };
        let man = Man::new(command)
            .title(self.name.to_uppercase())
            .section(self.section.to_string())
            // A date would change the page without a change in its text. An empty date would let
            // the next field take its place.
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
        if self == PROGRAM {
            subcommand_list().to_writer(out)?;
        }
        if !is_topic {
            man.render_options_section(out)?;
        }
        prose::render(rest).to_writer(out)?;
        self.see_also().to_writer(out)
    }

    /// The clap definition of the subcommand, with everything that clap adds.
    fn command(self) -> Command {
        // The subcommand `help` has no page, so the list of pages must not contain it.
        let mut root = table::command(None).disable_help_subcommand(true);
        root.build();
        if self == RANGE {
            let names = ["range-read", "range-prewrite", "range-write"];
            let ranges = subcommands().filter(|page| names.contains(&page.word));
            let (pages, synopses): (Vec<_>, Vec<_>) = ranges
                .map(|page| (page.name, format!("rlock {} KEY LO HI [OPTIONS] -- COMMAND [ARG]...", page.word)))
                .unzip();
            let one = root.find_subcommand(names[0]).expect("the table has it");
            return in_full(one)
                .display_name(pages.join(", "))
                .about(self.about)
                .override_usage(synopses.join("\n       "));
        }
        match root.find_subcommand(self.word) {
            Some(subcommand) => in_full(subcommand),
            None if self == PROGRAM => root,
            None => Command::new(self.name).about(self.about),
        }
    }

    /// The text of the DESCRIPTION, and the text of the later sections. The options stand between
    /// the two.
    fn sections(self) -> (String, String) {
        let mut description = self.texts.concat();
        let end = description.find("\n# ").map_or(description.len(), |newline| newline + 1);
        let rest = description.split_off(end);
        (description, rest)
    }

    /// The last section: the main page lists all other pages, and each other page names the main
    /// page.
    fn see_also(self) -> Roff {
        let found = |words: &[&str]| words.iter().filter_map(|word| Self::find(word)).collect();
        let own: Vec<Self> = match self.word {
            "rlock" => all().skip(1).filter(|page| !page.is_link()).collect(),
            "config" => found(&["rlock", "redis", "postgres", "doctor"]),
            "redis" => found(&["rlock", "exec", "inspect", "cleanup"]),
            "postgres" => found(&["rlock", "exec", "redis", "doctor"]),
            "recipes" => found(&["rlock", "exec", "acquire", "redis", "serve"]),
            "exec" => found(&["rlock", "redis"]),
            "serve" => found(&["rlock", "exec", "inspect", "redis"]),
            _ => found(&["rlock", "exec", "redis"]),
        };
        let peer = match self.section {
            1 => Some("flock(1)".to_owned()),
            7 if self == RECIPES => Some("flock(1)".to_owned()),
            7 if self == POSTGRES => Some("psql(1)".to_owned()),
            8 => Some("systemd.socket(5)".to_owned()),
            _ => None,
        };
        let others: Vec<_> = own.into_iter().map(Self::reference).chain(peer).collect();
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
        roff
    }

    /// A reference to the page, as other pages print it.
    fn reference(self) -> String {
        format!("{}({})", self.name, self.section)
    }
}

#[cfg(test)]
mod tests {
    use super::{PREAMBLE, Page, all};

    fn text(page: Page) -> String {
        String::from_utf8(page.roff()).unwrap()
    }

    #[test]
    fn page_is_found_by_its_name_and_by_its_subcommand() {
        for (name, file) in [
            ("rlock", "rlock.1"),
            ("rlock-exec", "rlock-exec.1"),
            ("exec", "rlock-exec.1"),
            ("rlock.conf", "rlock.conf.5"),
            ("redis", "rlock-redis.7"),
            ("postgres", "rlock-postgres.7"),
            ("recipes", "rlock-recipes.7"),
            ("serve", "rlock-serve.8"),
        ] {
            assert_eq!(Page::find(name).map(Page::file_name).as_deref(), Some(file));
        }
        assert_eq!(Page::find("rlock-help"), None);
    }

    #[test]
    fn sections_come_in_the_usual_order_of_man_pages() {
        let page = text(Page::find("rlock").unwrap());
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
        let end = [
            "EXIT STATUS",
            "ENVIRONMENT",
            "AGENTS",
            "SIGNALS",
            "EXAMPLES",
            "PROMISE",
            "CONTAINERS AND OLD KERNELS",
            "LIMITS",
            "FILES",
            "SEE ALSO",
        ];
        assert_eq!(titles, [&start[..], &end[..]].concat());
        assert!(!page.contains("help(1)"), "there is no page of help");
    }

    #[test]
    fn main_page_lists_each_subcommand_with_its_section() {
        let page = text(Page::find("rlock").unwrap());
        for reference in ["rlock\\-exec(1)", "rlock\\-serve(8)"] {
            assert_eq!(page.matches(&format!(".TP\n{reference}\n")).count(), 1, "{reference}");
        }
    }

    #[test]
    fn every_page_is_plain_ascii_with_its_own_name() {
        for page in all().filter(|page| !page.is_link()) {
            let text = text(page);
            assert!(text.is_ascii(), "{page:?}");
            let title = format!(".TH {} {} \" \" \"rlock ", page.name.to_uppercase(), page.section);
            assert!(text.contains(&title), "{page:?}");
            assert!(!text.contains('`'), "{page:?}: a backtick has no partner");
            assert_eq!(text.matches(PREAMBLE).count(), 1, "{page:?}");
        }
    }

    #[test]
    fn range_subcommands_share_a_page() {
        let shared = text(Page::find("range").unwrap());
        assert!(
            shared.contains("rlock\\-range\\-read, rlock\\-range\\-prewrite, rlock\\-range\\-write \\- "),
            "{shared}"
        );
        for name in ["range-read", "range-prewrite", "range-write"] {
            let page = Page::find(name).unwrap();
            assert_eq!(text(page), ".so man1/rlock-range.1\n");
            assert_eq!(text(page.with_text()), shared);
            assert!(shared.contains(&format!("rlock {}", name.replace('-', "\\-"))), "{shared}");
        }
    }

    #[test]
    fn every_page_lists_all_options_of_its_subcommand() {
        for page in all() {
            let text = text(page.with_text());
            for option in page.command().get_arguments().filter_map(clap::Arg::get_long) {
                let option = format!("\\-\\-{}", option.replace('-', "\\-"));
                assert!(text.contains(&option), "{page:?}: {option}");
            }
        }
    }
}
