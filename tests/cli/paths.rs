//! Claims on files and folders: `--path` and `--path-read`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both};

/// "A lock on a folder conflicts with locks on what is in it, and on the folders around it, and not
/// with one on a folder whose name begins like it."
#[test]
fn folder_conflicts_with_what_is_in_it_and_around_it_and_not_with_its_siblings() {
    on_both(|lab| {
        let _holder = lab.hold_by(["exec", "--path", "/w/src", "--path-read", "/w/doc/a.md"]);
        for (words, code) in [
            (&["--path", "/w/src/billing/a.rs"][..], 75),
            (&["--path-read", "/w/src"], 75),
            (&["--path", "/w"], 75),
            (&["--path", "/"], 75),
            (&["/"], 75),
            (&["--path", "/w/srcs"], 0),
            (&["--path", "/w/sr", "--path", "/src"], 0),
            (&["--path-read", "/w/doc"], 0),
            (&["--path", "/w/doc"], 75),
            (&["/w/src"], 0),
        ] {
            lab.run([&["exec", "-nq"], words, &["--", "true"]].concat()).silently(code);
        }
    });
}

/// "Links count as what they lead to. What does not exist is taken as it is written."
#[test]
fn path_is_resolved_and_every_listing_shows_it() {
    on_both(|lab| {
        let root = fs::canonicalize(lab.folder()).expect("the folder exists");
        fs::create_dir_all(root.join("real")).expect("a folder");
        symlink("real", root.join("link")).expect("a link");
        let root = root.to_str().expect("the folder has a plain name");
        let folder = format!("{root}/link/new");
        let shown = format!("{root}/real/new");
        let mut holder = lab.hold_by(["exec", "--path", &folder]);
        let listing = lab.inspect(["/"]);
        let held = &listing["resources"][0]["holders"][0];
        assert_eq!((&held["span"]["path"], &held["mode"]), (&shown.as_str().into(), &"write".into()));
        assert!(held["span"]["lo"].as_str().is_some_and(|lo| lo.starts_with('.')), "{held}");
        let busy = lab.run(["exec", "-n", "--path", &format!("{shown}/x"), "--", "true"]);
        assert!(busy.busy().starts_with(&format!("path '{shown}' is held for write by ")), "{busy:?}");
        let waits = lab.run(["exec", "-v", "-w", "50ms", "--path", &format!("{shown}/x"), "--", "true"]);
        assert!(waits.stderr.starts_with(&format!("rlock: waits for '{shown}/x'")), "{waits:?}");
        for words in [&["inspect"][..], &["inspect", "--tree"], &["inspect", "--dot"]] {
            let ran = lab.run(words);
            assert!(ran.stdout.contains(&format!("write {shown}")) || ran.stdout.contains(&format!("write  {shown}")));
        }
        holder.close();
        holder.end();
        assert!(lab.run(["history", "/"]).stdout.contains(&format!("write {shown}")));
        let verbose = lab.run(["exec", "-v", "--path-read", &shown, "--", "true"]);
        assert!(verbose.stderr.starts_with(&format!("rlock: holds path '{shown}' for read\n")), "{verbose:?}");
    });
}

#[test]
fn relative_path_begins_at_the_working_directory() {
    let lab = Lab::new();
    let mut rlock = lab.rlock(["exec", "--path", "a/../src", "--", "true", "-v"]);
    rlock.args(["x"]).current_dir(lab.folder());
    assert_eq!(Ran::of(&mut rlock).code(), Some(0));
    let folder = fs::canonicalize(lab.folder()).expect("the folder exists");
    let history = lab.run(["history", "--json", "/"]);
    assert!(history.stdout.contains(&format!("\"path\":\"{}/src\"", folder.display())), "{history:?}");
}

