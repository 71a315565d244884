//! What the command line asks for.

use std::path::{Path, PathBuf};

/// How long the measuring may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Less than three minutes.
    Quick,
    /// As long as narrow spreads take.
    Full,
}

impl Effort {
    /// One of two numbers.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// The command line, read.
pub(crate) struct Options {
    /// How long it may take.
    pub(crate) effort: Effort,
    sections: Vec<String>,
    folder: Option<PathBuf>,
}

impl Options {
    /// Reads the words after the program's name.
    pub(crate) fn read(words: impl Iterator<Item = String>, sections: &[&str]) -> Result<Self, String> {
        let mut options = Self { effort: Effort::Quick, sections: Vec::new(), folder: None };
        let mut words = words;
        while let Some(word) = words.next() {
            match word.as_str() {
                // `cargo bench` says so to every bench.
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

    /// Where the results are written: where the command line says; else, if all was measured, where the project keeps them.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results");
        self.folder.clone().or_else(|| self.sections.is_empty().then(own))
    }
}
