//! Each state against each message that a server may send.

use std::time::Duration;

use postgres_protocol::password::scram_sha_256;
use sha2::{Digest, Sha256};

use super::*;
use rlock_store::secrets::Secrets;

const SALT: [u8; 4] = [1, 2, 3, 4];
const HASH: [u8; 32] = [7; 32];

fn target(query: &str) -> Target {
    let target = Target::parse(&format!("postgres://me@h/d?{query}")).unwrap().unwrap();
    target.complete(&Secrets::default(), "me".to_owned(), Duration::ZERO).unwrap()
}

fn message(tag: u8, body: &[u8]) -> Message {
    let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    Message::parse(&mut BytesMut::from(&[&[tag], &len[..], body].concat()[..])).unwrap().unwrap()
}

fn auth(number: u32, body: &[u8]) -> Message {
    message(b'R', &[&number.to_be_bytes()[..], body].concat())
}

/// HMAC-SHA-256 by its definition in RFC 2104, with a key of 32 bytes.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let pad = |byte: u8| -> Vec<u8> { (0..64).map(|index| key.get(index).unwrap_or(&0) ^ byte).collect() };
    let inner = Sha256::digest([&pad(0x36)[..], text].concat());
    Sha256::digest([&pad(0x5C)[..], &inner].concat()).to_vec()
}

fn decode(text: &str) -> Vec<u8> {
    let output = text.bytes().filter(|byte| *byte != b'=').flat_map(|byte| {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        (0..6).rev().map(move |bit| value >> bit & 1)
    });
    let bits: Vec<_> = output.collect();
    bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
}

fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<_> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let digit = |bits: &[u8]| {
        let value = (0..6).fold(0, |value, index| value << 1 | bits.get(index).unwrap_or(&0));
        char::from(DIGITS[usize::from(value)])
    };
    let mut text: String = bits.chunks(6).map(digit).collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// A server that knows the password.
struct Server {
    /// The name of the mechanism, and what the client has sent at first.
    first: String,
    challenge: String,
    key: Vec<u8>,
}

impl Server {
    /// Takes the client's first message of SCRAM.
    fn new(sent: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&sent[5..]).into_owned();
        let first = text[text.find("n=,").expect("a nonce")..].to_owned();
        // SCRAM-SHA-256$4096:SALT$STORED-KEY:SERVER-KEY
        let verifier = scram_sha_256(b"pa:ss");
        let parts: Vec<_> = verifier.split(['$', ':']).collect();
        let nonce = first.split_once("r=").expect("a nonce").1;
        let challenge = format!("r={nonce}XYZ,s={},i=4096", parts[2]);
        Self { first, challenge, key: decode(parts[4]) }
    }

    /// Signs the exchange after the client's last message.
    fn signature(&self, sent: &[u8]) -> String {
        let last = String::from_utf8_lossy(&sent[5..]).into_owned();
        let without_proof = last.split(",p=").next().expect("a proof");
        let signed = format!("{},{},{without_proof}", self.first, self.challenge);
        format!("v={}", encode(&hmac(&self.key, signed.as_bytes())))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Request,
    Challenge,
    Signature,
    Verdict,
    Begin,
    BeginWithPid,
}

const STAGES: [Stage; 6] =
    [Stage::Request, Stage::Challenge, Stage::Signature, Stage::Verdict, Stage::Begin, Stage::BeginWithPid];

const MESSAGES: [&str; 10] =
    ["ok", "clear", "md5", "sasl", "challenge", "signature", "status", "notice", "key", "ready"];

/// A login on its way, with the messages of a server that would answer rightly.
struct Lab {
    target: Target,
    certificate: Option<Vec<u8>>,
    password: Option<Password>,
    login: Login,
    sent: BytesMut,
    server: Option<Server>,
}

impl Lab {
    fn new(query: &str) -> Self {
        let password = Some(Password::new(b"pa:ss".to_vec()));
        let (certificate, sent) = (Some(HASH.to_vec()), BytesMut::new());
        Self { target: target(query), certificate, password, login: Login::Request, sent, server: None }
    }

