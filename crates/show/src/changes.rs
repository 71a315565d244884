//! Compares two listings and tells what happened in between. The history tells how holds have
//! ended, and of holds that neither listing shows.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::escaped;
use super::listing::command;
use super::tree::claim;
use crate::messages;
use rlock_model::past::{self, Ending, Entry, Remembered, Totals};
use rlock_model::records::{Phase, Revocation, Session};
use rlock_model::request::{self, Claim, Process, SessionId};
use rlock_model::resource::Resource;
use rlock_store::Inspection;
use rlock_sys::clock::StoreTime;

/// What a look at a store has found.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The holders and waiters, and the store's time.
    pub inspection: Inspection,
    /// The history of each resource, which is read after the inspection.
    pub pasts: Vec<Remembered>,
}

/// The resources and tokens of holds whose ends were told before the history knew them, as of a
/// kept hold or of a dead process.
pub type Told = Vec<(Resource, u64)>;

/// Maximum length of [`Told`]. If a store keeps no history, none of the holds is ever met again.
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
    /// So many requests were told that the resource is busy.
    Busy(u64),
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
            Self::Busy(_) => "busy",
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
    /// The numbers of the held slots.
    pub slots: Vec<u32>,
    /// The process that made the request.
    pub process: Process,
    /// The token of the grant; `None` for a request that was not granted.
    pub token: Option<u64>,
}

impl Request {
    fn of(
        session: Option<SessionId>,
        claims: &[Claim],
        slots: Vec<u32>,
        process: &Process,
        token: Option<u64>,
    ) -> Self {
        let claims = request::counted(claims).map(|(claim, count)| (claim.clone(), count)).collect();
        Self { session, claims, slots, process: process.clone(), token }
    }
}

impl Change {
    /// The change as a line for people.
    pub fn line(&self) -> String {
        let Self { what, at, resource, request, ending, by } = self;
        let mut text = format!("{} {} '{resource}'", messages::time(*at), what.as_str());
        if let Some(Request { claims, slots, process, .. }) = request {
            let claims = claims.iter().map(|(its, count)| {
                let held = messages::held_slots(slots, its.slots);
                held.unwrap_or_else(|| claim(its.mode, its.slots, *count, &its.span))
            });
            let claims: Vec<_> = claims.collect();
            let Process { pid, command: words, .. } = process;
            let who = messages::who_and_why(process);
            text.push_str(&format!(" {}: {who}, pid {pid}, {}", claims.join(", "), command(words)));
        }
        if let (What::Busy(count), None) = (what, request) {
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

/// The changes between two looks, in order of time. `told` goes from one comparison to the next.
pub fn changes(before: &Seen, after: &Seen, told: &mut Told) -> Vec<Change> {
    let (mut old, mut new) = (by_name(before), by_name(after));
    let names: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let mut found = Vec::new();
    for name in names {
        let (old, new) = (old.remove(name).unwrap_or_default(), new.remove(name).unwrap_or_default());
        found.extend(compare(name, after.inspection.now, old, &new, told));
    }
    told.drain(..told.len().saturating_sub(TOLD_MAX));
    // A grant follows the end that made room for it.
    found.sort_by_key(|change| (change.at, matches!(change.what, What::Queued | What::Granted)));
    found
}

/// A session on one resource.
struct Member<'s> {
    session: &'s Session,
    request: Request,
}

impl<'s> Member<'s> {
    fn of(id: SessionId, session: &'s Session, name: &Resource) -> Self {
        let records = || session.claims.iter().filter(|record| record.claim.resource == *name);
        let claims: Vec<_> = records().map(|record| record.claim.clone()).collect();
        let token = session.is_holder().then(|| records().map(|record| record.token).max()).flatten();
        let slots = records().filter_map(|record| record.slot).collect();
        Self { session, request: Request::of(Some(id), &claims, slots, &session.process, token) }
    }

    /// Whether the session holds the resource for this process and with this token. A nested hold
    /// may have the token of the hold around it.
    fn has(&self, process: &Process, token: Option<u64>) -> bool {
        self.session.is_holder() && self.request.token == token && is_same(&self.session.process, process)
    }
}

/// Whether two descriptions are of one process. A history leaves a part of them out.
fn is_same(one: &Process, other: &Process) -> bool {
    (one.pid, &one.host) == (other.pid, &other.host)
}

/// What a look has found about one resource.
#[derive(Default)]
struct Known<'s> {
    sessions: BTreeMap<SessionId, Member<'s>>,
    entries: &'s [Entry],
    /// The number that the next entry of the history gets.
    next: u64,
    totals: Totals,
}

fn by_name(seen: &Seen) -> BTreeMap<&Resource, Known<'_>> {
    let Inspection { now, resources, sessions } = &seen.inspection;
    let mut found: BTreeMap<_, Known<'_>> = BTreeMap::new();
    found.extend(resources.iter().map(|listing| (&listing.name, Known::default())));
    // A server lists a hold until somebody meets it after its end.
    let is_over = |session: &Session| session.is_holder() && session.is_over(*now);
    for (id, session) in sessions.iter().filter(|(_, session)| !is_over(session)) {
        for name in session.resources() {
            // A session may have claims on resources that are not listed.
            if let Some(known) = found.get_mut(name) {
                known.sessions.insert(*id, Member::of(*id, session, name));
            }
        }
    }
    for Remembered { name, past, entries } in &seen.pasts {
        let known = found.entry(name).or_default();
        (known.entries, known.next, known.totals) = (entries, past.ring.end, past.totals);
    }
    found
}

