//! How the names of resources become keys, channels and hash slots, and keys become names again.
//!
//! A resource has five keys, all in the slot of its tag: that of its own name's `{tag}`, else the
//! name. They are `NAMESPACE:1:{TAG}NAME:d` and so on, where NAME is left out if it is the tag, and
//! each part is percent-encoded, so that neither braces nor colons nor the wildcards of SCAN are
//! anything but ours. The 1 is the format of what lies under the keys.

use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::store::percent::{decode, encode};

/// How many hash slots a Cluster has.
const SLOTS: u16 = 16384;

/// The kinds of keys of a resource, in the order in which scripts are given them: hash of records,
/// expiries, queue, lower and upper ends.
const KINDS: [char; 5] = ['d', 'e', 'q', 'l', 'u'];

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub struct Keyspace {
    /// What every key begins with: the namespace and the format.
    start: String,
}

impl Keyspace {
    /// The keys of a namespace.
    pub fn new(namespace: &str) -> Self {
        Self { start: format!("{}:1:{{", encoded(namespace)) }
    }

    /// The keys of a resource.
    pub fn keys(&self, resource: &Resource) -> [String; 5] {
        let prefix = self.prefix(resource);
        KINDS.map(|kind| format!("{prefix}:{kind}"))
    }

    /// The keys of some resources in a message: a pattern for those of each.
    pub(super) fn shown(&self, resources: &[Resource]) -> String {
        let shown: Vec<_> = resources.iter().map(|resource| format!("'{}:*'", self.prefix(resource))).collect();
        shown.join(", ")
    }

    /// The channel on which a session hears of its grant; `first` is the first resource of its
    /// request.
    pub fn channel(&self, first: &Resource, session: SessionId) -> String {
        format!("{}:w:{session}", self.prefix(first))
    }

    /// The pattern by which SCAN finds one key of every resource.
    pub fn pattern(&self) -> String {
        format!("{}*:d", self.start)
    }

    /// The resource of a key that [`Keyspace::pattern`] found; none for a key that isn't ours.
    pub fn resource(&self, key: &[u8]) -> Option<Resource> {
        let key = std::str::from_utf8(key).ok()?;
        let (tag, rest) = key.strip_prefix(&self.start)?.strip_suffix(":d")?.split_once('}')?;
        let name = decoded(if rest.is_empty() { tag } else { rest })?;
        let resource = Resource::new(&name).ok()?;
        (self.keys(&resource)[0] == key).then_some(resource)
    }

    fn prefix(&self, resource: &Resource) -> String {
        let name = resource.as_str();
        let rest = own_tag(name).map(|_| encoded(name)).unwrap_or_default();
        format!("{}{}}}{rest}", self.start, encoded(tag(name)))
    }
}

/// The hash slot of a resource: a Cluster carries out a request only where those of all its
/// resources are the same.
pub fn slot(resource: &Resource) -> u16 {
    crc16(encoded(tag(resource.as_str())).as_bytes()) % SLOTS
}

fn tag(name: &str) -> &str {
    own_tag(name).unwrap_or(name)
}

/// What lies between the first `{` and the next `}`, unless it is nothing: the rule of Redis
/// Cluster.
pub(super) fn own_tag(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

fn encoded(text: &str) -> String {
    encode(text.as_bytes(), b"._-~/@+=,")
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(decode(text)?).ok()
}

/// CRC-16/XMODEM, by which a Cluster spreads its keys.
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
    fn keys_are_those_of_the_format() {
        let keys = Keyspace::new("my:locks").keys(&resource("a b"));
        let expected = ["d", "e", "q", "l", "u"].map(|kind| format!("my%3Alocks:1:{{a%20b}}:{kind}"));
        assert_eq!(keys, expected);
        let space = Keyspace::new("rlock");
        assert_eq!(space.keys(&resource("{app}:x"))[2], "rlock:1:{app}%7Bapp%7D%3Ax:q");
        assert_eq!(space.keys(&resource("{}"))[0], "rlock:1:{%7B%7D}:d");
        assert_eq!(space.pattern(), "rlock:1:{*:d");
        assert_eq!(
            space.channel(&resource("x"), SessionId([0xAB; 16])),
            format!("rlock:1:{{x}}:w:{}", "ab".repeat(16))
        );
    }

    #[test]
    fn names_come_back_and_never_share_a_key() {
        let space = Keyspace::new("rlock");
        let mut seen = std::collections::HashSet::new();
        for name in ODD {
            let keys = space.keys(&resource(name));
            assert_eq!(space.resource(keys[0].as_bytes()), Some(resource(name)), "{}", keys[0]);
            assert!(keys.into_iter().all(|key| seen.insert(key)), "{name}");
        }
    }

    #[test]
    fn other_keys_are_nobodys() {
        let space = Keyspace::new("rlock");
        for key in [
            "rlock:1:{x}:e",
            "rlock:2:{x}:d",
            "rlock2:1:{x}:d",
            "rlock:1:{x:d",
            "rlock:1:{}:d",
            "rlock:1:{x}y:d",
            "rlock:1:{%7}:d",
            "rlock:1:{%é}:d",
            "rlock:1:{%61}:d",
            "rlock:1:{x}%7Bx%7D%0A:d",
        ] {
            assert_eq!(space.resource(key.as_bytes()), None, "{key}");
        }
        assert_eq!(space.resource(b"rlock:1:{\xFF}:d"), None);
    }

    /// All that has a meaning in a key or in a pattern is ours.
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
    fn slots_are_those_of_a_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // What CLUSTER KEYSLOT says of their keys.
        for (name, expected) in
            [("foo", 12182), ("a b", 6706), ("{app}:x", 6805), ("app", 6805), ("{}", 10163), ("名前", 10742)]
        {
            assert_eq!(slot(&resource(name)), expected, "{name}");
        }
    }
}
