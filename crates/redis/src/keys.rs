//! Maps the names of resources to keys, channels and hash slots, and keys to names.
//!
//! A resource has up to seven keys, all in the slot of its tag: the `{tag}` in its name, else the
//! whole name. They are `NAMESPACE:{TAG}NAME:s` and so on, without NAME if it is the tag. Each part
//! is percent-encoded, so that only this scheme uses braces, colons and the wildcards of SCAN.

use std::fmt::Write as _;

use redis::Cmd;

use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::percent::{append_encoded, decode, encode};

/// The number of hash slots of a Cluster.
const SLOTS: u16 = 16384;

/// The number of keys of a resource.
pub const KINDS_LEN: usize = KINDS.len();

/// The kinds of keys of a resource, in the order of the KEYS of a script: the state, the hash of
/// records, the expiries, the queue, the lower and the upper ends, and the history.
pub const KINDS: [&str; 7] = [":s", ":d", ":e", ":q", ":l", ":u", ":h"];

/// The bytes that need no escape.
const PLAIN: &[u8] = b"._-~/@+=,";

/// The length of what follows the prefix of a channel, which is longer than that of a key.
const SUFFIX: usize = ":w:".len() + 32;

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub struct Keyspace {
    /// The begin of every key, up to the brace before the tag.
    start: String,
}

impl Keyspace {
    /// The keys of a namespace.
    pub fn new(namespace: &str) -> Self {
        Self { start: format!("{}:{{", encoded(namespace)) }
    }

    /// The keys of a resource.
    pub fn keys(&self, resource: &Resource) -> [String; KINDS_LEN] {
        let prefix = self.prefix(resource);
        KINDS.map(|kind| [prefix.as_str(), kind].concat())
    }

    /// Adds the keys of a resource to a command.
    pub(super) fn add_keys(&self, resource: &Resource, command: &mut Cmd) {
        let mut key = self.prefix(resource);
        let start = key.len();
        for kind in KINDS {
            key.truncate(start);
            key.push_str(kind);
            command.arg(&key);
        }
    }

    /// Patterns for the keys of these resources, for messages.
    pub(super) fn shown(&self, resources: &[Resource]) -> String {
        let shown: Vec<_> = resources.iter().map(|resource| format!("'{}:*'", self.prefix(resource))).collect();
        shown.join(", ")
    }

    /// A key or a channel of the namespace that no resource has.
    pub(super) fn unused(&self, end: &str) -> String {
        format!("{}}}{end}", self.start)
    }

    /// The channel on which a session learns of its grant. `first` is the first resource of its
    /// request.
    pub fn channel(&self, first: &Resource, session: SessionId) -> String {
        let mut channel = self.prefix(first);
        let _ = write!(channel, ":w:{session}");
        channel
    }

    /// The SCAN pattern that matches one key of every resource.
    pub fn pattern(&self) -> String {
        format!("{}*:s", self.start)
    }

    /// The resource of a key that matches [`Keyspace::pattern`]; `None` for a foreign key.
    pub fn resource(&self, key: &[u8]) -> Option<Resource> {
        let key = std::str::from_utf8(key).ok()?;
        let (tag, rest) = key.strip_prefix(&self.start)?.strip_suffix(KINDS[0])?.split_once('}')?;
        let name = decoded(if rest.is_empty() { tag } else { rest })?;
        let resource = Resource::new(&name).ok()?;
        (self.keys(&resource)[0] == key).then_some(resource)
    }

    /// The begin of every key and channel of a resource, with room for the rest.
    fn prefix(&self, resource: &Resource) -> String {
        let name = resource.as_str();
        let (tag, rest) = own_tag(name).map_or((name, ""), |tag| (tag, name));
        // An escape has three bytes.
        let most = self.start.len() + 3 * (tag.len() + rest.len()) + "}".len() + SUFFIX;
        let mut prefix = String::with_capacity(most);
        prefix.push_str(&self.start);
        append_encoded(&mut prefix, tag.as_bytes(), PLAIN);
        prefix.push('}');
        append_encoded(&mut prefix, rest.as_bytes(), PLAIN);
        prefix
    }
}