    fn message(&self, name: &str) -> Message {
        let server = self.server.as_ref();
        match name {
            "ok" => auth(0, b""),
            "clear" => auth(3, b""),
            "md5" => auth(5, &SALT),
            "sasl" => auth(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"),
            "sasl without binding" => auth(10, b"SCRAM-SHA-256\0\0"),
            "challenge" => auth(11, server.map_or("r=x,s=AAAA,i=1", |server| &server.challenge).as_bytes()),
            "signature" => {
                let signature = server.filter(|_| self.sent.starts_with(b"p") && self.sent.len() > 60);
                auth(12, signature.map_or("v=AAAA".to_owned(), |server| server.signature(&self.sent)).as_bytes())
            }
            "wrong signature" => auth(12, b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
            "status" => message(b'S', b"name\0value\0"),
            "notice" => message(b'N', b"\0"),
            "key" => message(b'K', &[0, 0, 0, 9, 0, 0, 0, 1]),
            "ready" => message(b'Z', b"I"),
            other => panic!("{other}"),
        }
    }

    /// Takes a message in, and gives what is sent. An error ends the login.
    fn hear(&mut self, name: &str) -> Result<Vec<u8>, ErrorKind> {
        let message = self.message(name);
        let (login, mut out) = (std::mem::replace(&mut self.login, Login::Over), BytesMut::new());
        let login = login.on(message, &self.target, self.password.as_ref(), self.certificate.clone(), &mut out);
        if name.starts_with("sasl") && login.is_ok() {
            self.server = Some(Server::new(&out));
        }
        self.login = login.inspect_err(|_| assert!(out.is_empty(), "{name}: {out:?} is sent after all"))?;
        self.sent = out;
        Ok(self.sent.to_vec())
    }

    fn at(stage: Stage) -> Self {
        let mut lab = Self::new("");
        for name in ["sasl", "challenge", "signature", "ok", "key"].iter().take(stage as usize) {
            lab.hear(name).expect(name);
        }
        lab
    }
}

/// A message that is wrong, early or repeated ends the login, and nothing is sent for it.
#[test]
fn each_state_takes_only_the_messages_that_may_come_next() {
    let takes = |stage, name| match stage {
        Stage::Request => matches!(name, "ok" | "clear" | "md5" | "sasl"),
        Stage::Challenge => name == "challenge",
        Stage::Signature => name == "signature",
        Stage::Verdict => name == "ok",
        Stage::Begin => matches!(name, "status" | "notice" | "key" | "ready"),
        Stage::BeginWithPid => matches!(name, "status" | "notice" | "ready"),
    };
    for stage in STAGES {
        for name in MESSAGES {
            let result = Lab::at(stage).hear(name);
            assert_eq!(result.is_ok(), takes(stage, name), "{stage:?} {name}: {result:?}");
        }
    }
}

/// "AuthenticationOk counts once the server's signature was checked", not once SCRAM has begun.
#[test]
fn server_that_skips_or_forges_its_signature_is_an_impostor() {
    for stage in [Stage::Challenge, Stage::Signature] {
        assert_eq!(Lab::at(stage).hear("ok"), Err(ErrorKind::Impostor), "{stage:?}");
    }
    assert_eq!(Lab::at(Stage::Signature).hear("wrong signature"), Err(ErrorKind::Impostor));
}

#[test]
fn login_is_done_by_the_readiness_of_the_backend_and_tells_its_pid() {
    for (stage, pid) in [(Stage::Begin, 0), (Stage::BeginWithPid, 9)] {
        let mut lab = Lab::at(stage);
        lab.hear("ready").unwrap();
        assert!(matches!(lab.login, Login::Done(found) if found == pid));
    }
}

/// "No password, by any message of a server, where channel_binding … forbid it."
#[test]
fn required_binding_refuses_every_login_without_it_before_the_password_is_used() {
    const QUERY: &str = "sslmode=require&channel_binding=require";
    for name in ["ok", "clear", "md5", "sasl without binding"] {
        assert_eq!(Lab::new(QUERY).hear(name), Err(ErrorKind::NoBinding), "{name}");
    }
    let mut unencrypted = Lab::new(QUERY);
    unencrypted.certificate = None;
    assert_eq!(unencrypted.hear("sasl"), Err(ErrorKind::NoBinding));
    let mut bound = Lab::new(QUERY);
    for name in ["sasl", "challenge", "signature", "ok"] {
        bound.hear(name).expect(name);
    }
}

/// "require_auth as libpq has it."
#[test]
fn login_that_is_not_permitted_is_refused_before_the_password_is_used() {
    for (query, permitted) in [
        ("require_auth=scram-sha-256", &["sasl", "sasl without binding"][..]),
        ("require_auth=none", &["ok"]),
        ("require_auth=!none,!md5", &["clear", "sasl", "sasl without binding"]),
        ("require_auth=gss", &[]),
    ] {
        for name in ["ok", "clear", "md5", "sasl", "sasl without binding"] {
            let result = Lab::new(query).hear(name);
            assert_eq!(result.is_ok(), permitted.contains(&name), "{query} {name}: {result:?}");
        }
    }
}

#[test]
fn password_is_sent_in_the_form_that_the_server_asks_for() {
    assert_eq!(Lab::new("").hear("clear").unwrap()[5..], *b"pa:ss\0");
    let hash = Lab::new("").hear("md5").unwrap();
    assert!(hash[5..].starts_with(b"md5") && !String::from_utf8_lossy(&hash).contains("pa:ss"));
    assert!(String::from_utf8_lossy(&Lab::new("").hear("sasl").unwrap()).contains("SCRAM-SHA-256-PLUS\0"));
    for name in ["clear", "md5", "sasl"] {
        let mut lab = Lab::new("");
        lab.password = None;
        assert_eq!(lab.hear(name), Err(ErrorKind::NoPassword), "{name}");
    }
}
