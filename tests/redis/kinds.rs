//! Every way to reach a server: TCP, unix socket, TLS with CA file and client certificate, ACL user
//! and password, database number, IPv6.

use crate::world::{each, has_waitaof, keys};
use rlock_testkit::servers::certificates::Certificates;
use rlock_testkit::servers::{Kind, Server, Setup};
use rlock_testkit::{Lab, RLOCK, Ran, Running};

/// Fails unless a lock works on this store: alone, waited for, nested and handed over.
fn assert_works(lab: &Lab) {
    lab.run(["exec", "k", "--", RLOCK, "exec", "--read", "k", "--", "echo", "in"]).printed("in\n");
    let holder = lab.hold("k");
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    let mut waiter = lab.wait_by(["range-write", "k", "1", "2"]);
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
    lab.assert_idle();
}

/// TCP by IPv4, by IPv6 and by host name, and a unix socket, with both spellings of the scheme
#[test]
fn locks_work_over_tcp_and_unix_sockets() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let (port, socket) = (server.port(), server.socket());
        for url in [
            format!("redis://127.0.0.1:{port}"),
            format!("valkey://127.0.0.1:{port}/"),
            format!("redis://[::1]:{port}/0"),
            format!("redis://localhost:{port}"),
            format!("redis+unix://{}", socket.display()),
            format!("valkey+unix://{}", socket.display()),
        ] {
            assert_works(&Lab::at(url));
        }
    });
}

/// rlock uses the database number of the URL.
#[test]
fn locks_in_two_databases_are_separate() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let lab = Lab::at(format!("{}/3", server.url()));
        assert_works(&lab);
        let _holder = lab.hold("k");
        let space = lab.namespace();
        assert!(keys(&server, space).is_empty(), "database 0 has a part of it");
        let unix = format!("{}?db=3", server.unix_url());
        lab.run(["exec", "--store", &unix, "-nq", "k", "--", "true"]).silently(75);
        lab.run(["exec", "--store", &server.url(), "-nq", "k", "--", "true"]).silently(0);
        let far = format!("{}/99", server.url());
        let ran = lab.run(["exec", "--store", &far, "k", "--", "true"]);
        assert!(ran.failed(69).contains("has no database of that number"), "{ran:?}");
    });
}

/// An ACL user with a password in the URL, in RLOCK_PASSWORD, or in the file that
/// RLOCK_PASSWORD_FILE names
#[test]
fn user_logs_in_with_the_password_of_url_or_variable_or_file() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let odd = "p:a@s/s%w?o#rd";
        server.ask::<()>(&["ACL", "SETUSER", "al@ice", "on", &format!(">{odd}"), "~*", "&*", "+@all"]);
        let port = server.port();
        assert_works(&Lab::at(format!("redis://al%40ice:p%3Aa%40s%2Fs%25w%3Fo%23rd@127.0.0.1:{port}")));
        let url = format!("redis://al%40ice@127.0.0.1:{port}");
        assert_works(&Lab::at(&url).with("RLOCK_PASSWORD", odd));
        let lab = Lab::at(&url);
        let file = lab.folder().join("password").display().to_string();
        std::fs::write(&file, format!("{odd}\nnot this\n")).expect("a file");
        let lab = lab.with("RLOCK_PASSWORD_FILE", &file);
        assert_works(&lab);
        // The password of the URL wins.
        assert_works(
            &Lab::at(format!("redis://al%40ice:p%3Aa%40s%2Fs%25w%3Fo%23rd@127.0.0.1:{port}"))
                .with("RLOCK_PASSWORD", "no"),
        );
        std::fs::remove_file(&file).expect("the path exists");
        let ran = lab.run(["exec", "k", "--", "true"]);
        assert!(ran.failed(64).contains(&file), "{ran:?}");

        server.ask::<()>(&["CONFIG", "SET", "requirepass", odd]);
        assert_works(&Lab::at(format!("redis://127.0.0.1:{port}")).with("RLOCK_PASSWORD", odd));
        assert_works(&Lab::at(server.unix_url()).with("RLOCK_PASSWORD", odd));
    });
}

