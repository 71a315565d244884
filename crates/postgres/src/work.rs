//! Runs operations on the table of a namespace, over the rows that a transaction has fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::rows::{Range, Rows, Stop};
use rlock_model::lease::CLAIM;
use rlock_model::op::{Op, Outcome, Reply, ResourceListing};
use rlock_model::records::{Phase, Records as _, Session};
use rlock_model::request::{self, Place, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_store::engine::{self, Engine};
use rlock_store::handle::{Grant, Obstruction, Standing};
use rlock_store::lease::{Command, LeaseReply};
use rlock_store::records::MapRecords;
use rlock_store::records::codec::decode_open;
use rlock_sys::clock::StoreTime;

/// How many sessions that are due one transaction ends.
const EXPIRED_MAX: usize = 200;
/// How many of the first sessions to end every transaction looks at.
const FIRST_TO_END: usize = 8;
/// How many nodes of a resource's tree are fetched before the first is asked for: those of the
/// first waiters, since a queue grows at the end and takes new numbers there.
const NODES: usize = 16;
/// How many are fetched for a request, which looks at all whom it may conflict with.
const NODES_OF_REQUEST: usize = 64;
/// How many sessions of a queue are fetched before a release asks for the first.
const WAITERS: usize = 8;
/// How many positions of a queue are counted. A waiter further behind only has to know that it is.
const COUNTED: usize = 150;
/// How many holders, and how many waiters, of a resource explain why a request is busy.
const LISTED: usize = 256;

/// The records of a namespace, whose name is a column of their rows.
type Records = MapRecords<'static, Rows>;

/// A transaction in progress.
pub(super) struct Work {
    table: LockTable<Records>,
    pub(super) now: StoreTime,
    /// The server's clock, which `now` never precedes.
    pub(super) clock: StoreTime,
    /// The session of this process that has asked.
    caller: Option<SessionId>,
    /// All sessions of this process, in order. They live, whatever backends their records name.
    pub(super) own: Vec<SessionId>,
    /// Whether somebody relies on this transaction, so that a crash of the server must not undo it.
    pub(super) is_relied_on: bool,
    /// The sessions that have to look at the table.
    woken: BTreeSet<SessionId>,
    /// What the server has told beside the rows.
    pub(super) told: Vec<String>,
    /// Whether a pooler is between this process and the server.
    pub(super) is_pooled: bool,
}

fn records(rows: Rows) -> Records {
    MapRecords::new(rows, "")
}

/// The key of a session's row.
pub(super) fn session_key(id: SessionId) -> Vec<u8> {
    records(Rows::default()).key(b"s", &[&id.0])
}

/// What nearly every operation on these resources and sessions reads.
pub(super) fn ranges<'a>(
    resources: impl IntoIterator<Item = &'a Resource>,
    sessions: impl IntoIterator<Item = SessionId>,
) -> Vec<Range> {
    let records = records(Rows::default());
    let mut ranges = vec![
        Range::key(b"c"),
        Range::key(b"q"),
        Range::prefix(&records.key(b"e", &[]), FIRST_TO_END),
        Range::prefix(&records.key(b"f", &[]), 1),
    ];
    for name in resources {
        ranges.push(Range::key(&records.name_key(b"r", name)));
        ranges.push(Range::key(&records.name_key(b"p", name)));
        ranges.push(Range::prefix(&records.part_key(b"n", name, &[]), NODES));
    }
    ranges.extend(sessions.into_iter().map(|id| Range::key(&session_key(id))));
    ranges
}

/// The nodes that a request for these resources reads beside them.
pub(super) fn nodes_of_request(resources: &[Resource]) -> impl Iterator<Item = Range> {
    let prefix = |name| Range::prefix(&records(Rows::default()).part_key(b"n", name, &[]), NODES_OF_REQUEST);
    resources.iter().map(prefix)
}

/// What a listing of these resources reads, or of all if none is named.
pub(super) fn ranges_of_listing(resources: &[Resource]) -> Vec<Range> {
    let records = records(Rows::default());
    let all = |kind| Range::prefix(&records.key(kind, &[]), usize::MAX);
    let mut ranges = ranges(resources, []);
    ranges.push(all(b"s"));
    if resources.is_empty() {
        ranges.extend([all(b"r"), all(b"n")]);
    }
    ranges
}

