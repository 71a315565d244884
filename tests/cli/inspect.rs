//! `rlock inspect`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Fails unless the value is an RFC 3339 time in UTC.
fn assert_time(value: &Value) {
    let text = value.as_str().expect("a time is text");
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{text}");
}

/// The JSON has exactly the documented keys, with values of the documented types.
#[test]
fn json_has_the_documented_keys_and_types() {
    on_both(|lab| {
        let holder = lab.hold_by(["range-write", "k", "[-1.20,inf)", "--ttl", "20s"]);
        let waiter = lab.wait_by(["exec", "--read", "k"]);
        lab.until_waiting("k", 1);
        let shown = lab.inspect([""; 0]);
        assert_eq!(keys(&shown), BTreeSet::from(["store", "resources"]));
        assert_eq!(shown["store"], lab.url());
        let resource = &shown["resources"][0];
        assert_eq!(keys(resource), BTreeSet::from(["name", "holders", "waiters"]));
        assert_eq!(resource["name"], "k");

        let both = "session mode span slots count host pid user command owner reason since".split(' ');
        let held = &resource["holders"][0];
        assert_eq!(keys(held), both.clone().chain(["token", "expires_in_ms", "kept", "revoked"]).collect());
        let waits = &resource["waiters"][0];
        assert_eq!(keys(waits), both.chain(["position"]).collect());

        assert_eq!([&held["mode"], &waits["mode"]], ["write", "read"]);
        // The span is shown as the user wrote it.
        assert_eq!(held["span"], json!({"lo": "-1.20", "hi": "inf", "lo_open": false, "hi_open": true}));
        assert_eq!([&waits["span"], &waits["slots"], &held["slots"]], [&Value::Null; 3]);
        assert_eq!([&waits["count"], &held["count"]], [&Value::Null; 2]);
        let (left, is_leased) = (&held["expires_in_ms"], lab.is_on_server());
        assert_eq!(left.as_u64().is_some_and(|left| left <= 20_000), is_leased, "{held}");
        assert_eq!(left.is_null(), !is_leased, "{held}");
        assert_eq!([&held["pid"], &waits["pid"]], [holder.pid(), waiter.pid()]);
        assert_eq!(waits["position"], 1);
        assert!(held["token"].as_u64().is_some_and(|token| token > 1_500_000_000_000_000));
        for claim in [held, waits] {
            assert_time(&claim["since"]);
            assert_eq!(claim["command"], json!(["sh", "-c", "echo held; exec cat >/dev/null"]));
            assert_eq!(claim["session"].as_str().map(str::len), Some(32));
            assert!(["host", "user"].iter().all(|name| claim[name].as_str().is_some_and(|text| !text.is_empty())));
        }
    });
}

/// On a server, the table shows the time that is left of the lease.
#[test]
fn table_shows_the_time_left_of_a_lease() {
    skip_unless!(Kind::Redis7.is_present());
    let lab = Lab::on(Kind::Redis7);
    let _holder = lab.hold("k");
    let table = lab.run(["inspect"]).stdout;
    let row = table.lines().nth(1).expect("a row for the holder");
    let lease = row.split_whitespace().nth(6).expect("a column for the lease");
    assert!(lease.ends_with('s'), "{table}");
}

/// "slots": null, or the number of slots.
#[test]
fn inspect_shows_the_number_of_slots() {
    let lab = Lab::new();
    let _one = lab.hold_by(["exec", "--slot", "k=2"]);
    let _two = lab.hold_by(["exec", "--slot", "k=2"]);
    let _three = lab.wait_by(["exec", "--slot", "k=2"]);
    lab.until_waiting("k", 1);
    let resource = &lab.inspect(["k"])["resources"][0];
    for claim in [&resource["holders"][0], &resource["holders"][1], &resource["waiters"][0]] {
        assert_eq!([&claim["mode"], &claim["slots"]], [&json!("slot"), &json!(2)]);
    }
    assert!(resource["holders"][0]["token"].as_u64() < resource["holders"][1]["token"].as_u64());
}

