//! The shell examples of rlock-recipes(7). Each block of the page is one script.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::{labs_with, pages, shell};
use rlock_testkit::needs::{programs, root, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, Running, wait_until};

/// The source of rlock-recipes(7).
const PAGE: &str = include_str!("../../src/cli/pages/recipes.txt");

/// The programs that the page runs.
const PROGRAMS: [&str; 11] =
    ["work", "rest", "plan", "sync", "maintain", "report", "migrate", "dump", "lead", "repair", "index"];

/// What stands for programs of other machines, or does what they do with the words that they get.
const TOOLS: [(&str, &str); 6] = [
    ("tools/ssh", "#!/bin/sh\n[ \"$1\" = HOST ] && sh -c \"$2\"\n"),
    ("tools/chronic", "#!/bin/sh\nexec \"$@\"\n"),
    ("tools/poetry", "#!/bin/sh\nshift 2\nexec \"$@\"\n"),
    ("tools/hatch", "#!/bin/sh\nshift 2\nexec \"$@\"\n"),
    ("tools/git", "#!/bin/sh\n[ \"$1\" = rev-parse ] && echo /repository/.git\n"),
    ("lib/Makefile", "all:\n\t@../work\n"),
];

/// A group that is nobody's.
const JOBS: u32 = 64999;

/// What each block of a section prints, in the order of the page. Each word is a line.
const PRINTED: [(&str, &[&str]); 19] = [
    ("FLOCK", &["", "work", "work work rest work work work work work", "work rest", "work", ""]),
    ("CRON DAEMONS", &["sync", "report", "report"]),
    ("MAINTENANCE WINDOW", &["sync maintain", "report"]),
    ("RESERVATION", &["rest work"]),
    ("START OF A DAEMON", &["plan work", "work"]),
    ("A JOB OF A SCRIPT THAT MAY BE KILLED", &["migrate", "migrate"]),
    ("SEVERAL SLOTS", &["work rest"]),
    ("NEWEST ONLY", &["work"]),
    ("URGENT FIRST", &["work rest"]),
    ("ONCE FOR ALL", &["migrate"]),
    ("APPROVAL", &["work"]),
    ("REPOSITORY", &["work"]),
    ("MAKE", &["work"]),
    ("SEVERAL COMMANDS", &["plan work", "work work"]),
    ("HIERARCHY", &["migrate dump"]),
    ("ELECTION", &["lead", "lead"]),
    ("DIRTY MARKER", &["index", "index"]),
    (
        "OLDER SYSTEMS",
        &[
            "work work work work plan work work plan work plan work",
            "work work",
            "work work work work work work rest work work",
            "ok work",
        ],
    ),
    ("CHANGING OVER", &["work"]),
];

/// The blocks of a section of the page.
pub(crate) fn blocks(title: &str) -> Vec<String> {
    pages::blocks(PAGE).into_iter().filter(|(found, _)| found == title).map(|(_, block)| block).collect()
}

fn labs() -> Vec<Lab> {
    labs_with(&PROGRAMS)
}

/// Runs a block as a script of its own, which ends with the first command that fails.
fn play(lab: &Lab, block: &str) -> Ran {
    let script = lab.folder().join("script");
    // The machine that runs the tests stays as it is, and may have no such group. The stores of the
    // tests keep nothing on a disk.
    let folder = lab.folder().display();
    let block = block
        .replace("-g jobs ", "")
        .replace(" --replicas 0+disk", "")
        .replace("/var/tmp", &folder.to_string())
        .replace("/etc/rlock.conf", &format!("{folder}/rlock.conf"));
    let block = block.replace("ExecStart=", "");
    for (program, text) in TOOLS {
        let path = lab.folder().join(program);
        fs::create_dir_all(path.parent().expect("the folder")).expect("a folder can be made");
        fs::write(&path, text).expect("a file can be made");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its permissions");
    }
    // A block of make(1) is no script.
    let is_make = block.starts_with("all:");
    fs::write(lab.folder().join("Makefile"), &block).expect("a file can be made");
    let block = if is_make { "make -s --no-print-directory".to_owned() } else { block };
    fs::write(&script, block.replace("/var/lib/rlock", &format!("{folder}/shared"))).expect("a file can be made");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("its permissions");
    Ran::of(&mut shell(lab, "PATH=$HOME/tools:$PATH exec sh -e ./script"))
}

