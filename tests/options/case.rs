//! A random case: a command line, what its command does, what is in the way, and a signal.

use std::time::Duration;

use rlock_testkit::random::Random;

/// A case. An option that is `None` or `false` is absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    pub(crate) form: Form,
    pub(crate) claims: Vec<Claim>,
    /// Two bare KEYs, of which the second one is a mistake.
    pub(crate) stray: bool,
    pub(crate) no_wait: bool,
    /// In milliseconds, as all durations here.
    pub(crate) wait: Option<u64>,
    /// `-w ever`.
    pub(crate) waits_for_ever: bool,
    /// `RLOCK_WAIT`.
    pub(crate) default_wait: Option<u64>,
    pub(crate) max_waiting: Option<u64>,
    pub(crate) code: Option<u8>,
    pub(crate) otherwise: Option<u8>,
    /// Without or with a limit.
    pub(crate) skip_ok: Option<Option<u64>>,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    pub(crate) spare: bool,
    pub(crate) once_per: Option<u64>,
    pub(crate) hold_at_least: Option<u64>,
    pub(crate) max_runtime: Option<u64>,
    pub(crate) splay: Option<u64>,
    pub(crate) status_file: bool,
    pub(crate) nested: bool,
    pub(crate) until_ready: bool,
    pub(crate) supersede: bool,
    pub(crate) place: bool,
    /// Options that change nothing that a case can see, as they are written.
    pub(crate) others: Vec<String>,
    /// An option or a value that no subcommand accepts.
    pub(crate) nonsense: Option<String>,
    /// Whether the options stand before the claims, and each value behind an `=`.
    pub(crate) options_first: bool,
    pub(crate) equals: bool,
    pub(crate) by_shell: bool,
    pub(crate) command: Command,
    pub(crate) way: Way,
    /// A signal, and the time after the start at which rlock gets it.
    pub(crate) signal: Option<(Sent, u64)>,
    pub(crate) on_server: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    #[default]
    Exec,
    Range,
    Acquire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// `k`, without an option.
    Bare,
    Write(&'static str),
    Prewrite(&'static str),
    Read(&'static str),
    Slot,
    /// Both of the two slots.
    Slots,
    Interval,
}

/// What the command does after it has logged its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Command {
    /// Exits after a time with a code.
    Exits(u64, u8),
    /// Kills itself.
    DiesBy(i32),
    /// Has a handler for TERM that exits with 7; lasts for a time.
    Traps(u64),
    /// Ignores TERM, INT and HUP; lasts for a time.
    Ignores(u64),
    /// Closes its standard descriptors and goes on for a time.
    Closes(u64),
    /// Leaves a child behind that lives on for a time.
    Leaves(u64),
    #[default]
    Missing,
    NotExecutable,
}

/// What is in the way of the first claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    #[default]
    Free,
    /// A holder that ends after a time, once the case has been started.
    HeldFor(u64),
    /// A holder that outlives the case.
    Held,
    /// A run of the same KEY that has just succeeded with --once-per 1h.
    Succeeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Term,
    Int,
    Hup,
    /// STOP, and CONT a little later.
    Pause,
    Winch,
}

impl Case {
    pub(crate) fn new(random: &mut Random, on_server: bool) -> Self {
        let form = *random.pick(&[Form::Exec, Form::Exec, Form::Exec, Form::Range, Form::Acquire]);
        let maybe = |random: &mut Random, percent, values: &[u64]| random.chance(percent).then(|| *random.pick(values));
        let mut case = Self {
            form,
            claims: claims(random, form),
            stray: random.once_in(60),
            no_wait: random.chance(20),
            wait: maybe(random, 30, &[0, 300, 300, 8000]),
            waits_for_ever: random.once_in(20),
            default_wait: maybe(random, 15, &[0, 300, 8000]),
            max_waiting: maybe(random, 12, &[0, 1, 3]),
            code: maybe(random, 12, &[0, 1, 99, 200]).map(|code| code as u8),
            otherwise: maybe(random, 15, &[0, 42]).map(|code| code as u8),
            skip_ok: random.chance(12).then(|| maybe(random, 50, &[3_600_000])),
            quiet: random.chance(12),
            verbose: random.chance(12),
            spare: random.chance(15),
            once_per: maybe(random, 10, &[60_000, 3_600_000]),
            hold_at_least: maybe(random, 8, &[1, 600_000]),
            max_runtime: maybe(random, 15, &[200, 60_000]),
            splay: maybe(random, 6, &[50, 200]),
            status_file: random.chance(20),
            nested: random.once_in(40),
            until_ready: random.once_in(20),
            supersede: random.chance(12),
            place: random.chance(12),
            others: others(random, on_server),
            nonsense: random.once_in(30).then(|| (*random.pick(&NONSENSE)).to_owned()),
            options_first: random.chance(30),
            equals: random.chance(30),
            by_shell: random.chance(40),
            command: command(random),
            way: *random.pick(&[Way::Free, Way::Free, Way::HeldFor(0), Way::HeldFor(300), Way::Held, Way::Succeeded]),
            signal: random.chance(25).then(|| {
                let sent = *random.pick(&[Sent::Term, Sent::Term, Sent::Int, Sent::Hup, Sent::Pause, Sent::Winch]);
                (sent, random.below(500))
            }),
            on_server,
        };
        // One bare KEY is no mistake.
        case.stray &= form == Form::Range || case.claims.contains(&Claim::Bare);
        // Every case ends: nobody waits for ever for a holder that outlives the case.
        case.waits_for_ever &= case.wait.is_none();
        let has_limit = case.limit().is_some() || case.max_waiting == Some(0);
        if case.way == Way::Held && !has_limit {
            case.way = Way::HeldFor(300);
        }
        if form == Form::Acquire {
            let Self { claims, stray, no_wait, wait, max_waiting, code, quiet, verbose, place, .. } = case.clone();
            let Self { waits_for_ever, default_wait, .. } = case;
            let Self { nonsense, options_first, equals, way, on_server, .. } = case;
            let others = case.others;
            let taken = Self { claims, stray, no_wait, wait, max_waiting, code, quiet, verbose, ..Self::default() };
            let taken = Self { waits_for_ever, default_wait, place, ..taken };
            case = Self { form, nonsense, options_first, equals, way, on_server, others, ..taken };
        }
        case
    }

