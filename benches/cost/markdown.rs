//! The results as text, readable in a terminal and as Markdown.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use super::aims::{Aim, Bound};
use super::lab::Lab;
use super::numbers::figure;
use super::options::Options;
use super::server::Redis;
use super::table::{Spread, Table};

/// Returns the facts about the run: when, where, and which versions.
pub(crate) fn facts(lab: &Lab, options: &Options) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let cpus: Vec<&str> = cpus
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name)
        .collect();
    let load = read("/proc/loadavg");
    let kernel = read("/proc/sys/kernel/osrelease");
    let command = options.effort.pick("benches/run", "benches/run --full");
    let mut text = format!(
        "# What a lock costs\n\nWritten by `{command}` on {}, on {} × {}, Linux {}, load {} at the beginning.\nThe median, in \
         brackets from the 10th to the 90th of a hundred; `×` is how many times that of the peer named in the title.\n",
        humantime::format_rfc3339_seconds(std::time::SystemTime::now()),
        cpus.len(),
        cpus.first().unwrap_or(&"an unknown processor"),
        kernel.trim(),
        load.split_whitespace().next().unwrap_or("unknown"),
    );
    let versions = [
        version(lab.rlock.as_os_str(), "--version"),
        version("flock", "--version"),
        version(Redis::program(), "--version"),
        version("etcd", "--version"),
        version("sem", "--version"),
    ];
    let versions: Vec<String> = versions.into_iter().flatten().collect();
    text += &format!(
        "\nPeers: {}. etcd writes to the disk as it comes (fsync); Redis writes nothing. The files of \
         flock, and of rlock where it has no server, are in {}.\n",
        versions.join("; "),
        lab.folder().parent().expect("the folder has a parent").display(),
    );
    for problem in &lab.absent {
        text += &format!("\nNot measured: {problem}.\n");
    }
    text
}

fn version(program: impl AsRef<OsStr>, word: &str) -> Option<String> {
    let output = Command::new(program).arg(word).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Redis appends details of its build to the version.
    text.lines().next()?.split(" sha=").next().map(|version| version.trim().to_owned())
}

/// Formats a table with its title.
pub(crate) fn table(table: &Table) -> String {
    let against = table.against.map(|other| format!(", × {other}")).unwrap_or_default();
    let mut rows = vec![vec![format!("{}{against}", table.unit)]];
    rows[0].extend(table.columns.iter().cloned());
    for row in &table.rows {
        let cell = |(column, spread): (usize, &Option<Spread>)| {
            let Some(spread) = spread else { return "–".to_owned() };
            let ratio = table.against.and_then(|other| table.ratio(&row.name, other, column));
            let ratio = ratio.map(|ratio| format!(" {ratio:.2} ×")).unwrap_or_default();
            format!("{}{ratio}", shown(spread))
        };
        let cells = row.cells.iter().enumerate().map(cell);
        rows.push([row.name.clone()].into_iter().chain(cells).collect());
    }
    format!("## {}\n\n{}\n\n{}", table.title, table.about, grid(&rows))
}

/// Formats the aims with their verdicts.
pub(crate) fn aims(aims: &[Aim]) -> String {
    let head = ["aim", "bound", "found", ""].map(str::to_owned).to_vec();
    let row = |aim: &Aim| {
        let bound = match aim.bound {
            Bound::AtMost(most) => format!("at most {most} {}", aim.unit),
            Bound::AtLeast(least) => format!("at least {least} {}", aim.unit),
        };
        let found = aim.figure.map(|found| format!("{found:.2} {}", aim.unit)).unwrap_or_default();
        vec![aim.what.clone(), bound.trim().to_owned(), found.trim().to_owned(), aim.verdict().to_owned()]
    };
    let rows: Vec<_> = [head].into_iter().chain(aims.iter().map(row)).collect();
    format!("## Aims\n\n{}", grid(&rows))
}

fn shown(spread: &Spread) -> String {
    if spread.low == spread.high {
        return figure(spread.median);
    }
    format!("{} ({}–{})", figure(spread.median), figure(spread.low), figure(spread.high))
}

/// Formats the rows of a Markdown table with aligned columns. The first row is the head.
fn grid(rows: &[Vec<String>]) -> String {
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default().max(3);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            text += &if column == 0 { format!("| {cell:<width$} ") } else { format!("| {cell:>width$} ") };
        }
        text += "|\n";
        if at == 0 {
            for (column, width) in widths.iter().enumerate() {
                text +=
                    &if column == 0 { format!("| {:-<width$} ", "") } else { format!("| {:-<1$}: ", "", width - 1) };
            }
            text += "|\n";
        }
    }
    text
}
