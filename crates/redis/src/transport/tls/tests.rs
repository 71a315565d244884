//! TLS against servers that the tests simulate. openssl makes the certificates in each run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redis::Value;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use super::super::blocking;
use super::super::link::{Address, Link, Way};
use super::*;
use crate::failure::Failure;
use crate::target::Target;
use rlock_store::network::tls::{certificates, from_tls, pinned, trusted};
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;
use rlock_testkit::needs::{self, skip_unless};

/// Longer than any test needs on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Self-signed certificates. Each certificate is in a file with the name of its host, next to its
/// key.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        made.make("localhost");
        made.make("elsewhere");
        made
    }

    fn make(&self, host: &str) {
        self.make_as(host, host, "CA:FALSE");
    }

    /// Makes a server certificate that is marked as an authority, as some software does.
    fn make_authority(&self, file: &str, host: &str) {
        self.make_as(file, host, "critical,CA:TRUE");
    }

    fn make_as(&self, file: &str, host: &str, constraints: &str) {
        let config = format!(
            "[req]\ndistinguished_name = name\nprompt = no\nx509_extensions = rest\n[name]\nCN = {host}\n\
             [rest]\nbasicConstraints = {constraints}\nsubjectAltName = DNS:{host}\n"
        );
        std::fs::write(self.0.path().join("config"), config).unwrap();
        let output = Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "2", "-config", "config"])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-out", &format!("{file}.pem"), "-keyout", &format!("{file}.key")])
            .current_dir(self.0.path())
            .output()
            .expect("the test asked whether openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the part of a URL that trusts the certificate of `host`.
    fn trusting(&self, host: &str) -> String {
        format!("ca={}", self.file(&format!("{host}.pem")).display())
    }

    /// Sends a PING to a server with the certificate of `host`, and returns the result.
    fn asked(&self, host: &str, wants_certificate: bool, query: &str) -> Result<Value, ErrorKind> {
        let (address, server) = serve(pong(self.server(host, wants_certificate)));
        let reply = ping(address, query).map_err(|failure| failure.kind().clone());
        server.join().unwrap();
        reply
    }

    /// The configuration of a server with the certificate of `host`. With `wants_certificate`, the
    /// server demands a client certificate.
    fn server(&self, host: &str, wants_certificate: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(&self.file(&format!("{host}.pem"))).ok().unwrap();
        let key = PrivateKeyDer::from_pem_file(self.file(&format!("{host}.key"))).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = match wants_certificate {
            false => builder.unwrap().with_no_client_auth(),
            true => {
                let trusted = Arc::new(trusted(Some(&self.file("elsewhere.pem")), &SPELLING).ok().unwrap());
                let verifier = WebPkiClientVerifier::builder_with_provider(trusted, provider).build().unwrap();
                builder.unwrap().with_client_cert_verifier(verifier)
            }
        };
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}

/// Serves one connection.
fn serve<T: Send + 'static>(serve: impl FnOnce(TcpStream) -> T + Send + 'static) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), thread::spawn(move || serve(listener.accept().unwrap().0)))
}

fn link(server: SocketAddr, query: &str) -> Result<Link, Failure> {
    let target = target(server, query).with_tls().unwrap();
    Link::open(&target, Address::new(&target.nodes[0], Way::Socket(server)))
}

fn target(server: SocketAddr, query: &str) -> Target {
    Target::parse(&format!("rediss://localhost:{}?{query}", server.port())).unwrap().unwrap()
}

fn ping(server: SocketAddr, query: &str) -> Result<Value, Failure> {
    Ok(blocking::ask(&mut link(server, query)?, &redis::cmd("PING"), Boottime::now() + PATIENCE)?.unwrap())
}

/// Answers one PING.
fn pong(config: Arc<ServerConfig>) -> impl FnOnce(TcpStream) + Send + 'static {
    move |stream| {
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        let mut bytes = [0; 14];
        // A client that does not trust the certificate sends nothing.
        if stream.read_exact(&mut bytes).is_ok() {
            assert_eq!(&bytes, b"*1\r\n$4\r\nPING\r\n");
            stream.write_all(b"+PONG\r\n").unwrap();
        }
    }
}

