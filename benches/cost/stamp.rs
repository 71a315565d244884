//! The command for measurements of start and end times. The bench runs itself with a special word.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

/// The word that makes this program the command of a measurement.
const WORD: &str = "--stamp";

/// Returns the words of a command that appends the times of its start and end to a file.
pub(crate) fn words(file: &Path) -> [String; 3] {
    let this = std::env::current_exe().expect("the program has a path");
    [this.as_path(), Path::new(WORD), file].map(|path| path.to_str().expect("paths of a bench are text").to_owned())
}

/// Runs the command if this process was started as the command, and returns whether it was.
pub(crate) fn was_asked_for() -> bool {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_none_or(|word| word != WORD) {
        return false;
    }
    let path = words.next().expect("a file is named");
    let mut file = File::options().append(true).create(true).open(path).expect("the file can be opened");
    for mark in ['>', '<'] {
        let now = clock_gettime(ClockId::Monotonic);
        let line = format!("{mark}{}\n", now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64);
        file.write_all(line.as_bytes()).expect("the file can be written");
    }
    true
}

/// Returns the times between the end of each command and the start of the next, in microseconds.
///
/// # Errors
/// Two commands ran at the same time.
pub(crate) fn gaps(file: &Path) -> Result<Vec<f64>, String> {
    let text = fs::read_to_string(file).expect("the commands have written the file");
    let at = |line: &str| line[1..].parse::<u64>().expect("a time");
    let lines: Vec<&str> = text.lines().collect();
    if let Some(at) = lines.chunks(2).position(|pair| !pair[0].starts_with('>') || !pair[1].starts_with('<')) {
        return Err(format!("command {at} of {} ran at the same time as the next", lines.len() / 2));
    }
    let ends = lines[1..].chunks_exact(2);
    Ok(ends.map(|pair| at(pair[1]).saturating_sub(at(pair[0])) as f64 / 1e3).collect())
}
