//! Transactions against the messages that a server would send.

use super::super::work::ranges;
use super::*;
use rlock_model::lease::Lease;
use rlock_model::mode::Mode;
use rlock_model::op::{Op, Reply};
use rlock_model::records::Records as _;
use rlock_model::request::{Claim, Job, Process, Request};
use rlock_model::span::Span;
use rlock_store::engine::Engine as _;

const PID: i32 = 7;
const ID: SessionId = SessionId([1; 16]);

fn step(only_reads: bool, run: Run<Reply>) -> Step<Reply> {
    let resource = Resource::new("k").unwrap();
    let task = Task {
        caller: Some(ID),
        own: vec![ID],
        ranges: ranges([&resource], [ID]),
        frees: Vec::new(),
        claims: 1,
        tells: None,
        only_reads,
        wants_copies: false,
        wants_room: false,
        channel: Channel::Begins,
        run,
    };
    Step::new(task, "n".into(), PID, 0)
}

/// An operation that wakes a session.
fn waking() -> Run<Reply> {
    Box::new(|work| {
        work.wake(SessionId([2; 16]));
        work.apply(Op::Renew(ID))
    })
}

fn message(tag: u8, body: &[u8]) -> Message {
    let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    Message::parse(&mut BytesMut::from(&[&[tag], &len[..], body].concat()[..])).unwrap().unwrap()
}

fn row(columns: &[&[u8]]) -> Message {
    let mut body = u16::try_from(columns.len()).unwrap().to_be_bytes().to_vec();
    for column in columns {
        body.extend(u32::try_from(column.len()).unwrap().to_be_bytes());
        body.extend_from_slice(column);
    }
    message(b'D', &body)
}

fn done() -> Message {
    message(b'C', b"SELECT 1\0")
}

fn ready(status: u8) -> Message {
    message(b'Z', &[status])
}

fn error(code: &str) -> ServerError {
    ServerError { code: code.to_owned(), text: "something".to_owned(), is_fatal: false }
}

/// The statements in what is sent, which is one Query: the server has all of it before it begins. A
/// statement with literals is shown without them, as the constant that it was made of.
fn statements(sent: &[u8]) -> Vec<String> {
    let (tag, len) = (sent[0], u32::from_be_bytes(sent[1..5].try_into().unwrap()) as usize);
    assert_eq!((tag, 1 + len), (b'Q', sent.len()), "a message is one Query");
    let text = std::str::from_utf8(&sent[5..len]).unwrap();
    if MAKES.contains(&text) {
        return vec![text.to_owned()];
    }
    let known = [TIMEOUTS, LOCK, FORMAT_ALONE, TIME, READ, NEW_NAMESPACE, PUT, DELETE, NOTIFY];
    let ends =
        |known: &str| (known.split('$').next().unwrap().to_owned(), known.rsplit('$').next().unwrap()[1..].to_owned());
    let shown = |statement: &str| {
        let is_of = |known: &&&str| {
            let (start, end) = ends(known);
            statement.starts_with(&start) && statement.ends_with(&end)
        };
        known.iter().filter(is_of).max_by_key(|known| known.len()).map_or(statement, |known| known).to_owned()
    };
    text.trim_end_matches("; ").split("; ").map(shown).collect()
}

fn sent(progress: Progress<Reply>) -> Vec<String> {
    match progress {
        Progress::Send(bytes) => statements(&bytes),
        Progress::Nothing => panic!("nothing is sent"),
        Progress::Done(reply, _) => panic!("it is done: {reply:?}"),
        Progress::Failed(kind) => panic!("it has failed: {kind:?}"),
    }
}

/// Answers the first message, where no row of the namespace's records is there, by a backend with
/// this pid.
fn answer(step: &mut Step<Reply>, pid: i32, has_namespace: bool) -> Progress<Reply> {
    answer_split(step, pid, has_namespace, Some(pid))
}

/// Does the same, and lets another backend answer the read.
fn answer_split(step: &mut Step<Reply>, pid: i32, has_namespace: bool, reader: Option<i32>) -> Progress<Reply> {
    let _ = step.on(done());
    let _ = step.on(row(&[b"0", b"off"]));
    let _ = step.on(done());
    if !step.task.only_reads {
        let _ = step.on(done());
    }
    if has_namespace {
        let _ = step.on(row(&[b"4"]));
    }
    let _ = step.on(done());
    let _ = step.on(row(&[b"1800000000000000", pid.to_string().as_bytes(), b"5", b"0", b"500ms", b"9"]));
    let _ = step.on(done());
    read(step, reader)
}

/// Answers a read that finds no row.
fn read(step: &mut Step<Reply>, reader: Option<i32>) -> Progress<Reply> {
    if let Some(pid) = reader {
        let _ = step.on(row(&[b"0", b"", b"", pid.to_string().as_bytes()]));
    }
    let _ = step.on(done());
    step.on(ready(b'T'))
}

