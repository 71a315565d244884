//! One check of `rlock doctor`, and the checks that several stores make.

use std::time::{Duration, Instant};

use serde::Serialize;

use rlock_model::text::shortened;
use rlock_sys::clock::StoreTime;
use rlock_words::{duration, one_line};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// There is nothing to do.
    Ok,
    /// rlock works, and something may go wrong.
    Warn,
    /// rlock cannot be used.
    Fail,
    /// The fact cannot be read, which is no fault.
    Unknown,
}

impl Verdict {
    /// The word for the verdict in the text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// One check, as `rlock doctor --json` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, unless there is nothing to do.
    #[serde(rename = "cure")]
    pub remedy: Option<String>,
}

impl Check {
    /// A check that found nothing wrong. `found` is made one line.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: one_line(&found.into()), remedy: None }
    }

    /// A check that found what may go wrong.
    pub fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, remedy: Some(remedy.into()), ..Self::ok(name, found) }
    }

    /// A check that found why rlock cannot be used.
    pub fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, remedy) }
    }

    /// A check that could not read the fact. `remedy` says how to read it.
    pub fn unknown(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, ..Self::warn(name, found, remedy) }
    }
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// The checks of who else sees the locks at a server, and who may take and break them. `login` is
/// the user as whom rlock has logged in.
pub fn audience(login: Option<&str>, namespace: &str) -> [Check; 2] {
    let user = match login {
        Some(user) => format!("clients with the rights of its user '{}'", shortened(user)),
        None => "clients that may log in".to_owned(),
    };
    [
        Check::ok("seen by", format!("every machine that reaches the server and uses namespace '{namespace}'")),
        Check::ok("written by", format!("{user}; each of them may take and break any lock")),
    ]
}

/// Fewer days than these before its end, a certificate needs a person: programs that renew
/// certificates do it a month before.
const CERTIFICATE_DAYS: u64 = 14;

/// The check of an encrypted connection. The certificate is valid until `end`, counted from 1970.
pub fn certificate(end: Option<Duration>, now: StoreTime) -> Check {
    let Some(end) = end else {
        let remedy = "see its end with openssl s_client -connect HOST:PORT";
        return Check::unknown("tls", "the connection is encrypted; the end of the certificate cannot be read", remedy);
    };
    let days = end.saturating_sub(Duration::from_micros(now.as_micros())).as_secs() / (24 * 60 * 60);
    let found = format!("the connection is encrypted, and the certificate is trusted; days left: {days}");
    if days < CERTIFICATE_DAYS {
        return Check::warn("tls", found, "give the server a new certificate: no rlock connects after its end");
    }
    Check::ok("tls", found)
}

/// The number of questions by which a server's clock and latency are measured.
const QUESTIONS: usize = 10;

/// The difference of clocks from which on people misread times.
const CLOCK_OFF: i64 = 1_000_000;

/// How fast a server answers, and what its clock shows.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// How far the server's clock is ahead of this machine's in microseconds, and how far that may
    /// be off.
    clock: Option<(i64, Duration)>,
    /// How long the questions took, in order.
    pings: Vec<Duration>,
}

impl Pace {
    /// Asks a server for its time, which `ask` does once. `None` if the server does not tell it.
    ///
    /// # Errors
    /// An error of `ask`.
    pub fn measure<E>(mut ask: impl FnMut() -> Result<Option<StoreTime>, E>) -> Result<Self, E> {
        let mut pace = Self::default();
        for _ in 0..QUESTIONS {
            let (before, asked) = (StoreTime::of_machine(), Instant::now());
            if let Some(now) = ask()? {
                let taken = asked.elapsed();
                let ahead = i128::from(now.as_micros()) - i128::from((before + taken / 2).as_micros());
                pace.clock = Some((i64::try_from(ahead).unwrap_or(i64::MAX), taken / 2));
                pace.pings.push(taken);
            }
        }
        pace.pings.sort_unstable();
        Ok(pace)
    }

