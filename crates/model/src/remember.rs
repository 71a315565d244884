//! Keeps the past of resources: what ends, is skipped or has been done.
//!
//! A past goes when its resource has neither holders nor waiters and [`Past::keeps_until`] is over.
//! From that instant on it counts as forgotten; `prune` removes its records later, a bounded
//! number with each operation.
//!
//! A storage without room lets the resources that were idle longest forget: their entries, streaks
//! and successes whose period is over, and the whole past if nothing else is left. What it still
//! has no room for is not added, except for a success, which is kept for as long as its period. A
//! success takes less room than its session gave back.

use std::time::Duration;

use super::past::{
    End, Ended, Ending, Entry, Event, HISTORY_MAX, Origin, Past, RETENTION, RETENTION_OF_TOTALS, Remembered, Spared,
    Streak, Superseded, Totals, WAITS_APART, WaitEnd, waits_max,
};
use super::records::{Phase, Records, Session};
use super::request::{self, Claim, Job, PERIOD_MAX, Process, Request, SessionId};
use super::resource::Resource;
use rlock_sys::clock::StoreTime;

/// Maximum number of pasts that one operation checks.
const CHECKED_MAX: usize = 2;
/// Maximum number of entries that one operation removes from a forgotten ring.
const PRUNED_MAX: u64 = 64;

/// Maximum number of resources that forget something at once, because there is no room.
const FORGOTTEN_MAX: usize = 8;

/// How a session leaves the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The session releases its grant, and may say how the command ended.
    Released(Option<End>),
    /// The lease or the kept hold is over.
    Expired,
    /// The process is dead. Its end is known if its guardian has noted it.
    Dead(Option<StoreTime>),
    /// An operator revokes the grant.
    Broken,
}

impl Leaving {
    /// When the hold of a session ends that leaves now. A lease ends at its end, which may be
    /// noticed later.
    fn ended(self, now: StoreTime, session: &Session) -> Ended {
        match self {
            Self::Expired => Ended::At(session.expiry.unwrap_or(now).min(now)),
            Self::Dead(None) => Ended::Noticed(now),
            Self::Dead(Some(end)) => Ended::At(end.max(session.since).min(now)),
            Self::Released(_) | Self::Broken => Ended::At(now),
        }
    }
}

/// A request that is not granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ungranted<'a> {
    pub(super) claims: &'a [Claim],
    pub(super) job: &'a Job,
    pub(super) process: &'a Process,
    pub(super) ancestors: &'a [SessionId],
    /// The instant of the request.
    pub(super) asked: StoreTime,
}

impl<'a> Ungranted<'a> {
    /// A request that was made at an instant.
    pub(super) fn of(request: &'a Request, asked: StoreTime) -> Self {
        let Request { claims, job, process, ancestors, .. } = request;
        Self { claims, job, process, ancestors, asked }
    }

    /// Its entry on a resource, which may report others since an instant, too.
    fn entry<R: Records>(
        &self,
        records: &R,
        name: &Resource,
        event: Event,
        [since, now]: [StoreTime; 2],
    ) -> Result<Entry, R::Error> {
        Ok(Entry {
            event,
            process: self.process.clone(),
            claims: self.claims.iter().filter(|claim| claim.resource == *name).cloned().collect(),
            asked: since,
            granted: None,
            ended: Ended::At(now),
            token: None,
            origin: Origin {
                job: self.job.name.clone(),
                is_named: self.job.is_named,
                is_nested: is_held_above(records, name, self.ancestors)?,
            },
            slots: Vec::new(),
            later: Vec::new(),
        })
    }
}