/// "The lock is a statement of its own, and the reads are later statements."
#[test]
fn lock_precedes_the_time_and_the_reads_in_the_first_message() {
    let mut step = step(false, waking());
    assert_eq!(statements(&step.begin()), [BEGIN, TIMEOUTS, LOCK_TABLE, LOCK, TIME, READ]);
    assert!(!step.stands().may_be_committed);
    assert_eq!(sent(answer(&mut step, PID, true)), [NOTIFY, &format!("LISTEN \"rlock:{ID}\""), "COMMIT"]);
    assert!(step.stands().may_be_committed);
    let Progress::Done(reply, committed) = step.on(ready(b'I')) else { panic!("it is committed") };
    assert_eq!((reply, committed.backend), (Reply::Unknown, Some(Backend { pid: PID, started: 5 })));
}

/// "Only what must not be lost waits for the disk": grants, and what frees the lock for nobody.
#[test]
fn commit_waits_for_the_disk_if_somebody_relies_on_it() {
    let request = |id: u8, waits| {
        let claim = Claim { resource: Resource::new("k").unwrap(), mode: Mode::Write, span: Span::Whole, slots: None };
        let terms = Some(Lease::new(Duration::from_secs(30)).terms());
        let process = Process::default();
        let (session, job) = (SessionId([id; 16]), Job::default());
        Request { session, ancestors: Vec::new(), claims: vec![claim], terms, job, process, wait: waits }
    };
    let flushes = |asks: &[u8], releases: bool| {
        let asks: Vec<_> = asks.iter().map(|id| request(*id, true)).collect();
        let run = move |work: &mut Work| {
            let mut reply = Reply::Done;
            for request in &asks {
                work.is_relied_on = false;
                reply = work.apply(Op::Acquire { request: request.clone(), place: None })?;
            }
            if releases {
                work.is_relied_on = false;
                reply = work.apply(Op::Release { session: asks[0].session, end: None })?;
            }
            Ok(reply)
        };
        let mut step = step(false, Box::new(run));
        step.begin();
        let mut progress = answer(&mut step, PID, true);
        loop {
            let sent = sent(progress);
            if sent.last().is_some_and(|last| last == "COMMIT") {
                return !sent.iter().any(|statement| statement == UNFLUSHED);
            }
            progress = read(&mut step, Some(PID));
        }
    };
    assert!(flushes(&[1], false), "a grant");
    assert!(!flushes(&[1, 2], false), "a request that is queued");
    assert!(flushes(&[1], true), "a release");
    assert!(!flushes(&[1, 2], true), "a release that grants, since the claim follows");
}

/// "A pooler is found before LISTEN."
#[test]
fn client_of_a_pooler_does_not_listen() {
    let mut step = step(false, waking());
    step.begin();
    assert_eq!(sent(answer(&mut step, PID + 1, true)), [NOTIFY, "COMMIT"]);
    assert!(matches!(step.on(ready(b'I')), Progress::Done(_, Committed { backend: None, .. })));
}

/// By PostgreSQL's documentation of synchronous_standby_names.
#[test]
fn setting_tells_for_how_many_standbys_a_commit_waits() {
    for (names, expected) in [
        ("", 0),
        ("one", 1),
        ("one, two", 1),
        ("*", 1),
        ("2 (one, two, three)", 2),
        ("FIRST 1 (one, two)", 1),
        ("ANY 2 (one, two, three)", 2),
        ("any 3(one,two,three)", 3),
        ("\"ANY\"", 1),
    ] {
        assert_eq!(standbys(names), expected, "{names}");
    }
}

#[test]
fn first_client_of_a_namespace_makes_its_row_and_locks_that() {
    let mut step = step(false, waking());
    step.begin();
    assert_eq!(sent(answer(&mut step, PID, false)), [NEW_NAMESPACE, LOCK, TIME, READ]);
}

#[test]
fn reader_locks_nothing_and_writes_nothing() {
    let mut step = step(true, waking());
    assert_eq!(statements(&step.begin()), [BEGIN_READ, TIMEOUTS, FORMAT_ALONE, TIME, READ]);
    assert_eq!(sent(answer(&mut step, PID, false)), ["COMMIT"]);
}

#[test]
fn operation_that_lacks_rows_fetches_them_and_runs_again() {
    let other = SessionId([9; 16]);
    let mut step =
        step(false, Box::new(move |work| Ok(work.records().session(other)?.map_or(Reply::Unknown, |_| Reply::Done))));
    step.begin();
    assert_eq!(sent(answer(&mut step, PID, true)), [READ]);
    assert_eq!(sent(read(&mut step, Some(PID))).last().map(String::as_str), Some("COMMIT"));
}

/// "A full NOTIFY queue fails no release."
#[test]
fn full_queue_of_notices_leaves_them_out() {
    let mut step = step(false, waking());
    step.begin();
    answer(&mut step, PID, true);
    step.on_error(error(TOO_MANY_NOTICES));
    assert_eq!(sent(step.on(ready(b'I')))[0], BEGIN);
    assert_eq!(sent(answer(&mut step, PID, true)).last().map(String::as_str), Some("COMMIT"));
    assert!(matches!(step.on(ready(b'I')), Progress::Done(..)));
}

