//! Compares the cost of rlock with that of other tools. One run measures all of them, prints the
//! figures, and writes them as a table and a chart.
//!
//! `benches/run` installs missing peers and starts the bench. `cargo bench --bench cost` uses the
//! peers that are installed. The candidates take turns, so that other load on the machine affects
//! all of them alike.
//! The tables show the median, and the spread from the 10th to the 90th percentile. Each aim of the
//! project is printed with its figure and verdict. Nothing is asserted.

mod aims;
mod candidate;
mod chance;
mod chart;
mod cluster;
mod crowd;
mod daemon;
mod etcd;
mod fleet;
mod footprint;
mod hand_over;
mod intervals;
mod lab;
mod markdown;
mod numbers;
mod options;
mod peers;
mod rate;
mod scripts;
mod serve;
mod server;
mod server_time;
mod stamp;
mod start;
mod table;
mod wrappers;

use std::fs;

use self::lab::Lab;
use self::options::{Effort, Options};
use self::table::Findings;

/// Measures one section.
type Measure = fn(&Lab, Effort) -> Findings;

/// The sections, by the names that the command line takes.
const SECTIONS: [(&str, Measure); 9] = [
    ("start", start::measure),
    ("hand-over", hand_over::measure),
    ("rate", rate::measure),
    ("server-time", server_time::measure),
    ("intervals", intervals::measure),
    ("serve", serve::measure),
    ("footprint", footprint::measure),
    ("cluster", cluster::measure),
    ("fleet", fleet::measure),
];

fn main() {
    if stamp::was_asked_for() || wrappers::were_asked_for() {
        return;
    }
    let options = match Options::read(std::env::args().skip(1), &SECTIONS.map(|(name, _)| name)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(64)
        }
    };
    let lab = Lab::new();
    let facts = markdown::facts(&lab, &options);
    println!("{facts}");
    let mut all = Findings::default();
    for (name, measure) in SECTIONS {
        if options.wants(name) {
            let found = measure(&lab, options.effort);
            found.tables.iter().for_each(|table| println!("{}", markdown::table(table)));
            all.tables.extend(found.tables);
            all.aims.extend(found.aims);
        }
    }
    let aims = if all.aims.is_empty() { String::new() } else { markdown::aims(&all.aims) };
    print!("{aims}");
    if let Some(folder) = options.folder() {
        let text: String = all.tables.iter().map(|table| markdown::table(table) + "\n").collect();
        fs::create_dir_all(&folder).expect("the folder can be made");
        fs::write(folder.join("results.md"), format!("{facts}\n{text}{aims}")).expect("the folder can be written");
        fs::write(folder.join("results.svg"), chart::draw(&all.tables)).expect("the folder can be written");
    }
}
