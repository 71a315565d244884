//! What a resource remembers after its sessions have ended.
//!
//! A [`Past`] is small and is written with every end of a hold. The ring of ended requests is not
//! part of it: each [`Entry`] is a record of its own, so that an end writes one entry. This module
//! decides on values only; `remember` reads and writes the records.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::records::Later;
use super::request::{Claim, Job, Process};
use super::resource::Resource;
use crate::tables;
use rlock_sys::clock::StoreTime;

/// How long an idle resource keeps its past, and a job its success and its streak.
pub const RETENTION: Duration = Duration::from_secs(tables::RETENTION);
/// How long an idle resource keeps a past without a success, a streak or an entry.
pub const RETENTION_OF_TOTALS: Duration = Duration::from_secs(tables::RETENTION_OF_TOTALS);
/// Maximum number of entries of a ring.
pub const HISTORY_MAX: u32 = 1000;

/// Maximum number of entries about waits among so many entries, so that waits push no runs out of
/// the ring.
pub(super) fn waits_max(history: u32) -> usize {
    tables::WAITS_MAX.min(history as usize / tables::WAITS_SHARE)
}

/// A request that is busy at once makes no new entry if the last request of its entry ended less
/// than this time before.
pub(super) const WAITS_APART: Duration = Duration::from_secs(tables::WAITS_APART);

pub use crate::tables::JOBS_MAX;

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The command exited with this code.
    Exit(u8),
    /// This signal ended the command.
    Signal(u8),
    /// The holder found its grant lost.
    Lost,
    /// The session ended without a release: its lease was over, or its process was dead.
    Expired,
    /// An operator revoked the grant.
    Broken,
    /// The command exceeded its maximum run time.
    Timeout,
    /// A hold without a command ended as it should: a hold of `acquire` at its instant, with its
    /// process or by `rlock release`, or a hold of a client of `serve`.
    Kept,
    /// The command was ready, gave the lock back, and went on without it.
    Ready,
}

impl fmt::Display for Ending {
    /// The words that a command finds in RLOCK_LAST.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Lost => f.write_str("lost"),
            Self::Expired => f.write_str("expired"),
            Self::Broken => f.write_str("broken"),
            Self::Timeout => f.write_str("timeout"),
            Self::Kept => f.write_str("kept"),
            Self::Ready => f.write_str("ready"),
        }
    }
}

/// The error for words that tell no ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndingError;

impl FromStr for Ending {
    type Err = EndingError;

    fn from_str(words: &str) -> Result<Self, Self::Err> {
        let numbered = |prefix| words.strip_prefix(prefix).and_then(|number: &str| number.parse().ok());
        match words {
            "lost" => Ok(Self::Lost),
            "expired" => Ok(Self::Expired),
            "broken" => Ok(Self::Broken),
            "timeout" => Ok(Self::Timeout),
            "kept" => Ok(Self::Kept),
            "ready" => Ok(Self::Ready),
            _ => {
                let exit = numbered("exit ").map(Self::Exit);
                exit.or_else(|| numbered("signal ").map(Self::Signal)).ok_or(EndingError)
            }
        }
    }
}

/// What a release says about the command that ran under the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How the command ended.
    pub ending: Ending,
    /// Whether the run counts as a success.
    pub is_success: bool,
}

impl End {
    /// The end of a hold without a command.
    pub const KEPT: Self = Self { ending: Ending::Kept, is_success: false };

    /// The end of a hold that was revoked: without a command, it ended because of that.
    pub(super) fn of_revoked(self) -> Self {
        if self.ending == Ending::Kept { Self { ending: Ending::Broken, ..self } } else { self }
    }
}

/// How a wait ended without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitEnd {
    /// The request was told to be busy, at once or after a wait.
    Busy,
    /// The request left the queue.
    Left,
    /// A newer request of the job superseded the request.
    Superseded,
}

impl WaitEnd {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Busy, Self::Left, Self::Superseded];

    /// The word for it in a history and in the entries of a server.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Left => "left",
            Self::Superseded => "superseded",
        }
    }
}

