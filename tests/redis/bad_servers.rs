//! Bad URLs and bad servers lead to one clear line that names the server without its password,
//! within the connect timeout. The command is not started.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::net::{AddressFamily, SocketType};

use crate::fakes::{Fake, as_redis_5};
use crate::world::{check, each};
use rlock_testkit::serve::LockServer;
use rlock_testkit::servers::certificates::Certificates;
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::servers::{Kind, Server, Setup};
use rlock_testkit::{Lab, Running, wait_until};

/// The password that no message may contain.
const PASSWORD: &str = "sesame";

/// Fails unless every subcommand reports in one line that `server` cannot be used, and why.
/// Messages name the server as `server` does.
#[track_caller]
fn assert_unusable(lab: &Lab, server: &str, why: &str) {
    let named = format!("'{server}'");
    let named = if server.contains("://") { named.as_str() } else { named.trim_end_matches('\'') };
    let started = lab.folder().join("started");
    let touch = started.to_str().expect("the folder's name is plain");
    let exec = ["exec", "--connect-timeout", "4s", "k", "--", "touch", touch];
    // The commands run at the same time, since some of them wait for a timeout.
    let all = [&exec[..], &["inspect"], &["inspect", "k"], &["cleanup"], &["cleanup", "--break", "k"]];
    let running = all.map(|words| (words, Running::start(&mut lab.rlock(words))));
    for (words, rlock) in running {
        let ran = rlock.end();
        let said = ran.failed(69);
        // An unusable file is found before the resource is known.
        let rest = said.strip_prefix("cannot lock 'k': ").unwrap_or(said);
        assert!(rest.starts_with(named) && rest.contains(why), "{words:?}: {said}");
        assert!(!said.contains(PASSWORD), "{words:?}: {said}");
    }
    assert!(!started.exists(), "the command was started");
}

/// An unknown scheme or option exits 64.
#[test]
fn invalid_store_url_exits_64() {
    for url in [
        "gopher://:sesame@h",
        "redis+carrier-pigeon://:sesame@h",
        "redis//sesame",
        "redis://:sesame@h?colour=red",
        "redis://:sesame@h:port",
        "redis://:sesame@h:65536",
        "redis://:sesame@h/one",
        "redis://:sesame@h/0/1",
        "redis://:sesame@",
        "redis://:sesame@h1,h2",
        "redis://:sesame@[::1",
        "redis://:sesame@h?ca=/ca.crt",
        "rediss://:sesame@h?cert=/client.crt",
        "redis+sentinel://:sesame@h",
        "redis+cluster://:sesame@h/1",
        "redis+unix://:sesame@",
        "redis://:sesame%zz@h",
    ] {
        for words in [&["exec", "k", "--", "true"][..], &["inspect"], &["cleanup"]] {
            let ran = Lab::at(url).run(words);
            let said = ran.failed(64);
            assert!(!said.contains(PASSWORD), "{url}: {said}");
        }
    }
    let ran = Lab::at("gopher://h").run(["inspect"]);
    assert!(ran.failed(64).contains("gopher"), "{ran:?}");
}

/// A socket that listens to nobody, with its port, which no server of another test can get.
fn refusing_port() -> (OwnedFd, u16) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("there is a socket");
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("there is a free port");
    let bound = rustix::net::getsockname(&socket).expect("the socket is bound");
    let address = SocketAddr::try_from(bound).expect("the address is that of a machine");
    (socket, address.port())
}

/// A refused connection, a missing socket, and an unknown host exit 69.
#[test]
fn refused_connection_exits_69() {
    let (_bound, port) = refusing_port();
    let lab = Lab::at(format!("redis://:{PASSWORD}@127.0.0.1:{port}"));
    assert_unusable(&lab, &format!("redis://127.0.0.1:{port}"), "refused the connection");
    let socket = lab.folder().join("nothing").display().to_string();
    assert_unusable(&Lab::at(format!("redis+unix://{socket}")), &format!("redis+unix://{socket}"), "no such socket");
    // A label of a host name has at most 63 letters. So this name fails at once, without a query to
    // a name server that could be slow.
    let host = format!("{}.example", "x".repeat(64));
    assert_unusable(&Lab::at(format!("redis://{host}:7")), &format!("redis://{host}:7"), "cannot be found");
}

