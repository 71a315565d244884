//! The store of those who name none: the default directory depends on host and uid alone, never on
//! the environment.
//!
//! The tests run with a /run, an /etc/passwd and a home of their own, in a mount namespace, so they
//! meet nobody's locks.

use std::fs;
use std::process::Command;

use crate::support::needs::{self, skip_unless};
use crate::support::{Lab, RLOCK, Ran};
use crate::users;

/// Runs a script by root in a mount namespace, where `$LAB` is the folder of the lab, with nothing
/// named for a store.
fn run(lab: &Lab, script: &str) -> Option<Ran> {
    let mut unshare = needs::mount_namespace_as_root()?;
    Some(Ran::of(prepared(lab, &mut unshare).args(["sh", "-ec", script])))
}

fn prepared<'a>(lab: &Lab, command: &'a mut Command) -> &'a mut Command {
    lab.settle(command);
    command.env_remove("RLOCK_STORE").env("RLOCK", RLOCK).env("LAB", lab.folder())
}

/// The same, where `$AS_USER` runs a program as uid 65534; needs root.
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

/// Root's default directory is /run/rlock, whatever the environment says.
#[test]
fn default_store_of_root_is_in_run_whatever_the_environment_says() {
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

/// No other user can create root's directory first: what another user puts into /run/lock does not
/// matter.
#[test]
fn another_user_cannot_keep_root_from_its_default_store() {
    let script = r#"mount -t tmpfs -o mode=755 none /run
        mkdir -m 1777 /run/lock
        $AS_USER mkdir -m 700 /run/lock/rlock-0
        $AS_USER mkdir /run/rlock 2>/dev/null || echo refused
        "$RLOCK" exec k -- echo done"#;
    let Some(ran) = run_with_user(script) else { return };
    ran.printed("refused\ndone\n");
}

/// The default directory of other users is /run/lock/rlock-UID where anyone may write to /run/lock.
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

/// The default directory has mode 0700, its owner is checked, and no symbolic link is followed.
#[test]
fn it_must_be_private() {
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

/// The same for the owner, whom only root can change.
#[test]
fn it_must_be_the_users_own() {
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

/// Else the default directory is .local/state/rlock in the passwd home; without a home, a line says
/// so. A /run that others may write is not root's.
#[test]
fn default_store_is_in_the_home_of_etc_passwd_where_run_is_open_or_missing() {
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

/// The same for a user, where /run/lock is closed.
#[test]
fn default_store_of_a_user_is_in_the_home_where_run_lock_is_closed() {
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

/// A full disk and a file system that can't be written are told, and nothing is started.
#[test]
fn a_full_disk_is_69_and_starts_nothing() {
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
            line("read-only file system: name a directory that you may write with --store"),
        ]
        .concat(),
    );
}
