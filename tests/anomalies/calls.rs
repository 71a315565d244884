//! The system calls of rlock, and the errors that the manual page of each lists, as far as they can
//! come at any moment: EINTR, EAGAIN, ENOMEM, EMFILE, ENOSPC, EIO, EPERM, EACCES, ENOSYS,
//! ECONNRESET.
//!
//! A call without an error here can't fail if its arguments are right.

use libc::{
    EACCES, EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET, EINTR, EIO, EMFILE, ENOBUFS, ENOLCK, ENOMEM, ENOSPC,
    ENOSYS, EPERM, EPIPE, c_int,
};

use super::trace::{Call, Fault};

type Row = (i64, &'static str, &'static [c_int]);

macro_rules! calls {
    ($($name:ident $number:ident: $($error:ident)*;)*) => {
        &[$((libc::$number, stringify!($name), &[$($error),*])),*]
    };
}

const CALLS: &[Row] = calls! {
    accept4 SYS_accept4: EAGAIN ECONNABORTED EINTR EMFILE ENOMEM EPERM;
    access SYS_access: EACCES EIO ENOMEM;
    arch_prctl SYS_arch_prctl: ;
    bind SYS_bind: EACCES ENOMEM;
    brk SYS_brk: ENOMEM;
    chdir SYS_chdir: EACCES EIO ENOMEM;
    chmod SYS_chmod: EACCES EIO ENOMEM EPERM;
    clock_gettime SYS_clock_gettime: ;
    clock_nanosleep SYS_clock_nanosleep: EINTR;
    clone SYS_clone: EAGAIN ENOMEM ENOSPC EPERM;
    clone3 SYS_clone3: EAGAIN ENOMEM ENOSPC EPERM;
    close_range SYS_close_range: EMFILE ENOMEM ENOSYS;
    close SYS_close: EINTR EIO ENOSPC;
    connect SYS_connect: EACCES EAGAIN ECONNREFUSED EINTR EPERM;
    dup SYS_dup: EMFILE;
    dup2 SYS_dup2: EINTR EMFILE;
    dup3 SYS_dup3: EINTR EMFILE;
    epoll_ctl SYS_epoll_ctl: ENOMEM ENOSPC;
    epoll_pwait SYS_epoll_pwait: EINTR;
    epoll_wait SYS_epoll_wait: EINTR;
    eventfd2 SYS_eventfd2: EMFILE ENOMEM;
    inotify_add_watch SYS_inotify_add_watch: EACCES ENOMEM ENOSPC;
    inotify_init1 SYS_inotify_init1: EMFILE ENOMEM;
    inotify_rm_watch SYS_inotify_rm_watch: ;
    epoll_create1 SYS_epoll_create1: EMFILE ENOMEM;
    execve SYS_execve: EACCES EAGAIN EIO EMFILE ENOMEM EPERM;
    faccessat SYS_faccessat: EACCES EIO ENOMEM;
    faccessat2 SYS_faccessat2: EACCES EIO ENOMEM ENOSYS;
    fallocate SYS_fallocate: EINTR EIO ENOSPC ENOSYS EPERM;
    fchmod SYS_fchmod: EIO EPERM;
    fchown SYS_fchown: EIO EPERM;
    fcntl SYS_fcntl: EMFILE;
    fdatasync SYS_fdatasync: EINTR EIO ENOSPC;
    flock SYS_flock: EAGAIN EINTR ENOLCK;
    fork SYS_fork: EAGAIN ENOMEM;
    fstat SYS_fstat: ENOMEM;
    fstatfs SYS_fstatfs: EINTR EIO ENOMEM ENOSYS;
    fsync SYS_fsync: EINTR EIO ENOSPC;
    ftruncate SYS_ftruncate: EINTR EIO EPERM;
    getcwd SYS_getcwd: EACCES ENOMEM;
    getdents64 SYS_getdents64: ;
    getegid SYS_getegid: ;
    geteuid SYS_geteuid: ;
    getgid SYS_getgid: ;
    getgroups SYS_getgroups: ;
    getpeername SYS_getpeername: ENOBUFS;
    getpgid SYS_getpgid: ;
    getpgrp SYS_getpgrp: ;
    getpid SYS_getpid: ;
    getppid SYS_getppid: ;
    getrandom SYS_getrandom: EAGAIN EINTR;
    getsid SYS_getsid: ;
    getsockname SYS_getsockname: ENOBUFS;
    getsockopt SYS_getsockopt: ;
    gettid SYS_gettid: ;
    getuid SYS_getuid: ;
    ioctl SYS_ioctl: ;
    kill SYS_kill: EPERM;
    link SYS_link: EACCES EIO ENOMEM ENOSPC EPERM;
    linkat SYS_linkat: EACCES EIO ENOMEM ENOSPC EPERM;
    listen SYS_listen: ;
    lseek SYS_lseek: ;
    lstat SYS_lstat: EACCES ENOMEM;
    madvise SYS_madvise: EAGAIN EIO ENOMEM EPERM;
    mkdir SYS_mkdir: EACCES ENOMEM ENOSPC EPERM;
    mkdirat SYS_mkdirat: EACCES ENOMEM ENOSPC EPERM;
    mknodat SYS_mknodat: EACCES ENOMEM ENOSPC EPERM;
    mmap SYS_mmap: EACCES EAGAIN ENOMEM EPERM;
    mprotect SYS_mprotect: EACCES ENOMEM;
    mremap SYS_mremap: EAGAIN ENOMEM;
    msync SYS_msync: EIO ENOMEM;
    munmap SYS_munmap: ENOMEM;
    newfstatat SYS_newfstatat: EACCES ENOMEM;
    open SYS_open: EACCES EINTR EMFILE ENOMEM EPERM;
    openat SYS_openat: EACCES EINTR EMFILE ENOMEM EPERM;
    openat2 SYS_openat2: EACCES EINTR EMFILE ENOMEM ENOSYS EPERM;
    pidfd_open SYS_pidfd_open: EMFILE ENOMEM ENOSYS EPERM;
    pidfd_send_signal SYS_pidfd_send_signal: ENOSYS EPERM;
    pipe2 SYS_pipe2: EMFILE;
    poll SYS_poll: EINTR ENOMEM;
    ppoll SYS_ppoll: EINTR ENOMEM;
    prctl SYS_prctl: EPERM;
    pipe SYS_pipe: EMFILE;
    preadv SYS_preadv: EINTR EIO;
    pread64 SYS_pread64: EINTR EIO;
    prlimit64 SYS_prlimit64: ;
    pwrite64 SYS_pwrite64: EINTR EIO ENOSPC;
    pwritev SYS_pwritev: EINTR EIO ENOSPC;
    read SYS_read: EINTR EIO;
    readlink SYS_readlink: EACCES EIO ENOMEM;
    readlinkat SYS_readlinkat: EACCES EIO ENOMEM;
    recvfrom SYS_recvfrom: ECONNRESET EINTR ENOMEM;
    recvmsg SYS_recvmsg: ECONNRESET EINTR ENOMEM;
    rename SYS_rename: EACCES ENOMEM ENOSPC EPERM;
    renameat SYS_renameat: EACCES ENOMEM ENOSPC EPERM;
    renameat2 SYS_renameat2: EACCES ENOMEM ENOSPC EPERM;
    restart_syscall SYS_restart_syscall: EINTR;
    rseq SYS_rseq: ;
    rt_sigaction SYS_rt_sigaction: ;
    rt_sigprocmask SYS_rt_sigprocmask: ;
    rt_sigreturn SYS_rt_sigreturn: ;
    rt_sigtimedwait SYS_rt_sigtimedwait: EAGAIN EINTR;
    sched_getaffinity SYS_sched_getaffinity: ;
    sched_yield SYS_sched_yield: ;
    sendmsg SYS_sendmsg: EAGAIN ECONNRESET EINTR ENOMEM EPIPE;
    sendto SYS_sendto: EAGAIN ECONNRESET EINTR ENOMEM EPIPE;
    set_robust_list SYS_set_robust_list: ;
    setitimer SYS_setitimer: ;
    setpgid SYS_setpgid: EACCES EPERM;
    setsid SYS_setsid: EPERM;
    setsockopt SYS_setsockopt: ENOMEM;
    shutdown SYS_shutdown: ;
    signalfd4 SYS_signalfd4: EMFILE ENOMEM ENOSYS;
    sigaltstack SYS_sigaltstack: ENOMEM;
    socket SYS_socket: EACCES EMFILE ENOMEM;
    socketpair SYS_socketpair: EMFILE;
    stat SYS_stat: EACCES ENOMEM;
    statfs SYS_statfs: EACCES EINTR EIO ENOMEM ENOSYS;
    statx SYS_statx: EACCES ENOMEM ENOSYS;
    symlinkat SYS_symlinkat: EACCES EIO ENOMEM ENOSPC EPERM;
    sysinfo SYS_sysinfo: ;
    timer_create SYS_timer_create: EAGAIN ENOMEM;
    timer_settime SYS_timer_settime: ;
    timerfd_create SYS_timerfd_create: EMFILE ENOMEM;
    timerfd_settime SYS_timerfd_settime: ;
    truncate SYS_truncate: EACCES EINTR EIO EPERM;
    tgkill SYS_tgkill: EAGAIN;
    umask SYS_umask: ;
    uname SYS_uname: ;
    unlink SYS_unlink: EACCES EIO ENOMEM EPERM;
    unlinkat SYS_unlinkat: EACCES EIO ENOMEM EPERM;
    utimensat SYS_utimensat: EACCES EPERM;
    wait4 SYS_wait4: EINTR;
    waitid SYS_waitid: EINTR;
    write SYS_write: EIO EINTR ENOSPC EPIPE;
    writev SYS_writev: EIO EINTR ENOSPC;
    exit_group SYS_exit_group: ;
    exit SYS_exit: ;
    set_tid_address SYS_set_tid_address: ;
    futex SYS_futex: ;
};

