//! Runs a program under ptrace(2): lists the system calls of one of its processes, and makes one of
//! them fail, or kills the process there.
//!
//! A run takes a few milliseconds longer under this tracer, and 20 ms longer under strace(1).
//! strace also can't choose one of the processes that rlock starts, closes nothing when it makes
//! close(2) fail, and only claims that a transfer was short.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::ptr;

use libc::{c_int, c_void, pid_t};

use super::calls;

/// Which process of the program is traced. The calls of several processes of a kind count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// The process that the test starts.
    Rlock,
    /// What rlock starts by fork(2) or alike, and what this process executes: guardian or keeper.
    Forked,
    /// What rlock starts by vfork(2) or alike, until it executes a program: the command.
    Command,
}

/// What happens at a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call fails with this error.
    Error(c_int),
    /// The call transfers one byte, or one block of several.
    Short,
    /// The process gets SIGKILL instead of the call.
    Kill,
}

/// A place in the life of a process: the call, and how many such calls went before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) number: i64,
    pub(crate) before: usize,
}

/// What the tracer is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) process: Process,
    pub(crate) strike: Option<(Place, Fault)>,
    /// What happens while the process handles the first fault: the first call that can fail so,
    /// after this many other calls.
    pub(crate) second: Option<(usize, Fault)>,
}

/// A system call that the process has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

/// What the tracer has seen.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// The calls until the last strike.
    pub(crate) calls: Vec<Call>,
    /// The faults that have struck.
    pub(crate) struck: Vec<Fault>,
    /// How the program has ended, if it did while it was traced.
    pub(crate) status: Option<ExitStatus>,
}

/// What follows when the call returns: the registers get their values back, and the call may return
/// an error.
struct Pending {
    before: libc::user_regs_struct,
    error: Option<c_int>,
    fault: Fault,
}

/// How far a process is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is the shell that is to execute the program.
    Launch,
    /// The C library starts the program.
    Start,
    /// Its calls count.
    Work,
}

struct Tracee {
    /// Unknown until the parent's stop tells it.
    process: Option<Process>,
    /// Whether it waits for the parent's stop.
    is_waiting: bool,
    phase: Phase,
    pending: Option<Pending>,
}

impl Tracee {
    fn new(process: Option<Process>) -> Self {
        let phase = if process == Some(Process::Rlock) { Phase::Launch } else { Phase::Work };
        Self { process, is_waiting: false, phase, pending: None }
    }
}

struct Tracer {
    root: pid_t,
    plan: Plan,
    tracees: HashMap<pid_t, Tracee>,
    counts: HashMap<i64, usize>,
    /// The number of calls since the first strike.
    since: usize,
    trace: Trace,
}

/// Traces a child of this thread that has stopped itself before it executes the program. Returns
/// when all faults have struck, or when no traced process is left. From then on the processes run
/// untraced.
///
/// # Errors
/// The kernel refuses ptrace(2).
pub(crate) fn trace(root: pid_t, plan: Plan) -> io::Result<Trace> {
    // A child that the thread has just started stops itself.
    wait(root, libc::WUNTRACED)?;
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE;
    ptrace(libc::PTRACE_SEIZE, root, 0, options as usize)?;
    send(root, libc::SIGCONT);
    let tracees = HashMap::from([(root, Tracee::new(Some(Process::Rlock)))]);
    let mut tracer = Tracer { root, plan, tracees, counts: HashMap::new(), since: 0, trace: Trace::default() };
    while let Some((pid, status)) = wait(-1, libc::__WALL)? {
        if tracer.on(pid, status) {
            tracer.leave_all()?;
            break;
        }
    }
    Ok(tracer.trace)
}

impl Tracer {
    /// Handles a stop or an end. Returns whether all faults have struck.
    fn on(&mut self, pid: pid_t, status: c_int) -> bool {
        if !libc::WIFSTOPPED(status) {
            self.tracees.remove(&pid);
            if pid == self.root {
                self.trace.status = Some(ExitStatus::from_raw(status));
            }
            return false;
        }
        self.tracees.entry(pid).or_insert_with(|| Tracee::new(None));
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        match (signal, event) {
            (_, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_CLONE) => self.on_child(pid, Process::Forked),
            (_, libc::PTRACE_EVENT_VFORK) => self.on_child(pid, Process::Command),
            (_, libc::PTRACE_EVENT_EXEC) => return self.on_exec(pid),
            (libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU, EVENT_STOP) => {
                let _ = ptrace(libc::PTRACE_LISTEN, pid, 0, 0);
                return false;
            }
            (_, EVENT_STOP) => return self.on_first_stop(pid),
            (SYSCALL_STOP, _) => return self.on_call(pid),
            _ => {
                self.resume(pid, signal);
                return false;
            }
        }
        self.resume(pid, 0);
        false
    }

