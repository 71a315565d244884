//! Parses the URL of a store on servers.

use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::node::{Node, number};
use super::super::secrets::Password;
use super::{Kind, Login, Target, TlsFiles, plain_usage, usage};
use crate::store::error::Error;
use crate::store::percent::decode;

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The room in the kernel without the final NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl Node {
    fn with_default_port(text: &str, default: u16) -> Result<Self, Error> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) =
                    rest.split_once(']').ok_or_else(|| plain_usage("has a '[' without ']' around an IPv6 address"))?;
                let port = match rest {
                    "" => None,
                    rest => Some(
                        rest.strip_prefix(':').ok_or_else(|| plain_usage("has something between ']' and the port"))?,
                    ),
                };
                let address = decoded(address)?;
                let literal = address.split_once('%').map_or(address.as_str(), |(literal, _zone)| literal);
                if literal.parse::<Ipv6Addr>().is_err() {
                    return Err(plain_usage("has something in brackets that is no IPv6 address"));
                }
                (address, port)
            }
            None => match text.split_once(':') {
                None => (decoded(text)?, None),
                Some((_, port)) if port.contains(':') => {
                    return Err(usage(
                        "has too many colons",
                        "write an IPv6 address in brackets, as in redis://[::1]:6379",
                    ));
                }
                Some((host, port)) => (decoded(host)?, Some(port)),
            },
        };
        if host.is_empty() {
            return Err(usage("lacks a host", "write it as in redis://host:6379"));
        }
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte)) {
            return Err(plain_usage("has a host with characters that no host name or address has"));
        }
        let port = match port {
            None => default,
            Some(port) => number(port).filter(|port| *port != 0).ok_or_else(|| {
                usage("has a port that is no number from 1 to 65535", "write it as in redis://host:6379")
            })?,
        };
        Ok(Self::Tcp { host, port })
    }
}

