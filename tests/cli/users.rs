//! One directory for several users: "a directory given by URL may be shared between users by its own permissions".

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::privilege;
use crate::support::{Lab, RLOCK, Ran, Running};

/// Two users who are not root, and a group of theirs that is nobody's first.
const ANN: u32 = 65534;
const BOB: u32 = 65533;
const GROUP: u32 = 64999;

/// A lab whose folder anybody may enter, with a copy of the program, since the place where it was built may be closed to others.
pub(crate) fn shared_lab() -> Lab {
    let lab = Lab::new();
    fs::set_permissions(lab.folder(), Permissions::from_mode(0o755)).expect("its permissions");
    // By another process: the children of this one's other threads would have the copy open for writing, and then it can't
    // be run.
    let copy = Command::new("cp").args([RLOCK.as_ref(), lab.folder().as_os_str()]).status();
    assert!(copy.is_ok_and(|status| status.success()), "the program can't be copied");
    lab
}

/// A user with his first group and another that he is a member of.
#[derive(Clone, Copy)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
    other: u32,
}

/// A user in no groups but his own.
pub(crate) const fn alone(uid: u32) -> User {
    User { uid, gid: uid, other: uid }
}

impl User {
    /// A program run by this user; needs root.
    pub(crate) fn program(self, lab: &Lab, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        lab.settle(&mut command);
        let Self { uid, gid, other } = self;
        command.args([format!("--reuid={uid}"), format!("--regid={gid}"), format!("--groups={other}")]);
        command.current_dir("/").arg(program);
        command
    }

    /// The program under test on the lab's store, run by this user.
    pub(crate) fn rlock(self, lab: &Lab, words: &[&str]) -> Command {
        let mut command = self.program(lab, &lab.folder().join("rlock"));
        command.args(words);
        command
    }
}

/// Two users who may both write into a directory of this mode and these owners.
struct Sharing {
    mode: u32,
    owner: (u32, u32),
    ann: User,
    bob: User,
}

/// Users whose first group is the same.
const COLLEAGUES: [User; 2] =
    [User { uid: ANN, gid: GROUP, other: GROUP }, User { uid: BOB, gid: GROUP, other: GROUP }];
/// Users who have a group of their own first, as most systems give it to them.
const MEMBERS: [User; 2] = [User { uid: ANN, gid: ANN, other: GROUP }, User { uid: BOB, gid: BOB, other: GROUP }];

const SHARINGS: [Sharing; 5] = [
    Sharing { mode: 0o1777, owner: (0, 0), ann: alone(ANN), bob: alone(BOB) },
    Sharing { mode: 0o2770, owner: (0, GROUP), ann: COLLEAGUES[0], bob: COLLEAGUES[1] },
    Sharing { mode: 0o2770, owner: (ANN, GROUP), ann: MEMBERS[0], bob: MEMBERS[1] },
    Sharing { mode: 0o0770, owner: (0, GROUP), ann: COLLEAGUES[0], bob: COLLEAGUES[1] },
    Sharing { mode: 0o0770, owner: (0, GROUP), ann: MEMBERS[0], bob: MEMBERS[1] },
];

impl Sharing {
    fn lab(&self) -> Lab {
        let lab = shared_lab();
        fs::create_dir(lab.directory()).expect("a folder");
        chown(lab.directory(), Some(self.owner.0), Some(self.owner.1)).expect("it can be given away");
        fs::set_permissions(lab.directory(), Permissions::from_mode(self.mode)).expect("its permissions");
        lab
    }

    /// Ann's and Bob's program with the same words.
    fn both(&self, lab: &Lab, words: &[&str]) -> [Command; 2] {
        [self.ann.rlock(lab, words), self.bob.rlock(lab, words)]
    }
}

