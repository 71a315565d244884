//! Compares two listings and tells what happened in between, with the help of the history.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::escaped;
use super::listing::command;
use super::tree::claim;
use crate::messages;
use rlock_model::op::ResourceListing;
use rlock_model::past::{self, Ending, Entry, Remembered};
use rlock_model::records::Revocation;
use rlock_model::request::{self, Claim, Process, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::Inspection;
use rlock_sys::clock::StoreTime;

/// What is known at one instant. The pasts are read after the inspection.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The holders and waiters, and the store's time.
    pub inspection: Inspection,
    /// The history of each resource.
    pub pasts: Vec<Remembered>,
    /// The tokens of holds whose ends were told before the history knew them, as of a kept hold or
    /// of a dead process.
    pub told: Vec<(Resource, u64)>,
    /// For each resource, how many more ended holds the store had counted than were told. Below 0
    /// if they were told before the store counted them.
    untold: BTreeMap<Resource, i64>,
}

impl Seen {
    /// What a look has found. The changes since an earlier look are not told yet.
    pub fn new(inspection: Inspection, pasts: Vec<Remembered>) -> Self {
        Self { inspection, pasts, told: Vec::new(), untold: BTreeMap::new() }
    }
}

/// Maximum number of [`Seen::told`]. If a store keeps no history, none of them is ever met again.
const TOLD_MAX: usize = 1000;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The request joined the queue.
    Queued,
    /// The request was granted.
    Granted,
    /// The grant, or the place in the queue, was released.
    Released,
    /// An operator demands that the holder gives the grant back.
    Revoked,
    /// The grant was broken, or the holder lost it.
    Lost,
    /// The lease ended, or the process died, without a release.
    Expired,
    /// The request was told that the resource is busy.
    Busy,
    /// So many requests have come and gone, and nothing else is known of them.
    Missed(u64),
}

impl What {
    /// The word for the change in lines and in JSON.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Revoked => "revoked",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Busy => "busy",
            Self::Missed(_) => "missed",
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What has happened.
    pub what: What,
    /// When, by the store's clock.
    pub at: StoreTime,
    /// The resource whose holders or waiters have changed.
    pub resource: Resource,
    /// The request, unless only its number is known.
    pub request: Option<Request>,
    /// How the command ended.
    pub ending: Option<Ending>,
    /// The process that has revoked the grant.
    pub by: Option<Process>,
}

/// A request as a listing or the history shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The session, if a listing has shown it. The history does not know it.
    pub session: Option<SessionId>,
    /// The claims on the resource, each with its number of slots.
    pub claims: Vec<(Claim, usize)>,
    /// The process that made the request.
    pub process: Process,
    /// The token of the grant; `None` for a request that was not granted.
    pub token: Option<u64>,
}

impl Change {
    /// The change as a line for people.
    pub fn line(&self) -> String {
        let Self { what, at, resource, request, ending, by } = self;
        let mut text = format!("{} {} '{resource}'", messages::time(*at), what.as_str());
        if let Some(Request { claims, process, .. }) = request {
            let claims = claims.iter().map(|(its, count)| claim(its.mode, its.slots, *count, &its.span));
            let claims: Vec<_> = claims.collect();
            let Process { user, host, pid, command: words, .. } = process;
            let who = format!("{}{user}@{host}, pid {pid}", messages::owner_and_reason(process));
            text.push_str(&format!(" {}: {who}, {}", claims.join(", "), command(words)));
        }
        if let What::Missed(count) = what {
            text.push_str(&format!(": {count} {}", if *count == 1 { "request" } else { "requests" }));
        }
        if let Some(ending) = ending.map(|ending| ending.to_string()).filter(|ending| ending != what.as_str()) {
            text.push_str(&format!("; {ending}"));
        }
        if let Some(by) = by {
            text.push_str(&format!("; by {}", messages::process(by)));
        }
        escaped(&text)
    }
}

