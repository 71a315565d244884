//! One directory for several users: the permissions of a directory given by URL decide which users
//! share it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::fs::FileType;
use serde_json::Value;

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, Running};

/// Two users other than root, and a group that is no user's primary group by default.
const ANN: u32 = 65534;
const BOB: u32 = 65533;
const GROUP: u32 = 64999;

/// Creates a lab whose folder any user may enter. The lab has a copy of the program, since the
/// build directory may be closed to other users.
pub(crate) fn shared_lab() -> Lab {
    let lab = Lab::new();
    fs::set_permissions(lab.folder(), Permissions::from_mode(0o755)).expect("its permissions");
    // Another process copies the file. If this process did, children of its other threads could
    // inherit the open copy, and the copy could not be executed.
    let copy = Command::new("cp").args([RLOCK.as_ref(), lab.folder().as_os_str()]).status();
    assert!(copy.is_ok_and(|status| status.success()), "the program can't be copied");
    lab
}

/// A user with a primary group and one more group.
#[derive(Clone, Copy)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
    other: u32,
}

/// A user whose only group has the number of the user.
pub(crate) const fn alone(uid: u32) -> User {
    User { uid, gid: uid, other: uid }
}

impl User {
    /// Makes a command that runs a program as this user. Needs root.
    pub(crate) fn program(self, lab: &Lab, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        lab.settle(&mut command);
        let Self { uid, gid, other } = self;
        command.args([format!("--reuid={uid}"), format!("--regid={gid}"), format!("--groups={other}")]);
        command.current_dir("/").arg(program);
        command
    }

    /// Makes a command that runs the program under test on the lab's store as this user.
    pub(crate) fn rlock(self, lab: &Lab, words: &[&str]) -> Command {
        let mut command = self.program(lab, &lab.folder().join("rlock"));
        command.args(words);
        command
    }
}

/// Two users, and the mode and owners of a directory that both may write.
struct Sharing {
    mode: u32,
    owner: (u32, u32),
    ann: User,
    bob: User,
}

/// Users with the same primary group.
const COLLEAGUES: [User; 2] =
    [User { uid: ANN, gid: GROUP, other: GROUP }, User { uid: BOB, gid: GROUP, other: GROUP }];
/// Users whose primary group is their own, as on most systems.
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
        chown(lab.directory(), Some(self.owner.0), Some(self.owner.1)).expect("root can give the directory away");
        fs::set_permissions(lab.directory(), Permissions::from_mode(self.mode)).expect("its permissions");
        lab
    }

    /// Returns the output of `rlock inspect --json` for Ann, since root uses no directory of
    /// another user.
    fn inspect(&self, lab: &Lab) -> Value {
        let ran = Ran::of(&mut self.ann.rlock(lab, &["inspect", "--json"]));
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "inspect fails");
        serde_json::from_str(&ran.stdout).expect("inspect --json prints JSON")
    }

    /// Waits until one request waits for the only resource.
    fn until_waiting(&self, lab: &Lab) {
        let waiters = || self.inspect(lab)["resources"][0]["waiters"].as_array().map_or(0, Vec::len);
        rlock_testkit::wait_until("a request waits", || waiters() == 1);
    }

    /// Fails unless the store has no holder and no waiter and no file was left behind.
    fn assert_idle(&self, lab: &Lab) {
        assert_eq!(lab.files(), ["lock", "table"]);
        assert_eq!(self.inspect(lab)["resources"], serde_json::json!([]));
    }

    /// The same command for Ann and for Bob.
    fn both(&self, lab: &Lab, words: &[&str]) -> [Command; 2] {
        [self.ann.rlock(lab, words), self.bob.rlock(lab, words)]
    }
}

/// Each of two users waits for the other, and each reaps the dead sessions of the other.
#[test]
fn users_wait_for_each_other_and_reap_each_others_dead_sessions() {
    skip_unless!(needs::root("become two users"));
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
            sharing.until_waiting(&lab);
            let [mut one, mut other] = pair(&["exec", "-nq", "k", "--", "true"]);
            Ran::of(&mut one).silently(75);
            Ran::of(&mut other).silently(75);
            first.end().silently(0);
            second.expect_held();
            // One holder is killed while another request waits, the next while none waits.
            let [mut one, _] = pair(&["exec", "k"]);
            let mut third = Running::waiter(&mut one);
            sharing.until_waiting(&lab);
            second.kill();
            third.expect_held();
            third.kill();
            let [_, mut other] = pair(&["exec", "-n", "k", "--", "true"]);
            Ran::of(&mut other).silently(0);
        }
        sharing.assert_idle(&lab);
    }
}