/// exec, acquire and the clients of serve try an absent server again until `--connect-timeout` is
/// over, since it may be about to start.
#[test]
fn server_that_starts_late_is_awaited() {
    each(|kind| {
        let mut server = Server::on_tcp(kind);
        server.kill();
        for url in [server.url(), server.unix_url()] {
            let lab = Lab::at(&url);
            let ran = lab.run(["exec", "-n", "--connect-timeout", "200ms", "k", "--", "true"]);
            let said = ran.failed(69);
            assert!(said.contains("refused the connection") || said.contains("no such socket"), "{said}");
            let locks = LockServer::start(&lab, [""; 0]);
            let mut client = locks.unix();
            client.say("LOCK -n s");
            let pid = std::process::id().to_string();
            let long = ["--connect-timeout", "50s"];
            let exec = Running::start(lab.rlock(["exec", "-n"]).args(long).args(["e", "--", "true"]));
            let acquire = Running::start(
                lab.rlock(["acquire", "-n", "--pid", &pid, "--lost-signal", "none"]).args(long).arg("a"),
            );
            server.restart();
            exec.end().silently(0);
            let acquired = acquire.end();
            let session = acquired.stdout.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION="));
            let session = session.unwrap_or_else(|| panic!("{acquired:?}"));
            assert!(client.line().starts_with("ok"), "a client of serve waits, too");
            assert_eq!(lab.counts("a"), (1, 0));
            lab.run(["release", session]).silently(0);
            server.kill();
        }
    });
}

/// rlock gives an unreachable server up after `--connect-timeout`, by default 5s.
#[test]
fn silent_server_exits_69_after_the_connect_timeout() {
    let fake = Fake::silent();
    let lab = Lab::at(fake.url());
    assert_unusable(&lab, &fake.url(), "did not answer in time");
    let start = Instant::now();
    let ran = lab.run(["exec", "--connect-timeout", "300ms", "k", "--", "true"]);
    assert!(ran.failed(69).contains("did not answer in time"), "{ran:?}");
    let lasted = start.elapsed();
    // The last tenth is for taking back a request that was sent.
    assert!(lasted >= Duration::from_millis(270), "{lasted:?}");
}

/// This address is reserved for documentation, so no host has it. Networks report that in different
/// ways.
#[test]
fn unreachable_address_exits_69() {
    assert_unusable(&Lab::at(format!("redis://:{PASSWORD}@192.0.2.1:7")), "redis://192.0.2.1:7", "the address");
}

/// A stopped server accepts connections for a while, but never answers.
#[test]
fn stopped_server_exits_69_after_the_connect_timeout() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::on_tcp(Kind::Redis7);
    server.stop();
    let start = Instant::now();
    assert_unusable(&Lab::at(server.url()), &server.url(), "did not answer in time");
    // Five seconds are the default of the reports.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    server.cont();
    Lab::at(server.url()).run(["exec", "k", "--", "true"]).silently(0);
}

/// A wrong password, a missing password, and a password for a server without one
#[test]
fn wrong_or_missing_or_needless_password_exits_69() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let with = |user: &str| Lab::at(format!("redis://{user}127.0.0.1:{}", server.port()));
        assert_unusable(&with(":sesame@"), &server.url(), "has no password but was given one");
        assert_unusable(&with("ali:sesame@"), &server.url(), "refused the password, or the user");
        server.ask::<()>(&["CONFIG", "SET", "requirepass", "open"]);
        assert_unusable(&with(""), &server.url(), "asks for a password");
        assert_unusable(&with(":sesame@"), &server.url(), "refused the password");
        assert_unusable(&with("").with("RLOCK_PASSWORD", PASSWORD), &server.url(), "refused the password");
        assert_unusable(&with("ali:sesame@"), &server.url(), "refused the password, or the user");
        with(":open@").run(["exec", "k", "--", "true"]).silently(0);
    });
}

/// "missing right"
#[test]
fn user_without_rights_exits_69_and_the_message_names_them() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let url = |user| Lab::at(format!("redis://{user}:sesame@127.0.0.1:{}", server.port()));
        server.ask::<()>(&["ACL", "SETUSER", "none", "on", ">sesame"]);
        assert_unusable(&url("none"), &server.url(), "does not let this user");
        server.ask::<()>(&["ACL", "SETUSER", "elsewhere", "on", ">sesame", "+@all", "~other:*", "&*"]);
        for words in
            [&["exec", "k", "--", "true"][..], &["inspect", "k"], &["cleanup", "k"], &["cleanup", "--break", "k"]]
        {
            let ran = url("elsewhere").run(words);
            let said = ran.failed(69);
            assert!(said.contains(&format!("'{}' does not let this user touch the keys", server.url())), "{said}");
        }
    });
}

