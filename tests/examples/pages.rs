//! The shell examples of the manual pages and of each `--help`. Each block of a page is a script,
//! and so is each example of a help. rlock-recipes(7) has tests of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{labs_with, shell};
use rlock_testkit::{Lab, Ran};

/// The programs that the examples run. They print their names and arguments.
const PROGRAMS: [&str; 39] = [
    "apply",
    "at",
    "backup",
    "backup.sh",
    "change",
    "check",
    "check-at-leisure",
    "check-header.sh",
    "deploy.sh",
    "dot",
    "fetch",
    "fetch-next-batch",
    "ffmpeg",
    "find-place",
    "index-batch",
    "jq",
    "load",
    "load.sh",
    "mail",
    "man",
    "merge",
    "move-subtree",
    "rename-a-function",
    "patch-header.sh",
    "patch-index.sh",
    "plan",
    "prune.sh",
    "rebalance.sh",
    "rebuild.sh",
    "report",
    "report.sh",
    "sudo",
    "usr/local/bin/nightly",
    "usr/local/bin/sync-all",
    "tar",
    "train",
    "train.sh",
    "upload",
    "use",
];

/// The folders in which the examples write.
const FOLDERS: [&str; 5] =
    ["etc/bash_completion.d", "run", "usr/local/share/man", "var/lib/prometheus/node-exporter", "etc/rlock"];

/// What stands in an example for something outside of the tests, and what they put in its place.
/// `FOLDER` is a folder of the lab, and `URL` is its store.
const REPLACED: [(&str, &str); 17] = [
    ("rediss://rlock@locks.example.com/2?ca=/etc/rlock/ca.pem", "URL"),
    ("redis://locks.example.com", "URL"),
    ("rediss://locks.example.org", "URL"),
    ("redis://locks.example", "URL"),
    ("redis+sentinel://s1,s2,s3/mymaster", "URL"),
    ("redis+cluster://c1,c2,c3", "URL"),
    // The stores of the tests have no replica and no password.
    (" --replicas 1", " --replicas 0"),
    ("RLOCK_PASSWORD_FILE=", "PASSWORD_FILE="),
    ("/etc/", "FOLDER/etc/"),
    ("/usr/local/", "FOLDER/usr/local/"),
    ("/var/lib/", "FOLDER/var/lib/"),
    ("/run/rlock.sock", "FOLDER/run/rlock.sock"),
    ("0.0.0.0:1006", "127.0.0.1:0"),
    (" --pid 4711", " --pid $PID"),
    // These go on until they are stopped.
    ("rlock inspect --watch", "until-stopped rlock inspect --watch"),
    ("rlock serve --listen", "until-stopped rlock serve --listen"),
    // A runner hands the variables to the steps that follow.
    (">> \"$GITHUB_ENV\"", ">env; set -a; . ./env; set +a"),
];

/// How an example is run: the script in which it stands as `EXAMPLE`, and what that prints. After a
/// `~`, it prints this among other things. `None` is for what is no script, changes the machine, or
/// needs a port of the machine.
type Play = Option<(&'static str, &'static str)>;

