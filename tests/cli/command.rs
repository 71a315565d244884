//! The command gets exactly the words, descriptors and streams that the user gave.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, Running};

/// The command is executed without a shell unless `-c` asks for one.
#[test]
fn command_gets_its_words_unchanged() {
    let lab = Lab::new();
    let shown =
        lab.run(["exec", "k", "--", "printf", "[%s]", "", "a b", "$HOME", "*", "`id`", "--", "-n", "-3", "\n", "ü"]);
    shown.printed("[][a b][$HOME][*][`id`][--][-n][-3][\n][ü]");
    let mut rlock = lab.rlock(["exec", "k", "--", "sh", "-c", "printf %s \"$1\" | od -An -tx1", "sh"]);
    Ran::of(rlock.arg(OsStr::from_bytes(b"\xff\x01\xfe"))).printed(" ff 01 fe\n");
}

/// `-c STRING` and `--shell STRING` replace `-- COMMAND`.
#[test]
fn string_of_c_is_run_by_the_shell() {
    let lab = Lab::new();
    let shown = lab.run(["exec", "k", "-c", "echo one; echo \"$0\" $#; exit 3 # -- x"]);
    assert_eq!((shown.code(), shown.stdout.as_str(), shown.stderr.as_str()), (Some(3), "one\n/bin/sh 0\n", ""));
    lab.run(["range-read", "k", "1", "2", "--shell", "echo two"]).printed("two\n");
}

/// The command gets the user's stdin, stdout and stderr, untouched and unbuffered.
#[test]
fn command_gets_the_standard_streams_of_rlock() {
    let lab = Lab::new();
    let path = |name: &str| lab.folder().join(name);
    let file = |name: &str| File::create_new(path(name)).expect("a file");
    fs::write(path("in"), "first\nsecond\n").expect("a file");
    let script = "read line; echo \"$line\"; echo err >&2; readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2";
    let status = lab
        .rlock(["exec", "k", "--", "sh", "-c", script])
        .stdin(File::open(path("in")).expect("the file"))
        .stdout(file("out"))
        .stderr(file("err"))
        .status()
        .expect("the program can be started");
    assert_eq!(status.code(), Some(0));
    let read = |name: &str| fs::read_to_string(path(name)).expect("the file");
    let links = ["in", "out", "err"].map(|name| format!("{}\n", path(name).display())).concat();
    assert_eq!((read("out"), read("err")), (format!("first\n{links}"), "err\n".to_owned()));
}

/// rlock puts no pipe of its own before the command. So the command notices when its reader closes
/// the pipe, and the writer waits for the command.
#[test]
fn command_gets_a_pipe_directly() {
    let lab = Lab::new();
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let number = |pipe: &std::io::PipeReader| rustix::fs::fstat(pipe).expect("a pipe can be asked").st_ino;
    let mut rlock = lab.rlock(["exec", "k", "--", "stat", "-L", "-c", "%i", "/proc/self/fd/1"]);
    let status = rlock.stdout(writer).status().expect("the program can be started");
    assert_eq!(status.code(), Some(0));
    drop(rlock);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text.trim(), number(&reader).to_string());
}

/// The command inherits all descriptors that the user has open, and no descriptor of rlock.
#[test]
fn command_inherits_the_descriptors_of_the_user_and_none_of_rlock() {
    let lab = Lab::new();
    let listed = |program: &[&str]| {
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        // The user's descriptor has a high number, so a descriptor that rlock leaks would get a
        // lower one.
        let script = "exec \"$@\" 9</dev/null";
        let ran = Ran::of(shell.args(["-c", script, "sh"]).args(program).args(["ls", "/proc/self/fd"]));
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
        ran.stdout
    };
    let plain = listed(&["env"]);
    assert!(plain.contains("\n9\n"), "{plain}");
    assert_eq!(listed(&[RLOCK, "exec", "k", "--write", "j", "--"]), plain);
    assert_eq!(listed(&[RLOCK, "exec", "k", "--", RLOCK, "exec", "j", "--"]), plain);
    // A request that had to wait has opened more files: those of the processes that it watched.
    let holder = lab.hold("w");
    let mut waiter = Command::new("sh");
    lab.settle(&mut waiter);
    waiter.args(["-c", "exec \"$0\" exec w -- ls /proc/self/fd 9</dev/null", RLOCK]);
    let waiter = Running::start(&mut waiter);
    lab.until_waiting("w", 1);
    holder.end().silently(0);
    waiter.end().printed(&plain);
}