/// The words of a line of the page up to the `--`, without the name of the program.
fn claims(line: &str) -> Vec<&str> {
    line.split_whitespace().skip(1).take_while(|word| *word != "--").collect()
}

/// The same request, but busy instead of waiting.
fn at_once(line: &str) -> String {
    line.replacen("rlock exec", "rlock exec -n -q", 1)
}

#[test]
fn every_shell_example_runs_without_a_message() {
    skip_unless!(programs(&["flock", "systemd-notify"]));
    for (title, printed) in PRINTED {
        let blocks = blocks(title);
        assert_eq!(blocks.len(), printed.len(), "{title}: {blocks:#?}");
        for (block, printed) in blocks.iter().zip(printed) {
            for lab in labs() {
                let lines: String = printed.split_whitespace().map(|word| format!("{word}\n")).collect();
                play(&lab, block).printed(&lines);
                // A keeper ends soon after the release.
                let is_own = |file: &String| ["lock", "table"].contains(&file.as_str());
                wait_until("no session has a file", || lab.files().iter().all(is_own));
                lab.assert_idle();
            }
        }
    }
}

/// "There `$PPID` is the sshd(8) of the connection, which ends with it".
#[test]
fn request_over_ssh_ends_with_the_connection() {
    for lab in labs() {
        let block = blocks("A JOB OF A SCRIPT THAT MAY BE KILLED")[1].replace("./migrate", "sleep 1000");
        let remote = block.split('\'').nth(1).expect("the command in quotes");
        let sshd = Running::start(shell(&lab, &format!("sh -c '{remote}' & wait")).stderr(Stdio::null()));
        wait_until("the command holds", || lab.counts("db") == (1, 0));
        sshd.signal(Signal::KILL);
        wait_until("the command has ended", || lab.counts("db") == (0, 0));
    }
}

/// "An urgent one waits for one other at most."
#[test]
fn urgent_request_passes_those_that_wait_in_line() {
    for lab in labs() {
        let block = blocks("URGENT FIRST")[0].clone();
        let [ordinary, urgent] = [0, 1].map(|number| block.lines().nth(number).expect("a line").to_owned());
        let hold = |line: &str| {
            Running::start(&mut shell(
                &lab,
                &format!("exec {line}").replace("./work", "sleep 1000").replace("./rest", "sleep 1000"),
            ))
        };
        let holder = hold(&ordinary);
        wait_until("an ordinary job works", || lab.counts("db") == (1, 0));
        let _second = hold(&ordinary);
        lab.until_waiting("line", 1);
        let _first = hold(&urgent);
        lab.until_waiting("db", 1);
        let urgent = lab.inspect(["db"])["resources"][0]["waiters"][0]["session"].clone();
        holder.signal(Signal::TERM);
        let holds = || lab.inspect(["db"])["resources"][0]["holders"][0]["session"] == urgent;
        wait_until("the urgent job works", holds);
    }
}

/// "The smaller number counts at once, also for old jobs that still say 4."
#[test]
fn newcomer_with_a_smaller_number_of_slots_waits_for_more_of_them() {
    for lab in labs() {
        let rlock = |slot: &str, command: &str| shell(&lab, &format!("rlock exec -n -q --slot {slot} -c '{command}'"));
        let inner = "env -u RLOCK_SESSION -u RLOCK_ANCESTORS rlock exec -n -q --slot gpu=3:2 -- ./work; echo $?";
        Ran::of(&mut rlock("gpu=4:2", inner)).printed("75\n");
        let inner = "env -u RLOCK_SESSION -u RLOCK_ANCESTORS rlock exec -n -q --slot gpu=3 -- ./work; echo $?";
        Ran::of(&mut rlock("gpu=4:2", inner)).printed("work\n0\n");
    }
}