/// `cleanup`, `cleanup --break` and `inspect` work across users, and `inspect` shows the user of
/// the holder.
#[test]
fn inspect_and_cleanup_work_across_users() {
    skip_unless!(needs::root("become two users"));
    for sharing in SHARINGS {
        let lab = sharing.lab();
        let [mut ann, _] = sharing.both(&lab, &["exec", "k"]);
        let mut holder = Running::waiter(&mut ann);
        holder.expect_held();
        let user = sharing.inspect(&lab)["resources"][0]["holders"][0]["user"].as_str().expect("a user").to_owned();
        assert!(["nobody".to_owned(), ANN.to_string()].contains(&user), "{user}");
        let [_, mut bob] = sharing.both(&lab, &["cleanup", "--break", "k"]);
        let broke = Ran::of(&mut bob);
        assert!(broke.stdout.starts_with("broke the hold for write on 'k' (whole) of "), "{broke:?}");
        rlock_testkit::wait_until("the holder ends", || !holder.runs());
        assert_eq!(holder.end().code(), Some(76));
        let [mut ann, _] = sharing.both(&lab, &["exec", "k"]);
        let mut holder = Running::waiter(&mut ann);
        holder.expect_held();
        holder.kill();
        let [_, mut bob] = sharing.both(&lab, &["cleanup"]);
        let removed = Ran::of(&mut bob);
        assert!(removed.stdout.starts_with("removed the hold for write on 'k' (whole) of "), "{removed:?}");
        sharing.assert_idle(&lab);
    }
}

/// The directory's permissions decide: a user who may not write to it may not lock. The files in it
/// are as open as the directory.
#[test]
fn permissions_of_the_directory_decide_which_users_may_lock() {
    skip_unless!(needs::root("become two users"));
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
                let stat = fs::metadata(path).expect("the path exists");
                (stat.mode() & 0o7777, stat.uid(), stat.gid())
            });
            let group = if file == 0o600 { ANN } else { GROUP };
            let expected = [folder, file, file].map(|mode| (mode, ANN, group));
            assert_eq!(found, expected, "mode {mode:o}, umask {umask}");
            let stranger = Ran::of(&mut sharing.bob.rlock(&lab, &["exec", "k", "--", "true"]));
            if mode == 0o1777 {
                stranger.silently(0);
            } else {
                assert!(stranger.failed(69).contains("can't be used: permission denied for user "), "{stranger:?}");
            }
        }
    }
}

/// "A session of another user is not an ancestor of a request, whatever `RLOCK_SESSION` says,
/// unless one of the two users is root."
#[test]
fn session_of_another_user_is_no_ancestor_unless_one_user_is_root() {
    skip_unless!(needs::root("become two users"));
    let sharing = &SHARINGS[0];
    let lab = sharing.lab();
    let [mut ann, _] = sharing.both(&lab, &["range-write", "k", "1", "5"]);
    let mut holder = Running::waiter(&mut ann);
    holder.expect_held();
    let found = lab.inspect(["k"]);
    let session = found["resources"][0]["holders"][0]["session"].as_str().expect("a session").to_owned();
    let below = |mut command: Command| Ran::of(command.env("RLOCK_SESSION", &session));
    let words = ["range-write", "k", "2", "3", "-n", "--", "echo", "let in"];
    let [ann, bob] = sharing.both(&lab, &words);
    below(ann).printed("let in\n");
    let busy = below(bob);
    assert!(busy.failed(75).contains("busy: [1,5] of 'k' is held for write by "), "{busy:?}");
    below(lab.rlock(words)).printed("let in\n");
    for words in [&["shrink", "--resource", "k", "2", "3"][..], &["downgrade", "--resource", "k", "read"]] {
        let [_, bob] = sharing.both(&lab, words);
        let text = format!(
            "refused: session {session} belongs to uid {ANN}: only that user and root can change what it holds"
        );
        below(bob).said(65, &text);
    }
    assert_eq!(lab.inspect(["k"]), found, "the hold was changed");
    holder.end().silently(0);
    // Root's session is an ancestor of a request of any user.
    let mut holder = Running::waiter(&mut lab.rlock(["exec", "k"]));
    holder.expect_held();
    let found = lab.inspect(["k"]);
    let session = found["resources"][0]["holders"][0]["session"].as_str().expect("a session").to_owned();
    let [_, mut bob] = sharing.both(&lab, &["exec", "-n", "k", "--", "echo", "let in"]);
    Ran::of(bob.env("RLOCK_SESSION", &session)).printed("let in\n");
    holder.end().silently(0);
}

