//! Servers that lie at the login, or that are slow. They are aimed at rlock alone: each says what
//! no server says, and a client that heeds the manual says nothing more.
//!
//! An impostor has no password and speaks TLS with a certificate that the test chooses. A relay is
//! between rlock and a real server, and spoils one message of the login.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use rlock_store::network::Spelling;
use rlock_store::network::tls::{self, Checks, TlsFiles};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::servers::certificates::Certificates;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::{Lab, Ran};

/// The page with the table.
const PAGE: &str = include_str!("../../src/cli/pages/postgres.txt");

const SSL_REQUEST: u32 = 80_877_103;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).expect("the message is short").to_be_bytes();
    [&[tag], &len[..], body].concat()
}

fn auth(number: u32, body: &[u8]) -> Vec<u8> {
    message(b'R', &[&number.to_be_bytes()[..], body].concat())
}

/// What ends a login for good.
fn refusal() -> Vec<u8> {
    message(b'E', b"SFATAL\0VFATAL\0C28P01\0Mno\0\0")
}

/// Reads what follows a tag, if there is one.
fn read_message(from: &mut impl Read, has_tag: bool) -> io::Result<Vec<u8>> {
    let mut head = vec![0; if has_tag { 5 } else { 4 }];
    from.read_exact(&mut head)?;
    let len = u32::from_be_bytes(*head.last_chunk().expect("four bytes are the length"));
    let mut body = vec![0; usize::try_from(len).expect("a short message") - 4];
    from.read_exact(&mut body)?;
    Ok([head, body].concat())
}

trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

/// A message of a client, and whether it was encrypted.
type Heard = (Vec<u8>, bool);