    /// The words after `rlock`. The shell commands find the lab's folder in `$LAB`.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![match self.form {
            Form::Exec => "exec",
            Form::Range => "range-write",
            Form::Acquire => "acquire",
        }];
        let (claims, options) = (self.claim_words(), self.options());
        let (first, second) = if self.options_first { (&options, &claims) } else { (&claims, &options) };
        words.extend(first.iter().chain(second).map(String::as_str));
        let shell = self.command.script();
        let script = ["--", "sh", "-c"];
        match self.form {
            Form::Acquire => words.extend(["--for", "1h"]),
            _ => match self.command {
                Command::Missing => words.extend(["--", "no-such-program"]),
                Command::NotExecutable => words.extend(["--", "/etc/passwd"]),
                _ if self.by_shell => words.extend(["-c", &shell]),
                _ => words.extend(script.into_iter().chain([shell.as_str()])),
            },
        }
        words.into_iter().map(str::to_owned).collect()
    }

    fn claim_words(&self) -> Vec<String> {
        let stray = self.stray.then_some("stray");
        if self.form == Form::Range {
            return ["k", "1", "2"].into_iter().chain(stray).map(str::to_owned).collect();
        }
        let words = self.claims.iter().flat_map(|claim| match claim {
            Claim::Bare => vec!["k"],
            Claim::Write(key) => vec!["--write", key],
            Claim::Prewrite(key) => vec!["--prewrite", key],
            Claim::Read(key) => vec!["--read", key],
            Claim::Slot => vec!["--slot", "{k}s=2"],
            Claim::Slots => vec!["--slot", "{k}s=2:2"],
            Claim::Interval => vec!["--range-write", "{k}t", "[1,2)"],
        });
        words.chain(stray).map(str::to_owned).collect()
    }

    fn options(&self) -> Vec<String> {
        let mut words = self.others.clone();
        words.extend(self.nonsense.clone());
        let switches = [
            (self.no_wait, "-n"),
            (self.quiet, "-q"),
            (self.verbose, "--verbose"),
            (self.nested, "--nested"),
            (self.until_ready, "--until-ready"),
            (self.supersede, "--supersede"),
            (self.supersede && !self.others.iter().any(|word| word == "--job"), "--job=nightly"),
        ];
        words.extend(switches.into_iter().filter(|(is_given, _)| *is_given).map(|(_, word)| word.to_owned()));
        let mut option = |name: &str, value: Option<String>| {
            let Some(value) = value else { return };
            match self.equals {
                true => words.push(format!("{name}={value}")),
                false => words.extend([name.to_owned(), value]),
            }
        };
        let duration = |value: Option<u64>| value.map(|value| format!("{value}ms"));
        option("--place", self.place.then(|| "mine".to_owned()));
        option("--wait", duration(self.wait));
        option("--wait", self.waits_for_ever.then(|| "ever".to_owned()));
        option("--max-waiting", self.max_waiting.map(|count| count.to_string()));
        option("--conflict-exit-code", self.code.map(|code| code.to_string()));
        option("--else", self.otherwise.map(|code| format!("echo else >> \"$LAB/log\"; exit {code}")));
        option("--meanwhile", self.spare.then(|| "echo spare >> \"$LAB/log\"".to_owned()));
        option("--once-per", duration(self.once_per));
        option("--hold-at-least", duration(self.hold_at_least));
        option("--max-runtime", duration(self.max_runtime));
        option("--splay", duration(self.splay));
        option("--status-file", self.status_file.then(|| "status".to_owned()));
        let skip = |limit: Option<u64>| limit.map_or("--skip-ok".to_owned(), |limit| format!("--skip-ok={limit}ms"));
        words.extend(self.skip_ok.map(skip));
        words
    }

    /// The longest wait in milliseconds: by an option, else by the variable.
    pub(crate) fn limit(&self) -> Option<u64> {
        match (self.no_wait, self.wait) {
            (true, _) => Some(0),
            (false, Some(wait)) => Some(wait),
            (false, None) => self.default_wait.filter(|_| !self.waits_for_ever),
        }
    }

    /// The time that the command takes if nothing ends it.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(match self.command {
            Command::Exits(time, _) | Command::Traps(time) | Command::Ignores(time) | Command::Closes(time) => time,
            _ => 0,
        })
    }
}