/// Whether one of these ancestors holds a resource.
fn is_held_above<R: Records>(records: &R, name: &Resource, ancestors: &[SessionId]) -> Result<bool, R::Error> {
    for ancestor in ancestors {
        let above = records.session(*ancestor)?.filter(Session::is_holder);
        if above.is_some_and(|above| above.resources().contains(&name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The past of a resource, unless it is forgotten.
pub(super) fn past<R: Records>(records: &R, now: StoreTime, name: &Resource) -> Result<Option<Past>, R::Error> {
    let Some(past) = records.past(name)? else { return Ok(None) };
    let is_forgotten = past.keeps_until() <= now && records.resource(name)?.is_none();
    Ok(Some(past).filter(|_| !is_forgotten))
}

/// Reads a past for an operation that uses the resource. A forgotten past is removed, because a
/// resource with holders and waiters forgets nothing.
pub(super) fn current<R: Records>(records: &mut R, now: StoreTime, name: &Resource) -> Result<Option<Past>, R::Error> {
    let Some(past) = records.past(name)? else { return Ok(None) };
    if past.keeps_until() > now || records.resource(name)?.is_some() {
        return Ok(Some(past));
    }
    forget(records, name)?;
    Ok(None)
}

/// Removes the past of a resource, unless a session uses the resource.
pub(super) fn forget<R: Records>(records: &mut R, name: &Resource) -> Result<(), R::Error> {
    let Some(mut past) = records.past(name)? else { return Ok(()) };
    if records.resource(name)?.is_none() {
        trim(records, name, &mut past, 0)?;
        records.remove_past(name, past.check_at)?;
    }
    Ok(())
}

/// A past that is about to change.
struct Change<'a> {
    name: &'a Resource,
    past: Past,
    /// Whether there is room for more.
    may_grow: bool,
    /// The instant by which the records find the past so far.
    known: Option<StoreTime>,
}

impl<'a> Change<'a> {
    fn begin<R: Records>(records: &mut R, now: StoreTime, name: &'a Resource) -> Result<Self, R::Error> {
        let past = current(records, now, name)?;
        let known = past.as_ref().map(|past| past.check_at);
        Ok(Self { name, past: past.unwrap_or_default(), may_grow: records.has_room()?, known })
    }

    fn finish<R: Records>(mut self, records: &mut R, now: StoreTime) -> Result<(), R::Error> {
        self.past.changed = now;
        self.past.drop_old_jobs(now);
        if self.known.is_none() {
            if !self.may_grow && !self.past.is_bound(now) {
                return Ok(());
            }
            self.past.check_at = self.past.keeps_until();
        }
        records.put_past(self.name, self.past, self.known)
    }

    /// Adds an entry to the ring, which keeps so many. Returns the number of the entry, if there is
    /// room for one.
    fn enter<R: Records>(&mut self, records: &mut R, history: u32, entry: Entry) -> Result<Option<u64>, R::Error> {
        if !self.may_grow {
            return Ok(None);
        }
        let number = self.past.ring.end;
        self.past.ring.end += 1;
        let keep = u64::from(history.min(HISTORY_MAX));
        trim(records, self.name, &mut self.past, keep)?;
        if keep == 0 {
            return Ok(None);
        }
        records.put_entry(self.name, number, entry)?;
        Ok(Some(number))
    }

    fn note_end<R: Records>(
        &mut self,
        records: &mut R,
        now: StoreTime,
        session: &Session,
        end: End,
        ended: Ended,
    ) -> Result<(), R::Error> {
        let job = &session.job;
        self.past.last = Some((end.ending, ended.latest()));
        self.past.totals.lost += u64::from(end.ending == Ending::Lost);
        self.past.totals.expired += u64::from(end.ending == Ending::Expired);
        if let Some(remember) = job.remember {
            self.past.bound = self.past.bound.max(now + remember.min(PERIOD_MAX));
        }
        if end.is_success {
            self.past.last_success = Some(now);
            self.note_success(now, session);
        }
        let mut entry = entry_of(self.name, session, end.ending, ended);
        entry.origin.is_nested = is_held_above(records, self.name, &session.ancestors)?;
        self.enter(records, job.history, entry).map(drop)
    }

    /// Notes the success of a job. Without room, only one that counts for others is new.
    fn note_success(&mut self, now: StoreTime, session: &Session) {
        let job = &session.job;
        let may_be_new = job.once_per.is_some() || job.is_named && self.may_grow;
        if !may_be_new && !self.past.jobs.contains_key(&job.name) {
            return;
        }
        let past = self.past.jobs.entry(job.name.clone()).or_default();
        past.ended = job.is_named.then_some(now).or(past.ended);
        if let Some(once) = job.once_per {
            let began = once.counted(session.since);
            (past.success, past.period, past.spared) = (Some(began), once.kept(), None);
            self.past.bound = self.past.bound.max(began + once.kept());
        }
    }

    /// Adds an entry, or replaces the one with this number if the ring still has it. Returns the
    /// number of the entry, if there is room for one.
    fn enter_again<R: Records>(
        &mut self,
        records: &mut R,
        history: u32,
        entry: Entry,
        number: Option<u64>,
    ) -> Result<Option<u64>, R::Error> {
        match number.filter(|number| self.past.ring.contains(number)) {
            Some(number) => records.put_entry(self.name, number, entry).map(|()| Some(number)),
            None => self.enter(records, history, entry),
        }
    }

    /// Enters a request that was not granted. Those of a job since the last run share an entry. If
    /// the ring has as many of them as it may have, the oldest entry is replaced. Returns whether
    /// anything has changed.
    fn enter_wait<R: Records>(
        &mut self,
        records: &mut R,
        now: StoreTime,
        request: &Ungranted<'_>,
        how: WaitEnd,
    ) -> Result<bool, R::Error> {
        let (max, mut known) = (waits_max(request.job.history), Vec::new());
        self.past.waits.retain(|number| self.past.ring.contains(number));
        for number in &self.past.waits {
            let Some(entry) = records.entry(self.name, *number)? else { continue };
            if let Event::Waited { count, sum, longest, .. } = entry.event {
                known.push((entry.ended.latest(), *number, (count, sum, longest), entry));
            }
        }
        if max == 0 {
            return Ok(false);
        }
        let last_run = self.past.last.map_or(StoreTime::default(), |(_, at)| at);
        let is_own = |entry: &Entry| entry.origin.job == request.job.name && entry.ended.latest() >= last_run;
        let wait = now - request.asked;
        let (number, (count, sum, longest), since) = match known.iter().find(|(.., entry)| is_own(entry)) {
            Some((last, ..)) if wait.is_zero() && now - *last < WAITS_APART => return Ok(false),
            Some((_, number, waits, entry)) => (Some(*number), *waits, entry.asked),
            None if known.len() < max => (None, Default::default(), request.asked),
            None => {
                let oldest = known.iter().map(|(last, number, ..)| (*last, *number)).min();
                (oldest.map(|(_, number)| number), Default::default(), request.asked)
            }
        };
        let (count, sum): (u32, Duration) = (count.saturating_add(1), sum + wait);
        let entry = request.entry(
            records,
            self.name,
            Event::Waited { how, count, sum, longest: wait.max(longest) },
            [since, now],
        )?;
        match number {
            Some(number) => records.put_entry(self.name, number, entry)?,
            None => {
                let number = self.enter(records, request.job.history, entry)?;
                self.past.waits.extend(number);
            }
        }
        Ok(true)
    }
}

/// The entry of an ended hold on a resource that no ancestor holds.
fn entry_of(name: &Resource, session: &Session, ending: Ending, ended: Ended) -> Entry {
    let own = || session.claims.iter().filter(|record| record.claim.resource == *name);
    Entry {
        event: Event::Ended(ending),
        process: session.process.clone(),
        claims: own().map(|record| record.claim.clone()).collect(),
        asked: session.asked,
        granted: Some(session.since),
        ended,
        token: own().map(|record| record.token).max(),
        origin: Origin { job: session.job.name.clone(), is_named: session.job.is_named, is_nested: false },
        slots: own().filter_map(|record| record.slot).collect(),
        later: Vec::new(),
    }
}

/// Counts an ended hold. Nothing is known of its length if its end is not known.
fn count(totals: &mut Totals, session: &Session, ended: Ended) {
    totals.ended += 1;
    totals.waited += session.since - session.asked;
    totals.held += ended.known().map_or(Duration::ZERO, |end| end - session.since);
}

/// Removes the oldest entries but so many.
fn trim<R: Records>(records: &mut R, name: &Resource, past: &mut Past, keep: u64) -> Result<(), R::Error> {
    while past.ring.end - past.ring.start > keep {
        records.remove_entry(name, past.ring.start)?;
        past.ring.start += 1;
    }
    Ok(())
}

/// What a session leaves behind: nothing, or the end of a hold, which may say how its run ended.
///
/// A grant that nobody has claimed leaves nothing behind: no command ran. Neither does the release
/// of a grant without an [`End`], but for the totals. What a wait leaves, [`is_busy`] and
/// [`has_left`] record.
fn end_of(session: &Session, leaving: Leaving) -> Option<Option<End>> {
    let known = |ending| Some(Some(End { ending, is_success: false }));
    match (session.phase, leaving) {
        (Phase::Waiting, _)
        | (Phase::Granted, Leaving::Released(None) | Leaving::Expired | Leaving::Dead(_) | Leaving::Broken) => None,
        // The release has recorded the run already.
        (Phase::Kept, _) if session.job.keep_for.is_none() => Some(None),
        (_, Leaving::Released(end)) => Some(end),
        (Phase::Kept, Leaving::Expired) => known(Ending::Kept),
        (_, Leaving::Expired | Leaving::Dead(_)) => known(Ending::Expired),
        (_, Leaving::Broken) => known(Ending::Broken),
    }
}

/// Adds the end of a hold that is over and that the table still has, because nobody has used its
/// resources since. Later the table records the same.
pub fn add_unrecorded(known: &mut Remembered, session: &Session, ended: Ended) {
    let leaving = match ended {
        Ended::At(_) if session.expiry.is_some() => Leaving::Expired,
        ended => Leaving::Dead(ended.known()),
    };
    let Some(end) = end_of(session, leaving) else { return };
    let Some(End { ending, .. }) = end else { return count(&mut known.past.totals, session, ended) };
    let entry = entry_of(&known.name, session, ending, ended);
    // The end may have been recorded since the hold was found.
    if known.entries.iter().any(|it| it.process == entry.process && it.token == entry.token) {
        return;
    }
    count(&mut known.past.totals, session, ended);
    known.entries.push(entry);
    let surplus = known.entries.len().saturating_sub(session.job.history.min(HISTORY_MAX) as usize);
    known.entries.drain(..surplus);
}

/// Records that a session leaves. It is still in the table.
pub(super) fn leaves<R: Records>(
    records: &mut R,
    now: StoreTime,
    session: &Session,
    leaving: Leaving,
) -> Result<(), R::Error> {
    let Some(end) = end_of(session, leaving) else { return Ok(()) };
    let ended = leaving.ended(now, session);
    make_room(records, now)?;
    for name in session.resources() {
        let mut change = Change::begin(records, now, name)?;
        count(&mut change.past.totals, session, ended);
        if let Some(end) = end {
            change.note_end(records, now, session, end, ended)?;
        }
        change.finish(records, now)?;
    }
    Ok(())
}

/// Records the end of a run whose hold stays.
pub(super) fn ran<R: Records>(records: &mut R, now: StoreTime, session: &Session, end: End) -> Result<(), R::Error> {
    make_room(records, now)?;
    for name in session.resources() {
        let mut change = Change::begin(records, now, name)?;
        change.note_end(records, now, session, end, Ended::At(now))?;
        change.finish(records, now)?;
    }
    Ok(())
}

/// Counts a request that was told to be busy, maybe because a newer one superseded it. Returns the
/// streak of its job on the first resource if the request counts as a skip.
pub(super) fn is_busy<R: Records>(
    records: &mut R,
    now: StoreTime,
    request: &Ungranted<'_>,
    how: WaitEnd,
) -> Result<Option<Streak>, R::Error> {
    let mut first = None;
    make_room(records, now)?;
    for name in request::resources(request.claims) {
        let mut change = Change::begin(records, now, name)?;
        change.past.totals.busy += 1;
        if !request.job.skips {
            change.enter_wait(records, now, request, how)?;
        } else if change.may_grow || change.known.is_some() {
            let streak = skip(&mut change, records, now, request)?;
            first.get_or_insert(streak);
        }
        change.finish(records, now)?;
    }
    Ok(first)
}

/// Enters a request that leaves the queue.
pub(super) fn has_left<R: Records>(records: &mut R, now: StoreTime, request: &Ungranted<'_>) -> Result<(), R::Error> {
    make_room(records, now)?;
    for name in request::resources(request.claims) {
        let mut change = Change::begin(records, now, name)?;
        if change.enter_wait(records, now, request, WaitEnd::Left)? {
            change.finish(records, now)?;
        }
    }
    Ok(())
}

/// Notes that a request supersedes the earlier waiters of its job. The request has no place in the
/// queue yet. A waiter that has left gave back more room than the note takes.
pub(super) fn supersedes<R: Records>(
    records: &mut R,
    now: StoreTime,
    request: &Request,
    has_ended_waiters: bool,
) -> Result<(), R::Error> {
    make_room(records, now)?;
    let before = records.last_seq()? + 1;
    for name in request::resources(&request.claims) {
        let mut change = Change::begin(records, now, name)?;
        change.may_grow |= has_ended_waiters;
        if change.may_grow || change.past.jobs.contains_key(&request.job.name) {
            let superseded = Superseded { before, at: now, by: request.process.clone() };
            change.past.jobs.entry(request.job.name.clone()).or_default().superseded = Some(superseded);
            change.finish(records, now)?;
        }
    }
    Ok(())
}

/// Counts a skip of a job. The skips in a row share an entry.
fn skip<R: Records>(
    change: &mut Change<'_>,
    records: &mut R,
    now: StoreTime,
    request: &Ungranted<'_>,
) -> Result<Streak, R::Error> {
    let Ungranted { job, process, .. } = request;
    let running = change.past.streak(now, &job.name);
    let (count, since, entered) = running.map_or((0, now, None), |streak| (streak.count, streak.since, streak.entry));
    let count = count.saturating_add(1);
    let entry = request.entry(records, change.name, Event::Skipped(count), [since, now])?;
    let entry = change.enter_again(records, job.history, entry, entered)?;
    let streak = Streak { count, since, last: now, command: process.command.clone(), entry };
    change.past.jobs.entry(job.name.clone()).or_default().streak = Some(streak.clone());
    Ok(streak)
}

/// Ends the streaks of the job of a session that is granted its request. Returns how the last hold
/// of the first resource ended.
pub(super) fn is_granted<R: Records>(
    records: &mut R,
    now: StoreTime,
    session: &Session,
) -> Result<Option<Ending>, R::Error> {
    let mut last = None;
    for (index, name) in session.resources().into_iter().enumerate() {
        let Some(past) = current(records, now, name)? else { continue };
        if index == 0 {
            last = past.last.map(|(ending, _)| ending);
        }
        end_streak(records, now, name, past, &session.job)?;
    }
    Ok(last)
}

/// Whether a request need not be granted, because a run has succeeded lately. Ends the streak of
/// the job in that case.
pub(super) fn is_done<R: Records>(
    records: &mut R,
    now: StoreTime,
    name: &Resource,
    job: &Job,
) -> Result<bool, R::Error> {
    if job.once_per.is_none() {
        return Ok(false);
    }
    let Some(mut past) = past(records, now, name)? else { return Ok(false) };
    let Some(by) = past.done_by(now, job).map(str::to_owned) else { return Ok(false) };
    let (known, asked) = (past.check_at, job.once_per.map_or(Duration::ZERO, |once| once.kept()));
    let longer = past.jobs.get_mut(&by).filter(|success| success.period < asked);
    let until = longer.and_then(|success| {
        success.period = asked;
        Some(success.success? + asked)
    });
    let is_changed = until.is_some();
    past.bound = past.bound.max(until.unwrap_or_default());
    if past.end_streak(&job.name) || is_changed {
        Change { name, known: Some(known), past, may_grow: false }.finish(records, now)?;
    }
    Ok(true)
}

/// Enters a request that was told that its run is done. Such requests share an entry until the next
/// success.
pub(super) fn is_spared<R: Records>(
    records: &mut R,
    now: StoreTime,
    name: &Resource,
    request: &Request,
) -> Result<(), R::Error> {
    make_room(records, now)?;
    let (job, mut change) = (&request.job, Change::begin(records, now, name)?);
    let Some(by) = change.past.done_by(now, job).map(str::to_owned) else { return Ok(()) };
    let known = change.past.jobs[&by].spared;
    if !change.may_grow && known.is_none() {
        return Ok(());
    }
    let (count, since) = known.map_or((1, now), |known| (known.count.saturating_add(1), known.since));
    let entry = Ungranted::of(request, now).entry(records, name, Event::Done(count), [since, now])?;
    let entry = change.enter_again(records, job.history, entry, known.and_then(|known| known.entry))?;
    if let Some(job) = change.past.jobs.get_mut(&by) {
        job.spared = Some(Spared { count, since, entry });
    }
    change.finish(records, now)
}

/// Whether the success of the run for which a request asks could not be kept.
pub(super) fn is_full<R: Records>(records: &R, now: StoreTime, name: &Resource, job: &Job) -> Result<bool, R::Error> {
    Ok(job.once_per.is_some() && past(records, now, name)?.is_some_and(|past| !past.has_place_for(now, job)))
}

fn end_streak<R: Records>(
    records: &mut R,
    now: StoreTime,
    name: &Resource,
    mut past: Past,
    job: &Job,
) -> Result<(), R::Error> {
    if !past.end_streak(&job.name) {
        return Ok(());
    }
    Change { name, known: Some(past.check_at), past, may_grow: false }.finish(records, now)
}

/// Removes records of forgotten pasts.
pub(super) fn prune<R: Records>(records: &mut R, now: StoreTime) -> Result<(), R::Error> {
    for _ in 0..CHECKED_MAX {
        let Some((_, name)) = records.first_to_check()?.filter(|(at, _)| *at <= now) else { return Ok(()) };
        let Some(mut past) = records.past(&name)? else { return Ok(()) };
        let known = past.check_at;
        if past.keeps_until() > now || records.resource(&name)?.is_some() {
            past.check_at = past.keeps_until().max(now + RETENTION_OF_TOTALS);
        } else {
            let left = (past.ring.end - past.ring.start).saturating_sub(PRUNED_MAX);
            trim(records, &name, &mut past, left)?;
            if past.ring.is_empty() {
                records.remove_past(&name, known)?;
                continue;
            }
        }
        records.put_past(&name, past, Some(known))?;
    }
    Ok(())
}

/// Lets idle resources forget if there is no room, before any past is read that is about to change.
fn make_room<R: Records>(records: &mut R, now: StoreTime) -> Result<(), R::Error> {
    if records.has_room()? { Ok(()) } else { records.forget_idle(now).map(drop) }
}

/// Lets the resources that were idle longest forget what they need not keep, until there is room.
/// Returns how many it has looked at; more may be left. One that has nothing to forget comes last
/// afterwards, so the next call looks at others.
pub fn forget_idle<R: Records>(records: &mut R, now: StoreTime) -> Result<usize, R::Error> {
    let mut looked_at = 0;
    for _ in 0..FORGOTTEN_MAX {
        if records.has_room()? {
            break;
        }
        let Some((known, name)) = records.first_to_check()? else { break };
        let Some(mut past) = records.past(&name)? else { break };
        looked_at += 1;
        if past.keeps_until() > known {
            // It was used since, so others were idle for longer.
            past.check_at = past.keeps_until();
            records.put_past(&name, past, Some(known))?;
            continue;
        }
        let left = (past.ring.end - past.ring.start).saturating_sub(PRUNED_MAX);
        trim(records, &name, &mut past, left)?;
        past.jobs.retain(|_, job| job.is_bound(now));
        if left > 0 {
            records.put_past(&name, past, Some(known))?;
        } else if past.jobs.is_empty() && records.resource(&name)?.is_none() {
            records.remove_past(&name, known)?;
        } else {
            // It has nothing more to forget for now.
            past.check_at = now + RETENTION;
            records.put_past(&name, past, Some(known))?;
        }
    }
    Ok(looked_at)
}