#[test]
fn nested_path_passes_below_its_folder_and_held_tells_what_is_covered() {
    on_both(|lab| {
        let below = |words: &[&str]| lab.run([&["exec", "--path", "/w/src", "--"], words].concat());
        let rlock = rlock_testkit::RLOCK;
        below(&[rlock, "exec", "-n", "--path", "/w/src/a.rs", "--", "true"]).silently(0);
        below(&[rlock, "exec", "-n", "--nested", "--path", "/w/src/a.rs", "--", "true"]).silently(0);
        let refused = below(&[rlock, "exec", "--path", "/w", "--", "true"]);
        assert!(refused.failed(65).contains("holds /w/src of '/', and /w reaches past that"), "{refused:?}");
        let grows = [rlock, "exec", "--path", "/w/src", "--", "true"];
        let refused = lab.run([&["exec", "--path-read", "/w/src", "--"], &grows[..]].concat());
        assert!(refused.failed(65).ends_with(": claim --path there instead"), "{refused:?}");
        below(&[rlock, "held", "--path", "/w/src/a.rs"]).silently(0);
        below(&[rlock, "held", "--read", "--path", "/w/src"]).silently(0);
        below(&[rlock, "held", "--path", "/w/srcs"]).silently(1);
    });
}

#[test]
fn path_that_is_too_long_exits_64() {
    let lab = Lab::new();
    let long = format!("/{}", "x/".repeat(700));
    let text = "--path: a path may have 1365 bytes, this one has 1400: lock a folder nearer to '/'";
    lab.run(["exec", "--path", &long, "--", "true"]).said(64, text);
    let text = "--path and KEY exclude each other: give one of them";
    lab.run(["held", "--path", "/w", "k"]).said(64, text);
}

/// "`--path` holds for the folder that the name leads to at the grant": the request gives back what
/// it was granted, without an entry in the history, and asks anew at the end of the queue.
#[test]
fn link_that_turns_during_the_wait_is_followed_at_the_grant() {
    on_both(|lab| {
        let path = |name: &str| lab.folder().join(name).display().to_string();
        let turn = |target: &str| {
            let _ = fs::remove_file(path("link"));
            symlink(path(target), path("link")).expect("a link can be made");
        };
        for name in ["a", "b"] {
            fs::create_dir_all(path(name)).expect("a folder can be made");
        }
        turn("a");
        let [of_a, of_b] = ["a", "b"].map(|name| lab.hold_by(["exec", "--path", &path(name)]));
        let mut turned = lab.wait_by(["exec", "--path", &path("link")]);
        lab.until_waiting("/", 1);
        turn("b");
        let mut behind = lab.wait_by(["exec", "--path", &path("a")]);
        lab.until_waiting("/", 2);
        of_a.end().silently(0);
        // The request has left the queue of `a`, and waits for `b`.
        behind.expect_held();
        lab.until_waiting("/", 1);
        of_b.end().silently(0);
        turned.expect_held();
        lab.run(["exec", "-nq", "--path", &path("b"), "--", "true"]).silently(75);
        assert_eq!(turned.end().code(), Some(0));
        behind.end().silently(0);
        let history = lab.run(["history", "--json", "/"]).stdout;
        assert_eq!(history.matches("\"outcome\":\"exit\"").count(), 4, "{history}");
        for folder in [path("a"), path("b")] {
            fs::remove_dir(folder).expect("nothing is in it");
        }
    });
}

/// "Asks anew at the end of the queue; after three times it exits with 65": nothing has run, so the
/// request leaves no entry in the history, and `--hold-at-least` keeps nothing.
#[test]
fn link_that_has_turned_at_four_grants_exits_65_and_holds_nothing() {
    on_both(|lab| {
        let path = |name: &str| lab.folder().join(name).display().to_string();
        let turn = |target: &str| {
            let _ = fs::remove_file(path("link"));
            symlink(path(target), path("link")).expect("a link can be made");
        };
        let names = ["a", "b", "c", "d", "e"];
        turn("a");
        let holders: Vec<_> = names[..4].iter().map(|name| lab.hold_by(["exec", "--path", &path(name)])).collect();
        let exec = ["exec", "-q", "--hold-at-least", "1h", "--path", &path("link"), "--", "echo", "ran"];
        let turned = Running::start(&mut lab.rlock(exec));
        for (holder, next) in holders.into_iter().zip(&names[1..]) {
            // The request waits for the folder of this holder, as the only one.
            lab.until_waiting("/", 1);
            turn(next);
            holder.end().silently(0);
        }
        let ended = turned.end();
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(65), ""), "{ended:?}");
        let text = "rlock: a link in --path leads elsewhere than when the request was made: name the file or folder \
                    without links, or try again\n";
        assert!(ended.stderr.ends_with(text), "{ended:?}");
        for name in names {
            lab.run(["exec", "-n", "--path", &path(name), "--", "true"]).silently(0);
        }
        let history = lab.run(["history", "--json", "/"]).stdout;
        assert_eq!(history.matches("\"outcome\":").count(), 4 + names.len(), "{history}");
        fs::remove_file(path("link")).expect("it is there");
    });
}

