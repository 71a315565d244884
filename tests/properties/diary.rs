//! What the oracle remembers of a resource. The ring is a plain list, and a job a plain entry of a
//! map.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_model::past::{End, Ended, Ending, Entry, Event, JobPast, Origin, Past, Superseded, Totals, WaitEnd};
use rlock_model::request::{Claim, Job, OncePer, Process, Request};
use rlock_model::resource::Resource;
use rlock_sys::clock::StoreTime;

const HOUR: Duration = Duration::from_secs(3_600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
const PERIOD: Duration = Duration::from_secs(400 * 24 * 3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// The skips of a job in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skips {
    pub(crate) count: u32,
    pub(crate) since: StoreTime,
    pub(crate) last: StoreTime,
    pub(crate) command: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Diary {
    pub(crate) last: Option<(Ending, StoreTime)>,
    last_success: Option<StoreTime>,
    /// The beginning of the last success of each job, and the longest period asked for it.
    successes: BTreeMap<String, (StoreTime, Duration)>,
    skips: BTreeMap<String, Skips>,
    /// The requests for which each success has counted, and the first of them.
    spared: BTreeMap<String, (u32, StoreTime)>,
    /// The end of the last success of each job with a name of its own.
    ends: BTreeMap<String, StoreTime>,
    /// The last request of each job that superseded others: the number of the next in the queue,
    /// its instant and its process.
    superseded: BTreeMap<String, (u64, StoreTime, Process)>,
    totals: Totals,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Report {
    Skips(String),
    Spared(String),
}

/// The diary of a resource, and what a comparison ignores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    diary: Diary,
    written: StoreTime,
    /// The instant until which it is kept at least.
    bound: StoreTime,
    /// For each entry, the job whose running streak or spared requests it reports.
    reports: Vec<Option<Report>>,
}

fn origin(job: &Job, is_nested: bool) -> Origin {
    Origin { job: job.name.clone(), is_named: job.is_named, is_nested }
}

/// A request that ends without a grant.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) request: &'a Request,
    /// Whether an ancestor holds the resource.
    pub(crate) is_nested: bool,
    pub(crate) how: WaitEnd,
    pub(crate) asked: StoreTime,
}

impl Wait<'_> {
    /// The entry of requests on a resource of which this is the last.
    fn entry(&self, of: &Resource, event: Event, since: StoreTime, now: StoreTime) -> Entry {
        let claims: &[Claim] = &self.request.claims;
        Entry {
            event,
            process: self.request.process.clone(),
            claims: claims.iter().filter(|claim| claim.resource == *of).cloned().collect(),
            asked: since,
            granted: None,
            ended: Ended::At(now),
            token: None,
            origin: origin(&self.request.job, self.is_nested),
            slots: Vec::new(),
            later: Vec::new(),
        }
    }
}

/// An ended hold on a resource.
pub(crate) struct Hold<'a> {
    pub(crate) is_nested: bool,
    pub(crate) job: &'a Job,
    pub(crate) process: &'a Process,
    pub(crate) claims: Vec<Claim>,
    pub(crate) slots: Vec<u32>,
    pub(crate) token: Option<u64>,
    pub(crate) asked: StoreTime,
    pub(crate) since: StoreTime,
}

impl Kept {
    /// Forgets what is too old. `is_idle` says that nobody holds the resource or waits for it.
    pub(crate) fn at(&mut self, now: StoreTime, is_idle: bool) -> &mut Self {
        let diary = &self.diary;
        let is_full = diary.last_success.is_some()
            || !diary.successes.is_empty()
            || !diary.skips.is_empty()
            || !diary.ends.is_empty()
            || !diary.superseded.is_empty()
            || !diary.entries.is_empty();
        let is_bound = now < self.bound;
        if is_idle && !is_bound && self.written + if is_full { WEEK } else { HOUR } <= now {
            *self = Self::default();
        }
        self
    }

    pub(crate) fn diary(&self) -> &Diary {
        &self.diary
    }