/// The script of an example that needs nothing else.
const ALONE: &str = "EXAMPLE";
/// Examples about locks that others hold.
const BESIDE_HOLDERS: &str = "
    for key in backup deploy; do rlock exec $key -- sleep 1000 2>/dev/null & done
    rlock exec workers -- sleep 1000 2>/dev/null & PID=$!
    rlock exec --path src -- sleep 1000 2>/dev/null &
    until [ \"$(rlock inspect --names | wc -l)\" = 4 ]; do sleep 0.01; done
    EXAMPLE
    rlock break backup deploy workers / >/dev/null 2>&1 || :";
/// Examples about a run that has succeeded.
const AFTER_BACKUP: &str = "rlock exec backup -- true; EXAMPLE";
/// Examples below a lock without a command.
const ACQUIRED: &str =
    "lock=$(rlock acquire k --for 1h --export) || exit; eval \"$lock\"; EXAMPLE\n rlock release >/dev/null 2>&1 || :";

/// The blocks of each page, in order.
const PAGES: [(&str, &[Play]); 19] = [
    (
        "acquire",
        &[
            Some(("(export CLAUDECODE=1; EXAMPLE\n) | sed 's/until.*/until/'", "holds 'sim' until\nuse\n")),
            Some((ALONE, "upload\ncheck\n")),
            Some((ALONE, "")),
            Some((ALONE, "upload\n")),
        ],
    ),
    ("break", &[Some((BESIDE_HOLDERS, "~on 'workers' (whole) of "))]),
    ("cleanup", &[Some((ALONE, ""))]),
    ("conf", &[None, None]),
    ("doctor", &[Some((ALONE, "~ok      locks "))]),
    ("downgrade", &[Some((ALONE, "load\ncheck-at-leisure\n"))]),
    (
        "exec",
        &[
            None,
            Some((
                ALONE,
                "tar -cf /backup/home.tar /home\nfetch\nmerge\napply\ntrain\nrename-a-function\nmove-subtree\n\
                 backup\ntrain\nindex-batch\nfetch-next-batch\nreport\n",
            )),
        ],
    ),
    (
        "held",
        &[Some(("FILE=/w/src/a.rs\n(EXAMPLE\n) || echo refused", "refused\n")), Some(("EXAMPLE\necho work", "work\n"))],
    ),
    (
        "history",
        &[None, None, None, Some((AFTER_BACKUP, "~\njq .resources[].entries[] | select(.outcome == \"signal\")\n"))],
    ),
    ("inspect", &[None, None, Some((AFTER_BACKUP, "~nobody holds or waits"))]),
    ("man", &[Some((ALONE, "~.TH RLOCK-EXEC 1 "))]),
    ("range", &[Some((ALONE, "check-header.sh\nreport.sh 2024\npatch-index.sh\nprune.sh\nrebalance.sh\napply p\n"))]),
    // tests/postgres runs the statements for roles.
    ("postgres", &[None, None, None, None, None, None, None]),
    (
        "redis",
        &[
            Some((ALONE, "backup.sh\n")),
            None,
            None,
            None,
            Some((ALONE, "backup.sh\n")),
            Some((ALONE, "rebuild.sh\n")),
            Some((ALONE, "")),
            Some((ALONE, "nightly\n")),
            Some((ALONE, "deploy.sh\n")),
        ],
    ),
    ("release", &[Some((ALONE, "apply p\nreport\n"))]),
    ("renew", &[Some((ACQUIRED, ""))]),
    (
        "rlock",
        &[
            Some((ALONE, "backup.sh\n")),
            None,
            None,
            Some((ALONE, "sudo --preserve-env=RLOCK_SESSION,RLOCK_ANCESTORS,RLOCK_RESOURCE,RLOCK_HELD ./migrate\n")),
            Some((ALONE, "at now\n")),
            Some((ALONE, "apply p\nreport\n")),
            None,
            Some((ALONE, "sync-all\n")),
            Some((ALONE, "deploy.sh\n")),
            Some((ALONE, "report.sh\nload.sh\n")),
            Some((ALONE, "rebuild.sh\n")),
            Some((ALONE, "ffmpeg -i in.mkv out.mp4\n")),
            Some((ALONE, "patch-header.sh\npatch-index.sh\n")),
            Some((ALONE, "~deploy-prod  free\n")),
            Some((ALONE, "deploy.sh\n")),
        ],
    ),
    ("serve", &[None, None, None, None, None, None, None, None, Some((ALONE, ""))]),
    ("shrink", &[Some((ALONE, "change find-place\n"))]),
];

/// The examples of each help.
const HELPS: [(&str, &str, &str); 29] = [
    ("rlock exec backup -- ./backup.sh", ALONE, "backup.sh\n"),
    ("rlock exec -n --read db --slot gpu=4 -- ./train.sh", ALONE, "train.sh\n"),
    ("rlock range-read -w 5m ledger '[2024,2025)' -- ./report.sh", ALONE, "report.sh\n"),
    ("rlock range-read disk.img 0 4095 -- ./check-header.sh", ALONE, "check-header.sh\n"),
    ("rlock range-prewrite -w 5m ledger '[2024,2025)' -- ./report.sh", ALONE, "report.sh\n"),
    ("rlock range-prewrite disk.img 0 4095 -- ./check-header.sh", ALONE, "check-header.sh\n"),
    ("rlock range-write -w 5m ledger '[2024,2025)' -- ./report.sh", ALONE, "report.sh\n"),
    ("rlock range-write disk.img 0 4095 -- ./check-header.sh", ALONE, "check-header.sh\n"),
    (
        "lock=$(rlock acquire deploy --for 30m --export) || exit; eval \"$lock\"",
        "EXAMPLE; rlock held deploy; rlock release; echo released",
        "released\n",
    ),
    ("rlock acquire deploy --pid $$", "EXAMPLE; rlock inspect", "~deploy    holds  write "),
    ("rlock renew --for 1h", ACQUIRED, ""),
    (
        "eval \"$(rlock release --export)\"",
        "lock=$(rlock acquire k --for 1h --export); eval \"$lock\"; EXAMPLE; rlock exec -n k -- echo free",
        "free\n",
    ),
    ("rlock held backup || echo 'start this by rlock exec backup'", ALONE, "start this by rlock exec backup\n"),
    ("rlock inspect --watch", ALONE, ""),
    ("rlock inspect --no-success-for 25h backup", AFTER_BACKUP, ""),
    ("rlock doctor --store redis://locks.example", ALONE, "~ok      locks "),
    ("rlock history --failed --since 1d", ALONE, "~"),
    ("rlock history -n 5 backup", AFTER_BACKUP, "~ exit 0 "),
    ("rlock cleanup --dry-run", ALONE, ""),
    ("rlock cleanup deploy", ALONE, ""),
    ("rlock break --dry-run deploy", BESIDE_HOLDERS, "~would break the hold for write on 'deploy' (whole) of "),
    (
        "rlock break -w 1m backup --pid 4711",
        "rlock exec backup -- sleep 1000 2>/dev/null & PID=$!\nuntil rlock inspect --names | grep -q backup; do sleep 0.01; done; EXAMPLE",
        "~on 'backup' (whole) of ",
    ),
    ("rlock shrink 1/4 1/2", "rlock range-write k 0 1 -c 'EXAMPLE; rlock inspect k'", "~[1/4,1/2]"),
    ("rlock downgrade read", "rlock exec k -c 'EXAMPLE; rlock inspect k'", "~read"),
    ("rlock serve --listen unix:/run/rlock.sock", ALONE, ""),
    ("rlock serve --only 'build/*'", "echo PING | EXAMPLE --stdio", "pong\n"),
    (
        "rlock completions bash > /etc/bash_completion.d/rlock",
        "EXAMPLE; bash -n FOLDER/etc/bash_completion.d/rlock",
        "",
    ),
    ("rlock man exec", ALONE, "~.TH RLOCK-EXEC 1 "),
    ("rlock man --dir /usr/local/share/man", "EXAMPLE; ls FOLDER/usr/local/share/man", "man1\nman5\nman7\nman8\n"),
];

/// The blocks of a text, each with the heading of its section.
pub(crate) fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let (mut title, mut continues) = ("", false);
    for line in text.lines() {
        if let Some(found) = line.strip_prefix("# ") {
            (title, continues) = (found, false);
        } else if let Some(line) = line.strip_prefix("    ") {
            if !continues {
                blocks.push((title.to_owned(), String::new()));
            }
            let (_, block) = blocks.last_mut().expect("it was pushed");
            *block += line;
            block.push('\n');
            continues = true;
        } else if !line.is_empty() {
            continues = false;
        }
    }
    blocks
}