    /// A process of the program has started another one.
    fn on_child(&mut self, parent: pid_t, kind: Process) {
        let child = self.child_of(parent);
        // A guardian's or a keeper's children are nobody's business. A thread dies with its
        // process, which has cases of its own.
        let is_kill = self.plan.strike.is_some_and(|(_, fault)| fault == Fault::Kill);
        let is_thread = is_kill && Path::new(&format!("/proc/{parent}/task/{child}")).exists();
        let kind = match self.plan.process {
            Process::Command if is_thread => Process::Forked,
            _ if is_thread || parent != self.root => Process::Command,
            _ => kind,
        };
        let tracee = self.tracees.entry(child).or_insert_with(|| Tracee::new(None));
        tracee.process = Some(kind);
        if tracee.is_waiting {
            self.begin(child);
        }
    }

    fn on_first_stop(&mut self, pid: pid_t) -> bool {
        let tracee = self.tracees.get_mut(&pid).expect("it is in the map");
        if tracee.process.is_some() {
            self.begin(pid);
        } else {
            tracee.is_waiting = true;
        }
        false
    }

    /// Traces a new process, or leaves it alone.
    fn begin(&mut self, pid: pid_t) {
        let process = self.tracees[&pid].process;
        if pid == self.root || process == Some(self.plan.process) {
            self.resume(pid, 0);
        } else {
            self.leave(pid);
        }
    }

    fn leave(&mut self, pid: pid_t) {
        self.leave_with(pid, 0);
    }

    fn leave_with(&mut self, pid: pid_t, signal: c_int) {
        // A process that was killed meanwhile is still to be reaped.
        if ptrace(libc::PTRACE_DETACH, pid, 0, signal as usize).is_ok() {
            self.tracees.remove(&pid);
        }
    }

    /// Lets all processes go on untraced.
    fn leave_all(&mut self) -> io::Result<()> {
        for pid in self.tracees.keys() {
            let _ = ptrace(libc::PTRACE_INTERRUPT, *pid, 0, 0);
        }
        while !self.tracees.is_empty()
            && let Some((pid, status)) = wait(-1, libc::__WALL)?
        {
            match (libc::WSTOPSIG(status), status >> 16) {
                _ if !libc::WIFSTOPPED(status) => drop(self.on(pid, status)),
                (_, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => {
                    self.tracees.entry(self.child_of(pid)).or_insert_with(|| Tracee::new(None));
                    self.leave(pid);
                }
                (SYSCALL_STOP, _) | (_, 1..) => self.leave(pid),
                (signal, _) => self.leave_with(pid, signal),
            }
        }
        Ok(())
    }

    /// The process that a process has started, of which its stop tells.
    fn child_of(&self, parent: pid_t) -> pid_t {
        let mut child: libc::c_ulong = 0;
        let _ = ptrace(libc::PTRACE_GETEVENTMSG, parent, 0, (&raw mut child).expose_provenance());
        child as pid_t
    }

    /// A process has executed a program. Only rlock and its guardian execute rlock.
    fn on_exec(&mut self, pid: pid_t) -> bool {
        let is_rlock = std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path.ends_with("rlock"));
        let tracee = self.tracees.get_mut(&pid).expect("it is in the map");
        tracee.phase = Phase::Start;
        if is_rlock {
            self.resume(pid, 0);
        } else {
            self.leave(pid);
        }
        false
    }

    fn on_call(&mut self, pid: pid_t) -> bool {
        let fault = self.at_call(pid).ok().flatten();
        self.trace.struck.extend(fault);
        let planned = usize::from(self.plan.strike.is_some()) + usize::from(self.plan.second.is_some());
        let is_over = planned > 0 && self.trace.struck.len() == planned;
        if is_over {
            self.leave(pid);
        } else {
            self.resume(pid, 0);
        }
        is_over
    }

    /// The fault that strikes a call, which comes after so many such calls.
    fn fault_at(&mut self, call: &Call, before: usize) -> Option<Fault> {
        // The calls of two runs may differ, and with them the arguments of this one.
        let fits = |fault: &Fault| *fault == Fault::Kill || calls::faults(call).contains(fault);
        if self.trace.struck.is_empty() {
            let (place, fault) = self.plan.strike?;
            return Some(fault).filter(|fault| place == Place { number: call.number, before } && fits(fault));
        }
        let (others, fault) = self.plan.second?;
        self.since += 1;
        Some(fault).filter(|fault| self.since > others && fits(fault) && !calls::keeps_silent(call, *fault))
    }

