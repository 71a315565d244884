//! An upgrade while locks are held, and two builds of one format at one store.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::install_deb;
use super::{Lab, RLOCK, Ran, package, sh};
use rlock_testkit::Running;
use rlock_testkit::needs::{programs, root as as_root, skip_unless};
use rlock_testkit::servers::Kind;

/// A holder of `k` by this program, or a waiter that becomes one.
fn requester(lab: &Lab, program: &Path) -> Running {
    let mut command = Command::new(program);
    lab.settle(&mut command);
    Running::waiter(command.args(["exec", "k"]))
}

/// Four requests by these programs are queued one after the other, and granted in this order.
fn granted_in_order(lab: &Lab, programs: [&Path; 4], between: impl FnOnce()) {
    let mut queue: Vec<Running> = Vec::new();
    let mut between = Some(between);
    for (index, program) in programs.into_iter().enumerate() {
        queue.push(requester(lab, program));
        if index == 0 {
            queue[0].expect_held();
        }
        lab.until_waiting("k", index);
        if index == 1 {
            between.take().expect("the index occurs once")();
            assert_eq!(lab.counts("k"), (1, 1), "the holder and the waiter are still there");
        }
    }
    for index in 0..queue.len() {
        let holder = queue.remove(0);
        holder.end();
        if let Some(next) = queue.first_mut() {
            next.expect_held();
            assert_eq!(lab.counts("k"), (1, 2 - index), "one of them at a time");
        }
    }
    lab.assert_idle();
}

/// The holder and the waiter run the old program, whose file the upgrade replaces.
#[test]
#[ignore = "needs packaging/build"]
fn upgrade_of_the_package_keeps_holds_and_order() {
    skip_unless!(as_root("install a package") && programs(&["dpkg", "dpkg-deb"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (root, next) = (folder.path().join("root"), folder.path().join("next.deb"));
    let script = "dpkg-deb -R \"$1\" \"$2\"
        sed -i 's/^Version: .*/Version: 1000.0-1/' \"$2/DEBIAN/control\"
        dpkg-deb --root-owner-group -b \"$2\" \"$3\"";
    sh(script, &[&package(".deb"), &folder.path().join("unpacked"), &next]);
    install_deb(&root, &package(".deb"));
    let program = root.join("usr/bin/rlock");
    granted_in_order(&Lab::new(), [&program; 4], || {
        install_deb(&root, &next);
        let version = sh("dpkg-query --admindir=\"$1/var/lib/dpkg\" -Wf '${Version}' rlock-cli", &[&root]);
        assert_eq!(version, "1000.0-1");
    });
}

/// A fleet is upgraded host by host, so two builds meet at one store.
fn two_builds_share_one_queue(lab: &Lab) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    sh("tar -xzf \"$2\" -C \"$1\" --strip-components 1", &[folder.path(), &package(".tar.gz")]);
    let (one, other) = (PathBuf::from(RLOCK), folder.path().join("bin/rlock"));
    granted_in_order(lab, [&one, &other, &one, &other], || {});
    granted_in_order(lab, [&other, &other, &one, &one], || {});
    // A hold that acquire made by one build is released by the other one.
    let mut acquire = Command::new(&one);
    lab.settle(&mut acquire);
    let session = Ran::of(acquire.args(["acquire", "k", "--for", "1h"])).stdout;
    let session = session.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION=")).expect("a session");
    let mut release = Command::new(&other);
    lab.settle(&mut release);
    Ran::of(release.args(["release", session])).silently(0);
}

#[test]
#[ignore = "needs packaging/build"]
fn two_builds_share_one_queue_on_the_embedded_store() {
    two_builds_share_one_queue(&Lab::new());
}

#[test]
#[ignore = "needs packaging/build"]
fn two_builds_share_one_queue_on_a_server() {
    Kind::Redis7.run(|kind| two_builds_share_one_queue(&Lab::on(kind)));
}
