//! Represents the meaning of a store's URL, as the users of libpq know it.
//!
//! Nothing here reads the network or the environment. No message quotes a part of a URL that may
//! belong to a password.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::failure::{ErrorKind, SPELLING};
use super::passfile::{Ignored, PassFile};
use rlock_store::address::{Form, Parts, add_option, decoded, port_number, usage};
use rlock_store::credentials::{Credentials, Refused};
use rlock_store::error::Error;
use rlock_store::network::resolve::Order;
use rlock_store::network::tls::{self, Checks, TlsFiles};
use rlock_store::node::{Node, number};
use rlock_store::percent::{PATH, WORD, encode};
use rlock_store::secrets::{Password, Secrets};

/// The scheme, for a message about an unknown one.
pub const SCHEME: &str = "postgres://user@host/database";

const PORT: u16 = 5432;
/// Where Debian's server has its socket. libpq calls the host there `localhost` in a password file.
const SOCKETS: &str = "/run/postgresql";
const OTHER_SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];
/// The protocol that a server must speak over TLS that begins without a question.
pub(super) const ALPN: &[u8] = b"postgresql";
/// The authorities that libpq trusts, in the home directory.
const ROOTS: &str = ".postgresql/root.crt";

/// How the URLs look.
const FORM: Form = Form {
    scheme: "postgres",
    port: PORT,
    options: &[
        "host",
        "port",
        "user",
        "password",
        "dbname",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslnegotiation",
        "channel_binding",
        "require_auth",
        "connect_timeout",
        "target_session_attrs",
        "application_name",
    ],
};

/// Whether a connection is encrypted, and what of it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const MODES: [(&str, SslMode); 6] = [
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

/// The ways to log in, as `require_auth` names them. rlock knows the first four.
const LOGINS: [&str; 8] = ["none", "password", "md5", "scram-sha-256", "gss", "sspi", "creds", "oauth"];

/// One of the servers of a URL.
#[derive(Clone, Debug)]
pub struct Server {
    /// The host, or the socket.
    pub node: Node,
    /// The password for the next login.
    pub credentials: Arc<Credentials>,
}

/// The meaning of a URL.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where to look for the server that takes writes, in turn: at least one.
    pub servers: Vec<Server>,
    /// The user, once [`complete`](Self::complete) has filled in that of the process.
    user: Option<String>,
    database: Option<String>,
    password: Option<Password>,
    pub(crate) ssl_mode: SslMode,
    files: TlsFiles,
    /// Whether the authorities of the system count, whatever file there is.
    trusts_system: bool,
    /// Whether TLS begins without the question whether the server speaks it.
    pub(crate) is_direct: bool,
    /// Whether the login must be bound to the TLS connection.
    pub requires_binding: bool,
    /// The ways to log in that the URL permits, or, behind `!`, forbids.
    require_auth: Option<String>,
    /// How long to wait for a server.
    pub connect_timeout: Option<Duration>,
    /// The name of this client in pg_stat_activity, if the URL has one.
    application: Option<String>,
    /// The name otherwise.
    own_name: String,
    /// The file of passwords, unless there is another password.
    passfile: Option<PathBuf>,
    /// The order in which the addresses of a name are tried.
    pub order: Arc<Order>,
}

/// What a connection takes from files, which may change between two connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    /// The certificates, if the connection may use TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// The file of passwords that does not count, and why.
    pub(super) ignored: Option<(PathBuf, Ignored)>,
}