/// A server that sends the same to each client that begins to log in.
struct Impostor {
    port: u16,
    /// What clients have sent after that.
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Impostor {
    /// Starts a server that speaks TLS, if there is a configuration, and says this. `answer` is its
    /// answer to the question whether it speaks TLS.
    fn start(tls: Option<Arc<ServerConfig>>, answer: &'static [u8], says: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        // The thread ends with the process of the test.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (tls, says, hears) = (tls.clone(), says.clone(), Arc::clone(&hears));
                // The client may break off at any time.
                thread::spawn(move || client.and_then(|client| serve(client, tls, answer, &says, &hears)));
            }
        });
        Self { port, heard }
    }

    /// Lets rlock log in by a URL with these options.
    fn run(&self, query: &str, home: &Path) -> Ran {
        let url = format!("postgres://me@127.0.0.1:{}/d?{query}", self.port);
        let lab = Lab::at(url).with("HOME", home.display().to_string()).with("RLOCK_PASSWORD", "pa:ss");
        lab.run(["exec", "-n", "--connect-timeout", "2s", "k", "--", "true"])
    }

    /// What has become of the password so far: what clients have sent in answer to a request.
    fn fate(&self) -> &'static str {
        match self.heard.lock().expect("no thread panics").as_slice() {
            [] => "none",
            [(message, is_encrypted)] if message[0] == b'p' => {
                if *is_encrypted {
                    "TLS"
                } else {
                    "clear"
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn serve(
    mut client: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    answer: &[u8],
    says: &[u8],
    heard: &Mutex<Vec<Heard>>,
) -> io::Result<()> {
    let mut first = [0];
    client.peek(&mut first)?;
    let mut is_encrypted = first == [0x16];
    if !is_encrypted {
        let startup = read_message(&mut client, false)?;
        if startup[4..8] != SSL_REQUEST.to_be_bytes() {
            return converse(client, says, heard, false);
        }
        client.write_all(answer)?;
        is_encrypted = answer.starts_with(b"S");
    }
    match tls.filter(|_| is_encrypted) {
        Some(config) => {
            let session = ServerConnection::new(config).expect("the configuration fits");
            let mut stream = StreamOwned::new(session, client);
            read_message(&mut stream, false)?;
            converse(stream, says, heard, true)
        }
        None if is_encrypted => Ok(()),
        None => {
            read_message(&mut client, false)?;
            converse(client, says, heard, false)
        }
    }
}

fn converse(mut client: impl Wire, says: &[u8], heard: &Mutex<Vec<Heard>>, is_encrypted: bool) -> io::Result<()> {
    client.write_all(says)?;
    client.flush()?;
    loop {
        let message = read_message(&mut client, true)?;
        if message[0] == b'X' {
            // The client says goodbye.
            return Ok(());
        }
        heard.lock().expect("no thread panics").push((message, is_encrypted));
        client.write_all(&refusal())?;
        client.flush()?;
    }
}

fn config(certificates: &Certificates, name: &str, has_alpn: bool) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(certificates.certificate(name)).expect("openssl has made it")];
    let key = PrivateKeyDer::from_pem_file(certificates.key(name)).expect("openssl has made it");
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("the versions fit").with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.expect("the key fits");
    if has_alpn {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Arc::new(config)
}

/// The rows of the manual's table, each with what becomes of the password at servers without TLS,
/// with a certificate of another authority, with one for another host, and with the right one.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("    ssl")?.split_once(' '));
    let rows = rows.filter(|(query, _)| query.starts_with("mode="));
    rows.map(|(query, fates)| (query, fates.split_whitespace().collect())).collect()
}

/// "This table tells what becomes of the password when a server asks for it."
#[test]
fn password_has_the_fate_that_the_manual_tells() {
    skip_unless!(needs::programs(&["openssl"]));
    let (own, other) = (Certificates::new(), Certificates::new());
    let home = tempfile::tempdir().expect("a folder can be made");
    let file = own.authority().display().to_string();
    let rows = rows();
    assert!(rows.len() >= 10, "{rows:?}");
    let ways = [
        None,
        Some(config(&other, "server", true)),
        Some(config(&own, "client", true)),
        Some(config(&own, "server", true)),
    ];
    for (request, says) in [("password", auth(3, b"")), ("md5", auth(5, &[1, 2, 3, 4]))] {
        for (query, fates) in &rows {
            assert_eq!(fates.len(), ways.len(), "{query}");
            for (number, (fate, way)) in fates.iter().zip(&ways).enumerate() {
                let answer: &[u8] = if way.is_some() { b"S" } else { b"N" };
                let impostor = Impostor::start(way.clone(), answer, says.clone());
                let ran = impostor.run(&format!("ssl{}", query.replace("FILE", &file)), home.path());
                ran.failed(69);
                assert_eq!(impostor.fate(), *fate, "ssl{query}, {request}, server {number}: {ran:?}");
            }
        }
    }
}

/// "Nothing is read that came before the encryption": what somebody between the two ends adds to
/// the answer of the server is no answer.
#[test]
fn bytes_behind_the_answer_about_tls_end_the_login() {
    skip_unless!(needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    let home = tempfile::tempdir().expect("a folder can be made");
    for (answer, query) in [(&b"SR"[..], "sslmode=require"), (b"NR", "sslmode=prefer")] {
        let impostor = Impostor::start(Some(config(&certificates, "server", false)), answer, auth(3, b""));
        let ran = impostor.run(query, home.path());
        assert!(ran.failed(69).contains("is no PostgreSQL server"), "{ran:?}");
        assert_eq!(impostor.fate(), "none", "{query}");
    }
}

/// With `sslnegotiation=direct`, "the server must name the protocol".
#[test]
fn direct_tls_with_a_server_of_another_protocol_is_refused() {
    skip_unless!(needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    let home = tempfile::tempdir().expect("a folder can be made");
    let impostor = Impostor::start(Some(config(&certificates, "server", false)), b"S", auth(3, b""));
    let ran = impostor.run("sslmode=require&sslnegotiation=direct", home.path());
    assert!(ran.failed(69).contains("is no PostgreSQL server"), "{ran:?}");
    assert_eq!(impostor.fate(), "none");
}

/// An impostor that lets every client in, by words that a server may say at the end of a login.
#[test]
fn impostor_that_skips_the_login_is_refused_where_the_url_demands_one() {
    skip_unless!(needs::programs(&["openssl"]));
    let certificates = Certificates::new();
    let home = tempfile::tempdir().expect("a folder can be made");
    let (ok, ready) = (auth(0, b""), message(b'Z', b"I"));
    for (says, query, words) in [
        (ready.clone(), "sslmode=require", "sent an unexpected reply"),
        ([ok.clone(), ready.clone()].concat(), "sslmode=require&channel_binding=require", "cannot bind the login"),
        ([ok.clone(), ready.clone()].concat(), "sslmode=require&require_auth=scram-sha-256", "uses the login 'none'"),
        (auth(12, b"v=AAAA"), "sslmode=require", "sent an unexpected reply"),
        (auth(10, b"SCRAM-SHA-256\0\0"), "sslmode=require&channel_binding=require", "cannot bind the login"),
        (auth(10, b"SCRAM-SHA-256-PLUS\0\0"), "sslmode=disable&channel_binding=require", "cannot bind the login"),
        (message(b'E', &[b'M'; 40_000]), "sslmode=require", "is no PostgreSQL server"),
    ] {
        let impostor = Impostor::start(Some(config(&certificates, "server", true)), b"S", says);
        let ran = impostor.run(query, home.path());
        assert!(ran.failed(69).contains(words), "{query}: {ran:?}");
        assert_eq!(impostor.fate(), "none", "{query}");
    }
}

/// Passes a login on between two TLS connections, as somebody between the two ends does. With
/// `hides`, without the offer to bind it.
fn pass_on(client: TcpStream, config: Arc<ServerConfig>, server: u16, hides: bool) -> io::Result<()> {
    let ask = [8_u32.to_be_bytes(), SSL_REQUEST.to_be_bytes()].concat();
    let (mut client, mut server) = (client, TcpStream::connect(("127.0.0.1", server))?);
    read_message(&mut client, false)?;
    client.write_all(b"S")?;
    server.write_all(&ask)?;
    server.read_exact(&mut [0])?;
    let session = ServerConnection::new(config).expect("the configuration fits");
    let mut client = StreamOwned::new(session, client);
    let config = tls::config(&TlsFiles::default(), Checks::Nothing, &Spelling::default()).expect("no file is read");
    let session = tls::client(&config, "127.0.0.1", &Spelling::default()).expect("it is an address");
    let mut server = StreamOwned::new(session, server);
    server.write_all(&read_message(&mut client, false)?)?;
    loop {
        let message = read_message(&mut server, true)?;
        let name = step(&message);
        let is_hidden = hides && name == "sasl";
        client.write_all(if is_hidden { &b"R\0\0\0\x17\0\0\0\x0ASCRAM-SHA-256\0\0"[..] } else { &message })?;
        client.flush()?;
        if matches!(name, "sasl" | "challenge") {
            server.write_all(&read_message(&mut client, true)?)?;
            server.flush()?;
        }
    }
}

/// "The signed exchange names the certificate that rlock sees, so the real server refuses it."
#[test]
fn login_that_is_passed_on_to_the_real_server_is_refused_there() {
    let Some((server, port)) = server() else { return };
    skip_unless!(needs::programs(&["openssl"]));
    let (certificates, own) = (Certificates::new(), Certificates::new());
    server.encrypt(&certificates);
    for (hides, query, words) in [
        (false, "sslmode=require", "SCRAM channel binding check failed"),
        (true, "sslmode=require", "SCRAM channel binding negotiation error"),
        (true, "sslmode=require&channel_binding=require", "cannot bind the login"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("postgres://scram@{}/postgres?{query}", listener.local_addr().expect("it has an address"));
        let config = config(&own, "server", false);
        thread::spawn(move || {
            for client in listener.incoming() {
                let config = Arc::clone(&config);
                // Both sides break off.
                thread::spawn(move || client.and_then(|client| pass_on(client, config, port, hides)));
            }
        });
        let lab = Lab::at(url).with("RLOCK_PASSWORD", "pa:ss");
        let ran = lab.run(["exec", "-n", "--connect-timeout", "2s", "k", "--", "true"]);
        assert!(ran.failed(69).contains(words), "{hides} {query}: {ran:?}");
    }
}

/// What a relay does with a message of the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Another one comes in its place.
    Wrong,
    /// The end of the login comes before it.
    Early,
    Twice,
    Never,
    /// It comes byte by byte, and so do all others.
    Pieces,
    /// It comes at 20 KB/s, and so do all others.
    Slow,
    /// It comes two seconds late.
    Late,
}

/// The name of a message of the login, after the numbers of the protocol.
fn step(message: &[u8]) -> &'static str {
    match (message[0], message.get(8)) {
        (b'R', Some(10)) => "sasl",
        (b'R', Some(11)) => "challenge",
        (b'R', Some(12)) => "signature",
        (b'R', Some(0)) => "ok",
        (b'K', _) => "key",
        (b'Z', _) => "ready",
        _ => "other",
    }
}

fn wrong(name: &str, right: &[u8]) -> Vec<u8> {
    match name {
        "sasl" => auth(10, b"SCRAM-SHA-512\0\0"),
        "challenge" => {
            let mut wrong = right.to_vec();
            // The first character of the nonce, behind `r=`.
            wrong[11] ^= 1;
            wrong
        }
        "signature" => auth(12, b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        "ok" => auth(3, b""),
        "key" => message(b'K', b"abc"),
        _ => message(b'1', b""),
    }
}

/// A relay to a server that spoils one message of each login.
struct Relay {
    port: u16,
    /// Whether a client has sent a statement.
    has_spoken: Arc<AtomicBool>,
}

impl Relay {
    fn before(server: u16, spoiled: &'static str, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let has_spoken = Arc::new(AtomicBool::new(false));
        let speaks = Arc::clone(&has_spoken);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let server = TcpStream::connect(("127.0.0.1", server)).expect("the server runs");
                let ends = || (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
                let ((mut from, mut to), speaks) = (ends(), Arc::clone(&speaks));
                // Either side may break off at any time.
                thread::spawn(move || -> io::Result<()> {
                    to.write_all(&read_message(&mut from, false)?)?;
                    loop {
                        let message = read_message(&mut from, true);
                        let Ok(message) = message else { return to.shutdown(Shutdown::Both) };
                        speaks.fetch_or(matches!(message[0], b'P' | b'Q'), Ordering::SeqCst);
                        to.write_all(&message)?;
                    }
                });
                let (to, from) = ends();
                thread::spawn(move || relay(from, &to, spoiled, fault).and_then(|()| to.shutdown(Shutdown::Both)));
            }
        });
        Self { port, has_spoken }
    }
}

fn relay(mut from: TcpStream, mut to: &TcpStream, spoiled: &str, fault: Fault) -> io::Result<()> {
    to.set_nodelay(true)?;
    loop {
        let message = read_message(&mut from, true)?;
        let name = step(&message);
        match fault {
            Fault::Pieces | Fault::Slow => {
                for byte in &message {
                    if fault == Fault::Slow {
                        thread::sleep(Duration::from_micros(50));
                    }
                    to.write_all(&[*byte])?;
                }
            }
            _ if name != spoiled => to.write_all(&message)?,
            Fault::Wrong => to.write_all(&wrong(name, &message))?,
            Fault::Early => to.write_all(&[auth(0, b""), self::message(b'Z', b"I"), message].concat())?,
            Fault::Twice => to.write_all(&[message.clone(), message].concat())?,
            Fault::Never => {}
            Fault::Late => {
                thread::sleep(Duration::from_secs(2));
                to.write_all(&message)?;
            }
        }
        if name == "ready" {
            return io::copy(&mut from, &mut to).map(drop);
        }
    }
}

/// The steps of the login, and the faults of each that end it. A second readiness of the backend
/// belongs to the statements.
const FATAL: [(&str, &[Fault]); 6] = [
    ("sasl", &[Fault::Wrong, Fault::Early, Fault::Twice, Fault::Never]),
    ("challenge", &[Fault::Wrong, Fault::Early, Fault::Twice, Fault::Never]),
    ("signature", &[Fault::Wrong, Fault::Early, Fault::Twice, Fault::Never]),
    ("ok", &[Fault::Wrong, Fault::Twice, Fault::Never]),
    ("key", &[Fault::Wrong, Fault::Twice]),
    ("ready", &[Fault::Wrong, Fault::Never]),
];

fn server() -> Option<(Postgres, u16)> {
    let server = Postgres::is_present().then(|| Postgres::start_on_tcp(&[]))?;
    server.ask("create role scram login superuser password 'pa:ss'");
    server.demand("local all tester trust\nhost all all all scram-sha-256\n");
    let url = server.tcp_url();
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()?.parse().ok()).expect("a port");
    Some((server, port))
}