    fn write(&mut self, now: StoreTime) -> &mut Diary {
        self.written = now;
        &mut self.diary
    }

    /// Drops the jobs of which a change finds all too old.
    fn clear_up(&mut self, now: StoreTime) {
        let Diary { successes, skips, spared, ends, superseded, .. } = &mut self.diary;
        let old = |end: Option<StoreTime>| end.is_none_or(|end| end <= now);
        let success = |name: &String| successes.get(name).map(|(began, period)| *began + WEEK.max(*period));
        let skip = |name: &String| skips.get(name).map(|skips| skips.last + WEEK);
        let end = |name: &String| ends.get(name).map(|end| self.bound.max(*end + WEEK));
        let newest = |name: &String| superseded.get(name).map(|(_, at, _)| *at + WEEK);
        let names = successes.keys().chain(skips.keys()).chain(ends.keys()).chain(superseded.keys());
        let is_old = |name: &&String| old(success(name)) && old(skip(name)) && old(end(name)) && old(newest(name));
        let gone: Vec<_> = names.filter(is_old).cloned().collect();
        successes.retain(|name, _| !gone.contains(name));
        spared.retain(|name, _| !gone.contains(name));
        ends.retain(|name, _| !gone.contains(name));
        skips.retain(|name, _| !gone.contains(name));
        superseded.retain(|name, _| !gone.contains(name));
    }

    /// A request that comes next in the queue supersedes those of its job that came before.
    pub(crate) fn supersede(&mut self, now: StoreTime, job: &Job, before: u64, process: &Process) {
        self.write(now).superseded.insert(job.name.clone(), (before, now, process.clone()));
        self.clear_up(now);
    }

    /// The process whose request has superseded that of a job with a number in the queue.
    pub(crate) fn superseded(&self, job: &Job, number: u64) -> Option<Process> {
        let (before, _, by) = self.diary.superseded.get(&job.name)?;
        (number < *before).then(|| by.clone())
    }

    fn enter(&mut self, history: u32, entry: Entry, report: Option<Report>) {
        self.diary.entries.push(entry);
        self.reports.push(report);
        let excess = self.reports.len().saturating_sub(history as usize);
        self.diary.entries.drain(..excess);
        self.reports.drain(..excess);
    }

    /// A hold is over. The change counts it and notes its end, before anything old is dropped.
    pub(crate) fn leave(&mut self, now: StoreTime, hold: &Hold<'_>, end: Option<End>, ended: Ended) {
        let totals = &mut self.write(now).totals;
        totals.ended += 1;
        totals.waited += hold.since - hold.asked;
        if let Ended::At(end) = ended {
            totals.held += end - hold.since;
        }
        match end {
            Some(end) => self.end(now, hold, end, ended),
            None => self.clear_up(now),
        }
    }

    pub(crate) fn end(&mut self, now: StoreTime, hold: &Hold<'_>, end: End, ended: Ended) {
        let diary = self.write(now);
        let (Ended::At(latest) | Ended::Noticed(latest)) = ended;
        diary.last = Some((end.ending, latest));
        diary.totals.lost += u64::from(end.ending == Ending::Lost);
        diary.totals.expired += u64::from(end.ending == Ending::Expired);
        if end.is_success {
            diary.last_success = Some(now);
            if hold.job.is_named {
                diary.ends.insert(hold.job.name.clone(), now);
            }
            if let Some(once) = hold.job.once_per {
                diary.spared.remove(&hold.job.name);
                let (began, period) = (counted(once, hold.since), once.period.min(PERIOD));
                diary.successes.insert(hold.job.name.clone(), (began, period));
                self.bound = self.bound.max(began + period);
            }
        }
        if let Some(remember) = hold.job.remember {
            self.bound = self.bound.max(now + remember.min(PERIOD));
        }
        let entry = Entry {
            event: Event::Ended(end.ending),
            process: hold.process.clone(),
            claims: hold.claims.clone(),
            asked: hold.asked,
            granted: Some(hold.since),
            ended,
            token: hold.token,
            origin: origin(hold.job, hold.is_nested),
            slots: hold.slots.clone(),
            later: Vec::new(),
        };
        self.enter(hold.job.history, entry, None);
        self.clear_up(now);
    }

