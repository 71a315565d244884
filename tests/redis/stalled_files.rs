//! rlock reads the files of a store once, at the start, and only if they are regular files. Later
//! it never waits for them.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::world::expiry;
use rlock_testkit::hung_disk::HungDisk;
use rlock_testkit::servers::certificates::Certificates;
use rlock_testkit::servers::{Kind, Server, Setup};
use rlock_testkit::{Lab, Running, wait_until};

/// Replaces the file by a pipe without a writer.
fn replace_by_fifo(path: &Path) {
    let _ = fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO can be made");
}

fn speaking_tls(certificates: &Certificates) -> Server {
    Setup::new(Kind::Redis7).tcp().tls(certificates, "server", true).start()
}

fn url(server: &Server, certificates: &Certificates) -> String {
    let path = |path: std::path::PathBuf| path.display().to_string();
    let (ca, cert, key) = (certificates.authority(), certificates.certificate("client"), certificates.key("client"));
    format!("rediss://127.0.0.1:{}?ca={}&cert={}&key={}", server.tls_port(), path(ca), path(cert), path(key))
}

#[test]
fn pipe_in_place_of_a_tls_file_exits_69_and_is_named() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present() && rlock_testkit::needs::programs(&["openssl"]));
    for name in ["ca.crt", "client.crt", "client.key"] {
        let certificates = Certificates::new();
        let server = speaking_tls(&certificates);
        let file = certificates.folder().join(name);
        replace_by_fifo(&file);
        let lab = Lab::at(url(&server, &certificates));
        for words in [&["exec", "--connect-timeout", "1h", "k", "--", "true"][..], &["inspect"], &["cleanup", "k"]] {
            let ran = lab.run(words);
            let said = ran.failed(69);
            let expected = format!("file '{}': it is a pipe, not a regular file: name a regular file", file.display());
            assert!(said.starts_with("'rediss://127.0.0.1:") && said.ends_with(&expected), "{words:?}: {said}");
        }
    }
}

#[test]
fn pipe_in_place_of_the_password_file_exits_64_and_is_named() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::on_tcp(Kind::Redis7);
    let lab = Lab::at(server.url());
    let file = lab.folder().join("password");
    replace_by_fifo(&file);
    let shown = file.display().to_string();
    let ran = Lab::at(server.url()).with("RLOCK_PASSWORD_FILE", &*shown).run(["exec", "k", "--", "true"]);
    let said = ran.failed(64);
    assert!(said.contains(&shown) && said.contains("it is a pipe, not a regular file"), "{said}");
}

/// rlock reads such files once, at the start, and never in the poll loop.
#[test]
fn reconnect_reads_no_file() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present() && rlock_testkit::needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    let server = speaking_tls(&certificates);
    let lab = Lab::at(url(&server, &certificates));
    // This ttl leaves time for the reconnect on a busy machine, and a renewal comes soon.
    let mut holder = lab.hold_by(["exec", "k", "--ttl", "9s", "--grace", "200ms"]);
    let mut waiter = lab.wait_by(["exec", "-q", "k"]);
    wait_until("the waiter waits", || lab.counts("k").1 == 1);
    for file in [certificates.authority(), certificates.certificate("client"), certificates.key("client")] {
        replace_by_fifo(&file);
    }
    server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    for _ in 0..2 {
        let before = expiry(&server, &lab, "k");
        wait_until("the lease is renewed", || {
            assert!(holder.runs(), "the holder has ended");
            expiry(&server, &lab, "k") > before
        });
    }
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
}

/// Labs whose store, or a file of it, lies on a mount that does not answer.
fn on_a_hung_mount(disk: &HungDisk) -> [Lab; 3] {
    [
        Lab::at("redis://127.0.0.1:1").with("RLOCK_PASSWORD_FILE", disk.file("password")),
        Lab::at(format!("rediss://127.0.0.1:1?ca={}", disk.file("ca.crt"))),
        Lab::at(format!("redis+unix://{}", disk.file("socket"))),
    ]
}

#[test]
fn connect_timeout_holds_while_a_mount_does_not_answer() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let Some(disk) = HungDisk::mount(folder.path()) else { return };
    for lab in on_a_hung_mount(&disk) {
        let ran = lab.run(["exec", "--connect-timeout", "300ms", "k", "--", "true"]);
        let said = ran.failed(69);
        assert!(said.contains("could not be read in time") || said.contains("did not answer in time"), "{said}");
    }
}

#[test]
fn term_ends_rlock_while_a_mount_does_not_answer() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let Some(disk) = HungDisk::mount(folder.path()) else { return };
    for lab in on_a_hung_mount(&disk) {
        let rlock = Running::start(&mut lab.rlock(["exec", "--connect-timeout", "1h", "k", "--", "true"]));
        // rlock waits for the file when it has a second thread.
        let threads = format!("/proc/{}/task", rlock.pid());
        wait_until("rlock waits for the file", || fs::read_dir(&threads).is_ok_and(|tasks| tasks.count() > 1));
        rlock.signal(Signal::TERM);
        let ran = rlock.end();
        let by_term = ran.code() == Some(143) || ran.status.signal() == Some(15);
        assert!(by_term && ran.stderr.is_empty(), "{ran:?}");
    }
}
