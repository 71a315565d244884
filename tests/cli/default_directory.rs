//! The store of those who name none: "the default directory depends on host and uid alone, never on the environment".
//!
//! The tests run with a /run/lock, an /etc/passwd and a home of their own, in a mount namespace, so they meet nobody's locks.

use std::fs;
use std::process::Command;

use rustix::process::geteuid;

use crate::privilege;
use crate::support::{Lab, RLOCK, Ran};

/// Runs a script by root in a mount namespace, where `$LAB` is the folder of the lab, with nothing named for a store.
fn run(lab: &Lab, script: &str) -> Option<Ran> {
    let mut unshare = privilege::namespaces("a /run/lock of its own", &["--mount"])?;
    Some(Ran::of(prepared(lab, &mut unshare).args(["sh", "-ec", script])))
}

fn prepared<'a>(lab: &Lab, command: &'a mut Command) -> &'a mut Command {
    lab.settle(command);
    command.env_remove("RLOCK_STORE").env("RLOCK", RLOCK).env("LAB", lab.folder())
}

/// The uid that the default directory is named after in the namespace.
const UID: u32 = 0;

/// "/run/lock/rlock-UID where /run/lock is a directory anyone may write"
#[test]
fn it_is_in_run_lock_whatever_the_environment_says() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=1777 none /run/lock
        show="'$RLOCK' inspect --json --namespace n | grep -o 'file:[^\"]*'"
        "$RLOCK" exec k -c "$show"
        HOME=/nowhere TMPDIR=/nowhere XDG_RUNTIME_DIR=/nowhere XDG_STATE_HOME=/nowhere USER=ann "$RLOCK" exec k -c "$show"
        env -i "$RLOCK" exec k -c "$show"
        stat -c '%a %u %n' /run/lock/*"#;
    let Some(ran) = run(&lab, script) else { return };
    let url = format!("file:///run/lock/rlock-{UID}\n");
    ran.printed(&format!("{}700 {UID} /run/lock/rlock-{UID}\n", url.repeat(3)));
}

/// "Mode 0700, owner checked, no symlink followed"
#[test]
fn it_must_be_private() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=1777 none /run/lock
        fails() { "$RLOCK" exec k -- echo started 2>&1 || echo $?; }
        "$RLOCK" exec k -- true
        chmod 755 /run/lock/rlock-0; fails
        chmod 1777 /run/lock/rlock-0; fails
        rm -r /run/lock/rlock-0; ln -s "$LAB" /run/lock/rlock-0; fails
        rm /run/lock/rlock-0; echo text > /run/lock/rlock-0; fails"#;
    let Some(ran) = run(&lab, script) else { return };
    let line = |reason: &str| format!("rlock: the store in /run/lock/rlock-{UID} can't be used: {reason}\n69\n");
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
    if !geteuid().is_root() && !privilege::is_root("to give a directory away") {
        return;
    }
    let script = r#"mount -t tmpfs -o mode=1777 none /run/lock
        mkdir -m 700 /run/lock/rlock-0; chown 65534 /run/lock/rlock-0
        "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run(&lab, script) else { return };
    ran.printed(
        "rlock: the store in /run/lock/rlock-0 can't be used: \
         it belongs to uid 65534, not to 0: have it removed, or name another with --store\n69\n",
    );
}

/// "else .local/state/rlock in the passwd home", and without one a line that says so
#[test]
fn it_is_in_the_home_of_etc_passwd_where_run_lock_is_closed() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=755 none /run/lock
        mkdir "$LAB/home"
        echo "root:x:0:0::$LAB/home:/bin/sh" > "$LAB/passwd"
        mount --bind "$LAB/passwd" /etc/passwd
        umask 0777
        HOME=/nowhere "$RLOCK" exec k -c '"$RLOCK" inspect --json --namespace n | grep -o "file:[^\"]*"'
        stat -c %a "$LAB/home/.local/state/rlock"
        umask 022
        echo "ann:x:1000:1000::/:/bin/sh" > "$LAB/passwd"
        "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run(&lab, script) else { return };
    let home = lab.folder().join("home");
    ran.printed(&format!(
        "file://{}/.local/state/rlock\n700\n\
         rlock: the store has no place: /run/lock is not for anybody to write and user 0 has no home in /etc/passwd; \
         name a directory with --store file:///directory\n69\n",
        home.display()
    ));
}

/// A full disk and a file system that can't be written are told, and nothing is started.
#[test]
fn a_full_disk_is_69_and_starts_nothing() {
    let lab = Lab::new();
    let script = r#"mount -t tmpfs -o mode=1777,size=8k none /run/lock
        dd if=/dev/zero of=/run/lock/full bs=4k count=2 2>/dev/null
        "$RLOCK" exec k -- echo started 2>&1 || echo $?
        rm /run/lock/full
        mount -t tmpfs -o mode=1777,ro none /run/lock
        "$RLOCK" exec k -- echo started 2>&1 || echo $?"#;
    let Some(ran) = run(&lab, script) else { return };
    let line = |reason: &str| format!("rlock: the store in /run/lock/rlock-{UID} can't be used: {reason}\n69\n");
    ran.printed(
        &[
            line("no space left on device"),
            line("read-only file system: name a directory that you may write with --store"),
        ]
        .concat(),
    );
}