impl Target {
    /// Parses a URL; `None` if its scheme belongs to another kind of store.
    pub(crate) fn parse(url: &str) -> Option<Result<Self, Error>> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let (family, suffix) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let family = ["redis", "rediss", "valkey", "valkeys"].into_iter().find(|known| *known == family)?;
        let is_tls = family.ends_with("ss") || family.ends_with("ys");
        let read = match (suffix, is_tls) {
            ("", _) => Self::single,
            ("unix", false) => Self::unix,
            ("sentinel", _) => Self::sentinel,
            ("cluster", _) => Self::cluster,
            _ => return None,
        };
        Some(Parts::split(rest, suffix == "unix").and_then(|parts| Self::read(parts, family, is_tls, read)))
    }

    fn read(
        mut parts: Parts<'_>,
        scheme: &'static str,
        is_tls: bool,
        read: fn(&mut Self, &mut Parts<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut target = Self {
            kind: Kind::Single,
            nodes: Vec::new(),
            tls: is_tls.then(TlsFiles::default),
            tls_config: None,
            login: Login::default(),
            credentials: Arc::default(),
            sentinel_login: Login::default(),
            db: 0,
            client_name: None,
            known: Arc::default(),
            order: Arc::default(),
            password_in_url: false,
            scheme,
        };
        target.read_login(parts.userinfo)?;
        target.read_tls(&mut parts)?;
        read(&mut target, &mut parts)?;
        target.password_in_url = target.login.password.is_some() || target.sentinel_login.password.is_some();
        parts.nothing_left()?;
        Ok(target)
    }

    fn read_login(&mut self, userinfo: Option<&str>) -> Result<(), Error> {
        let Some(userinfo) = userinfo else { return Ok(()) };
        let (username, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let username = decoded(username)?;
        let password = decode(password).ok_or_else(bad_escape)?;
        self.login.username = Some(username).filter(|name| !name.is_empty());
        self.login.password = Some(Password::new(password)).filter(|password| !password.reveal().is_empty());
        Ok(())
    }

    fn read_tls(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        let files = TlsFiles {
            ca: parts.take_path("ca")?,
            identity: match (parts.take_path("cert")?, parts.take_path("key")?) {
                (None, None) => None,
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (Some(_), None) => return Err(usage("has a cert without a key", "give both")),
                (None, Some(_)) => return Err(usage("has a key without a cert", "give both")),
            },
            server_name: parts.take_text("server-name")?,
        };
        match &mut self.tls {
            Some(tls) => *tls = files,
            None if files == TlsFiles::default() => {}
            None => {
                return Err(usage(
                    "has ca, cert, key or server-name, which are for TLS",
                    "write rediss in place of redis",
                ));
            }
        }
        Ok(())
    }

    fn single(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        if parts.hosts.contains(',') {
            return Err(usage(
                "names several hosts",
                "write redis+cluster:// or redis+sentinel:// in place of redis://",
            ));
        }
        self.nodes = nodes(parts.hosts, SERVER_PORT)?;
        self.db = parts.db(parts.path)?;
        Ok(())
    }

    fn unix(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        if !matches!(parts.hosts, "" | "localhost") || parts.path.is_empty() {
            return Err(usage("needs an absolute path", "write it as in redis+unix:///run/redis/redis.sock"));
        }
        let path = decode(&format!("/{}", parts.path)).ok_or_else(bad_escape)?;
        if path.len() > SOCKET_PATH_BYTES_MAX || path.contains(&0) {
            return Err(usage(
                "has a socket path that the system can't use",
                &format!("it takes at most {SOCKET_PATH_BYTES_MAX} bytes and no NUL"),
            ));
        }
        self.nodes = vec![Node::Unix(OsString::from_vec(path).into())];
        self.db = parts.db("")?;
        Ok(())
    }

    fn sentinel(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        self.nodes = nodes(parts.hosts, SENTINEL_PORT)?;
        let (master, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
        let master = decoded(master)?;
        if master.is_empty() || master.chars().any(char::is_control) {
            return Err(usage(
                "lacks the name of the primary",
                "write it as in redis+sentinel://host:26379/master-name",
            ));
        }
        self.kind = Kind::Sentinel { master };
        self.db = parts.db(db)?;
        self.sentinel_login = Login {
            username: parts.take_text("sentinel-username")?,
            password: parts.take("sentinel-password").map(Password::new),
        };
        if self.sentinel_login.username.is_some() && self.sentinel_login.password.is_none() {
            return Err(usage("has a sentinel-username without a sentinel-password", "give both"));
        }
        Ok(())
    }

    fn cluster(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        self.nodes = nodes(parts.hosts, SERVER_PORT)?;
        self.kind = Kind::Cluster;
        if parts.db(parts.path)? != 0 {
            return Err(usage("has a database number, but rlock uses database 0 of a Cluster", "leave it out"));
        }
        Ok(())
    }
}

/// The parts of a URL after its scheme.
struct Parts<'a> {
    userinfo: Option<&'a str>,
    hosts: &'a str,
    /// Without the slash before it.
    path: &'a str,
    options: Vec<(&'a str, Vec<u8>)>,
}

impl<'a> Parts<'a> {
    fn split(rest: &'a str, may_lack_host: bool) -> Result<Self, Error> {
        if rest.contains('#') {
            return Err(usage("has a '#'", "write it as %23"));
        }
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        if userinfo.is_none() && tail.contains('@') && !(may_lack_host && hosts.is_empty()) {
            return Err(usage(
                "has an '@' behind a '/' or '?'",
                "write '/' as %2F and '?' as %3F in a password, '@' as %40",
            ));
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let mut parts = Self { userinfo, hosts, path: path.strip_prefix('/').unwrap_or(path), options: Vec::new() };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !OPTIONS.contains(&name) {
                return Err(unknown_option(name, rest));
            }
            if value.is_empty() {
                return Err(usage(&format!("has the option '{name}' without a value"), &format!("write {name}=VALUE")));
            }
            if parts.options.iter().any(|(known, _)| *known == name) {
                return Err(usage(&format!("has the option '{name}' twice"), "leave one out"));
            }
            parts.options.push((name, decode(value).ok_or_else(bad_escape)?));
        }
        Ok(parts)
    }

    fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.options.iter().position(|(known, _)| *known == name)?;
        Some(self.options.swap_remove(at).1)
    }

    fn take_text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let text = self.take(name).map(String::from_utf8).transpose().ok();
        text.filter(|text| !text.iter().any(|text| text.chars().any(char::is_control)))
            .ok_or_else(|| plain_usage(&format!("has an option '{name}' that is not plain text")))
    }

    fn take_path(&mut self, name: &str) -> Result<Option<PathBuf>, Error> {
        match self.take(name) {
            Some(path) if path.contains(&0) => Err(plain_usage(&format!("has an option '{name}' that is no path"))),
            path => Ok(path.map(|path| OsString::from_vec(path).into())),
        }
    }

    fn db(&mut self, in_path: &str) -> Result<u32, Error> {
        let bad = || usage("has a database that is no number", "write it as in redis://host:6379/2 or ?db=2");
        let in_path = match in_path {
            "" => None,
            text => Some(number::<u32>(text).ok_or_else(bad)?),
        };
        let as_option = match self.take_text("db")? {
            None => None,
            Some(text) => Some(number::<u32>(&text).ok_or_else(bad)?),
        };
        match (in_path, as_option) {
            (Some(one), Some(other)) if one != other => Err(usage("has two different databases", "leave one out")),
            (one, other) => Ok(one.or(other).unwrap_or(0)),
        }
    }

    fn nothing_left(&self) -> Result<(), Error> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => Err(usage(&format!("has the option '{name}', which is for Sentinels"), "leave it out")),
        }
    }
}

const OPTIONS: [&str; 7] = ["db", "ca", "cert", "key", "server-name", "sentinel-username", "sentinel-password"];

fn unknown_option(name: &str, rest: &str) -> Error {
    if name.eq_ignore_ascii_case("password") || name.eq_ignore_ascii_case("username") {
        return usage(
            "has a password or user as an option",
            "write it as in redis://user:password@host, or set RLOCK_PASSWORD",
        );
    }
    // After an '@', or with odd characters, this may be the end of a password that contains a '?'.
    let is_a_word = name.len() <= 30 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let shown = if is_a_word && !rest.contains('@') { format!(" '{name}'") } else { String::new() };
    usage(&format!("has an unknown option{shown}"), &format!("the options are {}", OPTIONS.join(", ")))
}

fn nodes(hosts: &str, default_port: u16) -> Result<Vec<Node>, Error> {
    hosts.split(',').map(|host| Node::with_default_port(host, default_port)).collect()
}

fn decoded(text: &str) -> Result<String, Error> {
    let bytes = decode(text).ok_or_else(bad_escape)?;
    String::from_utf8(bytes).map_err(|_| plain_usage("has escapes in it that make no UTF-8 text"))
}

fn bad_escape() -> Error {
    usage("has a % without two hexadecimal digits", "write % itself as %25")
}
