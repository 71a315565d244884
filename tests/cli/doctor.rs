//! `rlock doctor`.

use std::process::Command;

use rustix::io::Errno;
use serde_json::Value;

use rlock_testkit::needs;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, RLOCK, Ran, on_both, system_words};

fn checks(lab: &Lab) -> Vec<Value> {
    let ran = lab.run(["doctor", "--json"]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(found["usable"], true);
    found["checks"].as_array().expect("a list").clone()
}

/// "a line per check, ok, warn, fail or unknown, with the remedy … Exit 0".
#[test]
fn usable_store_passes_and_each_doubt_has_a_remedy() {
    on_both(|lab| {
        let found = checks(lab);
        for check in &found {
            let verdict = check["verdict"].as_str().expect("text");
            assert!(["ok", "warn", "unknown"].contains(&verdict), "{check}");
            assert_eq!(check["cure"].is_null(), verdict == "ok", "{check}");
        }
        let store = found[0]["found"].as_str().expect("text");
        assert!(store.starts_with(&lab.url()) && store.contains(", chosen by RLOCK_STORE, which sudo "), "{store}");
        let locks = found.last().expect("there are checks");
        assert_eq!([&locks["name"], &locks["verdict"]], ["locks", "ok"]);
        let lines = lab.run(["doctor"]).stdout;
        assert_eq!(lines.lines().count(), found.len(), "{lines}");
    });
}

/// "The test leaves nothing behind."
#[test]
fn self_test_leaves_neither_a_key_nor_a_row() {
    on_both(|lab| {
        checks(lab);
        assert_eq!(lab.inspect([""; 0])["resources"], serde_json::json!([]));
        for words in [&["history", "--json"][..], &["history", "--stats", "--json"]] {
            let ran = lab.run(words);
            let found: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
            assert_eq!(found["resources"], serde_json::json!([]), "{words:?}");
        }
        let metrics = lab.run(["inspect", "--prometheus"]).stdout;
        assert!(!metrics.contains("rlock-doctor"), "{metrics}");
    });
    Kind::Redis7.run(|kind| {
        let server = Server::start(kind);
        checks(&Lab::at(server.url()));
        assert_eq!(server.ask::<u64>(&["DBSIZE"]), 0);
    });
}

/// "Which store and why this one, who else can see it, who may write, what a lock costs here, how
/// many names are held and waited for".
#[test]
fn newcomer_learns_who_shares_the_store_and_what_a_lock_costs() {
    on_both(|lab| {
        let found = |lab: &Lab, name: &str| {
            let checks = checks(lab);
            let check = checks.iter().find(|check| check["name"] == name).expect("the check");
            assert_eq!(check["verdict"], "ok", "{check}");
            check["found"].as_str().expect("text").to_owned()
        };
        let is_server = lab.is_on_server();
        let (seen, writers) = (found(lab, "seen by"), found(lab, "written by"));
        assert_eq!(seen.starts_with("every machine that reaches the server"), is_server, "{seen}");
        assert_eq!(writers.starts_with("clients with the rights of its user '"), is_server, "{writers}");
        assert!(found(lab, "cost").ends_with("ms for a lock and its release"));
        assert_eq!(found(lab, "names"), "held: 0; waited for: 0");
        let holder = lab.hold("k");
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let other = lab.hold("j");
        assert_eq!(found(lab, "names"), "held: 2; waited for: 1");
        other.end().silently(0);
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
    });
}

/// "or 69 if something makes rlock unusable."
#[test]
fn unusable_store_fails_with_a_remedy_and_exits_69() {
    for (url, name) in [("redis://127.0.0.1:1", "connection"), ("gopher://h", "store"), ("file:///proc/x", "store")] {
        let lab = Lab::at(url);
        let ran = lab.run(["doctor"]);
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(69), ""), "{ran:?}");
        let last = ran.stdout.lines().last().expect("there is a line");
        assert!(last.starts_with("fail ") && last.contains(name) && last.contains(": "), "{last}");
    }
}

/// "doctor has a remedy line for inodes, descriptors and memory used up".
#[test]
fn resource_that_is_used_up_has_a_remedy() {
    let lab = Lab::new();
    for (limit, reason, remedy) in [
        ("ulimit -n 4", Errno::MFILE, "raise the limit: ulimit -n 1024"),
        ("ulimit -v 24000", Errno::NOMEM, "end processes, or raise the limit: ulimit -v unlimited"),
    ] {
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        let ran = Ran::of(shell.args(["-c", &format!("{limit}; exec '{RLOCK}' doctor")]));
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(69), ""), "{ran:?}");
        assert!(ran.stdout.ends_with(&format!(": {}: {remedy}\n", system_words(reason))), "{ran:?}");
    }
    let Some(mut unshare) = needs::mount_namespace_as_root() else { return };
    lab.settle(&mut unshare);
    let script = "mkdir \"$LAB/d\"; mount -t tmpfs -o nr_inodes=2 none \"$LAB/d\"; exec \"$RLOCK\" doctor --store \"file://$LAB/d\"";
    unshare.args(["sh", "-ec", script]).env("LAB", lab.folder()).env("RLOCK", RLOCK);
    let ran = Ran::of(&mut unshare);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(69), ""), "{ran:?}");
    let remedy =
        "no space left on device: delete files on the file system, where df -h and df -i show what is used up\n";
    assert!(ran.stdout.ends_with(remedy), "{ran:?}");
}

/// "doctor says 'only user NAME locks here' for a per-user store".
#[test]
fn store_of_one_user_is_told_from_a_shared_one() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let directory = |lab: &Lab| checks(lab)[1]["found"].as_str().expect("text").to_owned();
    let user = Ran::of(Command::new("id").arg("-un")).stdout;
    let ending = format!("; only user {} locks here", user.trim());
    assert!(directory(&lab).ends_with(&ending), "{}", directory(&lab));
    std::fs::set_permissions(lab.directory(), std::fs::Permissions::from_mode(0o2770)).expect("its permissions");
    assert!(directory(&lab).ends_with("mode 2770"), "{}", directory(&lab));
}
