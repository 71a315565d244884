//! A program that runs under the tracer, with its output.

use std::io::Read;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::trace::{Plan, Trace, trace};
use rlock_testkit::{Ran, wait_within};

/// The limit for the end of a program. The longest wait is that for a lease of two seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Dropping it kills the program, also if the test fails.
pub(crate) struct Traced {
    pid: u32,
    stdin: Option<ChildStdin>,
    outputs: Option<[JoinHandle<String>; 2]>,
    /// The tracer, which is also the parent of the program. It reaps the program.
    tracer: Option<JoinHandle<(ExitStatus, Trace)>>,
}

impl Traced {
    /// Starts the program with pipes. The command stops itself, see [`Traced::command`].
    pub(crate) fn start(mut command: Command, plan: Plan) -> Self {
        let (sender, receiver) = mpsc::channel();
        let tracer = thread::spawn(move || {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("sh can be started");
            let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            sender.send((child.id(), pipes)).expect("the starter waits for this");
            let root = i32::try_from(child.id()).expect("a process id is positive");
            let trace = trace(root, plan).expect("the kernel permits ptrace(2)");
            let status = trace.status.unwrap_or_else(|| child.wait().expect("the process is a child"));
            (status, trace)
        });
        let (pid, (stdin, stdout, stderr)) = receiver.recv().expect("the program can be started");
        let outputs = [reader(stdout), reader(stderr)];
        Self { pid, stdin, outputs: Some(outputs), tracer: Some(tracer) }
    }

    /// Whether the program, or a process of it that is traced, has not ended yet.
    pub(crate) fn runs(&self) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| !tracer.is_finished())
    }

    /// Whether no process keeps the output of the program open.
    pub(crate) fn has_closed_output(&self) -> bool {
        self.outputs.as_ref().is_none_or(|outputs| outputs.iter().all(JoinHandle::is_finished))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if self.runs() {
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            let _ = kill_process(pid.expect("a process id is positive"), signal);
        }
    }

    /// Closes the standard input, and waits for the end of the program and of all that keeps its
    /// output open.
    pub(crate) fn end(mut self) -> (Ran, Trace) {
        self.stdin = None;
        wait_within(LIMIT, "the traced program ends", || !self.runs());
        wait_within(LIMIT, "nothing of the traced program keeps its output open", || self.has_closed_output());
        let tracer = self.tracer.take().expect("the program ends once");
        let (status, trace) = tracer.join().expect("the tracer works");
        let outputs = self.outputs.take().expect("the program ends once");
        let [stdout, stderr] = outputs.map(|output| output.join().expect("the reader doesn't panic"));
        (Ran { status, stdout, stderr }, trace)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    let mut pipe = pipe.expect("the program has a pipe");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
