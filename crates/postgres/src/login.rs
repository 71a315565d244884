//! The login at a server: a state for each message that may come next. A message out of turn ends
//! the login, and nothing is sent that the URL forbids, whatever the server says.
//!
//! ```text
//! Request ─ Sasl ─► Challenge ─ SaslContinue ─► Signature ─ SaslFinal ─► Verdict ─ Ok ─► Begin
//!    │ └─ password, md5 ────────────────────────────────────────────────────┘             │
//!    └─ Ok: trust, peer, cert ──────────────────────────────────────► Begin ─ Ready ─► Done
//! ```

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use super::failure::ErrorKind;
use super::proof::{AwaitsChallenge, AwaitsSignature, Permitted};
use super::target::Target;
use super::wire;
use rlock_store::secrets::Password;

/// The message that may come next. Each consumes its state.
pub(super) enum Login {
    /// One byte: whether the server speaks TLS.
    Tls,
    /// How the server wants to test this client.
    Request,
    Challenge(AwaitsChallenge),
    Signature(AwaitsSignature),
    /// Whether the server lets this client in.
    Verdict(Permitted),
    /// The pid of the backend, and that the backend is ready.
    Begin(Permitted, Option<i32>),
    /// The login is done, and has told this pid, or none.
    Done(i32),
    /// None: a message has ended the login.
    Over,
}

impl Login {
    /// Takes a message in, and appends what it asks for. `certificate` is the hash of that of the
    /// server.
    ///
    /// # Errors
    /// The server or the URL refuses the login, or the message is out of turn.
    pub(super) fn on(
        self,
        message: Message,
        target: &Target,
        password: Option<&Password>,
        certificate: Option<Vec<u8>>,
        out: &mut BytesMut,
    ) -> Result<Self, ErrorKind> {
        let clear = || password.map(Password::reveal).ok_or(ErrorKind::NoPassword);
        let say = |password: &[u8], out: &mut BytesMut| {
            frontend::password_message(password, out).map_err(|_| ErrorKind::WrongPassword)
        };
        Ok(match (self, message) {
            (_, Message::ErrorResponse(body)) => return Err(ErrorKind::from_server(&wire::error(body.fields()))),
            (Self::Request, Message::AuthenticationOk) => Self::Begin(Permitted::unproved("none", target)?, None),
            (Self::Request, Message::AuthenticationCleartextPassword) => {
                let permitted = Permitted::unproved("password", target)?;
                say(clear()?, out)?;
                Self::Verdict(permitted)
            }
            (Self::Request, Message::AuthenticationMd5Password(body)) => {
                let permitted = Permitted::unproved("md5", target)?;
                say(md5_hash(target.user().as_bytes(), clear()?, body.salt()).as_bytes(), out)?;
                Self::Verdict(permitted)
            }
            (Self::Request, Message::AuthenticationSasl(body)) => {
                let offered: Vec<_> = body.mechanisms().map(|name| Ok(name.to_owned())).collect().unwrap_or_default();
                let offers = |name: &str| offered.iter().any(|offered| offered == name);
                Self::Challenge(AwaitsChallenge::begin(offers, certificate, password, target, out)?)
            }
            (
                Self::Request,
                Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential,
            ) => return Err(ErrorKind::UnknownLogin),
            (Self::Challenge(state), Message::AuthenticationSaslContinue(body)) => {
                Self::Signature(state.on_challenge(body.data(), out)?)
            }
            (Self::Signature(state), Message::AuthenticationSaslFinal(body)) => {
                Self::Verdict(state.on_signature(body.data())?)
            }
            (Self::Challenge(_) | Self::Signature(_), Message::AuthenticationOk) => return Err(ErrorKind::Impostor),
            (Self::Verdict(permitted), Message::AuthenticationOk) => Self::Begin(permitted, None),
            (Self::Begin(permitted, None), Message::BackendKeyData(body)) => {
                Self::Begin(permitted, Some(body.process_id()))
            }
            (Self::Begin(_, pid), Message::ReadyForQuery(_)) => Self::Done(pid.unwrap_or_default()),
            (begun @ Self::Begin(..), Message::ParameterStatus(_) | Message::NoticeResponse(_)) => begun,
            _ => return Err(ErrorKind::UnexpectedReply),
        })
    }
}

#[cfg(test)]
mod tests;
