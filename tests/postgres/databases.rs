//! Databases that are dropped, restored and copied while they have locks.

use std::process::Stdio;

use rlock_testkit::needs::skip_unless;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::{Lab, Ran, Running, wait_until};

/// What a loss of the tables is called.
const NEW: &str = "its tables are new: the database was dropped or restored";

/// A server with the database `ops`, and a lab that locks there.
fn ops() -> (Postgres, Lab) {
    let server = Postgres::start(&[]);
    server.ask("create database ops");
    let lab = Lab::at(in_database(&server, "ops"));
    (server, lab)
}

fn in_database(server: &Postgres, name: &str) -> String {
    server.url().replace("/postgres?", &format!("/{name}?"))
}

/// What psql says of statements in a database, and whether it obeys.
fn psql(server: &Postgres, database: &str, statements: &[&str]) -> Result<String, String> {
    let mut psql = server.psql();
    psql.args(["-v", "ON_ERROR_STOP=1", "-d", database]);
    psql.args(statements.iter().flat_map(|statement| ["-c", statement]));
    let output = psql.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("psql runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// What a holder says that ends before its input does.
fn ended(mut holder: Running) -> Ran {
    wait_until("the holder ends", || !holder.runs());
    holder.end()
}

/// "dropdb(1) without --force fails because of rlock's own session, and a command whose store is
/// dropped loses its lock."
#[test]
fn dropped_database_is_refused_without_force_and_told_to_the_holder_with_it() {
    skip_unless!(Postgres::is_present());
    let (server, lab) = ops();
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let refused = psql(&server, "postgres", &["drop database ops"]).expect_err("rlock has sessions");
    assert!(refused.contains("is being accessed by other users"), "{refused}");
    psql(&server, "postgres", &["drop database ops with (force)", "create database ops"]).expect("a superuser may");
    let lost = ended(holder);
    assert!(lost.failed(76).contains(NEW), "{lost:?}");
    // The waiter ends if it asks while there is no database.
    assert!([Some(0), Some(69)].contains(&waiter.end().code()));
    lab.assert_idle();
}

/// "its tables are new": as after `pg_restore --clean` of a dump that has rlock's schema.
#[test]
fn restored_tables_are_told_to_the_holder_at_its_renewal() {
    skip_unless!(Postgres::is_present());
    let (server, lab) = ops();
    let holder = lab.hold_by(["exec", "--ttl", "3s", "k"]);
    psql(&server, "ops", &["drop schema rlock cascade"]).expect("a superuser may");
    let lost = ended(holder);
    assert!(lost.failed(76).contains(NEW), "{lost:?}");
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

/// A lock that somebody breaks is no sign of new tables.
#[test]
fn broken_lock_is_not_blamed_on_the_tables() {
    skip_unless!(Postgres::is_present());
    let (_server, lab) = ops();
    let holder = lab.hold("k");
    assert_eq!(lab.run(["break", "--now", "k"]).code(), Some(0));
    let lost = ended(holder);
    assert!(!lost.failed(76).contains(NEW), "{lost:?}");
}

/// "In the copy, leases end within their ttl … A hold that is kept … stays until its end,
/// rlock-release(1) or rlock-break(1). … one line empties a copy."
#[test]
fn copy_of_a_database_keeps_the_kept_holds_alone_and_is_emptied_by_one_line() {
    skip_unless!(Postgres::is_present());
    let (server, lab) = ops();
    assert_eq!(lab.run(["acquire", "--for", "1h", "kept"]).code(), Some(0));
    // A template must have no session, and a holder has none for a while where they are few.
    server.ask("alter role tester connection limit 3");
    let holder = lab.hold_by(["exec", "--ttl", "21s", "leased"]);
    let sessions = "select count(*) from pg_stat_activity where datname = 'ops'";
    wait_until("the holder has no connection", || server.ask(sessions) == "0");
    server.ask("create database copy with template ops");
    server.ask("create database second with template copy");
    let [copy, second] =
        ["copy", "second"].map(|name| Lab::at(in_database(&server, name)).with("RLOCK_NAMESPACE", lab.namespace()));
    copy.run(["exec", "-n", "kept", "--", "true"]).busy();
    copy.run(["exec", "-w", "60s", "leased", "--", "true"]).silently(0);
    copy.run(["exec", "-n", "kept", "--", "true"]).busy();
    assert_eq!(copy.run(["break", "kept"]).code(), Some(0));
    copy.run(["exec", "-n", "kept", "--", "true"]).silently(0);

    let page = include_str!("../../src/cli/pages/postgres.txt");
    let line = page.lines().find_map(|line| line.trim().strip_prefix("psql -d copy -c '")).expect("the page has it");
    psql(&server, "second", &[line.trim_end_matches('\'')]).expect("a superuser may");
    second.run(["exec", "-n", "kept", "leased", "--", "true"]);
    second.assert_idle();

    // The original has its locks.
    lab.run(["exec", "-n", "kept", "--", "true"]).busy();
    holder.end().silently(0);
}
