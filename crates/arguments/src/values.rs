//! Converts the text of one word into its type. Each error says in one line what to write instead;
//! `usage` puts the name of the option before it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
pub use glob::Pattern;
use rustix::process::{Pid, Signal};

use super::numbers::unmark;
use rlock_model::kept::{EVER, KEPT_MAX};
use rlock_model::past::HISTORY_MAX;
use rlock_model::request::{PERIOD_MAX, SessionId};
use rlock_model::resource::Resource;
use rlock_model::text::Unprintable;
use rlock_store::Replicas;
use rlock_words::Explained;

/// The maximum number of slots of a resource. A higher number protects nothing, and a typing error
/// is more likely.
const SLOTS_MAX: u32 = 1_000_000;

/// The longest duration, so that no sum of an instant and a duration overflows.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The shortest lease. In a shorter lease, renewals and the stop of the command would have no more
/// time than one slow reply takes.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The shortest time that an option may give, where no time makes no sense. Messages show times in
/// milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);

/// The highest limit of the load. A machine with more processors than that is none.
const LOAD_MAX: f64 = 1_000_000.0;

/// The word for a length of time without an end.
const EVER_WORD: &str = "ever";

/// Parses a KEY: the name of a resource.
pub fn resource(word: &str) -> Result<Resource, String> {
    Resource::new(unmark(word)).map_err(|error| error.to_string())
}

/// A word that is not parsed here. The two ends of an interval, for example, can only be parsed
/// together.
pub fn plain(word: &str) -> Result<String, String> {
    Ok(unmark(word).to_owned())
}

/// A word that is taken unchanged and need not be UTF-8.
pub fn shell_command() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().map(|word| match word.to_str() {
        Some(text) => unmark(text).into(),
        None => word,
    })
}

/// Some slots of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The resource that is divided into slots.
    pub resource: Resource,
    /// The number of slots of the resource.
    pub of: u32,
    /// How many of them the request takes.
    pub taken: usize,
}

/// Parses `KEY=N` or `KEY=N:W`, split at the last `=`: a name may contain one and a number never
/// does.
pub fn slot(word: &str) -> Result<Slots, String> {
    let (name, numbers) =
        word.rsplit_once('=').ok_or_else(|| format!("'{word}' lacks the number of slots: write {word}=4"))?;
    let (slots, taken) = numbers.split_once(':').map_or((numbers, None), |(slots, taken)| (slots, Some(taken)));
    let of = slots.parse().ok().filter(|slots| (1..=SLOTS_MAX).contains(slots));
    let of = of.ok_or_else(|| format!("'{word}' must end in a number of slots from 1 to {SLOTS_MAX}"))?;
    let taken = taken.map_or(Some(1), |taken| taken.parse().ok().filter(|taken| (1..=of as usize).contains(taken)));
    let taken =
        taken.ok_or_else(|| format!("'{word}' must take from 1 to {of} of the {of} slots: write {name}={of}:1"))?;
    Ok(Slots { resource: resource(name)?, of, taken })
}

/// Parses a duration as humantime does, or a bare number of seconds, as users of flock(1) and
/// timeout(1) write it.
pub fn duration(word: &str) -> Result<Duration, Explained> {
    let word = unmark(word);
    let bare = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let duration = if bare {
        // A value beyond the range of Duration is beyond the limit below too.
        word.parse().ok().map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    } else {
        humantime::parse_duration(word).ok()
    };
    let remedy = match word {
        "forever" | "inf" => "write it as 90s, 5m, 1h30m or 500ms, or ever if the option takes that",
        _ => "write it as 90s, 5m, 1h30m or 500ms",
    };
    let duration = duration.ok_or_else(|| Explained::new(format!("'{word}' is not a duration"), remedy))?;
    if duration > DURATION_MAX {
        let remedy = format!("the limit is {} days", DURATION_MAX.as_secs() / (24 * 3600));
        Err(Explained::new(format!("'{word}' is too long"), remedy))
    } else {
        Ok(duration)
    }
}

