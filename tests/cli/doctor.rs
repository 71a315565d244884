//! `rlock doctor`.

use serde_json::Value;

use crate::support::{Lab, on_both};

fn checks(lab: &Lab) -> Vec<Value> {
    let ran = lab.run(["doctor", "--json"]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(found["usable"], true);
    found["checks"].as_array().expect("a list").clone()
}

/// "a line per check, ok, warn, fail or unknown, with the cure … Exit 0".
#[test]
fn usable_store_passes_and_each_doubt_has_a_cure() {
    on_both(|lab| {
        let found = checks(lab);
        for check in &found {
            let verdict = check["verdict"].as_str().expect("text");
            assert!(["ok", "warn", "unknown"].contains(&verdict), "{check}");
            assert_eq!(check["cure"].is_null(), verdict == "ok", "{check}");
        }
        let store = found[0]["found"].as_str().expect("text");
        assert!(store.starts_with(&lab.url()) && store.ends_with("chosen by RLOCK_STORE"), "{store}");
        let locks = found.last().expect("there are checks");
        assert_eq!([&locks["name"], &locks["verdict"]], ["locks", "ok"]);
        let lines = lab.run(["doctor"]).stdout;
        assert_eq!(lines.lines().count(), found.len(), "{lines}");
        // The self-test leaves nothing behind.
        assert_eq!(lab.inspect([""; 0])["resources"], serde_json::json!([]));
    });
}

/// "or 69 if something makes rlock unusable."
#[test]
fn unusable_store_fails_with_a_cure_and_exits_69() {
    for (url, name) in [("redis://127.0.0.1:1", "connection"), ("gopher://h", "store"), ("file:///proc/x", "store")] {
        let lab = Lab::at(url);
        let ran = lab.run(["doctor"]);
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(69), ""), "{ran:?}");
        let last = ran.stdout.lines().last().expect("there is a line");
        assert!(last.starts_with("fail ") && last.contains(name) && last.contains(": "), "{last}");
    }
}