    /// A request of an instant is busy on a resource, or superseded.
    pub(crate) fn busy(&mut self, now: StoreTime, of: &Resource, wait: &Wait<'_>) -> Option<Skips> {
        let (job, request) = (&wait.request.job, wait.request);
        self.write(now).totals.busy += 1;
        let known = self.diary.skips.get(&job.name).filter(|skips| now < skips.last + WEEK).cloned();
        let skips = job.skips.then(|| Skips {
            count: known.as_ref().map_or(1, |skips| skips.count + 1),
            since: known.as_ref().map_or(now, |skips| skips.since),
            last: now,
            command: request.process.command.clone(),
        });
        if let Some(skips) = &skips {
            let entry = wait.entry(of, Event::Skipped(skips.count), skips.since, now);
            self.report(job.history, entry, Report::Skips(job.name.clone()), known.is_some());
            self.diary.skips.insert(job.name.clone(), skips.clone());
        } else {
            self.wait(now, of, wait);
        }
        self.clear_up(now);
        skips
    }

    /// A request of an instant ends without a grant, and is no skip.
    pub(crate) fn wait(&mut self, now: StoreTime, of: &Resource, wait: &Wait<'_>) {
        let Wait { request, how, asked, .. } = *wait;
        let max = (request.job.history as usize / 4).min(8);
        let of_waits = |(at, entry): (usize, &Entry)| match entry {
            Entry {
                event: Event::Waited { count, sum, longest, .. }, ended: Ended::At(end), asked, origin, ..
            } => Some((*end, at, origin.job.clone(), (*count, *sum, *longest), *asked)),
            _ => None,
        };
        let known: Vec<_> = self.diary.entries.iter().enumerate().filter_map(of_waits).collect();
        let is_of_now = |end: &StoreTime| self.diary.last.is_none_or(|(_, last_run)| last_run <= *end);
        let own = known.iter().find(|(end, _, job, ..)| *job == request.job.name && is_of_now(end));
        let is_again = own.is_some_and(|(end, ..)| asked == now && now < *end + Duration::from_secs(1));
        if max == 0 || is_again {
            return;
        }
        let (at, (count, sum, longest), since) = match own {
            Some((_, at, _, waits, since)) => (Some(*at), *waits, *since),
            None => {
                let oldest = known.iter().min().filter(|_| known.len() >= max);
                (oldest.map(|(_, at, ..)| *at), (0, Duration::ZERO, Duration::ZERO), asked)
            }
        };
        let event =
            Event::Waited { how, count: count + 1, sum: sum + (now - asked), longest: longest.max(now - asked) };
        let entry = wait.entry(of, event, since, now);
        match at {
            Some(at) => self.diary.entries[at] = entry,
            None => self.enter(request.job.history, entry, None),
        }
        self.write(now);
        self.clear_up(now);
    }

    /// Enters requests that were not granted, in place of an earlier report if they go on.
    fn report(&mut self, history: u32, entry: Entry, report: Report, goes_on: bool) {
        let earlier = self.reports.iter().position(|known| known.as_ref() == Some(&report));
        match earlier.filter(|_| goes_on) {
            Some(at) => self.diary.entries[at] = entry,
            None => {
                self.forget_report(&report);
                self.enter(history, entry, Some(report));
            }
        }
    }

    fn forget_report(&mut self, of: &Report) {
        self.reports.iter_mut().for_each(|report| drop(report.take_if(|report| report == of)));
    }

    pub(crate) fn end_skips(&mut self, now: StoreTime, job: &str) {
        if self.diary.skips.remove(job).is_some() {
            self.forget_report(&Report::Skips(job.to_owned()));
            self.written = now;
            self.clear_up(now);
        }
    }

