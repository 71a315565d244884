//! The directory of the embedded store, named by URL: what rlock creates in it and what rlock
//! refuses, always with 69.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::users;
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, wait_until};

const FOREIGN: &str = "what is in it is not rlock's: name another directory";

/// Runs each kind of subcommand that opens a store. Each must fail for the same reason and start no
/// command.
#[track_caller]
fn assert_unusable(lab: &Lab, directory: &Path, reason: &str) {
    let text = format!("the store in {} can't be used: {reason}", directory.display());
    let url = format!("file://{}", directory.display());
    let started = lab.folder().join("started");
    let touch = started.to_str().expect("a plain name");
    for words in [
        &["exec", "k", "--", "touch", touch][..],
        &["range-read", "k", "1", "2", "-c", "exit 3"],
        &["inspect"],
        &["cleanup"],
        &["cleanup", "--break", "k"],
    ] {
        Ran::of(lab.rlock(["--store", &url]).args(words)).said(69, &text);
    }
    assert!(!started.exists(), "the command was started");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("the path exists").mode() & 0o7777
}

/// The directory, its files and their permissions do not depend on the umask: they are usable for
/// their user and closed to all others.
#[test]
fn new_directory_is_private_under_any_umask() {
    for umask in ["0", "022", "077", "0777"] {
        let lab = Lab::new();
        let script = format!("umask {umask}; exec '{RLOCK}' exec k -- sh -c 'umask'");
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        Ran::of(shell.args(["-c", &script])).printed(&format!("{umask:0>4}\n"));
        let state = lab.directory().join("state");
        let modes = [lab.directory(), &state, &state.join("lock"), &state.join("table")].map(mode);
        assert_eq!(modes, [0o700, 0o700, 0o600, 0o600], "umask {umask}");
        assert_eq!(lab.files(), ["lock", "table"]);
    }
}

/// The same for a user without root's rights: a second run, and a holder beside a waiter, work as
/// well.
#[test]
fn umask_0777_leaves_the_store_usable_for_its_user() {
    skip_unless!(needs::root("become a user whom permissions bind"));
    let lab = users::shared_lab();
    let home = lab.folder().join("home");
    fs::create_dir(&home).expect("a folder");
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).expect("root can give the directory away");
    let program = lab.folder().join("rlock");
    let nested = format!(
        "umask 0777; '{0}' exec k -- '{0}' exec k --write j -- true && '{0}' exec k -- echo done",
        program.display()
    );
    let mut shell = users::alone(65534).program(&lab, Path::new("sh"));
    shell.env("RLOCK_STORE", format!("file://{}/store", home.display()));
    Ran::of(shell.args(["-c", &nested])).printed("done\n");
}

/// rlock exits 69 if the user may not write the directory.
#[test]
fn directory_without_write_permission_exits_69() {
    let lab = Lab::new();
    let above = lab.folder().join("none/store");
    assert_unusable(&lab, &above, "the directory above it does not exist: make that first");
    skip_unless!(needs::root("become a user whom permissions bind"));
    let lab = users::shared_lab();
    // Where the store is named, another one would exclude nobody.
    let group = "; it belongs to group daemon (2770): ask root for 'usermod -aG daemon nobody' and log in anew";
    let [closed, readable] = ["700", "755"]
        .map(|mode| format!("; it belongs to user root ({mode}): ask root to share it with a group of yours"));
    let below = ": ask root to make it for a group of yours";
    for (name, mode, whose) in
        [("closed", 0o700, closed), ("readable", 0o755, readable), ("jobs", 0o2770, group.to_owned())]
    {
        let directory = lab.folder().join(name);
        fs::create_dir(&directory).expect("a folder");
        std::os::unix::fs::chown(&directory, None, Some(1)).expect("root can give the directory away");
        fs::set_permissions(&directory, Permissions::from_mode(mode)).expect("its permissions");
        for (directory, whose) in [(directory.clone(), &*whose), (directory.join("below"), below)] {
            let mut rlock = users::alone(65534).rlock(&lab, &["exec", "k", "--", "true"]);
            rlock.env("RLOCK_STORE", format!("file://{}", directory.display()));
            let text = format!("permission denied for user nobody{whose}; another store would exclude nobody here");
            Ran::of(&mut rlock).said(69, &format!("the store in {} can't be used: {text}", directory.display()));
        }
        assert_eq!(fs::read_dir(&directory).expect("the folder").count(), 0);
    }
}

/// On a file system in which no file can be created, rlock reports just that and does not advise to
/// create a directory.
#[test]
fn directory_where_no_file_can_be_created_exits_69() {
    assert_unusable(&Lab::new(), Path::new("/proc"), "no such file or directory");
}

