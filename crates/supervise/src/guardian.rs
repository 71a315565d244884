//! The guardian: a child of rlock that ends the command's whole process tree when rlock is killed.
//!
//! ```text
//!   rlock ──clone──▶ guardian ──after a second, or at the end of rlock──▶ exec of its program
//!     │
//!     └────clone──▶ command
//! ```
//!
//! rlock starts the guardian just before the command, and kills it when the command has ended.
//! Where there is no terminal the guardian leads the command's process group, so that the command
//! leads none and setsid(1) does not fork. If rlock and the guardian are both killed,
//! PR_SET_PDEATHSIG still ends the command itself.
//!
//! A guardian starts as a process that shares rlock's memory. Copying it would cost more than
//! everything else that rlock adds to a command's start. While the memory is shared, the guardian
//! makes only system calls. It has descriptors and a working directory of its own from the start,
//! and first closes all descriptors but the standard ones and those that it is to keep. When rlock
//! has ended or after `SHARED_LIMIT`, the guardian executes rlock's program again, as [`program`].
//! The guardian then has memory of its own. The OOM killer ends all processes that share memory, so
//! it can now end rlock without its guardian.
//!
//! A sender that signals every process signals the guardian as well. The guardian notes the signals
//! that are worth it in a pipe to rlock, see `canary`.
//!
//! The guardian blocks all signals, and it is not in rlock's process group, so a SIGKILL to that
//! group misses the guardian. Nor does its name contain `rlock`, so `pkill -9 rlock` misses it once
//! it has its own command line. It keeps the beacon of an embedded store open, so that the lock is
//! not granted to another request before the tree is gone. Then it notes the instant on the beacon.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, Mode, OFlags, RawDir};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, WaitOptions, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, setpgid, waitpid,
};

use super::canary::Sent;
use super::event::Signal;
use super::signals::Signals;
use super::spawn::{clone_sharing, pointers, stack};
use rlock_sys::signals::{Pending, take};
use rlock_sys::{exit, processes};

pub mod program;

/// How long a guardian shares the memory of rlock. A shorter command does not pay for more.
const SHARED_LIMIT: Duration = Duration::from_secs(1);

/// The size of the guardian's stack while it shares rlock's memory.
const STACK_BYTES: usize = 64 << 10;

/// The guardian's name for ps(1), and the first word of its command line. It does not contain
/// `rlock`, so that `pkill -9 rlock` leaves the guardian to end the tree.
const NAME: &CStr = c"lock-guardian";

/// rlock's own executable file.
const EXECUTABLE: &CStr = c"/proc/self/exe";

/// Without /proc, descriptors below this number are closed.
const DESCRIPTORS: RawFd = 1024;

/// What a guardian watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ward {
    /// The process whose end is the end of the tree: rlock.
    pub(super) rlock: Pid,
    /// The session id in the environment of the command.
    pub(super) session: String,
    /// The process group of rlock.
    pub(super) outer: i32,
    /// The process group of the command, for a guardian that is to join that group.
    pub(super) group: Option<Pid>,
    /// Whether the command is not started yet.
    pub(super) is_first: bool,
    /// Whether the guardian notes its signals.
    pub(super) is_canary: bool,
}

impl Ward {
    /// What a guardian watches that starts just before the command of this session.
    pub(super) fn first(session: &str) -> Self {
        let outer = processes::own_group();
        Self { rlock: getpid(), session: session.to_owned(), outer, group: None, is_first: true, is_canary: true }
    }
}

/// A guardian that was started.
#[derive(Debug)]
pub(super) struct Guardian {
    pub(super) pid: Pid,
    /// The notes of the signals that the guardian has received; `None` if it notes none, or the
    /// kernel gave no descriptors for them.
    pub(super) notes: Option<Notes>,
}

/// The size of a note: the number of the signal, and the four bytes of the sender's process id.
/// The kernel writes a note as a whole or not at all.
const NOTE_BYTES: usize = 5;

/// The end of the pipe from which rlock reads the notes.
#[derive(Debug)]
pub(super) struct Notes(OwnedFd);