#[test]
fn lock_of_acquire_is_on_the_folder_that_the_link_leads_to_at_the_grant() {
    let lab = Lab::new();
    let path = |name: &str| lab.folder().join(name).display().to_string();
    symlink(path("a"), path("link")).expect("a link can be made");
    let of_a = lab.hold_by(["exec", "--path", &path("a")]);
    let words = ["acquire", "--path", &path("link"), "--for", "1h", "--export"];
    let turned = Running::start(&mut lab.rlock(words));
    lab.until_waiting("/", 1);
    fs::remove_file(path("link")).expect("it is there");
    symlink(path("b"), path("link")).expect("a link can be made");
    of_a.end().silently(0);
    let exported = turned.end();
    assert_eq!(exported.code(), Some(0), "{exported:?}");
    lab.run(["exec", "-nq", "--path", &path("b"), "--", "true"]).silently(75);
    lab.run(["exec", "-nq", "--path", &path("a"), "--", "true"]).silently(0);
    let release = format!("{}\n{RLOCK} release", exported.stdout);
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    assert_eq!(Ran::of(shell.args(["-c", &release])).code(), Some(0));
    lab.run(["exec", "-nq", "--path", &path("b"), "--", "true"]).silently(0);
}

/// "With several holders on `/`, `rlock break /` breaks nothing without `--path`, `--pid`,
/// `--session` or `--all`, and lists them."
#[test]
fn break_of_all_paths_wants_a_choice_where_several_are_held() {
    on_both(|lab| {
        let folders = ["/w/api", "/w/web"];
        let [mut api, mut web] = folders.map(|folder| lab.hold_by(["exec", "--path", folder]));
        for line in [&["break", "/"][..], &["break", "--now", "/"], &["cleanup", "--break", "/"]] {
            let refused = lab.run(line);
            let text = refused.failed(64);
            assert!(text.starts_with("'/' has 2 holders: path '"), "{text}");
            assert!(text.ends_with(": name one by --path P, --pid PID or --session ID, or all by --all"), "{text}");
            assert!(folders.iter().all(|folder| text.contains(&format!("path '{folder}' by "))), "{text}");
        }
        let lines = lab.run(["break", "--dry-run", "/"]).stdout;
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(api.runs() && web.runs());
        // The folder overlaps what is in it, and the folders around it.
        let broken = lab.run(["break", "--path", "/w/api/x.rs"]);
        assert!(broken.stdout.starts_with("broke the hold for write on '/' (/w/api) of "), "{broken:?}");
        assert_eq!((broken.stdout.lines().count(), broken.code()), (1, Some(0)));
        assert_eq!(api.end().code(), Some(76));
        assert!(web.runs());
        let free = "path '/w/api': nothing to break; 'rlock inspect' shows what is held";
        lab.run(["break", "--path", "/w/api"]).said(1, &format!("nobody holds {free}"));
        // One holder needs no choice.
        let api = lab.hold_by(["exec", "--path", "/w/api"]);
        let broken = lab.run(["break", "--all", "/"]);
        assert_eq!((broken.stdout.lines().count(), broken.code()), (2, Some(0)), "{broken:?}");
        assert_eq!([api.end().code(), web.end().code()], [Some(76); 2]);
        let only = lab.hold_by(["exec", "--path", "/w/api"]);
        assert_eq!(lab.run(["break", "/"]).code(), Some(0));
        assert_eq!(only.end().code(), Some(76));
    });
}

