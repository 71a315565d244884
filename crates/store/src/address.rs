//! Splits the URL of a store on servers into its parts, and writes options behind one.
//!
//! The crate `url` does not do: it rejects the zone of an IPv6 address, a user before the path of a
//! socket and a port behind one of several hosts, and it drops tabs from a password.
//!
//! No message quotes a part of a URL that may belong to a password.

use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::error::Error;
use super::node::{Node, number};
use super::percent::{PATH, decode, encode};
use rlock_words::Explained;

/// How the URLs of a kind of store look.
pub struct Form {
    /// The scheme of the examples in messages.
    pub scheme: &'static str,
    /// The port of the examples in messages.
    pub port: u16,
    /// The options behind the question mark.
    pub options: &'static [&'static str],
}

/// A mistake in a URL.
pub fn usage(what: &str, remedy: &str) -> Error {
    Error::Usage(Explained::new(format!("the URL of the store {what}"), remedy))
}

/// A mistake that shows by itself what to do.
pub fn plain_usage(what: &str) -> Error {
    Error::Usage(format!("the URL of the store {what}").into())
}

impl Form {
    /// Parses hosts, each perhaps with a port.
    ///
    /// # Errors
    /// A host or a port is none.
    pub fn nodes(&self, hosts: &str, default_port: u16) -> Result<Vec<Node>, Error> {
        let node = |text| self.node(self.host_and_port(text)?, default_port);
        hosts.split(',').map(node).collect()
    }

    /// Splits a host, which may be an address of IPv6 in brackets, from the text of its port.
    ///
    /// # Errors
    /// The brackets, the colons or the escapes make no sense.
    pub fn host_and_port<'t>(&self, text: &'t str) -> Result<(String, Option<&'t str>), Error> {
        let Some(rest) = text.strip_prefix('[') else {
            return match text.split_once(':') {
                None => Ok((decoded(text)?, None)),
                Some((_, port)) if port.contains(':') => Err(usage(
                    "has too many colons",
                    &format!("write an IPv6 address in brackets, as in {}://[::1]:{}", self.scheme, self.port),
                )),
                Some((host, port)) => Ok((decoded(host)?, Some(port))),
            };
        };
        let (address, rest) =
            rest.split_once(']').ok_or_else(|| plain_usage("has a '[' without ']' around an IPv6 address"))?;
        let port = rest.strip_prefix(':');
        if port.is_none() && !rest.is_empty() {
            return Err(plain_usage("has something between ']' and the port"));
        }
        let address = decoded(address)?;
        let literal = address.split_once('%').map_or(address.as_str(), |(literal, _zone)| literal);
        if literal.parse::<Ipv6Addr>().is_err() {
            return Err(plain_usage("has something in brackets that is no IPv6 address"));
        }
        Ok((address, port))
    }

    /// The server at a host and a port.
    ///
    /// # Errors
    /// The host or the port is none.
    pub fn node(&self, (host, port): (String, Option<&str>), default_port: u16) -> Result<Node, Error> {
        let example = format!("write it as in {}://host:{}", self.scheme, self.port);
        if host.is_empty() {
            return Err(usage("lacks a host", &example));
        }
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte)) {
            return Err(plain_usage("has a host with characters that no host name or address has"));
        }
        let port = port.map_or(Ok(default_port), |port| port_number(port, &example))?;
        Ok(Node::Tcp { host, port })
    }
}

/// Parses a port.
///
/// # Errors
/// The text is none. The `example` says how to write one.
pub fn port_number(text: &str, example: &str) -> Result<u16, Error> {
    let number = number(text).filter(|port| *port != 0);
    number.ok_or_else(|| usage("has a port that is no number from 1 to 65535", example))
}

/// The parts of a URL after its scheme.
pub struct Parts<'a> {
    /// The user before the `@`.
    pub user: Option<String>,
    /// The password between a colon and the `@`.
    pub password: Option<Vec<u8>>,
    /// What stands after the `@`: hosts with their ports, separated by commas. It may be empty.
    pub hosts: &'a str,
    /// Without the slash before it.
    pub path: &'a str,
    /// Those that were not taken yet.
    pub options: Vec<(&'a str, Vec<u8>)>,
}

