//! One transaction of an operation: what is sent to the server, and what its messages mean.
//!
//! This module is pure: it has no clock and no socket.
//!
//! ```text
//! BEGIN, the timeouts │ the locks of table and namespace │ the time │ the rows   first message
//!                          the operation runs over the rows in memory
//! the rows that are missing, as often as the operation names some             seldom
//! the changed rows │ NOTIFY │ LISTEN │ COMMIT                                 last message
//! ```
//!
//! The lock is a statement of its own, and the reads are later statements. In READ COMMITTED a
//! statement that has waited for a row sees all other rows as they were before the wait, so two
//! sessions would be granted the same.
//!
//! Each message is one Query. The server reads all of a message before it carries out the first
//! statement, so it never waits for the rest of one while the client has the lock. Between the
//! messages the client has the lock. If the client stops there, or its network does in the middle
//! of the next message, the server ends the transaction after [`Step::patience`].
//!
//! A proxy may send reads to a standby, which may lack the last grants. So each read tells which
//! server has answered it, and decides nothing unless that is the one that has the lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::backend::Message;

use super::failure::{ErrorKind, MAKES};
use super::rows::{Named, Range, Row, Rows, Stop};
use super::wire::{self, ServerError};
use super::work::{Work, session_key, widened};
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_model::tables::FORMAT;
use rlock_sys::clock::StoreTime;

/// A server or role whose transactions are read-only by default is no server that takes writes.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// A listing may need several reads, which have to fit together.
const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// The timeouts count for this transaction alone. That of the wait for the lock bounds no time in
/// which others wait for this client. That of TCP ends a backend whose reply is not taken.
///
/// Without statistics the planner reads the whole table for each of many ranges. A plan that it
/// takes for dear for want of another would be compiled, which takes longer than to run it.
///
/// PGlite, which is compiled by emcc, lets the transaction of one client stop all others for good.
const TIMEOUTS: &str = "SELECT (version() LIKE '%emcc%')::int, set_config('enable_seqscan', 'off', true), \
    set_config('jit', 'off', true), set_config('idle_in_transaction_session_timeout', $1, true), \
    set_config('lock_timeout', $2, true), set_config('statement_timeout', '0', true), \
    set_config('tcp_user_timeout', '2s', true)";
/// Another program may have locked the table of the rows. A client that has the lock of the
/// namespace must not wait for the table, since all other clients would wait with it.
const LOCK_TABLE: &str = "LOCK TABLE rlock.records IN ROW EXCLUSIVE MODE";
/// The mode, table and pid of a foreign lock on a table of rlock, granted or waiting. rlock itself
/// takes none of these modes.
const BLOCKER: &str = "SELECT format('%s on %s, of pid %s', mode, relation::regclass, pid) FROM pg_locks \
    WHERE locktype = 'relation' AND relation IN (to_regclass('rlock.records'), to_regclass('rlock.namespaces')) \
    AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
    ORDER BY granted DESC, pid LIMIT 1";
const LOCK: &str = "SELECT format FROM rlock.namespaces WHERE name = $1 FOR UPDATE";
const FORMAT_ALONE: &str = "SELECT format FROM rlock.namespaces WHERE name = $1";
const NEW_NAMESPACE: &str = "INSERT INTO rlock.namespaces (name, format) VALUES ($1, $2) ON CONFLICT DO NOTHING";
/// now() would be the beginning of the transaction, before the wait for the lock.
const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_backend_pid(), \
    (SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_get_activity(pg_backend_pid())), \
    pg_is_in_recovery()::int, set_config('statement_timeout', $1, true), 'rlock.records'::regclass::oid::bigint";
/// The commit waits until the disks have it.
const COPIES: &str = "SELECT current_setting('synchronous_standby_names'), current_setting('fsync'), \
    set_config('synchronous_commit', 'on', true)";
/// How many connections the server lets in for this role, and how many sessions the namespace has.
/// A limit of 0 lets nobody in, so such a limit was set after the login. The statement costs a new
/// backend a millisecond.
const ROOM: &str = "SELECT least(current_setting('max_connections')::int \
    - current_setting('superuser_reserved_connections')::int \
    - coalesce(current_setting('reserved_connections', true)::int, 0), \
    (SELECT nullif(greatest(rolconnlimit, 0), 0) FROM pg_roles WHERE rolname = session_user), \
    (SELECT nullif(greatest(datconnlimit, 0), 0) FROM pg_database WHERE datname = current_database())), \
    (SELECT count(*) FROM (SELECT FROM rlock.records WHERE namespace = $1 AND key >= 's' AND key < 't' \
    LIMIT current_setting('max_connections')::int) AS sessions)";
