//! Speaks the wire protocol over one connection: TLS, the login, then messages. Nothing blocks; the
//! poll loop waits.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::backend::{Header, Message};
use postgres_protocol::message::frontend;
use rustix::event::PollFlags;
use rustix::io::fcntl_dupfd_cloexec;

use super::binding;
use super::failure::{ErrorKind, Failure, SPELLING};
use super::login::Login;
use super::passfile::Ignored;
use super::target::{ALPN, Loaded, Server, SslMode, Target};
use super::wire::{self, ServerError};
use rlock_store::network::stream::{Received, Stream};
use rlock_store::network::{NetworkError, Stage, tls};
use rlock_store::node::Node;
use rlock_store::secrets::Password;
use rlock_sys::clock::Boottime;

/// The largest message, which has a row of one record.
const MESSAGE_MAX: usize = 64 << 20;
/// The largest message before the login is done, which has an error.
const LOGIN_MESSAGE_MAX: usize = 30_000;

/// A connection to a server.
pub(super) struct Link {
    target: Arc<Target>,
    server: Server,
    stream: Stream,
    inbox: BytesMut,
    login: Login,
    /// The password that this login may use.
    password: Option<Password>,
    loaded: Loaded,
    /// Whether TLS is used, or will be if the server speaks it.
    is_encrypted: bool,
    has_read: bool,
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
    ///
    /// # Errors
    /// The host is no name for TLS.
    pub(super) fn new(
        target: Arc<Target>,
        server: Server,
        loaded: Loaded,
        (socket, is_connected): (OwnedFd, bool),
        encrypts: bool,
    ) -> Result<Self, Failure> {
        let mut link = Self {
            stream: Stream::over(socket, is_connected, None),
            target,
            inbox: BytesMut::new(),
            login: Login::Tls,
            password: server.credentials.password(),
            server,
            loaded,
            is_encrypted: encrypts,
            has_read: false,
        };
        if !encrypts {
            link.start();
        } else if link.target.is_direct {
            link.encrypt().map_err(|kind| link.failure(kind))?;
        } else {
            let mut out = BytesMut::new();
            frontend::ssl_request(&mut out);
            link.send(&out);
        }
        Ok(link)
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
        let is_refused = !matches!(self.login, Login::Done(_))
            && match failure.kind() {
                ErrorKind::Rejected(_) => true,
                ErrorKind::Network(error) => self.is_encrypted && is_about_tls(error),
                _ => false,
            };
        match (self.target.ssl_mode, self.is_encrypted) {
            (SslMode::Allow, false) if is_refused && self.loaded.tls.is_some() => Some(true),
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
        self.login = Login::Request;
    }

    /// Encrypts what passes from now on, and begins to log in.
    fn encrypt(&mut self) -> Result<(), ErrorKind> {
        let (Some(config), Node::Tcp { host, .. }) = (&self.loaded.tls, &self.server.node) else {
            return Err(ErrorKind::UnexpectedReply);
        };
        self.stream.encrypt(tls::client(config, host, &SPELLING)?);
        self.start();
        Ok(())
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
        if let Login::Tls = self.login {
            let Some(answer) = self.inbox.first().copied() else { return Ok(None) };
            return self.on_tls(answer).map(|()| Some(None));
        }
        let is_done = matches!(self.login, Login::Done(_));
        let max = if is_done { MESSAGE_MAX } else { LOGIN_MESSAGE_MAX };
        let header = Header::parse(&self.inbox).map_err(|_| ErrorKind::NotPostgres)?;
        if header.is_some_and(|header| usize::try_from(header.len()).is_ok_and(|len| len > max)) {
            return Err(ErrorKind::NotPostgres);
        }
        let Some(message) = Message::parse(&mut self.inbox).map_err(|_| ErrorKind::NotPostgres)? else {
            return Ok(None);
        };
        if !is_done {
            return self.on_login(message).map(Some);
        }
        Ok(Some(match message {
            Message::NotificationResponse(body) => Some(Event::Notice(body.channel().unwrap_or_default().to_owned())),
            Message::ParameterStatus(_) => None,
            Message::ErrorResponse(body) => match wire::error(body.fields()) {
                error if error.is_fatal => return Err(ErrorKind::from_server(&error)),
                error => Some(Event::Error(error)),
            },
            message => Some(Event::Message(message)),
        }))
    }

    /// The server has answered whether it speaks TLS.
    fn on_tls(&mut self, answer: u8) -> Result<(), ErrorKind> {
        match answer {
            b'N' if self.target.ssl_mode <= SslMode::Prefer && self.inbox.len() == 1 => {
                self.inbox.clear();
                self.is_encrypted = false;
                self.start();
                Ok(())
            }
            b'N' if self.target.ssl_mode > SslMode::Prefer => Err(NetworkError::IsPlain.into()),
            // What follows unencrypted may be of somebody between the two ends.
            b'S' if self.inbox.len() == 1 => {
                self.inbox.clear();
                self.encrypt()
            }
            b'E' => Err(ErrorKind::TooManyClients("it refuses to speak TLS".to_owned())),
            _ => Err(ErrorKind::NotPostgres),
        }
    }

    fn on_login(&mut self, message: Message) -> Result<Option<Event>, ErrorKind> {
        if self.is_encrypted && self.target.is_direct && self.stream.protocol() != Some(ALPN) {
            return Err(ErrorKind::NotPostgres);
        }
        if let Message::AuthenticationSasl(_) = message {
            // The generator of the nonce may open a file, and panics if it cannot.
            fcntl_dupfd_cloexec(self.stream.descriptor().0, 0)
                .map_err(|error| NetworkError::from_kernel(error, self.stage()))?;
        }
        let certificate = self.stream.certificate().and_then(|certificate| binding::end_point(certificate));
        let (login, mut out) = (std::mem::replace(&mut self.login, Login::Over), BytesMut::new());
        let next = login.on(message, &self.target, self.password.as_ref(), certificate, &mut out);
        self.login = next.map_err(|kind| self.on_refusal(kind))?;
        self.send(&out);
        let Login::Done(pid) = self.login else { return Ok(None) };
        if self.password.is_some() {
            self.server.credentials.accepted();
        }
        Ok(Some(Event::Ready(pid)))
    }

    /// The login has failed. A password that may have changed is tried again.
    fn on_refusal(&self, kind: ErrorKind) -> ErrorKind {
        match (&self.password, kind) {
            (_, ErrorKind::NoPassword) => self.no_password(),
            (Some(password), ErrorKind::WrongPassword)
                if self.server.credentials.refused(password, Boottime::now()) =>
            {
                ErrorKind::StalePassword
            }
            (_, kind) => kind,
        }
    }

    fn no_password(&self) -> ErrorKind {
        match &self.loaded.ignored {
            Some((path, Ignored::Open)) => ErrorKind::OpenPassFile(path.display().to_string()),
            Some((path, Ignored::Unreadable(why))) => ErrorKind::UnreadPassFile(format!("'{}': {why}", path.display())),
            Some((_, Ignored::Absent)) | None => ErrorKind::NoPassword,
        }
    }

    fn stage(&self) -> Stage {
        match self.login {
            Login::Done(_) => Stage::Used,
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