/// What a look at the past of these resources reads, or of all if none is named. Without `entries`
/// none of them is read.
pub(super) fn ranges_of_past(resources: &[Resource], entries: u32) -> Vec<Range> {
    let records = records(Rows::default());
    let all = |prefix: Vec<u8>| Range::prefix(&prefix, usize::MAX);
    let mut ranges = ranges(resources, []);
    let mut entries_of: Vec<_> = resources.iter().map(|name| records.part_key(b"h", name, &[])).collect();
    if resources.is_empty() {
        ranges = vec![Range::key(b"c"), all(records.key(b"p", &[]))];
        entries_of = vec![records.key(b"h", &[])];
    }
    ranges.extend(entries_of.into_iter().filter(|_| entries > 0).map(all));
    ranges
}

/// What is read after an operation has named these rows, for the `reads`th time. An operation on a
/// long queue would need a round trip for each of its sessions, so twice as many are read each
/// time.
pub(super) fn widened(mut ranges: Vec<Range>, reads: u32) -> Vec<Range> {
    /// How often an operation gets just the rows that it names.
    const EXACT_READS: u32 = 2;
    if reads > EXACT_READS {
        let records = records(Rows::default());
        let count = WAITERS << reads.min(20);
        let all = |kind| Range::prefix(&records.key(kind, &[]), count);
        let first =
            |all: &Range| ranges.iter().map(|range| &range.low).find(|low| all.low <= **low && **low < all.high);
        // The ids of sessions have no order. The nodes of a tree follow each other.
        let sessions = Some(all(b"s")).filter(|all| first(all).is_some());
        let nodes = first(&all(b"n")).map(|low| Range { low: low.clone(), ..all(b"n") });
        ranges.extend(sessions.into_iter().chain(nodes));
    }
    ranges
}

impl Work {
    /// Begins a transaction at an instant of the server's clock.
    ///
    /// # Errors
    /// See [`Stop`].
    pub(super) fn new(rows: Rows, clock: StoreTime, caller: Option<SessionId>) -> Result<Self, Stop> {
        let records = records(rows);
        // A token is at least the instant of its grant. So tokens rise, whatever the clock does.
        let now = clock.max(records.clock()?.now + Duration::from_micros(1));
        let mut table = LockTable::with_claim_lease(records, CLAIM);
        table.expire_at_most(EXPIRED_MAX);
        Ok(Self {
            table,
            now,
            clock,
            caller,
            own: Vec::new(),
            is_relied_on: false,
            woken: BTreeSet::new(),
            told: Vec::new(),
            is_pooled: false,
        })
    }

    /// The rows as the operations have left them, and the sessions to wake.
    pub(super) fn into_parts(self) -> (Rows, BTreeSet<SessionId>) {
        (self.table.into_records().map, self.woken)
    }

    /// The records.
    pub(super) fn records(&self) -> &Records {
        self.table.records()
    }

    /// Demands that these sessions are fetched, all at once.
    pub(super) fn fetch(&self, sessions: impl IntoIterator<Item = SessionId>) -> Result<(), Stop> {
        let missing = self.records().map.missing(sessions.into_iter().map(|id| Range::key(&session_key(id))));
        if missing.is_empty() { Ok(()) } else { Err(Stop::Missing(missing)) }
    }

    /// Fetches the sessions that are due, and then those at the heads of these queues, before the
    /// operations ask for one after the other.
    pub(super) fn prepare(&self, resources: &[Resource]) -> Result<(), Stop> {
        let mut first = self.records().first_to_end(FIRST_TO_END)?;
        if first.len() == FIRST_TO_END && first.iter().all(|(expiry, _)| *expiry <= self.now) {
            first = self.records().first_to_end(EXPIRED_MAX)?;
        }
        self.fetch(first.into_iter().filter(|(expiry, _)| *expiry <= self.now).map(|(_, id)| id))?;
        let mut waiters = Vec::new();
        for name in resources {
            waiters.extend(self.table.first_waiters(name, WAITERS)?);
        }
        self.fetch(waiters)
    }