/// "`slot` is there only for held slots, and has their numbers."
#[test]
fn number_of_a_held_slot_is_shown_wherever_the_hold_is() {
    on_both(|lab| {
        let first = lab.hold_by(["exec", "--slot", "k=4"]);
        let second = lab.hold_by(["exec", "--slot", "k=4"]);
        first.end().silently(0);
        let third = lab.hold_by(["exec", "--slot", "k=4:2"]);
        let mut slots = vec![("slot 1 of 4", json!([1])), ("slots 0,2 of 4", json!([0, 2]))];
        let resource = &lab.inspect(["k"])["resources"][0];
        for (holder, (_, numbers)) in resource["holders"].as_array().expect("a list").iter().zip(&slots) {
            assert_eq!(&holder["slot"], numbers, "{resource}");
        }
        for words in [&["inspect", "k"][..], &["inspect", "--tree", "k"], &["inspect", "--dot", "k"]] {
            let shown = lab.run(words).stdout;
            assert!(slots.iter().all(|(words, _)| shown.contains(words)), "{shown}");
        }
        let metrics = lab.run(["inspect", "--prometheus", "k"]).stdout;
        for number in [0, 1, 2] {
            let line = format!("rlock_slot_info{{resource=\"k\",slot=\"{number}\"}} 1\n");
            assert!(metrics.contains(&line), "{metrics}");
        }
        assert_eq!(metrics.matches("rlock_slot_info{").count(), 3, "{metrics}");
        let busy = lab.run(["exec", "-n", "--slot", "k=4:3", "--", "true"]);
        let told = busy.failed(75);
        let is_told = |(words, _): &(&str, Value)| told.starts_with(&format!("busy: {words} of 'k' is held by "));
        assert!(slots.iter().any(is_told), "{told}");
        second.end().silently(0);
        third.end().silently(0);
        slots.insert(0, ("slot 0 of 4", json!([0])));
        let history = lab.run(["history", "k"]).stdout;
        assert!(slots.iter().all(|(words, _)| history.contains(words)), "{history}");
        let found: Value = serde_json::from_str(&lab.run(["history", "--json", "k"]).stdout).expect("JSON");
        let entries = found["resources"][0]["entries"].as_array().expect("a list");
        for numbers in slots.iter().map(|(_, numbers)| numbers) {
            let has = |entry: &&Value| &entry["claims"][0]["slot"] == numbers;
            assert_eq!(entries.iter().filter(has).count(), 1, "{numbers} in {found}");
        }
        let busy = entries.iter().find(|entry| entry["outcome"] == "busy").expect("the busy request");
        assert!(busy["claims"][0].get("slot").is_none(), "{busy}");
    });
}

/// "`slots` and `count` are null except for slots: … the request takes `count` of `slots`."
#[test]
fn slots_of_a_request_are_one_row_and_one_object() {
    on_both(|lab| {
        let _holder = lab.hold_by(["exec", "--slot", "gpu=5:2", "--write", "k"]);
        let waiter = lab.wait_by(["exec", "--slot", "gpu=5:4"]);
        lab.until_waiting("gpu", 1);
        let resource = &lab.inspect(["gpu"])["resources"][0];
        let counts = |of: &str| {
            let claims = resource[of].as_array().expect("a list").iter();
            claims.map(|claim| (claim["slots"].as_u64(), claim["count"].as_u64())).collect::<Vec<_>>()
        };
        assert_eq!(counts("holders"), [(Some(5), Some(2))]);
        assert!(resource["waiters"][0].get("slot").is_none(), "{resource}");
        assert_eq!(counts("waiters"), [(Some(5), Some(4))]);
        assert_eq!(resource["waiters"][0]["position"], 1);
        let rows = table(lab, &["inspect", "gpu"]);
        assert!(rows.len() == 3 && rows[1].contains("  slots 0,1 of 5  "), "{rows:?}");
        assert!(rows[2].contains("  waits 1  4 slots of 5  "), "{rows:?}");
        let tree = table(lab, &["inspect", "--tree", "gpu"]);
        assert!(tree.len() == 3 && tree[1].starts_with("├─ holds slots 0,1 of 5: "), "{tree:?}");
        assert!(tree[2].starts_with("└─ waits 1 4 slots of 5, behind pid "), "{tree:?}");
        let dot = lab.run(["inspect", "--dot", "gpu"]).stdout;
        for label in ["[label=\"slots 0,1 of 5\"]", "label=\"waits 1, 4 slots of 5\"]"] {
            assert_eq!(dot.matches(label).count(), 1, "{label} in {dot}");
        }
        let metrics = lab.run(["inspect", "--prometheus", "gpu"]).stdout;
        for line in ["rlock_held{resource=\"gpu\",mode=\"slot\"} 2", "rlock_waiting{resource=\"gpu\"} 1"] {
            assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
        }
        drop(waiter);
    });
}