/// The calls by which a static C library starts a program, before `main`. They are not rlock's.
const START: &[i64] = &[
    libc::SYS_arch_prctl,
    libc::SYS_brk,
    libc::SYS_getrandom,
    libc::SYS_mprotect,
    libc::SYS_prlimit64,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
];

pub(crate) fn is_of_start(number: i64) -> bool {
    START.contains(&number)
}

fn row(number: i64) -> Option<&'static Row> {
    CALLS.iter().find(|row| row.0 == number)
}

/// The name of a call.
///
/// # Panics
/// If the table lacks the call.
pub(crate) fn name(number: i64) -> &'static str {
    row(number).unwrap_or_else(|| panic!("tests/anomalies/calls.rs lacks the system call {number}")).1
}

/// The number of the call of this name.
pub(crate) fn number(name: &str) -> Option<i64> {
    CALLS.iter().find(|row| row.1 == name).map(|row| row.0)
}

/// Which argument of a transfer is its length.
pub(crate) fn length_of(call: &Call) -> usize {
    if call.number == libc::SYS_getrandom { 1 } else { 2 }
}

/// Whether a call can transfer less than it was asked for.
fn can_be_short(call: &Call) -> bool {
    let transfers = [
        libc::SYS_getrandom,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_write,
        libc::SYS_writev,
    ];
    transfers.contains(&call.number) && call.arguments[length_of(call)] > 1
}