#[test]
fn server_with_a_trusted_certificate_for_its_name_is_accepted() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let pong = || Ok(Value::SimpleString("PONG".to_owned()));
    assert_eq!(made.asked("localhost", false, &made.trusting("localhost")), pong());
    assert_eq!(
        made.asked("localhost", false, &made.trusting("elsewhere")),
        Err(ErrorKind::Network(NetworkError::UnknownAuthority))
    );
    assert_eq!(
        made.asked("elsewhere", false, &made.trusting("elsewhere")),
        Err(ErrorKind::Network(NetworkError::WrongName))
    );
    let named = format!("{}&server-name=elsewhere", made.trusting("elsewhere"));
    assert_eq!(made.asked("elsewhere", false, &named), pong());
}

/// `openssl req -x509` makes an authority's certificate by default. The client accepts such a
/// server only if ?ca names exactly its certificate.
#[test]
fn certificate_of_an_authority_is_accepted_if_ca_names_it() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    made.make_authority("own", "localhost");
    made.make_authority("other", "localhost");
    made.make_authority("misnamed", "elsewhere");
    let asked = |server: &str, ca: &str| made.asked(server, false, &made.trusting(ca));
    assert_eq!(asked("own", "own"), Ok(Value::SimpleString("PONG".to_owned())));
    assert_eq!(asked("misnamed", "misnamed"), Err(ErrorKind::Network(NetworkError::WrongName)));
    // The other certificate has the same name, but is not identical.
    for ca in ["other", "localhost"] {
        let Err(ErrorKind::Network(why)) = asked("own", ca) else { panic!("{ca}") };
        let why = why.words(&SPELLING).to_string();
        assert!(why.contains("an authority's own: name that very one by ?ca=FILE"), "{why}");
    }

    let file = made.file("own.pem");
    let own = || certificates(&file).ok().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        pinned::verifier(trusted(Some(&file), &SPELLING).ok().unwrap(), own(), Checks::All, &provider).ok().unwrap();
    let judged = |instant| {
        let name = ServerName::try_from("localhost").unwrap();
        verifier.verify_server_cert(&own()[0], &[], &name, &[], instant).map_err(|error| from_tls(&error))
    };
    assert!(judged(UnixTime::now()).is_ok());
    for days in [-3, 3_i64] {
        let then = UnixTime::now().as_secs().saturating_add_signed(days * 24 * 3600);
        let judged = judged(UnixTime::since_unix_epoch(Duration::from_secs(then)));
        assert_eq!(judged.err(), Some(NetworkError::Expired), "{days}");
    }
}

#[test]
fn client_sends_its_certificate() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let file = |name| made.file(name).display().to_string();
    let nothing = made.trusting("localhost");
    let ours = format!("{nothing}&cert={}&key={}", file("elsewhere.pem"), file("elsewhere.key"));
    assert_eq!(made.asked("localhost", true, &ours), Ok(Value::SimpleString("PONG".to_owned())));
    assert_eq!(made.asked("localhost", true, &nothing), Err(ErrorKind::Network(NetworkError::WantsCertificate)));
}

#[test]
fn unusable_files_are_reported() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let file = |name| made.file(name).display().to_string();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let cases = [
        (format!("ca={}", file("none.pem")), "none.pem': no such file"),
        (format!("ca={}", file("localhost.key")), "no certificate in"),
        (format!("ca={0}&cert={0}&key={0}", file("localhost.pem")), "no key in"),
        (format!("ca={0}&cert={0}&key={1}", file("localhost.pem"), file("elsewhere.key")), "does not fit"),
    ];
    for (query, expected) in cases {
        let error = target(nowhere, &query).with_tls().err().unwrap();
        assert!(matches!(error, Error::Unavailable(_)) && error.to_string().contains(expected), "{error}");
    }
    let failure = link(nowhere, &format!("ca={}&server-name=a%20b", file("localhost.pem"))).err().unwrap();
    assert!(failure.to_string().contains("server-name") && !failure.is_transient(), "{failure}");
}