/// The changes between two instants, in order of time. Notes in `after` what the next comparison
/// has to know.
pub fn changes(before: &Seen, after: &mut Seen) -> Vec<Change> {
    let of = |seen: &Seen| {
        let listed = seen.inspection.resources.iter().map(|listing| listing.name.clone());
        listed.chain(seen.pasts.iter().map(|past| past.name.clone())).collect::<BTreeSet<_>>()
    };
    let names: BTreeSet<_> = of(before).into_iter().chain(of(after)).collect();
    let mut told = before.told.clone();
    let (mut found, mut untold) = (Vec::new(), BTreeMap::new());
    for name in &names {
        let (changes, left) = Comparison::of(name, before, after).changes(&mut told);
        found.extend(changes);
        untold.extend((left != 0).then(|| (name.clone(), left)));
    }
    after.untold = untold;
    told.drain(..told.len().saturating_sub(TOLD_MAX));
    after.told = told;
    // A grant follows the end that made room for it.
    found.sort_by_key(|change| (change.at, matches!(change.what, What::Queued | What::Granted)));
    found
}

/// A session of a listing.
struct Member {
    request: Request,
    is_held: bool,
    is_kept: bool,
    since: StoreTime,
    expiry: Option<StoreTime>,
    revoked: Option<Revocation>,
}

/// What is known of one resource at two instants.
struct Comparison<'s> {
    name: &'s Resource,
    now: StoreTime,
    before: BTreeMap<SessionId, Member>,
    after: BTreeMap<SessionId, Member>,
    /// The entries of the history, and from which index on they are new.
    entries: &'s [Entry],
    new_from: usize,
    /// The numbers of holds whose ends were counted, and of requests that were told to be busy.
    /// Each counts down with what is told.
    ended: u64,
    busy: u64,
    /// See [`Seen::untold`]. Counts down with each end that is told.
    untold: i64,
}

impl<'s> Comparison<'s> {
    fn of(name: &'s Resource, before: &'s Seen, after: &'s Seen) -> Self {
        let listing = |seen: &'s Seen| seen.inspection.resources.iter().find(|listing| listing.name == *name);
        let past = |seen: &'s Seen| seen.pasts.iter().find(|past| past.name == *name);
        let (old, new) = (past(before), past(after));
        let entries = new.map_or(&[][..], |new| &new.entries);
        let known_to = old.map_or(0, |old| old.past.ring.end);
        let count = new.map_or(0, |new| new.past.ring.end.checked_sub(known_to).unwrap_or(new.past.ring.end));
        let new_from = entries.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        let totals = |past: Option<&Remembered>| past.map_or_else(past::Totals::default, |past| past.past.totals);
        let (old, new) = (totals(old), totals(new));
        let ended = new.ended.saturating_sub(old.ended);
        let untold = before.untold.get(name).copied().unwrap_or_default();
        Self {
            name,
            now: after.inspection.now,
            before: listing(before).map(|listing| members(listing, before.inspection.now)).unwrap_or_default(),
            after: listing(after).map(|listing| members(listing, after.inspection.now)).unwrap_or_default(),
            entries,
            new_from,
            ended,
            busy: new.busy.saturating_sub(old.busy),
            untold: untold.saturating_add_unsigned(ended),
        }
    }