/// The length of the message that wakes a session of the embedded store.
const WAKE_BYTES: u64 = 16;

/// Whether a failure of a call is left out, because rlock cannot handle it.
fn is_left_out(call: &Call, fault: Fault) -> bool {
    // The length of a transfer, or the flags of openat(2).
    let third = call.arguments[2];
    let wakes = third & 0xffff_ffff & u64::from((libc::O_ACCMODE | libc::O_NONBLOCK).cast_unsigned())
        == u64::from((libc::O_WRONLY | libc::O_NONBLOCK).cast_unsigned());
    match (call.number, fault) {
        // The pipe of a session to wake. Only another user's can't be opened for want of rights,
        // and such a pipe counts as that of a stranger.
        (libc::SYS_openat, Fault::Error(EACCES | EPERM)) => wakes,
        // LMDB reads a meta page at once. Linux reads a local file short at its end only.
        (libc::SYS_pread64, Fault::Short) => third == 152,
        // The keeper reports that it has detached, or a session is woken. A pipe with a reader
        // takes the bytes, all of them at once.
        (libc::SYS_write, Fault::Error(EIO | ENOSPC | EPIPE)) => [1, WAKE_BYTES].contains(&third),
        (libc::SYS_write, Fault::Short) => third == WAKE_BYTES,
        _ => false,
    }
}

