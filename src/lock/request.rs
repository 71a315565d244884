//! What a session asks for: its id, its claims, and what people are told about the process behind it.

use std::fmt;
use std::str::FromStr;

use super::mode::Mode;
use super::resource::Resource;
use super::span::Span;

/// Microseconds: since the Unix epoch for an instant of the store's clock, or the length of a time.
pub type Micros = u64;

/// The random 128-bit id of one rlock process that requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    /// 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A text that is no session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionIdError;

impl fmt::Display for SessionIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a session id has 32 hexadecimal digits")
    }
}

impl std::error::Error for SessionIdError {}

impl FromStr for SessionId {
    type Err = SessionIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SessionIdError);
        }
        u128::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes())).map_err(|_| SessionIdError)
    }
}

/// One resource, how, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is claimed.
    pub resource: Resource,
    /// How it is claimed.
    pub mode: Mode,
    /// The part that is claimed; the whole in mode slot.
    pub span: Span,
    /// Into how many slots the resource is shared: for mode slot, and only there.
    pub slots: Option<u32>,
}

/// The process behind a session, for people: nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The machine's name.
    pub host: String,
    /// The process id of rlock, as it sees itself.
    pub pid: u32,
    /// The user's name, or the number where it has none.
    pub user: String,
    /// The command's words.
    pub command: Vec<String>,
}

/// The leases that a session lives by in a store that can't see whether it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a grant lives unless it is renewed.
    pub ttl: Micros,
    /// How long a grant to a waiter lives until that waiter claims it by its first renewal.
    pub claim: Micros,
    /// How long a waiter keeps its place unless it shows itself.
    pub heartbeat: Micros,
}

/// One or more claims, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks; one session makes one request.
    pub session: SessionId,
    /// The sessions whose commands it runs below, innermost first.
    pub ancestors: Vec<SessionId>,
    /// What is asked; never empty. Claims of one request don't conflict with each other.
    pub claims: Vec<Claim>,
    /// Whether to queue where it can't be granted at once.
    pub wait: bool,
    /// The leases, or none in a store where a session lives as long as its process.
    pub terms: Option<Terms>,
    /// The process that asks.
    pub process: Process,
}