/// First the pid of the backend, or 0 if it is one of a standby. Then the rows of some ranges, each
/// with the number of its range and whether its backend is gone, 2 if the row names none. A role
/// that may not see when the backends of others began takes them for alive. clock_timestamp() is
/// volatile, so a proxy does not take the statement for one that any server can answer.
const READ: &str = "SELECT 0::bigint, clock_timestamp()::text, '', \
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_backend_pid() END UNION ALL \
    SELECT w.number, encode(r.key, 'hex'), encode(r.value, 'hex'), CASE WHEN r.pid IS NULL THEN 2 ELSE (NOT EXISTS \
    (SELECT FROM pg_stat_get_activity(r.pid) a WHERE a.backend_start IS NULL \
    OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = r.started))::int END \
    FROM unnest($2::bytea[], $3::bytea[], $4::bigint[]) WITH ORDINALITY AS w (low, high, count, number), \
    LATERAL (SELECT key, value, pid, started FROM rlock.records \
    WHERE namespace = $1 AND key >= w.low AND key < w.high ORDER BY key LIMIT w.count) r";
const PUT: &str = "INSERT INTO rlock.records AS known (namespace, key, value, pid, started) \
    SELECT $1, w.* FROM unnest($2::bytea[], $3::bytea[], $4::int[], $5::bigint[]) AS w \
    ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, \
    pid = coalesce(excluded.pid, known.pid), started = coalesce(excluded.started, known.started)";
const DELETE: &str = "DELETE FROM rlock.records WHERE namespace = $1 AND key = ANY ($2::bytea[])";
/// A commit that nobody relies on does not wait for the disk. The commit of a grant waits for all
/// that is before it in the log.
const UNFLUSHED: &str = "SET LOCAL synchronous_commit TO off";
const NOTIFY: &str = "SELECT pg_notify(channel, '') FROM unnest($1::text[]) AS channel";

/// How long a client may keep the lock until its next message is there, at first: below a sixth of
/// the shortest ttl. After a transaction that has failed, the next may be slower, since a network
/// may take longer.
const PATIENCE: Duration = Duration::from_millis(150);
/// No client keeps the others of the namespace longer than this, whatever happens to its network.
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// How much longer for each claim, because the operation takes longer.
const PER_CLAIM: Duration = Duration::from_millis(3);
/// How long a statement may take that has the lock, at first.
const STATEMENT: Duration = Duration::from_millis(500);
/// How long a client waits for the lock before it asks again. It keeps nobody waiting meanwhile.
const LOCK_WAIT: &str = "2s";

/// An operation on the table. It may run several times.
pub(super) type Run<T> = Box<dyn Fn(&mut Work) -> Result<T, Stop>>;

/// What an operation does, without the transaction around it.
pub(super) struct Task<T> {
    /// The session of this process that asks.
    pub(super) caller: Option<SessionId>,
    /// All sessions of this process, in order.
    pub(super) own: Vec<SessionId>,
    /// The rows that it will read, as far as is known.
    pub(super) ranges: Vec<Range>,
    /// The resources whose waiters may be granted something.
    pub(super) frees: Vec<Resource>,
    /// How many claims the session has.
    pub(super) claims: u32,
    /// A statement whose only row the operation gets as texts.
    pub(super) tells: Option<&'static str>,
    /// Whether it changes nothing, so that a role without rights may ask.
    pub(super) only_reads: bool,
    /// Whether the copies of the transaction are asked for.
    pub(super) wants_copies: bool,
    /// Whether it asks for the room that the server has for connections.
    pub(super) wants_room: bool,
    /// What becomes of the session's channel.
    pub(super) channel: Channel,
    /// The operation, which runs again if it lacks rows.
    pub(super) run: Run<T>,
}

/// What becomes of the channel of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// It stays as it is.
    Stays,
    /// The session listens to it from now on.
    Begins,
    /// The session does not listen to it any more.
    Ends,
}

/// The channel of a session.
pub(super) fn channel(session: SessionId) -> String {
    format!("rlock:{session}")
}

/// The copies of a transaction that were there before its commit was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// The number of standbys that have it on their disks.
    pub(super) standbys: u32,
    /// Whether the disk of the server has it.
    pub(super) on_disk: bool,
}