impl Notes {
    /// The next note, if there is one.
    pub(super) fn next(&self) -> Option<Sent> {
        let mut note = [0; NOTE_BYTES];
        let read = rustix::io::read(&self.0, &mut note).ok()?;
        let [number, by @ ..] = note;
        let signal = Signal::from_number(number.into()).filter(|_| read == NOTE_BYTES)?;
        Some(Sent { signal, by: u32::from_ne_bytes(by) })
    }
}

impl AsFd for Notes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptors by which a guardian notes signals: a signalfd(2), and the pipe to rlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ears {
    signals: RawFd,
    notes: RawFd,
}

/// What the guardian reads while it shares rlock's memory. It is never freed.
struct Plan {
    group: Option<Pid>,
    /// A pidfd of rlock, which Linux has since 5.3. Without it the guardian executes its program at
    /// once.
    life: Option<RawFd>,
    ears: Option<Ears>,
    /// rlock, whose own signals are not noted.
    rlock: Pid,
    /// The descriptors that the guardian keeps open, with the pidfd and the ears, in their order.
    kept: Vec<RawFd>,
    /// Whether the kernel closes ranges of descriptors.
    closes_ranges: bool,
    /// The arguments and the environment of the program, and the texts that they point to.
    argv: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    _texts: [Vec<CString>; 2],
}