    /// Counts a call that begins, and changes its course if the plan says so. Returns the fault
    /// that has struck.
    ///
    /// # Errors
    /// The process was killed.
    fn at_call(&mut self, pid: pid_t) -> io::Result<Option<Fault>> {
        // SAFETY: all zeros are valid for these plain structures.
        let (mut info, mut registers): (SyscallInfo, libc::user_regs_struct) = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        ptrace(GET_SYSCALL_INFO, pid, size, (&raw mut info).expose_provenance())?;
        ptrace(libc::PTRACE_GETREGS, pid, 0, (&raw mut registers).expose_provenance())?;
        let tracee = self.tracees.get_mut(&pid).expect("it is in the map");
        if info.op == SYSCALL_INFO_EXIT {
            let Some(pending) = tracee.pending.take() else { return Ok(None) };
            let result = pending.error.map_or(registers.rax, |error| i64::from(-error).cast_unsigned());
            registers = libc::user_regs_struct { rax: result, ..pending.before };
            ptrace(libc::PTRACE_SETREGS, pid, 0, (&raw mut registers).expose_provenance())?;
            return Ok(Some(pending.fault));
        }
        let call = Call { number: info.number.cast_signed(), arguments: info.arguments };
        match tracee.phase {
            Phase::Launch => return Ok(None),
            Phase::Start if calls::is_of_start(call.number) => return Ok(None),
            Phase::Start | Phase::Work => tracee.phase = Phase::Work,
        }
        let before = *self.counts.entry(call.number).and_modify(|count| *count += 1).or_insert(1) - 1;
        self.trace.calls.push(call);
        let Some(fault) = self.fault_at(&call, before) else { return Ok(None) };
        let tracee = self.tracees.get_mut(&pid).expect("it is in the map");
        match fault {
            Fault::Kill => {
                send(pid, libc::SIGKILL);
                return Ok(Some(fault));
            }
            Fault::Error(error) => {
                tracee.pending = Some(Pending { before: registers, error: Some(error), fault });
                match call.number {
                    // A close that fails has closed the descriptor all the same, see close(2).
                    libc::SYS_close => {}
                    // A failure returns the old end of the heap, and so does a question for it.
                    libc::SYS_brk => {
                        tracee.pending = Some(Pending { before: registers, error: None, fault });
                        registers.rdi = 0;
                    }
                    // The connection has ended.
                    libc::SYS_sendto | libc::SYS_recvfrom if [libc::ECONNRESET, libc::EPIPE].contains(&error) => {
                        registers.orig_rax = libc::SYS_shutdown.cast_unsigned();
                        registers.rsi = 2;
                    }
                    _ => registers.orig_rax = u64::MAX,
                }
            }
            Fault::Short => {
                tracee.pending = Some(Pending { before: registers, error: None, fault });
                match calls::length_of(&call) {
                    1 => registers.rsi = 1,
                    _ => registers.rdx = 1,
                }
            }
        }
        ptrace(libc::PTRACE_SETREGS, pid, 0, (&raw mut registers).expose_provenance())?;
        Ok(None)
    }

    fn resume(&self, pid: pid_t, signal: c_int) {
        let is_watched = self.tracees.get(&pid).is_some_and(|tracee| tracee.process == Some(self.plan.process));
        let request = if is_watched { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        // A process that was killed meanwhile needs nothing.
        let _ = ptrace(request, pid, 0, signal as usize);
    }
}

/// The signal that a stop at a system call shows.
const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;
/// The event of a new process, and of a stop by a signal.
const EVENT_STOP: c_int = 128;

/// The type of a request depends on the C library.
#[cfg(target_env = "musl")]
type Request = c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

// These are in <linux/ptrace.h>; the crate libc has them for glibc only.
const GET_SYSCALL_INFO: Request = 0x420e;
const SYSCALL_INFO_EXIT: u8 = 2;

/// `struct ptrace_syscall_info` of a call that begins.
#[repr(C)]
struct SyscallInfo {
    op: u8,
    _arch: u32,
    _instruction_pointer: u64,
    _stack_pointer: u64,
    number: u64,
    arguments: [u64; 6],
}

fn ptrace(request: Request, pid: pid_t, address: usize, data: usize) -> io::Result<()> {
    let pointer = ptr::with_exposed_provenance_mut::<c_void>;
    // SAFETY: for the requests that write, `data` is the address of a structure of the right type,
    // and `address` is its size where the kernel asks for it.
    match unsafe { libc::ptrace(request, pid, pointer(address), pointer(data)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits for a child or a traced process of this thread. Returns nothing if there is none.
fn wait(pid: pid_t, options: c_int) -> io::Result<Option<(pid_t, c_int)>> {
    let mut status = 0;
    // SAFETY: the kernel writes a number.
    match unsafe { libc::waitpid(pid, &raw mut status, options | libc::__WNOTHREAD) } {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            error => Err(error),
        },
        pid => Ok(Some((pid, status))),
    }
}

fn send(pid: pid_t, signal: c_int) {
    // SAFETY: the call reads no memory. The process is a child or traced, so its number is its own.
    unsafe { libc::kill(pid, signal) };
}
