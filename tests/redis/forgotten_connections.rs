//! A connection that a firewall has forgotten: what is sent on it vanishes, nobody is told, and new
//! connections work.

use rustix::process::Signal;

use crate::support::Lab;
use crate::support::servers::proxy::Proxy;
use crate::support::servers::{Kind, Server};

/// Both labs have one namespace: the first is behind the proxy.
fn labs(server: &Server, proxy: &Proxy) -> (Lab, Lab) {
    let lab = Lab::at(proxy.url());
    let direct = Lab::at(server.url()).with("RLOCK_NAMESPACE", lab.namespace());
    (lab, direct)
}

#[test]
fn a_release_reaches_the_server_although_its_connection_was_forgotten() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, direct) = labs(&server, &proxy);
    let holder = lab.hold_by(["exec", "k", "--ttl", "1h"]);
    let mut waiter = direct.wait_by(["exec", "k"]);
    direct.until_waiting("k", 1);
    proxy.forget();
    holder.end().silently(0);
    // It would not come as long as any test waits, if the lease had to end first.
    waiter.expect_held();
    waiter.end().silently(0);
    direct.assert_idle();
}

/// A fresh connection has all of `--connect-timeout`, and the holder says nothing: the command
/// ended in its time.
#[test]
fn a_release_waits_for_the_fresh_connection_as_long_as_for_any() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, direct) = labs(&server, &proxy);
    let holder = lab.hold_by(["exec", "k", "--ttl", "1h", "--connect-timeout", "30s"]);
    proxy.forget();
    proxy.delay(std::time::Duration::from_secs(2));
    holder.end().silently(0);
    direct.assert_idle();
}

/// A server that is only slow is asked twice, and its first answer is the one that counts.
#[test]
fn a_loss_is_told_although_the_release_was_sent_twice() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, _) = labs(&server, &proxy);
    let holder = lab.hold_by(["exec", "k", "--ttl", "1h", "--connect-timeout", "30s"]);
    server.ask::<()>(&["FLUSHALL"]);
    proxy.delay(std::time::Duration::from_secs(2));
    assert!(holder.end().failed(76).starts_with("lost: 'k' was taken away"));
}

/// "The release fails:: rlock warns and exits as the command did."
#[test]
fn a_release_that_fails_names_the_resource() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, _) = labs(&server, &proxy);
    let holder = lab.hold_by(["exec", "k", "--ttl", "1h", "--connect-timeout", "1s"]);
    proxy.refuse();
    proxy.cut();
    let ran = holder.end();
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let line = ran.stderr.strip_prefix("rlock: ").unwrap_or_default();
    let expected = format!("warning: could not release 'k', held until the lease ends: '{}'", proxy.url());
    assert!(line.starts_with(&expected), "{line}");
}

#[test]
fn a_waiter_that_is_told_to_end_leaves_the_queue_although_its_connection_was_forgotten() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, direct) = labs(&server, &proxy);
    let holder = direct.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    direct.until_waiting("k", 1);
    proxy.forget();
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().code(), Some(143));
    assert_eq!(direct.counts("k"), (1, 0), "it has left its place to time");
    holder.end().silently(0);
}
