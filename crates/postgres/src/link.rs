//! Speaks the wire protocol over one connection: TLS, the login, then messages. Nothing blocks; the
//! poll loop waits.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{Header, Message};
use postgres_protocol::message::frontend;
use rustix::event::PollFlags;
use rustix::io::fcntl_dupfd_cloexec;

use super::binding;
use super::failure::{ErrorKind, Failure, SPELLING};
use super::passfile::Ignored;
use super::target::{Server, SslMode, Target};
use super::wire::{self, ServerError};
use rlock_store::credentials::Credentials;
use rlock_store::network::stream::{Received, Stream};
use rlock_store::network::{NetworkError, Stage, tls};
use rlock_store::node::Node;
use rlock_store::secrets::Password;
use rlock_sys::clock::Boottime;

/// The largest message, which has a row of one record.
const MESSAGE_MAX: usize = 64 << 20;

/// A connection to a server.
pub(super) struct Link {
    target: Arc<Target>,
    server: Server,
    stream: Stream,
    inbox: BytesMut,
    login: Login,
    /// The pid that the server, or a pooler, has told.
    pid: i32,
    /// Whether TLS is used, or will be if the server speaks it.
    is_encrypted: bool,
    has_read: bool,
}

/// How far the login is.
enum Login {
    /// The server is asked for TLS.
    AsksForTls,
    /// The server decides about the user. A password may be on its way.
    Pending { password: Option<Password>, scram: Option<Box<ScramSha256>> },
    /// Done.
    Done,
}

/// What has arrived.
pub(super) enum Event {
    /// The login is done. The pid is that of the backend, or what a pooler tells in its place.
    Ready(i32),
    /// A message that belongs to what was sent.
    Message(Message),
    /// An error that belongs to it.
    Error(ServerError),
    /// Somebody has told a session to look, by its channel.
    Notice(String),
}

impl Link {
    /// Begins to speak over a socket that is connected, or about to be. `encrypts` says whether to
    /// ask for TLS.
    pub(super) fn new(
        target: Arc<Target>,
        server: Server,
        socket: OwnedFd,
        is_connected: bool,
        encrypts: bool,
    ) -> Self {
        let mut link = Self {
            stream: Stream::over(socket, is_connected, None),
            target,
            server,
            inbox: BytesMut::new(),
            login: Login::AsksForTls,
            pid: 0,
            is_encrypted: encrypts,
            has_read: false,
        };
        let mut out = BytesMut::new();
        if encrypts {
            frontend::ssl_request(&mut out);
            link.send(&out);
        } else {
            link.start();
        }
        link
    }

