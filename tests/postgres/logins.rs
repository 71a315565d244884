//! Passwords and TLS.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::servers::certificates::Certificates;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::{Lab, RLOCK, wait_until};

const ROLES: &str = "create role scram login superuser password 'pa:ss'; set password_encryption = 'md5'; \
    create role old login superuser password 'pa:ss'; create role peered login superuser";

/// Only the tester may log in without a password.
const HBA: &str = "local all tester trust\nlocal all peered peer\nhost all old all md5\nhost all all all scram-sha-256\n\
    local all all scram-sha-256\n";

fn server() -> Option<Postgres> {
    let server = Postgres::is_present().then(|| Postgres::start_on_tcp(&[]))?;
    server.ask(ROLES);
    server.demand(HBA);
    Some(server)
}

/// A nested `downgrade` reads its session and changes it, and `inspect --watch` reads locks and
/// history: each over one connection.
#[test]
fn subcommand_logs_in_once_for_all_its_questions() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&["log_connections=on"]);
    let lab = Lab::at(server.url());
    lab.run(["exec", "k", "--", RLOCK, "downgrade", "read"]).silently(0);
    let logins = || server.log().matches("connection authorized: user=tester database=postgres").count();
    wait_until("the server has logged two logins", || logins() >= 2);
    assert_eq!(logins(), 2, "exec and downgrade log in once each");
}

/// "SCRAM-SHA-256 with channel binding, md5, trust, peer."
#[test]
fn login_has_the_form_that_the_server_demands() {
    let Some(server) = server() else { return };
    let url = |user: &str| server.tcp_url().replace("tester", user);
    for user in ["scram", "old"] {
        let lab = Lab::at(url(user));
        let said = lab.run(["exec", "k", "--", "true"]);
        assert!(said.failed(69).contains("asks for a password; set RLOCK_PASSWORD"), "{said:?}");
        lab.with("RLOCK_PASSWORD", "pa:ss").run(["exec", "k", "--", "true"]).silently(0);
        let wrong = Lab::at(url(user)).with("RLOCK_PASSWORD", "other").run(["exec", "k", "--", "true"]);
        assert!(wrong.failed(69).contains("refused the password, or the user"), "{wrong:?}");
        Lab::at(url(user)).with("PGPASSWORD", "pa:ss").run(["exec", "k", "--", "true"]).silently(0);
    }
    let peer = Lab::at(server.url().replace("tester", "peered")).run(["exec", "k", "--", "true"]);
    assert!(peer.failed(69).contains("rejected the user"), "{peer:?}");
    let absent = Lab::at(url("nobody")).with("RLOCK_PASSWORD", "x").run(["exec", "k", "--", "true"]);
    assert!(absent.failed(69).contains("refused the password, or the user"), "{absent:?}");
    let database = Lab::at(server.url().replace("/postgres", "/absent")).run(["exec", "k", "--", "true"]);
    assert!(database.failed(69).contains("lacks the database"), "{database:?}");
}

/// "PGPASSFILE and ~/.pgpass with libpq's rights check."
#[test]
fn password_file_counts_unless_others_may_read_it() {
    let Some(server) = server() else { return };
    let home = tempfile::tempdir().expect("a folder can be made");
    let file = home.path().join(".pgpass");
    fs::write(&file, "*:*:*:scram:pa\\:ss\n").expect("the folder can be written");
    let url = server.tcp_url().replace("tester", "scram");
    let path = |path: &std::path::Path| path.display().to_string();
    for (name, value) in [("HOME", path(home.path())), ("PGPASSFILE", path(&file))] {
        let lab = Lab::at(&url).with(name, value);
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("the file is there");
        lab.run(["exec", "k", "--", "true"]).silently(0);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("the file is there");
        let said = lab.run(["exec", "k", "--", "true"]);
        assert!(said.failed(69).contains("does not count since others may read it"), "{said:?}");
    }
}

/// "TLS by the rustls that is there; sslmode's meanings are libpq's."
#[test]
fn certificate_is_checked_as_sslmode_says() {
    let Some(server) = server() else { return };
    skip_unless!(needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    server.encrypt(&certificates);
    let ca = certificates.authority().display().to_string();
    let url = server.tcp_url().replace("tester", "scram");
    let named = url.replace("127.0.0.1", "localhost");
    let run = |url: &str, query: &str| {
        Lab::at(format!("{url}?{query}")).with("RLOCK_PASSWORD", "pa:ss").run(["exec", "k", "--", "true"])
    };
    for query in [
        "sslmode=disable".to_owned(),
        "sslmode=allow".to_owned(),
        "sslmode=prefer".to_owned(),
        "sslmode=require&channel_binding=require".to_owned(),
        format!("sslmode=verify-ca&sslrootcert={ca}"),
        format!("sslmode=verify-full&sslrootcert={ca}&channel_binding=require"),
    ] {
        run(&url, &query).silently(0);
        run(&named, &query).silently(0);
    }
    let other = Certificates::new();
    let foreign = format!("sslrootcert={}", other.authority().display());
    for query in [format!("sslmode=verify-ca&{foreign}"), format!("sslmode=require&{foreign}")] {
        let said = run(&url, &query);
        assert!(said.failed(69).contains("certificate"), "{said:?}");
    }
    let unbound = run(&url, "sslmode=disable&channel_binding=require");
    assert!(unbound.failed(69).contains("cannot bind the login"), "{unbound:?}");
    // The server demands TLS, or refuses it.
    server.demand(&HBA.replace("host all all", "hostssl all all"));
    run(&url, "sslmode=allow").silently(0);
    assert!(run(&url, "sslmode=disable").failed(69).contains("rejected the user"));
    server.demand(&HBA.replace("host all all", "hostnossl all all"));
    run(&url, "sslmode=prefer").silently(0);
    assert!(run(&url, "sslmode=require").failed(69).contains("rejected the user"));
}
