//! The clients of `rlock serve`, each with a real server, beside `rlock exec`.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::{path, settle};
use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::serve::LockServer;
use rlock_testkit::{Lab, Ran, Running, wait_until};

/// Reports that the lock is held, and then waits for the file `end`.
const WORK: &str = "echo held; for i in $(seq 600); do [ -e end ] && exit 3; sleep 0.1; done";

/// A server and one kind of client.
struct Scene {
    lab: Lab,
    server: LockServer,
    client: &'static str,
}

impl Scene {
    fn new(client: &'static str) -> Self {
        let lab = Lab::new();
        let server = LockServer::start(&lab, [""; 0]);
        Self { lab, server, client }
    }

    /// A client that runs a shell command while it holds the lock that this request names.
    fn client(&self, request: &str, work: &str) -> Command {
        let mut command = Command::new(path(&format!("serve/{}", self.client)));
        settle(&self.lab, &mut command);
        command.args(["127.0.0.1", &self.server.port().to_string(), request, "sh", "-c", work]);
        command.stdin(Stdio::null()).current_dir(self.lab.folder());
        command
    }

    fn start(&self) -> Running {
        Running::start(&mut self.client("k", WORK))
    }

    fn hold(&self) -> Running {
        let mut client = self.start();
        client.expect_held();
        client
    }

    fn let_work_end(&self) {
        fs::write(self.lab.folder().join("end"), "").expect("a file can be made");
    }

    /// Fails unless the client exited with `code` after this one message.
    #[track_caller]
    fn said(&self, client: &Ran, code: i32, text: &str) {
        let expected = format!("{}: {text}", self.client);
        assert_eq!((client.code(), client.stdout.as_str()), (Some(code), ""), "{client:?}");
        assert!(client.stderr.starts_with(&expected) && client.stderr.lines().count() == 1, "{client:?}");
    }
}

/// Tests a client, which needs these programs.
macro_rules! client {
    ($module:ident: $file:literal, $needs:expr) => {
        mod $module {
            use super::{Scene, programs, skip_unless};

            #[test]
            fn holds_the_lock_while_its_command_runs() {
                skip_unless!(programs(&$needs));
                super::holds_the_lock_while_its_command_runs(&Scene::new($file));
            }

            #[test]
            fn stops_its_command_when_the_lock_is_lost() {
                skip_unless!(programs(&$needs));
                super::stops_its_command_when_the_lock_is_lost(&Scene::new($file));
            }

            #[test]
            fn stops_its_command_when_the_server_is_gone() {
                skip_unless!(programs(&$needs));
                super::stops_its_command_when_the_server_is_gone(Scene::new($file));
            }

            #[test]
            fn leaves_the_lock_to_its_command_when_it_is_killed() {
                skip_unless!(programs(&$needs));
                super::leaves_the_lock_to_its_command_when_it_is_killed(&Scene::new($file));
            }
        }
    };
}

client!(bash: "client.bash", ["bash"]);
client!(sh: "client.sh", ["busybox"]);
client!(python: "client.py", ["python3"]);
client!(php: "client.php", ["php", "setsid"]);
client!(perl: "client.pl", ["perl"]);
client!(node: "client.js", ["node"]);

fn holds_the_lock_while_its_command_runs(scene: &Scene) {
    let holder = scene.lab.hold("k");
    scene.said(&Ran::of(&mut scene.client("-n k", "echo no")), 75, "not locked: busy 'k' is held for write by ");
    let mut waiter = scene.start();
    scene.lab.until_waiting("k", 1);
    holder.end().silently(0);
    waiter.expect_held();
    let busy = scene.lab.run(["exec", "-n", "k", "--", "true"]);
    assert!(busy.failed(75).contains(&format!("'serve 127.0.0.1:{}'", scene.server.port())), "{busy:?}");
    scene.let_work_end();
    waiter.end().silently(3);
    assert_eq!(scene.lab.counts("k"), (0, 0));
}

fn stops_its_command_when_the_lock_is_lost(scene: &Scene) {
    let holder = scene.hold();
    assert_eq!(scene.lab.run(["cleanup", "--break", "k"]).code(), Some(0));
    // The command has the same standard output, so this also waits for its end.
    scene.said(&holder.end(), 76, "stopped: lost 'k' was taken away");
}

fn stops_its_command_when_the_server_is_gone(mut scene: Scene) {
    let holder = scene.hold();
    scene.server.kill();
    scene.said(&holder.end(), 76, "stopped: the server is gone");
}

fn leaves_the_lock_to_its_command_when_it_is_killed(scene: &Scene) {
    let mut holder = scene.hold();
    holder.signal(Signal::KILL);
    wait_until("the client is gone", || !holder.runs());
    assert_eq!(scene.lab.run(["exec", "-w", "200ms", "k", "--", "true"]).code(), Some(75));
    scene.let_work_end();
    scene.lab.run(["exec", "k", "--", "true"]).silently(0);
}
