//! Parses the URL of a store on servers.

use std::sync::Arc;

use super::{Kind, Login, Target};
use rlock_store::address::{Form, Parts, decoded, decoded_bytes, usage};
use rlock_store::error::Error;
use rlock_store::network::tls::TlsFiles;
use rlock_store::node::{Node, SOCKET_PATH_BYTES_MAX, number};
use rlock_store::secrets::Password;

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// How the URLs look.
const FORM: Form = Form {
    scheme: "redis",
    port: SERVER_PORT,
    options: &["db", "ca", "cert", "key", "server-name", "sentinel-username", "sentinel-password"],
};

impl Target {
    /// Parses a URL; `None` if its scheme belongs to another kind of store.
    pub fn parse(url: &str) -> Option<Result<Self, Error>> {
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
        Some(Parts::split(rest, suffix == "unix", &FORM).and_then(|parts| Self::read(parts, family, is_tls, read)))
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
            login: Login { username: parts.user.take(), password: parts.password.take().map(Password::new) },
            credentials: Arc::default(),
            sentinel_login: Login::default(),
            db: 0,
            client_name: None,
            known: Arc::default(),
            order: Arc::default(),
            password_in_url: false,
            scheme,
        };
        target.read_tls(&mut parts)?;
        read(&mut target, &mut parts)?;
        target.password_in_url = target.login.password.is_some() || target.sentinel_login.password.is_some();
        nothing_left(&parts)?;
        Ok(target)
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
        self.nodes = FORM.nodes(parts.hosts, SERVER_PORT)?;
        self.db = db(parts, parts.path)?;
        Ok(())
    }

    fn unix(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        if !matches!(parts.hosts, "" | "localhost") || parts.path.is_empty() {
            return Err(usage("needs an absolute path", "write it as in redis+unix:///run/redis/redis.sock"));
        }
        let socket = Node::socket(decoded_bytes(&format!("/{}", parts.path))?);
        self.nodes = vec![socket.ok_or_else(|| {
            usage(
                "has a socket path that the system can't use",
                &format!("it takes at most {SOCKET_PATH_BYTES_MAX} bytes and no NUL"),
            )
        })?];
        self.db = db(parts, "")?;
        Ok(())
    }

    fn sentinel(&mut self, parts: &mut Parts<'_>) -> Result<(), Error> {
        self.nodes = FORM.nodes(parts.hosts, SENTINEL_PORT)?;
        let (master, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
        let master = decoded(master)?;
        if master.is_empty() || master.chars().any(char::is_control) {
            return Err(usage(
                "lacks the name of the primary",
                "write it as in redis+sentinel://host:26379/master-name",
            ));
        }
        self.kind = Kind::Sentinel { master };
        self.db = db(parts, database)?;
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
        self.nodes = FORM.nodes(parts.hosts, SERVER_PORT)?;
        self.kind = Kind::Cluster;
        if db(parts, parts.path)? != 0 {
            return Err(usage("has a database number, but rlock uses database 0 of a Cluster", "leave it out"));
        }
        Ok(())
    }
}

fn db(parts: &mut Parts<'_>, in_path: &str) -> Result<u32, Error> {
    let bad = || usage("has a database that is no number", "write it as in redis://host:6379/2 or ?db=2");
    let in_path = match in_path {
        "" => None,
        text => Some(number::<u32>(text).ok_or_else(bad)?),
    };
    let as_option = match parts.take_text("db")? {
        None => None,
        Some(text) => Some(number::<u32>(&text).ok_or_else(bad)?),
    };
    match (in_path, as_option) {
        (Some(one), Some(other)) if one != other => Err(usage("has two different databases", "leave one out")),
        (one, other) => Ok(one.or(other).unwrap_or(0)),
    }
}

fn nothing_left(parts: &Parts<'_>) -> Result<(), Error> {
    match parts.options.first() {
        None => Ok(()),
        Some((name, _)) => Err(usage(&format!("has the option '{name}', which is for Sentinels"), "leave it out")),
    }
}