#[test]
fn every_section_with_shell_examples_is_run() {
    let titles = PAGE.lines().filter_map(|line| line.strip_prefix("# "));
    let found: Vec<_> = titles.filter(|title| !blocks(title).is_empty()).collect();
    assert_eq!(found, PRINTED.map(|(title, _)| title));
}

/// "all other users but root get exit status 69".
#[test]
fn shared_store_is_for_its_group_whoever_locks() {
    skip_unless!(root("give a directory to a group"));
    let lab = Lab::new();
    play(&lab, &blocks("FLOCK")[0]).silently(0);
    let shared = lab.folder().join("shared");
    assert_eq!(fs::metadata(&shared).expect("it was made").permissions().mode() & 0o7777, 0o2770);
    chown(&shared, None, Some(JOBS)).expect("root can give the directory to a group");
    fs::set_permissions(&shared, Permissions::from_mode(0o2770)).expect("its permissions");
    fs::set_permissions(lab.folder(), Permissions::from_mode(0o755)).expect("its permissions");
    Ran::of(Command::new("cp").arg(RLOCK).arg(lab.folder())).silently(0);
    let rlock = |user: u32, group: u32, words: &[&str]| {
        let mut command = Command::new("setpriv");
        lab.settle(&mut command);
        command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
        command.arg(lab.folder().join("rlock")).args(words).current_dir("/");
        command.env_remove("RLOCK_STORE").env("RLOCK_CONFIG", lab.folder().join("rlock.conf"));
        command
    };
    let mut holder = Running::waiter(&mut rlock(65534, JOBS, &["exec", "k"]));
    holder.expect_held();
    for user in [65533, 0] {
        Ran::of(&mut rlock(user, JOBS, &["exec", "-n", "-q", "k", "--", "true"]))
            .silently(rlock_sys::exit::BUSY.into());
    }
    Ran::of(&mut rlock(65533, 65533, &["exec", "k", "--", "true"])).failed(rlock_sys::exit::UNAVAILABLE.into());
    holder.end().silently(0);
}

#[test]
fn self_locking_script_is_busy_while_another_runs() {
    for lab in labs() {
        let holder = lab.hold("KEY");
        play(&lab, &blocks("FLOCK")[4]).failed(rlock_sys::exit::BUSY.into());
        holder.end().silently(0);
    }
}

/// "The `sh` lets it run as `sh nightly.sh`, too".
#[test]
fn self_locking_script_runs_by_its_path_and_by_sh_without_its_folder() {
    for lab in labs() {
        play(&lab, &blocks("FLOCK")[4]).printed("work\n");
        Ran::of(&mut shell(&lab, "cp script nightly.sh; sh nightly.sh")).printed("work\n");
        Ran::of(&mut shell(&lab, "sed -i 's/ sh \"$0\"/ \"$0\"/' nightly.sh; sh nightly.sh")).said(
            127,
            "cannot run 'nightly.sh': not found; it is a file of this folder: write ./nightly.sh, or sh \"$0\" in a script that \
             starts itself",
        );
    }
}

/// "A redirection inside of `-c` waits for the lock".
#[test]
fn redirection_of_the_calling_shell_empties_the_file_of_a_busy_request() {
    for lab in labs() {
        let file = lab.folder().join("FILE");
        let page = blocks("FLOCK");
        let inside: Vec<_> = page[5].lines().collect();
        for (line, left) in [(inside[0], "old"), (inside[1], "old"), ("rlock exec KEY -- ./work >FILE", "")] {
            fs::write(&file, "old").expect("a file can be made");
            let holder = lab.hold("KEY");
            Ran::of(&mut shell(&lab, &at_once(line))).silently(rlock_sys::exit::BUSY.into());
            holder.end().silently(0);
            assert_eq!(fs::read_to_string(&file).expect("it is there"), left, "{line}");
            Ran::of(&mut shell(&lab, line)).silently(0);
            assert_eq!(fs::read_to_string(&file).expect("it is there"), "work\n", "{line}");
        }
    }
}