/// Starts a guardian, which keeps these descriptors open. All signals have to be blocked.
///
/// # Errors
/// The kernel's.
pub(super) fn start(ward: &Ward, kept: &[BorrowedFd<'_>]) -> io::Result<Guardian> {
    // The clone copies the descriptors, so rlock need not keep them.
    let pidfd = pidfd_open(ward.rlock, PidfdFlags::empty()).ok();
    let life = pidfd.as_ref().map(AsRawFd::as_raw_fd);
    let canary = ward.is_canary.then(canary_ends).and_then(Result::ok);
    let ears = canary
        .as_ref()
        .map(|(_, signals, notes)| Ears { signals: signals.as_fd().as_raw_fd(), notes: notes.as_raw_fd() });
    let mut kept: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    let texts = [program::words(), vec![program::variable(ward, life, ears, &kept)]];
    kept.extend(life.into_iter().chain(ears.into_iter().flat_map(|ears| [ears.signals, ears.notes])));
    kept.sort_unstable();
    let [argv, environment] = [0, 1].map(|list| pointers(&texts[list]));
    let (group, rlock) = (ward.group, ward.rlock);
    // No process can have a descriptor of this number. A failure in the guardian would set `errno`.
    let closes_ranges = close_range(RawFd::MAX, RawFd::MAX);
    let plan = Plan { group, life, ears, rlock, kept, closes_ranges, argv, environment, _texts: texts };
    let plan: *const Plan = Box::leak(Box::new(plan));
    // SAFETY: the stack and the plan are never freed. The child makes only system calls on
    // them, none of which uses the C library's variables, and ends without a return.
    let pid = unsafe { clone_sharing(in_guardian, stack(STACK_BYTES), 0, plan.cast_mut().cast()) }?;
    // The guardian moves itself, too. But the command is about to join the group, so rlock does
    // not wait for the guardian to do that. A guardian that has executed its program has moved, and
    // the kernel refuses to move it again.
    if let Err(error) = move_to_group(Some(pid), ward.group)
        && error != Errno::ACCESS
    {
        end(pid)?;
        return Err(error.into());
    }
    Ok(Guardian { pid, notes: canary.map(|(notes, ..)| notes) })
}

/// Starts a guardian, which keeps these descriptors open, and then a program below it:
/// `start_program` gets the guardian and starts the program. Returns the guardian and the program.
///
/// # Errors
/// An error of the kernel or of `start_program`. Nothing is left running then.
pub(super) fn start_with(
    ward: &Ward,
    kept: &[BorrowedFd<'_>],
    signals: &Signals,
    start_program: impl FnOnce(Pid) -> io::Result<Pid>,
) -> io::Result<(Guardian, Pid)> {
    let _blocked = signals.hold_back()?;
    let guardian = start(ward, kept)?;
    match start_program(guardian.pid) {
        Ok(program) => Ok((guardian, program)),
        Err(error) => {
            end(guardian.pid)?;
            Err(error)
        }
    }
}

/// Prepares the program between clone and exec. The program dies with rlock, joins the group of
/// `leader`, if any, and gets back the signal state that rlock was started with.
pub(super) fn prepare(signals: &Signals, leader: Option<Pid>) -> impl Fn() -> io::Result<()> {
    let undo = signals.undo_in_child();
    let rlock = getpid();
    move || {
        if leader.is_some() {
            setpgid(None, leader)?;
        }
        set_parent_process_death_signal(Some(Kernel::KILL))?;
        // If rlock ended before the line above, the kernel sends no signal any more.
        if getppid() != Some(rlock) {
            signal_hook::low_level::exit(i32::from(exit::FAILURE));
        }
        undo()
    }
}

/// The notes for rlock, the guardian's signals, and the guardian's end of the pipe.
fn canary_ends() -> io::Result<(Notes, Pending, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let signals = Pending::of(&Signal::TO_EVERYONE.map(|signal| signal.kernel().as_raw()))?;
    Ok((Notes(reader), signals, writer))
}

/// Tells a guardian to end, for there is nothing left to guard. Returns whether the guardian ends,
/// and is to be reaped. Otherwise the kernel does not permit the signal, and the guardian ends with
/// rlock.
pub(super) fn dismiss(guardian: Pid) -> bool {
    kill_process(guardian, Kernel::KILL).is_ok()
}

/// Ends and reaps a guardian.
///
/// # Errors
/// The kernel's; none is expected.
pub(super) fn end(guardian: Pid) -> io::Result<()> {
    if dismiss(guardian) {
        waitpid(Some(guardian), WaitOptions::empty())?;
    }
    Ok(())
}

/// Whether a process is a guardian. Right after the exec of its program only the command line says
/// so.
pub(super) fn is_guardian(process: Pid) -> bool {
    let name = NAME.to_bytes();
    let (comm, words) = processes::names(process);
    comm == name || words.strip_prefix(name).is_some_and(|rest| rest.starts_with(&[0]))
}

/// Moves a guardian into a process group, or into one of its own if that group is gone. A guardian
/// in the command's group keeps the group's number from another use.
fn move_to_group(guardian: Option<Pid>, group: Option<Pid>) -> Result<(), Errno> {
    setpgid(guardian, group.or(guardian)).or_else(|_| setpgid(guardian, guardian))
}

/// What the guardian does in the memory of rlock. It must not allocate, nor call anything that sets
/// `errno`, which is rlock's.
extern "C" fn in_guardian(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `Guardian::start`, which nobody writes to.
    let plan = unsafe { &*plan.cast_const().cast::<Plan>() };
    // A SIGKILL to the process group of rlock must not end this process.
    let _ = move_to_group(None, plan.group);
    // rlock's peers would otherwise take rlock's end for a pause, and a lock of rlock's for held.
    close_all_but(&plan.kept, plan.closes_ranges);
    let _ = rustix::thread::set_name(NAME);
    let Some(life) = plan.life else {
        plan.execute();
        signal_hook::low_level::exit(c_int::from(exit::FAILURE))
    };
    // SAFETY: `close_all_but` has left the pidfd open.
    let life = unsafe { BorrowedFd::borrow_raw(life) };
    let _ = await_end(life, plan.ears, plan.rlock, Some(SHARED_LIMIT));
    plan.execute();
    // There is no /proc, or too little memory.
    if await_end(life, plan.ears, plan.rlock, None).is_err() {
        signal_hook::low_level::exit(c_int::from(exit::FAILURE))
    }
    plan.execute();
    // What is left to kill without the program is the group, which includes this process.
    let _ = rustix::process::kill_current_process_group(Kernel::KILL);
    signal_hook::low_level::exit(c_int::from(exit::FAILURE))
}

/// Waits for the end of `rlock`, which is the process of the pidfd `life`, for at most this time if
/// there is a limit. Notes the signals that come meanwhile. It does not allocate.
///
/// # Errors
/// The kernel does not permit the wait.
fn await_end(life: BorrowedFd<'_>, ears: Option<Ears>, rlock: Pid, limit: Option<Duration>) -> Result<(), Errno> {
    let until = limit.map(|limit| Instant::now() + limit);
    // SAFETY: the guardian has kept the descriptor.
    let signals = ears.map_or(life, |ears| unsafe { BorrowedFd::borrow_raw(ears.signals) });
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [life, signals].map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) if polled[0].revents().is_empty() && !polled[1].revents().is_empty() => {
                ears.into_iter().for_each(|ears| ears.note(rlock));
            }
            Ok(_) => return Ok(()),
        }
    }
}