/// What an entry of a ring reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A hold ended.
    Ended(Ending),
    /// A job was skipped so many times in a row.
    Skipped(u32),
    /// So many requests were told that their run is done, since its success.
    Done(u32),
    /// So many requests of a job ended without a grant since the last run.
    Waited {
        /// How the last of them ended.
        how: WaitEnd,
        /// The number of requests.
        count: u32,
        /// The sum of their waits.
        sum: Duration,
        /// The longest of their waits.
        longest: Duration,
    },
}

impl Event {
    /// Whether a request that was granted did not end as it should. The entry does not tell the
    /// codes of `--success-codes`.
    pub fn has_failed(self) -> bool {
        matches!(self, Self::Ended(ending) if !matches!(ending, Ending::Exit(0) | Ending::Kept | Ending::Ready))
    }
}

/// Whose request an entry reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The name of the job.
    pub job: String,
    /// Whether the caller gave the name.
    pub is_named: bool,
    /// Whether the request was made below a hold of the same resource, which covers it.
    pub is_nested: bool,
}

/// When a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// At this instant.
    At(StoreTime),
    /// At an unknown instant, no later than this one, at which the store noticed that the holder is
    /// dead.
    Noticed(StoreTime),
}

impl Ended {
    /// The instant of the end, if it is known.
    pub fn known(self) -> Option<StoreTime> {
        match self {
            Self::At(end) => Some(end),
            Self::Noticed(_) => None,
        }
    }

    /// The latest instant at which the hold may have ended.
    pub fn latest(self) -> StoreTime {
        let (Self::At(instant) | Self::Noticed(instant)) = self;
        instant
    }
}

/// An ended request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What happened.
    pub event: Event,
    /// The rlock process of the session.
    pub process: Process,
    /// The claims of the request on this resource.
    pub claims: Vec<Claim>,
    /// The instant of the request; of several, of the first.
    pub asked: StoreTime,
    /// The instant of the grant, if the request had one.
    pub granted: Option<StoreTime>,
    /// When the hold ended; of requests without a grant, the end of the last.
    pub ended: Ended,
    /// The highest token of the claims, if the request was granted.
    pub token: Option<u64>,
    /// Whose request it was.
    #[serde(skip)]
    pub origin: Origin,
    /// The numbers of the held slots, in the order of the claims; none without a grant.
    #[serde(skip)]
    pub slots: Vec<u32>,
    /// What later versions have added to the entry.
    #[serde(skip)]
    pub later: Later,
}

impl Entry {
    /// How long the request waited, or several without a grant all together.
    pub fn waited(&self) -> Option<Duration> {
        match self.event {
            Event::Waited { sum, .. } => Some(sum),
            _ => self.granted.map(|granted| granted - self.asked),
        }
    }
}

/// Counts since the resource got its past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// The number of holds that have ended. Each of them has ended a wait, too.
    pub ended: u64,
    /// The number of requests that were told to be busy, at once or after a wait.
    pub busy: u64,
    /// The number of holds that ended as [`Ending::Lost`].
    pub lost: u64,
    /// The number of holds that ended as [`Ending::Expired`].
    pub expired: u64,
    /// The time from the request to the grant, summed over the ended holds.
    pub waited: Duration,
    /// The time from the grant to the end, summed over the ended holds whose ends are known.
    pub held: Duration,
}

/// The skips of a job in a row: since its last grant, or since its last [`Reply::AlreadyDone`].
///
/// [`Reply::AlreadyDone`]: super::op::Reply::AlreadyDone
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// The number of skips.
    pub count: u32,
    /// The instant of the first skip.
    pub since: StoreTime,
    /// The instant of the last skip.
    pub last: StoreTime,
    /// The command of the last skip.
    pub command: Vec<String>,
    /// The number of the entry that reports the skips, if they were entered.
    pub entry: Option<u64>,
}

/// The requests that were told that their run is done, since the success that counts for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spared {
    /// The number of requests.
    pub count: u32,
    /// The instant of the first.
    pub since: StoreTime,
    /// The number of the entry that reports them, if they were entered.
    pub entry: Option<u64>,
}

/// The last request that has superseded the waiters of its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    /// The waiters with a smaller number in the queue are superseded.
    pub before: u64,
    /// The instant of the request.
    pub at: StoreTime,
    /// The process that made it.
    pub by: Process,
}

