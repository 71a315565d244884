//! Passwords that change while rlock runs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::world::each;
use rlock_testkit::serve::LockServer;
use rlock_testkit::servers::Server;
use rlock_testkit::{Lab, wait_until};

/// A server with the user `app`.
struct Rotation {
    server: Server,
    file: PathBuf,
    lab: Lab,
}

impl Rotation {
    fn start(kind: rlock_testkit::servers::Kind) -> Self {
        let server = Server::on_tcp(kind);
        server.ask::<()>(&["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"]);
        let file = server.folder().join("password");
        std::fs::write(&file, "old\n").expect("the folder can be written");
        let lab = Lab::at(format!("redis://app@127.0.0.1:{}", server.port()));
        let lab = lab.with("RLOCK_PASSWORD_FILE", file.to_str().expect("the name is plain"));
        Self { server, file, lab }
    }

    /// Gives the user another password, and ends its connections.
    fn change_at_server(&self) {
        self.server.ask::<()>(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
        self.cut();
    }

    fn change_file(&self) {
        std::fs::write(&self.file, "new\n").expect("the folder can be written");
    }

    fn cut(&self) -> u64 {
        self.server.ask(&["CLIENT", "KILL", "USER", "app"])
    }

    fn refusals(&self) -> u64 {
        let log: Vec<redis::Value> = self.server.ask(&["ACL", "LOG"]);
        let counts = log.into_iter().map(|entry| {
            let redis::Value::Array(fields) = entry else { return 0 };
            redis::from_redis_value(fields[1].clone()).unwrap_or(0)
        });
        counts.sum()
    }
}

/// A holder, a keeper, a waiter and a server of locks go on with the password that the file gets
/// after the server.
#[test]
fn changed_password_is_read_again_while_locks_are_held_and_awaited() {
    each(|kind| {
        let at = Rotation::start(kind);
        let lab = &at.lab;
        let locks = LockServer::start(lab, [""; 0]);
        let mut client = locks.unix();
        assert_eq!(client.ask("LOCK s"), "ok");
        let holder = lab.hold_by(["exec", "--ttl", "10s", "k"]);
        let acquired = lab.run([
            "acquire",
            "--ttl",
            "10s",
            "--lost-signal",
            "none",
            "--pid",
            &std::process::id().to_string(),
            "a",
        ]);
        let session = acquired.stdout.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION=")).map(str::to_owned);
        let mut waiter = lab.wait_by(["exec", "--ttl", "10s", "k"]);
        lab.until_waiting("k", 1);
        at.change_at_server();
        wait_until("logins are refused", || at.refusals() >= 4);
        at.change_file();
        // Longer than a lease.
        let began = Instant::now();
        wait_until("each lease has been renewed", || began.elapsed() > Duration::from_secs(11));
        assert_eq!(["k", "s", "a"].map(|name| lab.counts(name)), [(1, 1), (1, 0), (1, 0)]);
        // Another one, while the old one is still refused.
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
        lab.run(["release", &session.expect("acquire prints its session")]).silently(0);
        assert_eq!(client.ask("UNLOCK"), "ok");
    });
}

/// The file has changed since rlock started, and no login has worked yet.
#[test]
fn changed_password_is_read_again_before_the_first_login() {
    each(|kind| {
        let at = Rotation::start(kind);
        let locks = LockServer::start(&at.lab, [""; 0]);
        at.change_at_server();
        at.change_file();
        assert_eq!(locks.unix().ask("LOCK s"), "ok", "{kind:?}");
    });
}

#[test]
fn wrong_password_at_the_first_login_is_refused_at_once() {
    each(|kind| {
        let at = Rotation::start(kind);
        at.change_at_server();
        let began = Instant::now();
        for lab in
            [at.lab.with("RLOCK_OWNER", "file"), Lab::at(format!("redis://app:wrong@127.0.0.1:{}", at.server.port()))]
        {
            let ran = lab.run(["exec", "--connect-timeout", "2m", "-w", "10m", "k", "--", "true"]);
            assert!(ran.failed(69).contains("refused the password, or the user"), "{ran:?}");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody waits for another password");
    });
}

/// The password is in the URL, so there is no other one. The waiter gives up in time.
#[test]
fn waiter_whose_password_no_longer_works_ends_after_the_connect_timeout() {
    each(|kind| {
        let at = Rotation::start(kind);
        let url = format!("redis://app:old@127.0.0.1:{}", at.server.port());
        let lab = Lab::at(url).with("RLOCK_NAMESPACE", at.lab.namespace());
        let holder = at.lab.hold_by(["exec", "k"]);
        let waiter = lab.wait_by(["exec", "-q", "-w", "30m", "--connect-timeout", "3s", "k"]);
        at.lab.until_waiting("k", 1);
        at.change_at_server();
        at.change_file();
        let ran = waiter.end();
        assert!(ran.failed(69).contains("refused the password, or the user"), "{kind:?} {ran:?}");
        holder.end().silently(0);
    });
}