/// TLS works with a CA file and a client certificate.
#[test]
fn tls_works_with_a_ca_file_and_a_client_certificate() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present() && rlock_testkit::needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let (ca, cert, key) =
        (path(certificates.authority()), path(certificates.certificate("client")), path(certificates.key("client")));
    let server = Setup::new(Kind::Redis7).tls(&certificates, "server", false).start();
    let port = server.tls_port();
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        assert_works(&Lab::at(format!("rediss://{host}:{port}?ca={ca}")));
    }
    assert_works(&Lab::at(format!("valkeys://localhost:{port}?ca={ca}")));
    let checks = Lab::at(format!("rediss://localhost:{port}?ca={ca}")).run(["doctor"]);
    assert!(checks.stdout.contains("the certificate is trusted; days left: 1: "), "{checks:?}");

    let strict = Setup::new(Kind::Redis7).tls(&certificates, "server", true).start();
    let port = strict.tls_port();
    assert_works(&Lab::at(format!("rediss://127.0.0.1:{port}?ca={ca}&cert={cert}&key={key}")));
    // A relative path is relative to the directory in which the outer rlock started, for nested
    // rlocks in other directories as well.
    let lab = Lab::at(format!("rediss://127.0.0.1:{port}?ca=ca.crt&cert=client.crt&key=client.key"));
    let nested = format!("cd / && '{RLOCK}' exec --read k -- echo in");
    let mut rlock = lab.rlock(["exec", "k", "-c", &nested]);
    Running::start(rlock.current_dir(certificates.folder())).end().printed("in\n");
}

/// `--replicas N` waits for N replicas after the claim. If fewer answer, rlock gives the lock back
/// and exits 69.
#[test]
fn request_with_too_few_replicas_exits_69_and_gives_the_lock_back() {
    each(|kind| {
        let master = Server::on_tcp(kind);
        let lab = Lab::at(master.url());
        let with = |n: &str| lab.run(["exec", "--replicas", n, "--connect-timeout", "1s", "k", "--", "echo", "held"]);
        with("0").printed("held\n");
        let none = with("1");
        assert!(none.failed(69).starts_with(&format!("cannot lock 'k': '{}'", master.url())), "{kind:?}: {none:?}");
        lab.assert_idle();

        let port = master.port().to_string();
        let replica = Setup::new(kind).options(&["--replicaof", "127.0.0.1", &port]).start();
        replica.until_replicated();
        with("1").printed("held\n");
        let few = with("2");
        assert!(few.failed(69).starts_with(&format!("cannot lock 'k': '{}'", master.url())), "{kind:?}: {few:?}");
        lab.assert_idle();
        // Another session's connection wrote a grant that came from the queue. rlock waits for the
        // replicas of such a grant, too.
        let holder = lab.hold("k");
        let mut waiter = lab.wait_by(["exec", "--replicas", "1", "k"]);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
        let holder = lab.hold("k");
        let waiter = lab.wait_by(["exec", "--replicas", "1", "--connect-timeout", "1s", "k"]);
        lab.until_waiting("k", 1);
        replica.stop();
        holder.end().silently(0);
        let stopped = waiter.end();
        assert!(
            stopped.failed(69).starts_with(&format!("cannot lock 'k': '{}'", master.url())),
            "{kind:?}: {stopped:?}"
        );
        lab.assert_idle();
        replica.cont();
    });
}

/// "`--replicas N+disk`: the grant is on the disk of the server and of N replicas." A server that
/// does not know WAITAOF, or keeps no append-only file, gets a message that says so.
#[test]
fn request_with_disks_is_granted_once_the_disks_have_the_grant() {
    each(|kind| {
        let on_disk = ["--appendonly", "yes", "--appendfsync", "always"];
        let master = Setup::new(kind).options(&on_disk).tcp().start();
        let lab = Lab::at(master.url());
        let with = |n: &str| lab.run(["exec", "--replicas", n, "--connect-timeout", "1s", "k", "--", "echo", "held"]);
        let failed = |ran: Ran, why: &str| {
            let said = ran.failed(69);
            assert!(said.starts_with(&format!("cannot lock 'k': '{}' {why}", master.url())), "{kind:?}: {said}");
            lab.assert_idle();
        };
        if !has_waitaof(&master) {
            return failed(with("0+disk"), "lacks WAITAOF");
        }
        with("0+disk").printed("held\n");
        let port = master.port().to_string();
        let in_memory = Setup::new(kind).options(&["--replicaof", "127.0.0.1", &port]).start();
        in_memory.until_replicated();
        with("1").printed("held\n");
        let none = with("1+disk").failed(69).to_owned();
        assert!(none.contains("': the disks of 0 of 1 replicas have the lock"), "{kind:?}: {none}");
        lab.assert_idle();
        let replica = Setup::new(kind).options(&on_disk).options(&["--replicaof", "127.0.0.1", &port]).start();
        replica.until_replicated();
        with("1+disk").printed("held\n");

        let _: () = master.ask(&["CONFIG", "SET", "appendonly", "no"]);
        failed(with("0+disk"), "keeps no append-only file");
    });
}
