//! Splits the URL of a store on servers into its parts.
//!
//! No message quotes a part of a URL that may belong to a password.

use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::error::Error;
use super::node::{Node, number};
use super::percent::decode;
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
    fn example(&self) -> String {
        format!("write it as in {}://host:{}", self.scheme, self.port)
    }
}

impl Node {
    fn with_default_port(text: &str, default: u16, form: &Form) -> Result<Self, Error> {
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
                        &format!("write an IPv6 address in brackets, as in {}://[::1]:{}", form.scheme, form.port),
                    ));
                }
                Some((host, port)) => (decoded(host)?, Some(port)),
            },
        };
        if host.is_empty() {
            return Err(usage("lacks a host", &form.example()));
        }
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte)) {
            return Err(plain_usage("has a host with characters that no host name or address has"));
        }
        let port = match port {
            None => default,
            Some(port) => number(port)
                .filter(|port| *port != 0)
                .ok_or_else(|| usage("has a port that is no number from 1 to 65535", &form.example()))?,
        };
        Ok(Self::Tcp { host, port })
    }
}

/// The parts of a URL after its scheme.
pub struct Parts<'a> {
    /// What stands before the `@`, still encoded: a user, and perhaps a password after a colon.
    pub userinfo: Option<&'a str>,
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
    /// The URL has a fragment or a misplaced `@`, or an option is unknown, empty, doubled or badly
    /// escaped.
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
        let mut parts = Self { userinfo, hosts, path: path.strip_prefix('/').unwrap_or(path), options: Vec::new() };
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
            parts.options.push((name, decode(value).ok_or_else(bad_escape)?));
        }
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
    let is_a_word = name.len() <= 30 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let shown = if is_a_word && !rest.contains('@') { format!(" '{name}'") } else { String::new() };
    usage(&format!("has an unknown option{shown}"), &format!("the options are {}", form.options.join(", ")))
}

/// Parses hosts, each perhaps with a port.
pub fn nodes(hosts: &str, default_port: u16, form: &Form) -> Result<Vec<Node>, Error> {
    hosts.split(',').map(|host| Node::with_default_port(host, default_port, form)).collect()
}

/// Resolves the escapes of text.
pub fn decoded(text: &str) -> Result<String, Error> {
    let bytes = decode(text).ok_or_else(bad_escape)?;
    String::from_utf8(bytes).map_err(|_| plain_usage("has escapes in it that make no UTF-8 text"))
}

/// The mistake of an escape that is none.
pub fn bad_escape() -> Error {
    usage("has a % without two hexadecimal digits", "write % itself as %25")
}