/// The value of an option that may stand without it, which is `None`. As an alias it is one value
/// for clap, and not an option without one.
pub type Optional = Option<Duration>;

/// What stands for the absent value of an option. No user can mean it. clap counts the place of an
/// option only if the option has a value.
pub const ABSENT: &str = "\u{1}";

/// Parses a word that may be [`ABSENT`].
pub fn optional(parse: fn(&str) -> Result<Duration, Explained>) -> impl TypedValueParser<Value = Optional> {
    move |word: &str| if word == ABSENT { Ok(None) } else { parse(word).map(Some) }
}

/// Parses the limit of a wait: a duration, or `ever`.
pub fn wait(word: &str) -> Result<Wait, Explained> {
    if word == EVER_WORD { Ok(Wait::Ever) } else { duration(word).map(Wait::AtMost) }
}

/// Parses the ttl of a lease.
pub fn ttl(word: &str) -> Result<Duration, Explained> {
    at_least(TTL_MIN, word, "a lease lasts at least 1s")
}

/// Parses a duration that must not be shorter than `min`.
fn at_least(min: Duration, word: &str, remedy: &str) -> Result<Duration, Explained> {
    let length = duration(word)?;
    if length < min { Err(Explained::new(format!("'{word}' is too short"), remedy)) } else { Ok(length) }
}

/// Parses how long a lock stays after its command.
pub fn kept(word: &str) -> Result<Duration, String> {
    at_most(word, KEPT_MAX, "a lock without a process lasts at most 7 days")
}

/// Parses a period of one run.
pub fn once(word: &str) -> Result<Period, String> {
    Ok(match word {
        "hour" => Period::Calendar(Unit::Hour),
        "day" => Period::Calendar(Unit::Day),
        "week" => Period::Calendar(Unit::Week),
        "month" => Period::Calendar(Unit::Month),
        "year" => Period::Calendar(Unit::Year),
        EVER_WORD => Period::Within(EVER),
        "hourly" | "weekly" | "monthly" | "yearly" => return Err(wrong_word(word, word.trim_end_matches("ly"))),
        "daily" => return Err(wrong_word(word, "day")),
        _ => Period::Within(period(word).map_err(|error| match duration(word) {
            Ok(_) => error,
            Err(_) => error + ", or as hour, day, week, month, year or ever",
        })?),
    })
}

fn wrong_word(word: &str, right: &str) -> String {
    format!("'{word}' is not a period: write {right}")
}

/// Parses the time for which the store keeps what it knows of a run, or after which it is asked.
pub fn period(word: &str) -> Result<Duration, String> {
    at_most(word, PERIOD_MAX, "the store remembers for at most 400 days")
}

fn at_most(word: &str, max: Duration, reason: &str) -> Result<Duration, String> {
    let length = duration(word)?;
    if length > max { Err(format!("'{}' is too long: {reason}", unmark(word))) } else { Ok(length) }
}

/// Parses the maximum run time of a command.
pub fn runtime(word: &str) -> Result<Duration, Explained> {
    at_least(SHORTEST, word, "give the command at least 1ms")
}

/// Parses the time between two questions to a server.
pub fn interval(word: &str) -> Result<Duration, Explained> {
    at_least(Duration::from_millis(100), word, "ask a server at most every 100ms")
}

/// The time that connecting to a server may take.
pub fn connect_timeout(word: &str) -> Result<Duration, Explained> {
    at_least(SHORTEST, word, "give a server at least 1ms")
}

/// Parses how long a lock of `acquire` lasts: a length of time, or `ever`.
pub fn hold(word: &str) -> Result<Duration, String> {
    if word == EVER_WORD {
        return Ok(EVER);
    }
    let length = at_most(word, KEPT_MAX, "a lock without a process lasts at most 7 days, or 'ever'")?;
    if length < SHORTEST {
        return Err(format!("'{word}' is too short: a lock without a process lasts at least 1ms"));
    }
    Ok(length)
}

