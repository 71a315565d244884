//! Passwords and TLS.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use rlock_testkit::hung_disk::HungDisk;
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::servers::certificates::Certificates;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::{Lab, RLOCK, Running, wait_until};

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

/// Ends the sessions of `scram`, and waits until each of these holders has a new one.
fn disconnect(server: &Postgres, holders: &[&Running]) {
    server.ask("alter system set log_connections = on");
    server.ask("select pg_reload_conf()");
    wait_until("the server logs its sessions", || server.ask("show log_connections") == "on");
    let before = server.log().len();
    server.ask("select pg_terminate_backend(pid, 60000) from pg_stat_activity where usename = 'scram'");
    for holder in holders {
        let name = format!(":{}", holder.pid());
        let is_login = |line: &str| {
            line.contains("connection authorized") && line.split_whitespace().any(|word| word.ends_with(&name))
        };
        wait_until("the holder has logged in again", || server.log()[before..].lines().any(is_login));
    }
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

/// "So RLOCK_PASSWORD_FILE serves tokens that are valid for 15 minutes": the file is read at each
/// connection, and not only after the server has refused the password that was there before.
#[test]
fn holder_whose_password_changes_logs_in_with_the_one_that_the_file_has_now() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().expect("a folder can be made");
    let [token, passfile] = ["token", "pgpass"].map(|name| folder.path().join(name));
    let write = |password: &str| {
        for (file, text) in [(&token, format!("{password}\n")), (&passfile, format!("*:*:*:*:{password}\n"))] {
            fs::write(file, text).expect("the folder can be written");
            fs::set_permissions(file, Permissions::from_mode(0o600)).expect("the file is there");
        }
    };
    server.ask("alter role scram password 'one'");
    write("one");
    let url = server.tcp_url().replace("tester", "scram");
    let holders: Vec<_> = [("RLOCK_PASSWORD_FILE", &token), ("PGPASSFILE", &passfile)]
        .map(|(name, file)| {
            let lab = Lab::at(&url).with(name, file.display().to_string());
            let holder = lab.hold_by(["exec", "--ttl", "6s", "k"]);
            (lab, holder)
        })
        .into();
    server.ask("alter role scram password 'two'");
    write("two");
    disconnect(&server, &[&holders[0].1, &holders[1].1]);
    for (_lab, holder) in holders {
        holder.end().silently(0);
    }
    assert!(!server.log().contains("password authentication failed"), "{}", server.log());
}

/// "rlock reads … the files of sslrootcert, sslcert and sslkey at each connection."
#[test]
fn holder_whose_certificates_change_connects_with_those_that_the_files_have_now() {
    let Some(server) = server() else { return };
    skip_unless!(needs::programs(&["openssl"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let own = |name: &str| folder.path().join(name);
    let renew = || {
        let certificates = Certificates::new();
        let client = [certificates.certificate("client"), certificates.key("client"), certificates.authority()];
        for (from, name) in client.iter().zip(["client.crt", "client.key", "ca.crt"]) {
            fs::copy(from, own(name)).expect("the folder can be written");
        }
        fs::copy(certificates.authority(), server.folder().join("data/root.crt")).expect("the folder can be written");
        server.encrypt(&certificates);
        certificates
    };
    let _first = renew();
    server.ask("alter system set ssl_ca_file = 'root.crt'");
    server.demand("local all tester trust\nhostssl all all all trust clientcert=verify-ca\n");
    let [crt, key, ca] = ["client.crt", "client.key", "ca.crt"].map(|name| own(name).display().to_string());
    let url = server.tcp_url().replace("tester", "scram");
    let url = format!("{url}?sslmode=verify-full&sslrootcert={ca}&sslcert={crt}&sslkey={key}");
    let lab = Lab::at(url);
    wait_until("the server asks for a certificate", || lab.run(["exec", "k", "--", "true"]).code() == Some(0));
    let holder = lab.hold_by(["exec", "--ttl", "9s", "k"]);
    let _second = renew();
    wait_until("the server has its new certificate", || lab.run(["inspect", "k"]).code() == Some(0));
    disconnect(&server, &[&holder]);
    holder.end().silently(0);
}

/// "What cannot be read within a fifth of a second … stays as it was at the connection before."
#[test]
fn holder_outlives_a_file_system_of_its_password_that_hangs() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().expect("a folder can be made");
    let Some(disk) = HungDisk::mount(folder.path()) else { return };
    let (file, passfile) = (folder.path().join("file"), folder.path().join("pgpass"));
    fs::write(&file, "*:*:*:scram:pa\\:ss\n").expect("the folder can be written");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("the file is there");
    symlink(&file, &passfile).expect("the folder can be written");
    let url = server.tcp_url().replace("tester", "scram");
    let lab = Lab::at(&url).with("PGPASSFILE", passfile.display().to_string());
    let holder = lab.hold_by(["exec", "--ttl", "9s", "k"]);
    fs::remove_file(&passfile).expect("the link is there");
    symlink(disk.file("pgpass"), &passfile).expect("the folder can be written");
    let said = lab.run(["exec", "-n", "--connect-timeout", "1s", "k", "--", "true"]);
    assert!(said.failed(69).contains("could not be read in time; see whether the file system answers"), "{said:?}");
    disconnect(&server, &[&holder]);
    holder.end().silently(0);
}
