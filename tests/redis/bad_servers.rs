//! Bad input and bad servers get one clear line …, each naming the server without its password,
//! within a connect timeout …, and the command is not started.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use crate::fakes::{Fake, as_redis_5};
use crate::support::servers::certificates::Certificates;
use crate::support::servers::cluster::Cluster;
use crate::support::servers::{Kind, Server, Setup};
use crate::support::{Lab, Running, wait_until};
use crate::world::each;

/// No message may have this in it.
const PASSWORD: &str = "sesame";

/// Fails unless every subcommand says in one line that `server`, as messages name it, is of no use,
/// and says why.
#[track_caller]
fn unusable(lab: &Lab, server: &str, why: &str) {
    let named = format!("'{server}'");
    let named = if server.contains("://") { named.as_str() } else { named.trim_end_matches('\'') };
    let started = lab.folder().join("started");
    let touch = started.to_str().expect("the folder's name is plain");
    let exec = ["exec", "--connect-timeout", "4s", "k", "--", "touch", touch];
    // At the same time, for some take their time.
    let all = [&exec[..], &["inspect"], &["inspect", "k"], &["cleanup"], &["cleanup", "--break", "k"]];
    let running = all.map(|words| (words, Running::start(&mut lab.rlock(words))));
    for (words, rlock) in running {
        let ran = rlock.end();
        let said = ran.failed(69);
        // A file that can't be used is found before it is known what is to be locked.
        let rest = said.strip_prefix("cannot lock 'k': ").unwrap_or(said);
        assert!(rest.starts_with(named) && rest.contains(why), "{words:?}: {said}");
        assert!(!said.contains(PASSWORD), "{words:?}: {said}");
    }
    assert!(!started.exists(), "the command was started");
}

/// An unknown scheme or option exits 64.
#[test]
fn what_is_no_url_of_a_store_is_a_usage_error() {
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

/// "refused"
#[test]
fn nobody_listens() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let port = listener.local_addr().expect("it has an address").port();
    drop(listener);
    let lab = Lab::at(format!("redis://:{PASSWORD}@127.0.0.1:{port}"));
    unusable(&lab, &format!("redis://127.0.0.1:{port}"), "refused the connection");
    let socket = lab.folder().join("nothing").display().to_string();
    unusable(&Lab::at(format!("redis+unix://{socket}")), &format!("redis+unix://{socket}"), "no such socket");
    // No name server is asked for it, which may take its time to say no: a part of a name has at
    // most 63 letters.
    let host = format!("{}.example", "x".repeat(64));
    unusable(&Lab::at(format!("redis://{host}:7")), &format!("redis://{host}:7"), "cannot be found");
}

/// An unreachable server is given up after `--connect-timeout` (5s).
#[test]
fn one_that_never_answers_is_given_up() {
    let fake = Fake::silent();
    let lab = Lab::at(fake.url());
    unusable(&lab, &fake.url(), "did not answer in time");
    let start = Instant::now();
    let ran = lab.run(["exec", "--connect-timeout", "300ms", "k", "--", "true"]);
    assert!(ran.failed(69).contains("did not answer in time"), "{ran:?}");
    assert!(start.elapsed() >= Duration::from_millis(300));
}

/// Unreachable: an address for examples, which nobody has, and as some networks say in one way or
/// another.
#[test]
fn an_address_that_leads_nowhere() {
    unusable(&Lab::at(format!("redis://:{PASSWORD}@192.0.2.1:7")), "redis://192.0.2.1:7", "the address");
}

/// A server that was stopped takes connections for a while and says nothing.
#[test]
fn a_stopped_server_is_given_up() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::on_tcp(Kind::Redis7);
    server.stop();
    unusable(&Lab::at(server.url()), &server.url(), "did not answer in time");
    server.cont();
    Lab::at(server.url()).run(["exec", "k", "--", "true"]).silently(0);
}

