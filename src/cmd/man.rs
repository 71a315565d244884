//! `rlock man`: prints a man page, or writes them all into a directory.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::invocation::Man;
use crate::cli::{pages, stdout};

/// Prints or writes what was asked for and gives the exit code.
///
/// # Errors
/// Standard output, the directory or a file in it can't be written.
pub(super) fn run(man: &Man) -> anyhow::Result<u8> {
    match man {
        Man::Print(page) => stdout::print(&page.roff()).context("cannot write the page to standard output")?,
        Man::WriteAll(dir) => write_all(dir)?,
    }
    Ok(0)
}

/// Writes every page to a file named as man(1) looks for it.
fn write_all(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create '{}'", dir.display()))?;
    for page in &pages::ALL {
        let path = dir.join(page.file_name());
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
    fn writes_every_page_and_makes_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let man1 = dir.path().join("share/man1");
        assert_eq!(run(&Man::WriteAll(man1.clone())).unwrap(), 0);
        assert_eq!(fs::read_dir(&man1).unwrap().count(), pages::ALL.len());
        assert_eq!(fs::read(man1.join("rlock-exec.1")).unwrap(), pages::Page::find("exec").unwrap().roff());
    }

    #[test]
    fn says_which_path_it_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = run(&Man::WriteAll(file.join("man1"))).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot create '{}'", file.join("man1").display()));
    }
}