    /// Carries out the command of a waiter or holder, and replies to it.
    pub(super) fn command(&mut self, command: Command, request: &Request) -> Result<LeaseReply, Stop> {
        self.drop_due()?;
        let id = request.session;
        let reply = match command {
            Command::Acquire { place, waited } => {
                let place = (place > 0).then(|| Place { number: place, asked: self.now - waited });
                if self.records().session(id)?.is_some() {
                    self.apply(Op::Acquire { request: request.clone(), place })?
                } else {
                    if place.is_none() {
                        self.clear_the_way(request)?;
                    }
                    self.ask(id, Op::Acquire { request: request.clone(), place })?
                }
            }
            Command::Subscribe | Command::Renew => self.ask(id, Op::Renew(id))?,
            Command::AskOnce => {
                let request = Request { wait: false, ..request.clone() };
                self.ask(id, Op::Acquire { request, place: None })?
            }
            Command::GiveUp => match self.apply(Op::GiveUp(id))? {
                // The caller lists the sessions in the way.
                Reply::Busy { streak, .. } => {
                    return Ok(LeaseReply::Over(Standing::Busy { obstructions: Vec::new(), streak }));
                }
                reply => reply,
            },
        };
        self.answer(reply, request)
    }

    /// Translates the reply of the table to a session.
    pub(super) fn answer(&mut self, reply: Reply, request: &Request) -> Result<LeaseReply, Stop> {
        Ok(match reply {
            Reply::Granted { lease: Some(lease), tokens, slots, last, is_revoked } => {
                LeaseReply::Granted { lease, grant: Grant { tokens, slots, last, deadline: None, is_revoked } }
            }
            Reply::Waiting => self.place(request)?,
            Reply::Released(tokens) => LeaseReply::Released(tokens),
            Reply::KeptUntil(_) => LeaseReply::Kept,
            Reply::Unknown => LeaseReply::Unknown,
            reply => {
                let obstructions = match reply {
                    Reply::Busy { .. } => {
                        let names: Vec<_> = request::resources(&request.claims).into_iter().cloned().collect();
                        self.obstructions(&names)?
                    }
                    _ => Vec::new(),
                };
                engine::standing(reply, obstructions).map_or(LeaseReply::Other, LeaseReply::Over)
            }
        })
    }

    /// The place of a waiter, and when the first lease in its way ends.
    fn place(&self, request: &Request) -> Result<LeaseReply, Stop> {
        let Some(session) = self.records().session(request.session)? else { return Ok(LeaseReply::Unknown) };
        let ahead = self.waiters_ahead(request.session)?;
        let mut in_the_way = Vec::new();
        for name in session.resources() {
            in_the_way.extend(self.table.first_holders(name, WAITERS)?);
            in_the_way.extend(self.table.first_waiters(name, 1)?);
        }
        self.fetch(in_the_way.iter().copied())?;
        let mut next: Option<StoreTime> = None;
        for id in in_the_way {
            next = next.into_iter().chain(self.records().session(id)?.and_then(|session| session.expiry)).min();
        }
        Ok(LeaseReply::Waiting {
            place: session.place(),
            position: u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1),
            next: next.map(|next| next - self.now).filter(|next| !next.is_zero()),
        })
    }

    /// How many sessions wait before this one, as far as that is counted.
    fn waiters_ahead(&self, id: SessionId) -> Result<usize, Stop> {
        let Some(session) = self.records().session(id)? else { return Ok(0) };
        let waiters = self.table.first_waiters(&session.claims[0].claim.resource, COUNTED)?;
        Ok(waiters.iter().position(|waiter| *waiter == id).unwrap_or(COUNTED))
    }

    /// The first holders and waiters of these resources.
    pub(super) fn obstructions(&self, names: &[Resource]) -> Result<Vec<Obstruction>, Stop> {
        let mut found = Vec::new();
        for name in names {
            let waiters = self.table.first_waiters(name, LISTED)?;
            found.push((name, self.table.first_holders(name, LISTED)?, waiters));
        }
        self.fetch(found.iter().flat_map(|(_, holders, waiters)| holders.iter().chain(waiters).copied()))?;
        let obstruction = |(name, holders, waiters): (&Resource, Vec<_>, Vec<_>)| {
            let mut sessions = BTreeMap::new();
            for id in holders.iter().chain(&waiters) {
                sessions.extend(self.records().session(*id)?.map(|session| (*id, session)));
            }
            let claims = sessions.iter().flat_map(|(id, session)| {
                let of_name = session.claims.iter().filter(|record| record.claim.resource == *name);
                of_name.map(move |record| (*id, session, record))
            });
            let listing = ResourceListing::of(name.clone(), claims.collect());
            let all = self.records().resource(name)?.map_or(0, |state| u64::from(state.waiting));
            let waiting = if waiters.len() < LISTED { waiters.len() as u64 } else { all };
            Ok(Obstruction { listing, waiting })
        };
        found.into_iter().map(obstruction).collect()
    }

    /// Lists the holders and waiters of these resources, or of all if none is named.
    pub(super) fn list(&mut self, resources: Vec<Resource>) -> Result<Vec<ResourceListing>, Stop> {
        let mut sessions = Vec::new();
        for name in &resources {
            sessions.extend(self.table.sessions_of(name, |_| true)?);
        }
        self.fetch(sessions)?;
        // At this instant, no session is due.
        match self.table.apply(StoreTime::default(), Op::Inspect(resources))?.reply {
            Reply::Listing(listings) => Ok(listings),
            _ => Ok(Vec::new()),
        }
    }

    /// The sessions with a claim on a resource, with their records.
    pub(super) fn sessions_of(&self, resource: &Resource) -> Result<Vec<(SessionId, Session)>, Stop> {
        let ids = self.table.sessions_of(resource, |_| true)?;
        self.fetch(ids.iter().copied())?;
        let with_record = |id| Ok(self.records().session(id)?.map(|session| (id, session)));
        ids.into_iter().filter_map(|id| with_record(id).transpose()).collect()
    }

    /// Tells a session to look at the table.
    pub(super) fn wake(&mut self, session: SessionId) {
        self.woken.insert(session);
    }

    /// Whether a session waits, or was granted its request and has not claimed it, and its
    /// connection is gone, or, behind a pooler, its looks are missing. A holder lives by its lease.
    fn is_gone(&self, id: SessionId) -> Result<bool, Stop> {
        let phase = self.records().session(id)?.map(|session| session.phase);
        let may_be = matches!(phase, Some(Phase::Waiting | Phase::Granted)) && self.own.binary_search(&id).is_err();
        let key = session_key(id);
        Ok(may_be && (self.records().map.is_gone(&key) || self.is_pooled && self.is_silent(&key)?))
    }

    /// Whether a session that no backend stands for waited when it was fetched, and had not looked
    /// for so long. Others may wait behind one connection, so only its own looks tell of it.
    fn is_silent(&self, key: &[u8]) -> Result<bool, Stop> {
        let known = self.records().map.nameless(key).map(decode_open::<Session>).transpose()?;
        let seen = |session: Session| Some(session.expiry? - session.terms?.heartbeat);
        let seen = known.filter(|session| session.phase == Phase::Waiting).and_then(seen);
        Ok(seen.is_some_and(|seen| self.now - seen >= CLAIM))
    }
}