/// "rlock knows one state for each message that may come next": nothing is said to a server whose
/// login goes wrong, and a server that is slow is a server.
#[test]
fn login_in_which_one_message_is_spoiled_ends_and_a_slow_one_does_not() {
    let Some((_server, port)) = server() else { return };
    let fatal = FATAL.iter().flat_map(|(name, faults)| faults.iter().map(move |fault| (*name, *fault)));
    let slow = [("all", Fault::Pieces), ("all", Fault::Slow)];
    let late = FATAL.iter().map(|(name, _)| (*name, Fault::Late));
    let played: Vec<_> = fatal.chain(slow).chain(late).collect();
    thread::scope(|scope| {
        for (name, fault) in played {
            scope.spawn(move || {
                let relay = Relay::before(port, name, fault);
                let query = "sslmode=disable&require_auth=scram-sha-256";
                let lab = Lab::at(format!("postgres://scram@127.0.0.1:{}/postgres?{query}", relay.port));
                let limit = if fault == Fault::Never { "1s" } else { "30s" };
                let words = ["exec", "--connect-timeout", limit, "k", "--", "true"];
                let ran = lab.with("RLOCK_PASSWORD", "pa:ss").run(words);
                let is_slow = matches!(fault, Fault::Pieces | Fault::Slow | Fault::Late);
                assert_eq!(ran.code(), Some(if is_slow { 0 } else { 69 }), "{name} {fault:?}: {ran:?}");
                assert_eq!(relay.has_spoken.load(Ordering::SeqCst), is_slow, "{name} {fault:?}: {ran:?}");
            });
        }
    });
}

/// "AuthenticationOk without the server's signature" is that of an impostor.
#[test]
fn server_that_does_not_sign_the_login_is_told_to_be_an_impostor() {
    let Some((_server, port)) = server() else { return };
    for (name, fault) in [("signature", Fault::Never), ("signature", Fault::Wrong), ("challenge", Fault::Early)] {
        let relay = Relay::before(port, name, fault);
        let lab = Lab::at(format!("postgres://scram@127.0.0.1:{}/postgres?sslmode=disable", relay.port));
        let ran = lab.with("RLOCK_PASSWORD", "pa:ss").run(["exec", "-n", "k", "--", "true"]);
        assert!(ran.failed(69).contains("does not prove that it knows the password"), "{name} {fault:?}: {ran:?}");
    }
}
