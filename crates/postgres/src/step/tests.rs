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

/// The statements in what is sent, without their values.
fn statements(sent: &[u8]) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), sent);
    while let [tag, a, b, c, d, ..] = rest {
        let (this, behind) = rest.split_at(1 + u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        let text = |from: usize| String::from_utf8_lossy(&this[from..]).split('\0').next().unwrap().to_owned();
        match tag {
            b'P' => found.push(text(6)),
            b'Q' => found.push(text(5)),
            _ => {}
        }
        rest = behind;
    }
    found
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
    for _ in 0..2 {
        let _ = step.on(done());
    }
    if has_namespace {
        let _ = step.on(row(&[&4_i32.to_be_bytes()]));
    }
    let _ = step.on(done());
    let clock = 1_800_000_000_000_000_i64.to_be_bytes();
    let _ = step.on(row(&[
        &clock,
        &pid.to_be_bytes(),
        &5_i64.to_be_bytes(),
        &0_i32.to_be_bytes(),
        b"500ms",
        &9_i64.to_be_bytes(),
    ]));
    let _ = step.on(done());
    let _ = step.on(done());
    step.on(ready(b'T'))
}

/// "The lock is a statement of its own, and the reads are later statements."
#[test]
fn lock_precedes_the_time_and_the_reads_in_the_first_message() {
    let mut step = step(false, waking());
    assert_eq!(statements(&step.begin()), [BEGIN, TIMEOUTS, LOCK, TIME, READ]);
    assert!(!step.may_be_committed());
    assert_eq!(sent(answer(&mut step, PID, true)), [NOTIFY, &format!("LISTEN \"rlock:{ID}\""), "COMMIT"]);
    assert!(step.may_be_committed());
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
            let _ = step.on(done());
            progress = step.on(ready(b'T'));
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
    let _ = step.on(done());
    assert_eq!(sent(step.on(ready(b'T'))).last().map(String::as_str), Some("COMMIT"));
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
        assert_eq!(sent(step.on(ready(b'E'))), ["ROLLBACK"], "{code}");
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
    for _ in 0..2 {
        let _ = one.on(done());
    }
    assert!(
        matches!(one.on(row(&[&9_i32.to_be_bytes()])), Progress::Failed(ErrorKind::OtherFormat(format)) if format == "9")
    );
    let _ = one.on(done());
    let (long, int) = (1_i64.to_be_bytes(), 1_i32.to_be_bytes());
    assert!(matches!(one.on(row(&[&long, &int, &long, &int, b"", &long])), Progress::Failed(ErrorKind::ReadOnly)));
}

/// "Together below a sixth of the shortest ttl", and more for those that have failed.
#[test]
fn patience_grows_with_failures_and_claims() {
    let patience = |claims, failures| {
        let mut task = step(false, waking()).into_task();
        task.claims = claims;
        Step::new(task, "n".into(), PID, failures).patience.as_millis()
    };
    assert_eq!([0, 1, 2, 9].map(|failures| patience(0, failures)), [150, 450, 1350, 1500]);
    assert_eq!(patience(1000, 0), 3150);
    assert!(patience(1, 0) < 1000 / 6);
}