    /// The changes, and what is [untold](Seen::untold) after them.
    fn changes(mut self, told_early: &mut Vec<(Resource, u64)>) -> (Vec<Change>, i64) {
        let mut changes = Vec::new();
        let carried = self.untold.saturating_sub_unsigned(self.ended);
        // A release may have been counted while its hold was still listed.
        self.ended = self.ended.saturating_add(carried.max(0).unsigned_abs());
        for (id, member) in &self.after {
            let what = match (self.before.get(id).map(|before| before.is_held), member.is_held) {
                (None, false) => What::Queued,
                (None | Some(false), true) => What::Granted,
                _ => continue,
            };
            changes.push(self.change(what, member.since, Some(member.request.clone()), None));
        }
        for (id, member) in &self.after {
            let is_known = self.before.get(id).is_some_and(|before| before.revoked.is_some());
            if let Some(Revocation { at, by }) = member.revoked.as_ref().filter(|_| !is_known) {
                let change = self.change(What::Revoked, *at, Some(member.request.clone()), None);
                changes.push(Change { by: Some(by.clone()), ..change });
            }
        }
        let mut told = BTreeSet::new();
        let mut left = 0;
        for (id, member) in std::mem::take(&mut self.before) {
            if !self.after.contains_key(&id) {
                left += i64::from(member.is_held);
                self.gone(&member, &mut told, told_early, &mut changes);
            }
        }
        let is_listed = |entry: &Entry| {
            let is_it = |member: &Member| {
                member.request.process == entry.process && (!member.is_held || member.request.token == entry.token)
            };
            self.after.values().any(is_it)
        };
        for (index, entry) in self.entries.iter().enumerate().skip(self.new_from) {
            // An entry whose hold is still listed is told when the hold is gone.
            let early = told_early.iter().position(|(name, token)| name == self.name && entry.token == Some(*token));
            if let Some(early) = early {
                told_early.swap_remove(early);
            } else if !told.contains(&index) && !is_listed(entry) {
                self.untold -= i64::from(matches!(entry.event, past::Event::Ended(_)));
                self.entry(entry, None, true, &mut changes);
                if let past::Event::Skipped(count) = entry.event {
                    self.busy = self.busy.saturating_sub(count.into());
                }
            }
        }
        let busy = self.busy.min(BUSY_MAX);
        for _ in 0..busy {
            changes.push(self.change(What::Busy, self.now, None, None));
        }
        // A holder of this listing may have ended before the history was read. The next comparison
        // shows whether it has left.
        let holders = self.after.values().filter(|member| member.is_held).count() as i64;
        let ends = (self.untold - holders).max(carried - left).min(self.untold).max(0);
        let early = told_early.iter().filter(|(name, _)| name == self.name).count() as i64;
        let missed = ends.unsigned_abs() + (self.busy - busy);
        if missed > 0 {
            changes.push(self.change(What::Missed(missed), self.now, None, None));
        }
        (changes, (self.untold - ends).max(-early))
    }

    /// Tells how a session has left.
    fn gone(
        &mut self,
        member: &Member,
        told: &mut BTreeSet<usize>,
        told_early: &mut Vec<(Resource, u64)>,
        changes: &mut Vec<Change>,
    ) {
        let is_its_own = |entry: &Entry| match entry.granted {
            _ if entry.process != member.request.process => false,
            None => false,
            Some(_) if member.is_held => entry.token == member.request.token,
            Some(granted) => granted >= member.since,
        };
        if let Some(index) = self.entries.iter().rposition(is_its_own) {
            told.insert(index);
            self.untold -= 1;
            return self.entry(&self.entries[index], member.request.session, !member.is_held, changes);
        }
        told_early.extend(member.request.token.map(|token| (self.name.clone(), token)));
        let over = member.expiry.filter(|expiry| *expiry <= self.now);
        let (what, at) = match (member.is_held, over) {
            (true, Some(expiry)) if member.is_kept => (What::Released, expiry),
            (true, Some(expiry)) => (What::Expired, expiry),
            // Each release is counted, even if no history is kept.
            (true, None) if self.ended == 0 => (What::Expired, self.now),
            (false, _) if self.busy > 0 => {
                self.busy -= 1;
                (What::Busy, self.now)
            }
            _ => (What::Released, self.now),
        };
        self.ended -= u64::from(member.is_held && self.ended > 0);
        self.untold -= i64::from(member.is_held);
        changes.push(self.change(what, at, Some(member.request.clone()), None));
    }