/// Wrong password, and none where one is needed, and one where none is
#[test]
fn passwords_that_do_not_fit() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let with = |user: &str| Lab::at(format!("redis://{user}127.0.0.1:{}", server.port()));
        unusable(&with(":sesame@"), &server.url(), "has no password but was given one");
        unusable(&with("ali:sesame@"), &server.url(), "refused the password, or the user");
        server.ask::<()>(&["CONFIG", "SET", "requirepass", "open"]);
        unusable(&with(""), &server.url(), "asks for a password");
        unusable(&with(":sesame@"), &server.url(), "refused the password");
        unusable(&with("").with("RLOCK_PASSWORD", PASSWORD), &server.url(), "refused the password");
        unusable(&with("ali:sesame@"), &server.url(), "refused the password, or the user");
        with(":open@").run(["exec", "k", "--", "true"]).silently(0);
    });
}

/// "missing right"
#[test]
fn a_user_without_the_rights() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let url = |user| Lab::at(format!("redis://{user}:sesame@127.0.0.1:{}", server.port()));
        server.ask::<()>(&["ACL", "SETUSER", "none", "on", ">sesame"]);
        unusable(&url("none"), &server.url(), "does not let this user");
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
fn redis_5_is_too_old() {
    let fake = Fake::new(as_redis_5);
    unusable(&Lab::at(fake.url()), &fake.url(), "it takes Redis 6.2 or Valkey 7.2 or newer");
}

/// A read-only replica is no server to lock on.
#[test]
fn a_replica_takes_no_locks() {
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

/// Wrong TLS: an authority that is not trusted, another host's certificate, one out of date, TLS
/// where there is none and none where there is TLS
#[test]
fn tls_that_is_wrong() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present() && crate::support::needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    certificates.certify("elsewhere", "DNS:elsewhere.example", 2);
    certificates.certify("old", "IP:127.0.0.1", 0);
    let made = SystemTime::now();
    let ca = certificates.authority().display().to_string();
    let url = |server: &Server| format!("rediss://127.0.0.1:{}", server.tls_port());
    let server = |name| Setup::new(Kind::Redis7).tcp().tls(&certificates, name, name == "server").start();
    let trusting = |server: &Server| Lab::at(format!("{}?ca={ca}", url(server)));

    let good = server("server");
    unusable(&Lab::at(url(&good)), &url(&good), "of an authority that is not trusted");
    unusable(&trusting(&good), &url(&good), "does not take this client without another certificate");
    let elsewhere = server("elsewhere");
    unusable(&trusting(&elsewhere), &url(&elsewhere), "shows a certificate whose subjectAltName lacks this host");
    let old = server("old");
    wait_until("the certificate is out of date", || made.elapsed().is_ok_and(|age| age > Duration::from_secs(2)));
    unusable(&trusting(&old), &url(&old), "shows a certificate that is not valid now");

    let plain = format!("127.0.0.1:{}", good.port());
    unusable(&Lab::at(format!("rediss://{plain}?ca={ca}")), &format!("rediss://{plain}"), "TLS");
    let tls = format!("redis://127.0.0.1:{}", good.tls_port());
    unusable(&Lab::at(&tls), &tls, "rediss://");

    let no_file = certificates.folder().join("none").display().to_string();
    let lab = Lab::at(format!("{}?ca={no_file}", url(&good)));
    unusable(&lab, &url(&good), &no_file);
}