/// Parses a process id, which is above 0.
pub fn pid(word: &str) -> Result<Pid, String> {
    let pid = word.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    pid.ok_or_else(|| format!("'{word}' is not a process id: give the number of a process, such as $$"))
}

/// A process with which something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The process with this id.
    Pid(Pid),
    /// The parent of rlock.
    Parent,
    /// The coding agent above rlock.
    Agent,
}

/// Parses the process with which a hold ends.
pub fn keeper(word: &str) -> Result<Owner, String> {
    if word == "agent" { Ok(Owner::Agent) } else { pid(word).map(Owner::Pid) }
}

/// Parses the process with which a request ends.
pub fn owner(word: &str) -> Result<Owner, String> {
    match word {
        "parent" => Ok(Owner::Parent),
        "agent" => Ok(Owner::Agent),
        _ => pid(word).map(Owner::Pid).map_err(|text| text + ", or 'parent' or 'agent'"),
    }
}

/// Parses the name or the number of a signal, or `none`.
pub fn lost_signal(word: &str) -> Result<LostSignal, String> {
    let upper = word.to_ascii_uppercase();
    if upper == "NONE" {
        return Ok(LostSignal(None));
    }
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let number = named.or_else(|| word.parse().ok().filter(|number| (1..=SIGNAL_MAX).contains(number)));
    number
        .map(|number| LostSignal(Some(number)))
        .ok_or_else(|| format!("'{word}' is not a signal: write it as TERM, INT, HUP, USR1, a number, or none"))
}

/// The highest number of a signal.
const SIGNAL_MAX: i32 = 64;

/// The signals that have a use as a message, by name.
const SIGNALS: [(&str, i32); 13] = [
    ("HUP", Signal::HUP.as_raw()),
    ("INT", Signal::INT.as_raw()),
    ("QUIT", Signal::QUIT.as_raw()),
    ("ABRT", Signal::ABORT.as_raw()),
    ("KILL", Signal::KILL.as_raw()),
    ("USR1", Signal::USR1.as_raw()),
    ("USR2", Signal::USR2.as_raw()),
    ("PIPE", Signal::PIPE.as_raw()),
    ("ALRM", Signal::ALARM.as_raw()),
    ("TERM", Signal::TERM.as_raw()),
    ("CONT", Signal::CONT.as_raw()),
    ("STOP", Signal::STOP.as_raw()),
    ("WINCH", Signal::WINCH.as_raw()),
];

/// Parses a session, or the KEY that one holds.
pub fn which(word: &str) -> Result<Which, String> {
    word.parse().map(Which::Session).or_else(|_| resource(word).map(Which::Key))
}

/// Parses the id of a session, as `inspect -v` and `--json` show it.
pub fn session(word: &str) -> Result<SessionId, String> {
    word.parse().map_err(|error| format!("'{word}' is not a session: {error}"))
}

/// The maximum length of the name of a job, in bytes.
const JOB_BYTES: usize = 128;

/// Parses the name of a job.
pub fn job(word: &str) -> Result<String, String> {
    let word = unmark(word);
    if word.is_empty() {
        return Err("a job needs a name".to_owned());
    }
    if word.len() > JOB_BYTES {
        return Err(format!("a name may have {JOB_BYTES} bytes, this one has {}", word.len()));
    }
    Unprintable::find(word).map_or_else(|| Ok(word.to_owned()), |found| Err(format!("the name {found}")))
}

/// Parses an exit code.
pub fn exit_code(word: &str) -> Result<u8, String> {
    let word = unmark(word);
    word.parse().map_err(|_| format!("'{word}' is not an exit code: give a number from 0 to 255"))
}