impl Target {
    /// Parses a URL; `None` if its scheme belongs to another kind of store.
    pub fn parse(url: &str) -> Option<Result<Self, Error>> {
        let (scheme, rest) = url.split_once("://")?;
        let is_known = ["postgres", "postgresql"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        is_known.then(|| Self::read(Parts::split(rest, true, &FORM)?))
    }

    fn read(mut parts: Parts<'_>) -> Result<Self, Error> {
        let path = Some(decoded(parts.path)?).filter(|name| !name.is_empty());
        let nodes = read_nodes(&mut parts)?;
        let ssl_mode = match parts.take_text("sslmode")? {
            None => None,
            Some(text) => {
                Some(MODES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode).ok_or_else(|| {
                    let names: Vec<_> = MODES.iter().map(|(name, _)| *name).collect();
                    usage("has an unknown sslmode", &format!("write one of {}", names.join(", ")))
                })?)
            }
        };
        let ca = parts.take_path("sslrootcert")?;
        let trusts_system = ca.as_deref() == Some(Path::new("system"));
        let ssl_mode = match ssl_mode {
            // So libpq demands it: anybody gets a certificate of these authorities for another
            // host.
            Some(mode) if trusts_system && mode != SslMode::VerifyFull => {
                return Err(usage("has sslrootcert=system with a weaker sslmode", "write sslmode=verify-full"));
            }
            None if trusts_system => SslMode::VerifyFull,
            mode => mode.unwrap_or(SslMode::Prefer),
        };
        let identity = match (parts.take_path("sslcert")?, parts.take_path("sslkey")?) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(usage("has an sslcert without an sslkey, or the other way round", "give both")),
        };
        let requires_binding = match parts.take_text("channel_binding")?.as_deref() {
            None | Some("prefer" | "disable") => false,
            Some("require") => true,
            Some(_) => return Err(usage("has an unknown channel_binding", "write require or prefer")),
        };
        let is_direct = match parts.take_text("sslnegotiation")?.as_deref() {
            None | Some("postgres") => false,
            // A server could deny that it speaks TLS.
            Some("direct") if ssl_mode < SslMode::Require => {
                return Err(usage(
                    "has sslnegotiation=direct with a weaker sslmode",
                    "write sslmode=require or stronger",
                ));
            }
            Some("direct") => true,
            Some(_) => return Err(usage("has an unknown sslnegotiation", "write postgres or direct")),
        };
        let require_auth = parts.take_text("require_auth")?;
        if let Some(list) = &require_auth {
            let sign = if list.starts_with('!') { "!" } else { "" };
            if !list.split(',').all(|word| word.strip_prefix(sign).is_some_and(|name| LOGINS.contains(&name))) {
                let remedy = format!("write some of {}, or all of them with a !", LOGINS.join(","));
                return Err(usage("has an unknown require_auth", &remedy));
            }
        }
        match parts.take_text("target_session_attrs")?.as_deref() {
            None | Some("any" | "read-write" | "primary") => {}
            Some(_) => {
                return Err(usage(
                    "has target_session_attrs for a server that takes no writes",
                    "leave it out, as rlock always looks for the one that does",
                ));
            }
        }
        let connect_timeout = match parts.take_text("connect_timeout")? {
            None => None,
            // libpq waits for ever at 0, and for two seconds at least.
            Some(text) => Some(number::<u32>(&text).ok_or_else(|| {
                usage("has a connect_timeout that is no number of seconds", "write it as in ?connect_timeout=5")
            })?),
        };
        let connect_timeout = connect_timeout.filter(|seconds| *seconds > 0).map(|seconds| seconds.max(2));
        Ok(Self {
            servers: nodes.into_iter().map(|node| Server { node, credentials: Arc::default() }).collect(),
            user: parts.take_text("user")?.or(parts.user.take()),
            database: parts.take_text("dbname")?.or(path),
            password: parts.take_text("password")?.map(String::into_bytes).or(parts.password.take()).map(Password::new),
            ssl_mode,
            files: TlsFiles { ca: ca.filter(|_| !trusts_system), identity, server_name: None },
            trusts_system,
            is_direct,
            requires_binding,
            require_auth,
            connect_timeout: connect_timeout.map(|seconds| Duration::from_secs(seconds.into())),
            application: parts.take_text("application_name")?,
            own_name: "rlock".to_owned(),
            passfile: None,
            order: Arc::default(),
        })
    }

    /// Makes relative paths of files absolute, so that [`url`](Self::url) works in every directory.
    pub fn anchor(&mut self, directory: impl FnOnce() -> io::Result<PathBuf>) -> Result<(), Error> {
        self.files.anchor(directory).map_err(|_| {
            usage("has a relative path, but the working directory has none", "write absolute paths for sslrootcert")
        })
    }

    /// The files that the URL names.
    pub fn files(&self) -> Vec<&Path> {
        self.files.paths()
    }

    /// Whether [`complete`](Self::complete) blocks while the file system does.
    pub fn reads_files(&self, secrets: &Secrets) -> bool {
        secrets.file().is_some() || self.ssl_mode >= SslMode::Require
    }

    /// Fills in what the URL leaves to its surroundings. The other files are read at each
    /// connection.
    ///
    /// # Errors
    /// The file of the password can't be used, or that of an authority is missing.
    pub fn complete(mut self, secrets: &Secrets, user: String, limit: Duration) -> Result<Self, Error> {
        self.user.get_or_insert(user);
        let file = secrets.file().and_then(|file| std::path::absolute(file).ok());
        let common = match self.password.take() {
            Some(password) => Some((password, None)),
            None => secrets.read()?.map(|password| (password, file)),
        };
        let libpq = || Some(Password::new(secrets.libpq.password.clone()?.into_vec()));
        let common = common.or_else(|| libpq().map(|password| (password, None)));
        let home = secrets.libpq.home.as_deref();
        if let Some((password, file)) = common {
            let credentials = Arc::new(Credentials::new(Some(password), file, limit));
            self.servers.iter_mut().for_each(|server| server.credentials = Arc::clone(&credentials));
        } else {
            let passfile = secrets.libpq.passfile.clone().or_else(|| Some(home?.join(".pgpass")));
            self.passfile = passfile.and_then(|path| std::path::absolute(path).ok());
            let credentials = || Arc::new(Credentials::new(None, None, limit));
            self.servers.iter_mut().for_each(|server| server.credentials = credentials());
        }
        if !self.trusts_system && self.files.ca.is_none() && self.ssl_mode >= SslMode::Require {
            self.files.ca = home.map(|home| home.join(ROOTS)).filter(|roots| roots.exists());
        }
        if self.ssl_mode < SslMode::Require {
            // Nothing is checked by it.
            self.files.ca = None;
        }
        if self.ssl_mode == SslMode::VerifyCa && self.files.ca.is_none() {
            // Anybody gets a certificate of the system's authorities for another host.
            let remedy = "add sslrootcert=FILE, or write sslmode=verify-full";
            return Err(usage("has sslmode=verify-ca, but names no file of an authority", remedy));
        }
        Ok(self)
    }

    /// Whether [`load`](Self::load) reads any files.
    pub(super) fn has_files(&self, server: &Server) -> bool {
        self.passfile.is_some() || server.credentials.file().is_some() || self.encrypts()
    }

    /// Whether any connection may use TLS.
    fn encrypts(&self) -> bool {
        self.servers.iter().any(|server| self.may_encrypt(server))
    }

    /// Whether a connection to a server may use TLS.
    pub(super) fn may_encrypt(&self, server: &Server) -> bool {
        self.ssl_mode != SslMode::Disable && matches!(server.node, Node::Tcp { .. })
    }

    /// Reads the files that a connection to a server needs. Certificates that can't be read, as
    /// while one file of a pair is replaced, stay as they were `before`. So does a password. Blocks
    /// while the file system does.
    ///
    /// # Errors
    /// The certificates can't be used, or the password is one that was refused.
    pub(super) fn load(&self, server: &Server, before: Option<Loaded>) -> Result<Loaded, ErrorKind> {
        let file = self.passfile.as_deref().map(PassFile::read);
        let found = file.as_ref().and_then(|file| self.password_in(file.as_ref().ok()?, server));
        server.credentials.reread(found).map_err(|Refused| ErrorKind::WrongPassword)?;
        let checks = match self.ssl_mode {
            SslMode::Require if self.files.ca.is_some() => Checks::Authority,
            SslMode::VerifyCa => Checks::Authority,
            SslMode::VerifyFull => Checks::All,
            _ => Checks::Nothing,
        };
        let tls = match self.encrypts().then(|| tls::config(&self.files, checks, &SPELLING)).transpose() {
            Err(error) => Some(before.and_then(|before| before.tls).ok_or(error)?),
            Ok(mut config) => {
                if let Some(config) = config.as_mut().filter(|_| self.is_direct) {
                    Arc::make_mut(config).alpn_protocols = vec![ALPN.to_vec()];
                }
                config
            }
        };
        Ok(Loaded { tls, ignored: self.passfile.clone().zip(file.and_then(Result::err)) })
    }

    fn password_in(&self, file: &PassFile, server: &Server) -> Option<Password> {
        let (host, port) = match &server.node {
            Node::Tcp { host, port } => (host.clone(), port.to_string()),
            Node::Unix(socket) => {
                let (directory, port) = parts_of(socket);
                let is_usual = [SOCKETS].iter().chain(&OTHER_SOCKETS).any(|usual| *usual == directory);
                (if is_usual { "localhost".to_owned() } else { directory }, port)
            }
        };
        file.find([&host, &port, self.database(), self.user()])
    }

    /// Whether `require_auth` permits a login by this method.
    pub(super) fn permits(&self, method: &str) -> Result<(), ErrorKind> {
        let is_listed = |list: &str| list.split(',').any(|word| word.trim_start_matches('!') == method);
        match &self.require_auth {
            Some(list) if is_listed(list) == list.starts_with('!') => Err(ErrorKind::ForbiddenLogin(method.to_owned())),
            _ => Ok(()),
        }
    }

    /// Names this client by host and process id in pg_stat_activity.
    pub fn named(self, host: &str, pid: u32) -> Self {
        Self { own_name: format!("rlock:{host}:{pid}"), ..self }
    }

    /// The name of this client in pg_stat_activity.
    pub(crate) fn application(&self) -> &str {
        self.application.as_deref().unwrap_or(&self.own_name)
    }

    /// The user as whom to log in.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }

    /// The database, whose name is the user's unless the URL has one.
    pub fn database(&self) -> &str {
        self.database.as_deref().unwrap_or(self.user())
    }

    /// Whether the URL contains a password, for everybody who sees the URL.
    pub fn password_in_url(&self) -> bool {
        self.password.is_some()
    }

    /// How long to wait for an answer of any of the servers, where `limit` is the longest.
    pub(crate) fn limit(&self, limit: Duration) -> Duration {
        self.connect_timeout.map_or(limit, |each| limit.min(each * self.servers.len() as u32))
    }

    /// Whether both are reached by the same hosts and ports, and as the same user.
    pub fn has_same_servers(&self, other: &Self) -> bool {
        let nodes = |target: &Self| target.servers.iter().map(|server| server.node.clone()).collect::<Vec<_>>();
        nodes(self) == nodes(other) && self.user == other.user
    }

    /// The URL of the same store for another process, without passwords.
    pub fn url(&self) -> String {
        let user = self.user.as_deref().map(|user| format!("{}@", encode(user.as_bytes(), WORD))).unwrap_or_default();
        let mut url = self.address(&user);
        if let Some((name, _)) = MODES.iter().find(|(_, mode)| *mode == self.ssl_mode && *mode != SslMode::Prefer) {
            add_option(&mut url, "sslmode", name);
        }
        if self.trusts_system {
            add_option(&mut url, "sslrootcert", "system");
        } else if let Some(ca) = &self.files.ca {
            add_option(&mut url, "sslrootcert", ca);
        }
        if let Some((certificate, key)) = &self.files.identity {
            add_option(&mut url, "sslcert", certificate);
            add_option(&mut url, "sslkey", key);
        }
        if self.is_direct {
            add_option(&mut url, "sslnegotiation", "direct");
        }
        if self.requires_binding {
            add_option(&mut url, "channel_binding", "require");
        }
        if let Some(list) = &self.require_auth {
            add_option(&mut url, "require_auth", list);
        }
        if let Some(timeout) = self.connect_timeout {
            add_option(&mut url, "connect_timeout", timeout.as_secs().to_string());
        }
        if let Some(name) = &self.application {
            add_option(&mut url, "application_name", name);
        }
        url
    }

    /// The store as messages name it.
    pub fn shown(&self) -> String {
        self.address("")
    }

    /// A server of the store as messages name it.
    pub fn shown_node(&self, node: &Node) -> String {
        match node {
            Node::Tcp { .. } => format!("postgres://{node}"),
            Node::Unix(_) => format!("postgres://{}", self.address_of_sockets(&[node])),
        }
    }

    fn address(&self, user: &str) -> String {
        let nodes: Vec<_> = self.servers.iter().map(|server| &server.node).collect();
        if nodes.iter().any(|node| matches!(node, Node::Unix(_))) {
            return format!("postgres://{user}{}", self.address_of_sockets(&nodes));
        }
        let hosts: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let database = self.database.as_deref().map(|name| format!("/{}", encode(name.as_bytes(), WORD)));
        format!("postgres://{user}{}{}", hosts.join(","), database.unwrap_or_default())
    }

    /// The hosts and ports as options: a directory of a socket has no place before the path.
    fn address_of_sockets(&self, nodes: &[&Node]) -> String {
        let (hosts, ports): (Vec<_>, Vec<_>) = nodes
            .iter()
            .map(|node| match node {
                Node::Tcp { host, port } => (host.clone(), port.to_string()),
                Node::Unix(socket) => parts_of(socket),
            })
            .unzip();
        let database = encode(self.database.as_deref().unwrap_or_default().as_bytes(), WORD);
        format!("/{database}?host={}&port={}", encode(hosts.join(",").as_bytes(), PATH), ports.join(","))
    }
}

