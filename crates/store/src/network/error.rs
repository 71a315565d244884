//! Classifies the reasons why a server can't be reached, and writes the words that are the same for
//! each kind of server.

use rustix::io::Errno;

use super::tls::in_words;
use crate::lease::FailureClass;
use rlock_words::{Explained, reason};

/// Why a server can't be reached.
#[derive(Clone, Debug, PartialEq)]
pub enum NetworkError {
    /// The host name can't be resolved, with the reason.
    Unresolved(String),
    /// Nothing listens at the address.
    Refused,
    /// The socket in the file system does not exist.
    NoSocket,
    /// This user may not use the socket in the file system.
    NotAllowed,
    /// There is no route to the address, with the reason.
    Unreachable(String),
    /// No answer came in time.
    TimedOut(Stage),
    /// The server closed the connection.
    Closed(Stage),
    /// The connection failed otherwise, with the reason.
    ConnectionFailed(String),
    /// The certificate is from an authority that is not trusted.
    UnknownAuthority,
    /// The certificate is for another host.
    WrongName,
    /// The certificate has expired or is not valid yet.
    Expired,
    /// The server wants a client certificate, or another one.
    WantsCertificate,
    /// The TLS handshake fails otherwise.
    Handshake(rustls::Error),
    /// A file that TLS needs can't be used, or a name, with the message about it.
    Tls(Explained),
    /// The server does not speak TLS.
    IsPlain,
    /// The server speaks TLS, and the URL does not.
    IsTls,
    /// The queue of connections that the server has not accepted is full. Only a unix socket
    /// reports this.
    QueueFull,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The server has not accepted the connection.
    Connecting,
    /// The TLS handshake is not over.
    Handshake,
    /// The server has not answered yet, without TLS.
    Silent,
    /// The TLS handshake is over, and the server has not answered yet.
    Encrypted,
    /// The server has answered before.
    Used,
}

/// How the URLs of a kind of store name what an error may be about.
#[derive(Debug, Default)]
pub struct Spelling {
    /// The option for the file of the authorities.
    pub ca: &'static str,
    /// The options for the certificate and key of the client.
    pub identity: &'static str,
    /// The option for the name in the certificate.
    pub server_name: &'static str,
    /// What to write for a server without TLS.
    pub without_tls: &'static str,
    /// What to write for a server with TLS.
    pub with_tls: &'static str,
    /// What to do if the server speaks no TLS.
    pub if_plain: &'static str,
    /// What to do if the server speaks TLS.
    pub if_tls: &'static str,
    /// What to do about a socket that this user may not use.
    pub if_forbidden: &'static str,
    /// What to do about a server that does not answer.
    pub if_silent: &'static str,
}

/// What to do about a server that accepts and closes, as haproxy, stunnel and socat do.
const LOG_OR_PROXY: &str = "see the server's log, or whether a proxy has no server behind it";

impl NetworkError {
    /// The kind of an error of the kernel.
    pub fn from_kernel(error: Errno, stage: Stage) -> Self {
        match error {
            Errno::CONNREFUSED => Self::Refused,
            Errno::NOENT => Self::NoSocket,
            Errno::ACCESS | Errno::PERM => Self::NotAllowed,
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN | Errno::ADDRNOTAVAIL => {
                Self::Unreachable(reason(&error))
            }
            Errno::TIMEDOUT => Self::TimedOut(stage),
            Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Self::Closed(stage),
            error => Self::ConnectionFailed(reason(&error)),
        }
    }

    /// What the error says about the next attempt at a store with one address.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Unresolved(_) | Self::Refused | Self::NoSocket | Self::Unreachable(_) => FailureClass::Absent,
            Self::TimedOut(_) | Self::Closed(_) | Self::ConnectionFailed(_) | Self::QueueFull => {
                FailureClass::Transient
            }
            _ => FailureClass::Permanent,
        }
    }

    /// The words after the name of the server.
    pub fn words(&self, url: &Spelling) -> Explained {
        let remedy;
        let (what, remedy) = match self {
            Self::Unresolved(why) => {
                return Explained::with_semicolon(format!("cannot be found: {why}"), "check the host name");
            }
            Self::Refused => ("refused the connection", "start the server, or correct the address"),
            Self::NoSocket => ("cannot be reached: no such socket", "start the server, or correct the path"),
            Self::NotAllowed => ("cannot be reached: permission denied", url.if_forbidden),
            Self::Unreachable(why) => {
                return Explained::with_semicolon(
                    format!("cannot be reached: {why}"),
                    "check the address and the network",
                );
            }
            Self::TimedOut(Stage::Connecting) => {
                ("did not answer in time", "check the address and the network, or raise --connect-timeout")
            }
            Self::TimedOut(Stage::Handshake) => {
                remedy = format!("for a server without TLS write {}", url.without_tls);
                ("did not answer in time to the TLS handshake", &*remedy)
            }
            Self::TimedOut(Stage::Silent | Stage::Encrypted | Stage::Used) => {
                ("accepted the connection but did not answer in time", url.if_silent)
            }
            Self::Closed(Stage::Connecting) => ("closed the connection at once", LOG_OR_PROXY),
            Self::Closed(Stage::Handshake) => {
                remedy = format!(
                    "see whether a proxy has no server behind it, or for a server without TLS write {}",
                    url.without_tls
                );
                ("closed the connection in the TLS handshake", &*remedy)
            }
            Self::Closed(Stage::Silent) => {
                remedy = format!("{LOG_OR_PROXY}, or write {} for TLS", url.with_tls);
                ("closed the connection without an answer", &*remedy)
            }
            Self::Closed(Stage::Encrypted) => ("closed the connection without an answer", LOG_OR_PROXY),
            Self::Closed(Stage::Used) => {
                ("closed the connection", "see the server's log, and whether the server was restarted")
            }
            Self::ConnectionFailed(why) => {
                return Explained::with_semicolon(format!("cannot be reached: {why}"), "check the network");
            }
            Self::UnknownAuthority => {
                remedy = format!("name the authority's file by {}", url.ca);
                ("shows a certificate of an authority that is not trusted", &*remedy)
            }
            Self::WrongName => {
                remedy = format!("correct the certificate, or give {}", url.server_name);
                ("shows a certificate whose subjectAltName lacks this host", &*remedy)
            }
            Self::Expired => (
                "shows a certificate that is not valid now",
                "renew the certificate, or correct the clock of this machine",
            ),
            Self::WantsCertificate => {
                remedy = format!("name a certificate by {}", url.identity);
                ("does not take this client without another certificate", &*remedy)
            }
            Self::Handshake(error) => return in_words(error, url).behind("cannot be reached by TLS: "),
            Self::Tls(words) => return words.clone().behind("cannot be reached by TLS: "),
            Self::IsPlain => ("does not speak TLS", url.if_plain),
            Self::IsTls => ("speaks TLS", url.if_tls),
            Self::QueueFull => {
                ("has no room for another connection", "see whether the server is stopped or overloaded")
            }
        };
        Explained::with_semicolon(what, remedy)
    }
}