impl Ears {
    /// Notes the next signal, unless `rlock` has sent it. A note that does not fit into the pipe is
    /// lost, and the command gets the signal twice.
    fn note(self, rlock: Pid) {
        // SAFETY: the guardian has kept both descriptors.
        let [signals, notes] = [self.signals, self.notes].map(|number| unsafe { BorrowedFd::borrow_raw(number) });
        let Some(taken) = take(signals) else { return };
        if taken.sender != rlock.as_raw_nonzero().get().unsigned_abs() {
            let [a, b, c, d] = taken.sender.to_ne_bytes();
            let note: [u8; NOTE_BYTES] = [taken.number as u8, a, b, c, d];
            let _ = rustix::io::write(notes, &note);
        }
    }
}

/// Closes all descriptors of this process but these, which are in order, and the standard ones. It
/// does not allocate.
///
/// The guardian keeps the standard ones open until it ends. So a reader of a killed rlock's output
/// sees the end of the output when the tree is gone and the lock is free.
fn close_all_but(kept: &[RawFd], closes_ranges: bool) {
    let mut first = libc::STDERR_FILENO + 1;
    let mut close_up_to = |kept: &RawFd| {
        let is_closed = close_range(first, kept - 1);
        first = first.max(kept.saturating_add(1));
        is_closed
    };
    if closes_ranges && kept.iter().chain([&RawFd::MAX]).all(&mut close_up_to) {
        return;
    }
    let close = |descriptor: RawFd| {
        if descriptor > libc::STDERR_FILENO && !kept.contains(&descriptor) {
            // After an error, too, the descriptor is closed.
            // SAFETY: it is open, and nothing in this process uses one that is not kept.
            let _ = unsafe { rustix::io::try_close(descriptor) };
        }
    };
    // SAFETY: a descriptor that is not open is an error of the kernel, and nothing else.
    let is_open = |descriptor: &RawFd| unsafe { fcntl_getfd(BorrowedFd::borrow_raw(*descriptor)) }.is_ok();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()) else {
        return (0..DESCRIPTORS).filter(is_open).for_each(close);
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(folder.as_fd(), &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|number| *number != folder.as_raw_fd()) {
            close(number);
        }
    }
}

/// Closes the descriptors from `first` to `last` by close_range(2), which Linux has since 5.9.
/// Returns whether the kernel permits it.
fn close_range(first: RawFd, last: RawFd) -> bool {
    // SAFETY: nothing in this process uses the descriptors.
    first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0
}

impl Plan {
    /// Executes the guardian's program. It returns only if that fails.
    fn execute(&self) {
        // A failed execve would set `errno`; it has no other likely reason than this one.
        if rustix::fs::access(EXECUTABLE, Access::EXEC_OK).is_err() {
            return;
        }
        for descriptor in &self.kept {
            // SAFETY: rlock had it open, and this process has not closed it.
            let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(*descriptor) }, FdFlags::empty());
        }
        // SAFETY: the path is a C string, both others are lists of C strings that end with a null
        // pointer.
        unsafe { libc::execve(EXECUTABLE.as_ptr(), self.argv.as_ptr(), self.environment.as_ptr()) };
    }
}