/// Tells what happened to a resource.
fn compare(name: &Resource, now: StoreTime, old: Known<'_>, new: &Known<'_>, told: &mut Told) -> Vec<Change> {
    let mut found = Vec::new();
    let change = |what, at, request: Option<Request>| Change {
        what,
        at,
        resource: name.clone(),
        request,
        ending: None,
        by: None,
    };
    let over = |entry: &Entry, ending, request| Change {
        ending: Some(ending),
        ..change(after(ending), entry.ended.latest(), Some(request))
    };
    let ending = |entry: &Entry| if let past::Event::Ended(ending) = entry.event { Some(ending) } else { None };
    let mut gone = old.sessions;
    for (id, member) in &new.sessions {
        let was = gone.remove(id);
        let was = was.as_ref().map(|was| was.session);
        let Member { session, request } = member;
        match (was.map(Session::is_holder), session.is_holder()) {
            (None, false) => found.push(change(What::Queued, session.asked, Some(request.clone()))),
            (None | Some(false), true) => found.push(change(What::Granted, session.since, Some(request.clone()))),
            _ => {}
        }
        let is_known = was.is_some_and(|was| was.revoked.is_some());
        if let Some(Revocation { at, by }) = session.revoked.as_ref().filter(|_| !is_known) {
            found.push(Change { by: Some(by.clone()), ..change(What::Revoked, *at, Some(request.clone())) });
        }
    }
    // The history tells of holds that came and went between the listings. It was read later: the
    // end of a hold that is still listed is told when the hold is gone.
    let count = usize::try_from(new.next.checked_sub(old.next).unwrap_or(new.next)).unwrap_or(usize::MAX);
    for entry in &new.entries[new.entries.len().saturating_sub(count)..] {
        let Some(ending) = ending(entry) else { continue };
        let is_it = |member: &Member<'_>| member.has(&entry.process, entry.token);
        if gone.values().chain(new.sessions.values()).any(is_it) {
            continue;
        }
        if let Some(early) = told.iter().position(|(early, token)| early == name && Some(*token) == entry.token) {
            told.swap_remove(early);
            continue;
        }
        // The session may have waited at the look before.
        let waited =
            |Member { session, .. }: &Member<'_>| !session.is_holder() && is_same(&session.process, &entry.process);
        let session = gone.iter().find(|(_, member)| waited(member)).map(|(id, _)| *id);
        if let Some(id) = session {
            gone.remove(&id);
        }
        let request = Request::of(session, &entry.claims, entry.slots.clone(), &entry.process, entry.token);
        found.extend(entry.granted.map(|granted| change(What::Granted, granted, Some(request.clone()))));
        found.push(over(entry, ending, request));
    }
    let mut busy = new.totals.busy.saturating_sub(old.totals.busy);
    for member in gone.into_values() {
        let is_it = |entry: &&Entry| member.has(&entry.process, entry.token);
        let entry = new.entries.iter().rev().filter(is_it).find_map(|entry| Some((entry, ending(entry)?)));
        let Member { session, request } = member;
        if let Some((entry, ending)) = entry {
            found.push(over(entry, ending, request));
            continue;
        }
        let (what, at) = left(session, now, new.totals.ended > old.totals.ended, &mut busy);
        told.extend(request.token.map(|token| (name.clone(), token)));
        found.push(change(what, at, Some(request)));
    }
    found.extend((busy > 0).then(|| change(What::Busy(busy), now, None)));
    found
}