/// RestrictSUIDSGID=yes of systemd, which DynamicUser=yes implies, refuses to set the bit.
#[test]
fn folder_inherits_the_setgid_bit_where_nobody_may_set_it() {
    skip_unless!(needs::programs(&["python3", "cc"]));
    let lab = Lab::new();
    fs::create_dir(lab.directory()).expect("a folder");
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o2770)).expect("its permissions");
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/refuse"));
    lab.settle(&mut command);
    let refused = [
        "mkdir&0xc00@2",
        "mkdirat&0xc00@3",
        "chmod&0xc00@2",
        "fchmod&0xc00@2",
        "fchmodat&0xc00@3",
        "fchmodat2&0xc00@3",
    ];
    Ran::of(command.args(refused).args(["--", RLOCK, "exec", "k", "--", "true"])).silently(0);
    let state = fs::metadata(lab.directory().join("state")).expect("the folder was made");
    assert_eq!(state.permissions().mode() & 0o7777, 0o2770);
}

/// "Root uses only a directory that belongs to root, since the owner of any other could mislead
/// root with its contents."
#[test]
fn root_refuses_a_directory_of_another_user() {
    skip_unless!(needs::root("be root beside a user"));
    for mode in [0o700, 0o755, 0o2770] {
        let lab = Sharing { mode, owner: (ANN, GROUP), ann: MEMBERS[0], bob: MEMBERS[1] }.lab();
        let text = format!(
            "the store in {} can't be used: it belongs to uid {ANN}, who could mislead root with what is in it: run rlock as \
             that user, or give the directory to root",
            lab.directory().display()
        );
        lab.run(["exec", "k", "--", "true"]).said(69, &text);
        assert_eq!(fs::read_dir(lab.directory()).expect("a folder").count(), 0);
    }
}

/// A user who may write to a shared directory can replace a beacon. "A holder whose files in the
/// directory were replaced counts as alive."
#[test]
fn holder_with_a_replaced_beacon_still_excludes_others() {
    skip_unless!(needs::root("become two users"));
    type Replace = fn(&Path);
    let replacements: [(&str, Replace); 4] = [
        ("a pipe that nobody reads", |path| make(path, FileType::Fifo)),
        ("a file", |path| make(path, FileType::RegularFile)),
        ("a socket", |path| make(path, FileType::Socket)),
        ("a link", |path| std::os::unix::fs::symlink("/dev/null", path).expect("a link")),
    ];
    for (what, replace) in replacements {
        let sharing = &SHARINGS[0];
        let lab = sharing.lab();
        let [mut ann, mut bob] = sharing.both(&lab, &["exec", "k"]);
        let mut holder = Running::waiter(&mut ann);
        holder.expect_held();
        let files = lab.files();
        let name = files.iter().find(|name| name.len() == 32).expect("the beacon");
        let beacon = lab.directory().join("state").join(name);
        fs::remove_file(&beacon).expect("a beacon");
        replace(&beacon);
        chown(&beacon, Some(BOB), None).or_else(|_| std::os::unix::fs::lchown(&beacon, Some(BOB), None)).expect(what);
        let [_, mut busy] = sharing.both(&lab, &["exec", "-nq", "k", "--", "true"]);
        Ran::of(&mut busy).silently(75);
        let mut waiter = Running::waiter(&mut bob);
        lab.until_waiting("k", 1);
        assert_eq!(lab.counts("k"), (1, 1), "{what}");
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
    }
}

