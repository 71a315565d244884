//! A firewall forgets a connection: data sent on the connection vanishes without an error, and new
//! connections work.

use rustix::process::Signal;

use crate::world::each;
use rlock_testkit::servers::proxy::Proxy;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, wait_until};

/// Returns a lab behind the proxy and a direct one, both in the same namespace.
fn labs(server: &Server, proxy: &Proxy) -> (Lab, Lab) {
    let lab = Lab::at(proxy.url());
    let direct = Lab::at(server.url()).with("RLOCK_NAMESPACE", lab.namespace());
    (lab, direct)
}

#[test]
fn release_on_a_forgotten_connection_reaches_the_server_on_a_new_one() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, direct) = labs(&server, &proxy);
    let holder = lab.hold_by(["exec", "k", "--ttl", "1h"]);
    let mut waiter = direct.wait_by(["exec", "k"]);
    direct.until_waiting("k", 1);
    proxy.forget();
    holder.end().silently(0);
    // If the waiter needed the lease to end first, the grant would come later than any test waits.
    waiter.expect_held();
    waiter.end().silently(0);
    direct.assert_idle();
}

/// The new connection has all of `--connect-timeout`. The holder writes nothing, since the command
/// ended within its lease.
#[test]
fn release_on_a_new_connection_has_the_whole_connect_timeout() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, direct) = labs(&server, &proxy);
    let holder = lab.hold_by(["exec", "k", "--ttl", "1h", "--connect-timeout", "30s"]);
    proxy.forget();
    proxy.delay(std::time::Duration::from_secs(2));
    holder.end().silently(0);
    direct.assert_idle();
}

/// A server that is only slow gets the release twice. The first reply counts.
#[test]
fn loss_is_reported_even_if_the_release_was_sent_twice() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
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
fn failed_release_warns_and_names_the_resource() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
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
fn waiter_on_a_forgotten_connection_leaves_the_queue_on_term() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let proxy = Proxy::new(&server);
    let (lab, direct) = labs(&server, &proxy);
    let holder = direct.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    direct.until_waiting("k", 1);
    proxy.forget();
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().code(), Some(143));
    assert_eq!(direct.counts("k"), (1, 0), "the waiter kept its place until its lease ended");
    holder.end().silently(0);
}

/// "A waiter that is reconnecting when its turn comes is passed over ... It keeps its number, and
/// once it is back, it is next at the first release."
#[test]
fn waiter_that_is_passed_over_while_it_reconnects_is_next_after_its_return() {
    each(|kind| {
        let server = Server::start(kind);
        let proxy = Proxy::new(&server);
        let (through_proxy, lab) = labs(&server, &proxy);
        let subscribed = || {
            let pattern = format!("{}:*", lab.namespace());
            server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", &pattern]).len()
        };
        let holder = lab.hold("k");
        let mut first = through_proxy.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let [mut second, mut third] = [2, 3].map(|place| {
            let waiter = lab.wait_by(["exec", "k"]);
            lab.until_waiting("k", place);
            waiter
        });
        wait_until("the holder and the waiters are subscribed", || subscribed() == 4);
        proxy.refuse();
        proxy.cut();
        wait_until("the first waiter is not", || subscribed() == 3);
        holder.end().silently(0);
        second.expect_held();
        proxy.pass();
        lab.until_waiting("k", 2);
        second.end().silently(0);
        first.expect_held();
        first.end().silently(0);
        third.expect_held();
        third.end().silently(0);
        lab.assert_idle();
    });
}
