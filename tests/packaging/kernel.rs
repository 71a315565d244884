//! The packaged program on an old kernel, played by strace(1): newer system calls fail with ENOSYS.

use std::path::Path;
use std::process::Command;

use super::{Lab, Ran, package, sh};
use rlock_testkit::needs::{programs, skip_unless};

/// The system calls that Linux 3.17 lacks, as far as strace knows them.
const NEWER: &str = "execveat,userfaultfd,membarrier,mlock2,copy_file_range,preadv2,pwritev2,pkey_mprotect,statx,\
     io_pgetevents,rseq,pidfd_send_signal,io_uring_setup,pidfd_open,clone3,close_range,openat2,pidfd_getfd,faccessat2,\
     process_madvise,epoll_pwait2,futex_waitv";

fn on_old_kernel(lab: &Lab, program: &Path, words: &[&str]) -> Ran {
    let mut strace = Command::new("strace");
    lab.settle(&mut strace);
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("inject={NEWER}:error=ENOSYS")]);
    Ran::of(strace.arg(program).args(words))
}

/// docs/porting.md: "rlock needs Linux 3.17".
#[test]
#[ignore = "needs packaging/build"]
fn kernel_without_newer_system_calls_runs_all_but_keepers_and_spare_work() {
    skip_unless!(programs(&["strace"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    sh("tar -xzf \"$2\" -C \"$1\" --strip-components 1", &[folder.path(), &package(".tar.gz")]);
    let (lab, program) = (Lab::new(), folder.path().join("bin/rlock"));
    let rlock = |words: &[&str]| on_old_kernel(&lab, &program, words);
    rlock(&["exec", "k", "--", "echo", "held"]).printed("held\n");
    let stopped = rlock(&["exec", "k", "--max-runtime", "300ms", "--", "sleep", "1000"]);
    assert_eq!(stopped.code(), Some(124), "{stopped:?}");
    assert_eq!(rlock(&["acquire", "k", "--for", "1h"]).code(), Some(0));
    assert!(rlock(&["exec", "-n", "k", "--", "true"]).failed(75).starts_with("busy: 'k' is kept"));
    assert!(rlock(&["acquire", "j", "--pid", "1"]).failed(125).contains("needs Linux 5.3"));
}

/// docs/porting.md: "Linux 3.17". glibc states in the program which kernel it needs. musl runs on
/// any kernel that has the system calls.
#[test]
#[ignore = "needs packaging/build"]
fn c_library_in_the_program_needs_no_newer_kernel() {
    skip_unless!(programs(&["readelf"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    sh("tar -xzf \"$2\" -C \"$1\" --strip-components 1", &[folder.path(), &package(".tar.gz")]);
    let notes = sh("readelf --notes \"$1/bin/rlock\"", &[folder.path()]);
    if sh("\"$1/bin/rlock\" --version", &[folder.path()]).contains("-musl") {
        return assert!(!notes.contains("ABI"), "{notes}");
    }
    let abi = notes.split("OS: Linux, ABI: ").nth(1).unwrap_or_else(|| panic!("no note of the system in {notes}"));
    let mut numbers = abi.split_whitespace().next().unwrap_or_default().split('.').map(str::parse::<u32>);
    let version = [(); 2].map(|()| numbers.next().and_then(Result::ok).expect("a version"));
    assert!(version <= [3, 17], "{notes}");
}