    /// Tells what an entry of the history says. `with_grant` tells of its grant as well.
    fn entry(&self, entry: &Entry, session: Option<SessionId>, with_grant: bool, changes: &mut Vec<Change>) {
        let claims = request::counted(&entry.claims).map(|(claim, count)| (claim.clone(), count)).collect();
        let request = Request { session, claims, process: entry.process.clone(), token: entry.token };
        let (what, ending) = match entry.event {
            past::Event::Skipped(_) => (What::Busy, None),
            // The listings and the totals tell of waiters.
            past::Event::Done(_) | past::Event::Waited { .. } => return,
            past::Event::Ended(ending) => (after(ending), Some(ending)),
        };
        if let Some(granted) = entry.granted.filter(|_| with_grant) {
            changes.push(self.change(What::Granted, granted, Some(request.clone()), None));
        }
        changes.push(self.change(what, entry.ended.latest(), Some(request), ending));
    }

    fn change(&self, what: What, at: StoreTime, request: Option<Request>, ending: Option<Ending>) -> Change {
        Change { what, at, resource: self.name.clone(), request, ending, by: None }
    }
}

/// Maximum number of requests of which only the number is known, in one comparison.
const BUSY_MAX: u64 = 1000;

fn after(ending: Ending) -> What {
    match ending {
        Ending::Lost | Ending::Broken => What::Lost,
        Ending::Expired => What::Expired,
        Ending::Exit(_) | Ending::Signal(_) | Ending::Timeout | Ending::Kept | Ending::Ready => What::Released,
    }
}