/// The directory of a socket and its port.
fn parts_of(socket: &Path) -> (String, String) {
    let directory = socket.parent().unwrap_or(socket).to_string_lossy().into_owned();
    (directory, socket.extension().unwrap_or_default().to_string_lossy().into_owned())
}

/// The hosts and ports before the path, or those of the options in the place of either.
fn read_nodes(parts: &mut Parts<'_>) -> Result<Vec<Node>, Error> {
    let option = |text: &str| port_number(text, "write it as in ?port=5433");
    let own = |(host, port): &(String, Option<&str>)| match port {
        Some(text) if host.is_empty() => option(text).map(Some),
        port => {
            port.map(|text| port_number(text, &format!("write it as in {}://host:{PORT}", FORM.scheme))).transpose()
        }
    };
    let named = parts.hosts.split(',').map(|text| FORM.host_and_port(text)).collect::<Result<Vec<_>, _>>()?;
    let ports: Vec<Option<u16>> = match parts.take_text("port")? {
        Some(text) => text.split(',').map(|text| option(text).map(Some)).collect::<Result<_, _>>()?,
        None => named.iter().map(own).collect::<Result<_, _>>()?,
    };
    // An address of IPv6 has no brackets in the option.
    let option = parts.take_text("host")?;
    let is_option = option.is_some();
    let hosts: Vec<String> = match option {
        Some(text) => text.split(',').map(str::to_owned).collect(),
        None => named.into_iter().map(|(host, _)| host).collect(),
    };
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(usage("has another number of ports than of hosts", "give one port, or one for each host"));
    }
    let node = |(index, host): (usize, String)| {
        let port = ports.get(index).or(ports.first()).copied().flatten().unwrap_or(PORT);
        if host.is_empty() || host.starts_with('/') {
            return socket(if host.is_empty() { SOCKETS } else { &host }, port);
        }
        if is_option { Ok(Node::Tcp { host, port }) } else { FORM.node((host, None), port) }
    };
    hosts.into_iter().enumerate().map(node).collect()
}

fn socket(directory: &str, port: u16) -> Result<Node, Error> {
    let path = format!("{}/.s.PGSQL.{port}", directory.trim_end_matches('/'));
    Node::socket(path.into_bytes())
        .ok_or_else(|| usage("has a directory of a socket that the system can't use", "it takes at most 90 bytes"))
}

#[cfg(test)]
mod tests;