/// "`--path P` on inspect, history, cleanup and release takes what overlaps P."
#[test]
fn listings_of_a_path_leave_the_other_paths_out() {
    on_both(|lab| {
        let api = lab.hold_by(["exec", "--path", "/w/api"]);
        let mut web = lab.hold_by(["exec", "--path", "/w/web"]);
        let shown = lab.run(["inspect", "--path", "/w/api/src"]).stdout;
        assert!(shown.contains("/w/api") && !shown.contains("/w/web"), "{shown}");
        let shown = lab.run(["inspect", "--path", "/w"]).stdout;
        assert!(shown.contains("/w/api") && shown.contains("/w/web"), "{shown}");
        let shown = lab.run(["inspect", "--path", "/x"]).stdout;
        assert!(shown.starts_with("nobody holds or waits\n"), "{shown}");
        let json = lab.run(["inspect", "--json", "--path", "/x"]).stdout;
        assert!(json.contains(r#""holders":[]"#), "{json}");
        let live =
            "path '/w/web' for write is a live lock: 'rlock break' takes it away, 'rlock inspect' shows who holds it";
        lab.run(["cleanup", "--path", "/w/web"]).said(0, live);
        lab.run(["cleanup", "--path", "/x"]).silently(0);
        api.end().silently(0);
        web.close();
        web.end();
        let shown = lab.run(["history", "--path", "/w/api"]).stdout;
        assert!(shown.contains("/w/api") && !shown.contains("/w/web"), "{shown}");
        assert_eq!(lab.run(["history", "--path", "/x"]).code(), Some(0));
        assert!(lab.run(["history", "--stats", "--json", "--path", "/w"]).stdout.contains(r#""ended":2"#));
    });
}

#[test]
fn cleanup_of_a_path_lists_what_is_dead_there() {
    let lab = Lab::new();
    for folder in ["/w/api", "/w/web"] {
        lab.hold_by(["exec", "--path", folder]).kill();
    }
    let dead = lab.run(["cleanup", "--dry-run", "--path", "/w/api"]).stdout;
    assert!(dead.contains("would remove the hold for write on '/' (/w/api)") && !dead.contains("/w/web"), "{dead}");
}

/// "`rlock release --path P` gives back the lock that `rlock acquire --pid` has got."
#[test]
fn release_by_path_finds_the_lock_of_a_process_above() {
    on_both(|lab| {
        let script = format!(
            "{RLOCK} acquire --path /w/api --pid $$ >&2 && {RLOCK} acquire --path /w/web --pid $$ >&2 \
             && {RLOCK} release --path /w/api/x; echo $?; {RLOCK} inspect / --json"
        );
        let mut shell = Command::new("sh");
        lab.settle(&mut shell);
        let ran = Ran::of(shell.args(["-c", &script]));
        assert!(ran.stdout.starts_with("0\n") && !ran.stdout.contains("/w/api"), "{ran:?}");
        assert!(ran.stdout.contains("/w/web"), "{ran:?}");
        let text = "no lock of 'rlock acquire --pid' on path '/w/none' is for a process above this one";
        lab.run(["release", "--path", "/w/none"]).said(76, text);
    });
}

/// "A bare KEY beside `--path` is a KEY": people list folders so.
#[test]
fn key_beside_a_path_that_is_a_file_is_warned_of() {
    let lab = Lab::new();
    fs::create_dir_all(lab.folder().join("lib")).expect("a folder");
    let run =
        |words: &[&str]| Ran::of(lab.rlock([&["exec"], words, &["--", "true"]].concat()).current_dir(lab.folder()));
    let text = "warning: 'lib' beside --path is a KEY and not a folder: write --path web --path lib";
    run(&["--path", "web", "lib"]).said(0, text);
    run(&["-q", "--path", "web", "lib"]).silently(0);
    run(&["--path", "web", "library"]).silently(0);
    run(&["--path", "web", "--write", "lib"]).silently(0);
}