/// "too old"
#[test]
fn redis_5_exits_69_as_too_old() {
    let fake = Fake::new(as_redis_5);
    assert_unusable(&Lab::at(fake.url()), &fake.url(), "use Redis 6.2 or Valkey 7.2 or newer");
}

/// Without HELLO there are no messages, so nobody can wait. A holder does without messages.
#[test]
fn server_without_hello_keeps_its_holders_and_takes_no_waiters() {
    each(|kind| {
        let server = Setup::new(kind).tcp().options(&["--rename-command", "HELLO", ""]).start();
        let lab = Lab::at(server.url());
        let mut holder = lab.hold_by(["exec", "--ttl", "3s", "--grace", "300ms", "k"]);
        let locks = LockServer::start(&lab, [""; 0]);
        let mut client = locks.unix();
        assert_eq!(client.ask("LOCK s"), "ok");
        let start = Instant::now();
        let waiter = Running::start(&mut lab.rlock(["exec", "k", "--", "true"]));
        let said = waiter.end().failed(69).to_owned();
        assert!(said.contains("lacks a command that rlock needs"), "{kind:?}: {said}");
        wait_until("the leases would be over", || start.elapsed() > Duration::from_secs(7));
        assert!(holder.runs() && lab.counts("k") == (1, 0), "{kind:?}");
        assert_eq!(client.ask("UNLOCK"), "ok");
        holder.end().silently(0);
    });
}

/// A read-only replica cannot grant locks.
#[test]
fn replica_exits_69_as_read_only() {
    each(|kind| {
        let master = Server::on_tcp(kind);
        let port = master.port().to_string();
        let replica = Setup::new(kind).tcp().options(&["--replicaof", "127.0.0.1", &port]).start();
        replica.until_replicated();
        let lab = Lab::at(replica.url());
        let ran = lab.run(["exec", "k", "--", "true"]);
        let said = ran.failed(69);
        let expected = format!("cannot lock 'k': '{}' is a replica, which can't be written to", replica.url());
        assert!(said.starts_with(&expected), "{said}");
    });
}

/// A certificate of an untrusted authority, of another host, or out of date; TLS to a port without
/// TLS, and no TLS to a port with TLS
#[test]
fn tls_mismatch_exits_69_with_the_reason() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present() && rlock_testkit::needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    certificates.certify("elsewhere", "DNS:elsewhere.example", 2);
    certificates.certify("old", "IP:127.0.0.1", 0);
    let made = SystemTime::now();
    let ca = certificates.authority().display().to_string();
    let url = |server: &Server| format!("rediss://127.0.0.1:{}", server.tls_port());
    let server = |name| Setup::new(Kind::Redis7).tcp().tls(&certificates, name, name == "server").start();
    let trusting = |server: &Server| Lab::at(format!("{}?ca={ca}", url(server)));

    let good = server("server");
    assert_unusable(&Lab::at(url(&good)), &url(&good), "of an authority that is not trusted");
    assert_unusable(&trusting(&good), &url(&good), "does not take this client without another certificate");
    let elsewhere = server("elsewhere");
    assert_unusable(
        &trusting(&elsewhere),
        &url(&elsewhere),
        "shows a certificate whose subjectAltName lacks this host",
    );
    let old = server("old");
    wait_until("the certificate is out of date", || made.elapsed().is_ok_and(|age| age > Duration::from_secs(2)));
    assert_unusable(&trusting(&old), &url(&old), "shows a certificate that is not valid now");

    let plain = format!("127.0.0.1:{}", good.port());
    assert_unusable(&Lab::at(format!("rediss://{plain}?ca={ca}")), &format!("rediss://{plain}"), "TLS");
    let tls = format!("redis://127.0.0.1:{}", good.tls_port());
    assert_unusable(&Lab::at(&tls), &tls, "rediss://");

    let no_file = certificates.folder().join("none").display().to_string();
    let lab = Lab::at(format!("{}?ca={no_file}", url(&good)));
    assert_unusable(&lab, &url(&good), &no_file);
}

