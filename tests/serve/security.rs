//! Who may connect: addresses, tokens, and the mode of unix sockets.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::Signal;

use crate::NONE;
use crate::sockets::activated;
use rlock_testkit::needs;
use rlock_testkit::rights::send_lingering;
use rlock_testkit::serve::LockServer;
use rlock_testkit::{Lab, Running};

fn token_file(lab: &Lab, text: &str, mode: u32) -> PathBuf {
    let path = lab.folder().join("token");
    fs::write(&path, text).expect("a file can be made");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("the mode can be set");
    path
}

/// "A client that sends descriptors is disconnected", and holds up no other client: the server
/// never closes them in its loop. The kernel refuses them since Linux 6.16, but not to clients that
/// connected before the server started.
#[test]
fn descriptors_of_a_client_hold_up_nobody() {
    let lab = Lab::new();
    let path = lab.folder().join("passed");
    let socket = UnixListener::bind(&path).expect("a socket can be made");
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).expect("the flag can be set");
    let connect = || UnixStream::connect(&path).expect("the socket listens");
    let client = connect();
    let _peers = [&client, &connect()].map(|client| send_lingering(client, b"PING\n").expect("it is let in"));
    let server = Running::start(&mut activated(&lab, &socket, ""));
    let mut answer = String::new();
    BufReader::new(&client).read_line(&mut answer).expect("the server answers");
    assert_eq!(answer, "error this server takes no descriptors: send lines alone\n");
    let other = connect();
    (&other).write_all(b"PING\n").expect("the server reads");
    BufReader::new(&other).read_line(&mut answer).expect("the server answers");
    assert!(answer.ends_with("\npong\n"), "{answer}");
    server.signal(Signal::TERM);
    server.end().silently(0);
}

#[test]
fn listening_beyond_this_machine_needs_a_token_or_consent() {
    let lab = Lab::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let ran = lab.run(["serve", "--listen", address]);
        let text = ran.failed(64).to_owned();
        assert!(text.contains("can be reached from other machines: require a token with --token-file"), "{text}");
    }
    let ran = lab.run(["serve", "--listen", "127.0.0.1:0", "--insecure", "--token-file", "x"]);
    assert!(ran.failed(64).contains("exclude each other"));
}

/// A process that systemd started would listen for virtual machines, or for the host.
#[test]
fn vsock_of_systemd_needs_a_token_or_consent() {
    let Some(socket) = vsock() else {
        needs::excused("this kernel has no vsock");
        return;
    };
    let lab = Lab::new();
    let ran = Running::start(&mut activated(&lab, &socket, "")).end();
    let text = ran.failed(64);
    assert!(text.contains("vsock:") && text.contains("can be reached from other machines"), "{text}");
}

/// A listening vsock.
fn vsock() -> Option<OwnedFd> {
    let any = libc::VMADDR_CID_ANY;
    // SAFETY: zeros are a valid address, and the pointer leads to an address of this length.
    let address = unsafe {
        let mut address: libc::sockaddr_vm = std::mem::zeroed();
        address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        (address.svm_cid, address.svm_port) = (any, any);
        SocketAddrAny::read((&raw const address).cast(), size_of_val(&address) as u32)
    };
    let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::empty(), None).ok()?;
    bind(&socket, &address).ok()?;
    listen(&socket, 1).ok()?;
    Some(socket)
}

#[test]
fn clients_of_a_server_with_a_token_must_send_it_first() {
    let lab = Lab::new();
    let path = token_file(&lab, "secret word\n", 0o600);
    let server =
        LockServer::start(&lab, ["--listen".as_ref(), "0.0.0.0:0".as_ref(), "--token-file".as_ref(), path.as_os_str()]);
    let mut client = server.tcp();
    assert_eq!(client.ask("PING"), "pong");
    assert_eq!(client.ask("AUTH secret word"), "ok");
    assert_eq!(client.ask("LOCK k"), "ok");
    let mut stranger = server.unix();
    assert_eq!(stranger.ask("LOCK j"), "error this server needs a token: send AUTH TOKEN first");
    stranger.expect_closed();
    let mut guesser = server.tcp();
    assert_eq!(guesser.ask("AUTH secret"), "error the token is wrong");
    guesser.expect_closed();
    assert_eq!(lab.counts("j"), (0, 0));
}

#[test]
fn token_file_that_others_can_read_or_that_is_empty_is_refused() {
    let lab = Lab::new();
    for (text, mode, complaint) in [
        ("secret", 0o640, "other users can read or change --token-file"),
        ("secret", 0o604, "other users can read or change --token-file"),
        ("\n", 0o600, "has no token: write the token into its first line"),
    ] {
        let path = token_file(&lab, text, mode);
        let ran = lab.run(["serve".as_ref(), "--stdio".as_ref(), "--token-file".as_ref(), path.as_os_str()]);
        assert!(ran.failed(64).contains(complaint), "{ran:?}");
    }
    if needs::root("give a file to another user") {
        let path = token_file(&lab, "secret", 0o600);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let ran = lab.run(["serve".as_ref(), "--stdio".as_ref(), "--token-file".as_ref(), path.as_os_str()]);
        assert!(ran.failed(64).ends_with(&format!("': run chown 0 '{}'", path.display())), "{ran:?}");
    }
    let ran = lab.run(["serve", "--stdio", "--token-file", "/nowhere"]);
    assert!(ran.failed(64).contains("cannot read --token-file '/nowhere': no such file or directory"), "{ran:?}");
}

#[test]
fn unix_socket_is_open_to_its_owner_only() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let mode = fs::metadata(server.path()).expect("the socket is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
