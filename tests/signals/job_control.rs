//! rlock as a job of an interactive shell: `rlock exec k -- vim`, Ctrl-C, Ctrl-Z and `fg` work.

use crate::session::{FOREGROUND, IDLE, PROMPT, Session, script, until_in_foreground};
use rlock_testkit::Lab;
use rlock_testkit::needs::{self, skip_unless};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// Ctrl-Z stops the job and gives the terminal back to the shell. `fg` continues the job.
#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "job", "echo '<ready>'; n=0; while read -r line; do n=$((n + 1)); echo \"<$n $line>\"; done; exit 6");
    let mut shell = Session::shell(&lab);
    shell.types("rlock exec k -- sh job\n");
    // The line editor of the shell would get text that is typed earlier.
    shell.output.expect("<ready>");
    for round in 1..=10 {
        shell.types("text\n");
        shell.output.expect(&format!("<{round} text>"));
        shell.types(CTRL_Z);
        shell.output.expect("Stopped");
        shell.output.expect(PROMPT);
        assert_eq!(lab.counts("k").0, 1, "a stopped job keeps its lock");
        shell.types("fg\n");
        shell.output.expect("rlock exec k -- sh job");
    }
    shell.types("text\n");
    shell.output.expect("<11 text>");
    shell.types("\x04");
    shell.output.expect(PROMPT);
    shell.types("echo code=$?\n");
    shell.output.expect("code=6");
    lab.assert_idle();
}

/// Ctrl-C ends the job and the rest of the command line.
#[test]
fn ctrl_c_ends_the_job_and_the_loop_around_it() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "job", FOREGROUND);
    let mut shell = Session::shell(&lab);
    shell.types("while :; do rlock exec k -- sh job; done\n");
    until_in_foreground(&mut shell);
    shell.types(CTRL_C);
    shell.output.expect(PROMPT);
    shell.types("echo code=$?\n");
    shell.output.expect("code=130");
    assert_eq!(shell.output.so_far().matches("ready").count(), 1);
    lab.assert_idle();
}

/// A full-screen program changes the terminal, restores it before the program suspends itself, and
/// changes it again when the program continues.
const SCREEN: &str = r#"
before=$(stty -g)
stty raw -echo
printf '<open>'
while key=$(dd bs=1 count=1 2>/dev/null); do
    case $key in
        z) stty "$before"; kill -TSTP 0; stty raw -echo; printf '<again>' ;;
        q) stty "$before"; printf '<closed>'; exit 8 ;;
        *) printf '<%s>' "$key" ;;
    esac
done
"#;

#[test]
fn full_screen_program_suspends_itself_and_continues_after_fg() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "screen", SCREEN);
    let mut shell = Session::shell(&lab);
    shell.types("rlock exec k -- sh screen\n");
    shell.output.expect("<open>");
    for _ in 0..5 {
        shell.types("x");
        shell.output.expect("<x>");
        shell.types("z");
        shell.output.expect("Stopped");
        shell.output.expect(PROMPT);
        shell.types("fg\n");
        shell.output.expect("<again>");
    }
    shell.types("q");
    shell.output.expect("<closed>");
    shell.output.expect(PROMPT);
    shell.types("echo code=$?\n");
    shell.output.expect("code=8");
}

#[test]
fn pipeline_works_on_both_sides_of_rlock() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    let mut shell = Session::shell(&lab);
    shell.types("echo te''xt | rlock exec k -- cat | tr a-z A-Z\n");
    shell.output.expect("TEXT");
    shell.output.expect(PROMPT);
    // Both programs of the pipeline are in the terminal's foreground, so the job may read from it.
    script(&lab, "job", "echo '<ready>' >&2; exec cat");
    shell.types("rlock exec k -- sh job | tr a-z A-Z\n");
    shell.output.expect("<ready>");
    shell.types("more\n\x04");
    shell.output.expect("MORE");
    shell.output.expect(PROMPT);
    lab.assert_idle();
}

/// The terminal stops a background job that reads. The job reads once it is in the foreground.
#[test]
fn background_job_that_reads_stops_until_fg() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "job", "read -r line; echo \"<$line>\"; exit 4");
    let mut shell = Session::shell(&lab);
    shell.types("rlock exec k -- sh job &\n");
    shell.output.expect(PROMPT);
    // The shell reports the stop at the first prompt after the stop.
    while !shell.output.so_far().contains("Stopped") {
        shell.types("\n");
        shell.output.expect(PROMPT);
    }
    shell.types("fg\n");
    shell.output.expect("rlock exec k -- sh job");
    shell.types("text\n");
    shell.output.expect("<text>");
    shell.output.expect(PROMPT);
    shell.types("echo code=$?\n");
    shell.output.expect("code=4");
}

/// `bg` continues the stopped job in the background, and the shell's `kill` ends it.
#[test]
fn stopped_job_continues_in_the_background_and_is_killed() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "job", &format!("trap 'exit 4' TERM; {IDLE}"));
    let mut shell = Session::shell(&lab);
    shell.types("rlock exec k -- sh job\n");
    shell.output.expect("<ready>");
    shell.types(CTRL_Z);
    shell.output.expect("Stopped");
    shell.output.expect(PROMPT);
    shell.types("bg\n");
    shell.output.expect(PROMPT);
    shell.types("kill %1; wait %1; echo code=$?\n");
    shell.output.expect("code=4");
    lab.assert_idle();
}

/// Ctrl-Z stops a waiting rlock. After `fg`, rlock still waits at its old place.
#[test]
fn ctrl_z_stops_a_waiting_rlock_and_fg_continues_it() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut shell = Session::shell(&lab);
    shell.types("rlock exec -v k -- echo '<gran''ted>'\n");
    shell.output.expect("waits for");
    shell.types(CTRL_Z);
    shell.output.expect("Stopped");
    shell.output.expect(PROMPT);
    assert_eq!(lab.counts("k"), (1, 1));
    shell.types("fg\n");
    shell.output.expect("rlock exec");
    drop(holder.end());
    shell.output.expect("<granted>");
    shell.output.expect(PROMPT);
}