/// What a resource remembers of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPast {
    /// The instant that [counts](super::request::OncePer::counted) for the last run that had asked
    /// with [`Job::once_per`] and succeeded: mostly its grant.
    pub success: Option<StoreTime>,
    /// The longest period for which a request has asked for one run since then, at most
    /// [`PERIOD_MAX`](super::request::PERIOD_MAX). The success is not forgotten before.
    pub period: Duration,
    /// The requests for which that success has counted.
    pub spared: Option<Spared>,
    /// The end of the last success of a [named](Job::is_named) job.
    pub ended: Option<StoreTime>,
    /// The skips since the last grant.
    pub streak: Option<Streak>,
    /// The last request that has superseded waiters.
    pub superseded: Option<Superseded>,
}

impl JobPast {
    /// The latest instant at which there was anything to remember.
    fn last(&self) -> Option<StoreTime> {
        let superseded = self.superseded.as_ref().map(|superseded| superseded.at);
        self.success.max(self.ended).max(self.streak.as_ref().map(|streak| streak.last)).max(superseded)
    }

    /// Whether the success must not be forgotten yet.
    pub fn is_bound(&self, now: StoreTime) -> bool {
        self.success.is_some_and(|began| now < began + self.period)
    }

    /// Whether there is anything to remember that must not be forgotten yet, or is younger than
    /// [`RETENTION`]. The end of the last success stays for as long as the past is `bound`.
    fn is_of_use(&self, now: StoreTime, bound: StoreTime) -> bool {
        self.success.is_some_and(|began| now < began + self.period.max(RETENTION))
            || self.ended.is_some_and(|ended| now < bound.max(ended + RETENTION))
            || self.streak.as_ref().is_some_and(|streak| streak.is_running(now))
            || self.superseded.as_ref().is_some_and(|superseded| now < superseded.at + RETENTION)
    }
}

impl Streak {
    /// Whether the next skip continues the streak.
    pub(crate) fn is_running(&self, now: StoreTime) -> bool {
        now < self.last + RETENTION
    }
}

/// What a resource remembers of all its ended sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// How the last hold ended, if that is known, and [when at the latest](Ended::latest).
    pub last: Option<(Ending, StoreTime)>,
    /// The end of the last run that succeeded.
    pub last_success: Option<StoreTime>,
    /// What is remembered of each job, by [`Job::name`].
    pub jobs: BTreeMap<String, JobPast>,
    /// The counts.
    pub totals: Totals,
    /// The numbers of the entries in the ring, the oldest first.
    pub ring: Range<u64>,
    /// The instant of the last change.
    pub changed: StoreTime,
    /// The instant at which the table checks whether the past can go. The records find the past by
    /// this instant. It is late rather than exact, so that a change need not move it.
    pub check_at: StoreTime,
    /// The instant until which the past is kept at least, whether or not the resource is used.
    #[serde(skip)]
    pub bound: StoreTime,
    /// The numbers of the entries of waits, in order. Those that the ring has no more may be among
    /// them.
    #[serde(skip)]
    pub waits: Vec<u64>,
    /// What later versions have added to the past.
    #[serde(skip)]
    pub later: Later,
}

/// What a resource remembers, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The name of the resource.
    pub name: Resource,
    /// What it remembers of all its ended sessions.
    pub past: Past,
    /// The entries of its ring, the oldest first.
    pub entries: Vec<Entry>,
}

impl Remembered {
    /// Adds entries that are older than those that are known.
    pub fn add_older(&mut self, older: Self) {
        self.past.ring.start = self.past.ring.start.saturating_sub(older.entries.len() as u64);
        self.entries.splice(0..0, older.entries);
    }
}

impl Past {
    /// The instant at which an idle resource forgets its past.
    pub fn keeps_until(&self) -> StoreTime {
        let is_worth_more = self.last_success.is_some() || !self.jobs.is_empty() || !self.ring.is_empty();
        let bound = self.jobs.values().filter_map(|job| Some(job.success? + job.period)).max();
        bound
            .unwrap_or_default()
            .max(self.bound)
            .max(self.changed + if is_worth_more { RETENTION } else { RETENTION_OF_TOTALS })
    }