/// rlock follows no symbolic link and takes no file for a directory.
#[test]
fn directory_that_is_a_link_or_a_file_exits_69() {
    let lab = Lab::new();
    let at = |name: &str| lab.folder().join(name);
    fs::create_dir(at("real")).expect("a folder");
    symlink(at("real"), at("link")).expect("a link");
    symlink(at("nowhere"), at("dangling")).expect("a link");
    fs::write(at("file"), "mine").expect("a file");
    let reason = "it is not a directory, or a symbolic link, which rlock does not follow";
    for name in ["link", "link/", "dangling", "file"] {
        let shown = at(name.trim_end_matches('/'));
        let url = format!("file://{}", at(name).display());
        let text = format!("the store in {} can't be used: {reason}", shown.display());
        lab.run(["--store", &url, "exec", "k", "--", "true"]).said(69, &text);
    }
    assert_eq!(fs::read_dir(at("real")).expect("the folder").count(), 0);
    assert_eq!(fs::read(at("file")).expect("the file"), b"mine");
    assert!(!at("nowhere").exists());
}

/// rlock neither uses nor changes foreign files that have the names of its own files.
#[test]
fn foreign_files_in_the_directory_are_left_unchanged() {
    type Put = fn(&Path);
    let put: [(&str, Put); 8] = [
        ("text for lock", |state| fs::write(state.join("lock"), "1234\n").expect("a file")),
        ("a folder for lock", |state| fs::create_dir(state.join("lock")).expect("a folder")),
        ("a folder for table", |state| fs::create_dir(state.join("table")).expect("a folder")),
        ("a link for lock", |state| symlink("/dev/null", state.join("lock")).expect("a link")),
        ("a link for table", |state| symlink("elsewhere", state.join("table")).expect("a link")),
        ("a pipe for lock", |state| pipe(&state.join("lock"))),
        ("a pipe for table", |state| pipe(&state.join("table"))),
        ("a link for state", |state| {
            fs::rename(state, state.with_extension("d")).expect("a name");
            symlink(state.with_extension("d"), state).expect("a link");
        }),
    ];
    for (what, put) in put {
        let lab = Lab::new();
        lab.run(["exec", "k", "--", "true"]).silently(0);
        let state = lab.directory().join("state");
        fs::remove_file(state.join(if what.ends_with("table") { "table" } else { "lock" }))
            .expect("rlock created the file");
        put(&state);
        let before = fs::symlink_metadata(&state).expect("the path exists").ino();
        println!("{what}");
        assert_unusable(&lab, lab.directory(), FOREIGN);
        assert_eq!(fs::symlink_metadata(&state).expect("the path exists").ino(), before);
        assert!(!state.join("elsewhere").exists());
    }
    let lab = Lab::new();
    fs::create_dir(lab.directory()).expect("a folder");
    fs::write(lab.directory().join("state"), "text").expect("a file");
    assert_unusable(&lab, lab.directory(), FOREIGN);
    assert_eq!(fs::read(lab.directory().join("state")).expect("the file"), b"text");
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a named pipe");
}

/// "A killed holder's lock stays held while another program has the holder's file in the directory
/// open for reading, as a backup or `cat` may."
#[test]
fn lock_of_a_killed_holder_stays_held_while_another_program_reads_its_file() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let own = lab.files().into_iter().find(|name| !["lock", "table"].contains(&name.as_str())).expect("its file");
    let file = lab.directory().join("state").join(own);
    let reader = fs::File::open(&file).expect("the pipe has a writer");
    holder.kill();
    // The guardian sets this time to that since the boot, and closes the file.
    wait_until("the tree is gone", || fs::metadata(&file).expect("the file is there").atime() < 1_000_000_000);
    assert_eq!(lab.run(["exec", "-n", "k", "--", "true"]).code(), Some(75));
    drop(reader);
    lab.run(["exec", "k", "--", "true"]).silently(0);
}

/// rlock does not change a store of another format version.
#[test]
fn store_of_another_format_exits_69_and_names_both_formats() {
    let lab = Lab::new();
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let lock = lab.directory().join("state/lock");
    let text = fs::read_to_string(&lock).expect("the lock file");
    let other = text.replace("format 4\n", "format 5\n");
    assert_ne!(other, text);
    fs::write(&lock, &other).expect("the file can be written");
    let reason = "it has format 5 and this rlock knows format 4: use one version of rlock on a machine";
    assert_unusable(&lab, lab.directory(), reason);
    assert_eq!(fs::read_to_string(&lock).expect("the lock file"), other);
}

/// If nobody uses a damaged table, rlock renames it, warns and starts a new one. Only the last
/// damaged table is kept. An emptied file counts as damaged.
#[test]
fn unused_damaged_table_is_kept_aside_and_replaced() {
    let lab = Lab::new();
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let (table, aside) = (lab.directory().join("state/table"), lab.directory().join("state/table.damaged"));
    for damage in [&b""[..], b"text", &[0x55; 40_000], &[0; 8192]] {
        fs::write(&table, damage).expect("the file can be written");
        let ran = lab.run(["exec", "k", "--", "echo", "done"]);
        let text = format!(
            "rlock: warning: the table of the store in {} was damaged, and nobody used it: it is kept as {}, and a new one is \
             started, without kept holds and history\n",
            lab.directory().display(),
            aside.display()
        );
        assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr), (Some(0), "done\n", text));
        assert_eq!(fs::read(&aside).expect("the damaged table was kept"), damage);
        assert_eq!(lab.files(), ["lock", "table", "table.damaged"]);
        lab.run(["exec", "k", "--", "true"]).silently(0);
    }
}

