//! What rlock costs, beside what people use in its place: measured in one run, printed, and written down as a table and a
//! chart.
//!
//! `benches/run` installs the peers that are missing and starts it; `cargo bench --bench cost` takes those that there are.
//! Whoever is compared takes turns, so that whatever else the machine does falls on all alike. What is shown is the
//! median, and the spread from the 10th to the 90th of a hundred. Each aim of the project is printed with its figure and
//! judged; nothing is asserted.

mod aims;
mod candidate;
mod chance;
mod chart;
mod crowd;
mod daemon;
mod etcd;
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
mod server;
mod stamp;
mod start;
mod table;

use std::fs;

use self::lab::Lab;
use self::options::{Effort, Options};
use self::table::Findings;

/// Measures a part of it.
type Measure = fn(&Lab, Effort) -> Findings;

/// What is measured, by the name under which it can be asked for alone.
const SECTIONS: [(&str, Measure); 5] = [
    ("start", start::measure),
    ("hand-over", hand_over::measure),
    ("rate", rate::measure),
    ("intervals", intervals::measure),
    ("footprint", footprint::measure),
];

fn main() {
    if stamp::was_asked_for() {
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