/// The room that a server has for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// The most connections that it lets in.
    pub(super) limit: u32,
    /// The sessions of the namespace.
    pub(super) sessions: u32,
}

/// The backend that carries out a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) pid: i32,
    pub(super) started: i64,
}

/// A transaction.
pub(super) struct Step<T> {
    task: Task<T>,
    namespace: Arc<str>,
    /// The pid that the server has told at the login. A pooler tells another.
    login_pid: i32,
    patience: Duration,
    /// How long each of its statements may take.
    statement: Duration,
    rows: Rows,
    /// How often the operation has named rows that are missing.
    reads: u32,
    /// The ranges that are asked for, and their rows so far.
    asked: Vec<(Range, Vec<Row>)>,
    /// The statements that are not carried out yet, and what they answer.
    awaited: VecDeque<Part>,
    clock: StoreTime,
    /// The pid of the backend that has the lock, and of the one that has answered the last read.
    writer: Option<i32>,
    reader: Option<i32>,
    /// The backend, if no pooler is between.
    backend: Option<Backend>,
    tables: Option<i64>,
    told: Vec<String>,
    copies: Copies,
    room: Option<Room>,
    phase: Phase<T>,
    error: Option<ServerError>,
    /// Whether the namespace has a row.
    is_known: bool,
    /// Whether the waiters are told. A full queue of notices lets no transaction be committed.
    notifies: bool,
    /// The ways to make the tables that this client has not tried yet.
    makes: &'static [&'static str],
    /// How often the wait for the lock was too long, and began again.
    retries: u32,
    /// The foreign lock on a table, in words.
    blocker: Option<String>,
}

/// What a statement answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    Timeouts,
    Format,
    Time,
    Told,
    Copies,
    Room,
    Blocker,
    Rows,
}

enum Phase<T> {
    Reading,
    /// The result counts once the transaction is committed.
    Committing(T),
    /// The transaction has failed, and is rolled back.
    Undoing,
    /// The tables are being made.
    Creating,
}

/// How far a transaction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stands {
    /// How often the server has answered that a crowd waits for the lock of the namespace.
    pub(super) retries: u32,
    /// Whether the client has the lock.
    pub(super) has_lock: bool,
    /// Whether the server may have committed it.
    pub(super) may_be_committed: bool,
}

/// What is known of a transaction that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Committed {
    /// The backend, if it is that of this connection alone.
    pub(super) backend: Option<Backend>,
    /// The number of the tables, which is another after they were dropped and made or restored.
    pub(super) tables: Option<i64>,
    /// The copies, if they were asked for.
    pub(super) copies: Copies,
    /// The room for connections, if it was asked for.
    pub(super) room: Option<Room>,
}

/// What follows from a message.
pub(super) enum Progress<T> {
    /// More messages have to come.
    Nothing,
    /// This has to be sent.
    Send(BytesMut),
    /// The transaction is committed.
    Done(T, Committed),
    /// The transaction has changed nothing.
    Failed(ErrorKind),
}

impl<T> Step<T> {
    /// A transaction over a connection whose login has told `login_pid`. `failures` counts those in
    /// a row that came before.
    pub(super) fn new(task: Task<T>, namespace: Arc<str>, login_pid: i32, failures: u32) -> Self {
        let grown = |first: Duration| {
            let longer = PER_CLAIM.saturating_mul(task.claims);
            first.saturating_mul(3_u32.saturating_pow(failures)).saturating_add(longer).min(PATIENCE_MAX)
        };
        Self {
            namespace,
            login_pid,
            patience: grown(PATIENCE),
            statement: grown(STATEMENT),
            task,
            rows: Rows::default(),
            reads: 0,
            asked: Vec::new(),
            awaited: VecDeque::new(),
            clock: StoreTime::default(),
            writer: None,
            reader: None,
            backend: None,
            tables: None,
            told: Vec::new(),
            copies: Copies::default(),
            room: None,
            phase: Phase::Reading,
            error: None,
            is_known: false,
            notifies: true,
            makes: MAKES,
            retries: 0,
            blocker: None,
        }
    }

    /// The foreign lock on a table, in words, once after each wait for the table.
    pub(super) fn take_blocker(&mut self) -> Option<String> {
        self.blocker.take()
    }

    /// The task, for another attempt.
    pub(super) fn into_task(self) -> Task<T> {
        self.task
    }

    /// How far the transaction has come.
    pub(super) fn stands(&self) -> Stands {
        let may_be_committed = matches!(self.phase, Phase::Committing(_)) && !self.task.only_reads;
        Stands { retries: self.retries, has_lock: self.writer.is_some(), may_be_committed }
    }

