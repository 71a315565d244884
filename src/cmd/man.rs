//! `rlock man`: prints a man page, or writes them all below a directory.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::invocation::Man;
use crate::cli::{pages, stdout};

/// Prints or writes the requested pages and returns the exit code.
///
/// # Errors
/// Standard output, the directory or a file in it cannot be written.
pub(super) fn run(man: &Man) -> anyhow::Result<u8> {
    match man {
        Man::Print(page) => {
            stdout::print(&page.with_text().roff()).context("cannot write the page to standard output")?
        }
        Man::WriteAll(dir) => write_all(dir)?,
    }
    Ok(0)
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

    use super::run;
    use crate::cli::invocation::Man;
    use crate::cli::pages;

    #[test]
    fn every_page_is_written_and_directories_are_created() {
        let dir = tempfile::tempdir().unwrap();
        let man = dir.path().join("share/man");
        assert_eq!(run(&Man::WriteAll(man.clone())).unwrap(), 0);
        let count = |section| fs::read_dir(man.join(section)).unwrap().count();
        assert_eq!(count("man1") + count("man7") + count("man8"), pages::all().count());
        for (file, word) in
            [("man1/rlock-exec.1", "exec"), ("man7/rlock-redis.7", "redis"), ("man8/rlock-serve.8", "serve")]
        {
            assert_eq!(fs::read(man.join(file)).unwrap(), pages::Page::find(word).unwrap().roff());
        }
    }

    #[test]
    fn path_that_cannot_be_written_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = run(&Man::WriteAll(file.clone())).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot create '{}'", file.join("man1").display()));
    }
}
