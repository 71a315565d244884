//! System calls that a run can do without, each refused by a filter with each error that sandboxes
//! choose. docs/book/src/sandboxes.md has the list.

use std::fs;
use std::process::Command;

use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran};

const REFUSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/refuse");
const PAGE: &str = include_str!("../../docs/book/src/sandboxes.md");

/// The errors that filters choose.
const ERRORS: [&str; 3] = ["EPERM", "ENOSYS", "EACCES"];

/// What a filter leaves of a run.
enum Left {
    /// All of it.
    Everything,
    /// All of it, and a line of `exec` with these words.
    Warning(&'static str),
    /// Nothing but this exit code and a line with these words.
    Line(i32, &'static str),
}
use Left::{Everything, Line, Warning};

/// The calls by their names in the page, the words of the filter, and what is left.
const CALLS: [(&str, &str, Left); 17] = [
    ("send", "sendto", Everything),
    ("recv", "recvfrom", Everything),
    ("shutdown", "shutdown", Everything),
    ("getsockopt", "getsockopt", Everything),
    ("setsockopt", "setsockopt", Everything),
    ("getsockname", "getsockname", Everything),
    ("socket", "socket", Everything),
    ("socketpair", "socketpair", Everything),
    ("setitimer", "setitimer", Everything),
    ("statfs", "statfs", Everything),
    ("sched_yield", "sched_yield", Everything),
    ("sched_getaffinity", "sched_getaffinity", Everything),
    ("sched_setaffinity", "sched_setaffinity", Everything),
    ("ioctl", "ioctl", Everything),
    // 0x8 is a bit of PR_SET_NAME, and 0x20 of PR_SET_CHILD_SUBREAPER.
    ("PR_SET_NAME", "prctl&0x8", Everything),
    ("PR_SET_CHILD_SUBREAPER", "prctl&0x20", Warning("permit prctl(2)")),
    ("fstatfs", "fstatfs", Line(69, "fstatfs")),
];

/// What the sandbox of codex 0.171.0 refuses.
const CODEX: &str = "sendto shutdown getsockopt getsockname connect bind ptrace io_uring_setup";

/// What is run below each filter: a name, the words, and the right exit code and start of the
/// output.
const RUNS: [(&str, &str, i32, &str); 4] = [
    ("exec", "exec k -- echo ran", 0, "ran\n"),
    ("busy", "exec -w 10ms held -- echo ran", 75, ""),
    ("acquire", "acquire kept --for 1h --export", 0, "export "),
    ("inspect", "inspect held", 0, "RESOURCE"),
];

/// "The right result or one line, never silence", with both streams in files, as some agents have
/// them. Returns what is wrong.
fn failures(filter: &[&str], left: &Left) -> Vec<String> {
    let lab = Lab::new();
    let holder = lab.hold("held");
    let run = |(name, words, ..): &(&str, &str, i32, &str)| {
        format!("{RLOCK} {words} >{name}.out 2>{name}.err; echo $? >{name}.code; ")
    };
    let mut below = Command::new(REFUSE);
    lab.settle(&mut below);
    below.args(filter).args(["--", "sh", "-c"]).arg(RUNS.iter().map(run).collect::<String>());
    Ran::of(below.current_dir(lab.folder())).silently(0);
    holder.end();
    let wrong = RUNS.iter().filter_map(|(name, _, code, printed)| {
        let read = |end| fs::read_to_string(lab.folder().join(format!("{name}.{end}"))).expect("it is text");
        let (stdout, stderr) = (read("out"), read("err"));
        let (code, printed) = match left {
            Line(code, _) => (*code, if *name == "acquire" { "(exit 69)" } else { "" }),
            _ => (*code, *printed),
        };
        let line = match left {
            Line(_, words) => Some(*words),
            Warning(words) if *name == "exec" => Some(*words),
            _ if *name == "busy" => Some("busy: 'held'"),
            _ => None,
        };
        let says = match (line, &stderr.lines().collect::<Vec<_>>()[..]) {
            (Some(words), [line]) => line.starts_with("rlock: ") && line.contains(words),
            (None, []) => true,
            _ => false,
        };
        let prints = stdout.starts_with(printed) && stdout.is_empty() == printed.is_empty();
        let is_right = read("code").trim() == code.to_string() && says && prints;
        (!is_right).then(|| format!("{filter:?}, {name}: {}{stdout}{stderr}", read("code")))
    });
    wrong.collect()
}

#[test]
fn refused_call_that_a_run_can_do_without_leaves_the_right_result_or_one_line() {
    skip_unless!(programs(&["python3", "cc"]));
    // One after another, because the trials beside this test wait for deadlines.
    let wrong = CALLS.iter().flat_map(|(name, filter, left)| {
        assert!(PAGE.contains(&format!("`{name}`")), "the page does not name {name}");
        ERRORS.iter().flat_map(move |error| failures(&[&format!("{filter}={error}")], left))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// "In the sandbox of codex, rlock says what it says elsewhere", into a socket, too.
#[test]
fn sandbox_of_codex_leaves_all_of_rlock() {
    skip_unless!(programs(&["python3", "cc"]));
    let filter: Vec<_> = CODEX.split(' ').collect();
    let wrong = failures(&filter, &Everything);
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Of a shell below two sockets, as of node's programs.
    let lab = Lab::new();
    let script = "import socket, subprocess, sys\n\
                  ours, theirs = socket.socketpair()\n\
                  code = subprocess.run(sys.argv[1:], stdout=theirs, stderr=theirs).returncode\n\
                  theirs.close()\n\
                  print(code, ours.makefile().read())\n";
    let mut python = Command::new("python3");
    lab.settle(&mut python);
    python.args(["-c", script, REFUSE]).args(&filter).args(["--", RLOCK, "release"]);
    let ran = Ran::of(&mut python);
    assert!(ran.stdout.starts_with("64 rlock: RLOCK_SESSION is not set"), "{ran:?}");
}