/// Accepts connections, with TLS if it is given a certificate and a key, and closes them.
const EMPTY_PROXY: &str = "
import socket, ssl, sys
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
if sys.argv[1:]: tls.load_cert_chain(sys.argv[1], sys.argv[2])
proxy = socket.create_server(('127.0.0.1', 0))
print(proxy.getsockname()[1], flush=True)
while True:
    client, _ = proxy.accept()
    try:
        if sys.argv[1:]: client = tls.wrap_socket(client, server_side=True)
        client.recv(1)
        client.close()
    except OSError: pass
";

/// haproxy, stunnel and socat accept and close if no server is behind them. Only a URL without TLS
/// is advised to use it.
#[test]
fn proxy_without_a_server_behind_it_exits_69_and_is_named() {
    rlock_testkit::needs::skip_unless!(rlock_testkit::needs::programs(&["openssl", "python3"]));
    let certificates = Certificates::new();
    let (ca, cert) = (certificates.authority(), certificates.certificate("server"));
    let proxy =
        "closed the connection without an answer; see the server's log, or whether a proxy has no server behind it";
    for (words, why) in [
        (vec![cert, certificates.key("server")], format!("{proxy}$")),
        (vec![], format!("{proxy}, or write rediss:// or valkeys:// for TLS$")),
    ] {
        let mut python =
            Running::start(Command::new("python3").args(["-c", EMPTY_PROXY]).args(&words).stdin(Stdio::null()));
        let server = format!("127.0.0.1:{}", python.line());
        let url = if words.is_empty() {
            format!("redis://{server}")
        } else {
            format!("rediss://{server}?ca={}", ca.display())
        };
        let lab = Lab::at(url);
        let ran = lab.run(["exec", "--connect-timeout", "1s", "k", "--", "true"]);
        let said = format!("{}$", ran.failed(69));
        assert!(said.ends_with(&why), "{said}");
    }
}

/// No right helps where the server does not know the command.
#[test]
fn renamed_info_is_told_by_doctor_without_advice_on_rights() {
    each(|kind| {
        let server = Server::with(kind, &["--rename-command", "INFO", ""]);
        let ran = Lab::at(server.url()).run(["doctor"]);
        for name in ["version", "role", "memory", "persistence", "replicas", "clients"] {
            let line = check(&ran, name);
            assert!(line.starts_with("unknown") && line.contains("the server does not know INFO"), "{kind:?}: {line}");
        }
        assert_eq!(ran.code(), Some(0), "{kind:?}: {ran:?}");
    });
}

/// A single server named as a Cluster is refused, and a Cluster named as a single server.
#[test]
fn single_server_named_as_cluster_and_cluster_as_single_server_exit_69() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let single = Server::on_tcp(Kind::Redis7);
    let url = format!("redis+cluster://127.0.0.1:{}", single.port());
    assert_unusable(&Lab::at(&url), &single.url(), "is no node of a Cluster");
    let cluster = Cluster::start(Kind::Redis7, 3);
    let name = (0..).map(|n| format!("k{n}")).find(|name| cluster.owner(cluster.slot(name)) != 0);
    let name = name.expect("there are three nodes");
    let node = cluster.node(0).url();
    // One node has only a part of what is held. A request on several slots is recognised as well.
    let exec = [&["exec", &name, "--", "true"][..], &["exec", "a", "--write", "b", "--write", "c", "--", "true"]];
    for words in exec.into_iter().chain([&["inspect"][..], &["cleanup"], &["cleanup", "--dry-run"]]) {
        let ran = Lab::at(&*node).run(words);
        let said = ran.failed(69);
        assert!(said.contains(&format!("'{node}' is a node of a Cluster")), "{words:?}: {said}");
    }
}