    /// The checks of the clock and of the latency. `ttl` is the ttl of leases. `remedy` is for a
    /// server that does not tell its time.
    pub fn checks(&self, ttl: Duration, remedy: &str) -> [Check; 2] {
        [self.clock(remedy), self.latency(ttl, remedy)]
    }

    fn clock(&self, remedy: &str) -> Check {
        let Some((ahead, error)) = self.clock else {
            return Check::unknown("clock", "the server does not tell its time", remedy);
        };
        let off = Duration::from_micros(ahead.unsigned_abs());
        let side = if ahead < 0 { "behind" } else { "ahead of" };
        let found = format!("{} {side} this machine", duration(off));
        if ahead.saturating_abs() > CLOCK_OFF + i64::try_from(error.as_micros()).unwrap_or(i64::MAX) {
            let remedy = "run chrony or another NTP client on both machines; leases are not affected";
            return Check::warn("clock", found, remedy);
        }
        Check::ok("clock", format!("less than {} apart", duration(off + error + Duration::from_millis(1))))
    }

    fn latency(&self, ttl: Duration, remedy: &str) -> Check {
        let (Some(middle), Some(longest)) = (self.pings.get(self.pings.len() / 2), self.pings.last()) else {
            let found = "the server does not tell its time, by which the latency is measured";
            return Check::unknown("latency", found, remedy);
        };
        let shown = |length: &Duration| format!("{:.1}ms", length.as_secs_f64() * 1000.0);
        let found = format!(
            "{} usually, {} at most, with a ttl of {}; of one round trip, while cost is all that a lock takes",
            shown(middle),
            shown(longest),
            duration(ttl)
        );
        let remedy = "use a server nearer by, or raise --ttl";
        match *longest {
            longest if longest >= ttl / 3 => Check::fail("latency", found, remedy),
            longest if longest >= ttl / 20 => Check::warn("latency", found, remedy),
            _ => Check::ok("latency", found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn certificate_needs_a_person_in_its_last_two_weeks() {
        let now = StoreTime::default() + 1000 * DAY;
        let verdict = |days: Option<u32>| certificate(days.map(|days| days * DAY), now).verdict;
        let found = [Some(1014), Some(1013), Some(999), None].map(verdict);
        assert_eq!(found, [Verdict::Ok, Verdict::Warn, Verdict::Warn, Verdict::Unknown]);
    }

    #[test]
    fn clock_that_is_apart_and_slow_answers_are_told() {
        let checks = |clock, millis: &[u64]| {
            let pings = millis.iter().map(|millis| Duration::from_millis(*millis)).collect();
            Pace { clock, pings }.checks(Duration::from_secs(30), "ask").map(|check| check.verdict)
        };
        for (clock, millis, expected) in [
            (Some((1000, Duration::from_millis(1))), &[1, 1][..], [Verdict::Ok, Verdict::Ok]),
            (Some((-3_000_000, Duration::ZERO)), &[1, 1_500], [Verdict::Warn, Verdict::Warn]),
            (Some((3_000_000, Duration::from_secs(3))), &[10_000], [Verdict::Ok, Verdict::Fail]),
            (None, &[], [Verdict::Unknown, Verdict::Unknown]),
        ] {
            assert_eq!(checks(clock, millis), expected, "{clock:?}, {millis:?}");
        }
    }

    #[test]
    fn server_is_seen_everywhere_and_written_by_its_user() {
        let found = |login| audience(login, "n").map(|check| check.found);
        let end = "; each of them may take and break any lock";
        let [seen, writers] = found(Some("ada"));
        assert_eq!(seen, "every machine that reaches the server and uses namespace 'n'");
        assert_eq!(writers, format!("clients with the rights of its user 'ada'{end}"));
        assert_eq!(found(None)[1], format!("clients that may log in{end}"));
    }
}