    /// Begins the transaction.
    pub(super) fn begin(&mut self) -> BytesMut {
        let mut out = String::new();
        (self.rows, self.reads, self.phase, self.writer) = (Rows::default(), 0, Phase::Reading, None);
        let idle = format!("{}ms", self.patience.as_millis());
        self.add(if self.task.only_reads { BEGIN_READ } else { BEGIN }, &[], Part::Nothing, &mut out);
        self.add(TIMEOUTS, &[wire::text(&idle), wire::text(LOCK_WAIT)], Part::Timeouts, &mut out);
        if !self.task.only_reads {
            self.add(LOCK_TABLE, &[], Part::Nothing, &mut out);
        }
        self.lock_and_read(&mut out);
        wire::query(&out)
    }

    fn lock_and_read(&mut self, out: &mut String) {
        self.is_known = self.task.only_reads;
        let lock = if self.task.only_reads { FORMAT_ALONE } else { LOCK };
        self.add(lock, &[wire::text(&self.namespace)], Part::Format, out);
        let statement = format!("{}ms", self.statement.as_millis());
        self.add(TIME, &[wire::text(&statement)], Part::Time, out);
        if self.task.wants_copies {
            self.add(COPIES, &[], Part::Copies, out);
        }
        if self.task.wants_room {
            self.add(ROOM, &[wire::text(&self.namespace)], Part::Room, out);
        }
        if let Some(statement) = self.task.tells {
            self.add(statement, &[], Part::Told, out);
        }
        self.read(self.task.ranges.clone(), out);
    }

    fn read(&mut self, ranges: Vec<Range>, out: &mut String) {
        let literals = [
            wire::text(&self.namespace),
            wire::keys(ranges.iter().map(|range| range.low.as_slice())),
            wire::keys(ranges.iter().map(|range| range.high.as_slice())),
            wire::numbers(ranges.iter().map(|range| i64::try_from(range.count).ok())),
        ];
        self.add(READ, &literals, Part::Rows, out);
        self.asked = ranges.into_iter().map(|range| (range, Vec::new())).collect();
        self.reader = None;
    }

    fn add(&mut self, sql: &str, literals: &[String], part: Part, out: &mut String) {
        wire::statement(sql, literals, out);
        self.awaited.push_back(part);
    }

    /// Takes in an error, which ends what was sent.
    pub(super) fn on_error(&mut self, error: ServerError) {
        self.error.get_or_insert(error);
    }

    /// Takes in a message.
    pub(super) fn on(&mut self, message: Message) -> Progress<T> {
        let done = match message {
            Message::DataRow(row) => wire::columns(&row).and_then(|columns| self.on_row(&columns)),
            Message::CommandComplete(_) => {
                self.awaited.pop_front();
                Ok(())
            }
            Message::ReadyForQuery(body) => return self.on_ready(body.status()),
            // Somebody has ended the wait for the standbys.
            Message::NoticeResponse(_) if matches!(self.phase, Phase::Committing(_)) => {
                self.copies.standbys = 0;
                Ok(())
            }
            _ => Ok(()),
        };
        done.map_or_else(Progress::Failed, |()| Progress::Nothing)
    }

