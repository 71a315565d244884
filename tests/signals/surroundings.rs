//! What a process inherits: the command, the spare work of `--meanwhile` and the work of `--else`
//! start as without rlock, however long rlock has run.

use std::fs;
use std::path::Path;

use crate::session::{Session, script};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, wait_until};

/// Starts a program in surroundings that differ from the usual ones in every way.
const LAUNCH: &str = r#"
    use POSIX;
    $^F = 99;
    chdir "work" or die;
    umask 027;
    open my $file, "<", "../launch" or die;
    POSIX::nice(3);
    $SIG{PIPE} = $SIG{USR2} = "IGNORE";
    sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1, SIGALRM));
    exec "sh", "-c", 'ulimit -n 600; ulimit -c 0; exec "$@"', "sh", @ARGV;"#;

/// Writes what a process inherits into the file that its argument names.
const PROBE: &str = r#"
    use Time::HiRes qw(getitimer ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF);
    sub contents { my $path = shift; local $/; open my $file, "<", $path or return "none"; <$file> }
    my @seen = map { "$_: " . contents("/proc/self/$_") } qw(limits timers oom_score_adj personality coredump_filter);
    push @seen, grep { /^(Sig(Pnd|Blk|Ign)|ShdPnd|Seccomp|NoNewPrivs|Cap\w+|Cpus_allowed|Umask|[UG]id|Groups):/ }
        split /^/, contents("/proc/self/status");
    push @seen, "cwd: " . readlink("/proc/self/cwd"), "priority: " . getpriority(0, 0);
    push @seen, "timers: " . join " ", map { join ",", getitimer($_) } ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF;
    push @seen, map { "descriptor: $_ " . (readlink("/proc/self/fd/$_") || "") } sort grep { $_ > 2 && readlink("/proc/self/fd/$_") } do {
        opendir my $folder, "/proc/self/fd"; readdir $folder };
    open my $out, ">", "../$ARGV[0].new" or die;
    s/\n?$/\n/, print $out $_ for @seen;
    close $out;
    rename "../$ARGV[0].new", "../$ARGV[0]";"#;

/// What a program of this name inherited. Descriptors of the probe itself have other numbers in
/// each run.
fn inherited(lab: &Lab, name: &str) -> String {
    let path = lab.folder().join(name);
    wait_until(&format!("{name} has run"), || path.exists());
    let text = fs::read_to_string(path).unwrap();
    let own = |line: &&str| !line.starts_with("descriptor: ") || line.ends_with("/launch");
    text.lines().filter(own).map(|line| format!("{line}\n")).collect()
}

fn launch(lab: &Lab, words: &[&str]) -> Session {
    Session::start(lab, [&["perl", "launch"], words].concat())
}

fn probe(name: &str) -> String {
    format!("exec perl ../probe {name}")
}

fn rlock(lab: &Lab, words: &[&str]) -> Session {
    launch(lab, &[&[RLOCK, "exec"], words].concat())
}

/// A process that rlock starts differs from one that is started without rlock only in what the
/// manual names, at once and after two seconds, when the guardian has executed its program.
#[test]
fn programs_inherit_what_rlock_was_started_with_at_once_and_after_two_seconds() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    script(&lab, "launch", LAUNCH);
    script(&lab, "probe", PROBE);
    fs::create_dir(lab.folder().join("work")).unwrap();
    assert_eq!(launch(&lab, &["sh", "-c", &probe("alone")]).code(), 0);
    let alone = inherited(&lab, "alone");
    assert!(alone.contains("Max open files            600") && alone.contains("priority: 3"));

    assert_eq!(rlock(&lab, &["a", "-c", &probe("command")]).code(), 0);
    assert_eq!(rlock(&lab, &["a", "--meanwhile", &probe("spare-after"), "--", "true"]).code(), 0);
    assert_eq!(rlock(&lab, &["a", "--meanwhile", &probe("spare-later"), "--", "sleep", "2"]).code(), 0);
    let holder = lab.hold("a");
    assert_eq!(rlock(&lab, &["a", "-n", "--else", &probe("else"), "--", "true"]).code(), 0);
    let words = ["a", "-w", "2s", "--meanwhile", "sleep 2", "--else", &probe("else-later"), "--", "true"];
    assert_eq!(rlock(&lab, &words).code(), 0);
    let mut first = rlock(&lab, &["a", "--meanwhile", &probe("spare"), "--", "true"]);
    inherited(&lab, "spare");
    let words = ["a", "--meanwhile", "sleep 2; : > ../slept", "-c", &probe("command-later")];
    let mut second = rlock(&lab, &words);
    wait_until("two seconds have passed", || lab.folder().join("slept").exists());
    holder.end().silently(0);
    assert_eq!((first.code(), second.code()), (0, 0));
    for name in ["command", "command-later", "spare", "spare-after", "spare-later", "else", "else-later"] {
        let inherited = inherited(&lab, name);
        let differs = inherited.lines().zip(alone.lines()).find(|(with, without)| with != without);
        assert_eq!((differs, inherited.len()), (None, alone.len()), "{name}");
    }
}

/// Relative names of files keep their meaning.
#[test]
fn status_file_is_written_where_rlock_was_started_however_long_the_command_runs() {
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "--status-file", "status.json", "a", "--", "sleep", "2"]);
    assert_eq!(session.code(), 0);
    assert!(lab.folder().join("status.json").exists());
    assert!(!Path::new("/status.json").exists());
}