/// How a session has left of which the history says nothing. `is_counted` tells whether the store
/// has counted the end of a hold, and `busy` how many more requests were told to be busy.
fn left(session: &Session, now: StoreTime, is_counted: bool, busy: &mut u64) -> (What, StoreTime) {
    match (session.phase, session.expiry.filter(|expiry| *expiry <= now)) {
        (Phase::Waiting, _) if *busy > 0 => {
            *busy -= 1;
            (What::Busy(1), now)
        }
        (Phase::Waiting, _) => (What::Released, now),
        (Phase::Kept, Some(expiry)) => (What::Released, expiry),
        (_, Some(expiry)) => (What::Expired, expiry),
        // A release leaves an entry, which others may have pushed out of the history since.
        (_, None) if session.job.history > 0 && !is_counted => (What::Expired, now),
        (_, None) => (What::Released, now),
    }
}

fn after(ending: Ending) -> What {
    match ending {
        Ending::Lost | Ending::Broken => What::Lost,
        Ending::Expired => What::Expired,
        Ending::Exit(_) | Ending::Signal(_) | Ending::Timeout | Ending::Kept | Ending::Ready => What::Released,
    }
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{NOW, ago, holder, inspection, resource, waiter};
    use super::{Change, Seen, What, changes};
    use rlock_model::mode::Mode;
    use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
    use rlock_model::past::{Ended, Ending, Entry, Event, Origin, Past, Remembered};
    use rlock_model::request::{Claim, Owner, Process};
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
        let pasts = vec![Remembered { name: name(), past, entries: entries.to_vec() }];
        Seen { pasts, ..only(&[resource("k", holders, waiters)]) }
    }

    /// A look that has found no history.
    fn only(resources: &[ResourceListing]) -> Seen {
        Seen { inspection: inspection(resources), pasts: Vec::new() }
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
            slots: Vec::new(),
            later,
        }
    }

    fn told(before: &Seen, after: &Seen) -> Vec<(What, u64, Option<u32>)> {
        let seconds = |at: StoreTime| (NOW.as_micros() - at.as_micros()) / 1_000_000;
        let pid = |change: &Change| change.request.as_ref().map(|request| request.process.pid);
        changes(before, after, &mut Vec::new())
            .iter()
            .map(|change| (change.what, seconds(change.at), pid(change)))
            .collect()
    }

    #[test]
    fn listings_that_are_equal_tell_nothing() {
        let same = || seen(vec![holder(1)], vec![waiter(2, 1)], &[]);
        assert_eq!(told(&same(), &same()), []);
        let nothing = only(&[]);
        assert_eq!(told(&nothing, &nothing), []);
    }

    #[test]
    fn new_sessions_are_queued_or_granted() {
        let nothing = only(&[]);
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
        let found = changes(&before, &after, &mut Vec::new());
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
    fn hold_that_leaves_no_entry_has_expired_if_a_release_had_left_one() {
        let before = || seen(vec![holder(1)], vec![], &[]);
        let gone = || seen(vec![], vec![], &[]);
        assert_eq!(told(&before(), &gone()), [(What::Expired, 0, Some(4001))]);
        // The entry may have been pushed out of the history.
        let mut counted = gone();
        counted.pasts[0].past.totals.ended = 1;
        assert_eq!(told(&before(), &counted), [(What::Released, 0, Some(4001))]);
        // A release may have been counted while its hold was still listed.
        let mut unrecorded = before();
        unrecorded.inspection.sessions.values_mut().for_each(|session| session.job.history = 0);
        assert_eq!(told(&unrecorded, &gone()), [(What::Released, 0, Some(4001))]);
        let mut leased = seen(vec![HolderListing { expiry: Some(ago(5)), ..holder(1) }], vec![], &[]);
        leased.inspection.now = ago(9);
        assert_eq!(told(&leased, &gone()), [(What::Expired, 5, Some(4001))]);
    }

    /// Only the session of `acquire --pid` knows with which process it ends.
    #[test]
    fn entry_need_not_know_all_of_a_process() {
        let mut held = holder(1);
        held.process.lasts_for = Some(Owner { pid: 1, started: 2 });
        let ended = entry(&holder(1).process, Some(1), Event::Ended(Ending::Kept));
        assert_eq!(
            told(&seen(vec![held], vec![], &[]), &seen(vec![], vec![], &[ended])),
            [(What::Released, 2, Some(4001))]
        );
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
        assert_eq!(told(&before(), &with_busy(after(), 1)), [(What::Busy(1), 0, Some(5002))]);
        assert_eq!(told(&before(), &after()), [(What::Released, 0, Some(5002))]);
    }

    /// "of a request that was busy at once, only the number is known"
    #[test]
    fn busy_requests_that_never_waited_are_told_by_their_number() {
        let skip = entry(&holder(7).process, None, Event::Skipped(3));
        let before = seen(vec![holder(1)], vec![waiter(2, 1)], &[]);
        let after = with_busy(seen(vec![holder(1)], vec![], &[skip]), 3);
        assert_eq!(told(&before, &after), [(What::Busy(1), 0, Some(5002)), (What::Busy(2), 0, None)]);
        let lines: Vec<_> = changes(&before, &after, &mut Vec::new()).iter().map(Change::line).collect();
        assert!(lines[1].ends_with(" busy 'k': 2 requests"), "{lines:?}");
        let one = changes(&only(&[]), &with_busy(seen(vec![], vec![], &[]), 1), &mut Vec::new());
        assert!(one[0].line().ends_with(" busy 'k': 1 request"), "{one:?}");
    }

    #[test]
    fn session_with_several_spans_is_told_once() {
        let part = |text| HolderListing { span: Span::parse(text).expect("a span"), ..holder(1) };
        let after = seen(vec![part("[1,2]"), part("[4,5]")], vec![], &[]);
        let found = changes(&seen(vec![], vec![], &[]), &after, &mut Vec::new());
        assert_eq!(found.len(), 1);
        assert!(found[0].line().contains("granted 'k' write [1,2], write [4,5]: "), "{}", found[0].line());
    }

    #[test]
    fn resources_are_compared_one_by_one_and_sorted_by_time() {
        let listing = |name: &str, number, since| {
            resource(name, vec![HolderListing { since: ago(since), ..holder(number) }], vec![])
        };
        let found = changes(&only(&[]), &only(&[listing("a", 1, 5), listing("b", 2, 9)]), &mut Vec::new());
        let names: Vec<_> = found.iter().map(|change| change.resource.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    /// "A hold that begins and ends between two looks is told from the history": without one, it is
    /// not told.
    #[test]
    fn hold_between_two_looks_that_left_no_entry_is_not_told() {
        let mut counted = seen(vec![], vec![], &[]);
        counted.pasts[0].past.totals.ended = 5;
        assert_eq!(told(&seen(vec![], vec![], &[]), &counted), []);
        let entries = [7, 8].map(|number| entry(&holder(number).process, Some(7), Event::Ended(Ending::Exit(0))));
        let mut trimmed = seen(vec![], vec![], &entries);
        trimmed.pasts[0].past.ring = 3..5;
        let pids: Vec<_> = told(&counted, &trimmed).iter().map(|(_, _, pid)| *pid).collect();
        assert_eq!(pids, [Some(4007), Some(4008), Some(4007), Some(4008)], "nested holds share a token");
    }

    /// The entry of a hold comes late, after one of a nested hold with the same token.
    #[test]
    fn end_of_a_nested_hold_is_not_taken_for_that_of_the_hold_around_it() {
        let before = seen(vec![holder(1), HolderListing { token: 1, ..holder(2) }], vec![], &[]);
        let inner = seen(vec![HolderListing { token: 1, ..holder(2) }], vec![], &[]);
        let ended = |number, ending| entry(&holder(number).process, Some(1), Event::Ended(ending));
        let entries = [ended(2, Ending::Exit(0)), ended(1, Ending::Expired)];
        let mut early = Vec::new();
        let mut told = Vec::new();
        let states = [before, inner, seen(vec![], vec![], &entries[..1]), seen(vec![], vec![], &entries)];
        for pair in states.windows(2) {
            let found = changes(&pair[0], &pair[1], &mut early);
            told.extend(found.iter().map(|change| (change.what, change.request.as_ref().unwrap().process.pid)));
        }
        assert_eq!(told, [(What::Expired, 4001), (What::Released, 4002)]);
    }

    /// The table enters the end of a kept hold, and of a dead process, when somebody meets it.
    #[test]
    fn end_that_the_history_learns_later_is_told_once() {
        for (kept, expiry, what) in [(true, Some(ago(1)), What::Released), (false, None, What::Expired)] {
            let mut before = seen(vec![HolderListing { kept, expiry, ..holder(1) }], vec![], &[]);
            before.inspection.now = ago(9);
            let gone = seen(vec![], vec![], &[]);
            let mut early = Vec::new();
            let first: Vec<_> = changes(&before, &gone, &mut early).iter().map(|change| change.what).collect();
            assert_eq!(first, [what]);
            let entered = seen(vec![], vec![], &[entry(&holder(1).process, Some(1), Event::Ended(Ending::Kept))]);
            assert_eq!(changes(&gone, &entered, &mut early), []);
            assert_eq!(early, []);
        }
    }
}