    fn on_row(&mut self, columns: &[Option<&[u8]>]) -> Result<(), ErrorKind> {
        match (self.awaited.front(), columns) {
            (Some(Part::Timeouts), [is_pglite, ..]) if wire::number(*is_pglite) != Some(0) => {
                return Err(ErrorKind::OneClient);
            }
            (Some(Part::Format), [format]) => match wire::number::<i64>(*format) {
                Some(format) if format == i64::from(FORMAT) => self.is_known = true,
                Some(other) => return Err(ErrorKind::OtherFormat(other.to_string())),
                None => return Err(ErrorKind::UnexpectedReply),
            },
            (Some(Part::Time), [clock, pid, started, recovers, _, tables]) => {
                self.clock = StoreTime::from_micros(wire::number(*clock).ok_or(ErrorKind::UnexpectedReply)?);
                self.writer = wire::number(*pid);
                self.tables = wire::number(*tables);
                let pid = self.writer.filter(|pid| *pid == self.login_pid);
                self.backend = pid.zip(wire::number(*started)).map(|(pid, started)| Backend { pid, started });
                if wire::number(*recovers) != Some(0) {
                    return Err(ErrorKind::ReadOnly);
                }
            }
            (Some(Part::Copies), [Some(names), fsync, _]) => {
                let standbys = standbys(&String::from_utf8_lossy(names));
                self.copies = Copies { standbys, on_disk: *fsync == Some(b"on") };
            }
            (Some(Part::Room), [limit, sessions]) => {
                let room = wire::number(*limit).zip(wire::number(*sessions));
                self.room = room.map(|(limit, sessions)| Room { limit, sessions });
            }
            (Some(Part::Blocker), [Some(blocker)]) => {
                self.blocker = Some(String::from_utf8_lossy(blocker).into_owned());
            }
            (Some(Part::Told), columns) => {
                let text = |column: &Option<&[u8]>| String::from_utf8_lossy(column.unwrap_or_default()).into_owned();
                self.told = columns.iter().map(text).collect();
            }
            (Some(Part::Rows), [number, key, value, last]) => {
                let (number, last) = (wire::number::<usize>(*number), wire::number(*last));
                if number == Some(0) {
                    self.reader = last;
                    return Ok(());
                }
                let range = number.and_then(|number| self.asked.get_mut(number.checked_sub(1)?));
                let (Some((_, rows)), Some(key), Some(value)) = (range, wire::bytes(*key), wire::bytes(*value)) else {
                    return Err(ErrorKind::UnexpectedReply);
                };
                let backend = match last {
                    Some(0) => Named::Alive,
                    Some(1) => Named::Gone,
                    _ => Named::Nobody,
                };
                rows.push(Row { key, value, backend });
            }
            _ => {}
        }
        Ok(())
    }

    /// The server has carried out all that was sent. `status` tells whether a transaction is open,
    /// and whether it has failed.
    fn on_ready(&mut self, status: u8) -> Progress<T> {
        self.awaited.clear();
        if let Some(error) = self.error.as_ref().filter(|_| status != b'I' && !matches!(self.phase, Phase::Undoing)) {
            let (mut out, has_waited) = (String::new(), error.code == LOCK_TIMEOUT);
            self.phase = Phase::Undoing;
            self.add("ROLLBACK", &[], Part::Nothing, &mut out);
            if has_waited {
                self.add(BLOCKER, &[], Part::Blocker, &mut out);
            }
            return Progress::Send(wire::query(&out));
        }
        // The error that was rolled back is still to be judged.
        let error = self.error.take();
        match (std::mem::replace(&mut self.phase, Phase::Reading), error) {
            (phase, Some(error)) => self.on_failed(&error, matches!(phase, Phase::Creating)),
            (Phase::Reading, None) => self.run(),
            (Phase::Committing(result), None) => {
                let Self { backend, tables, copies, room, .. } = *self;
                Progress::Done(result, Committed { backend, tables, copies, room })
            }
            (Phase::Creating | Phase::Undoing, None) => Progress::Send(self.begin()),
        }
    }

    /// The transaction has failed and changed nothing. `creates` tells whether it was to make the
    /// tables.
    fn on_failed(&mut self, error: &ServerError, creates: bool) -> Progress<T> {
        let code = error.code.as_str();
        match ErrorKind::from_server(error) {
            // Another client makes the tables.
            _ if creates && IS_MADE.contains(&code) => Progress::Send(self.begin()),
            ErrorKind::NoRight(_) if creates => self.make(),
            ErrorKind::NoTables => self.make(),
            // The waiters find out at their heartbeats.
            _ if code == TOO_MANY_NOTICES && std::mem::take(&mut self.notifies) => Progress::Send(self.begin()),
            // A crowd waits for the lock, and this client asks again.
            _ if RETRIED.contains(&code) => {
                self.retries += 1;
                Progress::Send(self.begin())
            }
            kind => Progress::Failed(kind),
        }
    }

    /// Makes the tables in the next of the ways. After the last one, the role may use the tables if
    /// there were any, but not make them.
    fn make(&mut self) -> Progress<T> {
        let Some((statements, left)) = self.makes.split_first() else { return Progress::Failed(ErrorKind::NoTables) };
        (self.phase, self.makes) = (Phase::Creating, left);
        Progress::Send(wire::query(statements))
    }