/// Whether a failure may keep the message about an earlier one from standard error. rlock may have
/// opened it once more.
pub(crate) fn keeps_silent(call: &Call, fault: Fault) -> bool {
    let is_error = matches!(fault, Fault::Error(error) if ![EAGAIN, EINTR].contains(&error));
    match call.number {
        libc::SYS_write | libc::SYS_writev => is_error,
        libc::SYS_sendto => is_error && call.arguments[0] == 2,
        _ => false,
    }
}

/// The flag of mmap(2) for memory that is no file.
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;

/// The faults that can strike a call.
pub(crate) fn faults(call: &Call) -> Vec<Fault> {
    let command = call.arguments[1] as c_int;
    let errors = match call.number {
        // Only these commands make a descriptor.
        libc::SYS_fcntl if ![libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&command) => &[],
        libc::SYS_flock if command == libc::LOCK_UN => &[],
        // The allocator on musl has no other way to memory, and a program without memory aborts.
        // The allocator of glibc tries brk(2) before.
        libc::SYS_mmap if cfg!(target_env = "musl") && call.arguments[3] & ANONYMOUS != 0 => &[],
        // pthread_create(3) of musl says EAGAIN, whatever the cause.
        libc::SYS_mprotect if cfg!(target_env = "musl") => &[],
        number => row(number).map_or(&[][..], |row| row.2),
    };
    let may_block = call.number == libc::SYS_getrandom && call.arguments[2] & u64::from(libc::GRND_NONBLOCK) == 0;
    let errors = errors.iter().filter(|error| !(may_block && **error == EAGAIN));
    let short = can_be_short(call).then_some(Fault::Short);
    let faults = errors.map(|error| Fault::Error(*error)).chain(short);
    faults.filter(|fault| !is_left_out(call, *fault)).collect()
}

/// The names of the errors, in which a case is written.
const ERRORS: &[(c_int, &str)] = &[
    (EACCES, "EACCES"),
    (EAGAIN, "EAGAIN"),
    (ECONNABORTED, "ECONNABORTED"),
    (ECONNREFUSED, "ECONNREFUSED"),
    (ECONNRESET, "ECONNRESET"),
    (EINTR, "EINTR"),
    (EIO, "EIO"),
    (EMFILE, "EMFILE"),
    (ENOBUFS, "ENOBUFS"),
    (ENOLCK, "ENOLCK"),
    (ENOMEM, "ENOMEM"),
    (ENOSPC, "ENOSPC"),
    (ENOSYS, "ENOSYS"),
    (EPERM, "EPERM"),
    (EPIPE, "EPIPE"),
];

impl Fault {
    /// All faults, whatever the call.
    pub(crate) fn all() -> Vec<Self> {
        ERRORS.iter().map(|row| Self::Error(row.0)).chain([Self::Short, Self::Kill]).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error(error) => ERRORS.iter().find(|row| row.0 == error).map_or("an error", |row| row.1),
            Self::Short => "short",
            Self::Kill => "kill",
        }
    }

    /// The fault of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "short" => Some(Self::Short),
            "kill" => Some(Self::Kill),
            _ => ERRORS.iter().find(|row| row.1 == name).map(|row| Self::Error(row.0)),
        }
    }
}