    /// The job whose last success is the run for which a request asks with [`Job::once_per`], if
    /// that run has taken place already.
    pub fn done_by(&self, now: StoreTime, job: &Job) -> Option<&str> {
        let once = job.once_per?;
        let counts = |name: &String| !job.is_named || *name == job.name;
        let successes = self.jobs.iter().filter(|(name, _)| counts(name));
        let last = successes.filter_map(|(name, past)| Some((past.success?, name))).max();
        last.filter(|(began, _)| once.is_done(*began, now)).map(|(_, name)| name.as_str())
    }

    /// Whether a success must not be forgotten yet.
    pub fn is_bound(&self, now: StoreTime) -> bool {
        self.jobs.values().any(|job| job.is_bound(now))
    }

    /// Whether the success of a run for which a request asks with [`Job::once_per`] can be kept.
    pub(crate) fn has_place_for(&self, now: StoreTime, job: &Job) -> bool {
        let is_full =
            || self.jobs.len() >= JOBS_MAX && self.jobs.values().filter(|job| job.is_bound(now)).count() >= JOBS_MAX;
        job.once_per.is_none() || self.jobs.contains_key(&job.name) || !is_full()
    }

    /// The streak of a job, if it has been skipped since its last grant.
    pub fn streak(&self, now: StoreTime, job: &str) -> Option<&Streak> {
        self.jobs.get(job)?.streak.as_ref().filter(|streak| streak.is_running(now))
    }

    /// The request that has superseded the waiter of a job that has this number in the queue.
    pub fn superseded(&self, job: &str, number: u64) -> Option<&Superseded> {
        self.jobs.get(job)?.superseded.as_ref().filter(|superseded| number < superseded.before)
    }

    /// Ends the streak of a job. Returns whether it had one.
    pub(crate) fn end_streak(&mut self, job: &str) -> bool {
        self.jobs.get_mut(job).is_some_and(|past| past.streak.take().is_some())
    }