/// "Whatever another user removes, and whatever boot the lock file names."
#[test]
fn holder_whose_pipe_another_user_removed_still_excludes_others() {
    skip_unless!(needs::root("become two users"));
    for sharing in SHARINGS {
        let lab = sharing.lab();
        let [mut ann, mut bob] = sharing.both(&lab, &["exec", "k"]);
        let mut holder = Running::waiter(&mut ann);
        holder.expect_held();
        let attack = "cd \"$1/state\" && rm -f ????????????????????????????????; printf 'rlock store, format 4\\nboot 1-2\\n' >lock";
        let mut attacker = sharing.bob.program(&lab, Path::new("sh"));
        Ran::of(attacker.args(["-c", attack, "sh"]).arg(lab.directory())).silently(0);
        assert_eq!(lab.files(), ["lock", "table"]);
        let [_, mut busy] = sharing.both(&lab, &["exec", "-nq", "k", "--", "true"]);
        Ran::of(&mut busy).silently(75);
        let mut waiter = Running::waiter(&mut bob);
        sharing.until_waiting(&lab);
        holder.end().silently(0);
        waiter.expect_held();
        // Without its pipe, a killed holder is found dead by its process.
        let attacker = |script: &str| {
            Ran::of(
                sharing
                    .ann
                    .program(&lab, Path::new("sh"))
                    .args(["-c", script])
                    .current_dir(lab.directory().join("state")),
            )
        };
        attacker("rm -f ????????????????????????????????").silently(0);
        waiter.kill();
        let [mut ann, _] = sharing.both(&lab, &["exec", "-n", "k", "--", "true"]);
        Ran::of(&mut ann).silently(0);
    }
}

fn make(path: &Path, kind: FileType) {
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, 0o666.into(), 0).expect("a file of any kind");
}

/// A user of a shared directory cannot make root write outside of the directory.
#[test]
fn root_follows_no_link_in_a_shared_directory() {
    skip_unless!(needs::root("be root beside a user"));
    let sharing = &SHARINGS[1];
    let lab = sharing.lab();
    let made = || {
        let [mut ann, _] = sharing.both(&lab, &["exec", "k", "--", "true"]);
        Ran::of(&mut ann).silently(0);
    };
    let (state, elsewhere) = (lab.directory().join("state"), lab.folder().join("elsewhere"));
    fs::create_dir(&elsewhere).expect("a folder");
    for name in ["lock", "table"] {
        made();
        let target = elsewhere.join(name);
        fs::remove_file(state.join(name)).expect("rlock created the file");
        std::os::unix::fs::symlink(&target, state.join(name)).expect("a link");
        lab.run(["exec", "k", "--", "true"]).failed(69);
        fs::remove_file(state.join(name)).expect("the link");
        assert!(!target.exists(), "{name} was made where the link leads");
    }
    made();
    fs::rename(&state, lab.directory().join("aside")).expect("a new name");
    std::os::unix::fs::symlink(&elsewhere, &state).expect("a link");
    lab.run(["exec", "k", "--", "true"]).failed(69);
    assert_eq!(fs::read_dir(&elsewhere).expect("a folder").count(), 0);
}

/// "A holder that finds that other processes now use other files loses the lock (76)." A waiter
/// exits 69.
#[test]
fn replaced_state_ends_its_holder_with_76_and_its_waiter_with_69() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let state = lab.directory().join("state");
    fs::rename(&state, lab.directory().join("aside")).expect("a new name");
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    let ended = holder.end();
    assert_eq!(ended.code(), Some(76), "{ended:?}");
    let told = waiter.end();
    let text = format!(
        "cannot lock 'k': the store in {} can't be used: somebody has removed or replaced its files while it was in use: run rlock again",
        lab.directory().display()
    );
    told.said(69, &text);
}

/// "A holder that finds that other processes now use other files loses the lock (76)."
#[test]
fn holder_whose_store_was_renamed_exits_76() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    fs::rename(lab.directory(), lab.folder().join("aside")).expect("a new name");
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    holder.end().said(76, &replaced(&lab));
}

/// The line of a holder whose command has ended after the store was replaced.
fn replaced(lab: &Lab) -> String {
    let path = lab.directory().display();
    format!(
        "lost: 'k' was taken away: the files of '{path}' were removed, replaced or mounted over; the command has \
         ended, but maybe too late"
    )
}

#[test]
fn holder_whose_store_was_mounted_over_exits_76() {
    let lab = Lab::new();
    let Some(mut unshare) = needs::mount_namespace_as_root() else { return };
    lab.settle(&mut unshare);
    let script = "\"$0\" exec k -c 'echo > held; until [ -e go ]; do sleep 0.01; done' & holder=$!
        until [ -e held ]; do sleep 0.01; done
        mount -t tmpfs -o mode=700 none \"$1\" || exit 1
        \"$0\" exec -n k -- true || exit 2
        echo > go; wait $holder";
    let ran = Ran::of(unshare.args(["sh", "-c", script, RLOCK]).arg(lab.directory()).current_dir(lab.folder()));
    ran.said(76, &replaced(&lab));
}