/// Parses N or `N+disk`.
pub fn replicas(word: &str) -> Result<Replicas, Explained> {
    let word = unmark(word);
    let (count, on_disk) = word.strip_suffix("+disk").map_or((word, false), |count| (count, true));
    let remedy = "give 0, 1, 2 and so on, or 1+disk";
    let mistake = |_| Explained::new(format!("'{word}' is not a number of replicas"), remedy);
    Ok(Replicas { count: count.parse().map_err(mistake)?, on_disk })
}

pub(crate) fn waiters(word: &str) -> Result<u32, String> {
    let word = unmark(word);
    word.parse().map_err(|_| format!("'{word}' is not a number of waiters: give 0, 1, 2 and so on"))
}

/// Parses a number of bytes, with K, M, G or T for the powers of 1024.
pub fn size(word: &str) -> Result<u64, Explained> {
    let word = unmark(word);
    let upper = word.to_ascii_uppercase();
    let bare = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let unit = [('K', 10), ('M', 20), ('G', 30), ('T', 40)].into_iter().find(|(unit, _)| bare.ends_with(*unit));
    let (number, shift) = unit.map_or((bare, 0), |(_, shift)| (&bare[..bare.len() - 1], shift));
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let bytes = number.parse::<f64>().ok().filter(|_| is_plain).map(|number| number * (1_u64 << shift) as f64);
    // Beyond this number, every size counts as one that no machine has.
    let bytes = bytes.filter(|bytes| *bytes >= 1.0).map(|bytes| bytes as u64);
    bytes.ok_or_else(|| Explained::new(format!("'{word}' is not a size"), "write it as 512M, 4G or 1.5G"))
}

/// Parses the highest load average of one minute, or with `%` the highest pressure.
pub fn load(word: &str) -> Result<Load, Explained> {
    let word = unmark(word);
    let (number, is_pressure) = word.strip_suffix('%').map_or((word, false), |number| (number, true));
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = number.parse::<f64>().ok().filter(|_| is_plain).filter(|number| *number <= LOAD_MAX && *number > 0.0);
    let number = number.filter(|number| !is_pressure || *number <= 100.0);
    let number = number.ok_or_else(|| {
        Explained::new(format!("'{word}' is not a load"), "give a load such as 8 or 1.5, or a pressure such as 25%")
    })?;
    Ok(if is_pressure { Load::Pressure(number) } else { Load::Average(number) })
}

/// Parses the number of entries that a history keeps.
pub fn history(word: &str) -> Result<u32, Explained> {
    let word = unmark(word);
    let entries = word.parse().ok().filter(|entries| *entries <= HISTORY_MAX);
    let remedy = format!("give a number from 0 to {HISTORY_MAX}");
    entries.ok_or_else(|| Explained::new(format!("'{word}' is not the length of a history"), remedy))
}

/// Parses how many of the last entries of a history to show.
pub fn entries(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("'{word}' is not a number of entries: give 1, 2, 3 and so on"))
}

/// Parses the address of a listening socket.
pub fn listen(word: &str) -> Result<Address, String> {
    let mistake =
        || format!("'{word}' is not an address: write it as 127.0.0.1:1006, [::1]:1006, HOST:1006 or unix:/PATH");
    if let Some(path) = word.strip_prefix("unix:") {
        return if path.starts_with('/') { Ok(Address::Unix(path.into())) } else { Err(mistake()) };
    }
    let (host, port) = word.rsplit_once(':').ok_or_else(mistake)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().map_err(|_| mistake())?;
    if bare.is_empty() || (bare == host && host.contains(':')) {
        Err(mistake())
    } else {
        Ok(Address::Tcp(bare.to_owned(), port))
    }
}

/// Parses a number of things, which may be 0.
pub fn count(word: &str) -> Result<usize, String> {
    word.parse().map_err(|_| format!("'{word}' is not a number: give 0, 1, 2 and so on"))
}

/// Parses the maximum number of clients of `rlock serve`, which is at least 1.
pub fn connections(word: &str) -> Result<usize, String> {
    count(word)
        .and_then(|count| if count == 0 { Err("at least one client must be allowed".to_owned()) } else { Ok(count) })
}