/// The lines that rlock prints above those that name the store and other stores.
fn table(lab: &Lab, words: &[&str]) -> Vec<String> {
    let ran = lab.run(words);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let place = format!("in {}, ", lab.url());
    assert!(ran.stdout.lines().any(|line| line.starts_with(&place)), "{ran:?}");
    ran.stdout.lines().take_while(|line| !line.starts_with(&place)).map(str::to_owned).collect()
}

/// A KEY on the command line without holders or waiters is listed with empty lists.
#[test]
fn named_key_is_listed_even_if_free() {
    let lab = Lab::new();
    assert_eq!(lab.inspect([""; 0])["resources"], json!([]));
    let free = |name: &str| json!({"name": name, "holders": [], "waiters": []});
    assert_eq!(lab.inspect(["b", "a", "b"])["resources"], json!([free("b"), free("a")]));
    assert_eq!(table(&lab, &["inspect"]), ["nobody holds or waits"]);
    assert_eq!(table(&lab, &["inspect", "a"]), ["RESOURCE  STATE", "a         free"]);
    let place = format!("in {}, namespace 'rlock'", lab.url());
    // People may lock in other stores of this machine, which the last line names then.
    let last =
        |ran: Ran| ran.stdout.lines().rfind(|line| line.starts_with("in ")).map(str::to_owned).unwrap_or_default();
    assert_eq!(last(lab.run(["inspect", "a", "b"])), format!("{place}, where nothing is known of 'a', 'b'"));
    lab.run(["exec", "a", "--", "true"]).silently(0);
    assert_eq!(last(lab.run(["inspect", "a"])), place);
    let _holder = lab.hold("c");
    assert_eq!(lab.inspect(["a"])["resources"], json!([free("a")]));
    assert_eq!(lab.inspect([""; 0])["resources"].as_array().map(Vec::len), Some(1));
}

/// The table shows the same facts as the JSON: user, host, time held or waited, lease left,
/// command, and the queue in order.
#[test]
fn table_shows_holders_and_the_queue_in_order() {
    let lab = Lab::new();
    let holder = lab.hold_by(["range-write", "k", "[1,2)"]);
    let first = lab.wait_by(["range-read", "k", "0", "1"]);
    lab.until_waiting("k", 1);
    let second = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 2);
    let shown = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
    let text = |name: &str| shown[name].as_str().expect("text");
    let who = format!("{}@{}", text("user"), text("host"));
    let table = table(&lab, &["inspect", "k", "j"]);
    let rows: Vec<Vec<_>> = table.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 5, "{table:?}");
    let pids = [&holder, &first, &second].map(|running| running.pid().to_string());
    let command = ["sh", "-c", "'echo", "held;", "exec", "cat", ">/dev/null'"];
    let start = |row: usize| rows[row][..rows[row].len() - command.len() - 1].join(" ");
    assert_eq!(start(1), format!("k holds write [1,2) {who} {}", pids[0]));
    assert_eq!(start(2), format!("k waits 1 read [0,1] {who} {}", pids[1]));
    assert_eq!(start(3), format!("k waits 2 write - {who} {}", pids[2]));
    assert_eq!(rows[4], ["j", "free"]);
    for row in &rows[1..4] {
        assert!(row.ends_with(&command), "{table:?}");
    }
    assert!(!table[0].contains("LEASE"), "no lease in the embedded store");
}

/// `inspect` leaves out dead holders and waiters.
#[test]
fn inspect_leaves_out_dead_waiters_and_holders() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    waiter.kill();
    assert_eq!(lab.counts("k"), (1, 0));
    holder.kill();
    assert_eq!(lab.counts("k"), (0, 0));
    assert_eq!(table(&lab, &["inspect"]), ["nobody holds or waits"]);
}

/// "The line below the table names the store and the namespace", so that a person who looks at the
/// wrong place notices it.
#[test]
fn line_below_the_table_names_the_store_and_the_namespace() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    for (words, namespace) in [(&["inspect"][..], "rlock"), (&["inspect", "--namespace", "other"], "other")] {
        let ran = lab.run(words);
        assert!(ran.stdout.contains(&format!("in {}, namespace '{namespace}'", lab.url())), "{ran:?}");
    }
}

/// `-v` shows instants and session ids in place of ages.
#[test]
fn verbose_table_shows_times_and_sessions() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let shown = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
    let rows = table(&lab, &["inspect", "-v"]);
    for name in ["since", "session"] {
        assert!(rows[1].contains(shown[name].as_str().expect("text")), "{rows:?}");
    }
    assert!(rows[0].contains("SINCE") && rows[0].contains("SESSION"), "{rows:?}");
}