/// Each of two users waits for the other, and what one of them leaves behind is in nobody's way.
#[test]
fn users_queue_behind_each_other_and_reap_each_others_dead() {
    if !privilege::is_root("to become two users") {
        return;
    }
    for sharing in SHARINGS {
        let Sharing { mode, owner, .. } = sharing;
        println!("mode {mode:o}, owner {owner:?}");
        let lab = sharing.lab();
        for turn in 0..2 {
            let pair = |words: &[&str]| {
                let mut pair = sharing.both(&lab, words);
                pair.rotate_left(turn);
                pair
            };
            let [mut one, mut other] = pair(&["exec", "k"]);
            let mut first = Running::waiter(&mut one);
            first.expect_held();
            let mut second = Running::waiter(&mut other);
            lab.until_waiting("k", 1);
            let [mut one, mut other] = pair(&["exec", "-nq", "k", "--", "true"]);
            Ran::of(&mut one).silently(75);
            Ran::of(&mut other).silently(75);
            first.end().silently(0);
            second.expect_held();
            // Killed while the other one waits, and killed while nobody does.
            let [mut one, _] = pair(&["exec", "k"]);
            let mut third = Running::waiter(&mut one);
            lab.until_waiting("k", 1);
            second.kill();
            third.expect_held();
            third.kill();
            let [_, mut other] = pair(&["exec", "-n", "k", "--", "true"]);
            Ran::of(&mut other).silently(0);
        }
        lab.assert_idle();
    }
}

/// Cleaning up and breaking work across users as well, and who inspects sees whose the lock is.
#[test]
fn users_see_clean_and_break_each_others_locks() {
    if !privilege::is_root("to become two users") {
        return;
    }
    for sharing in SHARINGS {
        let lab = sharing.lab();
        let [mut ann, _] = sharing.both(&lab, &["exec", "k"]);
        let mut holder = Running::waiter(&mut ann);
        holder.expect_held();
        let user = lab.inspect(["k"])["resources"][0]["holders"][0]["user"].as_str().expect("a user").to_owned();
        assert!(["nobody".to_owned(), ANN.to_string()].contains(&user), "{user}");
        let [_, mut bob] = sharing.both(&lab, &["cleanup", "--break", "k"]);
        let broke = Ran::of(&mut bob);
        assert!(broke.stdout.starts_with("broke the hold for write on 'k' (whole) of "), "{broke:?}");
        crate::support::wait_until("the holder ends", || !holder.runs());
        assert_eq!(holder.end().code(), Some(76));
        let [mut ann, _] = sharing.both(&lab, &["exec", "k"]);
        let mut holder = Running::waiter(&mut ann);
        holder.expect_held();
        holder.kill();
        let [_, mut bob] = sharing.both(&lab, &["cleanup"]);
        let removed = Ran::of(&mut bob);
        assert!(removed.stdout.starts_with("removed the hold for write on 'k' (whole) of "), "{removed:?}");
        lab.assert_idle();
    }
}

/// "shared … by its own permissions": who may not write there may not lock, and nothing is open to more than the directory is.
#[test]
fn the_directorys_permissions_say_who_may() {
    if !privilege::is_root("to become two users") {
        return;
    }
    for (mode, folder, file) in
        [(0o1777, 0o777, 0o666), (0o2770, 0o2770, 0o660), (0o0770, 0o770, 0o660), (0o0755, 0o700, 0o600)]
    {
        for umask in ["0", "0777"] {
            let sharing = Sharing { mode, owner: (ANN, GROUP), ann: MEMBERS[0], bob: alone(BOB) };
            let lab = sharing.lab();
            let script = format!("umask {umask}; exec '{}' exec k -- true", lab.folder().join("rlock").display());
            Ran::of(sharing.ann.program(&lab, Path::new("sh")).args(["-c", &script])).silently(0);
            let state = lab.directory().join("state");
            let found = [state.clone(), state.join("lock"), state.join("table")].map(|path| {
                let stat = fs::metadata(path).expect("it is there");
                (stat.mode() & 0o7777, stat.uid(), stat.gid())
            });
            let group = if file == 0o600 { ANN } else { GROUP };
            let expected = [folder, file, file].map(|mode| (mode, ANN, group));
            assert_eq!(found, expected, "mode {mode:o}, umask {umask}");
            let stranger = Ran::of(&mut sharing.bob.rlock(&lab, &["exec", "k", "--", "true"]));
            if mode == 0o1777 {
                stranger.silently(0);
            } else {
                assert!(stranger.failed(69).contains("can't be used: permission denied: "), "{stranger:?}");
            }
        }
    }
}
