//! A stream against sockets that the tests simulate. The tests of `link` and `tls` cover full
//! queues and TLS.

use std::net::{TcpListener, TcpStream};

use super::*;

fn connected() -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stream = Stream::over(connect_tcp(address).unwrap(), false, None);
    (stream, listener.accept().unwrap().0)
}

/// Reads until bytes or the end have arrived.
fn received(stream: &mut Stream, into: &mut Vec<u8>) -> Received {
    loop {
        match stream.read(into).unwrap() {
            Received::Nothing => std::thread::yield_now(),
            other => return other,
        }
    }
}

#[test]
fn stream_writes_and_reads_bytes_and_reports_the_end() {
    let (mut stream, mut peer) = connected();
    assert!(stream.stage() == Stage::Connecting);
    stream.outgoing().extend(b"ping");
    assert!(stream.descriptor().1.contains(PollFlags::OUT));
    while !stream.write().unwrap() {}
    assert!(stream.stage() == Stage::Silent && !stream.descriptor().1.contains(PollFlags::OUT));
    let mut bytes = [0; 4];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");

    let mut into = b"before ".to_vec();
    assert!(stream.read(&mut into).unwrap() == Received::Nothing);
    peer.write_all(b"pong").unwrap();
    assert!(received(&mut stream, &mut into) == Received::Bytes);
    assert_eq!(into, b"before pong");
    drop(peer);
    assert!(received(&mut stream, &mut into) == Received::End);
}

#[test]
fn one_read_of_a_flood_is_bounded() {
    let (mut stream, mut peer) = connected();
    let flood = std::thread::spawn(move || while peer.write_all(&[b'x'; 64 * 1024]).is_ok() {});
    for _ in 0..10 {
        let mut into = Vec::new();
        assert!(received(&mut stream, &mut into) == Received::Bytes);
        assert!(into.len() <= 3 * READ_MAX, "{}", into.len());
    }
    drop(stream);
    flood.join().unwrap();
}

#[test]
fn missing_socket_and_socket_without_listener_fail_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let kind = |path: &Path| connect_unix(path).err();
    assert_eq!(kind(&path), Some(NetworkError::NoSocket));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert_eq!(kind(&path), Some(NetworkError::Refused));
}