impl Command {
    fn script(self) -> String {
        let start = r#"echo start >> "$LAB/log""#;
        let seconds = |time: u64| time as f64 / 1000.0;
        match self {
            Self::Exits(0, code) => format!("{start}; exit {code}"),
            Self::Exits(time, code) => format!("{start}; sleep {}; exit {code}", seconds(time)),
            Self::DiesBy(signal) => format!("{start}; kill -{signal} $$"),
            Self::Traps(time) => format!("trap 'kill $!; exit 7' TERM; {start}; sleep {} & wait", seconds(time)),
            Self::Ignores(time) => format!("trap '' TERM INT HUP; {start}; sleep {}", seconds(time)),
            Self::Closes(time) => format!("exec <&- >&- 2>&-; {start}; sleep {}", seconds(time)),
            Self::Leaves(time) => format!("{start}; sleep {} & exit 5", seconds(time)),
            Self::Missing | Self::NotExecutable => String::new(),
        }
    }
}

/// Words that no subcommand accepts.
const NONSENSE: [&str; 8] = [
    "--no-such-option",
    "--wait=soon",
    "--max-runtime=-1s",
    "--slot=x=0",
    "--conflict-exit-code=256",
    "--history=1001",
    "--replicas=many",
    "--range-read=k",
];

fn claims(random: &mut Random, form: Form) -> Vec<Claim> {
    const FURTHER: [Claim; 7] = [
        Claim::Read("{k}r"),
        Claim::Write("{k}w"),
        Claim::Prewrite("{k}p"),
        Claim::Slot,
        Claim::Slots,
        Claim::Interval,
        Claim::Read("{k}q"),
    ];
    if form == Form::Range {
        return vec![Claim::Interval];
    }
    let first = *random.pick(&[
        Claim::Bare,
        Claim::Bare,
        Claim::Bare,
        Claim::Write("k"),
        Claim::Prewrite("k"),
        Claim::Read("k"),
    ]);
    let mut claims = vec![first];
    while random.once_in(4) {
        claims.push(*random.pick(&FURTHER));
    }
    // Of two claims of one slot, one is a mistake: see `oracle`.
    claims
}

fn others(random: &mut Random, on_server: bool) -> Vec<String> {
    let mut all = vec![
        vec!["--owner", "ann\nand bob"],
        vec!["--reason", "because"],
        vec!["--title", "nightly report"],
        vec!["--job", "nightly"],
        vec!["--history", "0"],
        vec!["--history=5"],
        vec!["--deadlock-timeout", "0"],
        vec!["--no-default-store"],
        vec!["--connect-timeout", "9s"],
    ];
    if on_server {
        all.extend([vec!["--ttl", "9s"], vec!["--ttl=9s", "--grace=2s"], vec!["--replicas", "0"]]);
    } else {
        all.push(vec!["--grace", "2s"]);
    }
    let mut chosen = Vec::new();
    for words in all {
        let is_given =
            |chosen: &[String]| chosen.iter().any(|word: &String| word.split('=').next() == words[0].split('=').next());
        if random.once_in(8) && !is_given(&chosen) {
            chosen.extend(words.into_iter().map(str::to_owned));
        }
    }
    chosen
}

fn command(random: &mut Random) -> Command {
    match random.below(12) {
        0..=4 => Command::Exits(*random.pick(&[0, 0, 100, 400]), *random.pick(&[0, 0, 1, 75, 255])),
        5 => Command::DiesBy(*random.pick(&[9, 15, 6])),
        6 => Command::Traps(400),
        7 => Command::Ignores(400),
        8 => Command::Closes(100),
        9 => Command::Leaves(200),
        10 => Command::Missing,
        _ => Command::NotExecutable,
    }
}
