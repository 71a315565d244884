//! What a role may do.

use rlock_testkit::Lab;
use rlock_testkit::needs::skip_unless;
use rlock_testkit::servers::postgres::Postgres;

/// "Schema rlock, made at first use where the role may; otherwise 69 and the SQL."
#[test]
fn role_that_may_make_no_tables_is_told_the_statements_and_uses_them_later() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    server.ask("create role locks login");
    server.ask("create role looks login");
    let [lab, looks] = ["locks", "looks"].map(|role| Lab::at(server.url().replace("tester", role)));
    let looks = looks.with("RLOCK_NAMESPACE", lab.namespace());
    let said = lab.run(["exec", "k", "--", "true"]);
    let (_, statements) = said.failed(69).split_once("let a role that may run this: ").expect("the statements");
    statements.trim().split("; ").for_each(|statement| drop(server.ask(statement)));
    let said = lab.run(["exec", "k", "--", "true"]);
    assert!(said.failed(69).contains("rights that rlock-postgres(7) lists"), "{said:?}");
    server.ask("grant usage on schema rlock to locks, looks");
    server.ask("grant select on all tables in schema rlock to looks");
    server.ask("grant select, insert, update, delete on all tables in schema rlock to locks");
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let holder = lab.hold("k");
    assert_eq!(looks.counts("k"), (1, 0));
    assert!(looks.run(["history", "k"]).stdout.contains("exit 0"));
    let said = looks.run(["exec", "-n", "j", "--", "true"]);
    assert!(said.failed(69).contains("does not let this role do what it has to"), "{said:?}");
    let said = looks.run(["doctor"]).stdout;
    assert!(said.contains("other users than 'looks', which may look at locks and take none"), "{said}");
    assert!(!said.contains("may take and break any lock"), "{said}");
    assert!(lab.run(["doctor"]).stdout.contains("may take and break any lock"));
    holder.end().silently(0);
}

/// An administrator may make the schema, and leave the tables to the role.
#[test]
fn role_that_owns_the_schema_makes_the_tables() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    server.ask("create role locks login");
    server.ask("create schema rlock authorization locks");
    Lab::at(server.url().replace("tester", "locks")).run(["exec", "k", "--", "true"]).silently(0);
}

/// The server, the role and the database may each limit the connections.
#[test]
fn limit_of_connections_is_told_in_the_words_of_the_server() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    Lab::at(server.url()).run(["exec", "k", "--", "true"]).silently(0);
    server.ask("create role locks login connection limit 0");
    let said = Lab::at(server.url().replace("tester", "locks")).run(["inspect"]);
    assert!(
        said.failed(69).contains(r#"takes no more clients: too many connections for role "locks"; raise"#),
        "{said:?}"
    );
}

/// The records of a later version are not touched.
#[test]
fn namespace_of_another_format_is_refused() {
    let Some(lab) = Lab::on_postgres() else { return };
    lab.run(["exec", "k", "--", "true"]).silently(0);
    Postgres::shared().ask(&format!("update rlock.namespaces set format = 9 where name = '{}'", lab.namespace()));
    for words in [&["exec", "k", "--", "true"][..], &["inspect"]] {
        let said = lab.run(words);
        assert!(said.failed(69).contains("keeps the namespace in format 9, and this rlock knows format 4"), "{said:?}");
    }
}