/// A server of another kind is refused.
#[test]
fn web_server_exits_69_as_no_redis_server() {
    let http = Fake::new(|_| "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_owned());
    assert_unusable(&Lab::at(http.url()), &http.url(), "is no Redis or Valkey server");
    let url = format!("rediss://127.0.0.1:{}", http.port());
    assert_unusable(&Lab::at(&url), &url, "does not speak TLS");
}

/// A server that executes the scripts of another rlock version sends replies that this rlock does
/// not know.
#[test]
fn unexpected_script_reply_exits_69_and_advises_another_namespace() {
    let odd = Fake::new(|request| {
        let answer = |word: &str| match word {
            "EVALSHA" => "*1\r\n$7\r\nperhaps\r\n",
            _ => "+OK\r\n",
        };
        let words: Vec<&str> = request.split("\r\n").collect();
        words.windows(3).filter(|words| words[0].starts_with('*')).map(|words| answer(words[2])).collect()
    });
    for words in [&["exec", "k", "--", "true"][..], &["inspect", "k"], &["cleanup", "--break", "k"]] {
        let ran = Lab::at(odd.url()).run(words);
        let said = ran.failed(69);
        assert!(
            said.contains(&format!("'{}' sent an unexpected reply; another rlock", odd.url())),
            "{words:?}: {said}"
        );
        assert!(said.ends_with("give each its own by --namespace"), "{words:?}: {said}");
    }
}

/// After a failed login rlock exits 69, and nothing is held. rlock sends the request together with
/// the login. A server that refuses the login may still execute the request, as the default user or
/// in database 0.
#[test]
fn failed_login_leaves_no_lock() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let lab = Lab::at(server.url());
        let host = server.url().replace("redis://", "");
        for url in [
            format!("redis+cluster://{host}"),
            format!("redis://{host}/99"),
            format!("redis://:{PASSWORD}@{host}"),
            format!("redis://nobody:{PASSWORD}@{host}"),
        ] {
            let wrong = Lab::at(&url).with("RLOCK_NAMESPACE", lab.namespace());
            wrong.run(["exec", "--ttl", "10m", "k", "--", "true"]).failed(69);
            assert_eq!(lab.counts("k"), (0, 0), "{kind:?}, {url}");
            let holder = lab.hold("k");
            wrong.run(["exec", "--ttl", "10m", "k", "--", "true"]).failed(69);
            assert_eq!(lab.counts("k"), (1, 0), "{kind:?}, {url}");
            holder.end().silently(0);
        }
    });
}

/// The nodes of this Cluster redirect in a cycle. The client limits its redirects and reports the
/// Cluster as down.
#[test]
fn cluster_that_redirects_in_a_cycle_exits_69() {
    let (port, asked) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
    let (own, count) = (Arc::clone(&port), Arc::clone(&asked));
    let cycle = Fake::new(move |request| {
        let answer = |word: &str| match word {
            "EVALSHA" if count.fetch_add(1, Ordering::SeqCst) == 0 => {
                "*4\r\n$7\r\nwaiting\r\n:1\r\n:1\r\n:0\r\n".to_owned()
            }
            "EVALSHA" => format!("-MOVED 1 127.0.0.1:{}\r\n", own.get().expect("the port is known")),
            "HELLO" => "%0\r\n".to_owned(),
            "SSUBSCRIBE" => ">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        let words: Vec<&str> = request.split("\r\n").collect();
        words.windows(3).filter(|words| words[0].starts_with('*')).map(|words| answer(words[2])).collect()
    });
    port.set(cycle.port()).expect("the port is set once");
    let url = cycle.url().replace("redis://", "redis+cluster://");
    let ran = Lab::at(&url).run(["exec", "-w", "3s", "k", "--", "true"]);
    assert!(ran.failed(69).contains("is in a Cluster that does not serve now"), "{ran:?}");
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < 1000, "it was asked {asked} times in 3 s");
}

/// The named server is no Sentinel, or no Sentinel answers.
#[test]
fn server_that_is_no_sentinel_exits_69() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::on_tcp(Kind::Redis7);
    let url = format!("redis+sentinel://127.0.0.1:{}", server.port());
    assert_unusable(&Lab::at(format!("{url}/rlock")), &server.url(), "is no Sentinel");
    let fake = Fake::silent();
    let url = format!("redis+sentinel://127.0.0.1:{}", fake.port());
    // The message names either this Sentinel or all Sentinels.
    assert_unusable(&Lab::at(format!("{url}/rlock")), "redis", "did not answer in time");
}

/// A server at its memory limit refuses new locks, and rlock reports that.
#[test]
fn server_at_maxmemory_exits_69_and_keeps_no_key() {
    each(|kind| {
        let server = Setup::new(kind).tcp().options(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).start();
        let ran = Lab::at(server.url()).run(["exec", "--connect-timeout", "1s", "k", "--", "true"]);
        let said = ran.failed(69);
        assert!(
            said.starts_with(&format!("cannot lock 'k': '{}' has no memory left", server.url())),
            "{kind:?}: {said}"
        );
        assert_eq!(server.ask::<u32>(&["DBSIZE"]), 0, "{kind:?}: a key was left");
    });
}
