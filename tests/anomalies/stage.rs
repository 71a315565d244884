//! The place where a case is played: a store, a resource of its own, and the log of its commands.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::trace::{Fault, Place, Plan};
use super::traced::Traced;
use rlock_testkit::{Lab, RLOCK, Ran, Running, wait_until};

/// The exit code of every command.
pub(crate) const OWN_CODE: i32 = 7;

/// The variable that marks all processes of a case, apart from guardians.
const MARK: &str = "ANOMALY";

/// A command. Its words are the prefix of its files, its name, and `hold` if it is to run until its
/// standard input ends. It starts a process with a session of its own. All its processes share the
/// lock of a file, so a command that starts before they are gone finds it locked.
const JOB: &str = r#"
exec 9>>"$1-running"
flock -n 9 || echo "overlap $2" >>"$1-log"
setsid sleep 300 &
echo "start $2" >>"$1-log"
[ "$3" != hold ] || cat >/dev/null
kill $!
wait $! 2>/dev/null
echo "end $2" >>"$1-log"
exit 7
"#;

pub(crate) struct Stage<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) plan: Plan,
    /// The resource of this case.
    pub(crate) key: String,
    prefix: PathBuf,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(lab: &'a Lab, plan: Plan) -> Self {
        static KEYS: AtomicU32 = AtomicU32::new(1);
        let key = format!("k{}", KEYS.fetch_add(1, Ordering::Relaxed));
        let prefix = lab.folder().join(&key);
        Self { lab, plan, key, prefix }
    }

    /// A path for a file of this case.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.prefix.with_extension(name)
    }

    /// The words of a command with this name.
    fn job(&self, name: &str, hold: bool) -> Vec<String> {
        let mut words = ["--", "sh", "-c", JOB, "job"].map(str::to_owned).to_vec();
        words.extend([self.prefix.display().to_string(), name.to_owned()]);
        words.extend(hold.then(|| "hold".to_owned()));
        words
    }

    /// The words of `rlock exec` with a shell that runs such a command as its child.
    pub(crate) fn exec_below_a_shell(&self, name: &str) -> Vec<String> {
        let shell = ["exec", &self.key, "--", "sh", "-c", "\"$@\"; true", "sh"].map(str::to_owned);
        shell.into_iter().chain(self.job(name, true).into_iter().skip(1)).collect()
    }

    /// The words of `rlock exec` with these options and a command of this name.
    pub(crate) fn exec(&self, options: &[&str], name: &str) -> Vec<String> {
        self.exec_with(options, name, false)
    }

    /// Like [`Stage::exec`] with a command that runs until its standard input ends.
    pub(crate) fn exec_hold(&self, options: &[&str], name: &str) -> Vec<String> {
        self.exec_with(options, name, true)
    }

    fn exec_with(&self, options: &[&str], name: &str, hold: bool) -> Vec<String> {
        let words = ["exec", &self.key].into_iter().chain(options.iter().copied()).map(str::to_owned);
        words.chain(self.job(name, hold)).collect()
    }

    /// Starts the program under test with the tracer.
    pub(crate) fn traced(&self, words: &[impl AsRef<str>]) -> Traced {
        let mut command = Command::new("sh");
        self.lab.settle(&mut command);
        // The tracer takes hold of the stopped process, which then executes the program.
        command.args(["-c", "kill -STOP $$; exec \"$0\" \"$@\"", RLOCK]).args(words.iter().map(AsRef::as_ref));
        command.env(MARK, self.mark());
        Traced::start(command, self.plan)
    }

    fn mark(&self) -> String {
        format!("{}-", self.prefix.display())
    }

    fn untraced(&self, words: &[impl AsRef<str>]) -> Command {
        let mut command = self.lab.rlock(words.iter().map(AsRef::as_ref));
        command.env(MARK, self.mark());
        command
    }

    /// Runs rlock without the tracer.
    pub(crate) fn run(&self, words: &[impl AsRef<str>]) -> Ran {
        Ran::of(&mut self.untraced(words))
    }

    /// Starts rlock without the tracer.
    pub(crate) fn start(&self, words: &[impl AsRef<str>]) -> Running {
        Running::start(self.untraced(words).stdin(Stdio::piped()))
    }

    /// Starts a holder whose command has this name, and waits until it runs.
    pub(crate) fn hold(&self, name: &str) -> Running {
        let holder = self.start(&self.exec_hold(&[], name));
        wait_until("the command of the holder runs", || self.has(&format!("start {name}")));
        holder
    }

    /// The lines that the commands have written.
    pub(crate) fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.prefix.display().to_string() + "-log").unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    pub(crate) fn has(&self, line: &str) -> bool {
        self.count(line) > 0
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.log().iter().filter(|found| *found == line).count()
    }

    /// The second codes if the fault may lose the answer of a server, else the first.
    pub(crate) fn or_lost_answer(&self, codes: &'static [i32], with_lost_answer: &'static [i32]) -> &'static [i32] {
        let is_of_answer = |(place, _): &(Place, Fault)| [libc::SYS_recvfrom, libc::SYS_read].contains(&place.number);
        let may_be_lost = self.plan.second.is_some() || self.plan.strike.as_ref().is_some_and(is_of_answer);
        if may_be_lost { with_lost_answer } else { codes }
    }

    /// Waits until the traced program waits for the resource with others, or has ended.
    pub(crate) fn until_waiting(&self, waiters: usize, traced: &Traced) {
        wait_until("the traced program waits", || !traced.runs() || self.lab.counts(&self.key).1 >= waiters);
    }

    /// Ends what rlock could not see, and forgets the log.
    pub(crate) fn forgive(&self) {
        for pid in marked(format!("{MARK}={}\0", self.mark()).as_bytes()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = fs::remove_file(self.prefix.display().to_string() + "-log");
    }

    /// Fails unless the lock is free or becomes free, the store works, no commands overlapped, and
    /// no process of the case is left.
    pub(crate) fn assert_recovered(&self) {
        let next = self.run(&self.exec(&["-w", "30"], "next"));
        assert_eq!((next.code(), next.stderr.as_str()), (Some(OWN_CODE), ""), "the next run fails: {next:?}");
        assert!(!self.log().iter().any(|line| line.starts_with("overlap")), "commands overlap: {:?}", self.log());
        let mark = format!("{MARK}={}\0", self.mark());
        wait_until("no process of the case is left", || marked(mark.as_bytes()).is_empty());
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        for name in ["-running", "-log"] {
            // A case without a command has no files.
            let _ = fs::remove_file(self.prefix.display().to_string() + name);
        }
    }
}

/// The live processes that have this text in their environment.
fn marked(mark: &[u8]) -> Vec<rustix::process::Pid> {
    let processes = fs::read_dir("/proc").expect("/proc can be read").filter_map(Result::ok);
    let pids = processes.filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?)));
    let has_mark = |folder: &std::path::Path| {
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|found| found == mark)
    };
    pids.filter(|(folder, _)| has_mark(folder)).filter_map(|(_, pid)| rustix::process::Pid::from_raw(pid)).collect()
}