#[test]
fn failed_transaction_is_rolled_back_before_anything_else() {
    for (code, follows) in [("55P03", Some(BEGIN)), ("42P01", Some(MAKES[0])), ("25006", None)] {
        let mut step = step(false, waking());
        step.begin();
        step.on_error(error(code));
        assert_eq!(sent(step.on(ready(b'E')))[0], "ROLLBACK", "{code}");
        match (step.on(ready(b'I')), follows) {
            (Progress::Failed(kind), None) => assert_eq!(kind, ErrorKind::ReadOnly),
            (progress, follows) => assert_eq!(sent(progress).first().map(String::as_str), follows, "{code}"),
        }
    }
}

#[test]
fn role_that_may_not_make_the_tables_is_told() {
    let mut step = step(false, waking());
    step.begin();
    step.on_error(error("42P01"));
    step.on(ready(b'E'));
    // The role may own the schema, and not be allowed to make one.
    for statements in MAKES {
        assert_eq!(sent(step.on(ready(b'I'))), [*statements]);
        step.on_error(error("42501"));
    }
    assert!(matches!(step.on(ready(b'I')), Progress::Failed(ErrorKind::NoTables)));
}

#[test]
fn standby_and_another_format_end_the_attempt() {
    let mut one = step(false, waking());
    one.begin();
    for _ in 0..3 {
        let _ = one.on(done());
    }
    assert!(matches!(one.on(row(&[b"9"])), Progress::Failed(ErrorKind::OtherFormat(format)) if format == "9"));
    let _ = one.on(done());
    assert!(matches!(one.on(row(&[b"1", b"1", b"1", b"1", b"", b"1"])), Progress::Failed(ErrorKind::ReadOnly)));
}

/// "A read decides nothing unless the server that has the lock has answered it": a proxy may send
/// it elsewhere, the first one of a transaction or a later one.
#[test]
fn read_that_another_server_answers_ends_the_attempt() {
    let split = |progress| matches!(progress, Progress::Failed(ErrorKind::SplitReads));
    // A standby tells 0 in place of its pid. A proxy may also lose the row.
    for reader in [Some(PID + 1), Some(0), None] {
        for has_namespace in [true, false] {
            let mut one = step(false, waking());
            one.begin();
            assert!(split(answer_split(&mut one, PID, has_namespace, reader)), "{reader:?}");
        }
        let mut later = step(false, Box::new(|work| work.fetch([SessionId([9; 16])]).map(|()| Reply::Done)));
        later.begin();
        assert_eq!(sent(answer(&mut later, PID, true)), [READ]);
        assert!(split(read(&mut later, reader)), "{reader:?}");
    }
}

#[test]
fn pglite_is_refused_before_the_lock() {
    let mut step = step(false, waking());
    step.begin();
    let _ = step.on(done());
    assert!(matches!(step.on(row(&[b"1", b"off"])), Progress::Failed(ErrorKind::OneClient)));
}

/// The errors of two clients that make the tables at once count for the making alone.
#[test]
fn error_after_the_tables_are_made_ends_the_attempt() {
    for code in IS_MADE {
        let mut step = step(false, waking());
        step.begin();
        step.on_error(error("42P01"));
        step.on(ready(b'E'));
        assert_eq!(sent(step.on(ready(b'I'))), [MAKES[0]]);
        step.on_error(error(code));
        assert_eq!(sent(step.on(ready(b'I')))[0], BEGIN);
        step.on_error(error(code));
        assert!(matches!(step.on(ready(b'I')), Progress::Failed(ErrorKind::Other(_))), "{code}");
    }
}

/// A role that may make the tables, and then not use them, is told of its rights.
#[test]
fn role_that_may_not_use_the_tables_is_told() {
    let mut step = step(false, waking());
    step.begin();
    step.on_error(error("42P01"));
    step.on(ready(b'E'));
    step.on(ready(b'I'));
    assert_eq!(sent(step.on(ready(b'I')))[0], BEGIN);
    step.on_error(error("42501"));
    step.on(ready(b'E'));
    assert!(matches!(step.on(ready(b'I')), Progress::Failed(ErrorKind::NoRight(_))));
}

/// "At most 2 seconds", and "together below a sixth of the shortest ttl" at first.
#[test]
fn patience_grows_with_failures_and_claims() {
    let begun = |claims, failures| {
        let mut task = step(false, waking()).into_task();
        task.claims = claims;
        Step::new(task, "n".into(), PID, failures)
    };
    let patience = |claims, failures| begun(claims, failures).patience.as_millis();
    let statement = |claims, failures| begun(claims, failures).statement.as_millis();
    assert_eq!([0, 1, 2, 9].map(|failures| patience(0, failures)), [150, 450, 1350, 2000]);
    assert_eq!([100, 1000].map(|claims| patience(claims, 0)), [450, 2000]);
    assert!(patience(1, 0) < 1000 / 6);
    assert_eq!([0, 1, 9].map(|failures| statement(0, failures)), [500, 1500, 2000]);
    assert_eq!([100, 1000].map(|claims| statement(claims, 0)), [800, 2000]);
}