impl Engine for Work {
    type Records = Records;
    type Error = Stop;

    fn table(&self) -> &LockTable<Records> {
        &self.table
    }

    fn step(&mut self, op: Op) -> Result<Outcome, Stop> {
        let asks = matches!(op, Op::Acquire { .. } | Op::Renew(_));
        let tidies = matches!(op, Op::Expire | Op::Reap { .. } | Op::GiveUp(_) | Op::Inspect(_));
        let leaves = if let Op::Release { session, .. } = op { self.records().session(session)? } else { None };
        let outcome = self.table.apply(self.now, op)?;
        self.is_relied_on |= match leaves {
            // The claim of the next holder is later in the log, and waits until the disk has both.
            Some(session) => session.is_holder() && (session.job.is_named || outcome.granted.is_empty()),
            None if asks => matches!(outcome.reply, Reply::Granted { .. }),
            None => !tidies,
        };
        Ok(outcome)
    }

    fn heeds_blockers(&self, session: SessionId) -> Result<bool, Stop> {
        Ok(self.waiters_ahead(session)? < COUNTED)
    }

    fn tell(&mut self, session: SessionId) -> Result<Option<Op>, Stop> {
        if self.is_gone(session)? {
            return Ok(Some(Op::Reap { session, ended: None }));
        }
        if self.caller != Some(session) {
            self.woken.insert(session);
        }
        Ok(None)
    }

    fn drop_due(&mut self) -> Result<(), Stop> {
        if self.records().due(self.now)?.is_some() {
            self.apply(Op::Expire)?;
        }
        Ok(())
    }

    fn remove_gone(&mut self, suspects: &[SessionId]) -> Result<bool, Stop> {
        // A long queue is looked at from its head, and the next request goes on.
        let suspects = &suspects[..suspects.len().min(4 * WAITERS)];
        self.fetch(suspects.iter().copied())?;
        let mut found = false;
        for session in suspects {
            if self.is_gone(*session)? {
                self.apply(Op::Reap { session: *session, ended: None })?;
                found = true;
            }
        }
        Ok(found)
    }
}