/// rlock clears what an earlier boot left, since no process of that boot lives.
#[test]
fn holds_of_an_earlier_boot_are_cleared() {
    let lab = Lab::new();
    lab.hold("k").kill();
    assert_eq!(lab.counts("k"), (0, 0), "inspect waits for the end of the guardian");
    let lock = lab.directory().join("state/lock");
    let text = fs::read_to_string(&lock).expect("the lock file");
    let boot = text.lines().nth(1).and_then(|line| line.strip_prefix("boot ")).expect("the second line is the boot id");
    fs::write(&lock, text.replace(boot, &"0".repeat(boot.len()))).expect("the file can be written");
    lab.run(["cleanup"]).printed("");
    lab.assert_idle();
    let head = |text: &str| text.lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(head(&fs::read_to_string(&lock).expect("the lock file")), head(&text));
}

/// A file URL has an absolute path, and `%` starts an escape.
#[test]
fn file_url_has_an_absolute_path_and_percent_escapes() {
    let lab = Lab::new();
    let odd = lab.folder().join("a b%ü#?");
    let escaped = |text: &str| text.replace('%', "%25").replace(' ', "%20").replace('ü', "%C3%bc");
    let url = format!("file://{}", escaped(odd.to_str().expect("text")));
    let again = lab.run(["--store", &url, "exec", "k", "-c", "echo \"$RLOCK_STORE\""]);
    assert_eq!((again.code(), again.stderr.as_str()), (Some(0), ""));
    assert!(odd.join("state/table").exists());
    // The URL in the command's RLOCK_STORE leads to the same directory.
    let holder = lab.hold_by(["exec", "k", "--store", again.stdout.trim()]);
    lab.run(["--store", &url, "exec", "-nq", "k", "--", "true"]).silently(75);
    let plain = format!("file://localhost{}", odd.to_str().expect("text").replace('%', "%25"));
    lab.run(["--store", &plain, "exec", "-nq", "k", "--", "true"]).silently(75);
    holder.end().silently(0);
    for (url, text) in [
        ("file://relative/path", "the file URL of the store has no absolute path: write it as file:///directory"),
        ("file:///%zz", "the file URL of the store has a % without two hexadecimal digits: write % itself as %25"),
        (
            "/some/dir",
            "the store is no URL: write it as file:///directory or postgres://user@host/database, redis://host:6379, \
             rediss:// for TLS, redis+unix:///path, redis+sentinel://host:26379/master-name, redis+cluster://host:6379, or \
             valkey in place of redis",
        ),
        (
            "gopher://:secret@host",
            "no store has the scheme 'gopher' of the URL: write file:///directory or postgres://user@host/database, \
             redis://host:6379, rediss:// for TLS, redis+unix:///path, redis+sentinel://host:26379/master-name, \
             redis+cluster://host:6379, or valkey in place of redis",
        ),
    ] {
        lab.run(["--store", url, "inspect"]).said(64, text);
    }
}

/// Neither `: > lock` nor a message in the file makes the store unusable, or ends a lock.
#[test]
fn emptied_or_overwritten_lock_file_is_repaired_and_locks_stay() {
    for text in ["", "rlock: busy: 'k' is held\n", "transaction 7\ntable 8\n"] {
        let lab = Lab::new();
        let lock = lab.directory().join("state/lock");
        assert_eq!(lab.run(["acquire", "kept", "--for", "1h"]).code(), Some(0));
        let holder = lab.hold("k");
        for _ in 0..2 {
            fs::write(&lock, text).expect("the file can be written");
            lab.run(["exec", "other", "--", "true"]).silently(0);
            for name in ["k", "kept"] {
                lab.run(["exec", "-n", name, "--", "true"]).failed(75);
            }
        }
        fs::write(&lock, text).expect("the file can be written");
        assert_eq!(holder.end().code(), Some(0));
        fs::write(&lock, text).expect("the file can be written");
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        lab.run(["exec", "-n", "kept", "--", "true"]).failed(75);
        assert!(fs::read_to_string(&lock).expect("it is text").starts_with("rlock store, format "), "{text:?}");
    }
}

/// "The address space of a process that uses the embedded store: 64 MiB".
#[test]
fn limits_of_address_space_and_stack_are_met_or_named() {
    let lab = Lab::new();
    let run = |limit: &str| {
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        Ran::of(shell.args(["-c", &format!("ulimit {limit}; exec '{RLOCK}' exec k -- true")]))
    };
    run("-v 65536").silently(0);
    let ran = run("-v 24000");
    assert_eq!(ran.code(), Some(69), "{ran:?}");
    let words =
        "its table can't be mapped: cannot allocate memory: end processes, or raise the limit: ulimit -v unlimited\n";
    assert!(ran.stderr.ends_with(words), "{ran:?}");
    let ran = run("-s 64");
    let words = "rlock: its stack may have 64 KiB, and rlock needs 96: raise the limit: ulimit -s 8192\n";
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(125), words), "{ran:?}");
}
