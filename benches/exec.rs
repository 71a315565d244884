//! What `rlock exec` costs, beside flock(1): the time to start, the hand-over in a queue, memory and size. It prints a table and judges
//! nothing.
//!
//! `cargo bench --bench exec` measures the optimised program. The candidates take turns, so that whatever else the machine does falls
//! on all of them alike; the spread that is shown is from the 10th to the 90th of a hundred.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

const RLOCK: &str = env!("CARGO_BIN_EXE_rlock");
/// How often each candidate is started.
const STARTS: usize = 500;
/// How many queue up, and how often.
const QUEUED: usize = 50;
const QUEUES: usize = 5;
/// The word that makes this program the command of a measurement.
const STAMP: &str = "--stamp";

fn main() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == STAMP) {
        return stamp(Path::new(&words.next().expect("a file is named")));
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let bench = Bench { folder: folder.path() };
    bench.starts();
    bench.hand_overs();
    bench.memory();
    let size = fs::metadata(RLOCK).expect("it was built").len();
    println!("\nsize of the program: {:.2} MiB", size as f64 / f64::from(1 << 20));
}

struct Bench<'a> {
    folder: &'a Path,
}

impl Bench<'_> {
    fn rlock(&self, words: &[&str]) -> Command {
        let mut command = Command::new(RLOCK);
        command.env("RLOCK_STORE", format!("file://{}/store", self.folder.display()));
        command.args(["exec", "k", "--"]).args(words).stdin(Stdio::null());
        command
    }

    /// None where there is no flock(1).
    fn flock(&self, words: &[&str]) -> Option<Command> {
        let mut command = Command::new("flock");
        command.arg(self.folder.join("flock")).args(words).stdin(Stdio::null());
        let found = Command::new("flock").arg("--version").stdout(Stdio::null()).status().is_ok();
        found.then_some(command)
    }

    fn starts(&self) {
        let mut candidates = vec![("true", Command::new("true")), ("rlock exec k -- true", self.rlock(&["true"]))];
        candidates.extend(self.flock(&["true"]).map(|flock| ("flock FILE true", flock)));
        let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(STARTS); candidates.len()];
        for _ in 0..STARTS {
            for ((_, command), times) in candidates.iter_mut().zip(&mut times) {
                let started = Instant::now();
                let status = command.status().expect("it can be started");
                times.push(started.elapsed());
                assert!(status.success(), "{command:?} fails");
            }
        }
        heading(&format!("from start to end, {STARTS} times in turn"));
        for ((name, _), times) in candidates.iter().zip(&mut times) {
            row(name, times);
        }
    }

    fn hand_overs(&self) {
        let this = std::env::current_exe().expect("it has a path");
        let this = this.to_str().expect("it is text");
        let stamps = self.folder.join("stamps");
        let words = [this, STAMP, stamps.to_str().expect("it is text")];
        let (mut of_rlock, mut of_flock) = (Vec::new(), Vec::new());
        for _ in 0..QUEUES {
            of_rlock.extend(self.hand_over(&stamps, || Some(self.rlock(&words)), |words| Some(self.rlock(words))));
            of_flock.extend(self.hand_over(&stamps, || self.flock(&words), |words| self.flock(words)));
        }
        heading(&format!("from the end of a command to the start of the next, {QUEUED} queued, {QUEUES} times"));
        row("rlock", &mut of_rlock);
        if !of_flock.is_empty() {
            row("flock", &mut of_flock);
        }
    }

    /// The times between an end and the next start, when all have queued up behind a holder.
    fn hand_over(
        &self,
        stamps: &Path,
        waiter: impl Fn() -> Option<Command>,
        holder: impl Fn(&[&str]) -> Option<Command>,
    ) -> Vec<Duration> {
        let Some(mut holder) = holder(&["cat"]) else { return Vec::new() };
        let _ = fs::remove_file(stamps);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        // What comes back has gone through the command, so the lock is held.
        let input = holder.stdin.as_mut().expect("it is a pipe");
        input.write_all(b".").expect("it is read");
        std::io::Read::read_exact(holder.stdout.as_mut().expect("it is a pipe"), &mut [0]).expect("it is written");
        let start = |_| waiter().expect("the holder was there").spawn().expect("it can be started");
        let waiters: Vec<Child> = (0..QUEUED).map(start).collect();
        waiters.iter().for_each(until_asleep);
        drop(holder.stdin.take());
        for mut ended in waiters.into_iter().chain([holder]) {
            assert!(ended.wait().expect("it is a child").success());
        }
        let text = fs::read_to_string(stamps).expect("they have written it");
        let stamps: Vec<u64> = text.lines().map(|line| line.parse().expect("a time")).collect();
        assert_eq!(stamps.len(), 2 * QUEUED);
        let pairs = stamps[1..stamps.len() - 1].chunks_exact(2);
        pairs.map(|pair| Duration::from_nanos(pair[1].saturating_sub(pair[0]))).collect()
    }

    fn memory(&self) {
        heading("the most memory that it had, in KiB");
        let mut holder = self.rlock(&["cat"]).stdin(Stdio::piped()).spawn().expect("it can be started");
        until_asleep(&holder);
        let mut waiter = self.rlock(&["true"]).spawn().expect("it can be started");
        until_asleep(&waiter);
        for (name, process) in [("rlock, holding", &holder), ("rlock, waiting", &waiter)] {
            println!("{name:<24}{:>10} of these its own", peak(process, "VmHWM"));
            println!("{:<24}{:>10}", "", peak(process, "RssAnon"));
        }
        drop(holder.stdin.take());
        holder.wait().expect("it is a child");
        waiter.wait().expect("it is a child");
        if let Some(mut flock) = self.flock(&["cat"]) {
            let mut flock = flock.stdin(Stdio::piped()).spawn().expect("it can be started");
            until_asleep(&flock);
            println!("{:<24}{:>10}", "flock, holding", peak(&flock, "VmHWM"));
            drop(flock.stdin.take());
            flock.wait().expect("it is a child");
        }
    }
}

/// Appends the times at which this process starts and ends, in nanoseconds of a clock that all processes share.
fn stamp(path: &Path) {
    let mut file = File::options().append(true).create(true).open(path).expect("it can be opened");
    for _ in 0..2 {
        let now = clock_gettime(ClockId::Monotonic);
        let line = format!("{}\n", now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64);
        file.write_all(line.as_bytes()).expect("it can be written");
    }
}

/// Waits until a process has slept for a while: then it holds and waits for its command, or it is in the queue.
fn until_asleep(process: &Child) {
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it runs");
        let rest = stat.rsplit_once(')').expect("its name is in brackets").1;
        rest.split_whitespace().next() == Some("S")
    };
    let mut asleep = 0;
    while asleep < 5 {
        thread::sleep(Duration::from_millis(2));
        asleep = if state() { asleep + 1 } else { 0 };
    }
}

fn peak(process: &Child, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("Linux tells it");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

fn heading(text: &str) {
    println!("\n{text}:");
}

fn row(name: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    println!("{name:<24}{:>10.0} µs{:>10.0} to {:.0}", at(50), at(10), at(90));
}