/// A single server asked as a Cluster, and a Cluster asked as a single server, are refused.
#[test]
fn a_cluster_is_no_single_server_and_no_single_server_a_cluster() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let single = Server::on_tcp(Kind::Redis7);
    let url = format!("redis+cluster://127.0.0.1:{}", single.port());
    unusable(&Lab::at(&url), &single.url(), "is no node of a Cluster");
    let cluster = Cluster::start(Kind::Redis7, 3);
    let name = (0..).map(|n| format!("k{n}")).find(|name| cluster.owner(cluster.slot(name)) != 0);
    let name = name.expect("there are three nodes");
    let node = cluster.node(0).url();
    // What one node has is not all that is held, and names of several slots are known as such.
    let exec = [&["exec", &name, "--", "true"][..], &["exec", "a", "--write", "b", "--write", "c", "--", "true"]];
    for words in exec.into_iter().chain([&["inspect"][..], &["cleanup"], &["cleanup", "--dry-run"]]) {
        let ran = Lab::at(&*node).run(words);
        let said = ran.failed(69);
        assert!(said.contains(&format!("'{node}' is a node of a Cluster")), "{words:?}: {said}");
    }
}

/// A server of another kind
#[test]
fn a_web_server_is_none() {
    let http = Fake::new(|_| "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_owned());
    unusable(&Lab::at(http.url()), &http.url(), "is no Redis or Valkey server");
    let url = format!("rediss://127.0.0.1:{}", http.port());
    unusable(&Lab::at(&url), &url, "does not speak TLS");
}

/// A server that answers, but not as the scripts of this rlock do.
#[test]
fn a_server_with_other_scripts_says_what_may_be_the_matter() {
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

/// The command is not started (69), and nothing is held. The request goes out with the login, and
/// a server that turns that down may carry it out all the same, as the user that needs no password,
/// or in the first database.
#[test]
fn a_login_that_fails_leaves_nothing_behind() {
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

/// A Cluster whose nodes never agree: whoever waits there is not sent round in circles.
#[test]
fn a_cluster_that_only_sends_elsewhere_does_not_serve() {
    let (port, asked) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
    let (own, count) = (Arc::clone(&port), Arc::clone(&asked));
    let circle = Fake::new(move |request| {
        let answer = |word: &str| match word {
            "EVALSHA" if count.fetch_add(1, Ordering::SeqCst) == 0 => {
                "*4\r\n$7\r\nwaiting\r\n:1\r\n:1\r\n:0\r\n".to_owned()
            }
            "EVALSHA" => format!("-MOVED 1 127.0.0.1:{}\r\n", own.get().expect("it is known by now")),
            "HELLO" => "%0\r\n".to_owned(),
            "SSUBSCRIBE" => ">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        let words: Vec<&str> = request.split("\r\n").collect();
        words.windows(3).filter(|words| words[0].starts_with('*')).map(|words| answer(words[2])).collect()
    });
    port.set(circle.port()).expect("it is set once");
    let url = circle.url().replace("redis://", "redis+cluster://");
    let ran = Lab::at(&url).run(["exec", "-w", "3s", "k", "--", "true"]);
    assert!(ran.failed(69).contains("is in a Cluster that does not serve now"), "{ran:?}");
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < 1000, "it was asked {asked} times in 3 s");
}

/// No Sentinel knows the master, none answers, and the name of the master is another.
#[test]
fn sentinels_that_are_none() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::on_tcp(Kind::Redis7);
    let url = format!("redis+sentinel://127.0.0.1:{}", server.port());
    unusable(&Lab::at(format!("{url}/rlock")), &server.url(), "is no Sentinel");
    let fake = Fake::silent();
    let url = format!("redis+sentinel://127.0.0.1:{}", fake.port());
    // That one Sentinel, or all of them.
    unusable(&Lab::at(format!("{url}/rlock")), "redis", "did not answer in time");
}

/// A server at its limit of memory says so.
#[test]
fn a_server_without_memory_takes_no_new_locks() {
    each(|kind| {
        let server = Setup::new(kind).tcp().options(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).start();
        let ran = Lab::at(server.url()).run(["exec", "--connect-timeout", "1s", "k", "--", "true"]);
        let said = ran.failed(69);
        assert!(
            said.starts_with(&format!("cannot lock 'k': '{}' has no memory left", server.url())),
            "{kind:?}: {said}"
        );
        assert_eq!(server.ask::<u32>(&["DBSIZE"]), 0, "{kind:?}: something was begun");
    });
}
