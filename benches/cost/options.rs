//! The options on the command line.

use std::path::{Path, PathBuf};

/// The time that the measurements may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Less than three minutes.
    Quick,
    /// As long as narrow spreads need.
    Full,
}

impl Effort {
    /// Returns one of two values.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

pub(crate) struct Options {
    pub(crate) effort: Effort,
    sections: Vec<String>,
    folder: Option<PathBuf>,
}

impl Options {
    /// Parses the words after the program's name.
    pub(crate) fn read(words: impl Iterator<Item = String>, sections: &[&str]) -> Result<Self, String> {
        let mut options = Self { effort: Effort::Quick, sections: Vec::new(), folder: None };
        let mut words = words;
        while let Some(word) = words.next() {
            match word.as_str() {
                // `cargo bench` passes this word to every bench.
                "--bench" => {}
                "--full" => options.effort = Effort::Full,
                "--out" => options.folder = Some(words.next().ok_or("--out needs a folder")?.into()),
                section if sections.contains(&section) => options.sections.push(word),
                _ => return Err(format!("usage: [--full] [--out DIR] [{}]…", sections.join("|"))),
            }
        }
        Ok(options)
    }

    /// Whether this section is to be measured.
    pub(crate) fn wants(&self, section: &str) -> bool {
        self.sections.is_empty() || self.sections.iter().any(|wanted| wanted == section)
    }

    /// Returns the folder for the results: the one on the command line, else the project's own
    /// folder if all sections were measured.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results");
        self.folder.clone().or_else(|| self.sections.is_empty().then(own))
    }
}
