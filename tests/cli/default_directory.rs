//! The default directory of the embedded store depends on host and uid alone, never on the
//! environment.
//!
//! The tests run in a mount namespace with their own /run, /etc/passwd and home directory, so they
//! never touch the locks of the machine.

use std::fs;
use std::process::Command;

use crate::users;
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran};

/// Runs a script as root in a mount namespace. `$LAB` is the folder of the lab, and no store is
/// named.
fn run(lab: &Lab, script: &str) -> Option<Ran> {
    let mut unshare = needs::mount_namespace_as_root()?;
    Some(Ran::of(prepared(lab, &mut unshare).args(["sh", "-ec", script])))
}

fn prepared<'a>(lab: &Lab, command: &'a mut Command) -> &'a mut Command {
    lab.settle(command);
    command.env_remove("RLOCK_STORE").env("RLOCK", RLOCK).env("LAB", lab.folder())
}

/// Like `run`, but `$AS_USER` runs a program as uid 65534. Needs root.
fn run_with_user(script: &str) -> Option<Ran> {
    if !needs::root("become another user") {
        return None;
    }
    let lab = users::shared_lab();
    let mut unshare = needs::mount_namespace_as_root()?;
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let command = prepared(&lab, &mut unshare).env("RLOCK", lab.folder().join("rlock")).env("AS_USER", user);
    Some(Ran::of(command.current_dir("/").args(["sh", "-ec", script])))
}

/// The default directory of root is /run/rlock in any environment.
#[test]
fn default_store_of_root_is_in_run_in_any_environment() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 1777 /run/lock
        "$RLOCK" exec k -- true
        HOME=/nowhere TMPDIR=/nowhere XDG_RUNTIME_DIR=/nowhere XDG_STATE_HOME=/nowhere USER=ann "$RLOCK" exec k -- true
        env -i "$RLOCK" exec k -- true
        stat -c '%a %u %n' /run/* /run/lock/*rlock* 2>/dev/null || true"#;
    let Some(ran) = run(&lab, script) else { return };
    ran.printed("1777 0 /run/lock\n700 0 /run/rlock\n");
}

/// Another user cannot create root's directory first, and a directory in /run/lock has no effect on
/// root.
#[test]
fn other_user_cannot_block_the_default_store_of_root() {
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 1777 /run/lock
        $AS_USER mkdir -m 700 /run/lock/rlock-0
        $AS_USER mkdir /run/rlock 2>/dev/null || echo refused
        "$RLOCK" exec k -- echo done"#;
    let Some(ran) = run_with_user(script) else { return };
    ran.printed("refused\ndone\n");
}

/// The default directory of another user is /run/lock/rlock-UID, if anyone may write to /run/lock.
#[test]
fn default_store_of_a_user_is_in_run_lock() {
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 1777 /run/lock
        $AS_USER "$RLOCK" exec k -- true
        $AS_USER env -i "$RLOCK" exec k -- true
        stat -c '%a %u %n' /run/lock/*"#;
    let Some(ran) = run_with_user(script) else { return };
    ran.printed("700 65534 /run/lock/rlock-65534\n");
}

/// The default directory has mode 0700, rlock checks its owner, and rlock follows no symbolic link.
#[test]
fn default_directory_that_is_not_private_exits_69() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=755 none /run
        fails() { "$RLOCK" exec k -- echo started 2>&1 || echo $?; }
        "$RLOCK" exec k -- true
        chmod 755 /run/rlock; fails
        chmod 1777 /run/rlock; fails
        rm -r /run/rlock; ln -s "$LAB" /run/rlock; fails
        rm /run/rlock; echo text > /run/rlock; fails"#;
    let Some(ran) = run(&lab, script) else { return };
    let line = |reason: &str| format!("rlock: the store in /run/rlock can't be used: {reason}\n69\n");
    let kind = "it is not a directory, or a symbolic link, which rlock does not follow";
    ran.printed(
        &[
            line("its permissions are 755: give it 700, for it is yours alone"),
            line("its permissions are 777: give it 700, for it is yours alone"),
            line(kind),
            line(kind),
        ]
        .concat(),
    );
    assert_eq!(fs::read_dir(lab.folder()).expect("the folder").count(), 0, "the link was followed");
}

/// The same for the owner. Only root can give a directory away.
#[test]
fn default_directory_of_another_owner_exits_69() {
    let lab = Lab::new();
    skip_unless!(needs::root("give a directory away"));
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 700 /run/rlock; chown 65534 /run/rlock
        "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run(&lab, script) else { return };
    ran.printed(
        "rlock: the store in /run/rlock can't be used: \
         it belongs to uid 65534, not to 0: have it removed, or name another with --store\n69\n",
    );
}

/// Otherwise the default directory is .local/state/rlock in the home directory of /etc/passwd.
/// Without a home directory rlock says so. A /run that others may write does not count as root's.
#[test]
fn default_store_of_root_is_in_the_passwd_home_if_run_is_open_to_others() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=1777 none /run
        mkdir "$LAB/home"
        echo "root:x:0:0::$LAB/home:/bin/sh" > "$LAB/passwd"
        mount --bind "$LAB/passwd" /etc/passwd
        umask 0777
        HOME=/nowhere "$RLOCK" exec k -- true
        stat -c %a "$LAB/home/.local/state/rlock"
        umask 022
        test ! -e /run/rlock
        echo "ann:x:1000:1000::/:/bin/sh" > "$LAB/passwd"
        "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run(&lab, script) else { return };
    ran.printed(
        "700\nrlock: the store has no place: /run is not a directory that only root may write, and user 0 has no home in \
         /etc/passwd; name a directory with --store file:///directory\n69\n",
    );
}

/// The same for another user, if /run/lock is closed.
#[test]
fn default_store_of_a_user_is_in_the_passwd_home_if_run_lock_is_closed() {
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 755 /run/lock
        mkdir -m 700 "$LAB/home"; chown 65534 "$LAB/home"
        echo "nobody:x:65534:65534::$LAB/home:/bin/sh" > "$LAB/passwd"
        mount --bind "$LAB/passwd" /etc/passwd
        $AS_USER "$RLOCK" exec k -- true
        stat -c %a "$LAB/home/.local/state/rlock"
        echo "ann:x:1000:1000::/:/bin/sh" > "$LAB/passwd"
        $AS_USER "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run_with_user(script) else { return };
    ran.printed(
        "700\nrlock: the store has no place: /run/lock is not a directory that anyone may write, and user 65534 has no home \
         in /etc/passwd; name a directory with --store file:///directory\n69\n",
    );
}

/// rlock reports a full disk or a read-only file system, and does not start the command.
#[test]
fn full_disk_exits_69_and_starts_no_command() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=755,size=8k none /run
        dd if=/dev/zero of=/run/full bs=4k count=2 2>/dev/null
        "$RLOCK" exec k -- echo started 2>&1 || echo $?
        rm /run/full
        mount -t tmpfs -o mode=755,ro none /run
        "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run(&lab, script) else { return };
    let line = |reason: &str| format!("rlock: the store in /run/rlock can't be used: {reason}\n69\n");
    ran.printed(
        &[
            line("no space left on device"),
            line("read-only file system: let the sandbox write there; another --store would exclude nobody here"),
        ]
        .concat(),
    );
}