    /// The job whose success is the run of a request. The success then lasts for as long as the
    /// request asks.
    pub(crate) fn done_by(&mut self, now: StoreTime, job: &Job) -> Option<String> {
        let once = job.once_per?;
        let counts = |name: &String| !job.is_named || *name == job.name;
        let ran = self.diary.successes.iter().filter(|(name, _)| counts(name));
        let last = ran.max_by_key(|(name, (began, _))| (*began, (*name).clone()));
        let (last, _) = last.filter(|(_, (began, _))| is_recent(once, *began, now))?;
        let (last, period) = (last.clone(), once.period.min(PERIOD));
        if self.diary.successes[&last].1 < period {
            self.write(now).successes.entry(last.clone()).and_modify(|success| success.1 = period);
            self.bound = self.bound.max(self.diary.successes[&last].0 + period);
            self.clear_up(now);
        }
        Some(last)
    }

    /// A request is told that its run is done, because of a success of the job `by`.
    pub(crate) fn spare(&mut self, now: StoreTime, wait: &Wait<'_>, by: String) {
        let (job, request) = (&wait.request.job, wait.request);
        let known = self.diary.spared.get(&by).copied();
        let (count, since) = known.map_or((1, now), |(count, since)| (count + 1, since));
        let entry = wait.entry(&request.claims[0].resource, Event::Done(count), since, now);
        self.report(job.history, entry, Report::Spared(by.clone()), known.is_some());
        self.write(now).spared.insert(by, (count, since));
        self.clear_up(now);
    }
}

/// The instant that counts for a run. A machine whose clock is at most a minute ahead may be in the
/// next part of the calendar already.
fn counted(once: OncePer, at: StoreTime) -> StoreTime {
    let start = once.calendar.map_or(at, |calendar| calendar.start);
    if start > at && start <= at + MINUTE { start } else { at }
}

/// Whether a run that began at an instant makes another one at `now` unnecessary.
fn is_recent(once: OncePer, began: StoreTime, now: StoreTime) -> bool {
    let Some(calendar) = once.calendar else { return now - began < once.period.min(PERIOD) };
    let micros = |at: StoreTime| i128::from(at.as_micros());
    let (start, next) = (micros(calendar.start), micros(calendar.next));
    let number = |at: StoreTime| (micros(at) - start).div_euclid(next - start);
    number(began) >= number(counted(once, now))
}

impl Diary {
    /// The facts without the skips that no further skip would continue, which may stay or go.
    pub(crate) fn current(mut self, now: StoreTime) -> Self {
        self.skips.retain(|_, skips| now < skips.last + WEEK);
        self
    }

    /// The same facts from the table.
    pub(crate) fn of(past: &Past, entries: Vec<Entry>) -> Self {
        let successes = past.jobs.iter().filter_map(|(name, job)| Some((name.clone(), (job.success?, job.period))));
        let skips = past.jobs.iter().filter_map(|(name, job)| {
            let streak = job.streak.clone()?;
            let skips = Skips { count: streak.count, since: streak.since, last: streak.last, command: streak.command };
            Some((name.clone(), skips))
        });
        let spared = |(name, job): (&String, &JobPast)| job.spared.map(|it| (name.clone(), (it.count, it.since)));
        let ends = past.jobs.iter().filter_map(|(name, job)| Some((name.clone(), job.ended?)));
        let superseded = |(name, job): (&String, &JobPast)| {
            let Superseded { before, at, by } = job.superseded.clone()?;
            Some((name.clone(), (before, at, by)))
        };
        Self {
            last: past.last,
            last_success: past.last_success,
            successes: successes.collect(),
            skips: skips.collect(),
            spared: past.jobs.iter().filter_map(spared).collect(),
            ends: ends.collect(),
            superseded: past.jobs.iter().filter_map(superseded).collect(),
            totals: past.totals,
            entries,
        }
    }
}