    /// The descriptor and the events to poll for. An error or a hang-up counts too.
    pub(super) fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.stream.descriptor()
    }

    /// Whether the connection is encrypted, and how long the server's certificate is valid since
    /// 1970.
    pub(super) fn security(&self) -> (bool, Option<Duration>) {
        (self.is_encrypted, self.stream.certificate_end())
    }

    /// Queues bytes, which [`advance`](Self::advance) writes.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.outgoing().extend_from_slice(bytes);
    }

    /// Says goodbye, so that the server need not find out. Bytes that could not be sent are not
    /// sent now: the caller takes their transaction for one that never was.
    pub(super) fn goodbye(&mut self) {
        if self.stream.has_unsent() {
            return;
        }
        let mut out = BytesMut::new();
        frontend::terminate(&mut out);
        self.send(&out);
        let _ = self.stream.write();
    }

    /// Whether another connection with TLS, or without, may be accepted where this one has failed.
    pub(super) fn other_encryption(&self, failure: &Failure) -> Option<bool> {
        let is_refused = matches!(self.login, Login::AsksForTls | Login::Pending { .. })
            && match failure.kind() {
                ErrorKind::Rejected(_) => true,
                ErrorKind::Network(error) => self.is_encrypted && is_about_tls(error),
                _ => false,
            };
        match (self.target.ssl_mode, self.is_encrypted) {
            (SslMode::Allow, false) if is_refused && self.target.tls_config.is_some() => Some(true),
            (SslMode::Prefer, true) if is_refused => Some(false),
            _ => None,
        }
    }

    /// Sends the user and the database.
    fn start(&mut self) {
        let mut out = BytesMut::new();
        let target = Arc::clone(&self.target);
        let parameters = [
            ("user", target.user()),
            ("database", target.database()),
            ("application_name", target.application()),
            ("client_encoding", "UTF8"),
        ];
        match frontend::startup_message(parameters, &mut out) {
            Ok(()) => self.send(&out),
            Err(_) => unreachable!("the URL has no control characters in names"),
        }
        self.login = Login::Pending { password: None, scram: None };
    }

    /// Writes and reads what is possible without waiting, and gives the next event. `None` means:
    /// poll the descriptor, which may be ready already.
    ///
    /// Between two `None`s the link reads once, and each read is bounded, so that a server that
    /// never stops sending leaves the caller time for its signals and timers.
    pub(super) fn advance(&mut self) -> Result<Option<Event>, Failure> {
        self.stream.write().map_err(|error| self.failure(error))?;
        loop {
            while let Some(event) = self.next().map_err(|kind| self.failure(kind))? {
                if let Some(event) = event {
                    return Ok(Some(event));
                }
                // The login has gone on.
                self.stream.write().map_err(|error| self.failure(error))?;
            }
            if std::mem::take(&mut self.has_read) {
                return Ok(None);
            }
            let mut read = Vec::new();
            let received = self.stream.read(&mut read).map_err(|error| self.failure(error))?;
            self.inbox.extend_from_slice(&read);
            match received {
                Received::Bytes => self.has_read = true,
                Received::Nothing => return Ok(None),
                Received::End => return Err(self.failure(NetworkError::Closed(self.stage()))),
            }
        }
    }

    /// Takes in the next message; the inner option is empty if only the login has to know of it.
    fn next(&mut self) -> Result<Option<Option<Event>>, ErrorKind> {
        if let Login::AsksForTls = self.login {
            let Some(answer) = self.inbox.first().copied() else { return Ok(None) };
            return self.on_tls(answer).map(|()| Some(None));
        }
        let header = Header::parse(&self.inbox).map_err(|_| ErrorKind::NotPostgres)?;
        if header.is_some_and(|header| usize::try_from(header.len()).is_ok_and(|len| len > MESSAGE_MAX)) {
            return Err(ErrorKind::NotPostgres);
        }
        let Some(message) = Message::parse(&mut self.inbox).map_err(|_| ErrorKind::NotPostgres)? else {
            return Ok(None);
        };
        Ok(Some(match (message, &self.login) {
            (Message::NotificationResponse(body), _) => {
                Some(Event::Notice(body.channel().unwrap_or_default().to_owned()))
            }
            (Message::ParameterStatus(_), _) => None,
            (Message::NoticeResponse(_), login) if !matches!(login, Login::Done) => None,
            (message, Login::Done) => match message {
                Message::ErrorResponse(body) => match wire::error(body.fields()) {
                    error if error.is_fatal => return Err(ErrorKind::from_server(&error)),
                    error => Some(Event::Error(error)),
                },
                message => Some(Event::Message(message)),
            },
            (message, _) => self.on_login(message)?,
        }))
    }

    /// The server has answered whether it speaks TLS.
    fn on_tls(&mut self, answer: u8) -> Result<(), ErrorKind> {
        match answer {
            b'N' if self.target.ssl_mode <= SslMode::Prefer => {
                self.inbox.clear();
                self.is_encrypted = false;
                self.start();
                Ok(())
            }
            b'N' => Err(NetworkError::IsPlain.into()),
            // What follows unencrypted may be of somebody between the two ends.
            b'S' if self.inbox.len() == 1 => {
                self.inbox.clear();
                let Some(config) = &self.target.tls_config else { return Err(ErrorKind::UnexpectedReply) };
                let Node::Tcp { host, .. } = &self.server.node else { return Err(ErrorKind::UnexpectedReply) };
                let client = tls::client(config, host, &SPELLING)?;
                self.stream.encrypt(client);
                self.start();
                Ok(())
            }
            b'E' => Err(ErrorKind::TooManyClients("it refuses to speak TLS".to_owned())),
            _ => Err(ErrorKind::NotPostgres),
        }
    }

    fn on_login(&mut self, message: Message) -> Result<Option<Event>, ErrorKind> {
        let mut out = BytesMut::new();
        let password = || self.server.credentials.password().ok_or_else(|| self.no_password());
        match message {
            Message::AuthenticationOk | Message::AuthenticationSaslFinal(_) => {
                if let Message::AuthenticationSaslFinal(body) = message {
                    let Login::Pending { scram: Some(scram), .. } = &mut self.login else {
                        return Err(ErrorKind::UnexpectedReply);
                    };
                    scram.finish(body.data()).map_err(|_| ErrorKind::Impostor)?;
                } else if self.target.requires_binding && !matches!(&self.login, Login::Pending { scram: Some(_), .. })
                {
                    return Err(ErrorKind::NoBinding);
                }
            }
            Message::AuthenticationCleartextPassword => {
                let password = password()?;
                frontend::password_message(password.reveal(), &mut out).map_err(|_| ErrorKind::WrongPassword)?;
                self.login = Login::Pending { password: Some(password), scram: None };
            }
            Message::AuthenticationMd5Password(body) => {
                let password = password()?;
                let hash = md5_hash(self.target.user().as_bytes(), password.reveal(), body.salt());
                frontend::password_message(hash.as_bytes(), &mut out).map_err(|_| ErrorKind::WrongPassword)?;
                self.login = Login::Pending { password: Some(password), scram: None };
            }
            Message::AuthenticationSasl(body) => {
                let password = password()?;
                let offered: Vec<_> = body.mechanisms().map(|name| Ok(name.to_owned())).collect().unwrap_or_default();
                let offers = |name: &str| offered.iter().any(|offered| offered == name);
                let end_point = self.stream.certificate().and_then(|certificate| binding::end_point(certificate));
                let (mechanism, binding) = match end_point {
                    Some(hash) if offers(SCRAM_SHA_256_PLUS) => {
                        (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash))
                    }
                    _ if self.target.requires_binding => return Err(ErrorKind::NoBinding),
                    _ if !offers(SCRAM_SHA_256) => return Err(ErrorKind::UnknownLogin),
                    // The server learns whether somebody has hidden its offer.
                    Some(_) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
                    None => (SCRAM_SHA_256, ChannelBinding::unsupported()),
                };
                // The generator of the nonce may open a file, and panics if it cannot.
                fcntl_dupfd_cloexec(self.stream.descriptor().0, 0)
                    .map_err(|error| NetworkError::from_kernel(error, self.stage()))?;
                let scram = ScramSha256::new(password.reveal(), binding);
                frontend::sasl_initial_response(mechanism, scram.message(), &mut out)
                    .map_err(|_| ErrorKind::UnexpectedReply)?;
                self.login = Login::Pending { password: Some(password), scram: Some(Box::new(scram)) };
            }
            Message::AuthenticationSaslContinue(body) => {
                let Login::Pending { scram: Some(scram), .. } = &mut self.login else {
                    return Err(ErrorKind::UnexpectedReply);
                };
                scram.update(body.data()).map_err(|_| ErrorKind::UnexpectedReply)?;
                frontend::sasl_response(scram.message(), &mut out).map_err(|_| ErrorKind::UnexpectedReply)?;
            }
            Message::BackendKeyData(body) => self.pid = body.process_id(),
            Message::ReadyForQuery(_) => {
                if let Login::Pending { password: Some(_), .. } = std::mem::replace(&mut self.login, Login::Done) {
                    self.server.credentials.accepted();
                }
                return Ok(Some(Event::Ready(self.pid)));
            }
            Message::ErrorResponse(body) => {
                return Err(self.on_refusal(ErrorKind::from_server(&wire::error(body.fields()))));
            }
            Message::AuthenticationGss
            | Message::AuthenticationSspi
            | Message::AuthenticationKerberosV5
            | Message::AuthenticationScmCredential
            | Message::AuthenticationGssContinue(_) => return Err(ErrorKind::UnknownLogin),
            _ => return Err(ErrorKind::UnexpectedReply),
        }
        self.send(&out);
        Ok(None)
    }

    /// The server has refused the login. A password that may have changed is tried again.
    fn on_refusal(&self, kind: ErrorKind) -> ErrorKind {
        let credentials: &Credentials = &self.server.credentials;
        match (&self.login, kind) {
            (Login::Pending { password: Some(password), .. }, ErrorKind::WrongPassword)
                if credentials.refused(password, Boottime::now()) =>
            {
                ErrorKind::StalePassword
            }
            (_, kind) => kind,
        }
    }

    fn no_password(&self) -> ErrorKind {
        match &self.target.ignored_passfile {
            Some((path, Ignored::Open)) => ErrorKind::OpenPassFile(path.display().to_string()),
            Some((path, Ignored::Unreadable(why))) => ErrorKind::UnreadPassFile(format!("'{}': {why}", path.display())),
            Some((_, Ignored::Absent)) | None => ErrorKind::NoPassword,
        }
    }

    fn stage(&self) -> Stage {
        match self.login {
            Login::Done => Stage::Used,
            _ => self.stream.stage(),
        }
    }

    /// The failure when no answer came in time.
    pub(super) fn timeout_failure(&self) -> Failure {
        self.failure(NetworkError::TimedOut(self.stage()))
    }

    /// A failure of this server.
    pub(super) fn failure(&self, kind: impl Into<ErrorKind>) -> Failure {
        kind.into().of(&self.target.shown_node(&self.server.node))
    }
}

fn is_about_tls(error: &NetworkError) -> bool {
    matches!(
        error,
        NetworkError::Handshake(_)
            | NetworkError::IsPlain
            | NetworkError::WantsCertificate
            | NetworkError::Closed(Stage::Handshake)
    )
}