/// Runs an example in its script on each kind of store.
#[track_caller]
fn play(example: &str, (around, expected): (&str, &str)) {
    for lab in labs_with(&PROGRAMS) {
        for folder in FOLDERS {
            fs::create_dir_all(lab.folder().join(folder)).expect("a folder can be made");
        }
        file(&lab, "etc/rlock/token", "secret\n");
        file(&lab, "until-stopped", "#!/bin/sh\ntimeout 0.5 \"$@\" || [ $? = 124 ]\n");
        let ran = run(&lab, example, around);
        let is_expected = match expected.strip_prefix('~') {
            Some(part) => ran.stdout.contains(part),
            None => ran.stdout == expected,
        };
        assert!(is_expected && ran.code() == Some(0) && ran.stderr.is_empty(), "{example}: {ran:?}");
    }
}

fn run(lab: &Lab, example: &str, around: &str) -> Ran {
    let folder = lab.folder().display().to_string();
    let mut example = without_times(example);
    for (from, to) in REPLACED {
        example = example.replace(from, to);
    }
    let text = around.replace("EXAMPLE", example.trim_end()).replace("FOLDER", &folder).replace("URL", &lab.url());
    file(lab, "script", &text);
    // The examples find their programs in PATH, too.
    Ran::of(&mut shell(lab, "PATH=$HOME:$PATH exec sh -e ./script"))
}