/// "With `-F`, flock becomes `./work`. Without it, TERM ends flock while `./work` still cleans up,
/// and the exit status is that of flock."
#[test]
fn work_below_both_locks_has_its_own_exit_code_only_if_flock_becomes_it() {
    skip_unless!(programs(&["flock"]));
    for lab in labs() {
        let work = "#!/bin/sh\ntrap 'exit 3' TERM\necho held\nwhile :; do sleep 0.01; done\n";
        fs::write(lab.folder().join("work"), work).expect("a file can be written");
        let page = &blocks("CHANGING OVER")[0];
        for (line, code) in [(page.clone(), 3), (page.replace(" -F ", " "), 143)] {
            let mut both = Running::start(&mut shell(&lab, &format!("exec {line}")));
            both.expect_held();
            both.signal(Signal::TERM);
            both.end().silently(code);
        }
    }
}

/// "The maintenance waits until all jobs have ended and lets no new job begin."
#[test]
fn maintenance_waits_for_the_jobs_and_lets_none_begin() {
    for lab in labs() {
        let window = &blocks("MAINTENANCE WINDOW")[0];
        let (job, maintenance) = window.split_once('\n').expect("a job and the maintenance");
        let holder = lab.hold_by(claims(job));
        let maintenance = Running::start(&mut shell(&lab, maintenance));
        lab.until_waiting("fleet", 1);
        Ran::of(&mut shell(&lab, &at_once(job))).silently(rlock_sys::exit::BUSY.into());
        holder.end().silently(0);
        maintenance.end().printed("maintain\n");
        Ran::of(&mut shell(&lab, job)).printed("sync\n");
    }
}

/// "A job that has begun goes on, even if others that wait behind the maintenance want `report`,
/// too."
#[test]
fn job_that_has_begun_goes_on_past_those_behind_the_maintenance() {
    for lab in labs() {
        let page = blocks("MAINTENANCE WINDOW");
        let (job, maintenance) = page[0].split_once('\n').expect("a job and the maintenance");
        let begun = page[1].replace("-- rlock", "-- sh -c 'echo held; read go; exec \"$@\"' sh rlock");
        let mut begun = Running::start(shell(&lab, &begun).stdin(Stdio::piped()));
        begun.expect_held();
        let maintenance = Running::start(&mut shell(&lab, maintenance));
        lab.until_waiting("fleet", 1);
        let behind = Running::start(&mut shell(&lab, &job.replace("--write sync", "--write report")));
        lab.until_waiting("fleet", 2);
        let last = Running::start(&mut shell(&lab, "rlock exec report -- ./report"));
        lab.until_waiting("report", 2);
        begun.write("go\n");
        begun.end().printed("report\n");
        maintenance.end().printed("maintain\n");
        behind.end().printed("sync\n");
        last.end().printed("report\n");
    }
}

#[test]
fn writer_of_the_whole_excludes_parts_and_parts_do_not_exclude_each_other() {
    for lab in labs() {
        let requests = &blocks("HIERARCHY")[0];
        let (part, whole) = requests.split_once('\n').expect("a part and the whole");
        let other = part.replace("site/db/users", "site/db/orders");
        let holder = lab.hold_by(claims(part));
        Ran::of(&mut shell(&lab, &at_once(&other))).printed("migrate\n");
        Ran::of(&mut shell(&lab, &at_once(whole))).silently(rlock_sys::exit::BUSY.into());
        holder.end().silently(0);
        let holder = lab.hold_by(claims(whole));
        Ran::of(&mut shell(&lab, &at_once(&other))).silently(rlock_sys::exit::BUSY.into());
        holder.end().silently(0);
    }
}

#[test]
fn work_that_failed_half_way_is_repaired_by_the_next_run() {
    for (block, lab) in blocks("DIRTY MARKER").iter().flat_map(|block| labs().into_iter().map(move |lab| (block, lab)))
    {
        let index = lab.folder().join("index");
        let works = fs::read(&index).expect("the program");
        fs::write(&index, "#!/bin/sh\nexit 3\n").expect("the file can be written");
        play(&lab, block).silently(3);
        fs::write(&index, works).expect("the file can be written");
        play(&lab, block).printed("repair\nindex\n");
        play(&lab, block).printed("index\n");
    }
}
