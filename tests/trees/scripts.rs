//! The processes of a tree, and the scripts that they run.
//!
//! Each process has the descriptor 9 of the referee, and 8. A process in a session of its own has
//! closed 9, and a daemon both.

use std::fs;
use std::path::{Path, PathBuf};

use rlock_testkit::RLOCK;
use rlock_testkit::random::Random;

/// A process, for how many milliseconds it works, and the processes that it starts. Each waits for
/// its children.
pub(crate) struct Node {
    kind: Kind,
    lasts: u64,
    children: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shell,
    Python,
    /// A process whose first thread ends before the others.
    Threads,
    /// A process that stands still in vfork(2) for a time.
    Vfork,
    /// A session of its own.
    Session,
    /// A process group of its own.
    Group,
    /// A double fork.
    Orphan,
    /// A shell that ignores signals.
    Deaf,
    /// A command below another rlock.
    Nested,
    /// A command that ends before its children. Only the root is such a process.
    Leaves,
    /// A process in a session of its own whose parent ends.
    Daemon,
    /// Processes that fork and end at once, again and again.
    Chain,
    /// A process that stops itself.
    Stopped,
    /// A process whose write hangs, see `late_disk`.
    Stuck,
    /// A process with 2 GiB of memory, which take some time to free.
    Big,
}

/// How many levels of processes a tree has at most.
const DEPTH: u64 = 3;

/// The variable of processes that stop themselves.
pub(crate) const STOPS: &str = "TREES_STOPS";

/// The python of the system. The first one in PATH may be a script that looks for another one.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

impl Node {
    /// A random tree, with processes of 2 GiB if `has_big`.
    pub(crate) fn random(random: &mut Random, has_big: bool) -> Self {
        let root = [Kind::Shell, Kind::Shell, Kind::Shell, Kind::Python, Kind::Deaf, Kind::Leaves];
        let kind = *random.pick(&root);
        Self::of(kind, random, 1, has_big)
    }

    fn of(kind: Kind, random: &mut Random, level: u64, has_big: bool) -> Self {
        let lasts = match kind {
            Kind::Stuck => 200 + random.below(1300),
            _ => 50 + random.below(600),
        };
        let count = if kind.is_leaf() || level > DEPTH { 0 } else { 1 + random.below(4 - level) };
        let children = (0..count).map(|_| {
            let kind = match *random.pick(&Kind::BELOW) {
                Kind::Big if !has_big || !random.once_in(6) => Kind::Python,
                kind => kind,
            };
            Self::of(kind, random, level + 1, has_big)
        });
        let children = children.collect();
        Self { kind, lasts, children }
    }

    /// How many processes of the tree are of this kind.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        usize::from(self.kind == kind) + self.children.iter().map(|child| child.count(kind)).sum::<usize>()
    }
}

impl Kind {
    /// What a process starts.
    const BELOW: [Self; 22] = [
        Self::Shell,
        Self::Shell,
        Self::Shell,
        Self::Python,
        Self::Threads,
        Self::Vfork,
        Self::Session,
        Self::Session,
        Self::Group,
        Self::Orphan,
        Self::Orphan,
        Self::Orphan,
        Self::Deaf,
        Self::Nested,
        Self::Daemon,
        Self::Chain,
        Self::Chain,
        Self::Chain,
        Self::Stopped,
        Self::Stuck,
        Self::Stuck,
        Self::Big,
    ];

    fn is_leaf(self) -> bool {
        matches!(self, Self::Daemon | Self::Chain | Self::Stopped | Self::Stuck | Self::Big)
    }
}

/// Writes the scripts of a tree.
pub(crate) struct Scripts<'a> {
    /// The path of the tree, with which the names of its files begin.
    tree: &'a Path,
    chain: &'a Path,
    /// The folder in which writes hang, if there is one.
    late: Option<&'a Path>,
    files: usize,
}

impl<'a> Scripts<'a> {
    /// Writes the scripts. Returns the words that run the tree.
    pub(crate) fn write(tree: &'a Path, chain: &'a Path, late: Option<&'a Path>, root: &Node) -> String {
        let mut scripts = Self { tree, chain, late, files: 0 };
        // A command that ends by itself says so.
        let (shell, python) = (": >\"$TREES.end\"\n", "open(os.environ['TREES'] + '.end', 'w')\n");
        scripts.run(root, false, if root.kind == Kind::Python { python } else { shell })
    }