/// The sessions of a listing. A server lists a hold until somebody meets it after its end.
fn members(listing: &ResourceListing, now: StoreTime) -> BTreeMap<SessionId, Member> {
    let mut members: BTreeMap<SessionId, Member> = BTreeMap::new();
    let mut add = |session, claim, process: &Process, since, token: Option<u64>, expiry, is_kept| {
        let member = members.entry(session).or_insert_with(|| Member {
            request: Request { session: Some(session), claims: Vec::new(), process: process.clone(), token },
            is_held: token.is_some(),
            is_kept,
            since,
            expiry,
            revoked: None,
        });
        member.request.claims.push(claim);
        member.request.token = member.request.token.max(token);
    };
    let claim = |mode, span: &Span, slots| Claim { resource: listing.name.clone(), mode, span: span.clone(), slots };
    for it in listing.holders.iter().filter(|it| !it.is_over(now)) {
        let claim = claim(it.mode, &it.span, it.slots);
        add(it.session, (claim, it.count), &it.process, it.since, Some(it.token), it.expiry, it.kept);
    }
    for it in &listing.waiters {
        let claim = claim(it.mode, &it.span, it.slots);
        add(it.session, (claim, it.count), &it.process, it.since, None, None, false);
    }
    for it in &listing.holders {
        if let Some(member) = members.get_mut(&it.session) {
            member.revoked = it.revoked.clone();
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{NOW, ago, holder, inspection, resource, waiter};
    use super::{Seen, What, changes};
    use rlock_model::mode::Mode;
    use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
    use rlock_model::past::{Ended, Ending, Entry, Event, Origin, Past, Remembered};
    use rlock_model::request::{Claim, Process};
    use rlock_model::resource::Resource;
    use rlock_model::span::Span;
    use rlock_sys::clock::StoreTime;

    fn name() -> Resource {
        Resource::new("k").expect("a name")
    }

    fn seen(holders: Vec<HolderListing>, waiters: Vec<WaiterListing>, entries: &[Entry]) -> Seen {
        let mut past = Past { ring: 0..entries.len() as u64, ..Past::default() };
        let ended = |entry: &&Entry| matches!(entry.event, Event::Ended(_));
        past.totals.ended = entries.iter().filter(ended).count() as u64;
        Seen::new(
            inspection(&[resource("k", holders, waiters)]),
            vec![Remembered { name: name(), past, entries: entries.to_vec() }],
        )
    }

    fn with_busy(mut seen: Seen, busy: u64) -> Seen {
        seen.pasts[0].past.totals.busy = busy;
        seen
    }

    fn entry(process: &Process, token: Option<u64>, event: Event) -> Entry {
        let claims = vec![Claim { resource: name(), mode: Mode::Write, span: Span::Whole, slots: None }];
        let granted = token.map(|_| ago(3));
        let (ended, later) = (Ended::At(ago(2)), Vec::new());
        Entry {
            event,
            process: process.clone(),
            claims,
            asked: ago(9),
            granted,
            ended,
            token,
            origin: Origin::default(),
            later,
        }
    }

    fn told(before: &Seen, after: &Seen) -> Vec<(What, u64, Option<u32>)> {
        let seconds = |at: StoreTime| (NOW.as_micros() - at.as_micros()) / 1_000_000;
        let pid = |change: &super::Change| change.request.as_ref().map(|request| request.process.pid);
        changes(before, &mut after.clone())
            .iter()
            .map(|change| (change.what, seconds(change.at), pid(change)))
            .collect()
    }

    #[test]
    fn listings_that_are_equal_tell_nothing() {
        let same = || seen(vec![holder(1)], vec![waiter(2, 1)], &[]);
        assert_eq!(told(&same(), &same()), []);
        let nothing = Seen::new(inspection(&[]), vec![]);
        assert_eq!(told(&nothing, &nothing), []);
    }

    #[test]
    fn new_sessions_are_queued_or_granted() {
        let nothing = Seen::new(inspection(&[]), vec![]);
        let after = seen(vec![holder(1)], vec![waiter(2, 1)], &[]);
        assert_eq!(told(&nothing, &after), [(What::Granted, 192, Some(4001)), (What::Queued, 20, Some(5002))]);
        let waits = seen(vec![holder(1)], vec![WaiterListing { position: 2, ..waiter(2, 2) }], &[]);
        assert_eq!(told(&waits, &after), [], "a better place in the queue is no change");
    }

    #[test]
    fn release_tells_how_the_command_ended_and_the_grant_that_follows() {
        let (first, second) = (holder(1), holder(2));
        let waits = WaiterListing { process: second.process.clone(), ..waiter(2, 1) };
        let before = seen(vec![first.clone()], vec![waits], &[]);
        let ended = entry(&first.process, Some(1), Event::Ended(Ending::Exit(3)));
        let after = seen(vec![HolderListing { since: ago(1), ..second }], vec![], &[ended]);
        let found = changes(&before, &mut after.clone());
        assert_eq!(found.iter().map(|change| change.what).collect::<Vec<_>>(), [What::Released, What::Granted]);
        assert_eq!(found[0].ending, Some(Ending::Exit(3)));
        assert!(
            found[0].line().ends_with(" released 'k' write: ada@web1, pid 4001, ./deploy.sh --to web1; exit 3"),
            "{}",
            found[0].line()
        );
    }

    #[test]
    fn lost_broken_and_expired_holds_are_told_apart_from_releases() {
        for (ending, what) in [
            (Ending::Lost, What::Lost),
            (Ending::Broken, What::Lost),
            (Ending::Expired, What::Expired),
            (Ending::Timeout, What::Released),
            (Ending::Signal(9), What::Released),
            (Ending::Kept, What::Released),
            (Ending::Ready, What::Released),
        ] {
            let after = seen(vec![], vec![], &[entry(&holder(1).process, Some(1), Event::Ended(ending))]);
            assert_eq!(told(&seen(vec![holder(1)], vec![], &[]), &after), [(what, 2, Some(4001))]);
        }
    }

    #[test]
    fn hold_that_ends_without_history_has_expired_unless_a_release_was_counted() {
        let before = || seen(vec![holder(1)], vec![], &[]);
        assert_eq!(told(&before(), &seen(vec![], vec![], &[])), [(What::Expired, 0, Some(4001))]);
        let mut counted = seen(vec![], vec![], &[]);
        counted.pasts[0].past.totals.ended = 1;
        assert_eq!(told(&before(), &counted), [(What::Released, 0, Some(4001))]);
        // The history was read after the end of a hold that the inspection still lists.
        let mut listed = seen(vec![holder(1)], vec![], &[]);
        listed.pasts[0].past.totals.ended = 1;
        assert_eq!(changes(&before(), &mut listed), []);
        assert_eq!(told(&listed, &counted), [(What::Released, 0, Some(4001))]);
        // An end that was told and that the store has never counted says nothing of the next hold.
        let mut uncounted = seen(vec![], vec![], &[]);
        assert_eq!(changes(&before(), &mut uncounted).len(), 1);
        uncounted.inspection.resources = seen(vec![holder(2)], vec![], &[]).inspection.resources;
        assert_eq!(told(&uncounted, &counted), [(What::Released, 0, Some(4002))]);
        let mut leased = seen(vec![HolderListing { expiry: Some(ago(5)), ..holder(1) }], vec![], &[]);
        leased.inspection.now = ago(9);
        assert_eq!(told(&leased, &seen(vec![], vec![], &[])), [(What::Expired, 5, Some(4001))]);
    }

    #[test]
    fn request_that_came_and_went_in_between_is_told_from_the_history() {
        let quick = entry(&holder(7).process, Some(7), Event::Ended(Ending::Exit(0)));
        let (before, after) = (seen(vec![], vec![], &[]), seen(vec![], vec![], std::slice::from_ref(&quick)));
        assert_eq!(told(&before, &after), [(What::Granted, 3, Some(4007)), (What::Released, 2, Some(4007))]);
        assert_eq!(told(&after, &after), [], "it is told once");
        // A waiter that was granted and has ended.
        let waits = seen(vec![], vec![WaiterListing { process: holder(7).process, ..waiter(7, 1) }], &[]);
        assert_eq!(told(&waits, &after), [(What::Granted, 3, Some(4007)), (What::Released, 2, Some(4007))]);
    }

    #[test]
    fn hold_that_ends_between_the_inspection_and_the_history_is_told_once() {
        let ended = [entry(&holder(1).process, Some(1), Event::Ended(Ending::Exit(0)))];
        let states = [
            seen(vec![], vec![], &[]),
            seen(vec![holder(1)], vec![], &ended),
            seen(vec![], vec![], &ended),
            seen(vec![], vec![], &ended),
        ];
        let all: Vec<_> = states.windows(2).flat_map(|pair| told(&pair[0], &pair[1])).collect();
        assert_eq!(all, [(What::Granted, 192, Some(4001)), (What::Released, 2, Some(4001))]);
    }

    #[test]
    fn waiter_that_gives_up_is_busy_and_one_that_is_cancelled_leaves() {
        let before = || seen(vec![holder(1)], vec![waiter(2, 1)], &[]);
        let after = || seen(vec![holder(1)], vec![], &[]);
        assert_eq!(told(&before(), &with_busy(after(), 1)), [(What::Busy, 0, Some(5002))]);
        assert_eq!(told(&before(), &after()), [(What::Released, 0, Some(5002))]);
    }

    #[test]
    fn busy_requests_that_never_waited_are_told_one_by_one() {
        let skip = entry(&holder(7).process, None, Event::Skipped(1));
        let before = seen(vec![holder(1)], vec![], &[]);
        let after = with_busy(seen(vec![holder(1)], vec![], &[skip]), 3);
        assert_eq!(told(&before, &after), [(What::Busy, 2, Some(4007)), (What::Busy, 0, None), (What::Busy, 0, None)]);
    }

    #[test]
    fn session_with_several_spans_is_told_once() {
        let part = |text| HolderListing { span: Span::parse(text).expect("a span"), ..holder(1) };
        let after = seen(vec![part("[1,2]"), part("[4,5]")], vec![], &[]);
        let found = changes(&seen(vec![], vec![], &[]), &mut after.clone());
        assert_eq!(found.len(), 1);
        assert!(found[0].line().contains("granted 'k' write [1,2], write [4,5]: "), "{}", found[0].line());
    }

    #[test]
    fn resources_are_compared_one_by_one_and_sorted_by_time() {
        let listing = |name: &str, number, since| {
            resource(name, vec![HolderListing { since: ago(since), ..holder(number) }], vec![])
        };
        let at = |resources: Vec<ResourceListing>| Seen::new(inspection(&resources), vec![]);
        let found = changes(&at(vec![]), &mut at(vec![listing("a", 1, 5), listing("b", 1, 9)]));
        let names: Vec<_> = found.iter().map(|change| change.resource.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    /// A store that keeps no history, or not enough of it, still counts.
    #[test]
    fn holds_that_left_no_entry_are_counted_as_missed() {
        let counted = |holders, ended| {
            let mut seen = seen(holders, vec![], &[]);
            seen.pasts[0].past.totals.ended = ended;
            seen
        };
        let missed = |found: &[(What, u64, Option<u32>)]| -> u64 {
            found.iter().map(|(what, ..)| if let What::Missed(count) = what { *count } else { 0 }).sum()
        };
        assert_eq!(told(&counted(vec![], 0), &counted(vec![], 5)), [(What::Missed(5), 0, None)]);
        let entries =
            [7, 8].map(|number| entry(&holder(number).process, Some(number.into()), Event::Ended(Ending::Exit(0))));
        let mut trimmed = seen(vec![], vec![], &entries);
        (trimmed.pasts[0].past.ring, trimmed.pasts[0].past.totals.ended) = (3..5, 5);
        assert_eq!(missed(&told(&counted(vec![], 0), &trimmed)), 3);
        // One of them may be the holder that is listed, as in the first pair it is.
        for (last, expected) in [(counted(vec![], 2), 1), (counted(vec![holder(1)], 2), 2)] {
            let mut listed = counted(vec![holder(1)], 2);
            let first = changes(&counted(vec![], 0), &mut listed);
            let first = first.iter().map(|change| change.what).collect::<Vec<_>>();
            assert_eq!(first, [What::Granted, What::Missed(1)]);
            assert_eq!(missed(&told(&listed, &last)), expected - 1);
        }
        let many = told(&counted(vec![], 0), &with_busy(counted(vec![], 0), super::BUSY_MAX + 3));
        assert_eq!((many.len() as u64, missed(&many)), (super::BUSY_MAX + 1, 3));
    }

    #[test]
    fn missed_requests_have_a_line_with_their_number() {
        let nothing = || seen(vec![], vec![], &[]);
        let mut one = nothing();
        one.pasts[0].past.totals.ended = 1;
        let found = changes(&nothing(), &mut one);
        assert!(found[0].line().ends_with(" missed 'k': 1 request"), "{}", found[0].line());
    }

    /// The table enters the end of a kept hold, and of a dead process, when somebody meets it.
    #[test]
    fn end_that_the_history_learns_later_is_told_once() {
        for (kept, expiry, what) in [(true, Some(ago(1)), What::Released), (false, None, What::Expired)] {
            let mut before = seen(vec![HolderListing { kept, expiry, ..holder(1) }], vec![], &[]);
            before.inspection.now = ago(9);
            let mut gone = seen(vec![], vec![], &[]);
            let first: Vec<_> = changes(&before, &mut gone).iter().map(|change| change.what).collect();
            assert_eq!(first, [what]);
            let entered = seen(vec![], vec![], &[entry(&holder(1).process, Some(1), Event::Ended(Ending::Kept))]);
            assert_eq!(told(&gone, &entered), []);
        }
    }
}