/// Each byte comes in a record of its own. In both directions the data is longer than one record.
#[test]
fn bytes_pass_in_records_of_any_size() {
    let long = vec![b'x'; 1 << 20];
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let config = made.server("localhost", false);
    let expected = long.clone();
    let (address, server) = serve(move |stream| {
        stream.set_nodelay(true).unwrap();
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        let head = format!("*2\r\n$4\r\nECHO\r\n${}\r\n", expected.len());
        let mut bytes = vec![0; head.len() + expected.len() + 2];
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes.ends_with(b"x\r\n") && bytes.starts_with(head.as_bytes()));
        for byte in b":12345\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let reply = [format!("${}\r\n", expected.len()).as_bytes(), &expected, b"\r\n"].concat();
        stream.write_all(&reply).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        // If data arrives for a socket that is already closed, the kernel discards the data that
        // was sent last.
        stream.read_exact(&mut [0; 28]).unwrap();
    });
    let mut link = link(address, &made.trusting("localhost")).unwrap();
    let echo = redis::cmd("ECHO").arg(&long).clone();
    let reply = blocking::ask(&mut link, &echo, Boottime::now() + PATIENCE).unwrap();
    assert_eq!(reply, Ok(Value::Int(12345)));
    let reply = blocking::ask(&mut link, &redis::cmd("PING"), Boottime::now() + PATIENCE).unwrap();
    assert!(reply == Ok(Value::BulkString(long)));
    let failure = blocking::ask(&mut link, &redis::cmd("PING"), Boottime::now() + PATIENCE).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::Closed(Stage::Used)));
    server.join().unwrap();
}

/// The poll loop cannot see data that rustls has already decrypted.
#[test]
fn tls_peer_that_never_stops_sending_does_not_starve_the_loop() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let config = made.server("localhost", false);
    let (address, server) = serve(move |stream| {
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        let pushes = b">2\r\n+other\r\n:1\r\n".repeat(1000);
        while stream.write_all(&pushes).is_ok() {}
    });
    let mut link = link(address, &made.trusting("localhost")).unwrap();
    let failure = blocking::ask(&mut link, &redis::cmd("PING"), Boottime::now() + Duration::from_secs(1)).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::TimedOut(Stage::Used)));
    drop(link);
    server.join().unwrap();
}

#[test]
fn server_without_tls_is_reported() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let (address, server) = serve(|mut stream| {
        stream.write_all(b"-ERR Protocol error: unauthenticated multibulk length\r\n").unwrap();
        stream
    });
    assert_eq!(
        ping(address, &made.trusting("localhost")).unwrap_err().kind(),
        &ErrorKind::Network(NetworkError::IsPlain)
    );
    drop(server.join().unwrap());

    let (address, server) = serve(|mut stream| stream.read(&mut [0; 10_000]).unwrap());
    let failure = ping(address, &made.trusting("localhost")).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::Closed(Stage::Handshake)));
    server.join().unwrap();

    // The server waits for the end of a line that does not come.
    let (address, server) = serve(|stream| stream);
    let mut link = link(address, &made.trusting("localhost")).unwrap();
    let silent = server.join().unwrap();
    let failure =
        blocking::ask(&mut link, &redis::cmd("PING"), Boottime::now() + Duration::from_millis(20)).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::TimedOut(Stage::Handshake)));
    drop(silent);
}

/// A proxy that has the certificate, and no server behind it.
#[test]
fn close_after_the_handshake_is_no_close_without_tls() {
    skip_unless!(needs::programs(&["openssl"]));
    let made = Certificates::new();
    let config = made.server("localhost", false);
    let (address, server) = serve(move |mut stream| {
        let mut tls = ServerConnection::new(config).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        tls.send_close_notify();
        tls.complete_io(&mut stream).unwrap();
        // A close before the client has written would be a reset, which discards what was sent.
        stream.read(&mut [0; 10_000]).unwrap()
    });
    let failure = ping(address, &made.trusting("localhost")).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::Closed(Stage::Encrypted)));
    server.join().unwrap();
}