/// Makes a file that this user alone can read and execute.
fn file(lab: &Lab, name: &str, text: &str) {
    let path = lab.folder().join(name);
    fs::write(&path, text).expect("a file can be made");
    fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its permissions");
}

/// The commands of a block, without the five fields of a crontab.
pub(crate) fn without_times(block: &str) -> String {
    let command = |line: &str| match line.split_once("* * *") {
        Some((_, rest)) => rest.trim_start_matches([' ', '*']).to_owned(),
        None => line.to_owned(),
    };
    block.lines().map(|line| command(line) + "\n").collect()
}

#[test]
fn every_block_of_a_page_is_run_or_known_as_no_script() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/pages");
    for entry in fs::read_dir(folder).expect("the folder of the pages") {
        let path = entry.expect("a file").path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".txt")) else { continue };
        // tests/examples/recipes.rs runs these.
        if name == "recipes" {
            continue;
        }
        let blocks = blocks(&fs::read_to_string(&path).expect("a page"));
        let plays = PAGES.iter().find(|(page, _)| *page == name).map_or(&[][..], |(_, plays)| plays);
        assert_eq!(blocks.len(), plays.len(), "{name}: {blocks:#?}");
        for ((_, block), how) in blocks.iter().zip(plays) {
            if let Some(how) = how {
                play(block, *how);
            }
        }
    }
}

/// The examples of a help: the lines below their heading, or of the help of rlock itself.
fn examples(help: &str) -> Vec<String> {
    let (text, examples) = help.split_once("\nExamples:\n").unwrap_or((help, ""));
    let of_rlock = text.lines().filter(|line| line.starts_with("rlock ")).filter_map(|line| line.split("    ").next());
    // A short help goes on after them.
    of_rlock.chain(examples.lines().take_while(|line| !line.is_empty())).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn every_example_of_a_help_is_run() {
    let lab = Lab::new();
    let help = lab.run(["--help"]).stdout;
    let (_, list) = help.split_once("\nSubcommands:\n").expect("the list of the subcommands");
    let (list, _) = list.split_once("\n\n").expect("the end of the list");
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut found = examples(&help);
    for name in names.into_iter().filter(|name| *name != "help") {
        let help = ["--help", "-h"].map(|option| lab.run([name, option]).stdout);
        assert!(!examples(&help[0]).is_empty(), "{name} has no examples");
        found.extend(help.iter().flat_map(|help| examples(help)));
    }
    for example in &found {
        assert!(HELPS.iter().any(|(known, ..)| known == example), "no test runs this example: {example}");
    }
    for (example, around, expected) in HELPS {
        assert!(found.iter().any(|found| found == example), "no help has this example: {example}");
        play(example, (around, expected));
    }
}
