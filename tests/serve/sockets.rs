//! Listening sockets: paths, addresses in use, and the sockets of systemd.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Command;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::{NONE, on_both};
use rlock_testkit::needs;
use rlock_testkit::serve::{Client, LockServer};
use rlock_testkit::{Lab, RLOCK, Running, system_words, wait_until};

#[test]
fn socket_of_a_dead_server_is_replaced_and_that_of_a_live_one_is_not() {
    let lab = Lab::new();
    let mut server = LockServer::start(&lab, NONE);
    let path = format!("unix:{}", server.path().display());
    let ran = lab.run(["serve", "--listen", &path]);
    ran.said(125, &format!("cannot listen on {path}: {}", system_words(Errno::ADDRINUSE)));
    server.kill();
    assert!(fs::exists(server.path()).expect("the folder can be read"));
    let mut server = LockServer::start(&lab, NONE);
    assert_eq!(server.unix().ask("PING"), "pong");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!fs::exists(server.path()).expect("the folder can be read"), "the socket is removed");
}

#[test]
fn file_that_is_no_socket_is_kept() {
    let lab = Lab::new();
    let path = lab.folder().join("file");
    fs::write(&path, "text").expect("a file can be made");
    lab.run(["serve", "--listen", &format!("unix:{}", path.display())]).failed(125);
    assert_eq!(fs::read_to_string(&path).expect("the file is there"), "text");
}

#[test]
fn address_that_cannot_be_used_is_named() {
    let lab = Lab::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("the socket is bound").to_string();
    let ran = lab.run(["serve", "--listen", &address]);
    ran.said(125, &format!("cannot listen on {address}: {}", system_words(Errno::ADDRINUSE)));
    for bad in ["nonsense", "127.0.0.1", ":80", "::1:80", "unix:relative", "127.0.0.1:99999"] {
        let ran = lab.run(["serve", "--listen", bad]);
        assert!(ran.failed(64).contains(&format!("'{bad}' is not an address")), "{ran:?}");
    }
}

/// A shell that passes its descriptor 3 as systemd does. sh(1) may know one-digit descriptors only.
pub(crate) fn activated(lab: &Lab, socket: &impl AsRawFd, notify: &str) -> Command {
    let mut shell = Command::new("bash");
    lab.settle(&mut shell);
    let script = format!("exec 3<&{}; LISTEN_PID=$$ LISTEN_FDS=1 exec '{RLOCK}' serve", socket.as_raw_fd());
    shell.args(["-c", &script]).env("NOTIFY_SOCKET", notify);
    shell
}

#[test]
fn sockets_of_systemd_are_served_and_readiness_is_reported() {
    let lab = Lab::new();
    let notify_path = lab.folder().join("notify");
    let notify = UnixDatagram::bind(&notify_path).expect("a socket can be made");
    let socket = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).expect("the flag can be set");
    let server = Running::start(&mut activated(&lab, &socket, notify_path.to_str().expect("the path is text")));
    let mut message = [0; 64];
    let count = notify.recv(&mut message).expect("the server reports");
    assert_eq!(message[..count].trim_ascii(), b"READY=1");
    let mut client = Client::tcp(socket.local_addr().expect("the socket is bound").port());
    assert_eq!(client.ask("LOCK k"), "ok");
    assert_eq!(client.ask("UNLOCK"), "ok");
    server.signal(Signal::TERM);
    let count = notify.recv(&mut message).expect("the server reports");
    assert_eq!(message[..count].trim_ascii(), b"STOPPING=1");
    server.end().silently(0);
}

#[test]
fn descriptor_of_systemd_that_is_no_listening_stream_is_refused() {
    let lab = Lab::new();
    let path = lab.folder().join("socket");
    let datagram = UnixDatagram::bind(path).expect("a socket can be made");
    rustix::io::fcntl_setfd(&datagram, rustix::io::FdFlags::empty()).expect("the flag can be set");
    let ran = Running::start(&mut activated(&lab, &datagram, "")).end();
    assert!(ran.failed(64).contains("descriptor 3 from systemd is not a listening stream socket"), "{ran:?}");
}

#[test]
fn explicit_addresses_come_before_the_sockets_of_systemd() {
    let lab = Lab::new();
    let path = lab.folder().join("passed");
    let passed = UnixListener::bind(path).expect("a socket can be made");
    rustix::io::fcntl_setfd(&passed, rustix::io::FdFlags::empty()).expect("the flag can be set");
    let own = lab.folder().join("serve.sock");
    let mut shell = Command::new("bash");
    lab.settle(&mut shell);
    let listen = format!("--listen 127.0.0.1:0 --listen unix:{}", own.display());
    let script = format!("exec 3<&{}; LISTEN_PID=$$ LISTEN_FDS=1 exec '{RLOCK}' serve -v {listen}", passed.as_raw_fd());
    let server = LockServer::of(shell.args(["-c", &script]), own);
    assert_eq!(server.unix().ask("PING"), "pong");
}

/// The command of the client is not known, so its user counts.
#[test]
fn stopped_client_at_a_unix_socket_is_shown_as_stopped() {
    needs::skip_unless!(needs::programs(&["python3"]));
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let script = "import socket, sys\n\
                      s = socket.socket(socket.AF_UNIX)\n\
                      s.connect(sys.argv[1])\n\
                      s.sendall(b'LOCK k\\n')\n\
                      print(s.recv(9).decode(), end='', flush=True)\n\
                      s.recv(9)";
        let mut client = Running::start(Command::new("python3").args(["-c", script]).arg(server.path()));
        assert_eq!(client.line(), "ok");
        let busy = || lab.run(["exec", "-n", "k", "--", "true"]).failed(75).to_owned();
        assert!(!busy().contains("is stopped"), "{}", busy());
        client.signal(Signal::STOP);
        wait_until("the client is stopped", || busy().contains(", its process is stopped"));
        client.kill();
    });
}

#[test]
fn socket_of_another_server_at_the_same_path_is_left_alone() {
    let lab = Lab::new();
    let mut first = LockServer::start(&lab, NONE);
    fs::remove_file(first.path()).expect("the socket is there");
    let second = LockServer::start(&lab, NONE);
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0));
    assert_eq!(second.unix().ask("PING"), "pong");
}