/// Parses a pattern for names, with the wildcards of a shell.
pub fn glob(word: &str) -> Result<Pattern, String> {
    Pattern::new(word).map_err(|error| format!("'{word}' is not a pattern: {}", error.msg))
}

/// The highest load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// The load average of one minute.
    Average(f64),
    /// The pressure on the processors, in percent.
    Pressure(f64),
}

/// A lock of `acquire`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of a session.
    Session(SessionId),
    /// The one on this KEY that is for a process above.
    Key(Resource),
}

/// The number of a signal, or none to send nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSignal(pub Option<i32>);

/// The limit of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Zero is no wait at all.
    AtMost(Duration),
    /// No limit: until the grant, or until a signal ends the wait.
    Ever,
}

impl Wait {
    /// The longest wait, if there is a limit.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::AtMost(limit) => Some(limit),
            Self::Ever => None,
        }
    }
}

/// The value of `--once-per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// So long ago at most.
    Within(Duration),
    /// In the same hour, day, week, month or year.
    Calendar(Unit),
}

/// A part of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// From minute 0.
    Hour,
    /// A date.
    Day,
    /// From Monday.
    Week,
    /// From the first day.
    Month,
    /// From the first day of January.
    Year,
}

impl Unit {
    /// A length of time that is longer than any such part, in any time zone.
    pub fn upper_bound(self) -> Duration {
        let day = Duration::from_secs(24 * 3600);
        match self {
            Self::Hour => day / 12,
            Self::Day => 2 * day,
            Self::Week => 8 * day,
            Self::Month => 32 * day,
            Self::Year => 368 * day,
        }
    }
}

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        EVER, KEPT_MAX, Load, Replicas, Slots, Wait, duration, exit_code, history, hold, kept, load, plain, replicas,
        resource, size, slot, ttl, wait,
    };

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn duration_without_a_unit_is_in_seconds() {
        let cases = [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("10", 10_000),
            ("0", 0),
            ("0.5", 500),
        ];
        for (word, millis) in cases {
            assert_eq!(duration(word), Ok(Duration::from_millis(millis)), "{word}");
        }
        for word in ["", "x", "-1", "1e3", "inf", ".", "1..2", "5 parsecs"] {
            let text = format!("'{word}' is not a duration: write it as 90s, 5m, 1h30m or 500ms");
            assert!(duration(word).unwrap_err().to_string().starts_with(&text));
        }
    }

    #[test]
    fn wait_is_a_duration_or_lasts_for_ever() {
        assert_eq!((wait("90s"), wait("0")), (Ok(Wait::AtMost(secs(90))), Ok(Wait::AtMost(secs(0)))));
        assert_eq!((wait("ever"), wait("Ever").is_err()), (Ok(Wait::Ever), true));
        assert!(wait("forever").unwrap_err().to_string().contains(", or ever"));
    }

    #[test]
    fn duration_that_could_overflow_a_clock_is_rejected() {
        for word in ["100y", "101years", "18446744073709551616", "18446744073709551615s"] {
            let text = format!("'{word}' is too long: the limit is 36500 days");
            assert_eq!(duration(word).unwrap_err().to_string(), text);
        }
        assert!(duration("99years").is_ok() && duration("36500days").is_ok());
    }

    #[test]
    fn durations_are_printed_in_the_form_that_is_parsed() {
        for word in ["0s", "1s", "1m", "1m1s", "2h", "26h3m4s5ms", "333ms"] {
            assert_eq!(rlock_words::duration(duration(word).unwrap()), word);
        }
    }

    #[test]
    fn ttl_below_one_second_is_rejected() {
        assert_eq!(ttl("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(ttl("999ms").unwrap_err().to_string(), "'999ms' is too short: a lease lasts at least 1s");
    }

    #[test]
    fn slots_split_at_the_last_equals_sign() {
        let Slots { resource: name, of, taken } = slot("a=b=3").unwrap();
        assert_eq!((name.as_str(), of, taken), ("a=b", 3, 1));
        assert_eq!(slot("db=1000000").unwrap().of, 1_000_000);
        assert_eq!(slot("db").unwrap_err(), "'db' lacks the number of slots: write db=4");
        for word in ["db=0", "db=1000001", "db=", "db=-1", "db=x", "db=99999999999"] {
            assert_eq!(slot(word).unwrap_err(), format!("'{word}' must end in a number of slots from 1 to 1000000"));
        }
        assert_eq!(slot("=1").unwrap_err(), resource("").unwrap_err());
    }

    #[test]
    fn request_takes_at_least_one_and_at_most_all_slots() {
        assert_eq!(slot("db=4:4").unwrap().taken, 4);
        for word in ["db=4:0", "db=4:5", "db=4:", "db=4:-1", "db=4:x"] {
            let text = format!("'{word}' must take from 1 to 4 of the 4 slots: write db=4:1");
            assert_eq!(slot(word).unwrap_err(), text);
        }
    }

    #[test]
    fn size_has_binary_units_and_load_may_be_a_pressure() {
        for (word, bytes) in
            [("4G", 4 << 30), ("4g", 4 << 30), ("1.5K", 1536), ("512MiB", 512 << 20), ("7", 7), ("2TB", 2 << 40)]
        {
            assert_eq!(size(word), Ok(bytes), "{word}");
        }
        for word in ["", "G", "-1", "0", "4X", "1e3", "inf", "nan"] {
            let text = format!("'{word}' is not a size: write it as 512M, 4G or 1.5G");
            assert_eq!(size(word).unwrap_err().to_string(), text);
        }
        assert_eq!([load("8"), load("25%")], [Ok(Load::Average(8.0)), Ok(Load::Pressure(25.0))]);
        for word in ["", "0", "-1", "101%", "x", "1e9", "%"] {
            let text = format!("'{word}' is not a load: give a load such as 8 or 1.5, or a pressure such as 25%");
            assert_eq!(load(word).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn number_out_of_range_is_rejected_with_its_range() {
        assert_eq!((exit_code("0"), exit_code("255")), (Ok(0), Ok(255)));
        assert_eq!(exit_code("256"), Err("'256' is not an exit code: give a number from 0 to 255".to_owned()));
        assert_eq!((history("0"), history("1000")), (Ok(0), Ok(1000)));
        let text = "'1001' is not the length of a history: give a number from 0 to 1000";
        assert_eq!(history("1001").unwrap_err().to_string(), text);
    }

    #[test]
    fn replicas_are_a_number_and_perhaps_their_disks() {
        assert_eq!(replicas("2"), Ok(Replicas { count: 2, on_disk: false }));
        assert_eq!(replicas("0+disk"), Ok(Replicas { count: 0, on_disk: true }));
        for word in ["-1", "+disk", "1+", "1+disc", "disk", "1+disk+disk"] {
            let text = format!("'{word}' is not a number of replicas: give 0, 1, 2 and so on, or 1+disk");
            assert_eq!(replicas(word).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn lock_without_a_process_lasts_for_a_week_at_most_or_for_ever() {
        assert_eq!((hold("7days"), hold("ever")), (Ok(KEPT_MAX), Ok(EVER)));
        let text = "'8days' is too long: a lock without a process lasts at most 7 days, or 'ever'";
        assert_eq!(hold("8days"), Err(text.to_owned()));
        assert!(kept("ever").is_err());
    }

    #[test]
    fn marks_of_negative_numbers_are_removed() {
        assert_eq!(plain("\u{1}-inf"), Ok("-inf".to_owned()));
        assert_eq!(resource("\u{1}-3").unwrap().as_str(), "-3");
        assert_eq!(duration("\u{1}-3"), duration("-3"));
    }
}
