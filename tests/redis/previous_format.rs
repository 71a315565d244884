//! A state of the previous format serves where no process relies on it.

use crate::world::each;
use rlock_testkit::servers::Server;
use rlock_testkit::{Lab, wait_until};

/// Writes the number of a format into the state of resource `k`.
fn set_format(server: &Server, lab: &Lab, format: &str) {
    server.ask::<i64>(&["SETRANGE", &format!("{}:{{k}}:s", lab.namespace()), "2", format]);
}

fn format(server: &Server, lab: &Lab) -> String {
    server.ask(&["GETRANGE", &format!("{}:{{k}}:s", lab.namespace()), "2", "2"])
}

/// "On a server, each name is converted when it is used the next time, if it is free, is kept
/// without a process, or if its lease is over."
#[test]
fn unused_state_of_the_previous_format_is_converted() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        lab.run(["exec", "--once-per", "1h", "k", "--", "true"]).silently(0);
        assert_eq!(format(&server, &lab), "4");
        set_format(&server, &lab, "3");
        lab.run(["exec", "--once-per", "1h", "k", "--", "echo", "again"]).silently(0);
        set_format(&server, &lab, "3");
        lab.run(["exec", "k", "--", "true"]).silently(0);
        assert_eq!(format(&server, &lab), "4");

        assert_eq!(lab.run(["acquire", "--for", "1h", "k"]).code(), Some(0));
        set_format(&server, &lab, "3");
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        assert_eq!(lab.run(["break", "k"]).code(), Some(0));
        assert_eq!(format(&server, &lab), "4");

        lab.hold_by(["exec", "--ttl", "2s", "--grace", "100ms", "k"]).kill();
        set_format(&server, &lab, "3");
        wait_until("the lease is over", || lab.run(["exec", "-n", "k", "--", "true"]).code() == Some(0));
        assert_eq!(format(&server, &lab), "4");
        lab.assert_idle();
    });
}

#[test]
fn live_state_of_the_previous_format_is_refused() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "--ttl", "10m", "k"]);
        let (stays, free) = ("3", "4");
        set_format(&server, &lab, stays);
        let text = format!(
            "cannot lock 'k': '{}' keeps '{}:{{k}}:*' in format 3, and this rlock knows format 4; use one version of \
             rlock in a namespace",
            server.url(),
            lab.namespace()
        );
        lab.run(["exec", "-n", "k", "--", "true"]).said(69, &text);
        assert_eq!(format(&server, &lab), stays);
        lab.run(["exec", "-n", "j", "--", "true"]).silently(0);
        set_format(&server, &lab, free);
        holder.end().silently(0);
        lab.assert_idle();
    });
}