    /// Drops what is too old to be of use, and of more than [`JOBS_MAX`] jobs the oldest ones whose
    /// successes may be forgotten.
    pub(crate) fn drop_old_jobs(&mut self, now: StoreTime) {
        let bound = self.bound;
        self.jobs.retain(|_, past| past.is_of_use(now, bound));
        let free = |jobs: &BTreeMap<String, JobPast>| {
            let free = jobs.iter().filter(|(_, past)| !past.is_bound(now));
            free.map(|(name, past)| (past.last(), name.clone())).min()
        };
        while self.jobs.len() > JOBS_MAX
            && let Some((_, oldest)) = free(&self.jobs)
        {
            self.jobs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kept::EVER;
    use super::super::request::PERIOD_MAX;
    use super::super::request::{Calendar, OncePer};
    use super::*;

    fn at(seconds: u64) -> StoreTime {
        StoreTime::default() + Duration::from_secs(seconds)
    }

    fn with_success(job: &str, began: StoreTime) -> Past {
        let past = JobPast { success: Some(began), ..JobPast::default() };
        Past { jobs: BTreeMap::from([(job.to_owned(), past)]), ..Past::default() }
    }

    #[test]
    fn run_counts_as_done_for_less_than_its_period() {
        let past = with_success("a", at(100));
        let job = |name: &str, is_named| Job {
            name: name.to_owned(),
            is_named,
            once_per: Some(OncePer { period: Duration::from_secs(10), calendar: None }),
            ..Job::default()
        };
        assert!(past.done_by(at(109), &job("a", true)).is_some() && past.done_by(at(109), &job("b", false)).is_some());
        assert!(past.done_by(at(109), &job("b", true)).is_none() && past.done_by(at(110), &job("a", true)).is_none());
        assert!(past.done_by(at(100), &Job { once_per: None, ..job("a", true) }).is_none());
    }

    /// A day of the machine whose request it is.
    fn day(start: u64) -> OncePer {
        let calendar = Calendar { start: at(start), next: at(start + 100) };
        OncePer { period: Duration::from_secs(200), calendar: Some(calendar) }
    }

    #[test]
    fn run_counts_as_done_in_the_day_in_which_it_began() {
        let is_done = |began, now, start| day(start).is_done(at(began), at(now));
        assert!(is_done(1000, 1099, 1000) && !is_done(999, 1000, 1000));
        assert!(!is_done(1099, 1100, 1000) && is_done(1100, 1199, 1000), "the next day has begun");
        assert!(!is_done(1250, 1301, 1000) && is_done(1300, 1399, 1000), "days later");
        assert!(is_done(701, 750, 1000) && !is_done(699, 750, 1000), "the clock of the machine is days ahead");
    }

    #[test]
    fn day_of_a_machine_whose_clock_is_a_little_ahead_counts() {
        let once = day(1000);
        let ahead = |seconds: u64| at(1000 - seconds);
        assert_eq!([once.counted(ahead(1)), once.counted(ahead(60))], [at(1000); 2]);
        assert_eq!([once.counted(ahead(61)), once.counted(at(1001))], [ahead(61), at(1001)]);
        assert!(!once.is_done(at(950), ahead(1)) && once.is_done(once.counted(ahead(2)), ahead(1)));
        assert!(day(1000).is_done(once.counted(ahead(2)), at(1001)) && day(900).is_done(at(1000), ahead(1)));
    }

    #[test]
    fn success_of_a_month_is_kept_for_longer_than_a_week() {
        let month = Duration::from_secs(32 * 24 * 3600);
        let mut past = Past { changed: at(10), ..with_success("a", at(1)) };
        past.jobs.get_mut("a").unwrap().period = month;
        past.drop_old_jobs(at(0) + month);
        assert_eq!(past.keeps_until(), at(1) + month);
        past.drop_old_jobs(at(1) + month);
        assert!(past.jobs.is_empty());
    }

    #[test]
    fn period_is_limited_to_more_than_a_year_unless_it_has_no_end() {
        let job = |period| Job { once_per: Some(OncePer { period, calendar: None }), ..Job::default() };
        let (past, ever) = (with_success("", at(100)), job(EVER));
        let job = job(EVER - Duration::from_secs(1));
        assert!(past.done_by(at(99) + PERIOD_MAX, &job).is_some());
        assert!(past.done_by(at(100) + PERIOD_MAX, &job).is_none());
        assert!(past.done_by(at(100) + 30 * PERIOD_MAX, &ever).is_some());
    }

    #[test]
    fn oldest_of_too_many_jobs_is_forgotten() {
        let mut past = Past::default();
        for number in (0..JOBS_MAX as u64 + 3).rev() {
            past.jobs.extend(with_success(&number.to_string(), at(1 + number / 2)).jobs);
        }
        past.drop_old_jobs(at(200));
        let forgotten = |number: u64| !past.jobs.contains_key(&number.to_string());
        assert_eq!(past.jobs.len(), JOBS_MAX);
        assert!((0..3).all(forgotten) && !forgotten(3), "0 and 1 are the oldest, and then 2 comes before 3");
    }

    #[test]
    fn success_is_not_forgotten_within_its_period_however_many_jobs_there_are() {
        let once_per = Some(OncePer { period: Duration::from_secs(100), calendar: None });
        let job = |name: &str| Job { name: name.to_owned(), is_named: true, once_per, ..Job::default() };
        let mut past = Past::default();
        for number in 0..JOBS_MAX {
            past.jobs.extend(with_success(&number.to_string(), at(1)).jobs);
        }
        past.jobs.values_mut().for_each(|job| job.period = Duration::from_secs(100));
        assert!(past.has_place_for(at(50), &job("7")) && !past.has_place_for(at(50), &job("new")));
        assert!(past.has_place_for(at(50), &Job { once_per: None, ..job("new") }));
        past.jobs.extend(with_success("new", at(50)).jobs);
        past.drop_old_jobs(at(50));
        assert!(past.jobs.len() == JOBS_MAX && !past.jobs.contains_key("new"), "only the new one is not bound");
        assert!(past.has_place_for(at(101), &job("new")), "the periods are over");
    }

    #[test]
    fn past_with_nothing_but_totals_goes_after_an_hour() {
        let mut past = Past { changed: at(10), ..Past::default() };
        assert_eq!(past.keeps_until(), at(10) + RETENTION_OF_TOTALS);
        past.ring = 3..4;
        assert_eq!(past.keeps_until(), at(10) + RETENTION);
        past = Past { changed: at(10), ..with_success("a", at(1)) };
        assert_eq!(past.keeps_until(), at(10) + RETENTION);
        past.drop_old_jobs(at(1) + RETENTION);
        assert_eq!(past.keeps_until(), at(10) + RETENTION_OF_TOTALS);
    }
}
