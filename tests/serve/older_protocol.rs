//! The protocol of Sendai Lock, to the letter, by a real nc(1).

use std::process::{Command, Stdio};

use crate::{NONE, on_both};
use rlock_testkit::serve::LockServer;
use rlock_testkit::{Lab, Running, needs, wait_until};

/// A client by nc, whose standard input is the client's side of the connection.
fn netcat(server: &LockServer) -> Running {
    let mut nc = Command::new("nc");
    Running::start(nc.args(["-N", "127.0.0.1", &server.port().to_string()]).stdin(Stdio::piped()))
}

#[test]
fn nc_locks_with_one_line_and_frees_with_the_next() {
    needs::skip_unless!(needs::programs(&["nc"]));
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let mut first = netcat(&server);
        first.write("LOCK key\n");
        assert_eq!(first.line(), "ok");
        let mut second = netcat(&server);
        second.write("LOCK key\n");
        lab.until_waiting("key", 1);
        // Any line frees the lock and ends the connection.
        first.write("whatever\n");
        assert_eq!(second.line(), "ok");
        assert_eq!(first.end().stdout, "ok\n");
        // So does the end of the connection.
        let mut third = netcat(&server);
        third.write("LOCK key\n");
        lab.until_waiting("key", 1);
        second.close();
        assert_eq!(third.line(), "ok");
        assert_eq!(second.end().stdout, "ok\n");
        third.kill();
        wait_until("nobody holds", || lab.counts("key") == (0, 0));
    });
}

#[test]
fn lock_of_a_killed_client_is_free() {
    needs::skip_unless!(needs::programs(&["nc"]));
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let mut first = netcat(&server);
    first.write("LOCK key\n");
    assert_eq!(first.line(), "ok");
    first.kill();
    let mut second = netcat(&server);
    second.write("LOCK key\n");
    assert_eq!(second.line(), "ok");
}