/// "--color always" colours even a pipe; NO_COLOR and "--color never" colour nothing.
#[test]
fn colours_depend_on_the_option_and_the_terminal() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let is_coloured = |words: &[&str]| lab.run(words).stdout.contains('\u{1b}');
    assert!(is_coloured(&["inspect", "--color", "always"]));
    assert!(!is_coloured(&["inspect", "--color", "never"]) && !is_coloured(&["inspect"]));
    lab.run(["inspect", "--color", "blue"]).said(64, "--color must be auto, always or never, not 'blue'");
}

/// The cost of `inspect` is linear in the number of claims. When it was quadratic, this case took
/// minutes and all other requests waited.
#[test]
fn inspect_of_requests_with_many_claims_does_not_delay_others() {
    let lab = Lab::new();
    let hold = |group: u32| {
        let mut words = vec!["exec".to_owned()];
        let names = group / 2 * 250..(group / 2 + 1) * 250;
        words.extend(names.flat_map(|number| ["--read".to_owned(), format!("n{number}")]));
        lab.hold_by(&words)
    };
    let holders: Vec<_> = (0..24).map(hold).collect();
    let begun = std::time::Instant::now();
    let inspect = Running::start(&mut lab.rlock(["inspect", "--json"]));
    lab.run(["exec", "other", "--", "true"]).silently(0);
    let found: serde_json::Value = serde_json::from_str(&inspect.end().stdout).expect("JSON");
    assert!(begun.elapsed() < std::time::Duration::from_secs(40), "it took {:?}", begun.elapsed());
    let resources = found["resources"].as_array().expect("a list");
    // `inspect` may list the other request as well.
    assert_eq!(resources.iter().filter(|resource| resource["name"] != "other").count(), 3000);
    assert_eq!(found["resources"][0]["holders"].as_array().map(Vec::len), Some(2));
    drop(holders);
}

/// "--names: names alone."
#[test]
fn names_are_those_that_somebody_holds_or_waits_for() {
    let lab = Lab::new();
    lab.run(["inspect", "--names"]).printed("");
    let _holders = ["b", "a b", "it's"].map(|name| lab.hold(name));
    lab.run(["exec", "past", "--", "true"]).silently(0);
    lab.run(["inspect", "--names"]).printed("a b\nb\nit's\n");
    lab.run(["inspect", "--names", "b", "free"]).printed("b\n");
}

/// "--tree: resource, holders, their nested sessions, waiters and what they wait for."
#[test]
fn tree_shows_nested_sessions_and_what_waiters_wait_for() {
    let lab = Lab::new();
    let outer = lab.hold_by(["exec", "a", "--", RLOCK, "exec", "b"]);
    let waiter = lab.wait_by(["exec", "--read", "a"]);
    lab.until_waiting("a", 1);
    let tree = table(&lab, &["inspect", "--tree", "a"]);
    assert_eq!(tree.len(), 3, "{tree:?}");
    assert!(tree[1].starts_with("├─ holds write: ") && tree[1].contains(&format!(", pid {}, ", outer.pid())));
    assert!(tree[2].starts_with(&format!("└─ waits 1 read, behind pid {}: ", outer.pid())), "{tree:?}");
    assert!(tree[2].contains(&format!(", pid {}, ", waiter.pid())), "{tree:?}");
    let all = table(&lab, &["inspect", "--tree"]);
    assert!(all[2].starts_with("│  └─ holds write of 'b': "), "{all:?}");
}

/// "--dot: the same as a graph for Graphviz": Graphviz draws each resource and each session.
#[test]
fn graphviz_draws_the_graph() {
    skip_unless!(programs(&["dot"]));
    let lab = Lab::new();
    let name = "it's \"odd\" \\n 名前 <b>";
    let holder = lab.hold(name);
    let waiter = lab.wait_by(["exec", name]);
    lab.until_waiting(name, 1);
    let graph = lab.run(["inspect", "--dot"]).stdout;
    let file = lab.folder().join("graph");
    std::fs::write(&file, graph).expect("a file can be written");
    let ran = Ran::of(std::process::Command::new("dot").args(["-Tsvg"]).arg(&file));
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let svg = ran.stdout.replace("&#160;", " ").replace("&#39;", "'").replace("&quot;", "\"");
    for text in
        [format!("pid {}", holder.pid()), format!("pid {}", waiter.pid()), "it's \"odd\" \\n 名前 &lt;b&gt;".to_owned()]
    {
        assert!(svg.contains(&format!(">{text}</text>")), "{text} in {svg}");
    }
    assert_eq!(svg.matches("class=\"edge\"").count(), 2, "{svg}");
}