/// "A background process that outlives the command holds no lock, in any store."
#[test]
fn background_process_that_outlives_the_command_holds_no_lock() {
    let lab = Lab::new();
    let fifo = lab.folder().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a named pipe");
    let script = format!("cat '{}' >/dev/null 2>&1 &", fifo.display());
    lab.run(["exec", "k", "-c", &script]).silently(0);
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    lab.assert_idle();
    // This lets the background process open the pipe, if it has not done so yet, and end.
    drop(File::options().write(true).open(&fifo).expect("the background process reads the pipe"));
}

/// The command keeps the user's working directory, umask and group.
#[test]
fn command_keeps_working_directory_and_umask() {
    let lab = Lab::new();
    let there = fs::canonicalize(lab.folder()).expect("the folder");
    for umask in ["0000", "0027", "0077"] {
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        let script = format!("umask {umask}; exec \"$0\" exec k -- sh -c 'umask; pwd -P'");
        let ran = Ran::of(shell.args(["-c", &script, RLOCK]).current_dir(&there));
        ran.printed(&format!("{umask}\n{}\n", there.display()));
    }
    assert_eq!(there.metadata().expect("the path exists").uid(), rustix::process::geteuid().as_raw());
}

/// If a standard descriptor is closed, rlock gives its number to no file of its own. So output of
/// the command or of rlock never reaches the store.
#[test]
fn output_to_a_closed_standard_descriptor_leaves_the_store_sound() {
    let lab = Lab::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        // The first rlock prints an error, the second one's command prints to both streams.
        let script = format!(
            "\"$0\" exec k -- /no/such {closed}; [ $? = 127 ] && \"$0\" exec k -- sh -c 'echo out; echo err >&2; exit 9' {closed}"
        );
        let ran = Ran::of(shell.args(["-c", &script, RLOCK]));
        assert_eq!(ran.code(), Some(9), "{closed}");
        lab.assert_idle();
    }
}

/// The same holds in a container that has no /dev/null.
#[test]
fn output_to_closed_standard_descriptors_leaves_the_store_sound_without_dev_null() {
    let lab = Lab::new();
    let Some(mut unshare) = needs::mount_namespace_as_root() else { return };
    lab.settle(&mut unshare);
    let script = "mount -t tmpfs none /dev || exit 1
        \"$0\" exec -v k -- /no/such <&- >&- 2>&-; [ $? = 127 ] || exit 2
        \"$0\" exec k -- sh -c '[ ! -e /proc/self/fd/1 ] && exit 9' <&- >&- 2>&-";
    assert_eq!(Ran::of(unshare.args(["sh", "-c", script, RLOCK])).code(), Some(9));
    lab.assert_idle();
}

/// flock(1) treats closed standard descriptors in the same way.
#[test]
fn closed_standard_descriptor_stays_closed_for_the_command() {
    let lab = Lab::new();
    for (closed, number) in [("<&-", 0), (">&-", 1), ("2>&-", 2)] {
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        let script = format!("\"$0\" exec k -- test -e /proc/self/fd/{number} {closed}");
        assert_eq!(Ran::of(shell.args(["-c", &script, RLOCK])).code(), Some(1), "{closed}");
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        let script = script.replace(closed, "");
        assert_eq!(Ran::of(shell.args(["-c", &script, RLOCK])).code(), Some(0), "{number}");
    }
}

/// "rlock is transparent": rlock ignores SIGPIPE, but the command gets the disposition that rlock
/// was started with.
#[test]
fn command_gets_the_sigpipe_disposition_that_rlock_was_started_with() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    let ignored = |before: &str, rlock: &str| {
        let mut shell = Command::new("bash");
        lab.settle(&mut shell);
        let script = format!("trap {before} PIPE; {rlock} grep SigIgn /proc/self/status");
        let shown = Ran::of(shell.args(["-c", &script, RLOCK])).stdout;
        let set = shown.trim_start_matches("SigIgn:").trim();
        // The C library reserves signals 32 and 33 and sets their dispositions itself.
        u64::from_str_radix(set, 16).expect("a set of signals") & !(0b11 << 31)
    };
    for before in ["-", "''"] {
        assert_eq!(ignored(before, "\"$0\" exec k --"), ignored(before, ""), "trap {before} PIPE");
    }
    assert_ne!(ignored("-", ""), ignored("''", ""), "the shell can ignore it");
}

/// rlock limits the start of the command by a timer, and the user may have no timer left.
#[test]
fn command_starts_when_the_user_has_no_timers_left() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    let mut shell = Command::new("bash");
    lab.settle(&mut shell);
    Ran::of(shell.args(["-c", "ulimit -i 0; exec \"$0\" exec k -- echo started", RLOCK])).printed("started\n");
}