    /// Runs the operation over the rows.
    fn run(&mut self) -> Progress<T> {
        let mut out = String::new();
        if self.reader.is_none() || self.reader != self.writer {
            return Progress::Failed(ErrorKind::SplitReads);
        }
        if !self.is_known {
            let literals = [wire::text(&self.namespace), FORMAT.to_string()];
            self.add(NEW_NAMESPACE, &literals, Part::Nothing, &mut out);
            self.lock_and_read(&mut out);
            return Progress::Send(wire::query(&out));
        }
        for (range, mut rows) in std::mem::take(&mut self.asked) {
            rows.sort_unstable();
            self.rows.fetch(range, rows);
        }
        self.rows.reset();
        let ran = Work::new(self.rows.clone(), self.clock, self.task.caller).and_then(|mut work| {
            (work.told, work.is_pooled) = (self.told.clone(), self.backend.is_none());
            work.own = self.task.own.clone();
            work.prepare(&self.task.frees)?;
            Ok(((self.task.run)(&mut work)?, work))
        });
        match ran {
            Err(Stop::Damaged) => Progress::Failed(ErrorKind::Damaged),
            Err(Stop::Missing(ranges)) => {
                self.reads += 1;
                self.read(widened(ranges, self.reads), &mut out);
                Progress::Send(wire::query(&out))
            }
            Ok((result, work)) => {
                let is_relied_on = work.is_relied_on;
                let (rows, woken) = work.into_parts();
                self.commit(&rows, woken.into_iter().map(channel).collect(), is_relied_on, &mut out);
                self.phase = Phase::Committing(result);
                Progress::Send(wire::query(&out))
            }
        }
    }

    fn commit(&mut self, rows: &Rows, channels: Vec<String>, is_relied_on: bool, out: &mut String) {
        if !self.task.only_reads {
            let (put, removed): (Vec<_>, Vec<_>) = rows.changes().into_iter().partition(|(_, value)| value.is_some());
            let changes = !put.is_empty() || !removed.is_empty();
            if changes && !is_relied_on {
                self.add(UNFLUSHED, &[], Part::Nothing, out);
            }
            let own = self.task.caller.filter(|_| self.task.channel == Channel::Begins).map(session_key);
            let backend = |key: &[u8]| self.backend.filter(|_| own.as_deref() == Some(key));
            if !put.is_empty() {
                let literals = [
                    wire::text(&self.namespace),
                    wire::keys(put.iter().map(|(key, _)| *key)),
                    wire::keys(put.iter().filter_map(|(_, value)| *value)),
                    wire::numbers(put.iter().map(|(key, _)| backend(key).map(|backend| backend.pid))),
                    wire::numbers(put.iter().map(|(key, _)| backend(key).map(|backend| backend.started))),
                ];
                self.add(PUT, &literals, Part::Nothing, out);
            }
            if !removed.is_empty() {
                let literals = [wire::text(&self.namespace), wire::keys(removed.into_iter().map(|(key, _)| key))];
                self.add(DELETE, &literals, Part::Nothing, out);
            }
            if !channels.is_empty() && self.notifies {
                self.add(NOTIFY, &[wire::array(channels)], Part::Nothing, out);
            }
            // Behind a pooler it would stick to the backend of somebody else.
            let word = match self.task.channel {
                Channel::Begins => "LISTEN",
                Channel::Ends => "UNLISTEN",
                Channel::Stays => "",
            };
            if let Some(session) = self.task.caller.filter(|_| !word.is_empty() && self.backend.is_some()) {
                self.add(&format!("{word} \"{}\"", channel(session)), &[], Part::Nothing, out);
            }
        }
        self.add("COMMIT", &[], Part::Nothing, out);
    }
}

/// The number of standbys for which a commit waits, by the setting `synchronous_standby_names`.
pub(super) fn standbys(names: &str) -> u32 {
    let number = names.trim().trim_start_matches(|c: char| c.is_ascii_alphabetic()).trim_start();
    match (names.trim(), number.split_once('(')) {
        ("", _) => 0,
        // As in ANY 2 (a, b, c), FIRST 2 (a, b, c) and 2 (a, b, c).
        (_, Some((number, _))) => number.trim().parse().unwrap_or(1),
        // Of a list alone, the first that is there.
        _ => 1,
    }
}

/// A table or a schema is there, or its making has met another client that makes it.
const IS_MADE: [&str; 4] = ["23505", "42P06", "42P07", "XX000"];
const TOO_MANY_NOTICES: &str = "54000";
const LOCK_TIMEOUT: &str = "55P03";
/// The wait for the lock has timed out, or the server has chosen this transaction among two.
const RETRIED: [&str; 3] = [LOCK_TIMEOUT, "40001", "40P01"];

#[cfg(test)]
mod tests;
