//! What the pages say about rlock below cron daemons, at(1), supervisord, su(1), runuser(1) and
//! doas(1), with the real programs.
//!
//! Each of them runs as root in a pid namespace, with which all of its processes end, and sees no
//! crontab, queue or socket of the machine. faketime(1) lets a minute of cron(8) last a second; the
//! crond of busybox is linked statically, so its test waits for two real minutes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{recipes, settle};
use rlock_testkit::needs::{self, left_out};
use rlock_testkit::{Lab, RLOCK, Ran, Running, wait_until, wait_within};

/// Hides what the machine has, and waits for conditions.
const PRELUDE: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs /var/spool
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /dev/shm
[ ! -e /etc/cron.d ] || mount -t tmpfs tmpfs /etc/cron.d
[ ! -e /etc/crontab ] || mount --bind /dev/null /etc/crontab
await() { until "$@"; do sleep .02; done; }
waits() { rlock inspect "$1" | grep -q waits; }
"#;

/// Starts a script on a machine of its own, if this one has these daemons.
fn machine(lab: &Lab, daemons: &[&str], script: &str) -> Option<Running> {
    let path = needs::root("run a daemon on a private spool").then(|| needs::daemons(daemons)).flatten()?;
    let mut unshare = needs::namespaces(&["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])?;
    settle(lab, &mut unshare);
    let rlock = Path::new(RLOCK).parent().expect("the program is in a folder").display();
    unshare.env("PATH", format!("{rlock}:{}", path.display())).env("HOME", lab.folder()).current_dir(lab.folder());
    if let Some(fetched) = std::env::var_os("RLOCK_DAEMONS") {
        // supervisord is a program in Python.
        unshare.env("PYTHONPATH", Path::new(&fetched).join("usr/lib/python3/dist-packages"));
    }
    Some(Running::start(unshare.args(["sh", "-c", &format!("{PRELUDE}{script}")])))
}

fn write_program(lab: &Lab, name: &str, text: &str) {
    let program = lab.folder().join(name);
    fs::write(&program, text).expect("a file can be made");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("its permissions");
}

/// What jobs have written to a file of the lab's folder.
fn written(lab: &Lab, file: &str) -> String {
    fs::read_to_string(lab.folder().join(file)).unwrap_or_default()
}

/// "A crontab works with each of them", "the others in the home directory". cron(8) starts a job
/// beside its last run, so "only while this job has been skipped on this KEY for less than DUR in a
/// row; from then on 75".
#[test]
fn job_of_cron_whose_last_run_hangs_is_skipped_until_skip_ok_has_passed() {
    let lab = Lab::new();
    let (folder, store) = (lab.folder().display(), lab.url());
    let crontab = format!(
        "MAILTO=\"\"\nPATH={}:/usr/bin:/bin\nRLOCK_CONFIG=\"\"\nRLOCK_STORE={store}\n\
         * * * * * rlock exec -n --skip-ok=1s sync -c 'pwd >>{folder}/began; sleep 600' 2>>{folder}/errors; \
         echo $? >>{folder}/codes\n",
        Path::new(RLOCK).parent().expect("the program is in a folder").display()
    );
    fs::write(lab.folder().join("crontab"), crontab).expect("a file can be made");
    let script = "
        mkdir -p /var/spool/cron/crontabs
        install -m 600 crontab /var/spool/cron/crontabs/root
        unset RLOCK_STORE
        exec faketime -f '+0 x60' cron -f";
    let Some(_cron) = machine(&lab, &["cron", "faketime"], script) else { return };
    let ended = |code: &str| written(&lab, "codes").lines().any(|line| line == code);
    wait_until("a job is skipped, and a later one fails", || ended("0") && ended("75"));
    Ran::of(Command::new("sh").args(["-c", "echo ~root"])).printed(&written(&lab, "began"));
    assert!(written(&lab, "errors").contains("; skipped "), "{}", written(&lab, "errors"));
}

/// "The crond of busybox and systemd-cron do not start a job whose last run still works. If that
/// run hangs, no rlock is there to skip a turn", and "The crond of busybox passes `MAILTO` and
/// `SHELL` of a crontab on, and drops all other variables without a message, `RLOCK_STORE`, `TZ`
/// and `PATH` among them."
#[test]
fn crond_of_busybox_skips_a_job_that_hangs_without_rlock_and_drops_the_store_of_the_crontab() {
    /// Two full minutes, and what a busy machine adds.
    const TWO_MINUTES: Duration = Duration::from_secs(180);
    let lab = Lab::new();
    let folder = lab.folder().display();
    let crontab = format!(
        "SHELL=/bin/sh\nTZ=Asia/Kolkata\nPATH=/nowhere\nRLOCK_STORE=file://{folder}/other\n\
         * * * * * cd {folder}; echo >>began; rlock exec -n --skip-ok=6h sync -c 'sleep 600'\n\
         * * * * * cd {folder}; echo \"$TZ $RLOCK_STORE\" >>seen\n"
    );
    fs::create_dir(lab.folder().join("crontabs")).expect("a folder can be made");
    fs::write(lab.folder().join("crontabs/root"), crontab).expect("a file can be made");
    let script = "busybox --list | grep -qx crond || { echo none; exit; }
        unset TZ
        exec busybox crond -f -c $PWD/crontabs -L log";
    let Some(mut crond) = machine(&lab, &["busybox"], script) else { return };
    let minutes = || written(&lab, "seen").lines().count();
    wait_within(TWO_MINUTES, "two minutes begin", || minutes() == 2 || !crond.runs());
    if !crond.runs() {
        crond.end().printed("none\n");
        left_out("this busybox has no crond");
        return;
    }
    assert_eq!(written(&lab, "began").lines().count(), 1);
    assert_eq!(written(&lab, "seen"), format!(" {0}\n {0}\n", lab.url()));
    assert_eq!(lab.counts("sync"), (1, 0));
    assert!(!lab.folder().join("other").exists());
    let told = lab.run(["inspect", "--no-success-for", "6h", "sync"]);
    assert_eq!((told.code(), told.stdout.contains("'sync' had no successful run")), (Some(1), true), "{told:?}");
}

/// "anacron counts a job as done whatever its exit status is. With `-n`, a busy request loses the
/// run of the whole day, week or month. With `-w` it waits", and its jobs start "in the directory
/// `/`".
#[test]
fn anacron_counts_a_busy_job_as_done_and_waits_for_one_that_waits() {
    let lab = Lab::new();
    write_program(&lab, "report", "#!/bin/sh\npwd\n");
    let recipe = recipes::blocks("CRON DAEMONS").concat();
    let waiting = recipe.lines().find(|line| line.starts_with("rlock exec -w ")).expect("the page has it");
    let busy = waiting.replace("-w 6h", "-n -q");
    let folder = lab.folder().display();
    let table = format!(
        "MAILTO=\"\"\n1 0 busy {busy} >>{folder}/busy; echo $? >>{folder}/busy\n1 0 waiting {waiting} >>{folder}/waited\n"
    );
    fs::write(lab.folder().join("anacrontab"), table).expect("a file can be made");
    let script = "
        mkdir stamps
        anacron -d -n -s -t $PWD/anacrontab -S $PWD/stamps 2>>errors
        anacron -d -n -s -t $PWD/anacrontab -S $PWD/stamps 2>>errors
        cat busy waited";
    let holder = lab.hold("report");
    let Some(anacron) = machine(&lab, &["anacron"], script) else { return };
    lab.until_waiting("report", 1);
    holder.end().silently(0);
    anacron.end().printed("75\n/\n");
    let errors = written(&lab, "errors");
    assert!(errors.contains("(2 jobs run)") && errors.contains("(0 jobs run)"), "{errors}");
}

/// "at(1) keeps the variables for its jobs. A job that is submitted inside a lock is then a
/// descendant of that lock, and does not wait for it as long as it is held; rlock says so when the
/// job begins. Submit it without the variable".
#[test]
fn job_of_at_is_nested_below_the_lock_around_its_submission_unless_it_lacks_the_variable() {
    let lab = Lab::new();
    write_program(&lab, "report", "#!/bin/sh\nrlock exec -n db -- true 2>>errors\necho $? >>codes\n");
    let script = r#"
        install -d -o daemon -g daemon -m 1770 /var/spool/cron/atjobs /var/spool/cron/atspool
        install -o daemon -g daemon -m 600 /dev/null /var/spool/cron/atjobs/.SEQ
        atd
        touch codes
        submit() { rlock exec db -- sh -c "$1 2>>at; until [ \$(wc -l <codes) = $2 ]; do sleep .02; done"; }
        submit 'echo ./report | at now' 1
        submit 'echo ./report | env -u RLOCK_SESSION at now' 2
        cat codes errors"#;
    let Some(at) = machine(&lab, &["at", "atd"], script) else { return };
    let printed = at.end().stdout;
    let mut lines = printed.lines();
    assert_eq!((lines.next(), lines.next()), (Some("0"), Some("75")), "{printed}");
    assert!(lines.next().is_some_and(|line| line.contains(" this job of at(1) ")), "{printed}");
    assert!(lines.next().is_some_and(|line| line.starts_with("rlock: busy: ")), "{printed}");
}

/// supervisord signals only the process that it has started: TERM, and KILL after `stopwaitsecs`.
/// After TERM "the lock stays until its tree is gone"; after KILL the guardian ends the tree.
#[test]
fn job_of_supervisord_holds_its_lock_until_its_tree_is_gone() {
    let lab = Lab::new();
    write_program(
        &lab,
        "work",
        "#!/bin/sh\ntrap 'echo cleans up >>log; sleep .3; echo cleaned up >>log; exit 3' TERM\n\
         [ \"$1\" != deaf ] || sh -c 'trap \"\" TERM; while :; do sleep .02; done' &\n\
         echo >working\nwhile :; do sleep .02; done\n",
    );
    let folder = lab.folder().display();
    let program = |name: &str, wait: u32, command: &str| {
        format!(
            "[program:{name}]\ncommand=rlock exec k -- sh -c '{command}; true'\ndirectory={folder}\n\
             stopwaitsecs={wait}\nstartsecs=0\nautostart=false\nautorestart=false\nredirect_stderr=true\n"
        )
    };
    let configuration = format!(
        "[supervisord]\nnodaemon=true\nuser=root\nlogfile={folder}/supervisor\npidfile={folder}/pid\nchildlogdir={folder}\n\
         [unix_http_server]\nfile={folder}/socket\n\
         [rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n\
         [supervisorctl]\nserverurl=unix://{folder}/socket\n{}{}",
        program("gentle", 60, "./work"),
        program("deaf", 1, "./work deaf")
    );
    fs::write(lab.folder().join("configuration"), configuration).expect("a file can be made");
    let script = r#"
        supervisord -c configuration >output 2>&1 &
        await [ -S socket ]
        ctl() { supervisorctl -c configuration "$@" >>output 2>&1; }
        for job in gentle deaf; do
            rm -f working; ctl start $job; await [ -e working ]
            rlock exec k -c "echo next after $job >>log" & next=$!
            await waits k
            ctl stop $job; wait $next
        done
        cat log"#;
    let Some(supervisor) = machine(&lab, &["supervisord", "supervisorctl"], script) else { return };
    supervisor.end().printed("cleans up\ncleaned up\nnext after gentle\ncleans up\ncleaned up\nnext after deaf\n");
}

/// "su(1), runuser(1) and doas(1) pass INT and TERM on and kill the command two seconds later,
/// whatever `--grace` says. They pass no HUP and no USR1." The lock waits for what they leave.
#[test]
fn command_below_su_or_doas_is_killed_after_term_and_what_it_leaves_keeps_the_lock() {
    for words in ["su -s /bin/sh -c 'exec ./deaf' root", "runuser -s /bin/sh -c 'exec ./deaf' root", "doas ./deaf"] {
        let lab = Lab::new();
        let script = format!(
            r#"
        cp -a /etc /run/etc; echo permit nopass root >/run/etc/doas.conf; mount --bind /run/etc /etc
        rlock exec k -- {words} >output 2>errors & holder=$!
        await [ -e working ]
        kill -USR1 $holder; kill -HUP $holder; kill -TERM $holder
        await grep -q 'still run' errors
        rlock exec -n -q k -- true || echo busy $? >>log
        >go; wait $holder || echo ended $? >>log
        rlock exec k -- cat log"#
        );
        write_program(
            &lab,
            "deaf",
            "#!/bin/sh\ntrap 'echo told >>log' HUP USR1 TERM\n\
             sh -c 'trap \"\" HUP TERM; until [ -e go ]; do sleep .02; done; echo left >>log' &\n\
             echo >working\nwhile :; do sleep .02; done\n",
        );
        let tool = words.split(' ').next().expect("its name");
        let Some(su) = machine(&lab, &[tool], &script) else { return };
        su.end().printed("told\nbusy 75\nleft\nended 143\n");
    }
}