    /// The words that run a process. `in_session` says that it is below a session of its own, and
    /// `last` is what it does last.
    fn run(&mut self, node: &Node, in_session: bool, last: &str) -> String {
        let is_below = in_session || node.kind == Kind::Session;
        let children: Vec<_> = node.children.iter().map(|child| self.run(child, is_below, "")).collect();
        let seconds = node.lasts as f64 / 1000.0;
        // An orphan in a session whose leader may end first is a daemon then.
        let closed = if in_session { " 8>&-" } else { "" };
        let start: String = children.iter().map(|child| format!("{child} &\n")).collect();
        let shell = |first: &str| format!("{first}{start}sleep {seconds}\nwait\n{last}");
        let python = |rest: &str| {
            format!(
                "import os, subprocess, sys, threading, time\n\
                 def work():\n    \
                 children = [subprocess.Popen(['sh', '-c', child], close_fds=False) for child in {children:?}]\n    \
                 time.sleep({seconds})\n    \
                 for child in children: child.wait()\n\
                 {rest}{last}"
            )
        };
        match node.kind {
            Kind::Shell => self.shell(&shell("")),
            Kind::Leaves => self.shell(&format!("{start}sleep {seconds}\n{last}")),
            Kind::Deaf => self.shell(&shell("trap '' TERM HUP INT QUIT USR1 USR2\n")),
            Kind::Session => format!("setsid {} 9>&-", self.shell(&shell("echo >>\"$TREES.session\"\n"))),
            Kind::Group => format!("perl -e 'setpgrp; exec @ARGV' {}", self.shell(&shell(""))),
            Kind::Orphan => format!("({}{closed} &)", self.shell(&shell(""))),
            Kind::Daemon => format!("setsid -f {} 8>&- 9>&-", self.shell(&shell(""))),
            Kind::Nested => {
                let key = self.tree.file_name().unwrap_or_default().display().to_string();
                format!("{RLOCK} exec inner-{key} -- {}", self.shell(&shell("")))
            }
            Kind::Chain => {
                let (pause, groups) = (node.lasts % 4, node.lasts % 2);
                let links = node.lasts / pause.max(1);
                format!("perl {} {links} 0.00{pause} {groups}{closed}", self.chain.display())
            }
            Kind::Stopped => format!("{STOPS}=1 {}", self.shell(&shell("kill -STOP $$\n"))),
            Kind::Stuck => {
                let hang = |late: &Path| format!("sleep 0.05\necho {} >>{}/$$\n", node.lasts, late.display());
                self.shell(&self.late.map_or_else(|| shell(""), hang))
            }
            Kind::Python => self.python(&python("work()\n")),
            Kind::Threads => {
                let exit = "import ctypes, platform\n\
                            for target in (work, lambda: time.sleep(0.3)): threading.Thread(target=target).start()\n\
                            # exit(2) ends this thread alone.\n\
                            ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\n";
                self.python(&python(exit))
            }
            Kind::Vfork => {
                // posix_spawn(3) stands still while its child waits for the other end of the fifo.
                let spawn = "fifo = sys.argv[0] + '.fifo'\n\
                             os.mkfifo(fifo)\n\
                             other = subprocess.Popen(['sh', '-c', 'sleep 0.4; : >\"$0\"', fifo], close_fds=False)\n\
                             action = (os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)\n\
                             child = os.posix_spawn('/bin/sleep', ['sleep', '0.2'], os.environ, file_actions=[action])\n\
                             work()\n\
                             other.wait()\n\
                             os.waitpid(child, 0)\n";
                self.python(&python(spawn))
            }
            Kind::Big => {
                let map = "import mmap\n\
                           flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000 # MAP_POPULATE\n\
                           memory = mmap.mmap(-1, 2 << 30, flags=flags)\n\
                           work()\n";
                self.python(&python(map))
            }
        }
    }

    fn shell(&mut self, text: &str) -> String {
        format!("sh {}", self.file("sh", text).display())
    }

    fn python(&mut self, text: &str) -> String {
        format!("{PYTHON} -S {}", self.file("py", text).display())
    }

    fn file(&mut self, kind: &str, text: &str) -> PathBuf {
        self.files += 1;
        let path = PathBuf::from(format!("{}-{}.{kind}", self.tree.display(), self.files));
        fs::write(&path, text).expect("a file can be written");
        path
    }
}