/// The session that listens on a channel; `None` for a foreign channel.
pub(super) fn session(channel: &str) -> Option<SessionId> {
    channel.rsplit_once(":w:")?.1.parse().ok()
}

/// The hash slot of a resource. A Cluster accepts a request only if all its resources have the same
/// slot.
pub fn slot(resource: &Resource) -> u16 {
    crc16(encoded(tag(resource.as_str())).as_bytes()) % SLOTS
}

fn tag(name: &str) -> &str {
    own_tag(name).unwrap_or(name)
}

/// The text between the first `{` and the next `}`, unless it is empty. This is the rule of Redis
/// Cluster.
pub(super) fn own_tag(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

fn encoded(text: &str) -> String {
    encode(text.as_bytes(), PLAIN)
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(decode(text)?).ok()
}

/// CRC-16/XMODEM, which assigns keys to slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        (0..8).fold(crc ^ u16::from(*byte) << 8, shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [&str; 16] = [
        "nightly",
        "a b",
        "a:b",
        "{",
        "}",
        "{}",
        "{}x",
        "}{x}",
        "{{x}}",
        "{x}",
        "x",
        "%7Bx%7D",
        "*?[a-z]\\^",
        "名前 é",
        "/var/lib/x.lock",
        "{app}:d",
    ];

    fn resource(name: &str) -> Resource {
        Resource::new(name).unwrap()
    }

    #[test]
    fn keys_follow_the_format() {
        let keys = Keyspace::new("my:locks").keys(&resource("a b"));
        let expected = ["s", "d", "e", "q", "l", "u", "h"].map(|kind| format!("my%3Alocks:{{a%20b}}:{kind}"));
        assert_eq!(keys, expected);
        let space = Keyspace::new("rlock");
        assert_eq!(space.keys(&resource("{app}:x"))[3], "rlock:{app}%7Bapp%7D%3Ax:q");
        assert_eq!(space.keys(&resource("{}"))[0], "rlock:{%7B%7D}:s");
        assert_eq!(space.pattern(), "rlock:{*:s");
        assert_eq!(space.channel(&resource("x"), SessionId([0xAB; 16])), format!("rlock:{{x}}:w:{}", "ab".repeat(16)));
    }

    #[test]
    fn names_round_trip_and_never_share_a_key() {
        let space = Keyspace::new("rlock");
        let mut seen = std::collections::HashSet::new();
        for name in ODD {
            let keys = space.keys(&resource(name));
            assert_eq!(space.resource(keys[0].as_bytes()), Some(resource(name)), "{}", keys[0]);
            assert!(keys.into_iter().all(|key| seen.insert(key)), "{name}");
        }
    }

    #[test]
    fn foreign_keys_have_no_resource() {
        let space = Keyspace::new("rlock");
        for key in [
            "rlock:{x}:e",
            "rlock:1:{x}:s",
            "rlock2:{x}:s",
            "rlock:{x:s",
            "rlock:{}:s",
            "rlock:{x}y:s",
            "rlock:{%7}:s",
            "rlock:{%é}:s",
            "rlock:{%61}:s",
            "rlock:{x}%7Bx%7D%0A:s",
        ] {
            assert_eq!(space.resource(key.as_bytes()), None, "{key}");
        }
        assert_eq!(space.resource(b"rlock:{\xFF}:s"), None);
    }

    /// Names and namespaces cannot introduce syntax of keys or patterns.
    #[test]
    fn keys_have_one_pair_of_braces_and_no_wildcards() {
        for name in ODD {
            for key in Keyspace::new(name).keys(&resource(name)) {
                assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
                assert!(!key.contains(['*', '?', '[', ']', '\\', ' ']) && key.is_ascii(), "{key}");
            }
        }
    }

    #[test]
    fn slots_match_cluster_keyslot() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // CLUSTER KEYSLOT returned these slots for the keys.
        for (name, expected) in
            [("foo", 12182), ("a b", 6706), ("{app}:x", 6805), ("app", 6805), ("{}", 10163), ("名前", 10742)]
        {
            assert_eq!(slot(&resource(name)), expected, "{name}");
        }
    }
}