impl<'a> Parts<'a> {
    /// Splits `rest`, which stands after `://`. If it `may_lack_host`, the path of a URL without
    /// hosts may have an `@`.
    ///
    /// # Errors
    /// The URL has a fragment, a misplaced `@` or a bad escape, or an option is unknown, empty or
    /// doubled.
    pub fn split(rest: &'a str, may_lack_host: bool, form: &Form) -> Result<Self, Error> {
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
        let path = path.strip_prefix('/').unwrap_or(path);
        let mut parts = Self { user: None, password: None, hosts, path, options: Vec::new() };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !form.options.contains(&name) {
                return Err(unknown_option(name, rest, form));
            }
            if value.is_empty() {
                return Err(usage(&format!("has the option '{name}' without a value"), &format!("write {name}=VALUE")));
            }
            if parts.options.iter().any(|(known, _)| *known == name) {
                return Err(usage(&format!("has the option '{name}' twice"), "leave one out"));
            }
            parts.options.push((name, decoded_bytes(value)?));
        }
        let (user, password) = userinfo.map_or(("", ""), |userinfo| userinfo.split_once(':').unwrap_or((userinfo, "")));
        parts.user = Some(decoded(user)?).filter(|user| !user.is_empty());
        parts.password = Some(decoded_bytes(password)?).filter(|password| !password.is_empty());
        Ok(parts)
    }

    /// Removes an option and returns its bytes; `None` if the URL lacks it.
    pub fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.options.iter().position(|(known, _)| *known == name)?;
        Some(self.options.swap_remove(at).1)
    }

    /// Removes an option and returns its text; `None` if the URL lacks it.
    ///
    /// # Errors
    /// The value is not UTF-8 or has control characters.
    pub fn take_text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let text = self.take(name).map(String::from_utf8).transpose().ok();
        text.filter(|text| !text.iter().any(|text| text.chars().any(char::is_control)))
            .ok_or_else(|| plain_usage(&format!("has an option '{name}' that is not plain text")))
    }

    /// Removes an option and returns its path; `None` if the URL lacks it.
    ///
    /// # Errors
    /// The value has a zero byte.
    pub fn take_path(&mut self, name: &str) -> Result<Option<PathBuf>, Error> {
        match self.take(name) {
            Some(path) if path.contains(&0) => Err(plain_usage(&format!("has an option '{name}' that is no path"))),
            path => Ok(path.map(|path| OsString::from_vec(path).into())),
        }
    }
}

fn unknown_option(name: &str, rest: &str, form: &Form) -> Error {
    if name.eq_ignore_ascii_case("password") || name.eq_ignore_ascii_case("username") {
        return usage(
            "has a password or user as an option",
            &format!("write it as in {}://user:password@host, or set RLOCK_PASSWORD", form.scheme),
        );
    }
    // After an '@', or with odd characters, this may be the end of a password that contains a '?'.
    let is_a_word = name.len() <= 30 && name.bytes().all(|byte| byte.is_ascii_lowercase() || b"-_".contains(&byte));
    let shown = if is_a_word && !rest.contains('@') { format!(" '{name}'") } else { String::new() };
    usage(&format!("has an unknown option{shown}"), &format!("the options are {}", form.options.join(", ")))
}

/// Resolves the escapes of text.
///
/// # Errors
/// There is none, or the text is not UTF-8.
pub fn decoded(text: &str) -> Result<String, Error> {
    String::from_utf8(decoded_bytes(text)?).map_err(|_| plain_usage("has escapes in it that make no UTF-8 text"))
}

/// Resolves the escapes of text or other bytes.
///
/// # Errors
/// An escape is none.
pub fn decoded_bytes(text: &str) -> Result<Vec<u8>, Error> {
    decode(text).ok_or_else(|| usage("has a % without two hexadecimal digits", "write % itself as %25"))
}

/// Appends an option to a URL.
pub fn add_option(url: &mut String, name: &str, value: impl AsRef<OsStr>) {
    url.push(if url.contains('?') { '&' } else { '?' });
    url.extend([name, "=", &encode(value.as_ref().as_bytes(), PATH)]);
}
